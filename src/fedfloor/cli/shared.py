"""Code shared by commands: arguments, comparisons and summaries."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import typer

from fedfloor.api.source import bundled, experiment_file
from fedfloor.base.errors import DivergedError, RunError, SettingError, unknown
from fedfloor.base.outside import asking
from fedfloor.cli.options import within
from fedfloor.runs.orders import Limits
from fedfloor.runs.terminal import both, progress, say, show

if TYPE_CHECKING:
    from fedfloor.experiment import Experiment
    from fedfloor.report.ledger import RecordedRun
    from fedfloor.report.table import Budget, Row
    from fedfloor.runs.compare import PlannedRun
    from fedfloor.runs.ledger import Follow

FULL = (errno.ENOSPC, errno.EDQUOT)
RESUME = "Continue with the same command and --resume"


@contextmanager
def needing(noun: str, extra: str, packages: str = "the packages of deployment") -> Iterator[None]:
    """Convert the error of a missing package in the body to one with instructions to install it.

    Raises:
        SettingError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as absent:
        raise SettingError(
            f"{noun} needs {packages}: pip install 'fedfloor[{extra}]' ({absent.name} is missing)."
        ) from absent


def termination() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set.

    A thread of its own sets it. Python's handlers run in the main thread alone, and not while this waits without end
    for the event, if the system delivers the signal to another thread.
    """
    ended = threading.Event()
    numbers = {signal.SIGTERM, signal.SIGINT}
    incoming, arriving = os.pipe()
    os.set_blocking(arriving, False)
    signal.set_wakeup_fd(arriving, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def watch() -> None:
        while not numbers & set(os.read(incoming, 64)):
            pass
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


def note(text: str) -> None:
    """Print a line on standard error immediately."""
    say(text, aside=True)


def save(option: str, path: Path | str, text: str) -> None:
    """Write a text to the file given by an option.

    Raises:
        SettingError: the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{option} {path}: {error.strerror or error}.") from error


def names(methods: str | None, experiment: Experiment) -> list[str]:
    """Return the methods of ``--methods``, by default the experiment's."""
    return [experiment.method.name] if methods is None else [name.strip() for name in methods.split(",")]


def experiment(
    file: str, changes: Sequence[str] | None, *, own: bool = True, methods: str | None = None
) -> Experiment:  # fmt: skip
    """Read an experiment by its path or its bundled name.

    Imports of code that it names are permitted as by :func:`ask_for_code`; names in ``changes`` and ``methods``, the
    text of ``--methods``, are the user's own.

    Raises:
        SettingError: a mistake in the experiment; or without a terminal, code of its own and not ``own``.
    """
    from fedfloor import config

    ask_for_code(file, [*(changes or []), methods or ""], own=own)
    return config.read(experiment_file(file), changes or [])


def ask_for_code(file: str, changes: Sequence[str] | None = None, *, own: bool) -> None:
    """Let each import of a name of code (``module:Name``) be permitted by ``own``, or by the user at the terminal.

    This holds until the command ends. Permitted imports are printed.

    Args:
        file: the file that names the code, for messages.
        changes: texts that the user typed, in which names are permitted.
    """

    def ask(spec: str) -> None:
        if any(spec in change for change in changes or ()):
            return
        about = f"{file} names code outside fedfloor, '{spec}': its module in {Path.cwd()}, or an installed one, is run"
        if own:
            note(f"{about}.")
        elif not sys.stdin.isatty() or not typer.confirm(f"{about}. Import it?", err=True):
            raise SettingError(f"{about}. If you trust it, give --own-code.")

    context = click.get_current_context(silent=True)
    if context is not None:
        context.with_resource(asking(ask))


def cell_file(file: str) -> Path:
    """Return a cell file by its path or its bundled name."""
    path = Path(file)
    known = bundled("experiments/cells")
    if path.is_file() or path.suffix or len(path.parts) > 1:
        return path
    if file not in known:
        raise unknown("cell", file, {*known, *(beside.name for beside in Path().glob("*.toml"))})
    return known[file]


