"""FEDL: rounds by a plain loop in NumPy, gradients by finite differences, and what is FedAvg to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedfloor.base.chance import generator
from fedfloor.base.errors import RunError, SettingError
from fedfloor.engine.engine import Engine
from fedfloor.engine.team import Team
from fedfloor.engine.visit import train
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedl import FEDL
from fedfloor.parts.objectives.correction import Corrected, Variates
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.registry import objective, to_spec
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Probe, Work
from fedfloor.plan.schedule import Key
from floor import batch_norm, bits, digest, dropout, engine, everywhere, park, walk
from refusals import refused
from softmax import batches, begun, data, go, loss_and_gradient, regression, view

SIZES = (6, 10, 4, 9)
WORK = WorkSettings(epochs=2, batch_size=4, lr=0.2)
KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)


# -- the linear term ---------------------------------------------------------------------------------------------------


def about(of: Engine, grad: float = 0.1) -> Visit:
    """A visit with random vectors for everything that could have come to the device."""
    rng = torch.Generator().manual_seed(4)
    grads = [grad * torch.randn(of.network.trained, generator=rng, dtype=of.network.flat.dtype) for _ in range(4)]
    packet = {"grad": grads[0], "c": grads[1]}
    return Visit(of.network.flat.clone(), {"c": grads[2]}, of.network, packet, gradient=lambda: grads[3].clone())


@pytest.mark.parametrize("goal", [Corrected(), Corrected(0.5, 3.0), Corrected(1.0, 0.0), Variates()], ids=str)
def test_gradients_are_finite_differences(goal: Objective) -> None:
    of = regression(park(SIZES))
    network = of.network
    samples = of.samples(1)
    visit = about(of)
    visit = replace(visit, ready=goal.begin(visit))
    network.flat.add_(0.3)
    x, y = samples.values(slice(None)), samples.y

    def whole() -> float:
        term = goal.penalty(network.flat[: network.trained], visit)
        assert term is not None
        return float(goal.loss(network.module, x, y, visit)[0].detach() + term[0])

    gradients = torch.autograd.grad(goal.loss(network.module, x, y, visit)[0], network.parameters)
    flat = torch.cat([one.flatten() for one in gradients])
    term = goal.penalty(network.flat[: network.trained], visit)
    assert term is not None
    flat += term[1]
    for i in range(network.trained):
        at = float(network.flat[i])
        step = 1e-5
        network.flat[i] = at + step
        up = whole()
        network.flat[i] = at - step
        down = whole()
        network.flat[i] = at
        # rounding makes 1e-16/1e-5 of a loss of about 1, the third derivative 1e-10
        assert float(flat[i]) == pytest.approx((up - down) / (2 * step), rel=1e-8, abs=1e-9)


def test_the_term_by_hand() -> None:
    # 2·(1/2·ḡ − ∇F_k) = 2·((1, 2) − (3, 1)) = (−4, 2); at w − w_start = (1, 3): −4 + 6 = 2; frozen numbers stay out
    of = engine(park(), nn.Sequential(nn.Flatten(), nn.Linear(9, 3)))
    of.network.flat.zero_()
    of.network.flat[:2] = torch.tensor([5.0, 5.0])
    packet = {"grad": torch.tensor([2.0, 4.0])}
    visit = Visit(None, {}, of.network, packet, gradient=lambda: torch.tensor([3.0, 1.0]))
    goal = Corrected(weight=2.0, eta=0.5)
    visit = replace(visit, ready=goal.begin(visit))
    found = goal.penalty(torch.tensor([6.0, 8.0]), visit)
    assert found is not None
    assert (float(found[0]), found[1].tolist()) == (2.0, [-4.0, 2.0])
    assert packet["grad"].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("goal", [Corrected(), Variates()], ids=str)
def test_steps_leave_the_correction_as_it_was_and_losses_start_without_it(goal: Objective, momentum: float) -> None:
    of = regression(park((8, 5)))
    visit = about(of, grad=10.0)
    before = [bits(one) for one in (*visit.packet.values(), *visit.memory.values(), *goal.begin(visit).values())]
    work = Work(steps=3, batch_size=8, rate=0.1, momentum=momentum, weight_decay=0.1)
    first, _ = loss_and_gradient(of.network.flat.numpy(), *data(of, 0))
    got = train(of.network, of.samples(0), work, goal, replace(visit, work=work, steps=3), KEY)
    of.network.flat.copy_(visit.arrived())
    after = [bits(one) for one in (*visit.packet.values(), *visit.memory.values(), *goal.begin(visit).values())]
    assert after == before
    assert got.loss_first == pytest.approx(first, rel=1e-12)
    assert got.loss_last < 0  # three steps along a slope some 10 steep


# -- FEDL by a plain loop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chance", [0.0, 0.3], ids=["all arrive", "some are lost"])
@pytest.mark.parametrize(("fraction", "momentum", "weight"), [(1.0, 0.0, 1.0), (0.5, 0.0, 1.0), (0.75, 0.5, 0.5)])
def test_rounds_are_those_of_a_plain_loop(chance: float, fraction: float, momentum: float, weight: float) -> None:
    work = replace(WORK, momentum=momentum)
    method = FEDL(eta=0.7, weight=weight, fraction=fraction, work=work)
    of = regression(park(SIZES), loss_chance=chance)
    w = of.network.flat.clone().numpy()

    def slope(k: int, at: np.ndarray) -> np.ndarray:
        return loss_and_gradient(at, *data(of, k))[1]

    grad = sum(n * slope(k, w) for k, n in enumerate(SIZES)) / sum(SIZES)
    assert begun(method, of).packet["grad"].numpy() == pytest.approx(grad, abs=1e-14)  # some ten roundings at 2^-53
    lost = 0
    for number, (state, outcome) in enumerate(go(method, of, 4), start=1):
        ends: dict[int, np.ndarray] = {}
        for k in (one.device for one in outcome.receipts if not one.lost):
            ends[k], velocity = w.copy(), np.zeros_like(w)
            for bx, by in batches(of, k, number, work):
                step = loss_and_gradient(ends[k], bx, by)[1] + weight * (0.7 * grad - slope(k, w))
                velocity = momentum * velocity + step
                ends[k] -= 0.2 * velocity
        lost += sum(one.lost for one in outcome.receipts)
        total = sum(SIZES[k] for k in ends)
        grad = sum(SIZES[k] * slope(k, end) for k, end in ends.items()) / total
        w = sum(SIZES[k] * end for k, end in ends.items()) / total  # type: ignore[assignment]
        assert state.packet["w"].numpy() == pytest.approx(w, abs=1e-13)
        assert state.packet["grad"].numpy() == pytest.approx(grad, abs=1e-13)
    assert (lost > 0) == (chance > 0)


def test_every_team_comes_to_the_same() -> None:
    def told(team: Team | None = None) -> list[object]:
        torch.manual_seed(0)  # of the weights
        of = engine(park(SIZES, shape=(2, 3, 3)), batch_norm((2, 3, 3), 3), team, loss_chance=0.2)
        first = bits(begun(FEDL(), of).packet["grad"])
        return [first, *(digest(one) for _, one in go(FEDL(fraction=0.8, work=WORK), of, 3))]

    alone = told()
    assert everywhere(2, lambda team: told(team) == alone) == [True] * 2


# -- what is FedAvg ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp-2nn", batch_norm, dropout], ids=["mlp", "batch norm", "dropout"])
def test_with_weight_0_it_is_fedavg_to_the_bit(model: str | Callable[..., nn.Module]) -> None:
    def run(method: FEDL | FedAvg) -> list[tuple[object, ...]]:
        torch.manual_seed(0)
        of = engine(park(SIZES), model if isinstance(model, str) else model((1, 3, 3), 3))
        return [digest(outcome)[::2] for _, outcome in go(method, of, 3)]  # without the plans

    work = replace(WORK, momentum=0.5)
    assert run(FEDL(weight=0.0, fraction=0.5, work=work)) == run(FedAvg(0.5, work))
    assert run(FEDL(weight=1.0, fraction=0.5, work=work)) != run(FedAvg(0.5, work))
    assert FEDL(weight=0.0).setup(view(regression(park(SIZES)))) is None  # and nobody is asked


def test_with_eta_1_a_device_alone_is_fedavg_to_the_bit() -> None:
    # ḡ is the device's own gradient at the model that arrives, so η·ḡ − ∇F_k(w) is exactly 0
    ours, theirs = (go(method, engine(park((9,))), 3) for method in (FEDL(eta=1.0, work=WORK), FedAvg(work=WORK)))
    for (one, _), (other, _) in zip(ours, theirs, strict=True):
        assert bits(one.packet["w"]) == bits(other.packet["w"])


def test_eta_0_is_not_fedavg() -> None:
    both = (go(method, regression(park(SIZES)), 1) for method in (FEDL(eta=0.0, work=WORK), FedAvg(work=WORK)))
    ((ours, _),), ((theirs, _),) = both
    assert float((ours.packet["w"] - theirs.packet["w"]).abs().max()) > 1e-3


# -- the method, and what is refused -----------------------------------------------------------------------------------


def test_everybody_is_asked_and_a_preview_needs_no_answers() -> None:
    of = regression(park(SIZES))
    assert FEDL().setup(view(of)) == Probe((0, 1, 2, 3), "gradient")
    state = FEDL().init(replace(view(of), start={}), {}, generator(0, "init"))
    assert state.packet == {}
    assert to_spec(FEDL(eta=0.5).objective) == ("corrected", {"weight": 1.0, "eta": 0.5})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight": -1.0}, "objective corrected: weight = -1.0: must be a number of at least 0."),
        ({"weight": math.inf}, "objective corrected: weight = inf: must be a number of at least 0."),
        ({"eta": math.nan}, "objective corrected: eta = nan: must be a number of at least 0."),
    ],
)
def test_settings_are_checked(settings: dict[str, float], said: str) -> None:
    for make in (lambda: objective("corrected", settings), lambda: FEDL(**settings)):
        with pytest.raises(SettingError) as caught:
            make()
        assert str(caught.value) == said


def test_without_a_mean_gradient_it_is_refused() -> None:
    of = regression(park(SIZES))
    ((_, outcome),) = go(FEDL(work=WORK), of, 1)
    with refused("objective"):
        walk(of, outcome.resolved)
    with refused("visit-lacks", RunError):
        Corrected().send(of.network.flat, Visit(None, {}))
    assert Plain().travels == Corrected(weight=0.0).travels == ()
