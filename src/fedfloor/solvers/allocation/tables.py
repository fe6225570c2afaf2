"""The problem as the compiled kernels read it: every device's usable levels in ascending received power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.solvers.allocation.problem import SILENT, Allocation, Floats, Integers, Problem

Data = tuple[Floats, Floats, Floats, Integers, float, bool, Floats, Floats]  # see kernels.data
Terms = tuple[float, float, float, Floats, Floats]  # μ, λ, weight of the divergence, counts [N, F], target [F]


@dataclass(frozen=True, eq=False)
class Tables:
    """Arrays for kernels; level m of device i is the m-th weakest that it may use.

    Args:
        compute: [N].
        power: received power in units of the noise, ascending [N, P]; entries from ``count`` on mean nothing.
        log_airtime: [N, P].
        count: usable levels [N].
        original: the level's number in the problem [N, P].
        threshold: γ.
        fading: interferers fade too (``reception="exact"``).
    """

    compute: Floats
    power: Floats
    log_airtime: Floats
    count: Integers
    original: Integers
    threshold: float
    fading: bool

    def allocation(self, channel: Integers, rank: Integers) -> Allocation:
        """Return the allocation for levels given by their rank."""
        at = np.arange(len(rank))
        return Allocation(channel.copy(), np.where(channel == SILENT, 0, self.original[at, rank]))

    def ranks(self, allocation: Allocation) -> Integers:
        """Return an allocation's levels as ranks [N]."""
        return np.asarray((self.original == allocation.level[:, None]).argmax(1), np.int64)


def terms(problem: Problem) -> Terms:
    """Return the cost's other factors as the kernels take them: μ, λ, w, counts, target."""
    weight = problem.divergence_weight
    counts = problem.counts if weight > 0 and problem.counts is not None else np.zeros((problem.devices, 1))
    target = problem.target if weight > 0 and problem.target is not None else np.ones(1)
    return problem.iterations_scale, problem.iterations_offset, weight, counts, target


def tables(problem: Problem) -> Tables:
    """Sort the levels: by received power, of equal ones the shorter airtime first."""
    refused = ~problem.allowed
    order = np.lexsort((problem.airtime_s, problem.received_w, refused), axis=1)
    return Tables(
        problem.compute_s,
        np.take_along_axis(problem.received_w, order, 1) / problem.noise_w,
        np.log(np.take_along_axis(problem.airtime_s, order, 1)),
        problem.allowed.sum(1).astype(np.int64),
        order.astype(np.int64),
        problem.threshold,
        problem.reception == "exact",
    )
