"""Stacked visits with the same work: :func:`fedfloor.engine.local_update.local_update` for many devices at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from fedfloor.data.dataset import Indices
from fedfloor.engine import local_update, union
from fedfloor.engine.cohort import data
from fedfloor.engine.cohort.data import Pool
from fedfloor.engine.cohort.program import (
    Order,
    Program,
    Spec,
    Stats,
    Term,
    batches,
    lazy_stats,
    lazy_union_stats,
    of_samples,
    second,
    stacked,
    term,
)
from fedfloor.engine.cohort.walk import CohortAnswer, UnionJob, VisitJob, work_of
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.steps import BLOCK
from fedfloor.engine.visit import trained_part
from fedfloor.parts.mixing.mix import weigh
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.plan.nodes import Work

# fields of a work that stacked visits implement
STACKED = ("objective", "settings", "epochs", "steps", "batch_size", "rate", "momentum", "weight_decay", "trains")


class Programs(Protocol):
    """The methods of a :class:`fedfloor.engine.cohort.cohort.Cohort` that stacked visits use."""

    room_bytes: int | None

    def samples(self, engine: Engine, wanted: Sequence[data.Whose]) -> tuple[Pool, list[list[Indices]]]: ...

    def program(self, spec: Spec, engine: Engine, pool: Pool, *, headed: bool) -> Program: ...

    def run(
        self, program: Program, weights: Tensor, rate: float, plan: Order, anchors: list[Tensor], height: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class _Stack:
    """Devices whose models are about to be trained as one stack."""

    jobs: list[VisitJob]  # the visits, those with more mini-batches first
    goal: Objective  # the objective
    weights: Tensor  # the arrived models, [K, P]
    pool: Pool  # the samples or features
    held: list[Indices]  # the rows of the pool that each device trains on
    batches: list[list[Indices]]  # the mini-batches of each device
    abouts: list[Visit]  # the visits' facts that the objective may read


def visited(cohort: Programs, jobs: Sequence[VisitJob], extractor: FrozenExtractor) -> list[CohortAnswer]:
    """Train the models of several devices as one stack; return their answers in order."""
    work = jobs[0].work
    engine = jobs[0].engine
    goal = objectives.objective(work.objective, work.settings)
    headed = goal.on_features or local_update.extracts_once(engine, work)
    stack = _headed(jobs, goal, extractor) if headed else _arrived(cohort, jobs, goal)
    part = trained_part(engine.network, goal, work)
    held = (part.start, part.stop) if headed else (0, stack.weights.shape[1])
    steps = len(stack.batches[0])
    added = term(goal)
    kind = np.dtype(str(stack.weights.dtype).removeprefix("torch."))
    spec = Spec(
        len(jobs), max(len(batch) for visit in stack.batches for batch in visit), steps, held, (part.start, part.stop),
        work.momentum, work.weight_decay, added, second(goal), samples=of_samples(goal),
    )  # fmt: skip
    program = cohort.program(spec, engine, stack.pool, headed=headed)
    anchors, height = _anchors(stack, added, part)
    plan = stacked(stack.batches, kind)
    losses, hits = cohort.run(program, stack.weights[:, slice(*held)], work.rate, plan, anchors, height)
    weights = stack.weights
    if headed:
        weights[:, slice(*held)] = program.weights[: len(jobs)]
    else:
        weights.copy_(program.weights[: len(jobs)])
    keys = [job.key for job in stack.jobs]
    stats = lazy_stats(losses, hits, stack.batches, keys, work, [len(rows) for rows in stack.held])
    place = {id(job): index for index, job in enumerate(stack.jobs)}
    ends = _Full(cohort, engine, stack.pool, stack.held, weights)
    return [_left(stack, place[id(job)], weights[place[id(job)]], ends, stats) for job in jobs]


def _arrived(cohort: Programs, jobs: Sequence[VisitJob], goal: Objective) -> _Stack:
    """Return the stack of devices that train on their samples."""
    work = jobs[0].work
    pool, parts = cohort.samples(jobs[0].engine, [data.of_visit(job) for job in jobs])
    held = [np.concatenate(rows) for rows in parts]
    orders = [batches(rows, work, job.key) for rows, job in zip(held, jobs, strict=True)]
    ranked = sorted(range(len(jobs)), key=lambda k: -len(orders[k]))
    jobs = [jobs[k] for k in ranked]
    held = [held[k] for k in ranked]
    orders = [orders[k] for k in ranked]
    weights = torch.stack([job.packet["w"] for job in jobs])
    starts = weights.clone() if goal.needs_start else None
    gradients = _Full(cohort, jobs[0].engine, pool, held, weights)
    abouts = [
        _about(job, goal, None if starts is None else starts[k], work.batches(len(held[k])), gradients, k)
        for k, job in enumerate(jobs)
    ]
    return _Stack(list(jobs), goal, weights, pool, held, orders, abouts)


def _about(job: VisitJob, goal: Objective, start: Tensor | None, steps: int, gradients: _Full | None, k: int) -> Visit:
    engine = job.engine
    device = job.key.device
    kept = engine.memory.load(device) if goal.remembers else {}
    kept = {name: tensor.to(engine.network.flat.device) for name, tensor in kept.items()}
    beside = objectives.beside(goal, job.work.objective, job.packet)
    gradient = None if gradients is None else (lambda: gradients.of(k))
    return Visit(start, kept, engine.network, beside, job.work, steps, gradient)


def _headed(jobs: Sequence[VisitJob], goal: Objective, extractor: FrozenExtractor) -> _Stack:
    """Return the stack of devices that train the classifier on features that are computed once."""
    work = jobs[0].work
    network = jobs[0].engine.network
    prepared: list[tuple[VisitJob, Visit, Tensor, Tensor]] = []
    for job in jobs:
        engine = job.engine
        network.flat.copy_(job.packet["w"])
        samples = engine.samples(job.key.device, job.key.tick)
        about = _about(job, goal, job.packet["w"] if goal.needs_start else None, work.batches(len(samples)), None, 0)
        if goal.on_features:
            about = local_update.before_features(engine, goal, work, samples, about, job.key, extractor)
            x, y = goal.features(about)
        else:
            x, y = local_update.extracted(network, samples), samples.y
        prepared.append((job, replace(about, steps=work.batches(len(y))), x, y))
    stops = np.cumsum([len(y) for *_, y in prepared])
    rows = [np.arange(stop - len(entry[3]), stop) for entry, stop in zip(prepared, stops.tolist(), strict=True)]
    orders = [batches(held, work, entry[0].key) for held, entry in zip(rows, prepared, strict=True)]
    ranked = sorted(range(len(prepared)), key=lambda k: -len(orders[k]))
    pool = Pool(torch.cat([x for *_, x, _ in prepared]), torch.cat([y for *_, y in prepared]))
    weights = torch.stack([prepared[k][0].packet["w"] for k in ranked])
    return _Stack(
        [prepared[k][0] for k in ranked], goal, weights, pool, [rows[k] for k in ranked], [orders[k] for k in ranked],
        [prepared[k][1] for k in ranked],
    )  # fmt: skip


def _anchors(stack: _Stack, term: Term, part: slice) -> tuple[list[Tensor], Tensor | None]:
    if not term.kind:
        return [], None
    if term.kind == "pull":
        return [cast(Tensor, about.start)[part] for about in stack.abouts], None
    anchors: list[Tensor] = []
    for about, weights in zip(stack.abouts, stack.weights, strict=True):
        about.resident().flat.copy_(weights)  # the objective reads the device's model in the network
        anchors.append(stack.goal.begin(about)["slope"])
    return anchors, (torch.stack(anchors) * stack.weights[:, part]).sum(1)


def _left(stack: _Stack, index: int, model: Tensor, ends: _Full, stats: Sequence[Stats]) -> CohortAnswer:
    """Return a device's answer; its memory is committed."""
    job = stack.jobs[index]
    about = stack.abouts[index]
    goal = stack.goal
    about = replace(about, gradient=lambda: ends.of(index))
    engine = job.engine
    device = job.key.device
    sent = objectives.sent(job.work.objective, goal.send(model, about), about.packet)
    digest = None
    if goal.remembers:
        belongs = about.frozen().name if goal.refers else ""
        digest = engine.memory.commit(device, goal.remember(model, about), belongs)
    engine.memory.visits[device] += 1  # last: all visits are repeated if the accelerator's memory runs out before
    held = int(engine.park.holdings[device] if device >= 0 else engine.park.holdings.sum())
    return CohortAnswer({**job.packet, "w": model, **sent}, stats[index], digest, held)


