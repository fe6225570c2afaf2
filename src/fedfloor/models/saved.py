"""The files of trained models: their places and contents."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor

from fedfloor.base import regular
from fedfloor.base.checking import toml
from fedfloor.base.errors import MALFORMED, SettingError, nearest, shown, unknown
from fedfloor.base.names import REFERENCES

INSIDE = re.compile(r"(memory/)?[\w.-]+\.safetensors", re.ASCII)  # names of files that runs write

FORMAT = "fedfloor 1"
FILES = {"last": "model.safetensors", "best": "best.safetensors"}  # name in a run's folder
# of a run with different models: devices' names, or numbers, → file of the model or part
DEVICES = "devices.json"
OWN = "own"  # prefix of a device's own part of the model in its memory, before the part's name
DIGEST = ".sha256"  # suffix of the file with a model file's digest, in the format of sha256sum


def cohort_file(number: int) -> str:
    """Return the file name of a cohort's model in a run's folder."""
    return f"model-{number}.safetensors" if number else FILES["last"]


class Own(NamedTuple):
    """A device's own part of a model ("" without one): its name, its numbers, and the task with its own thresholds."""

    part: str
    numbers: Tensor | None
    task: dict[str, Any] | None


def model_file(
    path: Path, which: str = "last", device: str = "", *, by_device: bool = False
) -> tuple[Path, Own | None]:
    """Return the model file of a run's folder, or of its path itself, and the device's own part, if any.

    Args:
        path: a run's folder or a model file.
        which: ``last``, the last round's model, or ``best``, the best by validation data.
        device: the device of the model, in a run with different models.
        by_device: whether the models of devices are read beside this one, which then need not be shared.
    """
    if which not in FILES:
        raise unknown("--which", which, FILES)
    if path.suffix.casefold() == ".toml" and path.is_file():
        try:
            name = str(toml(path, "experiment").get("name", path.stem))
        except SettingError:
            name = path.stem
        run = path.parent if path.name == "experiment.toml" else Path("runs") / name
        raise SettingError(f"{path} is an experiment file, not a trained model. Give its run's folder, such as {run}.")
    if path.is_file():
        if which != "last":
            raise SettingError(f"--which {which}: {path} is a model's file. Give its run's folder.")
        return path, None
    if not path.is_dir():
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        raise SettingError(f"{path}: no such run. Give a run's folder, such as runs/NAME.{near}")
    model = path / FILES["last"]
    if model.is_file():
        if not (path / FILES[which]).is_file():
            raise SettingError(
                f"--which {which}: {path} has only the last round's model. The best round is chosen by "
                'validation data: train with [evaluate] on = "both", which holds some of the training samples out.'
            )
        if (path / DEVICES).is_file():
            return _of_device(path, device, which, by_device=by_device)
        return path / FILES[which], None
    if (path / "evaluation.json").exists() and _is_reference(path / "experiment.toml"):
        raise SettingError(
            f"{path} has no model: it is a reference (local training keeps one per device, in memory/; "
            "scikit-learn keeps none). Give the run of a method."
        )
    if (path / "experiment.toml").exists():
        raise SettingError(
            f"{path} has no model yet: a run writes it when it ends or is stopped. Wait for it, or continue with "
            f"fedfloor run {path / 'experiment.toml'} --out {path} --resume"
        )
    inside = sorted(str(file.parent) for file in path.glob("*/model.safetensors"))
    more = f" Runs in it: {', '.join(inside)}." if inside else ""
    raise SettingError(f"{path} is not a run's folder: it has no model.safetensors.{more}")


def devices(path: Path) -> dict[str, dict[str, Any]]:
    """Return the record of each device's model in a run, with the model's file."""
    try:
        known = json.loads(regular.read_text(path / DEVICES)).items()
        listed = {name: {**record, "file": str(record["file"])} for name, record in known}
        for record in listed.values():  # a folder from elsewhere may name any path
            if not INSIDE.fullmatch(record["file"]) or not (record.get("stays") or (path / record["file"]).is_file()):
                raise ValueError(f"{shown(record['file'])} is not a model or memory file of the run")
        return listed
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SettingError(
            f"{path} has one model for all devices: leave --device and --all out, or give the folder of a run of a "
            "method that trains several, such as fedrep or ifca."
        ) from error
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{path / DEVICES} is damaged ({error}). Resume the run, which writes it again.", key="damaged-model"
        ) from error


