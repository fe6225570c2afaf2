"""How long it takes to price a round: plans with no training and no data, walked in simulated time.

The first price of a park also works out its routes; that is not measured, as a run does it once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedfloor.base.chance import generator
from fedfloor.network.payload import Payload
from fedfloor.network.price import price
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile
from fedfloor.network.sites import Sites, draw_sites
from fedfloor.plan.drivers import Dry
from fedfloor.plan.nodes import Node, Parallel, Repeat, Sequence, Train, Work, device, edge
from fedfloor.plan.schedule import RoundContext

Row = dict[str, object]
PACKET = 4 * 6_603_710  # bytes of FedGS's network
FACTORIES = 10
WARM_UP = 2
ONE_STEP = Work(steps=1)


@dataclass(frozen=True)
class Case:
    """A round to price.

    Args:
        name: of the round.
        plan: makes it, for the factory of each device.
        devices: K of the park.
        multicast: whether one transmission serves all receivers of a cell.
    """

    name: str
    plan: Callable[[np.ndarray], Node]
    devices: int
    multicast: bool = False


def fedgs(factory_of: np.ndarray, iterations: int = 50, chosen: int = 10) -> Node:
    """Return a resolved round of FedGS: in every factory, T times a visit to L devices that meet at the edge."""
    rng = generator(0, "bench price")
    branches: list[Node] = []
    for m in range(FACTORIES):
        members = np.flatnonzero(factory_of == m)
        drawn = [rng.choice(members, chosen, replace=False).tolist() for _ in range(iterations)]
        turns = [Parallel(tuple(Train(device(k), ONE_STEP) for k in ks), at=edge(m)) for ks in drawn]
        branches.append(Sequence(tuple(Repeat(1, one) for one in turns)))
    return Parallel(tuple(branches), mix="equal")


def fedavg(factory_of: np.ndarray) -> Node:
    """Return a round of FedAvg with every device."""
    return Parallel(tuple(Train(device(k), Work(epochs=1)) for k in range(len(factory_of))))


CASES = (
    Case("FedGS, 10 × 50 × 10, unicast", fedgs, 368),
    Case("FedGS, 10 × 50 × 10, multicast", fedgs, 368, multicast=True),
    Case("FedAvg, 100", fedavg, 100),
    Case("FedAvg, 10,000", fedavg, 10_000),
)


def measure(cases: Iterable[Case], repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Price rounds in this process and return a row for each.

    ``walk_us_per_visit`` is the time of a walk without training over the same plan, which a price that were a driver of
    it would take in addition.

    Args:
        cases: what to price.
        repeats: how often each is measured.
        said: told what is being measured.
    """
    rows: list[Row] = []
    for case in cases:
        said(case.name)
        factory_of = np.arange(case.devices) % FACTORIES
        plan = case.plan(factory_of)
        there = park(factory_of, multicast=case.multicast)
        work = partial(price, plan, there, Payload({"all": PACKET}))
        taken = [_timed(work) for _ in range(WARM_UP + repeats)][WARM_UP:]
        visits = len(work().visits)
        walked = [_timed(partial(Dry().over, plan, RoundContext(0, 1))) for _ in range(WARM_UP + repeats)][WARM_UP:]
        middle = statistics.median(taken)
        rows.append({
            "round": case.name, "visits": visits, "ms": round(1e3 * middle, 2),
            "quickest_ms": round(1e3 * min(taken), 2), "us_per_visit": round(1e6 * middle / visits, 2),
            "walk_us_per_visit": round(1e6 * statistics.median(walked) / visits, 2),
        })  # fmt: skip
    return rows


def park(factory_of: np.ndarray, *, multicast: bool) -> Sites:
    """Return devices in cells that take turns, whose edges share a line to the cloud."""
    cast = "multicast" if multicast else "unicast"
    on = NetworkProfile(
        device_edge=LinkClass(100e6, 100e6, sharing="serial", downlink=cast),  # type: ignore[arg-type]
        edge_cloud=LinkClass(10e6, 10e6, sharing="serial", over="park", downlink=cast),  # type: ignore[arg-type]
        devices=Devices(cycles_per_bit=20.0, transmit_w=0.1, receive_w=0.1, idle_w=0.01),
    )
    return draw_sites(on, 0, factory_of, np.full(len(factory_of), 300), 8 * 784)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
