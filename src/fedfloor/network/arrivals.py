"""The clock of a federation that does not wait: departures, arrivals and prices of visits on their way, to the event.

The times of a visit depend on sizes, work and the devices' properties, not on what is learnt. So the arrivals of every
round are known before anything is trained, and again after a resume: :class:`Arrivals` simulates them from the
beginning of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedfloor.base.chance import generator
from fedfloor.network.price import Critical, Price
from fedfloor.network.sites import Sites
from fedfloor.network.transfers import Account, PacketProcess, SimulatedClock, Steps
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import CLOUD, Train, device


class Spending(NamedTuple):
    """What visits have spent since the beginning: bytes by link and direction, joules by device without waiting."""

    bytes: Counter[str]
    joules: Sequence[float]


class Trips(Protocol):
    """The contract of the course of a visit in simulated time."""

    clock: SimulatedClock
    training: dict[int, tuple[float, float]]  # device → beginning and end of the training of its last visit

    def steps(self, k: int, process: PacketProcess) -> Steps:
        """Simulate a visit to device ``k`` that departs now; return its arrival."""
        ...

    def spent(self) -> Spending | None:
        """Return what visits have spent so far; None where nothing is counted."""
        ...

    def busy_s(self, k: int) -> float:
        """Return the seconds in which a device was active so far."""
        ...

    def idle_w(self, k: int) -> float:
        """Return the power of a device that waits, W."""
        ...


class NetworkTrips:
    """Visits over a network: the model's download, training, and the upload of the result.

    Links that are shared serve requests first come first served, as in :func:`fedfloor.network.price.price`. Bytes and
    joules of a transfer count in the round in which it is requested, the joules of waiting in that of the result.

    Args:
        work: the work of a visit.
        down, up: bytes of the model on its way to a device, and of its result.
    """

    def __init__(self, sites: Sites, flow: VisitFlow, down: int, up: int) -> None:
        self.sites = sites
        self.clock = SimulatedClock()
        self.work = flow.work
        self.down = down
        self.up = up
        self.account = Account(sites, None, self.clock, trace=False)
        self.training: dict[int, tuple[float, float]] = {}

    def steps(self, k: int, process: PacketProcess) -> Steps:
        """Simulate a visit, transfer by transfer."""
        clock = self.clock
        account = self.account
        site = device(k)
        time = clock.now
        for hop in self.sites.routes.route(CLOUD, site).hops:
            if hop.resource >= 0 and time > clock.now:
                yield time
            time = account.transfer(hop, time, self.down, process)
        received = time
        time += account.train(Train(site, self.work), process)
        self.training[k] = received, time
        for hop in self.sites.routes.route(site, CLOUD).hops:
            if hop.resource >= 0 and time > clock.now:
                yield time
            time = account.transfer(hop, time, self.up, process)
        return time

    def spent(self) -> Spending:
        """Return a copy of the account."""
        return Spending(self.account.bytes.copy(), tuple(self.account.joules))

    def busy_s(self, k: int) -> float:
        """Return the seconds of transfers and training so far."""
        return self.account.busy[k]

    def idle_w(self, k: int) -> float:
        """Return the device's power while it waits, W."""
        return self.sites.lists.idle_w[k]


class StepTrips:
    """Visits without a network, which take as long as their number of mini-batches."""

    def __init__(self, batches: Callable[[int], int]) -> None:
        self.clock = SimulatedClock()
        self.batches = batches
        self.training: dict[int, tuple[float, float]] = {}

    def steps(self, k: int, process: PacketProcess) -> Steps:
        """Simulate a visit of one unit of time per mini-batch."""
        end = self.clock.now + self.batches(k)
        process.compute_s += end - self.clock.now
        self.training[k] = self.clock.now, end
        yield end
        return end

    def spent(self) -> None:
        """Return None: nothing is counted."""

    def busy_s(self, k: int) -> float:  # noqa: ARG002
        """Return 0."""
        return 0.0

    def idle_w(self, k: int) -> float:  # noqa: ARG002
        """Return 0."""
        return 0.0


