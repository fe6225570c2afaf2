"""Requests of the cloud to the edges of its park: sent, again if need be, and what their answers say of the park."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from numpy.typing import NDArray

from fedfloor.base import ranges
from fedfloor.base.errors import FedfloorError, RunError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import checks, joining, subtasks
from fedfloor.deploy.attendance import ATTEMPTS, Attendance
from fedfloor.deploy.channel import ENVELOPE, VECTOR_BYTES
from fedfloor.deploy.checks import ERRORS, Failure, MessageFilter
from fedfloor.deploy.message import MOST_ARRAYS, MOST_BYTES, MOST_HEADER, Message, encode
from fedfloor.deploy.round_measurements import RoundMeasurements, nameable, without_strangers
from fedfloor.deploy.settings import CLOUD, CloudSettings
from fedfloor.deploy.signing import signer_of
from fedfloor.deploy.uplink import Edges
from fedfloor.engine.engine import Engine
from fedfloor.experiment import DeploySettings
from fedfloor.runs.results import write_wait

log = logging.getLogger(__name__)

WORK_OF_REQUEST = {"walk": "visit", "ask": "probe"}  # request to an edge → request to its devices, if they differ
LOOK_DEADLINE_S = 30.0  # for the answer of an edge that has nothing to do; Flower alone takes seconds for a message
Request = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # kind, about, arrays


class EdgeRequests:
    """The cloud's side of its conversation with the edges.

    Args:
        settings: settings of the cloud.
        edges: the connection to the edges.
        deploy: the experiment's settings of real machines; default: the defaults.
        crosses: whether edges also visit devices of other factories.

    Attributes:
        names: factory → name of its edge.
        attendance: the devices that are connected, by the edges' last answers.
        factory_of: the factory of each device; empty until the devices have reported.
        filter: what checks each answer, and counts those that are refused.
        introductions: factory → holdings for its edge.
        round: number of the current round.
        model_bytes: bytes of the packet sent to the edges.
        measurements: seconds, bytes and failures since the last call of :meth:`measured`.
        in_vain: the last round in which a request to all connected devices reached none of them; -1 before any.
    """

    def __init__(
        self, settings: CloudSettings, edges: Edges, deploy: DeploySettings | None = None, *, crosses: bool = False
    ) -> None:
        self._settings = settings
        self._edges = edges
        self.names = {edge.factory: edge.name for edge in settings.edges}
        self.attendance = Attendance(
            deploy or DeploySettings(), settings.deadlines.join_s, self.names, self.look,
            partial(write_wait, settings.out), crosses=crosses,
        )  # fmt: skip
        self.factory_of: Sequence[int] = ()
        self.filter = MessageFilter(signer=signer_of(settings.tls, CLOUD))
        self.introductions: dict[int, Mapping[str, Any]] = {}
        self.run = settings.out.name
        self.round = 0
        self.model_bytes = 0
        self.measurements = RoundMeasurements()
        self.in_vain = -1
        self._strict = joining.strict(deploy)
        self._nameable = nameable(settings.edges, crosses=crosses)
        self._session = time.time_ns()
        self._number = 0
        self._met: dict[int, int] = {}  # factory → number of devices that the last request reached
        self._lines = {factory: threading.Lock() for factory in self.names}  # an edge serves one request at a time
        self._writing = threading.RLock()  # of numbers and measurements

    def assign(self, factory_of: Sequence[int]) -> None:
        """Set the factory of each device."""
        self.factory_of = factory_of
        self.attendance.assign(factory_of)

    def introduce(self, factories: Iterable[int]) -> None:
        """Send the holdings of all devices to the edges of factories."""
        self.exchange({factory: ("park", self.introductions[factory], {}) for factory in factories})

    def measured(self) -> dict[str, Any]:
        """Return the measurements since the last call: seconds, bytes per link, absent edges."""
        with self._writing:
            measurements = self.measurements.to_dict()
            self.measurements = RoundMeasurements()
        return measurements

    # -- failures ---------------------------------------------------------------------------------------------------

    @contextmanager
    def refusing(self, factory: int, request: str) -> Iterator[None]:
        """Convert a RefusedError into a recorded failure of the edge."""
        try:
            yield
        except RefusedError as error:
            self.filter.refuse(self.names[factory], error)
            self.note_failure(factory, request, "RunError", checks.short_line(str(error)))

    def note_failure(self, factory: int, request: str, error: str, text: str) -> None:
        """Record the failure of a request at an edge."""
        failure = Failure(WORK_OF_REQUEST.get(request, request), error, text)
        checks.note_failure(self.measurements.failed, self.names[factory], failure)

    # -- requests ---------------------------------------------------------------------------------------------------

    def by_edge(
        self, engine: Engine, kind: str, devices: Sequence[int], about: Mapping[str, Any], arrays: Mapping[str, Any],
        scope: str = "all",
    ) -> Iterator[tuple[int, list[int], Message]]:  # fmt: skip
        """Send a request to the edges of devices; yield the factory, devices and answer of each answering edge."""
        devices_of: dict[int, list[int]] = {}
        for k in devices:
            devices_of.setdefault(int(self.factory_of[k]), []).append(k)
        requests = {
            factory: (kind, {**about, "devices": some, **subtasks.device_states(engine, set(some), {})}, arrays)
            for factory, some in devices_of.items()
        }
        answers = self.send(requests, devices, scope)
        return ((factory, some, answers[factory]) for factory, some in devices_of.items() if factory in answers)

    def send(self, requests: Mapping[int, Request], devices: Collection[int], scope: str = "all") -> dict[int, Message]:
        """Send requests for devices to edges once the round may begin, again if they reached no device.

        Devices that disconnect each time are lost if others of the park are connected; otherwise the run ends.

        Raises:
            RunError: too few devices are connected until the deadline.
        """
        self.attendance.begin(self.round)
        before = copy.deepcopy(self.measurements)
        for _ in range(ATTEMPTS):
            self.measurements = copy.deepcopy(before)
            answers = self.deliver(requests, scope)
            if any(self._met[factory] for factory in requests) or not self.attendance.returned(self.round, devices):
                return answers
        if not self.attendance.others(devices):
            self.in_vain = self.round
        return answers

    def look(self) -> dict[int, set[int]]:
        """Return the devices that are connected, by factory, as their edges state now."""
        kept = self.measurements
        self.measurements = RoundMeasurements()
        deadline_s = min(LOOK_DEADLINE_S, self._settings.deadlines.join_s)
        answers = self.exchange_all("present", deadline_s=deadline_s)
        self.measurements = kept
        return {factory: self.attendance.present[factory] for factory in answers}

    def deliver(
        self, requests: Mapping[int, Request], scope: str, deadline_s: float | None = None
    ) -> dict[int, Message]:
        """Send requests to edges, again to those that were restarted and lack the park; return the answers."""
        answers = self.exchange(requests, scope, deadline_s)
        unready = {factory: requests[factory] for factory, answer in answers.items() if answer.kind == "lacks"}
        if unready and self.introductions:
            self.introduce(unready)
            answers |= self.exchange(unready, scope, deadline_s)
        return answers

    def exchange_all(
        self, kind: str, about: Mapping[str, Any] | None = None, deadline_s: float | None = None
    ) -> dict[int, Message]:
        """Send one request without arrays to all edges; return the answers."""
        return self.exchange({factory: (kind, about or {}, {}) for factory in self.names}, deadline_s=deadline_s)

    def exchange(
        self, requests: Mapping[int, Request], scope: str = "all", deadline_s: float | None = None
    ) -> dict[int, Message]:
        """Send requests to edges side by side; return the answers that pass the checks, by factory.

        Raises:
            FedfloorError: all edges fail, or one of them before the first round and no device may be missing.
        """
        with ExitStack() as lines:
            for factory in sorted(requests):
                lines.enter_context(self._lines[factory])
            messages, identities, answer_limits = self._encoded(requests, scope)
            most = {factory: size for factory, (size, _) in answer_limits.items()}
            replies = self._edges.request(messages, deadline_s or self._settings.deadlines.round_s, most)
        answers = {}
        seconds = [0.0]
        failures = dict[int, FedfloorError]()
        with self._writing:
            for factory, reply in replies.items():
                self._met[factory] = 1  # also if its answer is refused: the edge is connected
                answer = self.filter.take(reply, self.names[factory], *answer_limits[factory])
                if answer is None or answer.answers != identities[factory]:
                    continue
                request_kind = requests[factory][0]
                with self.refusing(factory, request_kind), ranges.of("header"):
                    seconds.append(self._record(factory, request_kind, answer, len(messages[factory]), len(reply)))
                    if answer.kind == "failed":
                        failures[factory] = self._failure(factory, request_kind, answer)
                    else:
                        answers[factory] = answer
            first = self._strict and self.round == 0
            first = first and any(kind in ("gather", "park") for kind, _, _ in requests.values())
            if failures and (first or len(failures) == len(self.names)):
                raise failures[min(failures)]
            self.measurements.floor_s += max(seconds)
        return answers

    def _encoded(
        self, requests: Mapping[int, Request], scope: str
    ) -> tuple[dict[int, bytes], dict[int, str], dict[int, tuple[int, int]]]:
        """Return requests as messages, their identities, and the limits on bytes and arrays of their answers."""
        messages = dict[int, bytes]()
        identities = dict[int, str]()
        answer_limits = dict[int, tuple[int, int]]()
        with self._writing:
            self._met.update(dict.fromkeys(requests, 0))
            for factory, (kind, about, arrays) in requests.items():
                self._number += 1
                message = Message(
                    kind, CLOUD, self.run, self.round, self._session, self._number, scope, about=about,
                    arrays=arrays, receiver=self.names[factory],
                )  # fmt: skip
                messages[factory] = encode(message, self.filter.signer)
                identities[factory] = message.identity
                answer_limits[factory] = limits_of_answer(kind, about, arrays, self.model_bytes)
        return messages, identities, answer_limits

    def _record(self, factory: int, request: str, answer: Message, down: int, up: int) -> float:
        """Record the measurements in an edge's answer; return the duration of the request, s."""
        known = len(self.factory_of) or ranges.DEVICES
        stated = checks.measured(answer.about, [k for k, m in enumerate(self.factory_of) if m == factory], known)
        stated = without_strangers(stated, self._nameable.get(factory))
        for flaw in stated.flaws:
            self.filter.refuse(self.names[factory], flaw)
            self.note_failure(factory, request, "RunError", checks.short_line(str(flaw)))
        self.attendance.present[factory] = set(stated.present)
        self.attendance.visiting[factory] = set(stated.visiting)
        if answer.kind not in ("failed", "refused"):
            self._met[factory] = stated.reached
        if answer.kind == "refused":
            text = checks.short_line(answer.about.get("text"))
            log.warning("%s refused: %s", self.names[factory], text)
            self.note_failure(factory, request, "RunError", text)
        return self.measurements.add(self.names[factory], stated, down, up)

    def _failure(self, factory: int, request: str, answer: Message) -> FedfloorError:
        """Record the failure of an edge; return the error that ends the run if all edges fail."""
        name = self.names[factory]
        failure = checks.failure(request, answer)
        log.error("%s could not serve a request: %s", name, failure.text)
        self.note_failure(factory, request, failure.error, failure.text)
        return ERRORS.get(failure.error, RunError)(f"{name}: {failure.text}")


def limits_of_answer(
    kind: str, about: Mapping[str, Any], sent: Mapping[str, NDArray[Any]], packet: int
) -> tuple[int, int]:
    """Return the largest number of bytes and of arrays in the answer of an edge.

    It holds at most a packet for each of its branches, or a vector of each device.

    Args:
        packet: size of an uncompressed packet in bytes.
    """
    size = sum(array.nbytes for array in sent.values())
    branches = len(about.get("mine", ()))
    devices = 0
    if kind == "fly":  # the result of a visit, whose model may have been sent before
        return min(MOST_HEADER + ENVELOPE + max(size, packet), MOST_BYTES), MOST_ARRAYS if about["visits"] else 0
    size = max(size, packet) if branches else size
    if kind == "ask":
        size = max(size, VECTOR_BYTES)
        devices = len(about["devices"])
    return min(MOST_HEADER + ENVELOPE + (branches + devices) * size, MOST_BYTES), branches * len(sent) + devices
