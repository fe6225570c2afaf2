"""Downloads from a server on this machine: what is fetched, kept and left alone."""

from __future__ import annotations

import gzip
import os
import re
import stat
from pathlib import Path

import pytest

from fedfloor.base.errors import RunError
from fedfloor.data.download import get
from fedfloor.data.sources import CATALOG, PUBLISHED, SOURCES
from refusals import refused
from web import CLOSED, ONE, TWO, Server, names, published, refuse, states

# -- what works --------------------------------------------------------------------------------------------------------


def test_files_come_whole_and_are_kept_the_next_time(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE, "/b": TWO}
    seen: list[tuple[str, int, int]] = []
    rows = get("tiny", tmp_path, catalog=published(server.url), follow=lambda *what: seen.append(what))
    assert states(rows) == ["downloaded", "downloaded"]
    assert rows[0] == {
        "file": "a", "bytes": len(ONE), "state": "downloaded", "source": f"{server.url}a", "where": f"{tmp_path}/tiny/a"
    }  # fmt: skip
    assert (tmp_path / "tiny" / "a").read_bytes() == ONE
    assert names(tmp_path / "tiny") == {"a", "b"}
    of_a = [done for file, done, total in seen if file == "a" and total == len(ONE)]
    assert (of_a[0], of_a[-1], of_a) == (0, len(ONE), sorted(of_a))
    assert states(get("tiny", tmp_path, catalog=published(server.url), load=refuse)) == ["kept", "kept"]
    assert server.asked == ["/a", "/b"]


def test_others_may_read_what_was_downloaded(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE}
    before = os.umask(0o027)
    try:
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "tiny" / "a").stat().st_mode) == 0o640


def test_only_what_is_missing_is_fetched(server: Server, tmp_path: Path) -> None:
    server.files = {"/b": TWO}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a").write_bytes(ONE)
    assert states(get("tiny", tmp_path, catalog=published(server.url), load=refuse)) == ["kept", "downloaded"]
    assert server.asked == ["/b"]


@pytest.mark.parametrize("first", ["closed", "404", "other content"])
def test_the_next_address_is_asked(
    server: Server, tmp_path: Path, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.files = {"/mirror/a": ONE, "/first/a": ONE[::-1]} if first == "other content" else {"/mirror/a": ONE}
    places = (CLOSED if first == "closed" else f"{server.url}first/", f"{server.url}mirror/")
    with caplog.at_level("INFO"):
        (row,) = get("tiny", tmp_path, catalog=published(*places, a=ONE))
    assert row["source"] == f"{server.url}mirror/a"
    assert "Trying the next address." in caplog.text
    assert (tmp_path / "tiny" / "a").read_bytes() == ONE


def test_a_packed_file_stays_packed_although_the_server_calls_that_an_encoding(server: Server, tmp_path: Path) -> None:
    packed = gzip.compress(ONE)
    server.files = {"/a.gz": packed}
    server.headers = {"/a.gz": {"Content-Encoding": "x-gzip"}}
    get("tiny", tmp_path, catalog=published(server.url, **{"a.gz": packed}))
    assert (tmp_path / "tiny" / "a.gz").read_bytes() == packed


def test_a_file_that_the_user_packed_is_as_published(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a.gz").write_bytes(gzip.compress(ONE))
    (row,) = get("tiny", tmp_path, catalog=published(CLOSED, a=ONE), load=refuse)
    assert (row["state"], row["where"]) == ("kept", str(tmp_path / "tiny" / "a.gz"))


def test_a_mirror_is_asked_instead(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = {"/data/tiny/a": ONE}
    catalog = published("http://authors.invalid/", a=ONE)
    get("tiny", tmp_path / "flag", mirror=f"{server.url}data/", catalog=catalog)
    monkeypatch.setenv("FEDFLOOR_MIRROR", f"{server.url}data")
    get("tiny", tmp_path / "variable", catalog=catalog)
    with_password = server.url.replace("//", "//me:secret@") + "data"
    (row,) = get("tiny", tmp_path / "password", mirror=with_password, catalog=catalog)
    assert server.asked == ["/data/tiny/a"] * 3
    assert "secret" not in str(row)


# -- files that are there and differ -----------------------------------------------------------------------------------


def test_a_file_that_differs_but_loads_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tiny").mkdir()
    mine = tmp_path / "tiny" / "a"
    mine.write_bytes(b"mine")
    with caplog.at_level("INFO"):
        rows = get("tiny", tmp_path, catalog=published(CLOSED, a=ONE), load=lambda *_: None)
    assert states(rows) == ["left alone"]
    assert mine.read_bytes() == b"mine"
    assert f"{mine}: not as published" in caplog.text
    assert "--force" in caplog.text


def test_a_file_that_differs_and_does_not_load_is_an_error(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE}
    (tmp_path / "tiny").mkdir()
    mine = tmp_path / "tiny" / "a"
    mine.write_bytes(b"mine")
    with refused("download", RunError):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE), load=refuse)
    assert mine.read_bytes() == b"mine"
    assert not server.asked
    assert states(get("tiny", tmp_path, force=True, catalog=published(server.url, a=ONE), load=refuse)) == [
        "downloaded"
    ]
    assert mine.read_bytes() == ONE


def test_force_keeps_the_old_file_until_the_new_one_is_whole(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE[::-1]}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "a").write_bytes(b"mine")
    with refused("download", RunError):
        get("tiny", tmp_path, force=True, catalog=published(server.url, a=ONE))
    assert (tmp_path / "tiny" / "a").read_bytes() == b"mine"
    assert names(tmp_path / "tiny") == {"a"}


