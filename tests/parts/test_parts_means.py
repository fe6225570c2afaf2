"""Mixing rules that look at every model: examples worked out by hand, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfloor.base.errors import DivergedError
from fedfloor.engine.aggregation import TreeSum
from fedfloor.parts.mixing.means import CHUNK, intrac, inverse_distance, inverse_distance_weights, mean, q_fair, rows
from fedfloor.parts.mixing.mix import BySamples, Equal
from fedfloor.plan.nodes import Parallel, Probe, Sequence
from floor import WORK, batch_norm, bits, engine, park, start, visits, walk
from refusals import refused


def models(n: int, seed: int, size: int = 7) -> Tensor:
    """Numbers of different sizes, so that another order of adding gives other bits."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.standard_normal((n, size)) * 10.0 ** rng.integers(-3, 4, (n, 1))).astype(np.float32))


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 33), seed=st.integers(0, 2**32))
def test_the_mean_is_the_engines_to_the_bit(n: int, seed: int) -> None:
    of = models(n, seed)
    samples = np.random.default_rng(seed).integers(1, 2000, n).astype(float).tolist()
    for weights in (None, samples):
        tree = TreeSum(n)
        for i, one in enumerate(of):
            tree.add(i, {"w": one}, 1.0 if weights is None else weights[i])
        assert bits(mean(of, weights)) == bits(tree.mean({})["w"])


def test_the_mean_by_hand() -> None:
    # (1, 4) of one sample and (5, 0) of three: (1·1 + 3·5)/4 = 4 and (1·4 + 3·0)/4 = 1; counted equally 3 and 2
    of = torch.tensor([[1.0, 4.0], [5.0, 0.0]])
    for rule, wanted in ((BySamples(), [4.0, 1.0]), (Equal(), [3.0, 2.0])):
        weights = [rule.weight(1), rule.weight(3)]
        assert mean(of, weights).tolist() == wanted


def test_chunks_make_no_difference() -> None:
    of = models(5, 1, 2 * CHUNK + 3)
    parts = [mean(of[:, low : low + 1000]) for low in range(0, of.shape[1], 1000)]
    assert bits(mean(of)) == bits(torch.cat(parts))
    assert bits(mean(list(of))) == bits(mean(of))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, 0.0], "weight"),
        ([1.0, float("nan")], "weight"),
        ([1.0], "the number of weight values"),
    ],
)
def test_weights_out_of_range(weights: list[float], said: str) -> None:
    with refused(said):
        mean(torch.ones(2, 3), weights)


def test_models_that_cannot_be_mixed() -> None:
    with refused("no-models"):
        rows([])
    with refused("models-differ"):
        mean([torch.zeros(3), torch.zeros(2)])


# -- inverse distance --------------------------------------------------------------------------------------------------


def test_inverse_distance_by_hand() -> None:
    # models 0, 2 and 7: w̄ = 3, distances 3, 1 and 4, weights 1/3, 1 and 1/4; (0 + 2 + 7/4)/(19/12) = 45/19
    of = torch.tensor([[0.0], [2.0], [7.0]])
    assert float(inverse_distance(of)) == pytest.approx(45 / 19, rel=1e-6)
    assert inverse_distance_weights(of) == pytest.approx([1 / 3, 1, 1 / 4])
    # + FedAvg with 3, 1 and 4 samples: weights 1, 1 and 1, so w̄
    assert float(inverse_distance(of, [3, 1, 4])) == pytest.approx(3, rel=1e-6)


def test_the_distance_is_the_1_norm() -> None:
    # w̄ = (3, 0); the differences (3, 4) twice and (6, 0) twice have the 1-norms 7 and 6 (the 2-norms 5 and 6)
    of = torch.tensor([[0.0, 4.0], [6.0, -4.0], [-3.0, 0.0], [9.0, 0.0]])
    assert inverse_distance_weights(of) == pytest.approx([6 / 7, 6 / 7, 1, 1])


def test_intrac_by_hand() -> None:
    # training accuracies 1, 0.5 and 0.05 among 10 classes: 1/1, 1/0.5 and 1/max(0.1, 0.05)
    assert intrac([1.0, 0.5, 0.05], 10) == [1.0, 2.0, 10.0]
    # times the weights 1/3, 1 and 1/4: 1/3, 2 and 5/2, relative to the largest
    of = torch.tensor([[0.0], [2.0], [7.0]])
    assert inverse_distance_weights(of, intrac([1.0, 0.5, 0.05], 10)) == pytest.approx([2 / 15, 4 / 5, 1])
    with refused("training accuracy"):
        intrac([1.5], 10)


