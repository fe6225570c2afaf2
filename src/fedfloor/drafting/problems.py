"""Problems of data that a draft solves: each kind with the settings that solve it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.names import typed
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded, own
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.kinds import is_called_time
from fedfloor.data.reading import DraftReading, Problem
from fedfloor.drafting import folders, guess, splits
from fedfloor.drafting.readable import MOST_WINDOWS, SHORTEST, WINDOW, ignore, reader, task_of, windows_note

PASSES = 8  # over the data, each of which may tell problems that an earlier one hid


@dataclass
class Mending:
    """A draft whose data are made readable.

    Args:
        document, notes: the draft and its notes.
        timed: whether the column of times is given.
        coded: the columns whose coding is given.
        excerpts: reads the first rows of tables.
        free: whether the length of windows is set by the data.
        comment: a comment on missing values.
    """

    document: dict[str, Any]
    notes: list[str]
    timed: bool
    coded: frozenset[str]
    excerpts: Excerpts
    free: bool = field(init=False)
    comment: str = ""

    def __post_init__(self) -> None:
        data = self.data
        lives = bool(data.get("remaining")) and "bins" not in data
        self.free = (task_of(data).ahead > 0 or lives) and "window" not in data
        if self.free:
            data["window"] = {"length": WINDOW, "step": 1}

    @property
    def data(self) -> dict[str, Any]:
        """The settings of the data."""
        data: dict[str, Any] = self.document["data"]
        return data

    def readable(self) -> Dataset:
        """Solve the problems of the data, and return the data.

        Raises:
            SettingError: a problem that no setting of a draft solves.
        """
        for _ in range(PASSES):
            dataset, problems = inspected(self.document)
            if dataset is not None and self._spaced(dataset):
                return dataset
            for problem in problems:
                if not SOLVED[problem.kind](self, problem):
                    raise SettingError(problem.text, key=problem.kind)
        if not problems:  # the last pass only changed the distance of windows, which happens once
            return self.readable()
        raise SettingError(problems[0].text, key=problems[0].kind)

    def _spaced(self, dataset: Dataset) -> bool:
        """Note the windows; return whether they are few enough, otherwise begin them at a distance."""
        data = self.data
        if not self.free or task_of(data).ahead:
            return True
        self.free = False
        self.notes.append(windows_note(data["window"]["length"]))
        step = math.ceil(len(dataset.y) / MOST_WINDOWS)
        data["window"]["step"] = step
        if step > 1:
            self.notes[-1] += f"; one begins every {step} rows, for at most {MOST_WINDOWS:,} in training"
        return step == 1


def inspected(document: dict[str, Any]) -> tuple[Dataset | None, list[Problem]]:
    """Return the data of a draft; or None and the problems that settings must solve, the first of each kind and column.

    Raises:
        SettingError: a mistake that is none of these problems.
    """
    experiment = config.from_table(document)
    reading = DraftReading.of(experiment.data)
    try:
        return own.load(Path(str(experiment.data.path)), reading, experiment.seed), []
    except SettingError:
        if not reading.told:
            raise
    first = dict[tuple[str, tuple[str, ...]], Problem]()
    for problem in reading.told:
        first.setdefault((problem.kind, problem.columns), problem)
    return None, [*first.values()]


def _measure(draft: Mending, problem: Problem) -> bool:
    """Predict the number."""
    if "task" in draft.data:
        return False
    draft.data["task"] = {"kind": "regression"}
    several = problem.text.partition("'data.bins=")[2].partition("'")[0] or "[EDGE, …]"
    draft.notes.append(
        f"the label is a number and is predicted as a number; for classes of its ranges: --set 'data.bins={several}'"
    )
    return True


def _unlisted(draft: Mending, problem: Problem) -> bool:
    """Make a sensor for each text, where there are texts beyond the rows or tables that the guess examined."""
    (name,) = problem.columns
    if name in draft.coded:
        return False
    draft.data["columns"]["categories"][name] = "one-hot"
    draft.notes[:] = [text for text in draft.notes if not text.startswith(f"'{name}' holds a few texts")]
    draft.notes.append(f"'{name}' holds a few texts: a sensor for each (one-hot)")
    return True


def _times(draft: Mending, problem: Problem) -> bool:
    """Leave out a column of dates that was guessed to be the time, unless its name is clear."""
    data = draft.data
    name = data.get("columns", {}).get("time", "")
    if draft.timed or not name or is_called_time(name):
        if (run := guess.separating(expanded(data["path"]), data, draft.excerpts)) is None:
            return False
        advice = f"'{run}' does: {typed('data.columns.run', run)}."
        raise SettingError(f"{problem.text} {advice}", key=problem.kind)
    ignore(data, [name])
    data["columns"]["time"] = ""
    draft.notes[:] = [note for note in draft.notes if note != f"'{name}' is taken for the time"]
    draft.notes.append(
        f"'{name}' holds times, but rows are not in their order, therefore it is left out; if it is the time: --set "
        f"'data.columns.time={name}' --set data.sort=true"
    )
    return True


def _empty(draft: Mending, problem: Problem) -> bool:
    """Leave the sensors out."""
    if draft.data.get("columns", {}).get("values"):
        return False
    ignore(draft.data, problem.columns)
    names = ", ".join(map(repr, problem.columns))
    hold = "hold" if len(problem.columns) > 1 else "holds"
    draft.notes.append(f"{names} {hold} no value in any row and is ignored")
    return True


def _missing(draft: Mending, problem: Problem) -> bool:
    """Carry the last value on where rows have times, otherwise take the mean."""
    carried = problem.carried and draft.data.get("columns", {}).get("time") != ""
    draft.data["missing"] = "previous" if carried else "mean"
    draft.comment = f"{problem.count:,} missing; or " + ('"mean", "drop"' if carried else '"drop"')
    return True


def _short(draft: Mending, problem: Problem) -> bool:
    """Take windows of half the longest possible length, unless windows are given."""
    if not draft.free or problem.count <= SHORTEST:
        return False
    draft.data["window"]["length"] = max(SHORTEST, problem.count // 2)
    return True


def _small(draft: Mending, problem: Problem) -> bool:  # noqa: ARG001
    """Test on whole devices, if rows left are predicted and no split is given."""
    data = draft.data
    if "split" in data or "test" in data or not data.get("remaining"):
        return False
    data["split"] = {"kind": "device"}
    draft.notes.append(
        "split: by device (whole devices, excluded from training), because by time the ends of short "
        "recordings have no test sample"
    )
    return True


def _one_class(draft: Mending, problem: Problem) -> bool:  # noqa: ARG001
    """Take a split whose training rows have several classes, if there is one and none is given."""
    data = draft.data
    if "split" in data or "test" in data:
        return False
    several = folders.recordings(data, expanded(data["path"]))
    for kind in ("run", "device", "stratified")[0 if several else 1 :]:
        split, dataset = splits.drawn(kind, reader(draft.document))
        if dataset is not None:
            data["split"] = split
            draft.notes.append(f"{splits.words(split)}, because by time the training rows have one class")
            return True
    return False


SOLVED: dict[str, Callable[[Mending, Problem], bool]] = {
    "measure": _measure,
    "unlisted": _unlisted,
    "times": _times,
    "empty": _empty,
    "missing": _missing,
    "short": _short,
    "small": _small,
    "one class": _one_class,
}
