"""Checks of incoming messages: their sender, order and integrity, and the range of every field that is claimed.

Values that the receiver knows are compared with its own: the samples and steps of a visit, the bytes of a packet, the
weight of a branch. Only other values are taken from the sender, within the ranges below. Every refusal is counted and
logged with the sender's name.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedfloor.deploy.message import MOST_ARRAYS, MOST_BYTES, MOST_HEADER, Message, MessageParts, decode, split
from fedfloor.deploy.settings import NAME
from fedfloor.engine.limit import MOST as LONGEST
from fedfloor.engine.limit import effort
from fedfloor.errors import SettingError
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.ranges import COUNT, LOSS, SECONDS, RefusedError, number, rows, table, whole

if TYPE_CHECKING:
    from fedfloor.deploy.signing import Signer

log = logging.getLogger(__name__)

TOLD = 20  # refusals of one sender and reason that are all logged; of later ones the 32nd, 64th, 128th, …
AHEAD_S = 86_400  # of a sender's clock: with a stolen key, one far session would shut out all later ones
LOG_CHARS = 400  # characters of a foreign text in a log


def printable(text: str) -> str:
    """Return a foreign text as one short line, so that a sender cannot forge lines of a log.

    >>> print(printable("no\\nWARNING all is well"))
    no\\nWARNING all is well
    """
    line = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[: LOG_CHARS + 1]
    )
    return line if len(line) <= LOG_CHARS else line[:LOG_CHARS] + " …"


def timely(session: int) -> None:
    """Refuse a session that begins in the future, as it would shut out later sessions of the rightful sender.

    Args:
        session: when it began by its sender's clock, ns.

    Raises:
        RefusedError: it is more than a day ahead.
    """
    ahead_s = (session - time.time_ns()) // 10**9  # of whole numbers: a thief's need not fit a float
    if ahead_s > AHEAD_S:
        raise RefusedError("future", f"its session begins {ahead_s // 3600} h from now. Is its clock right, or ours?")


class MessageFilter:
    """Admits messages of known senders, each once, and counts those it refuses.

    Args:
        signer: this process's: messages must be signed by their senders, and for it. None: for tests only.
        run: the run they must belong to; "" takes any.
        most: the most bytes of one.
        header: the most bytes of its header.
        arrays: the most arrays of one.
        seen: file in which each sender's last message is noted, so that a restart does not take an old one again.
    """

    def __init__(
        self, run: str = "", most: int = MOST_BYTES, seen: Path | None = None, header: int = MOST_HEADER,
        arrays: int = MOST_ARRAYS, signer: Signer | None = None,
    ) -> None:  # fmt: skip
        self.signer = signer
        self.run, self.most, self.header, self.arrays, self._seen = run, most, header, arrays, seen
        self.refused: Counter[tuple[str, str]] = Counter()  # by sender and reason
        self._last: dict[str, tuple[int, int]] = read_seen(seen)
        self._lock = Lock()

    def take(self, data: bytes, sender: str, most: int = MOST_BYTES, arrays: int = MOST_ARRAYS) -> Message | None:
        """Return a message, or None where it is refused.

        Args:
            data: the message's bytes.
            most, arrays: the most bytes and arrays that this one may have, where that is less than any may have.
        """
        try:
            self.admit(data, sender)
            return decode(data, min(most, self.most), self.header, min(arrays, self.arrays))
        except RefusedError as error:
            self.refuse(sender, error)
            return None

    def admit(self, data: bytes, sender: str) -> dict[str, Any]:
        """Return the header of a message that its sender signed, and that is new and in order; arrays are not read.

        Raises:
            RefusedError: it is not such a message.
        """
        header = self.signed(data, sender).header
        if self.run and header["run"] != self.run:
            raise RefusedError("run", f"it belongs to run '{header['run']}'; this is '{self.run}'.")
        timely(header["session"])
        place = (header["session"], header["number"])
        with self._lock:
            if place <= self._last.get(sender, (0, 0)):
                raise RefusedError("replayed", f"message {place[1]} of session {place[0]} came before.")
            self._last[sender] = place
            if self._seen is not None:
                write_seen(self._seen, self._last)
        return header

    def signed(self, data: bytes, sender: str, *, status: bool = False) -> MessageParts:
        """Return the parts of a message that its sender signed for this process, or of a status, which is for all.

        Raises:
            RefusedError: it did not.
        """
        parts = split(data, self.most, self.header)
        if self.signer is not None:
            self.signer.check(parts.seal, parts.text, sender)  # before anything in it is read
        if parts.header["sender"] != sender:
            raise RefusedError("sender", f"its header names sender '{parts.header['sender']}'.")
        if self.signer is not None and parts.header["receiver"] != ("" if status else self.signer.name):
            raise RefusedError("receiver", f"it is for '{parts.header['receiver']}'.")
        return parts

    def refuse(self, sender: str, error: RefusedError) -> None:
        """Count a refused message and log its sender and reason."""
        self.refused[sender, error.reason] += 1
        count = self.refused[sender, error.reason]
        if count <= TOLD or count.bit_count() == 1:  # a flood of them fills no disk
            log.warning("refused a message of %s: %s (%d so far)", sender, printable(str(error)), count)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many were refused: sender → reason → number."""
        counts: dict[str, dict[str, int]] = {}
        for (sender, reason), count in sorted(self.refused.items()):
            counts.setdefault(sender, {})[reason] = count
        return counts


