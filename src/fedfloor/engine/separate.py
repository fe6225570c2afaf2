"""Evaluation of several models on the test data: each device's own model, or its cohort's, on its samples."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.data.dataset import Indices, Labels
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import SampleAnswers, Score, block_outputs, device_blocks, score
from fedfloor.engine.executor import ask
from fedfloor.engine.local_update import personal
from fedfloor.engine.questions import outputs_of, scored_as
from fedfloor.engine.visit import train
from fedfloor.models.parcel import Packet
from fedfloor.models.saved import OWN
from fedfloor.park.described import device_accuracy
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.plan.nodes import Probe, Work, keeping, model_name
from fedfloor.plan.schedule import Key, several
from fedfloor.tasks.figures import ACCURACY, Figure, recalls

NOBODY = -1
log = logging.getLogger(__name__)


class Tuning(NamedTuple):
    """The work with which devices train their models before the evaluation, and its round and tick."""

    work: Work
    round: int
    tick: int


def evaluate(
    engine: Engine, packet: Packet, headline: Figure = ACCURACY, cohorts: Mapping[int, int] | None = None,
    tune: Tuning | None = None, own: str = "",
) -> Score:  # fmt: skip
    """Evaluate every device's own model, or its cohort's; call it on every rank.

    A test sample is evaluated with its device's model. If devices keep a part of the model, a device that was never
    visited has the shared model with the mean of these parts. Samples without such a device (a common test set, devices
    that only test) are evaluated with all K models: a metric is the mean (1/K) Σ_k of its value with model k. In the
    confusion matrix the other samples then count K times. The accuracy expected of a device on its class shares is that
    of its model.

    Args:
        engine: the engine, whose resident network is overwritten.
        packet: the models with which devices begin; the first is evaluated where no device has a model yet.
        tune: training of every device's model before the evaluation; the trained models are not kept.
        own: the part of the model that devices keep. Real machines evaluate their test samples themselves; there a
            device without an own part has that of the first model.
    """
    remote = engine.executor is not None
    park = engine.park
    scored = headline.scored(engine.park.dataset.classes)
    cohorts = cohorts_of(engine, packet, cohorts or {})
    owned = engine.memory.held.keys()
    tested = park.test_devices[park.test_devices >= 0].tolist() if owned else []
    models = sorted(range(park.devices) if tune else cohorts or owned | set(tested)) or [NOBODY]
    shared = mean_part(engine, packet["w"]) if owned and len(models) > len(owned) and not (cohorts or remote) else None
    # device → the device with whose model it is evaluated
    holder = {k: k for k in models} if tune else _holders(engine, models, cohorts)
    owner = np.array([holder.get(k, NOBODY) for k in park.test_devices.tolist()], np.int64)
    blocks = [block for device in sorted(set(holder.values())) for block in device_blocks(owner, device)]

    def load(device: int) -> None:
        own_start = packet[model_name(cohorts.get(device, 0))]
        if remote:
            its_model = own_start
        else:
            its_model = personal(engine, device, own_start) if shared is None or device in owned else shared
        engine.network.flat.copy_(its_model)
        if tune is not None:
            _tune(engine, tune, device)

    if remote:
        outputs = _remote_outputs(engine, packet, blocks, scored, load, own)
    else:
        outputs = block_outputs(engine, blocks, scored, load)
    return _combined(engine, headline, blocks, outputs, holder, owner)


def _combined(
    engine: Engine, headline: Figure, blocks: Sequence[tuple[int, Indices]],
    outputs: tuple[NDArray[np.float64], Labels, NDArray[np.float32]], holder: Mapping[int, int], owner: Indices,
) -> Score:  # fmt: skip
    """Return the score of several models from the outputs of blocks.

    ``holder`` maps each device to the one whose model was evaluated for it, ``owner`` each test sample to its device.
    """
    (sums, predicted, scores) = outputs
    park = engine.park
    models = list(holder)
    many = Counter(holder.values())
    holders = sorted(set(holder.values()))
    times = np.where(owner == NOBODY, 1.0 / len(models), 1.0)
    weights = [times[rows[0]] * (many[k] if owner[rows[0]] == NOBODY else 1) for k, rows in blocks]
    loss = float(sums @ np.array(weights)) / park.test_samples
    rows = np.concatenate([rows for _, rows in blocks])  # the sample of each output, and the device of its model
    by = np.repeat([device for device, _ in blocks], [len(rows) for _, rows in blocks])
    y = park.dataset.y_test[rows]
    has_own = owner[rows] != NOBODY
    counts = np.where(has_own, 1, np.bincount(holders, [many[k] for k in holders])[by] if NOBODY not in holders else 1)
    right = np.bincount(rows, weights=(predicted == y) * counts, minlength=park.test_samples) * times
    owners = None if park.dataset.owner_test is None else park.dataset.owner_test[rows]
    answers = SampleAnswers(engine, y, predicted, scores, headline, owners, rows)
    evaluated = holders if not has_own.all() else holders[:1]
    seen_by = {k: answers.predictions(has_own | (by == k), loss) for k in evaluated}
    views = [seen_by[holder[k]] for k in models] if not has_own.all() else list(seen_by.values())
    table = np.sum([view.table for view in views], axis=0)
    every = device_accuracy(park, right, recalls(table))
    if not has_own.any():
        model_of = np.array([holder.get(k, NOBODY) for k in park.roster.numbers.tolist()])
        for k, view in seen_by.items():
            every = np.where(model_of == k, device_accuracy(park, right, recalls(view.table)), every)
    return score(engine, loss, right, views, headline, table, answers, every)


def _remote_outputs(
    engine: Engine, packet: Packet, blocks: Sequence[tuple[int, Indices]], scored: Sequence[int],
    load: Callable[[int], None], own: str,
) -> tuple[NDArray[np.float64], Labels, NDArray[np.float32]]:  # fmt: skip
    """Return outputs of blocks as :func:`block_outputs` does; devices with an own part compute theirs themselves."""
    devices = dict.fromkeys(device for device, _ in blocks)
    to_ask = tuple(k for k in devices if k in engine.memory.held)
    node = Probe(to_ask, "outputs", settings={"scored": scored_as(scored)})
    shared = {"w": engine.network.parcel(keeping(own)).cut(packet["w"])}
    answers = ask(engine, node, shared, 0, engine.team) if to_ask else {}
    silent = [k for k in to_ask if k not in answers]
    if silent:
        log.warning(
            "devices %s did not evaluate their models: the shared part with the first model's '%s' replaces them.",
            silent, own,
        )  # fmt: skip
    parts = []
    for k in devices:
        mine = [block for block in blocks if block[0] == k]
        if k in answers:
            parts.append(outputs_of(answers[k]["outputs"].numpy(), mine, scored))
        else:
            parts.append(block_outputs(engine, mine, scored, load))
    losses, bins, scores = zip(*parts, strict=True)
    return np.concatenate(losses), np.concatenate(bins), np.concatenate(scores)


def cohorts_of(engine: Engine, packet: Packet, known: Mapping[int, int]) -> dict[int, int]:
    """Return every device's model number; devices without one get the model with the least training loss.

    {} if the packet has a single model.
    """
    if not several(packet):
        return {}
    many = sum(model_name(number) in packet for number in range(len(packet)))
    rest = tuple(k for k in range(engine.park.devices) if k not in known)
    answers = ask(engine, Probe(rest, "losses", settings={"models": many}), packet, 0, engine.team) if rest else {}
    return {**known, **{k: own["losses"].index(min(own["losses"])) for k, own in answers.items()}}


def _holders(engine: Engine, models: list[int], cohorts: Mapping[int, int]) -> dict[int, int]:
    """Return the device evaluated for each device: its cohort's first, or itself if its model is its own."""
    first: dict[int, int] = {}
    apart = engine.task.calibrates or not cohorts
    return {k: k if apart or k in engine.memory.held else first.setdefault(cohorts[k], k) for k in models}


def _tune(engine: Engine, tune: Tuning, device: int) -> None:
    """Train the resident network on a device's samples, with random draws of its own key."""
    with torch.inference_mode(mode=False):
        samples = engine.samples(device, tune.tick)
        about = Visit(None, {}, engine.network, {}, tune.work, tune.work.batches(len(samples)), task=engine.task)
        key = Key(engine.seed, tune.round, tune.tick, device, NOBODY)
        train(engine.network, samples, tune.work, Plain(), about, key, shortcuts=engine.shortcuts)


def mean_part(engine: Engine, model: Tensor) -> Tensor:
    """Return a model in which the mean of all devices' own parts replaces its part; unchanged if no device has one."""
    total = torch.zeros_like(model, dtype=torch.float64)
    many = 0
    for device in sorted(engine.memory.held):
        if not engine.memory.load(device).keys() & {f"{OWN} all"}:  # a whole model is no part of the shared one
            total = total + personal(engine, device, model).double()
            many = many + 1
    return (total / many).to(model.dtype) if many else model
