"""The cloud of a park of real machines: the loop of :mod:`fedfloor.runs`, whose branches the edges carry out."""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges, regular
from fedfloor.base.errors import FedfloorError, RunError, SettingError
from fedfloor.base.names import Names
from fedfloor.base.ranges import RefusedError
from fedfloor.config import read as read_experiment
from fedfloor.deploy import asking, checks, joining, sizes, subtasks, sum_messages
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.arrivals import ArrivingVisits
from fedfloor.deploy.attendance import ATTEMPTS, Attendance
from fedfloor.deploy.channel import ENVELOPE, VECTOR_BYTES
from fedfloor.deploy.checks import ABSENT, ERRORS, STAGES, Failure, MessageFilter, note_failure
from fedfloor.deploy.device import foreign_requests
from fedfloor.deploy.facts import Facts
from fedfloor.deploy.message import MOST_ARRAYS, MOST_BYTES, MOST_HEADER, Message, encode
from fedfloor.deploy.names import PartNames, table
from fedfloor.deploy.round_measurements import RoundMeasurements, nameable, raise_failure, reason_of, without_strangers
from fedfloor.deploy.settings import CLOUD, CloudSettings
from fedfloor.deploy.signing import signer_of
from fedfloor.deploy.summing import CONDUCT, Conduct, ServerSum
from fedfloor.deploy.uplink import Downlink, Edges
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine, FrozenExtractor, Shown, Subtask
from fedfloor.engine.limit import Limit
from fedfloor.engine.summing import SecureAggregation
from fedfloor.engine.team import Alone
from fedfloor.engine.travel import EdgePath, VisitPath
from fedfloor.experiment import DeploySettings, Experiment
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet
from fedfloor.park.normalise import Surveyed, normaliser
from fedfloor.park.park import Park
from fedfloor.park.sites import SiteFacts
from fedfloor.park.statistics import Step
from fedfloor.park.survey import Regimes, sums_of_each
from fedfloor.plan import walk
from fedfloor.plan.nodes import Broadcast, Probe, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.runs import loop
from fedfloor.runs.asking import Asked, check
from fedfloor.runs.asking import asks as is_asking
from fedfloor.runs.checkpoint import Checkpoint
from fedfloor.runs.folder import owned, write_json
from fedfloor.runs.launch import ignore
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Limits, Orders, interrupts
from fedfloor.runs.parks import build_park, load_data, warn_of_gaps
from fedfloor.runs.prepare import check_place, prepare
from fedfloor.runs.results import noted, write_wait

log = logging.getLogger(__name__)

WORK_OF_REQUEST = {"walk": "visit", "ask": "probe"}  # request to an edge → request to its devices, if they differ
LOOK_DEADLINE_S = 30.0  # for the answer of an edge that has nothing to do; Flower alone takes seconds for a message
# failing devices that end a run, if they are most of those that are connected
MIN_FAILING = 3
MOST_FAILING = 20
LEFT = "left.json"  # devices that take no part in a run
Request = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # kind, about, arrays


