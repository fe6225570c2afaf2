from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfloor.engine.aggregation import TreeSum
from fedfloor.engine.ranks import deal
from floor import bits

Packets = list[dict[str, Tensor]]


def packets(n: int, rng: np.random.Generator) -> Packets:
    """Numbers of very different sizes, so that nearly every other order of adding gives other bits."""
    size = int(rng.integers(1, 6))
    scale = 10.0 ** rng.integers(-6, 7, (n, 2, size))
    values = torch.from_numpy((rng.standard_normal((n, 2, size)) * scale).astype(np.float32))
    return [{"w": one[0], "c": one[1]} for one in values]


def weights(n: int, rng: np.random.Generator) -> list[float]:
    return (rng.integers(0, 2000, n) * (rng.random(n) > 0.2)).astype(float).tolist()


def in_order(given_packets: Packets, given_weights: list[float]) -> TreeSum:
    tree = TreeSum(len(given_packets))
    for i, (packet, weight) in enumerate(zip(given_packets, given_weights, strict=True)):
        tree.add(i, packet, weight)
    return tree


def split_up(given_packets: Packets, given_weights: list[float], rng: np.random.Generator) -> TreeSum:
    """Deal contiguous runs to ranks, let each add its own in any order, and let a new tree take what they hold."""
    n = len(given_packets)
    cuts = [0, *sorted(rng.integers(0, n + 1, int(rng.integers(0, 5))).tolist()), n]
    whole = TreeSum(n)
    for low, high in pairwise(cuts):
        tree = TreeSum(n)
        for i in rng.permutation(np.arange(low, high)).tolist():
            tree.add(i, given_packets[i], given_weights[i])
        whole.take([memoryview(bytearray(part)) for part in tree.unfinished()], given_packets[0])
    return whole


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(bits(a[name]) == bits(b[name]) for name in a)


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_bits_depend_neither_on_the_order_nor_on_the_ranks(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_packets = packets(n, rng)
    given_weights = weights(n, rng)
    start = {"w": torch.zeros(1), "c": torch.zeros(1)}
    expected = in_order(given_packets, given_weights).mean(start)
    assert same(split_up(given_packets, given_weights, rng).mean(start), expected)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_is_the_weighted_mean(n: int, seed: int) -> None:
    # u = 2^-24. Each term is rounded once by its weight, at most ceil(log2 n) times by additions, once by the division:
    # |error| <= (L + 2) u Σ w|x| / Σ w in first order; one more u covers the second order.
    rng = np.random.default_rng(seed)
    given_packets = packets(n, rng)
    given_weights = weights(n, rng)
    if not any(given_weights):
        given_weights[0] = 1.0
    mean = in_order(given_packets, given_weights).mean({})["w"].double().numpy()
    x = np.array([packet["w"].double().numpy() for packet in given_packets])
    w = np.array(given_weights)[:, None]
    allowed = ((n - 1).bit_length() + 3) * 2.0**-24 * (w * abs(x)).sum(0) / w.sum()
    assert (abs(mean - (w * x).sum(0) / w.sum()) <= allowed).all()


def test_adds_as_a_tree_and_not_from_left_to_right() -> None:
    # ε = 2^-24 is half the gap above 1: 1 + ε rounds to 1 (to even), but 1 + (ε + ε) is 1 + 2^-23. From left to right
    # the sum is ((1 + ε) + ε) + ε = 1; the tree has (1 + ε) + (ε + ε) = 1 + 2^-23. The division by 4 is exact.
    epsilon = 2.0**-24
    tree = in_order([{"w": torch.tensor([value])} for value in (1.0, epsilon, epsilon, epsilon)], [1.0] * 4)
    assert float(4 * tree.mean({})["w"]) == 1 + 2.0**-23


def test_holds_no_more_than_the_tree_is_high() -> None:
    tree = TreeSum(37)
    for i in range(36):
        tree.add(i, {"w": torch.ones(1)}, 1.0)
        assert len(tree.unfinished()) - 1 <= 6  # ceil(log2 37)
    tree.add(36, {"w": torch.ones(1)}, 1.0)
    assert len(tree.unfinished()) - 1 == 1
    assert float(tree.mean({})["w"]) == 1.0


def test_weight_0_leaves_a_branch_out_whatever_it_holds() -> None:
    rng = np.random.default_rng(1)
    kept = packets(3, rng)
    nan = {"w": torch.full_like(kept[0]["w"], torch.nan), "c": torch.full_like(kept[0]["c"], torch.inf)}
    for at in range(4):
        some = [*kept[:at], nan, *kept[at:]]
        some_weights = [2.0] * at + [0.0] + [2.0] * (3 - at)
        x = torch.stack([packet["w"] for packet in kept]).double().mean(0)
        mean = in_order(some, some_weights).mean({})["w"]
        largest = float(max(abs(packet["w"]).max() for packet in kept))
        assert torch.allclose(mean.double(), x, rtol=0, atol=5 * 2**-24 * largest)  # L + 3 = 5, as above


def test_all_left_out_gives_the_start_back() -> None:
    start = {"w": torch.tensor([1.5]), "c": torch.tensor([2.5])}
    tree = in_order(packets(5, np.random.default_rng(2)), [0.0] * 5)
    assert same(tree.mean(start), start)


@pytest.mark.parametrize("weight", [1.0, 3.0, 600.0, 0.1])
def test_the_mean_of_one_branch_is_that_branch_to_the_bit(weight: float) -> None:
    value = torch.from_numpy(np.random.default_rng(3).standard_normal(1000).astype(np.float32))
    assert (value * weight / weight != value).any() or weight == 1.0  # multiplied and divided it would not be
    mean = in_order([{"w": value}], [weight]).mean({"w": torch.zeros(1000)})
    assert bits(mean["w"]) == bits(value)


def test_adding_copies_and_the_start_stays_as_it_was() -> None:
    value = torch.tensor([1.0, 2.0])
    tree = TreeSum(2)
    tree.add(0, {"w": value}, 1.0)
    value.zero_()
    tree.add(1, {"w": value}, 1.0)
    assert tree.mean({"w": value})["w"].tolist() == [0.5, 1.0]
    assert value.tolist() == [0.0, 0.0]


# -- dealing branches to ranks -----------------------------------------------------------------------------------------


def best_load(costs: list[int], ranks: int) -> int:
    """Every way to cut the branches into contiguous runs, tried."""
    cuts = combinations_with_replacement(range(len(costs) + 1), ranks - 1)
    return min(max(sum(costs[a:b]) for a, b in pairwise((0, *cut, len(costs)))) for cut in cuts)


@settings(max_examples=200, deadline=None)
@given(costs=st.lists(st.integers(0, 12), max_size=7), ranks=st.integers(1, 4))
def test_deal_is_contiguous_covers_and_has_the_smallest_largest_load(costs: list[int], ranks: int) -> None:
    runs = deal(costs, ranks)
    assert len(runs) == ranks
    assert [i for run in runs for i in run] == list(range(len(costs)))
    assert max(sum(costs[i] for i in run) for run in runs) == best_load(costs, ranks)


def test_deal_by_hand() -> None:
    # 6 1 1 1 | 4 5 would be 9 and 9; any other cut leaves a run of more than 9
    assert deal([6, 1, 1, 1, 4, 5], 2) == [range(0, 4), range(4, 6)]
    assert deal([3], 3) == [range(0, 1), range(1, 1), range(1, 1)]
