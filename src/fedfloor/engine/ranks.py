"""The default engine: every rank walks the same plan, and works on its share of the branches.

A node is walked by the whole team or by one rank. The branches of a ``Parallel`` that the team walks are dealt to ranks
in contiguous runs of about equal work; a branch is one rank's alone and needs no message. A node without a ``Parallel``
below it (a chain) is walked by the first rank, but all ranks share its questions. Every rank ends with the same packet
and the same receipts.

A visit takes these steps: ``Walk`` (plan/schedule.py) yields a ``TrainRequest``, and ``Trainer.train`` passes it to the
engine's executor. In simulation that is ``LocalExecutor``: :func:`fedfloor.engine.local_update.local_update` loads the
device's memory, trains by :func:`fedfloor.engine.visit.train` (with clipped samples by ``private.train_private``, on
features by ``train_linear``) and commits the memory. A step of a super node is taken at once (engine/union.py), and a
cohort stacks visits (engine/cohort). On real machines the cloud's ``Trainer`` sends branches to edges (:func:`sent`),
an edge walks them by :func:`share`, its executor (deploy/factory_executor.py) sends the packet to the device, and the
worker of the device calls the same ``local_update``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import cast

from torch import Tensor

from fedfloor.base.chance import generator, secret
from fedfloor.engine import union
from fedfloor.engine.aggregation import Aggregation, branch_statistics, kept
from fedfloor.engine.engine import Engine, Executor, FrozenExtractor, RemoteExecutor, Subtask
from fedfloor.engine.executor import ask, executor_of, no_vector
from fedfloor.engine.limit import Limit, implausible, offenders, update
from fedfloor.engine.summing import aggregation_of
from fedfloor.engine.team import Alone, Blob, deal
from fedfloor.engine.travel import VisitPath
from fedfloor.engine.visit import check_parts
from fedfloor.models.parcel import Packet
from fedfloor.parts.selection import selection
from fedfloor.parts.travel.chains import secure
from fedfloor.plan import drivers, schedule, walk
from fedfloor.plan.nodes import Node, Probe, Scalar, Work
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.plan.schedule import (
    NOTHING,
    Answers,
    BranchWalk,
    Foreknown,
    Key,
    NodeResult,
    ParallelRequest,
    RoundContext,
    Walk,
    Walking,
)

AT_ONCE = 1024  # threads that each wait for a device; further branches wait for a free thread
FIRST = 32  # branches whose updates are judged together while too few devices are known; all their models are in memory


def in_turn_or_at_once(
    go: Callable[[BranchWalk], NodeResult], branches: Sequence[BranchWalk], *, at_once: bool
) -> list[NodeResult]:
    """Walk branches one by one, or at the same time with ``at_once``, unless two of them share a device."""
    # two branches with the same device would change its memory at the same time
    known = [k for branch in branches for k in branch.known if k >= 0]
    if not at_once or len(branches) < 2 or len(known) > len(set(known)):
        return [go(branch) for branch in branches]
    with ThreadPoolExecutor(min(len(branches), AT_ONCE)) as pool:
        return list(pool.map(go, branches))


def sent(
    engine: Engine, request: ParallelRequest, subtask: Subtask, size: Callable[[int], int]
) -> tuple[Aggregation, list[NodeResult]]:
    """Let edges walk a node's branches; return their aggregation and results. A failed edge's branches are lost."""
    node = subtask.node
    start = subtask.start
    place = Key(engine.seed, subtask.round, subtask.tick, -1, 0)
    whole = aggregation_of(engine, node, start, place)
    results = dict[int, NodeResult]()
    factories = cast(RemoteExecutor, engine.factories)
    with factories.adding(engine, whole, subtask):
        for indices, shown in factories.walk(engine, subtask):
            children = [node.children[index] for index in indices]
            if shown is None:
                # the sum still needs a place for each lost branch, as its order is that of the plan
                for index in indices:
                    whole.add(index, start, 0)
                gone = (
                    drivers.absent(branch.node, request.tick, branch.walk.visits, size)
                    for branch in request.branches(indices)
                )
                results.update(zip(indices, gone, strict=True))
            else:
                whole.take([memoryview(part) for part in shown[1:]])
                results.update(zip(indices, branches_from_json(children, shown[0]), strict=True))
    return whole, [results[index] for index in range(len(node.children))]


def branches_to_json(done: Sequence[NodeResult]) -> bytes:
    """Return branches' results as JSON for another rank or machine; :func:`branches_from_json` reads it."""
    rows = [
        [result.chosen, [receipt.row() for receipt in result.receipts], list(result.answers.items())] for result in done
    ]
    return json.dumps(rows).encode()


