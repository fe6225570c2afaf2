"""The answers that a device gives without noise: the closed list of its questions, their number and content."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedfloor.engine.calibrate import ROUNDS
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.parts.travel.path import UPDATE
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Probe, Select
from fedfloor.plan.questions import CENSUS, OUTPUTS, SCORES, facts_of
from fedfloor.runs import privacy
from fedfloor.runs.asking import REVEALS, asks
from fedfloor.tasks.task import Task

Asked = Mapping[str, Mapping[int, int]]  # question → device → number of its answers

HOLDING = "the number of a device's samples, and a digest of them"
HOLDING_COUNTS = "the number of a device's samples, their class counts, and a digest of them"
MODELS = 2  # models of a run that get a threshold: of the last and of the best round
SAMPLES = "all samples, as the method trains at the cloud"


def questions(method: ConfiguredMethod, task: Task) -> tuple[Probe, ...]:
    """Return the only questions that a real device answers in an experiment, without their devices.

    These are the questions of the method's set-up and plans, and those of evaluations: the counts for the threshold of
    anomaly scores, and the outputs of models with a part that stays on the device.
    """
    scores = (Probe((), SCORES.name),) if task.calibrates else ()
    outputs = (Probe((), OUTPUTS.name),) if method.needs.own else ()
    return (*method.questions, *scores, *outputs)


def answered(plan: Node, before: int = 0) -> dict[str, Counter[int]]:
    """Return question → device → the greatest number of answers in a round.

    Args:
        plan: the plan; every candidate of a ``Select`` whose policy reads the census reports it.
        before: number of devices that report their census before the plan is made; their reports count once.
    """
    counts: dict[str, Counter[int]] = {}
    for node, times in walk.every(plan):
        if isinstance(node, Probe):
            counts.setdefault(node.what, Counter()).update(dict.fromkeys(node.devices, times))
        elif isinstance(node, Select) and node.reads_census:
            counts.setdefault(CENSUS.name, Counter()).update(dict.fromkeys(node.candidates, times))
    if before:
        counts[CENSUS.name] = counts.get(CENSUS.name, Counter[int]()) | Counter(dict.fromkeys(range(before), 1))
    return counts


def together(first: Asked, second: Asked) -> dict[str, Counter[int]]:
    """Return the sum of two results of :func:`answered`."""
    return {
        name: Counter(first.get(name, {})) + Counter(second.get(name, {})) for name in dict.fromkeys([*first, *second])
    }


def statement(
    experiment: Experiment,
    method: ConfiguredMethod,
    task: Task,
    asked: Asked,
    visits: Mapping[int, int],
    evaluations: int,
) -> dict[str, dict[str, Any]]:
    """Return everything that a real device sends without noise or masks: name → number of times, and content.

    Args:
        asked: the answers to the method's questions in the whole run.
        visits: device → number of its visits; −1: the cloud, for a method that trains on samples there.
        evaluations: number of evaluations of the models.
    """
    epsilon = experiment.park.census_epsilon
    noisy = epsilon is not None and math.isfinite(epsilon)
    entries = {"holding": (1, HOLDING if noisy else HOLDING_COUNTS)}
    if asks(experiment):
        entries["sites"] = 1, REVEALS
    for name, counts in asked.items():
        facts = facts_of(name)
        if not (noisy and facts.reads == "counts"):  # their noise is accounted for as reports
            entries[name] = max(counts.values(), default=0), facts.reveals
    most = max((times for device, times in visits.items() if device >= 0), default=0)
    for name, content in privacy.revealed(method).items():
        if content and not (name == UPDATE and method.needs.separate):
            entries[name] = most, content
    if task.calibrates:
        entries[SCORES.name] = ROUNDS * (1 + task.apart) * (evaluations + MODELS), SCORES.reveals
    if method.needs.own:
        entries[OUTPUTS.name] = evaluations, OUTPUTS.reveals
    if visits.get(-1, 0):
        entries["samples"] = 1, SAMPLES
    return {name: {"times": times, "reveals": reveals} for name, (times, reveals) in entries.items() if times}
