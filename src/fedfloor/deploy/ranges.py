"""The range of every field that a device or an edge claims, by kind of message; what lies outside is refused.

What the receiver knows itself it computes and compares: the samples and steps of a visit, the bytes of a packet, the
weight of a branch. Only what it cannot know is taken from the sender, within the ranges below.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.deploy.gate import shown
from fedfloor.deploy.message import RefusedError
from fedfloor.deploy.settings import NAME
from fedfloor.engine.limit import MOST as LONGEST
from fedfloor.engine.limit import effort
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt

COUNT = 1 << 53  # the greatest whole number: as float64 knows them
SAMPLES = 10**9  # of a device
DEVICES = 1 << 20  # of a park
# Of a loss. Cross-entropy is ln F for a model that knows nothing of F classes; a million means outputs that differ by
# a million, which no training comes back from.
LOSS = 1e6
SECONDS = 1e8  # three years
METRES = 1e9
SUM = 1e30  # of a channel over a device's samples
BYTES = 1 << 50
NOISE = 100  # of 1/ε: the noise of a count is larger with a chance of e^-100 or less
REASONS = 64  # kinds of refusal that an edge may list for a sender
DIGEST = re.compile(r"[0-9a-f]{64}(\+[0-9a-f]{64})?")  # a memory, and the extractor it belongs to
RATIO = 1e9  # of a vector's root mean square: features, gradients and weights are far below
WORD = re.compile(r"[A-Za-z][A-Za-z ]{0,31}")  # a reason or an error's name


@contextmanager
def of(reason: str) -> Iterator[None]:
    """Count what is out of range under a kind of message."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(reason if error.reason == "range" else error.reason, error.text) from error


def whole(value: object, low: int, high: int, what: str) -> int:
    """Return a whole number from ``low`` to ``high``.

    Raises:
        RefusedError: it is something else.
    """
    if type(value) is int and low <= value <= high:
        return value
    raise RefusedError("range", f"{what} is no whole number from {low} to {high}.")


def number(value: object, low: float, high: float, what: str) -> float:
    """Return a number from ``low`` to ``high``.

    Raises:
        RefusedError: it is something else.
    """
    if type(value) in (int, float) and low <= value <= high:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise RefusedError("range", f"{what} is no number from {low:g} to {high:g}.")


def rows(value: object, length: int | None, what: str) -> list[Any]:
    """Return a list of a given length, or of any that a park may have devices.

    Raises:
        RefusedError: it is something else.
    """
    if isinstance(value, list) and (len(value) <= DEVICES if length is None else len(value) == length):
        return value
    raise RefusedError("range", f"{what} is no list of {DEVICES if length is None else length}.")


def table(value: object, most: int, what: str) -> dict[str, Any]:
    """Return a table of at most so many entries.

    Raises:
        RefusedError: it is something else.
    """
    if isinstance(value, dict) and len(value) <= most:
        return value
    raise RefusedError("range", f"{what} is no table of at most {most}.")


def vector(values: NDArray[Any], what: str) -> None:
    """Refuse numbers that are not finite or far too large.

    Raises:
        RefusedError: they are.
    """
    size = math.sqrt(float(np.square(values, dtype=np.float64).mean())) if values.size else 0.0
    if not size <= RATIO:
        raise RefusedError("range", f"the root mean square of {what} is {size:.3g}; at most {RATIO:g} is taken.")


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


def counts(value: object, bins: int, held: int, noise: int = 0, least: int = 0) -> list[int]:
    """Return how many samples of each class a device holds.

    Args:
        value: what it claims.
        bins: how many classes there are.
        held: how many samples it can hold at most.
        noise: the most that noise may have added to a count.
        least: the smallest count; noise makes some negative.

    Raises:
        RefusedError: it is something else.
    """
    found = [whole(one, least, held + noise, "a count of its classes") for one in rows(value, bins, "its census")]
    if sum(found) > held + bins * noise:
        raise RefusedError("range", f"its census counts {sum(found)} samples; it holds {held} at most.")
    return found


def noise(epsilon: float | None) -> int:
    """Return the most that the noise of a census may change a count."""
    return 0 if epsilon is None else min(COUNT, math.ceil(NOISE / epsilon))


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
