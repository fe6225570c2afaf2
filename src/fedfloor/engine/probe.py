"""Small questions to devices: what a ``Probe`` can ask."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedfloor.engine import questions
from fedfloor.engine.gradient import BLOCK, full
from fedfloor.engine.team import Blob, Team
from fedfloor.engine.tree import Packet
from fedfloor.errors import SettingError, unknown
from fedfloor.plan.nodes import Probe, Scalar

if TYPE_CHECKING:
    from fedfloor.engine.engine import Engine


def census(engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:  # noqa: ARG001
    """Answer the class counts of what the device holds now."""
    return [int(count) for count in engine.park.census([device], tick, [engine.memory.visits[device]])[0]]


def classes(engine: Engine, device: int, packet: Packet, tick: int) -> list[int]:  # noqa: ARG001
    """Answer the class counts of the device's whole local set."""
    return [int(count) for count in engine.park.classes(device)]


def loss(engine: Engine, device: int, packet: Packet, tick: int) -> float:
    """Answer the mean cross-entropy of the arriving model over all the samples that the device holds."""
    network, samples = engine.network, engine.samples(device, tick)
    if packet["w"] is not network.flat:
        network.flat.copy_(packet["w"])
    network.module.eval()
    total = 0.0
    with torch.inference_mode():
        for first in range(0, len(samples), BLOCK):
            rows = slice(first, first + BLOCK)
            logits = network.module(samples.values(rows))
            total += float(torch.nn.functional.cross_entropy(logits, samples.y[rows], reduction="sum"))
    return total / len(samples)


def gradient(engine: Engine, device: int, packet: Packet, tick: int) -> Tensor:
    """Answer the gradient of the arriving model's mean cross-entropy over all it holds, [trained]."""
    if packet["w"] is not engine.network.flat:
        engine.network.flat.copy_(packet["w"])
    return full(engine.network, engine.samples(device, tick)).cpu()


def resources(engine: Engine, device: int, packet: Packet, tick: int) -> dict[str, float]:  # noqa: ARG001
    """Answer what a device is like on the network: seconds of a pass over its data, and metres to the base station.

    Raises:
        SettingError: there is no network.
    """
    sites = engine.sites
    if sites is None:
        raise SettingError("a Probe for 'resources' needs a [network], such as --set network.profile=lte-cat-m2.")
    there = {} if sites.distance_m is None else {"distance_m": float(sites.distance_m[device])}
    return {"pass_s": float(sites.pass_s[device]), **there}


PLAIN: dict[str, Callable[[Engine, int, Packet, int], Any]] = {
    "census": census,
    "classes": classes,
    "loss": loss,
    "gradient": gradient,
    "resources": resources,
}
COUNTS = ("census", "classes")
LIMITED = ("loss", "gradient", "features", "profile")  # whose size decides how much an answer counts
WITH_SETTINGS: dict[str, Callable[[Engine, int, Packet, int, Mapping[str, Scalar]], Any]] = {
    "features": questions.features,
    "hash": questions.hashes,
    "profile": questions.profile,
}


def question(node: Probe) -> Callable[[Engine, int, Packet, int], Any]:
    """Return the function that answers a question for (engine, device, packet, tick).

    Raises:
        SettingError: an unknown question.
    """
    if node.what in WITH_SETTINGS:
        asked = WITH_SETTINGS[node.what]
        return lambda engine, device, packet, tick: asked(engine, device, packet, tick, node.settings)
    if node.what not in PLAIN:
        raise unknown("question", node.what, (*PLAIN, *WITH_SETTINGS))
    return PLAIN[node.what]


def ask(engine: Engine, node: Probe, packet: Packet, tick: int, team: Team) -> dict[int, dict[str, Any]]:
    """Ask every device of the node, each rank of ``team`` its share; return all answers on every rank.

    Returns:
        Device → question → answer: JSON, or a tensor. Who does not answer (real machines may be away) is not in it; to
        a question for class counts his answer is that he holds nothing, as in a census.

    Raises:
        SettingError: an unknown question.
    """
    question(node)
    own = engine.network.flat
    still = {name: value.clone() if value is own else value for name, value in packet.items()}
    mine = engine.floor.answers(engine, node, still, tick, node.devices[team.rank :: team.size])
    if "w" in packet and packet["w"] is own:
        own.copy_(still["w"])
    vectors = {k: said for k, said in mine.items() if isinstance(said, Tensor)}
    plain = {k: said for k, said in mine.items() if k not in vectors}
    parts: list[Blob] = [json.dumps([plain, list(vectors)]).encode()]
    parts += [one.cpu().numpy().data.cast("B") for one in vectors.values()]
    answers: dict[int, Any] = {}
    for head, *rest in team.gather(parts):
        told, devices = json.loads(bytes(head))
        answers.update({int(k): answer for k, answer in told.items()})
        kind = torch.empty(0, dtype=own.dtype).numpy().dtype
        answers.update({k: torch.tensor(np.frombuffer(one, kind)) for k, one in zip(devices, rest, strict=True)})
    if engine.limit is not None and node.what in LIMITED:
        sizes = {k: float(one.double().norm()) if isinstance(one, Tensor) else float(one) for k, one in answers.items()}
        harmless = math.log(len(engine.park.dataset.classes)) if node.what == "loss" else 0.0  # that of guessing
        for k, why in engine.limit.strange({k: sizes[k] for k in node.devices if k in sizes}, harmless).items():
            engine.floor.refuse(k, "probe", f"its answer to '{node.what}' {why}")
            del answers[k]
    if node.what in COUNTS:
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
