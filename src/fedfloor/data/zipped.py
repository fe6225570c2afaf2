"""The arrays of an .npz file, with nothing believed that the file says of itself."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedfloor.data.files import unreadable
from fedfloor.errors import SettingError

LARGE = 1 << 30  # bytes; what unpacks to more must not be packed to a hundredth: that is no data but a bomb
RATIO = 100
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, choose: Callable[[Sequence[str]], Collection[str]]) -> dict[str, NDArray[Any]]:
    """Return arrays of an .npz file by name.

    Nothing is executed (no pickles), and nothing is allocated before its size agrees with the archive's.

    Args:
        path: the file, as ``np.savez`` or ``np.savez_compressed`` write it.
        choose: the names that are in it → those to read; it may refuse the file.

    Raises:
        SettingError: not an .npz file, a damaged or hostile one, or an array of Python objects.
    """
    with _opened(path) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if info.flag_bits & 1:
                raise SettingError(f"{path}: '{info.filename}' has a password. Write it anew with np.savez.")
            if name in members:
                raise SettingError(f"{path}: holds the array '{name}' twice. Write it anew with np.savez.")
            members[name] = info
        chosen = {name: members[name] for name in choose(list(members))}
        _check_size(path, list(chosen.values()))
        return {name: _array(path, archive, info, name) for name, info in chosen.items()}


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        raise unreadable(path, error) from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError) as error:
        raise SettingError(
            f"{path}: not a whole .npz file ({error}). Write it anew with np.savez or np.savez_compressed."
        ) from error


def _check_size(path: Path, members: Collection[zipfile.ZipInfo]) -> None:
    unpacked, there = sum(info.file_size for info in members), path.stat().st_size
    if unpacked > LARGE and unpacked > RATIO * there:
        raise SettingError(
            f"{path}: {there:,} bytes that say they unpack to {unpacked:,}, more than {RATIO} times as many. If "
            "that is so, write it with np.savez, which does not pack."
        )


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(info) as stream:
        shape, dtype = _header(stream)
        if dtype.hasobject:
            raise SettingError(
                f"{path}, array '{name}': Python objects, which could execute anything and are not read. Write "
                "texts as np.array(…, dtype=str), and lists of unequal length as arrays of one shape."
            )
        if not dtype.itemsize:
            raise ValueError(f"array '{name}' has elements of no length")  # any number of them would fit
        stated, there = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
        if stated != there:
            raise ValueError(f"array '{name}' {shape} needs {stated:,} bytes, but there are {there:,}")
    with archive.open(info) as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"NPY version {version}")
    try:
        shape, _, dtype = HEADERS[version](stream)
    except Exception as error:  # it is parsed as Python is, and what that raises on damaged text is anybody's guess
        raise ValueError(f"a header that cannot be read: {str(error) or type(error).__name__}") from error
    return shape, dtype
