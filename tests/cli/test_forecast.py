"""A plan that is resolved without training is the one that training resolves it to."""

from __future__ import annotations

from collections import Counter

import pytest

from fedfloor.plan.nodes import Node, Parallel, Repeat, Select, Sequence, edge
from fedfloor.plan.schedule import RoundContext
from fedfloor.runs.resolving import resolved
from floor import WORK, engine, park, visits, walk

HERE = park()
EVERY = tuple(range(5))
T = visits(EVERY)
TWO = Select("uniform", EVERY, 2, WORK, at=edge(0))
OTHER = Select("uniform", (1, 2, 3), 1, WORK, at=edge(1))


@pytest.mark.parametrize(
    "plan",
    [
        Parallel(T),
        Parallel((Repeat(4, TWO), Repeat(3, OTHER))),
        Sequence((T[1], T[1], Parallel((T[2], Repeat(3, TWO, tick=False), T[0], OTHER)), TWO)),
        Parallel((Sequence((T[2], TWO)), Parallel((T[1], TWO, OTHER)), Sequence((OTHER, T[3], TWO)))),
        Repeat(3, Parallel((Sequence((TWO, T[1])), Sequence((OTHER, TWO))))),
    ],
)
def test_whom_a_select_chooses(plan: Node) -> None:
    """Draws are keyed by the visits that stand before them in the plan: in branches before, and in turns before."""
    for tick in (0, 7):
        trained = walk(engine(HERE), plan, number=2, tick=tick).resolved
        assert resolved(plan, HERE, RoundContext(0, 2), tick, Counter()).resolved == trained
