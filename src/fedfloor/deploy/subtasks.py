"""Subtasks that the cloud sends to edges, and the results and answers that come back, as checked messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor import ranges
from fedfloor.deploy import checks
from fedfloor.deploy.message import Arrays, Message
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.summing import check_sums
from fedfloor.engine import limit, travel
from fedfloor.engine.aggregation import Aggregation, TreeSum
from fedfloor.engine.coding import CodedAggregation
from fedfloor.engine.engine import Engine, Subtask
from fedfloor.engine.limit import HARMLESS, Limit
from fedfloor.engine.questions import Question, question
from fedfloor.engine.ranks import branches_to_json
from fedfloor.engine.summing import SecureAggregation, aggregation_of
from fedfloor.engine.team import Blob
from fedfloor.engine.visit import mixed_part
from fedfloor.errors import SettingError
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts import codecs, mix
from fedfloor.plan import schedule, text, walk
from fedfloor.plan.nodes import Node, Parallel, Probe
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import NodeResult
from fedfloor.ranges import RefusedError


def read(node: Probe, device: int, answer: object, arrays: Arrays, engine: Engine) -> Any:
    """Return a device's answer, JSON or a tensor.

    Args:
        arrays: a vector is ``answer`` of these.

    Raises:
        RefusedError: the question cannot be answered with that.
    """
    asked = question_of(node, "kind")
    if asked.vector:
        vector = _vector(asked.length(engine), arrays, engine)
        with ranges.of("answer"):
            asked.fits(vector, device, engine)
        return vector
    if arrays:
        raise RefusedError("kind", f"arrays came; '{node.what}' is answered in words.")
    with ranges.of("answer"):
        return asked.checked(answer, device, engine)


def question_of(node: Probe, reason: str) -> Question:
    """Return the question that a message names.

    Raises:
        RefusedError: there is none of that name; it is counted under ``reason``.
    """
    try:
        return question(node)
    except SettingError as error:
        raise RefusedError(reason, str(error)) from error


def alike(said: Mapping[int, Any], *, some: bool = False) -> dict[int, RefusedError]:
    """Return whose vector has another length than most have: how many features there are only devices know.

    Where no length is the most frequent, all of these vectors are refused.

    Args:
        said: device → what it answered.
        some: whether these are but some of the devices: then no device is refused where less than half agree.
    """
    sizes = {k: said[k].numel() for k in sorted(said) if isinstance(said[k], torch.Tensor)}
    if len(set(sizes.values())) < 2:
        return {}
    (usual, agree), (_, next_most) = Counter(sizes.values()).most_common(2)
    if some and 2 * agree <= len(sizes):
        return {}
    tie = agree == next_most
    expected = "no length is that of most devices" if tie else f"most devices send {usual}"
    return {
        k: RefusedError("shape", f"{size} numbers came; {expected}.")
        for k, size in sizes.items()
        if tie or size != usual
    }


def _vector(size: int | None, arrays: Arrays, engine: Engine) -> torch.Tensor:
    kind = engine.network.flat.numpy().dtype
    if set(arrays) != {"answer"}:
        raise RefusedError("names", f"{sorted(arrays)} came; 'answer' is waited for.")
    got = arrays["answer"]
    if got.dtype != kind or got.ndim != 1 or not got.size or size not in (None, got.size):
        wanted = "any" if size is None else size
        raise RefusedError("shape", f"{got.dtype} {list(got.shape)} came; {kind} [{wanted}] is waited for.")
    with ranges.of("answer"):
        ranges.vector(got, "it")
    return torch.from_numpy(np.array(got))


Told = dict[str, Any]
SLACK = 4.0  # between an edge's medians, of the devices that it has heard so far, and those of all
ROUNDING = 1e-3  # of float32 sums


@dataclass(frozen=True)
class Standing:
    """What devices keep and how often they were trained, as the cloud knows it."""

    held: Mapping[int, str]
    trained: Mapping[int, int]
    kept: Mapping[int, Sequence[str]]


def standing(engine: Engine, devices: set[int], kept: Mapping[int, set[str]]) -> Told:
    """Return what is to be said of devices before they are visited."""
    memory = engine.memory
    return {
        "held": {str(k): memory.held[k] for k in devices if k in memory.held},
        "trained": {str(k): memory.visits[k] for k in devices if memory.visits[k]},
        "kept": {str(k): sorted(kept[k]) for k in devices if k in kept},
    }


def read_standing(about: Mapping[str, Any]) -> Standing:
    """Return what :func:`standing` said.

    Raises:
        RefusedError: it is something else.
    """
    try:
        held = {int(k): str(one) for k, one in about["held"].items()}
        trained = {int(k): int(one) for k, one in about["trained"].items()}
        return Standing(held, trained, {int(k): [str(one) for one in some] for k, some in about["kept"].items()})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise RefusedError("header", f"it does not say what devices keep: {error}") from error


def subtask(one: Subtask, mine: Sequence[int], names: PartNames) -> tuple[Told, dict[str, NDArray[Any]]]:
    """Return an subtask as a message says it: its header's ``about`` and its arrays."""
    known = {k for index in mine for k in walk.devices(one.node.children[index])}
    heard = {
        str(k): {what: said for what, said in some.items() if not isinstance(said, Tensor)}
        for k, some in one.heard.items()
        if k in known
    }
    about = {
        "plan": names.refer(text.to_json(one.node)), "mine": list(mine), "tick": one.tick, "frozen": one.frozen,
        "heard": heard, "visits": {str(k): n for k, n in one.visits.items() if n},
        "updates": limit.to_json(one.updates),
    }  # fmt: skip
    return about, parcel.pack(one.start)


