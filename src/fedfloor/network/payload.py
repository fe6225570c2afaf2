"""What is carried, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fedfloor.errors import unknown
from fedfloor.plan.nodes import Probe, Scalar


class Asked(NamedTuple):
    """What a question to a device costs.

    Attributes:
        down: bytes that go to the device.
        up: bytes of its answer.
        passes: over its samples that it takes.
        model: whether the whole model goes along.
    """

    down: int
    up: int
    passes: float = 0.0
    model: bool = False


@dataclass(frozen=True)
class Payload:
    """What is carried, in bytes.

    Args:
        packet: scope → size of what travels to a visit of that scope and on from it.
        asked: question → what it costs with these settings.
    """

    packet: Mapping[str, int]
    asked: Mapping[str, Callable[[Mapping[str, Scalar]], Asked]] = field(default_factory=dict)

    def of(self, question: Probe) -> Asked:
        """Return what a question costs.

        Raises:
            SettingError: that is not known.
        """
        if question.what not in self.asked:
            raise unknown("question to price", question.what, self.asked)
        return self.asked[question.what](question.settings)

    def carries(self, question: Probe) -> bool:
        """Return whether the whole model goes along with a question."""
        return self.of(question).model
