"""Sizes of packets, questions and answers, in bytes, of which a price is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fedfloor.base.errors import unknown
from fedfloor.plan.nodes import Probe, Scalar, Site


class QuestionCost(NamedTuple):
    """The cost of a question to a device.

    Attributes:
        down: bytes of the question to the device.
        up: bytes of its answer.
        passes: computation as a number of passes over its samples.
        model: whether the whole model is also sent.
    """

    down: int
    up: int
    passes: float = 0.0
    model: bool = False


class Exchange(NamedTuple):
    """A device's exchange with a server, in bytes."""

    server: Site
    down: int
    up: int


@dataclass(frozen=True)
class Payload:
    """Sizes of packets and questions, in bytes.

    Args:
        packet: scope → size of a packet to and from a visit with that scope.
        coded: (scope, codecs) → size after the codecs.
        staged: codecs → number of devices in a sum → (bytes down, bytes up) of each device in every stage: two before
            the visit, one with the model, one after it.
        across: codecs whose stages involve the cloud, for the devices of all factories; others end at each edge.
        asked: question → its cost with these settings.
    """

    packet: Mapping[str, int]
    asked: Mapping[str, Callable[[Mapping[str, Scalar]], QuestionCost]] = field(default_factory=dict)
    coded: Mapping[tuple[str, str], int] = field(default_factory=dict)
    staged: Mapping[str, Callable[[int], Sequence[tuple[int, int]]]] = field(default_factory=dict)
    across: frozenset[str] = frozenset()

    def of(self, question: Probe) -> QuestionCost:
        """Return the cost of a question.

        Raises:
            SettingError: the question is unknown.
        """
        if question.what not in self.asked:
            raise unknown("question to price", question.what, self.asked)
        return self.asked[question.what](question.settings)
