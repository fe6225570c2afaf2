"""Trained models, read from run folders, for predictions."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.chance import drawing
from fedfloor.base.checking import parsed, toml
from fedfloor.base.errors import SettingError, require, shown
from fedfloor.base.machine import one_thread
from fedfloor.base.outside import load
from fedfloor.base.strict import json_text
from fedfloor.data.dataset import HOLES
from fedfloor.data.files.tree import Naming
from fedfloor.data.reading import DIALECT, Columns, DeviceReading
from fedfloor.inference.normalisation import OwnScale, RawNetwork, by_regimes
from fedfloor.inference.samples import Sensors, fitting
from fedfloor.inference.separate import DeviceModels
from fedfloor.inference.training import Training
from fedfloor.models.network import Network, assembled
from fedfloor.models.saved import DEVICES, content, has_shared, model_file, staying
from fedfloor.models.staying import Staying
from fedfloor.park.normalise import UNMEASURED, fixed_scales
from fedfloor.parts.decision import Decision
from fedfloor.parts.objectives.objective import adapting
from fedfloor.parts.objectives.registry import objective
from fedfloor.tasks.answer import Answer
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.figures import ACCURACY, Figure
from fedfloor.tasks.kinds import read
from fedfloor.tasks.metric import Calculation, recorded
from fedfloor.tasks.task import Task

log = logging.getLogger(__name__)

MOST = 10**8  # numbers in a sample
ROLES = {field.name for field in fields(Columns)} - {"values", "ignore", "categories"}
BLOCK = 500  # as in the run's evaluation, so that batches and rounding are the same


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model that predicts samples.

    Attributes:
        name: the name of the network, as in ``[model] name``, or of the trees that replace it.
        round: the number of training rounds.
        classes: the names of the task's F bins; for a classification in the order of the outputs.
        shape: the shape of one sample: (C, H, W) of a picture, (C,) of a row of sensors, (C, L) of a window of L rows.
        sensors: the sensors, which are the channels; None for pictures.
        raw: the network in evaluation mode, with its normalisation.
        channels_last: whether the memory layout of pictures is channels-last, as in training.
        training: the record of its training.
        scaled: whether pictures of other sizes are scaled, as in training.
        own: the normalisation by device applied before ``raw``, or None.
        decision: the rule from probabilities to a class; None: the most likely class.
        staying: the part that is an input of the exported ONNX model, or None.
        levels: mean and standard deviation of each sensor in training, in stored units, if the model normalises by
            them.
        models: the models of devices, in a run whose devices have different ones; None for a single model.
        headline: the metric by which the run is judged; the accuracy for a model without its run's folder.
        own_code: whether code outside fedfloor may be imported, such as that of a metric.
    """

    name: str
    round: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    sensors: Sensors | None
    raw: RawNetwork
    channels_last: bool
    training: Training
    scaled: bool = False
    own: OwnScale | None = None
    decision: Decision | None = None
    task: Task = CLASSIFICATION
    staying: Staying | None = None
    levels: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    models: DeviceModels | None = None
    headline: Figure = ACCURACY
    own_code: bool = False

    @property
    def threshold(self) -> tuple[str, float] | None:
        """The class with a threshold, and the threshold; None if the decision is the most likely class."""
        if self.decision is None or self.decision.positive is None:
            return None
        return self.classes[self.decision.positive], self.decision.threshold

    def predict(self, x: NDArray[Any], device: str = "") -> NDArray[np.floating[Any]]:
        """Return the classes' probabilities [n, F]; for another task the first part of :meth:`answer`.

        This part is the numbers [n, T] of a regression or the next rows [n, S, H] of a forecast, in their units.

        Args:
            x: samples [n, *shape] as stored in files: uint8 pictures, or sensors' values as numbers.
            device: the device of the samples. Its own model predicts, if the run has different models. For a model
                with ``normalise = "device"``, x is normalised by the device's statistics in the run; for an unknown
                device, or none, by those of the first rows of x.

        Raises:
            SettingError: the samples have another shape or type.
        """
        first: NDArray[np.floating[Any]] = next(iter(self.answer(x, device).parts().values()))
        return first

    def answer(self, x: NDArray[Any], device: str = "") -> Answer:
        """Return the answer, made of arrays, with intervals for quantiles; arguments as for :meth:`predict`."""
        batch = fitting(x, self.shape, self.sensors, "x")
        answer = self.answered(batch if self.own is None else self.own.of_device(batch, device), [device] * len(batch))
        return answer.changed(lambda _, part: part.numpy())

    def outputs(self, x: NDArray[Any]) -> tuple[Tensor, ...]:
        """Return the parts of :meth:`answered`: for a classification, probabilities and logits [n, F]."""
        return tuple(self.answered(x).parts().values())

    def answered(self, x: NDArray[Any], devices: Sequence[str] | None = None) -> Answer:
        """Return the answer for checked samples [n, *shape], normalised already if the model has ``own``.

        With ``devices``, the device of each sample, each is answered by the model of its device, if there are several.
        """
        if not len(x):
            return self.answered(np.zeros((1, *self.shape), x.dtype)).changed(lambda _, part: part[:0])
        if devices is not None and self.models is not None:
            return self.models.answered(x, devices, self.answered)
        answers = []
        with torch.inference_mode(), one_thread():
            for first in range(0, len(x), BLOCK):
                part = torch.from_numpy(np.ascontiguousarray(x[first : first + BLOCK]))
                if self.channels_last and part.dim() == 4:
                    part = part.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
                answers.append(self.raw.answer(part))
        several = [answer.parts() for answer in answers]
        return answers[0].changed(lambda name, _: torch.cat([parts[name] for parts in several]))


