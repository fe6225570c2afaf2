"""Downloads from servers on this machine: what is kept, what is refused, and what is said."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from commands import Command, idx
from fedfloor.errors import RunError, SettingError
from fedfloor.park.download import get
from fedfloor.park.published import PUBLISHED, File, Published
from fedfloor.park.sources import SOURCES, load

ONE, TWO = b"one" * 50_000, b"two" * 10
CLOSED = "http://127.0.0.1:9/"  # nobody listens there


@dataclass
class Server:
    """What a server has, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)  # path → headers it adds or replaces
    moved: dict[str, str] = field(default_factory=dict)  # path → where it redirects to
    strikes: dict[str, Callable[[], None]] = field(default_factory=dict)  # path → what happens when it is asked for
    asked: list[str] = field(default_factory=list)


@pytest.fixture(autouse=True)
def _no_mirror_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDFLOOR_MIRROR", raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    has = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            has.asked.append(self.path)
            has.strikes.get(self.path, lambda: None)()
            body = has.files.get(self.path)
            if self.path in has.moved:
                self.send_response(302)
                self.send_header("Location", has.moved[self.path])
                self.end_headers()
            elif body is None:
                self.send_error(404)
            else:
                self.send_response(200)
                for name, value in ({"Content-Length": str(len(body))} | has.headers.get(self.path, {})).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        has.url = f"http://127.0.0.1:{http.server_port}/"
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield has
        http.shutdown()
        thread.join()


def published(*places: str, **contents: bytes) -> dict[str, Published]:
    """A data set ``tiny`` whose files a and b have their true checksums."""
    contents = contents or {"a": ONE, "b": TWO}
    files = [File(name, len(data), f"md5:{hashlib.md5(data).hexdigest()}") for name, data in contents.items()]
    return {"tiny": Published(tuple(files), places, "http://authors.example/tiny")}


def refuse(name: str, root: Path) -> object:
    raise SettingError("it is damaged.")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def states(rows: list[dict[str, Any]]) -> list[str]:
    return [row["state"] for row in rows]


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
    server.files, server.headers = {"/a.gz": packed}, {"/a.gz": {"Content-Encoding": "x-gzip"}}
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
    with pytest.raises(RunError, match=r"tiny/a: not as published .* it is damaged\. `fedfloor datasets get tiny --f"):
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
    with pytest.raises(RunError):
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
    with pytest.raises(SettingError, match=r"tiny/a\.gz differs from the published a and is read before it"):
        get("tiny", tmp_path, force=True, catalog=published(CLOSED, a=ONE))
    packed.unlink()
    (tmp_path / "tiny" / "a").mkdir()
    with pytest.raises(SettingError, match="tiny/a is not a file"):
        get("tiny", tmp_path, catalog=published(CLOSED, a=ONE))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_wrong_checksum_names_both_and_keeps_nothing(server: Server, tmp_path: Path) -> None:
    server.files = {"/a": ONE[::-1]}
    with pytest.raises(RunError) as caught:
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
        (None, {}, "answered 404 Not Found"),
        (b"<html>log in</html>", {}, "sent 19 bytes where 150,000 are published"),
        (ONE + b"!", {}, "sent more than the 150,000 bytes published"),
        (ONE[:70_000], {"Content-Length": "150000"}, "the connection broke off half way"),
    ],
)
def test_answers_that_are_not_the_file(
    server: Server, tmp_path: Path, body: bytes | None, headers: dict[str, str], message: str
) -> None:
    server.files, server.headers = ({} if body is None else {"/a": body}), {"/a": headers}
    with pytest.raises(RunError, match=message):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))
    assert not names(tmp_path)


def test_a_redirect_is_followed_to_the_web_only(server: Server, tmp_path: Path) -> None:
    (tmp_path / "passwords").write_bytes(ONE)
    server.files, server.moved = {"/there": ONE}, {"/a": f"file://{tmp_path}/passwords", "/b": "/there"}
    with pytest.raises(RunError, match=r"No connection adapters were found for 'file:"):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))
    assert names(tmp_path) == {"passwords"}
    assert states(get("tiny", tmp_path, catalog=published(server.url, b=ONE))) == ["downloaded"]


def test_no_network_says_what_to_do_by_hand(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
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
    with pytest.raises(SettingError, match=r"cannot write a in .*/file/tiny: Not a directory\. Choose another"):
        get("tiny", tmp_path / "file", catalog=published(server.url, a=ONE))
    if os.geteuid() == 0:
        pytest.skip("root writes where others may not")
    (tmp_path / "tiny").mkdir(mode=0o500)
    with pytest.raises(SettingError, match=r"cannot write a in .*Permission denied"):
        get("tiny", tmp_path, catalog=published(server.url, a=ONE))


@pytest.mark.parametrize("mirror", ["file:///data", "/data", "mirror.plant", "ftp://mirror.plant/", "http://", ""])
def test_mirrors_are_web_addresses(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(SettingError, match=r"--from .*must be a web address such as"):
        get("tiny", tmp_path, mirror=mirror, catalog=published())


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
        assert tuple(file.name for file in PUBLISHED[name].files) == SOURCES[name].files
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
    said = command("datasets", "get", "tiny", "--root", "data")
    assert (said.code, said.out) == (130, "")
    assert said.err.endswith("stopped: whole files are kept, the rest is fetched by the same command.\n")
    assert said.new == {"data", "data/tiny", "data/tiny/a"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("get mnits", "unknown data set 'mnits'. Did you mean 'mnist'?"),
        ("get ../mnist", "unknown data set '../mnist'"),
        ("get labels", "It is made here: set [park] devices"),
        ("get mnist --from file:///etc", "--from file:///etc: must be a web address"),
        ("--json get mnist", "--json stands behind the command"),
    ],
)
def test_the_command_refuses(command: Command, words: str, message: str) -> None:
    command.refused(command("datasets", *words.split()), message)


def test_femnist_says_how_it_is_made(command: Command) -> None:
    said = command("datasets", "get", "femnist", "--root", "data")
    assert (said.code, said.out) == (2, "")
    for words in ("git clone https://github.com/TalwalkarLab/leaf", "./preprocess.sh -s niid", "data/femnist/train"):
        assert words in said.err
