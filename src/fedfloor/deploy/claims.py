"""The range of every field that a device or an edge claims, by kind of message; what lies outside is refused.

What the receiver knows itself it computes and compares: the samples and steps of a visit, the bytes of a packet, the
weight of a branch. Only what it cannot know is taken from the sender, within the ranges below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfloor.deploy.gate import shown
from fedfloor.deploy.settings import NAME
from fedfloor.engine.limit import MOST as LONGEST
from fedfloor.engine.limit import effort
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.ranges import COUNT, LOSS, SECONDS, RefusedError, number, rows, table, whole

SAMPLES = 10**9  # of a device
SUM = 1e30  # of a channel over a device's samples
BYTES = 1 << 50
REASONS = 64  # kinds of refusal that an edge may list for a sender
DIGEST = re.compile(r"[0-9a-f]{64}(\+[0-9a-f]{64})?")  # a memory, and the extractor it belongs to
WORD = re.compile(r"[A-Za-z][A-Za-z ]{0,31}")  # a reason or an error's name


def text(value: object) -> str:
    """Return a text of somebody else's as one short printable line."""
    return shown(value if isinstance(value, str) else type(value).__name__)


def word(value: object, what: str) -> str:
    """Return a short word, such as a reason.

    Raises:
        RefusedError: it is something else.
    """
    if isinstance(value, str) and WORD.fullmatch(value):
        return value
    raise RefusedError("range", f"{what} is no short word.")


def name(value: object, what: str) -> str:
    """Return a name as the park file may hold it.

    Raises:
        RefusedError: it is something else.
    """
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    raise RefusedError("range", f"{what} is no name.")


def digest(value: object) -> str | None:
    """Return the digest of a device's memory, or None.

    Raises:
        RefusedError: it is something else.
    """
    if value is None or (isinstance(value, str) and DIGEST.fullmatch(value)):
        return value
    raise RefusedError("range", "its digest is not 64 hexadecimal digits.")


@dataclass(frozen=True)
class Known:
    """What is known of a visit before its receipt comes.

    Args:
        device: whose.
        visits: how often it was visited before in the round, from and to.
        ticks: when, from and to.
        samples: how many the device holds.
        work: what it was to do.
        trained: how often it was trained before in the run.
        bytes: of the packet that goes on; None at the edge, which counts them itself.
    """

    device: int
    visits: tuple[int, int]
    ticks: tuple[int, int]
    samples: int
    work: Work
    trained: int
    bytes: int | None = None

    def steps(self) -> tuple[int, int]:
        """Return the fewest and the most mini-batches that the work takes.

        A visit on features may train on those that the device keeps of earlier visits, too.
        """
        from fedfloor.parts import objectives  # with PyTorch, without which devices begin

        least = self.work.batches(self.samples)
        if not objectives.objective(self.work.objective, self.work.settings).on_features:
            return least, least
        return min(1, least), self.work.batches(self.samples * (2 + self.trained))


def receipt(row: object, known: Known) -> Receipt:
    """Return the receipt of a visit.

    Args:
        row: as it came: from a device of 12 fields, from an edge, which measures updates, of 12 or 14.
        known: what the receiver knows of the visit.

    Raises:
        RefusedError: it is none, of another visit, or a field is out of its range.
    """
    edge = known.bytes is not None
    if not isinstance(row, list) or len(row) not in ((12, 14) if edge else (12,)):
        raise RefusedError("receipt", "it is no receipt.")
    if not all(type(v) in (int, float, bool, str, list, type(None)) for v in row):
        raise RefusedError("receipt", "it is no receipt.")
    device, visit, tick, steps, samples, first, last, accuracy, size, lost, memory, seconds, *more = row
    if json.dumps([device, samples]) != json.dumps([known.device, known.samples]):
        raise RefusedError("receipt", "it is of another visit.")
    whole(visit, *known.visits, "its visit")
    whole(tick, *known.ticks, "its tick")
    if type(lost) is not bool or (lost and not edge):
        raise RefusedError("receipt", "'lost' is not a value a device may send.")
    least, most = (0, 0) if lost else known.steps()
    claimed = (
        device, visit, tick, whole(steps, least, most, "its number of steps"), samples,
        number(first, -LOSS * (not lost), LOSS * (not lost), "its first loss"),
        number(last, -LOSS * (not lost), LOSS * (not lost), "its last loss"),
        number(accuracy, 0, float(not lost), "its accuracy"),
        whole(size, known.bytes or 0, known.bytes or 0, "its number of bytes"), lost,
        digest(memory), number(seconds, 0, 0, "its seconds on the network"),
    )  # fmt: skip
    return Receipt(*claimed, *_judged(more, effort(known.work, known.samples), lost=lost))


