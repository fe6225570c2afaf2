"""The arrays of an .npz file, with nothing believed that the file says of itself."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedfloor.errors import SettingError, nearest

LARGE = 1 << 30  # bytes; what unpacks to more must not be packed to a hundredth: that is no data but a bomb
RATIO = 100
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, known: Collection[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name.

    Nothing is executed (no pickles), and nothing is allocated before its size agrees with the archive's.

    Args:
        path: the file, as ``np.savez`` or ``np.savez_compressed`` write it.
        known: the names that may be in it.

    Raises:
        SettingError: not an .npz file, a damaged or hostile one, an unknown name, or an array of Python objects.
    """
    with _opened(path) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in known or name == info.filename:
                raise SettingError(
                    f"{path.name}: holds '{info.filename}'.{nearest(name.casefold(), known)} Known arrays: "
                    f"{', '.join(known)}. Write it anew with these names, such as np.savez(FILE, x=…, y=…)."
                )
            if info.flag_bits & 1:
                raise SettingError(f"{path.name}: '{info.filename}' has a password. Write it anew with np.savez.")
            if name in members:
                raise SettingError(f"{path.name}: holds the array '{name}' twice. Write it anew with np.savez.")
            members[name] = info
        _check_size(path, list(members.values()))
        return {name: _array(path, archive, info, name) for name, info in members.items()}


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingError(f"{path}: cannot be read ({reason}). Check the path and its permissions.") from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError) as error:
        raise SettingError(
            f"{path.name}: not a whole .npz file ({error}). Write it anew with np.savez or np.savez_compressed."
        ) from error


def _check_size(path: Path, members: Collection[zipfile.ZipInfo]) -> None:
    unpacked, there = sum(info.file_size for info in members), path.stat().st_size
    if unpacked > LARGE and unpacked > RATIO * there:
        raise SettingError(
            f"{path.name}: {there:,} bytes that say they unpack to {unpacked:,}, more than {RATIO} times as many. If "
            "that is so, write it with np.savez, which does not pack."
        )


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    with archive.open(info) as stream:
        shape, dtype = _header(stream)
        if dtype.hasobject:
            raise SettingError(
                f"{path.name}, array '{name}': Python objects, which could execute anything and are not read. Write "
                "texts as np.array(…, dtype=str), and lists of unequal length as arrays of one shape."
            )
        stated, there = math.prod(shape) * dtype.itemsize, info.file_size - stream.tell()
        if stated != there:
            raise ValueError(f"array '{name}' {shape} needs {stated:,} bytes, but there are {there:,}")
    with archive.open(info) as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"NPY version {version}")
    shape, _, dtype = HEADERS[version](stream)
    return shape, dtype
