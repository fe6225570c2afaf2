"""The visits of a run whose results the cloud takes as they come: departures and arrivals in the order of wall time.

One thread per edge states the visits on their way in its factory (:mod:`fedfloor.deploy.visits`) and takes the results.
The run's thread waits for as many as a round needs. The results are then carried out as the visits of the round's plan,
so that they are mixed as in a simulation, to the bit.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy.attendance import ATTEMPTS, LOOK_S
from fedfloor.deploy.message import Message
from fedfloor.deploy.own_work import departing
from fedfloor.deploy.visits import DepartedVisit, read_result, read_spent
from fedfloor.deploy.waits import Waits
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.methods.contract import View
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet
from fedfloor.network.arrivals import Flush
from fedfloor.plan import walk
from fedfloor.plan.closing import Close
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import Broadcast, Node, Probe, Train, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.runs.checkpoint import Checkpoint
from fedfloor.runs.closing import ClosedRound, without
from fedfloor.runs.resolving import ResolvedPlan
from fedfloor.runs.round import Departure, Position

log = logging.getLogger(__name__)

# of a request to an edge: another departure in its factory waits as long
LEAST_WAIT_S = 0.05
MOST_WAIT_S = 1.0
SHARE = 0.1  # of the time of a visit, for which such a request waits between these limits


@dataclass(frozen=True, eq=False)
class Flight:
    """A visit on its way, the packet with which it departed, and since when it is stated to its edge."""

    visit: DepartedVisit
    version: int
    departed_s: float
    packet: Packet
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, eq=False)
class Landed:
    """A visit's result at the cloud."""

    flight: Flight
    packet: Packet
    receipt: Receipt
    arrived_s: float
    spent_s: tuple[float, float] | None = None

    @property
    def arrival(self) -> Arrival:
        """The arrival as methods and the ledger see it.

        Its device has counted how long the model took to arrive and to train. What nobody has counted, from site to
        site and back, is divided evenly between the model's way and the result's.
        """
        flight = self.flight
        whole = Arrival(flight.visit.device, flight.version, flight.departed_s, self.arrived_s)
        if self.spent_s is None:
            return whole
        received_s, trained_s = self.spent_s
        uncounted_s = whole.arrived_s - whole.departed_s - received_s - trained_s
        began_s = whole.departed_s + uncounted_s / 2 + received_s
        return whole._replace(received_s=began_s, trained_s=min(began_s + trained_s, whole.arrived_s))


