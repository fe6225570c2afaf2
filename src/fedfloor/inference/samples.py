"""Samples of a file as inputs of a model: their shape, labels and origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import HOLES
from fedfloor.data.files.encode import is_number, numbers
from fedfloor.data.files.layout import NO_LABEL
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.files.spellings import truths
from fedfloor.data.files.tree import Naming

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sensors:
    """The sensors of a model, which are the channels of its samples.

    Args:
        columns: the names of the C sensors.
        window: (length, step) in rows; None where a sample is one row.
        missing: the treatment of missing values: ``"refuse"``, ``"previous"``, ``"mean"`` or ``"drop"``.
        names: role → the column's name in tables, for device, time and label.
        decimal: the decimal mark of tables.
        dialect: the format of the training's tables, as keys of ``[data]`` other than the defaults, and for lives the
            text of those that ``ended``.
        coding: the conversions of table cells in training (bins and categories).
        device_of: the part of a table's path that names its device; None if only a column does.
    """

    columns: tuple[str, ...]
    window: tuple[int, int] | None = None
    missing: str = "refuse"
    names: Mapping[str, str] = field(default_factory=dict)
    decimal: str = "."
    dialect: Mapping[str, Any] = field(default_factory=dict)
    coding: Mapping[str, Any] = field(default_factory=dict)
    device_of: Naming | None = None

    @property
    def form(self) -> dict[str, Any]:
        """The format of tables, whichever lives ended."""
        return {key: value for key, value in self.dialect.items() if key != "ended"}


def fitting(x: NDArray[Any], shape: Shape, sensors: Sensors | None, where: str) -> NDArray[Any]:
    """Return an array as a batch of samples [n, *shape]: uint8 pictures, or float32 rows or windows.

    A single sample may lack the batch axis, and grey pictures the channel axis; pictures may have their channels last,
    as in training. ``sensors`` is None for pictures, ``where`` the start of messages.

    Raises:
        SettingError: another shape or type, or a missing value that is not allowed.

    >>> fitting(np.zeros((2, 28, 28), np.uint8), (1, 28, 28), None, "x").shape
    (2, 1, 28, 28)
    """
    batch = _batch(np.asarray(x), shape, sensors, where)
    return _bytes(batch, where) if sensors is None else _values(batch, sensors, where)


def _batch(x: NDArray[Any], shape: Shape, sensors: Sensors | None, where: str) -> NDArray[Any]:
    if x.shape[1:] == shape:
        return x
    if x.shape == shape:
        return x[None]
    if sensors is None and shape[0] == 1 and x.ndim in (2, 3) and x.shape[-2:] == shape[1:]:
        return x.reshape(-1, *shape)
    if sensors is None and x.ndim in (3, 4) and x.shape[-3:] == (*shape[1:], shape[0]):
        return np.moveaxis(x, -1, -3).reshape(-1, *shape)
    hint = f" The columns are {', '.join(sensors.columns)}." if sensors is not None else ""
    if sensors is not None and len(shape) == 2 and x.ndim == 2 and x.shape[1] == shape[0]:
        hint += " The array has single rows: cut windows, or give a table (.csv), which is cut into windows."
    raise SettingError(
        f"{where} has shape {x.shape}: the model takes samples of shape {shape}, as an array {('n', *shape)} or a "
        "single sample."
        f"{hint}".replace("'n'", "n"),
        key="shape-of-samples",
    )


def _bytes(x: NDArray[Any], where: str) -> NDArray[np.uint8]:
    if x.dtype == np.uint8:
        return x
    whole = np.issubdtype(x.dtype, np.integer)
    low, high = (x.min(), x.max()) if x.size and np.issubdtype(x.dtype, np.number) else (0, 0)
    if whole and low >= 0 and high <= 255:
        return x.astype(np.uint8)
    hint = "Give the pictures as in their files: normalisation is part of the model."
    if np.issubdtype(x.dtype, np.floating) and low >= 0 and high <= 1:
        hint = "The numbers look like shares of full brightness: np.rint(255 * x).astype(np.uint8) gives the pixels."
    raise SettingError(f"{where} is {x.dtype} from {low} to {high}: pictures are uint8 from 0 to 255. {hint}")


def _values(x: NDArray[Any], sensors: Sensors, where: str) -> NDArray[np.float32]:
    if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
        raise SettingError(f"{where} is {x.dtype}: sensors' values must be numbers, such as float32.")
    with np.errstate(over="ignore"):  # too large numbers become infinite, and are refused below
        values = x.astype(np.float32)
    bad = np.isinf(values) if sensors.missing in HOLES else ~np.isfinite(values)
    if bad.any():
        sample, channel = np.argwhere(bad)[0][:2]
        raise SettingError(
            f"{where}: sample {sample}, {sensors.columns[channel]} is {x[bad][0]}: must be a finite number"
            f"{' or nan' if sensors.missing in HOLES else ''}. This model was trained with "
            f'missing = "{sensors.missing}"; fill missing values first.',
            key="not-finite",
        )
    return values


UNKNOWN = -1  # the label of a sample without one


@dataclass(frozen=True, eq=False)
class FileSamples:
    """The samples of a file.

    Args:
        file: the path of the file.
        x: uint8 or float32 [n, *shape].
        places: (first, last) row in a table, (number, number) in an array; None for a picture.
        y: int64 [n], the true classes; :data:`UNKNOWN` without a label.
        devices: the device of each sample, if the table has it.
        first: int64 [n], the first row of each sample, if samples may share rows.
        left_out: a sentence for each group of rows without an answer, with place and reason.
        target: float32 [n, T], the true numbers, NaN where unknown; None for a classification.
        times: the time of each sample, as in its table.
        parts: the part of the run to which each sample belongs, such as ``training``; "" for new samples. None if the
            run has no record.
        stored: ``x`` before its normalisation by devices' own statistics; None without one.
        recordings: the name of each sample's recording, if the table has a column of them.
        unscored: the labels that are no class of the model, or no number, → their samples, which have no known label.
    """

    file: Path
    x: NDArray[Any]
    places: Sequence[tuple[int, int]] | None
    y: NDArray[np.int64]
    devices: Sequence[str] | None = None
    first: NDArray[np.int64] | None = None
    left_out: tuple[str, ...] = ()
    target: NDArray[np.float32] | None = None
    times: Sequence[str] | None = None
    parts: Sequence[str] | None = None
    stored: NDArray[Any] | None = None
    recordings: Sequence[str] | None = None
    unscored: Mapping[str, int] = field(default_factory=dict)


def within(path: Path) -> str:
    """Return a file's name with its folder, for messages.

    >>> within(Path("runs/north/lathe-1/june.csv"))
    'lathe-1/june.csv'
    """
    return "/".join(path.parts[-2:])


def class_numbers(labels: Sequence[str], classes: Sequence[str]) -> tuple[NDArray[np.int64], Counter[str]]:
    """Return the indices of class names, and the names that are no class; these and empty ones are :data:`UNKNOWN`.

    >>> class_numbers(["b", "", "a", "c"], ("a", "b"))
    (array([ 1, -1,  0, -1]), Counter({'c': 1}))
    """
    number = {name: i for i, name in enumerate(classes)}
    number |= {other: number[name] for other, name in truths(classes).items()}
    others = Counter(label for label in labels if label not in number and label.lower() not in NO_LABEL)
    return np.array([number.get(label, UNKNOWN) for label in labels], np.int64), others


Targets = NDArray[np.float32]


def labels(sheet: Sheet, rows: NDArray[np.int64], targets: int, column: str) -> tuple[Targets, Counter[str]]:
    """Return the labels of rows as numbers, float32 [n, T], NaN where there is none, and the texts that are no numbers.

    Raises:
        SettingError: the mark in a number seems to stand between thousands.
    """
    values = np.full((len(rows), targets), np.nan, np.float32)
    words = sheet.text.get("label")
    if words is None or targets != 1:  # tables have one label
        return values, Counter()
    given = [words[row] for row in rows.tolist()]
    others = Counter(word for word in given if word.strip().lower() not in NO_LABEL and not is_number(word))
    known = [i for i, word in enumerate(given) if is_number(word)]
    if known:
        values[known] = numbers([given[i] for i in known], lambda i: sheet.place(int(rows[known[i]]), column))
    return values, others


def rows_ahead(
    values: NDArray[np.float32], recording: NDArray[np.int64], end: NDArray[np.int64], horizon: int
) -> Targets:
    """Return the next H rows of each sample, float32 [n, S·H] sensor by sensor, NaN beyond its recording.

    ``values`` are the rows [rows, S] of consecutive recordings.

    >>> rows_ahead(np.array([[1], [2], [3], [9]], np.float32), np.array([0, 0, 0, 1]), np.array([1, 2]), 2).tolist()
    [[2.0, 3.0], [3.0, nan]]
    """
    place = end[:, None] + np.arange(horizon)
    inside = np.minimum(place, len(values) - 1)
    recorded = (place < len(values)) & (recording[inside] == recording[end - 1][:, None])
    ahead = np.where(recorded[:, :, None], values[inside], np.float32(np.nan))  # [n, H, S]
    return ahead.transpose(0, 2, 1).reshape(len(end), -1)


def of_array(given: NDArray[Any] | None, count: int, targets: int, where: str) -> Targets:
    """Return the targets of samples in an ``.npz`` file, float32 [n, T]; NaN without targets.

    Raises:
        SettingError: the array is not numeric, or has not one number per target.
    """
    if given is None:
        return np.full((count, targets), np.nan, np.float32)
    if given.dtype.kind not in "iuf" or given.size != count * targets or len(given) != count:
        raise SettingError(
            f"{where} is {given.dtype} of shape {given.shape}: the model predicts {targets} number"
            f"{'s' if targets > 1 else ''} for each of {count} samples. Leave y out if the numbers are unknown."
        )
    return given.reshape(count, targets).astype(np.float32)
