"""Subtasks from the cloud to edges, and the edges' results and answers, as checked messages."""

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

from fedfloor.base import ranges
from fedfloor.base.errors import MALFORMED, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks
from fedfloor.deploy.message import Arrays, Message
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.summing import check_sums
from fedfloor.engine import limit
from fedfloor.engine.aggregation import Aggregation, TreeSum
from fedfloor.engine.engine import Engine, Subtask
from fedfloor.engine.limit import HARMLESS, Limit
from fedfloor.engine.questions import Question, question
from fedfloor.engine.ranks import branches_to_json
from fedfloor.engine.summing import SecureAggregation, aggregation_of
from fedfloor.engine.team import Blob
from fedfloor.engine.travel import EdgePath, VisitPath
from fedfloor.engine.visit import mixed_part
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts.mixing import mix
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.travel import chains
from fedfloor.plan import schedule, text, visit_order, walk
from fedfloor.plan.nodes import Node, Parallel, Probe
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import NodeResult


def read_answer(node: Probe, device: int, answer: object, arrays: Arrays, engine: Engine) -> Any:
    """Return a device's checked answer to a question: a vector if the question is for a vector, otherwise JSON.

    Args:
        answer: the received JSON.
        arrays: the arrays of the answer's message; a vector is the one named ``answer``.

    Raises:
        RefusedError: the answer does not fit the question.
    """
    expected = question_of(node, "kind")
    if not expected.vector:
        if arrays:
            raise RefusedError("kind", f"received arrays; the answer to '{node.what}' is JSON without arrays.")
        with ranges.of("answer"):
            return expected.checked(answer, device, engine)
    kind = engine.network.flat.numpy().dtype
    size = expected.length(engine)
    if set(arrays) != {"answer"}:
        raise RefusedError("names", f"received {sorted(arrays)}, expected one array, 'answer'.")
    array = arrays["answer"]
    if array.dtype != kind or array.ndim != 1 or not array.size or size not in (None, array.size):
        length = "any" if size is None else size
        raise RefusedError("shape", f"received {array.dtype} {list(array.shape)}, expected {kind} [{length}].")
    with ranges.of("answer"):
        ranges.vector(array, "it")
        vector = torch.from_numpy(np.array(array))
        expected.fits(vector, device, engine)
    return vector


def question_of(node: Probe, reason: str) -> Question:
    """Return the question of a probe.

    Raises:
        RefusedError: its name is unknown; counted under ``reason``.
    """
    try:
        return question(node)
    except SettingError as error:
        raise RefusedError(reason, str(error)) from error


def length_refusals(answers: Mapping[int, Any], *, some: bool = False) -> dict[int, RefusedError]:
    """Return a refusal for each device whose vector differs in length from the majority's: device → refusal.

    Only devices have the number of features, so that it can be checked only by comparison. If two lengths are
    equally frequent, all vectors are refused.

    Args:
        answers: device → answer; only vectors are compared.
        some: whether these are only a part of the devices; then none is refused without an absolute majority.
    """
    sizes = {k: answers[k].numel() for k in sorted(answers) if isinstance(answers[k], torch.Tensor)}
    if len(set(sizes.values())) < 2:
        return {}
    (usual, agree), (_, next_most) = Counter(sizes.values()).most_common(2)
    if some and 2 * agree <= len(sizes):
        return {}
    tie = agree == next_most
    expected = "the devices agree on no length" if tie else f"most devices send {usual}"
    return {
        k: RefusedError("shape", f"received {size} numbers; {expected}.")
        for k, size in sizes.items()
        if tie or size != usual
    }


About = dict[str, Any]  # the ``about`` of a message's header
SLACK = 4.0  # tolerated ratio between the median of an edge or of the devices so far, and that of all devices
ROUNDING = 1e-3  # relative error of float32 sums


def device_states(engine: Engine, devices: set[int], kept: Mapping[int, set[str]]) -> About:
    """Return the cloud's record of the devices' state as JSON for a message to an edge.

    It has the digest of a device's memory, the number of its local updates so far in the run, and the digests of its
    memories to which checkpoints refer, each by device.
    """
    memory = engine.memory
    return {
        "held": {str(k): memory.held[k] for k in devices if k in memory.held},
        "trained": {str(k): memory.visits[k] for k in devices if memory.visits[k]},
        "kept": {str(k): sorted(kept[k]) for k in devices if k in kept},
    }


