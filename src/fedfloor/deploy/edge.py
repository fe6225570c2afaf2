"""The service at a factory's base station: it walks its part of a round with its devices and answers the cloud."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor import ranges
from fedfloor.config import combined
from fedfloor.config import read as read_experiment
from fedfloor.deploy import broker, checks, door, joining, names, subtasks
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.broker import PID
from fedfloor.deploy.channel import DeviceChannel, side_by_side
from fedfloor.deploy.checks import MessageFilter, printable
from fedfloor.deploy.device import foreign
from fedfloor.deploy.facts import read as read_facts
from fedfloor.deploy.joining import Joining
from fedfloor.deploy.message import Message, check_visit, encode, fits, identity, layout_digest, returned
from fedfloor.deploy.mqtt import Connection, MqttConnection
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.settings import CLOUD, Deadlines, EdgeSettings
from fedfloor.deploy.summing import STAGES, ServerSum
from fedfloor.deploy.uplink import Uplink
from fedfloor.engine import limit, ranks, travel
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.summing import SecureAggregation
from fedfloor.engine.team import Alone
from fedfloor.errors import DivergedError, FedfloorError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.park.park import Park
from fedfloor.parts import objectives
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.ranges import RefusedError
from fedfloor.runs import prepare
from fedfloor.runs.parks import build_park

KINDS: dict[str, type[FedfloorError]] = {kind.__name__: kind for kind in (DivergedError, SettingError)}


@dataclass(frozen=True)
class Failure:
    """A failure that a device reports.

    Args:
        kind: of the request: ``visit``, ``probe``, …
        error: the kind of error.
        text: why.
    """

    kind: str
    error: str
    text: str


def failed(known: dict[str, Failure], who: str, one: Failure) -> None:
    """Note a failure of a device; of several, that of the visit, by which a round is judged."""
    if who not in known or known[who].kind != "visit":
        known[who] = one


log = logging.getLogger(__name__)


@dataclass
class FactoryExecutor:
    """The devices of a factory, as the executor of an edge's engine.

    Attributes:
        line: to the devices.
        deadlines: how long it waits.
        layout: of the model; see :func:`fedfloor.deploy.message.layout_digest`.
        names: the names from outside the package that messages may refer to.
        run: the run's name.
        round: the round under way.
        kept: device → digests of its memories that checkpoints name.
        joining: the holdings of devices whose samples stay with them.
        trained_s: seconds that devices trained so far, by their own clocks, all together.
        failed: device's name → its failure in the request under way.
        relayed: device → what the cloud has its visit's message state of a secure sum across factories.
    """

    line: DeviceChannel
    deadlines: Deadlines
    layout: str
    names: PartNames
    run: str = ""
    round: int = 0
    kept: Mapping[int, Sequence[str]] | None = None
    joining: Joining | None = None
    trained_s: float = 0.0
    failed: dict[str, Failure] = field(default_factory=dict)
    relayed: Mapping[str, Any] = field(default_factory=dict)
    _sums: dict[int, ServerSum] = field(default_factory=dict)  # device → the secure sum that it is in
    at_once = True

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Send the model to a device; return the update, or None where none comes."""
        if key.device < 0:
            raise SettingError("the plan trains at the cloud, which has no data of its own on real machines.")
        cut, model = travel.down(engine.network, work), packet["w"]
        about = self._about(engine, key.device) | {
            "tick": key.tick, "visit": key.visit, "work": self.names.refer(_told(work)), "frozen": extractor.frozen,
            "rest": cut.rest(model), "kept": list((self.kept or {}).get(key.device, ())),
        }  # fmt: skip
        coded, size = travel.sent(engine.network, work, packet, key), travel.up(engine.network, work).size(packet)
        if secure := travel.summed(travel.up(engine.network, work)):
            group = None if secure.across else self._sums[key.device]
            masked = self.relayed.get(str(key.device)) if group is None else group.about(key.device)
            if masked is None:
                return None
            about["sum"] = masked if group is None else self.names.refer(masked)
            if group is not None and not group.common:
                group.hang(engine.network, work, travel.arrived(engine.network, work, coded, model, key)["w"])
        ask = partial(self._ask, key.device, "visit", self.deadlines.visit_s, back=size)
        answer = ask(about, cut.pack(coded), work.travels)
        if answer is not None and answer.kind == "lacks":  # it does not hold the rest of the model
            cut, about = engine.network.parcel("all"), about | {"rest": ""}
            whole = travel.arrived(engine.network, work, coded, model, key)
            answer = ask(about, cut.pack(whole))
        back = returned(engine.network, work, replace(cut, coding=None))
        return None if answer is None else self._came(engine, work, answer, packet, back, key)

    @contextmanager
    def meeting(self, engine: Engine, aggregation: Aggregation, mine: Collection[int]) -> Iterator[None]:
        """Exchange keys before visits whose updates are masked, and unmask their sum after them.

        Where the sum is one across factories the cloud does both.
        """
        if not isinstance(aggregation, SecureAggregation) or aggregation.codec.across:
            yield
            return
        own = [one for one in aggregation.sums.values() if set(one.planned) & set(mine)]
        sums = [ServerSum(aggregation, one, partial(self.stage, engine), self._spoilt) for one in own]
        for made in sums:
            made.begin()
            self._sums |= dict.fromkeys(made.devices, made)
        yield
        for made in sums:
            made.end()

    def stage(self, engine: Engine, kind: str, told: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Put a stage of a secure sum to devices; return their answers, unchecked."""
        answers: dict[int, Any] = {}

        def ask(device: int) -> None:
            about = {**self._about(engine, device), "sum": told[device]}
            answer = self._ask(device, kind, self.deadlines.probe_s, about)
            if answer is not None:
                answers[device] = answer.about.get("answer")

        side_by_side(ask, list(told))
        return answers

    def _came(
        self, engine: Engine, work: Work, answer: Message, packet: Packet, cut: Parcel, key: Key
    ) -> tuple[Packet, Receipt] | None:
        """Return a device's update and receipt, checked; None where they are refused."""
        held, trained = int(engine.park.holdings[key.device]), engine.memory.visits[key.device]
        try:
            if answer.kind != "update":
                raise RefusedError("kind", f"'{answer.kind}' came; an update is waited for.")
            fits(answer.arrays, cut.like(packet))
            sent = travel.received(engine.network, work, cut.unpack(answer.arrays, packet), packet["w"], key)
            if not travel.summed(cut) and (why := limit.flaw(engine.network, packet["w"], sent["w"])):
                raise RefusedError("range", why)
            with ranges.of("receipt"):
                known = checks.Known(key.device, (key.visit, key.visit), (key.tick, key.tick), held, work, trained)
                receipt = checks.receipt(answer.about.get("receipt"), known)
                seconds = ranges.number(answer.about.get("seconds", 0.0), 0, self.deadlines.visit_s, "its seconds")
        except RefusedError as error:
            self._spoilt(key.device, "visit", error)
            return None
        self.trained_s += seconds
        engine.memory.visits[key.device] += work.counts
        if receipt.memory is not None:
            engine.memory.held[key.device] = receipt.memory
        return sent, receipt

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Send the model to devices that only keep it; a device that misses it pulls it with the next visit."""
        sent = engine.network.parcel(node.scope).pack({"w": packet["w"]})

        def give(device: int) -> None:
            self._ask(device, "keep", self.deadlines.visit_s, self._about(engine, device), sent, node.scope)

        side_by_side(give, node.devices)

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return the answers of the devices that answer, checked against the question."""
        sent, shared = parcel.pack(packet) if "w" in packet else {}, subtasks.question_of(node, "kind").shared
        settings, found = self.names.reference(dict(node.settings)), dict[int, Any]()

        def ask(device: int) -> None:
            about = self._about(engine, device) | {"tick": tick, "what": node.what, "settings": settings}
            answer = self._ask(device, "probe", self.deadlines.probe_s, about, sent)
            try:
                if answer is not None and answer.kind != "answer":
                    raise RefusedError("kind", f"'{answer.kind}' came; an answer is waited for.")
                if answer is not None:
                    found[device] = subtasks.read(node, device, answer.about.get("answer"), answer.arrays, engine)
            except RefusedError as error:
                self._spoilt(device, "probe", error)

        side_by_side(ask, devices)
        for device, error in subtasks.alike({} if shared else found, some=True).items():
            self._spoilt(device, "probe", error)
            del found[device]
        return {k: found[k] for k in devices if k in found}

    def _spoilt(self, device: int, kind: str, error: RefusedError) -> None:
        name = self.line.devices[device].name
        self.line.gate.refuse(name, error)
        failed(self.failed, name, Failure(kind, "RefusedError", printable(str(error))))

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return the class counts of what each device holds now; zeros of a device that does not answer."""
        node, classes = Probe(tuple(devices), "census"), len(engine.park.dataset.classes)

        def ask(device: int) -> list[int]:
            answer = self._ask(device, "census", self.deadlines.probe_s, self._about(engine, device) | {"tick": tick})
            try:
                if answer is not None:
                    return list(subtasks.read(node, device, answer.about.get("answer"), answer.arrays, engine))
            except RefusedError as error:
                self._spoilt(device, "census", error)
            return [0] * classes

        return np.array(side_by_side(ask, devices), np.int64).reshape(len(devices), classes)

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Log a device whose update or answer is refused."""
        self._spoilt(device, kind, RefusedError("length", why))

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the connected devices."""
        return [k for k in devices if k in self.line.here]

    def _about(self, engine: Engine, device: int) -> dict[str, Any]:
        memory = engine.memory
        return {
            "device": device, "layout": self.layout, "held": memory.held.get(device), "trained": memory.visits[device]
        }  # fmt: skip

    def _ask(
        self, device: int, kind: str, deadline_s: float, about: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None, scope: str = "all", back: int = 0,
    ) -> Message | None:  # fmt: skip
        if self.joining is not None and not self.joining.fits(device, self.run):
            return None
        answer = self.line.ask(
            device, kind, deadline_s, run=self.run, number=self.round, about=about, arrays=arrays, scope=scope,
            back=back,
        )  # fmt: skip
        if answer is not None and answer.kind in ("failed", "refused"):  # the other devices go on
            text, error = checks.line(answer.about.get("text")), str(answer.about.get("error"))
            log.error("device %s could not do its %s: %s", answer.sender, kind, text)
            failed(
                self.failed,
                self.line.devices[device].name,
                Failure(kind, error if error in KINDS else "RunError", text),
            )
            return None
        if answer is not None and answer.kind not in ("update", "answer", "lacks", "kept"):
            self._spoilt(
                device, kind, RefusedError("kind", f"'{printable(answer.kind)}' came; it answers no '{kind}'.")
            )
            return None
        return answer


def _told(work: Work) -> dict[str, Any]:
    return {**asdict(work), "settings": dict(work.settings)}


class Edge:
    """An edge.

    Args:
        settings: the edge's.
        experiment: what is trained.
        park: of the devices; None until the cloud sends it.
        link: its connection to the broker.

    Raises:
        SettingError: the experiment has fewer devices, or puts one into another factory; or its rounds cross factories
            and the settings were provisioned for one whose rounds do not.
    """

    def __init__(self, settings: EdgeSettings, experiment: Experiment, park: Park | None, link: Connection) -> None:
        self.settings, self.experiment = settings, experiment
        self._method, self._names = combined(experiment), names.table(experiment)
        if settings.reach == "factory" and foreign(experiment, self._method):
            raise SettingError(
                f"method '{experiment.method.name}' crosses factories, but this edge was provisioned without: run "
                "fedfloor provision again, copy what it names, and restart brokers and edges."
            )
        self.gate = MessageFilter(seen=settings.state / f"{settings.name}.seen.json")
        everyone = {one.device: one for one in (*settings.devices, *settings.neighbours)}
        self.line = DeviceChannel(
            settings.park, settings.name, link, everyone, cut=self._withdraw, joined=self._introduce
        )
        self._own = [one.device for one in settings.devices]
        self.joining, self.ready = Joining(self.line, settings.deadlines.probe_s), False
        if park is not None:
            self._begin(park)
        self._busy, self.session, self._number = threading.Lock(), time.time_ns(), 0

    def _begin(self, park: Park) -> None:
        _check_places(self.settings, park)
        self.engine, _ = prepare.engine(self.experiment, self._method, park, Alone(), DeviceMemory(None), live=True)
        layout = layout_digest(self.engine.network)
        self.factory = FactoryExecutor(self.line, self.settings.deadlines, layout, self._names, joining=self.joining)
        self.engine.executor = self.factory
        self.ready = True

    def _withdraw(self, name: str) -> None:
        """Take a device's rights at the broker of this machine."""
        if self.settings.acl is None:
            return
        try:
            done = broker.withdraw(self.settings.acl, self.settings.state / Path(PID).name, name)
        except OSError as error:
            log.error("%s: %s: device %s keeps its rights there.", self.settings.acl, error.strerror or error, name)
            return
        when = "Its broker refuses it" if done else "Its broker refuses it once it is reloaded"
        log.warning("device %s has no rights in %s any more. %s.", name, self.settings.acl, when)

    def start(self) -> None:
        """Connect, and wait a while for the factory's devices."""
        self.line.start()
        if not self.line.wait_for(len(self.settings.devices), self.settings.deadlines.join_s):
            lacking = [one.name for one in self.settings.devices if one.device not in self.line.here]
            log.warning("%s: not there yet: %s. The work begins without them.", self.settings.name, ", ".join(lacking))

    def stop(self) -> None:
        """Disconnect."""
        self.line.stop()

    def answer(self, frame: bytes) -> bytes:
        """Serve a request of the cloud and return the answer, one at a time."""
        message = self.gate.take(frame, CLOUD)
        if message is None:
            return encode(self._refusal(frame))
        if self._busy.locked():  # the cloud asks one thing at a time: it waits for the last one no more
            self.line.abandon("the cloud asks for something else")
        with self._busy:
            began, moved, trained = time.perf_counter(), self.line.moved.copy(), self._trained()
            self._failed().clear()
            kind, about, arrays = self._done(message)
            measured = {
                "seconds": time.perf_counter() - began, "bytes": dict(self.line.moved - moved),
                "training": max(0.0, self._trained() - trained),
            }  # fmt: skip
            about |= {"measured": measured, "here": sorted(self.line.here), "refused": self.line.gate.counts()}
            about["failed"] = {who: [one.kind, one.error, one.text] for who, one in self._failed().items()}
            return encode(self._message(kind, message, about, arrays))

    def _refusal(self, frame: bytes) -> Message:
        """Return the answer to a request that was refused as a message."""
        made = self._message("refused", None, {"text": f"{self.settings.name} took no such message"})
        with suppress(RefusedError):
            return replace(made, answers=identity(frame))
        return made

    def _trained(self) -> float:
        return self.factory.trained_s if self.ready else 0.0

    def _failed(self) -> dict[str, Failure]:
        return self.factory.failed if self.ready else {}

    def _done(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        try:
            if message.kind in ("gather", "park"):
                return {"gather": self._gather, "park": self._park}[message.kind](message)
            if not self.ready:
                return "lacks", {}, {}
            stands = subtasks.read_standing(message.about)
            self.engine.memory.held, self.factory.kept = dict(stands.held), stands.kept
            self.engine.memory.visits.clear()
            self.engine.memory.visits.update(stands.trained)
            self.factory.run, self.factory.round = message.run, message.round
            self.line.attend()
            serve = {
                "walk": self._walk, "ask": self._ask, "census": self._census, "keep": self._hand, "sum": self._pass_on
            }  # fmt: skip
            return serve[message.kind](message)
        except RefusedError as error:
            self.gate.refuse(CLOUD, error)
            return "refused", {"text": str(error)}, {}
        except FedfloorError as error:
            log.error("%s", printable(str(error)))
            return "failed", {"error": type(error).__name__, "text": str(error)}, {}
        except Exception as error:  # of any message: the edge goes on
            self.gate.refuse(CLOUD, RefusedError("header", f"{type(error).__name__}: {error}"))
            log.debug("the cloud's request failed", exc_info=True)
            return "refused", {"text": f"{type(error).__name__}: {error}"}, {}

    def _gather(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return the holdings of the own devices."""
        self.line.attend()
        mine = {one.device: one for one in self.settings.devices}
        facts = read_facts(message.about.get("facts"))
        return "gathered", joining.gathered(self.joining, mine, facts, message.run), {}

    def _park(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Build the park from the holdings of all devices."""
        facts = read_facts(message.about.get("facts"))
        factory_of, held = joining.read_told(message.about, facts)
        park = facts_of.park(self.experiment, facts, factory_of, held)
        self.joining.facts, self.joining.wanted = facts_of.known(facts, park), dict(enumerate(held))
        self._begin(park)
        if foreign(self.experiment, self._method):
            side_by_side(lambda device: self.joining.fits(device, message.run), self._own)
        return "ready", {}, {}

    def _introduce(self, device: int) -> None:
        """Query an own device first, as it refuses the edges of other factories until then."""
        if self.ready and device in self._own and foreign(self.experiment, self._method):
            threading.Thread(target=self.joining.fits, args=(device, self.factory.run), daemon=True).start()

    def _walk(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        subtask, mine = subtasks.read_subtask(message, self.engine, self._names)
        self.factory.relayed = ranges.table(message.about.get("sums", {}), self.engine.park.devices, "its sums")
        parts = ranks.share(self.engine, subtask, mine)
        return "walked", *subtasks.shown(parts, subtasks.sums_type(subtask, self.engine))

    def _pass_on(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Pass a stage of a sum across factories on to the own devices."""
        stage, told = message.about.get("stage"), ranges.table(message.about.get("sums"), len(self._own), "its sums")
        if stage not in STAGES or not set(told) <= {str(k) for k in self._own}:
            raise RefusedError("header", "it names no stage of a secure sum, or devices of another factory.")
        answers = self.factory.stage(self.engine, stage, {int(k): about for k, about in told.items()})
        return "sums", {"answers": {str(k): answer for k, answer in answers.items()}}, {}

    def _hand(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        node = Broadcast(tuple(int(k) for k in message.about["devices"]), message.scope)
        network = self.engine.network
        model, cut = network.flat.clone(), network.parcel(message.scope)
        check_visit(message.arrays, network, cut, objectives.objective("plain", {}))
        self.factory.hand(self.engine, node, cut.unpack(message.arrays, {"w": model}))
        return "kept", {}, {}

    def _ask(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        about = message.about
        devices = [int(k) for k in about["devices"]]
        settings = dict(self._names.resolved(about["settings"]))
        node, packet = Probe(tuple(devices), str(about["what"]), settings=settings), message.arrays
        said = self.factory.answers(self.engine, node, parcel.unpack(packet), int(about["tick"]), devices)
        vectors = {str(k): one.numpy() for k, one in said.items() if hasattr(one, "numpy")}
        return "answers", {"answers": {str(k): one for k, one in said.items() if str(k) not in vectors}}, vectors

    def _census(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        devices = [int(k) for k in message.about["devices"]]
        found = self.factory.census(self.engine, devices, int(message.about["tick"]))
        return "census", {"census": found.tolist()}, {}

    def _message(
        self, kind: str, asked: Message | None, about: dict[str, Any], arrays: dict[str, Any] | None = None
    ) -> Message:
        self._number += 1
        run, number, answers = (asked.run, asked.round, asked.identity) if asked else ("", 0, "")
        return Message(
            kind, self.settings.name, run, number, self.session, self._number, answers=answers, about=about,
            arrays=arrays or {},
        )  # fmt: skip


def _check_places(settings: EdgeSettings, park: Park) -> None:
    """Raise where the park file and the experiment put a device into two factories."""
    for one in (*settings.devices, *settings.neighbours):
        named = f"device '{one.name}' (number {one.device})"
        if one.device >= park.devices:
            raise SettingError(f"{named}: the experiment has devices 0 to {park.devices - 1}. Set park.devices.")
        there = int(park.factory_of[one.device])
        if (there == settings.factory) != (one in settings.devices):
            here = f"factory {settings.factory} ('{settings.name}')"
            said = f"not in {here}" if one in settings.neighbours else f"in {here}"
            raise SettingError(
                f"{named} stands {said} by the park file, but in factory {there} by the experiment. Set "
                "park.assignment in the experiment to the factory of each device; fedfloor provision names the list."
            )


def of(settings: EdgeSettings, experiment: Experiment | None = None) -> Edge:
    """Return the edge that settings describe."""
    what = experiment or read_experiment(Path(settings.experiment), [])
    park = build_park(what) if settings.samples == "experiment" else None
    return Edge(settings, what, park, MqttConnection(settings.name, settings.broker, settings.tls))


def serve(edge: Edge, wait: Callable[[], object]) -> None:
    """Run an edge until ``wait`` returns."""
    edge.start()
    flower = edge.settings.cloud is None
    way: AbstractContextManager[object] = (
        door.opened(edge.settings.state, edge.answer) if flower else Uplink(edge.settings, edge.answer, edge.session)
    )
    try:
        with way:
            wait()
    finally:
        edge.stop()
