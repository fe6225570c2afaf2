"""``[model] keep``: a trained model that stays as it is, and the thresholds that its run finds again.

The model of ``model.init_from`` keeps its weights, its normalisation, and the scale of the numbers that it predicts:
all that its answers depend on, but for the thresholds. These are those of a first calibration on the present held-out
samples, by the same sums (:mod:`fedfloor.engine.calibrate`), for all devices or each, as ``data.task.calibrate`` says.
``recalibrated`` of ``evaluation.json`` has the share of the present test samples within the earlier thresholds beside
that within the new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.checking import parsed
from fedfloor.base.errors import MALFORMED, SettingError, shown
from fedfloor.base.strict import json_text
from fedfloor.data.dataset import Dataset
from fedfloor.experiment import Experiment
from fedfloor.park import normalise
from fedfloor.park.normalise import DeviceNormaliser, normaliser
from fedfloor.park.statistics import Normalised
from fedfloor.park.survey import Regimes
from fedfloor.tasks.figures import named
from fedfloor.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    from fedfloor.data.dataset import Values
    from fedfloor.engine.engine import Engine
    from fedfloor.engine.evaluate import Score
    from fedfloor.park.park import Park

Floats = NDArray[np.float64]
KINDS = {"device": "of each device", "regime": "of each regime"}  # of a model's normalisation
ADVICE = "Give the folder of a run that this version trained."


@dataclass(frozen=True)
class KeptScale:
    """``normalise`` of a model's header: value = (scale·stored − mean)/std, after a step given by ``kind``."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    kind: str | None = None
    regimes: dict[str, Any] | None = None


@dataclass(frozen=True)
class KeptModel:
    """What a model's header states of its answers."""

    classes: tuple[str, ...]
    normalise: KeptScale
    task: dict[str, Any] | None = None


def keeping(experiment: Experiment, model: Path) -> Experiment:
    """Return an experiment that keeps a trained model for one round."""
    kept = replace(experiment.model, init="default", init_from=str(model), keep=True)
    return replace(experiment, rounds=1, model=kept)


def read(experiment: Experiment) -> tuple[Path, KeptModel]:
    """Return the file of the model that an experiment keeps, and its header.

    Raises:
        SettingError: there is none, or it is damaged.
    """
    from fedfloor.models import saved

    try:
        path = saved.model_file(Path(str(experiment.model.init_from)))[0]
        return path, parsed(KeptModel, json_text(saved.content(path)[0]), str(path), "a model's header", ADVICE)
    except SettingError as error:
        raise SettingError(f"model.init_from: {error}", key="model.init_from") from error


def tasked(experiment: Experiment, data: Dataset) -> Dataset:
    """Return an experiment's data with the kept model's task in place of one fitted to them; unchanged without one.

    Raises:
        SettingError: the task has no thresholds, or the model has another task.
    """
    if not experiment.model.keep:
        return data
    if not data.task.calibrates:
        raise SettingError(
            f"model.keep = true: data.task = '{data.task.kind}' has no thresholds that a run could find again. "
            "Set data.task.coverage for intervals of numbers, or leave model.keep out to train.",
            key="model.keep",
        )
    path, header = read(experiment)
    task = again(known(header, header.task, data, path), data.task, path)
    if data.target is None:
        return replace(data, task=task)
    tests = data.y_test if data.target_test is None else task.bin(data.target_test)
    return replace(data, task=task, classes=header.classes, y=task.bin(data.target), y_test=tests)


def known(header: KeptModel, about: Mapping[str, Any] | None, data: Dataset, path: Path) -> Task:
    """Return the checked task of a model, or of one of its devices."""
    from fedfloor.tasks.kinds import read as read_task

    return read_task(about, len(header.classes), data.inputs.columns, str(path))


def again(trained: Task, asked: Task, path: Path) -> Task:
    """Return a trained model's task with what the present experiment promises, and without thresholds.

    Raises:
        SettingError: the experiment asks for another task than the model was trained for.
    """
    if type(trained) is not type(asked):
        raise SettingError(
            f"model.keep = true: {path} was trained for data.task = '{trained.kind}', and the experiment has "
            f"'{asked.kind}'. Give a model that was trained for it.",
            key="model.keep",
        )
    for name in [one for one in asked.trained if getattr(asked, one) != getattr(trained, one)]:
        raise SettingError(
            f"model.keep = true: {path} was trained with data.task.{name} = {shown(getattr(trained, name))}, and the "
            f"experiment has {shown(getattr(asked, name))}. Set it as in the training; only what is promised may "
            f"change ({', '.join(asked.promises)}).",
            key="model.keep",
        )
    return trained.uncalibrated(asked)


