"""Executors of visits and questions on simulated devices, honest or attacking, dealt to the ranks."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.data.dataset import Labels, Targets, Values
from fedfloor.engine.aggregation import Aggregation, kept
from fedfloor.engine.engine import Engine, Executor, FrozenExtractor
from fedfloor.engine.local_update import local_update
from fedfloor.engine.questions import question
from fedfloor.engine.summand import WithdrawnError
from fedfloor.engine.team import Blob, Team
from fedfloor.engine.travel import VisitPath
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.park.park import Park
from fedfloor.parts.attacks import Attack, AttackedData, AttackedVisit, Attackers, Backdoor
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

log = logging.getLogger(__name__)


class LocalExecutor:
    """The executor of devices that are simulated in this process."""

    at_once = False

    def __init__(self) -> None:
        self._last: tuple[Callable[[], object], object, Tensor] = (lambda: None, None, torch.empty(0))

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        return self.carried(engine, work, packet, key, extractor)

    def carried(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor,
        acting: Acting | None = None,
    ) -> tuple[Packet, Receipt] | None:  # fmt: skip
        """Carry out a visit, of an attacker if ``acting`` is given; None where its device withdraws from a sum."""
        network = engine.network
        base = packet["w"].clone() if work.travel and packet["w"] is network.flat else packet["w"]
        path = VisitPath(network, work)
        try:
            packet, receipt = local_update(engine, work, self._receive(path, packet, key), key, extractor, acting)
        except WithdrawnError:
            return None
        return path.arrive(packet, base, key), receipt

    def _receive(self, path: VisitPath, packet: Packet, key: Key) -> Packet:
        """Return a packet as its receivers decode it; it is encoded once for all of them."""
        network = path.network
        work = path.work
        model = packet["w"]
        place = (work.travels, work.travel_down, key.seed, key.round, key.tick)
        sender, sent_at, arrived = self._last
        if work.travel_down and model is not network.flat and sender() is model and sent_at == place:
            return {**packet, "w": arrived}
        got = path.receive(path.send(packet, key), model, key)
        if work.travel_down and model is not network.flat:
            self._last = (ref(model), place, got["w"])
        return got

    def meeting(self, engine: Engine, aggregation: Aggregation, mine: Collection[int]) -> AbstractContextManager[None]:
        return nullcontext()  # masks cancel in the sum

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        pass  # simulated devices have the model already

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        to_answer = question(node)
        return {k: to_answer.answer(engine, k, packet, tick) for k in devices}

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        return engine.park.census(devices, tick, [engine.memory.visits[k] for k in devices])

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        return devices

    def refuse(self, device: int, kind: str, why: str) -> None:
        log.warning("device %d is refused: %s", device, why)


LOCAL = LocalExecutor()


def executor_of(engine: Engine) -> Executor:
    """Return the executor that carries out an engine's visits and questions."""
    return engine.executor or engine.attackers or LOCAL


def ask(engine: Engine, node: Probe, packet: Packet, tick: int, team: Team) -> dict[int, dict[str, Any]]:
    """Put a question to devices, each rank to its share; return device → question → answer on every rank.

    A device that does not answer (real machines may be offline) has no entry, or class counts of 0.
    """
    to_answer = question(node)
    own = engine.network.flat
    start = kept(packet, own)
    mine = executor_of(engine).answers(engine, node, start, tick, node.devices[team.rank :: team.size])
    if "w" in packet and packet["w"] is own:
        own.copy_(start["w"])
    vectors = {k: answer for k, answer in mine.items() if isinstance(answer, Tensor)}
    plain = {k: answer for k, answer in mine.items() if k not in vectors}
    parts: list[Blob] = [json.dumps([plain, list(vectors)]).encode()]
    parts += [vector.cpu().numpy().data.cast("B") for vector in vectors.values()]
    kind = torch.empty(0, dtype=own.dtype).numpy().dtype
    answers = dict[int, Any]()
    for head, *blobs in team.gather(parts):
        scalars, devices = json.loads(bytes(head))
        answers.update({int(k): answer for k, answer in scalars.items()})
        answers.update({k: torch.tensor(np.frombuffer(blob, kind)) for k, blob in zip(devices, blobs, strict=True)})
    if engine.limit is not None and to_answer.weighs:
        norms = {k: float(a.double().norm()) if isinstance(a, Tensor) else float(a) for k, a in answers.items()}
        harmless = to_answer.harmless(len(engine.park.dataset.classes))
        for k, why in engine.limit.strange({k: norms[k] for k in node.devices if k in norms}, harmless).items():
            executor_of(engine).refuse(k, "probe", f"its answer to '{node.what}' {why}")
            del answers[k]
    if to_answer.counts:
        answers = {k: [0] * len(engine.park.dataset.classes) for k in node.devices} | answers
    return {k: {node.what: answers[k]} for k in node.devices if k in answers}


