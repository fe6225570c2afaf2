"""Facts about the visits of a resolved plan that its price needs before time runs.

How many visits are inside each node, which visits interfere on the radio, and which devices must first pull the frozen
part of the model: all follow from the order of the plan, and not from simulated time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedfloor.base.errors import SettingError
from fedfloor.network.payload import Payload
from fedfloor.network.sites import VisitPlace
from fedfloor.plan import visit_order, walk
from fedfloor.plan.drivers import Dry
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Select, Site, Train
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Packet, RoundContext, TrainRequest


def examine(plan: Node, payload: Payload) -> tuple[dict[int, int], set[int], bool]:
    """Return the number of visits inside each inner node (by id), the devices of the plan, and whether pulls occur.

    Pulls occur if visits train a part of the model, or devices receive all of it. A node that occurs in a plan twice
    is examined once.

    Raises:
        SettingError: the plan has a ``Select``, or visits without a result.
    """
    inside: dict[int, int] = {}
    named: set[int] = set()
    parts = False

    def go(node: Node) -> int:
        nonlocal parts
        if isinstance(node, Train):
            if node.work.sends == "nothing":
                raise SettingError("visits without a result have no price. Leave [network] out.", key="no-price")
            if node.work.borrows:
                parts = True
            if node.site.kind == "device":
                named.add(node.site.index)
            return 1
        visits = inside.get(id(node))
        if visits is None:
            if isinstance(node, Select):
                raise visit_order.unresolved()
            if isinstance(node, (Broadcast, Probe)):
                named.update(node.devices)
                parts = parts or _leaves_model(node, payload)
            visits = sum(map(go, walk.children(node))) * getattr(node, "times", 1)
            inside[id(node)] = visits
        return visits

    go(plan)
    return inside, named, parts


def find_pulls(plan: Node, holders: frozenset[int], payload: Payload) -> tuple[frozenset[int], frozenset[int]]:
    """Return the visits whose device must first pull the frozen part, and the holders of that part after the plan.

    The frozen part is the rest of the model in visits that train a part of it. A device that receives the whole model
    or pulls the part holds its current state, until a visit trains the whole model, or such models are aggregated:
    then no device holds it. The order is that of the plan, not of simulated time; visits are numbered by it.
    """
    pulls = list[int]()
    held = set(holders)
    visits = 0

    def go(node: Node) -> bool:
        """Process a node; return whether it trains the whole model."""
        nonlocal visits
        if isinstance(node, Train):
            if not node.work.borrows:
                held.clear()
            elif node.site.kind == "device" and node.site.index not in held:
                held.add(node.site.index)
                pulls.append(visits)
            visits += 1
            return not node.work.borrows
        if isinstance(node, (Broadcast, Probe)) and _leaves_model(node, payload):
            held.update(node.devices)
        turns = walk.children(node) * getattr(node, "times", 1)
        changed = sum(map(go, turns)) > 0  # any() would stop at the first
        if changed and isinstance(node, Parallel):  # a model broadcast in a branch is not the mean of the branches
            held.clear()
        return changed

    go(plan)
    return frozenset(pulls), frozenset(held)


def _leaves_model(node: Broadcast | Probe, payload: Payload) -> bool:
    return node.scope == "all" if isinstance(node, Broadcast) else payload.of(node).model


def placed_visits(
    plan: Node, round_number: int, tick: int, numbered: Sequence[int] | None = None
) -> list[tuple[Train, tuple[Train, ...], VisitPlace]]:
    """Return every visit in plan order with the interfering visits, and its key (round, tick, device, visit).

    The engine numbers visits in the same way, so that both have the same random draws. An exception are branches of a
    ``Parallel`` that chose the same device: they did not count each other's visits, which a resolved plan lacks.

    Args:
        numbered: the visits' numbers from the receipts; None: counted here.
    """
    visits = _Visits()
    visits.over(plan, RoundContext(0, round_number, interference=True), tick)
    numbers = [request.key.visit for request in visits.requests] if numbered is None else numbered
    return [
        (request.node, request.concurrent, replace(request.key, visit=number).place())
        for request, number in zip(visits.requests, numbers, strict=True)
    ]


class _Visits(Dry):
    def __init__(self) -> None:
        self.requests: list[TrainRequest] = []

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        self.requests.append(request)
        return super().train(request)


def first_stop(node: Node, at: Site) -> Site | None:
    """Return the first site to which a node moves a packet at ``at``, or None if the packet stays.

    Questions and copies do not move the packet.
    """
    if isinstance(node, Train):
        return node.site
    if isinstance(node, Parallel):
        return node.at
    if isinstance(node, (Broadcast, Probe)):
        return at
    return next((site for child in walk.children(node) if (site := first_stop(child, at)) is not None), None)
