"""How many models a round sends, as a given paper counts them, beside the true moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fedfloor.base.errors import SettingError, unknown
from fedfloor.plan import visit_order, walk
from fedfloor.plan.drivers import Dry
from fedfloor.plan.nodes import CLOUD, Node, Site, Train, device, edge
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import (
    BroadcastRequest,
    NodeResult,
    Packet,
    ParallelRequest,
    RoundContext,
    TrainRequest,
    joined,
)

MOVES = "moves"
# rule → models per visit of a device, and per branch of a meeting at the cloud that is more than one visit
RULES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "device up and down": (2, 0),
        "device up, edge-cloud both ways": (1, 2),
        "visits, edge-cloud both ways": (1, 2),
        "visits": (1, 0),
    }
)


def count(plan: Node, rule: str, factory_of: Sequence[int] = ()) -> int:
    """Return how many models a round sends, counted by a rule.

    With V visits of devices and G branches that meet at the cloud and are more than one visit (a factory's averages, a
    ring), Table III of FedSR (arXiv 2403.14718) counts

    ==================================  =======  =====================================================================
    rule                                models   whom it counts so
    ==================================  =======  =====================================================================
    "device up and down"                2V       FedAvg and its kin: each device gets the model and sends its own
    "device up, edge-cloud both ways"   V + 2G   HierFAVG: what edges hand down to their devices is left out
    "visits, edge-cloud both ways"      V + 2G   FedSR: each visit hands on once; the edge gets the model and sends it
    "visits"                            V        ring-optimization
    "moves"                                      nobody: every link that a copy takes, cloud – edge – device
    ==================================  =======  =====================================================================

    Moves are those of a network that sends a copy for each receiver and relays what devices hand on by the base
    station. What is handed out counts; questions do not. A part of a model counts as a model.

    Args:
        plan: of one round, without a ``Select``.
        rule: see above.
        factory_of: the factory of each device, for "moves".

    Raises:
        SettingError: an unknown rule; a ``Select``; moves of a device whose factory is not said.

    >>> from fedfloor.plan.nodes import Parallel, Train, Work
    >>> star = Parallel(tuple(Train(device(k), Work(epochs=1)) for k in range(20)))
    >>> count(star, "device up and down"), count(star, "moves", [0] * 20)
    (40, 80)
    """
    if rule != MOVES and rule not in RULES:
        raise unknown("rule to count models by", rule, [*RULES, MOVES])
    if any(True for _ in visit_order.selects(plan)):
        raise visit_order.unresolved()
    if rule != MOVES:
        per_visit, per_group = RULES[rule]
        groups = _Groups()
        groups.over(plan, RoundContext(0, 0))
        return per_visit * sum(walk.visits(plan).values()) + per_group * groups.many
    strange = [k for k in walk.devices(plan) if not 0 <= k < len(factory_of)]
    if strange:
        raise SettingError(f"device {min(strange)}: factory_of says the factory of {len(factory_of)} devices.")
    moves = _Moves(factory_of)
    moves.go(moves.over(plan, RoundContext(0, 0), packet={"at": CLOUD}).packet, CLOUD)
    return moves.links


class _Groups(Dry):
    """Counts the branches that meet at the cloud and are more than one visit."""

    many = 0

    def parallel(self, request: ParallelRequest) -> NodeResult:
        if request.node.at == CLOUD:
            self.many += sum(not isinstance(child, Train) for child in request.node.children)
        return super().parallel(request)


class _Moves(Dry):
    """Counts the links that copies take; the packet of this walk is where it stands."""

    def __init__(self, factory_of: Sequence[int]) -> None:
        self.factory_of = factory_of
        self.links = 0

    def go(self, packet: Packet, to: Site) -> Packet:
        self.links += _links(packet["at"], to, self.factory_of)
        return {"at": to}

    def train(self, request: TrainRequest) -> tuple[Packet, Receipt] | None:
        done = super().train(request)
        return done and (self.go(request.packet, request.node.site), done[1])

    def broadcast(self, request: BroadcastRequest) -> None:
        for k in request.node.devices:
            self.go(request.packet, device(k))

    def parallel(self, request: ParallelRequest) -> NodeResult:
        there = self.go(request.packet, request.node.at)
        done = [self.branch(one, request._replace(packet=there)) for one in request.branches()]
        for one in done:
            self.go(one.packet, request.node.at)
        return joined(request, there, done)


def _links(start: Site, end: Site, factory_of: Sequence[int]) -> int:
    """Return how many links of the tree cloud – edges – devices lie between two sites."""
    one, other = (_above(site, factory_of) for site in (start, end))
    return len(one) + len(other) - 2 * sum(site in other for site in one)


def _above(site: Site, factory_of: Sequence[int]) -> list[Site]:
    """Return a site and those above it, up to the cloud."""
    own = [edge(factory_of[site.index])] if site.kind == "device" else []
    return [site, *own, *([] if site == CLOUD else [CLOUD])]
