"""Opening of regular files: no pipe, device or socket of a user's or a run's folder is opened or waited for.

A pipe without a writer blocks its reader for ever, and ``/dev/zero`` never ends. All files that a user names or that
lie in a folder are therefore opened here.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, overload

from fedfloor.base.errors import SettingError, disk_error

KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


class IrregularFileError(SettingError, OSError):
    """An error: a pipe, a device or a socket in the place of a file.

    It is an ``OSError``, too, so that a reader which treats unreadable files treats these alike.
    """

    key = "not-a-file"

    def __init__(self, path: Path | str, kind: str) -> None:
        super().__init__(
            f"{path}: {kind}, which is not opened, because reading it may never end. Replace it by a file, or give "
            "another path."
        )
        self.strerror = f"{kind}, not a file"


@overload
def opened(path: Path | str, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...


@overload
def opened(path: Path | str, mode: Literal["ab", "a+b", "r+b"]) -> BinaryIO: ...


def opened(path: Path | str, mode: Literal["rb", "ab", "a+b", "r+b"] = "rb") -> BinaryIO:
    """Open a regular file as ``open`` does, without ever waiting for another process.

    Raises:
        IrregularFileError: a pipe, a device or a socket, also at the end of a link.
        OSError: as ``open`` raises it.
    """
    return open(path, mode, opener=_opener)


def read_bytes(path: Path | str) -> bytes:
    """Return the content of a regular file; see :func:`opened`."""
    with opened(path) as file:
        return file.read()


def read_text(path: Path | str, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the content of a regular file as text with line ends ``\\n``; see :func:`opened`."""
    with io.TextIOWrapper(opened(path), encoding, errors) as file:
        return file.read()


def check(path: Path) -> Path:
    """Return the path of a regular file, for libraries that open a path themselves; see :func:`opened`."""
    opened(path).close()
    return path


def append(path: Path, line: str) -> None:
    """Append a line to a file of a run, which is unchanged after a failure.

    Raises:
        RunError: the disk is full, or the file cannot be written.
    """
    size = path.stat().st_size if path.exists() else 0
    try:
        with opened(path, "ab") as file:
            file.write(line.encode() + b"\n")
    except OSError as error:
        if path.exists():
            with opened(path, "r+b") as file:
                file.truncate(size)
        raise disk_error(path, error) from error


@contextmanager
def unwritable_by_others() -> Iterator[None]:
    """Create files and folders that only their user may change while the body runs, whatever the umask."""
    before = os.umask(0o077)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)


def _opener(path: str, flags: int) -> int:
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    except OSError:
        _refuse(path, os.stat(path).st_mode)  # a socket, or a pipe opened for writing, cannot even be opened
        raise
    try:
        _refuse(path, os.fstat(handle).st_mode)
    except IrregularFileError:
        os.close(handle)
        raise
    return handle


def _refuse(path: str, mode: int) -> None:
    kind = KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise IrregularFileError(path, kind)
