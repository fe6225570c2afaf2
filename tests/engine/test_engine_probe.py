"""Questions whose answers are vectors: where they may be asked, on every team alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.questions import QUESTIONS, Sizes
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


SIZES = Sizes(model=1000, number=4, gradient=900, classes=10, classifier=510, shape=(2, 3), samples=60.0)


@pytest.mark.parametrize(
    ("what", "asked", "cost"),
    [
        ("census", {}, (0, 40, 0.0, False)),  # 10 whole numbers of 4 bytes
        ("classes", {}, (0, 40, 0.0, False)),
        ("loss", {}, (1000, 4, 1 / 3, True)),  # without the two thirds of going back
        ("losses", {"models": 3}, (3000, 12, 1.0, True)),
        ("gradient", {}, (1000, 900, 1.0, True)),
        ("profile", {"epochs": 2, "batch_size": 10}, (1000, 1000, 2.0, True)),
        ("profile", {"steps": 3, "batch_size": 10}, (1000, 1000, 0.5, True)),  # 30 of 60 samples
        ("features", {"extractor": "raw"}, (0, 24, 1 / 3, False)),  # 2 · 3 numbers
        ("features", {"extractor": "penultimate"}, (1000, 200, 1 / 3, True)),  # 510 / 10 − 1 inputs of the classifier
        ("hash", {"extractor": "raw", "hashes": 5, "width": 1.0}, (0, 40, 1 / 3, False)),  # of 8 bytes
        ("hash", {"extractor": "penultimate", "hashes": 5, "width": 1.0}, (1000, 40, 1 / 3, True)),
        ("moments", {}, (0, 112, 1 / 3, False)),  # n, 6 means and 21 products
        ("scores", {"low": 0.0, "width": 1.0}, (1008, 264, 1 / 3, True)),  # two numbers; 64 bins and those beyond
        ("outputs", {}, (0, 0, 0.0, False)),
        ("resources", {}, (0, 16, 0.0, False)),
        ("survey", {"down": 7, "up": 9}, (7, 9, 0.0, False)),
        ("survey", {"down": 0, "up": 0}, (0, 0, 0.0, False)),
    ],
)
def test_the_price_of_every_question_by_hand(what: str, asked: dict[str, object], cost: tuple[object, ...]) -> None:
    found = QUESTIONS[what](asked).price(SIZES)  # type: ignore[arg-type]
    assert found == pytest.approx(cost)


def test_every_question_has_its_price_checked() -> None:
    (mark,) = test_the_price_of_every_question_by_hand.pytestmark  # type: ignore[attr-defined]
    assert {what for what, *_ in mark.args[1]} == set(QUESTIONS)
