"""What the cloud asks of an edge, and what the edge shows of it, as messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.deploy import answers, packing
from fedfloor.deploy.message import Message, RefusedError
from fedfloor.engine import limit, scopes
from fedfloor.engine.engine import Engine
from fedfloor.engine.floor import Errand
from fedfloor.engine.meeting import Meeting
from fedfloor.engine.passed import heard_of
from fedfloor.engine.team import Blob
from fedfloor.errors import SettingError
from fedfloor.plan import text, walk
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Select, Train

Told = dict[str, Any]


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


def errand(one: Errand, mine: Sequence[int]) -> tuple[Told, dict[str, NDArray[Any]]]:
    """Return an errand as a message says it: its header's ``about`` and its arrays."""
    known = {k for index in mine for k in walk.devices(one.node.children[index])}
    heard = {
        str(k): {what: said for what, said in some.items() if not isinstance(said, Tensor)}
        for k, some in one.heard.items()
        if k in known
    }
    about = {
        "plan": text.to_json(one.node), "mine": list(mine), "tick": one.tick, "frozen": one.frozen, "heard": heard,
        "visits": {str(k): n for k, n in one.visits.items() if n}, "updates": limit.to_json(one.updates),
    }  # fmt: skip
    return about, packing.arrays(one.start, slice(0, one.start["w"].numel()))


def read_errand(message: Message, engine: Engine) -> tuple[Errand, list[int]]:
    """Return the errand of a message, and which branches are meant.

    Raises:
        RefusedError: there is none, or it does not fit the model.
    """
    about, flat = message.about, engine.network.flat
    try:
        node = text.from_json(about["plan"])
        mine = [int(index) for index in about["mine"]]
        visits = Counter({int(k): int(n) for k, n in about["visits"].items()})
        heard = {int(k): dict(one) for k, one in about["heard"].items()}
        tick, frozen = int(about["tick"]), bool(about["frozen"])
        updates = limit.from_json(about["updates"])
    except (KeyError, ValueError, TypeError, AttributeError, SettingError) as error:
        raise RefusedError("header", f"it holds no errand: {error}") from error
    if not isinstance(node, Parallel) or not all(0 <= index < len(node.children) for index in mine):
        raise RefusedError("header", "it does not name branches of a Parallel.")
    start = packing.tensors(message.arrays)
    if "w" not in start or start["w"].shape != flat.shape or start["w"].dtype != flat.dtype:
        raise RefusedError("shape", "its model is not the experiment's: compare the experiment files.")
    walk.check(node, engine.park.devices)
    return Errand(node, start, message.round, tick, visits, heard, frozen, updates), mine


def shown(parts: Sequence[Blob], dtype: np.dtype[Any]) -> tuple[Told, dict[str, NDArray[Any]]]:
    """Return what :func:`fedfloor.engine.ranks.share` shows as a message says it: sums are its arrays."""
    words = [json.loads(bytes(one)) if isinstance(one, bytes) else None for one in parts]
    sums = {str(i): np.frombuffer(one, dtype) for i, one in enumerate(parts) if not isinstance(one, bytes)}
    return {"shown": words}, sums


def read_shown(message: Message, sizes: set[int]) -> list[Blob]:
    """Return what an edge showed.

    Args:
        message: its answer.
        sizes: how many numbers a sum may have.

    Raises:
        RefusedError: it is something else.
    """
    words = message.about.get("shown")
    if (
        not isinstance(words, list)
        or not words
        or {str(i) for i, one in enumerate(words) if one is None} != set(message.arrays)
    ):
        raise RefusedError("header", "it does not show what was walked.")
    strange = [one.size for one in message.arrays.values() if one.size not in sizes]
    if strange:
        raise RefusedError("shape", f"it shows sums of {strange[0]} numbers; {sorted(sizes)} are waited for.")
    found: list[Blob] = []
    for i, one in enumerate(words):
        found.append(np.array(message.arrays[str(i)]).data.cast("B") if one is None else json.dumps(one).encode())
    return found


def taken(message: Message, errand: Errand, mine: Sequence[int], engine: Engine, sizes: set[int]) -> list[Blob]:
    """Return what an edge showed, once it is known that the cloud can take it in, and that it is of its own devices.

    Args:
        message: its answer.
        errand: what it was asked.
        mine: which of its branches the edge walked.
        engine: the cloud's.
        sizes: see :func:`read_shown`.

    Raises:
        RefusedError: it is something else.
    """
    one, shown = errand, read_shown(message, sizes)
    children = [one.node.children[index] for index in mine]
    try:
        heard = heard_of(children, shown[0])
        Meeting(one.node, one.start, scopes.met(engine.network, one.node)).take([memoryview(x) for x in shown[1:]])
    except Exception as error:  # whatever shape it has: an edge ends nobody's run
        raise RefusedError("header", f"what it shows is of no branch ({type(error).__name__}).") from error
    for child, branch in zip(children, heard, strict=True):
        strange = {receipt.device for receipt in branch.receipts} - set(walk.devices(child))
        if strange:
            raise RefusedError("device", f"it shows visits to {sorted(map(str, strange))}, which are not its own.")
    return shown


def answered(message: Message, node: Probe, mine: Sequence[int], engine: Engine) -> dict[int, Any]:
    """Return what an edge says that its devices answered to a question, checked as the edge checks it.

    Args:
        message: its answer.
        node: the question.
        mine: whom the edge was to ask.
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
    said = {known[k]: answers.read(node, {}, {"answer": one}, engine) for k, one in message.arrays.items()}
    return said | {known[k]: answers.read(node, {"answer": one}, {}, engine) for k, one in words.items()}


def numbers(engine: Engine, scope: str) -> int:
    """Return how many numbers of the model travel for a scope."""
    within = packing.part(engine.network, scope)
    return int(within.stop - within.start)
