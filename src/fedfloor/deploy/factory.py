"""A factory's devices as a walk visits them: each visit and question is a message, and its answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor import ranges
from fedfloor.deploy import answers, claims
from fedfloor.deploy.asking import DeviceChannel, side_by_side
from fedfloor.deploy.gate import shown
from fedfloor.deploy.joining import Joining
from fedfloor.deploy.message import Message, fits
from fedfloor.deploy.names import Names
from fedfloor.deploy.settings import Deadlines
from fedfloor.deploy.tally import KINDS, Failure, failed
from fedfloor.engine import limit
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.errors import SettingError
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.ranges import RefusedError

log = logging.getLogger(__name__)


@dataclass
class Factory:
    """The devices of a factory, as the floor of an edge's engine.

    Attributes:
        line: to the devices.
        deadlines: how long it waits.
        layout: of the model; see :func:`fedfloor.deploy.packing.layout`.
        names: the names from outside the package that messages may refer to.
        run: the run's name.
        round: the round under way.
        kept: device → digests of its memories that checkpoints name.
        joining: what devices say they hold, where their samples stay with them.
        trained_s: seconds that devices trained so far, by their own clocks, all together.
        failed: device's name → what it could not do in what is under way.
    """

    line: DeviceChannel
    deadlines: Deadlines
    layout: str
    names: Names
    run: str = ""
    round: int = 0
    kept: Mapping[int, Sequence[str]] | None = None
    joining: Joining | None = None
    trained_s: float = 0.0
    failed: dict[str, Failure] = field(default_factory=dict)
    at_once = True

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Send the model to a device; return what it sends back, or None where nothing comes."""
        if key.device < 0:
            raise SettingError("the plan trains at the cloud, which has no data of its own on real machines.")
        cut = engine.network.parcel(work.travels)
        model = packet["w"]
        about = self._about(engine, key.device) | {
            "tick": key.tick, "visit": key.visit, "work": self.names.refer(_told(work)), "frozen": extractor.frozen,
            "rest": cut.rest(model), "kept": list((self.kept or {}).get(key.device, ())),
        }  # fmt: skip
        answer = self._ask(key.device, "visit", self.deadlines.visit_s, about, cut.pack(packet), work.travels)
        if answer is not None and answer.kind == "lacks":  # it does not hold the rest of the model
            cut, about = engine.network.parcel("all"), about | {"rest": ""}
            answer = self._ask(key.device, "visit", self.deadlines.visit_s, about, cut.pack(packet))
        return None if answer is None else self._came(engine, work, answer, packet, cut, key)

    def _came(
        self, engine: Engine, work: Work, answer: Message, packet: Packet, cut: Parcel, key: Key
    ) -> tuple[Packet, Receipt] | None:
        """Take an update in if it is one."""
        held, trained = int(engine.park.holdings[key.device]), engine.memory.visits[key.device]
        try:
            if answer.kind != "update":
                raise RefusedError("kind", f"'{answer.kind}' came; an update is waited for.")
            fits(answer.arrays, cut.like(packet))
            sent = cut.unpack(answer.arrays, packet)
            if why := limit.flaw(engine.network, packet["w"], sent["w"]):
                raise RefusedError("range", why)
            with ranges.of("receipt"):
                known = claims.Known(key.device, (key.visit, key.visit), (key.tick, key.tick), held, work, trained)
                receipt = claims.receipt(answer.about.get("receipt"), known)
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
        """Send the model to devices that only keep it; who does not hear it pulls it with the next visit."""
        sent = engine.network.parcel(node.scope).pack({"w": packet["w"]})

        def give(device: int) -> None:
            self._ask(device, "keep", self.deadlines.visit_s, self._about(engine, device), sent, node.scope)

        side_by_side(give, node.devices)

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Ask devices; return what those answer who do, and as the question wants it."""
        sent = parcel.pack(packet) if "w" in packet else {}
        settings, found = self.names.reference(dict(node.settings)), dict[int, Any]()

        def ask(device: int) -> None:
            about = self._about(engine, device) | {"tick": tick, "what": node.what, "settings": settings}
            answer = self._ask(device, "probe", self.deadlines.probe_s, about, sent)
            try:
                if answer is not None and answer.kind != "answer":
                    raise RefusedError("kind", f"'{answer.kind}' came; an answer is waited for.")
                if answer is not None:
                    found[device] = answers.read(node, device, answer.about.get("answer"), answer.arrays, engine)
            except RefusedError as error:
                self._spoilt(device, "probe", error)

        side_by_side(ask, devices)
        for device, error in answers.alike(found, some=True).items():
            self._spoilt(device, "probe", error)
            del found[device]
        return {k: found[k] for k in devices if k in found}

    def _spoilt(self, device: int, kind: str, error: RefusedError) -> None:
        name = self.line.devices[device].name
        self.line.gate.refuse(name, error)
        failed(self.failed, name, Failure(kind, "RefusedError", shown(str(error))))

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Ask devices for the class counts of what each holds now; those who do not answer hold nothing."""
        node, classes = Probe(tuple(devices), "census"), len(engine.park.dataset.classes)

        def ask(device: int) -> list[int]:
            answer = self._ask(device, "census", self.deadlines.probe_s, self._about(engine, device) | {"tick": tick})
            try:
                if answer is not None:
                    return list(answers.read(node, device, answer.about.get("answer"), answer.arrays, engine))
            except RefusedError as error:
                self._spoilt(device, "census", error)
            return [0] * classes

        return np.array(side_by_side(ask, devices), np.int64).reshape(len(devices), classes)

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Name a device whose update or answer is refused."""
        self._spoilt(device, kind, RefusedError("length", why))

    def there(self, devices: Sequence[int]) -> Sequence[int]:
        """Return those who said hello and are not gone."""
        return [k for k in devices if k in self.line.here]

    def _about(self, engine: Engine, device: int) -> dict[str, Any]:
        memory = engine.memory
        return {
            "device": device, "layout": self.layout, "held": memory.held.get(device), "trained": memory.visits[device]
        }  # fmt: skip

    def _ask(
        self, device: int, kind: str, deadline_s: float, about: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None = None, scope: str = "all",
    ) -> Message | None:  # fmt: skip
        if self.joining is not None and not self.joining.fits(device, self.run):
            return None
        answer = self.line.ask(
            device, kind, deadline_s, run=self.run, number=self.round, about=about, arrays=arrays, scope=scope
        )
        if answer is not None and answer.kind in ("failed", "refused"):  # nobody else's training hangs on it
            text, error = claims.text(answer.about.get("text")), str(answer.about.get("error"))
            log.error("device %s could not do its %s: %s", answer.sender, kind, text)
            failed(
                self.failed,
                self.line.devices[device].name,
                Failure(kind, error if error in KINDS else "RunError", text),
            )
            return None
        if answer is not None and answer.kind not in ("update", "answer", "lacks", "kept"):
            self._spoilt(device, kind, RefusedError("kind", f"'{shown(answer.kind)}' came; it answers no '{kind}'."))
            return None
        return answer


def _told(work: Work) -> dict[str, Any]:
    return {**asdict(work), "settings": dict(work.settings)}