class _Full:
    """The gradients over all of each device's samples at given models, computed as one stack at the first use."""

    def __init__(self, cohort: Programs, engine: Engine, pool: Pool, held: list[Indices], weights: Tensor) -> None:
        self._cohort = cohort
        self._engine = engine
        self._pool = pool
        self._held = held
        self._weights = weights

    def of(self, k: int) -> Tensor:
        """Return device k's gradient [trained]; the caller may change it."""
        return self._gradients[k].clone()

    @cached_property
    def _gradients(self) -> Tensor:
        # as many models as fit into memory: blocks are larger than a visit's mini-batches
        most = data.stackable(self._cohort.room_bytes, self._engine, min(BLOCK, max(map(len, self._held))))
        firsts = range(0, len(self._held), most)
        return torch.cat([self._some(slice(first, first + most)) for first in firsts])

    def _some(self, models: slice) -> Tensor:
        weights = self._weights[models]
        those = self._held[models]
        trained = (0, self._engine.network.trained)
        spec = Spec(len(weights), BLOCK, 1, (0, weights.shape[1]), trained)
        program = self._cohort.program(spec, self._engine, self._pool, headed=False)
        program.weights[: len(weights)].copy_(weights)
        total = weights.new_zeros(len(weights), trained[1])
        for first in range(0, max(map(len, those)), BLOCK):
            wide = min(BLOCK, max(map(len, those)) - first)
            rows = np.zeros((len(weights), wide), np.int64)
            share = np.zeros((len(weights), wide))
            for k, held in enumerate(those):
                part = held[first : first + BLOCK]
                rows[k, : len(part)] = part
                rows[k, len(part) :] = held[0]
                share[k, : len(part)] = 1 / len(held)
            places = torch.from_numpy(rows).to(weights.device)
            total += program.gradient(places, torch.from_numpy(share).to(weights))
        return total


