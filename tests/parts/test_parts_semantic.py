"""The semantic memory: means, drift and storage by hand, where compensation is exact, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfloor.base.chance import generator
from fedfloor.base.errors import DivergedError
from fedfloor.parts.objectives.semantic import class_means, compensated, drift, fused, nearest
from floor import bits
from refusals import refused

D = 3
F = 4
Seed = st.integers(0, 2**32 - 1)


def window(n: int, seed: int, width: int = D) -> tuple[Tensor, Tensor]:
    """n samples with labels, in float64: what is compared in the tests is then exact up to some 10⁻¹⁵."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((n, width))), torch.from_numpy(rng.integers(0, F, n))


def matrix(seed: int, width: int = D) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((width, width)))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9)  # a few sums of numbers around 1, in float64


# -- by hand: two classes, three features ------------------------------------------------------------------------------

Y = torch.tensor([0, 1, 0, 1])
NOW = torch.tensor([[1.0, 0.0, 2.0], [4.0, 4.0, 4.0], [3.0, 2.0, 0.0], [0.0, 2.0, 8.0]])
BEFORE = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 4.0], [0.0, 2.0, 2.0], [2.0, 2.0, 4.0]])
# means of class 0 now (4, 2, 2)/2, before (0, 2, 3)/2; of class 1 now (4, 6, 12)/2, before (6, 2, 8)/2
MOVED = torch.tensor([[2.0, 0.0, -0.5], [-1.0, 2.0, 2.0]])


def test_means_by_hand() -> None:
    means, counts = class_means(NOW, Y, 2)
    assert means.tolist() == [[2, 1, 1], [2, 3, 6]]
    assert counts.tolist() == [2, 2]
    # classes 1 and 3 of 4 stay away: their means are 0 and nobody is counted
    means, counts = class_means(NOW, 2 * Y, 4)
    assert means.tolist() == [[2, 1, 1], [0, 0, 0], [2, 3, 6], [0, 0, 0]]
    assert counts.tolist() == [2, 0, 2, 0]


def test_drift_and_compensation_by_hand() -> None:
    assert drift(NOW, BEFORE, Y, 2).tolist() == MOVED.tolist()
    memory = torch.tensor([[1.0, 1.0, 1.0], [0.0, 5.0, 0.0], [2.0, 2.0, 2.0]])
    labels = torch.tensor([1, 0, 0])
    assert compensated(memory, labels, MOVED).tolist() == [[0, 3, 3], [2, 5, -0.5], [4, 2, 1.5]]
    assert memory.tolist() == [[1, 1, 1], [0, 5, 0], [2, 2, 2]]


