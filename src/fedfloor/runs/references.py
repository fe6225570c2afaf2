"""References beside methods: local training only, training on pooled data, scikit-learn on the pooled table; of
forecasts also values that repeat.

They are runs like others, with the same park, first model and test samples, so that resuming, tables and reports need
nothing of their own. What they train follows a comparison's first method: its rates, momentum and mini-batches, and as
many passes as its first round makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedfloor.config import combined
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment, FaultSettings, MethodSettings
from fedfloor.names import (
    LOCAL_ONLY,
    PERSISTENCE,
    POOLED,
    REFERENCES,
    REFERENCES_FOLDER,
    SCIKIT_LEARN,
    SEASONAL,
)
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.park import Park
from fedfloor.parts.decision import DecideSettings
from fedfloor.parts.weighting import PerSample
from fedfloor.parts.work import DEFAULTS, WorkSettings
from fedfloor.plan import walk
from fedfloor.runs import forecast, launch, roundless
from fedfloor.runs.compare import PlannedRun
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, Orders

STARTS = {SCIKIT_LEARN: roundless.start_boosting, PERSISTENCE: roundless.start_naive, SEASONAL: roundless.start_naive}


def beside(
    work: Sequence[PlannedRun], experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path,
    limits: Limits,
) -> list[PlannedRun]:  # fmt: skip
    """Return a comparison's runs with the references', seed by seed.

    References stop by rounds alone (``--stop-after``): other limits are those of methods that cost something.

    Args:
        work: the runs of methods.
        experiment: what is run.
        methods: those that are compared; the first one is followed.
        seeds: of both.
        out: the comparison's folder.
        limits: when the methods' runs stop.

    Raises:
        SettingError: a method has a reference's name.
    """
    for name in REFERENCES:
        if name in methods or (name in experiment.methods and name != SCIKIT_LEARN):
            raise SettingError(
                f"method '{name}' with --references, which have one of this name: leave one of the two out."
            )
    if not combined(replace(experiment, method=replace(experiment.method, name=methods[0]))).method.needs.scopes:
        raise SettingError(
            f"method '{methods[0]}' trains nothing, so that there is nothing for --references to follow. Run it "
            "without them, or train a network: --set method.name=fedavg --set model.name=ae-dense --set rounds=20."
        )
    runs, short = list(work), Limits(stop_after=limits.stop_after)
    for seed in seeds:
        original = replace(experiment, seed=seed, method=replace(experiment.method, name=methods[0]))
        for name in (LOCAL_ONLY, POOLED, SCIKIT_LEARN, *experiment.data.asked.repeats):
            start = STARTS.get(name) or partial(_start, original)
            bare = _bare(original, name, {})
            runs.append(PlannedRun(f"{name} seed {seed}", bare, out / f"{name}-seed{seed}", short, start))
    return sorted(runs, key=lambda run: seeds.index(run.experiment.seed))  # those of a seed share a park


def of_run(experiment: Experiment, out: Path, stop_after: int | None = None) -> list[PlannedRun]:
    """Return the references of one run, in its folder.

    Args:
        experiment: the run's.
        out: its folder.
        stop_after: the round to stop after; the schedules stay.

    Raises:
        SettingError: the run is a reference itself.
    """
    limits = Limits(stop_after=stop_after)
    return beside([], experiment, [experiment.method.name], [experiment.seed], out / REFERENCES_FOLDER, limits)


def _bare(experiment: Experiment, name: str, table: dict[str, Any]) -> Experiment:
    """Return an experiment with a reference in the method's place: nothing travels, and nothing is lost."""
    own = dict(experiment.methods.get(name, {})) | table
    method = MethodSettings(name, objective=None if name in STARTS else _loss(experiment))
    return replace(
        experiment, method=method, methods={name: own} if own else {}, network=NetworkSettings(),
        faults=FaultSettings(), deploy=replace(experiment.deploy, simulate=False), decide=DecideSettings(),
    )  # fmt: skip


def _loss(experiment: Experiment) -> str | Mapping[str, Any] | None:
    """Return the objective where it is a loss of samples, such as one that weighs classes, and nothing federated."""
    if not isinstance(combined(experiment).parts.objective, PerSample):
        return None
    own: str | Mapping[str, Any] | None = experiment.methods.get(experiment.method.name, {}).get("objective")
    return own or experiment.method.objective


def _start(
    original: Experiment, bare: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park,
    interrupted: Callable[[], bool],
) -> str:  # fmt: skip
    local, pooled = work(original, park)
    wanted, base = (local, {}) if bare.method.name == LOCAL_ONLY else (pooled, {"method": "centralized"})
    table = {**base, "work": {key: value for key, value in asdict(wanted).items() if value is not None}}
    return launch.start(_bare(original, bare.method.name, table), orders, ranks, report, park, interrupted)


def work(experiment: Experiment, park: Park) -> tuple[WorkSettings, WorkSettings]:
    """Return what a round of local training and one of pooled training do, beside the experiment's method.

    Locally every device makes the passes (or steps) that the method's first round makes on a device it visits, on
    average over these. Pooled training sees as many samples in a round as that method: the passes times the share of
    devices that take part, over all data; as steps where that is no whole number of passes.

    Raises:
        SettingError: something in the experiment does not fit.
    """
    base = getattr(combined(experiment).method, "work", experiment.work.over(DEFAULTS))
    visits = list(walk.visited(forecast.first_round(experiment, park)))
    whole, sizes = int(park.holdings.sum()), park.holdings.tolist()
    if not visits:
        raise SettingError(
            f"method '{experiment.method.name}' trains nothing in its first round, so that there is nothing for "
            "--references to follow. Name another method first."
        )
    epochs, steps, seen = Counter[int](), Counter[int](), 0
    for visit, times in visits:
        at = visit.site.index if visit.site.kind == "device" else -1
        held = whole if at < 0 else sizes[at]
        epochs[at] += times * (visit.work.epochs or 0)
        steps[at] += times * visit.work.batches(held)
        seen += times * round(visit.work.passes(held) * held)
    batch = visits[0][0].work.batch_size
    if any(visit.work.steps is not None for visit, _ in visits):
        local = replace(base, epochs=None, steps=_at_least_one(steps.total() / len(steps)))
        return local, replace(base, epochs=None, steps=_at_least_one(seen / batch))
    passes = epochs.total() / len(epochs)
    local = replace(base, steps=None, epochs=_at_least_one(passes))
    share = 1.0 if -1 in epochs else len(epochs) / park.devices
    if (passes * share).is_integer():
        return local, replace(base, steps=None, epochs=int(passes * share))
    return local, replace(base, epochs=None, steps=_at_least_one(passes * share * whole / batch))


def _at_least_one(number: float) -> int:
    return max(1, round(number))
