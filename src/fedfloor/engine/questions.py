"""Questions to devices: the answers to a ``Probe``, their price, and the checks on them.

Every question is one class. Execution, prices, forecasts, the wire and the privacy account read the class, and depend
on no question's name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base import ranges
from fedfloor.base.errors import SettingError, shown
from fedfloor.data.dataset import Indices, Labels
from fedfloor.engine import calibrate, local_update
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.evaluate import block_outputs, device_blocks
from fedfloor.engine.steps import BLOCK, full_gradient
from fedfloor.models.parcel import Packet
from fedfloor.network.payload import QuestionCost
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.parts.objectives.extractors import Scaling, mean_features
from fedfloor.parts.objectives.extractors import extractor as named_extractor
from fedfloor.parts.selection.grouping import hashed
from fedfloor.plan import questions as named
from fedfloor.plan.nodes import FORWARD, Probe, Scalar, Work, model_name
from fedfloor.plan.questions import QuestionFacts, facts_of
from fedfloor.plan.schedule import Key

COUNT_BYTES = 4
HASH_BYTES = 8
HASHES = 4096  # greatest number of hashes in an answer
ROUNDING = 1e-4  # relative rounding error of moments that are sent in single precision
RESOURCES_BYTES = 16  # bytes of two numbers: seconds of a pass, metres to the base station


@dataclass(frozen=True)
class Sizes:
    """The sizes that determine the prices of questions."""

    model: int  # bytes of the packet
    number: int  # bytes of one number of the packet
    gradient: int  # bytes of a gradient of the trained numbers
    classes: int  # F, the number of classes in a census
    classifier: int  # size of the classifier, in numbers; 0 where it is unknown
    shape: tuple[int, ...]  # shape of a sample
    samples: float  # mean number of samples of a device


@dataclass(frozen=True)
class Question(ABC):
    """A question to devices, with its settings.

    Attributes:
        facts: the question's name, and what its answers reveal.
        drifts: whether the answer changes over time as the park's data do.
        weighs: whether an answer's influence grows with its size, so that answers far above the others are refused.
        vector: whether the answer is a tensor [n] in the model's type; else it is JSON.
        trains: whether its settings are a visit's work.
        shared: whether only the part of the model is sent that devices do not keep as their own.
    """

    settings: Mapping[str, Scalar]

    facts: ClassVar[QuestionFacts]
    drifts: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    vector: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    @property
    def counts(self) -> bool:
        """Whether the answer consists of class counts (perhaps with a census's noise); zeros replace a missing one."""
        return self.facts.reads == "counts"

    def harmless(self, classes: int) -> float:
        """Return the size up to which an answer is never refused as too large."""
        return 0.0

    def excess(self) -> str:
        """Return the reason why a device refuses a question from another machine with these settings, or ""."""
        return ""

    @abstractmethod
    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        """Return a device's answer with the arrived model; the engine's network may be overwritten."""

    @abstractmethod
    def price(self, sizes: Sizes) -> QuestionCost:
        """Return bytes down and up, passes over the device's samples, and whether the model is sent along."""

    def pretended(self, park: Park, device: int, trained: int) -> Any:
        """Return a placeholder answer for a forecast without training; ``trained``: number of trained parameters."""
        return park.classes(device)

    def checked(self, answer: object, device: int, engine: Engine) -> Any:
        """Return another machine's JSON answer, checked; RefusedError: it is out of range, or the answer is no JSON."""
        raise ranges.RefusedError("kind", "the question is not answered in JSON.")

    def fits(self, vector: Tensor, device: int, engine: Engine) -> None:
        """Raise RefusedError for a vector of the right length with numbers that the device cannot have."""
        return

    def length(self, engine: Engine) -> int | None:
        """Return the length of the answer's vector; None if it depends on the device."""
        return None


class Census(Question):
    """The class counts [F] of the samples that a device holds at the tick."""

    facts = named.CENSUS
    drifts = True

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        return [int(count) for count in engine.park.census([device], tick, [engine.memory.visits[device]])[0]]

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(0, COUNT_BYTES * sizes.classes)

    def checked(self, answer: object, device: int, engine: Engine) -> list[int]:
        park = engine.park
        whole = not self.drifts
        noise = ranges.noise(park.census_epsilon)
        held = int((park.sizes if whole else park.holdings)[device])
        return ranges.counts(answer, len(park.dataset.classes), held, noise, -noise if whole else 0)


class ClassCounts(Census):
    """The class counts [F] of a device's whole local data set."""

    facts = named.CLASSES
    drifts = False

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        return [int(count) for count in engine.park.classes(device)]


class MeanLoss(Question):
    """The mean loss of the arrived model over all samples that a device holds."""

    facts = named.LOSS
    weighs = True

    def harmless(self, classes: int) -> float:
        return math.log(classes)

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> float:
        network = engine.network
        samples = engine.samples(device, tick)
        total = 0.0
        _arrived(engine, packet)
        network.module.eval()
        with torch.inference_mode():
            for first in range(0, len(samples), BLOCK):
                rows = slice(first, first + BLOCK)
                out = network.module(samples.values(rows))
                total += float(engine.task.losses(out, samples.y[rows], "sum"))
        return total / len(samples)

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(sizes.model, sizes.number, FORWARD, model=True)

    def pretended(self, park: Park, device: int, trained: int) -> float:
        return 1.0

    def checked(self, answer: object, device: int, engine: Engine) -> float:
        return ranges.number(answer, 0, ranges.LOSS, "its loss")


class Losses(MeanLoss):
    """The mean loss of each arrived model over all samples that a device holds, in the models' order.

    Settings: ``models``, the number of models.
    """

    facts = named.LOSSES
    weighs = False

    def excess(self) -> str:
        count = self.settings.get("models")
        return "" if type(count) is int and count >= 1 else f"{shown(repr(count))} models; must be a number of models."

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[float]:  # type: ignore[override]
        models = [packet[model_name(number)] for number in range(self._models)]
        return [super(Losses, self).answer(engine, device, {"w": model}, tick) for model in models]

    def price(self, sizes: Sizes) -> QuestionCost:
        count = self._models
        return QuestionCost(count * sizes.model, count * sizes.number, count * FORWARD, model=True)

    def checked(self, answer: object, device: int, engine: Engine) -> list[float]:  # type: ignore[override]
        losses = ranges.rows(answer, self._models, "its losses")
        return [super(Losses, self).checked(loss, device, engine) for loss in losses]

    @property
    def _models(self) -> int:
        return int(self.settings["models"] or 0)


class Gradient(Question):
    """The gradient of the arrived model's mean loss over all of a device's samples, [trained]."""

    facts = named.GRADIENT
    weighs = vector = True

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Tensor:
        _arrived(engine, packet)
        return full_gradient(engine.network, engine.samples(device, tick), engine.task).cpu()

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(sizes.model, sizes.gradient, 1.0, model=True)

    def pretended(self, park: Park, device: int, trained: int) -> Tensor:
        return torch.zeros(trained)

    def length(self, engine: Engine) -> int:
        return engine.network.trained


class Profile(Question):
    """The model [P] that local training yields from the arrived one; the device does not keep it.

    Settings: those of :class:`~fedfloor.plan.nodes.Work`.
    """

    facts = named.PROFILE
    weighs = vector = trains = True

    def excess(self) -> str:
        return "" if type(self.settings.get("rate", 0.0)) in (int, float) else "its rate must be a number."

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Tensor:
        was = engine.memory.now((device,))
        local_update.local_update(
            engine, self._work(), packet, Key(engine.seed, 0, tick, device, 0), FrozenExtractor(frozen=False)
        )
        engine.memory.put_back(was)
        return engine.network.flat.clone()

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(sizes.model, sizes.model, self._work().passes(sizes.samples), model=True)

    def pretended(self, park: Park, device: int, trained: int) -> Tensor:
        return torch.zeros(trained)

    def length(self, engine: Engine) -> int:
        return engine.network.flat.numel()

    def _work(self) -> Work:
        return Work(**Work.fields(self.settings))


class MeanFeatures(Question):
    """The mean (1/n) Σ_i f(x_i) of the features of a device's samples, [D].

    Settings: ``extractor``, a name, and the extractor's own settings.
    """

    facts = named.FEATURES
    weighs = vector = True
    OWN: ClassVar[tuple[str, ...]] = ()  # settings of the question itself, not of the extractor

    def excess(self) -> str:
        return "" if isinstance(self.settings.get("extractor"), str) else "no extractor is named."

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        extractor = self._extractor()
        park = engine.park
        if not extractor.needs_model:
            x, _ = park.held(device, tick, engine.memory.visits[device])
            mean, std = mean_and_deviation(park, engine.normalise)
            mean_row = torch.from_numpy(mean_features(extractor, x, Scaling(park.dataset.scale, mean, std)))
        else:
            engine.network.part("classifier")
            _arrived(engine, packet)
            mean_row = local_update.extracted(engine.network, engine.samples(device, tick)).flatten(1).double().mean(0)
        return mean_row.to(engine.network.flat.dtype)

    def price(self, sizes: Sizes) -> QuestionCost:
        extractor = self._extractor()
        needs = self._extractor().needs_model
        size = sizes.classifier // sizes.classes - 1 if needs else extractor.dimension(sizes.shape)
        return QuestionCost(sizes.model if needs else 0, sizes.number * size, FORWARD, model=needs)

    def _extractor(self) -> Any:
        own = {name: value for name, value in self.settings.items() if name not in ("extractor", *self.OWN)}
        return named_extractor(str(self.settings["extractor"]), own)


class Hash(MeanFeatures):
    """h integers ⌊(a_i·v + b_i)/r⌋ of the mean features v; the seed gives all devices the same a and b.

    Settings: those of :class:`MeanFeatures`, ``hashes`` h and ``width`` r.
    """

    facts = named.HASH
    weighs = vector = False
    OWN = ("hashes", "width")

    def excess(self) -> str:
        count = self.settings.get("hashes")
        width = self.settings.get("width")
        if type(count) is not int or not 1 <= count <= HASHES:
            return f"{shown(repr(count))} hashes; must be a whole number from 1 to {HASHES}."
        if type(width) not in (int, float):
            return f"a width of {shown(repr(width))}; must be a number."
        return super().excess()

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        vector = super().answer(engine, device, packet, tick).double().cpu().numpy()
        return hashed(vector, self._hashes, float(self.settings["width"] or 0), engine.seed)

    def price(self, sizes: Sizes) -> QuestionCost:
        needs = self._extractor().needs_model
        return QuestionCost(sizes.model if needs else 0, HASH_BYTES * self._hashes, FORWARD, needs)

    def checked(self, answer: object, device: int, engine: Engine) -> list[int]:
        hashes = ranges.rows(answer, self._hashes, "its hashes")
        return [ranges.whole(value, -ranges.COUNT, ranges.COUNT, "a hash") for value in hashes]

    @property
    def _hashes(self) -> int:
        return int(self.settings["hashes"] or 0)


class Moments(Question):
    """The first two moments of a device's samples as network inputs: n, the mean m and Σ (x − m)(x − m)ᵀ.

    They are equivalent to n, Σ x and Σ x xᵀ, and lose less to rounding. The matrix is sent as its upper triangle, row
    by row; the vector is [1 + D + D(D + 1)/2] for samples of D numbers.
    """

    facts = named.MOMENTS
    vector = True

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Tensor:
        samples = engine.samples(device, tick)
        blocks = [slice(first, first + BLOCK) for first in range(0, len(samples), BLOCK)]
        mean = torch.stack([samples.values(rows).flatten(1).double().sum(0) for rows in blocks]).sum(0) / len(samples)
        scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=mean.device)
        for rows in blocks:
            away = samples.values(rows).flatten(1).double() - mean
            scatter += away.T @ away
        row, column = torch.triu_indices(len(mean), len(mean))
        moments = torch.cat([mean.new_tensor([len(samples)]), mean, scatter[row, column]])
        return moments.to(engine.network.flat.dtype).cpu()

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(0, sizes.number * lengths(math.prod(sizes.shape)), FORWARD)

    def pretended(self, park: Park, device: int, trained: int) -> Tensor:
        size = math.prod(park.dataset.shape)
        return torch.cat([torch.ones(1), torch.zeros(lengths(size) - 1)])

    def length(self, engine: Engine) -> int:
        return lengths(math.prod(engine.park.dataset.shape))

    def fits(self, vector: Tensor, device: int, engine: Engine) -> None:
        size = math.prod(engine.park.dataset.shape)
        held = int(engine.park.holdings[device])
        row, column = torch.triu_indices(size, size)
        scatter = vector[1 + size :].double()
        squares = scatter[row == column]
        if float(vector[0]) != held or bool((squares < 0).any()):
            raise ranges.RefusedError("range", f"its count is not its {held} samples, or a variance is below 0.")
        # s_ij² ≤ s_ii·s_jj, up to the rounding of single precision
        if bool((scatter**2 > (1 + ROUNDING) * squares[row] * squares[column] + ROUNDING).any()):
            raise ranges.RefusedError("range", "its scatter matrix has covariances too large for its variances.")


