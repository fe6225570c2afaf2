from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fedfloor.data.files import content, find
from refusals import refused


def test_packed_and_plain_give_the_same_content(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"content")
    (tmp_path / "packed.gz").write_bytes(gzip.compress(b"content"))
    (tmp_path / "packed").write_bytes(gzip.compress(b"content"))  # the name lost its .gz
    assert {content(tmp_path / name) for name in ("plain", "packed.gz", "packed")} == {b"content"}


def test_find_prefers_the_packed_file(tmp_path: Path) -> None:
    assert find(tmp_path, "a") is None
    (tmp_path / "a").touch()
    assert find(tmp_path, "a") == tmp_path / "a"
    (tmp_path / "a.gz").touch()
    assert find(tmp_path, "a") == tmp_path / "a.gz"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda packed: packed[:-9], "published-file"),
        (lambda packed: b"<html>not found</html>", "published-file"),
        (lambda packed: b"", "published-file"),
        (lambda packed: packed[:-8] + b"\0\0\0\0" + packed[-4:], "published-file"),  # the checksum
        (lambda packed: packed[:10] + b"\xff" * 20 + packed[30:], "published-file"),
    ],
)
def test_damaged_packing_is_refused_by_name(tmp_path: Path, spoil, words: str) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(spoil(gzip.compress(bytes(range(256)) * 4)))
    with refused(words) as caught:
        content(path)
    assert str(path) in str(caught.value)


def test_unreadable_is_a_setting_error(tmp_path: Path) -> None:
    with refused("unreadable-file"):
        content(tmp_path)
