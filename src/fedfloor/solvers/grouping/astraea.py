"""Astraea's mediators: one after the other takes the devices that bring its classes nearest to equal shares."""

from __future__ import annotations

import time

import numpy as np

from fedfloor.solvers.grouping.problem import Integers, Problem, canonical, value
from fedfloor.solvers.solution import Solution, solved


def astraea(problem: Problem) -> Solution[Integers]:
    """Return the groups of greedy mediators.

    A mediator takes, of the devices that are left, k = argmin D_KL(norm(V_m + V_k) ‖ U), with V_m the counts it holds
    and U the uniform distribution over the classes, until it has L of them; then the next one opens. Of equal devices
    it takes the first; one without samples last, as long as it holds none. Duan, Liu, Chen, Tan, Ren, Qiao, Liang,
    "Astraea: Self-balancing Federated Learning for Improving Classification Accuracy of Mobile Deep Learning
    Applications", ICCD 2019, arXiv 1907.01132, Algorithm 3. There a further mediator takes what M leave over; here that
    is left out.

    Args:
        problem: the problem.
    """
    from fedfloor.solvers.grouping import kernels

    began = time.perf_counter()
    choice = np.empty((problem.groups, problem.size), np.int64)
    kernels.mediators(problem.counts, choice)
    choice = canonical(choice)
    return solved(value(problem, choice), 0.0, choice, time.perf_counter() - began)
