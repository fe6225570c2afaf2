"""The local update of a visit: from the arrived packet and the device's memory to the packet that is sent back.

A visit that trains the classifier alone computes the samples' features once, by the frozen layers, and trains the
classifier on them: exact in arithmetic, not in rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.base.chance import DRAWING
from fedfloor.base.errors import DivergedError, RunError, SettingError
from fedfloor.base.outside import reason
from fedfloor.engine import private, steps
from fedfloor.engine.engine import Engine, FrozenExtractor, Samples, classifier_layer
from fedfloor.engine.memory import extractor_bytes
from fedfloor.engine.private import train_private
from fedfloor.engine.steps import BLOCK, full_gradient
from fedfloor.engine.summand import WithdrawnError, withdraws
from fedfloor.engine.travel import Replacing, VisitPath, pop_memory
from fedfloor.engine.visit import (
    SingleSampleError,
    VisitStats,
    is_linear_visit,
    train,
    train_linear,
    trained_part,
    without_single_samples,
)
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.models.saved import OWN
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.parts.objectives.proximal import Reached, evaluating, tapped
from fedfloor.plan.nodes import ARRIVED, TRAVEL, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.tasks.classification import CLASSIFICATION

T = TypeVar("T")
ALIKE = ("plain", "prox")  # objectives that read nothing but the network's outputs
# fields of a work that training on features implements
ON_FEATURES = ("objective", "settings", "epochs", "steps", "batch_size", "rate", "momentum", "weight_decay", "trains",
          "optimizer", "beta1", "beta2", "eps", "moments", "clip_norm", *TRAVEL)  # fmt: skip


class FeatureSamples:
    """Features x [n, D] with targets y [n], which replace :class:`~fedfloor.engine.engine.Samples` in training."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        return self.x[rows] if isinstance(rows, slice) else self.x.index_select(0, rows.to(self.x.device))

    def chunk(self, batch_size: int) -> int:
        return batch_size * max(1, -(-len(self) // batch_size))


class VisitExtractor:
    """The extractor of a visit's features: an implementation of :class:`Extractor`."""

    def __init__(self, engine: Engine, samples: Samples, key: Key, name: str = "") -> None:
        self._engine = engine
        self._samples = samples
        self._key = key
        self._name = name
        self._features: dict[str, Tensor] = {}

    @cached_property
    def name(self) -> str:
        """The digest of the extractor's parameters, which are stored so that device memories can refer to them."""
        numbers = outside(self._engine.network)
        digest = self._name or hashlib.sha256(extractor_bytes(numbers)).hexdigest()
        self._engine.memory.keep(numbers, digest)
        return digest

    @property
    def before(self) -> str:
        return self._engine.memory.extractor(self._key.device)

    @property
    def labels(self) -> Tensor:
        return self._samples.y

    def stored(self) -> Tensor:
        return self._samples.stored()

    def window(self, name: str = "") -> Tensor:
        if name not in self._features:
            network = self._engine.network
            now = self._engine.network.flat.clone() if name else None
            if name:  # the parameters of an earlier extractor, around the classifier's
                part = network.part("classifier")
                numbers = self._engine.memory.numbers(name)
                network.flat[: part.start] = numbers[: part.start]
                network.flat[part.stop :] = numbers[part.start :]
            try:
                self._features[name] = extracted(network, self._samples)
            finally:
                if now is not None:
                    network.flat.copy_(now)
        return self._features[name]

    def of(self, stored: Tensor) -> Tensor:
        labels = np.zeros(len(stored), np.int64)
        return extracted(self._engine.network, self._engine.wrap(stored.cpu().numpy(), labels))

    def chance(self) -> np.random.Generator:
        return self._key.rng("kept")


def extracted(network: Network, samples: Samples) -> Tensor:
    """Return the classifier's inputs for samples, [n, …], without gradient, in evaluation mode."""
    layer = classifier_layer(network)
    blocks = []
    with evaluating(network.module), torch.no_grad():
        for first in range(0, len(samples), BLOCK):
            with tapped(layer, stop=True) as seen, suppress(Reached):
                network.module(samples.values(slice(first, first + BLOCK)))
            blocks += seen
    return torch.cat(blocks)


def extracts_once(engine: Engine, work: Work) -> bool:
    """Return whether a visit may train on features computed once, which is exact where samples do not interact."""
    fits = engine.shortcuts and work.trains == "classifier" and work.objective in ALIKE and work.only(*ON_FEATURES)
    return fits and engine.separable and engine.headed is not None


def require_head(engine: Engine, whose: str) -> None:
    """Raise SettingError for a network that does not end in its classifier, or has features that are not rows."""
    network = engine.network
    network.part("classifier")
    if engine.headed is None:
        raise SettingError(
            f"objective {whose}: it is trained on the input of the classifier '{network.classifier}', whose output "
            "is not the network's output. Name the network's last layer with model.classifier, and "
            "let forward() return its output.",
            key="objective",
        )
    if len(engine.headed) != 1:
        raise SettingError(
            f"objective {whose}: the input of the classifier '{network.classifier}' is {list(engine.headed)} for a "
            "sample, and devices keep rows of features, [length]. Name the network's last layer with model.classifier.",
            key="objective",
        )


def outside(network: Network) -> Tensor:
    """Return a copy of the flat model's numbers without those of the classifier."""
    part = network.part("classifier")
    return torch.cat([network.flat[: part.start], network.flat[part.stop :]])


def local_update(
    engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor, acting: Replacing | None = None
) -> tuple[Packet, Receipt]:
    """Train the model of a packet on its device; return the packet to send back, and the receipt without its bytes.

    The device's memory is committed, and the digest of the round's extractor recorded in ``extractor``. An attacker
    trains and sends what ``acting`` returns. RunError: the loss is not finite, unless masks or noise protect the
    update; or the device's memory is missing.
    """
    goal = objectives.objective(work.objective, work.settings)
    network = engine.network
    flat = network.flat
    device = key.device
    path = VisitPath(network, work, acting)
    samples = engine.samples(device, key.tick, acting.alter if acting is not None else None)
    if packet["w"] is not flat:
        flat.copy_(packet["w"])
    own = _own_part(network, work, goal)

    # 1. What the device kept from its last visit; most visits keep nothing, and open no file
    keeps = own is not None or goal.remembers or work.keeps_moments or path.keeps
    kept = {name: tensor.to(flat.device) for name, tensor in engine.memory.load(device).items()} if keeps else {}
    moments = steps.taken(kept)
    errors = pop_memory(kept)

    # 2. The model to train, in the network's own buffer, which training overwrites: the arrived model is copied where
    # it is still needed afterwards, because a part of it goes back unchanged, or because a change of it is encoded
    arrived = flat.clone() if own is not None or work.travel or acting is not None else flat
    if own is None or goal.remembers:
        _attempted(engine, work, lambda: goal.arrive(flat, kept, network), lambda: None)
    else:
        flat.copy_(personal(engine, device, arrived))
    vectors = objectives.beside(goal, work.objective, packet) if own is None else {}
    start = (flat.clone() if work.counts else arrived) if goal.needs_start else None
    gradient = partial(full_gradient, network, samples, engine.task)
    about = Visit(start, kept, network, vectors, work, work.batches(len(samples)), gradient, task=engine.task)
    if goal.on_features and own is None:
        about = before_features(engine, goal, work, samples, about, key, extractor)

    # 3. Training; without a number of its own, a visit leaves the device's next one the same samples
    try:
        stats = _protected(engine, work, goal, samples, about, key, moments)
    except SingleSampleError as error:
        advice = without_single_samples(work.batch_size, len(samples), engine.park.holdings)
        raise RunError(f"{error} {advice}", key=error.key) from error
    engine.memory.visits[device] += work.counts

    # 4. What the device keeps, and what leaves: codecs add their error to the memory, which is committed after them
    entries = _left_behind(engine, work, goal, about, own, kept, arrived)
    belongs = _belongs(engine, goal, about, device) if keeps and own is None else ""
    model, errors = path.leave(flat, arrived, errors, key, hidden=engine.secret)
    digest = engine.memory.commit(device, {**entries, **moments, **errors}, belongs) if keeps else None
    sent = {} if own is not None else objectives.sent(work.objective, goal.send(flat, about), vectors)
    if path.noisy or not goal.judged:  # losses would tell of the samples what the noise hides
        stats = VisitStats(stats.steps, None, None, None)
    figures = (stats.steps, len(samples), stats.loss_first, stats.loss_last, stats.accuracy)
    receipt = Receipt(device, key.visit, key.tick, *figures, 0, lost=False, memory=digest)
    return {**packet, "w": model, **sent}, receipt


def _left_behind(
    engine: Engine, work: Work, goal: Objective, about: Visit, own: Parcel | None, kept: dict[str, Tensor],
    arrived: Tensor,
) -> dict[str, Tensor]:  # fmt: skip
    """Return what the device keeps of a trained model, in whose place the network's buffer then has what leaves."""
    flat = engine.network.flat
    entries = kept if own is None else {}
    if goal.remembers:
        entries = _attempted(engine, work, lambda: dict(goal.remember(flat, about)), lambda: kept)
    if own is None:
        return entries
    entries = {f"{OWN} {work.own}": own.cut(flat).clone(), **entries}
    flat.copy_(own.put(own.cut(arrived), flat) if work.counts else arrived)
    return entries


def _belongs(engine: Engine, goal: Objective, about: Visit, device: int) -> str:
    """Return the extractor that computed what the device keeps; "" for none, or the earlier one if nothing is new."""
    if goal.refers:
        return about.frozen().name
    return "" if goal.remembers else engine.memory.extractor(device)


def _own_part(network: Network, work: Work, goal: Objective) -> Parcel | None:
    """Return the part of the model that a visit lets its device keep; None without one.

    Raises:
        SettingError: the objective keeps or sends something else, too.
    """
    if not work.sends:
        return None
    if goal.travels or (goal.remembers and work.sends != ARRIVED):
        raise SettingError(
            f"objective '{work.objective}' in visits that keep {work.own} of the model: a device keeps only "
            "that part. Use an objective that neither keeps nor sends anything else."
        )
    return network.parcel(work.own)


def personal(engine: Engine, device: int, model: Tensor) -> Tensor:
    """Return a copy of a model with the device's own part in it; ``model`` itself where the device keeps none."""
    for name, numbers in engine.memory.load(device).items():
        if name.startswith(f"{OWN} "):
            return engine.network.parcel(name.removeprefix(f"{OWN} ")).put(numbers.to(model.device), model)
    return model


def before_features(
    engine: Engine, goal: Objective, work: Work, samples: Samples, about: Visit, key: Key, extractor: FrozenExtractor
) -> Visit:
    """Return the visit ``about`` with its extractor, for an objective that trains on features."""
    trained_part(engine.network, goal, work)
    require_head(engine, f"'{work.objective}'")
    eye = VisitExtractor(engine, samples, key, extractor.name)
    if extractor.frozen and goal.refers:
        extractor.name = eye.name
    return replace(about, extractor=eye)


def _protected(
    engine: Engine, work: Work, goal: Objective, samples: Samples, about: Visit, key: Key, moments: dict[str, Tensor]
) -> VisitStats:
    """Train as :func:`_trained`; where masks or noise protect the update, training that fails changes nothing.

    Who sends a model could choose one whose loss is undefined exactly if a sample has some property. An error, or
    numbers that are not finite, would state that without a mask or noise.
    """
    flat = engine.network.flat
    kept = {name: tensor.clone() for name, tensor in moments.items()}
    figure: float | None = 0.0
    if work.sample_clip is not None:
        private.check(engine.network, work)  # by the settings alone, whatever the samples
        figure = None

    def train() -> VisitStats:
        arrived = flat.clone()
        with DRAWING:
            stats = _trained(engine, work, goal, samples, about, key, moments)
        if VisitPath(engine.network, work).protected and not bool((flat - arrived).isfinite().all()):
            raise DivergedError(  # also for a difference of large numbers that is infinite
                f"the model of {key.where} became infinite or undefined in round {key.round}. Lower work.lr."
            )
        return stats

    def unchanged() -> VisitStats:
        moments.clear()
        moments.update(kept)
        return VisitStats(work.batches(len(samples)), figure, figure, figure)

    return _attempted(engine, work, train, unchanged)


def _attempted(engine: Engine, work: Work, call: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return the result of a call that sees samples, or models trained on them.

    Where masks or noise protect the update, a call that fails in whatever way leaves the model as it was, is told in
    the device's own log alone, and is replaced by ``otherwise``; or the visit is lost (:func:`withdraws`).
    """
    if not VisitPath(engine.network, work).protected:
        return call()
    flat = engine.network.flat
    before = flat.clone()
    try:
        return call()
    except SingleSampleError:  # this depends on numbers of samples alone
        raise
    except (Exception, SystemExit) as error:  # a user's own code may raise anything
        why = reason(error)
    flat.copy_(before)
    engine.unchanged.add(why, withdrawn=withdraws(work))
    if withdraws(work):
        raise WithdrawnError(why)
    return otherwise()


def _trained(
    engine: Engine, work: Work, goal: Objective, samples: Samples, about: Visit, key: Key, moments: dict[str, Tensor]
) -> VisitStats:
    """Train the network on the device's samples, or the classifier on their features; return the statistics."""
    network = engine.network
    if work.sample_clip is not None:
        return train_private(network, samples, work, goal, about, key, moments, hidden=engine.secret)
    if about.extractor is not None:
        data = FeatureSamples(*goal.features(about))
        about = replace(about, steps=work.batches(len(data)))
    elif extracts_once(engine, work):
        data = FeatureSamples(extracted(network, samples), samples.y)
    else:
        return train(network, samples, work, goal, about, key, shortcuts=engine.shortcuts, moments=moments)
    layer = classifier_layer(network)
    fits = engine.shortcuts and engine.task == CLASSIFICATION
    if fits and isinstance(layer, nn.Linear) and is_linear_visit(layer, work, goal):
        return train_linear(layer, data, work, key)
    return train(network, data, work, goal, about, key, layer, moments=moments)