def test_storage_by_hand() -> None:
    # class 0: 0, 2 and 7 on a line, μ = 3, δ = 3, 1 and 4; class 1: (10, 4) and (10, −4), μ = (10, 0), δ = 4 and 4
    z = torch.tensor([[0.0, 0.0], [10.0, 4.0], [2.0, 0.0], [7.0, 0.0], [10.0, -4.0]])
    y = torch.tensor([0, 1, 0, 0, 1])
    # by δ and then by place: 2 (1), 0 (3), then with δ = 4 the places 1, 3 and 4; returned in the order they came in
    for keep, places in [(1, [2]), (2, [0, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (5, [0, 1, 2, 3, 4])]:
        kept, labels = nearest(z, y, keep)
        assert kept.tolist() == z[places].tolist()
        assert labels.tolist() == y[places].tolist()
    # the distance is the 2-norm: from μ = 0 (the others cancel), (3, 4) is 5 away and (5.5, 0) is 5.5, in the 1-norm 7
    z = torch.tensor([[5.5, 0.0], [3.0, 4.0], [-5.5, 0.0], [-3.0, -4.0]])
    assert nearest(z, torch.zeros(4, dtype=torch.int64), 2)[0].tolist() == [[3, 4], [-3, -4]]


def test_a_class_that_is_there_once_is_its_own_mean_and_kept_first() -> None:
    z = torch.tensor([[0.0], [1.0], [1.5], [100.0]])
    y = torch.tensor([0, 0, 0, 1])
    assert nearest(z, y, 1)[0].tolist() == [[100]]


def test_storage_by_the_means_of_the_last_window() -> None:
    # class 0: stored 0, 1 and 8; window 9 and 11, μ = 10: δ = 10, 9, 2, 1, 1; class 2 is not in the window: 4 and 10
    # keep their mean over all candidates, 7, δ = 3 and 3. Over all candidates class 0 has μ = 5.8, δ = 5.8, 4.8, 2.2,
    # 3.2, 5.2
    z = torch.tensor([[0.0], [1.0], [8.0], [4.0], [10.0], [9.0], [11.0]])
    y = torch.tensor([0, 0, 0, 2, 2, 0, 0])
    assert nearest(z, y, 4, "window", window=2)[0].flatten().tolist() == [8, 4, 9, 11]
    assert nearest(z, y, 5, "window", window=2)[0].flatten().tolist() == [8, 4, 10, 9, 11]
    assert nearest(z, y, 4, "candidates")[0].flatten().tolist() == [8, 4, 10, 9]
    # a window of all candidates is the first rule
    for keep in range(8):
        assert bits(nearest(z, y, keep, "window", window=7)[0]) == bits(nearest(z, y, keep)[0])


def test_the_calibration_set_is_the_window_and_then_the_memory() -> None:
    z, y = fused(NOW, Y, BEFORE[:1], torch.tensor([3]))
    assert z.tolist() == [*NOW.tolist(), [0, 0, 1]]
    assert y.tolist() == [0, 1, 0, 1, 3]
    # a device that has kept nothing yet trains on its window
    z, y = fused(NOW, Y, *nearest(NOW, Y, 0))
    assert (bits(z), y.tolist()) == (bits(NOW), [0, 1, 0, 1])


# -- where compensation is exact ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), seed=Seed)
def test_with_the_same_samples_the_class_means_are_exact_for_any_extractor(n: int, seed: int) -> None:
    # mean_c h(x, φ_bak) + (mean_c h(x, φ) − mean_c h(x, φ_bak)) = mean_c h(x, φ), whatever h is
    (x, y) = window(n, seed)
    old = matrix(seed + 1)
    new = matrix(seed + 2)
    now = torch.tanh(x @ new)
    before = torch.tanh(x @ old)
    stored = compensated(before, y, drift(now, before, y, F))
    assert close(class_means(stored, y, F)[0], class_means(now, y, F)[0])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), seed=Seed)
def test_with_a_linear_extractor_what_is_left_is_each_samples_own_way_from_its_mean(n: int, seed: int) -> None:
    # h(x) = Wx, memory and window the same samples: Δ_c = mean_c (W' − W)x = (W' − W)x̄_c, so that what should be W'x_i
    # is Wx_i + (W' − W)x̄_c: the rest is (W' − W)(x_i − x̄_c), which is 0 in the mean of every class
    (x, y) = window(n, seed)
    old = matrix(seed + 1)
    new = matrix(seed + 2)
    moved = drift(x @ new, x @ old, y, F)
    centres = class_means(x, y, F)[0]
    assert close(moved, centres @ (new - old))
    rest = x @ new - compensated(x @ old, y, moved)
    assert close(rest, (x - centres[y]) @ (new - old))
    assert close(class_means(rest, y, F)[0], torch.zeros(F, D, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 20), seed=Seed)
def test_with_a_linear_extractor_other_samples_with_the_same_means_do(n: int, seed: int) -> None:
    # the window mirrors the memory at its class means: 2x̄_c − x has the means x̄_c, which for h(x) = Wx + b is enough:
    # mean_c h = W x̄_c + b, so that Δ_c is the same as from the samples in memory
    (x, y) = window(n, seed)
    old = matrix(seed + 1)
    new = matrix(seed + 2)
    b = window(2, seed + 3)[0]
    seen = 2 * class_means(x, y, F)[0][y] - x
    stored = compensated(x @ old + b[0], y, drift(seen @ new + b[1], seen @ old + b[0], y, F))
    assert close(class_means(stored, y, F)[0], class_means(x @ new + b[1], y, F)[0])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(0, 40), seed=Seed)
