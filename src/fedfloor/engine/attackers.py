"""Devices simulated in this process some of which attack: the local executor, with what leaves attackers' visits
changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from fedfloor.chance import generator
from fedfloor.data.dataset import Labels, Targets, Values
from fedfloor.engine import travel
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.executor import LocalExecutor
from fedfloor.engine.local_update import local_update
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.park.park import Park
from fedfloor.parts.attacks import AttackedData, AttackedVisit, Attackers, Backdoor
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

EARLIER = "attack: received before"  # the name of the model that an attacker keeps


class AttackingExecutor(LocalExecutor):
    """Devices that are simulated in this process, and attackers among them.

    An attacker trains like any other device, on data that the attack may have changed; its update is then exchanged
    before it is coded and leaves. Trained numbers that travel are changed; statistics (batch norm's) and entries
    beside the model are those of its training. Every draw is keyed by the visit, so that ranks agree to the bit.

    Args:
        attackers: the ``[faults] attackers`` table.
        devices: the numbers of the devices that attack.
    """

    def __init__(self, attackers: Attackers, devices: Sequence[int]) -> None:
        super().__init__()
        self.attackers, self.attack, self.devices = attackers, attackers.attack, tuple(devices)
        self._rehearsed: tuple[object, object, list[Tensor]] = (lambda: None, None, [])

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt]:
        network, numbers = engine.network, _numbers(engine.network, work)
        if key.device not in self.devices or not len(numbers):
            return super().visit(engine, work, packet, key, extractor)
        base = packet["w"].clone() if packet["w"] is network.flat else packet["w"]
        arrived = dict(self._arrived(network, work, packet, key))
        if arrived["w"] is network.flat:
            arrived["w"] = base
        plain = replace(work, travel="")  # the attack acts before the codecs
        every = self._every(engine, plain, arrived, key, extractor)
        earlier = engine.memory.load(key.device).get(EARLIER) if self.attack.keeps else None
        sent, receipt = self._trained(engine, plain, arrived, key, extractor)
        if self.attack.keeps:
            receipt = replace(receipt, memory=_keep(engine, key.device, arrived["w"]))
        start = arrived["w"]
        before = None if earlier is None else (earlier.to(start) - start)[numbers]
        chance = key.rng("attack"), generator(key.seed, "attack")
        visit = AttackedVisit((sent["w"] - start)[numbers], every, before, *chance)
        update = self.attack.sent(visit)
        model = sent["w"]
        if update is not visit.update:
            model = model.clone()
            model[numbers] = start[numbers] + update
        payload, _ = travel.leave(network, work, model, start, {}, key)
        return travel.received(network, work, {**sent, "w": payload}, base, key), receipt

    def _trained(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt]:
        """Let an attacker train on its data as the attack changes them; nobody else sees these."""
        engine.altered = partial(self._altered, engine, key)
        try:
            return local_update(engine, work, packet, key, extractor)
        finally:
            engine.altered = None

    def _altered(self, engine: Engine, key: Key, x: Values, y: Labels | Targets) -> tuple[Values, Labels | Targets]:
        mean, deviation = channel_statistics(engine)
        classes = len(engine.park.dataset.classes)
        return self.attack.data(AttackedData(x, y, classes, mean, deviation, key.rng("attack data")))  # type: ignore[arg-type]

    def _every(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> Sequence[Tensor]:
        """Return the updates that honest training of the arrived model gives on each attacker, in device order.

        They are worked out on every rank that needs them, once for the visits that the same model arrived at.
        """
        if not self.attack.together:
            return ()
        place = (work, key.seed, key.round, key.tick, key.visit)
        model, before, updates = self._rehearsed
        if model() is packet["w"] and before == place:  # type: ignore[operator]
            return updates
        was, updates = engine.memory.now(self.devices), []
        for device in self.devices:
            twin = replace(key, device=device)
            sent, _ = local_update(engine, work, packet, twin, FrozenExtractor(extractor.frozen, extractor.name))
            updates.append((sent["w"] - packet["w"])[_numbers(engine.network, work)])
            engine.memory.put_back(was)
        self._rehearsed = (ref(packet["w"]), place, updates)
        return updates


def channel_statistics(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and deviation of each channel, in units of a stored number, float64 [C]."""
    scale = engine.park.dataset.scale
    return engine.mean.cpu().double().numpy() / scale, engine.std.cpu().double().numpy() / scale


def triggered(engine: Engine) -> Park | None:
    """Return the park with the test samples of other classes, all with a backdoor's trigger and of its target class.

    The accuracy on them is the success of the backdoor. None without one, or where no test sample is of another class.
    """
    attack = engine.attackers.attack if isinstance(engine.attackers, AttackingExecutor) else None
    if not isinstance(attack, Backdoor):
        return None
    data, (mean, deviation) = engine.park.dataset, channel_statistics(engine)
    rows = np.flatnonzero(data.y_test != attack.target)
    if not len(rows):
        return None

    def take(indices: np.ndarray) -> Values:
        return attack.trigger(data.take_test(rows[indices]), mean, deviation)

    def cut(column: np.ndarray | None) -> np.ndarray | None:
        return None if column is None else column[rows]

    marked = replace(
        data, y_test=np.full(len(rows), attack.target), take_test=take, owner_test=cut(data.owner_test),
        first_test=cut(data.first_test), recording_test=cut(data.recording_test), held_by=cut(data.held_by),
    )  # fmt: skip
    return replace(engine.park, dataset=marked)


def _numbers(network: Network, work: Work) -> Tensor:
    """Return the places of the trained numbers that travel, int64, ascending."""
    parts = network.parcel(work.travels).parts
    every = [torch.arange(part.start, max(part.start, min(part.stop, network.trained))) for part in parts]
    return torch.cat([torch.arange(0), *every]).to(network.flat.device)


def _keep(engine: Engine, device: int, model: Tensor) -> str:
    """Put the model that arrived into an attacker's memory, beside what its objective keeps; return the digest."""
    memory = engine.memory
    return memory.commit(device, {**memory.load(device), EARLIER: model}, memory.extractor(device))
