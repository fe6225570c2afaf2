"""Where an entry of the cache is made: a folder beside its place, one process at a time; or one that is not kept."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedfloor.errors import RunError

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

PART = ".part-"  # in the names of folders that are not whole yet
PATIENCE_S = 600.0  # how long one process waits for another that parses the same files


@contextmanager
def workshop(place: Path) -> Iterator[Path]:
    """Give a new folder beside ``place`` that is this process's alone, or else one among temporary files.

    It is taken away in the end, unless it was renamed.
    """
    lock = _lock(place)
    try:
        folder = _beside(place) if lock is not None else None
        folder = folder or _temporary()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            lock.release()


def _lock(place: Path) -> BaseFileLock | None:
    """Wait until this process alone may make an entry; None where that cannot be, or would take too long."""
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
        log.info("the other process is still not done: this one reads the files too, and keeps nothing")
        return None
    except (OSError, NotImplementedError) as error:  # a file system may have no locks
        _no_cache(place.parent.parent, getattr(error, "strerror", None) or type(error).__name__)
        return None
    return lock


def _beside(place: Path) -> Path | None:
    """Make a folder beside ``place``, whose lock this process holds; take away what killed processes left."""
    from filelock import FileLock, Timeout

    for left in place.parent.parent.glob(f"*/*{PART}*"):
        owner = left.with_name(left.name.split(PART)[0])
        with contextlib.suppress(Timeout, OSError), _held(owner, place) or FileLock(f"{owner}.lock", timeout=0):
            shutil.rmtree(left, ignore_errors=True)
    folder = place.with_name(f"{place.name}{PART}{secrets.token_hex(4)}")
    try:
        folder.mkdir()  # as the user's umask says, so that a shared cache can be read by others
    except OSError as error:
        _no_cache(place.parent.parent, error.strerror)
        return None
    return folder


def _held(owner: Path, place: Path) -> contextlib.nullcontext[None] | None:
    return contextlib.nullcontext() if owner == place else None


def _temporary() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="fedfloor-"))
    except OSError as error:
        raise RunError(
            f"neither the cache nor a temporary folder can be written ({error.strerror or error}). Set FEDFLOOR_CACHE "
            "to a folder that can."
        ) from error


@cache
def _no_cache(root: Path, why: str | None) -> None:
    """Say it, once."""
    log.info("no cache: %s cannot be written (%s). FEDFLOOR_CACHE names another folder.", root, why)
