"""The wait for each device's answer, which is short while the device is silent, so that others lose nothing by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

SHORTER = 10.0  # factor by which each expired wait in a row shortens the next
LEAST_S = 2.0  # the shortest wait
SPARE = 1.5  # the first shortened wait is at least so many times the device's longest answer
MOST = 9  # counted waits: a year shortened so often is below the shortest wait


@dataclass(frozen=True)
class Silence:
    """A device's expired waits in a row.

    Args:
        until: earliest end of short waits, by the clock in s.
        waits: number of waits without an answer, at most :data:`MOST`.
        alive: whether the device has answered since the first of them, even if late, or has connected again.
    """

    until: float
    waits: int = 0
    alive: bool = False


class Waits:
    """The waits for devices' answers.

    After n waits without an answer in a row a device is waited for deadline / 10ⁿ, but at least 2 s, and after the
    first of them long enough for the longest answer that it has given: a device that was restarted loses no more. It
    gets the whole deadline again once it has answered, in time or late, or has connected again, and as much time has
    passed as these waits took, but for those of 2 s: a device that is always too slow, or that leaves and returns
    instead of answering, thus costs at most half of the time. The state is kept in memory only.

    Args:
        clock: returns the time in s; only differences are used.

    >>> now = [0.0]
    >>> waits = Waits(clock=lambda: now[0])
    >>> waits.wait_s("press-1", 60), waits.expired("press-1", 60), waits.wait_s("press-1", 60)
    (60, None, 6.0)
    >>> waits.expired("press-1", 6), waits.wait_s("press-1", 60)
    (None, 2.0)
    >>> waits.alive("press-1"), waits.wait_s("press-1", 60)
    (None, 2.0)
    >>> now[0] = 66.0
    >>> waits.wait_s("press-1", 60)
    60
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._silent: dict[str, Silence] = {}
        self._longest: dict[str, float] = {}  # device → its longest answer in time, s

    def wait_s(self, device: str, deadline_s: float) -> float:
        """Return the wait for the next answer of a device, at most the deadline, in s."""
        silence = self._silent.get(device)
        if silence is None:
            return deadline_s
        if silence.alive and self._clock() >= silence.until:
            self._silent.pop(device, None)  # another thread may have done so
            return deadline_s
        usual = SPARE * self._longest.get(device, 0.0) if silence.waits == 1 else 0.0
        return min(deadline_s, max(LEAST_S, deadline_s / SHORTER**silence.waits, usual))

    def expired(self, device: str, waited_s: float) -> None:
        """Count a wait without an answer, which took so many seconds."""
        now = self._clock()
        silence = self._silent.get(device) or Silence(now)
        until = max(silence.until, now) + waited_s if waited_s > LEAST_S else silence.until
        self._silent[device] = replace(silence, until=until, waits=min(silence.waits + 1, MOST))

    def answered(self, device: str, waited_s: float) -> None:
        """Record an answer in time."""
        self._longest[device] = max(waited_s, self._longest.get(device, 0.0))

    def alive(self, device: str) -> None:
        """Record an answer, in time or late, or a connection."""
        if (silence := self._silent.get(device)) is not None:
            self._silent[device] = replace(silence, alive=True)
