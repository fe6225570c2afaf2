"""What was parsed once is kept: arrays on disk under the hash of the files they came from, mapped into memory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedfloor.data.files import expanded, unreadable
from fedfloor.data.workshop import workshop
from fedfloor.errors import RunError, SettingError

HEADER = 256  # bytes: the length of an array is written over it when it is known
ABOUT = "about.json"


@dataclass(frozen=True, eq=False)
class Entry:
    """What a parser made.

    Args:
        arrays: by name, mapped into memory: read-only, and shared by every process that reads them.
        facts: what else it found, as JSON has it.
    """

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]


class Writer:
    """Takes arrays piece by piece, so that a data set need not fit into memory twice, or once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[BinaryIO, np.dtype[Any], tuple[int, ...]]] = {}
        self._lengths: dict[str, int] = {}

    def append(self, name: str, block: NDArray[Any], kind: DTypeLike | None = None) -> None:
        """Add a block [n, …] to the end of an array; its blocks have one type and agree in all but their length.

        Args:
            name: of the array.
            block: what is added.
            kind: the array's type; that of the first block if None.

        Raises:
            RunError: the disk is full.
        """
        if name not in self._open:
            self._begin(name, np.dtype(block.dtype if kind is None else kind), block.shape[1:])
        file, dtype, shape = self._open[name]
        if block.shape[1:] != shape:
            raise ValueError(f"{name}: a block of {block.shape[1:]} after blocks of {shape}")
        if block.size:
            with _writing(self._folder):
                file.write(np.ascontiguousarray(block, dtype).data.cast("B"))
        self._lengths[name] += len(block)

    def length(self, name: str) -> int:
        """Return how long an array is by now."""
        return self._lengths.get(name, 0)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the arrays' headers (NPY 1.0: magic number, header's length; type, order and shape) and the facts.

        All of it is on the disk then, and not only on its way there.

        Raises:
            RunError: the disk is full.
        """
        with _writing(self._folder):
            sizes = {}
            for name, (file, dtype, shape) in self._open.items():
                told = {"descr": dtype.str, "fortran_order": False, "shape": (self._lengths[name], *shape)}
                text = repr(told).encode().ljust(HEADER - 11) + b"\n"
                sizes[f"{name}.npy"] = file.tell()
                file.seek(0)
                file.write(b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text)
                _settle(file)
            with (self._folder / ABOUT).open("wb") as about:
                about.write(json.dumps({"sizes": sizes, "facts": facts}).encode())
                _settle(about)

    def close(self) -> None:
        """Close the files, whatever became of them."""
        for file, _, _ in self._open.values():
            with contextlib.suppress(OSError):  # it flushes once more, on a disk that may be full
                file.close()

    def _begin(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        with _writing(self._folder):
            file = (self._folder / f"{name}.npy").open("wb")
            self._open[name] = file, dtype, shape
            self._lengths[name] = 0
            file.write(b"\0" * HEADER)


def remember(
    recipe: str, files: Sequence[Path], make: Callable[[Writer], Mapping[str, Any]], root: Path | None = None
) -> Entry:
    """Return what ``make`` makes of files: from the cache where the same recipe met the same bytes before.

    Processes that want the same at once wait for the first of them, and map what it made. Where the cache cannot be
    written the arrays lie in a temporary folder that has no name any more: they are parsed again next time.

    Args:
        recipe: names the parser, its version and its settings: all that the result depends on beside the files' bytes,
            their names and their order.
        files: what is parsed, in order.
        make: writes the arrays and returns the facts. Where it fails nothing is kept.
        root: the folder that the files lie in, where the folders below it say something (a device, a label): their
            names then count too.

    Raises:
        SettingError: a file cannot be read, or it changed meanwhile.
        RunError: the disk is full.
    """
    stamps = [_stamp(path) for path in files]
    key = _key(recipe, files, root)
    place = cache_root() / key[:2] / key[2:34]
    found = _open(place)
    if found is not None:
        return found
    with workshop(place) as folder:
        found = None if folder.parent != place.parent else _open(place)  # made while this process waited
        if found is not None:
            return found
        made = _made(folder, make)
        changed = [path for path, stamp in zip(files, stamps, strict=True) if _stamp(path) != stamp]
        if changed:
            raise SettingError(f"{changed[0]} changed while it was being read. Try again once it is whole.")
        if folder.parent == place.parent:
            _put(folder, place)
    return made


def cache_root() -> Path:
    """Return the folder of the cache: ``$FEDFLOOR_CACHE``, or else the user's cache folder.

    Raises:
        SettingError: ``FEDFLOOR_CACHE`` begins with the home folder of a user who is not there.
    """
    chosen = os.environ.get("FEDFLOOR_CACHE")
    if chosen:
        return expanded(chosen, "FEDFLOOR_CACHE = ").absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedfloor", appauthor=False))


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        SettingError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def _key(recipe: str, files: Sequence[Path], root: Path | None) -> str:
    names = [Path(os.path.relpath(path, root)).as_posix() if root else path.name for path in files]
    told = json.dumps([recipe, *([name, content_hash(path)] for name, path in zip(names, files, strict=True))])
    return hashlib.sha256(told.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else f"{error.strerror or error}"
        raise RunError(
            f"{why}: what was read could not be kept in {folder.parent}. Make room, or set FEDFLOOR_CACHE to a folder "
            "on another disk. Nothing was left there."
        ) from error


def _settle(file: BinaryIO) -> None:
    """Bring a file onto the disk: after a power cut an entry must be whole, or not there."""
    file.flush()
    os.fsync(file.fileno())


def _made(folder: Path, make: Callable[[Writer], Mapping[str, Any]]) -> Entry:
    writer = Writer(folder)
    try:
        writer.finish(make(writer))
    finally:
        writer.close()
    made = _open(folder)
    if made is None:
        raise RunError(f"the cache in {folder.parent} could not be read back. Set FEDFLOOR_CACHE to another folder.")
    return made


def _put(folder: Path, place: Path) -> None:
    """Give a whole entry its name. What has the name already is damaged, and goes."""
    with contextlib.suppress(OSError):  # not kept then; what is mapped stays readable
        if place.exists():
            old = folder.with_name(f"{folder.name}-old")
            place.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        folder.rename(place)


def _open(place: Path) -> Entry | None:
    """Return an entry whose files are all there in full length, or None."""
    try:
        about = json.loads((place / ABOUT).read_bytes())
        if any((place / name).stat().st_size != size for name, size in about["sizes"].items()):
            return None
        arrays = {name.removesuffix(".npy"): _mapped(place / name) for name in about["sizes"]}
        return Entry(arrays, about["facts"])
    except Exception:  # damaged in whatever way: it is made anew
        return None


def _mapped(path: Path) -> NDArray[Any]:
    if path.stat().st_size > HEADER:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    return np.asarray(np.load(path, allow_pickle=False))  # nothing to map
