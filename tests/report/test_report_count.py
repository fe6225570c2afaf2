"""Models sent per round, as papers count them and as they move."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from fedfloor.base.errors import SettingError
from fedfloor.config import from_table
from fedfloor.methods.contract import State, View
from fedfloor.network.payload import Payload
from fedfloor.network.price import price
from fedfloor.network.profile import NetworkProfile
from fedfloor.network.sites import draw_sites
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Select, Sequence, Train, Work, edge
from fedfloor.plan.text import digest
from papers.count import MOVES, RULES, count
from priced import FACTORY_OF, chain, plans, star, visit
from refusals import refused

OF = [k % 5 for k in range(20)]  # 5 edges of 4 devices
BOTH_WAYS = "visits, edge-cloud both ways"
DEVICE_UP = "device up, edge-cloud both ways"


def plan_of(name: str, **settings: Any) -> Node:
    """A method's plan of a round with 20 devices at 5 edges."""
    method = from_table({"rounds": 3, "method": {"name": name}, "methods": {name: settings}}).configured
    view = View(1, 3, np.full(20, 600), np.array(OF), {})
    return method.plan(State({}), view, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "settings", "rule", "expected"),
    [
        # Table III of FedSR: K = 20, 5 edges of 4, 5 laps or edge averages
        ("fedavg", {}, "device up and down", 2 * 20),
        ("fedprox", {}, "device up and down", 2 * 20),
        ("hierfavg", {}, DEVICE_UP, 5 * 20 + 2 * 5),
        ("fedsr", {}, BOTH_WAYS, 5 * 20 + 2 * 5),
        ("fedsr", {"ring_size": 10, "laps": 2}, BOTH_WAYS, 2 * 20 + 2 * 2),
        ("ring", {}, "visits", 20),
        # every link: 4 for a device and back; 2 to an edge and back, 2 a visit there; 2 from device to device
        ("fedavg", {}, MOVES, 20 * 4),
        ("hierfavg", {}, MOVES, 5 * 2 + 5 * 20 * 2),
        ("fedsr", {}, MOVES, 5 * (2 + 19 * 2 + 2)),
        ("centralized", {}, "visits", 0),
        ("centralized", {}, MOVES, 0),
    ],
)
def test_methods(name: str, settings: dict[str, Any], rule: str, expected: int) -> None:
    assert count(plan_of(name, **settings), rule, OF) == expected


def test_a_ring_across_factories_moves_more_than_it_is_counted() -> None:
    # from factory to factory a model takes 4 links, within one 2; 2 at the start and 2 at the end
    order = [one.site.index for one in _visits(plan_of("ring"))]
    assert sorted(order) == list(range(20))
    hops = sum(2 if OF[a] == OF[b] else 4 for a, b in pairwise(order))
    assert count(plan_of("ring"), MOVES, OF) == 4 + hops


def _visits(plan: Node) -> list[Train]:
    from fedfloor.plan.visit_order import in_order

    return in_order(plan)


@given(plans)
def test_moves_are_the_transfers_that_a_network_is_priced_for(plan: Node) -> None:
    # without questions, and without a model that a device was handed and keeps: unicast, via the edges
    if "Probe" in repr(plan) or "Broadcast" in repr(plan):
        return
    on = draw_sites(NetworkProfile(), 0, np.array(FACTORY_OF), np.full(len(FACTORY_OF), 4), 8)
    sent = sum(price(plan, on, Payload({"all": 1})).bytes.values())
    assert count(plan, MOVES, FACTORY_OF) == sent


def test_what_is_handed_out_moves_and_what_is_asked_does_not() -> None:
    assert count(Sequence((star(0, 1), Broadcast((0, 1, 2)))), MOVES, FACTORY_OF) == 2 * 4 + 3 * 2
    assert count(Sequence((Probe((0, 1), "loss"), star(0))), MOVES, FACTORY_OF) == 4
    assert count(Sequence((star(0, 1), Broadcast((0, 1, 2)))), "device up and down") == 4


def test_rules_on_small_plans() -> None:
    rings = Parallel((chain(0, 1), visit(2), star(3, 4, at=edge(1))))
    assert [count(rings, rule) for rule in RULES] == [10, 5 + 4, 5 + 4, 5]
    # a meeting at the cloud in turns counts each time; one at an edge does not
    assert count(Sequence((rings, rings)), BOTH_WAYS) == 18
    assert count(Parallel((star(0, 1, at=edge(0)),), at=edge(0)), BOTH_WAYS) == 2


def test_counting_leaves_the_plan_alone() -> None:
    plan = plan_of("hierfavg")
    before = digest(plan)
    count(plan, MOVES, OF)
    assert digest(plan) == before


def test_what_is_refused() -> None:
    with refused("unknown rule to count models by"):
        count(star(0), "visit")
    for rule in (*RULES, MOVES):
        with refused("unresolved-plan"):
            count(Parallel((visit(0), Select("uniform", (0, 1), 1, Work(epochs=1)))), rule, [0, 0])
    with pytest.raises(SettingError, match="device 1: factory_of says the factory of 1 device"):
        count(star(0, 1), MOVES, [0])
