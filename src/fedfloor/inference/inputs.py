"""Files as samples: pictures, ``.npz`` arrays and ``.csv`` tables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Images
from fedfloor.data.files import own
from fedfloor.data.files.npz import read_arrays
from fedfloor.data.files.pictures import SUFFIXES, read_picture
from fedfloor.data.files.rows import unpacked
from fedfloor.errors import SettingError, nearest
from fedfloor.inference.samples import UNKNOWN, FileSamples, class_numbers, fitting, of_array
from fedfloor.inference.tables import MATRIX, table
from fedfloor.inference.trained import Trained

MODES = {1: "L", 3: "RGB"}  # channels → mode of Pillow


def picture(path: Path, shape: tuple[int, ...], *, resize: bool = False, invert: bool = False) -> NDArray[np.uint8]:
    """Read a picture, in grey or colour as the model has one channel or three: uint8 [C, H, W].

    ``shape`` is (C, H, W); ``resize`` scales a picture of another size, ``invert`` exchanges light and dark.

    Raises:
        SettingError: not a picture, a damaged one, or one of another size.
    """
    if len(shape) != 3 or shape[0] not in MODES:
        raise SettingError(
            f"{path}: the model takes samples of shape {shape}, which is not that of a picture. Give an .npz."
        )
    data = read_picture(path, str(path), (shape[1], shape[2]) if resize else None)
    if data.shape[1:] != shape[1:]:
        raise SettingError(
            f"{path} has {data.shape[1]}×{data.shape[2]} pixels (height × width): the model takes "
            f"{shape[1]}×{shape[2]}. Crop it to that size, or scale it with --resize."
        )
    if len(data) != shape[0]:
        data = _recoloured(data, shape[0])
    return np.uint8(255) - data if invert else data


def _recoloured(data: Images, channels: int) -> Images:
    """Convert colour to grey (0.299·R + 0.587·G + 0.114·B), or grey to colour (three equal channels)."""
    from PIL import Image

    if channels == 3:
        return np.repeat(data, 3, axis=0)
    return np.array(Image.fromarray(np.ascontiguousarray(data.transpose(1, 2, 0))).convert(MODES[1]), np.uint8)[None]


TABLES = (*own.TABLES, *own.WHOLE, MATRIX)
READ = {*SUFFIXES, *TABLES, ".npz"} - {".txt"}  # in a folder that is a read-me


def _ending(path: Path) -> str:
    return Path(unpacked(path.name)).suffix


def files(given: Sequence[Path]) -> list[Path]:
    """Return files and, in place of a folder, its readable files, sorted; links are not followed.

    Raises:
        SettingError: a missing file, or a folder without a readable one.
    """
    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(Path(place) / name for place, _, names in os.walk(path) for name in names)
            readable = [file for file in inside if _ending(file) in READ]
            readable = [file for file in readable if not file.name.startswith(".") and not file.is_symlink()]
            if not readable:
                raise SettingError(f"{path} holds {len(inside)} files, none of them a picture, .npz or .csv.")
            paths += readable
        elif path.is_file():
            paths.append(path)
        else:
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise SettingError(f"{path}: there is no such file.{nearest(path.name, beside)}")
    return paths


def read(
    paths: Sequence[Path], trained: Trained, *, resize: bool = False, invert: bool = False,
    failed: dict[Path, str] | None = None, device: str = "",
) -> Iterator[FileSamples]:  # fmt: skip
    """Read files one by one as samples of a model.

    Args:
        failed: receives the files that are not samples of this model, each with the reason; the others are read.
        device: of all files; empty: as their folders, names or columns state it.

    Raises:
        SettingError: a file that is not a sample of this model, where ``failed`` is left out.
    """
    for path in paths:
        try:
            samples = _read(path, trained, resize=resize, invert=invert)
        except SettingError as error:
            if failed is None:
                raise
            failed[path] = str(error)
        else:
            samples = replace(samples, devices=[device] * len(samples.x)) if device else samples
            yield samples if trained.own is None else trained.own.file(samples)


def _read(path: Path, trained: Trained, *, resize: bool, invert: bool) -> FileSamples:
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
        raise SettingError(f"{path}: this model takes pictures of shape {trained.shape}, not tables.")
    x = picture(path, trained.shape, resize=resize or trained.scaled, invert=invert)
    return FileSamples(path, x[None], None, np.full(1, UNKNOWN))


def _archive(path: Path, trained: Trained) -> FileSamples:
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
    return FileSamples(path, batch, [(i, i) for i in range(len(batch))], y, target=target)


def _samples_and_labels(path: Path, names: Sequence[str]) -> list[str]:
    others = [name for name in names if name != "y"]
    if "x" not in others and len(others) != 1:
        raise SettingError(f"{path} has the arrays {', '.join(names) or 'none'}: name the array of the samples x.")
    return ["x" if "x" in others else others[0], *(["y"] if "y" in names else [])]


def _labels(given: NDArray[Any], count: int, trained: Trained, where: str) -> NDArray[np.int64]:
    y = given.reshape(-1)
    if len(y) != count:
        raise SettingError(f"{where} has {len(y)} labels for {count} samples.")
    if y.dtype.kind in "US":
        return class_numbers(
            trained.task.spelled(y.astype(str).tolist()), trained.classes, lambda i: f"{where}, label {i}"
        )
    most = len(trained.classes) - 1
    if count and (y.dtype.kind not in "iu" or y.min() < 0 or y.max() > most):
        raise SettingError(
            f"{where} is {y.dtype} from {y.min()} to {y.max()}: labels are whole numbers from 0 to {most}, or names."
        )
    return y.astype(np.int64)
