"""What a walk spends: transfers and training, booked as they take place."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from fedfloor.network.air import Air, Sent
from fedfloor.network.events import Clock, Process
from fedfloor.network.routes import Hop
from fedfloor.network.sites import Sites
from fedfloor.plan.nodes import Train


class Move(NamedTuple):
    """One transfer: which link and direction, whom it occupies from when to when, and its bytes on that link.

    Attributes:
        link: class and direction.
        cell: the factory in which it takes place, or whose base station it leads to or from.
        resource: number of what it occupies, or −1.
        asked_s, start_s, end_s: when it was asked for, began, and left the link.
        bytes: with all transmissions.
        device: who sends or receives it, or −1.
    """

    link: str
    cell: int
    resource: int
    asked_s: float
    start_s: float
    end_s: float
    bytes: int
    device: int


class Account:
    """The books of one walk.

    Attributes:
        bytes: link class and direction → bytes.
        joules, busy: of each device: energy, and seconds in which it does something.
        moves: every transfer, if they are kept.
    """

    def __init__(self, sites: Sites, air: Air | None, clock: Clock, *, trace: bool) -> None:
        self.sites, self.air, self.clock, self.trace = sites, air, clock, trace
        self.of = sites.lists
        self.transmit_w, self.receive_w = self.of.transmit_w, self.of.receive_w
        self.bytes: Counter[str] = Counter()
        self.joules = [0.0] * len(self.of.samples)
        self.busy = [0.0] * len(self.of.samples)
        self.moves: list[Move] = []

    def take(self, hop: Hop, time: float, size: int, process: Process, sent: Sent | None = None) -> float:
        """Take one hop from ``time`` on, which is now where its link is shared; return when the packet is there."""
        seconds, start, sender, receiver = size * hop.s_per_byte, time, hop.sender, hop.receiver
        watt = self.transmit_w[sender] if sender >= 0 else 0.0
        if hop.radio:
            seconds, size, watt = self._radio(hop, size, sent)
        if hop.resource >= 0:
            start = self.clock.serve(hop.resource, seconds)
            process.wait_s += start - time
        process.transfer_s += seconds + hop.latency_s
        self.bytes[hop.counter] += size
        if sender >= 0:
            self.joules[sender] += seconds * watt
            self.busy[sender] += seconds
        if receiver >= 0:
            self.joules[receiver] += seconds * self.receive_w[receiver]
            self.busy[receiver] += seconds
        if self.trace:
            self.moves.append(Move(hop.counter, hop.cell, hop.resource, time, start, start + seconds, size, hop.device))
        return start + seconds + hop.latency_s

    def hear(self, k: int, seconds: float) -> None:
        """Let a device receive for so long."""
        self.joules[k] += seconds * self.receive_w[k]
        self.busy[k] += seconds

    def train(self, node: Train, process: Process) -> float:
        """Train at a site; return the seconds it takes."""
        if node.site.kind == "device":
            return self.compute(node.site.index, self.sites.passes(node.site.index, node.work), process)
        seconds = self.sites.cloud_s(node.work)
        process.compute_s += seconds
        process.path.append(-1)
        return seconds

    def compute(self, k: int, passes: float, process: Process) -> float:
        """Let a device go through its data; return the seconds it takes."""
        seconds = passes * self.of.pass_s[k]
        self.joules[k] += passes * self.of.pass_j[k]
        self.busy[k] += seconds
        process.compute_s += seconds
        process.path.append(k)
        return seconds

    def _radio(self, hop: Hop, size: int, sent: Sent | None) -> tuple[float, int, float]:
        """Return (seconds, bytes, watt) of what a device sends: a visit's result, or alone on its channel."""
        if sent is None:
            one = self.air.clear(hop.sender, size)  # type: ignore[union-attr]
            return one.airtime_s, size, one.watt
        return sent.airtime_s * sent.attempts, size * sent.attempts, sent.watt