def restore_device_states(about: Mapping[str, Any], engine: Engine) -> Mapping[int, Sequence[str]]:
    """Set an engine's memory to the state of :func:`device_states`; return the digests to which checkpoints refer.

    Raises:
        RefusedError: the state is missing or malformed.
    """
    try:
        held = {int(k): str(value) for k, value in about["held"].items()}
        trained = {int(k): int(value) for k, value in about["trained"].items()}
        kept = {int(k): [str(value) for value in digests] for k, digests in about["kept"].items()}
    except MALFORMED as error:
        raise RefusedError("header", f"its state of devices is malformed: {error}") from error
    engine.memory.held = held
    engine.memory.visits.clear()
    engine.memory.visits.update(trained)
    return kept


def subtask_message(
    subtask: Subtask, branches: Sequence[int], names: PartNames
) -> tuple[About, dict[str, NDArray[Any]]]:
    """Return a subtask as a message: its header's ``about`` and its arrays.

    Args:
        branches: indices of the receiver's branches.
    """
    known = {k for index in branches for k in walk.devices(subtask.node.children[index])}
    heard = {
        str(k): {what: answer for what, answer in answers.items() if not isinstance(answer, Tensor)}
        for k, answers in subtask.heard.items()
        if k in known
    }
    about = {
        "plan": names.refer(text.to_json(subtask.node)), "mine": list(branches), "tick": subtask.tick,
        "frozen": subtask.frozen, "heard": heard, "visits": {str(k): n for k, n in subtask.visits.items() if n},
        "updates": limit.to_json(subtask.updates),
    }  # fmt: skip
    return about, parcel.pack(subtask.start)


def read_subtask(message: Message, engine: Engine, names: PartNames) -> tuple[Subtask, list[int]]:
    """Return the subtask of a message, and the indices of the branches to carry out.

    Raises:
        RefusedError: the subtask is malformed, or does not fit the model.
    """
    about = message.about
    flat = engine.network.flat
    try:
        node = text.from_json(names.resolve(about["plan"]))
        if not isinstance(node, Parallel):
            raise SettingError(f"plan: it is a {type(node).__name__.lower()}, not a parallel.")
        mine = [int(index) for index in about["mine"]]
        visits = Counter({int(k): int(n) for k, n in about["visits"].items()})
        heard = {int(k): dict(one) for k, one in about["heard"].items()}
        tick = int(about["tick"])
        frozen = bool(about["frozen"])
        updates = limit.from_json(about["updates"])
    except (SettingError, *MALFORMED) as error:
        raise RefusedError("header", f"its subtask is malformed: {error}") from error
    if not all(0 <= index < len(node.children) for index in mine):
        raise RefusedError("header", "its indices are not of branches of the Parallel.")
    start = parcel.unpack(message.arrays)
    if node.travel_down and "w" in start:
        place = schedule.Key(engine.seed, message.round, tick, -1, 0)
        start = dict(EdgePath(engine.network, node, place).receive(start))
        node = replace(node, travel_down="")
    if "w" not in start or start["w"].shape != flat.shape or start["w"].dtype != flat.dtype:
        raise RefusedError("shape", "its model is not the experiment's: compare the experiment files.")
    walk.check(node, engine.park.devices)
    return Subtask(node, start, message.round, tick, visits, heard, frozen, updates), mine


def results_message(
    parts: Sequence[Blob], subtask: Subtask, engine: Engine
) -> tuple[About, dict[str, NDArray[Any]]]:  # fmt: skip
    """Return the result of :func:`fedfloor.engine.ranks.share` as a message: ``about``, and the sums as arrays.

    Sums have the type of the model, of masked integers, or of a codec's payloads.
    """
    dtype = subtask_aggregation(subtask, engine).wire or engine.network.flat.numpy().dtype
    words = [json.loads(bytes(part)) if isinstance(part, bytes) else None for part in parts]
    sums = {str(i): np.frombuffer(part, dtype) for i, part in enumerate(parts) if not isinstance(part, bytes)}
    return {"shown": words}, sums


