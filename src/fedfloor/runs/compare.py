"""Several methods and seeds on equal terms: one folder, one run in it for each pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from fedfloor.config import method_of
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment, MethodSettings
from fedfloor.runs import launch
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, Orders


@dataclass(frozen=True)
class Task:
    """One run of a comparison."""

    method: str
    seed: int
    experiment: Experiment
    out: Path


def tasks(experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path) -> list[Task]:
    """Return the runs of a comparison, seed by seed, so that a comparison that is stopped is fair to all methods.

    Raises:
        SettingError: an unknown method or setting, or a method or seed given twice.
    """
    for name, given in (("methods", methods), ("seeds", seeds)):
        if not given or len(set(given)) < len(given):
            raise SettingError(f"--{name} {','.join(map(str, given))}: give each once, and at least one.")
    found = []
    for seed in seeds:
        for method in methods:
            one = replace(experiment, seed=seed, method=MethodSettings(method))
            method_of(one)
            found.append(Task(method, seed, one, out / f"{method.replace(':', '.')}-seed{seed}"))
    return found


def carry_out(
    work: Sequence[Task],
    limits: Limits,
    ranks: int,
    follow: Callable[[Task], AbstractContextManager[Callable[[Line], None]]],
    *,
    resume: bool,
) -> Iterator[tuple[Task, str]]:
    """Do the runs one after the other and yield each with why it stopped; one park serves all methods of a seed.

    Args:
        work: the runs.
        limits: when each stops early.
        ranks: processes of each.
        follow: entered when a run begins; gives what is called with its ledger lines.
        resume: go on with runs that are there; of finished ones no round is done again.

    Raises:
        SettingError: a run's folder is there already and this is no resume.
        RunError: a run failed.
    """
    if launch.under_torchrun():
        raise SettingError("a comparison starts its own processes: run it without torchrun, with --ranks.")
    for task in work:
        if (task.out / "experiment.toml").exists() and not resume:
            raise SettingError(
                f"{task.out} already holds a run. Go on with --resume, or give another folder with --out."
            )
    park, seed = None, None
    for task in work:
        if park is None or seed != task.seed:
            park, seed = launch.build_park(task.experiment), task.seed
        orders = Orders(task.out, resume=(task.out / "experiment.toml").exists(), limits=limits)
        with follow(task) as report:
            why = launch.start(task.experiment, orders, ranks, report, park)
        yield task, why