def test_where_a_class_moves_alike_every_semantic_is_exact(n: int, m: int, seed: int) -> None:
    # h(x, φ) = h(x, φ_bak) + b_class: Δ_c = b_c for the classes of the window; the others keep theirs, to the bit
    (x, y) = window(n, seed)
    (z, labels) = window(m, seed + 1)
    shift = window(F, seed + 2)[0]
    got = compensated(z, labels, drift(x + shift[y], x, y, F))
    seen = torch.isin(labels, y)
    assert close(got[seen], (z + shift[labels])[seen])
    assert bits(got[~seen]) == bits(z[~seen])


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 40), m=st.integers(0, 40), seed=Seed)
def test_with_the_extractor_unchanged_nothing_moves(n: int, m: int, seed: int) -> None:
    (x, y) = window(n, seed)
    (z, labels) = window(m, seed + 1)
    moved = drift(x.float(), x.float(), y, F)
    assert moved.eq(0).all()
    assert bits(compensated(z.float(), labels, moved)) == bits(z.float())


# -- laws of storage ---------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(n=st.integers(0, 60), keep=st.integers(0, 70), seed=Seed, rule=st.sampled_from(["candidates", "random"]))
def test_what_is_kept_is_part_of_the_candidates_and_never_more_than_q(n: int, keep: int, seed: int, rule: str) -> None:
    x, y = window(n, seed)
    kept, labels = nearest(x, y, keep, rule, rng=generator(seed, "memory"))  # type: ignore[arg-type]
    assert kept.shape == (min(n, keep), D)
    assert labels.shape == (min(n, keep),)
    places = [int((x == one).all(1).nonzero()) for one in kept]  # drawn numbers: no two samples are equal
    assert places == sorted(set(places))
    assert labels.tolist() == y[places].tolist()
    again = nearest(x, y, keep, rule, rng=generator(seed, "memory"))  # type: ignore[arg-type]
    assert (bits(kept), bits(labels)) == (bits(again[0]), bits(again[1]))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 60), keep=st.integers(0, 60), seed=Seed)
def test_nobody_left_out_is_nearer_than_one_kept(n: int, keep: int, seed: int) -> None:
    x, y = window(n, seed)
    far = [float(np.linalg.norm(a - x[y == b].mean(0).numpy())) for a, b in zip(x.numpy(), y, strict=True)]
    kept = {tuple(one) for one in nearest(x, y, keep)[0].tolist()}
    ins = [d for d, one in zip(far, x.tolist(), strict=True) if tuple(one) in kept]
    outs = [d for d, one in zip(far, x.tolist(), strict=True) if tuple(one) not in kept]
    assert len(ins) == min(n, keep)
    assert max(ins, default=0) <= min(outs, default=np.inf) + 1e-12  # two ways of adding up one mean


@settings(max_examples=60, deadline=None)
@given(seed=Seed, keep=st.integers(0, 12))
def test_of_equally_near_ones_the_first_are_kept(seed: int, keep: int) -> None:
    # ±2 around the mean 0, six of each, in any order: all at distance 2
    z = torch.from_numpy(np.random.default_rng(seed).permutation([2.0, -2.0] * 6)).reshape(12, 1)
    kept, _ = nearest(z, torch.zeros(12, dtype=torch.int64), keep)
    assert bits(kept) == bits(z[:keep])


def test_another_generator_keeps_others_and_all_are_as_likely() -> None:
    # 3 of 12, 2000 times: each is kept 500 times, give or take √(2000·¼·¾) = 19.4; five of these are 97
    x, y = window(12, 0)
    counts = torch.zeros(12)
    for seed in range(2000):
        kept, _ = nearest(x, y, 3, "random", rng=generator(seed, "memory"))
        counts += (x[:, None] == kept[None]).all(2).any(1)
    assert counts.sum() == 6000
    assert (counts - 500).abs().max() < 97


