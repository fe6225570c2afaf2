"""``[model] keep``: the round of a trained model that stays as it is, while its thresholds are found again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.base.errors import SettingError
from fedfloor.methods.contract import Method, State
from fedfloor.plan.nodes import Sequence

if TYPE_CHECKING:
    import numpy as np

    from fedfloor.methods.contract import View
    from fedfloor.parts.objectives.objective import Objective
    from fedfloor.plan.nodes import Node
    from fedfloor.plan.outcome import Outcome

DONE = "kept"  # key of a state's notes


@dataclass(frozen=True)
class Kept(Method):
    """A method whose model is kept: a round visits no device, and w stays that of ``model.init_from`` to the bit.

    ::

        one round: w ← w; its evaluation then collects the scores of held-out samples, and sets the thresholds

    Travels: no update; devices answer the questions of an evaluation.

    Args:
        of: the method that trained the model, which determines the network.
    """

    of: Method

    @property
    def objective(self) -> Objective:
        return self.of.objective

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return Sequence(())

    def over(self, state: State) -> bool:
        return bool(state.notes.get(DONE))

    def expected(self, rounds: int) -> int:
        return min(1, rounds)

    def absorb(self, state: State, outcome: Outcome) -> State:
        return State(state.packet, {**state.notes, DONE: True}, state.tensors)


def kept(method: Method, name: str) -> Kept:
    """Return a method that keeps its model.

    Raises:
        SettingError: its devices may have different models.
    """
    if method.needs.personal:
        raise SettingError(
            f"model.keep = true: method '{name}' gives devices or cohorts models of their own, and model.init_from "
            "reads a single model. Train it on the present samples instead, which sets their thresholds, too.",
            key="model.keep",
        )
    return Kept(method)