@dataclass(frozen=True)
class WindowHeader:
    """``inputs.window`` of a model's header: length and step in rows."""

    length: int
    step: int


@dataclass(frozen=True)
class CategoryHeader:
    """``inputs.coding.categories.NAME`` of a model's header: the coding of a column of texts."""

    kind: Literal["one-hot", "ordinal"]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class CodingHeader:
    """``inputs.coding`` of a model's header: the conversions of cells, units, and labels of lives that ended."""

    ended: str | tuple[str, ...] | None = None
    bins: tuple[float, ...] | None = None
    categories: dict[str, CategoryHeader] | None = None
    units: dict[str, str] | None = None


@dataclass(frozen=True)
class InputsHeader:
    """``inputs`` of a model's header."""

    kind: Literal["image", "table"]
    columns: tuple[str, ...] | None = None
    window: WindowHeader | None = None
    missing: str | None = None
    names: dict[str, str] | None = None
    decimal: str | None = None
    scaled: bool | None = None
    dialect: dict[str, Any] | None = None
    coding: dict[str, Any] | None = None
    device_of: Naming | None = None

    def __post_init__(self) -> None:
        names = self.names or {}
        form = dict(self.dialect or {})
        coding = {**(self.coding or {}), "ended": form.pop("ended", None)}
        if unknown := sorted(names.keys() - ROLES | form.keys() - {*DIALECT}):
            raise ValueError(f"tables have no {shown(unknown[0])}")
        form["decimal"] = "," if self.decimal == "," else "."
        for kind, table in ((Columns, names), (DeviceReading, form), (CodingHeader, coding)):
            parsed(kind, json_text(table), "inputs", "a way to read tables", "")

    def sensors(self) -> Sensors | None:
        """Return the model's sensors; None where samples are pictures."""
        if self.kind == "image":
            return None
        window = None if self.window is None else (self.window.length, self.window.step)
        return Sensors(
            self.columns or (), window, self.missing or "refuse", self.names or {}, self.decimal or ".",
            self.dialect or {}, self.coding or {}, self.device_of,
        )  # fmt: skip


@dataclass(frozen=True)
class MadeHeader:
    """``made`` of a model's header: the network's classifier, objective and settings."""

    classifier: str | None = None
    objective: tuple[str, dict[str, Any]] = ("plain", {})
    settings: dict[str, Any] | None = None


@dataclass(frozen=True)
class NormaliseHeader:
    """``normalise`` of a model's header: value = (scale·stored − mean)/std, after a step given by ``kind``."""

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    kind: Literal["device", "regime"] | None = None
    rows: int | None = None
    regimes: dict[str, Any] | None = None


@dataclass(frozen=True)
class Header:
    """The header of a model's file, with checks of its values."""

    model: str
    round: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    normalise: NormaliseHeader
    inputs: InputsHeader | None = None
    made: MadeHeader = MadeHeader()
    decide: Decision | None = None
    task: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.classes or not self.shape or min(self.shape) < 1 or math.prod(self.shape) > MOST:
            raise ValueError(f"{len(self.classes)} classes, samples of shape {list(self.shape)[:4]}")
        channels = self.shape[0]
        mean = self.normalise.mean
        std = self.normalise.std
        if not len(mean) == len(std) == channels:
            raise ValueError(f"{len(mean)} means and {len(std)} deviations for {channels} channels")
        if not all(map(math.isfinite, (self.normalise.scale, *mean, *std))) or min(std) <= 0:
            raise ValueError("a mean that is not finite, or a deviation that is not above 0")
        if self.decide is not None and (self.decide.positive or 0) >= len(self.classes):
            raise ValueError(f"a decision on class {self.decide.positive} of {len(self.classes)}")
        if self.decide is not None and self.task is not None:
            raise ValueError("a decision between classes, and another task")
        if self.inputs is not None and self.inputs.kind == "table" and not self.inputs.columns:
            raise ValueError("a table without columns")