def test_equal_distances_give_the_plain_mean() -> None:
    # corners of a cube around a centre: powers of two, so that w̄ and the distances are exact
    corners = torch.tensor([[a, b, c] for a in (-1.0, 1.0) for b in (-2.0, 2.0) for c in (0.0, 8.0)])
    assert inverse_distance_weights(corners) == [1.0] * 8
    assert bits(inverse_distance(corners)) == bits(mean(corners))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_inverse_distance_is_a_mean_and_two_models_are_equally_far(n: int, seed: int) -> None:
    of = models(n, seed)
    got = inverse_distance(of)
    slack = 1e-6 * of.abs().max()
    assert ((got >= of.min(0).values - slack) & (got <= of.max(0).values + slack)).all()
    if n <= 2:
        assert torch.allclose(got, mean(of), rtol=1e-4, atol=float(slack))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_model_that_is_no_longer_finite_is_training_that_diverged(wrong: float) -> None:
    with refused("diverged", DivergedError):
        inverse_distance(torch.tensor([[1.0], [wrong], [3.0]]))
    with refused("diverged", DivergedError):
        q_fair(torch.zeros(1), torch.ones(2, 1), [1.0, wrong], 0.1, 1.0)


def test_equal_models_stay_as_they_are() -> None:
    of = models(1, 5).repeat(4, 1)
    assert bits(inverse_distance(of)) == bits(of[0])


# -- q-fair ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        # w = 1, models 0 and 3, η = 1/2: u = (1 − 0)/η = 2 and (1 − 3)/η = −4; losses 2 and 3.
        # q = 1: Σ F·u = 4 − 12 = −8; h = u² + F/η = 4 + 4 = 8 and 16 + 6 = 22; w = 1 + 8/30
        (1.0, 1 + 8 / 30),
        # q = 2: Σ F²·u = 8 − 36 = −28; h = 2·F·u² + F²/η = 16 + 8 = 24 and 96 + 18 = 114; w = 1 + 28/138
        (2.0, 1 + 28 / 138),
        (0.0, 1.5),
    ],
)
def test_q_fair_by_hand(q: float, expected: float) -> None:
    got = q_fair(torch.tensor([1.0]), torch.tensor([[0.0], [3.0]]), [2.0, 3.0], rate=0.5, q=q)
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_q_fair_steps_by_what_is_trained_and_averages_statistics() -> None:
    # the weight as above; the statistic is the mean of 100 and 0 by F = 2 and 3, and makes no step shorter
    got = q_fair(torch.tensor([1.0, 7.0]), torch.tensor([[0.0, 100.0], [3.0, 0.0]]), [2.0, 3.0], 0.5, 1.0, trained=1)
    assert got.tolist() == pytest.approx([1 + 8 / 30, 40.0], rel=1e-6)


def test_q_fair_with_several_learning_rates_is_refused() -> None:
    of = engine(park())
    apart = visits((0,)) + visits((1,), replace(WORK, rate=0.2))
    plan = Sequence((Probe((0, 1), "loss"), Parallel(apart, mix="q_fair", settings={"q": 1.0})))
    with refused("mix"):
        walk(of, plan, start(of))


def test_a_run_tells_q_fair_what_is_trained() -> None:
    here = park((6, 6), shape=(2, 3, 3))
    of = engine(here, batch_norm((2, 3, 3), 3))
    plan = Sequence((Probe((0, 1), "loss"), Parallel(visits((0, 1)), mix="q_fair", settings={"q": 3.0})))
    w = start(of)["w"]
    trained = of.network.trained
    each = [walk(of, one, {"w": w}).packet["w"] for one in visits((0, 1))]
    done = walk(of, plan, {"w": w})
    losses = [done.answers[k]["loss"] for k in (0, 1)]
    assert trained < len(w)
    assert bits(done.packet["w"]) == bits(q_fair(w, each, losses, WORK.rate, 3.0, trained))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 20), seed=st.integers(0, 2**32), rate=st.floats(1e-3, 1.0), q=st.floats(0.0, 5.0))
def test_q_fair_is_the_papers_sum_and_q_0_is_the_plain_mean(n: int, seed: int, rate: float, q: float) -> None:
    of = models(n, seed)
    rng = np.random.default_rng(seed)
    losses = rng.uniform(0.1, 5, n).tolist()
    start = of[0] + 1
    assert bits(q_fair(start, of, losses, rate, 0.0)) == bits(mean(of))
    w = start.double()
    f = torch.tensor(losses, dtype=torch.float64)
    u = (w - of.double()) / rate
    h = q * f ** (q - 1) * u.square().sum(1) + f**q / rate
    expected = w - (f[:, None] ** q * u).sum(0) / h.sum()
    # float32 models: about ten roundings of 2^-24 of the largest number
    allowed = 1e-6 * float(of.abs().max() + start.abs().max())
    assert (q_fair(start, of, losses, rate, q).double() - expected).abs().max() <= allowed


def test_q_fair_survives_losses_of_0_and_large_q() -> None:
    of = models(3, 1)
    for losses in ([0.0, 0.0, 0.0], [0.0, 1.0, 1e4]):
        assert torch.isfinite(q_fair(of[0], of, losses, 0.1, 100.0)).all()


@pytest.mark.parametrize(
    ("losses", "rate", "q", "said"),
    [
        ([1.0, 1.0], 0.0, 1.0, "rate"),
        ([1.0, 1.0], 0.1, -1.0, "q"),
        ([1.0, -1.0], 0.1, 1.0, "loss"),
        ([1.0], 0.1, 1.0, "the number of loss values"),
    ],
)
def test_q_fair_out_of_range(losses: list[float], rate: float, q: float, said: str) -> None:
    with refused(said):
        q_fair(torch.zeros(3), torch.ones(2, 3), losses, rate, q)
