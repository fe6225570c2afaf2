"""Data sets from recordings: the targets of samples, windows, missing values."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import count, some
from fedfloor.data.dataset import Dataset, Indices, Inputs, Labels, Missing, Owned, Owners, Targets, Times, Values
from fedfloor.data.files.categories import columns_of, described
from fedfloor.data.files.encode import ONE_CLASS, names_of
from fedfloor.data.files.joined import JOIN
from fedfloor.data.pace import pace_of
from fedfloor.data.reading import LastSplit, Problem, Reading, RunSplit, WholeSplit, Window
from fedfloor.data.split import Cut, Rows, divided, few_tests, runs, split_of
from fedfloor.tasks.forecasting import Forecasting
from fedfloor.tasks.reconstruction import CLASSES, NORMAL, Reconstruction
from fedfloor.tasks.regression import LIVES, Regression
from fedfloor.tasks.survival import CLASSES as LIVES_OF
from fedfloor.tasks.survival import TARGETS, Survival
from fedfloor.tasks.task import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TaskTargets:
    """The targets of samples.

    Args:
        task: the task, with the values derived from the training samples.
        classes: names of the bins.
        y: int64 [n], the bins of all training and test samples.
        target: float32 [n, T]; None if the bins are the targets.
    """

    task: Task
    classes: tuple[str, ...]
    y: Labels
    target: Targets | None = None


def with_rows_ahead(name: str, rows: Rows, reading: Reading) -> Reading:
    """Return a reading whose windows are extended by the rows that a task predicts.

    Raises:
        SettingError: no window is set, or no recording is long enough.
    """
    ahead = reading.asked.ahead
    window = reading.window
    if not ahead:
        return reading
    if window is None:
        raise SettingError(
            f"data.task = '{reading.asked.kind}' forecasts from preceding rows: set [data] window, such as "
            "{ length = 30, step = 1 }."
        )
    longest = max((end - first for first, end in runs(rows.segment, rows.part)), default=0)
    if longest < window.length + ahead:
        raise SettingError(
            f"{name}: a window of {window.length} rows and the {ahead} rows ahead of it (data.task.horizon) are longer "
            f"than every recording; the longest has {longest} rows. Shorten one of them.",
            key="window-too-long",
        )
    return replace(reading, window=Window(window.length + ahead, window.stride))


def without_label(name: str, classes: tuple[str, ...], rows: Rows, cut: Cut, task: Reconstruction) -> Cut:
    """Return the samples whose label is known: for testing of the last row, for training of each row."""
    unknown = [i for i, label in enumerate(classes) if task.states_nothing(label)]
    if not unknown or len(classes) == 1:  # without labels all rows count as normal
        return cut
    none = np.isin(rows.y, unknown)
    before = np.concatenate([[0], np.cumsum(none)])
    within = before[cut.start + cut.length] > before[cut.start]
    out = np.where(cut.test, none[cut.last], within & (task.abnormal == "out"))
    shown = ", ".join(repr(classes[i]) if classes[i] else "empty" for i in unknown)
    log.warning(
        "%s: %s of %s rows have no label (%s): %s of %s training and %s of %s test samples are left out.",
        name, f"{none.sum():,}", f"{len(none):,}", shown, f"{(out & ~cut.test).sum():,}",
        f"{(~cut.test).sum():,}", f"{(out & cut.test).sum():,}", f"{cut.test.sum():,}",
    )  # fmt: skip
    return Cut(cut.start[~out], cut.test[~out], cut.length)


def without_abnormal(name: str, classes: tuple[str, ...], rows: Rows, cut: Cut, reading: Reading) -> Cut:
    """Return the samples; for a reconstruction without training samples that have an abnormal row.

    Raises:
        SettingError: the normal class is unknown, or no normal training sample is left.
    """
    task = reading.asked
    if not isinstance(task, Reconstruction):
        return cut
    cut = without_label(name, classes, rows, cut, task)
    before = np.concatenate([[0], np.cumsum(rows.y != _normal(name, classes, task))])
    odd = ~cut.test & (before[cut.start + cut.length] > before[cut.start])
    train = int((~cut.test).sum())
    if not odd.any() or task.abnormal == "used":
        if odd.any():
            log.warning("%s: %s of %s training samples have an abnormal row, and are used (data.task.abnormal).", name,
                        f"{odd.sum():,}", f"{train:,}")  # fmt: skip
        return cut
    log.info(
        "%s: %s of %s training samples have an abnormal row by their labels, and are left out.", name, f"{odd.sum():,}",
        f"{train:,}",
    )  # fmt: skip
    kept = Cut(cut.start[~odd], cut.test[~odd], cut.length)
    if kept.test.all():
        raise SettingError(
            f"{name}: no training sample is normal throughout, and data.task = 'reconstruction' learns normal "
            "operation. Use shorter windows, split the data another way, or name the normal class (data.task.normal)."
        )
    if rows.owner is not None:
        lost = np.setdiff1d(rows.owner[cut.last[~cut.test]], rows.owner[kept.last[~kept.test]])
        if len(lost):
            log.warning("%s: devices without a normal training sample, which do not train: %d.", name, len(lost))
    return kept


def _normal(name: str, classes: tuple[str, ...], task: Reconstruction) -> int:
    """Return the index of the normal class."""
    if task.normal is not None:
        if task.normal not in classes:
            raise SettingError(
                f"data.task.normal = '{task.normal}': no class has this name.{nearest(task.normal, classes)} Classes: "
                f"{some(classes, 20)}."
            )
        return classes.index(task.normal)
    if len(classes) == 1:
        return 0
    labels = [label for label in classes if not task.states_nothing(label)]
    known = [classes.index(label) for label in labels if label.strip().lower() in NORMAL]
    if len(known) != 1:
        none = "" if len(labels) == len(classes) else (
            " Rows without a label are left out. If they are normal operation, write 'normal' there."
        )  # fmt: skip
        raise SettingError(
            f"{name}: unknown which of the classes {', '.join(labels[:20])} is normal operation. Name the class: "
            f'[data] task = {{ kind = "reconstruction", normal = "…" }}.{none}',
            key="normal-class",
        )
    return known[0]


def task_targets(
    name: str, classes: tuple[str, ...], rows: Rows, cut: Cut, reading: Reading, inputs: Inputs
) -> TaskTargets:
    """Return the task, its classes and the targets of samples, as ``[data] task`` sets them.

    Raises:
        SettingError: the samples lack columns, labels or rows that the task needs.
    """
    task = reading.asked
    train = ~cut.test
    if not reading.whole:
        _check_sensors(name, rows, inputs)
    if isinstance(task, Regression):
        if rows.target is None:
            raise SettingError(
                f"{name}: its labels are classes, but data.task = 'regression' predicts numbers. Leave data.task out."
            )
        target = rows.target[cut.last]
        if reading.whole:  # the samples of a single device: the task of all devices applies
            return TaskTargets(task, classes, np.zeros(len(target), np.int64), target)
        fitted = _named(task, target.shape[1], reading, inputs).fitted(target[train], reading.bins or ())
        called = names_of(fitted.edges, reading.classes)
        y = fitted.bin(target)
        _check_falls(name, task, rows, inputs)
        advice = (
            f"; the targets range from {target[:, 0].min():g} to {target[:, 0].max():g}. Give edges between these "
            "values, or leave data.bins out for ranges of equal frequency"
        )
        _check_ranges(name, reading, called, y, advice)
        return TaskTargets(fitted, called, y, target)
    if isinstance(task, Survival):
        return _lives(name, task, rows, cut, reading, inputs)
    if isinstance(task, Forecasting):
        return _forecast(name, task, rows, cut, reading, inputs)
    y = rows.y[cut.last].astype(np.int64)
    if isinstance(task, Reconstruction):
        length = reading.window.length if reading.window else rows.x.shape[2] if rows.x.ndim == 3 else 1
        number = _normal(name, classes, task)
        usual = classes[number].strip().lower() in (*NORMAL, "")
        judged = replace(task, rows=length, normal=task.normal if usual else classes[number])  # for later tables
        return TaskTargets(judged, CLASSES, (y != number).astype(np.int64))
    if rows.noun == "rows" and not reading.whole and (y[train] == y[train][0]).all():
        text = (
            f"{name}: every training sample is '{classes[y[train][0]]}'. Other classes exist, but no training "
            'sample is one of them: try [data] split = { kind = "device" }, another share for testing, or other '
            f"windows. {ONE_CLASS}"
        )
        reading.refuse(Problem("one class", text))
    if not reading.whole:
        _check_ranges(name, reading, classes, y, ". Give edges between the label's values")
    return TaskTargets(task, classes, y)


def _lives(name: str, task: Survival, rows: Rows, cut: Cut, reading: Reading, inputs: Inputs) -> TaskTargets:
    """Return the targets of a survival; the first sample of each recording counts as its life."""
    if rows.target is None or rows.target.shape[1] != TARGETS:
        raise SettingError(f"{name}: its labels are no lives, which data.task = 'survival' needs. Leave data.task out.")
    target = rows.target[cut.last]
    life = reading.columns.life
    if life is None:
        whose = rows.runs[cut.last]
        first = np.unique(np.stack([whose, cut.test]), axis=1, return_index=True)[1]
        target = target.copy()
        target[:, 3] = np.isin(np.arange(len(target)), first)
        task = replace(task, since="sample", unit=task.unit or "rows")
    elif life in inputs.columns:
        days = JOIN in life and not task.unit
        task = replace(task, age=inputs.columns.index(life), unit="days" if days else task.unit)
    if reading.whole:  # the samples of a single device: the task of all devices applies
        return TaskTargets(task, LIVES_OF, np.zeros(len(target), np.int64), target)
    fitted = task.fitted(target[~cut.test])
    return TaskTargets(fitted, LIVES_OF, fitted.bin(target), target)


def _named(task: Regression, many: int, reading: Reading, inputs: Inputs) -> Regression:
    """Return the task with the name and the unit of its target, by default those of the data."""
    if many > 1 or task.names:
        return task
    if reading.remaining:
        return replace(task, names=("rows left",), unit=task.unit or "rows")
    label = inputs.names.get("label")
    return replace(task, names=(label,)) if label else task


def _check_sensors(name: str, rows: Rows, inputs: Inputs) -> None:
    """Refuse recordings in which no sensor ever changes."""
    x = rows.x
    if "life" in inputs.names:  # a curve for all machines needs none
        return
    if rows.noun == "rows" and x.ndim == 2 and len(x) > 1 and (x[1:100] == x[0]).all() and (x == x[0]).all():
        values = [f"{sensor} = {value:g}" for sensor, value in zip(inputs.columns, x[0].tolist(), strict=False)]
        raise SettingError(
            f"{name}: no sensor ever changes ({some(values, 5)}), so that a model cannot learn anything. Check which "
            "columns are sensors ([data] columns) and how numbers are written "
            "([data] decimal).",
            key="constant-sensors",
        )


def _check_falls(name: str, task: Regression, rows: Rows, inputs: Inputs) -> None:
    """Refuse a capped label that rises along all recordings; warn of a remaining life that rises in some."""
    life = LIVES.fullmatch(inputs.names.get("label", ""))
    if rows.target is None or (task.cap is None and not life):
        return
    label = rows.target[:, 0]
    same = rows.segment[1:] == rows.segment[:-1]
    steps = np.where(same, np.diff(label), 0)
    rises = np.flatnonzero(steps > 0) + 1
    if task.cap is not None and len(rises) and (steps >= 0).all():
        raise SettingError(
            f"{name}: its label rises along the recordings, from {rows.target[0, 0]:g} in the first row, and never "
            "falls; with data.task.cap it is taken for a remaining life, which falls until the failure. If it counts "
            "the past rows, leave it out (data.columns.ignore) and set data.remaining = true for recordings that run "
            "to failure; if it is another number, leave data.task.cap out.",
            key="rising-labels",
        )
    if len(rises):
        first = int(rises[0])
        many = len(np.unique(rows.segment[rises]))
        log.warning(
            "%s: the label rises from %g to %g, and in %d of %s in total; a remaining life falls until the failure. "
            "Correct it, or name recordings with data.columns.run, so that no window crosses a repair.",
            rows.place(first), label[first - 1], label[first], many, count(len(np.unique(rows.segment)), "recording"),
        )  # fmt: skip


def _check_ranges(name: str, reading: Reading, called: tuple[str, ...], y: Labels, advice: str) -> None:
    """Refuse ``[data] bins`` if a bin has no samples."""
    empty = [called[i] for i in np.flatnonzero(np.bincount(y, minlength=len(called)) == 0)]
    if reading.bins and empty:
        raise SettingError(
            f"{name}: data.bins = {list(reading.bins)}: no sample is in {' or '.join(map(repr, empty))}{advice}.",
            key="data.bins",
        )


def _forecast(name: str, task: Forecasting, rows: Rows, cut: Cut, reading: Reading, inputs: Inputs) -> TaskTargets:
    if rows.x.ndim != 2 or rows.x.dtype != np.float32:
        raise SettingError(
            f"{name}: pictures and ready-made windows have no subsequent rows to forecast. Give rows, "
            "or choose another data.task."
        )
    unknown = next((sensor for sensor in task.sensors if sensor not in inputs.columns), None)
    if unknown is not None:
        raise SettingError(
            f"data.task.sensors: no sensor is called '{unknown}'.{nearest(unknown, inputs.columns)} Sensors: "
            f"{some(inputs.columns, 20)}."
        )
    before = task.season or 1
    sensors = task.sensors or _changing(rows, inputs, before)
    if not sensors:
        what = "changes within a recording" if before == 1 else f"differs from its value {before} rows before"
        raise SettingError(f"{name}: no sensor {what}: there is nothing to forecast. Check [data] columns.")
    channels = [inputs.columns.index(sensor) for sensor in sensors]
    values = rows.x[:, channels].astype(np.float32, copy=False)
    first = cut.start + cut.length - task.horizon
    target = np.stack([values[first + h] for h in range(task.horizon)], 2)  # [n, S, H]
    if not np.isfinite(target).all():
        raise SettingError(
            f"{name}: values are missing in the rows to forecast, and [data] missing = '{inputs.missing}' does not "
            'fill them. Set missing = "previous" or "drop".'
        )
    flat = target.reshape(len(target), -1).astype(np.float32)
    task = replace(task, channels=tuple(channels))
    if reading.whole:
        return TaskTargets(task, (), np.zeros(len(flat), np.int64), flat)
    naive = _naive(values, rows, cut, before)
    if (naive == 0).any():
        still = [sensors[i] for i in np.flatnonzero(naive == 0)]
        what = "never changes" if before == 1 else f"always has its value of {before} rows before"
        more = f" (like {count(len(still) - 1, 'other sensor')})" if still[1:] else ""
        raise SettingError(
            f"{name}: sensor '{still[0]}' {what} within the recordings' training rows: nothing to forecast"
            f"{more}. Name the sensors to forecast with "
            "data.task.sensors, or leave it out of the table (data.columns.ignore).",
            key="constant-sensors",
        )
    fitted = task.fitted(flat[~cut.test], naive=np.repeat(naive, task.horizon).tolist())
    fitted = replace(fitted, sensors=tuple(sensors))
    return TaskTargets(fitted, names_of(fitted.edges), fitted.bin(flat), flat)


def _naive(values: NDArray[np.float32], rows: Rows, cut: Cut, before: int) -> NDArray[np.float64]:
    """Return the mean |x_t − x_{t−before}| of each sensor over the rows of the training samples, float64 [S]."""
    starts = cut.start[~cut.test]
    edges = np.zeros(len(values) + 1, np.int64)
    np.add.at(edges, starts, 1)
    np.add.at(edges, starts + cut.length, -1)
    train = np.cumsum(edges[:-1]) > 0
    same = train[before:] & train[:-before] & (rows.segment[before:] == rows.segment[:-before])
    if not same.any():
        raise SettingError(
            f"data.task.season = {before}: no recording has two training rows at this distance. Choose "
            "a shorter season."
        )
    away = np.abs(values[before:][same].astype(np.float64) - values[:-before][same])
    return np.nanmean(away, axis=0)  # type: ignore[no-any-return]


def _changing(rows: Rows, inputs: Inputs, before: int) -> tuple[str, ...]:
    """Return the sensors to forecast by default: all but categories, and those equal to their values rows before."""
    categories = described(inputs.coding.get("categories", {})) or {}
    same = rows.segment[before:] == rows.segment[:-before]
    changes = (rows.x[before:][same] != rows.x[:-before][same]).any(axis=0)
    return tuple(
        sensor
        for sensor, changed in zip(inputs.columns, changes.tolist(), strict=True)
        if changed and sensor not in columns_of(categories)
    )


def rows_left(reading: Reading, rows: NDArray[Any], age: NDArray[Any]) -> Targets | None:
    """Return the targets of recordings to failure that a task needs: lives, numbers of rows left, or None.

    Args:
        rows: [T], the rows left after each row; a life ends after its last row.
        age: [T], the rows before each row.
    """
    if reading.lasting:
        one = np.ones(len(rows))
        return np.stack([age + rows + 1, one, age, one], 1).astype(np.float32)
    return rows[:, None].astype(np.float32) if reading.number is not None else None


Rows32 = NDArray[np.float32]


def assemble(
    name: str, classes: tuple[str, ...], rows: Rows, reading: Reading, inputs: Inputs, owned: Owned, digest: str,
    seed: int,
) -> Dataset:  # fmt: skip
    """Return a data set made from recordings: rows [N, …], or windows [N, C, L] that are cut on demand.

    Raises:
        SettingError: a device has too few rows, overlapping windows are to be split at random, or no samples are left.
    """
    rows = rows.parted(name, reading.gap_s)
    cut = divided(name, rows, with_rows_ahead(name, rows, reading), owned, seed)
    notes = _of_pace(rows, cut, reading, owned)
    cut = without_abnormal(name, classes, rows, cut, reading)
    if reading.window is not None:
        inputs = replace(inputs, length=reading.window.length, step=reading.window.stride)
    targets = task_targets(name, classes, rows, cut, reading, inputs)
    data = _dataset(name, targets, rows, cut, inputs, owned, digest)
    split = split_of(rows, reading)
    data = replace(data, notes=notes + few_tests(data, rows, cut, split), split="" if split is None else split.kind)
    if isinstance(split, WholeSplit) and split.by_class:
        data = replace(data, by_class=True)
    last = cut.last[~cut.test]
    if isinstance(reading.split, RunSplit) or rows.whole:
        return replace(data, run=rows.runs[last])
    if isinstance(reading.split, LastSplit) and (data.time is None or reading.split.of == "run"):
        whole = rows.segment if rows.owner is None or reading.split.of == "run" else rows.owner
        return replace(data, through=_through(whole)[last])
    return data


def _of_pace(rows: Rows, cut: Cut, reading: Reading, owned: Owned) -> tuple[str, ...]:
    """Return sentences on windows that last longer at some devices than at others, or cross holes."""
    if cut.length == 1 or rows.time is None or reading.whole or (len(rows.time) < 2):
        return ()
    if (pace := pace_of(rows.time, rows.segment, rows.owner)) is None:
        return ()
    sentences = []
    if rows.owner is not None and (rates := pace.rates(owned.names)):
        sentences.append(
            f"rates differ: rows of {rates}. Windows of {cut.length} rows last accordingly; give devices one rate, or "
            "train them apart."
        )
    far = np.concatenate([[0], np.cumsum(pace.steps > pace.gap)])
    across = int((far[cut.last] > far[cut.start]).sum())
    if across and reading.gap_s is None:
        sentences.append(
            f"{across:,} of {len(cut.start):,} windows cross a hole of more than {pace.gap:g} s (the longest has "
            f"{pace.holes().max():g} s), as no buffer of sensors allows: --set data.gap_s={pace.gap:g}."
        )
    return tuple(sentences)


def fill(x: Rows32, segment: Owners) -> Rows32:
    """Return rows with missing values replaced by the last value before them in the recording.

    A value without one before it stays missing: a later value is not known yet, and may belong to the test samples.

    >>> fill(np.array([[np.nan], [1], [np.nan], [np.nan]], np.float32), np.array([0, 0, 0, 1])).ravel()
    array([nan,  1.,  1., nan], dtype=float32)
    """
    x = x.copy()
    for first, last in runs(segment, None):
        piece = x[first:last]
        known = ~np.isnan(piece)
        if known.all():
            continue
        row = np.arange(len(piece))[:, None]
        source = np.maximum.accumulate(np.where(known, row, 0), axis=0)  # the first row where none is known
        x[first:last] = np.take_along_axis(piece, source, axis=0)
    return x


def say_missing(name: str, counts: Mapping[str, int], each: int, sensors: int, missing: Missing) -> None:
    """Log the number of missing values, the sensor with most of them (of ``each``), and their treatment."""
    if counts and missing != "refuse":
        count = sum(counts.values())
        total = each * sensors
        worst = max(counts, key=lambda key: counts[key])
        done = {
            "previous": "each is replaced by its recording's last value before it, otherwise by its sensor's mean",
            "mean": "each is replaced by its sensor's mean over all devices",
            "drop": "samples with missing values are left out",
        }[missing]
        log.info("%s: %s of %s values are missing (%.2g %%; of '%s' the most, %.2g %%): %s.", name, f"{count:,}",
                 f"{total:,}", 100 * count / total, worst, 100 * counts[worst] / each, done)  # fmt: skip


def _dataset(
    name: str, targets: TaskTargets, rows: Rows, cut: Cut, inputs: Inputs, owned: Owned, digest: str
) -> Dataset:  # fmt: skip
    train = ~cut.test
    start = cut.start[~cut.test]
    start_test = cut.start[cut.test]
    last = cut.last[train]
    last_test = cut.last[cut.test]
    x = rows.x
    length = inputs.length if rows.x.ndim == 2 else None
    overlap = length is not None and inputs.step is not None and inputs.step < cut.length
    apart = rows.apart if rows.time is not None else overlap or (targets.task.calibrates and rows.ordered)
    owner = None if rows.owner is None else rows.owner[last].astype(np.int32)
    tested = None if rows.owner is None else rows.owner[last_test].astype(np.int32)
    return Dataset(
        name, targets.classes, x.shape[1:] if length is None else (x.shape[1], length),
        targets.y[train], targets.y[cut.test], owner, tested, digest,
        lambda indices, device: _gather(x, start[indices], length),  # noqa: ARG005
        lambda indices: _gather(x, start_test[indices], length),
        scale=1 / 255 if x.dtype == np.uint8 else 1.0, time=None if rows.time is None else rows.time[last],
        first=start if overlap else None, first_test=start_test if overlap else None,
        through=_through(rows.segment)[last] if apart else None, owned=owned, inputs=inputs, task=targets.task,
        target=None if targets.target is None else targets.target[train],
        target_test=None if targets.target is None else targets.target[cut.test],
        recording_test=rows.segment[last_test].astype(np.int32) if rows.noun == "rows" and rows.ordered else None,
        recording_of=_recording_of(rows),
    )  # fmt: skip


def _recording_of(rows: Rows) -> Owners | None:
    """Return the recording of each piece, int32 [pieces]; None where no recording has several pieces."""
    if rows.run is None or not len(rows.run):
        return None
    found = np.zeros(int(rows.segment.max()) + 1, np.int32)
    found[rows.segment] = rows.run
    return found


def _through(segment: Owners) -> Times:
    """Return the position of each row in its recording, from 0 to 1.

    >>> _through(np.array([0, 0, 0, 0, 1]))
    array([0.25, 0.5 , 0.75, 1.  , 1.  ])
    """
    return np.concatenate([np.arange(1, end - first + 1) / (end - first) for first, end in runs(segment, None)])


def _gather(x: Values, start: Indices, length: int | None) -> Values:
    """Return copies of samples [n, …], or of windows [n, C, L]."""
    if length is None:
        return x[start]
    return np.ascontiguousarray(x[start[:, None] + np.arange(length)].transpose(0, 2, 1))
