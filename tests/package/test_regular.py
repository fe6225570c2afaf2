"""Files are opened in one place, which opens regular files only."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedfloor
from fedfloor.base import regular
from refusals import refused

ROOT = Path(fedfloor.__file__).parent
READERS = {"open", "read_text", "read_bytes", "open_memmap", "ZipFile", "safe_open", "load_file", "load_workbook"}
READERS |= {"ParquetFile", "memmap", "fromfile", "genfromtxt"}
OWN = ("files(", "__file__", "HERE", "/proc", "CGROUP")  # of the package itself, or of the kernel
OPEN = {"archive.open", "tarfile.open", "sink.open", "self.sink.open", "os.open"}  # of what is open, or no file


def naked(path: Path) -> Iterator[str]:
    """Every call that opens a file for reading by itself."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        text = ast.unparse(node)
        modes = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if name not in READERS or called.startswith("regular.") or any(word in text for word in OWN):
            continue
        if called in OPEN or called == "read_bytes":  # the latter is deploy/authority.py's own
            continue
        if name == "open" and any(mode in ("w", "wb", "x", "xb") for mode in modes):
            continue  # a new file, under a temporary name
        if "regular.check(" not in text and path.name != "arrays.py":
            yield f"{path.relative_to(ROOT)}, line {node.lineno}: {text}"


def test_every_file_is_opened_by_the_module_for_regular_files() -> None:
    """Remedy: ``regular.opened``, ``read_bytes`` and ``read_text``; for libraries, ``regular.check(path)``."""
    files = [path for path in ROOT.rglob("*.py") if path.name not in ("regular.py", "machine.py")]
    assert not [call for path in files for call in naked(path)]


def irregular(folder: Path) -> Iterator[Path]:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    yield pipe
    device = folder / "device"
    device.symlink_to("/dev/zero")
    yield device
    place = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        yield place


@pytest.mark.parametrize("mode", ["rb", "ab", "a+b", "r+b"])
def test_a_pipe_a_device_and_a_socket_are_refused_at_once(tmp_path: Path, mode: str) -> None:
    for path in irregular(tmp_path):
        with refused("not-a-file", regular.IrregularFileError):
            regular.opened(path, mode)  # type: ignore[arg-type]


def test_a_pipe_with_a_writer_is_refused_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with refused("not-a-file", regular.IrregularFileError):
            regular.read_bytes(tmp_path / "pipe")
    finally:
        os.close(writer)


def test_files_and_links_to_files_are_opened_as_usual(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\n")
    (tmp_path / "link").symlink_to("a")
    assert regular.read_bytes(tmp_path / "link") == b"one\r\ntwo\n"
    assert regular.read_text(tmp_path / "a") == (tmp_path / "a").read_text()
    with regular.opened(tmp_path / "b", "ab") as file:
        file.write(b"x")
    assert (tmp_path / "b").read_bytes() == b"x"
    assert regular.check(tmp_path / "b") == tmp_path / "b"
    with pytest.raises(FileNotFoundError):
        regular.opened(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        regular.opened(tmp_path)
