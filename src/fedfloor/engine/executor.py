"""The executor of visits and questions: devices simulated in this process, each rank of a team its share."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.engine import travel
from fedfloor.engine.aggregation import Aggregation, kept
from fedfloor.engine.engine import Engine, Executor, FrozenExtractor
from fedfloor.engine.local_update import local_update
from fedfloor.engine.questions import question
from fedfloor.engine.team import Blob, Team
from fedfloor.errors import SettingError
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

log = logging.getLogger(__name__)


class LocalExecutor:
    """Devices that are simulated in this process."""

    at_once = False

    def __init__(self) -> None:
        self._last: tuple[Callable[[], object], object, Tensor] = (lambda: None, None, torch.empty(0))

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt]:
        network = engine.network
        base = packet["w"].clone() if work.travel and packet["w"] is network.flat else packet["w"]
        packet, receipt = local_update(engine, work, self._arrived(network, work, packet, key), key, extractor)
        return travel.received(network, work, packet, base, key), receipt

    def _arrived(self, network: Network, work: Work, packet: Packet, key: Key) -> Packet:
        """Return a packet as its receivers get it; one that goes to several of them is coded once."""
        model, place = packet["w"], (work.travels, work.travel_down, key.seed, key.round, key.tick)
        sender, sent_at, arrived = self._last
        if work.travel_down and model is not network.flat and sender() is model and sent_at == place:
            return {**packet, "w": arrived}
        got = travel.arrived(network, work, travel.sent(network, work, packet, key), model, key)
        if work.travel_down and model is not network.flat:
            self._last = (ref(model), place, got["w"])
        return got

    def meeting(self, engine: Engine, aggregation: Aggregation, mine: Collection[int]) -> AbstractContextManager[None]:
        return nullcontext()  # masks cancel

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        pass  # simulated devices have the model

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
    """Return the executor of an engine's visits."""
    return engine.executor or engine.attackers or LOCAL


def ask(engine: Engine, node: Probe, packet: Packet, tick: int, team: Team) -> dict[int, dict[str, Any]]:
    """Put a question to devices, each rank of ``team`` to its share; return device → question → answer on every rank.

    A device that does not answer (real machines may be away) has no entry, or class counts of nothing.
    """
    to_answer, own = question(node), engine.network.flat
    start = kept(packet, own)
    mine = executor_of(engine).answers(engine, node, start, tick, node.devices[team.rank :: team.size])
    if "w" in packet and packet["w"] is own:
        own.copy_(start["w"])
    vectors = {k: answer for k, answer in mine.items() if isinstance(answer, Tensor)}
    plain = {k: answer for k, answer in mine.items() if k not in vectors}
    parts: list[Blob] = [json.dumps([plain, list(vectors)]).encode()]
    parts += [vector.cpu().numpy().data.cast("B") for vector in vectors.values()]
    kind, answers = torch.empty(0, dtype=own.dtype).numpy().dtype, dict[int, Any]()
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
    """Refuse answers of a branch that are vectors, as its results travel as JSON; on one rank alike."""
    for name, answer in (item for own in answers.values() for item in own.items()):
        if isinstance(answer, Tensor):
            raise SettingError(
                f"a Probe for '{name}', which is answered by a vector, stands in a branch of a Parallel: put it "
                "before the Parallel."
            )
