"""The allocation problem and its answers: examples by hand, and errors."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from allocation_parks import park
from fedfloor.base.errors import RunError, SettingError
from fedfloor.solvers.allocation import kernels
from fedfloor.solvers.allocation.problem import (
    Allocation,
    AllocationProblem,
    alone_s,
    clean_bound,
    cost,
    iterations,
    latency,
    level_tables,
    only_level,
    reception,
    training_latency,
    verify,
)
from fedfloor.solvers.allocation.solve import candidates, exact, fixed, rafed, search
from fedfloor.solvers.solution import solved
from refusals import refused


def two(**more: Any) -> AllocationProblem:
    """Two devices, two levels, noise 1 W."""
    return AllocationProblem(
        np.array([1.0, 2.0]), np.array([[0.5, 0.25], [1.0, 0.5]]), np.array([[2.0, 4.0], [1.0, 8.0]]),
        1.0, 0.5, 2, iterations_scale=10.0, iterations_offset=0.1, **more,
    )  # fmt: skip


def of(*pairs: tuple[int, int]) -> Allocation:
    return Allocation(*(np.array(numbers, np.int64) for numbers in zip(*pairs, strict=True)))


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_table_1_of_the_paper() -> None:
    # devices a … d: compute 2, 3, 4, 5, upload 4, 2, 1, 1; by |S|: reception 1, .8, .6, .4 and 10, 8, 6, 4 iterations
    compute = np.array([2.0, 3.0, 4.0, 5.0])
    airtime = np.array([4.0, 2.0, 1.0, 1.0])
    q = {1: 1.0, 2: 0.8, 3: 0.6, 4: 0.4}
    n = {1: 10, 2: 8, 3: 6, 4: 4}

    def at(devices: str, clean: bool = False) -> float:
        i = np.array(["abcd".index(one) for one in devices])
        return training_latency(n[i.size], compute[i], airtime[i], np.full(i.size, 1.0 if clean else q[i.size]))

    assert at("ab") == pytest.approx(56)  # 8·(2 + 4/0.8)
    assert at("c") == pytest.approx(50)  # 10·(4 + 1)
    assert at("abcd") == pytest.approx(48)  # 4·(2 + 4/0.4)
    assert at("bcd") == pytest.approx(40)  # 6·(5 + 1/0.6)
    sets = ["".join(d for b, d in enumerate("abcd") if mask >> b & 1) for mask in range(1, 16)]
    assert min(map(at, sets)) == at("bcd")
    assert at("bcd", clean=True) == pytest.approx(36)  # the paper's answer with orthogonal channels
    assert at("abcd", clean=True) == pytest.approx(24)  # which is not the best


@pytest.mark.parametrize(
    ("k", "n"), [(1, 89.99), (2, 45.41), (5, 18.66), (10, 9.75), (20, 5.29), (40, 3.06), (80, 1.95)]
)
def test_iterations(k: int, n: float) -> None:
    assert iterations(park(2, 0), k) == pytest.approx(n, abs=0.005)


def test_latencies_on_one_channel_by_hand() -> None:
    # γ = ½, N0 = 1 W; device 0 at 4 W, device 1 at 8 W: −ln q₀ = ½(8 + 1)/4 = 9/8, −ln q₁ = ½(4 + 1)/8 = 5/16
    problem = two()
    both = of((0, 1), (0, 1))
    assert reception(problem, both) == pytest.approx([math.exp(-9 / 8), math.exp(-5 / 16)])
    t = [1 + 0.25 * math.exp(9 / 8), 2 + 0.5 * math.exp(5 / 16)]
    assert latency(problem, both) == pytest.approx(t)
    assert cost(problem, both) == pytest.approx(10 * (0.1 + 0.5) * t[1])


def test_latencies_with_fading_interferers_by_hand() -> None:
    # q₀ = e^(−1/8)/(1 + ½·8/4) = e^(−1/8)/2, q₁ = e^(−1/16)/(1 + ½·4/8) = e^(−1/16)·4/5
    problem = two(reception="exact")
    both = of((0, 1), (0, 1))
    assert reception(problem, both) == pytest.approx([math.exp(-1 / 8) / 2, math.exp(-1 / 16) * 0.8])


def test_devices_on_other_channels_and_silent_ones_do_no_harm() -> None:
    problem = two()
    apart = latency(problem, of((0, 0), (1, 1)))
    assert apart == pytest.approx([1 + 0.5 * math.exp(1 / 4), 2 + 0.5 * math.exp(1 / 16)])
    alone = latency(problem, of((0, 0), (-1, 0)))
    assert alone[0] == apart[0]
    assert np.isnan(alone[1])
    assert cost(problem, of((0, 0), (-1, 0))) == pytest.approx(10 * 1.1 * apart[0])


def test_nobody_costs_more_than_anything() -> None:
    assert cost(two(), of((-1, 0), (-1, 0))) == math.inf


def test_divergence_by_hand() -> None:
    # shares (3, 1)/4 against (1, 1)/2: √(2·(1/4)²) = √2/4
    problem = two(counts=np.array([[3.0, 0.0], [0.0, 1.0]]), target=np.array([5.0, 5.0]), divergence_weight=2.0)
    both = of((0, 0), (1, 0))
    assert cost(problem, both) == pytest.approx(cost(two(), both) * (1 + 2 * math.sqrt(2) / 4))


def test_the_bound_of_a_channel_per_device_by_hand() -> None:
    problem = two()
    alone = [1 + 0.25 * math.exp(1 / 8), 2 + 0.5 * math.exp(1 / 16)]  # at 4 and 8 W; at 2 and 1 W they take longer
    assert alone_s(problem) == pytest.approx(alone)
    assert clean_bound(problem) == pytest.approx(11 * alone[0])  # 14.1, below 6 · 2.532 = 15.2 of both
    dear = dataclasses.replace(problem, iterations_offset=0.01)  # n(1) = 10.1 and n(2) = 5.1 iterations
    assert clean_bound(dear) == pytest.approx(5.1 * alone[1])  # 12.91, below 10.1 · 1.283 = 12.96


def test_who_can_be_in_a_better_allocation_by_hand() -> None:
    """n(1) = 11 and n(2) = 6 iterations; alone on a channel device 0 takes 1.283 s, device 1 2.532 s."""
    problem = two()
    data = kernels.channel_data(level_tables(problem))
    first = 1 + 0.25 * math.exp(1 / 8)
    second = 2 + 0.5 * math.exp(1 / 16)

    def left(value: float) -> list[int]:
        return candidates(problem, data, value).tolist()

    assert left(6 * second) == [0, 1]  # of two, the slower one exactly as long as the value allows
    assert left(6 * second * (1 - 1e-6)) == [0]
    assert left(11 * first) == [0]
    assert left(11 * first * (1 - 1e-6)) == []


def test_the_best_answer_by_hand() -> None:
    # apart, both at the strong level: max(1 + e^(1/8)/4, 2 + e^(1/16)/2) = 2.532…, times n(2) = 6: 15.19; device 0 by
    # itself: n(1)·(1 + e^(1/8)/4) = 11·1.283 = 14.12
    found = exact(two())
    assert found.value == pytest.approx(11 * (1 + math.exp(1 / 8) / 4))
    assert found.choice.channel.tolist()[1] == -1
    assert found.status == "optimal"


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"channels": 0}, "channels"),
        ({"channels": 1.5}, "channels"),
        ({"noise_w": 0.0}, "noise_w"),
        ({"threshold": -1.0}, "threshold"),
        ({"iterations_scale": 0.0}, "iterations_scale"),
        ({"iterations_offset": -0.1}, "iterations_offset"),
        ({"airtime_s": np.array([[0.5, 0.0], [1, 1]])}, "airtime_s"),
        ({"airtime_s": np.array([[0.5, -2.0], [1, 1]])}, "airtime_s"),
        ({"received_w": np.array([[1, math.nan], [1, 1]])}, "received_w"),
        ({"compute_s": np.array([1.0, math.inf])}, "compute_s"),
        ({"compute_s": np.array([])}, "shape of compute_s"),
        ({"compute_s": np.ones((2, 1))}, "shape of compute_s"),
        ({"airtime_s": np.ones((3, 2))}, "shape of airtime_s"),
        ({"received_w": np.ones((2, 3))}, "shape of received_w"),
        ({"usable": np.ones(2, bool)}, "shape of usable"),
        ({"usable": np.zeros((2, 2), bool)}, "powers"),
        ({"reception": "none"}, "reception"),
        ({"divergence_weight": -1.0}, "divergence_weight"),
        ({"divergence_weight": 1.0}, "divergence_weight"),
        ({"divergence_weight": 1.0, "counts": np.ones((2, 3)), "target": np.ones(2)}, "shape of counts"),
        ({"divergence_weight": 1.0, "counts": np.ones((2, 2)), "target": np.zeros(2)}, "sum of target"),
        ({"divergence_weight": 1.0, "counts": -np.ones((2, 2)), "target": np.ones(2)}, "counts"),
    ],
)
def test_problems_that_cannot_be(change: dict[str, Any], says: str) -> None:
    with refused(says):
        dataclasses.replace(two(), **change)


def test_settings_that_cannot_be() -> None:
    problem = two(usable=np.array([[True, True], [False, False]]))
    rng = np.random.default_rng(0)
    for call, says in (
        (lambda: search(problem, proposals=-1), "proposals = -1"),
        (lambda: search(problem, seed=-1), "seed = -1"),
        (lambda: exact(problem, time_limit_s=0), "time_limit_s = 0"),
        (lambda: rafed(problem, rng, delta=-1.0), "delta = -1.0"),
        (lambda: rafed(problem, rng, ties="some"), "ties = 'some'"),  # type: ignore[arg-type]
        (lambda: rafed(problem, of((2, 0), (-1, 0))), "channel of an allocation"),
        (lambda: rafed(problem, of((0, 2), (-1, 0))), "level of an allocation"),
        (lambda: rafed(problem, of((0, 0), (0, 0))), r"may not use = \[1\]"),
        (lambda: fixed(problem, np.array([], np.int64), rng), "at least one device"),
        (lambda: fixed(problem, np.array([2]), rng), "numbers of 0 … 1"),
        (lambda: fixed(problem, np.array([0, 1]), rng), r"without a usable power level = \[1\]"),
        (lambda: fixed(problem, np.array([0]), of((-1, 0), (-1, 0))), "exactly the active devices"),
        (lambda: only_level(problem, 2), "level = 2"),
    ):
        with pytest.raises(SettingError, match=says):
            call()


def test_a_wrong_value_or_bound_is_found_out() -> None:
    problem = two()
    one = of((0, 1), (-1, 0))
    value = cost(problem, one)
    verify(problem, solved(value, 0.0, one, 0.0))
    with refused("solution", RunError):
        verify(problem, solved(value * 1.001, 0.0, one, 0.0))
    with refused("solution", RunError):
        verify(problem, dataclasses.replace(solved(value, 0.0, one, 0.0), bound=value * 1.001))


def test_levels_so_weak_that_no_number_says_how_long_they_take() -> None:
    # γN0/s = 1,000: e^1000 s is beyond floating-point numbers
    problem = AllocationProblem(np.ones(2), np.ones((2, 1)), np.full((2, 1), 1e-3), 1.0, 1.0, 1)
    for found in (search(problem), exact(problem), rafed(problem, np.random.default_rng(1), ties="log")):
        assert found.value == math.inf
        verify(problem, found)


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import fedfloor.solvers.allocation.problem, fedfloor.solvers.allocation.solve, fedfloor.solvers.allocation.solve
print("imported")
"""


def test_solvers_are_imported_without_numba() -> None:
    got = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True)
    assert got.stdout == "imported\n", got.stderr
