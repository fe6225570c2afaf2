"""What must be set before data can be read: roles of columns, the task, missing values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.data import guess, proposals
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import expanded, own
from fedfloor.data.files.encode import MeasureError, UnlistedTextError
from fedfloor.data.files.layout import NoColumnError, are_names
from fedfloor.data.files.preamble import preamble
from fedfloor.data.files.rows import unpacked
from fedfloor.data.files.sheet import head
from fedfloor.data.files.tree import files_in, tables
from fedfloor.data.files.union import EmptySensorsError, MissingValuesError, TimesError
from fedfloor.data.kinds import is_called_time
from fedfloor.data.reading import skipped
from fedfloor.data.series import OneClassError
from fedfloor.data.sources import SOURCES
from fedfloor.data.split import ShortRecordingsError, SmallDevicesError
from fedfloor.experiment import Experiment
from fedfloor.runs.parks import load_data
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.kinds import TASKS
from fedfloor.tasks.task import Task

MOST_WINDOWS = 100_000  # for trees, which compute the statistics of all windows in each of their rounds
WINDOW = 20  # default rows of windows for a forecast or a life
SHORTEST = 3  # the least, for short recordings
TRIES = 8  # attempts to read the data, each of which may correct a mistake in the draft
FILES = {"cmapss": r"(train|test|rul)_fd00[1-4]\.txt", "tep": r"d\d\d(_te)?\.dat"}  # file names of published data sets
BUNDLED = ("cmapss", "skab", "tep")  # data sets with a bundled experiment
LISTED = 20  # files of a folder examined for a published data set


def windows_note(length: int) -> str:
    """Return the sentence on windows of a number of rows."""
    return f"predictions are made from windows of {length} rows; other ones: --set data.window.length=N"


def with_candidates(lack: NoColumnError, data: Mapping[str, Any]) -> NoColumnError:
    """Return the error for a missing column of devices or labels, with candidates for it."""
    task = _task(data)
    source = expanded(data["path"])
    files = [file.path for file in files_in(source)] if source.is_dir() else [lack.path]
    able = guess.candidates(files, data, lack.role)
    known = {*lack.names, *data.get("columns", {})}
    unlabelled = lack.role == "device" and "label" not in known and task == CLASSIFICATION
    unlabelled = unlabelled and not data.get("remaining")
    labels = guess.candidates(files, data, "label") if unlabelled else None
    return NoColumnError(
        lack.path,
        lack.name,
        lack.role,
        lack.names,
        candidates=able,
        labels=labels,
        ordered=bool(task.ahead) or not task.labelled,
        hint=lack.hint,
    )


def guess_roles(data: dict[str, Any], path: Path) -> list[str]:
    """Set the probable roles of a table's columns, and return sentences on them."""
    table = path
    folder = path.is_dir()
    if folder:
        every = files_in(path)
        files = [file for file in every if file.path.name.casefold().endswith(tables(every))]
        if not files:
            return []
        table = files[0].path
    elif not path.is_file() or (data.get("format") or own.format_of(path)) != "table":
        return []
    above = [] if "skip" in data else preamble(table, data)
    if above:
        data["skip"] = len(above) if (*above,) == skipped(len(above)) else above
    if folder:
        table = max(files[:LISTED], key=lambda file: len(head(file.path, 1, data).names)).path  # most columns
        proposals.check_levels(files, data)
    labelled = not folder or len(files[0].folders) < 2 or "label" not in data.get("layout", "label")
    needed = ("label",) if labelled and not data.get("remaining") and _task(data).labelled else ()
    if not folder or data.get("device", "folder" if files[0].folders else "column") == "column":
        needed = ("device", *needed)
    try:
        guess_of = guess.guess(table, data, needed)
    except SettingError as error:  # its message names the file, but not its folder
        place = next(file.name.removesuffix(table.name) for file in files if file.path == table) if folder else ""
        raise SettingError(f"{place}{error}") from error
    sentences = [f"rows {', '.join(map(str, above))} are no data (titles or units) and are skipped"] if above else []
    guessed = guess_of.settings
    endings = guess.endings(table, data, guessed) if data.get("remaining") and "ended" not in data else []
    sentences += guess.words(guess_of, data) + endings
    if (task := _task(data)).kind == "reconstruction" or task.ahead:
        sentences += guess.marks(table, data, guessed, judged=not task.ahead)
    data.update(guessed)
    return sentences


