"""GBP-CS, the gradient-based binary permutation of FedGS (arXiv 2202.01512, Algorithm 2), with its three starts."""

from __future__ import annotations

import time
from typing import Literal, get_args

import numpy as np

from fedfloor.errors import unknown
from fedfloor.solvers.selection.problem import Floats, Integers, Problem, divergence, value, whole_bound
from fedfloor.solvers.solution import Solution, solved

Start = Literal["mpinv", "zero", "random"]
Trace = list[Integers]


def gbpcs(problem: Problem, init: Start = "mpinv", *, seed: int = 0, trace: Trace | None = None) -> Solution[Integers]:
    """Exchange the two candidates with the steepest opposite gradients for as long as d falls.

    With g = Aᵀ(A x − y), i = argmin of g over x = 0 and j = argmax of g over x = 1: set xᵢ = 1, xⱼ = 0, if
    d(x) = ‖A x − y‖₂ gets smaller; otherwise stop at the x before. Ties: the first candidate.

    Args:
        problem: the problem.
        init: ``mpinv``: the L largest entries of A⁺y (Eq. 14); ``zero``: L warm-up steps; ``random``: any L.
        seed: of the random start.
        trace: takes every choice on the way, the warm-up's too; :func:`curve` says how good they were.

    Raises:
        SettingError: no such start.

    >>> from fedfloor.solvers.selection.problem import Problem
    >>> gbpcs(Problem(np.array([[4.0, 0, 2], [0, 4, 2]]), np.array([5.0, 3]), 2)).choice
    array([0, 2])
    """
    began = time.perf_counter()
    x = start(problem, init, seed=seed, trace=trace)
    A, y = problem.counts, problem.target
    rest = A[:, x].sum(1) - y
    best = rest @ rest
    while 0 < problem.how_many < problem.candidates:
        g = rest @ A
        i = int(np.where(x, np.inf, g).argmin())
        j = int(np.where(x, g, -np.inf).argmax())
        moved = rest + A[:, i] - A[:, j]
        length = moved @ moved
        if not length < best:
            break
        rest, best = moved, length
        x[i], x[j] = True, False
        if trace is not None:
            trace.append(np.flatnonzero(x))
    choice = np.flatnonzero(x)
    return solved(value(problem, choice), whole_bound(problem), choice, time.perf_counter() - began)


def start(problem: Problem, init: Start, *, seed: int = 0, trace: Trace | None = None) -> np.ndarray:
    """Return where the exchanges begin: x, bool [N].

    Args:
        problem, init, seed, trace: as :func:`gbpcs`.

    Raises:
        SettingError: no such start.
    """
    if init not in get_args(Start):
        raise unknown("start of GBP-CS", init, get_args(Start))
    n, k = problem.candidates, problem.how_many
    x = np.zeros(n, np.bool_)
    if init == "zero":
        return _warmed_up(problem, x, trace)
    if init == "mpinv":
        z = np.linalg.pinv(problem.counts, rcond=max(problem.counts.shape) * np.finfo(float).eps) @ problem.target
        x[np.argsort(-z, kind="stable")[:k]] = True
    else:
        x[np.random.default_rng(seed).permutation(n)[:k]] = True
    if trace is not None:
        trace.append(np.flatnonzero(x))
    return x


def _warmed_up(problem: Problem, x: np.ndarray, trace: Trace | None) -> np.ndarray:
    """Set the zero with the smallest gradient to one, L times; the target is that of as many batches as are there.

    With n = Σ y/L samples a batch and c ones: y_c = (n·c + Σ b)·P − b, which is y in the end; y·c/L if P is not known.
    """
    A, k = problem.counts, problem.how_many
    if k == 0:
        return x
    y, b = problem.target, problem.already
    held = np.zeros(y.shape)
    for c in range(k):
        known = problem.share is not None
        target = (y.sum() * c / k + b.sum()) * problem.share - b if known else y * c / k
        g = (held - target) @ A
        i = int(np.where(x, np.inf, g).argmin())
        x[i] = True
        held += A[:, i]
        if trace is not None:
            trace.append(np.flatnonzero(x))
    return x


def curve(problem: Problem, trace: Trace) -> Floats:
    """Return the class divergence (Eq. 6) of every choice on the way, as in the paper's Fig. 3.

    Args:
        problem: the problem.
        trace: what :func:`gbpcs` filled.
    """
    return np.array([divergence(problem, choice) for choice in trace])
