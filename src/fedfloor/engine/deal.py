"""Dealing branches to ranks."""

from __future__ import annotations

from collections.abc import Sequence


def deal(costs: Sequence[int], ranks: int) -> list[range]:
    """Deal branches to ranks in contiguous runs whose largest cost is as small as it can be.

    Args:
        costs: mini-batches of each branch.
        ranks: number of ranks.

    >>> deal([1, 1, 1, 1, 1], 2)
    [range(0, 3), range(3, 5)]
    >>> deal([5, 1, 1, 1], 3)
    [range(0, 1), range(1, 4), range(4, 4)]
    """
    low, high = max(costs, default=0), sum(costs)
    while low < high:  # the smallest load under which first-fit needs no more runs than there are ranks
        middle = (low + high) // 2
        low, high = (low, middle) if len(_runs(costs, middle)) <= ranks else (middle + 1, high)
    runs = _runs(costs, low)
    return runs + [range(len(costs), len(costs))] * (ranks - len(runs))


def _runs(costs: Sequence[int], load: int) -> list[range]:
    runs, start, total = [], 0, 0
    for i, cost in enumerate(costs):
        if i > start and total + cost > load:
            runs.append(range(start, i))
            start, total = i, 0
        total += cost
    return [*runs, range(start, len(costs))]
