"""The growth of the number of groups: the paper's setting round by round, exact arithmetic, and what is refused."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.parts.selection.grouping import (
    MOST,
    Exp,
    Growth,
    Linear,
    Log,
    chosen_groups,
    groups_of,
    is_full,
    period_of,
)
from refusals import refused

PAPER = Log(alpha=2, beta=10)  # Table II; with K = 368 devices, κ = 0.3 and T = 5
ALL = (Linear, Log, Exp)
cents = st.integers(0, 500)  # α in hundredths, as people write it


# -- the paper's setting -----------------------------------------------------------------------------------------------


def test_the_papers_groups_grow_by_ten_in_these_periods() -> None:
    # 10⌊2 ln q + 1⌋ reaches 10·m as soon as q ≥ e^((m−1)/2): e^0 = 1, e^0.5 = 1.65, e^1 = 2.72, e^1.5 = 4.48,
    # e^2 = 7.39, e^2.5 = 12.2, e^3 = 20.1, e^3.5 = 33.1, e^4 = 54.6, e^4.5 = 90.02 — and so with q rounded up
    first = {1: 10, 2: 20, 3: 30, 5: 40, 8: 50, 13: 60, 21: 70, 34: 80, 55: 90, 91: 100}
    groups = [PAPER.groups(q) for q in range(1, 101)]
    assert {q: m for q, m in enumerate(groups, 1) if q == 1 or m != groups[q - 2]} == first
    # T = 1 (HFedMS-S) has 500 periods: 2 ln 500 + 1 = 13.4
    assert PAPER.groups(500) == 130


def test_the_papers_groups_in_devices() -> None:
    # ⌊0.3·M⌋ for M = 10, 20, …, 100; ⌊368/M⌋ stands with the method
    many = range(10, 101, 10)
    assert [chosen_groups(0.3, m) for m in many] == [3, 6, 9, 12, 15, 18, 21, 24, 27, 30]


def test_500_rounds_with_t_5_are_100_periods_of_one_full_round_each() -> None:
    full = [r for r in range(1, 501) if is_full(r, 5)]
    assert full == list(range(1, 501, 5))
    assert [period_of(r, 5) for r in full] == list(range(1, 101))


# -- the three functions -----------------------------------------------------------------------------------------------


def test_linear_and_exponential_by_hand() -> None:
    # 3⌊0.4(q−1) + 1⌋: 1, 1.4, 1.8, 2.2, 2.6, 3
    assert [Linear(0.4, 3).groups(q) for q in range(1, 7)] == [3, 3, 3, 6, 6, 9]
    # 3⌊1.4^(q−1)⌋: 1, 1.4, 1.96, 2.744, 3.8416, 5.37824; as printed, 3⌊1.4^q − 1⌋, it would begin with 0, 0, 3
    assert [Exp(0.4, 3).groups(q) for q in range(1, 7)] == [3, 3, 3, 6, 9, 15]


@settings(max_examples=200, deadline=None)
@given(alpha=cents, beta=st.integers(1, 50), q=st.integers(1, 2000))
def test_linear_is_the_floor_of_the_alpha_that_was_written(alpha: int, beta: int, q: int) -> None:
    assert Linear(alpha / 100, beta).groups(q) == beta * math.floor(Fraction(alpha, 100) * (q - 1) + 1)


@settings(max_examples=200, deadline=None)
@given(alpha=cents, beta=st.integers(1, 50), q=st.integers(1, 500))
def test_exponential_is_the_floor_of_the_alpha_that_was_written(alpha: int, beta: int, q: int) -> None:
    exact = math.floor((1 + Fraction(alpha, 100)) ** (q - 1))
    got = Exp(alpha / 100, beta).groups(q)
    if exact < 10**6:  # more than any park has devices; 10⁻¹² of a number counts as rounding
        assert got == beta * exact
    else:
        assert got >= beta * 10**6


@settings(max_examples=200, deadline=None)
@given(alpha=cents, beta=st.integers(1, 50), q=st.integers(1, 2000))
def test_log_is_the_floor_of_the_alpha_that_was_written(alpha: int, beta: int, q: int) -> None:
    with localcontext() as context:
        context.prec = 40
        exact = Decimal(alpha) / 100 * Decimal(q).ln() + 1
    assert Log(alpha / 100, beta).groups(q) == beta * math.floor(exact)


def test_a_whole_number_that_floats_miss_is_reached() -> None:
    # 0.58·50 = 29, as a float 28.999999999999996: 1·⌊29 + 1⌋
    assert 0.58 * 50 < 29
    assert Linear(0.58, 1).groups(51) == 30
    # with α = 1/ln 2 Log counts the doublings: 1 + log2 q; as a float 1/ln 2 · ln 8 = 2.9999999999999996
    double = 1 / math.log(2)
    assert double * math.log(8) < 3
    assert [Log(double, 1).groups(2**n) for n in range(20)] == list(range(1, 21))
    assert [Log(double, 1).groups(2**n - 1) for n in range(2, 20)] == list(range(2, 20))
    # with α = ³√3 − 1 there are 3^n groups after 3n periods
    assert [Exp(3 ** (1 / 3) - 1, 1).groups(3 * n + 1) for n in range(10)] == [3**n for n in range(10)]


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(ALL), alpha=st.floats(0, 1e300), beta=st.integers(1, 50), q=st.integers(1, 10**6))
def test_groups_begin_with_beta_never_fall_and_come_in_betas(
    kind: type[Growth], alpha: float, beta: int, q: int
) -> None:
    growth = kind(alpha, beta)
    now = growth.groups(q)
    then = growth.groups(q + 1)
    assert growth.groups(1) == beta
    assert beta <= now <= then <= beta * MOST
    assert now % beta == then % beta == 0


@pytest.mark.parametrize("kind", ALL)
def test_alpha_0_keeps_the_groups_of_the_first_period(kind: type[Growth]) -> None:
    assert {kind(0, 7).groups(q) for q in (1, 2, 10, 10_000)} == {7}


# -- groups of a park --------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(ALL), alpha=cents, q=st.integers(1, 10**5), devices=st.integers(1, 1000))
def test_there_are_never_more_groups_than_devices(kind: type[Growth], alpha: int, q: int, devices: int) -> None:
    growth = kind(alpha / 100, 10)
    groups = groups_of(growth, q, devices)
    assert groups == min(devices, growth.groups(q))


def test_the_chosen_groups_are_the_floor_of_the_share_that_was_written() -> None:
    assert 0.29 * 100 < 29  # as a float
    for share, groups in itertools.product(range(1, 101), range(1, 201)):
        exact = share * groups // 100
        if exact:
            assert chosen_groups(share / 100, groups) == exact
        else:
            with refused("share-of-groups", varies=r"[\d.,]+\d"):
                chosen_groups(share / 100, groups)


@pytest.mark.parametrize("groups", [1, 3, 7, 10, 30, 9999, 123_456])
def test_the_share_that_is_asked_for_is_enough_and_hardly_more(groups: int) -> None:
    with refused("share-of-groups") as caught:
        chosen_groups(0.9 / groups, groups)
    least = float(str(caught.value).split("Set at least ")[1].split(",")[0])
    assert chosen_groups(least, groups) >= 1
    assert least < 1 / groups + 1e-4


# -- rounds ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(r=st.integers(1, 10**6), every=st.integers(1, 50))
def test_a_period_begins_with_its_only_full_round(r: int, every: int) -> None:
    assert period_of(r, every) == math.ceil(Fraction(r, every))
    assert is_full(r, every) == (r == 1 or period_of(r, every) != period_of(r - 1, every))
    assert sum(is_full(one, every) for one in range(r, r + every)) == 1


def test_with_t_1_every_round_is_full() -> None:
    assert [(period_of(r, 1), is_full(r, 1)) for r in (1, 2, 3)] == [(1, True), (2, True), (3, True)]


@pytest.mark.parametrize("every", range(1, 10))
def test_the_periods_are_the_reference_codes(every: int) -> None:
    # int(r/T − 0.1 + 1), which is ⌈r/T⌉ as long as T < 10; full where r mod T = 1 (with T = 1: always)
    for r in range(1, 501):
        assert period_of(r, every) == int(r / every - 0.1 + 1)
        assert is_full(r, every) == (r % every == 1 % every)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alpha": -0.1}, "growth"),
        ({"alpha": math.inf}, "growth"),
        ({"alpha": math.nan}, "growth"),
        ({"beta": 0}, "growth"),
        ({"beta": 2.5}, "growth"),
    ],
)
def test_growths_out_of_range(kind: type[Growth], change: dict[str, float], said: str) -> None:
    with refused(said):
        replace(kind(2, 10), **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ALL)
def test_there_is_no_period_0(kind: type[Growth]) -> None:
    with refused("period"):
        groups_of(kind(2, 10), 0, 368)


def test_parks_shares_and_rounds_out_of_range() -> None:
    with refused("devices"):
        groups_of(PAPER, 1, 0)
    for share in (0, -0.3, 1.1, math.nan):
        with refused("share of the groups chosen"):
            chosen_groups(share, 10)
    with refused("groups"):
        chosen_groups(0.3, 0)
    for ask in (period_of, is_full):
        with refused("rounds from one full synchronisation to the next"):
            ask(1, 0)
        with refused("round"):
            ask(0, 5)


def test_kinds_are_named() -> None:
    assert [kind(2, 10).kind for kind in ALL] == ["linear", "log", "exponential"]
