"""Every plan of the suite by all that interprets plans: what one of them cannot do is marked with the error it raises.

A mark for what works fails, so that a gap that closes is noticed.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from cohorts import engine as engine_of
from cohorts import same
from fedfloor.base.errors import FedfloorError
from fedfloor.config import from_table
from fedfloor.engine.cohort.cohort import Cohort
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Team
from fedfloor.plan import drivers, nodes, schedule, text, visit_order, walk
from fedfloor.plan.nodes import Node, Parallel, Train, device, edge
from fedfloor.plan.outcome import Outcome
from fedfloor.report.plan_svg import svg
from fedfloor.report.plan_text import tree
from fedfloor.runs import pricing, results
from fedfloor.runs.resolving import resolved
from floor import digest, engine, everywhere
from floor import walk as walked
from plan_suite import HEAVY, PLANS, STEP, here
from refusals import refused

NETWORK = from_table({"network": {"profile": "wifi"}})


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let folders that engines ask for be made where pytest removes them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _sites() -> pricing.PriceModel:
    of = engine(here()).network
    costs = pricing.build_price_model(NETWORK, here(), of.trained, of.classifier_parameters)
    assert costs is not None
    return costs


def _engine(**more: Any) -> Engine:
    return engine(here(), folder=Path(tempfile.mkdtemp()), sites=_sites().sites, **more)


def _alone(plan: Node) -> Outcome:
    return walked(_engine(), plan)


def one_rank(plan: Node) -> None:
    """A visit for each receipt, no choice is left open, the clock is where it should be."""
    outcome = _alone(plan)
    assert [walk.number(one) for one in visit_order.in_order(outcome.resolved)] == [
        one.device for one in outcome.receipts
    ]
    assert outcome.ticks == max(1, walk.span(plan)) == max(1, walk.span(outcome.resolved))
    assert bool(torch.isfinite(outcome.packet["w"]).all())


def two_ranks(plan: Node) -> None:
    """To the bit what one rank makes of it."""

    def body(team: Team) -> str:
        return repr(digest(walked(_engine(team=team), plan)))

    assert everywhere(2, body) == [repr(digest(_alone(plan)))] * 2


def cohort(plan: Node) -> None:
    """What the loop makes of it, but for rounding."""
    loop, side = (engine_of(here(), "mlp-2nn", torch.float64, kind, sites=_sites().sites) for kind in (None, Cohort()))
    loop.memory, side.memory = (DeviceMemory(Path(tempfile.mkdtemp())) for _ in range(2))
    same(walked(loop, plan), walked(side, plan))


def dry(plan: Node) -> None:
    """The choices of a walk that trains."""
    known = resolved(plan, here(), schedule.RoundContext(0, 1), 0, Counter()).resolved
    assert known == _alone(plan).resolved


def price(plan: Node) -> None:
    """Seconds for each visit, within those of all."""
    costs = _sites()
    known = resolved(plan, here(), schedule.RoundContext(0, 1), 0, Counter()).resolved
    found = costs.price(known, {"w": engine(here()).network.flat}, 1, 0)
    assert len(found.visits) == len(visit_order.in_order(known))
    assert all(0 <= one <= found.seconds * (1 + 1e-12) for one in found.visits)
    assert set(found.joules_by_device) == walk.devices(known)


def drawing(plan: Node) -> None:
    """A picture that is XML, and a tree."""
    ElementTree.fromstring(svg(plan, [0, 0, 1, 1, 2, 2, 2].__getitem__))
    assert tree(plan)


def in_json(plan: Node) -> None:
    """There and back, with the same hash."""
    again = text.from_json(text.to_json(plan))
    assert again == plan
    assert text.digest(again) == text.digest(plan)


def reports(plan: Node) -> None:
    """A report of each device that is asked for its census, in each tick once."""
    noisy = from_table({"park": {"census_epsilon": 1.0}})
    counted = results.reports(noisy, plan)
    assert set(counted) <= walk.devices(plan)
    assert bool(counted) == any(one.what in ("census", "classes") for one in walk.probes(plan)) or any(
        one.reads_census for one in visit_order.selects(plan)
    )


def nobody(plan: Node) -> None:
    """Where nobody walks it every visit is lost, and the model stays as it was."""
    gone = drivers.absent(plan, 3, {1: 4}, lambda k: 7)
    assert len(gone.receipts) == len(visit_order.in_order(gone.resolved))
    assert all(one.lost for one in gone.receipts)


INTERPRETERS: dict[str, Callable[[Node], None]] = {
    one.__name__: one for one in (one_rank, two_ranks, cohort, dry, price, drawing, in_json, reports, nobody)
}
TRAIN = ("one_rank", "two_ranks", "cohort", "dry")
# plan → interpreters that cannot do it, and what they raise
GAPS: dict[str, dict[str, str]] = {
    "kept models": {"price": "visits without a result have no price"},
    "q-fair that asked nobody": dict.fromkeys(TRAIN, "put Probe(devices, 'loss') before the visits"),
    "a rule that does not exist": dict.fromkeys(TRAIN, "unknown mixing rule 'mean of means'"),
    "too many chosen": dict.fromkeys((*TRAIN, "price"), "must be 1 to 2"),
    "scopes that cannot meet": dict.fromkeys(TRAIN, "their models cannot be aggregated"),
    "a device that does not exist": dict.fromkeys((*TRAIN, "price"), "the park has devices 0 to 5"),
    "asked: the weather": dict.fromkeys((*TRAIN, "price", "reports"), "unknown question"),
    "a vector asked in a branch": dict.fromkeys(TRAIN, "put it before the Parallel"),
}


@pytest.mark.parametrize("interpreter", INTERPRETERS)
@pytest.mark.parametrize("name", PLANS)
def test_plan(name: str, interpreter: str) -> None:
    plan = PLANS[name]
    expected = GAPS.get(name, {}).get(interpreter)
    if expected is None:
        INTERPRETERS[interpreter](plan)
    else:
        with pytest.raises(FedfloorError, match=re.escape(expected)):
            INTERPRETERS[interpreter](plan)


def test_every_gap_is_of_a_plan_and_an_interpreter() -> None:
    assert set(GAPS) <= set(PLANS)
    assert set().union(*GAPS.values()) <= set(INTERPRETERS)
    assert len(PLANS) >= 60


# -- what a driver may do ----------------------------------------------------------------------------------------------


def test_what_a_driver_raises_is_never_taken_for_the_end_of_a_walk() -> None:
    class Broken(drivers.Dry):
        def train(self, request: schedule.TrainRequest) -> None:
            raise StopIteration(7)

    with pytest.raises(StopIteration):
        Broken().over(PLANS["a star: epochs"], schedule.RoundContext(0, 1))


def test_what_is_no_node_is_refused() -> None:
    plan = nodes.Sequence((PLANS["a visit: epochs"], (PLANS["a visit: epochs"],)))  # type: ignore[arg-type]
    with refused("plan", FedfloorError):
        drivers.Dry().over(plan, schedule.RoundContext(0, 1))


def test_branches_that_nobody_walks_number_their_visits_as_if_walked() -> None:
    plan = Parallel((Train(device(1), STEP), nodes.Sequence((Train(device(1), STEP), Train(device(1), STEP)))))
    walked_ = drivers.Dry().over(plan, schedule.RoundContext(0, 1))
    assert [one.visit for one in walked_.receipts] == [0, 1, 2]
    met = schedule.ParallelRequest(plan, {}, 0, schedule.Walk(schedule.RoundContext(0, 1)))
    gone = [drivers.absent(one.node, 0, one.walk.visits, lambda k: 7) for one in met.branches()]
    assert [receipt.visit for one in gone for receipt in one.receipts] == [0, 1, 2]


def test_ranks_of_cohorts_keep_branches_apart_after_a_super_node() -> None:
    """The packet of a super node is the resident network's own buffer, which visits one by one overwrite."""
    kept = replace(HEAVY, sends="nothing")
    first = Parallel((Train(device(0), STEP), Train(device(1), STEP)), edge(0))
    plan = nodes.Sequence((first, Parallel(tuple(Train(device(k), kept) for k in range(4)))))

    def body(team: Team) -> list[float]:
        of = engine_of(here(), "mlp-2nn", torch.float64, Cohort(), team=team)
        of.memory = DeviceMemory(Path(tempfile.mkdtemp()))
        return [one.loss_first for one in walked(of, plan).receipts]

    (alone,) = everywhere(1, body)
    assert everywhere(2, body) == [pytest.approx(alone, abs=1e-9)] * 2
