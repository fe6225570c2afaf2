"""References for methods: local training, training on pooled data, scikit-learn on the pooled table; for forecasts
also persistence, for anomalies the mean of |z|.

They are ordinary runs with the same park, initial model and test samples, so that resuming, tables and reports need no
special cases. Their training follows a comparison's first method: its rates, momentum and mini-batches, and the number
of passes in its first round. Of a method whose model is that of pooled data (``Needs.pooled``), such as boosted trees,
local training is the method itself on each device's samples, and there is no pooled reference.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.errors import SettingError
from fedfloor.base.machine import kept_settings
from fedfloor.base.names import (
    AUTOENCODER,
    LOCAL_ONLY,
    MEAN_ABS_Z,
    POOLED,
    REFERENCES,
    REFERENCES_FOLDER,
    ROUNDLESS,
    SCIKIT_LEARN,
)
from fedfloor.data.dataset import Dataset, Indices, Values
from fedfloor.engine import separate
from fedfloor.engine.calibrate import held_out, quantile, units
from fedfloor.engine.engine import Engine, Samples
from fedfloor.engine.evaluate import Score, score_one, tested_on
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment, FaultSettings, MethodSettings
from fedfloor.methods.chosen import EXCHANGED
from fedfloor.methods.contract import Needs
from fedfloor.methods.references import GradientBoosting
from fedfloor.models.saved import OWN
from fedfloor.network.profile import NetworkSettings
from fedfloor.park.park import Park
from fedfloor.park.stream import Static
from fedfloor.parts.decision import DecideSettings
from fedfloor.parts.mixing.weighting import PerSample
from fedfloor.parts.work import DEFAULTS, WorkSettings
from fedfloor.plan import walk
from fedfloor.runs import folder, forecast, launch, ledger, results
from fedfloor.runs.compare import PlannedRun, each_once, planned_runs, to_its_end
from fedfloor.runs.ledger import Follow
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.parks import build_park
from fedfloor.runs.prepare import engine as engine_of
from fedfloor.runs.prepare import first_state, prepare
from fedfloor.runs.round import Position, step, training
from fedfloor.tasks.figures import RECONSTRUCTION_ERROR, Figure
from fedfloor.tasks.reconstruction import Reconstruction
from fedfloor.tasks.regression import Predicting

if TYPE_CHECKING:
    from fedfloor.tasks.task import Boosted


@kept_settings()
def start(
    experiment: Experiment, orders: Orders, _ranks: int, report: Follow, park: Park, interrupted: Callable[[], bool],
    original: Experiment | None = None,
) -> str | None:  # fmt: skip
    """Compute a reference in one go, unless it is complete; its only ledger line is that of the last round.

    Arguments are those of ``launch.start``, and the experiment that the reference is compared with. Return None if the
    reference does not apply, and log the reason.
    """
    name = experiment.method.name
    out = orders.out
    if why := refusal(experiment, park):
        log.warning("There is no %s reference: %s.", name, why)
        return None
    with folder.owned(out):
        prepare(experiment, orders, park)
        number = min(experiment.rounds, orders.limits.stop_after or experiment.rounds)
        if (out / "evaluation.json").exists() and any(
            line.round == number for line in ledger.read(out / "ledger.jsonl")
        ):
            return "finished"
        ledger.cut(out / "ledger.jsonl", None)
        began = time.perf_counter()
        result: Score | None
        if original is not None and name == LOCAL_ONLY:
            result = _alone(original, number, out / "memory", park, interrupted)
        else:
            engine, _ = engine_of(experiment, experiment.configured, park, Alone(), DeviceMemory(None))
            result = {SCIKIT_LEARN: _boosted, MEAN_ABS_Z: _deviating}.get(name, _repeated)(engine, experiment)
        if result is None:
            return "interrupted"
        line = ledger.line(number, result, (), "", time.perf_counter() - began, {})
        drawn = results.seeded(original or experiment, park.dataset)
        sums = original is not None and original.configured.needs.sums
        over = {"over": True} if number < experiment.rounds and (name in ROUNDLESS or sums) else {}
        results.write_evaluation(out, experiment, number, result, {"seeded": drawn} | over)
        ledger.append(out / "ledger.jsonl", line)
        report(line)
    return "finished"


def scored(engine: Engine, out: Tensor, headline: Figure) -> Score:
    """Return the metrics of outputs for all test samples, [n, outputs] like a network's; intervals promise nothing."""
    task = engine.task
    if isinstance(task, Predicting) and task.calibrates:
        task = replace(task, coverage=None)  # type: ignore[type-var]
        engine = tested_on(engine, replace(engine.park, dataset=replace(engine.park.dataset, task=task)))
    samples = engine.wrap(*engine.park.test())
    out = out.to(samples.y.device)
    classes = engine.park.dataset.classes
    scores = task.scores(out, samples.y, headline.scored(classes)).float().cpu().numpy()
    loss = float(task.losses(out, samples.y, "mean"))
    losses = task.losses(out, samples.y).float().cpu().numpy()
    return score_one(engine, loss, task.predicted(out).cpu().numpy(), scores, headline, losses)


