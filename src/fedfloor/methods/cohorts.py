"""Cohorts: several global models at once, each of which a part of the devices trains and is evaluated with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedfloor.methods.contract import State
from fedfloor.plan.nodes import KEEP, Node, Parallel, Select, model_name

if TYPE_CHECKING:
    from torch import Tensor


def apart(cohorts: Mapping[int, Parallel | Select]) -> Node:
    """Return the plan in which every cohort, by its model's number, trains and meets by itself; one needs no other."""
    nodes = tuple(replace(node, model=model_name(number)) for number, node in cohorts.items())
    return nodes[0] if len(nodes) == 1 else Parallel(nodes, mix=KEEP)


def parted(state: State, groups: Sequence[Sequence[int]]) -> State:
    """Return the state in which every group has a copy of the one model."""
    copies = {model_name(number): state.packet["w"].clone() for number in range(1, len(groups)) if "w" in state.packet}
    of = {k: number for number, group in enumerate(groups) for k in group}
    return joined(replace(state, packet={**state.packet, **copies}), of, len(groups))


def joined(state: State, of: Mapping[int, int], many: int, packet: Mapping[str, Tensor] | None = None) -> State:
    """Return the state in which devices are of these cohorts, and all others of those that they were of.

    A round reports the sizes of all cohorts as ``cohort_sizes``, and where somebody changed, their members as
    ``cohorts``.

    Args:
        packet: the models; those of before, where it is left out.
    """
    now = dict(sorted({**state.cohorts, **of}.items()))
    members = [[k for k, number in now.items() if number == cohort] for cohort in range(many)]
    info = {key: one for key, one in state.notes.get("info", {}).items() if key not in ("cohorts", "cohort_sizes")}
    info |= {"cohort_sizes": list(map(len, members))} | ({"cohorts": members} if now != state.cohorts else {})
    return replace(state, packet=packet or state.packet, notes={**state.notes, "cohorts": now, "info": info})