class Scores(Question):
    """The counts in bins of each kind of score of a device's held-out samples, for thresholds: see ``calibrate``.

    The number of the samples' units follows if the task promises a share. Settings: ``low`` and ``width``, the bins of
    a round of the bisection.
    """

    facts = named.SCORES

    def excess(self) -> str:
        return calibrate.settings(self.settings.get("low"), self.settings.get("width"))

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        if not engine.task.calibrates:
            raise SettingError(
                f"data.task = '{engine.task.kind}' has no scores to count: only reconstruction has, and numbers with "
                "data.task.coverage."
            )
        _arrived(engine, packet)
        rows = calibrate.of_device(engine.park, device)
        low = calibrate.unpacked(self.settings["low"])
        if len(low) != max(1, engine.task.targets):
            known = max(1, engine.task.targets)
            raise SettingError(f"bins of {len(low)} kinds of scores, and the task has {known}.", key="bins")
        table = calibrate.table(calibrate.scores(engine, rows), low, float(self.settings["width"] or 0))
        units = calibrate.units(engine.task, calibrate.held_out(engine.park), rows)
        return [*map(int, table.ravel()), *([units] if engine.task.promised is not None else [])]

    def price(self, sizes: Sizes) -> QuestionCost:
        many = len(calibrate.unpacked(self.settings.get("low", -calibrate.REACH)))
        counts = many * (calibrate.BINS + 2)
        return QuestionCost(sizes.model + (many + 1) * sizes.number, COUNT_BYTES * counts, FORWARD, model=True)

    def pretended(self, park: Park, device: int, trained: int) -> list[int]:
        promises = int(park.dataset.task.promised is not None)
        return [0] * (max(1, park.dataset.task.targets) * (calibrate.BINS + 2) + promises)

    def checked(self, answer: object, device: int, engine: Engine) -> list[int]:
        bins = calibrate.BINS + 2
        size = max(1, engine.task.targets) * bins
        promises = int(engine.task.promised is not None)
        most = calibrate.most(engine.park, device)
        numbers = ranges.rows(answer, size + promises, "its scores")
        parts = [numbers[first : first + bins] for first in range(0, size, bins)]
        units = [ranges.whole(value, 0, most, "its number of units") for value in numbers[size:]]
        return [*(count for part in parts for count in ranges.counts(part, bins, most, noun="scores")), *units]


