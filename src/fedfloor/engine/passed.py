"""What comes out of one node of a plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedfloor.engine.team import Blob
from fedfloor.engine.tree import Packet
from fedfloor.plan import choice
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Receipt

Answers = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Passed:
    """What came out of one node.

    Attributes:
        packet: may be the resident network's own buffer until the next visit.
        resolved: the node with every ``Select`` replaced by whom it chose.
        receipts: of its visits.
        trained: the devices whose visits were not lost.
        answers: to what was asked.
        chosen: whom each ``Select`` in it chose, in the order of the walk.
    """

    packet: Packet
    resolved: Node
    receipts: list[Receipt] = field(default_factory=list)
    trained: frozenset[int] = frozenset()
    answers: Answers = field(default_factory=dict)
    chosen: tuple[tuple[int, ...], ...] = ()


def merged(said: Sequence[Answers]) -> Answers:
    """Put answers together: device → question → answer; what was said last counts."""
    answers: Answers = {}
    for one in said:
        for device, heard in one.items():
            answers[device] = {**answers.get(device, {}), **heard}
    return answers


def kept(packet: Packet, own: Tensor) -> dict[str, Tensor]:
    """Return a packet that no visit changes: the resident network's own buffer ``own`` is copied."""
    return {name: value.clone() if value is own else value for name, value in packet.items()}


def said(done: Sequence[Passed]) -> bytes:
    """Return what is known of branches, for :func:`heard_of` somewhere else."""
    told = [[one.chosen, [receipt.row() for receipt in one.receipts], list(one.answers.items())] for one in done]
    return json.dumps(told).encode()


def heard_of(children: Sequence[Node], told: Blob) -> list[Passed]:
    """Return what :func:`said` tells of branches."""
    found = []
    for child, (chosen, rows, answers) in zip(children, json.loads(bytes(told)), strict=True):
        known, whom = choice.resolved(child, iter(chosen)), tuple(map(tuple, chosen))
        found.append(Passed({}, known, [Receipt.of(row) for row in rows], answers=dict(answers), chosen=whom))
    return found