log = logging.getLogger(__name__)

PIECE = 1 << 14  # samples converted into rows of a table at a time


def refusal(experiment: Experiment, park: Park) -> str:
    """Return the reason why there is no reference that is computed in one go; "" if there is one."""
    data = park.dataset
    if experiment.method.name == LOCAL_ONLY:
        return ""
    if experiment.method.name == POOLED:
        return "the method makes the same model of pooled data, up to rounding"
    if experiment.method.name == MEAN_ABS_Z:
        sensors = data.inputs.kind == "table" and experiment.data.normalise != "unit"
        return "" if sensors else "it is for sensors that are normalised (data.normalise)"
    if experiment.method.name != SCIKIT_LEARN:
        season = data.task.repeats[experiment.method.name]
        length = data.shape[-1]
        longer = f"a season of {season} rows (data.task.season) is longer than the window of {length} rows"
        return f"{longer} (data.window.length)" if season > length else ""
    if len(data.shape) > 2:
        return "the data are pictures, but it needs tables of numbers"
    if not isinstance(experiment.data.stream, Static):
        return "devices have a stream, which is not a single table (data.stream)"
    return data.task.unboosted(0 if data.target_test is None else data.target_test.shape[1])


def _boosted(engine: Engine, experiment: Experiment) -> Score:
    model = fitted(engine, cast(GradientBoosting, experiment.configured.method))
    rows = table(engine.wrap(*engine.park.test()))
    return scored(engine, torch.from_numpy(model(rows)), experiment.evaluate.figure)


def _deviating(engine: Engine, experiment: Experiment) -> Score:
    """Return the score of residuals √|z|, whose mean square is the mean of |z|."""

    def residuals(rows: Indices | None, park: Park) -> Tensor:
        return engine.wrap(*park.test(rows)).values(slice(None)).abs().sqrt().flatten(1)

    task = cast(Reconstruction, engine.task)
    held = held_out(engine.park)
    normal = np.flatnonzero(held.dataset.y_test == 0)
    away = task.errors(residuals(normal, held)).double().cpu().numpy()
    threshold = quantile([away], task.share, units=units(task, held, normal))[0]
    known = replace(engine.park, dataset=replace(engine.park.dataset, task=task.calibrated((threshold,))))
    return scored(tested_on(engine, known), residuals(None, known), experiment.evaluate.figure)


def table(samples: Samples) -> NDArray[np.float32]:
    """Return samples as rows [n, columns]: values of sensors, or five statistics of each sensor's window."""
    rows = [samples.values(slice(first, first + PIECE)) for first in range(0, len(samples), PIECE)]
    return np.concatenate([columns(chunk.cpu().numpy()) for chunk in rows])