def branches_from_json(children: Sequence[Node], text: Blob) -> list[NodeResult]:
    """Return branches' results from the JSON of :func:`branches_to_json`, given the branches' nodes."""
    results = []
    for child, (chosen, rows, answers) in zip(children, json.loads(bytes(text)), strict=True):
        known = schedule.resolved(child, iter(chosen))
        whom = tuple(map(tuple, chosen))
        results.append(NodeResult({}, known, [Receipt.of(row) for row in rows], answers=dict(answers), chosen=whom))
    return results


def run(
    engine: Engine,
    plan: Node,
    packet: Packet,
    *,
    round_number: int,
    tick: int,
    versions: Mapping[int, Tensor] | None = None,
    known: Foreknown = NOTHING,
) -> Outcome:
    """Walk a plan from the cloud with the engine's team; call it on every rank with the same arguments.

    Args:
        versions: number of a round → the global model after it, for visits that start from earlier models.
        known: the choices and answers that are known beforehand.
    """
    walk.check(plan, engine.park.devices)
    check_parts(engine.network, plan, packet)
    packet = {name: value.to(engine.network.flat.device) for name, value in packet.items()}
    # the layers below the classifier are one extractor for the whole round if no visit trains them
    trainer = Trainer(engine, round_number, FrozenExtractor(walk.scopes(plan) == {"classifier"}), whole=True)
    earlier = {number: model.to(engine.network.flat.device) for number, model in (versions or {}).items()}
    trainer.round = replace(trainer.round, versions=earlier)
    trainer.by_team = engine.team.size > 1 or engine.factories is not None
    result = trainer.drive(Walk(trainer.round, by_team=trainer.by_team, known=known).node(plan, packet, tick))
    # the result may be the network's own buffer, which the next round overwrites
    packet = {name: value.cpu() for name, value in kept(result.packet, engine.network.flat).items()}
    rng = generator(engine.seed, "server", round_number)
    ticks = max(1, walk.span(plan))
    changed = trainer.changed
    return Outcome(packet, result.resolved, tuple(result.receipts), result.answers, ticks, rng, changed)


def context(engine: Engine, number: int) -> RoundContext:
    """Return the facts of a round that need no training: which visits are lost."""
    return schedule.losing(engine.seed, number, engine.loss_chance, None if engine.air is None else engine.air.lost)


def asked(engine: Engine, node: Probe, packet: Packet, tick: int) -> Answers:
    """Put a question to devices from the cloud, each rank to its share; return the answers of all."""
    here = {name: value.to(engine.network.flat.device) for name, value in packet.items()}
    return ask(engine, node, here, tick, engine.team)


def share(engine: Engine, subtask: Subtask, mine: Collection[int]) -> list[Blob]:
    """Walk the branches ``mine`` of a node for another process's :func:`run`; return their results as byte strings."""
    trainer = Trainer(engine, subtask.round, FrozenExtractor(subtask.frozen))
    if engine.limit is not None:
        trainer.limit = engine.limit.knowing(subtask.updates)
    begun = Walk(trainer.round, subtask.visits, {k: dict(answers) for k, answers in subtask.heard.items()})
    aggregation, done = trainer.branches(ParallelRequest(subtask.node, subtask.start, subtask.tick, begun), mine)
    return [branches_to_json(aggregation.settle(done, sorted(mine), trainer.limit)), *aggregation.unfinished()]


