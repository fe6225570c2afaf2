"""Questions whose answers are vectors: where they may be asked, on every team alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.team import Alone, Team
from fedfloor.parts.mixing.mix import Branch
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Sequence
from floor import bits, digest, engine, everywhere, park, together, visits, walk
from refusals import refused

HERE = park()
T = visits(range(5))
ASKED = {
    "set-up": Sequence((Probe((0, 1), "gradient"), Probe((2, 1), "census"))),
    "chain": Sequence((T[0], Probe((0, 1), "gradient"), T[1])),
    "laps": Repeat(2, Sequence((T[2], Probe((3,), "gradient"), Probe((3,), "loss")))),
}


def told(plan: Node, team: Team) -> str:
    """Return everything of an outcome as text, tensors as their bytes."""
    packet, resolved, receipts, answers, ticks = digest(walk(engine(HERE, team=team), plan))
    said = {
        k: {what: bits(one) if isinstance(one, Tensor) else one for what, one in sorted(heard.items())}
        for k, heard in sorted(answers.items())  # type: ignore[attr-defined]
    }
    return repr((packet, resolved, receipts, said, ticks))


@pytest.mark.parametrize("plan", ASKED.values(), ids=ASKED)
def test_a_chain_may_ask_for_vectors_on_any_team(plan: Node) -> None:
    assert everywhere(2, lambda team: told(plan, team)) == [told(plan, Alone())] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_branch_may_not_and_one_rank_says_so_too(ranks: int) -> None:
    plan = Parallel((Sequence((Probe((0,), "gradient"), T[0])), T[1]))
    with refused("place-of-probe"):
        together(ranks, lambda team: told(plan, team)) if ranks > 1 else told(plan, Alone())


def test_a_rule_that_asks_is_refused_where_the_plan_did_not_ask_everybody() -> None:
    ends = Parallel((T[0], T[1]), mix="q_fair", settings={"q": 1.0})
    start = {"w": torch.zeros(4)}
    branch = Branch(3, 0.5, None)
    for known, away in (([branch, replace(branch, loss=1.0)], True), ([replace(branch, loss=1.0)] * 2, False)):
        Aggregation(ends, start).check_asked(known, away=away)
    with refused("needs-probe"):
        Aggregation(ends, start).check_asked([branch, replace(branch, loss=1.0)], away=False)
