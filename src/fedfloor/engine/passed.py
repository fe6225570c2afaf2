"""What comes out of one node of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedfloor.engine.tree import Packet
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
