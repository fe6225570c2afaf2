"""The edges of a park of real machines, as the executor of the engine at the cloud."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import ranges, regular
from fedfloor.base.errors import MALFORMED, FedfloorError, RunError, SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import asking, joining, subtasks, sum_messages
from fedfloor.deploy import facts as facts_of
from fedfloor.deploy.arrivals import ArrivingVisits
from fedfloor.deploy.checks import ABSENT, STAGES, Failure, note_failure
from fedfloor.deploy.edge_requests import LOOK_DEADLINE_S, EdgeRequests, Request
from fedfloor.deploy.facts import Facts
from fedfloor.deploy.message import Message
from fedfloor.deploy.names import PartNames
from fedfloor.deploy.round_measurements import RoundMeasurements, raise_failure, reason_of
from fedfloor.deploy.settings import CloudSettings
from fedfloor.deploy.summing import CONDUCT, Conduct, ServerSum
from fedfloor.deploy.uplink import Edges
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine, FrozenExtractor, Shown, Subtask
from fedfloor.engine.limit import Limit
from fedfloor.engine.summing import SecureAggregation
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
from fedfloor.runs.checkpoint import Checkpoint
from fedfloor.runs.folder import write_json
from fedfloor.runs.parks import load_data

log = logging.getLogger(__name__)

# failing devices that end a run, if they are most of those that are connected
MIN_FAILING = 3
MOST_FAILING = 20
LEFT = "left.json"  # devices that take no part in a run


class CloudExecutor:
    """The engine's executor at the cloud: it sends branches and requests for devices to the edges.

    Args:
        settings: settings of the cloud.
        edges: the connection to the edges.
        factory_of: the factory of each device; empty until the devices have reported.
        names: the objects from outside the package to which messages may refer.
        deploy: the experiment's settings of real machines; default: the defaults.
        crosses: whether edges also visit devices of other factories.

    Attributes:
        repeats: whether the first round may be one that is repeated, in which devices refuse another update with noise.
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
        self.edges = EdgeRequests(settings, edges, deploy, crosses=crosses)
        self._crosses = crosses
        self._device_names = {device.device: device.name for edge in settings.edges for device in edge.devices}
        lacking = sorted(set(factory_of) - set(self.edges.names))
        if lacking:
            raise SettingError(f"factory {lacking[0]} has devices but no edge: add it to [[edges]].")
        if factory_of:
            self.edges.assign(factory_of)
        self._facts = ""  # digest of the facts that devices have received
        self._left = read_left(settings.out / LEFT)
        self._kept: Mapping[int, set[str]] = {}
        self._conduct = Conduct(settings.out / CONDUCT)
        self._sum: ServerSum | None = None  # of all factories' devices, during a walk of their branches
        # since the last success
        self.repeats = False
        self._first = 0  # the first round since the start
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
                self.edges.measurements = RoundMeasurements()
                return self.edges.exchange_all("gather", {"facts": facts.to_dict()})

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
        self.edges.assign(gathered[0])
        park = facts_of.park(experiment, facts, *gathered, dataset, steps, sums)
        known = facts_of.with_statistics(facts, park)
        self._facts = known.digest
        self.edges.introductions = {
            factory: joining.holdings_for(known, gathered, factory, crosses=self._crosses)
            for factory in self.edges.names
        }
        self.edges.introduce(self.edges.names)
        return park

    def sites(self) -> list[SiteFacts]:
        """Return what all devices state of their rows."""
        return asking.gathered(
            partial(self.edges.exchange_all, "sites"), self._settings.edges,
            self._settings.deadlines.join_s, self.edges.filter.refuse,
        )  # fmt: skip

    def keep_left(self) -> None:
        """Name the devices that take no part in the run, and keep them for ``--resume``."""
        if self._left:
            names = ", ".join(self._device_names.get(k, str(k)) for k in self._left)
            why = next(iter(self._left.values()))
            log.warning("the run begins without device %s, which take no part until the next run: %s", names, why)
            write_json(self._settings.out / LEFT, {str(k): why for k, why in self._left.items()})

    def begin(self, number: int) -> None:
        """Wait until enough devices are connected for a round.

        Raises:
            RunError: too few are connected until the deadline.
        """
        self._first = self._first or number
        self.edges.round = number
        self.edges.attendance.begin(number)

    def walk(self, engine: Engine, subtask: Subtask) -> list[Shown]:
        """Send each branch to the edge of its first device's factory; return the results of the branches."""
        self.edges.round = subtask.round
        self.edges.model_bytes = sum(array.nbytes for array in subtask.start.values())
        place = Key(engine.seed, subtask.round, subtask.tick, -1, 0)
        coded = replace(subtask, start=EdgePath(engine.network, subtask.node, place).send(subtask.start))
        branches_of: dict[int, list[int]] = {}
        asked = set[int]()
        for index, child in enumerate(subtask.node.children):
            branches_of.setdefault(self.edges.factory_of[walk.first_device(child)], []).append(index)
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
        answers = self.edges.send(requests, asked)
        results = dict[int, subtasks.BranchResults]()
        for factory, branches in branches_of.items():
            answer = answers.get(factory)
            if answer is not None and answer.kind == "walked":
                with self.refusing(factory, "walk"):
                    results[factory] = subtasks.read_results(answer, subtask, branches, engine)
        if engine.limit is not None:
            self._check_lengths(results, subtask, engine, engine.limit.knowing(subtask.updates))
        for factory in sorted(branches_of.keys() - results.keys()):
            self.edges.measurements.absent.add(self.edges.names[factory])
            log.warning(
                "round %d: factory %d (%s) takes no part.", self.edges.round, factory, self.edges.names[factory]
            )
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

    def refusing(self, factory: int, request: str) -> AbstractContextManager[None]:
        """Convert a RefusedError into a recorded failure of the edge."""
        return self.edges.refusing(factory, request)

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
        self.edges.round = subtask.round
        network = engine.network
        work = walk.works(subtask.node)[0]

        def refuse(device: int, kind: str, error: RefusedError) -> None:
            self.refuse(device, kind, str(error))

        secure_sum = self._sum = ServerSum(
            aggregation, aggregation.sums[0], partial(self._stage, engine), refuse, self._facts,
            self.edges.filter.signer, self._device_names, self._conduct,
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
        for factory in sorted({self.edges.factory_of[k] for k in abouts}):
            devices = [k for k in abouts if self.edges.factory_of[k] == factory]
            about = {"stage": stage, **sum_messages.packed({str(k): abouts[k] for k in devices})}
            requests[factory] = ("sum", about | subtasks.device_states(engine, set(devices), self._kept), {})
        answers: dict[int, Any] = {}
        for factory, answer in self.edges.send(requests, abouts).items():
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
        self.edges.by_edge(engine, "keep", node.devices, {}, arrays, node.scope)

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return devices' answers to a probe, obtained through their edges; silent devices are left out.

        Raises:
            RunError: no device answers.
        """
        arrays = parcel.pack(packet) if "w" in packet else {}
        about = {"tick": tick, "what": node.what, "settings": self._parts.reference(dict(node.settings))}
        answers: dict[int, Any] = {}
        for factory, some, answer in self.edges.by_edge(engine, "ask", devices, about, arrays):
            with self.refusing(factory, "ask"):
                answers |= subtasks.read_answers(answer, node, some, engine)
        shared = subtasks.question_of(node, "kind").shared  # the lengths of their vectors differ by device
        for k, error in subtasks.length_refusals({} if shared else answers).items():
            self.edges.filter.refuse(self.edges.names[self.edges.factory_of[k]], error)
            del answers[k]
        silent = [k for k in devices if k not in answers]
        reason = reason_of(self.edges.measurements.failed, "probe")
        if silent and not answers and not (self.edges.round and self.edges.attendance.others(devices)):
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
        for factory, some, answer in self.edges.by_edge(engine, "census", devices, {"tick": tick}, {}):
            with self.refusing(factory, "census"), ranges.of("answer"):
                counted = ranges.rows(answer.about.get("census"), len(some), "its census")
                node = Probe(tuple(some), "census")
                counts = [subtasks.read_answer(node, k, row, {}, engine) for k, row in zip(some, counted, strict=True)]
                table[[place[k] for k in some]] = counts
        return table

    def available(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the devices that were connected at their edge's last answer; all devices before the first answer."""
        return [k for k in devices if k in self.edges.attendance.present.get(self.edges.factory_of[k], {k})]

    def refuse(self, device: int, kind: str, why: str) -> None:
        """Log the refusal of a device's answer that is far larger than the others'; edges refuse updates."""
        log.warning("device %d is refused: %s", device, why)
        note_failure(self.edges.measurements.failed, f"device {device}", Failure(kind, "RunError", why))

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
        return ArrivingVisits(self, engine, self.edges.factory_of, deadlines.join_s, deadlines.round_s, point)

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
        self.edges.model_bytes = size
        deadline_s = float(about["wait_s"]) + LOOK_DEADLINE_S
        answers = self.edges.deliver({factory: ("fly", about, arrays)}, "all", deadline_s)
        if factory not in answers:
            self.edges.attendance.present.pop(factory, None)
        return answers.get(factory)

    def nobody_arrives(self, number: int) -> FedfloorError:
        """Return the error that ends a run in which no result can arrive."""
        failures = {name: one for name, one in self.edges.measurements.failed.items() if one.kind == "visit"}
        if failures:
            try:
                raise_failure(failures, number)
            except FedfloorError as error:
                return error
        absent = reason_of(self.edges.measurements.failed, ABSENT)
        return RunError(
            f"round {number}: no visit is on its way, and for {self._settings.deadlines.join_s:g} s no device was "
            f"connected that could depart.{absent} Check edges and devices, then continue with --resume."
        )

    # -- measurements -----------------------------------------------------------------------------------------------

    def measured(self) -> dict[str, Any]:
        """Return the measurements since the last call: seconds, bytes per link, absent edges."""
        return self.edges.measured()

    def no_success(self, number: int) -> None:
        """End the run if devices of all factories have failed in turn without a success in between.

        A round that is repeated after a crash may be lost as a whole: devices send no second update with noise.

        Raises:
            FedfloorError: more than half of the connected devices failed, at least three (or all, if fewer) and at most
                twenty; or all edges were refused; or all devices disconnected time and again.
        """
        if self.repeats and number == self._first:
            return
        kinds = {"visit", *STAGES}
        if number != self._last_failed + 1:
            self._failures, self._working = {}, set(self.edges.names.values())
            kinds = {"visit"}  # devices may refuse a second sum over a round, but then have one over the next round
        self._last_failed = number
        failed = self.edges.measurements.failed.items()
        failed_visits = {name: replace(failure, kind="visit") for name, failure in failed if failure.kind in kinds}
        self._failures |= failed_visits
        self._working -= self.edges.measurements.absent | self.edges.measurements.failing_edges
        connected = self.edges.attendance.connected() or len(self.edges.factory_of)
        enough = len(self._failures) >= min(connected, max(MIN_FAILING, connected // 2 + 1), MOST_FAILING)
        if not self._working and (enough or self._failures.keys() >= set(self.edges.names.values())):
            raise_failure(self._failures, number)
        if self.edges.in_vain == number:
            raise self.edges.attendance.end(number)
        if self._failures:
            log.error("round %d: every visit was lost.%s", number, reason_of(self._failures, "visit"))


def read_left(path: Path) -> dict[int, str]:
    """Return the devices that take no part in a run that goes on, each with the reason.

    Raises:
        SettingError: the file has other content.
    """
    try:
        return {int(k): str(why) for k, why in json.loads(regular.read_text(path)).items()}
    except FileNotFoundError:
        return {}
    except MALFORMED as error:
        raise SettingError(f"{path} is damaged: restore it, or begin a new run.") from error
