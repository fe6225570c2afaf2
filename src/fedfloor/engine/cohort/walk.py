"""The walk of :mod:`fedfloor.engine.ranks` in lockstep: every branch goes on until it has a visit to ask for.

A branch is a generator. It yields the visits that it waits for, and is sent what became of them; a ``Parallel`` yields
those of all its branches together. So chains of any length, turns, choices and meetings within meetings come to lists
of visits that happen at the same time, and what is alike in such a list is stacked.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, cast

from fedfloor.engine import scopes
from fedfloor.engine.cohort.asks import Answer, Ask, Owed, Uniting, Visiting, Walking
from fedfloor.engine.meeting import Meeting
from fedfloor.engine.passed import Passed, merged
from fedfloor.engine.probe import no_vector
from fedfloor.engine.team import Alone
from fedfloor.engine.tree import Packet
from fedfloor.engine.visit import Key, Trained, is_lost
from fedfloor.plan import choice, walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Repeat, Select, Train
from fedfloor.plan.outcome import Receipt

if TYPE_CHECKING:
    from fedfloor.engine.engine import Engine
    from fedfloor.engine.ranks import _Walk as Job

AHEAD = 16  # turns: see fedfloor.engine.ranks
Do = Callable[[list[Ask]], list[Answer]]


def driven(walking: Generator[list[Ask], list[Answer], Passed], do: Do) -> Passed:
    """Walk to the end, and do what is asked for on the way."""
    try:
        asked = next(walking)
        while True:
            asked = walking.send(do(asked))
    except StopIteration as stop:
        return cast(Passed, stop.value)


def lockstep(walks: Sequence[Walking]) -> Generator[list[Ask], list[Answer], list[Passed]]:
    """Walk several branches at the same time; return what came out of each."""
    done: dict[int, Passed] = {}
    answers: dict[int, list[Answer] | None] = dict.fromkeys(range(len(walks)))
    while answers:
        asked: dict[int, list[Ask]] = {}
        for index, answer in answers.items():
            try:
                asked[index] = next(walks[index]) if answer is None else walks[index].send(answer)
            except StopIteration as stop:
                done[index] = stop.value
        got = iter((yield [one for asks in asked.values() for one in asks])) if asked else iter(())
        answers = {index: list(islice(got, len(asks))) for index, asks in asked.items()}
    return [done[index] for index in range(len(walks))]


def walked(job: Job, node: Node, packet: Packet, tick: int, room: int) -> Walking:
    """Walk a node.

    Args:
        job: of the branch: its visits, what it heard, its engine with the devices' memory as the branch knows it.
        node: what to do.
        packet: what goes in.
        tick: the park's clock.
        room: how many models there is room for at a time.
    """
    if isinstance(node, Train):
        return (yield from _visit(job, node, packet, tick))
    if isinstance(node, Select):
        found = job.ahead.pop(0) if job.ahead else job._chosen(node, tick, job.visits)
        one = yield from walked(job, choice.visits(node, found), packet, tick, room)
        return replace(one, resolved=choice.made(node, one.resolved), chosen=(tuple(found),))
    if isinstance(node, Parallel):
        if job.engine.cohort is not None and job.engine.cohort.unites(job.engine, node, packet):
            return (yield from _together(job, node, packet, tick))
        meeting, done = yield from branches(job, node, packet, tick, range(len(node.children)), room)
        return job._met(node, meeting, done)
    if isinstance(node, Broadcast):
        return Passed(packet, node)
    if isinstance(node, Probe):
        return job._ask(node, packet, tick, Alone())
    return (yield from _in_turn(job, node, packet, tick, room))


def branches(
    job: Job, node: Parallel, packet: Packet, tick: int, mine: Collection[int], room: int
) -> Generator[list[Ask], list[Answer], tuple[Meeting, list[Passed]]]:
    """Walk the branches ``mine`` of a ``Parallel``, as many at a time as there is room for, in plan order."""
    meeting, done = Meeting(node, packet, scopes.met(job.engine.network, node)), list[Passed]()
    width, last = max(1, min(room, len(mine))), max(mine, default=-1)
    around = walk.beside(node) if job.engine.air is not None and not any(map(walk.meets, node.children)) else None
    ahead: Counter[int] = Counter()
    apart: list[tuple[int, Walking]] = []
    for index, child in enumerate(node.children):
        if index in mine:
            twin = _apart(job, child, ahead)
            twin.beside = list(around[index]) if around else []
            apart.append((index, walked(twin, child, packet, tick, max(1, room // width))))
        ahead.update(walk.visits(child))
        ahead[-1] += walk.cloud_visits(child)
        if len(apart) == width or (apart and index == last):
            met = yield from lockstep([one for _, one in apart])
            for (place, _), one in zip(apart, met, strict=True):
                no_vector(one.answers)
                meeting.add(place, one.packet, sum(job._size(k) for k in one.trained))
                done.append(replace(one, packet={}))
            apart = []
    return meeting, done


def _apart(job: Job, child: Node, ahead: Counter[int]) -> Job:
    """Return the job of a branch: branches happen at the same time, none sees what another leaves on a device."""
    known = {*walk.devices(child), -1}
    twin = copy.copy(job)
    twin.engine = copy.copy(job.engine)
    twin.engine.memory = job.engine.memory.seen_by(known)
    twin.visits = Counter({k: job.visits[k] + ahead[k] for k in known})
    twin.ahead = []
    return twin


def _in_turn(job: Job, node: Node, packet: Packet, tick: int, room: int) -> Walking:
    """Walk a chain: each child starts where and when the last one ended."""
    turns = (node.child,) * node.times if isinstance(node, Repeat) else walk.children(node)
    done: list[Passed] = []
    for left, child in zip(range(len(turns), 0, -1), turns, strict=True):
        if isinstance(node, Repeat) and isinstance(child, Select) and node.tick and not job.ahead:
            job.ahead = job._chosen_ahead(child, tick, min(left, AHEAD))
        one = yield from walked(job, child, packet, tick, room)
        packet = one.packet
        done.append(replace(one, packet={}))
        tick += max(1, walk.span(child)) if isinstance(node, Repeat) and node.tick else walk.span(child)
    return Passed(
        packet,
        walk.rebuilt(node, [one.resolved for one in done]),
        [receipt for one in done for receipt in one.receipts],
        frozenset().union(*(one.trained for one in done)),
        merged([one.answers for one in done]),
        tuple(whom for one in done for whom in one.chosen),
    )


def _visit(job: Job, node: Train, packet: Packet, tick: int) -> Walking:
    engine = job.engine
    device = node.site.index if node.site.kind == "device" else -1
    key = Key(engine.seed, job.round, tick, device, job.visits[device])
    job.visits[device] += 1
    size = scopes.sent_bytes(engine.network, node.work.scope, packet) if node.work.sends else 0
    others = job.beside.pop(0) if job.beside else ()
    if device >= 0 and job._is_lost(node, others, key):
        return Passed(packet, node, [_lost(engine, key, size)])
    (got,) = yield [Visiting(engine, node.work, packet, key)]
    owed = Owed(device, key.visit, tick, got.samples, size, got.memory, lambda: got.told()[0])
    return Passed(got.packet, node, [cast(Receipt, owed)], frozenset({device}))


def _together(job: Job, node: Parallel, packet: Packet, tick: int) -> Walking:
    """Walk a super node: visits of one step, done as one step on the union of their mini-batches."""
    engine, known = job.engine, [one.site.index for one in cast("tuple[Train, ...]", node.children)]
    keys = [Key(engine.seed, job.round, tick, k, job.visits[k]) for k in known]
    went = [key for key in keys if not is_lost(key, engine.loss_chance)]
    size = scopes.sent_bytes(engine.network, "all", packet)
    job.visits.update(known)
    if not went:
        return Passed(packet, node, [_lost(engine, key, size) for key in keys])
    (got,) = yield [Uniting(engine, node, packet, tuple(went))]
    place = {key.device: index for index, key in enumerate(went)}

    def told(device: int) -> Callable[[], Trained]:
        return lambda: got.told()[place[device]]

    held = engine.park.holdings
    receipts = [
        cast(Receipt, Owed(k.device, k.visit, tick, int(held[k.device]), size, None, told(k.device)))
        if k.device in place
        else _lost(engine, k, size)
        for k in keys
    ]
    engine.memory.visits.update(list(place))
    return Passed(got.packet, node, receipts, frozenset(place))


def _lost(engine: Engine, key: Key, size: int) -> Receipt:
    held = int(engine.park.holdings[key.device])
    return Receipt(key.device, key.visit, key.tick, 0, held, 0.0, 0.0, 0.0, size, lost=True)
