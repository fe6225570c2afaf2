"""Server optimisers: steps worked out by hand, and what holds for all of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedfloor.parts.server import Adagrad, Adam, Server, Sgd, Yogi, step
from floor import bits
from refusals import refused

ALL: tuple[Server, ...] = (
    Sgd(), Sgd(rate=0.5), Sgd(momentum=0.9), Adagrad(), Adagrad(beta1=0.5), Adam(), Adam(beta1=0.0), Yogi(),
)  # fmt: skip


def walk(server: Server, means: list[float], model: float = 1.0) -> tuple[list[float], dict[str, Tensor]]:
    """Take a step per mean; return the models on the way and the last moments."""
    w = torch.tensor([model])
    moments = {}
    seen = []
    for one in means:
        w, moments = step(server, w, torch.tensor([one]), moments)
        seen.append(float(w))
    return seen, moments


def test_sgd_with_rate_1_and_no_momentum_is_fedavg_to_the_bit() -> None:
    rng = torch.Generator().manual_seed(0)
    model = torch.randn(1000, generator=rng)
    mean = torch.randn(1000, generator=rng)
    assert (model + (mean - model) != mean).any()  # formed by the formula it would not be
    new, moments = step(Sgd(), model, mean, {})
    assert bits(new) == bits(mean)
    assert moments == {}


def test_sgd_by_hand() -> None:
    # η = 1/2, β = 0: w = 1 + (3 − 1)/2
    assert walk(Sgd(rate=0.5), [3.0]) == ([2.0], {})
    # η = 1/2, β = 1/2, means 3 and 3: Δ = 2, m = 2, w = 1 + 1 = 2; then Δ = 1, m = 1 + 1 = 2, w = 2 + 1 = 3
    models, moments = walk(Sgd(rate=0.5, momentum=0.5), [3.0, 3.0])
    assert models == [2.0, 3.0]
    assert moments["m"].tolist() == [2.0]


def test_adagrad_by_hand() -> None:
    # τ = 3, so v starts at 9; η = 1/2. Δ = 4: v = 9 + 16 = 25, w = 1 + (1/2)·4/(5 + 3) = 1.25.
    # Δ = 13.25 − 1.25 = 12: v = 25 + 144 = 169, w = 1.25 + (1/2)·12/(13 + 3) = 1.625.
    models, moments = walk(Adagrad(rate=0.5, tau=3.0), [5.0, 13.25])
    assert models == [1.25, 1.625]
    assert {name: one.tolist() for name, one in moments.items()} == {"v": [169.0]}
    # with β1 = 1/2, m is 4/2 = 2 and then 1 + 6 = 7: steps of (1/2)·2/8 = 0.125 and, from Δ = 12, (1/2)·7/16 = 0.21875
    models, moments = walk(Adagrad(rate=0.5, beta1=0.5, tau=3.0), [5.0, 13.125])
    assert models == [1.125, 1.34375]
    assert moments["m"].tolist() == [7.0]


def test_adam_by_hand() -> None:
    # τ = 3, β1 = β2 = 1/2, η = 12. Δ = 21: v = 9/2 + 441/2 = 225, m = 21/2, w = 1 + 12·10.5/(15 + 3) = 8; with bias
    # correction m would be 21. Δ = 113 − 8 = 105: v = (225 + 11025)/2 = 5625, m = 5.25 + 52.5 = 57.75,
    # w = 8 + 12·57.75/(75 + 3).
    models, moments = walk(Adam(rate=12.0, beta1=0.5, beta2=0.5, tau=3.0), [22.0, 113.0])
    assert models[0] == 8.0
    assert models[1] == pytest.approx(8 + 693 / 78, rel=1e-6)
    assert (moments["m"].tolist(), moments["v"].tolist()) == ([57.75], [5625.0])


def test_yogi_by_hand() -> None:
    # τ = 3, β1 = 1/2, β2 = 3/4, η = 2. Δ = 8: Δ² > v, so v = 9 + 64/4 = 25, m = 4, w = 1 + 2·4/(5 + 3) = 2.
    # Δ = 4: Δ² < v, so v = 25 − 16/4 = 21 (Adam's would be 22.75), m = 2 + 2 = 4, w = 2 + 8/(√21 + 3).
    models, moments = walk(Yogi(rate=2.0, beta1=0.5, beta2=0.75, tau=3.0), [9.0, 6.0])
    assert models[0] == 2.0
    assert models[1] == pytest.approx(2 + 8 / (math.sqrt(21) + 3), rel=1e-6)
    assert moments["v"].tolist() == [21.0]


def test_yogi_leaves_v_where_the_change_is_as_large() -> None:
    _, moments = walk(Yogi(tau=3.0), [4.0])  # Δ = 3, Δ² = v = 9: sign(0) = 0
    assert moments["v"].tolist() == [9.0]


@pytest.mark.parametrize("server", ALL, ids=str)
def test_nothing_that_goes_in_is_changed_and_a_resume_changes_nothing(server: Server) -> None:
    rng = torch.Generator().manual_seed(1)
    means = torch.randn(4, 50, generator=rng)
    w = torch.randn(50, generator=rng)
    moments = {}
    for mean in means:
        before = [bits(w), bits(mean), {name: bits(one) for name, one in moments.items()}]
        again = step(server, w.clone(), mean.clone(), {name: one.clone() for name, one in moments.items()})
        new, later = step(server, w, mean, moments)
        assert [bits(w), bits(mean), {name: bits(one) for name, one in moments.items()}] == before
        assert new.data_ptr() not in (w.data_ptr(), mean.data_ptr())
        assert bits(new) == bits(again[0])
        assert {name: bits(one) for name, one in later.items()} == {name: bits(one) for name, one in again[1].items()}
        assert all(one.dtype == torch.float32 and one.shape == w.shape for one in (new, *later.values()))
        w = new
        moments = later


@pytest.mark.parametrize("server", [Adagrad(), Adam(), Yogi()], ids=str)
def test_adaptive_steps_stay_below_the_rate_over_the_first_change(server: Server) -> None:
    # |m| <= |Δ| and √v >= √(1 − β2)|Δ| (Adagrad: √v >= |Δ|) bound the first step by 10η, whatever the size of Δ
    mean = torch.tensor([1e-6, 1.0, 1e6, -1e6])
    new, _ = step(server, torch.zeros(4), mean, {})
    assert (new.abs() <= 10 * server.rate).all()
    assert (new.sign() == mean.sign()).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sgd(rate=0.0), "server.rate"),
        (lambda: Sgd(rate=math.nan), "server.rate"),
        (lambda: Sgd(momentum=1.0), "server.momentum"),
        (lambda: Adagrad(tau=0.0), "server.tau"),
        (lambda: Adam(beta1=-0.1), "server.beta1"),
        (lambda: Adam(beta2=1.0), "server.beta2"),
        (lambda: Yogi(rate=math.inf), "server.rate"),
        (lambda: Yogi(tau=-1.0), "server.tau"),
    ],
)
def test_out_of_range(make: object, said: str) -> None:
    with refused(said):
        make()  # type: ignore[operator]


def test_moments_of_another_model_are_refused() -> None:
    with refused("state-of-server"):
        step(Adam(), torch.zeros(5), torch.ones(5), {"m": torch.zeros(3), "v": torch.zeros(5)})
