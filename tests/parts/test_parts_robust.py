"""Median, trimmed mean, Krum and Multi-Krum: examples worked out by hand, and laws."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfloor.parts.mixing.means import CHUNK, krum, krum_scores, mean, median, multi_krum, trimmed_mean
from floor import bits
from refusals import refused

SEEDS = st.integers(0, 2**32)


def models(n: int, seed: int, size: int = 6) -> Tensor:
    """Models around a common one, some coordinates equal, some 0 and −0."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, size)).astype(np.float32)
    values[rng.random((n, size)) < 0.2] = 0.0
    values[rng.random((n, size)) < 0.1] *= -1
    return torch.from_numpy(values)


def with_outliers(honest: int, far: int, seed: int) -> tuple[Tensor, list[int]]:
    """Honest models and far ones in random places: all in one place, or each somewhere else, or not numbers."""
    rng = np.random.default_rng(seed)
    good = models(honest, seed)
    place = [torch.full((1, good.shape[1]), 1e6), torch.full((1, good.shape[1]), math.nan)][int(rng.integers(2))]
    bad = place.repeat(far, 1) * torch.from_numpy(rng.choice([-1.0, 1.0, 5.0], (far, 1)).astype(np.float32))
    order = rng.permutation(honest + far)
    return torch.cat([good, bad])[torch.from_numpy(order)], np.flatnonzero(order < honest).tolist()


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_median_by_hand() -> None:
    of = torch.tensor([[1.0, 5.0], [9.0, -1.0], [2.0, 5.0]])
    assert median(of).tolist() == [2.0, 5.0]
    assert median(torch.cat([of, torch.tensor([[4.0, 100.0]])])).tolist() == [3.0, 5.0]  # (2 + 4)/2, (5 + 5)/2
    assert median(of[:1]).tolist() == of[0].tolist()


def test_trimmed_mean_by_hand() -> None:
    # models k², k = 1 … 10, and b = 0.2: without 1, 4 and 81, 100 it is (9 + 16 + 25 + 36 + 49 + 64)/6 = 199/6
    of = torch.arange(1.0, 11.0).square().unsqueeze(1)
    assert trimmed_mean(of, 0.2).tolist() == pytest.approx([199 / 6])
    assert trimmed_mean(of, 0.29).tolist() == pytest.approx([199 / 6])  # ⌊2.9⌋ = 2
    assert trimmed_mean(of, 0.49).tolist() == [30.5]  # ⌊4.9⌋ = 4: 25 and 36 are left


def test_somebody_stays_however_much_is_trimmed() -> None:
    most = math.nextafter(0.5, 0.0)  # below a half, but 2 · most + 10⁻⁹ is more than one
    assert [trimmed_mean(torch.tensor([[1.0], [3.0], [4.0], [5.0]])[:n], most).item() for n in (1, 2, 3, 4)] == [
        1,
        2,
        3,
        3.5,
    ]


def test_rounding_does_not_trim_one_less() -> None:
    assert 0.29 * 100 < 29  # and yet b·n is 29
    of = torch.zeros(100, 1)
    of[:29] = 1e6
    assert trimmed_mean(of, 0.29).tolist() == [0.0]


def test_krum_by_hand() -> None:
    # 0, 1, 3, 4 and 100 with f = 1: each has its n − f − 2 = 2 nearest. 0: 1 + 9; 1: 1 + 4; 3: 1 + 4; 4: 1 + 9;
    # 100: 96² + 97² = 9216 + 9409. The first of the two best is 1.
    of = torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]])
    assert krum_scores(of, 1) == [10.0, 5.0, 5.0, 10.0, 18625.0]
    assert krum(of, 1).tolist() == [1.0]
    assert multi_krum(of, 1, keep=2).tolist() == [2.0]  # (1 + 3)/2
    assert multi_krum(of, 1).tolist() == [2.0]  # all but 100: (0 + 1 + 3 + 4)/4


