"""How good radio allocations are and how long they take: RaFed's procedure, our search, and what nobody can beat.

Parks as in RaFed's Section IV-A: distances of 2 to 50 m, 21 power levels of 0 to 20 dBm, 250 kHz, 868 MHz, γ = 1, four
channels. The costs are training latencies in seconds. RaFed's figure is the median over ten random starts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedfloor.base.chance import generator
from fedfloor.solvers.allocation.problem import AllocationProblem, clean_bound, verify
from fedfloor.solvers.allocation.solve import Ties, exact, rafed, search

Row = dict[str, object]
STARTS = 10
BAND_HZ = 250e3
CARRIER_HZ = 868e6
LIGHT = 299_792_458.0
NOISE_W = 10 ** ((-114 - 30) / 10) * BAND_HZ / 1e6
UPLOAD_NATS = 25_000.0


@dataclass(frozen=True)
class Case:
    """One park.

    Args:
        devices: N.
        seed: of the park.
        proof_s: how long the exact solver may take; 0: it is left out.
        rafed: also run RaFed's procedure.
    """

    devices: int
    seed: int
    proof_s: float = 0.0
    rafed: bool = False

    @property
    def name(self) -> str:
        """N and seed, such as ``40-0``."""
        return f"{self.devices}-{self.seed}"


CASES = (
    *(Case(40, seed, proof_s=60.0, rafed=True) for seed in range(5)),
    Case(160, 0, proof_s=60.0, rafed=True),
    Case(1000, 0, proof_s=60.0),
    Case(10_000, 0),
)


def park(devices: int, seed: int, channels: int = 4) -> AllocationProblem:
    """Return a park with RaFed's settings.

    Args:
        devices: N.
        seed: of distances, processors and data.
        channels: C.
    """
    rng = generator(seed, "allocation", devices)
    distance = rng.uniform(2, 50, devices)
    bits = 8e6 * rng.uniform(5, 10, devices)
    compute = rng.uniform(10, 30, devices) * bits / rng.uniform(1e9, 2e9, devices)
    watts = 10 ** ((np.arange(21) - 30) / 10)
    received = watts * (LIGHT / (4 * math.pi * CARRIER_HZ * distance**3.76))[:, None]
    airtime = UPLOAD_NATS / (BAND_HZ * np.log1p(received / NOISE_W))
    return AllocationProblem(compute, airtime, received, NOISE_W, 1.0, channels)


def measure(only: str, repeats: int, said: Callable[[str], None]) -> list[Row]:
    """Measure the cases whose name holds a text and return a row for each.

    Args:
        only: the text.
        repeats: searches that are timed; the median counts, after one that compiles.
        said: told what is being measured.
    """
    search(park(8, 0), proposals=100)
    rows = []
    for case in CASES:
        if only in case.name:
            said(f"{case.devices} devices, seed {case.seed}")
            rows.append(row(case, repeats))
    return rows


def row(case: Case, repeats: int) -> Row:
    """Return one park's row."""
    problem = park(case.devices, case.seed)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = search(problem)
        times.append(time.perf_counter() - began)
        verify(problem, found)
    best = exact(problem, case.proof_s) if case.proof_s else found
    return {
        "park": case.name,
        "rafed_s": _rafed(problem, "none") if case.rafed else None,
        "rafed_ties_s": _rafed(problem, "log") if case.rafed else None,
        "search_s": round(found.value, 4),
        "active": int(found.choice.active.size),
        "search_ms": round(1e3 * statistics.median(times), 1),
        "clean_bound_s": round(clean_bound(problem), 4),
        "bound_s": round(found.bound, 4),
        "gap": round(found.gap, 4),
        "exact_s": round(best.value, 4) if case.proof_s else None,
        "proven": best.status == "optimal",
        "proof_s": round(best.seconds, 2) if case.proof_s else None,
    }


def _rafed(problem: AllocationProblem, ties: Ties) -> float:
    values = [rafed(problem, generator(0, "start", one), ties=ties).value for one in range(STARTS)]
    return round(statistics.median(values), 4)