def no_vector(answers: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise SettingError where a branch has answers that are vectors: a branch's results travel as JSON."""
    for name, answer in (item for own in answers.values() for item in own.items()):
        if isinstance(answer, Tensor):
            raise SettingError(
                f"a Probe for '{name}', which is answered by a vector, is in a branch of a Parallel: put it "
                "before the Parallel.",
                key="place-of-probe",
            )


EARLIER = "attack: received before"  # the name of the model that an attacker keeps


@dataclass(frozen=True)
class Acting:
    """An attacker's visit, the first part of its update's path (:class:`fedfloor.engine.travel.Replacing`).

    Args:
        attack: the attack.
        every: the honest updates of all attackers, in device order; empty unless the attack acts ``together``.
    """

    attack: Attack
    engine: Engine
    work: Work
    key: Key
    every: Sequence[Tensor]

    def alter(self, x: Values, y: Labels | Targets) -> tuple[Values, Labels | Targets]:
        """Return the samples on which the attacker trains."""
        classes = len(self.engine.park.dataset.classes)
        scales = channel_statistics(self.engine)
        given = AttackedData(x, y, classes, *scales, self.key.rng("attack data"))  # type: ignore[arg-type]
        altered = self.attack.data(given)
        shapes = [np.shape(part) for part in altered] if isinstance(altered, tuple) else []
        if len(shapes) != 2 or not len(altered[0]) == len(altered[1]) > 0 or shapes[0][1:] != x.shape[1:]:
            raise SettingError(
                f"attack {type(self.attack).__name__}: data must return samples as samples.x and as many classes, "
                f"got {altered!r:.80}.",
                key="own-attack",
            )
        return altered

    def replaced(self, model: Tensor, start: Tensor) -> Tensor:
        """Return the model that the attacker sends instead of the trained one, given the one that arrived."""
        network = self.engine.network
        key = self.key
        numbers = _numbers(network, self.work)
        earlier = self.engine.memory.load(key.device).get(EARLIER) if self.attack.keeps else None
        before = None if earlier is None else (earlier.to(start) - start)[numbers]
        chance = key.rng("attack"), generator(key.seed, "attack")
        visit = AttackedVisit((model - start)[numbers], self.every, before, *chance, _layout(network, numbers))
        update = self.attack.sent(visit)
        if not isinstance(update, Tensor) or update.shape != visit.update.shape:
            raise SettingError(
                f"attack {type(self.attack).__name__}: sent must return a tensor of {len(visit.update)} numbers, as "
                f"visit.update, got {update!r:.80}.",
                key="own-attack",
            )
        if update is visit.update:
            return model
        model = model.clone()
        model[numbers] = start[numbers] + update
        return model


class AttackingExecutor(LocalExecutor):
    """The executor of simulated devices with attackers among them.

    An attacker trains like any other device, on data that the attack may have altered; the attack then replaces its
    update before the update is encoded and sent. It changes trained parameters that travel, but neither statistics
    (batch norm's) nor entries beside the model. Every draw is keyed by the visit, so that ranks agree to the bit.

    Args:
        attackers: the ``[faults] attackers`` table.
        devices: the numbers of the devices that attack.
    """

    def __init__(self, attackers: Attackers, devices: Sequence[int]) -> None:
        super().__init__()
        self.attackers = attackers
        self.attack = attackers.attack
        self.devices = tuple(devices)
        self._rehearsed: tuple[object, object, list[Tensor]] = (lambda: None, None, [])

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        if key.device not in self.devices or not len(_numbers(engine.network, work)):
            return super().visit(engine, work, packet, key, extractor)
        packet = kept(packet, engine.network.flat)
        arrived = self._receive(VisitPath(engine.network, work), packet, key)
        every = self._every(engine, replace(work, travel=""), arrived, key, extractor)
        acting = Acting(self.attack, engine, work, key, every)
        carried = self.carried(engine, work, packet, key, extractor, acting)
        if carried is None:
            return None
        sent, receipt = carried
        if self.attack.keeps:
            receipt = replace(receipt, memory=_keep(engine, key.device, arrived["w"]))
        return sent, receipt

    def _every(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> Sequence[Tensor]:
        """Return the updates of all attackers' honest training of the arrived model, in device order.

        Every rank that needs them computes them, once for all visits that receive the same model.
        """
        if not self.attack.together:
            return ()
        place = (work, key.seed, key.round, key.tick, key.visit)
        model, before, updates = self._rehearsed
        if model() is packet["w"] and before == place:  # type: ignore[operator]
            return updates
        was = engine.memory.now(self.devices)
        updates = []
        for device in self.devices:
            twin = replace(key, device=device)
            sent, _ = local_update(engine, work, packet, twin, FrozenExtractor(extractor.frozen, extractor.name))
            updates.append((sent["w"] - packet["w"])[_numbers(engine.network, work)])
            engine.memory.put_back(was)
        self._rehearsed = (ref(packet["w"]), place, updates)
        return updates


def channel_statistics(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation of each channel in units of the stored numbers, float64 [C]."""
    scale = engine.park.dataset.scale
    return engine.mean.cpu().double().numpy() / scale, engine.std.cpu().double().numpy() / scale


def triggered(engine: Engine) -> Park | None:
    """Return the park with a backdoor's trigger in the test samples of other classes, relabelled as its target class.

    The accuracy on them is the backdoor's success rate. None without a backdoor, or without samples of other classes.
    """
    attack = engine.attackers.attack if isinstance(engine.attackers, AttackingExecutor) else None
    if not isinstance(attack, Backdoor):
        return None
    data = engine.park.dataset
    (mean, deviation) = channel_statistics(engine)
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
        unit_test=cut(data.unit_test),
    )  # fmt: skip
    return replace(engine.park, dataset=marked)


def _numbers(network: Network, work: Work) -> Tensor:
    """Return the indices of the trained parameters that travel, int64, ascending."""
    parts = network.parcel(work.travels).parts
    every = [torch.arange(part.start, max(part.start, min(part.stop, network.trained))) for part in parts]
    return torch.cat([torch.arange(0), *every]).to(network.flat.device)


def _layout(network: Network, numbers: Tensor) -> dict[str, tuple[int, int]]:
    """Return the place of each tensor among the numbers of an update: name → (first, last + 1)."""
    bounds = {name: torch.searchsorted(numbers, numbers.new_tensor(ends)) for name, ends in network.layout.items()}
    places = {name: (int(first), int(last)) for name, (first, last) in bounds.items()}
    return {name: (first, last) for name, (first, last) in places.items() if last > first}


def _keep(engine: Engine, device: int, model: Tensor) -> str:
    """Add the arrived model to an attacker's memory, beside the tensors of its objective; return the digest."""
    memory = engine.memory
    return memory.commit(device, {**memory.load(device), EARLIER: model}, memory.extractor(device))
