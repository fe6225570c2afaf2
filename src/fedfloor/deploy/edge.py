"""The service at a factory's base station: it carries out its part of a round and answers the cloud."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.errors import SettingError
from fedfloor.base.outside import ANY
from fedfloor.base.ranges import RefusedError
from fedfloor.config import read as read_experiment
from fedfloor.deploy import asking, broker, checks, joining, names, subtasks
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.broker import PID
from fedfloor.deploy.channel import DeviceChannel, side_by_side
from fedfloor.deploy.checks import ABSENT, STAGES, Failure, MessageFilter, note_failure, printable
from fedfloor.deploy.device import foreign_requests
from fedfloor.deploy.facts import read as read_facts
from fedfloor.deploy.joining import Joining
from fedfloor.deploy.message import Message, Reply, check_visit, encode, fits, layout_digest, returned
from fedfloor.deploy.mqtt import Connection, MqttConnection
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.settings import CLOUD, Deadlines, EdgeSettings
from fedfloor.deploy.signing import signer_of
from fedfloor.deploy.sum_messages import unpacked
from fedfloor.deploy.summing import CONDUCT, Conduct, ServerSum, relayed_crews
from fedfloor.deploy.uplink import Uplink, socket_opened
from fedfloor.deploy.visits import DepartedVisit, EdgeVisits, Landing
from fedfloor.deploy.waits import LEAST_S
from fedfloor.engine import limit, ranks
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.directions import ROUNDS, Directions
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.summing import SecureAggregation
from fedfloor.engine.team import Alone
from fedfloor.engine.travel import VisitPath
from fedfloor.experiment import Experiment
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.runs import prepare
from fedfloor.runs.parks import build_park

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
            if not path.summed and (why := limit.flaw(engine.network, packet["w"], sent["w"])):
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


class Edge:
    """The service at a factory's base station, which carries out the factory's branches of each round.

    Args:
        settings: settings of the edge.
        experiment: the experiment that the park trains.
        park: the park of the devices; None until the cloud sends it.
        link: the connection to the broker.

    Raises:
        SettingError: a device of the settings is missing in the experiment or belongs to another factory there, or
            rounds cross factories and the settings were provisioned for rounds within a factory.
    """

    def __init__(self, settings: EdgeSettings, experiment: Experiment, park: Park | None, link: Connection) -> None:
        self.settings = settings
        self.experiment = experiment
        self.method = experiment.configured
        self.names = names.table(experiment)
        self.crosses = bool(foreign_requests(experiment, self.method))
        if settings.reach == "factory" and self.crosses:
            raise SettingError(
                f"method '{experiment.method.name}' crosses factories, but this edge was provisioned for rounds within "
                "its own: run fedfloor park provision again, copy the files that it lists, restart brokers and edges."
            )
        signer = signer_of(settings.tls, settings.name)
        self.filter = MessageFilter(seen=settings.state / f"{settings.name}.seen.json", signer=signer)
        reachable = {device.device: device for device in (*settings.devices, *settings.neighbours)}
        self.channel = DeviceChannel(
            settings.park,
            settings.name,
            link,
            reachable,
            cut=self.withdraw,
            joined=self.introduce,
            signer=signer,
            return_s=settings.deadlines.join_s,
        )
        self.own = [device.device for device in settings.devices]
        self.joining = Joining(self.channel, settings.deadlines.probe_s)
        self.ready = False
        conduct = Conduct(settings.state / f"{settings.name}.{CONDUCT}")
        self.factory = FactoryExecutor(
            self.channel, settings.deadlines, self.names, joining=self.joining, conduct=conduct
        )
        if park is not None:
            self.begin(park)
        self._busy = threading.Lock()
        self.session = time.time_ns()
        self._number = 0
        self._serving = ""  # the kind of the last request

    def begin(self, park: Park) -> None:
        """Make the engine for a park, after comparing its devices' factories with the settings.

        Raises:
            SettingError: the settings and the experiment assign a device to different factories.
        """
        check_places(self.settings, park)
        self.engine, _ = prepare.engine(self.experiment, self.method, park, Alone(), DeviceMemory(None), live=True)
        self.factory.layout = layout_digest(self.engine.network)
        self.engine.executor = self.factory
        self.visits = EdgeVisits(self.engine, self.factory, self.own, self.experiment.rounds)
        self.ready = True

    def withdraw(self, name: str) -> None:
        """Revoke a device's rights at the broker of this machine, and log the result."""
        if self.settings.acl is None:
            return
        try:
            done = broker.withdraw(self.settings.acl, self.settings.state / Path(PID).name, name)
        except OSError as error:
            log.error("%s: %s: device %s keeps its rights there.", self.settings.acl, error.strerror or error, name)
            return
        when = "Its broker refuses the device" if done else "Its broker refuses the device once it is reloaded"
        log.warning("device %s no longer has rights in %s. %s.", name, self.settings.acl, when)

    def start(self) -> None:
        """Connect, and wait for the factory's devices up to the deadline of the settings."""
        self.channel.start()
        if lacking := self.channel.wait_for(self.own, self.settings.deadlines.join_s):
            log.warning("%s: not connected yet: %s. Work begins without them.", self.settings.name, ", ".join(lacking))

    def stop(self) -> None:
        """Disconnect."""
        self.channel.stop()

    def answer(self, request: bytes) -> bytes:
        """Serve an encoded request of the cloud and return the encoded answer; requests are served one at a time."""
        message = self.filter.take(request, CLOUD)
        if message is None:
            refusal = self.next_message("refused", None, {"text": f"{self.settings.name} refused the message"})
            with suppress(RefusedError):  # requests of others get no answer
                refusal = replace(refusal, answers=self.filter.signed(request, CLOUD).identity)
            return encode(refusal, self.filter.signer)
        if self._busy.locked() and self._serving != "fly":  # the cloud sends one at a time: it gave up the last one
            self.channel.abandon("the cloud sent another request")
        with self._busy:
            began = time.perf_counter()
            moved = self.channel.moved.copy()
            trained_s = self.factory.trained_s
            self.factory.failed.clear()
            self.factory.against.clear()
            self.factory.reached.clear()
            self.factory.waited_s.clear()
            self._serving = message.kind
            kind, about, arrays = self.reply(message)
            measured = {
                "seconds": time.perf_counter() - began, "bytes": dict(self.channel.moved - moved),
                "training": self.factory.trained_s - trained_s,
            }  # fmt: skip
            about |= {
                "measured": measured, "here": self.channel.present(), "refused": self.channel.filter.counts(),
                "failed": {device: list(astuple(failure)) for device, failure in self.factory.failed.items()},
                "reached": len(self.factory.reached), "against": dict(self.factory.against),
            }  # fmt: skip
            return encode(self.next_message(kind, message, about, arrays), self.filter.signer)

    def reply(self, message: Message) -> Reply:
        """Serve a request; errors are returned as answers, so that the edge keeps running."""

        def dispatch() -> Reply:
            if message.kind in ("gather", "park", "sites"):
                handlers = {"gather": self.gather, "park": self.build_park, "sites": self.ask_sites}
                return handlers[message.kind](message)
            if message.kind == "present":  # every answer states the connected devices
                return "present", {}, {}
            if not self.ready:
                return "lacks", {}, {}
            self.factory.kept = subtasks.restore_device_states(message.about, self.engine)
            self.factory.begin(message.run, message.round)
            self.channel.resume()
            handlers = {
                "walk": self.walk, "ask": self.answer_question, "census": self.census, "keep": self.keep,
                "sum": self.secure_sum, "fly": self.visits.reply,
            }  # fmt: skip
            return handlers[message.kind](message)

        return self.filter.reply(CLOUD, dispatch)

    def gather(self, message: Message) -> Reply:
        """Return the holdings of this factory's devices."""
        self.channel.resume()
        own = {device.device: device for device in self.settings.devices}
        facts = read_facts(message.about.get("facts"))
        return "gathered", joining.gather(self.joining, own, facts, message.run), {}

    def ask_sites(self, message: Message) -> Reply:
        """Return what this factory's devices state of their rows."""
        self.channel.resume()
        own = self.settings.devices
        return "sites", asking.of_devices(self.channel, own, message.run, self.settings.deadlines.probe_s), {}

    def build_park(self, message: Message) -> Reply:
        """Build the park from the holdings of all devices."""
        facts = read_facts(message.about.get("facts"))
        factory_of, held = joining.read_holdings(message.about, facts)
        park = facts_of.park(self.experiment, facts, factory_of, held)
        self.joining.facts = facts_of.with_statistics(facts, park)
        self.joining.expected = dict(enumerate(held))
        self.begin(park)
        self.factory.begin(message.run, message.round)
        if self.crosses:
            side_by_side(lambda device: self.joining.fits(device, message.run, message.round), self.own)
        return "ready", {}, {}

    def introduce(self, device: int) -> None:
        """Query a device before its first request, as it accepts other factories' edges only after its own."""
        if self.ready and device in self.own and self.crosses:
            about = device, self.factory.run, self.factory.round
            threading.Thread(target=self.joining.fits, args=about, daemon=True).start()

    def walk(self, message: Message) -> Reply:
        """Carry out branches with the devices, and return their results."""
        subtask, branches = subtasks.read_subtask(message, self.engine, self.names)
        self.factory.relayed = unpacked(message.about, self.engine.park.devices)
        parts = ranks.share(self.engine, subtask, branches)
        about, arrays = subtasks.results_message(parts, subtask, self.engine)
        self.factory.name_against(self.factory.directions.close())
        return "walked", about, arrays

    def secure_sum(self, message: Message) -> Reply:
        """Pass a stage of a sum across factories on to this factory's devices."""
        stage = message.about.get("stage")
        sums = unpacked(message.about, len(self.own))
        if stage not in STAGES or not set(sums) <= {str(k) for k in self.own}:
            raise RefusedError("header", "its stage of a secure sum is unknown, or a device is of another factory.")
        answers = self.factory.stage(self.engine, stage, {int(k): about for k, about in sums.items()})
        return "sums", {"answers": {str(k): answer for k, answer in answers.items()}}, {}

    def keep(self, message: Message) -> Reply:
        """Send a model, or a part of it, to devices without training."""
        node = Broadcast(tuple(int(k) for k in message.about["devices"]), message.scope)
        network = self.engine.network
        model = network.flat.clone()
        cut = network.parcel(message.scope)
        check_visit(message.arrays, network, cut)
        self.factory.hand(self.engine, node, cut.unpack(message.arrays, {"w": model}))
        return "kept", {}, {}

    def answer_question(self, message: Message) -> Reply:
        """Send a probe to devices, and return their answers."""
        about = message.about
        devices = [int(k) for k in about["devices"]]
        settings = dict(self.names.resolved(about["settings"]))
        node = Probe(tuple(devices), str(about["what"]), settings=settings)
        packet = message.arrays
        answers = self.factory.answers(self.engine, node, parcel.unpack(packet), int(about["tick"]), devices)
        vectors = {str(k): answer.numpy() for k, answer in answers.items() if hasattr(answer, "numpy")}
        words = {str(k): answer for k, answer in answers.items() if str(k) not in vectors}
        return "answers", {"answers": words}, vectors

    def census(self, message: Message) -> Reply:
        """Return the class counts of the requested devices."""
        devices = [int(k) for k in message.about["devices"]]
        counts = self.factory.census(self.engine, devices, int(message.about["tick"]))
        return "census", {"census": counts.tolist()}, {}

    def next_message(
        self, kind: str, request: Message | None, about: dict[str, Any], arrays: dict[str, Any] | None = None
    ) -> Message:
        """Return the edge's next message, as the answer to ``request`` if it is given."""
        self._number += 1
        run, number, answers = (request.run, request.round, request.identity) if request else ("", 0, "")
        return Message(
            kind, self.settings.name, run, number, self.session, self._number, answers=answers, about=about,
            arrays=arrays or {}, receiver=CLOUD,
        )  # fmt: skip


