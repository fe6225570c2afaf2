"""What a run reveals of the devices' samples: noisy censuses, and answers to the normalisation's questions."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedfloor.engine.questions import question
from fedfloor.experiment import Experiment
from fedfloor.park.normalise import Normalise, steps
from fedfloor.park.park import Park
from fedfloor.park.privacy import composed
from fedfloor.park.survey import REVEALS
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node
from fedfloor.plan.schedule import Answers, Dry, NodeResult, ParallelRequest, ProbeRequest, RoundContext, SelectRequest
from fedfloor.runs import folder

log = logging.getLogger(__name__)

DELTA = 1e-5
SECRET, SEEDED = "secret", "seeded"
SEEDED_NOTE = (
    "The noise is drawn from the experiment's public seed: it shows what privacy costs and protects nobody. "
    "ε holds on real machines, whose noise is secret."
)


def reports(experiment: Experiment, plan: Node, before: int = 0) -> Counter[int]:
    """Return how often each device reports its census in a round; nothing where censuses carry no noise.

    A ``Probe`` for the census or the classes, and a ``Select`` whose policy reads the census, ask all that they name.
    What is asked again in the same tick is the same report, but for recycled streams, where another visit can have
    brought another window: there every question counts, which is never too few.

    Args:
        experiment: says whether there is noise, and what the stream is.
        plan: the round's, as the method wrote it.
        before: the devices 0, 1, … of this number were all asked before it was written, for a method that reads it.
    """
    epsilon = experiment.park.census_epsilon
    if epsilon is None or math.isinf(epsilon):
        return Counter()
    walked = _Asked()
    walked.over(plan, RoundContext(0, 0))
    asked = walked.found
    at_once = set(asked)
    asked += [(device, 0) for device in range(before) if (device, 0) not in at_once]
    if experiment.data.stream.kind == "recycle":
        return Counter(device for device, _ in asked)
    return Counter(device for device, _ in set(asked))


class _Asked(Dry):
    """Notes (device, tick) of every census that is asked for."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def probe(self, request: ProbeRequest) -> Answers:
        """Note a question for class counts: those of the whole local set are the same at every tick."""
        of = question(request.node)
        when = request.tick if of.drifts else -1
        self.found += [(device, when) for device in request.node.devices] if of.counts else []
        return {}

    def select(self, request: SelectRequest) -> list[Sequence[int]]:
        """Note the candidates whose census is read."""
        if request.node.reads_census:
            self.found += [(device, request.tick) for device in request.node.candidates]
        return super().select(request)

    def parallel(self, request: ParallelRequest) -> NodeResult:
        """Walk branches that may ask something, which single visits do not."""
        mine = [index for index, child in enumerate(request.node.children) if not walk.is_visit(child)]
        for one in request.branches(mine):
            self.branch(one, request)
        return NodeResult(request.packet, request.node)


def tell(
    out: Path, experiment: Experiment, counted: Mapping[int, int], park: Park, *, secret: bool = False
) -> None:  # fmt: skip
    """Write ``privacy.json``: what noisy censuses and the normalisation's questions reveal; nothing without either.

    A sample stands up to ⌈n/size⌉ times in a window of n, so that a report tells as many ε of it.

    Args:
        out: the run's folder.
        experiment: says what ε is.
        counted: device → how often it reported.
        park: what the devices have, and hold at a time.
        secret: whether real devices drew the noise; a simulation's protects nobody.
    """
    told = asked(park, experiment.data.normalise)
    epsilon = experiment.park.census_epsilon
    if epsilon is not None and not math.isinf(epsilon):
        told |= _censuses(epsilon, counted, park, secret=secret)
    if told:
        folder.write_json(out / "privacy.json", told)


def asked(park: Park, normalise: Normalise) -> dict[str, Any]:
    """Return what the normalisation's questions reveal of each device: how often what was answered, without noise."""
    questions = [one for one in steps(park, normalise) if one.up]
    if not questions:
        return {}
    kinds = Counter(one.kind for one in questions)
    about = {"questions": len(questions), "bytes_up": sum(one.up for one in questions), "noise": "none"}
    answers = {kind: {"times": times, "reveals": REVEALS[kind]} for kind, times in kinds.items()}
    return {"normalise": {**about, "answers": answers}}


def _censuses(epsilon: float, counted: Mapping[int, int], park: Park, *, secret: bool) -> dict[str, Any]:
    """Return what the noisy censuses of a run come to, and log it."""
    times = -(-park.holdings // park.sizes)
    worst = max(counted, key=lambda k: counted[k] * int(times[k]), default=None)
    most, each = (0, epsilon) if worst is None else (counted[worst], epsilon * int(times[worst]))
    whole, advanced = composed(each, most), composed(each, most, DELTA)
    figures = {"census_epsilon": epsilon, "report_epsilon": each, "reports": most, "epsilon": whole}
    figures |= {"epsilon_advanced": advanced, "delta": DELTA}
    source = {"noise": SECRET} if secret else {"noise": SEEDED, "note": SEEDED_NOTE}
    if not most:
        log.info("census: no device was asked for its own.")
        return {**figures, **source}
    log.info(
        "census: at most %d reports of a device with ε = %g each, together ε = %g (or ε = %.4g with δ = %g).",
        most, each, whole, advanced, DELTA,
    )  # fmt: skip
    if not secret:
        log.info("census: %s", SEEDED_NOTE)
    if each > epsilon:
        log.warning(
            "census: windows hold samples of device %d up to %d times, and a report tells as many times "
            "park.census_epsilon of them.", worst, int(times[worst]),
        )  # fmt: skip
    return {**figures, **source}