def read_subtask(message: Message, engine: Engine, names: PartNames) -> tuple[Subtask, list[int]]:
    """Return the subtask of a message, and which branches are meant.

    Raises:
        RefusedError: there is none, or it does not fit the model.
    """
    about, flat = message.about, engine.network.flat
    try:
        node = text.from_json(names.resolve(about["plan"]))
        if not isinstance(node, Parallel):
            raise SettingError(f"plan: it is a {type(node).__name__.lower()}, not a parallel.")
        mine = [int(index) for index in about["mine"]]
        visits = Counter({int(k): int(n) for k, n in about["visits"].items()})
        heard = {int(k): dict(one) for k, one in about["heard"].items()}
        tick, frozen = int(about["tick"]), bool(about["frozen"])
        updates = limit.from_json(about["updates"])
    except (KeyError, ValueError, TypeError, AttributeError, SettingError) as error:
        raise RefusedError("header", f"it holds no subtask: {error}") from error
    if not all(0 <= index < len(node.children) for index in mine):
        raise RefusedError("header", "it does not name branches of a Parallel.")
    start = parcel.unpack(message.arrays)
    if node.travel_down and "w" in start:
        place = schedule.Key(engine.seed, message.round, tick, -1, 0)
        start = dict(travel.at_edge(engine.network, node, start, place))
        node = replace(node, travel_down="")
    if "w" not in start or start["w"].shape != flat.shape or start["w"].dtype != flat.dtype:
        raise RefusedError("shape", "its model is not the experiment's: compare the experiment files.")
    walk.check(node, engine.park.devices)
    return Subtask(node, start, message.round, tick, visits, heard, frozen, updates), mine


def shown(parts: Sequence[Blob], dtype: np.dtype[Any]) -> tuple[Told, dict[str, NDArray[Any]]]:
    """Return what :func:`fedfloor.engine.ranks.share` shows as a message says it: sums are its arrays."""
    words = [json.loads(bytes(one)) if isinstance(one, bytes) else None for one in parts]
    sums = {str(i): np.frombuffer(one, dtype) for i, one in enumerate(parts) if not isinstance(one, bytes)}
    return {"shown": words}, sums


