"""Figures read off runs, beside the printed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.park.park import Park
from fedfloor.plan import walk
from fedfloor.plan.drivers import Dry
from fedfloor.plan.nodes import Node, Parallel
from fedfloor.plan.schedule import NodeResult, ParallelRequest, RoundContext
from fedfloor.report import ledger
from fedfloor.report.groups import half_width, values
from fedfloor.report.ledger import RecordedRun, privacy
from fedfloor.report.table import rounds_to
from fedfloor.runs import forecast
from fedfloor.runs.parks import build_park
from fedfloor.tasks.figures import ACCURACY, LOSS
from papers.cells import Accuracy, Cell, Divergence, Epsilon, Figure, Loss, Rounds, Spent
from papers.count import count
from papers.work import Reproduction


def class_divergence(run: RecordedRun) -> float:
    """Return ‖Σ counts/Σ total − P‖₂, the mean over the super nodes of a run's first round.

    Li et al. (FedGS), arXiv 2202.01512, Eq. 6. Of one-shot streams, whose windows do not hang on what was trained.
    """
    experiment = config.read(run.folder / "experiment.toml")
    park = build_park(experiment)
    known = forecast.first_round(experiment, park)
    true = replace(park, census_epsilon=None)
    return float(np.mean([_apart(true, node, tick) for node, tick in super_nodes(known, 0)]))


def super_nodes(node: Node, tick: int) -> list[tuple[Parallel, int]]:
    """Return the meetings at edges of a resolved plan, and when they are."""
    found = _Met()
    found.over(node, RoundContext(0, 1), tick)
    return found.at_edges


class _Met(Dry):
    def __init__(self) -> None:
        self.at_edges: list[tuple[Parallel, int]] = []

    def parallel(self, request: ParallelRequest) -> NodeResult:
        if request.node.at.kind == "edge":
            self.at_edges.append((request.node, request.tick))
        return super().parallel(request)


def _apart(park: Park, node: Parallel, tick: int) -> float:
    devices = sorted(walk.devices(node))
    counts = park.census(devices, tick, [0] * len(devices)).sum(0)
    return float(np.linalg.norm(counts / counts.sum() - park.distribution))


DIVERGED = "diverged"
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Measured:
    """A figure of a cell.

    Args:
        value: mean over the seeds; None where there is none.
        half_width: of its 95 % interval; None with one seed.
        seeds: that it was taken from.
        note: why there is none, or what is not as it should be.
        by_seed: the value of each of them, where there are several.
    """

    value: float | None = None
    half_width: float | None = None
    seeds: tuple[int, ...] = ()
    note: str = ""
    by_seed: tuple[float, ...] = ()


def rows(what: Reproduction, ends: Mapping[Path, str]) -> list[dict[str, Any]]:
    """Return the table: a row of JSON scalars per figure, the paper's beside the measured one.

    Args:
        what: the table as it was asked for.
        ends: folders of runs → why they stopped.
    """
    found = []
    for cell in what.cells:
        runs = read(what, cell)
        done = None
        if runs:
            done = min(run.rounds[-1].round for run in runs)
        for figure in cell.figures:
            got = _measured(what, cell, figure, runs, ends)
            both = got.value is not None and figure.paper is not None
            found.append(
                {"task": cell.task, "setting": cell.setting, "method": cell.label}
                | {"figure": figure.label(what.rounds), "paper": figure.paper}
                | {"measured": got.value, "half_width": got.half_width}
                | {"difference": got.value - figure.paper if both else None}  # type: ignore[operator]
                | {"rounds_done": done, "seeds": list(got.seeds) or None}
                | {"by_seed": list(got.by_seed) or None, "note": got.note or None}
            )
    return found


def read(what: Reproduction, cell: Cell) -> tuple[RecordedRun, ...]:
    """Return those of a cell's runs that have done a round; none of a cell that cannot be run here."""
    if cell.key in what.lacking:
        return ()
    folders = [what.folder(cell, seed) for seed in what.seeds]
    begun = [place for place in folders if (place / "ledger.jsonl").is_file()]
    return tuple(ledger.read_run(place) for place in begun if (place / "ledger.jsonl").stat().st_size)


def _measured(
    what: Reproduction, cell: Cell, figure: Figure, runs: tuple[RecordedRun, ...], ends: Mapping[Path, str]
) -> Measured:
    if cell.key in what.lacking:
        return Measured(note=f"skipped: {what.lacking[cell.key]}")
    lost = [seed for seed in what.seeds if ends.get(what.folder(cell, seed)) == DIVERGED]
    if lost:
        return Measured(note=f"{DIVERGED}, seed {', '.join(map(str, lost))}")
    if not runs:
        return Measured(note=NOT_RUN)
    got = measure(figure, runs, what.rounds)
    if len(runs) < len(what.seeds):
        missing = f"{len(runs)} of {len(what.seeds)} seeds so far"
        return replace(got, note="; ".join(filter(None, (got.note, missing))))
    return got


