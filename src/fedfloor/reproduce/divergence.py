"""How far super nodes are from everybody's classes, by the devices' true counts; nothing is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedfloor import config
from fedfloor.chance import generator
from fedfloor.config import combined
from fedfloor.park.park import Park
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel, Repeat
from fedfloor.report.ledger import Run
from fedfloor.runs import forecast
from fedfloor.runs.parks import build_park


def of(run: Run) -> float:
    """Return ‖Σ counts/Σ total − P‖₂, the mean over the super nodes of a run's first round.

    Li et al. (FedGS), arXiv 2202.01512, Eq. 6. Of one-shot streams, whose windows do not hang on what was trained.
    """
    experiment = config.read(run.folder / "experiment.toml")
    park, method = build_park(experiment), combined(experiment)
    view, costs = forecast.seen(experiment, park, method)
    asked = method.setup(view)
    answers = {} if asked is None else forecast.pretended(asked, view.trained, park)
    state = method.init(view, answers, generator(experiment.seed, "init"))
    now = forecast.at(view, costs, park, method, 1, 0, {})
    plan = method.plan(state, now, generator(experiment.seed, "plan", 1))
    known = forecast.resolved(plan, park, forecast.Place(experiment.seed, 1, 0), Counter())
    true = replace(park, census_epsilon=None)
    return float(np.mean([_apart(true, node, tick) for node, tick in super_nodes(known, 0)]))


def super_nodes(node: Node, tick: int) -> Iterator[tuple[Parallel, int]]:
    """Return the meetings at edges of a resolved plan, and when they are."""
    if isinstance(node, Parallel):
        if node.at.kind == "edge":
            yield node, tick
            return
        for child in node.children:
            yield from super_nodes(child, tick)
        return
    for child in (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node):
        yield from super_nodes(child, tick)
        tick += max(1, walk.span(child)) if isinstance(node, Repeat) and node.tick else walk.span(child)


def _apart(park: Park, node: Parallel, tick: int) -> float:
    devices = sorted(walk.devices(node))
    counts = park.census(devices, tick, [0] * len(devices)).sum(0)
    return float(np.linalg.norm(counts / counts.sum() - park.distribution))
