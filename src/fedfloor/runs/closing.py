"""Rounds that end before the last visit: after the first results, or at a deadline.

How long visits take is known before they train (:func:`fedfloor.network.price.price`), and so is which of them are
late. Only the others train; the price is that of all visits until the round ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from fedfloor.errors import SettingError
from fedfloor.network.price import Price
from fedfloor.parts.closing import Close
from fedfloor.plan import walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Train
from fedfloor.plan.schedule import Key, is_lost


@dataclass(frozen=True)
class ClosedRound:
    """A round's plan without its late visits.

    Attributes:
        plan: what is carried out.
        late: the devices whose results would come after the round's end, in plan order.
        price: the cost of all visits until then; None without a network, or if none is late.
    """

    plan: Node
    late: tuple[int, ...] = ()
    price: Price | None = None


def closed(
    plan: Node,
    close: Close,
    key: Key,
    loss_chance: float,
    batches: Callable[[Train], int],
    price: Callable[[Node, float], Price] | None,
) -> ClosedRound:
    """Return a round that ends with the first results or at a deadline.

    Args:
        plan: a ``Parallel`` at the cloud of single visits to devices, alone or last in a ``Sequence``.
        key: the key of the round, with any device.
        loss_chance: the probability that a visit is lost; a lost result never arrives.
        batches: visit → its mini-batches, its duration without a network.
        price: (plan, time) → the price until a time in s; None without a network.

    Raises:
        SettingError: the plan has another form, has fewer visits than ``first``, or every visit of round 1 is late.
            A later round without a result leaves the model as it is.
    """
    meeting = _meeting(plan)
    visits = cast("tuple[Train, ...]", meeting.children)
    if close.first is not None and close.first > len(visits):
        raise SettingError(
            f"round.close: first = {close.first}, but only {len(visits)} visits take place in round {key.round}. Lower "
            "it, or let more devices take part."
        )
    ends: Sequence[float] = [float(batches(visit)) for visit in visits] if price is None else _ends(plan, visits, price)
    gone = [is_lost(replace(key, device=walk.number(visit), visit=0), loss_chance) for visit in visits]
    end = _end(ends, gone, close)
    late = [i for i, time in enumerate(ends) if time > end]
    if close.first is not None:
        arrived = sorted((time, i) for i, time in enumerate(ends) if time <= end and not gone[i])
        late += [i for _, i in arrived[close.first :]]  # results at the same time: the first in plan order count
    if len(late) == len(visits) and key.round == 1:
        raise SettingError(
            f"round.close: deadline_s = {close.deadline_s:g} is shorter than every visit of round {key.round}; the "
            f"fastest takes {min(ends):.3g} s. Raise it."
        )
    if not late:
        return ClosedRound(plan)
    kept = [i for i in range(len(visits)) if i not in set(late)]
    devices = tuple(walk.number(visits[i]) for i in sorted(late))
    shorter: Node = replace(meeting, children=tuple(visits[i] for i in kept))
    if not kept:
        shorter = Broadcast(devices)  # the model was sent, and nothing came back in time
    paid = None
    if price is not None:
        paid = replace(price(plan, end), seconds=end, visits=tuple(ends[i] for i in kept))
    return ClosedRound(walk.with_last(plan, shorter), devices, paid)


def _end(ends: Sequence[float], gone: Sequence[bool], close: Close) -> float:
    """Return the time at which a round ends; a lost result takes as long as another one, and does not arrive."""
    end = max(ends)
    if close.first is not None:
        arrivals = sorted(time for time, lost in zip(ends, gone, strict=True) if not lost)
        end = arrivals[close.first - 1] if len(arrivals) >= close.first else end
    return end if close.deadline_s is None else min(end, close.deadline_s)


def _ends(plan: Node, visits: Sequence[Train], price: Callable[[Node, float], Price]) -> Sequence[float]:
    """Return the time at which each result arrives, by the price of the whole plan."""
    whole = price(plan, float("inf"))
    start = max(0.0, whole.seconds - max(whole.visits))  # of the visits, after what precedes them
    return [start + seconds for seconds in whole.visits[-len(visits) :]]


def _meeting(plan: Node) -> Parallel:
    last = walk.last_meeting(plan)
    if last is not None:
        return last
    raise SettingError(
        "round.close needs rounds of parallel visits to single devices that meet at the cloud, such as those of "
        "fedavg. Leave it out, or choose another method."
    )
