"""The folder of a run: its lock, its record of versions and hardware, and the checks before a resume."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.checking import toml, toml_text
from fedfloor.base.errors import SettingError, disk_error
from fedfloor.base.machine import cores, processor
from fedfloor.base.strict import json_text
from fedfloor.base.version import __version__
from fedfloor.config import read, resolved
from fedfloor.network.profile import LINKS

# files with what a run on real machines has spent of its privacy, including rounds that were begun again
BEGUN = "private-rounds"  # number of begun rounds
VISITS = "private-visits.json"  # device → number of begun visits
IDENTITY = "identity"  # the random part of the name by which machines know a run


@contextmanager
def owned(folder: Path, keep: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Lock a run's folder for this process while the body runs.

    If the body fails before its first round is on disk, the folder is restored to its earlier state, unless visits
    with noise have begun: edges may have seen their updates.

    Args:
        folder: the run's folder.
        keep: errors after which the folder is not restored.
    """
    from filelock import FileLock, Timeout

    made = [place for place in (folder, *folder.parents) if not place.exists()]
    before = set(folder.iterdir()) if folder.is_dir() else set()
    fresh = folder / "experiment.toml" not in before and not _begun(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise SettingError(
            f"another process is using {folder}. Wait for its end, stop it, or give another folder with --out.",
            key="folder-in-use",
        ) from None
    except OSError as error:
        raise SettingError(
            f"cannot write in {folder}: {error.strerror or error}. Give another folder with --out."
        ) from error
    try:
        _sweep(folder)
        yield
    except Exception as error:
        if fresh and not _begun(folder) and not isinstance(error, keep):
            for path in set(folder.iterdir()) - before:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder may hold other files
                for place in made:
                    place.rmdir()
        raise
    finally:
        lock.release()


def _sweep(folder: Path) -> None:
    """Delete temporary files of :func:`write` that killed processes have left."""
    for part in folder.glob(".*.part"):
        process = part.name.rsplit(".", 2)[1]
        if process.isdecimal() and not Path("/proc", process).exists():
            part.unlink(missing_ok=True)


def _begun(folder: Path) -> bool:
    ledger = folder / "ledger.jsonl"
    rounds = any((folder / "checkpoint").glob("round-*")) or (ledger.exists() and ledger.stat().st_size > 0)
    return rounds or (folder / VISITS).exists()


def write(path: Path, data: bytes | str) -> None:
    """Write a file atomically, by renaming a temporary file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def identity(folder: Path) -> str:
    """Return the name by which machines know the run in a folder: the folder's, and what :func:`identify` wrote there.

    Without that file, as of a simulation or an earlier version, it is the folder's name.
    """
    path = folder / IDENTITY
    return f"{folder.name} {regular.read_text(path).strip()}" if path.exists() else folder.name


def new_identity(folder: Path) -> str:
    """Return the name of a run that begins in a folder, unlike that of any run in a folder of the same name.

    Devices know by it which samples a run began with, what of it they have revealed, and to which model their own part
    belongs.
    """
    return f"{folder.name} {secrets.token_hex(8)}"


def identify(folder: Path, name: str) -> None:
    """Keep the name of a run that begins, so that it goes on under the same one."""
    write(folder / IDENTITY, name.removeprefix(f"{folder.name} "))


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    if path.exists():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def provenance(data_digest: str) -> dict[str, Any]:
    """Return the facts besides the experiment that determine a run's bits: versions, kind of CPU, data."""
    import numpy
    import torch

    return {
        "fedfloor": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "cpu": processor(),
        "cores": cores(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "data_sha256": data_digest,
    }


# differences that do not change results, as data and initial model have hashes and networks all their numbers
FREE = {"data.root", "data.path", "data.test", "model.init_from", "network.profile", "python", "cores", "deploy.quorum"}
FREE |= {"deploy.visits_limit"}
FREE |= {f"network.{table}.source" for table in (*LINKS, "devices", "radio")}


def check_same(folder: Path, document: str, *, force: bool) -> None:
    """Check that a resume continues the same experiment as the folder's run.

    Settings that did not exist when the run began count as defaults. Another release counts as a difference.
    """
    path = folder / "experiment.toml"
    try:
        before = flat(toml(path, "experiment"))
    except SettingError as error:
        raise SettingError(f"{folder} holds no run to resume: {error}", key=error.key) from error
    now = flat(toml_text(document, "the resolved experiment"))
    try:
        known = flat(toml_text(resolved(read(path), path.parent), str(path)))
    except SettingError:  # a setting no longer exists: compared as text
        known = {}
    before = {key: value for key, value in before.items() if not known or key in known or key in now}
    before |= {key: value for key, value in known.items() if key in now and key not in before}
    changed = [
        f"{key}: {before.get(key, 'not set')} → {now.get(key, 'not set')}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key) and key.removeprefix("provenance.") not in FREE
    ]
    if changed and not force:
        data = ", with other data" if any(line.startswith("provenance.data_sha256") for line in changed) else ""
        raise SettingError(
            f"the run in {folder} was started differently{data}: {'; '.join(changed)}. Resume it unchanged, start a "
            "new one with --out, or continue it nevertheless with `fedfloor run --resume --force`.",
            key="run-differs",
        )


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table, with keys joined by dots.

    >>> flat({"a": 1, "b": {"c": {"d": 2}}})
    {'a': 1, 'b.c.d': 2}
    """
    whole: dict[str, Any] = {}
    for key, value in table.items():
        whole |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return whole


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file, atomically."""
    write(path, json_text(value, separators=(",", ":")))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays as a compressed .npz file, atomically."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write(path, content.getvalue())