def subtask_aggregation(subtask: Subtask, engine: Engine) -> Aggregation:
    """Return the aggregation of a subtask's branches."""
    place = schedule.Key(engine.seed, subtask.round, subtask.tick, -1, 0)
    return aggregation_of(engine, subtask.node, subtask.start, place)


@dataclass(frozen=True)
class MergedResult:
    """The result of one branch, or the sum of several results.

    Args:
        weight: sum of the weights, by which the sums are divided.
        sums: name → weighted sums; those of the model cover ``within``.
        within: the trained part of the model.
    """

    weight: float
    sums: Mapping[str, NDArray[Any]]
    within: Parcel

    def packet(self, start: Packet) -> Packet:
        """Return the mean as a packet; tensors that were not returned are those of ``start``."""
        packet = dict(start)
        for name, numbers in self.sums.items():
            value = torch.from_numpy(numbers / numbers.dtype.type(self.weight))
            if name == "w":
                value = self.within.put(value, start["w"])
            packet[name] = value.reshape(start[name].shape)
        return packet


@dataclass(frozen=True)
class BranchResults:
    """An edge's checked results of its branches.

    Args:
        blobs: as returned by :func:`fedfloor.engine.ranks.share`.
        branches: each branch with its choices and its receipts.
        merged: the models of the branches.
    """

    blobs: list[Blob]
    branches: list[NodeResult]
    merged: list[MergedResult]


def read_results(message: Message, subtask: Subtask, indices: Sequence[int], engine: Engine) -> BranchResults:
    """Return an edge's results of its branches, checked for devices and ranges.

    Args:
        engine: the cloud's engine.

    Raises:
        RefusedError: the results are malformed, of other devices or branches, or out of range.
    """
    try:
        with ranges.of("header"):
            shown = message.about.get("shown")
            if not isinstance(shown, list) or {str(i) for i, v in enumerate(shown) if v is None} != set(message.arrays):
                raise RefusedError("header", "the results of its branches are missing.")
            blobs: list[Blob] = [
                np.array(message.arrays[str(i)]).data.cast("B") if value is None else json.dumps(value).encode()
                for i, value in enumerate(shown)
            ]
            branches = checked_branches(subtask, indices, json.loads(bytes(blobs[0])), engine)
            merged = branch_ends(subtask, indices, blobs, branches, engine)
            travel = "".join([subtask.node.travel, *(work.travel for work in walk.works(subtask.node))])
            for result in merged if bounded(subtask.node) else []:
                both = engine.network, subtask.start["w"], result.packet(subtask.start)["w"]
                if why := limit.flaw(*both) or limit.implausible(*both, travel):
                    raise RefusedError("range", why)
            return BranchResults([branches_to_json(branches), *blobs[1:]], branches, merged)
    except RefusedError:
        raise
    except Exception as error:  # no result of an edge may end the run
        raise RefusedError(
            "header", f"its answer does not fit the branches it was sent ({type(error).__name__})."
        ) from error


def bounded(node: Parallel) -> bool:
    """Return whether all mixing rules at edges keep the result near the mixed models; see :class:`Mix`."""
    inside = [mixing.rule(at.mix, at.settings) for child in node.children for at in walk.mixes(child)]
    return all(rule.bounded or not rule.whole for rule in inside)


def checked_branches(subtask: Subtask, indices: Sequence[int], rows: Any, engine: Engine) -> list[NodeResult]:
    """Return an edge's branches with choices, receipts and answers, each checked against the plan.

    Args:
        rows: the received choices of the Selects, receipts and answers of each branch.
    """
    before = Counter(subtask.visits)
    results = dict[int, NodeResult]()
    branches = iter(ranges.rows(rows, len(indices), "its branches"))
    for index, child in enumerate(subtask.node.children):
        if index in indices:
            chosen, receipts, answers = ranges.rows(next(branches), 3, "a branch")
            check_choices(child, chosen)
            known = schedule.resolved(child, iter(chosen))
            results[index] = NodeResult(
                {}, known, checked_receipts(subtask, known, receipts, before, engine),
                answers=checked_answers(child, answers, engine), chosen=tuple(map(tuple, chosen)),
            )  # fmt: skip
        before.update(walk.visits(child))
    return [results[index] for index in indices]