def columns(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return [n, C] unchanged, and windows [n, C, L] as mean, deviation, minimum, maximum and last value, [n, 5·C].

    >>> columns(np.array([[[1.0, 3.0]]]))
    array([[2., 1., 1., 3., 3.]], dtype=float32)
    """
    if x.ndim == 2:
        return x.astype(np.float32)
    parts = (x.mean(2), x.std(2), x.min(2), x.max(2), x[:, :, -1])
    return np.concatenate(parts, axis=1).astype(np.float32)


def fitted(engine: Engine, method: GradientBoosting) -> Boosted:
    """Return gradient boosting fitted to all devices' training samples, with a network's outputs."""
    samples = engine.samples(-1)
    dataset = engine.park.dataset
    settings = {
        "max_iter": method.iterations, "learning_rate": method.rate, "max_leaf_nodes": method.leaves,
        "random_state": engine.seed,
    }  # fmt: skip
    return engine.task.boosted(table(samples), samples.y.cpu().numpy(), len(dataset.classes), settings)


def _alone(original: Experiment, rounds: int, kept: Path, park: Park, interrupted: Callable[[], bool]) -> Score | None:
    """Return the score of a method's own models of each device's samples alone; None if interrupted."""
    setup = _bare(original, original.method.name, dict.fromkeys(EXCHANGED))
    method = setup.configured
    memory = DeviceMemory(kept)
    engine, _ = engine_of(setup, method, park, Alone(), memory)
    start = {"w": engine.network.flat.clone().cpu()}
    for k in range(park.devices):
        sizes = np.where(np.arange(park.devices) == k, park.sizes, 0)
        alone = training(method, engine, setup.rounds, start=start, sizes=sizes, invited=(k,), held=None, receipts=())
        _, state = first_state(engine, method, alone.view(0))
        point = Position(state=state)
        for _ in range(rounds):
            if interrupted():
                return None
            after, _ = step(alone, point)
            point = replace(after, tick=0)
        memory.commit(k, {f"{OWN} all": point.state.packet["w"]})
    return separate.evaluate(engine, start, setup.evaluate.figure)


def _repeated(engine: Engine, experiment: Experiment) -> Score:
    raw = engine.park
    if raw.normalised is not None:  # devices' own scales cannot be converted to the sensors' units
        raw = build_park(replace(experiment, data=replace(experiment.data, normalise="auto")))
    data = raw.dataset
    before = data.task.repeats[experiment.method.name]
    forecasts = repeated(raw.test()[0], before, data)
    levels = getattr(engine.task, "levels", ()) if getattr(engine.task, "loss", "") == "quantile" else ()
    values = forecasts[:, :, None]
    if levels:  # an interval from the errors of the same rule in training, on both sides of the value
        x, y = raw.pooled()
        off = np.quantile(y - repeated(x, before, data), levels, axis=0).T
        middle = len(levels) // 2
        off[:, middle] = 0.0
        off[:, :middle], off[:, middle:] = off[:, :middle].clip(max=0), off[:, middle:].clip(min=0)
        values = values + off
    center, scale = (np.array(setting)[:, None] for setting in (engine.task.center, engine.task.scale))  # type: ignore[attr-defined]
    out = ((values - center) / scale).reshape(len(forecasts), -1).astype(np.float32)
    return scored(engine, torch.from_numpy(out), experiment.evaluate.figure)


def repeated(x: Values, before: int, data: Dataset) -> NDArray[np.float64]:
    """Return the forecast x̂_{t+h} = x_{t+h−m·⌈h/m⌉} of every sensor in the task, [n, S·H].

    A missing value is replaced by the last one before it in the window, or by the sensor's mean.

    Args:
        x: windows [n, C, L] as stored, L ≥ m.
        before: m, rows.
        data: the data set of their sensors and task.
    """
    task = data.task
    names = data.inputs.columns
    at = [names.index(name) for name in task.sensors]  # type: ignore[attr-defined]
    window = x[:, at].astype(np.float64) * data.scale
    means = np.array(task.center).reshape(len(at), -1)[:, 0]  # type: ignore[attr-defined]
    newest = np.maximum.accumulate(np.where(np.isfinite(window), np.arange(window.shape[2]), -1), axis=2)
    window = np.where(newest < 0, means[:, None], np.take_along_axis(window, newest.clip(0), 2))
    rows = np.arange(task.ahead) % before - before
    return window[:, :, rows].reshape(len(x), -1)


def planned(
    experiment: Experiment, names: Sequence[str], seeds: Sequence[int], out: Path, limits: Limits, *, every: bool
) -> list[PlannedRun]:  # fmt: skip
    """Return the runs of a comparison of methods, with ``every`` reference or those that are among the names.

    ``local-only`` is a reference beside a method whose model is that of pooled data, such as boosted trees, and
    otherwise a method of its own, which trains the experiment's network on each device.

    Raises:
        SettingError: as by :func:`~fedfloor.runs.compare.planned_runs` and :func:`beside`; or a name is a reference
            that the task does not have, or that has no method to follow.
    """
    each_once("methods", names)
    own = [name for name in names if name not in REFERENCES or name == LOCAL_ONLY]
    listed = [name for name in names if name not in own]
    first = next((name for name in own if name != LOCAL_ONLY), None)
    if listed and not own:
        raise SettingError(
            f"--methods {','.join(names)}: '{listed[0]}' is a reference, which follows the training of a method. Name "
            f"a method first: --methods {experiment.method.name},{','.join(listed)}."
        )
    if LOCAL_ONLY in own and first is not None and not every and _needs(experiment, first).pooled:
        own.remove(LOCAL_ONLY)
        listed.append(LOCAL_ONLY)
    work = planned_runs(experiment, own, seeds, out)
    followed = sorted(own, key=lambda name: name == LOCAL_ONLY)  # another method first
    if every:
        return beside(work, experiment, followed, seeds, out, limits)
    return beside(work, experiment, followed, seeds, out, limits, only=listed) if listed else work


def _needs(experiment: Experiment, name: str) -> Needs:
    return replace(experiment, method=replace(experiment.method, name=name)).configured.method.needs


def beside(
    work: Sequence[PlannedRun], experiment: Experiment, methods: Sequence[str], seeds: Sequence[int], out: Path,
    limits: Limits, *, only_plain: bool = False, only: Sequence[str] | None = None,
) -> list[PlannedRun]:  # fmt: skip
    """Return a comparison's runs with those of the references, seed by seed.

    References follow the first of the ``methods`` and stop only by rounds (``--stop-after``), as they have no costs.

    Args:
        only_plain: whether to leave out references that need training.
        only: the references; default: all that fit.

    Raises:
        SettingError: a method has the name of a reference, the first method does not train, or a reference of ``only``
            does not fit.
    """
    for name in REFERENCES if only is None else only:
        if name in methods or (name in experiment.methods and name != SCIKIT_LEARN):
            raise SettingError(f"method '{name}' is also one of the --references: leave out one of the two.")
    needs = _needs(experiment, methods[0])
    plain = untrained(experiment)
    trained = (LOCAL_ONLY, POOLED, SCIKIT_LEARN) if needs.scopes and not only_plain else ()
    if not trained and not plain:
        raise SettingError(
            f"method '{methods[0]}' does not train, so --references have no training to follow. Run it without "
            f"them, or train a network: {AUTOENCODER}."
        )
    fit = [*trained, *plain]
    if unfit := [name for name in only or () if name not in fit]:
        raise SettingError(f"'{unfit[0]}' is no reference for this task and method. Those that fit: {', '.join(fit)}.")
    runs = list(work)
    short = Limits(stop_after=limits.stop_after)
    for seed in seeds:
        original = replace(experiment, seed=seed, method=replace(experiment.method, name=methods[0]))
        for name in fit if only is None else only:
            starts = partial(start if name in ROUNDLESS or needs.pooled else _start, original=original)
            bare = _bare(original, name, {})
            runs.append(PlannedRun(f"{name} seed {seed}", bare, out / f"{name}-seed{seed}", short, starts))
    return sorted(runs, key=lambda run: seeds.index(run.experiment.seed))  # runs of the same seed share a park


def of_run(
    experiment: Experiment, out: Path, stop_after: int | None = None, *, only_plain: bool = False
) -> list[PlannedRun]:
    """Return the runs of the references for one run, or ``only_plain`` ones, in its folder ``out``.

    Raises:
        SettingError: the run itself is a reference.
    """
    limits = Limits(stop_after=stop_after)
    method = experiment.method.name
    inside = out / REFERENCES_FOLDER
    return beside([], experiment, [method], [experiment.seed], inside, limits, only_plain=only_plain)


def accompanied(experiment: Experiment) -> bool:
    """Return whether a run has references that need no training beside it without being asked: detectors have."""
    free = experiment.method.name not in REFERENCES and not launch.under_torchrun()
    return experiment.data.asked.detects and free and bool(untrained(experiment))


def untrained(experiment: Experiment) -> tuple[str, ...]:
    """Return the references of the task that need no training, if the headline compares them with a model.

    Scores of two detectors, such as T²/τ² + Q/δ² and the mean of |z|, have no common scale: the mean score on unmarked
    test samples ranks neither.
    """
    return () if experiment.evaluate.figure.name == RECONSTRUCTION_ERROR else experiment.data.asked.plain


def _bare(experiment: Experiment, name: str, table: dict[str, Any]) -> Experiment:
    """Return an experiment with a reference instead of the method, without network and without losses."""
    own = dict(experiment.methods.get(name, {})) | table
    method = MethodSettings(name, objective=None if name in ROUNDLESS else _loss(experiment))
    work = experiment.work
    if name in ROUNDLESS:  # no gradient is clipped where none is computed
        work = replace(work, sample_clip=None, sample_noise=None)
    bare = replace(
        experiment, method=method, methods={name: own} if own else {}, network=NetworkSettings(), work=work,
        faults=FaultSettings(), deploy=replace(experiment.deploy, simulate=False), decide=DecideSettings(),
        model=replace(experiment.model, keep=False, init_from=None) if experiment.model.keep else experiment.model,
    )  # fmt: skip
    return to_its_end(bare) if name == LOCAL_ONLY else bare


def _loss(experiment: Experiment) -> str | Mapping[str, Any] | None:
    """Return the objective if it is a loss over samples without a federated term, such as class weights."""
    if not isinstance(experiment.configured.parts.objective, PerSample):
        return None
    own: str | Mapping[str, Any] | None = experiment.methods.get(experiment.method.name, {}).get("objective")
    return own or experiment.method.objective


def _start(
    bare: Experiment, orders: Orders, ranks: int, report: Follow, park: Park, interrupted: Callable[[], bool],
    original: Experiment,
) -> str:  # fmt: skip
    local, pooled = work(original, park)
    wanted, base = (local, {}) if bare.method.name == LOCAL_ONLY else (pooled, {"method": "centralized"})
    table = {**base, "work": {key: value for key, value in asdict(wanted).items() if value is not None}}
    return launch.start(_bare(original, bare.method.name, table), orders, ranks, report, park, interrupted)


def work(experiment: Experiment, park: Park) -> tuple[WorkSettings, WorkSettings]:
    """Return the work of a round of local training and of pooled training, for comparison with the experiment's method.

    In local training every device makes the mean number of passes (or steps) per visited device of the method's first
    round. Pooled training processes as many samples in a round as that method: the passes times the share of
    participating devices, over all data; in steps if that is not a whole number of passes.

    Raises:
        SettingError: the method does not train in its first round, or a setting does not fit.
    """
    base = getattr(experiment.configured.method, "work", experiment.work.over(DEFAULTS))
    visits = list(walk.visited(forecast.first_round(experiment, park)))
    whole = int(park.holdings.sum())
    sizes = park.holdings.tolist()
    if not visits:
        raise SettingError(
            f"method '{experiment.method.name}' does not train in its first round, so --references have no training "
            "to follow. Name another method first."
        )
    epochs = Counter[int]()
    steps = Counter[int]()
    seen = 0
    for visit, times in visits:
        at = visit.site.index if visit.site.kind == "device" else -1
        held = whole if at < 0 else sizes[at]
        epochs[at] += times * (visit.work.epochs or 0)
        steps[at] += times * visit.work.batches(held)
        seen += times * round(visit.work.passes(held) * held)
    batch = min(visits[0][0].work.batch_size, base.batch_size or DEFAULTS.batch_size or 1)
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
