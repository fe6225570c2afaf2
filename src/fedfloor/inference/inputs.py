"""Reading of files as samples: pictures, ``.npz`` arrays, and ``.csv`` tables of sensors by rows or windows."""

from __future__ import annotations

import io
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import count
from fedfloor.data.dataset import HOLES, Images
from fedfloor.data.ended import over, several
from fedfloor.data.files import content, conversions, loaded, own
from fedfloor.data.files.categories import columns_of, described, encoded
from fedfloor.data.files.encode import binned, is_number
from fedfloor.data.files.npz import read_arrays, texts
from fedfloor.data.files.pictures import SUFFIXES, read_picture
from fedfloor.data.files.rows import unpacked
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.files.sheet import read as read_sheet
from fedfloor.data.files.times import written
from fedfloor.data.files.titles import own_titles
from fedfloor.data.files.units import same_unit, units_of
from fedfloor.data.reading import Columns, ModelReading
from fedfloor.data.series import fill
from fedfloor.data.split import runs
from fedfloor.inference.samples import (
    UNKNOWN,
    FileSamples,
    Sensors,
    class_numbers,
    fitting,
    labels,
    of_array,
    rows_ahead,
    within,
)
from fedfloor.inference.trained import Trained
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.task import Task

MATRIX = ".dat"
BESIDE = ("y", "device")  # arrays beside the samples
NAMED = 5  # places listed; further ones are only counted

log = logging.getLogger(__name__)

Numbers = NDArray[np.int64]


def table(path: Path, sensors: Sensors, classes: tuple[str, ...], task: Task = CLASSIFICATION) -> FileSamples:
    """Read a table: a sample per row, or per window of a device's rows. Only the sensors' columns are required.

    Rows that lack a value needed by the model, and devices with too few rows, are left out and listed.

    Args:
        path: a CSV file, or a ``.dat`` file of numbers without a header, a column per sensor in the model's order.

    Raises:
        SettingError: a mistake in the table (the message names file, row and column), or no sample in it.
    """
    sheet, columns = _sheet(path, sensors)
    none = [""] * len(sheet.line)
    devices: Sequence[str] | None = sheet.text.get("device")
    if sensors.device_of is not None:
        devices = sensors.device_of.devices(path, devices, len(none))
    whose = zip(sheet.text.get("device", none), sheet.text.get("run", none), strict=True)  # bounds of windows
    device = np.unique(["\0".join(both) for both in whose], return_inverse=True)[1]
    order = np.argsort(device, kind="stable")  # rows grouped by device, each in the table's order
    if sensors.window is not None or (sensors.missing == "previous" and np.isnan(sheet.x).any()):
        _check_order(sheet, order, device)
    device = _parted(sheet, sensors, order, device)
    x = _filled(sheet, sensors, order, device)
    first, length, left = _cut(sheet, sensors, order, device)
    rows = order[first[:, None] + np.arange(length)]
    if sensors.missing not in HOLES or task.ahead:
        whole = ~np.isnan(x[rows]).any(axis=(1, 2))
        if sensors.missing == "refuse":
            left += _holes(sheet, sensors, x, rows[~whole])
            if not whole.any() and len(whole):
                raise SettingError(left[-1] if len(whole) == 1 else "\n".join(left), key="no-sample")
        elif not whole.all():
            log.info("%s: %s of %s samples have missing values and are left out.", within(path),
                     f"{(~whole).sum():,}", f"{len(whole):,}")  # fmt: skip
        rows = rows[whole]
        first = first[whole]
    last = rows[:, -1]  # a window has the label and the device of its last row
    taken = x[last] if sensors.window is None else np.ascontiguousarray(x[rows].transpose(0, 2, 1))
    target = None
    y = np.full(len(last), UNKNOWN)
    unscored = Counter[str]()
    if not task.targets:
        y, unscored = _column_labels(sheet, last, classes, columns.label, sensors.coding.get("bins"), task)
    elif task.ahead:
        channels = [sensors.columns.index(name) for name in task.called()]
        target = rows_ahead(x[order][:, channels], device[order], first + length, task.ahead)
    elif "ended" in sensors.dialect:
        words = [sheet.text["label"][row] for row in last] if "label" in sheet.text else [""] * len(last)
        ended = sensors.dialect["ended"]
        told = np.array([bool(word) for word in words]) | several(ended)  # otherwise an empty label is not known
        y = np.where(told, over(words, ended), UNKNOWN)
    else:
        target, unscored = labels(sheet, last, task.targets, columns.label)
    recordings = [sheet.text["run"][row] for row in last] if "run" in sheet.text else None
    return FileSamples(
        path, taken, list(zip(sheet.line[rows[:, 0]].tolist(), sheet.line[last].tolist(), strict=True)), y,
        None if devices is None else [devices[row] for row in last], first, tuple(left), target,
        _times(sheet, last), recordings=recordings, unscored=unscored,
    )  # fmt: skip