def sums_type(subtask: Subtask, engine: Engine) -> np.dtype[Any]:
    """Return the type by which a message has sums: that of the model, of masked whole numbers, or of payloads."""
    return _aggregation(subtask, engine).wire or engine.network.flat.numpy().dtype


def _aggregation(subtask: Subtask, engine: Engine) -> Aggregation:
    place = schedule.Key(engine.seed, subtask.round, subtask.tick, -1, 0)
    return aggregation_of(engine, subtask.node, subtask.start, place)


@dataclass(frozen=True)
class End:
    """What came out of one branch, or of several that were added up.

    Args:
        weight: what the sums are divided by.
        sums: name → numbers; of the model those of ``within``.
        within: the part of the model that was trained.
    """

    weight: float
    sums: Mapping[str, NDArray[Any]]
    within: Parcel

    def packet(self, start: Packet) -> Packet:
        """Return the mean as a packet; what did not travel is the start's."""
        found = dict(start)
        for name, one in self.sums.items():
            value = torch.from_numpy(one / one.dtype.type(self.weight))
            if name == "w":
                value = self.within.put(value, start["w"])
            found[name] = value.reshape(start[name].shape)
        return found


@dataclass(frozen=True)
class Walked:
    """What an edge shows of its branches, read and checked.

    Args:
        blobs: as :func:`fedfloor.engine.ranks.share` returns them.
        passed: each branch with its choices made, and its receipts.
        ends: what came out of the branches.
    """

    blobs: list[Blob]
    passed: list[NodeResult]
    ends: list[End]


def taken(message: Message, subtask: Subtask, mine: Sequence[int], engine: Engine) -> Walked:
    """Return what an edge showed, once it is known to be of its own devices and in range.

    Args:
        engine: the cloud's.

    Raises:
        RefusedError: it is something else.
    """
    try:
        with ranges.of("header"):
            blobs = _blobs(message)
            passed = _passed(subtask, mine, json.loads(bytes(blobs[0])), engine)
            ends = _ends(subtask, mine, blobs, passed, engine)
            for end in ends if _bounded(subtask.node) else []:
                if why := limit.flaw(engine.network, subtask.start["w"], end.packet(subtask.start)["w"]):
                    raise RefusedError("range", why)
            return Walked([branches_to_json(passed), *blobs[1:]], passed, ends)
    except RefusedError:
        raise
    except Exception as error:  # of any shape: an edge cannot end the run
        raise RefusedError(
            "header", f"its answer does not fit the branches it was sent ({type(error).__name__})."
        ) from error


def _bounded(node: Parallel) -> bool:
    """Return whether every rule that edges apply keeps the mixed model near the models; see :class:`Mix`."""
    inside = [mix.rule(at.mix, at.settings) for child in node.children for at in walk.mixes(child)]
    return all(rule.bounded or not rule.whole for rule in inside)


def _blobs(message: Message) -> list[Blob]:
    words, found = message.about.get("shown"), list[Blob]()
    if not isinstance(words, list) or {str(i) for i, one in enumerate(words) if one is None} != set(message.arrays):
        raise RefusedError("header", "it does not show what was walked.")
    for i, one in enumerate(words):
        found.append(np.array(message.arrays[str(i)]).data.cast("B") if one is None else json.dumps(one).encode())
    return found


def _passed(subtask: Subtask, mine: Sequence[int], told: Any, engine: Engine) -> list[NodeResult]:
    """Return the branches as an edge walked them."""
    before, found = Counter(subtask.visits), dict[int, NodeResult]()
    branches = iter(ranges.rows(told, len(mine), "its branches"))
    for index, child in enumerate(subtask.node.children):
        if index in mine:
            chosen, receipts, answers = ranges.rows(next(branches), 3, "a branch")
            known = schedule.resolved(child, iter(_chosen(child, chosen)))
            found[index] = NodeResult(
                {}, known, _receipts(subtask, known, receipts, before, engine),
                answers=_answers(child, answers, engine), chosen=tuple(map(tuple, chosen)),
            )  # fmt: skip
        before.update(walk.visits(child))
    return [found[index] for index in mine]


