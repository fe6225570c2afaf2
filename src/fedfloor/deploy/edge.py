"""The service at a factory's base station: it walks its part of a round with its devices, and answers the cloud."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedfloor.config import combined
from fedfloor.config import read as read_experiment
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy import joining, names, packing, rights, subtasks
from fedfloor.deploy.asking import DeviceChannel, side_by_side
from fedfloor.deploy.broker import PID
from fedfloor.deploy.device import foreign
from fedfloor.deploy.door import EdgeSocket
from fedfloor.deploy.factory import Factory
from fedfloor.deploy.facts import read as read_facts
from fedfloor.deploy.gate import MessageFilter, shown
from fedfloor.deploy.joining import Joining
from fedfloor.deploy.link import Link, Mqtt
from fedfloor.deploy.message import Message, encode
from fedfloor.deploy.settings import EdgeSettings
from fedfloor.deploy.tally import Failure
from fedfloor.engine import ranks
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.errors import FedfloorError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.models import parcel
from fedfloor.park.park import Park
from fedfloor.parts import objectives
from fedfloor.plan.nodes import Broadcast, Probe
from fedfloor.ranges import RefusedError
from fedfloor.runs import prepare
from fedfloor.runs.parks import build_park

log = logging.getLogger(__name__)

CLOUD = "cloud"  # the name under which the cloud speaks


class Edge:
    """An edge.

    Args:
        settings: the edge's.
        experiment: what is trained.
        park: what is known of the devices; None until the cloud says so.
        link: its connection to the broker.

    Raises:
        SettingError: the experiment has fewer devices, or puts one into another factory; or its rounds cross factories
            and the settings were provisioned for one whose rounds do not.
    """

    def __init__(self, settings: EdgeSettings, experiment: Experiment, park: Park | None, link: Link) -> None:
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
        self._busy, self._session, self._number = threading.Lock(), time.time_ns(), 0

    def _begin(self, park: Park) -> None:
        _check_places(self.settings, park)
        self.engine, _ = prepare.engine(self.experiment, self._method, park, Alone(), DeviceMemory(None), live=True)
        layout = packing.layout(self.engine.network)
        self.factory = Factory(self.line, self.settings.deadlines, layout, self._names, joining=self.joining)
        self.engine.executor = self.factory
        self.ready = True

    def _withdraw(self, name: str) -> None:
        """Take a device's rights at the broker of this machine."""
        if self.settings.acl is None:
            return
        try:
            done = rights.withdraw(self.settings.acl, self.settings.state / Path(PID).name, name)
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
        """Do what the cloud asks and return the answer; one thing at a time."""
        message = self.gate.take(frame, CLOUD)
        if message is None:
            return encode(self._message("refused", None, {"text": f"{self.settings.name} took no such message"}))
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
            return {"walk": self._walk, "ask": self._ask, "census": self._census, "keep": self._hand}[message.kind](
                message
            )
        except RefusedError as error:
            self.gate.refuse(CLOUD, error)
            return "refused", {"text": str(error)}, {}
        except FedfloorError as error:
            log.error("%s", shown(str(error)))
            return "failed", {"error": type(error).__name__, "text": str(error)}, {}
        except Exception as error:  # of what the cloud or a device says: the edge lives on
            self.gate.refuse(CLOUD, RefusedError("header", f"{type(error).__name__}: {error}"))
            log.debug("what the cloud asked could not be done", exc_info=True)
            return "refused", {"text": f"{type(error).__name__}: {error}"}, {}

    def _gather(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Say what the own devices hold."""
        self.line.attend()
        mine = {one.device: one for one in self.settings.devices}
        facts = read_facts(message.about.get("facts"))
        return "gathered", joining.gathered(self.joining, mine, facts, message.run), {}

    def _park(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Take in what all devices hold."""
        facts = read_facts(message.about.get("facts"))
        factory_of, held = joining.read_told(message.about, facts)
        park = facts_of.park(self.experiment, facts, factory_of, held)
        self.joining.facts, self.joining.wanted = facts_of.known(facts, park), dict(enumerate(held))
        self._begin(park)
        if foreign(self.experiment, self._method):
            side_by_side(lambda device: self.joining.fits(device, message.run), self._own)
        return "ready", {}, {}

    def _introduce(self, device: int) -> None:
        """Ask an own device what it holds, where edges of other factories may ask it next: before, it refuses them."""
        if self.ready and device in self._own and foreign(self.experiment, self._method):
            threading.Thread(target=self.joining.fits, args=(device, self.factory.run), daemon=True).start()

    def _walk(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        subtask, mine = subtasks.read_subtask(message, self.engine, self._names)
        parts = ranks.share(self.engine, subtask, mine)
        return "walked", *subtasks.shown(parts, self.engine.network.flat.numpy().dtype)

    def _hand(self, message: Message) -> tuple[str, dict[str, Any], dict[str, Any]]:
        node = Broadcast(tuple(int(k) for k in message.about["devices"]), message.scope)
        network = self.engine.network
        model, cut = network.flat.clone(), network.parcel(message.scope)
        packing.check_visit(message.arrays, network, cut, objectives.objective("plain", {}))
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
        run, number, identity = (asked.run, asked.round, asked.identity) if asked else ("", 0, "")
        return Message(
            kind, self.settings.name, run, number, self._session, self._number, answers=identity, about=about,
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
    return Edge(settings, what, park, Mqtt(settings.name, settings.broker, settings.tls))


def serve(edge: Edge, wait: Callable[[], object]) -> None:
    """Run an edge until ``wait`` returns."""
    edge.start()
    door = EdgeSocket(edge.settings.listen, edge.answer)
    try:
        wait()
    finally:
        door.close()
        edge.stop()