class Outputs(Question):
    """The outputs of a device's own model for its test samples, and for test samples without a device.

    The answer is a vector: the summed loss of each block, the predicted bin of each sample, and S scores per sample.

    Settings: ``scored``, the bin of the requested scores; −1: no scores, the number of bins: scores of all bins.
    """

    facts = named.OUTPUTS
    vector = shared = True

    def excess(self) -> str:
        return "" if type(self.settings.get("scored")) is int else "the setting 'scored' must be the number of a bin."

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Tensor:
        blocks = self._blocks(engine, device)
        if not blocks:
            raise SettingError(
                "it has no test samples to evaluate its model on: personal models need devices that hold their share "
                'of the experiment\'s data ([data] kind = "partition").'
            )
        arrived = packet["w"].clone()

        def load(k: int) -> None:
            engine.network.flat.copy_(local_update.personal(engine, k, arrived))

        parts = block_outputs(engine, blocks, self._scored(engine), load)
        engine.network.flat.copy_(arrived)
        return torch.from_numpy(np.concatenate([part.astype(np.float32).ravel() for part in parts]))

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(0, 0)

    def fits(self, vector: Tensor, device: int, engine: Engine) -> None:
        if not engine.park.test_samples:
            return
        blocks = self._blocks(engine, device)
        scored = self._scored(engine)
        samples = sum(len(rows) for _, rows in blocks)
        if vector.numel() != len(blocks) + samples * (1 + len(scored)):
            raise ranges.RefusedError("shape", f"{vector.numel()} numbers are no outputs for {samples} test samples.")
        losses, bins, _ = outputs_of(vector.numpy(), blocks, scored)
        exact = np.array_equal(bins, vector.numpy()[len(blocks) : len(blocks) + samples])
        if not exact or bins.min() < 0 or bins.max() >= len(engine.park.dataset.classes) or losses.min() < 0:
            raise ranges.RefusedError("range", "its predictions are no class numbers, or a loss is below 0.")

    def _blocks(self, engine: Engine, device: int) -> list[tuple[int, Indices]]:
        return device_blocks(engine.park.test_devices, device)

    def _scored(self, engine: Engine) -> list[int]:
        scored = int(self.settings["scored"] or 0)
        bins = len(engine.park.dataset.classes)
        return list(range(bins)) if scored >= bins else [scored] if scored >= 0 else []


