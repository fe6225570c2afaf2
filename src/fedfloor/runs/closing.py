"""Rounds, and meetings at edges, that end before the last visit: after the first results, or at a deadline.

How long visits take is known before they train (:func:`fedfloor.network.price.price`), and so is which of them are
late. Only the others train; the price is that of all visits until they are abandoned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count

from fedfloor.base.errors import SettingError
from fedfloor.network.price import Closing, Price
from fedfloor.park.park import Park
from fedfloor.plan import visit_order, walk
from fedfloor.plan.closing import Close
from fedfloor.plan.flow import Arrival
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Select, Train
from fedfloor.plan.schedule import Key, is_lost
from fedfloor.runs.resolving import ResolvedPlan


@dataclass(frozen=True)
class ClosedRound:
    """A round's plan without its late visits.

    Attributes:
        made: what is carried out.
        late: the devices of late visits, in plan order.
        price: the cost of all visits until they are abandoned; None if none is late.
        arrivals: of results that are neither late nor lost, in the order of their arrival in simulated time; times
            since the round's beginning.
        seconds: the duration of the round in simulated time, s or mini-batches.
    """

    made: ResolvedPlan
    late: tuple[int, ...] = ()
    price: Price | None = None
    arrivals: tuple[Arrival, ...] = ()
    seconds: float = 0.0


def closed(
    made: ResolvedPlan, close: Close, park: Park, key: Key, loss_chance: float,
    price: Callable[[Node, Closing | None], Price],
) -> ClosedRound:  # fmt: skip
    """Return a round whose meetings end with the first results or at a deadline.

    Args:
        key: the key of the round, with any device.
        loss_chance: the probability that a visit is lost; a lost result never arrives.
        price: (plan with all choices made, closing) → its price; without a network its duration in mini-batches.

    Raises:
        SettingError: the plan has no such meetings, has fewer visits than ``first``, or every visit of round 1 is late.
            A later round without a result leaves the model as it is.
    """
    whole = check_form(made, close, park, key.round)
    visits = made.receipts or ()

    def lost(number: int, late: int) -> bool:
        visit = visits[number]
        return is_lost(replace(key, tick=visit.tick, device=visit.device, visit=visit.visit - late), loss_chance)

    paid = price(whole, Closing(close, lost))
    in_time = list[Arrival]()
    late_of = Counter[int]()
    for number, visit in enumerate(visits):
        if number in paid.late:
            late_of[visit.device] += 1
        elif (at := paid.phases.get(number)) is not None and not lost(number, late_of[visit.device]):
            times = (at.departed_s, at.arrived_s, at.received_s, at.trained_s)
            in_time.append(Arrival(visit.device, key.round - 1, *times))
    arrivals = tuple(sorted(in_time, key=lambda one: one.arrived_s))
    if not paid.late:
        return ClosedRound(made, arrivals=arrivals, seconds=paid.seconds)
    if len(paid.late) == len(visits) and key.round == 1:
        raise SettingError(
            f"round.close: deadline_s = {close.deadline_s:g} is shorter than every visit of round {key.round}; the "
            f"fastest takes {min(price(whole, None).visits):.3g} s. Raise it."
        )
    plan, choices = without(made.plan, made.known.choices, paid.late)
    known = made.known._replace(choices=choices)
    late = tuple(visits[number].device for number in sorted(paid.late))
    return ClosedRound(replace(made, plan=plan, known=known), late, paid, arrivals, paid.seconds)


def check_form(made: ResolvedPlan, close: Close, park: Park, number: int) -> Node:
    """Return a resolved plan; raise SettingError unless its meetings can end before their last branch."""
    if made.whole is None:
        raise SettingError(
            "round.close: the plan chooses devices by what is learnt in the round, so that nobody knows before whose "
            "results come first. Leave it out, or choose another method."
        )
    if park.stream.position(0, 0) != park.stream.position(0, 1) and any(
        isinstance(at, Select) and at.reads_census for at, _ in walk.every(made.plan)
    ):
        raise SettingError(
            f"round.close with data.stream.kind = '{park.stream.kind}': late devices keep their samples, and the plan "
            "chooses by the samples of all devices. Choose another stream, such as 'fifo'.",
            key="round.close",
        )
    meetings = [at for at, _ in walk.every(made.whole) if isinstance(at, Parallel) and at.at.kind == close.at]
    if not meetings:
        raise SettingError(
            f"round.close: at = '{close.at}', but no models meet there. Name the other site (at = 'cloud' or 'edge'), "
            "or choose another method, such as 'fedavg' (cloud) or 'hierfavg' (edge)."
        )
    for meeting in meetings:
        for child in meeting.children:
            single = isinstance(child, Train) and child.site.kind == "device"
            if not (single or meets_at_edges(child)):
                raise SettingError(
                    "round.close needs branches that are single visits to devices, or models of edges, such as those "
                    "of fedavg and hierfavg: a chain would be late as a whole. Leave it out, or choose another method.",
                    key="round.close",
                )
    sizes = [len(meeting.children) for meeting in meetings]
    most = min(sizes) if close.at == "cloud" else max(sizes)  # smaller factories wait for all of their devices
    if close.first is not None and close.first > most:
        what = "visits or edges meet" if close.at == "cloud" else "visits meet at an edge"
        raise SettingError(
            f"round.close: first = {close.first}, but only {most} {what} in round {number}. Lower it, or let more "
            "devices take part."
        )
    return made.whole


def meets_at_edges(node: Node) -> bool:
    """Return whether the visits of a node are branches of meetings at edges."""
    if isinstance(node, Parallel):
        return node.at.kind == "edge"
    return not isinstance(node, Train) and all(map(meets_at_edges, walk.children(node)))


def without(
    plan: Node, choices: Sequence[Sequence[int]], late: Collection[int]
) -> tuple[Node, tuple[Sequence[int], ...]]:
    """Return a plan, and its choices of devices, without some visits, which are numbered in plan order.

    A meeting without any visits becomes a broadcast, as the devices have received the model.

    >>> from fedfloor.plan.nodes import Repeat, Work, device
    >>> visits = tuple(Train(device(k), Work(epochs=1)) for k in range(3))
    >>> plan, _ = without(Repeat(2, Parallel(visits), tick=False), (), {1, 5})
    >>> [sorted(walk.visits(turn)) for turn in plan.children]
    [[0, 2], [0, 1]]
    """
    numbers = count()
    made = iter(choices)
    kept = list[Sequence[int]]()

    def shortened(node: Parallel) -> Node:
        below = list[Node]()
        for child in node.children:
            mark = len(kept)
            (one, left) = go(child)
            if left:
                below.append(one)
            else:
                del kept[mark:]
        if not below and node.children:
            return Broadcast(tuple(sorted(walk.devices(node))))
        same = len(below) == len(node.children) and all(a is b for a, b in zip(below, node.children, strict=True))
        return node if same else replace(node, children=tuple(below))

    def go(node: Node) -> tuple[Node, bool]:
        """Return a node without late visits, and whether any visits of it are left, or it has none."""
        if isinstance(node, Train):
            return node, next(numbers) not in late
        if isinstance(node, Select):
            chosen = next(made)
            kept.append(tuple(k for k in chosen if next(numbers) not in late))
            return node, bool(kept[-1])
        if isinstance(node, Parallel):
            short = shortened(node)
            return short, not isinstance(short, Broadcast)
        turns = [go(child) for child, _ in visit_order.turns(node)]
        short = visit_order.rebuilt(node, [turn for turn, _ in turns]) if turns else node
        return short, any(left for _, left in turns) or not turns

    return go(plan)[0], tuple(kept)