def read_seen(path: Path | None) -> dict[str, tuple[int, int]]:
    """Return the last message of each sender, as noted before a restart.

    Raises:
        SettingError: the file holds something else.
    """
    if path is None or not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text())
        return {str(sender): (int(session), int(number)) for sender, (session, number) in stored.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise SettingError(f"{path} is damaged: delete it; an old message may be taken once.") from error


def write_seen(path: Path, last: dict[str, tuple[int, int]]) -> None:
    """Replace the file as a whole; a kill leaves the old one or the new one, a power cut may lose the last message."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(last))
    part.replace(path)


SAMPLES = 10**9  # of a device
SUM = 1e30  # of a channel over a device's samples
BYTES = 1 << 50
REASONS = 64  # kinds of refusal that an edge may list for a sender
DIGEST = re.compile(r"[0-9a-f]{64}(\+[0-9a-f]{64})?")  # a memory, and the extractor it belongs to
WORD = re.compile(r"[A-Za-z][A-Za-z ]{0,31}")  # a reason or an error's name


def short_line(value: object) -> str:
    """Return a value from a message as one short printable line."""
    return printable(value if isinstance(value, str) else type(value).__name__)


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
    """A visit as the receiver knows it before its receipt comes.

    Args:
        device: its number.
        visits: how often it was visited before in the round, from and to.
        ticks: when, from and to.
        samples: how many the device holds.
        work: of the visit.
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
    return Receipt(*claimed, *update_claims(more, effort(known.work, known.samples), lost=lost))


def update_claims(more: Sequence[Any], expected: float, *, lost: bool) -> tuple[tuple[float, ...], str]:
    """Return an edge's claims of a visit's update: its lengths, and why it is refused."""
    if not more:
        return (), ""
    lengths, why = more
    if not isinstance(lengths, list) or not (lengths == [] or 2 <= len(lengths) <= 16):
        raise RefusedError("receipt", "it measures no update.")
    if not isinstance(why, str) or bool(why) is not lost:
        raise RefusedError("receipt", "it does not state why the update is refused.")
    if lengths and lengths[0] != expected:  # the limit on lengths grows with it
        raise RefusedError("receipt", f"its rate · steps is not {expected:g}, that of the visit's work.")
    return (expected, *(number(v, 0, LONGEST, "a length") for v in lengths[1:])) if lengths else (), short_line(why)


@dataclass(frozen=True)
class Measured:
    """Measurements of an edge, beside its answer.

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
    """Return the measurements that an edge states.

    Args:
        about: its answer's header.
        devices: those of the factory; empty while they are not known.

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
        known & frozenset(devices) if devices else known, read_refusals(about, most), read_failures(about, most),
    )  # fmt: skip


def read_refusals(about: Mapping[str, Any], most: int) -> dict[str, dict[str, int]]:
    """Return the refusals that an edge states: sender → reason → number."""
    refusals = {}
    for sender, reasons in table(about.get("refused", {}), most + 2, "its refusals").items():
        counts = table(reasons, REASONS, "its refusals of a sender")
        counted = {word(why, "a reason"): whole(n, 1, COUNT, "a number of refusals") for why, n in counts.items()}
        refusals[name(sender, "a sender")] = counted
    return refusals


def read_failures(about: Mapping[str, Any], most: int) -> dict[str, tuple[str, str, str]]:
    """Return the failures that an edge states: device → (kind of request, kind of error, text)."""
    failures = {}
    for device, parts in table(about.get("failed", {}), most, "its failures").items():
        kind, error, why = rows(parts, 3, "a failure")
        failures[name(device, "a device")] = word(kind, "a request"), word(error, "an error"), short_line(why)
    return failures
