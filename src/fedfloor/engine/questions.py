"""Questions to devices: the answers to a ``Probe``, their price, and which of them are accepted.

A question is one class. Execution, prices, forecasts, the wire and the account of privacy read the class and know no
question by name.
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

from fedfloor import ranges
from fedfloor.data.dataset import Indices, Labels
from fedfloor.engine import calibrate, local_update
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.evaluate import block_outputs, device_blocks
from fedfloor.engine.steps import BLOCK, full_gradient
from fedfloor.errors import SettingError, shown, unknown
from fedfloor.models.parcel import Packet
from fedfloor.network.price import QuestionCost
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.park import Park
from fedfloor.parts.extractors import Scaling, mean_features
from fedfloor.parts.extractors import extractor as named_extractor
from fedfloor.parts.grouping import hashed
from fedfloor.plan.nodes import FORWARD, Probe, Scalar, Work, model_name
from fedfloor.plan.schedule import Key

SURVEY = "survey"
COUNT_BYTES = 4
HASH_BYTES = 8
HASHES = 4096  # of one answer
ROUNDING = 1e-4  # of moments that are sent in single precision
RESOURCES_BYTES = 16  # two numbers: seconds of a pass, metres to the base station


@dataclass(frozen=True)
class Sizes:
    """The sizes from which questions are priced."""

    model: int  # bytes of the packet
    number: int  # bytes of one number of it
    gradient: int  # bytes of a gradient of the trained numbers
    classes: int  # F, of which a census counts samples
    classifier: int  # numbers of the model that are its classifier's; 0 where that is unknown
    shape: tuple[int, ...]  # of a sample
    samples: float  # of a device, the mean


@dataclass(frozen=True)
class Question(ABC):
    """A question with its settings.

    Attributes:
        counts: whether the answer is class counts (they may carry a census's noise); zeros for a device that does not
            answer.
        drifts: whether the answer changes with the park's clock.
        weighs: whether the size of an answer decides how much it counts, so that far larger ones are refused.
        vector: whether the answer is a tensor [n] in the model's type; else it is JSON.
        extracts: whether it extracts features: devices take it with the settings of their own experiment alone.
        trains: whether its settings are those of a visit's work.
        shared: whether of the model only the part arrives that devices do not keep as their own.
    """

    settings: Mapping[str, Scalar]

    counts: ClassVar[bool] = False
    drifts: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    vector: ClassVar[bool] = False
    extracts: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    shared: ClassVar[bool] = False

    def harmless(self, classes: int) -> float:
        """Return the size up to which an answer never counts as too large."""
        return 0.0

    def excess(self) -> str:
        """Return the reason why a device refuses the settings of another machine's question; "" where it does not."""
        return ""

    @abstractmethod
    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        """Answer for a device with the model that arrived; the engine's network may be overwritten."""

    @abstractmethod
    def price(self, sizes: Sizes) -> QuestionCost:
        """Return bytes down and up, passes over the device's samples, and whether the model goes along."""

    def pretended(self, park: Park, device: int, trained: int) -> Any:
        """Return an answer for a forecast, where nothing is trained; ``trained`` numbers has a model."""
        return park.classes(device)

    def checked(self, answer: object, device: int, engine: Engine) -> Any:
        """Return another machine's answer in JSON; RefusedError: it is out of range, or no JSON is due."""
        raise ranges.RefusedError("kind", "the question is not answered in JSON.")

    def fits(self, vector: Tensor, device: int, engine: Engine) -> None:
        """Refuse a vector of the right length whose numbers no such device can have, by RefusedError."""
        return

    def length(self, engine: Engine) -> int | None:
        """Return the length of a vector; None where it is known to devices alone."""
        return None


class Census(Question):
    """The class counts of the device's present samples, [F]."""

    counts = drifts = True

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        return [int(count) for count in engine.park.census([device], tick, [engine.memory.visits[device]])[0]]

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(0, COUNT_BYTES * sizes.classes)

    def checked(self, answer: object, device: int, engine: Engine) -> list[int]:
        park, whole = engine.park, not self.drifts
        noise, held = ranges.noise(park.census_epsilon), int((park.sizes if whole else park.holdings)[device])
        return ranges.counts(answer, len(park.dataset.classes), held, noise, -noise if whole else 0)


class ClassCounts(Census):
    """The class counts of the device's whole local set, [F]."""

    drifts = False

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        return [int(count) for count in engine.park.classes(device)]


class MeanLoss(Question):
    """The mean loss of the arriving model over all the samples that the device holds."""

    weighs = True

    def harmless(self, classes: int) -> float:
        return math.log(classes)

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> float:
        network, samples, total = engine.network, engine.samples(device, tick), 0.0
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
    """The mean losses of all models that arrive, over all the samples that the device holds, in the models' order.

    Settings: ``models``, their number.
    """

    weighs = False

    def excess(self) -> str:
        count = self.settings.get("models")
        return "" if type(count) is int and count >= 1 else f"{shown(repr(count))} models; must be a number of them."

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
    """The gradient of the arriving model's mean loss over all its samples, [trained]."""

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
    """The model that local training makes of the arriving one, [P]; it is not kept.

    Settings: those of :class:`~fedfloor.plan.nodes.Work`.
    """

    weighs = vector = trains = True

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
    """The mean (1/n) Σ_i f(x_i) of the features of the device's samples, [D].

    Settings: ``extractor``, by name, and its own.
    """

    weighs = vector = extracts = True
    OWN: ClassVar[tuple[str, ...]] = ()  # settings that are not the extractor's

    def excess(self) -> str:
        return "" if isinstance(self.settings.get("extractor"), str) else "no extractor is named."

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        extractor, park = self._extractor(), engine.park
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
        extractor, needs = self._extractor(), self._extractor().needs_model
        size = sizes.classifier // sizes.classes - 1 if needs else extractor.dimension(sizes.shape)
        return QuestionCost(sizes.model if needs else 0, sizes.number * size, FORWARD, model=needs)

    def _extractor(self) -> Any:
        own = {name: value for name, value in self.settings.items() if name not in ("extractor", *self.OWN)}
        return named_extractor(str(self.settings["extractor"]), own)


class Hash(MeanFeatures):
    """h integers ⌊(a_i·v + b_i)/r⌋, v the mean features; a and b are the same on all devices, by the seed.

    Settings: those of :class:`MeanFeatures`, ``hashes`` h and ``width`` r.
    """

    weighs = vector = False
    OWN = ("hashes", "width")

    def excess(self) -> str:
        count, width = self.settings.get("hashes"), self.settings.get("width")
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
    """The first two moments of the samples as they go into the network: n, the mean m and Σ (x − m)(x − m)ᵀ.

    These are worth as much as n, Σ x and Σ x xᵀ, and lose less to rounding. The matrix is its upper triangle, row by
    row: [1 + D + D(D + 1)/2] for samples of D numbers.
    """

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
        size, held = math.prod(engine.park.dataset.shape), int(engine.park.holdings[device])
        row, column = torch.triu_indices(size, size)
        scatter = vector[1 + size :].double()
        squares = scatter[row == column]
        if float(vector[0]) != held or bool((squares < 0).any()):
            raise ranges.RefusedError("range", f"no moments of its {held} samples.")
        # s_ij² ≤ s_ii·s_jj, up to the rounding of single precision
        if bool((scatter**2 > (1 + ROUNDING) * squares[row] * squares[column] + ROUNDING).any()):
            raise ranges.RefusedError("range", "its scatter matrix has covariances that the variances exclude.")


class Scores(Question):
    """The counts of its held-out normal samples' scores in bins, which yield a threshold: see ``calibrate``.

    Settings: ``low`` and ``width``, the bins of a round of the bisection.
    """

    def excess(self) -> str:
        return calibrate.settings(self.settings.get("low"), self.settings.get("width"))

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:
        if not engine.task.calibrates:
            raise SettingError(f"data.task = '{engine.task.kind}' has no scores to count: only reconstruction does.")
        _arrived(engine, packet)
        scores = calibrate.scores(engine, calibrate.of_device(engine.park, device))
        low, width = (float(self.settings[name] or 0) for name in ("low", "width"))
        return [int(count) for count in calibrate.counts(scores, low, width)]

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(sizes.model + 2 * sizes.number, COUNT_BYTES * (calibrate.BINS + 2), FORWARD, model=True)

    def pretended(self, park: Park, device: int, trained: int) -> list[int]:
        return [0] * (calibrate.BINS + 2)

    def checked(self, answer: object, device: int, engine: Engine) -> list[int]:
        return ranges.counts(answer, calibrate.BINS + 2, calibrate.most(engine.park, device), noun="scores")


class Outputs(Question):
    """The outputs of the device's own model for its test samples, and for those of no device.

    A vector: the summed loss of each block, the predicted bin of each sample, and S scores of each.

    Settings: ``scored``, the bin of the requested scores; −1: none, the number of bins: all.
    """

    vector = shared = True

    def excess(self) -> str:
        return "" if type(self.settings.get("scored")) is int else "the bin of the requested scores is not named."

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
        blocks, scored = self._blocks(engine, device), self._scored(engine)
        samples = sum(len(rows) for _, rows in blocks)
        if vector.numel() != len(blocks) + samples * (1 + len(scored)):
            raise ranges.RefusedError("shape", f"{vector.numel()} numbers are not outputs for {samples} test samples.")
        losses, bins, _ = outputs_of(vector.numpy(), blocks, scored)
        exact = np.array_equal(bins, vector.numpy()[len(blocks) : len(blocks) + samples])
        if not exact or bins.min() < 0 or bins.max() >= len(engine.park.dataset.classes) or losses.min() < 0:
            raise ranges.RefusedError("range", "its predictions are not classes, or a loss is below 0.")

    def _blocks(self, engine: Engine, device: int) -> list[tuple[int, Indices]]:
        return device_blocks(engine.park.test_devices, device)

    def _scored(self, engine: Engine) -> list[int]:
        scored, bins = int(self.settings["scored"] or 0), len(engine.park.dataset.classes)
        return list(range(bins)) if scored >= bins else [scored] if scored >= 0 else []


def scored_as(scored: Sequence[int]) -> int:
    """Return the ``scored`` setting of :class:`Outputs`: none, one, or all bins.

    >>> scored_as([]), scored_as([3]), scored_as([0, 1, 2])
    (-1, 3, 3)
    """
    return -1 if not scored else scored[0] if len(scored) == 1 else len(scored)


def outputs_of(
    vector: NDArray[np.float32], blocks: Sequence[tuple[int, Indices]], scored: Sequence[int]
) -> tuple[NDArray[np.float64], Labels, NDArray[np.float32]]:
    """Return an answer to :class:`Outputs` as :func:`block_outputs` returns it."""
    samples = sum(len(rows) for _, rows in blocks)
    losses, bins, scores = np.split(vector, [len(blocks), len(blocks) + samples])
    return losses.astype(np.float64), bins.astype(np.int64), scores.reshape(samples, len(scored))


def lengths(size: int) -> int:
    """Return the length of the moments of samples with ``size`` numbers."""
    return 1 + size + size * (size + 1) // 2


class DeviceResources(Question):
    """A device on the network: seconds of a pass over its data, and metres to the base station."""

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> dict[str, float]:
        sites = engine.sites
        if sites is None:
            raise SettingError("a Probe for 'resources' needs a [network], such as --set network.profile=lte-cat-m2.")
        distance = {} if sites.distance_m is None else {"distance_m": float(sites.distance_m[device])}
        return {"pass_s": float(sites.pass_s[device]), **distance}

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(0, RESOURCES_BYTES)

    def pretended(self, park: Park, device: int, trained: int) -> None:
        return

    def checked(self, answer: object, device: int, engine: Engine) -> dict[str, float]:
        if not isinstance(answer, dict) or not {"pass_s"} <= set(answer) <= {"pass_s", "distance_m"}:
            raise ranges.RefusedError("answer", "it must have pass_s, and distance_m if known, and no other key.")
        most = {"pass_s": ranges.SECONDS, "distance_m": ranges.METRES}
        return {name: ranges.number(value, 0, most[name], name) for name, value in answer.items()}


class Survey(Question):
    """A step of the normalisation's survey, which is answered before round 1: only its price is known here.

    Settings: ``down`` and ``up``, its bytes.
    """

    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        raise SettingError("a survey is not a question of a plan: the normalisation's questions come before it.")

    def price(self, sizes: Sizes) -> QuestionCost:
        return QuestionCost(int(self.settings["down"] or 0), int(self.settings["up"] or 0))


QUESTIONS: dict[str, type[Question]] = {
    "census": Census,
    "classes": ClassCounts,
    "loss": MeanLoss,
    "losses": Losses,
    "gradient": Gradient,
    "resources": DeviceResources,
    "moments": Moments,
    "scores": Scores,
    "features": MeanFeatures,
    "hash": Hash,
    "profile": Profile,
    "outputs": Outputs,
    SURVEY: Survey,
}


def question(node: Probe) -> Question:
    """Return the question of a node."""
    if node.what not in QUESTIONS or node.what == SURVEY:
        raise unknown("question", node.what, [name for name in QUESTIONS if name != SURVEY])
    return QUESTIONS[node.what](node.settings)


def _arrived(engine: Engine, packet: Packet) -> None:
    if packet["w"] is not engine.network.flat:
        engine.network.flat.copy_(packet["w"])
