"""Readers of data files, with errors that name the file, the problem and the remedy."""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.errors import RunError, SettingError
from fedfloor.data.files.packed import Unpacking

PIECE = 1 << 18  # bytes


def damaged(path: Path, problem: str) -> SettingError:
    """Return the error for a published file with wrong content."""
    return SettingError(
        f"{path}: {problem}. Get this file again from its authors and put it into the same place.", key="published-file"
    )


def unreadable(path: Path, error: OSError) -> SettingError:
    """Return the error for a file that the operating system cannot open or read."""
    reason = error.strerror or type(error).__name__
    return SettingError(
        f"{path}: cannot be read ({reason}). Check the path and its permissions.", key="unreadable-file"
    )


def expanded(path: Path | str, where: str = "") -> Path:
    """Return a path with ``~`` replaced by the user's home folder; ``where`` is the start of the message.

    Raises:
        SettingError: the home folder of an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise SettingError(f"{where}{path}: {error} Give the full path.", key="home-folder") from error


def is_there(path: Path) -> bool:
    """Return whether a path exists.

    Raises:
        SettingError: the path cannot be looked up (too long, or no permission).
    """
    try:
        return path.exists()
    except OSError as error:
        raise unreadable(path, error) from error


def check_new(out: Path, endings: tuple[str, ...], *, force: bool) -> None:
    """Check the name of a file that a command is to write.

    Raises:
        SettingError: another ending, a folder that does not exist, or an existing file, unless ``force``.
    """
    if not out.name.casefold().endswith(endings):
        raise SettingError(f"--out {out}: give a name that ends in {' or '.join(endings)}.")
    if out.exists() and not force:
        raise SettingError(
            f"{out} exists already. Give another name with --out, or overwrite it with --force.", key="exists"
        )
    if not out.parent.is_dir():
        raise SettingError(f"--out {out}: folder {out.parent} does not exist. Create it, or choose another one.")


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """Yield a temporary path for a new file, renamed to ``out`` once the file is complete.

    Raises:
        RunError: the file cannot be written.
    """
    part = out.with_name(f"{out.name}.part")
    try:
        yield part
        part.replace(out)
    except OSError as error:
        raise RunError(f"{out} could not be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)


def find(folder: Path, name: str) -> Path | None:
    """Return the path of ``name.gz``, otherwise of ``name``, in the folder; None if neither exists."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    return None


def needed(folder: Path, name: str) -> Path:
    """Return the path of ``name.gz``, otherwise of ``name``, in the folder.

    Raises:
        SettingError: neither exists.
    """
    path = find(folder, name)
    if path is None:
        raise SettingError(
            f"{folder / name}.gz is missing (or {name}, unpacked). Put it there, or set FEDFLOOR_DATA.",
            key="published-file-missing",
        )
    return path


def content(path: Path) -> bytes:
    """Return a file's bytes, unpacked if it is a gzip file.

    Raises:
        SettingError: the file cannot be read, or is incomplete or damaged.
    """
    return b"".join(pieces(path))


def pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes in pieces, unpacked if its first bytes (not its name) identify it as a gzip file."""
    with unpacking(path), regular.opened(path) as raw:
        start = raw.read(4)
        raw.seek(0)
        packed = start[:2] == b"\x1f\x8b"
        if path.suffix == ".gz" and not packed:
            raise damaged(path, f"not a gzip file: it starts with {start.hex() or 'nothing'}, not 1f8b")
        stream = Unpacking(path, raw, cast(BinaryIO, gzip.GzipFile(fileobj=raw))) if packed else raw
        while piece := stream.read(PIECE):
            yield piece


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Convert errors of reading a file, perhaps a gzip file, to errors that name file, problem and remedy."""
    try:
        yield
    except EOFError as error:
        size = path.stat().st_size
        raise damaged(path, f"cut short: gzip data end too early after {size:,} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"damaged gzip data ({error})") from error
    except OSError as error:
        raise unreadable(path, error) from error


def head(path: Path, length: int) -> bytes:
    """Return the first ``length`` bytes of :func:`content`."""
    start = b""
    for piece in pieces(path):
        start += piece
        if len(start) >= length:
            break
    return start[:length]


def loaded(lines: Any, column: int | None = None) -> NDArray[np.float64]:
    """Return numbers separated by blanks in a file or in lines, float64 [rows, columns]; or one column [rows, 1].

    Raises:
        ValueError: no numbers, or rows of different lengths.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy only issues a warning for an empty file
        try:
            return np.loadtxt(lines, ndmin=2, usecols=column)
        except UserWarning as error:
            raise ValueError(str(error)) from error


def matrix(path: Path, data: bytes, width: int, *, either_way: bool = False) -> NDArray[np.float64]:
    """Return a matrix of finite numbers, a row per line separated by blanks, float64 [rows, width]."""
    try:
        x = loaded(io.BytesIO(data))
    except ValueError as error:
        raise damaged(path, f"not a matrix of numbers ({error})") from error
    if either_way and x.shape[0] == width and x.shape[1] != width:
        x = x.T
    if x.shape[1] != width:
        raise damaged(path, f"{x.shape[1]} columns instead of {width}")
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise damaged(path, f"row {row + 1}, column {column + 1}: not a finite number")
    return x
