"""Visits that train at an edge's devices while others depart and arrive, for federations that do not wait.

The cloud's request states all visits that are on their way in a factory, and brings the models with which new ones
depart. The edge lets those depart that it does not know yet, forgets those that are no longer stated, and answers with
the first result that has arrived, or after a while without one. A result stays until it is no longer stated. Requests
and answers that are lost, an edge that is restarted and a cloud that resumes a run therefore cost no visit.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fedfloor.base import ranges
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks
from fedfloor.deploy.checks import Failure
from fedfloor.deploy.message import Message, Reply, fits
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.names import work as read_work
from fedfloor.engine import limit
from fedfloor.engine.directions import Directions
from fedfloor.engine.engine import Engine
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

MOST_WAIT_S = 60.0  # the longest wait of a request for a result
ROW = 7  # fields of a visit in a request


@dataclass(frozen=True)
class DepartedVisit:
    """A visit on its way.

    Attributes:
        number: the number of its departure in the run.
        model: the digest of the packet with which it departs.
        frozen: whether it trains the classifier alone.
    """

    number: int
    key: Key
    work: Work
    model: str
    frozen: bool

    @property
    def device(self) -> int:
        """The number of the visited device."""
        return self.key.device

    @property
    def name(self) -> str:
        """The name of the visit in messages: a run that resumes gives no other visit the same name."""
        return f"{self.number}-{self.device}-{self.model}"

    def row(self, work: Any) -> list[Any]:
        """Return the visit as JSON; ``work`` is its work with references to parts."""
        key = self.key
        return [self.number, key.round, key.tick, key.device, self.model, self.frozen, work]


@dataclass(frozen=True, eq=False)
class Landing:
    """The end of a visit at an edge.

    Attributes:
        result: None where the visit is lost.
        failed: its failures.
        spent_s: the time until its device began to train, and of training, by the device's own clock, s.
        direction: that of its update.
    """

    result: tuple[Packet, Receipt] | None
    failed: Mapping[str, Failure]
    spent_s: tuple[float, float]
    direction: Directions


class FlyingDevices(Protocol):
    """The contract of the devices, as their edge reaches them."""

    names: PartNames

    def fly(self, engine: Engine, visit: DepartedVisit, packet: Packet) -> Landing:
        """Carry out a visit, whose memory and failures are its own."""
        ...

    def release(self, device: int) -> None:
        """Wait for a device's answer no longer."""
        ...

    def report(self, landing: Landing) -> None:
        """Add a visit's failures, training time and direction to those of the present request."""
        ...


@dataclass(eq=False)
class EdgeVisit:
    """A visit at an edge, and its end once it has arrived or is lost."""

    visit: DepartedVisit
    landing: Landing | None = None
    reported: bool = False


