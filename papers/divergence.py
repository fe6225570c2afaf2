"""How far super nodes are from everybody's classes, by the devices' true counts; nothing is trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedfloor import config
from fedfloor.park.park import Park
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel
from fedfloor.plan.schedule import Dry, NodeResult, ParallelRequest, RoundContext
from fedfloor.report.ledger import Run
from fedfloor.runs import forecast
from fedfloor.runs.parks import build_park


def of(run: Run) -> float:
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
