"""How many models a round sends, as a given paper counts them, beside the true moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fedfloor.errors import SettingError, unknown
from fedfloor.plan import walk
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Repeat, Select, Site, Train, device, edge

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

    >>> from fedfloor.plan.nodes import Work
    >>> star = Parallel(tuple(Train(device(k), Work(epochs=1)) for k in range(20)))
    >>> count(star, "device up and down"), count(star, "moves", [0] * 20)
    (40, 80)
    """
    if rule != MOVES and rule not in RULES:
        raise unknown("rule to count models by", rule, [*RULES, MOVES])
    if walk.fold(plan, lambda at, below: isinstance(at, Select) or any(below)):
        raise SettingError("the plan has a Select: whom it visits is known only once it is resolved.")
    if rule != MOVES:
        per_visit, per_group = RULES[rule]
        return per_visit * sum(walk.visits(plan).values()) + per_group * _groups(plan)
    strange = [k for k in walk.devices(plan) if not 0 <= k < len(factory_of)]
    if strange:
        raise SettingError(f"device {min(strange)}: factory_of says the factory of {len(factory_of)} devices.")
    moves, end = _moves(plan, CLOUD, factory_of)
    return moves + _links(end, CLOUD, factory_of)


def _groups(plan: Node) -> int:
    def groups(at: Node, below: list[int]) -> int:
        if isinstance(at, Repeat):
            return at.times * below[0]
        own = isinstance(at, Parallel) and at.at == CLOUD
        return sum(below) + (sum(not isinstance(child, Train) for child in walk.children(at)) if own else 0)

    return walk.fold(plan, groups)


def _moves(node: Node, at: Site, factory_of: Sequence[int]) -> tuple[int, Site]:
    """Return the moves of a packet that comes from ``at``, and where it then is."""
    if isinstance(node, Train):
        return _links(at, node.site, factory_of), node.site
    if isinstance(node, Broadcast):
        return sum(_links(at, device(k), factory_of) for k in node.devices), at
    total = 0
    if isinstance(node, Parallel):
        for child in node.children:
            moves, end = _moves(child, node.at, factory_of)
            total += moves + _links(end, node.at, factory_of)
        return total + _links(at, node.at, factory_of), node.at
    for child in (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node):
        moves, at = _moves(child, at, factory_of)
        total += moves
    return total, at


def _links(start: Site, end: Site, factory_of: Sequence[int]) -> int:
    """Return how many links of the tree cloud – edges – devices lie between two sites."""
    one, other = (_above(site, factory_of) for site in (start, end))
    return len(one) + len(other) - 2 * sum(site in other for site in one)


def _above(site: Site, factory_of: Sequence[int]) -> list[Site]:
    """Return a site and those above it, up to the cloud."""
    own = [edge(factory_of[site.index])] if site.kind == "device" else []
    return [site, *own, *([] if site == CLOUD else [CLOUD])]
