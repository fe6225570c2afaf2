"""The protocol of sources: updates of addresses' values, refusals of messages, and signals about the connection."""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from enum import Enum

from fedfloor.base.errors import SettingError
from fedfloor.data.files.layout import LARGEST
from fedfloor.data.files.times import EPOCHS, moment

POLL_S = 0.2  # between two signals of a source without updates
WAITING = 20_000  # updates between a source's thread and the buffer; others wait at the sender
LONGEST_LABEL = 200  # characters
MOST_WARNINGS = 1_000  # logged by a process

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Missing:
    """A value that is missing, with the reason, such as ``null`` or ``status BadSensorFailure``."""

    reason: str


@dataclass(frozen=True)
class Update:
    """Values reported by a source at a time; the values of other addresses are unchanged.

    Args:
        time: s since 1970 by the source's clock; NaN if unknown.
        values: address → value as received, or :class:`Missing`; None is a missing value, too.
        stored: whether the source kept them while the connection was lost.
        initial: whether they are present values at the beginning of a connection, perhaps set long before.
        repeated: whether they may have been received before, such as retained messages: they yield a row only if they
            have a time later than all rows.
        position: the position after these values, for sources that can continue from a position.
        others: further addresses that the source reports, to suggest in place of wrong ones.
    """

    time: float
    values: Mapping[str, object]
    stored: bool = False
    initial: bool = False
    repeated: bool = False
    position: str | None = None
    others: Collection[str] = field(default=(), compare=False)


@dataclass(frozen=True)
class Refusal:
    """Messages or rows that a source leaves out.

    Args:
        reason: the reason by which they are counted, such as ``no JSON``.
        subject: the topic or file, of which the first refusal for this reason is logged.
        detail: the text of the log.
        count: their number.
        position: as in :class:`Update`.
    """

    reason: str
    subject: str
    detail: str
    count: int = 1
    position: str | None = None


class Signal(Enum):
    """A source's signal: ``ALIVE``: no update, all values hold; ``IDLE``: no update; ``LOST``: no connection."""

    ALIVE = "alive"
    IDLE = "idle"
    LOST = "lost"


Event = Update | Refusal | Signal


@dataclass
class Inbox:
    """The queue between a connection's thread and the reader of its events; the thread waits while it is full."""

    stop: threading.Event
    queue: queue.Queue[Event | BaseException] = field(default_factory=lambda: queue.Queue(WAITING))

    def put(self, event: Event | BaseException) -> None:
        """Add an event, or an error that ends :meth:`events`."""
        while not self.stop.is_set():
            try:
                return self.queue.put(event, timeout=POLL_S)
            except queue.Full:
                continue

    def events(self, quiet: Callable[[], Signal]) -> Iterator[Event]:
        """Yield the events, and the signal returned by ``quiet`` while there are none."""
        drained = False
        while not self.stop.is_set():
            try:
                event = self.queue.get(drained, POLL_S)
                drained = False
            except queue.Empty:
                event = quiet()
                drained = True
            if isinstance(event, BaseException):
                raise event
            yield event


def kind(value: object) -> str:
    """Return the kind of a value: ``number``, ``text``, ``time``, ``list``, ``object`` or the reason of its absence.

    >>> kind(2), kind("2"), kind([2]), kind({"a": 2}), kind(None), kind(Missing("status Bad"))
    ('number', 'text', 'list', 'object', 'null', 'status Bad')
    """
    if isinstance(value, Missing):
        return value.reason
    kinds = (
        (bool | int | float, "number"),
        (str, "text"),
        (date | time, "time"),
        (list | tuple, "list"),
        (Mapping, "object"),
        (type(None), "null"),
    )
    return next((word for types, word in kinds if isinstance(value, types)), type(value).__name__)


def number(value: object, offset: int | float = 0) -> float | Missing:
    """Return a value as a number minus an offset; :class:`Missing` with the reason if it is no finite number.

    Whole numbers are subtracted exactly. Numbers beyond float32, the type of models' inputs, are missing.

    >>> number(True), number(2**62 + 1, 2**62), number(1e300), number(None), number("2.0")
    (1.0, 1.0, Missing(reason='beyond 32 bits'), Missing(reason='null'), Missing(reason='text'))
    """
    if not isinstance(value, bool | int | float):
        return Missing(kind(value))
    if isinstance(value, float) and math.isnan(value):
        return Missing("NaN")
    if not -LARGEST <= value <= LARGEST or not -LARGEST <= value - offset <= LARGEST:
        return Missing("beyond 32 bits")
    return float(value - offset)


def label(value: object) -> str | Missing:
    """Return a text or whole number as a label; :class:`Missing` with the reason for other values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        return Missing(kind(value))
    text = str(value).strip()
    ok = 0 < len(text) <= LONGEST_LABEL and text.isprintable()
    return text if ok else Missing("text that is not a label" if text else "null")


def seconds(value: object, unit: str = "s") -> float | None:
    """Return a time in s since 1970, given as a number in ``unit`` or a text in ISO 8601; None for other values.

    >>> seconds(1500, "ms"), seconds("1970-01-01T00:01:00Z"), seconds("soon"), seconds(float("nan"))
    (1.5, 60.0, None, None)
    """
    if isinstance(value, str):
        text = value[:64].strip()
        try:
            value = float(text)
        except ValueError:
            _, times = moment(text) or (None, ())
            return times[0] if len(times) == 1 and math.isfinite(times[0]) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        return None
    return value / EPOCHS[unit]


def secret(text: str, noun: str) -> str:
    """Return the value of the environment variable in a text ``$NAME``, as files must not contain secrets.

    Raises:
        SettingError: another text, or an unset variable.
    """
    name = text.removeprefix("$")
    if not text.startswith("$") or name not in os.environ:
        raise SettingError(
            f"{noun}: must be $NAME with a set environment variable, because files must not contain passwords."
        )
    return os.environ[name]


def warn_once(warned: set[str], key: str, text: str, *more: object) -> None:
    """Log the first warning of each kind only, so that messages from outside cannot fill the log."""
    if key not in warned and len(warned) < MOST_WARNINGS:
        warned.add(key)
        log.warning(text, *more)
