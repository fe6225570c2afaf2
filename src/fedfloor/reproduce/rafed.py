"""The figures of RaFed about allocation (its Section IV), as data.

Gao, Zhao, Min, Ni, Jiang, "Resource Allocation for Latency-aware Federated Learning in Industrial Internet-of-Things".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from fedfloor.reproduce import schemes
from fedfloor.reproduce.schemes import Drawn
from fedfloor.reproduce.study import Contender, Point, Scheme, Study
from fedfloor.solvers.allocation.problem import Problem, only_level

PAPER = "RaFed (Gao et al.)"
CLEAN = 1e-4  # γ at which devices hardly disturb each other
SIZES = (1, 2, 4, 6, 8, 10, 15, 20, 25, 30, 35, 40)
DEADLINES = (0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
DEADLINE = 1.5
CHANNELS = (1, 2, 4, 6, 8, 12, 16)
DEVICES = (10, 20, 40, 80, 120, 160)

READINGS = (
    "devices, channels and powers as in profile 'rafed'; parks of other sizes, and every figure, draw them by the park's "
    "seed: distances U(2, 50) m, directions uniform",
    "RaFed is Algorithm 1 with its errors mended: each device in turn takes the choice of least cost, until a sweep gains "
    "nothing. The paper starts at random and does not say how; where nothing else is said: from one random device",
    "q-FFL: a random set of N/2 devices with random channels and powers; FEDL: a random set of N/2 devices, channels and "
    "powers by the same sweeps, the set kept, ties by the sum of ln t; FedCS: its greedy choice under a deadline of "
    f"{DEADLINE:g} s by computing and uploading alone, random channels, full power; Native: everybody, random channels, "
    "full power. The paper says nothing of sizes and deadlines",
    "lower by: per park 1 − ratio of the medians over the draws; its mean and the half width of its 95 % interval "
    "(Student's t) over the parks, which are also what the intervals of means are over",
)


def _rafed(label: str, role: str = "", **settings: object) -> Contender:
    return Contender(label, {"": partial(schemes.algorithm, **settings)}, role=role)  # type: ignore[arg-type]


RAFED = _rafed("RaFed, Algorithm 1", "rafed", start=1)
OURS = Contender("search (ours)", {"": schemes.ours}, role="ours", random=False)
NATIVE = Contender("Native", {"": schemes.native})


def _sized(scheme: object, sizes: Iterable[int]) -> dict[str, Scheme]:
    return {f"|S| = {size}": partial(scheme, size=size) for size in sizes}  # type: ignore[operator]


def _fedcs(deadlines: Iterable[float]) -> dict[str, Scheme]:
    return {f"T = {one:g} s": partial(schemes.fedcs, deadline_s=one) for one in deadlines}


def rivals(point: Point) -> tuple[Contender, ...]:
    """Return RaFed, our search and what they are compared with, one setting of each."""
    half = (max(1, point.devices // 2),)
    return (
        RAFED, OURS, Contender("q-FFL", _sized(schemes.qffl, half), 28.2),
        Contender("FEDL", _sized(schemes.fedl, half), 29.9), Contender("FedCS", _fedcs((DEADLINE,)), 15.8),
    )  # fmt: skip


def everything(point: Point) -> tuple[Contender, ...]:
    """Return the contenders of Fig. 3: also from other starts, and at their best settings."""
    sizes = [size for size in SIZES if size <= point.devices]
    return (
        *rivals(point)[:2], _rafed("RaFed, ties by Σ ln t (ours)", start=1, ties="log"),
        _rafed("RaFed from a random half"),
        *rivals(point)[2:], Contender("q-FFL, best size", _sized(schemes.qffl, sizes), 28.2),
        Contender("FEDL, best size", _sized(schemes.fedl, sizes), 29.9),
        Contender("FedCS, best deadline", _fedcs(DEADLINES), 15.8), NATIVE,
    )  # fmt: skip


def at_level(problem: Problem, rng: np.random.Generator, scheme: Scheme, level: int) -> Drawn:
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


READ = {
    "γ = 1": {}, "γ = 0.1": {"threshold": 0.1}, "γ = 0.01": {"threshold": 0.01}, "γ = 0.0001": {"threshold": CLEAN},
    "γ = 1, fading interferers": {"reception": "exact"},
    "γ = 0.0001, fading interferers": {"threshold": CLEAN, "reception": "exact"},
    "γ = 1, path loss B": {"path_loss": "B"}, "γ = 0.0001, path loss B": {"threshold": CLEAN, "path_loss": "B"},
    "γ = 1, 2.4 GHz": {"carrier_hz": 2.4e9},
}  # fmt: skip
TWO = (("γ = 1", 1.0), ("γ = 0.0001", CLEAN))


def _points(counts: Iterable[int], thresholds: Iterable[tuple[str, float]] = TWO) -> tuple[Point, ...]:
    return tuple(
        Point(f"{words}, {count} devices", count, {"threshold": value})
        for words, value in thresholds
        for count in counts
    )


def studies() -> tuple[Study, ...]:
    """Return the figures about allocation."""
    over = tuple(
        Point(f"{words}, {c} channel{'s' * (c > 1)}", 40, {"threshold": value, "channels": c})
        for words, value in TWO for c in CHANNELS
    )  # fmt: skip
    swapped = "the text speaks of Figs. 6 and 7 the other way round; here they are as their captions say"
    return (
        Study("rafed-fig3", "training latency of different methods", f"{PAPER}, Fig. 3",
              tuple(Point(key, 40, radio) for key, radio in READ.items()), everything, READINGS),
        Study("rafed-fig5", "training latency against available channels", f"{PAPER}, Fig. 5", over, rivals, READINGS),
        Study("rafed-fig6", "training latency with and without power allocation", f"{PAPER}, Fig. 6",
              _points(DEVICES, TWO[:1]), powers, (*READINGS, swapped)),
        Study("rafed-fig7", "training latency against available devices", f"{PAPER}, Fig. 7",
              _points(DEVICES), rivals, (*READINGS, swapped)),
        Study("rafed-fig8", "active devices against available devices", f"{PAPER}, Fig. 8",
              _points(DEVICES), own, READINGS),
    )  # fmt: skip