class EdgeVisits:
    """The visits on their way at an edge.

    Args:
        engine: the edge's engine.
        devices: its devices.
        own: the numbers of the devices of this factory.
        rounds: the number of rounds of the experiment.
    """

    def __init__(self, engine: Engine, devices: FlyingDevices, own: Collection[int], rounds: int) -> None:
        self._engine = engine
        self._devices = devices
        self._own = frozenset(own)
        self._rounds = rounds
        self._trainings: dict[str, EdgeVisit] = {}
        self._models: dict[str, Packet] = {}
        self._changed = threading.Condition()

    def reply(self, message: Message) -> Reply:
        """Let visits depart and return the first result, as the cloud's request states.

        Raises:
            RefusedError: the request is malformed, or does not fit the experiment.
        """
        stated = self._stated(message)
        with ranges.of("header"):
            wait_s = ranges.number(message.about.get("wait_s"), 0, MOST_WAIT_S, "its wait")
        with self._changed:
            self._forget(stated)
            self._models |= self._arrived(message)
            needed = {visit.model for visit in stated.values()}
            self._models = {name: packet for name, packet in self._models.items() if name in needed}
            for name in stated.keys() - self._trainings.keys():
                self._depart(stated[name])
            self._changed.wait_for(lambda: any(one.landing for one in self._trainings.values()), wait_s)
            return self._answer()

    def _stated(self, message: Message) -> dict[str, DepartedVisit]:
        with ranges.of("header"):
            rows = message.about.get("visits")
            if not isinstance(rows, list) or len(rows) > len(self._own):
                raise RefusedError("header", "its visits are not a list, or more than this edge has devices.")
            visits = [self._read(row) for row in rows]
        devices = {visit.device for visit in visits}
        if len(devices) < len(visits) or not devices <= self._own:
            raise RefusedError("device", "it visits a device twice at a time, or one of another factory.")
        return {visit.name: visit for visit in visits}

    def _read(self, row: object) -> DepartedVisit:
        number, round_, tick, device, model, frozen, work = ranges.rows(row, ROW, "a visit")
        place = ranges.whole(round_, 1, self._rounds, "its round"), ranges.whole(tick, 0, ranges.COUNT, "its tick")
        key = Key(self._engine.seed, *place, ranges.whole(device, 0, ranges.COUNT, "a device"), 0)
        if type(frozen) is not bool or not isinstance(model, str):
            raise RefusedError("header", "a visit is malformed.")
        count = ranges.whole(number, 0, ranges.COUNT, "its number")
        return DepartedVisit(count, key, read_work(work, self._devices.names), model, frozen)

    def _arrived(self, message: Message) -> dict[str, Packet]:
        """Return the model of a request by its digest; {} without one."""
        if not message.arrays:
            return {}
        flat = self._engine.network.flat
        packet = parcel.unpack(message.arrays)
        if "w" not in packet or packet["w"].shape != flat.shape or packet["w"].dtype != flat.dtype:
            raise RefusedError("shape", "its model is not the experiment's: compare the experiment files.")
        return {parcel.digest(packet): packet}

    def _forget(self, stated: Mapping[str, DepartedVisit]) -> None:
        """Forget the visits for which the cloud no longer waits."""
        for name in self._trainings.keys() - stated.keys():
            gone = self._trainings.pop(name)
            if gone.landing is None:
                self._devices.release(gone.visit.device)

    def _depart(self, visit: DepartedVisit) -> None:
        """Let a visit depart if its model has arrived."""
        packet = self._models.get(visit.model)
        if packet is not None:
            self._trainings[visit.name] = training = EdgeVisit(visit)
            engine = copy.copy(self._engine)
            engine.memory = engine.memory.seen_by([visit.device])
            threading.Thread(target=self._fly, args=(training, engine, packet), daemon=True).start()

    def _fly(self, training: EdgeVisit, engine: Engine, packet: Packet) -> None:
        landing = self._devices.fly(engine, training.visit, packet)
        with self._changed:
            training.landing = landing
            self._changed.notify_all()

    def _answer(self) -> Reply:
        """Return the lost visits and the first result; the other results follow in the next answers."""
        done = [(one.visit, one.landing) for one in self._trainings.values() if one.landing is not None]
        for one in self._trainings.values():
            if one.landing is not None and not one.reported:
                one.reported = True
                self._devices.report(one.landing)
        lost = [visit.name for visit, landing in done if landing.result is None]
        about: dict[str, Any] = {"lost": lost, "models": sorted(self._models)}
        for visit, landing in done:
            if landing.result is not None:
                packet, receipt = landing.result
                cut = self._engine.network.parcel(visit.work.travels)
                about |= {"arrived": visit.name, "receipt": receipt.row(), "spent_s": list(landing.spent_s)}
                return "flown", about, cut.pack(packet)
        return "flown", about, {}


def read_spent(message: Message, span_s: float) -> tuple[float, float] | None:
    """Return the time until a visit's device began to train, and of training, from an edge's answer, s.

    Devices and edges have clocks of their own, and may state anything; a cloud that was away has counted less.

    Args:
        span_s: the time from the visit's departure to its arrival by the cloud's clock.

    Returns:
        None where they are not stated, or together longer than the visit.

    Raises:
        RefusedError: they are not two durations.
    """
    if "spent_s" not in message.about:
        return None
    with ranges.of("header"):
        stated = ranges.rows(message.about["spent_s"], 2, "the times of a visit")
        received_s, trained_s = (ranges.number(value, 0, ranges.SECONDS, "a time of a visit") for value in stated)
    return (received_s, trained_s) if received_s + trained_s <= span_s else None


def read_result(
    message: Message, visit: DepartedVisit, start: Packet, engine: Engine, trained: int
) -> tuple[Packet, Receipt]:  # fmt: skip
    """Return the result of a visit in an edge's answer.

    Args:
        start: the packet with which the visit departed.
        engine: the cloud's engine.
        trained: the number of the device's earlier local updates in the run.

    Raises:
        RefusedError: the result is not one of this visit, or out of range.
    """
    key = visit.key
    cut = engine.network.parcel(visit.work.travels)
    fits(message.arrays, cut.like(start))
    packet = {**start, **cut.unpack(message.arrays, start)}
    both = engine.network, start["w"], packet["w"]
    if why := limit.flaw(*both) or limit.implausible(*both, visit.work.travel):
        raise RefusedError("range", why)
    with ranges.of("receipt"):
        held = int(engine.park.holdings[visit.device])
        known = checks.Known(visit.device, (key.visit, key.visit), (key.tick, key.tick), held, visit.work, trained)
        return packet, checks.receipt(message.about.get("receipt"), known)