class Trainer(drivers.Driver):
    """The driver that carries out a walk's requests; ``by_team`` as in :class:`~fedfloor.plan.schedule.Walk`."""

    def __init__(self, engine: Engine, round_number: int, extractor: FrozenExtractor, *, whole: bool = False) -> None:
        self.engine = engine
        self.extractor = extractor
        self.whole = whole
        self.round = replace(context(engine, round_number), samples_of=self._size, sent=self._sent)
        self.by_team = False
        self.limit = engine.limit.copy() if engine.limit is not None else None
        self.changed: dict[str, Scalar] = {}  # settings of the mixing rule for its next round

    @property
    def executor(self) -> Executor:
        return executor_of(self.engine)

    def drive(self, walking: Walking) -> NodeResult:
        """Drive a walk to its end; with a cohort, simultaneous visits are trained as one stack."""
        if self.engine.cohort is not None and not self.by_team:
            return self.engine.cohort.walk(self, walking)
        return super().drive(walking)

    def apart(self, known: Iterable[int] | None = None) -> Trainer:
        """Return a trainer for a branch; with ``known``, it works on a copy of the memory of these devices."""
        twin = copy.copy(self)
        twin.by_team = twin.whole = False
        if known is not None:
            twin.engine = copy.copy(self.engine)
            twin.engine.memory = self.engine.memory.seen_by(known)
        return twin

    # -- visits, questions, choices ---------------------------------------------------------------------------------

    def train(self, request: schedule.TrainRequest) -> tuple[Packet, Receipt] | None:
        """Carry out a visit; an update that is too long is refused. None where the visit is lost."""
        engine = self.engine
        work = request.node.work
        device = request.key.device
        judged = self.limit is not None and device >= 0 and not secure(work.travel)  # only sums are seen, and judged
        start, was = (kept(request.packet, engine.network.flat), engine.memory.now((device,))) if judged else ({}, {})
        visited = self.executor.visit(engine, work, request.packet, request.key, self.extractor)
        if visited is None:
            return None
        receipt = replace(visited[1], bytes=request.size)
        if judged:
            receipt = self._judged(work, start, visited[0], receipt)
            # a refused update leaves no trace, neither in the model nor in what its device keeps
            if receipt.refused:
                engine.memory.put_back(was)
                return start, receipt
        return visited[0], receipt

    def probe(self, request: schedule.ProbeRequest) -> schedule.Answers:
        """Put a question to devices, each rank to its share; return the answers of all."""
        team = self.engine.team if self.by_team else Alone()
        return ask(self.engine, request.node, request.packet, request.tick, team)

    def broadcast(self, request: schedule.BroadcastRequest) -> None:
        self.executor.hand(self.engine, request.node, request.packet)

    def select(self, request: schedule.SelectRequest) -> Sequence[int]:
        """Select among the devices that are available now, or among all if none is."""
        engine = self.engine
        node = request.node
        available = tuple(self.executor.available(node.candidates)) or node.candidates
        if len(available) < len(node.candidates):
            node = replace(node, candidates=available, how_many=min(node.how_many, len(available)))
        trained = engine.memory.visits
        census = partial(self.executor.census, engine)
        place = (engine.seed, self.round.number, request.tick)
        return selection.selected(node, engine.park, *place, request.visits, trained, census)

    def parallel(self, request: ParallelRequest) -> NodeResult:
        """Walk and aggregate the branches of a ``Parallel``, dealt to the team if the team walks the node."""
        if union.fits(self.engine, request.node, request.packet):
            return self._together(request)  # every rank computes the same: no message
        if request.walk.by_team:
            return self._deal(request)
        return self.met(request, *self.branches(request, range(len(request.node.children))))

    def _deal(self, request: ParallelRequest) -> NodeResult:
        """Walk this rank's share of the branches, exchange sums and results, and return the aggregated result."""
        engine = self.engine
        team = self.engine.team
        node = request.node
        if engine.factories is not None:
            known = self.limit.known if self.limit is not None else {}
            subtask = Subtask(
                node, kept(request.packet, engine.network.flat), self.round.number, request.tick, request.walk.visits,
                request.walk.answers, self.extractor.frozen, known,
            )  # fmt: skip
            return self.met(request, *sent(engine, request, subtask, self._size))
        # ranks are dealt equal numbers of mini-batches; the sums do not depend on who walks what
        shares = deal([walk.batches(child, self._size) for child in node.children], team.size)
        if self.limit is not None and not self.limit.settled(node):  # all updates are judged together
            shares = [range(len(node.children)) if rank == 0 else range(0) for rank in range(team.size)]
        aggregation, done = self.branches(request, shares[team.rank])
        whole = aggregation_of(engine, node, aggregation.start, self.place(request.tick))
        results: list[NodeResult] = []
        for rank, (text, *sums) in enumerate(team.gather([branches_to_json(done), *aggregation.unfinished()])):
            whole.take(sums)
            results += done if rank == team.rank else branches_from_json([node.children[i] for i in shares[rank]], text)
        return self.met(request, whole, results)

    def branches(self, request: ParallelRequest, mine: Collection[int]) -> tuple[Aggregation, list[NodeResult]]:
        """Walk the branches ``mine`` of a ``Parallel``; return their aggregation, and the result of each."""
        start = kept(request.packet, self.engine.network.flat)
        if self.engine.cohort is not None:
            return self.engine.cohort.branches(self, request._replace(packet=start), mine)
        node = request.node
        aggregation = aggregation_of(self.engine, node, start, self.place(request.tick))
        # with codecs towards edges, branches start from the model that edges decode
        start = dict(aggregation.given)
        parted = request.branches(mine)
        with self.executor.meeting(self.engine, aggregation, mine):
            if self.limit is None or self.limit.settled(node):
                return aggregation, self._added(parted, start, request.tick, aggregation, self.limit)
            # before there is a median, the first updates of each factory are judged together, the others by these
            done: dict[int, NodeResult] = {}
            for group in self._by_factory(parted):
                limit = self.limit.copy()
                first = group[:FIRST]
                rest = group[FIRST:]
                results = self._judged_together(self._walked(first, start, request.tick, limit), start, limit)
                for branch, result in zip(first, results, strict=True):
                    done[branch.index] = self.add(aggregation, branch, result)
                others = self._added(rest, start, request.tick, aggregation, limit)
                done.update(zip((branch.index for branch in rest), others, strict=True))
        return aggregation, [done[branch.index] for branch in parted]

    def _walked(
        self, branches: Sequence[BranchWalk], start: Packet, tick: int, limit: Limit | None
    ) -> list[NodeResult]:
        """Walk branches from a packet; return their results, each with a packet of its own."""
        own = self.engine.network.flat

        def go(branch: BranchWalk) -> NodeResult:
            result = self._branch(branch, start, tick, limit)
            return replace(result, packet=kept(result.packet, own))

        return in_turn_or_at_once(go, branches, at_once=self.executor.at_once)

    def _added(
        self, branches: Sequence[BranchWalk], start: Packet, tick: int, aggregation: Aggregation, limit: Limit | None
    ) -> list[NodeResult]:
        """Walk branches from a packet, and add the packet of each as soon as it is there; return the results."""
        lock = Lock()

        def go(branch: BranchWalk) -> NodeResult:
            result = self._branch(branch, start, tick, limit)
            with lock:
                return self.add(aggregation, branch, result)

        return in_turn_or_at_once(go, branches, at_once=self.executor.at_once)

    def _branch(self, branch: BranchWalk, start: Packet, tick: int, limit: Limit | None) -> NodeResult:
        """Walk a branch from a packet with a copy of a limit; the memories of its devices stay as they were."""
        was = self.engine.memory.now(branch.known)
        own = self.apart()
        own.limit = limit.copy() if limit is not None else None
        result = own.drive(branch.walk.node(branch.node, start, tick))
        no_vector(result.answers)
        self.engine.memory.put_back(was)  # branches are simultaneous: none sees another's changes of a memory
        return result

    def add(self, aggregation: Aggregation, branch: BranchWalk, result: NodeResult) -> NodeResult:
        """Add a branch's packet, weighted by the samples of its trained devices; return the result without it."""
        aggregation.add(branch.index, result.packet, sum(self._size(k) for k in result.trained), result.receipts)
        return replace(result, packet={})

    def _by_factory(self, branches: list[BranchWalk]) -> list[list[BranchWalk]]:
        """Return branches grouped by the factory whose edge judges them on real machines, each group in plan order."""
        groups: dict[int, list[BranchWalk]] = {}
        for branch in branches:
            apart = self.whole and bool(walk.devices(branch.node))
            place = int(self.engine.park.factory_of[walk.first_device(branch.node)]) if apart else 0
            groups.setdefault(place, []).append(branch)
        return list(groups.values())

    def _judged_together(self, done: list[NodeResult], start: Packet, limit: Limit) -> list[NodeResult]:
        """Refuse branches with updates that are too long given those of all; return the results with refusals."""
        outcomes = [(result.resolved, result.receipts) for result in done]
        for index, place, why in offenders(limit, self.engine.network, start, outcomes):
            result = done[index]
            device = done[index].receipts[place].device
            self.executor.refuse(device, "visit", why)
            others = f"refused together with the update of device {device}."
            receipts = [
                r if r.lost else r.without(others if at != place else why) for at, r in enumerate(result.receipts)
            ]
            done[index] = replace(result, packet=start, receipts=receipts, trained=frozenset())
        return done

    def met(self, request: ParallelRequest, aggregation: Aggregation, branches: Sequence[NodeResult]) -> NodeResult:
        """Aggregate all branches, and record the new memories of their devices; return the node's result."""
        engine = self.engine
        memory = self.engine.memory
        branches = aggregation.settle(branches, range(len(branches)), self.limit)
        # all branches are there, of every rank and edge: from here on they are one result
        whole = schedule.joined(request, {}, branches)
        answers = schedule.merged([request.walk.answers, whole.answers]) if whole.answers else request.walk.answers
        sizes = {k: self._size(k) for k in {receipt.device for receipt in whole.receipts}}
        known = [branch_statistics(branch.receipts, sizes, answers) for branch in branches]
        # devices may be offline when a question is put, or their answers refused
        away = engine.executor is not None or engine.factories is not None or engine.limit is not None
        aggregation.check_asked(known, away=away)
        first = whole.receipts[0] if whole.receipts else None
        place = (request.tick, *((first.device, first.visit) if first else ()), len(whole.receipts))
        # nodes of the same tick have keys of their own by their first visit and their number of visits
        rng = secret() if engine.secret else generator(engine.seed, "mix", self.round.number, *place)
        packet = aggregation.mixed(known, len(engine.park.dataset.classes), engine.network.trained, rng)
        self.changed |= aggregation.settings
        # branches worked on copies of the counts and memories, so that none saw another's
        memory.visits.update(schedule.counted(receipt for receipt in whole.receipts if not receipt.lost))
        memory.held.update({receipt.device: receipt.memory for receipt in whole.receipts if receipt.memory is not None})
        if self.limit is not None:
            for branch in branches:
                self.limit.note(branch.resolved, branch.receipts)
        return replace(whole, packet=packet)

    def _judged(self, work: Work, start: Packet, end: Packet, receipt: Receipt) -> Receipt:
        """Return a visit's receipt with the length of its update recorded; lost, if the update is too long."""
        engine = self.engine
        limit = cast(Limit, self.limit)
        device = receipt.device
        changed = limit.parts(engine.network, work.travels, start, end)
        receipt = replace(receipt, update=update(work, self._size(device), changed))
        false = implausible(engine.network, start["w"], end["w"], work.travel)
        why = limit.judge(work.travels, device, receipt.update, changed) or false
        if not why:
            return receipt
        self.executor.refuse(device, "visit", why)
        return receipt.without(why)

    def _together(self, request: ParallelRequest) -> NodeResult:
        """Walk a super node: visits of one step, computed as one step on the union of their mini-batches."""
        keys, size = self.super_node(request)
        figures = union.step(self.engine, request.node, request.packet, keys)
        done = zip(keys, figures, strict=True)
        receipts = {
            key.device: Receipt(key.device, key.visit, key.tick, *visit, size, lost=False) for key, visit in done
        }
        return self.united(request, receipts, {"w": self.engine.network.flat} if keys else request.packet)

    def super_node(self, request: ParallelRequest) -> tuple[list[Key], int]:
        """Return the keys of a super node's visits that are not lost, and the bytes that each visit sends."""
        keys = [key for key in request.visit_keys() if not schedule.is_lost(key, self.engine.loss_chance)]
        return keys, self.engine.network.parcel("all").size(request.packet)

    def united(self, request: ParallelRequest, receipts: Mapping[int, Receipt], packet: Packet) -> NodeResult:
        """Return the result of a super node, given the receipts of the devices whose visits were not lost."""
        size = self.engine.network.parcel("all").size(request.packet)
        rows = [
            receipts[key.device] if key.device in receipts else schedule.lost(key, self._size(key.device), size)
            for key in request.visit_keys()
        ]
        self.engine.memory.visits.update(receipts.keys())
        return NodeResult(packet, request.node, rows, frozenset(receipts))

    def place(self, tick: int) -> Key:
        """Return the round and a tick, as the key of draws that belong to no visit."""
        return Key(self.engine.seed, self.round.number, tick, -1, 0)

    # -- facts for the walk -----------------------------------------------------------------------------------------

    def _size(self, device: int) -> int:
        sizes = self.engine.park.holdings
        return int(sizes.sum()) if device < 0 else int(sizes[device])

    def _sent(self, work: Work, packet: Packet) -> int:
        return VisitPath(self.engine.network, work).up.size(packet)