def _chosen(child: Node, chosen: Any) -> list[list[int]]:
    """Return whom each Select of a branch chose."""
    places = list(schedule.selects(child))
    for place, some in zip(places, ranges.rows(chosen, len(places), "its choices"), strict=True):
        if not isinstance(some, list) or not 1 <= len(some) <= place.how_many:
            raise RefusedError("header", f"it does not choose 1 to {place.how_many} devices.")
        if len({ranges.whole(k, 0, ranges.COUNT, "a device") for k in some} & set(place.candidates)) < len(some):
            raise RefusedError("device", "it chooses a device twice, or one that was no candidate.")
    return list(chosen)


def _receipts(
    subtask: Subtask, resolved: Node, receipts: Any, before: Counter[int], engine: Engine
) -> list[Receipt]:  # fmt: skip
    """Return the receipts of a branch, one for each visit, in plan order."""
    expected = schedule.in_order(resolved)
    times, found = Counter(one.site.index for one in expected), list[Receipt]()
    ticks = subtask.tick, subtask.tick + walk.span(resolved)
    for visit, row in zip(expected, ranges.rows(receipts, len(expected), "its receipts"), strict=True):
        k = visit.site.index
        known = checks.Known(
            k, (before[k], before[k] + times[k] - 1), ticks, int(engine.park.holdings[k]), visit.work,
            engine.memory.visits[k] + times[k], travel.up(engine.network, visit.work).size(subtask.start),
        )  # fmt: skip
        found.append(checks.receipt(row, known))
    return found


def _answers(child: Node, told: Any, engine: Engine) -> dict[int, dict[str, Any]]:
    """Return what devices of a branch answered in it."""
    probes = {(k, one.what): one for one in walk.probes(child) for k in one.devices}
    found: dict[int, dict[str, Any]] = {}
    if not isinstance(told, list) or len(told) > len(probes):
        raise RefusedError("device", "it shows answers to what was not asked.")
    for device, some in told:
        for what, answer in ranges.table(some, len(probes), "the answers of a device").items():
            if type(device) is not int or (device, what) not in probes:
                raise RefusedError("device", "it shows an answer to what was not asked.")
            found.setdefault(device, {})[what] = read(probes[device, what], device, answer, {}, engine)
    return found


def _ends(
    subtask: Subtask, mine: Sequence[int], blobs: Sequence[Blob], passed: Sequence[NodeResult], engine: Engine
) -> list[End]:
    """Return what came out of the branches: models, and sums by weights that the cloud computes itself."""
    node, start = subtask.node, subtask.start
    meeting = _aggregation(subtask, engine)
    if isinstance(meeting, SecureAggregation):
        check_sums(meeting, blobs, {i for i, one in zip(mine, passed, strict=True) if trained(one)})
        return []
    rule, part = mix.rule(node.mix, node.settings), mixed_part(engine.network, node)
    within = part or engine.network.parcel("all")
    samples = {i: sum(int(engine.park.holdings[k]) for k in trained(one)) for i, one in zip(mine, passed, strict=True)}
    if isinstance(meeting, CodedAggregation):
        meeting.take([memoryview(blob) for blob in blobs[1:]])
        if meeting.samples != samples:
            raise RefusedError("header", "the weights that it shows are not those of its devices' samples.")
        return [End(1.0, {"w": meeting.model(i).numpy()}, within) for i in mine if samples[i]]
    tree, names = TreeSum(len(node.children)), [name for name in start if name != "w" or not rule.whole]
    for index in mine:
        tree.add(index, {name: torch.zeros(0) for name in names}, mix.weigh(rule, samples[index]))
    wanted = [[i for i in mine if samples[i]] if rule.whole else [], json.loads(bytes(tree.unfinished()[0]))]
    indices = json.loads(bytes(blobs[1]))
    heads = json.loads(bytes(blobs[2 + len(indices)]))
    if json.dumps([sorted(indices), sorted(heads)]) != json.dumps([wanted[0], sorted(wanted[1])]):
        raise RefusedError("header", "the weights that it shows are not those of its devices' samples.")
    ends = [(1.0, ["w"]) for _ in indices]
    ends += [(weight, of) for _, _, weight, of in heads if of]
    arrays, found = iter([*blobs[2 : 2 + len(indices)], *blobs[3 + len(indices) :]]), list[End]()
    for weight, of in ends:
        sums = {name: np.frombuffer(next(arrays), start[name].numpy().dtype) for name in of}
        for name, one in sums.items():
            wide = within.numbers if name == "w" else start[name].numel()
            if one.size != wide:
                raise RefusedError("shape", f"it shows {one.size} numbers of '{name}'; {wide} are waited for.")
        found.append(End(weight, sums, within))
    if next(arrays, None) is not None:
        raise RefusedError("shape", "it shows more than what was walked.")
    return found