def _times(sheet: Sheet, rows: Numbers) -> list[str] | None:
    """Return the times of rows, or the texts of times that were not read; None without times.

    Universal times end in ``Z``; those without a time zone are as in the table.
    """
    if sheet.time is not None:
        mark = "Z" if sheet.dated and not sheet.local else ""
        return [written(sheet.time[row], dated=sheet.dated) + mark for row in rows]
    return [sheet.text["id"][row] for row in rows] if "id" in sheet.text else None


def _sheet(path: Path, sensors: Sensors) -> tuple[Sheet, Columns]:
    """Return a table read as in training, and the names of its columns."""
    categories = described(sensors.coding.get("categories", {}))
    numbers = sensors.columns[: len(sensors.columns) - len(columns_of(categories or {}))]
    names: dict[str, Any] = {**sensors.names, "values": numbers, "categories": categories, "id": ""}
    if sensors.window is None and sensors.missing != "previous":  # single rows need no times, which stay texts
        names |= {"id": names.get("time", ""), "time": ""}
    columns = Columns(**names)
    if path.name.lower().removesuffix(".gz").endswith(MATRIX):
        return _matrix(path, sensors.columns), columns
    reading = ModelReading(columns=columns, decimal="," if sensors.decimal == "," else ".", **sensors.form)
    own_reading = own_titles(path, reading)
    _compare_units(path, sensors.coding.get("units", {}), own_reading.dialect())
    (sheet,) = encoded([read_sheet(path, own_reading, (), lenient=True)], categories, reading)
    return sheet, columns


