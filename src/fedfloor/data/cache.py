"""The cache of parsed files: arrays on disk under the hash of the files they came from, mapped into memory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedfloor.base import regular
from fedfloor.base.arrays import read_again
from fedfloor.base.errors import RunError, SettingError
from fedfloor.base.strict import json_text
from fedfloor.data.files import expanded, unreadable

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

PART = ".part-"  # in the names of folders that are not complete yet
PATIENCE_S = 600.0  # how long one process waits for another that parses the same files


@contextmanager
def _work_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder beside ``place``, or a temporary folder; remove it at the end unless it was renamed."""
    lock = _lock(place)
    try:
        folder = _beside(place) if lock is not None else None
        try:
            folder = folder or Path(tempfile.mkdtemp(prefix="fedfloor-"))
        except OSError as error:
            raise RunError(
                f"neither the cache nor a temporary folder can be written ({error.strerror or error}). Set "
                "FEDFLOOR_CACHE to a writable folder.",
                key="cache",
            ) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            lock.release()


def _lock(place: Path) -> BaseFileLock | None:
    """Lock an entry for this process; return None where locking is impossible or takes longer than PATIENCE_S."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{place}.lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
        if not lock.is_locked:
            log.info("waiting for another process that is reading the same files")
            lock.acquire(timeout=PATIENCE_S)
    except Timeout:
        log.info("the other process has not finished: this process reads the files too, without a cache entry")
        return None
    except (OSError, NotImplementedError) as error:  # not every file system supports locks
        _no_cache(place.parent.parent, getattr(error, "strerror", None) or type(error).__name__)
        return None
    return lock


def _beside(place: Path) -> Path | None:
    """Make a folder beside ``place``, whose lock this process holds; remove the folders of killed processes."""
    from filelock import FileLock, Timeout

    for left in place.parent.parent.glob(f"*/*{PART}*"):
        owner = left.with_name(left.name.split(PART)[0])
        lock = contextlib.nullcontext() if owner == place else FileLock(f"{owner}.lock", timeout=0)
        with contextlib.suppress(Timeout, OSError), lock:
            shutil.rmtree(left, ignore_errors=True)
    folder = place.with_name(f"{place.name}{PART}{secrets.token_hex(4)}")
    try:
        folder.mkdir()  # with the user's umask, so that other users can read a shared cache
    except OSError as error:
        _no_cache(place.parent.parent, error.strerror)
        return None
    return folder


@cache
def _no_cache(root: Path, why: str | None) -> None:
    log.info("no cache: %s cannot be written (%s). Set FEDFLOOR_CACHE to another folder.", root, why)


HEADER = 256  # bytes, overwritten once the length of the array is known
ABOUT = "about.json"


@dataclass(frozen=True, eq=False)
class CacheEntry:
    """The arrays and facts that a parser wrote.

    Args:
        arrays: the arrays by name, read-only and memory-mapped, so that all processes share them.
        facts: all other results, as JSON.
    """

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]


class Writer:
    """A writer of arrays, block by block, so that a data set need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[BinaryIO, np.dtype[Any], tuple[int, ...]]] = {}
        self._lengths: dict[str, int] = {}

    def append(self, name: str, block: NDArray[Any], kind: DTypeLike | None = None) -> None:
        """Append a block [n, …] to an array; all its blocks have the same type and the same shape but for n.

        Raises:
            RunError: the disk is full.
        """
        if name not in self._open:
            with _writing(self._folder):
                new = (self._folder / f"{name}.npy").open("wb")
                self._open[name] = new, np.dtype(block.dtype if kind is None else kind), block.shape[1:]
                self._lengths[name] = 0
                new.write(b"\0" * HEADER)
        file, dtype, shape = self._open[name]
        if block.shape[1:] != shape:
            raise ValueError(f"{name}: a block of {block.shape[1:]} after blocks of {shape}")
        if block.size:
            with _writing(self._folder):
                file.write(np.ascontiguousarray(block, dtype).data.cast("B"))
        self._lengths[name] += len(block)

    def length(self, name: str) -> int:
        """Return the present length of an array."""
        return self._lengths.get(name, 0)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the arrays' headers (NPY 1.0: magic number, header's length; type, order and shape) and the facts.

        The files are flushed to the disk.
        """
        with _writing(self._folder):
            sizes = {}
            for name, (file, dtype, shape) in self._open.items():
                header = {"descr": dtype.str, "fortran_order": False, "shape": (self._lengths[name], *shape)}
                text = repr(header).encode().ljust(HEADER - 11) + b"\n"
                sizes[f"{name}.npy"] = file.tell()
                file.seek(0)
                file.write(b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text)
                _settle(file)
            with (self._folder / ABOUT).open("wb") as about:
                about.write(json_text({"sizes": sizes, "facts": facts}).encode())
                _settle(about)

    def close(self) -> None:
        """Close the files."""
        for file, _, _ in self._open.values():
            with contextlib.suppress(OSError):  # closing flushes once more, perhaps to a full disk
                file.close()


def remember(
    recipe: str, files: Sequence[Path], make: Callable[[Writer], Mapping[str, Any]], root: Path | None = None
) -> CacheEntry:
    """Return the result of ``make`` for files, from the cache if the same recipe was applied to the same bytes before.

    Concurrent processes that need the same entry wait for the first of them and map its result. Where the cache cannot
    be written, the arrays are in an unlinked temporary folder, and the files are parsed again next time.

    Args:
        recipe: the parser, its version and its settings: everything the result depends on apart from the files' bytes,
            names and order.
        files: the files to parse, in order.
        make: writes the arrays and returns the facts. Nothing is kept if it fails.
        root: the folder of the files, if the folders below it have a meaning (a device, a label): their names then
            belong to the key of the entry.

    Raises:
        SettingError: a file cannot be read, or it changed while it was read.
        RunError: the disk is full.
    """
    stamps = [_stamp(path) for path in files]
    names = [Path(os.path.relpath(path, root)).as_posix() if root else path.name for path in files]
    parts = json.dumps([recipe, *([name, content_hash(path)] for name, path in zip(names, files, strict=True))])
    key = hashlib.sha256(parts.encode()).hexdigest()
    place = cache_root() / key[:2] / key[2:34]
    entry = _open(place)
    if entry is not None:
        return entry
    with _work_folder(place) as folder:
        entry = None if folder.parent != place.parent else _open(place)  # made while this process waited
        if entry is not None:
            return entry
        writer = Writer(folder)
        try:
            writer.finish(make(writer))
        finally:
            writer.close()
        made = _open(folder)
        if made is None:
            raise RunError(
                f"the cache in {folder.parent} could not be read back. Set FEDFLOOR_CACHE to another folder."
            )
        changed = [path for path, stamp in zip(files, stamps, strict=True) if _stamp(path) != stamp]
        if changed:
            raise SettingError(
                f"{changed[0]} changed while it was being read. Try again once it is complete.",
                key="changed-while-read",
            )
        if folder.parent == place.parent:
            with contextlib.suppress(OSError):  # then the entry is not kept; mapped arrays stay readable
                if place.exists():  # a damaged entry
                    old = folder.with_name(f"{folder.name}-old")
                    place.rename(old)
                    shutil.rmtree(old, ignore_errors=True)
                folder.rename(place)
    return made


def cache_root() -> Path:
    """Return the folder of the cache: ``$FEDFLOOR_CACHE``, by default the user's cache folder."""
    chosen = os.environ.get("FEDFLOOR_CACHE")
    if chosen:
        return expanded(chosen, "FEDFLOOR_CACHE = ").absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedfloor", appauthor=False))


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with regular.opened(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else f"{error.strerror or error}"
        raise RunError(
            f"{why}: parsed data could not be kept in {folder.parent}. Free disk space, or set FEDFLOOR_CACHE to a "
            "folder on another disk. No partial files were left.",
            key="cache",
        ) from error


def _settle(file: BinaryIO) -> None:
    """Flush a file to the disk, so that after a power cut an entry is complete or absent."""
    file.flush()
    os.fsync(file.fileno())


def _open(place: Path) -> CacheEntry | None:
    """Return an entry if all its files are present in full length, otherwise None."""
    try:
        about = json.loads(regular.read_bytes(place / ABOUT))
        if any((place / name).stat().st_size != size for name, size in about["sizes"].items()):
            return None
        arrays = {}
        for name, size in about["sizes"].items():  # an empty array cannot be mapped
            path = regular.check(place / name)
            mapped = read_again(partial(np.load, path, mmap_mode="r" if size > HEADER else None))
            arrays[name.removesuffix(".npy")] = np.asarray(mapped)
        return CacheEntry(arrays, about["facts"])
    except Exception:  # damaged in any way: the entry is made again
        return None
