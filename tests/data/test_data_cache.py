from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.base.errors import RunError, SettingError
from fedfloor.data import cache
from fedfloor.data.cache import Writer, remember
from refusals import refused


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDFLOOR_CACHE", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.bin"
    path.write_bytes(bytes(range(12)))
    return path


class Parser:
    """Makes arrays of a file's bytes, and counts how often it was asked to."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.calls = 0

    def __call__(self, writer: Writer) -> Mapping[str, Any]:
        self.calls += 1
        for half in np.frombuffer(self.source.read_bytes(), np.uint8).reshape(2, -1, 3):
            writer.append("x", half)
            writer.append("y", half[:, 0], np.int64)
        writer.append("empty", np.empty((0, 7), np.float32))
        return {"words": ["a", "ü"]}


def entries(root: Path) -> list[Path]:
    """Everything in the cache but its locks."""
    return sorted(path for path in root.glob("*/*") if path.suffix != ".lock")


def test_arrays_come_back_as_they_were_appended(root: Path, source: Path) -> None:
    parser = Parser(source)
    for _ in range(2):
        entry = remember("r", [source], parser)
        assert entry.arrays["x"].tolist() == np.arange(12).reshape(4, 3).tolist()
        assert entry.arrays["x"].dtype == np.uint8
        assert entry.arrays["y"].tolist() == [0, 3, 6, 9]
        assert entry.arrays["y"].dtype == np.int64
        assert entry.arrays["empty"].shape == (0, 7)
        assert entry.facts == {"words": ["a", "ü"]}
        with pytest.raises(ValueError, match="read-only"):
            entry.arrays["x"][0, 0] = 1
    assert parser.calls == 1
    assert len(entries(root)) == 1


def test_the_key_is_recipe_content_names_and_order(root: Path, source: Path, tmp_path: Path) -> None:
    parser = Parser(source)
    other = tmp_path / "other.bin"
    other.write_bytes(b"else")
    for recipe, files in (("r", [source]), ("s", [source]), ("r", [source, other]), ("r", [other, source])):
        remember(recipe, files, parser)
    assert parser.calls == 4
    source.write_bytes(bytes(range(1, 13)))
    assert remember("r", [source], parser).arrays["x"][0, 0] == 1
    assert parser.calls == 5
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    source.rename(moved / source.name)
    remember("r", [moved / source.name], parser)
    assert parser.calls == 5  # where it lies makes no difference


def test_a_name_that_is_no_utf_8_is_no_obstacle(root: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.bin")
    path.write_bytes(bytes(12))
    assert len(remember("r", [path], Parser(path)).arrays["x"]) == 4


def cut(place: Path) -> None:
    os.truncate(place / "x.npy", 260)


def garble_head(place: Path) -> None:
    with (place / "x.npy").open("r+b") as file:
        file.write(b"PK\x03\x04 no array")


def garble_facts(place: Path) -> None:
    (place / "about.json").write_text('{"sizes": [1]}')


def cut_facts(place: Path) -> None:
    os.truncate(place / "about.json", 5)


def lose(place: Path) -> None:
    (place / "y.npy").unlink()


@pytest.mark.parametrize("damage", [cut, garble_head, garble_facts, cut_facts, lose])
def test_a_damaged_entry_is_made_anew(root: Path, source: Path, damage: Callable[[Path], None]) -> None:
    parser = Parser(source)
    remember("r", [source], parser)
    damage(entries(root)[0])
    for _ in range(2):
        assert remember("r", [source], parser).arrays["x"].tolist() == np.arange(12).reshape(4, 3).tolist()
    assert parser.calls == 2
    assert len(entries(root)) == 1


def test_a_failing_parser_leaves_nothing(root: Path, source: Path) -> None:
    def fails(writer: Writer) -> Mapping[str, Any]:
        writer.append("x", np.zeros(5))
        raise SettingError("row 3: no number")

    with pytest.raises(SettingError, match="row 3"):
        remember("r", [source], fails)
    assert entries(root) == []


def test_a_full_disk_is_said_and_nothing_left(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with refused("cache", RunError):
        remember("r", [source], Parser(source))
    assert entries(root) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_disk_that_fills_up_while_writing(tmp_path: Path) -> None:
    (tmp_path / "x.npy").symlink_to("/dev/full")
    writer = Writer(tmp_path)
    with refused("cache", RunError):
        writer.append("x", np.zeros(1 << 16))
    writer.close()


def test_a_file_that_changes_meanwhile_is_refused(root: Path, source: Path) -> None:
    def parse(writer: Writer) -> Mapping[str, Any]:
        facts = Parser(source)(writer)
        source.write_bytes(bytes(24))
        return facts

    with refused("changed-while-read"):
        remember("r", [source], parse)
    assert entries(root) == []


def test_no_cache_is_said_once_and_does_no_harm(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "file"))  # no folder can be made there
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    caplog.set_level(logging.INFO, "fedfloor")
    parser = Parser(source)
    kept = [remember("r", [source], parser) for _ in range(2)]
    assert [record.message.split(":")[0] for record in caplog.records] == ["no cache"]
    assert parser.calls == 2
    assert list((tmp_path / "tmp").iterdir()) == []
    assert kept[0].arrays["x"].tolist() == np.arange(12).reshape(4, 3).tolist()  # its files have no name any more
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with refused("cache", RunError):
        remember("r", [source], parser)


def test_a_relative_cache_and_an_unknown_home(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFLOOR_CACHE", "here")
    remember("r", [source], Parser(source))
    assert len(entries(tmp_path / "here")) == 1
    monkeypatch.setenv("FEDFLOOR_CACHE", "~nobody-of-this-name/cache")
    with refused("home-folder"):
        cache.cache_root()


CHILD = """
import os, sys
import numpy as np
from pathlib import Path
from fedfloor.data.cache import remember

