"""Networks on which prices are counted by hand, and hypothesis strategies for networks and plans to price.

The packet takes 1 s down and 2 s up between device and edge, 4 s down and 8 s up between edge and cloud, and a pass
over a device's data takes 16 s: every sum tells what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedfloor.network.payload import Payload, QuestionCost
from fedfloor.network.price import Price, price
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile
from fedfloor.network.sites import Sites, draw_sites
from fedfloor.plan.nodes import (
    CLOUD,
    Broadcast,
    Node,
    Parallel,
    Probe,
    Repeat,
    Sequence,
    Site,
    Train,
    Work,
    device,
    edge,
)
from fedfloor.plan.walk import with_work

BYTES = 1000  # of the packet: 8,000 bits
EPOCH = Work(epochs=1)
FACTORY_OF = (0, 0, 0, 1, 1, 2)
PAYLOAD = Payload(
    {"all": BYTES, "classifier": 10},
    {
        "census": lambda _: QuestionCost(0, 40),
        "loss": lambda _: QuestionCost(BYTES, 4, 0.5, model=True),
        "gradient": lambda _: QuestionCost(BYTES, BYTES, 1.0, model=True),
    },
)
PASS = {"cycles_per_bit": 1.0, "data_bits": 16.0, "clock_hz": 1.0}  # 16 s


def near(**more: Any) -> LinkClass:
    """The link between a device and its edge: 2 s up, 1 s down."""
    return LinkClass(**{"up_bps": 4000.0, "down_bps": 8000.0, **more})


def far(**more: Any) -> LinkClass:
    """The link between an edge and the cloud: 8 s up, 4 s down."""
    return LinkClass(**{"up_bps": 1000.0, "down_bps": 2000.0, **more})


def network(devices: dict[str, float] | None = None, **more: Any) -> NetworkProfile:
    """Dedicated links, and devices that take 16 s for a pass."""
    return NetworkProfile(
        **{"device_edge": near(), "edge_cloud": far(), "devices": Devices(**{**PASS, **(devices or {})}), **more}
    )


def standing(on: NetworkProfile, factory_of: Ordered[int] = FACTORY_OF, samples: int = 64) -> Sites:
    """Devices of 64 samples on a network."""
    return draw_sites(on, 0, np.array(factory_of), np.full(len(factory_of), samples), 8)


def priced(plan: Node, on: NetworkProfile | None = None, factory_of: Ordered[int] = FACTORY_OF, **more: Any) -> Price:
    """The price of a plan."""
    return price(plan, standing(on or network(), factory_of), PAYLOAD, **more)


def visit(k: int, work: Work = EPOCH) -> Train:
    return Train(device(k), work)


def star(*devices: int, at: Site = CLOUD) -> Parallel:
    return Parallel(tuple(map(visit, devices)), at)


def chain(*devices: int) -> Sequence:
    return Sequence(tuple(map(visit, devices)))


# -- for properties ----------------------------------------------------------------------------------------------------

_works = st.sampled_from([EPOCH, Work(epochs=2), Work(steps=3, batch_size=16)])
_numbers = st.integers(0, len(FACTORY_OF) - 1)
_sets = st.lists(_numbers, max_size=4, unique=True).map(tuple)
_meetings = st.just(CLOUD) | st.integers(0, 2).map(edge)
_leaves = (
    st.builds(Train, _numbers.map(device), _works)
    | st.builds(Train, st.just(CLOUD), _works)
    | st.builds(Broadcast, _sets, st.sampled_from(["all", "classifier"]))
    | st.builds(Probe, _sets, st.sampled_from(sorted(PAYLOAD.asked)), _meetings)
)


def _above(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(below, min_size=1, max_size=4).map(tuple)
    return (
        st.builds(Sequence, several)
        | st.builds(Parallel, several, _meetings)
        | st.builds(Repeat, st.integers(1, 3), below, st.booleans())
    )


plans = st.recursive(_leaves, _above, max_leaves=10)


def _scoped(drawn: list[tuple[Node, str]]) -> Node:
    def one(plan: Node, scope: str) -> Node:
        return with_work(plan, lambda work: replace(work, trains=scope))

    return Sequence(tuple(one(plan, scope) for plan, scope in drawn))


# plans of one scope each, one after the other
scoped = st.lists(st.tuples(plans, st.sampled_from(["all", "classifier"])), min_size=1, max_size=3).map(_scoped)

_rates = st.sampled_from([None, 1000.0, 2000.0, 3000.0, 8000.0])


@st.composite
def links(draw: st.DrawFn, sharing: Ordered[str] = ("serial", "dedicated")) -> LinkClass:
    """Any link without a radio."""
    up, down = draw(_rates), draw(_rates)
    kind = "dedicated" if up is None and down is None else draw(st.sampled_from(sharing))
    return LinkClass(
        up, down, draw(st.sampled_from([0.0, 0.25, 3.0])), kind,  # type: ignore[arg-type]
        draw(st.sampled_from(["cell", "park"])), draw(st.sampled_from(["half", "full"])),
        draw(st.sampled_from(["unicast", "multicast"])),
    )  # fmt: skip


@st.composite
def networks(draw: st.DrawFn, sharing: Ordered[str] = ("serial", "dedicated")) -> NetworkProfile:
    """Any network without a radio."""
    one = links(sharing)
    return NetworkProfile(
        route=draw(st.sampled_from(["via_edge", "direct"])), device_edge=draw(one), edge_cloud=draw(one),
        device_cloud=draw(one), device_device=draw(st.none() | one),
        devices=Devices(**PASS, capacitance=1.0, transmit_w=0.5, receive_w=0.25, idle_w=0.125),
        cloud_clock_hz=draw(st.none() | st.just(32.0)),
    )  # fmt: skip


TABLE_IV = [
    (490, None, 2.629, 1262),  # FedAvg
    (32, None, 0.172, 82),  # HFedMS-S
    (36, 3, 0.097, 42),
    (34, 5, 0.056, 25),
    (67, 7, 0.081, 35),
    (81, 9, 0.073, 32),
]