def load_model(
    folder: Path | str, own: bool = False, which: str = "last", device: str = "", stays: bool = False,
    by_device: bool = False, within: float | None = None,
) -> Trained:  # fmt: skip
    """Return a trained model, read from a file.

    Args:
        folder: a run's folder, or a ``model.safetensors`` itself.
        own: whether a custom model or objective (``module:Name``) in the file may be imported and run; only for trusted
            files.
        which: the model in a run's folder: that of the ``last`` round, or of the ``best`` round on validation data.
        device: the name or number of a device, for a run whose devices have different models: with its own part, or of
            its cohort.
        stays: whether a part that never leaves the devices becomes :attr:`Trained.staying`.
        by_device: whether a run with cohorts, which has no shared model, is read with all of its models, so that each
            sample needs a device.
        within: the horizon of a chance to fail, in the unit of the lives; by default that of the training.

    Raises:
        SettingError: the file is missing, damaged or of another format, it needs custom code and ``own`` is false, or
            the custom network has changed.
    """
    path, personal = model_file(Path(folder), which, device, by_device=by_device)
    about, tensors = content(path)
    header = parsed(Header, json.dumps(about), str(path), "the header of a model", "Train it again with this version.")
    shape = header.shape
    sensors = None if header.inputs is None else header.inputs.sensors()
    about_task = header.task if personal is None or personal.task is None else personal.task
    about_task = about_task if within is None else _at_horizon(about_task, within)
    task = read(about_task, len(header.classes), () if sensors is None else sensors.columns, str(path))
    specs = {"model": header.model, "objective": header.made.objective[0]}
    outside = {kind: spec for kind, spec in specs.items() if ":" in spec}
    if outside and not own:
        names = " and ".join(f"{kind} {shown(spec)}" for kind, spec in outside.items())
        raise SettingError(
            f"{path} names code outside fedfloor: {names}. Loading the file imports and runs that module. If you "
            "trust both, give --own-code (in Python: load_model(folder, own=True)).",
            key="foreign-code",
        )
    try:
        for kind, spec in outside.items():
            load(spec, kind)
        network = _network(header, task, tensors, trusted=bool(outside))
    except (SettingError, RuntimeError) as error:  # impossible sizes raise a RuntimeError
        raise SettingError(f"{path}: its network cannot be built: {error}") from error
    _fill(network, tensors, header.model, path)
    if personal is not None and personal.numbers is not None:
        part = network.parcel(personal.part)
        if personal.numbers.shape != (part.numbers,) or not bool(torch.isfinite(personal.numbers).all()):
            raise SettingError(f"device {device}'s own part '{personal.part}' does not fit {path}. Resume the run.")
        part.set(personal.numbers, network.flat)
    if which != "last" and (Path(folder) / DEVICES).is_file():
        log.info("--which %s: the shared model; devices' own models are those of the last round.", which)
    left = staying(Path(folder)) if stays else None
    given = header.normalise
    fixed = None if sensors is None else fixed_scales(sensors.coding)
    return Trained(
        getattr(network.module, "title", header.model), header.round, header.classes, shape, sensors,
        _raw(header, network, sensors, task, path),
        network.channels_last, Training(path.parent), scaled=header.inputs is not None and bool(header.inputs.scaled),
        own=OwnScale.read(given.rows, path.parent, shape[0], fixed) if given.kind == "device" else None,
        decision=header.decide, task=task,
        staying=Staying(network, *left) if left is not None and network.numbers(left[0]) else None,
        levels=None if sensors is None else _levels(given, task.unread),
        models=None if device or which != "last" else _models(Path(folder), own=own, within=within),
        headline=_headline(path.parent, header.classes, own=own),
        own_code=own,
    )  # fmt: skip


