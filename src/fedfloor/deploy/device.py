"""The agent on a device: it stays connected, announces itself, and serves the requests of edges.

PyTorch is loaded with the first request to train, and not at all for models that are sums.
"""

from __future__ import annotations

import json
import logging
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedfloor.base import regular
from fedfloor.base.errors import RunError, SettingError
from fedfloor.base.outside import ANY
from fedfloor.base.ranges import RefusedError
from fedfloor.base.version import __version__
from fedfloor.config import read as read_experiment
from fedfloor.deploy import asking, device_sum, mqtt, names, own, record, sums_worker
from fedfloor.deploy.answered import RUNS, Answers
from fedfloor.deploy.channel import REPEATS
from fedfloor.deploy.checks import REQUESTS, STRANGER, MessageFilter, printable, short_line
from fedfloor.deploy.facts import Facts, Questions, holding
from fedfloor.deploy.facts import read as read_facts
from fedfloor.deploy.message import FEW_ARRAYS, SHORT_HEADER, Message, Reply, encode, split
from fedfloor.deploy.mqtt import Assembler, Connection, MqttConnection
from fedfloor.deploy.own import Labelled
from fedfloor.deploy.settings import DeviceSettings
from fedfloor.deploy.signing import signer_of
from fedfloor.engine.place import give_back
from fedfloor.experiment import Experiment
from fedfloor.park.normalise import normaliser, summed
from fedfloor.park.park import Park
from fedfloor.parts.protection.masking import LEAST
from fedfloor.parts.travel import chains
from fedfloor.plan.questions import CENSUS
from fedfloor.runs import privacy
from fedfloor.runs.folder import write_json

if TYPE_CHECKING:
    from fedfloor.deploy.device_sum import DeviceSum
    from fedfloor.deploy.sums_worker import Replies
    from fedfloor.deploy.worker import Worker
    from fedfloor.methods.configured import ConfiguredMethod

log = logging.getLogger(__name__)

IDLE_S = 5.0
WAITING = 64  # the most requests of an edge in the queue
WAITING_BYTES = 1 << 26  # the most bytes of an edge's queued requests; a larger request must be alone
REQUEST_BYTES = 1 << 28  # the most bytes of a request: the largest message_mb of a park
FACTS = "facts.json"  # the facts of a sample in the last run
FAILED = "its request failed; the reason, which may depend on samples, is in this device's own log."
EXPIRED: Reply = ("refused", {"reason": "late", "text": "it waited too long in the queue."}, {})
LEAVE, OWN, FOREIGN = range(3)  # priorities, in the order of service
QueuedRequest = tuple[str, bytes]  # edge, encoded request