def test_an_unpacked_data_set_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tiny" / "unpacked").mkdir(parents=True)
    with caplog.at_level("INFO"):
        rows = get("tiny", tmp_path, catalog=published(CLOSED), load=lambda *_: None)
    assert states(rows) == ["left alone", "left alone"]
    assert "holds tiny in another form" in caplog.text


def test_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    packed = tmp_path / "tiny" / "a.gz"
    packed.write_bytes(gzip.compress(TWO)[:-9])  # cut short
    with refused("download-in-the-way"):
        get("tiny", tmp_path, force=True, catalog=published(CLOSED, a=ONE))
    packed.unlink()
    (tmp_path / "tiny" / "a").mkdir()
    with refused("download-in-the-way"):
        get("tiny", tmp_path, catalog=published(CLOSED, a=ONE))


# -- the catalog -------------------------------------------------------------------------------------------------------


def test_every_data_set_can_be_had_or_says_how() -> None:
    assert set(SOURCES) <= set(PUBLISHED)
    for name, what in PUBLISHED.items():
        assert bool(what.files) == bool(what.places) != bool(what.by_hand), name
        assert all(place.startswith("http") and place.endswith("/") for place in what.places)
        for file in what.files:
            digits = {"md5": 32, "sha256": 64}[file.checksum.partition(":")[0]]
            assert re.fullmatch(rf"\w+:[0-9a-f]{{{digits}}}", file.checksum)
    for name in ("mnist", "fashion-mnist", "cifar-10", "cifar-100"):
        assert tuple(file.name for file in PUBLISHED[name].files) == tuple(CATALOG[name]["files"])
    assert [file.name for file in PUBLISHED["tep"].files] == [
        f"d{number:02}{part}.dat" for number in range(22) for part in ("", "_te")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10", "tep"])
def test_real_data_are_as_published_or_at_least_load(data_root: Path, name: str) -> None:
    if not (data_root / name).is_dir():
        pytest.skip(f"no {name}")
    rows = get(name, data_root, mirror=CLOSED)
    assert set(states(rows)) <= {"kept", "left alone"}
    if name in ("fashion-mnist", "tep"):  # these are byte for byte
        assert set(states(rows)) == {"kept"}