class CloudExecutor:
    """The engine's executor at the cloud: it sends branches and requests for devices to the edges.

    Args:
        settings: settings of the cloud.
        edges: the connection to the edges.
        factory_of: the factory of each device; empty until the devices have reported.
        names: the objects from outside the package to which messages may refer.
        deploy: the experiment's settings of real machines; default: the defaults.
        crosses: whether edges also visit devices of other factories.
    """

    at_once = True

    def __init__(
        self,
        settings: CloudSettings,
        edges: Edges,
        factory_of: Sequence[int],
        names: PartNames,
        deploy: DeploySettings | None = None,
        crosses: bool = False,
    ) -> None:
        self._parts = names
        self._settings = settings
        self._edges = edges
        self._names = {edge.factory: edge.name for edge in settings.edges}
        self.attendance = Attendance(
            deploy or DeploySettings(), settings.deadlines.join_s, self._names, self._look,
            partial(write_wait, settings.out), crosses=crosses,
        )  # fmt: skip
        self._factory_of: Sequence[int] = ()
        self._crosses = crosses
        self._strict = joining.strict(deploy)
        self._nameable = nameable(settings.edges, crosses=crosses)
        self._device_names = {device.device: device.name for edge in settings.edges for device in edge.devices}
        lacking = sorted(set(factory_of) - set(self._names))
        if lacking:
            raise SettingError(f"factory {lacking[0]} has devices but no edge: add it to [[edges]].")
        if factory_of:
            self._assign(factory_of)
        self._facts = ""  # digest of the facts that devices have received
        self._left = read_left(settings.out / LEFT)
        self._introductions: dict[int, Mapping[str, Any]] = {}  # factory → holdings for its edge
        self._filter = MessageFilter(signer=signer_of(settings.tls, CLOUD))
        self._session = time.time_ns()
        self._number = 0
        self._in_vain = -1  # the last round in which a request to all connected devices reached none of them
        self._met: dict[int, int] = {}  # factory → number of devices that the last request reached
        self._round = self._model_bytes = 0  # bytes of the packet sent to the edges
        self._kept: Mapping[int, set[str]] = {}
        self._measurements = RoundMeasurements()
        self._conduct = Conduct(settings.out / CONDUCT)
        self._sum: ServerSum | None = None  # of all factories' devices, during a walk of their branches
        self._lines = {factory: threading.Lock() for factory in self._names}  # an edge serves one request at a time
        self._writing = threading.RLock()  # of numbers and measurements
        # since the last success
        self._last_failed = -1
        self._failures = dict[str, Failure]()
        self._working: set[str] = set()  # edges that have been present without a failure since then

    # -- as the engine's factories and floor ------------------------------------------------------------------------

    def gather(self, experiment: Experiment, travel: str = "", *, resume: bool = False) -> Park:
        """Wait for the holdings of all devices, pass them on to the edges, and return the park.

        Args:
            experiment: the cloud's copy of the experiment.
            travel: the codecs of its devices' uploads.
            resume: whether a run goes on, and so with the same samples.

        Raises:
            SettingError: a device's samples do not fit the experiment.
            RunError: holdings are missing at the deadline.
        """
        dataset = load_data(experiment)
        facts = facts_of.of(experiment, dataset)

        def gather_all(facts: Facts) -> joining.Gathered:
            def exchange() -> Mapping[int, Message]:
                self._measurements = RoundMeasurements()
                return self._exchange({factory: ("gather", {"facts": facts.to_dict()}, {}) for factory in self._names})

            return joining.wait_for_holdings(
                exchange, self._settings.edges, facts, self._settings.deadlines.join_s, experiment.deploy, self._left,
                partial(facts_of.doubts, experiment),
            )  # fmt: skip

        gathered = gather_all(facts)
        part = normaliser(experiment.data.normalise)
        steps = tuple[Step, ...]()
        if not resume and (renews := joining.renewing(gathered, travel)):
            facts = replace(facts, renews=renews)
            gathered = gather_all(facts)
        sums = None
        if isinstance(part, Surveyed):
            answers: facts_of.Answered = []
            survey = facts_of.survey(lambda question: gather_all(question)[1], facts, answers)
            learnt = part.learn(survey, facts.inputs.columns, experiment.seed)
            steps = survey.finish(part.kind, learnt.numbers)
            facts = replace(facts, found=learnt.to_dict())
            sums = sums_of_each(answers, learnt if isinstance(learnt, Regimes) else None)
        self._assign(gathered[0])
        park = facts_of.park(experiment, facts, *gathered, dataset, steps, sums)
        known = facts_of.with_statistics(facts, park)
        self._facts = known.digest
        self._introductions = {m: joining.holdings_for(known, gathered, m, crosses=self._crosses) for m in self._names}
        self._exchange(self._introduce(self._names))
        return park

    def sites(self) -> list[SiteFacts]:
        """Return what all devices state of their rows."""
        return asking.gathered(
            lambda: self._exchange({factory: ("sites", {}, {}) for factory in self._names}), self._settings.edges,
            self._settings.deadlines.join_s, self._filter.refuse,
        )  # fmt: skip

    def keep_left(self) -> None:
        """Name the devices that take no part in the run, and keep them for ``--resume``."""
        if self._left:
            names = ", ".join(self._device_names.get(k, str(k)) for k in self._left)
            why = next(iter(self._left.values()))
            log.warning("the run begins without device %s, which take no part until the next run: %s", names, why)
            write_json(self._settings.out / LEFT, {str(k): why for k, why in self._left.items()})

    def _assign(self, factory_of: Sequence[int]) -> None:
        self._factory_of = factory_of
        self.attendance.assign(factory_of)

    def _introduce(self, factories: Iterable[int]) -> dict[int, Request]:
        return {factory: ("park", self._introductions[factory], {}) for factory in factories}

    def begin(self, number: int) -> None:
        """Wait until enough devices are connected for a round.

        Raises:
            RunError: too few are connected until the deadline.
        """
        self._round = number
        self.attendance.begin(number)

    def walk(self, engine: Engine, subtask: Subtask) -> list[Shown]:
        """Send each branch to the edge of its first device's factory; return the results of the branches."""
        self._round = subtask.round
        self._model_bytes = sum(array.nbytes for array in subtask.start.values())
        place = Key(engine.seed, subtask.round, subtask.tick, -1, 0)
        coded = replace(subtask, start=EdgePath(engine.network, subtask.node, place).send(subtask.start))
        branches_of: dict[int, list[int]] = {}
        asked = set[int]()
        for index, child in enumerate(subtask.node.children):
            branches_of.setdefault(self._factory_of[walk.first_device(child)], []).append(index)
        requests = {}
        for factory, indices in branches_of.items():
            about, arrays = subtasks.subtask_message(coded, indices, self._parts)
            known = {k for index in indices for k in walk.devices(subtask.node.children[index])}
            asked |= known
            if self._sum is not None:
                sums = {str(k): self._sum.about(k) for k in known}
                referred = {k: self._parts.refer(part) for k, part in sums.items() if part is not None}
                about |= sum_messages.packed(referred)
            requests[factory] = ("walk", about | subtasks.device_states(engine, known, self._kept), arrays)
        answers = self._request(requests, asked)
        results = dict[int, subtasks.BranchResults]()
        for factory, branches in branches_of.items():
            answer = answers.get(factory)
            if answer is not None and answer.kind == "walked":
                with self.refusing(factory, "walk"):
                    results[factory] = subtasks.read_results(answer, subtask, branches, engine)
        if engine.limit is not None:
            self._check_lengths(results, subtask, engine, engine.limit.knowing(subtask.updates))
        for factory in sorted(branches_of.keys() - results.keys()):
            self._measurements.absent.add(self._names[factory])
            log.warning("round %d: factory %d (%s) takes no part.", self._round, factory, self._names[factory])
        blobs = {factory: result.blobs for factory, result in results.items()}
        return [(branches, blobs.get(factory)) for factory, branches in branches_of.items()]

    def _check_lengths(
        self, results: dict[int, subtasks.BranchResults], subtask: Subtask, engine: Engine, known: Limit
    ) -> None:
        """Drop the answers of edges that accepted updates too long in comparison with those of all edges."""
        for result in results.values():
            for branch in result.branches:
                known.note(branch.resolved, branch.receipts)
        for factory, result in list(results.items()):
            with self.refusing(factory, "walk"):
                subtasks.check_lengths(result, subtask, known, engine)
                continue
            del results[factory]

    @contextmanager
    def refusing(self, factory: int, request: str) -> Iterator[None]:
        """Convert a RefusedError into a recorded failure of the edge."""
        try:
            yield
        except RefusedError as error:
            self._filter.refuse(self._names[factory], error)
            self._note_failure(factory, request, "RunError", checks.short_line(str(error)))

    def _note_failure(self, factory: int, request: str, error: str, text: str) -> None:
        """Record the failure of a request at an edge."""
        failure = Failure(WORK_OF_REQUEST.get(request, request), error, text)
        note_failure(self._measurements.failed, self._names[factory], failure)

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor  # noqa: ARG002
    ) -> tuple[Packet, Receipt] | None:  # fmt: skip
        """Raise an error: the cloud cannot visit devices itself.

        Raises:
            SettingError: always.
        """
        raise SettingError("the plan trains at the cloud, which has no data in a real park. Choose another method.")

    def meeting(
        self, engine: Engine, aggregation: Aggregation, mine: Collection[int]  # noqa: ARG002
    ) -> AbstractContextManager[None]:  # fmt: skip
        """Do nothing: edges carry out the branches."""
        return nullcontext()

    @contextmanager
    def adding(self, engine: Engine, aggregation: Aggregation, subtask: Subtask) -> Iterator[None]:
        """Exchange keys before edges carry out the branches of one secure sum, and unmask the sum afterwards."""
        if not isinstance(aggregation, SecureAggregation) or not aggregation.codec.across:
            for group in aggregation.sums.values() if isinstance(aggregation, SecureAggregation) else ():
                group.crews.clear()  # edges know them
            yield
            return
        self._round = subtask.round
        network = engine.network
        work = walk.works(subtask.node)[0]

        def refuse(device: int, kind: str, error: RefusedError) -> None:
            self.refuse(device, kind, str(error))

        secure_sum = self._sum = ServerSum(
            aggregation, aggregation.sums[0], partial(self._stage, engine), refuse, self._facts, self._filter.signer,
            self._device_names, self._conduct,
        )  # fmt: skip
        first = secure_sum.devices[0]
        key = Key(engine.seed, subtask.round, subtask.tick, first, subtask.visits.get(first, 0))
        path = VisitPath(network, work)
        model = path.receive(path.send(subtask.start, key), subtask.start["w"], key)["w"]
        secure_sum.begin()
        secure_sum.hang(work, model, key)
        try:
            yield
        finally:
            self._sum = None
        secure_sum.end()

    def _stage(self, engine: Engine, stage: str, abouts: Mapping[int, Mapping[str, Any]]) -> dict[int, Any]:
        """Request a stage of a secure sum from devices through their edges; return their unchecked answers."""
        requests: dict[int, Request] = {}
        for factory in sorted({self._factory_of[k] for k in abouts}):
            devices = [k for k in abouts if self._factory_of[k] == factory]
            about = {"stage": stage, **sum_messages.packed({str(k): abouts[k] for k in devices})}
            requests[factory] = ("sum", about | subtasks.device_states(engine, set(devices), self._kept), {})
        answers: dict[int, Any] = {}
        for factory, answer in self._request(requests, abouts).items():
            with self.refusing(factory, "sum"), ranges.of("header"):
                known = requests[factory][1]["sums"]
                given = ranges.table(answer.about.get("answers"), len(known), "its devices' answers")
                if not set(given) <= set(known):
                    raise RefusedError("device", "it holds answers of devices that received no request.")
                answers |= {int(k): stage_answer for k, stage_answer in given.items()}
        return answers

    def hand(self, engine: Engine, node: Broadcast, packet: Packet) -> None:
        """Send the model to devices through their edges."""
        arrays = engine.network.parcel(node.scope).pack({"w": packet["w"]})
        self._request_by_edge(engine, "keep", node.devices, {}, arrays, node.scope)

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return devices' answers to a probe, obtained through their edges; silent devices are left out.

        Raises:
            RunError: no device answers.
        """
        arrays = parcel.pack(packet) if "w" in packet else {}
        about = {"tick": tick, "what": node.what, "settings": self._parts.reference(dict(node.settings))}
        answers: dict[int, Any] = {}
        for factory, some, answer in self._request_by_edge(engine, "ask", devices, about, arrays):
            with self.refusing(factory, "ask"):
                answers |= subtasks.read_answers(answer, node, some, engine)
        shared = subtasks.question_of(node, "kind").shared  # the lengths of their vectors differ by device
        for k, error in subtasks.length_refusals({} if shared else answers).items():
            self._filter.refuse(self._names[self._factory_of[k]], error)
            del answers[k]
        silent = [k for k in devices if k not in answers]
        reason = reason_of(self._measurements.failed, "probe")
        if silent and not answers and not (self._round and self.attendance.others(devices)):
            raise RunError(
                f"no device answered '{node.what}': check edges and devices, then continue with --resume.{reason}",
                key="no-answer",
            )
        if silent:
            log.warning("devices %s did not answer '%s': it is decided without them.%s", silent, node.what, reason)
        return {k: answers[k] for k in devices if k in answers}

    def census(self, engine: Engine, devices: Sequence[int], tick: int) -> NDArray[np.int64]:
        """Return the class counts of each device's current samples, (devices, classes), obtained through the edges."""
        table = np.zeros((len(devices), len(engine.park.dataset.classes)), np.int64)
        place = {k: row for row, k in enumerate(devices)}
        for factory, some, answer in self._request_by_edge(engine, "census", devices, {"tick": tick}, {}):
            with self.refusing(factory, "census"), ranges.of("answer"):
                counted = ranges.rows(answer.about.get("census"), len(some), "its census")
                node = Probe(tuple(some), "census")
                counts = [subtasks.read_answer(node, k, row, {}, engine) for k, row in zip(some, counted, strict=True)]
                table[[place[k] for k in some]] = counts
        return table

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the devices that were connected at their edge's last answer; all devices before the first answer."""
        return [k for k in devices if k in self.attendance.present.get(self._factory_of[k], {k})]

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Log the refusal of a device's answer that is far larger than the others'; edges refuse updates."""
        log.warning("device %d is refused: %s", device, why)
        note_failure(self._measurements.failed, f"device {device}", Failure(kind, "RunError", why))

    def keep(self, named: Mapping[int, set[str]]) -> None:
        """Record the memories that devices must keep for checkpoints."""
        self._kept = named

    # -- visits that arrive in their own time -------------------------------------------------------------------------

    def visits(self, engine: Engine, point: Checkpoint | None) -> ArrivingVisits:
        """Return the visits of a run whose results are taken as they come.

        Raises:
            SettingError: Flower carries the messages.
        """
        if self._settings.transport == "flower":
            raise SettingError(
                "results that are taken as they come need a connection that stays open, and Flower starts a process "
                "for each message. Choose transport = 'mqtt', or a method that waits without round.close.",
                key="waiting-over-flower",
            )
        deadlines = self._settings.deadlines
        return ArrivingVisits(self, engine, self._factory_of, deadlines.join_s, deadlines.round_s, point)

    def referred(self, work: Work) -> Any:
        """Return work as JSON for a message."""
        return self._parts.refer({**asdict(work), "settings": dict(work.settings)})

    def states(self, engine: Engine, devices: set[int]) -> dict[str, Any]:
        """Return the state of devices for a message to their edge."""
        return subtasks.device_states(engine, devices, self._kept)

    def fly(
        self, factory: int, about: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], size: int
    ) -> Message | None:
        """State the visits on their way to an edge; return its answer, None if none arrives.

        Args:
            size: the bytes of the packets that travel.

        Raises:
            FedfloorError: the edges fail.
        """
        self._model_bytes = size
        deadline_s = float(about["wait_s"]) + LOOK_DEADLINE_S
        answers = self._delivered({factory: ("fly", about, arrays)}, "all", deadline_s)
        if factory not in answers:
            self.attendance.present.pop(factory, None)
        return answers.get(factory)

    def nobody_arrives(self, number: int) -> FedfloorError:
        """Return the error that ends a run in which no result can arrive."""
        failures = {name: one for name, one in self._measurements.failed.items() if one.kind == "visit"}
        if failures:
            try:
                raise_failure(failures, number)
            except FedfloorError as error:
                return error
        return RunError(
            f"round {number}: no visit is on its way, and for {self._settings.deadlines.join_s:g} s no device was "
            f"connected that could depart.{reason_of(self._measurements.failed, ABSENT)} Check edges and devices, then "
            "continue with --resume."
        )

    # -- measurements -----------------------------------------------------------------------------------------------

    def measured(self) -> dict[str, Any]:
        """Return the measurements since the last call: seconds, bytes per link, absent edges."""
        with self._writing:
            measurements = self._measurements.to_dict()
            self._measurements = RoundMeasurements()
        return measurements

    def no_success(self, number: int) -> None:
        """End the run if devices of all factories have failed in turn without a success in between.

        Raises:
            FedfloorError: more than half of the connected devices failed, at least three (or all, if fewer) and at most
                twenty; or all edges were refused; or all devices disconnected time and again.
        """
        kinds = {"visit", *STAGES}
        if number != self._last_failed + 1:
            self._failures, self._working = {}, set(self._names.values())
            kinds = {"visit"}  # devices may refuse a second sum over a round, but then have one over the next round
        self._last_failed = number
        failed = self._measurements.failed.items()
        failed_visits = {name: replace(failure, kind="visit") for name, failure in failed if failure.kind in kinds}
        self._failures |= failed_visits
        self._working -= self._measurements.absent | self._measurements.failing_edges
        connected = self.attendance.connected() or len(self._factory_of)
        enough = len(self._failures) >= min(connected, max(MIN_FAILING, connected // 2 + 1), MOST_FAILING)
        if not self._working and (enough or self._failures.keys() >= set(self._names.values())):
            raise_failure(self._failures, number)
        if self._in_vain == number:
            raise self.attendance.end(number)
        if self._failures:
            log.error("round %d: every visit was lost.%s", number, reason_of(self._failures, "visit"))

    # -- messages ---------------------------------------------------------------------------------------------------

    def _request_by_edge(
        self, engine: Engine, kind: str, devices: Sequence[int], about: Mapping[str, Any], arrays: Mapping[str, Any],
        scope: str = "all",
    ) -> Iterator[tuple[int, list[int], Message]]:  # fmt: skip
        """Send a request to the edges of devices; yield the factory, devices and answer of each answering edge."""
        devices_of: dict[int, list[int]] = {}
        for k in devices:
            devices_of.setdefault(int(self._factory_of[k]), []).append(k)
        requests = {
            factory: (kind, {**about, "devices": some, **subtasks.device_states(engine, set(some), {})}, arrays)
            for factory, some in devices_of.items()
        }
        answers = self._request(requests, devices, scope)
        return ((factory, some, answers[factory]) for factory, some in devices_of.items() if factory in answers)

    def _request(
        self, requests: Mapping[int, Request], devices: Collection[int], scope: str = "all"
    ) -> dict[int, Message]:
        """Send requests for devices to edges once the round may begin, again if they reached no device.

        Devices that disconnect each time are lost if others of the park are connected; otherwise the run ends.

        Raises:
            RunError: too few devices are connected until the deadline.
        """
        self.attendance.begin(self._round)
        before = copy.deepcopy(self._measurements)
        for _ in range(ATTEMPTS):
            self._measurements = copy.deepcopy(before)
            answers = self._delivered(requests, scope)
            if any(self._met[factory] for factory in requests) or not self.attendance.returned(self._round, devices):
                return answers
        if not self.attendance.others(devices):
            self._in_vain = self._round
        return answers

    def _look(self) -> dict[int, set[int]]:
        """Return the devices that are connected, by factory, as their edges state now."""
        kept = self._measurements
        self._measurements = RoundMeasurements()
        deadline_s = min(LOOK_DEADLINE_S, self._settings.deadlines.join_s)
        answers = self._exchange({factory: ("present", {}, {}) for factory in self._names}, deadline_s=deadline_s)
        self._measurements = kept
        return {factory: self.attendance.present[factory] for factory in answers}

    def _delivered(
        self, requests: Mapping[int, Request], scope: str, deadline_s: float | None = None
    ) -> dict[int, Message]:
        answers = self._exchange(requests, scope, deadline_s)
        unready = {factory: requests[factory] for factory, answer in answers.items() if answer.kind == "lacks"}
        if unready and self._introductions:  # an edge that was restarted
            self._exchange(self._introduce(unready))
            answers |= self._exchange(unready, scope, deadline_s)
        return answers

    def _exchange(
        self, requests: Mapping[int, Request], scope: str = "all", deadline_s: float | None = None
    ) -> dict[int, Message]:
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
                answer = self._filter.take(reply, self._names[factory], *answer_limits[factory])
                if answer is None or answer.answers != identities[factory]:
                    continue
                request_kind = requests[factory][0]
                with self.refusing(factory, request_kind), ranges.of("header"):
                    seconds.append(self._record(factory, request_kind, answer, len(messages[factory]), len(reply)))
                    if answer.kind == "failed":
                        failures[factory] = self._failure(factory, request_kind, answer)
                    else:
                        answers[factory] = answer
            first = self._strict and self._round == 0
            first = first and any(kind in ("gather", "park") for kind, _, _ in requests.values())
            if failures and (first or len(failures) == len(self._names)):
                raise failures[min(failures)]
            self._measurements.floor_s += max(seconds)
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
                    kind, CLOUD, self._settings.out.name, self._round, self._session, self._number, scope, about=about,
                    arrays=arrays, receiver=self._names[factory],
                )  # fmt: skip
                messages[factory] = encode(message, self._filter.signer)
                identities[factory] = message.identity
                answer_limits[factory] = _answer_limits(kind, about, arrays, self._model_bytes)
        return messages, identities, answer_limits

    def _record(self, factory: int, request: str, answer: Message, down: int, up: int) -> float:
        """Record the measurements in an edge's answer; return the duration of the request, s."""
        known = len(self._factory_of) or ranges.DEVICES
        stated = checks.measured(answer.about, [k for k, m in enumerate(self._factory_of) if m == factory], known)
        stated = without_strangers(stated, self._nameable.get(factory))
        for flaw in stated.flaws:
            self._filter.refuse(self._names[factory], flaw)
            self._note_failure(factory, request, "RunError", checks.short_line(str(flaw)))
        self.attendance.present[factory] = set(stated.present)
        self.attendance.visiting[factory] = set(stated.visiting)
        if answer.kind not in ("failed", "refused"):
            self._met[factory] = stated.reached
        if answer.kind == "refused":
            text = checks.short_line(answer.about.get("text"))
            log.warning("%s refused: %s", self._names[factory], text)
            self._note_failure(factory, request, "RunError", text)
        return self._measurements.add(self._names[factory], stated, down, up)

    def _failure(self, factory: int, request: str, answer: Message) -> FedfloorError:
        """Record the failure of an edge; return the error that ends the run if all edges fail."""
        name = self._names[factory]
        failure = checks.failure(request, answer)
        log.error("%s could not serve a request: %s", name, failure.text)
        self._note_failure(factory, request, failure.error, failure.text)
        return ERRORS.get(failure.error, RunError)(f"{name}: {failure.text}")


