"""The default engine: every rank walks the same plan, and works on its share of the branches.

A node is walked by the whole team or by one rank. A ``Parallel`` that the team meets deals its branches in contiguous
runs of about equal work; inside a branch everything is one rank's and needs no message. What the team meets that has
no ``Parallel`` below (a chain) is walked by the first rank, but for its questions, which all ask. Every rank ends with
the same packet and the same receipts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import cast

from fedfloor.engine import scopes, union
from fedfloor.engine.attend import Still
from fedfloor.engine.branches import Branch, in_turn_or_at_once, sent
from fedfloor.engine.deal import deal
from fedfloor.engine.engine import Engine
from fedfloor.engine.floor import Errand
from fedfloor.engine.limit import Limit, offenders, parts, update
from fedfloor.engine.meeting import Meeting, learnt
from fedfloor.engine.passed import Answers, Passed, heard_of, kept, merged, said
from fedfloor.engine.probe import ask, no_vector
from fedfloor.engine.team import Alone, Blob, Team
from fedfloor.engine.tree import Packet
from fedfloor.engine.visit import Key, is_lost
from fedfloor.parts import sampling
from fedfloor.plan import choice, walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Repeat, Select, Train, Work
from fedfloor.plan.outcome import Outcome, Receipt

FIRST = 32  # branches whose updates are judged together while too few devices are known: as many models are held
AHEAD = 16  # turns, which two of the blocks that Windows keep of a device mostly hold


def run(engine: Engine, plan: Node, packet: Packet, *, round_number: int, tick: int) -> Outcome:
    """Walk a plan with the engine's team; call it on every rank with the same arguments.

    Args:
        engine: this rank's engine.
        plan: what to do.
        packet: what goes in at the cloud: named flat tensors, ``w`` the model.
        round_number: counts from 1; chance is keyed by it.
        tick: the park's clock at the round's start.

    Raises:
        SettingError: the plan names what does not exist, or trains parts of the model that cannot meet.
        RunError: a loss became infinite or not a number, or another rank failed.
    """
    walk.check(plan, engine.park.devices)
    scopes.check(engine.network, plan, packet)
    packet = {name: value.to(engine.network.flat.device) for name, value in packet.items()}
    job = _Walk(engine, round_number, Still(walk.scopes(plan) == {"classifier"}))
    try:
        passed = job.team_walk(plan, packet, tick)
    except BaseException as error:
        engine.team.fail(error)
        raise
    packet = {name: value.cpu() for name, value in kept(passed.packet, engine.network.flat).items()}
    return Outcome(packet, passed.resolved, tuple(passed.receipts), passed.answers, max(1, walk.span(plan)))


def share(engine: Engine, errand: Errand, mine: Collection[int]) -> list[Blob]:
    """Walk the branches ``mine`` of a node for :func:`run` somewhere else; return what is to be shown of them.

    Args:
        engine: this machine's.
        errand: the node, and what is known so far.
        mine: which of its branches.
    """
    job = _Walk(engine, errand.round, Still(errand.frozen))
    job.visits, job.heard = Counter(errand.visits), {k: dict(one) for k, one in errand.heard.items()}
    job.whole = False
    if engine.limit is not None:
        job.limit = engine.limit.knowing(errand.updates)
    meeting, done = job._branches(errand.node, errand.start, errand.tick, mine)
    return [said(done), *meeting.unfinished()]


class _Walk:
    """One walk over one plan, and the counts of visits that key its chance."""

    def __init__(self, engine: Engine, round_number: int, still: Still) -> None:
        self.engine, self.round, self.still = engine, round_number, still
        self.visits: Counter[int] = Counter()
        self.heard: Answers = {}  # what probes asked so far, for rules that mix by it
        self.beside: list[tuple[Train, ...]] = []  # those that interfere with the branch's visits to come
        self.ahead: list[list[int]] = []  # what the turns to come of a Repeat have chosen
        self.limit = engine.limit.copy() if engine.limit is not None else None
        self.whole = True  # whether branches of several factories meet, as they do at the cloud

    # -- by the whole team ------------------------------------------------------------------------------------------

    def team_walk(self, node: Node, packet: Packet, tick: int) -> Passed:
        """Walk a node with every rank; all return the same."""
        team = self.engine.team
        if (team.size == 1 and self.engine.factories is None) or isinstance(node, Broadcast):
            return self.walk(node, packet, tick)
        if isinstance(node, Probe):
            return self._ask(node, packet, tick, team)
        if isinstance(node, Select):
            return self._selected(node, packet, tick, self.team_walk)
        if isinstance(node, Parallel) and union.fits(self.engine, node, packet):
            return self._together(node, packet, tick)  # on every rank alike: no message
        if not walk.meets(node) and not walk.asks(node):
            return self._by_first(node, packet, tick)
        if isinstance(node, Parallel):
            return self._deal(node, packet, tick)
        return self._in_turn(node, packet, tick, self.team_walk)

    def _by_first(self, node: Node, packet: Packet, tick: int) -> Passed:
        whole = self._deal(Parallel((node,), mix="equal"), packet, tick)
        return replace(whole, resolved=cast(Parallel, whole.resolved).children[0])

    def _deal(self, node: Parallel, packet: Packet, tick: int) -> Passed:
        """Walk one rank's share of the branches, then exchange the unfinished sums and what was learnt."""
        engine, team = self.engine, self.engine.team
        if engine.factories is not None:
            return self._met(node, *sent(engine, self._errand(node, packet, tick), self._size))
        shares = deal([walk.batches(child, self._size) for child in node.children], team.size)
        if self.limit is not None and not self.limit.settled(node):  # all updates are looked at together
            shares = [range(len(node.children)) if rank == 0 else range(0) for rank in range(team.size)]
        meeting, done = self._branches(node, packet, tick, shares[team.rank])
        whole = Meeting(node, meeting.start, meeting.part)
        branches: list[Passed] = []
        for rank, (heard, *sums) in enumerate(team.gather([said(done), *meeting.unfinished()])):
            whole.take(sums)
            branches += done if rank == team.rank else heard_of([node.children[i] for i in shares[rank]], heard)
        return self._met(node, whole, branches)

    def _errand(self, node: Parallel, packet: Packet, tick: int) -> Errand:
        start = kept(packet, self.engine.network.flat)
        known = self.limit.known if self.limit is not None else {}
        return Errand(node, start, self.round, tick, self.visits, self.heard, self.still.frozen, known)

    # -- by one rank ------------------------------------------------------------------------------------------------

    def walk(self, node: Node, packet: Packet, tick: int) -> Passed:
        """Walk a node alone."""
        if self.engine.cohort is not None:
            return self.engine.cohort.walk(self, node, packet, tick)
        if isinstance(node, Train):
            return self._visit(node, packet, tick)
        if isinstance(node, Select):
            return self._selected(node, packet, tick, self.walk)
        if isinstance(node, Parallel):
            if union.fits(self.engine, node, packet):
                return self._together(node, packet, tick)
            meeting, done = self._branches(node, packet, tick, range(len(node.children)))
            return self._met(node, meeting, done)
        if isinstance(node, Broadcast):
            self.engine.floor.hand(self.engine, node, packet)
            return Passed(packet, node)
        if isinstance(node, Probe):
            return self._ask(node, packet, tick, Alone())
        return self._in_turn(node, packet, tick, self.walk)

    def _branches(
        self, node: Parallel, packet: Packet, tick: int, mine: Collection[int]
    ) -> tuple[Meeting, list[Passed]]:
        """Walk the branches ``mine``; visits are numbered as if all branches were walked in plan order."""
        if self.engine.cohort is not None:
            return self.engine.cohort.branches(self, node, packet, tick, mine)
        start, memory, lock = kept(packet, self.engine.network.flat), self.engine.memory, Lock()
        meeting, branches = Meeting(node, start, scopes.met(self.engine.network, node)), list[Branch[_Walk]]()
        ahead: Counter[int] = Counter()
        around = walk.beside(node) if self.engine.air is not None and not any(map(walk.meets, node.children)) else None
        for index, child in enumerate(node.children):
            if index in mine:
                known, job = {*walk.devices(child), -1}, _Walk(self.engine, self.round, self.still)
                job.visits, job.heard = Counter({k: self.visits[k] + ahead[k] for k in known}), self.heard
                job.beside, job.whole = list(around[index]) if around else [], False
                job.limit = self.limit.copy() if self.limit is not None else None
                branches.append(Branch(index, child, known, job))
            ahead.update(walk.visits(child))
            ahead[-1] += walk.cloud_visits(child)

        def go(branch: Branch[_Walk], *, wait: bool = False) -> Passed:
            was = memory.now(branch.known)
            one = branch.job.walk(branch.child, start, tick)
            no_vector(one.answers)
            memory.put_back(was)  # branches happen at the same time: none sees what another one left on a device
            if wait:
                return replace(one, packet=kept(one.packet, self.engine.network.flat))
            with lock:
                meeting.add(branch.index, one.packet, sum(self._size(k) for k in one.trained))
            return replace(one, packet={})

        at_once, done = self.engine.floor.at_once, dict[int, Passed]()
        for group in self._by_factory(branches) if self.limit and not self.limit.settled(node) else [branches]:
            rest = group
            if self.limit is not None and not self.limit.settled(node):
                first, rest, limit = group[:FIRST], group[FIRST:], self.limit.copy()
                passed = in_turn_or_at_once(partial(go, wait=True), first, at_once=at_once)
                for branch, one in zip(first, self._judged_together(passed, start, limit), strict=True):
                    meeting.add(branch.index, one.packet, sum(self._size(k) for k in one.trained))
                    done[branch.index] = replace(one, packet={})
                for branch in rest:
                    branch.job.limit = limit.copy()
            passed = in_turn_or_at_once(go, rest, at_once=at_once)
            done.update(zip((branch.index for branch in rest), passed, strict=True))
        return meeting, [done[branch.index] for branch in branches]

    def _by_factory(self, branches: list[Branch[_Walk]]) -> list[list[Branch[_Walk]]]:
        """Return branches by the edge that would judge them, each group in plan order."""
        groups: dict[int, list[Branch[_Walk]]] = {}
        for branch in branches:
            apart = self.whole and bool(walk.devices(branch.child))
            place = int(self.engine.park.factory_of[walk.first_device(branch.child)]) if apart else 0
            groups.setdefault(place, []).append(branch)
        return list(groups.values())

    def _judged_together(self, done: list[Passed], start: Packet, limit: Limit) -> list[Passed]:
        """Refuse branches with updates that are too long beside those of all; the limit then knows these."""
        told = [(one.resolved, one.receipts) for one in done]
        for index, place, why in offenders(limit, self.engine.network, start, told):
            one, device = done[index], done[index].receipts[place].device
            self.engine.floor.refuse(device, "visit", why)
            told_of = [
                receipt
                if receipt.lost
                else receipt.without(why if at == place else f"refused with the update of device {device}.")
                for at, receipt in enumerate(one.receipts)
            ]
            done[index] = replace(one, packet=start, receipts=told_of, trained=frozenset())
        return done

    def _met(self, node: Parallel, meeting: Meeting, branches: list[Passed]) -> Passed:
        answers = merged([one.answers for one in branches])
        self.heard = merged([self.heard, answers])
        sizes = {k: self._size(k) for one in branches for k in one.trained | {r.device for r in one.receipts}}
        known = [learnt(one.receipts, sizes, self.heard) for one in branches]
        meeting.check_asked(known, away=self._may_lack_answers())
        packet = meeting.mixed(known, len(self.engine.park.dataset.classes), self.engine.network.trained)
        receipts = [receipt for one in branches for receipt in one.receipts]
        self.visits.update(receipt.device for receipt in receipts)
        memory = self.engine.memory
        memory.visits.update(receipt.device for receipt in receipts if not receipt.lost)
        memory.held.update({receipt.device: receipt.memory for receipt in receipts if receipt.memory is not None})
        if self.limit is not None:
            for one in branches:
                self.limit.note(one.resolved, one.receipts)
        children = [one.resolved for one in branches]
        same = all(a is b for a, b in zip(children, node.children, strict=True))
        trained = frozenset(receipt.device for receipt in receipts if not receipt.lost)
        resolved = node if same else replace(node, children=tuple(children))
        return Passed(packet, resolved, receipts, trained, answers, _all_chosen(branches))

    def _ask(self, node: Probe, packet: Packet, tick: int, team: Team) -> Passed:
        one = Passed(packet, node, answers=ask(self.engine, node, packet, tick, team))
        self.heard = merged([self.heard, one.answers])
        return one

    def _in_turn(self, node: Node, packet: Packet, tick: int, step: Callable[[Node, Packet, int], Passed]) -> Passed:
        """Walk a chain: each child starts where and when the last one ended."""
        turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
        done: list[Passed] = []
        for left, child in zip(range(len(turns), 0, -1), turns, strict=True):
            if isinstance(node, Repeat) and isinstance(child, Select) and node.tick and not self.ahead:
                self.ahead = self._chosen_ahead(child, tick, min(left, AHEAD))
            one = step(child, packet, tick)
            packet = one.packet
            done.append(replace(one, packet={}))
            tick += max(1, walk.span(child)) if isinstance(node, Repeat) and node.tick else walk.span(child)
        receipts = [receipt for one in done for receipt in one.receipts]
        trained = frozenset().union(*(one.trained for one in done))
        return Passed(
            packet,
            walk.rebuilt(node, [one.resolved for one in done]),
            receipts,
            trained,
            merged([one.answers for one in done]),
            _all_chosen(done),
        )

    def _visit(self, node: Train, packet: Packet, tick: int) -> Passed:
        engine = self.engine
        device = node.site.index if node.site.kind == "device" else -1
        key = Key(engine.seed, self.round, tick, device, self.visits[device])
        self.visits[device] += 1
        size = scopes.sent_bytes(engine.network, node.work.scope, packet) if node.work.sends else 0
        others = self.beside.pop(0) if self.beside else ()  # of the cloud's visits, too, so that the next finds its own
        lost = device >= 0 and self._is_lost(node, others, key)
        judged = self.limit is not None and not lost and device >= 0
        start, was = (kept(packet, engine.network.flat), engine.memory.now((device,))) if judged else (packet, {})
        got = None if lost else engine.floor.visit(engine, node.work, packet, key, self.still)
        if got is None:
            receipt = Receipt(device, key.visit, tick, 0, self._size(device), 0.0, 0.0, 0.0, size, lost=True)
            return Passed(packet, node, [receipt])
        sent, receipt = got[0], replace(got[1], bytes=size)
        if judged:
            receipt = self._judged(node.work, start, sent, receipt)
            if receipt.refused:
                engine.memory.put_back(was)
                return Passed(start, node, [receipt])
        return Passed(sent, node, [receipt], frozenset({device}))

    def _judged(self, work: Work, start: Packet, end: Packet, receipt: Receipt) -> Receipt:
        """Return the receipt of a visit whose update was measured; refused, where it is too long."""
        engine, limit, device = self.engine, cast(Limit, self.limit), receipt.device
        changed = parts(engine.network, work.scope, start, end)
        receipt = replace(receipt, update=update(work, self._size(device), changed))
        why = limit.judge(work.scope, device, receipt.update, changed)
        if not why:
            return receipt
        engine.floor.refuse(device, "visit", why)
        return receipt.without(why)

    def _is_lost(self, node: Train, others: tuple[Train, ...], key: Key) -> bool:
        engine = self.engine
        if is_lost(key, engine.loss_chance):
            return True
        return engine.air is not None and engine.air.lost(node, others, key.place())

    def _together(self, node: Parallel, packet: Packet, tick: int) -> Passed:
        """Walk a super node: visits of one step, done as one step on the union of their mini-batches."""
        engine, known = self.engine, [one.site.index for one in cast("tuple[Train, ...]", node.children)]
        keys = [Key(engine.seed, self.round, tick, k, self.visits[k]) for k in known]
        lost = [is_lost(key, engine.loss_chance) for key in keys]
        went = union.step(engine, node, packet, [key for key, gone in zip(keys, lost, strict=True) if not gone])
        size = scopes.sent_bytes(engine.network, "all", packet)
        receipts, told = [], iter(went)
        for key, gone in zip(keys, lost, strict=True):
            said = (0, self._size(key.device), 0.0, 0.0, 0.0) if gone else next(told)
            receipts.append(Receipt(key.device, key.visit, tick, *said, size, lost=gone))
        trained = frozenset(key.device for key, gone in zip(keys, lost, strict=True) if not gone)
        self.visits.update(known)
        engine.memory.visits.update(trained)
        return Passed({"w": engine.network.flat} if trained else packet, node, receipts, trained)

    def _may_lack_answers(self) -> bool:
        """Return whether devices may be away when they are asked, or their answers refused."""
        engine = self.engine
        return engine.floor.at_once or engine.factories is not None or engine.limit is not None

    # -- choices and sizes -------------------------------------------------------------------------------------------

    def _size(self, device: int) -> int:
        sizes = self.engine.park.holdings
        return int(sizes.sum()) if device < 0 else int(sizes[device])

    def _selected(self, node: Select, packet: Packet, tick: int, step: Callable[[Node, Packet, int], Passed]) -> Passed:
        """Choose, and walk the visits to the chosen."""
        found = self.ahead.pop(0) if self.ahead else self._chosen(node, tick, self.visits)
        one = step(choice.visits(node, found), packet, tick)
        return replace(one, resolved=choice.made(node, one.resolved), chosen=(tuple(found),))

    def _chosen(self, node: Select, tick: int, visits: Counter[int]) -> list[int]:
        engine = self.engine
        there = tuple(engine.floor.there(node.candidates)) or node.candidates  # nobody's visits are lost, then
        if len(there) < len(node.candidates):
            node = replace(node, candidates=there, how_many=min(node.how_many, len(there)))
        seen = engine.memory.visits
        return sampling.selected(node, engine.park, engine.seed, self.round, tick, visits, seen, engine.census)

    def _chosen_ahead(self, node: Select, tick: int, turns: int) -> list[list[int]]:
        """Return whom the next turns choose, where that does not hang on what is trained in between.

        A choice costs half as much right after another one: training clears the processor's caches.
        """
        stream = self.engine.park.stream
        if stream.position(tick, 0) != stream.position(tick, 1) or self.engine.floor.at_once:
            return []  # or those to choose from may be gone by then
        visits = Counter({k: self.visits[k] for k in node.candidates})
        found: list[list[int]] = []
        for turn in range(turns):
            found.append(self._chosen(node, tick + turn, visits))
            visits.update(found[-1])
        return found


def _all_chosen(parts: Sequence[Passed]) -> tuple[tuple[int, ...], ...]:
    return tuple(whom for one in parts for whom in one.chosen)