def trained(one: NodeResult) -> set[int]:
    """Return the devices whose visits in a branch were not lost."""
    return {receipt.device for receipt in one.receipts if not receipt.lost}


def check_lengths(walked: Walked, subtask: Subtask, known: Limit, engine: Engine) -> None:
    """Refuse an edge's answer whose updates are longer than any that its own check can have accepted.

    Each update that it states must be about in range, and what comes out no farther from the start than the updates of
    the branch with the longest ones together: true of every mean, and of every rule of the edges that is ``bounded``.
    With others this is not checked.

    Args:
        engine: the cloud's.

    Raises:
        RefusedError: it is.
    """
    network, node, scope = engine.network, subtask.node, next(iter(walk.scopes(subtask.node)), "all")
    start = subtask.start if node.travel else _aggregation(subtask, engine).given
    longer = 1 + ROUNDING + sum(codec.error for codec in codecs.chain(node.travel))
    before = limit.parts(network, scope, start, start)
    farthest = [0.0] * len(before)
    for one in walked.passed:
        total = [0.0] * len(before)
        for receipt in one.receipts:
            if receipt.lost:
                continue
            if len(receipt.update) != 1 + len(before):
                raise RefusedError("length", f"it does not state how long the update of device {receipt.device} is.")
            total = [a + b for a, b in zip(total, receipt.update[1:], strict=True)]
            for place, part in enumerate(before, 1):
                if receipt.update[place] > SLACK * known.most(scope, place, receipt.update, part):
                    raise RefusedError("length", f"it took an update of device {receipt.device} that is too long.")
        farthest = [max(a, b) for a, b in zip(farthest, total, strict=True)]
    for end in walked.ends if _bounded(subtask.node) else []:
        for part, most in zip(limit.parts(network, scope, start, end.packet(start)), farthest, strict=True):
            if part.length > most * longer + ROUNDING * HARMLESS * part.own:
                raise RefusedError("length", "its models are farther from the start than its updates together.")


def answered(message: Message, node: Probe, mine: Sequence[int], engine: Engine) -> dict[int, Any]:
    """Return what an edge says that its devices answered to a question, checked as the edge checks it.

    Args:
        engine: the cloud's.

    Raises:
        RefusedError: it is of other devices, or cannot be an answer.
    """
    words = message.about.get("answers", {})
    if not isinstance(words, dict):
        raise RefusedError("header", "it does not show what was answered.")
    known = {str(k): k for k in mine}
    strange = sorted((set(words) | set(message.arrays)) - set(known))
    if strange:
        raise RefusedError("device", f"it shows answers of {strange}, whom it was not to ask.")
    vectors = {known[k]: read(node, known[k], None, {"answer": v}, engine) for k, v in message.arrays.items()}
    return vectors | {known[k]: read(node, known[k], one, {}, engine) for k, one in words.items()}
