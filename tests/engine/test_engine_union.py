"""Super nodes in one step: the same as visit by visit, and only where it is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfloor.base.errors import DivergedError
from fedfloor.engine import union
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone, Team
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.park.stream import Fifo, Recycle, Static
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Repeat, Select, Sequence, Train, Work, device, edge
from fedfloor.plan.outcome import Outcome
from floor import batch_norm, bits, digest, dropout, engine, everywhere, extended, network, park, start, visits, walk
from refusals import refused

STEP = Work(steps=1, batch_size=4, rate=0.1)
TINY = (6, 10, 4, 9, 5)


def doubled(here: Park, model: str | nn.Module = "mlp-2nn", **more: object) -> Engine:
    """Return an engine in double precision."""
    module = network(here, model).module.double()
    return Engine(here, Network(module), Alone(), DeviceMemory(None), seed=0, **more)  # type: ignore[arg-type]


def both(here: Park, plan: Node, rounds: int = 2, model: str | nn.Module = "mlp-2nn", **more: object) -> list[Outcome]:
    """Walk rounds of a plan with and without shortcuts, in double precision."""
    found = []
    for shortcuts in (True, False):
        of = doubled(here, model, shortcuts=shortcuts, **more)
        packet = start(of)
        for number in range(1, rounds + 1):
            outcome = walk(of, plan, packet, number, tick=3 * number)
            packet = dict(outcome.packet)
        found.append(outcome)
    return found


def agree(fused: Outcome, plain: Outcome) -> None:
    """Check that two outcomes are the same but for roundings of double precision."""
    here = fused.packet["w"]
    there = plain.packet["w"]
    assert here.dtype == torch.float64
    torch.testing.assert_close(here, there, rtol=0, atol=1e-12)
    assert fused.resolved == plain.resolved
    for one, other in zip(fused.receipts, plain.receipts, strict=True):
        told = [(r.device, r.visit, r.tick, r.steps, r.samples, r.accuracy, r.bytes, r.lost) for r in (one, other)]
        assert told[0] == told[1]
        assert one.loss_first == pytest.approx(other.loss_first, abs=1e-11)
        assert one.loss_last == pytest.approx(other.loss_last, abs=1e-11)


SUPER = Repeat(3, Parallel(visits((0, 1, 2, 4), STEP), at=edge(0)))


@pytest.mark.parametrize("mix", ["by_samples", "equal"])
@pytest.mark.parametrize("stream", [Static(), Fifo(4), Fifo(3), Recycle(7)], ids=str)
def test_a_super_node_takes_the_mean_of_its_devices_steps(stream: Static | Fifo | Recycle, mix: str) -> None:
    # static: 4 samples of 6, 10, 4 and 5, weighted by what is held; a window of 3 is less than a mini-batch
    here = replace(park(TINY), stream=stream)
    plan = replace(SUPER, child=replace(SUPER.child, mix=mix))
    of = doubled(here)
    assert union.fits(of, plan.child, start(of))  # type: ignore[arg-type]
    fused, plain = both(here, plan)
    agree(fused, plain)
    assert not fused.packet["w"].equal(start(of)["w"])


@pytest.mark.parametrize(
    "work",
    [
        replace(STEP, momentum=0.9, weight_decay=0.01),
        replace(STEP, objective="prox", settings={"mu": 0.5}),
        Work(epochs=1, batch_size=10, rate=0.1),
    ],
    ids=["momentum", "prox", "epoch"],
)
def test_so_with_any_work_of_one_mini_batch(work: Work) -> None:
    here = park(TINY)
    plan = Parallel(visits((0, 1, 3), work), at=edge(0))
    assert union.fits(doubled(here), plan, start(doubled(here)))
    agree(*both(here, plan))


def test_convolutions_are_no_exception() -> None:
    here = park((6, 8), shape=(1, 28, 28))
    agree(*both(here, Parallel(visits((0, 1), STEP), at=edge(0)), model="lenet"))


def test_lost_visits_leave_the_mean_and_the_stream() -> None:
    here = replace(park(TINY), stream=Recycle(4))
    for rounds in (1, 2, 3, 4):
        fused, plain = both(here, SUPER, rounds, loss_chance=0.6)
        agree(fused, plain)
    assert {one.lost for one in plain.receipts} == {True, False}
    everybody = both(here, Parallel(visits((1, 2), STEP), at=edge(0)), 1, loss_chance=0.999)
    agree(*everybody)
    assert all(one.lost for one in everybody[0].receipts)
    assert everybody[0].packet["w"].equal(start(doubled(here))["w"])


def plans() -> dict[str, Node]:
    one = visits((0, 1), STEP)
    return {
        "at the cloud, where ranks share the branches": Parallel(one, at=CLOUD),
        "two steps": Parallel(visits((0, 1), replace(STEP, steps=2)), at=edge(0)),
        "an epoch of several mini-batches": Parallel(visits((0, 1), Work(epochs=1, batch_size=4)), at=edge(0)),
        "different work": Parallel((one[0], Train(device(1), replace(STEP, rate=0.2))), at=edge(0)),
        "a device twice": Parallel((one[0], one[0]), at=edge(0)),
        "chains": Parallel((Sequence(one), one[0]), at=edge(0)),
        "the cloud's data": Parallel((Train(CLOUD, STEP), one[0]), at=edge(0)),
        "a rule of the user's own": Parallel(one, edge(0), "floor:Nobody"),
        "a rule that looks at every model": Parallel((*one, Train(device(3), STEP)), edge(0), "median"),
        "an objective that looks at its start": Parallel(
            visits((0, 1), replace(STEP, objective="floor:Counting")), edge(0)
        ),
    }


@pytest.mark.parametrize("what", plans())
def test_others_are_walked_visit_by_visit(what: str) -> None:
    of = engine(park(TINY))
    assert not union.fits(of, plans()[what], start(of))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [dropout, batch_norm])
def test_networks_whose_samples_hang_together_are_not_fused(make: Callable[..., nn.Module]) -> None:
    here = park(TINY)
    of = engine(here, make((1, 3, 3), 3))
    before = of.network.flat.clone()
    assert not of.separable
    assert of.network.flat.equal(before)
    assert engine(here).separable
    assert engine(here, "logistic").separable


class Centred(nn.Module):
    """A layer that nobody knows by name, and that lets samples see each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