def check_choices(child: Node, chosen: Any) -> None:
    """Check that each Select's choices are candidates, without duplicates and within its limit; else refuse them."""
    places = list(visit_order.selects(child))
    for place, devices in zip(places, ranges.rows(chosen, len(places), "its choices"), strict=True):
        if not isinstance(devices, list) or not 1 <= len(devices) <= place.how_many:
            raise RefusedError("header", f"the number of its choices is not 1 to {place.how_many}.")
        if len({ranges.whole(k, 0, ranges.COUNT, "a device") for k in devices} & set(place.candidates)) < len(devices):
            raise RefusedError("device", "it chooses a device twice, or one that is not a candidate.")


def checked_receipts(
    subtask: Subtask, resolved: Node, receipts: Any, before: Counter[int], engine: Engine
) -> list[Receipt]:  # fmt: skip
    """Return the checked receipts of a branch, one for each visit, in the order of the plan."""
    expected = visit_order.in_order(resolved)
    times = Counter(visit.site.index for visit in expected)
    checked = list[Receipt]()
    ticks = subtask.tick, subtask.tick + walk.span(resolved)
    for visit, row in zip(expected, ranges.rows(receipts, len(expected), "its receipts"), strict=True):
        k = visit.site.index
        known = checks.Known(
            k, (before[k], before[k] + times[k] - 1), ticks, int(engine.park.holdings[k]), visit.work,
            engine.memory.visits[k] + times[k], VisitPath(engine.network, visit.work).up.size(subtask.start),
        )  # fmt: skip
        checked.append(checks.receipt(row, known))
    return checked


def checked_answers(child: Node, answers: Any, engine: Engine) -> dict[int, dict[str, Any]]:
    """Return the checked answers of devices to the questions of a branch: device → question → answer."""
    probes = {(k, probe.what): probe for probe in walk.probes(child) for k in probe.devices}
    checked: dict[int, dict[str, Any]] = {}
    if not isinstance(answers, list) or len(answers) > len(probes):
        raise RefusedError("device", "it holds answers to questions that are not in the plan.")
    for device, given in answers:
        for what, answer in ranges.table(given, len(probes), "the answers of a device").items():
            if type(device) is not int or (device, what) not in probes:
                raise RefusedError("device", "it holds an answer to a question that is not in the plan.")
            checked.setdefault(device, {})[what] = read_answer(probes[device, what], device, answer, {}, engine)
    return checked


def branch_ends(
    subtask: Subtask, indices: Sequence[int], blobs: Sequence[Blob], branches: Sequence[NodeResult], engine: Engine
) -> list[MergedResult]:
    """Return the models of the branches, after comparing their weights with those computed at the cloud."""
    node = subtask.node
    start = subtask.start
    devices = {
        i: {receipt.device for receipt in branch.receipts if not receipt.lost}
        for i, branch in zip(indices, branches, strict=True)
    }
    aggregation = subtask_aggregation(subtask, engine)
    if isinstance(aggregation, SecureAggregation):
        check_sums(aggregation, blobs, {i for i, some in devices.items() if some})
        return []
    rule = mixing.rule(node.mix, node.settings)
    part = mixed_part(engine.network, node)
    within = part or engine.network.parcel("all")
    samples = {i: sum(int(engine.park.holdings[k]) for k in some) for i, some in devices.items()}
    coded = aggregation.path is not None
    tree = TreeSum(len(node.children))
    names = [name for name in start if name != "w" or not rule.whole]
    for index in () if coded else indices:
        tree.add(index, {name: torch.zeros(0) for name in names}, mix.weigh(rule, samples[index]))
    each = [i for i in indices if samples[i]] if coded or rule.whole else []
    expected = [each, json.loads(bytes(tree.unfinished()[0]))]
    models = json.loads(bytes(blobs[1]))
    heads = json.loads(bytes(blobs[2 + len(models)]))
    if json.dumps([sorted(models), sorted(heads)]) != json.dumps([expected[0], sorted(expected[1])]):
        raise RefusedError("header", "its weights differ from those of its devices' samples.")
    if coded:
        if len(blobs) > 3 + len(models):
            raise RefusedError("shape", "it holds more arrays than its branches have.")
        aggregation.take([memoryview(blob) for blob in blobs[1:]])
        return [MergedResult(1.0, {"w": aggregation.model(i).numpy()}, within) for i in models]
    shapes = [(1.0, ["w"]) for _ in models]
    shapes += [(weight, tensors) for _, _, weight, tensors in heads if tensors]
    arrays = iter([*blobs[2 : 2 + len(models)], *blobs[3 + len(models) :]])
    results = list[MergedResult]()
    for weight, tensors in shapes:
        sums = {name: np.frombuffer(next(arrays), start[name].numpy().dtype) for name in tensors}
        for name, numbers in sums.items():
            wide = within.numbers if name == "w" else start[name].numel()
            if numbers.size != wide:
                raise RefusedError("shape", f"received {numbers.size} numbers of '{name}', expected {wide}.")
        results.append(MergedResult(weight, sums, within))
    if next(arrays, None) is not None:
        raise RefusedError("shape", "it holds more arrays than its branches have.")
    return results


