"""The figures of RaFed about allocation (its Section IV), as data.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedfloor.solvers.allocation.problem import AllocationProblem, only_level
from fedfloor.solvers.allocation.solve import Ties
from papers import schemes
from papers.allocation import Contender, Point, Scheme, Study
from papers.schemes import Drawn

PAPER = "RaFed (Gao et al.)"
CLEAN = 1e-4  # γ at which devices hardly disturb each other
PRINTED = {"q-FFL": 28.2, "FEDL": 29.9, "FedCS": 15.8}  # by how many per cent RaFed is below them
SIZES = (1, 2, 4, 6, 8, 10, 15, 20, 25, 30, 35, 40)
DEADLINES = (0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
DEADLINE = 1.5
CHANNELS = (1, 2, 4, 6, 8, 12, 16)
DEVICES = (10, 20, 40, 80, 120, 160)

READINGS = (
    "devices, channels and powers are as profile 'rafed' says; park s has the devices of devices = N, seed = s",
    "RaFed is Algorithm 1 with its errors mended: each device in turn takes the choice of least cost, until a sweep "
    "gains nothing. It starts from one random device unless the scheme's name says otherwise; the paper starts at "
    "random, and does not say how",
    "q-FFL and FEDL: random sets of N/2 devices, channels and powers by the same sweeps with the set kept, ties by "
    "Σ ln t. The paper says of both that they do not select devices, and of their lead on FedCS that allocating the "
    "radio brings it; they differ in what they train, and here in the draw alone. At random: a set of N/2, random "
    "channels and powers. FedCS: its greedy choice by computing and uploading alone under a deadline of "
    f"{DEADLINE:g} s, random channels, full power. Native: everybody, random channels, full power. The paper names no "
    "sizes and no deadline",
    "lower by: per park 1 − the ratio of the medians over the draws, then the mean over the parks",
)


def _rafed(label: str, role: str = "", start: int | None = None, ties: Ties = "none") -> Contender:
    return Contender(label, {"": partial(schemes.algorithm, start=start, ties=ties)}, role=role)


RAFED = _rafed("RaFed, Algorithm 1", "rafed", start=1)
OURS = Contender("search (ours)", {"": schemes.ours}, role="ours", random=False)
NATIVE = Contender("Native", {"": schemes.native})


def _sized(scheme: Callable[..., Drawn], sizes: Iterable[int]) -> dict[str, Scheme]:
    return {f"{size} devices": partial(scheme, size=size) for size in sizes}


def _fedcs(deadlines: Iterable[float]) -> dict[str, Scheme]:
    return {f"{one:g} s": partial(schemes.fedcs, deadline_s=one) for one in deadlines}


def rivals(point: Point) -> tuple[Contender, ...]:
    """Return RaFed, our search and what they are compared with, one setting of each."""
    half = (max(1, point.devices // 2),)
    return (
        RAFED,
        OURS,
        Contender("q-FFL", _sized(schemes.allocated, half)),
        Contender("FEDL", _sized(schemes.allocated, half)),
        Contender("FedCS", _fedcs((DEADLINE,))),
        Contender("at random", _sized(schemes.scattered, half)),
    )


def everything(point: Point) -> tuple[Contender, ...]:
    """Return the contenders of Fig. 3: also from other starts, and at their best settings."""
    sizes = [size for size in SIZES if size <= point.devices]
    single = [replace(one, paper=PRINTED.get(one.label)) for one in rivals(point)]
    best = (
        Contender("q-FFL, best size", _sized(schemes.allocated, sizes), PRINTED["q-FFL"]),
        Contender("FEDL, best size", _sized(schemes.allocated, sizes), PRINTED["FEDL"]),
        Contender("FedCS, best deadline", _fedcs(DEADLINES), PRINTED["FedCS"]),
    )
    other = (_rafed("RaFed, ties by Σ ln t (ours)", start=1, ties="log"), _rafed("RaFed from a random half"))
    return (*single[:2], *other, *single[2:], *best, NATIVE)


def at_level(problem: AllocationProblem, rng: np.random.Generator, scheme: Scheme, level: int) -> Drawn:
    """Return a scheme's latency where everybody has one power: RaFed-min is level 0, RaFed-max level −1."""
    return scheme(only_level(problem, level), rng)


def powers(point: Point) -> tuple[Contender, ...]:  # noqa: ARG001
    """Return RaFed and our search, with all powers and with one."""
    found = []
    for name, label, one in (("RaFed", "RaFed, Algorithm 1", RAFED), ("ours", "search (ours)", OURS)):
        found.append(Contender(label, one.tried, role=one.role, random=one.random))
        for suffix, level in (("min, 0 dBm", 0), ("max, 20 dBm", -1)):
            tried = {"": partial(at_level, scheme=one.tried[""], level=level)}
            found.append(Contender(f"{name}-{suffix}", tried, random=one.random))
    return tuple(found)


def own(point: Point) -> tuple[Contender, ...]:  # noqa: ARG001
    """Return RaFed and our search."""
    return RAFED, OURS


READ: Mapping[str, dict[str, Any]] = {
    "γ = 1": {}, "γ = 0.1": {"threshold": 0.1}, "γ = 0.01": {"threshold": 0.01}, "γ = 0.0001": {"threshold": CLEAN},
    "γ = 1, fading interferers": {"reception": "exact"},
    "γ = 0.0001, fading interferers": {"threshold": CLEAN, "reception": "exact"},
    "γ = 1, path loss B": {"path_loss": "B"}, "γ = 0.0001, path loss B": {"threshold": CLEAN, "path_loss": "B"},
    "γ = 1, 2.4 GHz": {"carrier_hz": 2.4e9},
}  # fmt: skip
STRONG = (("γ = 1", 1.0), ("γ = 0.1", 0.1))
THRESHOLDS = (*STRONG, ("γ = 0.0001", CLEAN))


def _points(counts: Iterable[int], thresholds: Iterable[tuple[str, float]] = THRESHOLDS) -> tuple[Point, ...]:
    return tuple(
        Point(f"{words}, {count} devices", count, {"threshold": value})
        for words, value in thresholds
        for count in counts
    )


def studies() -> tuple[Study, ...]:
    """Return the figures about allocation."""
    over = tuple(
        Point(f"{words}, {c} channel{'s' * (c > 1)}", 40, {"threshold": value, "channels": c})
        for words, value in THRESHOLDS for c in CHANNELS
    )  # fmt: skip
    swapped = "the text speaks of Figs. 6 and 7 the other way round; here they are as their captions say"
    return (
        Study("rafed-fig3", "training latency of different methods", f"{PAPER}, Fig. 3",
              tuple(Point(key, 40, radio) for key, radio in READ.items()), everything, READINGS),
        Study("rafed-fig5", "training latency against available channels", f"{PAPER}, Fig. 5", over, rivals, READINGS),
        Study("rafed-fig6", "training latency with and without power allocation", f"{PAPER}, Fig. 6",
              _points(DEVICES, STRONG), powers, (*READINGS, swapped)),
        Study("rafed-fig7", "training latency against available devices", f"{PAPER}, Fig. 7",
              _points(DEVICES), rivals, (*READINGS, swapped)),
        Study("rafed-fig8", "active devices against available devices", f"{PAPER}, Fig. 8",
              _points(DEVICES), own, READINGS),
    )  # fmt: skip