def _compare_units(path: Path, learnt: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Warn of columns whose unit, in the row below the names, is another one than in training."""
    stated = units_of(path, given) if learnt else {}
    for name, unit in learnt.items():
        if name in stated and not same_unit(stated[name], unit):
            log.warning(
                "%s, column '%s': its unit is %s, but %s in training. Convert its values: the model takes them as they "
                "are. Do not rely on these answers.", within(path), name, stated[name], unit,
            )  # fmt: skip


def _matrix(path: Path, columns: tuple[str, ...]) -> Sheet:
    """Return a matrix of numbers separated by white space as a table; with a row per sensor it is transposed."""
    try:
        x = loaded(io.BytesIO(content(path)))
    except ValueError as error:
        raise SettingError(f"{path.name}: not a matrix of numbers ({error}).", key="no-matrix") from error
    if x.shape[1] != len(columns) == x.shape[0]:
        x = x.T
    if x.shape[1] != len(columns):
        raise SettingError(
            f"{path.name}: {x.shape[1]} columns; the model takes {len(columns)}: {', '.join(columns)}.",
            key="columns-differ",
        )
    if np.isinf(x).any():
        row, column = np.argwhere(np.isinf(x))[0]
        raise SettingError(
            f"{path.name}, row {row + 1}, column '{columns[column]}': not a finite number. Correct it.",
            key="not-finite",
        )
    return Sheet(path, columns, x.astype(np.float32), np.arange(1, len(x) + 1), {}, None)


def _check_order(sheet: Sheet, order: Numbers, device: Numbers) -> None:
    """Refuse a table whose rows of a device are not in the order of time, which windows and filling require."""
    if sheet.time is None:
        return
    wrong = np.flatnonzero((np.diff(device[order]) == 0) & (np.diff(sheet.time[order]) <= 0))
    if len(wrong):
        row = int(order[wrong[0] + 1])
        before = int(order[wrong[0]])
        raise SettingError(
            f"{sheet.path.name}, row {sheet.line[row]}: its time is not after that of row {sheet.line[before]} of "
            "the same device. Sort the rows by time.",
            key="times",
        )


def _filled(sheet: Sheet, sensors: Sensors, order: Numbers, device: Numbers) -> NDArray[np.float32]:
    """Return the values of a table, with missing values filled as in training."""
    x = known = np.asarray(sheet.x, np.float32)
    if sensors.missing == "previous":
        x = np.empty_like(known)
        x[order] = fill(known[order], device[order].astype(np.int32))
        if many := int(np.isnan(x).sum()):
            log.info("%s: %s without a value before it: each counts as its sensor's mean in training.",
                     within(sheet.path), count(many, "missing value"))  # fmt: skip
    return x


def _holes(sheet: Sheet, sensors: Sensors, x: NDArray[np.float32], rows: Numbers) -> list[str]:
    """Return a sentence for each of the first missing values of x [rows, C] in the rows of samples [n, length]."""
    why = "The model was trained on tables without missing values. Fill the cell in, or leave the row out."
    mine = np.unique(rows)
    cells = [(row, column) for row in mine.tolist() for column in np.flatnonzero(np.isnan(x[row])).tolist()]
    named = [f"{sheet.place(row, sensors.columns[column])}: no value. {why}" for row, column in cells[:NAMED]]
    more = len(cells) - len(named)
    return named + ([f"{sheet.path.name}: {more:,} more cells without a value."] if more else [])


def _parted(sheet: Sheet, sensors: Sensors, order: Numbers, device: Numbers) -> Numbers:
    """Return the bounds of recordings, [n], also after each step of time above the ``gap_s`` of training."""
    gap = sensors.dialect.get("gap_s")
    if gap is None or sheet.time is None:
        return device
    parts = (np.diff(device[order]) != 0) | (np.diff(sheet.time[order]) > gap)
    parted = np.empty_like(device)
    parted[order] = np.concatenate([[0], np.cumsum(parts)])
    return parted


def _cut(sheet: Sheet, sensors: Sensors, order: Numbers, device: Numbers) -> tuple[Numbers, int, list[str]]:
    """Return the starts of samples in ``order``, their number of rows, and messages on devices with too few rows.

    Raises:
        SettingError: too few rows for any window.
    """
    if sensors.window is None:
        return np.argsort(order), 1, []  # in the table's order
    length, step = sensors.window
    each = runs(device[order].astype(np.int32), None)
    starts = np.concatenate([np.arange(first, end - length + 1, step) for first, end in each])
    short = [(first, end - first) for first, end in each if end - first < length]
    if not len(starts):
        most = max(end - first for first, end in each)
        raise SettingError(
            f"{sheet.path.name}: at most {most} rows of a device; the model takes windows of {length}.",
            key="short",
        )
    whose = sheet.text.get("device", [""] * len(sheet.line))
    left = [
        f"{sheet.path.name}, row {sheet.line[order[first]]}: device '{whose[order[first]]}' has {many} rows from this "
        f"row on; the model takes windows of {length}."
        for first, many in short[:NAMED]
    ]
    more = len(short) - len(left)
    left += [f"{sheet.path.name}: {more:,} more recordings have fewer than {length} rows."] if more > 0 else []
    return starts.astype(np.int64), length, left


def _column_labels(
    sheet: Sheet, rows: Numbers, classes: tuple[str, ...], column: str, bins: Sequence[float] | None, task: Task
) -> tuple[Numbers, Counter[str]]:
    """Return the classes of rows, :data:`UNKNOWN` without a label, and the labels that are no class, with counts."""
    if "label" not in sheet.text:
        return np.full(len(rows), UNKNOWN), Counter()
    words = [*task.spelled([sheet.text["label"][row] for row in rows])]
    if bins is not None:
        known = [i for i, word in enumerate(words) if is_number(word)]
        names = binned([words[i] for i in known], bins, classes, lambda i: sheet.place(int(rows[known[i]]), column))
        for i, name in zip(known, names, strict=True):
            words[i] = name
    return class_numbers(words, classes)


MODES = {1: "L", 3: "RGB"}  # channels → mode of Pillow


def picture(path: Path, shape: tuple[int, ...], *, resize: bool = False, invert: bool = False) -> NDArray[np.uint8]:
    """Read a picture as uint8 [C, H, W], in grey or colour according to the model's channels.

    ``shape`` is (C, H, W); ``resize`` scales a picture of another size, ``invert`` inverts its brightness.

    Raises:
        SettingError: the file is not a picture, is damaged, or has another size.
    """
    if len(shape) != 3 or shape[0] not in MODES:
        raise SettingError(
            f"{path}: the model takes samples of shape {shape}, which is not that of a picture. Give an .npz file."
        )
    data = read_picture(path, str(path), (shape[1], shape[2]) if resize else None)
    if data.shape[1:] != shape[1:]:
        raise SettingError(
            f"{path} has {data.shape[1]}×{data.shape[2]} pixels (height × width): the model takes "
            f"{shape[1]}×{shape[2]}. Crop it to that size, or scale it with --resize.",
            key="size-of-picture",
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
READ = {*SUFFIXES, *TABLES, ".npz"} - {".txt"}  # .txt is a read-me in a folder


def _ending(path: Path) -> str:
    return Path(unpacked(path.name)).suffix


def files(given: Sequence[Path]) -> list[Path]:
    """Return files, sorted, with folders replaced by their readable files; links are not followed.

    Raises:
        SettingError: a missing file, or a folder without readable files.
    """
    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(Path(place) / name for place, _, names in os.walk(path) for name in names)
            readable = [file for file in inside if _ending(file) in READ]
            readable = [file for file in readable if not file.name.startswith(".") and not file.is_symlink()]
            if not readable:
                for each in (path, *inside):
                    conversions.check(each, {})
                raise SettingError(
                    f"{path} holds {len(inside)} files, none of them a picture, .npz or .csv. Choose another folder.",
                    key="no-samples",
                )
            paths += readable
        elif path.is_file():
            paths.append(path)
        else:
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            raise SettingError(f"{path}: no such file.{nearest(path.name, beside)}")
    return paths


def read(
    paths: Sequence[Path], trained: Trained, *, resize: bool = False, invert: bool = False,
    failed: dict[Path, str] | None = None, device: str = "",
) -> Iterator[FileSamples]:  # fmt: skip
    """Read files one by one as samples of a model.

    Args:
        failed: receives the files that do not fit the model, each with the reason; the others are read.
        device: the device of all files; by default that in their folders, names or columns.

    Raises:
        SettingError: a file does not fit the model, and ``failed`` is None.
    """
    for path in paths:
        try:
            samples = trained.training.mark(_read(path, trained, resize=resize, invert=invert))
            if device:
                samples = _of_device(samples, trained, device)
            if trained.models is not None:
                trained.models.check(samples.devices or [""])
        except SettingError as error:
            if failed is None:
                raise
            failed[path] = str(error)
        else:
            yield samples if trained.own is None else trained.own.file(samples)


def _of_device(samples: FileSamples, trained: Trained, device: str) -> FileSamples:
    """Return samples as those of a device; a warning names the other devices in the file's column."""
    others = sorted({*(samples.devices or ())})
    column = trained.sensors is None or trained.sensors.device_of is None  # not the name of the file or its folder
    if len(others) > 1 or (column and others not in ([], [device])):
        log.warning("%s: rows of %s (%s); all are treated as rows of '%s'.", samples.file.name,
                    count(len(others), "device"), ", ".join(others[:5]), device)  # fmt: skip
    return replace(samples, devices=[device] * len(samples.x))


def _read(path: Path, trained: Trained, *, resize: bool, invert: bool) -> FileSamples:
    sensors = trained.sensors
    ending = _ending(path)
    stated = {} if sensors is None else {"columns": {**sensors.names, "values": sensors.columns}, **sensors.form}
    conversions.check(path, stated)
    if ending == ".npz":
        return _archive(path, trained)
    if trained.sensors is not None:
        if ending not in TABLES:
            raise SettingError(
                f"{path}: this model takes the sensors {', '.join(trained.sensors.columns)}. Give .csv or .npz."
            )
        return table(path, trained.sensors, trained.classes, trained.task)
    if ending in TABLES:
        raise SettingError(
            f"{path}: this model takes pictures of shape {trained.shape}, not tables. Give pictures or .npz."
        )
    x = picture(path, trained.shape, resize=resize or trained.scaled, invert=invert)
    return FileSamples(path, x[None], None, np.full(1, UNKNOWN))


def _archive(path: Path, trained: Trained) -> FileSamples:
    """Read an ``.npz`` file: samples in ``x``, or in its only array; labels in ``y`` and devices, if present."""
    arrays = read_arrays(path, lambda names: _arrays(path, names))
    devices = texts(path, arrays, "device") if "device" in arrays else None
    labels = arrays.pop("y", None)
    ((key, x),) = ((name, array) for name, array in arrays.items() if name != "device")
    batch = fitting(x, trained.shape, trained.sensors, f"{path}, array {key}")
    if devices is not None and len(devices) != len(batch):
        raise SettingError(f"{path}, array device: {len(devices)} devices for {len(batch)} samples. Give one each.")
    y = np.full(len(batch), UNKNOWN)
    unscored = Counter[str]()
    target = None
    where = f"{path}, array y"
    if trained.task.targets:
        target = of_array(labels, len(batch), trained.task.targets, where)
    elif labels is not None:
        y, unscored = _labels(labels, len(batch), trained, where)
    places = [(i, i) for i in range(len(batch))]
    return FileSamples(path, batch, places, y, devices, target=target, unscored=unscored)


def _arrays(path: Path, names: Sequence[str]) -> list[str]:
    others = [name for name in names if name not in BESIDE]
    if "x" not in others and len(others) != 1:
        raise SettingError(f"{path} has the arrays {', '.join(names) or 'none'}: name the array of samples x.")
    return ["x" if "x" in others else others[0], *(name for name in BESIDE if name in names)]


def _labels(given: NDArray[Any], count: int, trained: Trained, where: str) -> tuple[Numbers, Counter[str]]:
    y = given.reshape(-1)
    if len(y) != count:
        raise SettingError(f"{where} has {len(y)} labels for {count} samples. Give one label per sample.")
    if y.dtype.kind in "US":
        return class_numbers(trained.task.spelled(y.astype(str).tolist()), trained.classes)
    most = len(trained.classes) - 1
    if count and (y.dtype.kind not in "iu" or y.min() < 0 or y.max() > most):
        raise SettingError(
            f"{where} is {y.dtype} from {y.min()} to {y.max()}: labels are whole numbers from 0 to {most}, or names."
        )
    return y.astype(np.int64), Counter()