def check_lengths(result: BranchResults, subtask: Subtask, known: Limit, engine: Engine) -> None:
    """Refuse an edge's answer with updates longer than its own check can have accepted.

    Each stated update must be within a tolerance of the limit, and each result no farther from the start than the
    longest sum of the updates of one branch, as for every mean and every ``bounded`` rule of the edges. Results of
    other rules are not checked, and secure sums where they are settled.

    Args:
        known: the cloud's limit from all updates so far.
        engine: the cloud's engine.

    Raises:
        RefusedError: an update or a result is too long.
    """
    network = engine.network
    node = subtask.node
    scope = next(iter(walk.scopes(subtask.node)), "all")
    aggregation = subtask_aggregation(subtask, engine)
    if isinstance(aggregation, SecureAggregation):
        return
    start = subtask.start if node.travel else aggregation.given
    longer = 1 + ROUNDING + sum(codec.error for codec in chains.chain(node.travel))
    before = known.parts(network, scope, start, start)
    farthest = [0.0] * len(before)
    for branch in result.branches:
        total = [0.0] * len(before)
        for receipt in branch.receipts:
            if receipt.lost:
                continue
            if len(receipt.update) != 1 + len(before):
                raise RefusedError("length", f"it does not state the length of the update of device {receipt.device}.")
            total = [a + b for a, b in zip(total, receipt.update[1:], strict=True)]
            for place, part in enumerate(before, 1):
                if receipt.update[place] > SLACK * known.most(scope, place, receipt.update, part):
                    raise RefusedError("length", f"it accepted an update of device {receipt.device} that is too long.")
        farthest = [max(a, b) for a, b in zip(farthest, total, strict=True)]
    for merged in result.merged if bounded(subtask.node) else []:
        for part, most in zip(known.parts(network, scope, start, merged.packet(start)), farthest, strict=True):
            if part.length > most * longer + ROUNDING * HARMLESS * part.own:
                raise RefusedError("length", "its models are farther from the start than the sum of its updates.")


def read_answers(message: Message, node: Probe, devices: Sequence[int], engine: Engine) -> dict[int, Any]:
    """Return the answers of an edge's devices to a question, checked as at the edge: device → answer.

    Args:
        devices: the devices that the question was for.
        engine: the cloud's engine.

    Raises:
        RefusedError: an answer is of another device, or does not fit the question.
    """
    answers = message.about.get("answers", {})
    if not isinstance(answers, dict):
        raise RefusedError("header", "the answers of its devices are missing.")
    known = {str(k): k for k in devices}
    strange = sorted((set(answers) | set(message.arrays)) - set(known))
    if strange:
        raise RefusedError("device", f"it holds answers of devices that received no question: {strange}.")
    vectors = {known[k]: read_answer(node, known[k], None, {"answer": v}, engine) for k, v in message.arrays.items()}
    return vectors | {known[k]: read_answer(node, known[k], answer, {}, engine) for k, answer in answers.items()}
