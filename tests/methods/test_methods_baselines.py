"""The methods that only mix, draw or step otherwise than FedAvg: by hand, and where they are FedAvg."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.engine.team import Team
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.contract import Method, State
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.presets import QFFL, FedAdagrad, FedAdam, FedAvgM, FedYogi, Ida
from fedfloor.parts.selection import selection
from fedfloor.parts.server import Adagrad, Adam, Sgd, Yogi
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Probe, Sequence
from floor import bits, digest, engine, everywhere, park, plan_of
from softmax import batches, data, go, loss_and_gradient, regression, view

SIZES = (6, 10, 4, 9)
WORK = WorkSettings(epochs=2, batch_size=4, lr=0.2)
NEW = ("fedl", "scaffold", "qffl", "ida", "fedavgm", "fedadagrad", "fedadam", "fedyogi")


def trained(of, k: int, number: int) -> np.ndarray:  # type: ignore[no-untyped-def]
    """A device's model after a visit, by a plain loop."""
    w = of.network.flat.clone().numpy()
    for bx, by in batches(of, k, number, WORK):
        w = w - 0.2 * loss_and_gradient(w, bx, by)[1]
    return w


def once(method: Method, sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    """The model after one round, in float64."""
    ((state, _),) = go(method, regression(park(sizes)), 1)
    return state.packet["w"].numpy()


# -- server steps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "server"),
    [
        (FedAvgM(), Sgd(1.0, 0.9)),
        (FedAvgM(server_rate=0.5, momentum=0.1), Sgd(0.5, 0.1)),
        (FedAdagrad(), Adagrad(0.1, 0.0, 1e-3)),
        (FedAdagrad(server_rate=0.2, tau=0.01), Adagrad(0.2, 0.0, 0.01)),
        (FedAdam(), Adam(0.00316, 0.9, 0.99, 1e-3)),
        (FedAdam(server_rate=0.1, beta1=0.2, beta2=0.3, tau=0.4), Adam(0.1, 0.2, 0.3, 0.4)),
        (FedYogi(), Yogi(0.00316, 0.9, 0.99, 1e-3)),
        (FedYogi(server_rate=0.1, beta1=0.2, beta2=0.3, tau=0.4), Yogi(0.1, 0.2, 0.3, 0.4)),
    ],
    ids=str,
)
def test_a_server_has_the_methods_settings_and_the_rest_is_fedavg(method: Method, server: object) -> None:
    assert method.server == server
    here = park(SIZES)
    same = replace(method, fraction=0.5, work=WORK)  # type: ignore[type-var]
    assert plan_of(same, here) == plan_of(FedAvg(0.5, WORK), here)


