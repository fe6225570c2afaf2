"""Bulyan, RFA, centred clipping, norm bound and FoolsGold: their laws, examples by hand, and Krum with few models."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

import fedfloor
from fedfloor import config
from fedfloor.base.errors import DivergedError
from fedfloor.parts.mixing.means import krum, krum_scores, mean, multi_krum
from fedfloor.parts.mixing.mix import Branch, Meeting
from fedfloor.parts.mixing.registry import MIXES, rule
from fedfloor.parts.mixing.robust import (
    bulyan,
    centred_clipping,
    foolsgold,
    foolsgold_weights,
    geometric_median,
    norm_bound,
)
from refusals import refused

SEEDS = st.integers(0, 2**32)
ROBUST = ("median", "trimmed_mean", "multi_krum", "bulyan", "geometric_median", "centred_clipping")


def models(n: int, seed: int, size: int = 6) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, size)).astype(np.float32))


def mixed(name: str, start: Tensor, of: Tensor, **given: Any) -> Tensor:
    met = Meeting(start, list(of), [Branch(10, 0.5)] * len(of), 0.1, 3)
    return rule(name, given).mixed(met)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), size=st.integers(1, 6), seed=SEEDS)
def test_rfa_is_the_geometric_median(n: int, size: int, seed: int) -> None:
    of = models(n, seed, size).double()

    def total(v: np.ndarray) -> float:
        return float(np.linalg.norm(of.numpy() - v, axis=1).sum())

    got = geometric_median(of.float(), iterations=1000).double().numpy()
    starts = [of.mean(0).numpy(), *of.numpy()]  # the function has a kink at every model: Nelder-Mead begins at each
    best = min(minimize(total, start, method="Nelder-Mead", options={"xatol": 1e-8}).fun for start in starts)
    assert total(got) <= best * (1 + 2e-4) + 1e-5  # steps end at a millionth of the mean distance, in float32


@settings(max_examples=60, deadline=None)
@given(f=st.integers(0, 3), more=st.integers(0, 5), seed=SEEDS)
def test_bulyan_of_equal_models_is_their_mean(f: int, more: int, seed: int) -> None:
    same = models(1, seed).repeat(4 * f + 3 + more, 1)
    assert torch.allclose(bulyan(same, f), mean(same), rtol=1e-6)
    of = models(3 + more, seed)
    assert torch.allclose(bulyan(of, 0), mean(of), atol=1e-6)


def test_bulyan_by_hand() -> None:
    # n = 7, f = 1: Krum leaves two out, 50 and then -1 or 3 (θ = 5); of these the θ − 2f = 3 nearest the median
    of = torch.tensor([[0.0], [1.0], [1.1], [1.2], [2.0], [50.0], [-9.0]])
    assert bulyan(of, 1).item() == pytest.approx((1.0 + 1.1 + 1.2) / 3)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 12), seed=SEEDS)
def test_without_a_bound_clipping_is_the_mean(n: int, seed: int) -> None:
    of = models(n, seed)
    start = models(1, seed + 1)[0]
    weights = np.random.default_rng(seed).uniform(0.1, 2.0, n).tolist()
    assert torch.allclose(centred_clipping(start, of, math.inf), mean(of), atol=1e-6)
    assert torch.allclose(norm_bound(start, of, weights, math.inf), mean(of, weights), atol=1e-6)
    once = centred_clipping(start, of, 0.5, 1)
    equal = norm_bound(start, of, [1.0] * n, 0.5)
    assert torch.allclose(once, equal, atol=1e-6)  # one iteration clips updates
    assert float((equal - start).norm()) <= 0.5 + 1e-6


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 12), seed=SEEDS)
def test_one_model_moves_a_clipped_mean_by_its_radius_at_most(n: int, seed: int) -> None:
    of = models(n, seed)
    start = torch.zeros(6)
    other = of.clone()
    other[0] *= -1e6
    apart = centred_clipping(start, of, 0.5, 1) - centred_clipping(start, other, 0.5, 1)
    assert float(apart.norm()) <= 2 * 0.5 / n + 1e-5


@settings(max_examples=80, deadline=None)
@given(far=st.integers(1, 3), more=st.integers(3, 8), name=st.sampled_from(ROBUST), seed=SEEDS)
def test_a_minority_cannot_carry_the_model_away(far: int, more: int, name: str, seed: int) -> None:
    # the honest lie within 10 of each other; f models at 10⁶, all in one place, must not carry the result beyond 100
    honest = models(3 * far + more, seed)
    of = torch.cat([honest, torch.full((far, 6), 1e6)])[np.random.default_rng(seed).permutation(len(honest) + far)]
    given = {"trimmed_mean": {"share": far / len(of)}, "multi_krum": {"outliers": far}, "bulyan": {"outliers": far}}
    assert float(mixed(name, torch.zeros(6), of, **given.get(name, {})).norm()) < 100
    assert float(mean(of).norm()) > 1000


def test_equal_orders_give_equal_bits_and_nothing_that_goes_in_is_changed() -> None:
    of = models(9, 3)
    start = torch.ones(6)
    before = of.clone()
    for name in ("bulyan", "geometric_median", "centred_clipping", "norm_bound", "foolsgold"):
        assert mixed(name, start, of).equal(mixed(name, start, of))
        assert mixed(name, start, of).dtype == torch.float32
    assert of.equal(before)
    assert start.equal(torch.ones(6))


def test_foolsgold_leaves_out_those_that_act_alike() -> None:
    # three honest updates at right angles, and three attackers that send the same: cosines 0 and 1
    honest = torch.eye(4)[:3]
    attack = torch.tensor([0.0, 0.0, 0.0, 5.0]).repeat(3, 1)
    assert foolsgold_weights([*honest, *attack]) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    start = torch.ones(4)
    assert torch.allclose(foolsgold(start, start + torch.cat([honest, attack])), start + honest.mean(0))
    same = honest[:1].repeat(3, 1)
    assert foolsgold(start, start + same).equal(mean(start + same))  # nobody can be told apart


@pytest.mark.parametrize("name", ["geometric_median", "centred_clipping", "norm_bound", "foolsgold"])
def test_models_that_are_no_numbers_are_left_out(name: str) -> None:
    of = models(5, 0)
    worse = torch.cat([of, torch.full((1, 6), math.nan), torch.full((1, 6), math.inf)])
    assert mixed(name, torch.zeros(6), worse).equal(mixed(name, torch.zeros(6), of))
    with refused("diverged", DivergedError):
        mixed(name, torch.zeros(6), worse[5:])


def test_bulyan_leaves_out_what_is_no_number() -> None:
    of = torch.cat([models(6, 0), torch.full((1, 6), math.nan)])
    assert bool(bulyan(of, 1).isfinite().all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda of: bulyan(of, 1), "bulyan"),
        (lambda of: rule("bulyan", {"outliers": -1}), "mix.outliers"),
        (lambda of: rule("geometric_median", {"smoothing": 0.0}), "mix.smoothing"),
        (lambda of: rule("centred_clipping", {"radius": -1.0}), "mix.radius"),
        (lambda of: rule("centred_clipping", {"iterations": 0}), "mix.iterations"),
        (lambda of: rule("norm_bound", {"bound": 0.0}), "mix.bound"),
    ],
)
def test_out_of_range(call: Callable[[Tensor], object], message: str) -> None:
    with refused(message):
        call(models(6, 0))


# -- Krum against its guarantee ----------------------------------------------------------------------------------------


def test_krum_of_four_models_by_hand() -> None:
    # n − f − 2 = 1 neighbour each: 0 and 1 are 1 apart, 3 is 4 from 1, and 100 far from all
    of = torch.tensor([[0.0], [1.0], [3.0], [100.0]])
    assert krum_scores(of, 1, guarantee=False) == [1.0, 1.0, 4.0, 97.0**2]
    assert krum(of, 1, guarantee=False).tolist() == [0.0]
    assert multi_krum(of, 1, guarantee=False).tolist() == pytest.approx([4 / 3])
    # why there is no guarantee: two that agree are each other's nearest
    assert krum(torch.tensor([[0.0], [1.0], [3.0], [100.0], [100.0]]), 2, guarantee=False).tolist() == [100.0]


def experiment(**mix: Any) -> Any:
    return config.from_table({
        "rounds": 1, "data": {"samples_per_device": 20}, "park": {"devices": 4}, "model": {"name": "logistic"},
        "work": {"batch_size": 5}, "method": {"mix": mix},
    })  # fmt: skip


def test_four_sites_may_choose_krum_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with refused("mix"):
        fedfloor.run(experiment(kind="krum"), tmp_path / "a", ranks=1)
    with caplog.at_level(logging.WARNING):
        fedfloor.run(experiment(kind="krum", guarantee=False), tmp_path / "b", ranks=1)
    assert "mix 'krum' has 4 models to mix, and its guarantee needs 5" in caplog.text
    with refused("mix"):
        fedfloor.run(experiment(kind="bulyan"), tmp_path / "c", ranks=1)


@pytest.mark.parametrize("name", ["bulyan", "geometric_median", "centred_clipping", "norm_bound", "foolsgold"])
def test_ranks_agree_to_the_bit(name: str, tmp_path: Path) -> None:
    assert name in MIXES
    table = {"kind": name, "outliers": 0} if name == "bulyan" else {"kind": name}
    for ranks in (1, 2):
        fedfloor.run(experiment(**table), tmp_path / str(ranks), ranks=ranks)
    one, two = ((tmp_path / str(ranks) / "model.safetensors").read_bytes() for ranks in (1, 2))
    assert one == two
