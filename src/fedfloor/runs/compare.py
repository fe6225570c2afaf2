"""Several methods and seeds on equal terms: one folder, one run in it for each pair."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fedfloor.config import combined
from fedfloor.errors import DivergedError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import checks, launch
from fedfloor.runs.ledger import Follow
from fedfloor.runs.orders import Limits, Orders, interrupts
from fedfloor.runs.parks import warn_of_gaps

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRun:
    """One of several runs, before its start.

    Args:
        start: runs it and returns why it stopped, or None if it was left out; by default
            :func:`fedfloor.runs.launch.start`.
    """

    label: str  # names it while it runs
    experiment: Experiment  # the experiment that it runs
    out: Path  # its folder
    limits: Limits | None = None  # its own, in place of those of all runs
    start: Callable[[Experiment, Orders, int, Follow, Park, Callable[[], bool]], str | None] | None = None


def planned_runs(experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path) -> list[PlannedRun]:
    """Return the runs of a comparison, seed by seed, so that a stopped comparison is fair to all methods."""
    each_once("methods", methods)
    each_once("seeds", seeds)
    planned = []
    for seed in seeds:
        for method in methods:
            variant = replace(experiment, seed=seed, method=replace(experiment.method, name=method))
            combined(variant)  # checks the method's settings
            planned.append(PlannedRun(f"{method} seed {seed}", variant, out / f"{method.replace(':', '.')}-seed{seed}"))
    return planned


def each_once(name: str, given: Sequence[object]) -> None:
    """Refuse a list of the command line, such as ``--seeds``, that is empty or repeats an entry."""
    if not given or len(set(given)) < len(given):
        raise SettingError(f"--{name} {','.join(map(str, given))}: give each once, and at least one.")


def carry_out(
    work: Sequence[PlannedRun], limits: Limits, ranks: int,
    follow: Callable[[PlannedRun], AbstractContextManager[Follow]], *, resume: bool, tolerant: bool = False,
    keep: bool = False, begin: Callable[[Sequence[PlannedRun], Park], None] | None = None,
) -> tuple[dict[Path, str], bool]:  # fmt: skip
    """Carry out runs one after the other until all are done, or Ctrl-C; consecutive runs on the same park share it.

    Args:
        limits: when a run without limits of its own stops early.
        follow: entered when a run begins; returns the function that takes its ledger lines.
        tolerant: continue with the next run where training diverges; that run stopped because it ``"diverged"``.
        keep: keep the folder, with a note, also of a run that diverges in its first round.
        begin: called with all runs and the first one's park before any of them begins.

    Returns:
        Folder → why its run stopped, in the order of execution; and whether all runs were done.
    """
    if launch.under_torchrun():
        raise SettingError("compare and sweep start their own processes: run them without torchrun, with --ranks.")
    for run in work:
        checks.budgets_fit(run.limits or limits, priced=checks.is_priced(run.experiment))
    existing = next((run.out for run in work if _exists(run)), None)
    if existing is not None and not resume:
        raise SettingError(f"{existing} already holds a run. Go on with --resume, or give another folder with --out.")
    park: Park | None = None
    built_for: tuple[object, ...] = ()
    ends: dict[Path, str] = {}
    with interrupts() as interrupted:  # also between two runs, and in a run's last round
        for run in work:
            if ends and interrupted():
                return ends, False
            if park is None or ground(run.experiment) != built_for:
                park, built_for = launch.build_park(run.experiment), ground(run.experiment)
                warn_of_gaps(park)
                if begin is not None and not ends:
                    begin(work, park)
            orders = Orders(run.out, resume=_exists(run), limits=run.limits or limits, keep=keep)
            try:
                with follow(run) as report:
                    reason = (run.start or launch.start)(run.experiment, orders, ranks, report, park, interrupted)
                if reason is not None:
                    ends[run.out] = reason
            except DivergedError as error:
                if not tolerant:
                    raise
                log.info("%s: %s", run.label, error)
                ends[run.out] = "diverged"
    return ends, "interrupted" not in ends.values()


def _exists(run: PlannedRun) -> bool:
    return (run.out / "experiment.toml").exists()


def ground(experiment: Experiment) -> tuple[object, ...]:
    """Return all settings that determine a park."""
    held_out = (experiment.evaluate.on, experiment.evaluate.validation)
    return experiment.seed, experiment.data, experiment.park, held_out
