"""Problems of data that a draft solves: each kind with the settings that solve it."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedfloor.base.errors import SettingError
from fedfloor.base.names import typed
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded
from fedfloor.data.kinds import is_called_time
from fedfloor.data.reading import Problem
from fedfloor.drafting import folders, splits
from fedfloor.drafting.candidates import separating
from fedfloor.drafting.readable import MOST_WINDOWS, SHORTEST, WINDOW, ignored, task_of, windows_note
from fedfloor.drafting.sketch import Proposal, Sketch

PASSES = 8  # over the data, each of which may tell problems that an earlier one hid


class Mending:
    """A draft whose data are made readable.

    Args:
        sketch: the draft, whose windows begin with :data:`WINDOW` rows where the task needs some and none are set.

    Attributes:
        free: whether the length of windows is set by the data.
    """

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        data = sketch.data
        lives = bool(data.get("remaining")) and "bins" not in data
        self.free = (task_of(data).ahead > 0 or lives) and "window" not in data
        if self.free:
            sketch.set({"data.window": {"length": WINDOW, "step": 1}})

    def readable(self) -> Dataset:
        """Solve the problems of the data, and return the data.

        Raises:
            SettingError: a problem that no setting of a draft solves.
        """
        for _ in range(PASSES):
            dataset, problems = self.sketch.inspected()
            if dataset is not None and self._spaced(dataset):
                return dataset
            for problem in problems:
                decision = SOLVED[problem.kind](self, problem)
                if decision is None:
                    raise SettingError(problem.text, key=problem.kind)
                self.sketch.decide(decision)
        if not problems:  # the last pass only changed the distance of windows, which happens once
            return self.readable()
        raise SettingError(problems[0].text, key=problems[0].kind)

    def _spaced(self, dataset: Dataset) -> bool:
        """Note the windows; return whether they are few enough, otherwise begin them at a distance."""
        data = self.sketch.data
        if not self.free or task_of(data).ahead:
            return True
        self.free = False
        step = math.ceil(len(dataset.y) / MOST_WINDOWS)
        note = windows_note(data["window"]["length"])
        if step > 1:
            note += f"; one begins every {step} rows, for at most {MOST_WINDOWS:,} in training"
        self.sketch.decide(Proposal({"data.window.step": step}, [note]))
        return step == 1


def _measure(draft: Mending, problem: Problem) -> Proposal | None:
    """Predict the number."""
    if "task" in draft.sketch.data:
        return None
    several = problem.text.partition("'data.bins=")[2].partition("'")[0] or "[EDGE, …]"
    note = f"the label is a number and is predicted as a number; for classes of its ranges: --set 'data.bins={several}'"
    return Proposal({"data.task": {"kind": "regression"}}, [note])


def _unlisted(draft: Mending, problem: Problem) -> Proposal | None:
    """Make a sensor for each text, where there are texts beyond the rows or tables that the guess examined."""
    (name,) = problem.columns
    if name in draft.sketch.given.coded:
        return None
    few = f"'{name}' holds a few texts"
    codings = {**draft.sketch.data["columns"]["categories"], name: "one-hot"}
    return Proposal({"data.columns.categories": codings}, [f"{few}: a sensor for each (one-hot)"], withdraws=few)


def _times(draft: Mending, problem: Problem) -> Proposal | None:
    """Leave out a column of dates that was guessed to be the time, unless its name is clear."""
    data = draft.sketch.data
    name = data.get("columns", {}).get("time", "")
    if draft.sketch.given.time or not name or is_called_time(name):
        if (run := separating(expanded(data["path"]), data, draft.sketch.excerpts)) is None:
            return None
        advice = f"'{run}' does: {typed('data.columns.run', run)}."
        raise SettingError(f"{problem.text} {advice}", key=problem.kind)
    note = (
        f"'{name}' holds times, but rows are not in their order, therefore it is left out; if it is the time: --set "
        f"'data.columns.time={name}' --set data.sort=true"
    )
    settings = {"data.columns.ignore": ignored(data, [name]), "data.columns.time": ""}
    return Proposal(settings, [note], withdraws=f"'{name}' is taken for the time")


def _empty(draft: Mending, problem: Problem) -> Proposal | None:
    """Leave the sensors out."""
    data = draft.sketch.data
    if data.get("columns", {}).get("values"):
        return None
    names = ", ".join(map(repr, problem.columns))
    hold = "hold" if len(problem.columns) > 1 else "holds"
    note = f"{names} {hold} no value in any row and is ignored"
    return Proposal({"data.columns.ignore": ignored(data, problem.columns)}, [note])


def _missing(draft: Mending, problem: Problem) -> Proposal:
    """Carry the last value on where rows have times, otherwise take the mean."""
    carried = problem.carried and draft.sketch.data.get("columns", {}).get("time") != ""
    comment = f"{problem.count:,} missing; or " + ('"mean", "drop"' if carried else '"drop"')
    return Proposal({"data.missing": "previous" if carried else "mean"}, comments={"data.missing": comment})


def _short(draft: Mending, problem: Problem) -> Proposal | None:
    """Take windows of half the longest possible length, unless windows are given."""
    if not draft.free or problem.count <= SHORTEST:
        return None
    return Proposal({"data.window.length": max(SHORTEST, problem.count // 2)})


def _small(draft: Mending, problem: Problem) -> Proposal | None:  # noqa: ARG001
    """Test on whole devices, if rows left are predicted and no split is given."""
    data = draft.sketch.data
    if "split" in data or "test" in data or not data.get("remaining"):
        return None
    note = (
        "split: by device (whole devices, excluded from training), because by time the ends of short "
        "recordings have no test sample"
    )
    return Proposal({"data.split": {"kind": "device"}}, [note])


def _one_class(draft: Mending, problem: Problem) -> Proposal | None:  # noqa: ARG001
    """Take a split whose training rows have several classes, if there is one and none is given."""
    sketch = draft.sketch
    data = sketch.data
    if "split" in data or "test" in data:
        return None
    several = folders.recordings(data, expanded(data["path"]))
    for kind in ("run", "device", "stratified")[0 if several else 1 :]:
        split, dataset = splits.drawn(kind, lambda split: sketch.dataset({"data.split": dict(split)}))
        if dataset is not None:
            note = f"{splits.words(split)}, because by time the training rows have one class"
            return Proposal({"data.split": split}, [note])
    return None


SOLVED: dict[str, Callable[[Mending, Problem], Proposal | None]] = {
    "measure": _measure,
    "unlisted": _unlisted,
    "times": _times,
    "empty": _empty,
    "missing": _missing,
    "short": _short,
    "small": _small,
    "one class": _one_class,
}
