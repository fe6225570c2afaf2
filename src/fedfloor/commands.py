"""What several commands share: reading what was typed, comparing, summing up."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fedfloor.errors import RunError, SettingError, unknown
from fedfloor.runs.orders import Limits

if TYPE_CHECKING:
    from fedfloor.experiment import Experiment
    from fedfloor.runs.compare import Task
    from fedfloor.terminal import Follow

RESUME = "Go on with: the same command and --resume"


def bundled() -> dict[str, Path]:
    """Return the experiment files that come with the package, by name."""
    here = Path(__file__).parent
    folder = here / "experiments" if (here / "experiments").is_dir() else here.parents[1] / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def experiment(file: str, changes: Sequence[str] | None) -> Experiment:
    """Read an experiment by its path or by a bundled one's name."""
    from fedfloor import config

    return config.read(_path(file), changes or [])


def _path(file: str) -> Path:
    path, known = Path(file), bundled()
    if path.is_file() or path.suffix or len(path.parts) > 1 or (path.exists() and file not in known):
        return path
    if file not in known:
        raise unknown("experiment", file, known)
    return known[file]


def limits(stop_after: int | None, until: str | None) -> Limits:
    """Read ``--stop-after`` and ``--until``."""
    if until is None:
        return Limits(stop_after)
    what, _, value = until.partition("=")
    if what != "accuracy":
        raise unknown("--until", what, ["accuracy"])
    try:
        return Limits(stop_after, float(value))
    except ValueError:
        raise SettingError(f"--until {until}: give a number, such as accuracy=0.8.") from None


def numbers(name: str, text: str) -> list[int]:
    """Read whole numbers separated by commas."""
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise SettingError(f"--{name} {text}: whole numbers separated by commas, such as 0,1,2.") from None


def ranks(given: int | None) -> int:
    """Return the number of ranks wanted, and say so where they are more than there are cores."""
    from fedfloor.runs.api import cores, default_ranks

    if given is not None and given > cores():
        print(f"note: {given} ranks on {cores()} cores: they will take turns.", file=sys.stderr)
    return default_ranks() if given is None else given


def summary(folders: Sequence[Path], out: Path, target: float | None, *, as_json: bool) -> None:
    """Write the report of runs to ``out`` and print their table, and where methods share seeds, their differences."""
    from fedfloor.report import ledger, page, table
    from fedfloor.terminal import show

    try:
        where = page.write(folders, out, target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (RunError if full else SettingError)(
            f"the report {out} could not be written: {error.strerror or error}. The runs are untouched: "
            "fedfloor report DIR --out FILE writes it elsewhere."
        ) from error
    runs = ledger.collect(folders)
    rows, differences = table.summary(runs, target), table.paired(runs)
    if as_json:
        show(rows, as_json=True, report=str(where), paired=differences)
    else:
        show([row | {"reached": row["reached"] if target else None} for row in rows], as_json=False)
        if differences:
            show(differences, as_json=False, title="differences in accuracy, seed by seed")
        print(f"report: {where}")


def followed(stop: Limits) -> Callable[[Task], AbstractContextManager[Follow]]:
    """Return what shows the progress of one run of several."""
    from fedfloor.terminal import progress

    def follow(task: Task) -> AbstractContextManager[Follow]:
        return progress(task.label, min(task.experiment.rounds, stop.stop_after or task.experiment.rounds))

    return follow


def compare(work: Sequence[Task], out: Path, stop: Limits, size: int, *, resume: bool, as_json: bool) -> bool:
    """Carry out the runs of a comparison, show their progress, sum up; return whether all were done.

    Args:
        work: the runs.
        out: the comparison's folder.
        stop: when each run stops early.
        size: ranks.
        resume: go on with runs that are there.
        as_json: print JSON.
    """
    from fedfloor.runs.compare import carry_out

    done: list[Path] = []
    why = "finished"
    for task, why in carry_out(work, stop, size, followed(stop), resume=resume):
        done.append(task.out)
        if why == "interrupted":
            break
    summary(done, out / "report.html", stop.accuracy, as_json=as_json)
    return why != "interrupted"
