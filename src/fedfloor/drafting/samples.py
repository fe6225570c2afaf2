"""What is a sample, and which are for tests: splits, windows, gaps, normalisation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded
from fedfloor.data.files.tree import named
from fedfloor.data.pace import pace_of
from fedfloor.drafting import findings, splits
from fedfloor.drafting.outcomes import task_table
from fedfloor.drafting.readable import MOST_WINDOWS, SHORTEST, WINDOW, windows_note
from fedfloor.drafting.sketch import Proposal, Sketch
from fedfloor.runs import trials
from fedfloor.tasks.classification import CLASSIFICATION

LASTING = 5  # average duration of a label, in rows, from which windows are proposed


def set_split(sketch: Sketch, dataset: Dataset) -> None:
    """Decide on the most suitable split, or complete a given kind, unless it is settled."""
    if "split" in sketch.data and not sketch.given.split:
        return
    split, sentences = splits.propose(
        dataset, sketch.data, sketch.source, lambda split: sketch.dataset({"data.split": dict(split)})
    )
    sketch.decide(Proposal({"data.split": split} if split else {}, sentences))


def forecast(sketch: Sketch) -> Proposal:
    """Exclude calendar columns and categories from the forecast, and decide on windows of a period, unless set."""
    dataset = sketch.park().dataset
    task = task_table(sketch.data)
    known = findings.known_ahead(dataset)
    sensors = [name for name in dataset.inputs.columns if name not in known]
    notes = list[str]()
    if "sensors" not in task and known and sensors:
        task = task | {"sensors": sensors}
        notes.append(f"{named(known)}: from a calendar or a category, therefore inputs of the forecast only")
    settings: dict[str, Any] = {"data.task": task}
    dataset = sketch.park(settings).dataset
    rows = None if sketch.given.window or "season" in task else findings.period(dataset)
    if rows is not None and (recurring := _recurring(sketch, dataset, task, rows)) is not None:
        return replace(recurring, notes=[*notes, *recurring.notes])
    if not sketch.given.window:
        notes.append(windows_note(sketch.data["window"]["length"]))
    return Proposal(settings, notes)


def _recurring(sketch: Sketch, dataset: Dataset, task: Mapping[str, Any], rows: int) -> Proposal | None:
    """Return windows of a period and its season; None if there are too few rows for them."""
    length = max(rows, WINDOW)
    settings = {"data.task": {**task, "season": rows}, "data.window": {"length": length, "step": 1}}
    try:
        ahead = sketch.park(settings).dataset.task.called()
    except SettingError:
        return None
    notes = []
    if same := [sensor for sensor in dataset.task.called() if sensor not in ahead]:
        notes.append(f"{named(same)}: the same again after {rows} rows, therefore inputs of the forecast only")
    notes.append(
        f"values recur after {rows} rows, therefore windows have {length} rows, and the value of a season "
        "before is a reference: --set data.task.season=N --set data.window.length=N for others"
    )
    return Proposal(settings, notes)


def gap(sketch: Sketch) -> Proposal:
    """Decide on the longest step within windows, unless set, where recordings have holes."""
    dataset = sketch.park().dataset
    data = sketch.data
    if "window" not in data or "gap_s" in data or dataset.time is None or dataset.inputs.kind != "table":
        return Proposal()
    rows = sketch.dataset({"data.window": {"length": 1, "step": 1}})
    time = cast(np.ndarray, rows.time)
    owner = np.zeros(len(rows.y), np.int32) if rows.owner is None else rows.owner
    pace = pace_of(time, owner if rows.run is None else rows.run, owner)
    holes = () if pace is None else pace.holes()
    if pace is None or not len(holes):
        return Proposal()
    settings = {"data.gap_s": pace.gap}
    if not _suits(sketch, settings):  # the parts are too short for windows
        return Proposal()
    note = (
        f"recordings have holes (steps above {pace.gap:g} s: {len(holes)}, the longest {max(holes):g} s), which "
        "windows do not cross: data.gap_s, as for buffers of sensors"
    )
    return Proposal(settings, [note])


def _suits(sketch: Sketch, settings: Mapping[str, Any]) -> bool:
    """Return whether the data can be read with some settings."""
    try:
        sketch.park(settings)
    except SettingError:
        return False
    return True


def windows_of_recordings(sketch: Sketch) -> Proposal:
    """Decide on windows, unless set, if each recording has a single class."""
    dataset = sketch.park().dataset
    if "window" in sketch.data or dataset.run is None or dataset.task != CLASSIFICATION:
        return Proposal()
    rows = np.unique(dataset.run, return_counts=True)[1]
    several = len(np.unique(np.stack([dataset.run, dataset.y]), axis=1).T) > len(rows)
    if dataset.inputs.kind != "table" or several or rows.min() < 2 * WINDOW:
        return Proposal()
    settings = {"data.window": {"length": WINDOW, "step": math.ceil(len(dataset.y) / MOST_WINDOWS)}}
    if not _suits(sketch, settings):  # too few rows for windows
        return Proposal()
    order = "" if dataset.time is not None else ", whose order is taken for the time"
    note = (
        f"each recording has a single class, therefore samples are windows of {WINDOW} rows{order}; longer ones may be "
        "better: --set data.window.length=N (1 for single rows)"
    )
    return Proposal(settings, [note])


def regimes(sketch: Sketch) -> Proposal:
    """Decide on normalisation by operating regime if sensors depend on regimes."""
    dataset = sketch.measured().dataset
    proposal = None if "normalise" in sketch.data or dataset.task.ahead else findings.regimes(dataset)
    if proposal is None:
        return Proposal()
    columns, many = proposal
    note = (
        f"operating regimes: {many}, by the levels of {', '.join(columns)}. Most sensors depend on them and are "
        "therefore normalised within each regime; for one scale for all rows: --set data.normalise=standard"
    )
    return Proposal({"data.normalise": {"kind": "regime", "columns": columns, "regimes": many}}, [note])


def trial(sketch: Sketch) -> Proposal:
    """Decide on windows and normalisation by device, unless set, where a trial shows a gain.

    Windows are tried if what is predicted lasts for many rows in order.
    """
    park = sketch.measured()
    data = sketch.data
    dataset = park.dataset
    if dataset.inputs.kind != "table" or dataset.task.ahead:
        return Proposal()

    # windows, if they can be made
    ordered = dataset.time is not None or "run" in data.get("columns", {})
    ordered = ordered or expanded(data["path"]).is_dir()  # the rows of a file in a folder are in order
    lasts = _slow(dataset) if ordered and "window" not in data else ""
    shortest = WINDOW if dataset.run is None else int(np.unique(dataset.run, return_counts=True)[1].min())
    window = {"length": min(WINDOW, shortest), "step": math.ceil(len(dataset.y) / MOST_WINDOWS)}
    windowed = None
    if lasts and shortest >= SHORTEST:
        with suppress(SettingError):  # too few rows for windows
            windowed = sketch.park({"data.normalise": None, "data.window": window})

    # whether they, or scales of devices' own, predict held-out samples better
    own = not {"normalise", "partition"} & {*data}
    wider, scale, evidence = trials.best(park, windowed, own=own) or (False, {}, "")
    wider = wider and windowed is not None
    settings = ({"data.window": window} if wider else {}) | ({"data.normalise": scale} if scale else {})
    reasons = []
    if wider:
        length = f"windows of {window['length']} rows"
        reasons.append(f"{lasts}, therefore samples are {length} (data.window.length=1: single rows)")
    if scale:
        rows = f"first {scale['rows']}" if "rows" in scale else "training"
        reasons.append(
            f"devices have levels of their own, therefore each is normalised by its {rows} rows (one scale for all: "
            "data.normalise=standard)"
        )
    notes = [f"{'; '.join(reasons)}. Evidence: {evidence}"] if reasons else []
    if lasts and not wider:
        notes.append(
            f"{lasts}, and a window of several rows may be more informative than a single row: --set "
            f"'data.window={{length={window['length']},step=1}}'"
        )
    return Proposal(settings, notes)


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
