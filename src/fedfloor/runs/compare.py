"""Comparisons of several methods and seeds: a folder with one run for each pair."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fedfloor.base.errors import DivergedError, SettingError
from fedfloor.base.names import LOCAL_ONLY
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import asking, checks, launch
from fedfloor.runs.ledger import Follow
from fedfloor.runs.orders import Limits, Orders, interrupts
from fedfloor.runs.parks import warn_of_gaps

UNFIT = re.compile(r'[/\\\0:*?"<>|]')  # characters that cannot be in a folder's name
RUN_FILE = "experiment.toml"  # in each run's folder
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRun:
    """A planned run of a comparison.

    Args:
        start: carries out the run and returns why it stopped, or None if it was skipped; default:
            :func:`fedfloor.runs.launch.start`.
    """

    label: str  # shown while it runs
    experiment: Experiment  # its experiment
    out: Path  # its folder
    limits: Limits | None = None  # its own limits; None: the common ones
    start: Callable[[Experiment, Orders, int, Follow, Park, Callable[[], bool]], str | None] | None = None


def planned_runs(experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path) -> list[PlannedRun]:
    """Return the runs of a comparison, seed by seed, so that an interrupted comparison treats methods equally."""
    each_once("methods", methods)
    each_once("seeds", seeds)
    planned = []
    for seed in seeds:
        for method in methods:
            variant = replace(experiment, seed=seed, method=replace(experiment.method, name=method))
            variant = to_its_end(variant) if method == LOCAL_ONLY else variant
            _ = variant.configured  # checks the method's settings
            planned.append(PlannedRun(f"{method} seed {seed}", variant, out / f"{UNFIT.sub('.', method)}-seed{seed}"))
    return planned


def to_its_end(alone: Experiment) -> Experiment:
    """Return the training of each device alone without patience: devices have no common round that is the best."""
    return replace(alone, evaluate=replace(alone.evaluate, patience=None))


def check_folder(out: Path) -> None:
    """Refuse a folder for several runs that is a run's own, whose report theirs would replace.

    Raises:
        SettingError: the folder holds a run.
    """
    if (out / RUN_FILE).exists():
        raise SettingError(f"--out {out}: this folder holds a run, with its report. Give another folder.")


def check_own_folder(out: Path) -> None:
    """Refuse a folder for one run that holds several, whose report its own would replace.

    Raises:
        SettingError: folders in this one hold runs, which are not the references of a run here.
    """
    if not (out / RUN_FILE).exists() and (held := sorted(out.glob(f"*/{RUN_FILE}"))):
        raise SettingError(
            f"--out {out}: this folder holds several runs, such as {held[0].parent.name}, with their report. Give "
            "another folder."
        )


def each_once(name: str, given: Sequence[object]) -> None:
    """Raise SettingError for an option such as ``--seeds`` whose list is empty or has a duplicate."""
    if not given or len(set(given)) < len(given):
        raise SettingError(
            f"--{name} {','.join(map(str, given))}: give at least one entry, and each only once.", key="repeated-method"
        )


def carry_out(
    work: Sequence[PlannedRun], limits: Limits, ranks: int,
    follow: Callable[[PlannedRun], AbstractContextManager[Follow]], *, resume: bool, tolerant: bool = False,
    keep: bool = False, begin: Callable[[Sequence[PlannedRun], Park], None] | None = None,
) -> tuple[dict[Path, str], bool]:  # fmt: skip
    """Carry out runs one after the other until Ctrl-C; consecutive runs on the same park share it.

    Args:
        limits: conditions for an early stop of runs without limits of their own.
        follow: entered when a run begins; returns a function that is called with its ledger lines.
        tolerant: whether to continue with the next run after divergence; the reason of the end is then ``"diverged"``.
        keep: whether to keep the folder, with a note, of a run that diverges in its first round.
        begin: called with all runs and the first one's park before the first run begins.

    Returns:
        Folder → reason of its run's end, in the order of execution; and whether all runs were completed.
    """
    if launch.under_torchrun():
        raise SettingError("compare and sweep start their own processes: run them without torchrun, with --ranks.")
    for run in work:
        checks.budgets_fit(run.limits or limits, priced=checks.is_priced(run.experiment))
    existing = next((run.out for run in work if _exists(run)), None)
    if existing is not None and not resume:
        raise SettingError(
            f"{existing} already holds a run. Continue it with --resume, or give another --out.", key="exists"
        )
    park: Park | None = None
    built_for: tuple[object, ...] = ()
    ends: dict[Path, str] = {}
    with interrupts() as interrupted:  # Ctrl-C also counts between two runs, and in a run's last round
        for run in work:
            if ends and interrupted():
                return ends, False
            if park is None or ground(run.experiment) != built_for:
                asking.before(run.experiment, resume=resume)
                park = launch.build_park(run.experiment)
                built_for = ground(run.experiment)
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
    return (run.out / RUN_FILE).exists()


def ground(experiment: Experiment) -> tuple[object, ...]:
    """Return all settings that determine a park."""
    held_out = (experiment.evaluate.on, experiment.evaluate.validation)
    return experiment.seed, experiment.data, experiment.park, held_out
