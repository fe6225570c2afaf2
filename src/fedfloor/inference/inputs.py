"""Files as samples: pictures, ``.npz`` arrays and ``.csv`` tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.files import own
from fedfloor.data.files.npz import read_arrays
from fedfloor.data.files.pictures import SUFFIXES
from fedfloor.data.files.rows import unpacked
from fedfloor.errors import SettingError, nearest
from fedfloor.inference import pictures
from fedfloor.inference.arrays import fitting
from fedfloor.inference.samples import UNKNOWN, Samples, named
from fedfloor.inference.tables import MATRIX, table
from fedfloor.inference.trained import Trained
from fedfloor.inference.truth import of_array

TABLES = (*own.TABLES, *own.WHOLE, MATRIX)
READ = {*SUFFIXES, *TABLES, ".npz"} - {".txt"}  # in a folder that is a read-me


def _ending(path: Path) -> str:
    return Path(unpacked(path.name)).suffix


def files(given: Sequence[Path]) -> list[Path]:
    """Return files and, in place of a folder, all it holds of the kinds that are read, sorted; links are not followed.

    Raises:
        SettingError: something is not there, or a folder holds nothing that is read.
    """
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(Path(place) / name for place, _, names in os.walk(path) for name in names)
            readable = [one for one in inside if _ending(one) in READ]
            readable = [one for one in readable if not one.name.startswith(".") and not one.is_symlink()]
            if not readable:
                raise SettingError(f"{path} holds {len(inside)} files, none of them a picture, .npz or .csv.")
            found += readable
        elif path.is_file():
            found.append(path)
        else:
            beside = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
            raise SettingError(f"{path}: there is no such file.{nearest(path.name, beside)}")
    return found


def read(
    paths: Sequence[Path], trained: Trained, *, resize: bool = False, invert: bool = False,
    failed: dict[Path, str] | None = None, device: str = "",
) -> Iterator[Samples]:  # fmt: skip
    """Read files one by one as samples of a model.

    Args:
        paths: pictures, ``.npz`` or ``.csv`` files.
        trained: the model.
        resize: scale pictures of another size.
        invert: exchange light and dark in pictures.
        failed: gets the files that are no samples of this model, each with the reason, and the others are read.
        device: whose the files are; empty: as their folders, names or columns have it.

    Raises:
        SettingError: a file that is no sample of this model, where ``failed`` is left out.
    """
    for path in paths:
        try:
            samples = _of(device, _read(path, trained, resize=resize, invert=invert))
        except SettingError as error:
            if failed is None:
                raise
            failed[path] = str(error)
        else:
            yield samples if trained.own is None else trained.own.file(samples)


def _read(path: Path, trained: Trained, *, resize: bool, invert: bool) -> Samples:
    ending = _ending(path)
    if ending == ".npz":
        return _archive(path, trained)
    if trained.sensors is not None:
        if ending not in TABLES:
            raise SettingError(
                f"{path}: this model takes the sensors {', '.join(trained.sensors.columns)}. Give .csv or .npz."
            )
        return table(path, trained.sensors, trained.classes, trained.task)
    if ending in TABLES:
        raise SettingError(f"{path}: this model takes pictures of shape {trained.shape}, and no tables.")
    x = pictures.picture(path, trained.shape, resize=resize or trained.scaled, invert=invert)
    return Samples(path, x[None], None, np.full(1, UNKNOWN))


def _of(device: str, samples: Samples) -> Samples:
    """Return samples that are all of a device, if one is given."""
    return replace(samples, devices=[device] * len(samples.x)) if device else samples


def _archive(path: Path, trained: Trained) -> Samples:
    """Read an ``.npz``: samples under ``x``, or as its only array, and labels under ``y``, if it has them."""
    arrays = read_arrays(path, lambda names: _samples_and_labels(path, names))
    labels = arrays.pop("y", None)
    ((key, x),) = arrays.items()
    batch = fitting(x, trained.shape, trained.sensors, f"{path}, array {key}")
    y, target, where = np.full(len(batch), UNKNOWN), None, f"{path}, array y"
    if trained.task.targets:
        target = of_array(labels, len(batch), trained.task.targets, where)
    elif labels is not None:
        y = _labels(labels, len(batch), trained, where)
    return Samples(path, batch, [(i, i) for i in range(len(batch))], y, target=target)


def _samples_and_labels(path: Path, names: Sequence[str]) -> list[str]:
    others = [name for name in names if name != "y"]
    if "x" not in others and len(others) != 1:
        said = ", ".join(names) or "none"
        raise SettingError(f"{path} has the arrays {said}: name the one with the samples x.")
    return ["x" if "x" in others else others[0], *(["y"] if "y" in names else [])]


def _labels(given: NDArray[Any], count: int, trained: Trained, where: str) -> NDArray[np.int64]:
    y = given.reshape(-1)
    if len(y) != count:
        raise SettingError(f"{where} has {len(y)} labels for {count} samples.")
    if y.dtype.kind in "US":
        return named(y.astype(str).tolist(), trained.classes, lambda i: f"{where}, label {i}")
    most = len(trained.classes) - 1
    if count and (y.dtype.kind not in "iu" or y.min() < 0 or y.max() > most):
        raise SettingError(
            f"{where} is {y.dtype} from {y.min()} to {y.max()}: labels are whole numbers from 0 to {most}, or names."
        )
    return y.astype(np.int64)