def mend(document: dict[str, Any], notes: list[str], *, timed: bool, coded: Collection[str]) -> str:
    """Correct a draft for empty sensors, missing values and the split; return a comment on missing values.

    Args:
        document, notes: the draft and its notes.
        timed, coded: whether the time is given, and the columns whose coding is.
    """
    data = document["data"]
    note = ""
    free = (_task(data).ahead > 0 or (data.get("remaining") and "bins" not in data)) and "window" not in data
    if free:
        data["window"] = {"length": WINDOW, "step": 1}
    for _ in range(TRIES):
        experiment: Experiment = config.from_table(document)
        try:
            dataset = load_data(experiment)
            if free and not _task(data).ahead:
                notes.append(windows_note(data["window"]["length"]))
                if (step := math.ceil(len(dataset.y) / MOST_WINDOWS)) > 1:
                    data["window"]["step"] = step
                    notes[-1] += f"; one begins every {step} rows, for at most {MOST_WINDOWS:,} in training"
            return note
        except TimesError as error:
            if timed or not _untimed(data, notes):
                if (run := guess.separating(expanded(data["path"]), data)) is None:
                    raise
                raise SettingError(f"{error} '{run}' does: --set 'data.columns.run={run}'.") from error
        except ShortRecordingsError as short:
            if not free or short.longest <= SHORTEST:
                raise
            data["window"]["length"] = max(SHORTEST, short.longest // 2)
        except EmptySensorsError as empty:
            if experiment.data.columns.values:
                raise
            ignore(data, empty.columns)
            names = ", ".join(map(repr, empty.columns))
            notes.append(f"{names} {'hold' if len(empty.columns) > 1 else 'holds'} no value in any row and is ignored")
        except UnlistedTextError as third:  # in rows or tables beyond those that the guess examined
            if third.name in coded:
                raise
            data["columns"]["categories"][third.name] = "one-hot"
            notes[:] = [text for text in notes if not text.startswith(f"'{third.name}' holds a few texts")]
            notes.append(f"'{third.name}' holds a few texts: a sensor for each (one-hot)")
        except MeasureError as measure:
            if "task" in data:
                raise
            data["task"] = {"kind": "regression"}
            notes.append(_number_note(measure))
        except SmallDevicesError:
            if "split" in data or "test" in data or not data.get("remaining"):
                raise
            data["split"] = {"kind": "device"}
            notes.append(
                "split: by device (whole devices, excluded from training), because by time the ends of short "
                "recordings have no test sample"
            )
        except OneClassError:
            if "split" in data or "test" in data or not _resplit(document, notes):
                raise
        except MissingValuesError as holes:
            data["missing"] = "previous" if holes.carried else "mean"
            note = f"{holes.count:,} missing; or " + ('"mean", "drop"' if holes.carried else '"drop"')
    return note


def _number_note(measure: MeasureError) -> str:
    """Return the note on a label that is drafted as a number, with the setting for classes of its ranges."""
    several = str(measure).partition("'data.bins=")[2].partition("'")[0] or "[EDGE, …]"
    return f"the label is a number and is predicted as a number; for classes of its ranges: --set 'data.bins={several}'"


def ignore(data: dict[str, Any], names: Sequence[str]) -> None:
    """Add columns to those left out."""
    columns = data.setdefault("columns", {})
    columns["ignore"] = [*columns.get("ignore", ()), *names]


def _untimed(data: dict[str, Any], notes: list[str]) -> bool:
    """Leave out a column of dates that was guessed to be the time; return False if its name is clear."""
    name = data.get("columns", {}).get("time", "")
    if not name or is_called_time(name):
        return False
    ignore(data, [name])
    data["columns"]["time"] = ""
    notes[:] = [note for note in notes if note != f"'{name}' is taken for the time"]
    notes.append(
        f"'{name}' holds times, but rows are not in their order, therefore it is left out; if it is the time: --set "
        f"'data.columns.time={name}' --set data.sort=true"
    )
    return True


def _resplit(document: dict[str, Any], notes: list[str]) -> bool:
    """Set a split whose training rows have several classes; return whether there is one."""
    data = document["data"]
    several = proposals.recordings(data, expanded(data["path"]))
    for kind in ("run", "device", "stratified")[0 if several else 1 :]:
        split, dataset = proposals.drawn(kind, reader(document))
        if dataset is not None:
            data["split"] = split
            notes.append(f"{proposals.words(split)}, because by time the training rows have one class")
            return True
    return False


def reader(document: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Dataset]:
    """Return a function from a split to the data of an experiment with it."""

    def read(split: Mapping[str, Any]) -> Dataset:
        return load_data(config.from_table({**document, "data": document["data"] | {"split": dict(split)}}))

    return read


def task_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given task as a table."""
    given = data.get("task")
    return dict(given) if isinstance(given, Mapping) else {"kind": given}


def _task(data: Mapping[str, Any]) -> Task:
    """Return the task of the given kind; a classification by default."""
    kind = task_table(data).get("kind") or "classification"
    return TASKS[kind]() if kind in TASKS else CLASSIFICATION


def check_published(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse a published data set, given by its name, file or folder, because experiments read it by name.

    A file with the same name but with names of columns, in its first row or in ``[data] header``, is accepted.
    """
    name = path.name if path.name in SOURCES and not path.exists() else None
    inside = [path, *islice(path.iterdir(), LISTED)] if path.is_dir() else [path]
    for published, pattern in FILES.items():
        if any(re.fullmatch(pattern, unpacked(file.name)) for file in inside):
            name = published
    if name is None or "header" in data or (path.is_file() and are_names(head(path, 1, {}).first)):
        return
    own = f"fedfloor run {name}, or " if name in BUNDLED else ""
    raise SettingError(
        f"{path.name}: '{name}' is a published data set, which experiments read by name: {own}[data] name = "
        f'"{name}". Put its files into the folder {name} in $FEDFLOOR_DATA, or in FOLDER with --set data.root=FOLDER.'
    )