@pytest.mark.parametrize(
    "method",
    [
        FedAvgM(server_rate=1.0, momentum=0.0),
        FedAdagrad(server_rate=2e6, tau=1e6),
        FedAdam(server_rate=1e6, beta1=0.0, beta2=0.0, tau=1e6),
        FedYogi(server_rate=2e6, beta1=0.0, tau=1e6),
    ],
    ids=str,
)
def test_a_server_whose_step_is_the_mean(method: Method) -> None:
    # √v + τ = τ·(1 + √(v/τ²)), where v/τ² is 0 or 1 up to (Δ/τ)² < 1e-11: below a rounding in float32 after two steps
    rng = torch.Generator().manual_seed(0)
    model = torch.randn(50, generator=rng)
    moments = {}
    for _ in range(2):
        mean = model + 0.1 * torch.randn(50, generator=rng)
        model, moments = method.server.step(model, mean, moments)
        if isinstance(method, FedAvgM):
            assert bits(model) == bits(mean)
        assert float((model - mean).abs().max()) < 8 * 2.0**-24 * float(mean.abs().max())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(FedAvgM, server_rate=0.0), "methods.fedavgm.server_rate = 0.0: must be a number above 0."),
        (partial(FedAvgM, momentum=1.0), "methods.fedavgm.momentum = 1.0: must be at least 0 and below 1."),
        (partial(FedAdagrad, tau=0.0), "methods.fedadagrad.tau = 0.0: must be a number above 0."),
        (partial(FedAdam, server_rate=-1.0), "methods.fedadam.server_rate = -1.0: must be a number above 0."),
        (partial(FedAdam, beta2=1.0), "methods.fedadam.beta2 = 1.0: must be at least 0 and below 1."),
        (partial(FedYogi, beta1=-0.1), "methods.fedyogi.beta1 = -0.1: must be at least 0 and below 1."),
        (partial(FedYogi, tau=math.inf), "methods.fedyogi.tau = inf: must be a number above 0."),
        (partial(Ida, factors="acc"), "methods.ida.factors = 'acc': must be one of none, accuracy, samples."),
        (partial(QFFL, q=-1.0), "methods.qffl.q = -1.0: must be a number of at least 0."),
    ],
    ids=str,
)
def test_settings_are_checked(make: partial[Method], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        make()
    assert str(caught.value) == said


@pytest.mark.parametrize("name", NEW)
def test_shares_are_checked_previews_need_no_model_and_an_objective_is_handed_on(name: str) -> None:
    made = METHODS[name]
    with pytest.raises(SettingError, match=rf"methods\.{name}\.fraction = 0: must be above 0 and at most 1"):
        made(fraction=0)  # type: ignore[call-arg]
    method = made(fraction=0.5)  # type: ignore[call-arg]
    empty = replace(view(regression(park(SIZES)), 1), start={})
    state = method.init(empty, {}, generator(0, "init"))
    plan = method.plan(state, empty, generator(0, "plan", 1))
    assert plan == method.plan(state, empty, generator(0, "plan", 1))
    node = plan.children[1] if isinstance(plan, Sequence) else plan
    assert isinstance(node, Parallel)
    assert len(node.children) == 2
    expected = {"fedl": "corrected", "scaffold": "variates"}.get(name, "plain")
    assert {one.work.objective for one in node.children} == {expected}  # type: ignore[union-attr]
    assert "work" in {f.name for f in fields(made)}  # type: ignore[arg-type]


# -- IDA ---------------------------------------------------------------------------------------------------------------


def test_ida_of_equal_distances_is_fedavg() -> None:
    # two models are equally far from their mean: up to rounding at 2^-53
    two = (6, 10)
    same = (8, 8)
    assert once(Ida(work=WORK), same) == pytest.approx(once(FedAvg(work=WORK), same), abs=1e-13)
    assert once(Ida(factors="samples", work=WORK), two) == pytest.approx(once(FedAvg(work=WORK), two), abs=1e-13)
    assert np.abs(once(Ida(work=WORK), two) - once(FedAvg(work=WORK), two)).max() > 1e-3


def test_ida_by_hand() -> None:
    of = regression(park(SIZES))
    ends = [trained(of, k, 1) for k in range(4)]
    far = [np.abs(end - np.mean(ends, 0)).sum() for end in ends]
    ((state, outcome),) = go(Ida(factors="accuracy", work=WORK), of, 1)
    factors = [1 / max(1 / 3, one.accuracy) for one in outcome.receipts]
    assert len(set(factors)) > 1
    for name, c in (("none", (1, 1, 1, 1)), ("samples", SIZES), ("accuracy", factors)):
        shares = [a / d for a, d in zip(c, far, strict=True)]
        expected = sum(a * end for a, end in zip(shares, ends, strict=True)) / sum(shares)
        # 10⁻¹⁰ is added to distances of about 1
        assert once(Ida(factors=name, work=WORK)) == pytest.approx(expected, abs=1e-10)  # type: ignore[arg-type]
    assert state.packet["w"].numpy() == pytest.approx(once(Ida(factors="accuracy", work=WORK)), abs=0)


# -- q-FFL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_qffl_with_q_0_is_fedavg_of_equal_sizes_to_the_bit(fraction: float) -> None:
    models = []
    for method in (QFFL(fraction, WORK, 0.0), FedAvg(fraction, WORK), QFFL(fraction, WORK, 1.0)):
        models.append([bits(state.packet["w"]) for state, _ in go(method, engine(park((8,) * 4)), 3)])
    assert models[0] == models[1]
    assert models[2] != models[1]


def test_qffl_by_hand() -> None:
    # w − Σ F^q·u / Σ (q·F^(q−1)·‖u‖² + F^q/η), u = (w − w_k)/η
    of = regression(park(SIZES))
    w = of.network.flat.clone().numpy()
    q = 2.0
    rate = 0.2
    losses = [loss_and_gradient(w, *data(of, k))[0] for k in range(4)]
    steps = [(w - trained(of, k, 1)) / rate for k in range(4)]
    above = sum(f**q * u for f, u in zip(losses, steps, strict=True))
    below = sum(q * f ** (q - 1) * u.dot(u) + f**q / rate for f, u in zip(losses, steps, strict=True))
    assert once(QFFL(q=q, work=WORK)) == pytest.approx(w - above / below, abs=1e-9)  # 10⁻¹⁰ is added to every loss


def test_qffl_asks_whom_it_visits() -> None:
    plan = plan_of(QFFL(fraction=0.5, work=WORK), park(SIZES))
    assert isinstance(plan, Sequence)
    probe, visits = plan.children
    assert isinstance(visits, Parallel)
    chosen = tuple(one.site.index for one in visits.children)  # type: ignore[union-attr]
    assert probe == Probe(chosen, "loss")
    assert (visits.mix, visits.settings) == ("q_fair", {"q": 1.0})


# -- by samples --------------------------------------------------------------------------------------------------------


def test_devices_are_drawn_by_their_samples() -> None:
    # sizes 1, 2, 5 of 8, two of three drawn one after the other; who takes part:
    #   0: 1/8 + (2/8)·(1/6) + (5/8)·(1/3) = 0.375
    #   1: 2/8 + (1/8)·(2/7) + (5/8)·(2/3) = 0.702381
    #   2: 5/8 + (1/8)·(5/7) + (2/8)·(5/6) = 0.922619
    rng = np.random.default_rng(0)
    sizes = np.array([9, 1, 9, 2, 5])
    n = 8000
    seen = np.zeros(5)
    for _ in range(n):
        drawn = selection.by_samples((1, 3, 4), sizes, 0.67, rng)
        assert drawn == sorted(set(drawn))
        seen[drawn] += 1
    assert seen[0] == seen[2] == 0
    for k, share in ((1, 0.375), (3, 0.702381), (4, 0.922619)):
        # five standard deviations √(p(1 − p)/n) of a share
        assert seen[k] / n == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / n))


def test_at_least_one_device_is_drawn_and_at_most_all() -> None:
    sizes = np.array([3, 4, 5])
    assert selection.by_samples(range(3), sizes, 1.0, np.random.default_rng(0)) == [0, 1, 2]
    assert len(selection.by_samples(range(3), sizes, 0.01, np.random.default_rng(0))) == 1
    equal = np.array([4] * 10)
    for seed in range(5):
        one, other = (np.random.default_rng(seed) for _ in range(2))
        assert selection.by_samples(range(10), equal, 0.4, one) == selection.fraction(range(10), 0.4, other)


# -- teams -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [Ida(work=WORK), Ida(factors="accuracy", fraction=0.8, work=WORK), QFFL(q=2.0, fraction=0.8, work=WORK)],
    ids=str,
)
def test_every_team_comes_to_the_same(method: Method) -> None:
    def told(team: Team | None = None) -> list[object]:
        of = engine(park(SIZES), team=team, loss_chance=0.2)
        return [digest(outcome) for _, outcome in go(method, of, 3, State({"w": of.network.flat.clone()}))]

    alone = told()
    assert everywhere(2, lambda team: told(team) == alone) == [True] * 2
