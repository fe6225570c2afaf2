"""SCAFFOLD: rounds by a plain loop in NumPy, what is kept where, and what it is when nothing drifts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Team
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.scaffold import Scaffold
from fedfloor.models.network import Network
from fedfloor.parts.objectives.correction import Variates, effective, renewed
from fedfloor.parts.objectives.objective import Visit
from fedfloor.parts.server import Sgd
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Sequence, Train, Work, device
from fedfloor.plan.outcome import Outcome, Receipt
from floor import batch_norm, bits, digest, engine, everywhere, park, walk
from refusals import refused
from softmax import batches, begun, data, go, loss_and_gradient, regression, view

SIZES = (6, 10, 4, 9)
WORK = WorkSettings(epochs=2, batch_size=4, lr=0.2)


def by_hand(
    of: Engine, device: int, number: int, work: WorkSettings, x: np.ndarray, c: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, c_k⁺) of a visit: the loop of the paper, and c_k⁺ as the mean of the gradients g_s of the visit with
    weights a_s = 1 + β + … + β^(K−s), which is what option II comes to."""
    y = x.copy()
    velocity = np.zeros_like(x)
    seen = []
    beta = work.momentum or 0.0
    decay = work.weight_decay or 0.0
    for bx, by in batches(of, device, number, work):
        seen.append(loss_and_gradient(y, bx, by)[1] + decay * y)
        velocity = beta * velocity + seen[-1] + c - own
        y = y - float(work.lr) * velocity  # type: ignore[arg-type]
    shares = [sum(beta**j for j in range(len(seen) - s)) for s in range(len(seen))]
    return y, sum(a * g for a, g in zip(shares, seen, strict=True)) / sum(shares)  # type: ignore[return-value]


def test_the_term_by_hand() -> None:
    # x = (1, 2), y = (3, 1), c = (0.5, −1), c_k = (0.25, 1): ⟨c − c_k, y − x⟩ = 0.25·2 + (−2)·(−1) = 2.5; after two
    # steps of 0.1, c_k⁺ = (x − y)/(0.1·2) − (c − c_k) = (−10, 5) − (0.25, −2) = (−10.25, 7)
    network = Network(torch.nn.Sequential(torch.nn.Linear(1, 1)))
    y = torch.tensor([3.0, 1.0])
    network.flat.copy_(torch.tensor([1.0, 2.0]))
    visit = Visit(network.flat.clone(), {"c": torch.tensor([0.25, 1.0])}, network, {"c": torch.tensor([0.5, -1.0])},
                  Work(epochs=1, rate=0.1), steps=2)  # fmt: skip
    said = Variates().penalty(y, replace(visit, ready=Variates().begin(visit)))
    assert said is not None
    assert (float(said[0]), said[1].tolist()) == (2.5, [0.25, -2.0])
    assert Variates().remember(y, visit)["c"].tolist() == pytest.approx([-10.25, 7.0], rel=1e-6)