def measure(figure: Figure, runs: tuple[RecordedRun, ...], rounds: int) -> Measured:
    """Return a figure as runs have it that differ in their seed.

    An accuracy is read in the last round up to the wanted one that every seed has evaluated, or in the last few; a note
    says so where that is an earlier one, or they are fewer. Rounds and traffic to a target are there once every seed
    has reached it; every round sends as many models as the first, whose plan is in the run's folder. What they cost is
    what the ledger says.

    Args:
        figure: what to read.
        runs: at least one.
        rounds: of their schedule.
    """
    seeds = tuple(run.seed for run in runs)
    if isinstance(figure, Divergence):
        return _mean([class_divergence(run) for run in runs], seeds)
    if isinstance(figure, Epsilon):
        return _composed(figure, runs, seeds)
    if isinstance(figure, Accuracy):
        read_off = (LOSS if isinstance(figure, Loss) else ACCURACY).read
        return _read_off(figure, [values(run, read_off) for run in runs], figure.round(rounds), seeds)
    reached = [rounds_to(run, figure.target) for run in runs]
    known = [number for number in reached if number is not None]
    if len(known) < len(runs):
        return Measured(seeds=seeds, note=_unreached(runs, reached, rounds))
    if isinstance(figure, Rounds):
        return _mean(known, seeds)
    if isinstance(figure, Spent):
        costs = [_spent(run, number, figure) for run, number in zip(runs, known, strict=True)]
        priced = [cost for cost in costs if cost is not None]
        return _mean(priced, seeds) if len(priced) == len(runs) else Measured(seeds=seeds, note="rounds have no price")
    pairs = [(number, run.plan) for number, run in zip(known, runs, strict=True) if run.plan is not None]
    sent = [number * count(plan, figure.rule) for number, plan in pairs]
    return _mean(sent, seeds) if len(sent) == len(runs) else Measured(seeds=seeds, note="a run has no plan.json")


def _read_off(figure: Accuracy, evaluated: list[dict[int, float]], wanted: int, seeds: tuple[int, ...]) -> Measured:
    """Return the mean over the seeds of what they had in the wanted round, or in those that end with it."""
    common = sorted(number for number in set.intersection(*map(set, evaluated)) if number <= wanted)[-figure.last :]
    if not common:
        return Measured(seeds=seeds, note="not evaluated yet")
    early = "" if common[-1] == wanted else f"after round {common[-1]} of {wanted}"
    few = "" if len(common) == figure.last else f"mean of {len(common)} rounds"
    means = [sum(one[number] for number in common) / len(common) for one in evaluated]
    return _mean(means, seeds, "; ".join(filter(None, (early, few))))


def _spent(run: RecordedRun, number: int, figure: Spent) -> float | None:
    """Return what a run's rounds cost up to one of them, in the figure's unit; of bytes, the devices' links alone."""
    lines = [json.loads(text) for text in (run.folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()]
    each = [line["priced"] for line in lines if line["round"] <= number]
    if None in each:
        return None
    if figure.kind == "seconds":
        return float(sum(one["seconds"] for one in each) / figure.unit)
    moved = (size for one in each for link, size in one["bytes"].items() if link.startswith("device_"))
    return float(sum(moved) / figure.unit)


def _composed(figure: Epsilon, runs: tuple[RecordedRun, ...], seeds: tuple[int, ...]) -> Measured:
    """Return what the runs' reports come to, as they wrote it down when they ended."""
    told = [one for one in map(privacy, runs) if one is not None]
    if len(told) < len(runs):
        return Measured(seeds=seeds, note="without noise there is none")
    return _mean([(one.epsilon_advanced if figure.delta else one.epsilon) or 0.0 for one in told], seeds)


def _unreached(runs: tuple[RecordedRun, ...], reached: list[int | None], rounds: int) -> str:
    done = min(run.rounds[-1].round for run, number in zip(runs, reached, strict=True) if number is None)
    words = f"not reached in {done} rounds" if done == rounds else f"not reached yet, after round {done} of {rounds}"
    there = len(reached) - reached.count(None)
    return words if not there else f"{words}; {there} of {len(runs)} seeds reached it"


def _mean(numbers: list[int] | list[float], seeds: tuple[int, ...], note: str = "") -> Measured:
    value = sum(numbers) / len(numbers)
    whole = isinstance(numbers[0], int) and value == int(value)
    each = tuple(numbers) if len(numbers) > 1 else ()
    return Measured(int(value) if whole else value, half_width(numbers), seeds, note, each)
