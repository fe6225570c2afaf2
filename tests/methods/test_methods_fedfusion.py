"""FedFusion: where its gates lie, how the server smooths them, and when it is FedAvg."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from fedfloor.base.chance import generator
from fedfloor.methods.contract import View
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedfusion import FedFusion
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Train
from fedfloor.plan.outcome import Outcome
from floor import adapted, bits, park, plan_of, start, walk
from networks import build
from refusals import refused

DRAWS = generator(0, "plan", 1)


def layout(network: Network) -> dict[str, tuple[int, int]]:
    """Where the network's tensors lie, as a run writes it into View.layout."""
    parts = network.named(network.flat)
    ends = list(accumulate(part.numel() for part in parts.values()))
    return {name: (end - parts[name].numel(), end) for name, end in zip(parts, ends, strict=True)}


def view_of(here: Park, network: Network, number: int = 1) -> View:
    return View(number, 10, here.sizes, here.factory_of, {"w": network.flat.clone()}, layout=layout(network))


def test_smoothing_by_hand() -> None:
    # γ of channel 1: 0.9·0.5 + 0.1·1.5 = 0.6 and of channel 2: 0.9·(−1) + 0.1·0 = −0.9; all else is the mean
    method = FedFusion(smoothing=0.9)
    first = torch.tensor([7.0, 7.0, 0.5, -1.0, 7.0])
    where = {"0.weight": (0, 2), "1.fusion.gamma": (2, 4), "1.layer.weight": (4, 5)}
    view = View(1, 10, torch.ones(2).numpy(), torch.zeros(2).int().numpy(), {"w": first}, layout=where)
    state = method.init(view, {}, DRAWS)
    mean = torch.tensor([1.0, 2.0, 1.5, 0.0, 3.0])
    after = method.absorb(state, Outcome({"w": mean, "x": first}, Parallel(()), (), {}, 1))
    assert after.packet["w"].tolist() == pytest.approx([1.0, 2.0, 0.6, -0.9, 3.0], rel=1e-6)
    assert after.packet["x"] is first
    assert mean.tolist() == [1.0, 2.0, 1.5, 0.0, 3.0]  # absorb is pure
    assert after.notes == {"gamma": [2, 4]}
    same = method.absorb(state, Outcome({"w": first}, Parallel(()), (), {}, 1))
    assert bits(same.packet["w"]) == bits(first)  # nobody trained
    for other in (FedFusion(smoothing=0.0), FedFusion(operator="conv")):
        state = other.init(view, {}, DRAWS)
        assert bits(other.absorb(state, Outcome({"w": mean}, Parallel(()), (), {}, 1)).packet["w"]) == bits(mean)


def test_init_finds_gamma_in_a_network() -> None:
    here = park()
    network = adapted(park(), FedFusion().objective).network
    low, high = FedFusion().init(view_of(here, network), {}, DRAWS).notes["gamma"]
    network.flat.fill_(1.0)
    network.flat[low:high] = 0.0
    assert {name for name, one in network.state(network.flat).items() if not one.any()} == {"5.fusion.gamma"}


def test_a_model_without_gamma_is_refused_and_a_preview_is_not() -> None:
    here = park()
    network = build("mlp-2nn", (1, 3, 3), 3, seed=0)
    with refused("methods.fedfusion"):
        FedFusion().init(view_of(here, network), {}, DRAWS)
    assert FedFusion(operator="conv").init(view_of(here, network), {}, DRAWS).notes == {}
    preview = View(1, 10, here.sizes, here.factory_of, {})
    assert FedFusion().init(preview, {}, DRAWS).notes == {}


def test_a_round_is_an_equal_mean() -> None:
    plan = plan_of(FedFusion(work=WorkSettings(epochs=1, batch_size=4)), park())
    assert isinstance(plan, Parallel)
    assert plan.mix == "equal"
    assert [one.work.objective for one in plan.children if isinstance(one, Train)] == ["fusion"] * 5


@pytest.mark.parametrize("operator", ["multi", "single"])
def test_with_one_step_it_is_fedavg_with_an_equal_mean_up_to_rounding(operator: str) -> None:
    here = park()
    work = WorkSettings(steps=1, batch_size=4, lr=0.1)
    method = FedFusion(operator=operator, work=work)  # type: ignore[arg-type]
    of = adapted(here, method.objective)
    state = method.init(view_of(here, of.network), {}, DRAWS)
    packet = start(of)
    for number in (1, 2):
        plan = method.plan(state, view_of(here, of.network, number), generator(0, "plan", number))
        state = method.absorb(state, walk(of, plan, state.packet, number))
        equal = replace(plan_of(FedAvg(work=work), here, number=number), mix="equal")  # type: ignore[type-var]
        packet = dict(walk(of, equal, packet, number).packet)
    # two rounds with a mean of five and a step each: some ten roundings of 2^-24 of weights below 1
    assert float((state.packet["w"] - packet["w"]).abs().max()) < 1e-6
    assert float((packet["w"] - start(adapted(here, method.objective))["w"]).abs().max()) > 1e-3


def test_gamma_moves_and_is_smoothed_in_a_run() -> None:
    here = park()
    work = WorkSettings(epochs=3, batch_size=4, lr=0.1)
    moved = []
    for smoothing in (0.0, 0.9):
        method = FedFusion(smoothing=smoothing, work=work)
        of = adapted(here, method.objective)
        state = method.init(view_of(here, of.network), {}, DRAWS)
        low, high = state.notes["gamma"]
        outcome = walk(of, method.plan(state, view_of(here, of.network), DRAWS), state.packet)
        moved.append(method.absorb(state, outcome).packet["w"][low:high])
    assert float(moved[0].abs().max()) > 1e-4
    assert torch.allclose(moved[1], 0.1 * moved[0], rtol=1e-5, atol=0)  # γ started at 0; 1 − 0.9 is rounded
