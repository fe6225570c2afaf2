"""Branches that nobody walked: the edge that should have is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from fedfloor.engine.passed import Passed
from fedfloor.plan import choice, walk
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Receipt


def absent(node: Node, tick: int, visits: Mapping[int, int], size: Callable[[int], int]) -> Passed:
    """Return what is known of a branch that was not walked: every visit is lost.

    Args:
        node: the branch; a ``Select`` in it stands for the first of its candidates.
        tick: the park's clock.
        visits: how often each device was visited so far in the round.
        size: samples of a device.

    >>> from fedfloor.plan.nodes import Train, Work, device
    >>> absent(Train(device(3), Work(epochs=1)), 0, {}, lambda k: 7).receipts[0].lost
    True
    """
    chosen = tuple(one.candidates[: one.how_many] for one in walk.selects(node))
    known, seen, receipts = choice.resolved(node, iter(chosen)), Counter(visits), []
    for one in walk.in_order(known):
        device = one.site.index if one.site.kind == "device" else -1  # the cloud
        receipts.append(Receipt(device, seen[device], tick, 0, size(device), 0.0, 0.0, 0.0, 0, lost=True))
        seen[device] += 1
    return Passed({}, known, receipts, chosen=chosen)