# -- dtype, order, and what goes in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_and_device_stay(dtype: torch.dtype) -> None:
    z = NOW.to(dtype)
    was = BEFORE.to(dtype)
    moved = drift(z, was, Y, 2)
    (means, counts) = class_means(z, Y, 2)
    (kept, of) = nearest(z, Y, 2)
    (both, y) = fused(z, Y, was, Y)
    for got in (means, moved, compensated(was, Y, moved), kept, both):
        assert (got.dtype, got.device) == (dtype, z.device)
    assert counts.dtype == of.dtype == y.dtype == torch.int64
    # these small numbers are exact in every dtype
    assert (moved.tolist(), z.tolist(), was.tolist()) == (MOVED.tolist(), NOW.tolist(), BEFORE.tolist())


def test_what_comes_out_is_no_view_of_what_went_in() -> None:
    z = NOW.clone()
    was = BEFORE.clone()
    empty = z[:0]
    none = Y[:0]
    got = (compensated(was, Y, torch.zeros(2, D)), nearest(z, Y, 9)[0], fused(z, Y, was, Y)[0])
    for one in (*got, fused(z, Y, empty, none)[0], fused(empty, none, z, Y)[0]):
        one.fill_(7)
    assert (bits(z), bits(was)) == (bits(NOW), bits(BEFORE))


def test_an_empty_window_and_an_empty_memory() -> None:
    z = torch.zeros(0, D)
    y = torch.zeros(0, dtype=torch.int64)
    means, counts = class_means(z, y, 2)
    assert (means.tolist(), counts.tolist()) == ([[0, 0, 0], [0, 0, 0]], [0, 0])
    assert compensated(z, y, MOVED).shape == (0, D)
    assert [tuple(one.shape) for one in (*nearest(z, y, 5), *fused(z, y, z, y))] == [(0, D), (0,), (0, D), (0,)]


# -- what is refused ---------------------------------------------------------------------------------------------------

ASKED: dict[str, tuple[Callable[[], object], str]] = {
    "one feature": (lambda: class_means(NOW[0], Y, 2), "features"),
    "whole numbers": (lambda: nearest(NOW.long(), Y, 2), "the candidates' features"),
    "labels too few": (lambda: class_means(NOW, Y[:3], 2), "labels of features"),
    "labels as floats": (lambda: fused(NOW, Y.float(), NOW, Y), "labels of the window's features"),
    "label too large": (lambda: class_means(NOW, Y, 1), "the largest label"),
    "label too small": (lambda: class_means(NOW, Y - 1, 2), "the smallest label"),
    "label without drift": (lambda: compensated(NOW, 2 * Y, MOVED), "the largest label"),
    "label from the end": (lambda: nearest(NOW, Y - 1, 2), "the smallest label"),
    "another length": (
        lambda: fused(NOW, Y, NOW[:, :2], Y),
        "memory-differs",
    ),
    "another dtype": (lambda: compensated(NOW.double(), Y, MOVED), "memory-differs"),
    "fewer before": (lambda: drift(NOW, BEFORE[:3], Y, 2), "samples seen by the extractor before"),
    "one before for all": (lambda: drift(NOW, BEFORE[:1], Y, 2), "samples seen by the extractor before"),
    "negative memory": (lambda: nearest(NOW, Y, -1), "semantics to keep"),
    "mistyped rule": (
        lambda: nearest(NOW, Y, 2, "candidate"),  # type: ignore[arg-type]
        "unknown rule of the memory",
    ),
    "no window": (
        lambda: nearest(NOW, Y, 2, "window"),
        "window",
    ),
    "no generator": (
        lambda: nearest(NOW, Y, 2, "random"),
        "rng",
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_does_not_belong_together_is_refused(case: str) -> None:
    ask, said = ASKED[case]
    with refused(said):
        ask()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_features_that_are_no_longer_finite_are_training_that_diverged(wrong: float) -> None:
    bad = NOW.clone()
    bad[2, 1] = wrong
    asks: list[Callable[[], object]] = [
        lambda: class_means(bad, Y, 2),
        lambda: drift(bad, NOW, Y, 2),
        lambda: compensated(bad, Y, MOVED),
        lambda: compensated(NOW, Y, bad[1:3]),
        lambda: nearest(bad, Y, 2),
        lambda: nearest(bad, Y, 2, "random", rng=generator(0, "memory")),
        lambda: fused(NOW, Y, bad, Y),
    ]
    for ask in asks:
        with refused("diverged", DivergedError):
            ask()