def _judged(more: Sequence[Any], expected: float, *, lost: bool) -> tuple[tuple[float, ...], str]:
    """Return what an edge claims of a visit's update: how long it is, and why it is refused."""
    if not more:
        return (), ""
    lengths, why = more
    if not isinstance(lengths, list) or not (lengths == [] or 2 <= len(lengths) <= 16):
        raise RefusedError("receipt", "it measures no update.")
    if not isinstance(why, str) or bool(why) is not lost:
        raise RefusedError("receipt", "it does not state why the update is refused.")
    if lengths and lengths[0] != expected:  # the limit on lengths grows with it
        raise RefusedError("receipt", f"its rate · steps is not {expected:g}, that of the visit's work.")
    return (expected, *(number(v, 0, LONGEST, "a length") for v in lengths[1:])) if lengths else (), text(why)


@dataclass(frozen=True)
class Measured:
    """What an edge states of itself beside its answer.

    Args:
        seconds: that its factory took.
        training: that its devices trained, all together.
        moved: bytes between it and its devices: ``down`` and ``up``.
        present: devices that are connected.
        refused: sender → reason → how many of its messages were refused.
        failed: device → (kind of request, kind of error, text).
    """

    seconds: float
    training: float
    moved: Mapping[str, int]
    present: frozenset[int]
    refused: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, tuple[str, str, str]]


def measured(about: Mapping[str, Any], devices: Collection[int], most: int) -> Measured:
    """Return what an edge states of itself.

    Args:
        about: its answer's header.
        devices: those of the factory; empty while they are not known.
        most: how many devices the park has at most.

    Raises:
        RefusedError: a field is out of its range.
    """
    times = table(about.get("measured", {}), 3, "measured")
    if not set(times) <= {"seconds", "bytes", "training"}:
        raise RefusedError("range", "unknown key under 'measured'.")
    seconds = number(times.get("seconds", 0.0), 0, SECONDS, "its seconds")
    training = number(times.get("training", 0.0), 0, SECONDS * most, "its seconds of training")
    moved = table(times.get("bytes", {}), 2, "its bytes")
    if not set(moved) <= {"up", "down"}:
        raise RefusedError("range", "its bytes are neither up nor down.")
    present = about.get("here", [])
    if not isinstance(present, list) or len(present) > most:
        raise RefusedError("range", f"it lists no devices, or more than {most}.")
    known = frozenset(whole(k, 0, most - 1, "a device") for k in present)
    return Measured(
        seconds, training, {way: whole(n, 0, BYTES, "its bytes") for way, n in moved.items()},
        known & frozenset(devices) if devices else known, _refused(about, most), _failed(about, most),
    )  # fmt: skip


def _refused(about: Mapping[str, Any], most: int) -> dict[str, dict[str, int]]:
    found = {}
    for sender, reasons in table(about.get("refused", {}), most + 2, "its refusals").items():
        of = table(reasons, REASONS, "its refusals of a sender")
        counted = {word(why, "a reason"): whole(n, 1, COUNT, "a number of refusals") for why, n in of.items()}
        found[name(sender, "a sender")] = counted
    return found


def _failed(about: Mapping[str, Any], most: int) -> dict[str, tuple[str, str, str]]:
    found = {}
    for device, parts in table(about.get("failed", {}), most, "its failures").items():
        kind, error, why = rows(parts, 3, "a failure")
        found[name(device, "a device")] = word(kind, "a request"), word(error, "an error"), text(why)
    return found
