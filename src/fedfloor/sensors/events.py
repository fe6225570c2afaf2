"""The protocol of sources: updates of addresses with times, and signals about the connection."""

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

from fedfloor.data.files.columnar import LARGEST
from fedfloor.data.files.times import EPOCHS, moment
from fedfloor.errors import SettingError

POLL_S = 0.2  # between two signals of a source without news
WAITING = 20_000  # updates between a source's thread and the buffer; more wait at the sender
LONGEST_LABEL = 200  # characters
MOST_WARNINGS = 1_000  # of one process

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """Values that a source reports.

    Args:
        time: s since 1970 by the source's clock.
        values: address → value as it came.
        stored: kept by the source while the connection was lost, and sent afterwards.
        initial: a present value at the beginning of a connection, which may have been set long before.
        position: the position after these values, for sources that can continue from one.
    """

    time: float
    values: Mapping[str, object]
    stored: bool = False
    initial: bool = False
    position: str | None = None


class Signal(Enum):
    """``ALIVE``: no news, all values hold. ``IDLE``: no news. ``LOST``: the connection is lost, no value is known."""

    ALIVE = "alive"
    IDLE = "idle"
    LOST = "lost"


Event = Update | Signal


class SensorSource(Protocol):
    """Reports what sensors measure."""

    def events(self, addresses: Sequence[str], stop: threading.Event, position: str | None) -> Iterator[Event]:
        """Yield updates, and a signal whenever there are no more, at least each ``POLL_S``, until ``stop`` is set.

        Args:
            addresses: the addresses of the sensors; none: all that there are.
            position: the position of the last update that was written.

        Raises:
            SettingError: an address that the source does not have, or a connection that is refused for good.
        """
        ...


@dataclass
class Inbox:
    """The queue between a connection's thread and the reader of its events; when it is full, the thread waits."""

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
        """Yield the events, and whenever there are no more the signal that ``quiet`` returns."""
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
    """Return a value as a finite number of 32 bits, NaN for a missing one; None for anything else.

    >>> number(True), number(2), number(1e300), number(None), number("2.0")
    (1.0, 2.0, nan, nan, None)
    """
    if value is None:
        return math.nan
    if not isinstance(value, bool | int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else math.nan


def label(value: object) -> str:
    """Return a value as a label: texts, whole numbers and booleans; "" for anything else."""
    known = isinstance(value, str | int) or (isinstance(value, float) and value.is_integer())
    text = str(int(value) if isinstance(value, float) and known else value).strip() if known else ""
    return text if len(text) <= LONGEST_LABEL and text.isprintable() else ""


def seconds(value: object, unit: str = "s") -> float | None:
    """Return a time in s since 1970 from a number in a unit or a text in ISO 8601; None where it is no time.

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
    """Return the value of the environment variable that ``$NAME`` names: secrets are not written to files.

    Raises:
        SettingError: another text, or no such variable.
    """
    name = text.removeprefix("$")
    if not text.startswith("$") or name not in os.environ:
        raise SettingError(f"{noun}: must be $NAME, an environment variable that is set; no password stands in a file.")
    return os.environ[name]


def warn_once(warned: set[str], key: str, text: str, *more: object) -> None:
    """Log a warning of a kind once: messages from outside must not fill the log."""
    if key not in warned and len(warned) < MOST_WARNINGS:
        warned.add(key)
        log.warning(text, *more)
