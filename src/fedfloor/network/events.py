"""Processes in simulated time: generators that wait for a moment or for others, served in order of time."""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush

Steps = Generator["float | None", None, float]  # yields when to go on, or None: once its children end; returns its end
NEVER = -1.0  # the end of a process that only started others


class Process:
    """One process: a copy of the packet on its way.

    Attributes:
        order: breaks ties in time: the number of the device that asks for a link.
        compute_s, transfer_s, wait_s: what its seconds went into.
        path: the devices it visited.
    """

    __slots__ = ("compute_s", "join", "order", "path", "steps", "transfer_s", "wait_s")

    def __init__(self, order: int, join: Join | None) -> None:
        self.order, self.join = order, join
        self.steps: Steps
        self.compute_s = self.transfer_s = self.wait_s = 0.0
        self.path: list[int] = []

    def add(self, other: Process) -> None:
        """Take over what another one's seconds went into, and its way."""
        self.compute_s += other.compute_s
        self.transfer_s += other.transfer_s
        self.wait_s += other.wait_s
        self.path += other.path


class Join:
    """Where a process waits for its children; it goes on when the latest has ended, and takes over what that took."""

    __slots__ = ("end", "last", "left", "waiting")

    def __init__(self, waiting: Process) -> None:
        self.waiting, self.left = waiting, 0
        self.end = NEVER
        self.last: Process | None = None


class Clock:
    """The event heap, and when each shared resource is free again."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free: dict[int, float] = {}
        self._heap: list[tuple[float, int, int, Process]] = []
        self._count = 0

    def at(self, time: float, process: Process) -> None:
        """Let a process go on at a time."""
        self._count += 1
        heappush(self._heap, (time, process.order, self._count, process))

    def serve(self, resource: int, seconds: float) -> float:
        """Occupy a resource from now on, or from when it is free; return when that begins."""
        free = self.free.get(resource, 0.0)
        start = free if free > self.now else self.now
        self.free[resource] = start + seconds
        return start

    def run(self, root: Process) -> float:
        """Run until nothing is left to do; return when the root ended."""
        self.at(0.0, root)
        heap, end = self._heap, 0.0
        while heap:
            self.now, _, _, process = heappop(heap)
            try:
                wake = next(process.steps)
            except StopIteration as stop:
                if process.join is None:
                    end = stop.value
                else:
                    self._met(process.join, process, stop.value)
                continue
            if wake is not None:
                self._count += 1
                heappush(heap, (wake, process.order, self._count, process))
        return end

    def _met(self, join: Join, process: Process, end: float) -> None:
        join.left -= 1
        if end > join.end:
            join.end, join.last = end, process
        if join.left == 0:
            if join.last is not None:
                join.waiting.add(join.last)
            self.at(join.end, join.waiting)
