"""The exact selection with a budget of nodes: the same on every machine, and what it proves holds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.solvers.selection import solve as exact_module
from fedfloor.solvers.selection.problem import verify
from fedfloor.solvers.selection.solve import exact, random
from selections import close, femnist_like, least, strange

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 300))
def test_a_budget_of_nodes_leaves_a_bound(seed: int, nodes: int) -> None:
    """Whatever is left open, the bound is below the best; and enough nodes (2^11 leaves, as many parts) find it."""
    problem = strange(seed, most=11)
    best = least(problem)
    rounding = close(problem)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exact_module, "ROOT", 7)
        patched.setattr(exact_module, "PART", 5)
        patched.setattr(exact_module, "swap", lambda p, seed: random(p, seed=seed))
        found = exact(problem, nodes=nodes)
        enough = exact(problem, nodes=10**6)
    verify(problem, found)
    assert found.bound <= best * (1 + rounding["rel"]) + rounding["abs"]
    assert enough.value == pytest.approx(best, **rounding)
    assert enough.status == "optimal" or enough.value <= rounding["abs"]


def test_nodes_do_not_ask_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where hours pass between two looks at it; with a time limit that is the end."""
    problem = femnist_like(1, 60, 16)
    first = exact(problem, nodes=20_000)
    monkeypatch.setattr(exact_module, "ROOT", 5_000)  # parts, too
    monkeypatch.setattr(exact_module, "PART", 2_000)
    split = exact(problem, nodes=20_000)
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(exact_module.time, "perf_counter", lambda: next(hours))
    again = exact(problem, nodes=20_000)
    assert (again.choice.tolist(), again.bound) == (split.choice.tolist(), split.bound)
    assert first.status == split.status == "feasible"
    assert split.bound > first.bound  # parts are bounded more closely than the whole
    assert exact(problem, 60.0).bound < split.bound


def test_the_root_comes_first_and_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedfloor.solvers.selection import kernels as enumeration

    settle = enumeration.settle_subtree
    budgets = []
    taken = []

    def counting(*words: Any) -> tuple[float, int, int]:
        got = settle(*words)
        budgets.append(words[6])
        taken.append(got[2])
        return got

    monkeypatch.setattr(enumeration, "settle_subtree", counting)
    exact(femnist_like(1, 60, 16), nodes=20_000)
    assert budgets == [20_000]  # fewer than the root may have: it gets them all
    monkeypatch.setattr(exact_module, "ROOT", 5_000)
    monkeypatch.setattr(exact_module, "PART", 2_000)
    budgets.clear()
    taken.clear()
    exact(femnist_like(1, 60, 16), nodes=20_000)
    assert (budgets[0], max(budgets[1:])) == (5_000, 2_000)
    assert 20_000 - 2_000 < sum(taken) <= 20_000 + len(taken)  # each may look at one too many


def test_more_nodes_are_no_worse_and_in_the_end_prove() -> None:
    problem = femnist_like(1, 60, 16)
    found = [exact(problem, nodes=nodes) for nodes in (1, 1_000, 20_000, 10**7)]
    assert [one.status for one in found] == ["feasible", "feasible", "feasible", "optimal"]
    assert all(after.value <= before.value for before, after in itertools.pairwise(found))
    assert all(one.bound <= found[-1].value for one in found)
    assert exact(problem).choice.tolist() == found[-1].choice.tolist()
