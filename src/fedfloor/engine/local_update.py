"""What happens where a packet arrives to be trained: memory, training, memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from fedfloor.engine import features, head, networks, optimisers, scopes
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.gradient import full
from fedfloor.engine.samples import Samples
from fedfloor.engine.visit import Trained, train
from fedfloor.errors import SettingError
from fedfloor.models.parcel import Packet
from fedfloor.models.saved import OWN
from fedfloor.parts import objectives
from fedfloor.parts.objective import Objective, Visit
from fedfloor.plan.nodes import ARRIVED, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.tasks.classification import CLASSIFICATION


def local_update(
    engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
) -> tuple[Packet, Receipt]:
    """Train the model of a packet where it arrived; return what goes on, and the receipt but for its bytes.

    Args:
        engine: its network ends with the trained model; what the device keeps is committed.
        work: what is done.
        packet: what arrived.
        key: of the visit; device −1 is the cloud.
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
    keeps = goal.remembers or work.keeps_moments
    kept = {name: one.to(flat.device) for name, one in engine.memory.load(device).items()} if keeps else {}
    moments = optimisers.taken(kept)
    goal.arrive(flat, kept, engine.network)
    beside = objectives.beside(goal, work.objective, packet)
    start, gradient = flat.clone() if goal.needs_start else None, partial(full, engine.network, samples, engine.task)
    about = Visit(start, kept, engine.network, beside, work, work.batches(len(samples)), gradient, task=engine.task)
    if goal.on_features:
        about = before_features(engine, goal, work, samples, about, key, extractor)
    got = _trained(engine, work, goal, samples, about, key, moments)
    engine.memory.visits[device] += 1
    digest = None
    if keeps:
        belongs = about.frozen().name if goal.refers else "" if goal.remembers else engine.memory.extractor(device)
        own = goal.remember(flat, about) if goal.remembers else kept  # as it was, where only moments are new
        digest = engine.memory.commit(device, {**own, **moments}, belongs)
    said = (got.steps, len(samples), got.loss_first, got.loss_last, got.accuracy)
    receipt = Receipt(device, key.visit, key.tick, *said, 0, lost=False, memory=digest)
    return {**packet, "w": flat, **objectives.sent(work.objective, goal.send(flat, about), beside)}, receipt


def _personal(
    engine: Engine, work: Work, packet: Packet, key: Key, goal: Objective, samples: Samples
) -> tuple[Packet, Receipt]:
    """Train with the device's own part of the model in place of what arrived of it, which goes on as it was.

    What the objective reads as the model that arrived has the device's own part, but for a visit that trains a model
    beside it.

    Raises:
        SettingError: work or an objective that such a visit cannot do, or a part that the model does not have.
        RunError: the loss became infinite or not a number, or the device's memory is gone.
    """
    beside = work.sends == ARRIVED
    if goal.travels or (goal.remembers and not beside):
        raise SettingError(
            f"objective '{work.objective}' in visits that keep {work.own} of the model: a device keeps that, and "
            "nothing else. Use an objective that keeps and sends nothing beside it."
        )
    flat, device, start = engine.network.flat, key.device, engine.network.flat.clone()
    kept = {name: one.to(flat.device) for name, one in engine.memory.load(device).items()}
    moments, own = optimisers.taken(kept), engine.network.parcel(work.own)
    if goal.remembers:
        goal.arrive(flat, kept, engine.network)
    else:
        flat.copy_(personal(engine, device, start))
    before = (start if beside else flat.clone()) if goal.needs_start else None
    gradient = partial(full, engine.network, samples, engine.task)
    about = Visit(before, kept, engine.network, {}, work, work.batches(len(samples)), gradient, task=engine.task)
    got = train(engine.network, samples, work, goal, about, key, shortcuts=engine.shortcuts, moments=moments)
    engine.memory.visits[device] += not beside
    more = goal.remember(flat, about) if goal.remembers else {}
    digest = engine.memory.commit(device, {f"{OWN} {work.own}": own.cut(flat), **more, **moments})
    flat.copy_(start if beside else own.put(own.cut(start), flat))
    said = (got.steps, len(samples), got.loss_first, got.loss_last, got.accuracy)
    return {**packet, "w": flat}, Receipt(device, key.visit, key.tick, *said, 0, lost=False, memory=digest)


def personal(engine: Engine, device: int, model: Tensor) -> Tensor:
    """Return a model with a device's own part in it; ``model`` itself where it has none."""
    for name, numbers in engine.memory.load(device).items():
        if name.startswith(f"{OWN} "):
            return engine.network.parcel(name.removeprefix(f"{OWN} ")).put(numbers.to(model.device), model)
    return model


def before_features(
    engine: Engine, goal: Objective, work: Work, samples: Samples, about: Visit, key: Key, extractor: FrozenExtractor
) -> Visit:
    """Let an objective that trains on features look at the extractor."""
    scopes.trained(engine.network, goal, work)
    features.require_head(engine, f"'{work.objective}'")
    eye = features.Extractor(engine, samples, key, extractor.name)
    if extractor.frozen and goal.refers:
        extractor.name = eye.name
    return replace(about, extractor=eye)


def _trained(
    engine: Engine, work: Work, goal: Objective, samples: Samples, about: Visit, key: Key, moments: dict[str, Tensor]
) -> Trained:
    """Train on the samples, or the classifier on their features."""
    network = engine.network
    if goal.on_features:
        data = features.Features(*goal.features(about))
        about = replace(about, steps=work.batches(len(data)))
    elif features.once(engine, work):
        data = features.Features(features.extracted(network, samples), samples.y)
    else:
        return train(network, samples, work, goal, about, key, shortcuts=engine.shortcuts, moments=moments)
    layer = networks.head(network)
    fits = engine.shortcuts and engine.task == CLASSIFICATION
    if fits and isinstance(layer, nn.Linear) and head.fits(layer, work, goal):
        return head.train(layer, data, work, key)
    return train(network, data, work, goal, about, key, layer, moments=moments)