def check_places(settings: EdgeSettings, park: Park) -> None:
    """Raise SettingError if the park file and the experiment assign a device to different factories."""
    for listed in (*settings.devices, *settings.neighbours):
        named = f"device '{listed.name}' (number {listed.device})"
        if listed.device >= park.devices:
            raise SettingError(
                f"{named}: the experiment has devices 0 to {park.devices - 1}. Set park.devices.", key="devices-differ"
            )
        factory = int(park.factory_of[listed.device])
        if (factory == settings.factory) != (listed in settings.devices):
            place = f"factory {settings.factory} ('{settings.name}')"
            stands = f"not in {place}" if listed in settings.neighbours else f"in {place}"
            raise SettingError(
                f"{named} is {stands} by the park file, but in factory {factory} by the experiment. Set "
                "park.assignment in the experiment to each device's factory; fedfloor park provision names the list.",
                key="factories-differ",
            )


def of(settings: EdgeSettings, experiment: Experiment | None = None) -> Edge:
    """Return the edge for the settings; ``experiment`` is read from its file if left out."""
    experiment = experiment or read_experiment(Path(settings.experiment), [])
    park = build_park(experiment) if settings.samples == "experiment" else None
    return Edge(settings, experiment, park, MqttConnection(settings.name, settings.broker, settings.tls))


def serve(edge: Edge, wait: Callable[[], object]) -> None:
    """Start an edge, call ``wait``, and stop the edge when it returns."""
    edge.start()
    flower = edge.settings.cloud is None
    connection: AbstractContextManager[object] = (
        socket_opened(edge.settings.state, edge.answer) if flower else Uplink(edge.settings, edge.answer, edge.session)
    )
    try:
        with connection:
            wait()
    finally:
        edge.stop()
