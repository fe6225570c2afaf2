"""What is carried, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedfloor.errors import unknown
from fedfloor.plan.nodes import Probe, Scalar

Asked = tuple[int, int, float]
SURVEY = (
    "survey"  # a question of the normalisation: its settings ``down`` and ``up`` are the bytes of it and its answer
)


@dataclass(frozen=True)
class Payload:
    """What is carried, in bytes.

    Args:
        packet: scope → size of what travels to a visit of that scope and on from it.
        asked: question → (what goes to a device to ask it, its answer, passes over its data that it takes), or what
            says so of the question's settings. The model goes along where the first is the packet's size.
    """

    packet: Mapping[str, int]
    asked: Mapping[str, Asked | Callable[[Mapping[str, Scalar]], Asked]] = field(default_factory=dict)

    def of(self, question: Probe) -> Asked:
        """Return what a question costs.

        Raises:
            SettingError: that is not known.
        """
        if question.what not in self.asked:
            raise unknown("question to price", question.what, self.asked)
        cost = self.asked[question.what]
        return cost(question.settings) if callable(cost) else cost

    def carries(self, question: Probe) -> bool:
        """Say whether the whole model goes along with a question."""
        return question.what != SURVEY and self.of(question)[0] >= self.packet["all"]
