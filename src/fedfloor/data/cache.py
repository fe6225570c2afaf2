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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedfloor.data.files import expanded, unreadable
from fedfloor.errors import RunError, SettingError

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

PART = ".part-"  # in the names of folders that are not whole yet
PATIENCE_S = 600.0  # how long one process waits for another that parses the same files


@contextmanager
def _work_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder beside ``place``, or a temporary one, which is removed at the end unless it was renamed."""
    lock = _lock(place)
    try:
        folder = _beside(place) if lock is not None else None
        try:
            folder = folder or Path(tempfile.mkdtemp(prefix="fedfloor-"))
        except OSError as error:
            raise RunError(
                f"neither the cache nor a temporary folder can be written ({error.strerror or error}). Set "
                "FEDFLOOR_CACHE to a folder that can."
            ) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            lock.release()


def _lock(place: Path) -> BaseFileLock | None:
    """Wait until this process alone may make an entry; None where that is impossible, or would take too long."""
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
        log.info("the other process is still not done: this one reads the files too, without a cache entry")
        return None
    except (OSError, NotImplementedError) as error:  # a file system may have no locks
        _no_cache(place.parent.parent, getattr(error, "strerror", None) or type(error).__name__)
        return None
    return lock


def _beside(place: Path) -> Path | None:
    """Make a folder beside ``place``, whose lock this process holds; remove leftovers of killed processes."""
    from filelock import FileLock, Timeout

    for left in place.parent.parent.glob(f"*/*{PART}*"):
        owner = left.with_name(left.name.split(PART)[0])
        lock = contextlib.nullcontext() if owner == place else FileLock(f"{owner}.lock", timeout=0)
        with contextlib.suppress(Timeout, OSError), lock:
            shutil.rmtree(left, ignore_errors=True)
    folder = place.with_name(f"{place.name}{PART}{secrets.token_hex(4)}")
    try:
        folder.mkdir()  # as the user's umask says, so that a shared cache can be read by others
    except OSError as error:
        _no_cache(place.parent.parent, error.strerror)
        return None
    return folder


@cache
def _no_cache(root: Path, why: str | None) -> None:
    log.info("no cache: %s cannot be written (%s). FEDFLOOR_CACHE names another folder.", root, why)


HEADER = 256  # bytes: the length of an array is written over it when it is known
ABOUT = "about.json"


@dataclass(frozen=True, eq=False)
class CacheEntry:
    """A parser's result.

    Args:
        arrays: the arrays by name, mapped into memory: read-only, and shared by all processes that read them.
        facts: all else, as JSON.
    """

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]


class Writer:
    """Takes arrays piece by piece, so that a data set need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[BinaryIO, np.dtype[Any], tuple[int, ...]]] = {}
        self._lengths: dict[str, int] = {}

    def append(self, name: str, block: NDArray[Any], kind: DTypeLike | None = None) -> None:
        """Add a block [n, …] to the end of an array; its blocks have one type and agree in all but their length.

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

        It is then on the disk completely, not merely in the system's buffers.
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
                about.write(json.dumps({"sizes": sizes, "facts": facts}).encode())
                _settle(about)

    def close(self) -> None:
        """Close the files."""
        for file, _, _ in self._open.values():
            with contextlib.suppress(OSError):  # it flushes once more, on a disk that may be full
                file.close()


def remember(
    recipe: str, files: Sequence[Path], make: Callable[[Writer], Mapping[str, Any]], root: Path | None = None
) -> CacheEntry:
    """Return the result of ``make`` for files: from the cache if the same recipe was applied to the same bytes before.

    Processes that need the same entry at once wait for the first of them, and map its result. Where the cache cannot be
    written the arrays lie in a temporary folder that has no name any more: they are parsed again next time.

    Args:
        recipe: names the parser, its version and its settings: all that the result depends on beside the files' bytes,
            their names and their order.
        files: the files to parse, in order.
        make: writes the arrays and returns the facts. Where it fails nothing is kept.
        root: the folder of the files, where the folders below it have a meaning (a device, a label): their
            names then count too.

    Raises:
        SettingError: a file cannot be read, or it changed meanwhile.
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
            raise SettingError(f"{changed[0]} changed while it was being read. Try again once it is whole.")
        if folder.parent == place.parent:
            with contextlib.suppress(OSError):  # not kept then; what is mapped stays readable
                if place.exists():  # a damaged entry
                    old = folder.with_name(f"{folder.name}-old")
                    place.rename(old)
                    shutil.rmtree(old, ignore_errors=True)
                folder.rename(place)
    return made


def cache_root() -> Path:
    """Return the folder of the cache: ``$FEDFLOOR_CACHE``, or else the user's cache folder."""
    chosen = os.environ.get("FEDFLOOR_CACHE")
    if chosen:
        return expanded(chosen, "FEDFLOOR_CACHE = ").absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("fedfloor", appauthor=False))


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as stream:
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
            f"{why}: parsed data could not be kept in {folder.parent}. Make room, or set FEDFLOOR_CACHE to a folder "
            "on another disk. Nothing was left there."
        ) from error


def _settle(file: BinaryIO) -> None:
    """Flush a file to the disk: after a power cut an entry must be whole, or absent."""
    file.flush()
    os.fsync(file.fileno())


def _open(place: Path) -> CacheEntry | None:
    """Return an entry whose files are all present in full length, or None."""
    try:
        about = json.loads((place / ABOUT).read_bytes())
        if any((place / name).stat().st_size != size for name, size in about["sizes"].items()):
            return None
        arrays = {}
        for name, size in about["sizes"].items():  # an empty array cannot be mapped
            mapped = np.lib.format.open_memmap(place / name, mode="r") if size > HEADER else np.load(place / name)
            arrays[name.removesuffix(".npy")] = np.asarray(mapped)
        return CacheEntry(arrays, about["facts"])
    except Exception:  # damaged in whatever way: it is made anew
        return None
