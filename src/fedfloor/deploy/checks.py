"""Checks of incoming messages: their sender, order and integrity, and the range of every claimed value.

Values that the receiver can compute are compared with its own: the samples and steps of a visit, the bytes of a packet,
the weight of a branch. All other values must lie within the ranges below. Every refusal is counted and logged with
the sender's name.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, DivergedError, FedfloorError, SettingError
from fedfloor.base.outside import ANY
from fedfloor.base.ranges import COUNT, LOSS, SECONDS, RefusedError, matching, number, rows, table, whole
from fedfloor.base.strict import json_text
from fedfloor.deploy.flow import Flow
from fedfloor.deploy.message import MOST_ARRAYS, MOST_BYTES, MOST_HEADER, Message, MessageParts, Reply, decode, split
from fedfloor.deploy.record import mark_of
from fedfloor.deploy.settings import NAME
from fedfloor.engine.limit import MOST as LONGEST
from fedfloor.parts.travel.limits import MOST_PIECES
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt

if TYPE_CHECKING:
    from fedfloor.deploy.signing import Signer

log = logging.getLogger(__name__)

T = TypeVar("T")
TOLD = 20  # refusals per sender and reason that are logged one by one; later only the 32nd, 64th, 128th, …
LINES_HZ = 1 / 60  # further lines that a sender's requests write to a log, after TOLD at once
AHEAD_S = 86_400  # the most that a sender's clock may be ahead; a session far ahead would block all later ones
STRANGER = "a stranger"  # all senders that are not of the park, counted as one; no member can have this name
MOST_COUNTED = 4096  # senders and reasons that are counted one by one; later ones count as those of a stranger
LOG_CHARS = 400  # characters of a received text in a log


def printable(text: str) -> str:
    """Return a received text as one short line, so that a sender cannot forge lines of a log.

    >>> print(printable("no\\nWARNING all is well"))
    no\\nWARNING all is well
    """
    line = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[: LOG_CHARS + 1]
    )
    return line if len(line) <= LOG_CHARS else line[:LOG_CHARS] + " …"


def worth_a_line(count: int) -> bool:
    """Return whether the last of so many alike events is logged, so that a flood does not fill the disk."""
    return count <= TOLD or count.bit_count() == 1


def timely(session: int) -> None:
    """Refuse a session that begins in the future, as it would block later sessions of the rightful sender.

    Args:
        session: start time by the sender's clock, ns.

    Raises:
        RefusedError: the session begins more than a day from now.
    """
    ahead_s = (session - time.time_ns()) // 10**9  # integer division, as a hostile value may exceed a float
    if ahead_s > AHEAD_S:
        raise RefusedError("future", f"its session begins {ahead_s // 3600} h from now. Check both machines' clocks.")


class MessageFilter:
    """A filter that admits each message of a known sender once, and counts the refused messages.

    Args:
        signer: this process's signer; messages must be signed for this process. None: no check, for tests only.
        most: the most bytes of a message.
        header: the most bytes of a message's header.
        arrays: the most arrays of a message.
        seen: file with each sender's last message, so that a restarted process does not accept an old one again.
    """

    def __init__(
        self, most: int = MOST_BYTES, seen: Path | None = None, header: int = MOST_HEADER,
        arrays: int = MOST_ARRAYS, signer: Signer | None = None,
    ) -> None:  # fmt: skip
        self.signer = signer
        self.most = most
        self.header = header
        self.arrays = arrays
        self._seen = seen
        self.refused: Counter[tuple[str, str]] = Counter()  # by sender and reason
        self.last_reason = ""  # why the last refused message was
        self._lines = Flow(burst=TOLD, rate_hz=LINES_HZ)
        self._last: dict[str, tuple[int, int]] = read_seen(seen)
        self._lock = Lock()

    def take(self, data: bytes, sender: str, most: int = MOST_BYTES, arrays: int = MOST_ARRAYS) -> Message | None:
        """Return the decoded message, or None if it is refused.

        Args:
            data: the message's bytes.
            most, arrays: limits on bytes and arrays, if lower than those of the filter.
        """
        try:
            self.admit(data, sender)
            return decode(data, min(most, self.most), self.header, min(arrays, self.arrays))
        except RefusedError as error:
            self.refuse(sender, error)
            return None

    def admit(self, data: bytes, sender: str) -> dict[str, Any]:
        """Return a message's header if it is signed, new and in order; arrays are not read.

        Raises:
            RefusedError: the message is malformed, unsigned, or old, or its number cannot be noted.
        """
        header = self.signed(data, sender).header
        timely(header["session"])
        place = (header["session"], header["number"])
        with self._lock:
            last = self._last.get(sender, (0, 0))
            if place <= last:
                again = f"message {place[1]} of session {place[0]} is old or repeated"
                other = f": another process of {sender} began later, or its clock was set back" * (place[0] < last[0])
                raise RefusedError("replayed", f"{again}{other}.")
            if self._seen is not None:
                try:
                    write_seen(self._seen, self._last | {sender: place})
                except OSError as error:  # a restart would accept the message again
                    why = f"its number cannot be noted in {self._seen}: {error.strerror or error}."
                    raise RefusedError("disk", why) from error
            self._last[sender] = place
        return header

    def signed(self, data: bytes, sender: str, *, status: bool = False) -> MessageParts:
        """Return the parts of a message after checking that its sender signed it for this process.

        Raises:
            RefusedError: the signature or a name is wrong. A status names no receiver.
        """
        parts = split(data, self.most, self.header)
        if self.signer is not None:
            self.signer.check(parts.seal, parts.text, sender)  # before the header is parsed
        if parts.header["sender"] != sender:
            raise RefusedError("sender", f"its header names the sender '{parts.header['sender']}'.")
        if self.signer is not None and parts.header["receiver"] != ("" if status else self.signer.name):
            raise RefusedError("receiver", f"it is addressed to '{parts.header['receiver']}'.")
        return parts

    def refuse(self, sender: str, error: RefusedError) -> None:
        """Count a refused message and log its sender and reason.

        Args:
            sender: a member of the park, or :data:`STRANGER`. Names that a sender makes up would fill memory and log.
        """
        self.last_reason = printable(str(error))
        if (sender, error.reason) not in self.refused and len(self.refused) >= MOST_COUNTED:
            sender = STRANGER
        self.refused[sender, error.reason] += 1
        count = self.refused[sender, error.reason]
        if worth_a_line(count):
            log.warning("refused a message of %s: %s (%d so far)", printable(sender), printable(str(error)), count)

    def log(self, level: int, sender: str, text: str) -> None:
        """Log a line that a sender's message causes, unless it causes so many that they could fill the disk."""
        if self._lines.admits(sender, 0):
            log.log(level, "%s", printable(text))

    def reply(self, sender: str, serve: Callable[[], Reply]) -> Reply:
        """Return the reply to a sender's request; errors become answers, so that this process keeps running."""
        try:
            return serve()
        except FedfloorError as error:
            self.log(logging.ERROR, sender, str(error))
            return "failed", {"error": type(error).__name__, "text": str(error)}, {}
        except RefusedError as error:
            refused = error
        except ANY as error:  # of a malformed request, of PyTorch, or of the user's code
            refused = RefusedError("header", f"{type(error).__name__}: {error}")
            log.debug("a request failed", exc_info=True)
        self.refuse(sender, refused)
        return "refused", {"reason": refused.reason, "text": str(refused)}, {}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of refused messages: sender → reason → number."""
        counts: dict[str, dict[str, int]] = {}
        for (sender, reason), count in sorted(self.refused.items()):
            counts.setdefault(sender, {})[reason] = count
        return counts


def read_seen(path: Path | None) -> dict[str, tuple[int, int]]:
    """Return the last message of each sender before a restart: sender → (session, number).

    They are kept in the state folder and beside it, so that a lost or restored folder admits no old message.

    Raises:
        SettingError: a file has another content.
    """
    last: dict[str, tuple[int, int]] = {}
    for place in () if path is None else (path, mark_of(path)):
        try:
            stored = json.loads(regular.read_text(place)) if place.exists() else {}
            for sender, (session, number) in stored.items():
                last[str(sender)] = max(last.get(str(sender), (0, 0)), (int(session), int(number)))
        except MALFORMED as error:
            raise SettingError(
                f"{place} is damaged: delete it; an old message may then be accepted once.", key="damaged-record"
            ) from error
    return last


def write_seen(path: Path, last: dict[str, tuple[int, int]]) -> None:
    """Replace the files atomically; a power cut may lose the last message."""
    for place in (path, mark_of(path)):
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(".part")
        part.write_text(json_text(last))
        part.replace(place)


SAMPLES = 10**9  # the most of a device
SUM = 1e30  # the largest sum of a channel over a device's samples
BYTES = 1 << 50
REASONS = 64  # the most kinds of refusal that an edge may list per sender
CREW = re.compile(r"([0-9a-f]{32})?")  # digest of the devices of a crew; "" for none
DIGEST = re.compile(r"[0-9a-f]{64}(\+[0-9a-f]{64})?")  # digest of a memory, optionally with that of its extractor
WORD = re.compile(r"[A-Za-z][A-Za-z ]{0,31}")  # a reason or an error's name
STAGES = ("sum-keys", "sum-shares", "sum-check", "sum-unmask")  # requests of a secure sum in addition to the visit
REQUESTS = ("facts", "sites", "census", "visit", "probe", "keep", *STAGES)  # all requests that a device serves


def short_line(value: object) -> str:
    """Return a received value as one short printable line."""
    return printable(value if isinstance(value, str) else type(value).__name__)


ERRORS: dict[str, type[FedfloorError]] = {kind.__name__: kind for kind in (DivergedError, SettingError)}


ABSENT = "absent"


@dataclass(frozen=True)
class Failure:
    """A failure that a device reports.

    Args:
        kind: of the request: ``visit``, ``probe``, …; :data:`ABSENT` for a device without an answer.
        error: the name of the error's class.
        text: the error's message.
    """

    kind: str
    error: str
    text: str


def failure(kind: str, answer: Message) -> Failure:
    """Return the failure that the answer to a request of this kind reports."""
    error = str(answer.about.get("error"))
    return Failure(kind, error if error in ERRORS else "RunError", short_line(answer.about.get("text")))


def note_failure(known: dict[str, Failure], device: str, failure: Failure) -> None:
    """Record a failure of a device; a failed visit takes precedence, as it decides whether a round succeeded."""
    if device not in known or known[device].kind != "visit":
        known[device] = failure


@dataclass(frozen=True)
class Known:
    """The receiver's own values of a visit, with which its receipt is compared.

    Args:
        device: number of the device.
        visits: range of the number of earlier visits in the round.
        ticks: range of the tick.
        samples: number of samples of the device.
        work: the local work of the visit.
        trained: number of earlier local updates of the device in the run.
        bytes: size of the returned packet; None at the edge, which counts it itself.
    """

    device: int
    visits: tuple[int, int]
    ticks: tuple[int, int]
    samples: int
    work: Work
    trained: int
    bytes: int | None = None

    def steps(self) -> tuple[int, int]:
        """Return the fewest and the most mini-batches of the work.

        A visit on features may also train on features that the device keeps from earlier visits.
        """
        from fedfloor.parts.objectives import registry as objectives  # imports PyTorch, which devices load late

        least = self.work.batches(self.samples)
        if not objectives.objective(self.work.objective, self.work.settings).on_features:
            return least, least
        return min(1, least), self.work.batches(self.samples * (2 + self.trained))


def receipt(row: object, known: Known) -> Receipt:
    """Return the checked receipt of a visit.

    Args:
        row: the received fields: 12 from a device; 12 or 14 from an edge, which may add the update's lengths.

    Raises:
        RefusedError: the row is malformed, of another visit, or has a field out of range.
    """
    edge = known.bytes is not None
    if not isinstance(row, list) or len(row) not in ((12, 14) if edge else (12,)):
        raise RefusedError("receipt", "it is not a receipt.")
    if not all(type(v) in (int, float, bool, str, list, type(None)) for v in row):
        raise RefusedError("receipt", "it is not a receipt.")
    device, visit, tick, steps, samples, first, last, accuracy, size, lost, memory, seconds, *more = row
    if json.dumps([device, samples]) != json.dumps([known.device, known.samples]):
        raise RefusedError("receipt", "it is of another visit.")
    whole(visit, *known.visits, "its visit")
    whole(tick, *known.ticks, "its tick")
    if type(lost) is not bool or (lost and not edge):
        raise RefusedError("receipt", "'lost' is not a value a device may send.")
    least, most = (0, 0) if lost else known.steps()
    figures: tuple[float | None, float | None, float | None] = None, None, None
    if lost or not first is last is accuracy is None:  # otherwise the device withholds them
        figures = (
            number(first, -LOSS * (not lost), LOSS * (not lost), "its first loss"),
            number(last, -LOSS * (not lost), LOSS * (not lost), "its last loss"),
            number(accuracy, 0, float(not lost), "its accuracy"),
        )
    claimed = (
        device, visit, tick, whole(steps, least, most, "its number of steps"), samples, *figures,
        whole(size, known.bytes or 0, known.bytes or 0, "its number of bytes"), lost,
        None if memory is None else matching(memory, DIGEST, "its digest is not 64 hexadecimal digits."),
        number(seconds, 0, 0, "its seconds on the network"),
    )  # fmt: skip
    return Receipt(*claimed, *update_claims(more, known.work.reach(known.samples), lost=lost))


def update_claims(more: Sequence[Any], expected: float, *, lost: bool) -> tuple[tuple[float, ...], str]:
    """Return the lengths of an update as an edge claims them, and the reason of its refusal ("" if accepted)."""
    if not more:
        return (), ""
    lengths, why = more
    if not isinstance(lengths, list) or len(lengths) > 1 + MOST_PIECES:  # none of a model that stays on devices
        raise RefusedError("receipt", "it does not state the lengths of an update.")
    if not isinstance(why, str) or bool(why) is not lost:
        raise RefusedError("receipt", "it does not state why the update is refused.")
    if lengths and lengths[0] != expected:  # the limit on lengths is proportional to it
        raise RefusedError("receipt", f"its rate · steps is not the {expected:g} of the visit's work.")
    return (expected, *(number(v, 0, LONGEST, "a length") for v in lengths[1:])) if lengths else (), short_line(why)


@dataclass(frozen=True)
class Measured:
    """Measurements that an edge adds to its answer.

    Args:
        seconds: duration of the request in the factory, s.
        training: training time summed over its devices, s.
        moved: bytes between the edge and its devices, by direction (``down`` and ``up``).
        present: the factory's connected devices.
        visiting: connected devices of other factories.
        reached: the number of devices that the request reached, whatever they answered.
        refused: sender → reason → number of refused messages.
        failed: device → its failure.
        against: device → number of the last rounds in which its updates pointed against the others'.
        flaws: the reasons why parts of these reports were left out; the results remain valid.
    """

    seconds: float
    training: float
    moved: Mapping[str, int]
    present: frozenset[int]
    refused: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, Failure]
    reached: int
    against: Mapping[str, int] = field(default_factory=dict)
    flaws: Sequence[RefusedError] = ()
    visiting: frozenset[int] = frozenset()


def measured(about: Mapping[str, Any], devices: Collection[int], most: int) -> Measured:
    """Return the checked measurements of an edge.

    Args:
        about: the ``about`` of its answer.
        devices: the factory's devices; empty while they are unknown.

    Raises:
        RefusedError: a field is out of range.
    """
    times = table(about.get("measured", {}), 3, "measured")
    if not set(times) <= {"seconds", "bytes", "training"}:
        raise RefusedError("range", "unknown key under 'measured'.")
    seconds = number(times.get("seconds", 0.0), 0, SECONDS, "its seconds")
    training = number(times.get("training", 0.0), 0, SECONDS * most, "its seconds of training")
    moved = table(times.get("bytes", {}), 2, "its bytes")
    if not set(moved) <= {"up", "down"}:
        raise RefusedError("range", "its bytes are for a direction other than up and down.")
    present = about.get("here", [])
    if not isinstance(present, list) or len(present) > most:
        raise RefusedError("range", f"its list of devices is malformed or longer than {most}.")
    known = frozenset(whole(k, 0, most - 1, "a device") for k in present)
    flaws = list[RefusedError]()
    refusals = read_report(about.get("refused", {}), most + 2, "its refusals", read_refusals, flaws)
    failures = read_report(about.get("failed", {}), most, "its failures", read_failure, flaws)
    against = read_report(about.get("against", {}), most, "its devices", lambda n: whole(n, 1, COUNT, "rounds"), flaws)
    own = known & frozenset(devices) if devices else known
    return Measured(
        seconds, training, {way: whole(n, 0, BYTES, "its bytes") for way, n in moved.items()}, own, refusals, failures,
        whole(about.get("reached", 1), 0, most, "the devices that it reached"), against, flaws, known - own,
    )  # fmt: skip


def read_report(
    value: object, most: int, noun: str, read: Callable[[Any], T], flaws: list[RefusedError]
) -> dict[str, T]:
    """Return an edge's report by device or sender, without invalid entries, whose reasons are added to ``flaws``.

    A report is beside the results of the devices' work, so that an entry of one device costs no other device's visit.
    """
    report = dict[str, T]()
    try:
        entries = table(value, most, noun)
    except RefusedError as error:
        flaws.append(error)
        return report
    for name, entry in entries.items():
        try:
            report[matching(name, NAME, f"{noun} hold a name that is none.")] = read(entry)
        except RefusedError as error:
            flaws.append(error)
    return report


def read_refusals(value: object) -> dict[str, int]:
    """Return the checked numbers of a sender's refused messages by reason."""
    counts = table(value, REASONS, "its refusals of a sender")
    return {
        matching(why, WORD, "a reason is not a short word."): whole(n, 1, COUNT, "a number of refusals")
        for why, n in counts.items()
    }


def read_failure(value: object) -> Failure:
    """Return the checked failure of a device."""
    kind, error, why = rows(value, 3, "a failure")
    if kind not in (*REQUESTS, ABSENT):
        raise RefusedError("range", f"a failure is of a request that is none of {', '.join(REQUESTS)}.")
    return Failure(kind, matching(error, WORD, "an error is not a short word."), short_line(why))
