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
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, Orders, interrupts
from fedfloor.runs.parks import warn_of_gaps

log = logging.getLogger(__name__)
Follower = Callable[[Line], None]


@dataclass(frozen=True)
class Task:
    """One run of several.

    Args:
        label: names it while it runs.
        experiment: what is run.
        out: its folder.
        limits: its own, in place of those of all runs.
        start: carries it out, in place of :func:`fedfloor.runs.launch.start`; None: it was left out.
    """

    label: str
    experiment: Experiment
    out: Path
    limits: Limits | None = None
    start: Callable[[Experiment, Orders, int, Follower, Park, Callable[[], bool]], str | None] | None = None


def tasks(experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path) -> list[Task]:
    """Return the runs of a comparison, seed by seed, so that a comparison that is stopped is fair to all methods.

    Raises:
        SettingError: an unknown method or setting, or a method or seed given twice.
    """
    each_once("methods", methods)
    each_once("seeds", seeds)
    found = []
    for seed in seeds:
        for method in methods:
            one = replace(experiment, seed=seed, method=replace(experiment.method, name=method))
            combined(one)
            found.append(Task(f"{method} seed {seed}", one, out / f"{method.replace(':', '.')}-seed{seed}"))
    return found


def each_once(name: str, given: Sequence[object]) -> None:
    """Check a list that was typed, such as ``--seeds``.

    Raises:
        SettingError: it is empty, or something is in it twice.
    """
    if not given or len(set(given)) < len(given):
        raise SettingError(f"--{name} {','.join(map(str, given))}: give each once, and at least one.")


def carry_out(
    work: Sequence[Task],
    limits: Limits,
    ranks: int,
    follow: Callable[[Task], AbstractContextManager[Callable[[Line], None]]],
    *,
    resume: bool,
    tolerant: bool = False,
    keep: bool = False,
) -> tuple[dict[Path, str], bool]:
    """Do the runs one after the other until all are done, or Ctrl-C; one park serves runs in a row that share it.

    Args:
        work: the runs; those with the same seed, data and park should stand together, for a park takes time to build.
        limits: when each stops early that has no limits of its own.
        ranks: processes of each.
        follow: entered when a run begins; gives what is called with its ledger lines.
        resume: go on with runs that are there; of finished ones no round is done again.
        tolerant: go on with the next run where training diverges; that one stopped because it ``"diverged"``.
        keep: leave a folder, with a note of it, also of one that diverges in its first round.

    Returns:
        Folder → why its run stopped, in the order of doing; and whether all runs were done.

    Raises:
        SettingError: a run's folder is there already and this is no resume, or a budget is asked for without a network.
        RunError: a run failed.
    """
    if launch.under_torchrun():
        raise SettingError("compare and sweep start their own processes: run them without torchrun, with --ranks.")
    for task in work:
        checks.budgets_fit(task.limits or limits, priced=checks.is_priced(task.experiment))
    if not resume:
        _check_free(work)
    park: Park | None = None
    stands: tuple[object, ...] = ()
    ends: dict[Path, str] = {}
    with interrupts() as interrupted:  # also between two runs, and in a run's last round
        for task in work:
            if ends and interrupted():
                return ends, False
            if park is None or ground(task.experiment) != stands:
                park, stands = launch.build_park(task.experiment), ground(task.experiment)
                warn_of_gaps(park)
            began = (task.out / "experiment.toml").exists()
            orders = Orders(task.out, resume=began, limits=task.limits or limits, keep=keep)
            try:
                with follow(task) as report:
                    begin = task.start or launch.start
                    why = begin(task.experiment, orders, ranks, report, park, interrupted)
                if why is not None:
                    ends[task.out] = why
            except DivergedError as error:
                if not tolerant:
                    raise
                log.info("%s: %s", task.label, error)
                ends[task.out] = "diverged"
    return ends, "interrupted" not in ends.values()


def ground(experiment: Experiment) -> tuple[object, ...]:
    """All that a park is a function of."""
    held_out = (experiment.evaluate.on, experiment.evaluate.validation)
    return experiment.seed, experiment.data, experiment.park, held_out


def _check_free(work: Sequence[Task]) -> None:
    for task in work:
        if (task.out / "experiment.toml").exists():
            raise SettingError(
                f"{task.out} already holds a run. Go on with --resume, or give another folder with --out."
            )