def test_a_layer_of_ones_own_that_mixes_samples_is_found_out() -> None:
    own = nn.Sequential(nn.Flatten(), Centred(), nn.Linear(9, 3))
    assert not engine(park(TINY), own).separable


class Gated(nn.Module):
    """Lets samples see each other through a gate that is shut at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gate * x.mean(0)


def test_samples_that_will_see_each_other_are_found_out_whatever_the_weights_are_now() -> None:
    own = nn.Sequential(nn.Flatten(), Gated(), nn.Linear(9, 3))
    of = engine(park(TINY), own)
    before = of.network.flat.clone()
    assert before[0] == 0  # the gate: as it is, no sample sees another
    assert not of.separable
    assert of.network.flat.equal(before)
    shut = engine(park(TINY))
    shut.network.flat.fill_(float("nan"))  # what a rank's last branch left
    assert shut.separable


def test_statistics_kept_of_samples_are_not_fused() -> None:
    # each sample is normed by itself, but the running mean would be that of the union, not that of the devices' means
    own = nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), nn.Flatten(), nn.Linear(9, 3))
    assert not engine(park(TINY), own).separable


def test_nothing_else_may_travel_and_shortcuts_may_be_off() -> None:
    of = engine(park(TINY))
    plan = SUPER.child
    assert isinstance(plan, Parallel)
    packet = start(of)
    assert union.fits(of, plan, packet)
    assert not union.fits(of, plan, {**packet, "c": packet["w"]})
    assert not union.fits(engine(park(TINY), shortcuts=False), plan, packet)


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_comes_to_the_same_bits(ranks: int) -> None:
    here = replace(park((8, 7, 9, 6, 5, 8, 9), factory_of=[k % 3 for k in range(7)]), stream=Fifo(4))
    share = tuple(here.distribution.tolist())
    members = [tuple(range(m, 7, 3)) for m in range(3)]
    chosen = [Repeat(3, Select("exact", k, 2, STEP, edge(m), share=share)) for m, k in enumerate(members)]
    plan = Sequence((Parallel(tuple(chosen), mix="equal"), SUPER, *chosen))

    def body(team: Team) -> object:
        outcome = walk(engine(here, team=team, loss_chance=0.2), plan)
        return str(digest(outcome))

    alone = str(digest(walk(engine(here, loss_chance=0.2), plan)))
    assert everywhere(ranks, body) == [alone] * ranks


def test_a_step_too_far_names_the_device() -> None:
    of = engine(park(TINY))
    with refused("diverged", DivergedError):
        walk(of, Repeat(9, Parallel(visits((0, 1), replace(STEP, rate=1e30)), at=edge(0))))


UNKNOWN = {
    "work": Parallel(visits((0, 1, 3), extended(STEP)), at=edge(0)),
    "a visit": Parallel((*visits((0, 1), STEP), extended(Train(device(3), STEP))), at=edge(0)),
    "the meeting": extended(Parallel(visits((0, 1, 3), STEP), at=edge(0))),
}


@pytest.mark.parametrize("plan", UNKNOWN.values(), ids=UNKNOWN)
def test_a_field_that_is_not_known_is_never_dropped(plan: Parallel) -> None:
    fused = engine(park(TINY))
    plain = engine(park(TINY), shortcuts=False)
    known = Parallel(visits((0, 1, 3), STEP), edge(0))
    assert union.fits(fused, known, start(fused))
    assert not union.fits(fused, plan, start(fused))
    one = walk(fused, plan)
    other = walk(plain, known)
    shortcut = walk(fused, known, start(plain))
    assert bits(one.packet["w"]) == bits(other.packet["w"]) != bits(shortcut.packet["w"])
    assert union.fits(fused, Parallel(visits((0, 1), extended(STEP, 0.0)), at=edge(0)), start(fused))  # it is not set
