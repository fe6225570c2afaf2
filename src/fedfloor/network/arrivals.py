"""The clock of a federation that does not wait: departures, arrivals and prices of visits on their way, to the event.

The times of a visit depend on sizes, work and the devices' properties, not on what is learnt. So the arrivals of every
round are known before anything is trained, and again after a resume: :class:`Arrivals` simulates them from the
beginning of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedfloor.base.chance import generator
from fedfloor.network.price import Critical, Price
from fedfloor.network.sites import Sites
from fedfloor.network.transfers import Account, PacketProcess, SimulatedClock, Steps
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import CLOUD, Train, device


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

    A visit is the model's download, training, and the upload of the result. Links that are shared serve requests first
    come first served, as in :func:`fedfloor.network.price.price`. Bytes and joules of a transfer count in the round in
    which it is requested, the joules of waiting in that of the result. Devices are drawn by (seed, "departs", number of
    the departure); of simultaneous events that of the lower device comes first.

    Args:
        down, up: bytes of the model on its way to a device, and of its result.
        priced: whether rounds have a price.
    """

    def __init__(
        self, flow: VisitFlow, seed: int, sites: Sites, down: int = 0, up: int = 0, *, priced: bool = True
    ) -> None:  # fmt: skip
        self.flow = flow
        self.seed = seed
        self.sites = sites
        self.down = down
        self.up = up
        self.priced = priced
        self.clock = SimulatedClock()
        self.account = Account(sites, None, self.clock, trace=False)
        self.rounds: list[Flush] = []
        self.resting = set(flow.devices)
        self.flying: dict[int, tuple[int, float]] = {}  # device → version, time of departure
        self.buffer: list[Arrival] = []
        self.departures = 0
        self.busy: dict[int, float] = {}  # device → its active seconds before its last departure
        self.ended_s = 0.0  # the last round, and what visits had spent by then
        self.spent = Counter[str]()
        self.joules = self.account.joules.copy()
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
        """Simulate a visit that departs now; its result may end a round, and another device then departs."""
        self.busy[k] = self.account.busy[k]
        site = device(k)
        route = self.sites.routes.route
        received = yield from self.account.carry(route(CLOUD, site).hops, self.clock.now, self.down, process)
        trained = received + self.account.train(Train(site, self.flow.work), process)
        arrival = yield from self.account.carry(route(site, CLOUD).hops, trained, self.up, process)
        if arrival > self.clock.now:
            yield arrival
        version, departed = self.flying.pop(k)
        self.buffer.append(Arrival(k, version, departed, arrival, received, trained))
        if len(self.buffer) == self.flow.buffer:
            self._flush(Critical(tuple(process.path), process.compute_s, process.transfer_s, process.wait_s))
        self._fill()
        return arrival

    def _flush(self, last: Critical) -> None:
        arrivals = tuple(self.buffer)
        price = self._price(arrivals, last) if self.priced else None
        self.buffer.clear()
        self.resting.update(arrival.device for arrival in arrivals)
        needed = frozenset(version for version, _ in self.flying.values())
        self.rounds.append(Flush(arrivals, price, needed))

    def _price(self, arrivals: Sequence[Arrival], last: Critical) -> Price:
        """Return the cost since the last round: of visits on their way, too, whose results count later.

        The critical path is that of the ``last`` visit, from its own departure on.
        """
        now = self.clock.now
        account = self.account
        each = [now_j - then_j for now_j, then_j in zip(account.joules, self.joules, strict=True)]
        joules = {k: each[k] for k in self.flow.devices if each[k]}
        for one in arrivals:  # a device waits until its round ends, as in other rounds
            k = one.device
            waited = now - one.departed_s - (account.busy[k] - self.busy[k])
            joules[k] = joules.get(k, 0.0) + self.sites.lists.idle_w[k] * max(0.0, waited)
        price = price_of(arrivals, now - self.ended_s, joules, account.bytes - self.spent, last)
        self.ended_s = now
        self.spent = account.bytes.copy()
        self.joules = account.joules.copy()
        return price


def price_of(
    arrivals: Sequence[Arrival], seconds: float, joules: Mapping[int, float], sent: Counter[str], last: Critical
) -> Price:
    """Return the cost of a round of these results: energy by device, bytes by link and direction, and the last path."""
    visits = tuple(arrival.arrived_s - arrival.departed_s for arrival in arrivals)
    return Price(seconds, sum(joules.values()), dict(sorted(sent.items())), joules, visits, last)