def numbers(name: str, text: str) -> list[int]:
    """Read whole numbers separated by commas."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise SettingError(f"--{name} {text}: must be whole numbers separated by commas, such as 0,1,2.") from None


def ranks(given: int | None, experiment: Experiment | None = None) -> int:
    """Return the number of ranks, by default the experiment's; print a note if it exceeds the number of cores."""
    from fedfloor.base.machine import cores
    from fedfloor.runs.launch import default_ranks

    if given is not None and given > cores():
        say(f"note: {given} ranks on {cores()} cores: ranks will share cores.", aside=True)
    return default_ranks(experiment.engine if experiment else None) if given is None else given


def summary(
    folders: Sequence[Path], out: Path, target: float | None, *, as_json: bool, at: Budget | None = None,
    against: str | None = None,
) -> None:  # fmt: skip
    """Write the report of runs to ``out``; print their table, and the differences of methods with common seeds."""
    from fedfloor.report import front, ledger, page, table
    from fedfloor.report.groups import groups
    from fedfloor.report.notes import gaps
    from fedfloor.report.remarks import remarks

    folders = ledger.with_references(folders)
    try:
        where = page.write(folders, out, target, at, against)
    except OSError as error:
        raise (RunError if error.errno in FULL else SettingError)(
            f"the report {out} could not be written: {error.strerror or error}. The runs are unaffected. To write it "
            "elsewhere: fedfloor report DIR --out FILE"
        ) from error
    runs = ledger.collect(folders)
    differences = table.paired(runs, against=against)
    rows = table.summary(runs, target)
    notes = [*gaps(groups(runs), ledger.without_rounds(folders)), *remarks(groups(runs))]
    more: dict[str, Any] = {} if at is None else {"at": _at(runs, at, against)}
    if as_json:
        show(rows, as_json=True, report=str(where), paired=differences, remarks=notes, **more)
        return
    show([_shown(row, target) for row in rows], as_json=False)
    _show_costs(rows)
    _show_pairs(runs, differences, f"differences in {groups(runs).headline.name}, seed by seed")
    if at is not None:
        reached = [
            row
            | {"in_rounds": ["–" if n is None else n for n in row["in_rounds"]], "ended": row["ended"] or None}
            | {"half_width": None}
            for row in more["at"]["rows"]
        ]
        show(reached, as_json=False, title=f"after {at.words}")
        _show_pairs(runs, more["at"]["paired"], f"differences after {at.words}, seed by seed")
    for text in filter(None, (*notes, front.answer(groups(runs)))):
        say(text)
    say(f"report: {where}")


def _at(runs: Sequence[RecordedRun], budget: Budget, against: str | None) -> Row:
    from fedfloor.report.table import at, paired_at

    pairs = paired_at(runs, budget, against)
    return {"budget": budget.kind, "most": budget.most, "rows": at(runs, budget), "paired": pairs}


def _shown(row: Row, target: float | None) -> Row:
    from fedfloor.report.words import diverged

    costs = {name: None for name in row if name.startswith(("seconds", "bytes", "joules"))}  # in a separate table
    others = {"reached": row["reached"] if target else None, "diverged": diverged(row), "half_width": None}
    return row | costs | others


def _show_costs(rows: Sequence[Row]) -> None:
    """Print the cost up to the target and of all rounds, if rounds have a price."""
    from fedfloor.report.numbers import COSTS, NAMES, amount

    kinds = [kind for kind in COSTS if any(row[kind] for row in rows)]
    keys = [(kind, rest) for rest in ("_to_target", "") for kind in kinds]
    keys = [(kind, rest) for kind, rest in keys if any(row[kind + rest] is not None for row in rows)]
    if kinds:
        costs = [{NAMES[kind] + rest: amount(kind, row[kind + rest]) for kind, rest in keys} for row in rows]
        named = [{"method": row["method"]} | cost for row, cost in zip(rows, costs, strict=True)]
        show(named, as_json=False, title="cost on the network")