@dataclass(frozen=True)
class Flush:
    """A round: the results that made its model, in the order of their arrival, and what it cost.

    Attributes:
        price: None without a network.
        needed: the numbers of the earlier models with which visits on their way after the round have departed.
    """

    arrivals: tuple[Arrival, ...]
    price: Price | None
    needed: frozenset[int]


class Flights(Protocol):
    """The contract of the rounds of a flow of visits: in simulated time, or on real machines."""

    flow: VisitFlow

    def round(self, number: int) -> Flush:
        """Return a round, from 1."""
        ...


class Arrivals:
    """The rounds of a flow in simulated time, each simulated when it is first asked for.

    Devices are drawn by (seed, "departs", number of the departure); of simultaneous events that of the lower device
    comes first.

    Args:
        trips: the course of a visit.
    """

    def __init__(self, flow: VisitFlow, seed: int, trips: Trips) -> None:
        self.flow = flow
        self.seed = seed
        self.trips = trips
        self.clock = trips.clock
        self.rounds: list[Flush] = []
        self.resting = set(flow.devices)
        self.flying: dict[int, tuple[int, float]] = {}  # device → version, time of departure
        self.buffer: list[Arrival] = []
        self.departures = 0
        self.busy: dict[int, float] = {}  # device → its active seconds before its last departure
        self.before: tuple[float, Spending | None] = (0.0, trips.spent())
        self._fill()

    def round(self, number: int) -> Flush:
        """Return a round, from 1."""
        while len(self.rounds) < number:
            self.clock.advance()
        return self.rounds[number - 1]

    def _fill(self) -> None:
        """Let devices depart until as many as allowed are on their way."""
        while len(self.flying) < self.flow.concurrency and self.resting:
            ready = sorted(self.resting)
            rng = generator(self.seed, "departs", self.departures)
            self._depart(ready[int(rng.integers(len(ready)))])

    def _depart(self, k: int) -> None:
        self.resting.remove(k)
        self.flying[k] = len(self.rounds), self.clock.now
        self.departures += 1
        process = PacketProcess(k, None)
        process.steps = self._trip(k, process)
        self.clock.at(self.clock.now, process)

    def _trip(self, k: int, process: PacketProcess) -> Steps:
        self.busy[k] = self.trips.busy_s(k)
        arrival = yield from self.trips.steps(k, process)
        if arrival > self.clock.now:
            yield arrival
        version, departed = self.flying.pop(k)
        self.buffer.append(Arrival(k, version, departed, arrival, *self.trips.training[k]))
        if len(self.buffer) == self.flow.buffer:
            self._flush(Critical(tuple(process.path), process.compute_s, process.transfer_s, process.wait_s))
        self._fill()
        return arrival

    def _flush(self, last: Critical) -> None:
        arrivals = tuple(self.buffer)
        price = self._price(arrivals, last)
        self.buffer.clear()
        self.resting.update(arrival.device for arrival in arrivals)
        needed = frozenset(version for version, _ in self.flying.values())
        self.rounds.append(Flush(arrivals, price, needed))

    def _price(self, arrivals: Sequence[Arrival], last: Critical) -> Price | None:
        """Return the cost since the last round: of visits on their way, too, whose results count later.

        The critical path is that of the ``last`` visit, from its own departure on.
        """
        now = self.clock.now
        spent = self.trips.spent()
        then, before = self.before
        self.before = now, spent
        if spent is None or before is None:
            return None
        each = [now_j - then_j for now_j, then_j in zip(spent.joules, before.joules, strict=True)]
        joules = {k: each[k] for k in self.flow.devices if each[k]}
        for one in arrivals:  # a device waits until its round ends, as in other rounds
            k = one.device
            waited = now - one.departed_s - (self.trips.busy_s(k) - self.busy[k])
            joules[k] = joules.get(k, 0.0) + self.trips.idle_w(k) * max(0.0, waited)
        return Price(
            seconds=now - then,
            joules=sum(joules.values()),
            bytes=dict(sorted((spent.bytes - before.bytes).items())),
            joules_by_device=joules,
            visits=tuple(arrival.arrived_s - arrival.departed_s for arrival in arrivals),
            critical=last,
        )
