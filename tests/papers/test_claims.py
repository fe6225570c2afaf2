"""The rules by which a claim's outcome follows from its figures, and the commands that the claims name."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any

import pytest

from fedfloor.base.errors import SettingError
from papers import catalog, claims, verdicts
from papers.cells import Table, holds
from papers.verdicts import CONFIRMED, CONTRADICTED, MET, UNDECIDED, Claim, Figure
from refusals import refused

A = Figure("a", None, "0.90 ± 0.01")
B = Figure("b", None, "0.85 ± 0.02")
NEAR = Figure("b", None, "0.88 ± 0.02")
ONE = Figure("a", None, "0.90")
TWO = Figure("b", None, "0.85")
PRINTED = Figure("a", "0.915", "0.90 ± 0.01")
OTHER = Figure("b", "0.80", "0.85 ± 0.02")
ROUNDS = Figure("a", None, "9.7", values=(5.0, 11.0, 13.0)), Figure("b", None, "58.7", values=(26.0, 64.0, 86.0))
CLOSE = Figure("a", None, "0.6", values=(0.58, 0.6, 0.62)), Figure("b", None, "0.5", values=(0.5, 0.5, 0.5))
SEEDS = Figure("a", None, "0.53", values=(0.43, 0.60, 0.57)), Figure("b", None, "0.30", values=(0.10, 0.38, 0.41))


def made(*figures: Figure, runs: int = 3, **more: Any) -> Claim:
    return Claim("FedX", "Table I", "a claim", MET, "why", "command", figures=figures, runs=runs, **more)


@pytest.mark.parametrize(
    ("claim", "wanted"),
    [
        (made(A, B, order=("a > b",)), CONFIRMED),  # 0.05 apart, at most ± 0.03
        (made(A, B, order=("a < b",)), CONTRADICTED),
        (made(A, NEAR, order=("a > b",)), UNDECIDED),  # 0.02 apart
        (made(A, B, order=("a > b > 0.84",)), UNDECIDED),  # 0.85 ± 0.02 contains 0.84
        (made(A, B, order=("a > b", "b < 0.8")), CONTRADICTED),  # a relation that fails is enough
        (made(A, order=("a = 0.905",), margin=0.02), CONFIRMED),  # 0.005 ± 0.01 is within the margin
        (made(A, order=("a = 0.905",), margin=0.012), UNDECIDED),
        (made(A, order=("a = 0.80",), margin=0.02), CONTRADICTED),
        (made(ONE, TWO, runs=1, order=("a > b",)), UNDECIDED),  # the spread of runs is not known
        (made(ONE, TWO, runs=1, order=("a > b",), spread="0.016"), CONFIRMED),  # 3 · 0.016 < 0.05
        (made(ONE, TWO, runs=1, order=("a > b",), spread="0.017"), UNDECIDED),
        (made(ONE, TWO, runs=1, order=("a > b",), spread="2 %"), UNDECIDED),  # 3 · 0.018 > 0.05
        (made(ONE, TWO, runs=0, order=("a > b",)), CONFIRMED),  # computed
        (made(Figure("a", None, "–"), B, order=("a > b",)), CONFIRMED),  # never reached
        (made(*ROUNDS, order=("a < b",)), CONFIRMED),  # ratios 5.2, 5.8, 6.6, though the means' intervals overlap
        (made(*SEEDS, order=("a > b",), accuracy=True), CONFIRMED),  # 0.33, 0.22, 0.16: 0.24 ± 0.22
        (made(*SEEDS, order=("a > b",)), UNDECIDED),  # as ratios 4.4, 1.6, 1.4 they would not be
        (made(*SEEDS, order=("a = b",), accuracy=True), CONTRADICTED),  # by more than a point
        (made(*ROUNDS, order=("a = b",), margin=1.8), UNDECIDED),  # |ln| of 5.2, 5.8, 6.6 is 1.76 ± 0.30
        (made(*ROUNDS, order=("a = b",)), CONTRADICTED),  # a tenth, of ratios
        (made(Figure("a", None, "9.7 ± 10"), Figure("b", None, "58.7 ± 76"), order=("a < b",)), UNDECIDED),
        (made(PRINTED, OTHER), CONTRADICTED),  # 0.80 is 0.05 from 0.85 ± 0.04
        (made(PRINTED, Figure("b", "0.84", "0.85 ± 0.02")), MET),  # 0.915 within 0.90 ± 0.02, narrower than 0.075
        (made(PRINTED, Figure("b", "0.90", "0.89 ± 0.01")), UNDECIDED),  # an effect of 0.015 is narrower than ± 0.02
        (made(Figure("a", "0.915", "0.90 ± 0.01", against="0.80")), MET),
        (made(Figure("a", "0.93", "0.90 ± 0.01", against="0.80")), CONTRADICTED),
        (made(A, B, order=("a > b",), effects={"a minus b": "0.07"}), MET),  # 0.05 ± 0.03
        (made(A, B, order=("a > b",), effects={"a minus b": "0.09"}), CONFIRMED),
        (made(A, B, effects={"a minus b": "0.09"}), CONTRADICTED),
        # ln of 4.3, 1.6 and 1.4 is 0.75 ± 1.54, wider than what is printed; of 1.16, 1.2 and 1.24 it is 0.18 ± 0.08
        (made(*SEEDS, order=("a > b",), accuracy=True, effects={"a minus b": "× 2"}), CONFIRMED),
        (made(*CLOSE, order=("a > b",), accuracy=True, effects={"a minus b": "× 1.3"}), MET),
        (made(*CLOSE, order=("a > b",), accuracy=True, effects={"a minus b": "× 1.08"}), CONFIRMED),  # ln is 0.08
        (made(*CLOSE, order=("a > b",), accuracy=True, effects={"a minus b": "× 1.6"}), CONFIRMED),  # ln is 0.47
        # 19, 7 and 27 rounds: exp(2.73 ± 3.48), wider than 80/18, though 18 ± 50 is narrower than 62
        (made(Figure("a", "18", "17.7", values=(19.0, 7.0, 27.0), against="80")), UNDECIDED),
        (made(Figure("a", "18", "19", values=(19.0, 18.0, 20.0), against="80")), MET),
        (made(Figure("a", "30", "19", values=(19.0, 18.0, 20.0), against="80")), CONTRADICTED),
        (made(Figure("a", "28.2", "31.7 ± 5.4", effect=True, fitted=True), order=("a > 0",)), CONFIRMED),
        (made(Figure("a", "28.2", "31.7 ± 5.4", effect=True, fitted=True)), UNDECIDED),
        (made(Figure("a", "28.2", "31.7 ± 5.4", effect=True)), MET),
        (made(Figure("a", "25.2", "31.7 ± 5.4", effect=True)), CONTRADICTED),
        (made(Figure("a", "0.056", "0.0562"), runs=0), MET),  # to the digits that are printed
        (made(Figure("a", "0.056", "0.0566"), runs=0), CONTRADICTED),
        (made(Figure("a", None, "900 µs"), Figure("b", None, "1 ms"), runs=0, order=("a < b < 2",)), CONFIRMED),
    ],
)
def test_outcomes(claim: Claim, wanted: str) -> None:
    assert verdicts.outcome(claim) == wanted


def test_the_prediction_interval_by_hand() -> None:
    """Of 1, 2 and 3: s = 1, t = 4.303 with two degrees of freedom, 4.303 / √3 = 2.484 and 4.303 · √(4/3) = 4.968."""
    mean = verdicts.estimate(made(), Figure("a", None, "2", values=(1.0, 2.0, 3.0)))
    assert (mean.value, round(mean.half, 3), round(mean.ahead, 3)) == (2.0, 2.484, 4.968)
    read = verdicts.estimate(made(), Figure("a", None, "2 ± 2.484"))
    assert read.ahead == pytest.approx(mean.ahead, rel=1e-3)
    drawn = verdicts.estimate(made(runs=100), Figure("a", None, "2", std="1"))
    assert (round(drawn.half, 3), round(drawn.ahead, 3)) == (0.198, 1.994)  # t = 1.984


def test_values_by_seed_are_read_from_columns_or_from_one_list() -> None:
    columns = {"name": "a", "row": "FedSR | 6", "column": "mean", "seeds": ["seed 0", "seed 1", "seed 2"]}
    listed = {"name": "b", "row": "MNIST | case 1 | FLDG", "column": "measured", "by_seed": "by seed"}
    assert claims._figure("docs/results.md", columns).values == (5.0, 11.0, 13.0)
    assert claims._figure("results/fldg-cases.md", listed).values == (0.432, 0.604, 0.566)


def test_what_could_have_been_seen() -> None:
    assert verdicts.visible(made(A, NEAR, order=("a > b",))) == pytest.approx(0.03)
    assert verdicts.visible(made(ONE, TWO, runs=1, order=("a > b",))) == math.inf


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(SettingError, match="'nowhere' is no figure"):
        verdicts.outcome(made(A, order=("a > nowhere",)))
    with pytest.raises(SettingError, match=r"0 cells are row 'FedX', column 'accuracy'; exactly one must be"):
        claims.cell("results/fedgs-table2.md", "FedX", "accuracy")
    with pytest.raises(SettingError, match=r"fedsr-tables\.md: 2 cells are row 'FedSR', column 2"):
        claims.cell("results/fedsr-tables.md", "FedSR", 2, "Table II, MNIST")
    with pytest.raises(SettingError, match="0 tables begin with"):
        claims.summarised("# a page\n", claims.read())
    with refused("outcome"):
        claims.claim_of({"claim": "a claim", "outcome": "likely"})


def test_a_contradiction_says_whose_it_is_and_rests_on_several_runs_or_a_calculation() -> None:
    found = [claim for claim in claims.read() if claim.outcome == CONTRADICTED]
    assert found
    for claim in found:
        assert re.match(r"By (our|the paper's|the same|the printed|the inputs) ", claim.why), claim.claim
        assert claim.proof or claim.runs == 0 or claim.runs >= verdicts.SEVERAL, claim.claim


def test_commands_name_cells_that_there_are() -> None:
    typed = [shlex.split(claim.command) for claim in claims.read()]
    assert any(command[:2] == ["fedfloor", "reproduce"] for command in typed)
    for words in (one for one in typed if one[:2] == ["fedfloor", "reproduce"]):
        found = catalog.find(words[2])
        only = words[words.index("--only") + 1] if "--only" in words else ""
        if isinstance(found, Table):
            assert any(holds(only, cell.key, cell.run) for cell in found.cells), words
        elif hasattr(found, "points"):
            assert any(holds(only, point.key) for point in found.points), words


def test_spans_of_rounds_are_ratios() -> None:
    """Of 1, 10 and 100: ln 10 = 2.303 apart, ± 4.303 · 2.303 / √3 = 5.72; of accuracies as they are."""
    figure = Figure("a", None, "37", values=(1.0, 10.0, 100.0))
    ours, low, high = verdicts.span(made(figure), figure)
    assert (round(ours, 6), round(math.log(high / ours), 2), round(math.log(ours / low), 2)) == (10.0, 5.72, 5.72)
    assert verdicts.span(made(A), A) == pytest.approx((0.90, 0.89, 0.91))
    assert verdicts.span(made(ONE, runs=1, spread="0.016"), ONE) == pytest.approx((0.90, 0.852, 0.948))
    assert verdicts.span(made(ONE, runs=1), ONE) == (0.90, 0.90, 0.90)