class Agent:
    """A device's agent.

    Args:
        settings: settings of the device.
        experiment: the experiment that the park trains.
        park: the park with the device's samples; None until an edge sends the facts of a sample.
        link: the connection to the broker; default: made from the settings.
    """

    def __init__(
        self, settings: DeviceSettings, experiment: Experiment, park: Park | None,
        link: Callable[[tuple[str, bytes]], Connection] | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.experiment = experiment
        self._method = experiment.configured
        self._names = names.table(experiment)
        self._hides = privacy.on_devices(self._method)  # whether answers state no reason that could depend on samples
        self._sums = chains.secure(self._method.parts.travel or "")  # whether updates leave in sums alone
        # nothing is kept where updates are in the clear, and no answers of trials, whose machines have all samples
        self._record = (
            record.of_device(settings.state) if self._hides or own.noisy(experiment) else record.RevealRecord()
        )
        self.park = None if park is None else own.guarded(park, experiment, self._record)
        signer = signer_of(settings.tls, settings.name)
        self.filter = MessageFilter(most=REQUEST_BYTES, header=SHORT_HEADER, arrays=FEW_ARRAYS, signer=signer)
        self._assembler = Assembler(REQUEST_BYTES)
        own.check(settings)
        self._session = time.time_ns()
        self._number = 0
        self._status = mqtt.topic(settings.park, "status", settings.name)
        will = self._status, self.next_message("gone", about={"why": mqtt.LOST})
        self._link = link(will) if link else MqttConnection(settings.name, settings.broker, settings.tls, will)
        self._requests: queue.PriorityQueue[tuple[int, int, float, float, QueuedRequest | None]]
        self._requests = queue.PriorityQueue()  # with the times of arrival, and of the first piece until then
        self._queued_s = 0.0  # time that the current request was queued
        self._assembled_s = 0.0  # time from its first to its last piece
        self._order = count()
        self._lock = Lock()
        self._waiting = Counter[str]()  # edge → queued or running requests
        self._waiting_bytes = Counter[str]()  # edge → bytes of these requests
        self._worker: Replies | None = None
        self._facts: Facts | None = None
        self._raw: Park | None = None  # samples as stored, without normalisation; surveys refer to them
        self._stated: tuple[str, dict[str, Any]] | None = None  # a run, and what it was told of the rows
        self._run = ""  # the run for which the samples were read
        kept = self._record if self._hides and settings.data.kind != "partition" else record.RevealRecord()
        self._answers = Answers(kept)
        self._questions = Questions(normaliser(experiment.data.normalise), self._answers)
        self._last: tuple[str, bytes] = ("", b"")  # the last request's identity and answer, for a repeated request
        self._repeats = 0  # times that this answer was sent again

    def run(self) -> None:
        """Serve requests until :meth:`leave` is called."""
        self._link.start([mqtt.topic(self.settings.park, "in", "+", self.settings.name)], self.receive, self.announce)
        while (request := self.next_request()) is not None:
            try:
                self.serve(*request)
            finally:
                with self._lock:
                    self._waiting[request[0]] -= 1
                    self._waiting_bytes[request[0]] -= len(request[1])
        self.farewell()

    def next_request(self) -> QueuedRequest | None:
        """Wait for and return the next request; None ends the agent. An idle agent returns memory to the system."""
        try:
            _, _, arrived, assembled_s, request = self._requests.get(timeout=IDLE_S)
        except queue.Empty:
            give_back()
            _, _, arrived, assembled_s, request = self._requests.get()
        self._queued_s = time.monotonic() - arrived
        self._assembled_s = assembled_s
        return request

    def leave(self) -> None:
        """End :meth:`run` after the current request."""
        self._requests.put((LEAVE, next(self._order), time.monotonic(), 0.0, None))

    def farewell(self) -> None:
        """Tell the edge that this device leaves, and disconnect."""
        self._link.publish(self._status, self.next_message("gone", about={"why": mqtt.LEFT}), retain=True)
        self._link.stop()

    def receive(self, topic: str, packet: bytes) -> None:
        """Queue an incoming request once all its packets have arrived; refuse one for an earlier session."""
        kind, names = mqtt.topic_parts(topic)
        if kind != "in" or names[1:] != (self.settings.name,):
            return
        if names[0] not in (self.settings.edge, *self.settings.visitors):  # the broker may make up any name
            error = f"'{printable(names[0])}' is none of the edges in this device's settings."
            self.filter.refuse(STRANGER, RefusedError("edge", error))
            return
        try:
            payload = self._assembler.add(topic, packet, self.filter.most)
            if payload is None:
                return
            if self.filter.signed(payload, names[0]).header["about"].get("to") != self._session:
                raise RefusedError("stale", "it is for an earlier session of this device.")
            self.enqueue(names[0], payload, self._assembler.took_s)
        except RefusedError as error:
            self.filter.refuse(names[0], error)

    def enqueue(self, edge: str, payload: bytes, assembled_s: float = 0.0) -> None:
        """Queue a request; each edge has its own limit, and the device's own edge takes precedence.

        Args:
            assembled_s: the time from its first to its last piece, s.

        Raises:
            RefusedError: the edge's queue is full.
        """
        with self._lock:
            waiting = self._waiting[edge]
            held = self._waiting_bytes[edge]
            if waiting >= WAITING or (held and held + len(payload) > WAITING_BYTES):
                raise RefusedError("busy", f"{waiting} requests of {held} bytes are queued already.")
            self._waiting[edge] = waiting + 1
            self._waiting_bytes[edge] = held + len(payload)
            rank = OWN if edge == self.settings.edge else FOREIGN
            self._requests.put((rank, next(self._order), time.monotonic(), assembled_s, (edge, payload)))

    def announce(self) -> None:
        """Publish the device's status message after each connection."""
        about = {"device": self.settings.device, "version": __version__, "factory": self.settings.factory}
        self._link.publish(self._status, self.next_message("hello", about=about), retain=True)

    def serve(self, edge: str, payload: bytes) -> None:
        """Answer a request, or send the last answer again if an edge repeats its request.

        A request that has expired in the queue, while another kept the device busy, is refused: nobody waits for it.
        An update states how long the model's arrival and training took by this device's own clock.
        """
        if self.repeat_answer(edge, payload):
            return
        began = time.monotonic()
        message = self.filter.take(payload, edge)
        if message is None:
            return
        if message.about.get("to") != self._session:  # recorded before the start of this device, and replayed
            self.filter.refuse(edge, RefusedError("stale", "it is for an earlier session of this device."))
            return
        if message.kind == "refused":
            self.filter.log(logging.ERROR, edge, f"{edge} refuses this device: {short_line(message.about.get('text'))}")
            return
        wait_s = message.about.get("wait_s")
        if isinstance(wait_s, float | int) and self._queued_s > wait_s:
            text = f"a request of {edge} has expired, after {self._queued_s:.4g} s in the queue: {message.kind}."
            self.filter.log(logging.WARNING, edge, text)
            kind, about, arrays = EXPIRED
        else:
            kind, about, arrays = self.reply(edge, message)
        if kind == "update":
            spent_s = self._assembled_s + self._queued_s + time.monotonic() - began
            about = {**about, "receiving": max(0.0, spent_s - about.get("seconds", 0.0))}
        self._repeats = 0
        self._last = f"{edge} {message.identity}", self.next_message(kind, message, about, arrays)
        self._link.publish(mqtt.topic(self.settings.park, "out", self.settings.name, edge), self._last[1])

    def repeat_answer(self, edge: str, payload: bytes) -> bool:
        """Return whether the last answer belongs to this request; send it again, but not any number of times."""
        try:
            request = split(payload, header=SHORT_HEADER).identity
        except RefusedError:
            return False
        if f"{edge} {request}" != self._last[0]:
            return False
        self._repeats += 1
        if self._repeats <= REPEATS:
            self._link.publish(mqtt.topic(self.settings.park, "out", self.settings.name, edge), self._last[1])
        return True

    def reply(self, edge: str, message: Message) -> Reply:
        """Serve a request; errors are returned as answers, so that the agent keeps running."""

        def dispatch() -> Reply:
            own = self.settings.edge
            if edge != own and message.kind not in foreign_requests(self.experiment, self._method):
                raise RefusedError("edge", f"'{printable(message.kind)}' is accepted only from edge {own}.")
            if message.kind not in REQUESTS:
                raise RefusedError("kind", f"'{message.kind}' is not a request that a device serves.")
            try:
                return self.answer(message, at_home=edge == own)
            except RefusedError:
                raise
            except ANY as error:
                if not self._hides:
                    raise
                self.filter.log(logging.ERROR, edge, f"{type(error).__name__}: {error}")
                raise RunError(FAILED) from error

        return self.filter.reply(edge, dispatch)

    def answer(self, message: Message, *, at_home: bool) -> Reply:
        """Return the answer to a request of the device's own edge, or of another factory's."""
        if message.kind == "facts":
            return "answer", {"answer": self.holding(message, at_home=at_home)}, {}
        if message.kind == "sites":
            return "answer", {"answer": self.site(message.run)}, {}
        if message.kind == "census":
            return "answer", {"answer": self.census(message)}, {}
        return self.worker().reply(message)

    def worker(self) -> Replies:
        """Return the device's engine, made with the first request for it.

        Raises:
            RefusedError: the device's samples are not read yet.
        """
        if self._worker is None:
            park = self.own_park()
            if self._answers.kept:
                log.info("its new samples wait until %d devices of its sums have new ones when a run begins.", LEAST)
            sums = device_sum.made(
                self.settings,
                self.experiment,
                self._method,
                int(park.holdings[self.settings.device]),
                self._record,
                "" if self._facts is None else self._facts.digest,
                self._answers.held if self._hides else "",
            )
            if sums_worker.suits(self.experiment, self._method, park):
                given = self.settings.device, self.experiment, self._method, self._names, park
                self._worker = sums_worker.SumsWorker(*given, lambda: self.trainer(park, sums), sums)
            else:
                self._worker = self.trainer(park, sums)
        return self._worker

    def trainer(self, park: Park, sums: DeviceSum | None) -> Worker:
        """Return an engine that trains on a park's samples."""
        from fedfloor.deploy.worker import Worker  # PyTorch is imported here

        return Worker(
            self.settings,
            self.experiment,
            self._method,
            self._names,
            park,
            sums,
            self._answers if self._hides else None,
            self._record,
        )

    def own_park(self) -> Park:
        """Return the park that holds this device's samples.

        Raises:
            RefusedError: no edge has sent the facts of a sample yet.
        """
        if self.park is None:
            raise RefusedError("facts", "the facts of a sample have not arrived yet.")
        return self.park

    def holding(self, message: Message, *, at_home: bool) -> dict[str, Any]:
        """Read the samples as the cloud's facts describe them, and return the device's holding as JSON.

        An edge of another factory cannot set the facts, and receives only the number and the digest of the samples.
        """
        facts = read_facts(message.about.get("facts"))
        if not at_home:
            if self._raw is None or facts != self._facts:
                raise RefusedError("facts", f"they differ from those of edge {self.settings.edge}, or precede them.")
            return asdict(holding(self._raw, self.settings.device, facts).bare(digest=True))
        if facts.sums != summed(self.experiment.data.normalise, facts.inputs):
            raise RefusedError("facts", "its experiment's normalisation does not agree on sums of the sensors' values.")
        own.check_task(facts, self.experiment)
        if self._facts is not None and self._facts.sample != facts.sample:
            raise RefusedError("facts", "they differ from those that this device has. Restart it for other data.")
        self._answers.keeps = self._sums and self.settings.factory not in facts.renews
        if message.run != self._run or (self._answers.kept and not self._answers.keeps):  # the samples present now
            self._raw = None
            self.park = None
            self._run = message.run
        if self._raw is None:
            answers = self._answers if self._hides else None
            read = own.park(self.settings, self.experiment, facts, answers, tests=bool(self._method.needs.own))
            self._raw = own.guarded(read, self.experiment, self._record)
        if self._hides:
            self._answers.admit("facts", facts.sample.to_dict(), RUNS)
        if facts.question is not None:
            if privacy.by_visits(self._method):
                raise RefusedError("question", privacy.NO_SURVEY)
            self._questions.admit(facts.question, facts.inputs.columns)
        elif facts != self._facts or self.park is None:
            self.park = own.normalised(self._raw, self.experiment, facts, self.settings.device)
            self._facts = facts
            self._worker = None
            if self.experiment.evaluate.recent is not None:
                self.settings.state.mkdir(parents=True, exist_ok=True)
                write_json(self.settings.state / FACTS, facts.to_dict())
        held = holding(self._raw, self.settings.device, facts)
        if self._sums:
            held = replace(held, waits=self._answers.waits, crew=self._answers.crew)
        return asdict(held)

    def labelled(self) -> Labelled:
        """Return labelled samples held out of training, on which a model is evaluated before its release.

        Raises:
            SettingError: there are none, or the experiment is private.
        """
        if self.experiment.evaluate.recent is None:
            raise SettingError("[evaluate] recent is not set, so no samples are held out of training.")
        if privacy.protects(self._method) or self.experiment.park.census_epsilon is not None:
            raise SettingError(
                "its experiment is private: metrics of its samples do not leave it.", key="private-metrics"
            )
        park = self._raw or self.park
        kept = self.settings.state / FACTS
        if park is None and kept.exists():  # it was restarted after training
            park = own.park(self.settings, self.experiment, read_facts(json.loads(regular.read_bytes(kept))))
        if park is None:
            raise SettingError("it has not trained yet.", key="not-trained")
        if park.dataset.task.detects:
            raise SettingError("it trains only on normal samples, which have no labels for an evaluation.")
        samples = own.labelled(park)
        if samples is None:
            raise SettingError("it has too few samples to hold any out of training.")
        return samples

    def site(self, run: str) -> dict[str, Any]:
        """Return what this device states of its rows before training, the same in a run, and the time of its clock."""
        if self._stated is None or self._stated[0] != run:
            held = self.park if self.settings.data.kind == "partition" else None
            self._stated = run, asking.stated(self.settings, self.experiment, self._method, held)
        return {"rows": self._stated[1], "now": time.time()}

    def census(self, message: Message) -> list[int]:
        """Return the class counts of the device's current samples; with masks or noise of updates those of its set.

        Raises:
            RefusedError: the experiment's method needs no census.
        """
        if not any(question.what == CENSUS.name for question in self._method.questions):
            raise RefusedError("question", "this device's experiment has no question for the census.")
        about = message.about
        device = self.settings.device
        park = self.own_park()
        if self._hides and not own.noisy(self.experiment):  # exact counts at two ticks would differ by a few samples
            return [int(count) for count in park.classes(device)]
        counts = park.census([device], int(about["tick"]), [int(about["trained"])])[0]
        return [int(count) for count in counts]

    def next_message(
        self, kind: str, answers: Message | None = None, about: dict[str, Any] | None = None,
        arrays: dict[str, Any] | None = None,
    ) -> bytes:  # fmt: skip
        """Return the device's next message, signed and encoded; with ``answers``, as the answer to that request."""
        self._number += 1
        run, number = (answers.run, answers.round) if answers else ("", 0)
        scope, answered = (answers.scope, answers.identity) if answers else ("all", "")
        message = Message(
            kind, self.settings.name, run, number, self._session, self._number, scope, answered, about or {},
            arrays or {}, answers.sender if answers else "",
        )  # fmt: skip
        return encode(message, self.filter.signer)


def foreign_requests(experiment: Experiment, method: ConfiguredMethod) -> tuple[str, ...]:
    """Return the kinds of requests that an experiment's rounds require from edges of other factories."""
    if experiment.park.mobility is not None:
        return ("facts", "visit", "probe", "census", "keep")
    return ("facts", "visit") if method.needs.crosses else ()


def of(
    settings: DeviceSettings, experiment: Experiment | None = None,
    link: Callable[[tuple[str, bytes]], Connection] | None = None,
) -> Agent:  # fmt: skip
    """Return the agent for the settings of a device.

    Args:
        experiment: default: read from the file in the settings.
        link: makes the connection; default: from the settings.

    Raises:
        SettingError: the settings do not fit the experiment.
    """
    from fedfloor.runs.parks import build_park

    experiment = experiment or read_experiment(Path(settings.experiment), [])
    if settings.data.kind != "partition":
        return Agent(settings, experiment, None, link)
    tests = bool(experiment.configured.needs.own)
    return Agent(
        settings, experiment, own.alone(build_park(experiment), experiment, settings.device, tests=tests), link
    )