def _at_horizon(task: dict[str, Any] | None, within: float) -> dict[str, Any]:
    """Return the settings of a task with another horizon of the chance to fail.

    Raises:
        SettingError: the task is no survival.
    """
    if task is None or task.get("kind") != "survival":
        kind = "classification" if task is None else task.get("kind")
        raise SettingError(
            f"within = {within:g}: is for the chance of machines to fail (data.task = 'survival'), but this model's "
            f"task is {kind}. Leave it out.",
            key="within",
        )
    require(0 < within < math.inf, "within", within, "a number above 0")
    return {**task, "within": within}


def _models(run: Path, *, own: bool, within: float | None) -> DeviceModels | None:
    """Return the models of a run's devices; None for a model's file, or a run with a single model."""
    if not (run / DEVICES).is_file():
        return None
    return DeviceModels(
        run, lambda device: load_model(run, own, device=device, within=within).answered, shared=has_shared(run)
    )


def _headline(run: Path, classes: Sequence[str], *, own: bool) -> Figure:
    """Return the headline of a folder's experiment, importing its code with ``own``; the accuracy if unreadable."""
    try:
        figure = recorded(toml(run / "experiment.toml", "experiment")["evaluate"]["headline"])
    except (SettingError, KeyError, TypeError, AttributeError):
        return ACCURACY
    if own and isinstance(figure.kind.value, Calculation):
        load(figure.kind.value.code, "metric")
    return figure if not figure.of or figure.of in classes else ACCURACY


def _levels(given: NormaliseHeader, unread: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the means and standard deviations of the training samples in a header; None without them.

    Channels that no network reads have a deviation beyond all values.
    """
    if given.kind is not None or (set(given.mean), set(given.std)) == ({0.0}, {1.0}):
        return None
    wide = [UNMEASURED if at in unread else value / given.scale for at, value in enumerate(given.std)]
    return tuple(value / given.scale for value in given.mean), tuple(wide)


def _network(header: Header, task: Task, tensors: Mapping[str, Tensor], *, trusted: bool) -> Network:
    outputs = task.outputs(len(header.classes), task.targets, header.shape)
    adapt = adapting(task, objective(*header.made.objective))
    made = partial(
        assembled, header.model, header.shape, outputs, header.made.classifier, adapt, settings=header.made.settings
    )
    if not trusted:  # first without memory, because a header may state any size
        with torch.device("meta"):
            bare = made()[0]
        numbers = sum(parameter.numel() for parameter in bare.parameters())
        if numbers > (held := sum(tensor.numel() for tensor in tensors.values())):
            raise SettingError(f"it has {numbers} parameters, but the file {held}.")
    with drawing():
        return Network(*made())


def _raw(header: Header, network: Network, sensors: Sensors | None, task: Task, path: Path) -> RawNetwork:
    """Return the network in evaluation mode, with the normalisation in its header."""
    given = header.normalise
    dims = len(header.shape) + 1
    mean, std = (torch.tensor(values, dtype=network.flat.dtype) for values in (given.mean, given.std))
    holes = sensors is not None and sensors.missing in HOLES
    answers = task.answer
    if header.decide is not None:
        answers = partial(CLASSIFICATION.answer, temperature=header.decide.temperature)
    raw = RawNetwork(network.module, answers, given.scale, mean, std, holes=holes, dims=dims)
    if given.kind == "regime":
        raw = by_regimes(raw, given.regimes or {}, header.shape, str(path))
    return raw.eval().requires_grad_(False)


def _fill(network: Network, tensors: Mapping[str, Tensor], name: str, path: Path) -> None:
    """Copy the file's tensors into the network; refuse tensors of another network."""
    wanted = {key: tuple(tensor.shape) for key, tensor in network.state(network.flat).items()}
    got = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    wrong = [f"{key} is missing in the file" for key in wanted if key not in got]
    wrong += [f"the network has no {key}" for key in got if key not in wanted]
    wrong += [f"{key} is {got[key]} in the file, {size} in the network" for key, size in wanted.items()
              if key in got and got[key] != size]  # fmt: skip
    if wrong:
        raise SettingError(
            f"{path} does not fit network '{name}': {'; '.join(wrong[:3])}"
            f"{f'; and {len(wrong) - 3} more' if len(wrong) > 3 else ''}. "
            "The network has changed since its training: use the code of that time.",
            key="damaged-model",
        )
    places = dict(network.module.named_parameters(remove_duplicate=False))
    places |= dict(network.module.named_buffers(remove_duplicate=False))  # type: ignore[arg-type]
    with torch.no_grad():
        for key in wanted:
            if not bool(torch.isfinite(tensors[key]).all()):
                raise SettingError(f"{path}: {key} holds infinite or undefined numbers. Train the model again.")
            places[key].copy_(tensors[key])
