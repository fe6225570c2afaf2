"""Packed files, unpacked while they are read, with limits that only decompression bombs exceed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import BinaryIO, cast

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import some

LARGE = 1 << 26  # bytes; what unpacks to more must not be packed above RATIO: that indicates a bomb
RATIO = 100  # sensor rows as text are packed 3 to 30 times


class BombError(SettingError):
    """An error: a file unpacks to far more bytes than measured data do."""

    key = "bomb"


def check_ratio(path: Path, packed: int, unpacked: int, remedy: str) -> None:
    """Refuse content that is packed more than :data:`RATIO` times, if it is :data:`LARGE`.

    Args:
        path: the file.
        packed: bytes in the file.
        unpacked: bytes of the content so far.
        remedy: the way to read the file if it holds honest data.
    """
    if unpacked > LARGE and unpacked > RATIO * packed:
        raise BombError(
            f"{path.name}: {packed:,} bytes unpack to {unpacked:,} or more, over {RATIO} times as many, which measured "
            f"data do not. If they are correct, {remedy}."
        )


class Unpacking(io.RawIOBase):
    """Bytes of a packed file, refused by :func:`check_ratio` as soon as they are too many for the packed bytes read.

    Args:
        path: the file.
        packed: the open file.
        stream: its content.
    """

    def __init__(self, path: Path, packed: BinaryIO, stream: BinaryIO) -> None:
        self._path = path
        self._packed = packed
        self._stream = stream
        self._count = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read the next bytes into a buffer; return their number."""
        count = self._stream.readinto1(buffer)  # type: ignore[attr-defined]  # what precedes damage is returned first
        self._count += count
        check_ratio(self._path, self._packed.tell(), self._count, "unpack the file, and give the unpacked one")
        return int(count)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self._packed.close()
        super().close()


def unpacked_bytes(path: Path) -> io.BufferedReader:
    """Open a file that is unpacked while it is read; the size in its header is not trusted.

    Raises:
        BombError: when bytes are read, or for a zip archive at once.
    """
    raw = regular.opened(path)
    start = raw.peek(6)
    for magic, unpack in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return io.BufferedReader(Unpacking(path, raw, cast(BinaryIO, unpack(raw))))
    if not start.startswith(b"PK\x03\x04"):
        return raw
    raw.close()
    return _member(path)


def _member(path: Path) -> io.BufferedReader:
    """Open the only file in a zip archive, apart from metadata of file managers."""
    archive = zipfile.ZipFile(regular.check(path))
    members = [
        member for member in archive.infolist() if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]
    try:
        if len(members) != 1:
            names = some([member.filename for member in members], 5)
            raise SettingError(
                f"{path.name}: {len(members)} files in the archive ({names or 'none'}), but a table must be its only "
                "file. Unpack it into a folder, and give the folder.",
                key="archive",
            )
        # no more bytes are read than the archive states
        check_ratio(path, path.stat().st_size, members[0].file_size, "unpack the file, and give the unpacked one")
        return io.BufferedReader(cast(io.RawIOBase, archive.open(members[0])))
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or an unsupported compression
        raise SettingError(
            f"{path.name}: cannot be unpacked ({error}). Unpack it, and give the table itself.",
            key="damaged-archive",
        ) from error
    finally:
        archive.close()  # the member keeps the file open while it is read