def _answer_limits(
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


def machines(settings: CloudSettings, factories: int) -> Names:
    """Return the names of a park's machines by the cloud's settings: of devices, and of ``factories`` edges."""
    edges = {edge.factory: edge.name for edge in settings.edges}
    devices = {device.device: device.name for edge in settings.edges for device in edge.devices}
    return Names(devices, tuple(edges.get(m, "") for m in range(factories)))


def read_left(path: Path) -> dict[int, str]:
    """Return the devices that take no part in a run that goes on, each with the reason.

    Raises:
        SettingError: the file has other content.
    """
    try:
        return {int(k): str(why) for k, why in json.loads(regular.read_text(path)).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise SettingError(f"{path} is damaged: restore it, or begin a new run.") from error


def asked(settings: CloudSettings, edges: Edges) -> Asked:
    """Return what the devices of a park state of their rows, and what does not fit together."""
    experiment = read_experiment(Path(settings.experiment), [])
    sites = CloudExecutor(settings, edges, [], table(experiment), experiment.deploy).sites()
    return Asked.of(sites, experiment.data)


def attached(
    settings: CloudSettings, edges: Edges, *, resume: bool = False, asks: bool = False
) -> tuple[Experiment, Park, CloudExecutor]:
    """Return a cloud's experiment, the park of its devices, and the executor that is connected to them.

    Args:
        resume: whether a run goes on.
        asks: whether devices are asked before, as ``[data] agree`` says.
    """
    experiment = read_experiment(Path(settings.experiment), [])
    method = experiment.configured
    away = settings.samples == "devices"
    names = table(experiment)
    park = None if away else build_park(experiment)
    factory_of = [] if park is None else park.factory_of.tolist()
    crosses = bool(foreign_requests(experiment, method))
    live = CloudExecutor(settings, edges, factory_of, names, experiment.deploy, crosses)
    if asks and is_asking(experiment):
        check(Asked.of(live.sites(), experiment.data), experiment)
    park = live.gather(experiment, method.parts.travel or "", resume=resume) if park is None else park
    return experiment, replace(park, machines=machines(settings, park.factories)), live


def run(
    settings: CloudSettings, edges: Edges | None = None, *, resume: bool = False, limits: Limits | None = None,
    report: Callable[[Line], None] = ignore, interrupted: Callable[[], bool] | None = None,
) -> str:  # fmt: skip
    """Run an experiment on real machines; return the reason of its end, as
    :func:`fedfloor.runs.loop.execute` does.

    Args:
        settings: settings of the cloud.
        edges: the connection to the edges; default: over the cloud's broker.
        interrupted: returns whether the run is to stop; default: Ctrl-C.
    """
    orders = Orders(settings.out, resume=resume, limits=limits or Limits())
    check_place(orders, live=True)  # before edges and devices are waited for
    if edges is None:
        if settings.transport == "flower":
            app = f"flwr run {Path(__file__).parent / 'flower_app'} SUPERLINK --run-config 'settings=\"FILE\"'"
            raise SettingError(f"transport = 'flower': Flower starts the loop: {app}.")
        with Downlink(settings) as link:
            return run(settings, link, resume=resume, limits=limits, report=report, interrupted=interrupted)
    experiment, park, live = attached(settings, edges, resume=resume, asks=not resume)
    sizes.check(experiment, park, settings.message_mb)
    with owned(orders.out), noted(orders.out), interrupts() as asked:
        prepare(experiment, orders, park, live=True)
        live.keep_left()
        warn_of_gaps(park)
        return loop.execute(experiment, orders, Alone(), park, report, interrupted or asked, live)