@pytest.mark.parametrize("chance", [0.0, 0.5], ids=["all arrive", "half are lost"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("more", [{}, {"momentum": 0.5}, {"momentum": 0.9, "weight_decay": 0.01}], ids=str)
def test_rounds_are_those_of_a_plain_loop(
    tmp_path: Path, chance: float, fraction: float, more: dict[str, float]
) -> None:
    work = replace(WORK, **more)
    of = regression(park(SIZES), tmp_path, loss_chance=chance)
    x = of.network.flat.clone().numpy()
    c = np.zeros_like(x)
    own = {k: np.zeros_like(x) for k in range(4)}
    arrivals = []
    for number, (state, outcome) in enumerate(go(Scaffold(fraction=fraction, work=work), of, 5), start=1):
        assert len(outcome.receipts) == 4 * fraction
        arrived = [one.device for one in outcome.receipts if not one.lost]
        ends = {k: by_hand(of, k, number, work, x, c, own[k]) for k in arrived}
        if arrived:
            x = np.mean([y for y, _ in ends.values()], 0)
            c = c + np.sum([new - own[k] for k, (_, new) in ends.items()], 0) / 4  # |S|/N of the mean over S
        own |= {k: new for k, (_, new) in ends.items()}
        arrivals.append(len(arrived))
        # what is of size 1 here, rounded some 100 times at 2^-53, divided by ηK of 0.4 or more
        assert state.packet["w"].numpy() == pytest.approx(x, abs=1e-12)
        assert state.packet["c"].numpy() == pytest.approx(c, abs=1e-12)
        for k in range(4):
            kept = of.memory.load(k)
            assert kept["c"].numpy() == pytest.approx(own[k], abs=1e-12) if k in of.memory.held else not own[k].any()
    assert np.abs(c).max() > 1e-2  # and the variates are not nothing
    assert (min(arrivals) < 4 * fraction) == (chance > 0)


def test_a_lost_visit_leaves_everything_as_it_was(tmp_path: Path) -> None:
    of = regression(park(SIZES), tmp_path)
    ((state, _),) = go(Scaffold(work=WORK), of, 1)
    before = {name: bits(value) for name, value in state.packet.items()}
    held = dict(of.memory.held)
    of.loss_chance = 1.0
    ((after, outcome),) = go(Scaffold(work=WORK), of, 1, state, first=2)
    assert all(one.lost for one in outcome.receipts)
    assert {name: bits(value) for name, value in after.packet.items()} == before
    assert of.memory.held == held


def test_c_moves_by_the_share_of_the_park_that_arrived() -> None:
    # 1 + (3/8)·(9 − 1) = 4, of 8 devices: three distinct ones arrived, one of them twice, one was lost
    method = Scaffold()
    receipts = tuple(Receipt(k, v, 0, 1, 5, 0.0, 0.0, 0.0, 0, lost=lost) for k, v, lost in
                     [(0, 0, False), (0, 1, False), (3, 0, False), (5, 0, True), (7, 0, False)])  # fmt: skip
    old = replace(begun(method, regression(park((4,) * 8))), packet={"w": torch.zeros(2), "c": torch.ones(2)})
    came = Outcome({"w": torch.full((2,), 7.0), "c": torch.full((2,), 9.0)}, Sequence(()), receipts)
    new = method.absorb(old, came)
    assert (new.packet["c"].tolist(), new.packet["w"].tolist()) == ([4.0, 4.0], [7.0, 7.0])
    assert (old.packet["c"].tolist(), came.packet["c"].tolist()) == ([1.0, 1.0], [9.0, 9.0])
    assert new.notes == {"devices": 8}


def test_with_everybody_c_is_the_mean_of_the_devices(tmp_path: Path) -> None:
    of = regression(park(SIZES), tmp_path)
    for state, _ in go(Scaffold(work=WORK), of, 3):
        mean = torch.stack([of.memory.load(k)["c"] for k in range(4)]).mean(0)
        assert state.packet["c"].numpy() == pytest.approx(mean.numpy(), abs=1e-14)  # some ten roundings at 2^-53


@pytest.mark.parametrize(("steps", "momentum", "expected"), [(1, 0.9, 1), (7, 0.0, 7), (2, 0.5, 2.5), (3, 0.5, 4.25)])
def test_effective_steps_by_hand(steps: int, momentum: float, expected: float) -> None:
    # β = 1/2, K = 3: unit gradients make velocities 1, 1.5, 1.75
    assert effective(steps, momentum) == expected


def test_effective_steps_are_the_closed_form() -> None:
    for steps in (1, 5, 400):
        for beta in (0.1, 0.5, 0.99):
            closed = sum((1 - beta**t) / (1 - beta) for t in range(1, steps + 1))
            assert effective(steps, beta) == pytest.approx(closed, rel=1e-12)


def test_a_new_variate_by_hand() -> None:
    # x − y = (1, 2), η = 1/4, K = 2: (x − y)/(ηK) = (2, 4); less c − c_k = (1, −1): (1, 5); up goes c + c_k⁺ − c_k
    # the third is not trained
    start = torch.tensor([3.0, 3.0, 8.0])
    model = torch.tensor([2.0, 1.0, 9.0])
    visit = Visit(start, {"c": torch.tensor([0.0, 3.0])}, None, {"c": torch.tensor([1.0, 2.0])}, Work(rate=0.25), 2)
    assert renewed(model, visit).tolist() == [1.0, 5.0]
    assert Variates().remember(model, visit)["c"].tolist() == [1.0, 5.0]
    assert Variates().send(model, visit)["c"].tolist() == [2.0, 4.0]
    fresh = replace(visit, memory={})
    assert Variates().remember(model, fresh)["c"].tolist() == [1.0, 2.0]
    assert Variates().send(model, fresh)["c"].tolist() == [2.0, 4.0]
    assert visit.packet["c"].tolist() == [1.0, 2.0]


def test_a_visit_with_rate_0_leaves_the_variates_as_they_are() -> None:
    start = torch.tensor([3.0, 3.0])
    visit = Visit(start, {"c": torch.tensor([0.0, 3.0])}, None, {"c": torch.tensor([1.0, 2.0])}, Work(rate=0.0), 2)
    for one, own in ((visit, [0.0, 3.0]), (replace(visit, memory={}), [0.0, 0.0])):
        assert Variates().remember(start, one)["c"].tolist() == own
        assert Variates().send(start, one)["c"].tolist() == [1.0, 2.0]


def test_the_first_round_is_fedavg_of_equal_sizes_to_the_bit(tmp_path: Path) -> None:
    work = replace(WORK, momentum=0.5)
    of = engine(park((8, 8, 8)), folder=tmp_path)
    plain = engine(park((8, 8, 8)))
    scaffold = go(Scaffold(work=work), of, 2)
    fedavg = go(FedAvg(work=work), plain, 2)
    assert bits(next(scaffold)[0].packet["w"]) == bits(next(fedavg)[0].packet["w"])
    assert bits(next(scaffold)[0].packet["w"]) != bits(next(fedavg)[0].packet["w"])


def test_a_device_alone_does_not_drift(tmp_path: Path) -> None:
    # c = c_k up to rounding, so every round is FedAvg's
    of = regression(park((9,)), tmp_path)
    plain = regression(park((9,)))
    for (ours, _), (theirs, _) in zip(go(Scaffold(work=WORK), of, 4), go(FedAvg(work=WORK), plain, 4), strict=True):
        assert ours.packet["w"].numpy() == pytest.approx(theirs.packet["w"].numpy(), abs=1e-12)
        assert float(ours.packet["c"].abs().max()) > 1e-2


def test_where_fedavg_drifts_scaffold_finds_the_minimum(tmp_path: Path) -> None:
    # One mini-batch of everything per step and equal sizes: a fixed point of SCAFFOLD has Σ_k ∇F_k = 0 however many
    # steps a visit takes (there c_k = ∇F_k and c = 0, so every step is 0); FedAvg's has not. With weight decay there is
    # one minimum. How fast it is come to is not a law: 60 rounds are enough here.
    work = WorkSettings(steps=5, batch_size=8, lr=0.5, weight_decay=0.1)
    slopes = []
    for method, folder in ((Scaffold(work=work), tmp_path), (FedAvg(work=work), None)):
        of = regression(park((8, 8)), folder)
        *_, (state, _) = go(method, of, 60)
        w = state.packet["w"].numpy()
        slopes.append(np.abs(sum(loss_and_gradient(w, *data(of, k))[1] + 0.1 * w for k in (0, 1))).max())
    assert slopes[0] < 1e-7
    assert slopes[1] > 1e-2


# -- teams, resumes ----------------------------------------------------------------------------------------------------


def test_every_team_comes_to_the_same(tmp_path: Path) -> None:
    method = Scaffold(fraction=0.8, work=replace(WORK, momentum=0.5))

    def told(folder: Path, team: Team | None = None) -> list[tuple[object, ...]]:
        torch.manual_seed(0)  # of the weights
        of = engine(park(SIZES, shape=(2, 3, 3)), batch_norm((2, 3, 3), 3), team, folder, loss_chance=0.2)
        assert of.network.trained < len(of.network.flat)
        return [(digest(outcome), bits(state.packet["c"])) for state, outcome in go(method, of, 3)]

    alone = told(tmp_path / "alone")
    assert everywhere(2, lambda team: told(tmp_path / "two", team) == alone) == [True] * 2


def test_a_resumed_run_goes_on_with_what_devices_kept(tmp_path: Path) -> None:
    method = Scaffold(fraction=0.5, work=WORK)
    *_, (whole, _) = go(method, regression(park(SIZES), tmp_path / "whole"), 5)
    of = regression(park(SIZES), tmp_path / "parts")
    *_, (half, _) = go(method, of, 3)
    again = regression(park(SIZES), tmp_path / "parts")
    again.memory = DeviceMemory(tmp_path / "parts", dict(of.memory.held))
    *_, (rest, _) = go(method, again, 2, half, first=4)
    assert {name: bits(value) for name, value in rest.packet.items()} == {n: bits(v) for n, v in whole.packet.items()}
    forgot = regression(park(SIZES), tmp_path / "none")
    *_, (other, _) = go(method, forgot, 2, half, first=4)
    assert bits(other.packet["w"]) != bits(whole.packet["w"])


# -- the method, and what is refused -----------------------------------------------------------------------------------


def test_the_server_steps_by_its_rate_and_a_preview_needs_no_model() -> None:
    assert Scaffold(server_rate=0.5).server == Sgd(0.5)
    of = regression(park(SIZES))
    empty = Scaffold().init(replace(view(of), start={}), {}, generator(0, "init"))
    assert (empty.packet, empty.notes) == ({}, {"devices": 4})
    plan = Scaffold().plan(empty, replace(view(of, 1), start={}), generator(0, "plan", 1))
    assert isinstance(plan, Parallel)
    assert plan.mix == "equal"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"server_rate": 0.0}, "methods.scaffold.server_rate = 0.0: must be a number above 0."),
        ({"fraction": 1.5}, "methods.scaffold.fraction = 1.5: must be above 0 and at most 1."),
    ],
)
def test_settings_are_checked(settings: dict[str, float], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        Scaffold(**settings)
    assert str(caught.value) == said


def test_variates_of_another_model_are_refused(tmp_path: Path) -> None:
    of = regression(park(SIZES), tmp_path)  # 9·3 + 3 = 30 numbers
    visit = Train(device(2), Work("variates", steps=1))
    packet = begun(Scaffold(), of).packet
    walk(of, visit, packet)  # this one is good
    with refused("variate"):
        walk(of, visit, {**packet, "c": torch.zeros(5)})
    of.memory.commit(2, {"c": torch.zeros(7)})
    with refused("variate"):
        walk(of, visit, packet)
    with refused("objective"):
        walk(of, visit, {"w": packet["w"]})
