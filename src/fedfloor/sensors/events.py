"""The protocol of sources: updates of addresses' values, and signals about the connection."""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from fedfloor.data.files.layout import LARGEST
from fedfloor.data.files.times import EPOCHS, moment
from fedfloor.errors import SettingError

POLL_S = 0.2  # between two signals of a source without updates
WAITING = 20_000  # updates between a source's thread and the buffer; others wait at the sender
LONGEST_LABEL = 200  # characters
MOST_WARNINGS = 1_000  # logged by a process

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """Values reported by a source at a time.

    Args:
        time: s since 1970 by the source's clock.
        values: address → value as received.
        stored: whether the source kept them while the connection was lost.
        initial: whether they are present values at the beginning of a connection, perhaps set long before.
        position: the position after these values, for sources that can continue from a position.
    """

    time: float
    values: Mapping[str, object]
    stored: bool = False
    initial: bool = False
    position: str | None = None


class Signal(Enum):
    """A source's signal: ``ALIVE``: no update, all values hold; ``IDLE``: no update; ``LOST``: no connection."""

    ALIVE = "alive"
    IDLE = "idle"
    LOST = "lost"


Event = Update | Signal


class SensorSource(Protocol):
    """A source of sensor values."""

    def events(self, addresses: Sequence[str], stop: threading.Event, position: str | None) -> Iterator[Event]:
        """Yield updates, and a signal at least every ``POLL_S`` while there are none, until ``stop`` is set.

        Args:
            addresses: the addresses of the sensors; if empty, all addresses of the source.
            position: the position of the last update written to the buffer.

        Raises:
            SettingError: the source lacks an address, or refuses the connection permanently.
        """
        ...


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
                event, drained = self.queue.get(drained, POLL_S), False
            except queue.Empty:
                event, drained = quiet(), True
            if isinstance(event, BaseException):
                raise event
            yield event


def number(value: object) -> float | None:
    """Return a value as a number: NaN if it is missing or exceeds float32, None if it is no number.

    >>> number(True), number(2), number(1e300), number(None), number("2.0")
    (1.0, 2.0, nan, nan, None)
    """
    if value is None:
        return math.nan
    if not isinstance(value, bool | int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else math.nan


def label(value: object) -> str:
    """Return a text, integer or boolean as a label; "" for other values."""
    known = isinstance(value, str | int) or (isinstance(value, float) and value.is_integer())
    text = str(int(value) if isinstance(value, float) and known else value).strip() if known else ""
    return text if len(text) <= LONGEST_LABEL and text.isprintable() else ""


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
