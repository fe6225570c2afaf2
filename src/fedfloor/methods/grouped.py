"""The schedule FLDG and FLDG-L share: devices grouped once by what they answer, one of each group drawn per round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedfloor.errors import require
from fedfloor.methods.contract import Method, State, View
from fedfloor.parts.grouping import clustered, drifted
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Probe, Scalar, Sequence, Train, device
from fedfloor.plan.outcome import Outcome


def check(method: str, groups: int, refresh: float | None) -> None:
    """Check the settings that both have."""
    require(groups >= 1, f"methods.{method}.groups", groups, "a whole number of at least 1")
    allowed = "above 0 and below 1, or left out"
    require(refresh is None or 0 < refresh < 1, f"methods.{method}.refresh", refresh, allowed)


def question(view: View, what: str, settings: Mapping[str, Scalar]) -> Probe:
    """Return what every device is asked."""
    said = {name: value for name, value in settings.items() if value is not None}
    return Probe(tuple(view.devices), what, settings=said)


def begun(view: View, answers: Mapping[int, Mapping[str, Any]], what: str, groups: int, seed: int) -> State:
    """Return the first state: the groups, and the seed they were formed with."""
    return State(view.start, {"seed": seed, "groups": clustered(answers, what, groups, seed)})


def planned(
    method: Method, work: WorkSettings, state: State, view: View, rng: np.random.Generator,
    refresh: tuple[Probe, float | None],
) -> Node:  # fmt: skip
    """Visit one device of each group; first ask again, where the census has drifted too far.

    Args:
        refresh: what would be asked again, and the drift it takes; None: the groups stay.
    """
    here = set(view.devices)
    there = [members for group in state.notes["groups"] if (members := [k for k in group if k in here])]
    todo = work.at(view.round, view.rounds, method.objective)
    visits = Parallel(tuple(Train(device(int(rng.choice(members))), todo) for members in there))
    again, most = refresh
    if most is None or view.census is None:
        return visits
    far = "census" in state.tensors and drifted(state.tensors["census"].numpy(), view.census) > most
    return Sequence((Probe(again.devices, "census"), *([again] if far else []), visits))


def absorbed(state: State, outcome: Outcome, what: str, groups: int) -> State:
    """Take the model in; where devices were asked again, group them anew."""
    notes, tensors = dict(state.notes), dict(state.tensors)
    told = {k: said for k, said in outcome.answers.items() if what in said}
    if told:
        notes["groups"] = clustered(told, what, min(groups, len(told)), notes["seed"])
        notes["info"] = {"regrouped": 1 + notes.get("info", {"regrouped": 0})["regrouped"]}
    counts = [outcome.answers[k]["census"] for k in sorted(outcome.answers) if "census" in outcome.answers[k]]
    if counts and (told or "census" not in tensors):
        import torch

        tensors["census"] = torch.tensor(counts, dtype=torch.float32)
    return replace(state, packet=outcome.packet, notes=notes, tensors=tensors)