source, ready, go, made = map(Path, sys.argv[1:])

def make(writer):
    with made.open("a") as file:
        file.write("made\\n")
    writer.append("x", np.arange(1000))
    if go.name == "killed":
        os.kill(os.getpid(), 9)
    with ready.open("w"), go.open():  # both are pipes: each side waits for the other
        pass
    return {}

print(int(remember("r", [source], make).arrays["x"].sum()))
"""


def child(*words: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, *map(str, words)], stdout=subprocess.PIPE, text=True)


def test_of_two_processes_one_parses_and_the_other_waits(root: Path, source: Path, tmp_path: Path) -> None:
    ready, go, made = (tmp_path / name for name in ("ready", "go", "made"))
    os.mkfifo(ready)
    os.mkfifo(go)
    children = [child(source, ready, go, made) for _ in range(2)]
    with ready.open(), go.open("w"):  # the first one is in the middle of it; then it goes on
        assert entries(root)[0].name.count(cache.PART) == 1
    assert [one.communicate(timeout=60)[0] for one in children] == ["499500\n", "499500\n"]
    assert made.read_text() == "made\n"
    assert len(entries(root)) == 1


def test_what_a_killed_process_left_is_taken_away(root: Path, source: Path, tmp_path: Path) -> None:
    one = child(source, tmp_path / "ready", tmp_path / "killed", tmp_path / "made")
    assert one.communicate(timeout=60)[0] == ""
    assert one.returncode == -9
    assert [cache.PART in path.name for path in entries(root)] == [True]
    remember("another", [source], Parser(source))
    assert [cache.PART in path.name for path in entries(root)] == [False]


def test_a_folder_in_use_is_left_alone(root: Path, source: Path) -> None:
    def outer(writer: Writer) -> Mapping[str, Any]:
        remember("inner", [source], Parser(source))
        return Parser(source)(writer)

    assert len(remember("outer", [source], outer).arrays["x"]) == 4
    assert len(entries(root)) == 2


def test_without_patience_nothing_is_kept(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "PATIENCE_S", 0.0)
    caplog.set_level(logging.INFO, "fedfloor")

    def outer(writer: Writer) -> Mapping[str, Any]:
        remember("r", [source], Parser(source))  # the same entry, whose lock is held
        return Parser(source)(writer)

    remember("r", [source], outer)
    assert "has not finished" in caplog.text
    assert len(entries(root)) == 1
    assert json.loads((entries(root)[0] / "about.json").read_text())["facts"] == {"words": ["a", "ü"]}
