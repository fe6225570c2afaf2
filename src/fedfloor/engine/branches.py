"""Branches of a node, walked one after the other, at the same time, or by edges somewhere else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from fedfloor.engine import scopes
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine, Factories, Subtask
from fedfloor.engine.team import Blob
from fedfloor.plan import schedule
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Branch, NodeResult, ParallelRequest

AT_ONCE = 1024  # threads, each of which waits for a device; further branches wait for one of these


def in_turn_or_at_once(
    go: Callable[[Branch], NodeResult], branches: Sequence[Branch], *, at_once: bool
) -> list[NodeResult]:
    """Walk branches; at the same time where that saves time, unless a device is in two of them.

    Args:
        go: walks a branch.
        branches: the branches.
        at_once: whether it saves time.
    """
    known = [k for branch in branches for k in branch.known if k >= 0]
    if not at_once or len(branches) < 2 or len(known) > len(set(known)):
        return [go(branch) for branch in branches]
    with ThreadPoolExecutor(min(len(branches), AT_ONCE)) as pool:
        return list(pool.map(go, branches))


def sent(
    engine: Engine, request: ParallelRequest, subtask: Subtask, size: Callable[[int], int]
) -> tuple[Aggregation, list[NodeResult]]:
    """Let edges walk the branches of a node; those of an edge that is gone are lost.

    Args:
        engine: knows the edges.
        request: the node.
        subtask: what edges are told of it.
        size: samples of a device.
    """
    node, start = subtask.node, subtask.start
    whole, found = Aggregation(node, start, scopes.met(engine.network, node)), dict[int, NodeResult]()
    for indices, shown in cast(Factories, engine.factories).walk(engine, subtask):
        children = [node.children[index] for index in indices]
        if shown is None:
            for index in indices:
                whole.add(index, start, 0)
            gone = (schedule.absent(one.node, request.tick, one.walk.visits, size) for one in request.branches(indices))
            found.update(zip(indices, gone, strict=True))
        else:
            whole.take([memoryview(part) for part in shown[1:]])
            found.update(zip(indices, branches_from_json(children, shown[0]), strict=True))
    return whole, [found[index] for index in range(len(node.children))]


def branches_to_json(done: Sequence[NodeResult]) -> bytes:
    """Return what is known of branches as JSON, for :func:`branches_from_json` on another rank or machine."""
    told = [[one.chosen, [receipt.row() for receipt in one.receipts], list(one.answers.items())] for one in done]
    return json.dumps(told).encode()


def branches_from_json(children: Sequence[Node], told: Blob) -> list[NodeResult]:
    """Return what :func:`branches_to_json` states of branches."""
    found = []
    for child, (chosen, rows, answers) in zip(children, json.loads(bytes(told)), strict=True):
        known, whom = schedule.resolved(child, iter(chosen)), tuple(map(tuple, chosen))
        found.append(NodeResult({}, known, [Receipt.of(row) for row in rows], answers=dict(answers), chosen=whom))
    return found