def scored_as(scored: Sequence[int]) -> int:
    """Return the ``scored`` setting of :class:`Outputs` for these bins: none, one, or all of them.

    >>> scored_as([]), scored_as([3]), scored_as([0, 1, 2])
    (-1, 3, 3)
    """
    return -1 if not scored else scored[0] if len(scored) == 1 else len(scored)


def outputs_of(
    vector: NDArray[np.float32], blocks: Sequence[tuple[int, Indices]], scored: Sequence[int]
) -> tuple[NDArray[np.float64], Labels, NDArray[np.float32]]:
    """Return an answer to :class:`Outputs` in the form that :func:`block_outputs` returns."""
    samples = sum(len(rows) for _, rows in blocks)
    losses, bins, scores = np.split(vector, [len(blocks), len(blocks) + samples])
    return losses.astype(np.float64), bins.astype(np.int64), scores.reshape(samples, len(scored))


def lengths(size: int) -> int:
    """Return the length of the vector of :class:`Moments` for samples with ``size`` numbers."""
    return 1 + size + size * (size + 1) // 2


class DeviceResources(Question):
    """A device's resources on the network: seconds of a pass over its data, and metres to the base station."""

    facts = named.RESOURCES

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> dict[str, float]:
        sites = engine.sites
        if sites is None:
            raise SettingError("a Probe for 'resources' needs a [network]: add --set network.profile=lte-cat-m2.")
        distance = {} if sites.distance_m is None else {"distance_m": float(sites.distance_m[device])}
        return {"pass_s": float(sites.pass_s[device]), **distance}

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(0, RESOURCES_BYTES)

    def pretended(self, park: Park, device: int, trained: int) -> None:
        return

    def checked(self, answer: object, device: int, engine: Engine) -> dict[str, float]:
        if not isinstance(answer, dict) or not {"pass_s"} <= set(answer) <= {"pass_s", "distance_m"}:
            raise ranges.RefusedError("answer", "it must have the key pass_s, distance_m if known, and no other key.")
        most = {"pass_s": ranges.SECONDS, "distance_m": ranges.METRES}
        return {name: ranges.number(value, 0, most[name], name) for name, value in answer.items()}


class Survey(Question):
    """A step of the normalisation's survey, which is answered before round 1; this class gives only its price.

    Settings: ``down`` and ``up``, the step's bytes.
    """

    facts = named.SURVEY

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        raise SettingError("a survey is not a question of a plan: the normalisation's questions come before it.")

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(int(self.settings["down"] or 0), int(self.settings["up"] or 0))


_KINDS: tuple[type[Question], ...] = (
    Census,
    ClassCounts,
    MeanLoss,
    Losses,
    Gradient,
    DeviceResources,
    Moments,
    Scores,
    MeanFeatures,
    Hash,
    Profile,
    Outputs,
    Survey,
)
QUESTIONS = {kind.facts.name: kind for kind in _KINDS}


def question(node: Probe) -> Question:
    """Return the question that a node puts to devices."""
    return QUESTIONS[facts_of(node.what).name](node.settings)


def _arrived(engine: Engine, packet: Packet) -> None:
    if packet["w"] is not engine.network.flat:
        engine.network.flat.copy_(packet["w"])
