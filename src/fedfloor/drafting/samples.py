"""What is a sample, and which are for tests: splits, windows, gaps, normalisation."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded
from fedfloor.data.files.tree import named
from fedfloor.data.pace import pace_of
from fedfloor.drafting import findings, splits
from fedfloor.drafting.readable import MOST_WINDOWS, SHORTEST, WINDOW, reader, task_table, windows_note
from fedfloor.park.park import Park
from fedfloor.runs import trials
from fedfloor.runs.parks import build_park, load_data
from fedfloor.tasks.classification import CLASSIFICATION

LASTING = 5  # average duration of a label, in rows, from which windows are proposed


def set_forecast(document: dict[str, Any], park: Park, notes: list[str], *, window: bool) -> Park:
    """Exclude calendar columns and categories from the forecast, and set windows of a period, unless set.

    Args:
        document: the draft, with its task.
        park: the park with all columns.
        notes: the list to which sentences are added.
        window: whether a window is given.
    """
    data = document["data"]
    columns = park.dataset.inputs.columns
    before = dict(document["data"])
    task = task_table(data)
    known = findings.known_ahead(park.dataset)
    sensors = [name for name in columns if name not in known]
    if "sensors" not in task and known and sensors:
        task["sensors"] = sensors
        notes.append(f"{named(known)}: from a calendar or a category, therefore inputs of the forecast only")
    data["task"] = task
    if data != before:
        park = build_park(config.from_table(document))
    rows = None if window or "season" in task else findings.period(park.dataset)
    if rows is not None:
        length = max(rows, WINDOW)
        wider = data | {"window": {"length": length, "step": 1}, "task": {**task, "season": rows}}
        with suppress(SettingError):  # too few rows for these windows
            wider_park = build_park(config.from_table(document | {"data": wider}))
            ahead = wider_park.dataset.task.called()
            if same := [sensor for sensor in park.dataset.task.called() if sensor not in ahead]:
                notes.append(f"{named(same)}: the same again after {rows} rows, therefore inputs of the forecast only")
            park = wider_park
            data.update(wider)
            notes.append(
                f"values recur after {rows} rows, therefore windows have {length} rows, and the value of a season "
                "before is a reference: --set data.task.season=N --set data.window.length=N for others"
            )
            return park
    if not window:
        notes.append(windows_note(data["window"]["length"]))
    return park


def set_gap(document: dict[str, Any], park: Park, notes: list[str]) -> Park:
    """Set the longest step within windows, unless set, where recordings have holes; return the park."""
    data = document["data"]
    if "window" not in data or "gap_s" in data or park.dataset.time is None or park.dataset.inputs.kind != "table":
        return park
    rows = load_data(config.from_table(document | {"data": data | {"window": {"length": 1, "step": 1}}}))
    time = cast(np.ndarray, rows.time)
    owner = np.zeros(len(rows.y), np.int32) if rows.owner is None else rows.owner
    pace = pace_of(time, owner if rows.run is None else rows.run, owner)
    holes = () if pace is None else pace.holes()
    if pace is None or not len(holes):
        return park
    data["gap_s"] = pace.gap
    try:
        park = build_park(config.from_table(document))
    except SettingError:  # the parts are too short for windows
        del data["gap_s"]
        return park
    notes.append(
        f"recordings have holes (steps above {pace.gap:g} s: {len(holes)}, the longest {max(holes):g} s), which "
        "windows do not cross: data.gap_s, as for buffers of sensors"
    )
    return park


def set_split(
    document: dict[str, Any], dataset: Dataset, path: Path, notes: list[str], *, settled: bool
) -> tuple[Park, str]:
    """Set the most suitable split, or complete a given kind; return the park and the sentence on the split."""
    data = document["data"]
    if settled:
        return build_park(config.from_table(document)), str(data["split"]["kind"])

    split, sentences = splits.propose(dataset, data, path, reader(document))
    notes += sentences
    if split:
        data["split"] = split
    return build_park(config.from_table(document)), str(split.get("kind", ""))


def set_windows_of_recordings(document: dict[str, Any], park: Park, notes: list[str]) -> Park:
    """Set windows, unless set, if each recording has a single class; return the park."""
    data = document["data"]
    dataset = park.dataset
    if "window" in data or dataset.run is None or dataset.task != CLASSIFICATION or dataset.inputs.kind != "table":
        return park
    rows = np.unique(dataset.run, return_counts=True)[1]
    several = len(np.unique(np.stack([dataset.run, dataset.y]), axis=1).T) > len(rows)
    if several or rows.min() < 2 * WINDOW:
        return park
    window = {"length": WINDOW, "step": math.ceil(len(dataset.y) / MOST_WINDOWS)}
    try:
        park = build_park(config.from_table(document | {"data": data | {"window": window}}))
    except SettingError:  # too few rows for windows
        return park
    data["window"] = window
    order = "" if dataset.time is not None else ", whose order is taken for the time"
    notes.append(
        f"each recording has a single class, therefore samples are windows of {WINDOW} rows{order}; longer ones may be "
        "better: --set data.window.length=N (1 for single rows)"
    )
    return park


def set_regimes(data: dict[str, Any], dataset: Dataset) -> list[str]:
    """Set normalisation by operating regime if sensors depend on regimes; return sentences on it."""
    proposal = None if "normalise" in data or dataset.task.ahead else findings.regimes(dataset)
    if proposal is None:
        return []
    columns, regimes = proposal
    data["normalise"] = {"kind": "regime", "columns": columns, "regimes": regimes}
    return [
        f"operating regimes: {regimes}, by the levels of {', '.join(columns)}. Most sensors depend on them and are "
        "therefore normalised within each regime; for one scale for all rows: --set data.normalise=standard"
    ]


def set_what_trials_show(document: dict[str, Any], park: Park, notes: list[str]) -> Park:
    """Set windows and normalisation by device, unless set, where a trial shows a gain; return the park.

    Windows are tried if what is predicted lasts for many rows in order.
    """
    data = document["data"]
    dataset = park.dataset
    if dataset.inputs.kind != "table" or dataset.task.ahead:
        return park
    ordered = dataset.time is not None or "run" in data.get("columns", {})
    ordered = ordered or expanded(data["path"]).is_dir()  # the rows of a file in a folder are in order
    lasts = _slow(dataset) if ordered and "window" not in data else ""
    shortest = WINDOW if dataset.run is None else int(np.unique(dataset.run, return_counts=True)[1].min())
    window = {"length": min(WINDOW, shortest), "step": math.ceil(len(dataset.y) / MOST_WINDOWS)}
    windowed = None
    if lasts and shortest >= SHORTEST:
        with suppress(SettingError):  # too few rows for windows
            raw = {key: value for key, value in data.items() if key != "normalise"} | {"window": window}
            windowed = build_park(config.from_table(document | {"data": raw}))
    wider, scale, evidence = trials.best(park, windowed, own=not {"normalise", "partition"} & {*data}) or (
        False,
        {},
        "",
    )
    changed = []
    if wider and windowed is not None:
        park = windowed
        data["window"] = window
        length = f"windows of {window['length']} rows"
        changed.append(f"{lasts}, therefore samples are {length} (data.window.length=1: single rows)")
    if scale:
        data["normalise"] = scale
        rows = f"first {scale['rows']}" if "rows" in scale else "training"
        changed.append(
            f"devices have levels of their own, therefore each is normalised by its {rows} rows (one scale for all: "
            "data.normalise=standard)"
        )
    if changed:
        notes.append(f"{'; '.join(changed)}. Evidence: {evidence}")
    if lasts and not wider:
        notes.append(
            f"{lasts}, and a window of several rows may be more informative than a single row: --set "
            f"'data.window={{length={window['length']},step=1}}'"
        )
    return park


def _slow(dataset: Dataset) -> str:
    """Return a clause if a label usually lasts for :data:`LASTING` rows, or a target hardly changes; "" otherwise."""
    owner = np.zeros(len(dataset.y), np.int64) if dataset.owner is None else dataset.owner
    if dataset.target is not None and not dataset.task.ahead:
        target = dataset.target[:, 0].astype(np.float64)
        step = np.diff(target)[np.diff(owner) == 0]
        slow = len(step) > 0 and (step**2).mean() < 2 * findings.STEADY * target.var()
        return "the target hardly changes from row to row" if slow else ""
    if dataset.task != CLASSIFICATION:
        return ""
    change = np.flatnonzero((np.diff(dataset.y) != 0) | (np.diff(owner) != 0))
    rows = np.diff(np.r_[-1, change, len(dataset.y) - 1])
    label = dataset.y[np.r_[change, len(dataset.y) - 1]]
    rare = rows[label != np.bincount(dataset.y).argmax()]
    return f"a label lasts for {rare.mean():.0f} rows on average" if len(rare) and rare.mean() >= LASTING else ""