class FlyingEdges(Protocol):
    """The contract of the edges, as the cloud reaches them."""

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the connected devices."""
        ...

    def referred(self, work: Work) -> Any:
        """Return work as JSON for a message."""
        ...

    def states(self, engine: Engine, devices: set[int]) -> dict[str, Any]:
        """Return the state of devices for a message to their edge."""
        ...

    def fly(
        self, factory: int, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], size: int
    ) -> Message | None:
        """State the visits on their way to an edge; return its answer, None if none arrives."""
        ...

    def refusing(self, factory: int, request: str) -> AbstractContextManager[None]:
        """Return the context that records refused answers of an edge."""
        ...

    def nobody_arrives(self, number: int) -> Exception:
        """Return the error that ends a run in which no result can arrive."""
        ...

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return the answers of devices to a question."""
        ...

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[Any]:
        """Return the class counts of devices."""
        ...

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Record the refusal of an update or an answer."""
        ...


class ArrivingVisits:
    """The visits of real machines that arrive in their own time; the executor of the rounds that they make.

    Args:
        cloud: the executor at the cloud, which reaches the edges.
        engine: the engine of the run.
        factory_of: the factory of each device.
        wait_s: the longest wait for an edge or a device to return, s.
        visit_s: the longest wait for an edge that answers to end a visit, s.
        point: the state of the run.
    """

    at_once = True  # devices may be away

    def __init__(
        self, cloud: FlyingEdges, engine: Engine, factory_of: Sequence[int], wait_s: float, visit_s: float,
        point: Checkpoint | None,
    ) -> None:  # fmt: skip
        self._cloud = cloud
        self._factory_of = list(factory_of)
        self._wait_s = wait_s
        self._visit_s = visit_s
        self._waits = Waits()
        self.engine = copy.copy(engine)
        self.engine.executor = self
        self.engine.factories = None
        self.flow: VisitFlow | None = None
        self._resumed = point.departures if point is not None else ()
        self._versions: dict[int, Packet] = {}
        if point is not None:
            self._versions = {version: {"w": model} for version, model in point.versions.items()}
        self._departures = 1 + max((number for number, *_ in self._resumed), default=-1)
        self._flying: dict[int, Flight] = {}  # by device
        self._landed: list[Landed] = []  # results that no round has taken yet
        self._taken: dict[int, Landed] = {}  # results of the round's plan, by device
        self._failed: set[int] = set()  # devices whose visits were lost in this round
        self._flushes: dict[int, Flush] = {}
        self._arrivals: tuple[Arrival, ...] = ()  # of the present round
        self._number = 0
        self._tick = 0
        self._plan: Callable[[int], Node] | None = None
        self._usual_s = 0.0  # the time of the fastest visit so far
        self._changed = threading.Condition()
        self._ended = False
        self._error: Exception | None = None
        self._visits: dict[int, dict[int, Train]] = {}  # round of departure → device → its visit
        self._alone_since: float | None = None  # since when no visit is on its way
        self._again = 0  # times that devices whose visits were lost have departed again in a row
        line = point.line if point is not None else None
        before = [row[3] for row in ((line.arrivals or ()) if line is not None else ())]
        self._ended_s = {point.round if point is not None else 0: max(before, default=0.0)}  # round → last arrival
        self._began = time.monotonic() - max((*before, *(at for *_, at in self._resumed)), default=0.0)
        self._held: dict[int, set[str]] = {factory: set() for factory in set(self._factory_of)}
        self._threads = [threading.Thread(target=self._serve, args=(m,), daemon=True) for m in sorted(self._held)]

    # -- the run's thread -------------------------------------------------------------------------------------------

    @contextmanager
    def taking(self) -> Iterator[ArrivingVisits]:
        """Take results in the body; afterwards the edges forget the visits on their way."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            with self._changed:
                self._ended = True
                self._flying.clear()
                self._changed.notify_all()
            for thread in self._threads:
                thread.join()

    def now_s(self) -> float:
        """Return the time since the beginning of the run, s, without interruptions."""
        return time.monotonic() - self._began

    def begin(self, view: View, point: Position, plan: Callable[[View], Node]) -> None:
        """Note the round after a point, with whose model visits depart from now on, and how it is planned.

        Raises:
            SettingError: vectors travel beside the model of a method that does not wait.
        """

        def planned(number: int) -> Node:
            return plan(replace(view, round=number, arrivals=lambda own: departing(number, own)))

        with self._changed:
            self._number = view.round
            self._tick = point.tick
            self._plan = planned
            packet = {name: value.clone() for name, value in point.state.packet.items()}
            self._versions[view.round - 1] = packet
            self._failed.clear()
            self._visits.clear()
            self._prune()

    def flights(self, flow: VisitFlow) -> ArrivingVisits:
        """Return the rounds of a flow: this object."""
        if set(self._versions[self._number - 1]) != {"w"}:
            raise SettingError("a method that does not wait, with vectors beside the model: only simulations have it.")
        self.flow = flow
        with self._changed:
            for number, device, version, departed_s in self._resumed:
                self._depart(device, version, departed_s, number)
            self._resumed = ()
        return self

    def round(self, number: int) -> Flush:
        """Wait for the results of a round of the flow; return them in the order of their arrival."""
        if number in self._flushes:
            return self._flushes[number]
        flow = self.flow
        if flow is None or number != self._number:
            raise SettingError(f"results of round {number} are not those of round {self._number}, which arrive now.")
        with self._changed:
            self._wait(lambda: len(self._landed) >= flow.buffer, lambda: self._fill(flow))
            landed = self._landed[: flow.buffer]
            self._landed = self._landed[flow.buffer :]
            if len(landed) < flow.buffer:
                log.warning(
                    "round %d ends with %d of %d results: no other device can arrive.", number, len(landed), flow.buffer
                )  # fmt: skip
            self._taken = {one.flight.visit.device: one for one in landed}
            needed = {flight.version for flight in self._all_flights()}
        self._flushes = {number: Flush(self._count(number, landed), None, frozenset(needed))}
        return self._flushes[number]

    def _count(self, number: int, landed: Sequence[Landed]) -> tuple[Arrival, ...]:
        """Note the results of a round, which are in the order of their arrival."""
        began_s = self._ended_s[number - 1]
        self._ended_s = {number - 1: began_s, number: max((one.arrived_s for one in landed), default=began_s)}
        self._arrivals = tuple(one.arrival for one in landed)
        return self._arrivals

    def arrivals(self, number: int) -> tuple[Arrival, ...]:  # noqa: ARG002
        """Return the results of the present round in the order of their arrival."""
        return self._arrivals

    def began_s(self, number: int) -> float:
        """Return the time at which the last result before the present round arrived, s."""
        return self._ended_s[number - 1]

    def closed(self, made: ResolvedPlan, close: Close) -> ClosedRound:
        """Let the visits of a plan depart, and wait until the round ends; return the plan without the late visits.

        Raises:
            SettingError: the plan has another form, or fewer visits than ``first``.
        """
        plan = made.plan
        meeting = walk.last_meeting(plan)
        if meeting is None or close.at != "cloud":
            raise SettingError(
                "round.close on real machines needs rounds of parallel visits to single devices that meet at the cloud "
                "(at = 'cloud'), such as those of fedavg. Leave it out, or simulate the experiment."
            )
        devices = [walk.number(child) for child in meeting.children]  # type: ignore[arg-type]
        if len(set(devices)) < len(devices) or sum(walk.visits(plan).values()) > len(devices):
            raise SettingError("round.close on real machines: a device is visited twice in a round. Leave it out.")
        first = min(close.first or len(devices), len(devices))
        if close.first is not None and close.first > len(devices):
            raise SettingError(
                f"round.close: first = {close.first}, but only {len(devices)} visits take place in round "
                f"{self._number}. Lower it, or let more devices take part."
            )
        began = self.now_s()
        with self._changed:
            self._flying.clear()
            self._landed.clear()
            for child in meeting.children:
                self._depart(walk.number(child), self._number - 1, began, visit=child)  # type: ignore[arg-type]
            end = None if close.deadline_s is None else began + close.deadline_s
            self._wait(lambda: len(self._landed) >= first or not self._flying, lambda: False, end)
            landed = self._landed[:first]
            self._taken = {one.flight.visit.device: one for one in landed}
            known = self._taken.keys() | self._failed
            self._flying.clear()
            self._landed.clear()
            self._changed.notify_all()
        self._count(self._number, landed)
        late = {number for number, device in enumerate(devices) if device not in known}
        shorter, _ = without(plan, (), late)
        return ClosedRound(replace(made, plan=shorter), tuple(devices[number] for number in sorted(late)))

    def on_their_way(self) -> tuple[Departure, ...]:
        """Return the visits whose results have not counted in a round yet, in the order of their departure."""
        with self._changed:
            flights = sorted(self._all_flights(), key=lambda flight: flight.visit.number)
            return tuple((f.visit.number, f.visit.device, f.version, f.departed_s) for f in flights)

    def _all_flights(self) -> list[Flight]:
        return [*self._flying.values(), *(one.flight for one in self._landed)]

    def _prune(self) -> None:
        """Free the models with which no visit on its way has departed."""
        used = {flight.version for flight in self._all_flights()} | {self._number - 1}
        used |= {version for _, _, version, _ in self._resumed}
        self._versions = {version: packet for version, packet in self._versions.items() if version in used}

    def _wait(self, enough: Callable[[], bool], fill: Callable[[], bool], end_s: float | None = None) -> None:
        """Wait for results; the caller holds the lock.

        Args:
            enough: returns whether no more results are needed.
            fill: lets visits depart; returns whether the round must end with the results that are there.
            end_s: the time at which the wait ends in any case.
        """
        while not enough():
            if self._error is not None:
                raise self._error
            left = LOOK_S if end_s is None else min(LOOK_S, end_s - self.now_s())
            if left <= 0 or fill():
                return
            self._changed.wait(left)

    def _fill(self, flow: VisitFlow) -> bool:
        """Let devices depart until as many as allowed are on their way.

        Returns whether no device can arrive any more. The caller holds the lock.

        Raises:
            RunError: that is so before the first result of the round.
        """
        busy = self._flying.keys() | {one.flight.visit.device for one in self._landed}
        present = set(self._cloud.available(flow.devices)) - busy
        while len(self._flying) < flow.concurrency and (ready := sorted(present - self._failed)):
            rng = generator(self.engine.seed, "departs", self._departures)
            device = ready[int(rng.integers(len(ready)))]
            self._depart(device, self._number - 1, self.now_s())
            present.discard(device)
        if self._flying:
            self._alone_since = None
            return False
        return self._nobody(bool(present & self._failed))

    def _nobody(self, failed: bool) -> bool:
        """Return whether a round without visits on their way must end; those that failed may depart again before."""
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        if failed and self._again < ATTEMPTS:
            self._again += 1
            self._failed.clear()
            self._changed.notify_all()
            return False
        if not failed and now - self._alone_since < self._wait_s:
            return False
        if not self._landed:
            raise self._cloud.nobody_arrives(self._number)
        return True

    def _depart(
        self, device: int, version: int, departed_s: float, number: int | None = None, visit: Train | None = None
    ) -> None:
        """Let a visit depart from a model; the caller holds the lock."""
        if visit is None:
            visit = self._planned(device, version + 1)
        if number is None:
            number = self._departures
            self._departures = self._departures + 1
        tick = self._tick if version == self._number - 1 else version
        packet = self._versions[version]
        key = Key(self.engine.seed, version + 1, tick, device, 0)
        frozen = walk.scopes(visit) == {"classifier"}
        described = DepartedVisit(number, key, visit.work, parcel.digest(packet), frozen)
        self._flying[device] = Flight(described, version, departed_s, packet)
        self._changed.notify_all()

    def _planned(self, device: int, number: int) -> Train:
        """Return a device's visit in the plan of the round in which it departs."""
        if number not in self._visits and self._plan is not None:
            self._visits[number] = {walk.number(visit): visit for visit, _ in walk.visited(self._plan(number))}
        visits = self._visits.get(number, {})
        if device not in visits:
            raise SettingError(f"the method plans no visit to device {device} whose result would arrive at once.")
        return visits[device]

    # -- the threads of edges ---------------------------------------------------------------------------------------

    def _serve(self, factory: int) -> None:
        """Exchange visits and results with an edge until the run ends."""
        seen = time.monotonic()
        while True:
            ended = self._ended
            try:
                answered = self._exchange(factory)
            except Exception as error:  # of a setting, or of all edges: it ends the run
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            if ended:
                return
            self._lose_overdue(factory)
            if answered:
                seen = time.monotonic()
                self._waits.alive(str(factory))
            elif time.monotonic() - seen > self._wait_s:
                self._lose([k for k, m in enumerate(self._factory_of) if m == factory], "its edge is gone")
            if not answered:
                time.sleep(LOOK_S)

    def _exchange(self, factory: int) -> bool:
        """Send an edge the visits on their way; take what has arrived. Return whether it has answered."""
        with self._changed:
            flights = {
                flight.visit.name: flight for k, flight in self._flying.items() if self._factory_of[k] == factory
            }
            wait_s = min(MOST_WAIT_S, max(LEAST_WAIT_S, SHARE * self._usual_s)) if not self._ended else 0.0
        missing = [flight for flight in flights.values() if flight.visit.model not in self._held[factory]]
        arrays: dict[str, NDArray[Any]] = parcel.pack(missing[0].packet) if missing else {}
        rows = [flight.visit.row(self._cloud.referred(flight.visit.work)) for flight in flights.values()]
        size = max(
            (sum(array.nbytes for array in parcel.pack(one.packet).values()) for one in flights.values()), default=0
        )
        states = self._cloud.states(self.engine, {flight.visit.device for flight in flights.values()})
        answer = self._cloud.fly(factory, {"visits": rows, "wait_s": wait_s, **states}, arrays, size)
        if answer is None or answer.kind != "flown":
            self._held[factory] = set()
            return False
        with self._cloud.refusing(factory, "fly"):
            self._take(factory, answer, flights)
        return True

    def _take(self, factory: int, answer: Message, flights: Mapping[str, Flight]) -> None:
        """Take an edge's answer: a result, lost visits, and the models that it has.

        Raises:
            RefusedError: it is about visits that are not on their way there, or its result is out of range.
        """
        about = answer.about
        lost = about.get("lost", [])
        models = about.get("models", [])
        known = isinstance(lost, list) and all(isinstance(name, str) and name in flights for name in lost)
        if not known or not isinstance(models, list):
            raise RefusedError("header", "it states visits that are not on their way in its factory.")
        self._held[factory] = {str(model) for model in models}
        self._lose([flights[name].visit.device for name in lost], "", flights)
        if (name := about.get("arrived")) is None:
            return
        flight = flights.get(name) if isinstance(name, str) else None
        if flight is None:
            raise RefusedError("header", "it states a result that is not on its way in its factory.")
        trained = self.engine.memory.visits[flight.visit.device]
        try:
            packet, receipt = read_result(answer, flight.visit, flight.packet, self.engine, trained)
            spent_s = read_spent(answer, self.now_s() - flight.departed_s)
        except RefusedError:
            self._lose([flight.visit.device], "its result is refused", flights)
            raise
        with self._changed:
            if self._flying.get(flight.visit.device) is flight:
                del self._flying[flight.visit.device]
                now = self.now_s()
                self._landed.append(Landed(flight, packet, receipt, now, spent_s))
                took = now - flight.departed_s
                self._usual_s = min(self._usual_s or took, took)
                self._waits.answered(str(factory), time.monotonic() - flight.since)
                self._alone_since = None
                self._again = 0
                self._changed.notify_all()

    def _lose_overdue(self, factory: int) -> None:
        """Record visits as lost that an edge neither returns nor states as lost, or it would stop the run for ever."""
        wait_s = self._waits.wait_s(str(factory), self._visit_s)
        now = time.monotonic()
        with self._changed:
            flying = [flight for k, flight in self._flying.items() if self._factory_of[k] == factory]
        overdue = {flight.visit.name: flight for flight in flying if now - flight.since > wait_s}
        if overdue:
            self._waits.expired(str(factory), wait_s)
            why = f"its edge has not ended it within {wait_s:.4g} s"
            self._lose([flight.visit.device for flight in overdue.values()], why, overdue)

    def _lose(self, devices: Sequence[int], why: str, flights: Mapping[str, Flight] | None = None) -> None:
        """Record lost visits: their devices rest until the round ends, and their models are freed."""
        with self._changed:
            for device in devices:
                flight = self._flying.get(device)
                if flight is None or (flights is not None and flights.get(flight.visit.name) is not flight):
                    continue
                del self._flying[device]
                self._failed.add(device)
                reason = f": {why}" if why else ""
                log.warning(
                    "device %d: its visit from the model of round %d is lost%s.", device, flight.version, reason
                )
                self._changed.notify_all()

    # -- as the executor of a round's plan --------------------------------------------------------------------------

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor  # noqa: ARG002
    ) -> tuple[Packet, Receipt] | None:  # fmt: skip
        """Return the result of a visit that has arrived; None where it is lost.

        Raises:
            SettingError: the plan asks for another visit than the one that departed.
        """
        landed = self._taken.get(key.device)
        if landed is None:
            return None
        departed = landed.flight.visit
        same = departed.work == work and departed.key == key
        if not same or not packet["w"].equal(landed.flight.packet["w"]):
            raise SettingError(
                f"the plan of round {self._number} has another visit to device {key.device} than the one that "
                f"departed in round {departed.key.round}: the work of a visit must be that of the round of its "
                "departure (Arrival.round), its model that of its version, and its tick that of its version.",
                key="work-changed",
            )
        return landed.packet, landed.receipt

    def meeting(
        self, engine: Engine, aggregation: Aggregation, mine: Collection[int]  # noqa: ARG002
    ) -> AbstractContextManager[None]:  # fmt: skip
        """Return the context in which results are mixed: they are there already."""
        return nullcontext()

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Do nothing if the model was sent to late visits."""

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return the answers of devices, obtained through the edges."""
        return self._cloud.answers(engine, node, packet, tick, devices)

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[Any]:
        """Return the class counts of devices, obtained through the edges."""
        return self._cloud.census(engine, devices, tick)

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the connected devices."""
        return self._cloud.available(devices)

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Record the refusal of an update or an answer."""
        self._cloud.refuse(device, kind, why)