# -- laws --------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(n=st.integers(3, 30), seed=SEEDS)
def test_the_order_of_the_models_does_not_matter(n: int, seed: int) -> None:
    of = models(n, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    assert bits(median(of[order])) == bits(median(of))
    assert bits(trimmed_mean(of[order], 0.4)) == bits(trimmed_mean(of, 0.4))  # ⌊0.4·3⌋ = 1 is trimmed
    scores = krum_scores(of, 0)
    assert krum_scores(of[order], 0) == [scores[i] for i in order.tolist()]
    if len(set(scores)) == n:
        assert bits(krum(of[order], 0)) == bits(krum(of, 0))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 30), seed=SEEDS)
def test_nothing_trimmed_is_the_mean_to_the_bit(n: int, seed: int) -> None:
    of = models(n, seed)
    assert bits(trimmed_mean(of, 0.0)) == bits(mean(of))
    if n >= 3:
        assert bits(multi_krum(of, 0, keep=n)) == bits(mean(of))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(3, 30), seed=SEEDS)
def test_krum_picks_a_member_the_one_with_the_best_score(n: int, seed: int) -> None:
    of = models(n, seed)
    scores = krum_scores(of, 0)
    assert bits(krum(of, 0)) == bits(of[scores.index(min(scores))])
    assert bits(multi_krum(of, 0, keep=1)) == bits(krum(of, 0))


@settings(max_examples=150, deadline=None)
@given(far=st.integers(1, 6), more=st.integers(3, 8), seed=SEEDS)
def test_krum_never_picks_one_of_f_far_models(far: int, more: int, seed: int) -> None:
    # An outlier has at most f − 1 others beside it, so 2 or more of its n − f − 2 >= f + 1 nearest are honest ones, far
    # away; an honest one has n − f − 1 honest neighbours. That holds for all honest ones: the n − f best are they.
    of, honest = with_outliers(far + more, far, seed)
    assert any(bits(krum(of, far)) == bits(of[i]) for i in honest)
    assert bits(multi_krum(of, far)) == bits(mean(of[honest]))


@settings(max_examples=150, deadline=None)
@given(far=st.integers(1, 6), more=st.integers(1, 8), seed=SEEDS)
def test_median_and_trimmed_mean_stay_among_the_honest(far: int, more: int, seed: int) -> None:
    of, honest = with_outliers(far + more, far, seed)
    low, high = of[honest].min(0).values, of[honest].max(0).values
    slack = 1e-6  # of sums of numbers below 10
    for got in (median(of), trimmed_mean(of, far / len(of))):
        assert ((got >= low - slack) & (got <= high + slack)).all()


def test_as_torch_and_numpy_say_over_many_chunks() -> None:
    rng = torch.Generator().manual_seed(3)
    of = torch.randn(8, 2 * CHUNK + 3, generator=rng)
    before = bits(of)
    ordered = of.sort(0).values
    assert torch.equal(median(of), ordered[3] * 0.5 + ordered[4] * 0.5)
    assert torch.allclose(trimmed_mean(of, 0.25), ordered[2:6].mean(0), atol=1e-6)
    apart = torch.cdist(of.double(), of.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    expected = apart.sort(1).values[:, 1:6].sum(1)  # n − f − 2 = 5 of them after itself
    assert krum_scores(of, 1) == pytest.approx(expected.tolist(), rel=1e-6)
    assert bits(of) == before


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda of: trimmed_mean(of, 0.5), "share trimmed at each end"),
        (lambda of: trimmed_mean(of, -0.1), "share trimmed at each end"),
        (lambda of: krum(of, 2), "krum"),
        (lambda of: krum(of[:2], 0), "krum"),
        (lambda of: krum(of, -1), "krum outliers"),
        (lambda of: multi_krum(of, 1, keep=6), "krum keep"),
        (lambda of: multi_krum(of, 1, keep=0), "krum keep"),
        (lambda of: median(of[:0]), "no-models"),
    ],
)  # fmt: skip
def test_out_of_range(call: Callable[[Tensor], Tensor], said: str) -> None:
    with refused(said):
        call(models(6, 0))
