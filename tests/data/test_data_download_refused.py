"""Downloads that are refused or stopped leave nothing behind; and the command that downloads."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
from pathlib import Path

import pytest

from commands import Command, idx
from fedfloor.base.errors import RunError, SettingError
from fedfloor.data.download import get
from fedfloor.data.sources import PUBLISHED, load
from refusals import refused
from web import CLOSED, ONE, TWO, Server, names, published, states

# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_names_both_and_keeps_nothing(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE[::-1]}
    with refused("download", RunError) as caught:
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))
    message = str(caught.value)
    for words in (ONE, ONE[::-1]):
        assert hashlib.md5(words).hexdigest() in message
    for text in (f"{server.url}a", "expected", "http://authors.example/tiny", str(tmp_path / "tiny"), "--from URL"):
        assert text in message
    assert not names(tmp_path)


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (None, {}, "download"),
        (b"<html>log in</html>", {}, "download"),
        (ONE + b"!", {}, "download"),
        (ONE[:70_000], {"Content-Length": "150000"}, "download"),
    ],
)
def test_answers_that_are_not_the_file(
    server: Server, tmp_path: Path, body: bytes | None, headers: dict[str, str], message: str
) -> None:
    server.files = {} if body is None else {"/a": body}
    server.headers = {"/a": headers}
    with refused(message, RunError):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))
    assert not names(tmp_path)


def test_a_redirect_is_followed_to_the_web_only(server: Server, tmp_path: Path) -> None:
    (tmp_path / "passwords").write_bytes(ONE)
    server.files = {"/there": ONE}
    server.moved = {"/a": f"file://{tmp_path}/passwords", "/b": "/there"}
    with refused("download", RunError):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))
    assert names(tmp_path) == {"passwords"}
    assert states(get("tiny", tmp_path, catalog=published(server.url, b=ONE))) == ["downloaded"]


def test_no_network_says_what_to_do_by_hand(tmp_path: Path) -> None:
    with refused("download", RunError) as caught:
        get("tiny", tmp_path, catalog=published(CLOSED, a=ONE))
    assert f"{CLOSED}a: Connection refused. By hand: get it from http://authors.example/tiny" in str(caught.value)


@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunError, r"the disk is full: a \(150,000 bytes\)"),
        (OSError(errno.EIO, "Input/output error"), SettingError, "cannot write a in .*: Input/output error"),
        (KeyboardInterrupt("pressed"), KeyboardInterrupt, "pressed"),
    ],
)
def test_stopped_half_way_leaves_nothing(
    server: Server, tmp_path: Path, problem: BaseException, error: type[BaseException], message: str
) -> None:
    server.files = {"/a": ONE}

    def stop(file: str, done: int, total: int) -> None:
        if done > 0:
            assert len(names(tmp_path / "tiny")) == 1  # the temporary file
            raise problem

    with pytest.raises(error, match=message):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE), follow=stop)
    assert not names(tmp_path)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE}
    (tmp_path / "file").touch()
    with refused("unwritable"):
        get("tiny", tmp_path / "file", catalog=published(server.url, a=ONE))
    if os.geteuid() == 0:
        pytest.skip("root writes where others may not")
    (tmp_path / "tiny").mkdir(mode=0o500)
    with pytest.raises(SettingError, match=r"cannot write a in .*Permission denied"):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))


@pytest.mark.parametrize("mirror", ["file:///data", "/data", "mirror.plant", "ftp://mirror.plant/", "http://", ""])
def test_mirrors_are_web_addresses(tmp_path: Path, mirror: str) -> None:
    with refused("--from"):
        get("tiny", tmp_path, mirror=mirror, catalog=published())


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_refuses_other_digits_but_leaves_the_users_alone(command: Command, server: Server) -> None:
    words = ("datasets", "get", "mnist", "--root", "data", "--from", server.url)
    for path in (idx(command.folder / "made") / "mnist").iterdir():
        server.files[f"/mnist/{path.name}"] = path.read_bytes()
    command.refused(command(*words), "bytes where 9,912,422 are published", code=1)
    (command.folder / "made").rename(command.folder / "data")
    said = command(*words, "--json")
    assert said.code == 0
    assert states(said.document["rows"]) == ["left alone"] * 4
    assert "the data set can be loaded: left alone" in said.err
    assert len(load("mnist", root="data").y) == 8


def test_the_command_shows_progress(
    command: Command, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.files = {"/a": ONE, "/b": TWO}
    monkeypatch.setitem(PUBLISHED, "tiny", published(server.url)["tiny"])
    said = command("datasets", "get", "tiny", "--root", str(tmp_path), "--json")
    assert said.err == "a: 150,000 of 150,000 bytes\nb: 30 of 30 bytes\n"
    assert [row["source"] for row in said.document["rows"]] == [f"{server.url}a", f"{server.url}b"]
    again = command("datasets", "get", "tiny", "--root", str(tmp_path))
    assert (again.out.count("kept"), again.err) == (2, "")
    assert again.out.endswith(f"folder: {tmp_path / 'tiny'}\n")


def test_ctrl_c_says_how_to_go_on(command: Command, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = {"/a": ONE, "/b": TWO}
    server.strikes = {"/b": lambda: os.kill(os.getpid(), signal.SIGINT)}
    monkeypatch.setitem(PUBLISHED, "tiny", published(server.url)["tiny"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    try:
        said = command("datasets", "get", "tiny", "--root", "data")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (said.code, said.out) == (130, "")
    told = "stopped: complete files are kept; the same command downloads the rest.\n"
    assert told in said.err  # the server may complain of the broken connection below
    assert said.new == {"data", "data/tiny", "data/tiny/a"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("get mnits", "unknown data set 'mnits'. Did you mean 'mnist'?"),
        ("get ../mnist", "unknown data set '../mnist'"),
        ("get labels", "It is generated: set [park] devices"),
        ("get mnist --from file:///etc", "--from file:///etc: must be a web address"),
    ],
)
def test_the_command_refuses(command: Command, words: str, message: str) -> None:
    command.refused(command("datasets", *words.split()), message)


def test_femnist_says_how_it_is_made(command: Command) -> None:
    said = command("datasets", "get", "femnist", "--root", "data")
    assert (said.code, said.out) == (2, "")
    for words in ("git clone https://github.com/TalwalkarLab/leaf", "./preprocess.sh -s niid", "data/femnist/train"):
        assert words in said.err
