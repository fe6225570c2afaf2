"""The calculations of docs/errata.md."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from fedfloor.solvers.clustering import fewest_functions, hash_functions, hash_vectors


def test_the_lemma_of_fedsr_is_false_where_its_theorem_needs_it() -> None:
    shares = np.full(5, 1 / 5)
    x = np.ones(3)
    mean = sum(share * x for share in shares)
    squares = np.square(shares).sum()
    assert squares <= 1 / 2  # the condition of the theorem
    assert mean @ mean > 2 * squares * (x @ x)  # Eq. 18 has ≤
    rng = np.random.default_rng(0)
    points = rng.normal(size=(5, 3))
    assert np.square(shares @ points).sum() <= shares @ np.square(points).sum(axis=1)  # Jensen, as the remedy says


def test_proposition_1_of_hfedms_holds_in_expectation_only() -> None:
    deviations = np.array([[1.0, 0.0], [1.0, 0.0]])  # of one device from each of two clusters
    bound = np.square(np.linalg.norm(deviations, axis=1)).sum() / len(deviations) ** 2
    assert np.square(deviations.mean(axis=0)).sum() == 2 * bound
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (10_000, 2, 1))
    drawn = np.square((signs * deviations).mean(axis=1)).sum(axis=1)
    assert drawn.mean() == pytest.approx(bound, rel=0.05)


def test_allocations_of_rafed_are_products_of_channels_and_powers() -> None:
    devices = 2
    channels = 2
    powers = 3
    choices = 1 + channels * powers  # silent, or a channel and a power
    counted = choices**devices - 1  # but for all of them silent
    assert counted == sum(math.comb(devices, k) * (channels * powers) ** k for k in range(1, devices + 1))
    assert counted != sum(math.comb(devices, k) * (channels + powers) ** k for k in range(1, devices + 1))


COMPUTE = {"a": 2, "b": 3, "c": 4, "d": 5}  # seconds
SEND = {"a": 4, "b": 2, "c": 1, "d": 1}  # seconds without collisions
ARRIVES = {1: 1.0, 2: 0.8, 3: 0.6, 4: 0.4}  # share of packets that arrive, by the number of active devices
ITERATIONS = {1: 10, 2: 8, 3: 6, 4: 4}


def seconds(active: str, *, apart: bool = False) -> float:
    """Return the time of training with some active devices, RaFed's Table I."""
    share = 1.0 if apart else ARRIVES[len(active)]
    return ITERATIONS[len(active)] * max(COMPUTE[device] + SEND[device] / share for device in active)


def test_the_example_of_rafed() -> None:
    assert [round(seconds(active)) for active in ("ab", "c", "abcd", "bcd")] == [56, 50, 48, 40]
    sets = ["".join(some) for many in range(1, 5) for some in combinations("abcd", many)]
    assert min(sets, key=seconds) == "bcd"
    assert seconds("bcd", apart=True) == 36
    assert min(seconds(active, apart=True) for active in sets) == seconds("abcd", apart=True) == 24


def test_algorithm_1_of_rafed_as_printed_never_gets_faster() -> None:
    """Its line 9 accepts an allocation if max_t > T_0."""
    rng = np.random.default_rng(0)
    latencies = rng.random((4, 6)) + 0.5  # of a device's choice of a channel and a power
    chosen = rng.integers(0, 6, 4)
    before = longest = latencies[range(4), chosen].max()
    for device in range(4):
        for choice in range(6):
            tried = chosen.copy()
            tried[device] = choice
            if (latency := latencies[range(4), tried].max()) > longest:
                longest = latency
                chosen = tried
    assert latencies[range(4), chosen].max() >= before


def test_one_hash_of_fldg_tells_many_groups_apart() -> None:
    far = 1000.0 * np.arange(10)[:, None] * np.ones(4)
    values = hash_vectors(hash_functions(4, 1, 3.0, seed=0), far)
    assert len(np.unique(values)) == 10
    assert fewest_functions(10, 3.0) == 3