def united(cohort: Programs, jobs: Sequence[UnionJob]) -> list[CohortAnswer]:
    """Take the steps of several super nodes as one stack; return their answers in order."""
    engine = jobs[0].engine
    work = work_of(jobs[0])
    sizes = []
    rows = []
    shares = []
    pool, held = cohort.samples(engine, [data.of_union(job) for job in jobs])
    for job, given in zip(jobs, held, strict=True):
        parts = [
            mine if len(mine) <= work.batch_size else batches(mine, work, key)[0]
            for mine, key in zip(given, job.keys, strict=True)
        ]
        sizes.append(np.array([len(part) for part in parts]))
        heavy = np.array([weigh(union.rule(job.node), int(engine.park.holdings[key.device])) for key in job.keys])
        rows.append(np.concatenate(parts))
        shares.append(np.repeat(heavy / (heavy.sum() * sizes[-1]), sizes[-1]))
    weights = torch.stack([job.packet["w"] for job in jobs])
    batch = max(map(len, rows))
    plan = Order(
        np.array([[np.pad(row, (0, batch - len(row)), constant_values=row[0]) for row in rows]]),
        np.array([[np.pad(share, (0, batch - len(share))) for share in shares]]),
        np.array([len(jobs)]),
    )
    trained = (0, engine.network.trained)
    held_all = (0, weights.shape[1])
    spec = Spec(len(jobs), batch, 1, held_all, trained, decay=work.weight_decay, apart=True)
    program = cohort.program(spec, engine, pool, headed=False)
    cohort.run(program, weights, work.rate, plan, [], None)
    weights.copy_(program.weights[: len(jobs)])
    each = program.each[: len(jobs)].clone()
    right = program.right[: len(jobs)].clone()
    stats = lazy_union_stats(each, right, sizes, [job.keys for job in jobs], work)
    return [CohortAnswer({**job.packet, "w": weights[k]}, stats[k]) for k, job in enumerate(jobs)]


def alike(work: Work) -> tuple[object, ...]:
    """Return the fields of a work that visits must have in common to be stacked."""
    fields = [value for name, value in vars(work).items() if name != "settings"]
    return (*fields, *sorted(work.settings.items()))