def prepared(experiment: Experiment, park: Park) -> Park:
    """Return a park with samples scaled as ``data.normalise`` says, for a kept model by its own statistics.

    Raises:
        SettingError: the normalisation does not fit the data, or the model.
    """
    given = experiment.data.normalise
    if not experiment.model.keep:
        return normalise.prepared(park, given)
    path, header = read(experiment)
    part = normaliser(given)
    channels = park.dataset.shape[0]
    kind = part.kind if part is not None else None
    scale = header.normalise
    if (scale.kind or "") != (kind if kind in ("device", "regime") else "") or len(scale.mean) != channels:
        raise SettingError(
            f"model.keep = true: {path} scales {len(scale.mean)} channels by numbers "
            f"{KINDS.get(scale.kind or '', 'in common')}; the experiment has {channels} channels and data.normalise = "
            f"{shown(given if isinstance(given, str) else given.kind)}. Set it as in the training.",
            key="model.keep",
        )
    if isinstance(part, DeviceNormaliser):
        return part.prepare(park, normalise.read_statistics(path.parent, channels))
    if kind == "regime":
        return regimes(scale.regimes or {}, channels, path).prepare(park)
    alike = np.array(scale.mean), np.array(scale.std)
    return replace(park, normalised=Normalised({}, unchanged, dict, alike))


def unchanged(x: Values, device: int) -> Values:  # noqa: ARG001
    """Return samples that the network scales."""
    return x


def regimes(document: Mapping[str, Any], channels: int, path: Path) -> Regimes:
    """Return the regimes of a model's header; SettingError: they are damaged."""
    try:
        return Regimes.from_dict(document, channels)
    except MALFORMED as error:
        raise SettingError(f"{path}: its regimes are damaged ({error}). {ADVICE}", key="damaged-model") from error


def standard(experiment: Experiment) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and deviation of each channel by which real devices scale samples for a kept model; None without one.

    Raises:
        SettingError: the normalisation is one that real machines measure anew.
    """
    if not experiment.model.keep:
        return None
    given = experiment.data.normalise
    if normaliser(given) is not None:
        raise SettingError(
            f"model.keep = true: real machines measure the statistics of data.normalise = {shown(given)} anew, by "
            "which a kept model would answer otherwise. Simulate it, or train a round.",
            key="model.keep",
        )
    scale = read(experiment)[1].normalise
    return scale.mean, scale.std


# -- before and after --------------------------------------------------------------------------------------------------


def recalibrated(experiment: Experiment, engine: Engine, model: Tensor, score: Score) -> dict[str, Any]:
    """Return ``recalibrated`` of ``evaluation.json``; {} unless the run keeps its model. Call it on every rank.

    Args:
        score: the evaluation with the new thresholds.

    Returns:
        ``promised``, the share that samples are to be within the thresholds; ``before`` and ``after``, the measured
        share in total and of each device; ``nearer``, whether the new one is nearer to the promised one, None if
        unknown.
    """
    if not experiment.model.keep:
        return {}
    from fedfloor.engine.evaluate import evaluate

    earlier = before(experiment, engine)
    task = engine.task
    figure = named(task.of_thresholds)
    old = evaluate(earlier, model, experiment.configured.objective, figure)
    first = share(task, old.figures.get(figure.name), old.devices)
    after = share(task, score.figures.get(figure.name))
    if (promise := score.details.get("promise")) is not None:
        after = {"measured": promise["measured"], "devices": promise["devices"]}
    elif engine.executor is None and engine.park.validating is None:
        after = share(task, None)  # the samples of the evaluation set the thresholds
    kept = {"promised": task.share, "before": first, "after": after}
    return {"recalibrated": kept | {"nearer": nearer(task, first, after)}}


def share(task: Task, value: float | None, devices: Sequence[float | None] = ()) -> dict[str, Any]:
    """Return a measured share of samples within thresholds, from the metric ``of_thresholds``."""
    return {"measured": task.inside(value), "devices": [task.inside(one) for one in devices]}


def nearer(task: Task, first: Mapping[str, Any], after: Mapping[str, Any]) -> bool | None:
    """Return whether the measured share is nearer to the promised one than before; None if it is unknown.

    It is that of all samples; with thresholds of each device the mean distance of devices' shares counts.
    """
    if after["measured"] is None:
        return None
    return away(task, after) < away(task, first)


def away(task: Task, measured: Mapping[str, Any]) -> float:
    """Return the distance of a measured share from the promised one; infinite without thresholds."""
    known = [one for one in measured["devices"] if one is not None] if task.apart else []
    if known:
        return float(np.mean([abs(one - task.share) for one in known]))
    return math.inf if measured["measured"] is None else float(abs(measured["measured"] - task.share))


def before(experiment: Experiment, engine: Engine) -> Engine:
    """Return the engine with the thresholds that the kept model has had so far."""
    from fedfloor.engine.evaluate import tested_on
    from fedfloor.models import saved

    path, header = read(experiment)
    park = engine.park
    data = park.dataset
    shared = known(header, header.task, data, path)
    apart = dict[int, Task]()
    if (path.parent / saved.DEVICES).is_file():
        tasks = {name: record.get("task") for name, record in saved.devices(path.parent).items()}
        names = park.names or tuple(map(str, range(park.devices)))
        apart = {k: known(header, tasks[name], data, path) for k, name in enumerate(names) if tasks.get(name)}
    asked = shared.of_devices() if apart else shared
    other = tested_on(engine, replace(park, dataset=replace(data, task=asked)))
    other.thresholds = thresholds(apart, shared)
    return other


def thresholds(apart: Mapping[int, Task], shared: Task) -> Callable[[int], Task]:
    """Return the function from a device to its task, or to that of all devices."""
    return lambda device: apart.get(device, shared)
