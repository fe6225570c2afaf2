"""A visit: what a packet's arrival at a device sets off, from the device's memory to the packet that goes on.

A visit that trains the classifier alone extracts the features of the samples once, by the layers that stay as they are,
and trains the classifier on them: exact in arithmetic, not in rounding.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.chance import generator
from fedfloor.engine import steps, travel
from fedfloor.engine.engine import Engine, FrozenExtractor, Samples, classifier_layer
from fedfloor.engine.memory import extractor_bytes
from fedfloor.engine.private import train_private
from fedfloor.engine.steps import BLOCK, full_gradient
from fedfloor.engine.visit import VisitStats, is_linear_visit, train, train_linear, trained_part
from fedfloor.errors import SettingError
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.models.saved import OWN
from fedfloor.parts import objectives
from fedfloor.parts.objective import Objective, Visit
from fedfloor.parts.proximal import Reached, evaluating, tapped
from fedfloor.plan.nodes import ARRIVED, TRAVEL, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.tasks.classification import CLASSIFICATION

ALIKE = ("plain", "prox")  # objectives that ask the network for its outputs alone
# of a work, what training on features implements
FIELDS = ("objective", "settings", "epochs", "steps", "batch_size", "rate", "momentum", "weight_decay", "trains",
          "optimizer", "beta1", "beta2", "eps", "moments", "clip_norm", *TRAVEL)  # fmt: skip


class FeatureSamples:
    """Features x [n, D] with targets y [n] in the place of :class:`~fedfloor.engine.engine.Samples`."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: Tensor | slice) -> Tensor:
        """Return the chosen features."""
        return self.x[rows] if isinstance(rows, slice) else self.x.index_select(0, rows.to(self.x.device))

    def chunk(self, batch_size: int) -> int:
        """Return how many are taken at a time: whole batches, as many as there may be."""
        return batch_size * max(1, -(-len(self) // batch_size))


class VisitExtractor:
    """What an objective may read of the features: see :class:`fedfloor.parts.objective.Extractor`."""

    def __init__(self, engine: Engine, samples: Samples, key: Key, name: str = "") -> None:
        self._engine, self._samples, self._key, self._name = engine, samples, key, name
        self._features: dict[str, Tensor] = {}

    @cached_property
    def name(self) -> str:
        """Digest of the extractor's numbers; they are kept, so that devices can refer to them."""
        numbers = outside(self._engine.network)
        digest = self._name or hashlib.sha256(extractor_bytes(numbers)).hexdigest()
        self._engine.memory.keep(numbers, digest)
        return digest

    @property
    def before(self) -> str:
        """Digest of the extractor that the device's memory was made with."""
        return self._engine.memory.extractor(self._key.device)

    @property
    def labels(self) -> Tensor:
        """Classes of what the device holds now, int64 [n]."""
        return self._samples.y

    def stored(self) -> Tensor:
        """Return what the device holds now as it is stored, [n, *shape]."""
        return self._samples.stored()

    def window(self, name: str = "") -> Tensor:
        """Return the features [n, D] of what the device holds now; by an earlier extractor where one is named."""
        if name not in self._features:
            network = self._engine.network
            if not name:
                self._features[name] = extracted(network, self._samples)
            else:
                now = network.flat.clone()
                put_outside(network, self._engine.memory.numbers(name))
                try:
                    self._features[name] = extracted(network, self._samples)
                finally:
                    network.flat.copy_(now)
        return self._features[name]

    def of(self, stored: Tensor) -> Tensor:
        """Return the features [n, D] of samples as they are stored, [n, *shape]."""
        labels = np.zeros(len(stored), np.int64)
        return extracted(self._engine.network, self._engine.wrap(stored.cpu().numpy(), labels))

    def chance(self) -> np.random.Generator:
        """Return a generator keyed by the visit."""
        return generator(self._key.seed, "kept", *self._key.place())


def extracted(network: Network, samples: Samples) -> Tensor:
    """Return the input of the classifier, [n, …]: no gradient, evaluation mode."""
    layer, blocks = classifier_layer(network), []
    with evaluating(network.module), torch.no_grad():
        for first in range(0, len(samples), BLOCK):
            with tapped(layer, stop=True) as seen, suppress(Reached):
                network.module(samples.values(slice(first, first + BLOCK)))
            blocks += seen
    return torch.cat(blocks)


def extracts_once(engine: Engine, work: Work) -> bool:
    """Return whether a visit may be trained on features that are extracted once, exact where samples do not mix."""
    fits = engine.shortcuts and work.trains == "classifier" and work.objective in ALIKE and work.only(*FIELDS)
    return fits and engine.separable and engine.headed is not None


def require_head(engine: Engine, whose: str) -> None:
    """Refuse a network that does not end in its classifier, or whose features are no rows of numbers."""
    network = engine.network
    network.part("classifier")
    if engine.headed is None:
        raise SettingError(
            f"objective {whose}: it is trained on what goes into the classifier '{network.classifier}', and what "
            "comes out of that is not what the network says. Name the network's last layer with model.classifier, and "
            "let forward() return its output."
        )
    if len(engine.headed) != 1:
        raise SettingError(
            f"objective {whose}: what goes into the classifier '{network.classifier}' is {list(engine.headed)} for a "
            "sample, and devices keep rows of features, [length]. Name the network's last layer with model.classifier."
        )


def outside(network: Network) -> Tensor:
    """Return a copy of the numbers of the flat model that are not the classifier's."""
    part = network.part("classifier")
    return torch.cat([network.flat[: part.start], network.flat[part.stop :]])


def put_outside(network: Network, numbers: Tensor) -> None:
    """Put the numbers that are not the classifier's into the flat model."""
    part = network.part("classifier")
    network.flat[: part.start] = numbers[: part.start]
    network.flat[part.stop :] = numbers[part.start :]


def local_update(
    engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
) -> tuple[Packet, Receipt]:
    """Train the model of a packet where it arrived; return what leaves, and the receipt but for its bytes.

    Args:
        engine: its network ends with the trained model; what the device keeps is committed.
        extractor: the round's extractor; its name is noted.

    Raises:
        SettingError: work that the network or the packet does not fit.
        RunError: the loss became infinite or not a number, or the device's memory is gone.
    """
    goal = objectives.objective(work.objective, work.settings)
    flat, samples, device = engine.network.flat, engine.samples(key.device, key.tick), key.device
    if packet["w"] is not flat:
        flat.copy_(packet["w"])
    if work.sends:
        return _personal(engine, work, packet, key, goal, samples)
    keeps = goal.remembers or work.keeps_moments or travel.keeps(engine.network, work)
    kept = {name: tensor.to(flat.device) for name, tensor in engine.memory.load(device).items()} if keeps else {}
    moments, errors = steps.taken(kept), travel.taken(kept)
    arrived = flat.clone() if work.travel else flat
    goal.arrive(flat, kept, engine.network)
    beside = objectives.beside(goal, work.objective, packet)
    start, gradient = (
        flat.clone() if goal.needs_start else None,
        partial(full_gradient, engine.network, samples, engine.task),
    )
    about = Visit(start, kept, engine.network, beside, work, work.batches(len(samples)), gradient, task=engine.task)
    if goal.on_features:
        about = before_features(engine, goal, work, samples, about, key, extractor)
    stats = _trained(engine, work, goal, samples, about, key, moments)
    engine.memory.visits[device] += 1
    model, errors = travel.leave(engine.network, work, flat, arrived, errors, key)
    digest = None
    if keeps:
        belongs = about.frozen().name if goal.refers else "" if goal.remembers else engine.memory.extractor(device)
        own = goal.remember(flat, about) if goal.remembers else kept  # as it was, where only moments are new
        digest = engine.memory.commit(device, {**own, **moments, **errors}, belongs)
    figures = (stats.steps, len(samples), stats.loss_first, stats.loss_last, stats.accuracy)
    receipt = Receipt(device, key.visit, key.tick, *figures, 0, lost=False, memory=digest)
    return {**packet, "w": model, **objectives.sent(work.objective, goal.send(flat, about), beside)}, receipt


def _personal(
    engine: Engine, work: Work, packet: Packet, key: Key, goal: Objective, samples: Samples
) -> tuple[Packet, Receipt]:
    """Train with the device's own part of the model in place of what arrived of it, which goes on as it was.

    What the objective reads as the model that arrived has the device's own part, but for a visit that trains a model
    beside it.
    """
    beside = work.sends == ARRIVED
    if goal.travels or (goal.remembers and not beside):
        raise SettingError(
            f"objective '{work.objective}' in visits that keep {work.own} of the model: a device keeps that, and "
            "nothing else. Use an objective that keeps and sends nothing beside it."
        )
    flat, device, start = engine.network.flat, key.device, engine.network.flat.clone()
    kept = {name: tensor.to(flat.device) for name, tensor in engine.memory.load(device).items()}
    moments, errors, own = steps.taken(kept), travel.taken(kept), engine.network.parcel(work.own)
    if goal.remembers:
        goal.arrive(flat, kept, engine.network)
    else:
        flat.copy_(personal(engine, device, start))
    before = (start if beside else flat.clone()) if goal.needs_start else None
    gradient = partial(full_gradient, engine.network, samples, engine.task)
    about = Visit(before, kept, engine.network, {}, work, work.batches(len(samples)), gradient, task=engine.task)
    stats = _on_samples(engine, work, goal, samples, about, key, moments)
    engine.memory.visits[device] += not beside
    more = goal.remember(flat, about) if goal.remembers else {}
    kept_now = {f"{OWN} {work.own}": own.cut(flat).clone(), **more, **moments}
    flat.copy_(start if beside else own.put(own.cut(start), flat))
    model, errors = travel.leave(engine.network, work, flat, start, errors, key)
    digest = engine.memory.commit(device, {**kept_now, **errors})
    figures = (stats.steps, len(samples), stats.loss_first, stats.loss_last, stats.accuracy)
    return {**packet, "w": model}, Receipt(device, key.visit, key.tick, *figures, 0, lost=False, memory=digest)


def personal(engine: Engine, device: int, model: Tensor) -> Tensor:
    """Return a model with a device's own part in it; ``model`` itself where it has none."""
    for name, numbers in engine.memory.load(device).items():
        if name.startswith(f"{OWN} "):
            return engine.network.parcel(name.removeprefix(f"{OWN} ")).put(numbers.to(model.device), model)
    return model


def before_features(
    engine: Engine, goal: Objective, work: Work, samples: Samples, about: Visit, key: Key, extractor: FrozenExtractor
) -> Visit:
    """Return the visit of an objective that trains on features, with its extractor."""
    trained_part(engine.network, goal, work)
    require_head(engine, f"'{work.objective}'")
    eye = VisitExtractor(engine, samples, key, extractor.name)
    if extractor.frozen and goal.refers:
        extractor.name = eye.name
    return replace(about, extractor=eye)


def _on_samples(
    engine: Engine, work: Work, goal: Objective, samples: Samples, about: Visit, key: Key, moments: dict[str, Tensor]
) -> VisitStats:
    if work.sample_clip is not None:
        return train_private(engine.network, samples, work, goal, about, key, moments, hidden=engine.secret)
    return train(engine.network, samples, work, goal, about, key, shortcuts=engine.shortcuts, moments=moments)


def _trained(
    engine: Engine, work: Work, goal: Objective, samples: Samples, about: Visit, key: Key, moments: dict[str, Tensor]
) -> VisitStats:
    network = engine.network
    if work.sample_clip is not None:
        return _on_samples(engine, work, goal, samples, about, key, moments)
    if goal.on_features:
        data = FeatureSamples(*goal.features(about))
        about = replace(about, steps=work.batches(len(data)))
    elif extracts_once(engine, work):
        data = FeatureSamples(extracted(network, samples), samples.y)
    else:
        return _on_samples(engine, work, goal, samples, about, key, moments)
    layer = classifier_layer(network)
    fits = engine.shortcuts and engine.task == CLASSIFICATION
    if fits and isinstance(layer, nn.Linear) and is_linear_visit(layer, work, goal):
        return train_linear(layer, data, work, key)
    return train(network, data, work, goal, about, key, layer, moments=moments)
