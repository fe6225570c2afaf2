"""The service at a factory's base station: it carries out its part of a round and answers the cloud."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.config import read as read_experiment
from fedfloor.deploy import asking, broker, joining, names, subtasks
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.broker import PID
from fedfloor.deploy.channel import DeviceChannel, side_by_side
from fedfloor.deploy.checks import STAGES, MessageFilter
from fedfloor.deploy.device import foreign_requests
from fedfloor.deploy.factory_executor import FactoryExecutor
from fedfloor.deploy.facts import read as read_facts
from fedfloor.deploy.joining import Joining
from fedfloor.deploy.message import Message, Reply, check_visit, encode, layout_digest
from fedfloor.deploy.mqtt import Connection, MqttConnection
from fedfloor.deploy.settings import CLOUD, EdgeSettings
from fedfloor.deploy.signing import signer_of
from fedfloor.deploy.sum_messages import unpacked
from fedfloor.deploy.summing import CONDUCT, Conduct
from fedfloor.deploy.uplink import Uplink, socket_opened
from fedfloor.deploy.visits import EdgeVisits
from fedfloor.engine import ranks
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.models import parcel
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Broadcast, Probe
from fedfloor.runs import prepare
from fedfloor.runs.parks import build_park

log = logging.getLogger(__name__)


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
            refusal = self.next_message("refused", None, {"text": self.filter.last_reason})
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
