"""Where visits and questions take place: devices simulated in this process, each rank of a team its share."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.engine.engine import Engine, Executor, FrozenExtractor
from fedfloor.engine.local_update import local_update
from fedfloor.engine.questions import question
from fedfloor.engine.team import Blob, Team
from fedfloor.errors import SettingError
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

log = logging.getLogger(__name__)


class LocalExecutor:
    """Devices that are simulated in this process."""

    at_once = False

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Train on the device's samples."""
        return local_update(engine, work, packet, key, extractor)

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Do nothing: whoever is simulated has the model."""

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Ask each device."""
        asked = question(node)
        return {k: asked.answer(engine, k, packet, tick) for k in devices}

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Look at what each device holds."""
        return engine.park.census(devices, tick, [engine.memory.visits[k] for k in devices])

    def there(self, devices: Sequence[int]) -> Sequence[int]:
        """All are."""
        return devices

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Log it."""
        log.warning("device %d is refused: %s", device, why)


LOCAL = LocalExecutor()


def executor_of(engine: Engine) -> Executor:
    """Return where an engine's visits take place."""
    return engine.executor or LOCAL


def ask(engine: Engine, node: Probe, packet: Packet, tick: int, team: Team) -> dict[int, dict[str, Any]]:
    """Ask every device of the node, each rank of ``team`` its share; return all answers on every rank.

    Returns:
        Device → question → answer: JSON, or a tensor. Who does not answer (real machines may be away) is not in it; to
        a question for class counts his answer is that he holds nothing, as in a census.

    Raises:
        SettingError: an unknown question.
    """
    to_answer = question(node)
    own = engine.network.flat
    fixed = {name: value.clone() if value is own else value for name, value in packet.items()}
    mine = executor_of(engine).answers(engine, node, fixed, tick, node.devices[team.rank :: team.size])
    if "w" in packet and packet["w"] is own:
        own.copy_(fixed["w"])
    vectors = {k: said for k, said in mine.items() if isinstance(said, Tensor)}
    plain = {k: said for k, said in mine.items() if k not in vectors}
    parts: list[Blob] = [json.dumps([plain, list(vectors)]).encode()]
    parts += [one.cpu().numpy().data.cast("B") for one in vectors.values()]
    answers: dict[int, Any] = {}
    for head, *rest in team.gather(parts):
        scalars, devices = json.loads(bytes(head))
        answers.update({int(k): answer for k, answer in scalars.items()})
        kind = torch.empty(0, dtype=own.dtype).numpy().dtype
        answers.update({k: torch.tensor(np.frombuffer(one, kind)) for k, one in zip(devices, rest, strict=True)})
    if engine.limit is not None and to_answer.weighs:
        sizes = {k: float(one.double().norm()) if isinstance(one, Tensor) else float(one) for k, one in answers.items()}
        harmless = to_answer.harmless(len(engine.park.dataset.classes))
        for k, why in engine.limit.strange({k: sizes[k] for k in node.devices if k in sizes}, harmless).items():
            executor_of(engine).refuse(k, "probe", f"its answer to '{node.what}' {why}")
            del answers[k]
    if to_answer.counts:
        answers = {k: [0] * len(engine.park.dataset.classes) for k in node.devices} | answers
    return {k: {node.what: answers[k]} for k in node.devices if k in answers}


def no_vector(answers: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse answers that cannot be told as JSON, as branches tell theirs; on one rank alike.

    Raises:
        SettingError: there is one.
    """
    for heard in answers.values():
        for what, answer in heard.items():
            if isinstance(answer, Tensor):
                raise SettingError(
                    f"a Probe for '{what}', which answers with a vector, stands in a branch of a Parallel: ask before "
                    "they part."
                )