def _show_pairs(runs: Sequence[RecordedRun], pairs: Sequence[Row], title: str) -> None:
    from fedfloor.report.table import shown
    from fedfloor.report.words import fewer

    listed = shown(runs, pairs)
    if listed:
        few = f"; {note}" if (note := fewer(len(pairs), listed, str)) else ""
        empty = {"half_width": None, "seeded": None}
        rows = [row | {"left_out": row["left_out"] or None} | empty for row in listed]
        show(rows, as_json=False, title=title + few)


def followed(stop: Limits, track: Sequence[str] = ()) -> Callable[[PlannedRun], AbstractContextManager[Follow]]:
    """Return the function that shows the progress of one of several runs and sends its lines to sinks."""
    from fedfloor.tracking import sinks, tracker

    sinks.check(track)

    @contextmanager
    def follow(run: PlannedRun) -> Iterator[Follow]:
        last = min(run.experiment.rounds, stop.stop_after or run.experiment.rounds)
        with tracker.follow(run.out, track) as record, progress(run.label, last) as show:
            yield both(show, record)

    return follow


def compare(
    work: Sequence[PlannedRun], out: Path, stop: Limits, size: int, *, resume: bool, as_json: bool,
    track: Sequence[str] = (), at: Budget | None = None, against: str | None = None,
) -> bool:  # fmt: skip
    """Carry out the runs of a comparison with their progress and a summary; return whether all are complete.

    Raises:
        SettingError: a run's folder exists already and ``resume`` is false, or a budget needs a network.
        DivergedError: runs diverged; the others were carried out and summarised.
        RunError: a run failed for another reason.
    """
    from fedfloor.runs import comparison_file
    from fedfloor.runs.compare import carry_out, check_folder
    from fedfloor.runs.forecast import warn_of_unequal_passes
    from fedfloor.runs.results import round_of

    check_folder(out)
    stop = within(stop, at)
    ends, whole = carry_out(
        work, stop, size, followed(stop, track), resume=resume, tolerant=True, keep=True, begin=warn_of_unequal_passes
    )
    comparison_file.keep(work[0].experiment, out)
    target = stop.target(work[0].experiment.evaluate.figure)
    summary(list(ends), out / "report.html", target, as_json=as_json, at=at, against=against)
    gone = [f"{run.label} in round {round_of(run.out)}" for run in work if ends.get(run.out) == "diverged"]
    if gone and whole:
        raise DivergedError(
            f"{len(gone)} of {len(work)} runs diverged: {', '.join(gone)}. The methods of these runs have no "
            "mean; earlier rounds are in the runs' folders. Try smaller learning rates, such as with fedfloor sweep."
        )
    return whole


def check_references(setup: Experiment, out: Path) -> None:
    """Refuse ``run --references``, before the run, if it is impossible.

    Raises:
        SettingError: the method itself is a reference, or the run's processes were started by torchrun.
    """
    from fedfloor.runs.launch import under_torchrun
    from fedfloor.runs.references import of_run

    of_run(setup, out)
    if under_torchrun():
        raise SettingError("run --references starts its own processes: run it without torchrun, with --ranks.")


def references(setup: Experiment, out: Path, last: int, size: int | None, *, only_plain: bool) -> bool:
    """Carry out or continue a run's references, or ``only_plain`` ones; return whether all are complete."""
    from fedfloor.runs.compare import carry_out
    from fedfloor.runs.references import of_run

    stop = Limits(stop_after=last)
    work = of_run(setup, out, last, only_plain=only_plain)
    return carry_out(work, stop, ranks(size, setup), followed(stop), resume=True, tolerant=True, keep=True)[1]
