"""How long HFedMS's calibration rounds take beside its full ones, and how well few groups keep several ranks busy.

A *round* is all that a run does but evaluation: planning, visits, memory, receipts. The rounds of some periods are done
one after the other on one rank, so that devices come back with what they kept by an earlier extractor; figures are
medians of the ratios within a period. The *ceiling* is how many ranks the groups of a period keep busy at best: chains
are dealt whole, and all wait for the rank that has most of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import made
from fedfloor import models
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Alone, deal
from fedfloor.methods.contract import State
from fedfloor.methods.hfedms import HFedMS
from fedfloor.park.augment import Augmented
from fedfloor.parts.selection.grouping import Log, chosen_groups, groups_of, period_of
from fedfloor.runs.round import Position, step, training

Row = dict[str, object]
SHAPE = (1, 28, 28)
CLASSES = 62
WINDOW = 50
# of a device, and how skewed: about FEMNIST's writers
SAMPLES = 124
SKEW = 0.3
# the paper's
DEVICES = 368
SHARE = 0.3
RANKS = (2, 4, 8)
EARLY = 5  # rounds of the first period, which has the fewest groups


@dataclass(frozen=True)
class Case:
    """A workload.

    Args:
        name: as it is printed.
        model: the network.
        devices: of the park.
        groups: that they form.
        share: κ, of the groups, drawn in a period.
        period: T.
        warm: periods that are not timed. With κ < 1 devices come back with extractors of many periods, in time.
    """

    name: str
    model: str
    devices: int = 12
    groups: int = 2
    share: float = 1.0
    period: int = 5
    warm: int = 1


CASES = (
    Case("HFedMS CNN", "cnn-hfedms"), Case("LeNet", "lenet", devices=60),
    Case("HFedMS CNN, κ = 0.3", "cnn-hfedms", devices=40, groups=10, share=SHARE, warm=10),
)  # fmt: skip


def measure(cases: Sequence[Case], periods: int, said: Callable[[str], None]) -> list[Row]:
    """Measure cases and return one row for each.

    Args:
        cases: what to measure.
        periods: timed.
        said: told what is being measured.
    """
    torch.set_num_threads(1)
    keep_memory()
    rows = []
    for case in cases:
        said(f"{case.name}: {periods} periods of {case.period} rounds")
        with TemporaryDirectory() as folder:
            rows.append(figures(case, times(case, periods, Path(folder))))
    return rows


def figures(case: Case, found: Sequence[Sequence[float]]) -> Row:
    """Return a case's row.

    Args:
        case: which.
        found: seconds of each round, period by period.
    """

    def to_full(pick: Callable[[Sequence[float]], float]) -> float:
        return round(statistics.median(pick(one[1:]) / one[0] for one in found), 3)

    visits = chosen_groups(case.share, case.groups) * (case.devices // case.groups)
    return {
        "case": case.name,
        "parameters": models.count(case.model, SHAPE, CLASSES),
        "full_visit_ms": round(1e3 * statistics.median(one[0] for one in found) / visits, 2),
        "calibration_to_full": to_full(statistics.mean),
        "first_to_full": to_full(lambda rest: rest[0]),
        "others_to_full": to_full(lambda rest: statistics.mean(rest[1:])),
        **{f"ceiling_{size}": ceiling(size) for size in RANKS},
        **{f"first_ceiling_{size}": ceiling(size, EARLY) for size in RANKS},
    }


def ceiling(size: int, rounds: int = 500) -> float:
    """Return how many of so many ranks are busy at best in the paper's first rounds: Σ_r g_r·L_r / Σ_r ⌈g_r/ranks⌉·L_r.

    g_r groups of L_r devices train in round r.

    >>> ceiling(2) > 1.9, ceiling(1)
    (True, 1.0)
    """
    work = 0.0
    wait = 0.0
    for number in range(1, rounds + 1):
        groups = groups_of(Log(2.0, 10), period_of(number, 5), DEVICES)
        each = DEVICES // groups
        shares = deal([each] * chosen_groups(SHARE, groups), size)
        work += each * sum(map(len, shares))
        wait += each * max(map(len, shares))
    return round(work / wait, 3)


def times(case: Case, periods: int, folder: Path) -> list[list[float]]:
    """Return the seconds of each round, period by period; the first ones, ``warm`` of them, are left out.

    Args:
        case: which.
        periods: timed.
        folder: where devices keep what they keep.
    """
    park = replace(made.park(SHAPE, CLASSES, case.devices, SAMPLES, 2, SKEW), stream=Augmented(WINDOW))
    method = HFedMS(period=case.period, share=case.share, growth=Log(0.0, case.groups))
    network = models.build(case.model, SHAPE, CLASSES, seed=0)
    engine = Engine(park, network, Alone(), DeviceMemory(folder), seed=0)
    setup = training(method, engine, 500)
    point = Position(state=State(setup.start))
    found: list[list[float]] = []
    for number in range(1, (case.warm + periods) * case.period + 1):
        began = time.perf_counter()
        point, _ = step(setup, point)
        if (number - 1) % case.period == 0:
            found.append([])
        found[-1].append(time.perf_counter() - began)
    return found[case.warm :]