def staying(path: Path) -> tuple[str, str] | None:
    """Return the part of a run's model that never leaves devices, and its name in the run; None without one.

    Raises:
        SettingError: the run is from an earlier version, which did not record the part.
    """
    records = devices(path).values() if (path / DEVICES).is_file() else ()
    found = next((record for record in records if record.get("stays")), None)
    if found is None:
        return None
    part = found["stays"]
    run = found.get("run")
    if not (isinstance(part, str) and isinstance(run, str)):
        raise SettingError(
            f"{path}: its devices trained by an earlier version, which wrote no file of their own parts for releases. "
            "Train the run for further rounds with this version.",
            key="earlier-version",
        )
    return part, run


def has_shared(path: Path) -> bool:
    """Return whether a run with different models has a shared one beside them, unlike a run with cohorts."""
    known = devices(path).values()
    same = all(record["file"] == FILES["last"] and "task" in record for record in known)
    return same or any("/" in record["file"] or "stays" in record for record in known)


def _of_device(path: Path, device: str, which: str, *, by_device: bool) -> tuple[Path, Own | None]:
    """Return the file of a device's model and its own part; without a device, the shared model's file."""
    known = devices(path)
    files = {record["file"] for record in known.values()}
    shared = has_shared(path)
    if not device and not shared and not by_device and len(known):
        raise SettingError(
            f"{path} has a model for each of {len(files)} cohorts of devices: name a device, such as "
            f"--device {shown(next(iter(known)))}, or give a model's file.",
            key="choice-of-cohort",
        )
    if which != "last" and (device or not shared):
        raise SettingError(
            f"--which {which}: {path} has only the last round's models of devices. Leave --which out, or --device."
        )
    if device and device not in known:
        raise unknown("device", device, known)
    if device and known[device].get("stays") and not (path / known[device]["file"]).is_file():
        raise SettingError(
            f"device {shown(device)}: its own part of the model is only on that machine, in the folder that 'memory' "
            f"names in its settings; {path} has the shared part. Leave --device out for that; or copy {path} to the "
            f"machine, and {Path(known[device]['file']).name} from that folder into {path / 'memory'} there."
        )
    file = known[device]["file"] if device else FILES[which]
    if "/" not in file:
        task = known[device].get("task") if device else None
        return path / file, None if task is None else Own("", None, task)
    return path / FILES["last"], _own_part(path / file, known[device].get("task"))


def _own_part(path: Path, task: dict[str, Any] | None) -> Own:
    """Return a device's own part from its memory file, whose name ends with the beginning of its SHA-256."""
    try:
        data = regular.read_bytes(path)
        if hashlib.sha256(data).hexdigest()[:32] != path.stem.rpartition("-")[2]:
            raise SafetensorError("its SHA-256 is not that of its name")
        ((key, numbers),) = [entry for entry in load(data).items() if entry[0].startswith(f"{OWN} ")]
    except (OSError, SafetensorError, ValueError) as error:
        raise SettingError(f"{path}: the device's own part of the model is missing or damaged ({error}).") from error
    return Own(key.removeprefix(f"{OWN} "), numbers, task)


def _is_reference(path: Path) -> bool:
    try:
        return toml(path, "experiment")["method"]["name"] in REFERENCES
    except (SettingError, KeyError, TypeError):
        return False


def content(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a model file's header, and its tensors by name."""
    try:
        _check_digest(path)
        with safe_open(regular.check(path), "pt") as file:
            header = (file.metadata() or {}).get("fedfloor", "{}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is not a dictionary)
    except (SafetensorError, OSError) as error:
        raise SettingError(
            f"{path} is not a trained model, or damaged (it cannot be read as a safetensors file: {error}). "
            "Give a run's folder."
        ) from error
    try:
        about = json.loads(header)
        kind = about.get("format", "none")
    except MALFORMED:
        kind = "unreadable"
    if kind != FORMAT:
        raise SettingError(
            f"{path} has format '{kind}': this version reads '{FORMAT}', the model.safetensors of a run's folder."
        )
    return about, tensors


def _check_digest(path: Path) -> None:
    """Raise SettingError for a model file that differs from the digest beside it; no check without a digest."""
    beside = path.with_name(path.name + DIGEST)
    if not beside.is_file() or not path.is_file():
        return
    listed = regular.read_text(beside, errors="replace").split()
    if listed[:1] != [hashlib.sha256(regular.read_bytes(path)).hexdigest()]:
        raise SettingError(
            f"{path} is damaged: its SHA-256 is not that in {beside.name}. Resume its run, which writes both again, "
            f"or restore it from a copy. Delete {beside.name} if the model was replaced on purpose."
        )
