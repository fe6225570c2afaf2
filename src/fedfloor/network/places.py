"""What is known of a plan before it is walked: its visits and who interferes with them, and where a packet goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fedfloor.errors import SettingError
from fedfloor.network.air import Place
from fedfloor.plan import walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Repeat, Select, Site, Train
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Dry, Packet, Round, Visit

Carries = Callable[[Probe], bool]


def surveyed(plan: Node, carry: Carries) -> tuple[dict[int, int], set[int], bool]:
    """Return what a plan has: how many visits in each node, whom it names, and whether :func:`pulled` matters to it.

    A node that stands in a plan twice is looked at once.

    Args:
        plan: what is walked.
        carry: whether the model goes along with a question.

    Returns:
        id of a node → how many visits it makes, for all but visits; the devices that are named; whether visits train a
        part of the model, or devices are left with all of it.

    Raises:
        SettingError: there is a ``Select``.
    """
    inside: dict[int, int] = {}
    named: set[int] = set()
    parts = False

    def go(node: Node) -> int:
        nonlocal parts
        if isinstance(node, Train):
            if not node.work.sends:
                raise SettingError("visits that send nothing have no price. Leave [network] out.")
            if node.work.scope != "all":
                parts = True
            if node.site.kind == "device":
                named.add(node.site.index)
            return 1
        found = inside.get(id(node))
        if found is None:
            if isinstance(node, Select):
                raise walk.unresolved()
            if isinstance(node, (Broadcast, Probe)):
                named.update(node.devices)
                parts = parts or _leaves(node, carry)
            found = sum(map(go, walk.children(node))) * (node.times if isinstance(node, Repeat) else 1)
            inside[id(node)] = found
        return found

    go(plan)
    return inside, named, parts


def pulled(plan: Node, holders: frozenset[int], carry: Carries) -> tuple[frozenset[int], frozenset[int]]:
    """Return the visits whose device has to pull the frozen part first, and who holds that part after the plan.

    The frozen part is what a visit of a part of the model leaves as it is. A device holds it as it is now from when it
    is handed or asked with the whole model, or has pulled it, until a visit trains the whole model, or such models
    meet: then nobody does. That goes by the order of the plan, not by simulated time; visits are numbered by it.

    Args:
        plan: what is walked.
        holders: the devices that hold the frozen part before it.
        carry: whether the model goes along with a question.
    """
    pulls, held, visits = list[int](), set(holders), 0

    def go(node: Node) -> bool:
        """Go through a node; return whether it trains the whole model."""
        nonlocal visits
        if isinstance(node, Train):
            if node.work.scope == "all":
                held.clear()
            elif node.site.kind == "device" and node.site.index not in held:
                held.add(node.site.index)
                pulls.append(visits)
            visits += 1
            return node.work.scope == "all"
        if isinstance(node, (Broadcast, Probe)) and _leaves(node, carry):
            held.update(node.devices)
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        changed = sum(go(child) for child in turns) > 0  # not any(), which would stop at the first
        if changed and isinstance(node, Parallel):  # what a branch handed out is not what they make together
            held.clear()
        return changed

    go(plan)
    return frozenset(pulls), frozenset(held)


def _leaves(node: Broadcast | Probe, carry: Carries) -> bool:
    """Say whether devices are left with the whole model."""
    return node.scope == "all" if isinstance(node, Broadcast) else carry(node)


def placed(
    plan: Node, round_number: int, tick: int, numbered: Sequence[int] | None = None
) -> list[tuple[Train, tuple[Train, ...], Place]]:
    """Return every visit in plan order with those that interfere with it, and (round, tick, device, visit).

    The engine numbers visits the same way, so that both draw the same chance; but where branches of a ``Parallel``
    chose the same device, none of them counted the others' visits, which the resolved plan does not tell.

    Args:
        plan: without ``Select`` nodes.
        round_number, tick: where it begins.
        numbered: the visits' numbers, from the receipts; counted here where they are left out.
    """
    walked = _Visits()
    walked.over(plan, Round(0, round_number, beside=True), tick)
    numbers = [one.key.visit for one in walked.found] if numbered is None else numbered
    return [
        (one.node, one.beside, replace(one.key, visit=number).place())
        for one, number in zip(walked.found, numbers, strict=True)
    ]


class _Visits(Dry):
    def __init__(self) -> None:
        self.found: list[Visit] = []

    def visit(self, asked: Visit) -> tuple[Packet, Receipt] | None:
        self.found.append(asked)
        return super().visit(asked)


def first_stop(node: Node, at: Site) -> Site | None:
    """Return where a packet that stands at ``at`` goes first, or None where the node does not matter to it.

    Asking and handing out take place from where the packet stands: it stays there.
    """
    if isinstance(node, Train):
        return node.site
    if isinstance(node, Parallel):
        return node.at
    if isinstance(node, (Broadcast, Probe)):
        return at
    return next((site for child in walk.children(node) if (site := first_stop(child, at)) is not None), None)


def first_scope(node: Node) -> str:
    """Return the scope of the first visit in a node, ``"all"`` where there is none."""
    return _scope(node) or "all"


def _scope(node: Node) -> str | None:
    if isinstance(node, Train):
        return node.work.scope
    return next((scope for child in walk.children(node) if (scope := _scope(child)) is not None), None)
