"""What must be set before data can be read: roles of columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.data.files import expanded, own
from fedfloor.data.files.excerpt import Excerpts
from fedfloor.data.files.layout import NoColumnError, are_names
from fedfloor.data.files.rows import unpacked
from fedfloor.data.files.tree import DataFile, files_in, tables
from fedfloor.data.files.wide import check_wide
from fedfloor.data.reading import skipped
from fedfloor.data.sources import SOURCES
from fedfloor.drafting import folders, guess, lives, outcomes
from fedfloor.drafting.candidates import candidates
from fedfloor.drafting.profile import TableProfile
from fedfloor.drafting.sketch import Proposal, changed
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.kinds import TASKS
from fedfloor.tasks.task import Task

MOST_WINDOWS = 100_000  # for trees, which compute the statistics of all windows in each of their rounds
WINDOW = 20  # default rows of windows for a forecast or a life
SHORTEST = 3  # the least, for short recordings
FILES = {"cmapss": r"(train|test|rul)_fd00[1-4]\.txt", "tep": r"d\d\d(_te)?\.dat"}  # file names of published data sets
BUNDLED = ("cmapss", "skab", "tep")  # data sets with a bundled experiment
LISTED = 20  # files of a folder examined for a published data set


def windows_note(length: int) -> str:
    """Return the sentence on windows of a number of rows."""
    return f"predictions are made from windows of {length} rows; other ones: --set data.window.length=N"


def with_candidates(lack: NoColumnError, data: Mapping[str, Any], excerpts: Excerpts) -> NoColumnError:
    """Return the error for a missing column of devices or labels, with candidates for it."""
    if lack.role == "device":
        check_wide(lack.path, data, lack.names)
    task = task_of(data)
    source = expanded(data["path"])
    files = [file.path for file in files_in(source)] if source.is_dir() else [lack.path]
    able = candidates(files, data, lack.role, excerpts)
    known = {*lack.names, *data.get("columns", {})}
    unlabelled = lack.role == "device" and "label" not in known and task == CLASSIFICATION
    unlabelled = unlabelled and not data.get("remaining")
    labels = candidates(files, data, "label", excerpts) if unlabelled else None
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


def roles(data: Mapping[str, Any], path: Path, excerpts: Excerpts) -> Proposal:
    """Decide on the rows above a table's header and the probable roles of its columns."""
    files = _tables(data, path)
    if not files:
        return Proposal()
    folder = path.is_dir()
    table = files[0].path
    above = [] if "skip" in data else excerpts.preamble(table, data)
    skip = {"skip": len(above) if (*above,) == skipped(len(above)) else above} if above else {}
    notes = [f"rows {', '.join(map(str, above))} are no data (titles or units) and are skipped"] if above else []
    data = {**data, **skip}
    if folder:
        table = max(files[:LISTED], key=lambda file: len(excerpts.head(file.path, 1, data).names)).path  # most columns
        folders.check_levels(files, data)

    # a life per row has roles of its own
    kind = outcomes.task_table(data).get("kind") or ""
    of_lives = lives.of_tables(files, data, kind, excerpts, folder=folder)
    data = changed(data, of_lives.settings)
    needed = _needed(data, files, folder=folder, lives=bool(of_lives.notes))
    try:
        profile = TableProfile.of(table, data, excerpts)
        guessed = guess.guess(profile, data, needed)
    except SettingError as error:  # its message names the file, but not its folder
        place = next(file.name.removesuffix(table.name) for file in files if file.path == table) if folder else ""
        raise SettingError(f"{place}{error}", key=error.key) from error

    # what ends a recording, and what marks anomalies
    ends = Proposal()
    if data.get("remaining") and "ended" not in data:
        ends = outcomes.endings(profile, data, guessed.settings)
    guessed = replace(guessed, settings=changed(guessed.settings, ends.settings))
    notes = [*notes, *of_lives.notes, *guess.words(guessed, data), *ends.notes]
    marks = Proposal()
    if (task := task_of(data)).kind == "reconstruction" or task.ahead:
        marks = outcomes.marks(profile, data, guessed.settings, judged=not task.ahead)
    settings = skip | dict(of_lives.settings) | changed(guessed.settings, marks.settings)
    return Proposal({f"data.{key}": value for key, value in settings.items()}, [*notes, *marks.notes])


def _tables(data: Mapping[str, Any], path: Path) -> list[DataFile]:
    """Return the tables of a file or folder; [] for data of other kinds."""
    if path.is_dir():
        inside = files_in(path)
        return [file for file in inside if file.path.name.casefold().endswith(tables(inside))]
    if not path.is_file() or (data.get("format") or own.format_of(path)) != "table":
        return []
    return [DataFile(path, path.name, (), None)]


def _needed(data: Mapping[str, Any], files: Sequence[DataFile], *, folder: bool, lives: bool) -> tuple[str, ...]:
    """Return the roles without which the columns of tables have no others: the device, the label, both or none."""
    labelled = not folder or len(files[0].folders) < 2 or "label" not in data.get("layout", "label")
    labelled = labelled and not data.get("remaining") and task_of(data).labelled and not (lives and "ended" not in data)
    needed = ("label",) if labelled else ()
    by_column = not folder or data.get("device", "folder" if files[0].folders else "column") == "column"
    return ("device", *needed) if by_column else needed


def ignored(data: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the columns that are left out, with some more."""
    return [*data.get("columns", {}).get("ignore", ()), *names]


def task_of(data: Mapping[str, Any]) -> Task:
    """Return the task of the given kind; a classification by default."""
    kind = outcomes.task_table(data).get("kind") or "classification"
    return TASKS[kind]() if kind in TASKS else CLASSIFICATION


def check_published(path: Path, data: Mapping[str, Any], excerpts: Excerpts) -> None:
    """Refuse a published data set, given by its name, file or folder, because experiments read it by name.

    A file with the same name but with names of columns, in its first row or in ``[data] header``, is accepted.
    """
    name = path.name if path.name in SOURCES and not path.exists() else None
    inside = [path, *islice(path.iterdir(), LISTED)] if path.is_dir() else [path]
    for published, pattern in FILES.items():
        if any(re.fullmatch(pattern, unpacked(file.name)) for file in inside):
            name = published
    if name is None or "header" in data or (path.is_file() and are_names(excerpts.head(path, 1, {}).first)):
        return
    own = f"fedfloor run {name}, or " if name in BUNDLED else ""
    raise SettingError(
        f"{path.name}: '{name}' is a published data set, which experiments read by name: {own}[data] name = "
        f'"{name}". Put its files into the folder {name} in $FEDFLOOR_DATA, or in FOLDER with --set data.root=FOLDER.'
    )
