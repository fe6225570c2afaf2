"""What was parsed once is kept: arrays on disk under the hash of the files they came from, mapped into memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedfloor.errors import RunError, SettingError, disk_error

log = logging.getLogger(__name__)

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
        """
        if name not in self._open:
            new = (self._folder / f"{name}.npy").open("wb")
            new.write(b"\0" * HEADER)
            self._open[name] = new, np.dtype(kind or block.dtype), block.shape[1:]
            self._lengths[name] = 0
        file, dtype, shape = self._open[name]
        if block.shape[1:] != shape:
            raise ValueError(f"{name}: a block of {block.shape[1:]} after blocks of {shape}")
        file.write(np.ascontiguousarray(block, dtype).data.cast("B") if block.size else b"")
        self._lengths[name] += len(block)

    def length(self, name: str) -> int:
        """Return how long an array is by now."""
        return self._lengths.get(name, 0)

    def close(self) -> None:
        """Write the arrays' headers: the magic number of NPY 1.0, the header's length, and type, order and shape."""
        for name, (file, dtype, shape) in self._open.items():
            told = {"descr": dtype.str, "fortran_order": False, "shape": (self._lengths[name], *shape)}
            text = repr(told).encode().ljust(HEADER - 11) + b"\n"
            file.seek(0)
            file.write(b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text)
            file.close()


def remember(
    recipe: str, files: Sequence[Path], make: Callable[[Writer], Mapping[str, Any]], root: Path | None = None
) -> Entry:
    """Return what ``make`` makes of files: from the cache where the same recipe met the same bytes before.

    Args:
        recipe: names the parser, its version and its settings: all that the result depends on beside the files.
        files: what is parsed, in order.
        make: writes the arrays and returns the facts. Where it fails nothing is kept.
        root: the folder that the files lie in, where the folders between it and them say something (a device, a label).

    Raises:
        SettingError: a file cannot be read.
        RunError: the disk is full.
    """
    key = _key(recipe, files, root)
    place = cache_root() / key[:2] / key[2:34]
    found = _open(place)
    if found is not None:
        return found
    with _workshop(place.parent) as folder:
        _fill(folder, make)
        made = _open(folder)
        if made is None:
            raise RunError(f"the cache in {folder} could not be read back. Set FEDFLOOR_CACHE to another folder.")
        with contextlib.suppress(OSError):  # another process was faster; what is mapped stays readable
            folder.rename(place)
    return made


def cache_root() -> Path:
    """Return the folder of the cache: ``$FEDFLOOR_CACHE``, or else the user's cache folder."""
    chosen = os.environ.get("FEDFLOOR_CACHE")
    if chosen:
        return Path(chosen).expanduser()
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
        reason = error.strerror or type(error).__name__
        raise SettingError(f"{path}: cannot be read ({reason}). Check the folder and its permissions.") from error


def _key(recipe: str, files: Sequence[Path], root: Path | None) -> str:
    names = [path.relative_to(root).as_posix() if root else path.name for path in files]
    told = json.dumps([recipe, *([name, content_hash(path)] for name, path in zip(names, files, strict=True))])
    return hashlib.sha256(told.encode()).hexdigest()


@contextmanager
def _workshop(wanted: Path) -> Iterator[Path]:
    """Give a new folder in ``wanted``, or where that cannot be written, among temporary files; then take it away."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="part-", dir=wanted))
    except OSError as error:
        log.info("no cache: %s cannot be written (%s). FEDFLOOR_CACHE names another folder.", wanted, error.strerror)
        folder = Path(tempfile.mkdtemp(prefix="fedfloor-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, make: Callable[[Writer], Mapping[str, Any]]) -> None:
    writer = Writer(folder)
    try:
        try:
            facts = make(writer)
        finally:
            writer.close()
        sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.npy"))}
        (folder / ABOUT).write_text(json.dumps({"sizes": sizes, "facts": facts}), encoding="utf-8")
    except OSError as error:
        raise disk_error(folder, error) from error


def _open(place: Path) -> Entry | None:
    """Return an entry whose files are all there in full length, or None."""
    try:
        about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        if any((place / name).stat().st_size != size for name, size in about["sizes"].items()):
            return None
        arrays = {name.removesuffix(".npy"): _mapped(place / name) for name in about["sizes"]}
        return Entry(arrays, about["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _mapped(path: Path) -> NDArray[Any]:
    found = np.load(path, mmap_mode="r" if path.stat().st_size > HEADER else None, allow_pickle=False)
    return np.asarray(found).view(np.ndarray)
