"""The files that trained models are saved in: where one lies, and what is in it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedfloor.errors import SettingError, nearest, shown, unknown
from fedfloor.names import REFERENCES

FORMAT = "fedfloor 1"
FILES = {"last": "model.safetensors", "best": "best.safetensors"}  # in a run's folder
COHORTS = "cohorts.json"  # of a run with several models: the devices' names, or their numbers, → number of their model
DIGEST = ".sha256"  # ending of the file beside a model's that holds its digest, as sha256sum writes it


def cohort_file(number: int) -> str:
    """Return the file's name of a cohort's model in a run's folder."""
    return f"model-{number}.safetensors" if number else FILES["last"]


def found(path: Path, which: str = "last", device: str = "") -> Path:
    """Return the model's file of a run's folder, or that file itself.

    Args:
        path: a folder or a file.
        which: the last round's model, or the best one's by validation data.
        device: whose model, of a run with several.

    Raises:
        SettingError: there is none; why is told.
    """
    if which not in FILES:
        raise unknown("--which", which, FILES)
    if path.suffix.casefold() == ".toml" and path.is_file():
        run = path.parent if path.name == "experiment.toml" else Path("runs") / _name(path)
        raise SettingError(f"{path} is an experiment file, and no trained model. Give its run's folder, such as {run}.")
    if path.is_file():
        if which != "last":
            raise SettingError(f"--which {which}: {path} is a model's file. Give its run's folder.")
        return path
    if not path.is_dir():
        beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
        near = nearest(path.name, beside)
        raise SettingError(f"{path}: there is no such run. Give a run's folder, such as runs/NAME.{near}")
    model = path / FILES["last"]
    if model.is_file():
        if not (path / FILES[which]).is_file():
            raise SettingError(
                f"--which {which}: {path} keeps the last round's model alone. Which round is best is chosen by "
                'validation data: train with [evaluate] on = "both", which holds some of the training samples out.'
            )
        return path / (_of_device(path, device) if (path / COHORTS).is_file() else FILES[which])
    if (path / "evaluation.json").exists() and _is_reference(path / "experiment.toml"):
        raise SettingError(
            f"{path} keeps no model: it is a reference (local training only keeps one for each device, in memory/; "
            "scikit-learn none). Give the run of a method."
        )
    if (path / "experiment.toml").exists():
        raise SettingError(
            f"{path} has no model yet: a run writes it when it ends or is stopped. Wait for it, or go on with "
            f"fedfloor run {path / 'experiment.toml'} --out {path} --resume"
        )
    inside = sorted(str(one.parent) for one in path.glob("*/model.safetensors"))
    more = f" Runs in it: {', '.join(inside)}." if inside else ""
    raise SettingError(f"{path} is not a run's folder: there is no model.safetensors in it.{more}")


def _of_device(path: Path, device: str) -> str:
    """Return the file's name of the model of a device's cohort."""
    try:
        cohorts = {str(name): int(number) for name, number in json.loads((path / COHORTS).read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(f"{path / COHORTS} is damaged ({error}). Resume the run, which writes it anew.") from error
    if not device:
        raise SettingError(
            f"{path} has a model for each of {len(set(cohorts.values()))} cohorts of devices: name a device, such as "
            f"--device {shown(next(iter(cohorts), ''))}, or give a model's file."
        )
    if device not in cohorts:
        raise unknown("device", device, cohorts)
    return cohort_file(cohorts[device])


def _name(path: Path) -> str:
    """Return the name of an experiment file's experiment: that of its run's folder."""
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8-sig")).get("name", path.stem))
    except (OSError, ValueError, RecursionError):
        return path.stem


def _is_reference(path: Path) -> bool:
    try:
        method = tomllib.loads(path.read_text(encoding="utf-8"))["method"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return method in REFERENCES


def content(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a model's file says about it, and its tensors by name.

    Raises:
        SettingError: it is damaged or of another format.
    """
    try:
        _check_digest(path)
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get("fedfloor", "{}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
    except (SafetensorError, OSError) as error:
        raise SettingError(
            f"{path} is no trained model, or damaged (not to be read as a safetensors file: {error}). "
            "Give a run's folder."
        ) from error
    try:
        about = json.loads(header)
        kind = about.get("format", "none")
    except (json.JSONDecodeError, AttributeError, RecursionError):
        kind = "unreadable"
    if kind != FORMAT:
        raise SettingError(
            f"{path} has format '{kind}': this version reads '{FORMAT}', the model.safetensors of a run's folder."
        )
    return about, tensors


def _check_digest(path: Path) -> None:
    """Refuse a model that has changed since its digest was written beside it; one without is not checked."""
    beside = path.with_name(path.name + DIGEST)
    if not beside.is_file() or not path.is_file():
        return
    listed = beside.read_text(encoding="utf-8", errors="replace").split()
    if listed[:1] != [hashlib.sha256(path.read_bytes()).hexdigest()]:
        raise SettingError(
            f"{path} is damaged: its SHA-256 is not the one in {beside.name}. Resume its run, which writes both anew, "
            f"or put it back from a copy. Delete {beside.name} if another model was put here on purpose."
        )
