"""RaFed as a method: whom it visits, what it weighs, what it needs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedfloor.base.errors import SettingError
from fedfloor.methods.rafed import RaFed
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Node, Parallel, Probe, Sequence, Train
from fedfloor.solvers.allocation.problem import Allocation, AllocationProblem, cost, divergence
from fedfloor.solvers.allocation.solve import solve
from fedfloor.solvers.solution import Solution
from floor import park
from refusals import refused
from rounds import Job, method

SIZES = (6, 10, 4, 9, 5, 8, 7, 3)


def visits(plan: Node) -> list[Train]:
    meeting = plan.children[1] if isinstance(plan, Sequence) else plan
    assert isinstance(meeting, Parallel)
    return [one for one in meeting.children if isinstance(one, Train)]


def one_class_each() -> Park:
    """Devices 0 … 3 hold class 0, the others one of 1 and 2."""
    here = park(SIZES)
    y = here.dataset.y.copy()
    for k, indices in enumerate(here.indices):
        y[indices] = max(0, k - 3) % 3
    return replace(here, dataset=replace(here.dataset, y=y))


def test_the_plan_is_the_allocation_that_the_solver_found() -> None:
    job = Job(method("rafed", work={"epochs": 2}), park(SIZES))
    plan = job.plan(job.begin(), 1)
    view = job.view(1)
    assert view.resources is not None
    two_passes = RaFed(work=job.method.method.work).problem(view)  # type: ignore[attr-defined]
    assert two_passes.compute_s == pytest.approx(2 * view.resources.compute_s)
    found = solve("search", two_passes, seed=0)
    channel = np.full(len(SIZES), -1)
    level = np.zeros(len(SIZES), int)
    for visit in visits(plan):
        assert visit.radio is not None
        channel[visit.site.index] = visit.radio.channel
        level[visit.site.index] = view.resources.powers_dbm.index(visit.radio.power_dbm)
    planned = cost(two_passes, Allocation(channel, level))
    assert planned == pytest.approx(found.value, rel=1e-6)  # another seed may find another allocation as good


def test_the_same_every_round_until_something_changes() -> None:
    job = Job(method("rafed", solver="rafed"), park(SIZES))
    state = job.begin()
    first = visits(job.plan(state, 1))
    assert visits(job.plan(state, 2)) == first
    some = tuple(visit.site.index for visit in first)[:1]
    view = replace(job.view(3), invited=some)
    again = job.method.plan(state, view, np.random.default_rng(0))
    assert [one.site.index for one in visits(again)] == list(some)


def test_a_weight_on_the_class_mix_brings_in_those_that_hold_other_classes() -> None:
    here = one_class_each()
    census = here.census(range(here.devices), 0, [0] * here.devices)
    job = Job(method("rafed"), here)
    known = job.view(1).resources
    assert known is not None
    assert known.problem is not None
    crowded = replace(known, problem=replace(known.problem, threshold=1.0, channels=1))  # room for a few devices
    view = replace(job.view(1), census=census, resources=crowded)
    free = RaFed()
    weighed = RaFed(weight_divergence=100.0)
    problem = weighed.problem(view)
    target = census.sum(0)

    def apart(of: RaFed) -> tuple[float, float]:
        plan = of.plan(of.init(view, {}, np.random.default_rng(0)), view, np.random.default_rng(0))
        chosen = np.array([one.site.index for one in visits(plan)])
        mine = census[chosen].sum(0)
        by_hand = float(np.linalg.norm(mine / mine.sum() - target / target.sum()))
        assert divergence(problem, chosen) == pytest.approx(by_hand)
        return by_hand, of.problem(view).divergence_weight

    (apart_free, zero) = apart(free)
    (apart_weighed, weight) = apart(weighed)
    assert (zero, weight) == (0.0, 100.0)
    assert apart_weighed < apart_free


def test_the_census_that_is_weighed_is_asked_for() -> None:
    assert not RaFed().needs.census
    job = Job(method("rafed", weight_divergence=1.0), park(SIZES))
    view = replace(job.view(1), census=job.here.counts())
    plan = job.method.plan(job.begin(), view, np.random.default_rng(0))
    assert isinstance(plan, Sequence)
    assert plan.children[0] == Probe(tuple(range(len(SIZES))), "census")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weight_divergence": -1.0}, "methods.rafed.weight_divergence = -1.0: must be finite and at least 0."),
        ({"weight_divergence": math.inf}, "methods.rafed.weight_divergence = inf: must be finite and at least 0."),
        ({"solver": "magic"}, "methods.rafed.solver = 'magic': must be one of search, rafed, exact."),
    ],
)
def test_settings_are_checked(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        RaFed(**settings)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_it_needs_a_radio() -> None:
    job = Job(method("rafed"), park(SIZES))
    job.setup.price_model = None
    with refused("method"):
        job.plan(job.begin(), 1)


def test_somebody_must_be_heard() -> None:
    """One with s = N0 γ/1000 at best, so that q = e^(−1000) is 0 in double precision, would never get through."""
    job = Job(method("rafed"), park(SIZES))
    view = job.view(1)
    assert view.resources is not None
    known = view.resources.problem
    assert known is not None
    faint = replace(known, received_w=np.full_like(known.received_w, known.noise_w * known.threshold / 1000))
    deaf = replace(view, resources=replace(view.resources, problem=faint))
    with refused("method"):
        job.method.plan(job.begin(), deaf, np.random.default_rng(0))


def test_an_allocation_without_proof_is_no_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far a proof comes within its seconds hangs on the machine, and ranks would disagree."""
    job = Job(method("rafed", solver="exact"), park(SIZES))
    state = job.begin()
    assert visits(job.plan(state, 1))

    def late(name: str, problem: AllocationProblem, *, seed: int) -> Solution[Allocation]:
        return replace(solve(name, problem, seed=seed), status="feasible")

    monkeypatch.setattr("fedfloor.methods.rafed.solve", late)
    with refused("methods.rafed.solver"):
        job.plan(state, 1)
