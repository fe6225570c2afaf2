"""A device's engine, which trains and answers probes with its own samples and memory."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedfloor.base.ranges import RefusedError
from fedfloor.base.strict import json_text
from fedfloor.deploy import names as names_of
from fedfloor.deploy.answered import RUNS, Answers
from fedfloor.deploy.checks import STAGES, printable, worth_a_line
from fedfloor.deploy.device_sum import DeviceSum
from fedfloor.deploy.message import Message, Reply, check_visit, layout_digest, returned
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.own import Sensed
from fedfloor.deploy.own_work import OwnWork
from fedfloor.deploy.record import RevealRecord
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.deploy.subtasks import question_of
from fedfloor.engine.calibrate import ROUNDS
from fedfloor.engine.engine import FrozenExtractor
from fedfloor.engine.local_update import local_update
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.summand import WithdrawnError
from fedfloor.engine.team import Alone
from fedfloor.engine.travel import VisitPath
from fedfloor.experiment import Experiment
from fedfloor.methods import bounds
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet
from fedfloor.models.saved import OWN
from fedfloor.models.staying import Staying
from fedfloor.park.park import Park
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import ARRIVED, Probe, Work, keeping
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.questions import SCORES, covers, facts_of
from fedfloor.plan.schedule import Key
from fedfloor.runs import prepare, privacy, revealed
from fedfloor.runs.folder import write

log = logging.getLogger(__name__)

# memories kept regardless of checkpoints: of the own edge, of another
NEWEST = 4
FOREIGN_NEWEST = 64
NAMED = 4  # most memories named by checkpoints; a run keeps two
MEMORY_BYTES = 1 << 26  # most bytes that a device keeps, or ten models if these are more
SAME_START = (1e-3, 1e-5)  # relative and absolute difference of initial weights of machines of different kinds
OFFERED = 8  # runs whose personal parts a device keeps for predictions


class Worker:
    """A device's engine.

    Args:
        settings: settings of the device.
        experiment: the device's copy of the experiment.
        method: the method of the experiment.
        names: the references of the experiment; messages may use no others.
        park: the park with the device's samples.
        sums: the device's part in secure sums; None where its experiment has none.
        answers: the exact answers so far, by which further ones are limited; None: no limit.
        record: of what the device has revealed; by default nothing is kept beyond the process.
    """

    def __init__(
        self, settings: DeviceSettings, experiment: Experiment, method: ConfiguredMethod, names: PartNames, park: Park,
        sums: DeviceSum | None = None, answers: Answers | None = None, record: RevealRecord | None = None,
    ) -> None:  # fmt: skip
        self.device = settings.device
        self._edge = settings.edge
        self._names = names
        self._models = settings.models
        self._answers = answers
        self._evaluations = experiment.rounds + revealed.MODELS
        self._record = record or RevealRecord()
        self._noisy = privacy.by_visits(method)
        self._most_visits = experiment.deploy.visits_limit
        protects = privacy.on_devices(method)
        memory = DeviceMemory(settings.memory, salted=protects)
        memory.tidy()
        self.engine, _ = prepare.engine(experiment, method, park, Alone(), memory, live=True)
        self.engine.secret = True
        self.layout = layout_digest(self.engine.network)
        self._method = method
        self._questions = revealed.questions(method, self.engine.task)
        plans = protects or method.needs.clock  # visits that depart at any time are compared with the device's plan
        network = self.engine.network
        own = method, experiment.rounds, park, self.device, self._start, network.trained, network.layout
        self._own_work = OwnWork(*own) if plans else None
        self._own = method.needs.own
        self._sends = {""} if not self._own else {"", keeping(self._own), *([ARRIVED] if self._own == "all" else [])}
        path = VisitPath(network, method.coded(Work()))
        self._keeps = method.needs.remembers or method.objective.remembers or keeps_moments(method)
        self._keeps = self._keeps or path.keeps
        self._most = max(MEMORY_BYTES, bounds.EXCESS * network.size)
        self._sum = sums
        self._initial: Tensor | None = None  # the own part of the initial model
        if sums is not None and self._own not in ("", "all"):
            self._initial = network.parcel(self._own).cut(network.flat).clone()
        self._held: Tensor | None = None  # the last received model, as a later message may hold only a part
        self._cut = 0  # updates that a secure sum has cut
        self._released: tuple[str, Reply] | None = None  # the last order of an update with noise, and its answer

    def reply(self, message: Message) -> Reply:
        """Return the answer to a request.

        Raises:
            RefusedError: the request is for another device or not allowed by the experiment.
            FedfloorError: training fails.
        """
        about = message.about
        if about.get("device") != self.device:
            raise RefusedError("device", f"it is for device {about.get('device')}; this is {self.device}.")
        if about.get("layout") not in (None, self.layout):
            raise RefusedError("layout", "its model has other layers than this device's: compare the experiment files.")
        self.restore(about)
        if message.kind in STAGES:
            if self._sum is None:
                raise RefusedError("sum", "this device's experiment does not use secure sums.")
            return "answer", self._sum.reply(message.kind, about.get("sum")), {}
        return {"visit": self.visit, "probe": self.probe, "keep": self.keep}[message.kind](message)

    def _start(self) -> Packet:
        return {"w": self.engine.network.flat.clone()}

    def restore(self, about: Mapping[str, Any]) -> None:
        """Set the device's memory to the state of the run in a request's header.

        Raises:
            RefusedError: the header does not name the state.
        """
        memory = self.engine.memory
        held = about.get("held")
        trained = about.get("trained")
        if type(trained) is not int or not (held is None or isinstance(held, str)):
            raise RefusedError("header", "it does not state the memory of the device.")
        memory.visits[self.device] = trained
        memory.held.pop(self.device, None)
        if held is not None:
            memory.held[self.device] = held

    def visit(self, message: Message) -> Reply:
        """Train the received model on the device's samples; return the update and its receipt.

        An update with noise is released once for each visit of a run's plan, as the run's ε counts it. The same order
        again, as of an edge that was restarted meanwhile, has the same update. It is recorded on disk before it leaves,
        so that this device trains again only if it was itself restarted before that.

        Raises:
            RefusedError: an update of this visit has left that this device no longer has.
        """
        if not self._noisy:
            return self.trained_visit(message)
        ordered = order_of(message)
        if self._released is None or self._released[0] != ordered:
            place = place_of(message)
            self.check_released(message, self._record.released(place))
            self._released = None
            kind, about, arrays = self.trained_visit(message)
            if kind != "update":
                return kind, about, arrays
            self.check_released(message, not self._record.release(place))
            arrays = {name: array.copy() for name, array in arrays.items()}  # later training overwrites the model
            self._released = ordered, (kind, about, arrays)
        return self._released[1]

    def check_released(self, message: Message, released: bool) -> None:
        """Refuse a second update with noise of a visit."""
        if released:
            raise RefusedError(
                "work",
                f"an update of this visit, in round {message.round} of the run '{printable(message.run)}', has left "
                "this device before; a second one would have new noise, which ε of the run does not count.",
            )

    def trained_visit(self, message: Message) -> Reply:
        """Return what :meth:`visit` does, of new training."""
        about = message.about
        network = self.engine.network
        work = self.bounded_work(about.get("work"))
        if self._own_work is not None:
            self._own_work.check(work, message.round)
        if message.scope not in (work.travels, "all"):
            text = f"it has '{printable(message.scope)}' of a model; the visit needs {work.travels}."
            raise RefusedError("work", text)
        path = VisitPath(network, work)
        cut = network.parcel(message.scope)
        goal = objectives.objective(work.objective, work.settings)
        coded = message.scope == work.travels  # otherwise the whole model was sent
        check_visit(message.arrays, network, path.down if coded else cut, goal.travels)
        rest = about.get("rest", "")
        if rest and (self._held is None or cut.rest(self._held) != rest):
            return "lacks", {}, {}
        if goal.remembers or work.keeps_moments or work.sends or path.keeps:
            self.check_memory(work, about.get("kept"))
        key = Key(self.engine.seed, message.round, int(about["tick"]), self.device, int(about["visit"]))
        around = self._held if self._held is not None else network.flat
        if coded and work.travel_down:
            packet = path.receive(parcel.unpack(message.arrays), around, key)
        else:
            packet = cut.unpack(message.arrays, {"w": around})
        self.check_own_part(work, packet["w"])
        if not rest:
            needed = goal.remembers or work.sends or about.get("frozen") or work.travels != "all"  # by later visits
            self._held = packet["w"].clone() if needed else None
        part = self._names.resolve(about.get("sum"))
        sums = self._sum if path.summed else None
        if sums is not None:
            self.inform(sums, about)
            sums.standing(path.up.numbers, work, part, key, message.run)
            sums.attempt(work, packet["w"].cpu().numpy(), key)
        self.count_visit()
        began = time.perf_counter()
        sent, receipt = self.trained(work, packet, key, frozen=bool(about.get("frozen")))
        if sums is not None:
            arrived, change = (one["w"].cpu().numpy() for one in (packet, sent))
            trained = path.up.among(network.trained)
            vector, receipt = sums.masked(work, arrived, change, trained, receipt, part, key, message.run)
            sent = {**sent, "w": torch.from_numpy(vector)}
            self.tell_cut(sums.beyond)
        seconds = time.perf_counter() - began
        if receipt.memory is not None:
            self.store(receipt.memory, about, NEWEST if message.sender == self._edge else FOREIGN_NEWEST)
        if work.sends:
            self.offer(work.own, message.run)
        return "update", {"receipt": receipt.row(), "seconds": seconds}, returned(network, work, cut).pack(sent)

    def tell_cut(self, excess: str) -> None:
        """Log in this device's own log alone by how much its update is cut in a secure sum, if it is."""
        self._cut += bool(excess)
        if excess and worth_a_line(self._cut):
            log.warning("%s (%d so far)", excess, self._cut)

    def inform(self, sums: DeviceSum, about: Mapping[str, Any]) -> None:
        """Tell the device's part in sums what an update depends on beside the key of its draws."""
        sums.state = self.chosen(about)
        sums.at = None if self.engine.park.stream.kind == "static" else about["trained"]
        sums.at_once = 1 if self._own_work is None else self._own_work.at_once

    def count_visit(self) -> None:
        """Count a visit with noise on disk before it trains: each has new noise, which averages out.

        Raises:
            RefusedError: the device has answered as many as its own experiment allows, over all runs.
        """
        if not self._noisy:
            return
        number = self._record.count("visits")
        if self._most_visits is not False and number > self._most_visits:
            raise RefusedError(
                "work",
                f"it is visit {number} with noise to this device; [deploy] visits_limit of its experiment is "
                f"{self._most_visits}, over all runs. Each costs privacy: raise the limit only if you accept that.",
            )

    def chosen(self, about: Mapping[str, Any]) -> tuple[object, ...]:
        """Return what an edge chooses for this device alone, on which its update depends beside the key of its draws.

        Samples of sensors, which change within a round, are never the same.
        """
        park = self.engine.park
        held = self.engine.memory.held.get(self.device)
        moving = (secrets.token_hex(8),) if isinstance(park, Sensed) else ()
        return (held, *(() if park.stream.kind == "static" else (about["trained"],)), *moving)

    def trained(self, work: Work, packet: Packet, key: Key, *, frozen: bool) -> tuple[Packet, Receipt]:
        """Train; a failure that counts as no change is stated in this device's own log alone."""
        failed = self.engine.unchanged
        before = failed.visits
        try:
            trained = local_update(self.engine, work, packet, key, FrozenExtractor(frozen))
        except WithdrawnError as error:
            log.error("this visit is lost with its crew: %s", printable(error.why))
            raise
        if failed.visits > before and worth_a_line(failed.visits):
            log.error("this visit counts as no change (%d so far): %s", failed.visits, printable(failed.why))
        return trained

    def bounded_work(self, value: object) -> Work:
        """Return the work of a message, limited to what the experiment can require.

        Raises:
            RefusedError: the work is malformed, sends another part of the model, or has too many mini-batches.
        """
        work = names_of.work(value, self._names)
        if work.sends not in self._sends:
            raise RefusedError(
                "work",
                f"it sends '{printable(work.sends)}'; this device's experiment keeps '{self._own or 'nothing'}'.",
            )
        samples = int(self.engine.park.holdings[self.device])
        if why := bounds.excess(work, self._method, samples):
            raise RefusedError("work", why)
        return work

    def check_own_part(self, work: Work, arrived: Tensor) -> None:
        """Check the arrived numbers of the part of the model that stays on devices, with which new devices begin.

        With chosen numbers, such as zeros, the masked updates of new devices would be zero, and hide no other update.

        Raises:
            RefusedError: they are not those of the experiment's initial model, with secure sums.
        """
        if self._initial is None or not work.own:
            return
        if not torch.allclose(self.engine.network.parcel(work.own).cut(arrived), self._initial, *SAME_START):
            raise RefusedError(
                "work",
                "the part of its model that stays on devices is not that of this device's initial model; with secure "
                "sums all experiment files need the same model.init_from.",
            )

    def check_memory(self, work: Work, kept: object) -> None:
        """Check that a visit makes the device keep no more state than its experiment's method requires.

        Args:
            kept: the received digests of the device's memories to which checkpoints refer.

        Raises:
            RefusedError: the method keeps no state, or the device keeps too much already.
        """
        if not self._keeps:
            raise RefusedError("work", f"'{work.objective}' keeps state on the device; its experiment does not.")
        if isinstance(kept, list) and len(kept) > NAMED:
            raise RefusedError("header", f"checkpoints name {len(kept)} memories; at most {NAMED}.")
        size = self.engine.memory.size(self.device)
        if size > self._most:
            raise RefusedError("work", f"this device keeps {size} bytes; at most {self._most}.")

    def keep(self, message: Message) -> Reply:
        """Store a broadcast model, or a part of it, so that later visits need not include it."""
        network = self.engine.network
        cut = network.parcel(message.scope)
        check_visit(message.arrays, network, cut)
        if self._held is not None or message.scope == "all":
            around = {"w": self._held if self._held is not None else network.flat}
            self._held = cut.unpack(message.arrays, around)["w"]
        return "kept", {}, {}

    def store(self, digest: str, about: Mapping[str, Any], newest: int) -> None:
        """Write a new memory to the disk, and delete memories to which no checkpoint refers."""
        memory = self.engine.memory
        kept = about.get("kept")
        held = about.get("held")
        memory.settle({self.device: digest})
        named = {str(one) for one in kept} if isinstance(kept, list) else set()
        memory.sweep(named | ({str(held)} if held else set()), newest)

    def offer(self, part: str, run: str) -> None:
        """Write the device's personal part of the model for predictions; delete those of older runs."""
        numbers = self.engine.memory.load(self.device)[f"{OWN} {part}"]
        staying = Staying(self.engine.network, part, run)
        self._models.mkdir(parents=True, exist_ok=True)
        write(self._models / staying.file, staying.content(numbers))
        for path in sorted(self._models.glob("own-*.npy"), key=lambda path: path.stat().st_mtime_ns)[:-OFFERED]:
            path.unlink(missing_ok=True)

    def probe(self, message: Message) -> Reply:
        """Return the answer to the question of a message."""
        about = message.about
        network = self.engine.network
        settings = self._names.resolved(about.get("settings", {}))
        if not isinstance(settings, dict):
            raise RefusedError("header", "the settings of its question are not a table.")
        node = Probe((self.device,), str(about.get("what")), settings=settings)
        asked = question_of(node, "header")
        if asked.excess():
            raise RefusedError("header", asked.excess())
        if not any(covers(own, node) for own in self._questions):
            raise RefusedError("question", f"this device's experiment has no question '{node.what}' of this form.")
        if asked.trains:
            work = self.bounded_work(about.get("settings"))
            if work.sends or work.keeps_moments or objectives.objective(work.objective, work.settings).remembers:
                raise RefusedError("header", f"a profile keeps no state, but its work does ('{work.objective}').")
        packet = parcel.unpack(message.arrays)
        if packet or asked.shared:
            cut = network.parcel(keeping(self._own) if asked.shared else "all")
            check_visit(message.arrays, network, cut)
            packet = cut.unpack(message.arrays, {"w": network.flat})
        self.admit(node, packet, int(about["tick"]))
        answer = asked.answer(self.engine, self.device, packet, int(about["tick"]))
        if isinstance(answer, torch.Tensor):
            return "answer", {}, {"answer": answer.numpy()}
        return "answer", {"answer": answer}, {}

    def admit(self, node: Probe, packet: Packet, tick: int) -> None:
        """Count a question about held-out samples, whose model an edge chooses, where updates are protected.

        Raises:
            RefusedError: as many as a few runs need were answered for the same samples.
        """
        if self._answers is None or facts_of(node.what).reads != "held out":
            return
        models = {name: hashlib.sha256(one.tobytes()).hexdigest() for name, one in parcel.pack(packet).items()}
        asked = [dict(node.settings), tick, self.engine.memory.held.get(self.device), models]
        each = ROUNDS * (1 + self.engine.task.apart) if node.what == SCORES.name else 1
        self._answers.admit(node.what, asked, RUNS * each * self._evaluations)


def place_of(message: Message) -> bytes:
    """Return the digest of a visit's place in the plan of a run."""
    place = [message.run, message.round, int(message.about["tick"]), int(message.about["visit"])]
    return hashlib.sha256(json_text(place).encode()).digest()


def order_of(message: Message) -> str:
    """Return the digest of all on which the update of an ordered visit depends."""
    fields = ("tick", "visit", "work", "rest", "frozen", "held", "trained", "sum")
    place = [message.sender, message.run, message.round, message.scope, [message.about.get(name) for name in fields]]
    digest = hashlib.sha256(json_text(place).encode())
    for name, array in sorted(message.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def keeps_moments(method: ConfiguredMethod) -> bool:
    """Return whether a device may keep its optimiser's moments between visits; an external method always may."""
    settings = getattr(method.method, "work", None)
    own = isinstance(settings, WorkSettings) and settings.at(1, 1).keeps_moments
    return own or not method.built_in
