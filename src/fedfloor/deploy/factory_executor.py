"""The devices of a factory, as the executor of the engine at its edge."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.errors import SettingError
from fedfloor.base.outside import ANY
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks, subtasks
from fedfloor.deploy.channel import DeviceChannel, side_by_side
from fedfloor.deploy.checks import ABSENT, Failure, note_failure, printable
from fedfloor.deploy.joining import Joining
from fedfloor.deploy.message import Message, fits, returned
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.settings import Deadlines
from fedfloor.deploy.summing import Conduct, ServerSum, relayed_crews
from fedfloor.deploy.visits import DepartedVisit, Landing
from fedfloor.deploy.waits import LEAST_S
from fedfloor.engine import limit
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.directions import ROUNDS, Directions
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.summing import SecureAggregation
from fedfloor.engine.travel import VisitPath
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key

log = logging.getLogger(__name__)

SHARE = 0.75  # the most of ``round_s`` that one device is waited for in a request of the cloud


@dataclass
class FactoryExecutor:
    """The devices of a factory, as the executor of an edge's engine.

    Attributes:
        channel: the connection to the devices.
        deadlines: the longest waits for their answers.
        names: the objects from outside the package to which messages may refer.
        layout: digest of the model's layout, see :func:`fedfloor.deploy.message.layout_digest`.
        run: name of the run.
        round: number of the current round.
        kept: device → digests of its memories to which checkpoints refer.
        joining: the holdings of devices that keep their samples.
        received_s, trained_s: time so far until devices began to train, and of training, summed over devices, by their
            own clocks.
        failed: device's name → its failure in the current request.
        relayed: device → the cloud's data on a secure sum across factories, for the visit's message.
        sums: device → the secure sum in which it takes part.
        conduct: the devices' conduct in the run's sums.
        directions: the directions of the devices' updates.
        against: device's name → rounds in which it was against the others, as far as the current request tells.
        reached: devices that the current request reached: they answered, or remained connected.
        waited_s: device → the time that the current request has waited for it, s.
        clock: returns the time in s; only differences are used.
    """

    channel: DeviceChannel
    deadlines: Deadlines
    names: PartNames
    layout: str = ""
    run: str = ""
    round: int = 0
    kept: Mapping[int, Sequence[str]] | None = None
    joining: Joining | None = None
    received_s: float = 0.0
    trained_s: float = 0.0
    failed: dict[str, Failure] = field(default_factory=dict)
    relayed: Mapping[str, Any] = field(default_factory=dict)
    sums: dict[int, ServerSum] = field(default_factory=dict)
    conduct: Conduct = field(default_factory=Conduct)
    directions: Directions = field(default_factory=Directions)
    against: dict[str, int] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    waited_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    clock: Callable[[], float] = time.monotonic
    at_once = True

    def begin(self, run: str, number: int) -> None:
        """Set the run and round of the current request."""
        if run != self.run:
            self.conduct = Conduct(self.conduct.path, run)
        self.run = run
        self.round = number

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Send the model to a device; return its update and receipt, or None if no valid update arrives."""
        if key.device < 0:
            raise SettingError("the plan trains at the cloud, which has no data in a real park. Choose another method.")
        path = VisitPath(engine.network, work)
        model = packet["w"]
        cut = path.down
        about = self.about(engine, key.device) | {
            "tick": key.tick, "visit": key.visit, "frozen": extractor.frozen,
            "work": self.names.refer({**asdict(work), "settings": dict(work.settings)}),
            "rest": cut.rest(model), "kept": list((self.kept or {}).get(key.device, ())),
        }  # fmt: skip
        coded = path.send(packet, key)
        if secure := path.summed:
            group = None if secure.across else self.sums[key.device]
            masked = self.relayed.get(str(key.device)) if group is None else group.about(key.device)
            if masked is None:
                return None
            about["sum"] = masked if group is None else self.names.refer(masked)
            if group is not None and not group.common:
                group.hang(work, path.receive(coded, model, key)["w"], key)
        train = partial(self.request, key.device, "visit", self.deadlines.visit_s, back=path.up.size(packet))
        answer = train(about, cut.pack(coded), work.travels)
        if answer is not None and answer.kind == "lacks":  # the device lacks the rest of the model
            cut = engine.network.parcel("all")
            about = about | {"rest": ""}
            whole = path.receive(coded, model, key)
            answer = train(about, cut.pack(whole))
        back = returned(engine.network, work, replace(cut, coding=None))
        return None if answer is None else self.received(engine, work, answer, packet, back, key)

    def fly(self, engine: Engine, visit: DepartedVisit, packet: Packet) -> Landing:
        """Carry out a visit while others depart and arrive; its failures are its own."""
        apart = replace(
            self, round=visit.key.round, failed={}, reached=set(), waited_s=defaultdict(float), received_s=0.0,
            trained_s=0.0, directions=Directions(),
        )  # fmt: skip
        engine.executor = apart
        result = None
        try:
            result = apart.visit(engine, visit.work, packet, visit.key, FrozenExtractor(visit.frozen))
        except ANY as error:  # one visit's failure leaves the others as they are
            failure = Failure("visit", "RunError", checks.short_line(str(error)))
            note_failure(apart.failed, self.channel.name_of(visit.device), failure)
        return Landing(result, apart.failed, (apart.received_s, apart.trained_s), apart.directions)

    def release(self, device: int) -> None:
        """Wait no longer for the answer of a device for which the cloud does not wait."""
        self.channel.release(device, "the cloud no longer waits for it")

    def report(self, landing: Landing) -> None:
        """Add a visit's failures, training time and direction to those of the present request."""
        self.received_s += landing.spent_s[0]
        self.trained_s += landing.spent_s[1]
        self.name_against(self.directions.join(landing.direction))
        for name, failure in landing.failed.items():
            note_failure(self.failed, name, failure)

    def name_against(self, devices: Mapping[int, int]) -> None:
        """Name devices in the log and the present request, given the rounds in which each was against the others."""
        for device, times in devices.items():
            self.against[self.channel.name_of(device)] = times
            log.warning(
                "device %s: its updates point against the others' in %d of %d rounds.",
                self.channel.name_of(device),
                times,
                ROUNDS,
            )

    @contextmanager
    def meeting(self, engine: Engine, aggregation: Aggregation, mine: Collection[int]) -> Iterator[None]:
        """Exchange keys before visits with masked updates, and unmask the sum afterwards.

        If the sum crosses factories, the cloud does both.
        """
        if not isinstance(aggregation, SecureAggregation) or aggregation.codec.across:
            if isinstance(aggregation, SecureAggregation) and aggregation.codec.together:
                aggregation.sums[0].crews = relayed_crews(self.relayed, aggregation.devices)
            yield
            return
        own = [group for group in aggregation.sums.values() if set(group.planned) & set(mine)]
        facts = "" if self.joining is None or self.joining.facts is None else self.joining.facts.digest
        names = {k: device.name for k, device in self.channel.devices.items()}
        signer = self.channel.filter.signer
        sums = [
            ServerSum(aggregation, group, partial(self.stage, engine), self.reject, facts, signer, names, self.conduct)
            for group in own
        ]
        for secure_sum in sums:
            secure_sum.begin()
            self.sums |= dict.fromkeys(secure_sum.devices, secure_sum)
        yield
        for secure_sum in sums:
            secure_sum.end()

    def stage(self, engine: Engine, kind: str, abouts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Request a stage of a secure sum from devices; return their unchecked answers."""

        def send(device: int) -> Message | None:
            about = {**self.about(engine, device), "sum": abouts[device]}
            return self.request(device, kind, self.deadlines.probe_s, about)

        answers = zip(abouts, side_by_side(send, list(abouts)), strict=True)
        return {device: answer.about.get("answer") for device, answer in answers if answer is not None}

    def received(
        self, engine: Engine, work: Work, answer: Message, packet: Packet, cut: Parcel, key: Key
    ) -> tuple[Packet, Receipt] | None:
        """Return a device's update and receipt after all checks; None if they are refused."""
        held = int(engine.park.holdings[key.device])
        trained = engine.memory.visits[key.device]
        path = VisitPath(engine.network, work)
        try:
            if answer.kind != "update":
                raise RefusedError("kind", f"received '{answer.kind}', expected an update.")
            fits(answer.arrays, cut.like(packet))
            sent = path.arrive(cut.unpack(answer.arrays, packet), packet["w"], key)
            if not path.summed:
                both = engine.network, packet["w"], sent["w"]
                if why := limit.flaw(*both) or limit.implausible(*both, work.travel):
                    raise RefusedError("range", why)
            with ranges.of("receipt"):
                known = checks.Known(key.device, (key.visit, key.visit), (key.tick, key.tick), held, work, trained)
                receipt = checks.receipt(answer.about.get("receipt"), known)
                longest_s = self.deadlines.visit_s
                seconds = ranges.number(answer.about.get("seconds", 0.0), 0, longest_s, "its seconds")
                receiving = ranges.number(answer.about.get("receiving", 0.0), 0, longest_s, "its seconds of receiving")
        except RefusedError as error:
            self.reject(key.device, "visit", error)
            return None
        self.received_s += receiving
        self.trained_s += seconds
        engine.memory.visits[key.device] += work.counts
        if receipt.memory is not None:
            engine.memory.held[key.device] = receipt.memory
        if not path.summed:
            self.directions.add(key.device, packet["w"], sent["w"])
        return sent, receipt

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Send the model to devices without training; a device that misses it receives it with its next visit."""
        sent = engine.network.parcel(node.scope).pack({"w": packet["w"]})

        def send(device: int) -> None:
            self.request(device, "keep", self.deadlines.visit_s, self.about(engine, device), sent, node.scope)

        side_by_side(send, node.devices)

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return devices' answers to a probe, checked; silent devices are left out."""
        sent = parcel.pack(packet) if "w" in packet else {}
        shared = subtasks.question_of(node, "kind").shared
        about = {"tick": tick, "what": node.what, "settings": self.names.reference(dict(node.settings))}
        answers = self.answered(engine, node, devices, "probe", about, sent)
        for device, error in subtasks.length_refusals({} if shared else answers, some=True).items():
            self.reject(device, "probe", error)
            del answers[device]
        return answers

    def answered(
        self, engine: Engine, node: Probe, devices: Sequence[int], kind: str, about: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[int, Any]:  # fmt: skip
        """Return devices' checked answers to requests of a kind; silent devices are left out."""

        def question(device: int) -> Any:
            answer = self.request(device, kind, self.deadlines.probe_s, {**self.about(engine, device), **about}, arrays)
            if answer is None:
                return None
            try:
                if answer.kind != "answer":
                    raise RefusedError("kind", f"received '{answer.kind}', expected an answer.")
                return subtasks.read_answer(node, device, answer.about.get("answer"), answer.arrays, engine)
            except RefusedError as error:
                self.reject(device, kind, error)
                return None

        answers = zip(devices, side_by_side(question, devices), strict=True)
        return {device: answer for device, answer in answers if answer is not None}

    def reject(self, device: int, kind: str, error: RefusedError) -> None:
        """Log and count a refused update or answer, and record it as the device's failure.

        Args:
            kind: of the request.
        """
        name = self.channel.devices[device].name
        self.channel.filter.refuse(name, error)
        note_failure(self.failed, name, Failure(kind, "RefusedError", printable(str(error))))

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return the class counts of each device's current samples, (devices, classes); zeros if it does not answer."""
        counts = self.answered(engine, Probe(tuple(devices), "census"), devices, "census", {"tick": tick})
        none = [0] * len(engine.park.dataset.classes)
        return np.array([counts.get(k, none) for k in devices], np.int64).reshape(len(devices), len(none))

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Reject an update or an answer that exceeds the engine's limit on lengths.

        Args:
            kind: of the request.
            why: the reason, for the log.
        """
        self.reject(device, kind, RefusedError("length", why))

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the connected devices."""
        return [k for k in devices if k in self.channel.connected]

    def about(self, engine: Engine, device: int) -> dict[str, Any]:
        """Return the header fields of a request that hold a device's number, its memory and the model's layout."""
        memory = engine.memory
        return {
            "device": device, "layout": self.layout, "held": memory.held.get(device), "trained": memory.visits[device]
        }  # fmt: skip

    def request(
        self, device: int, kind: str, deadline_s: float, about: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None, scope: str = "all", back: int = 0,
    ) -> Message | None:  # fmt: skip
        """Send a request to a device; return its answer, or None if none arrives or it reports a failure.

        A device that always answers just in time, visited many times, would else keep its factory from answering.

        Args:
            kind: of the request.
            about, arrays, scope: as of :class:`~fedfloor.deploy.message.Message`.
            back: bytes of the returned model, if a codec compresses the model that is sent.
        """
        began = self.channel.session(device)
        asked = self.clock()
        answer: Message | None = None
        left_s = max(LEAST_S, SHARE * self.deadlines.round_s - self.waited_s[device])
        if self.joining is None or self.joining.fits(device, self.run, self.round):
            answer = self.channel.request(
                device, kind, min(deadline_s, left_s), run=self.run, number=self.round, about=about, arrays=arrays,
                scope=scope, back=back,
            )  # fmt: skip
        self.waited_s[device] += self.clock() - asked
        stayed = began is not None and began == self.channel.session(device) and device in self.channel.present()
        if answer is not None or stayed:
            self.reached.add(device)
        if answer is None:
            self.miss(device)
            return None
        if answer.kind in ("failed", "refused"):  # the other devices continue
            failure = checks.failure(kind, answer)
            log.error("device %s failed in its %s: %s", answer.sender, kind, failure.text)
            note_failure(self.failed, self.channel.devices[device].name, failure)
            return None
        if answer.kind not in ("update", "answer", "lacks", "kept"):
            why = f"received '{printable(answer.kind)}', which does not answer '{kind}'."
            self.reject(device, kind, RefusedError("kind", why))
            return None
        return answer

    def miss(self, device: int) -> None:
        """Record a device without an answer as absent, with the reason."""
        name = self.channel.name_of(device)
        here = device in self.channel.connected
        why = self.channel.lost.pop(name, "its samples do not fit the run" if here else "it is not connected")
        note_failure(self.failed, name, Failure(ABSENT, "RunError", printable(why)))
