"""The record of a run on real machines, with which a simulation trains it again, to the bit, or prices it.

On real machines wall time dictates which visits take place, in which order results arrive, and which are lost. A run
writes that down when a round has ended: its resolved plan, its lost visits, the devices that answered its questions,
and the digest of its model. A replay carries out these plans, and compares the model of each round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedfloor.base import regular
from fedfloor.base.checking import toml
from fedfloor.base.errors import MALFORMED, RunError, SettingError
from fedfloor.base.strict import json_text
from fedfloor.engine.engine import Engine, FrozenExtractor
from fedfloor.engine.executor import LocalExecutor
from fedfloor.engine.questions import question
from fedfloor.experiment import Experiment
from fedfloor.methods import bounds
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet
from fedfloor.plan import text, walk
from fedfloor.plan.flow import Arrival
from fedfloor.plan.nodes import Node, Parallel, Probe, Since, Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.questions import covers
from fedfloor.plan.schedule import Key
from fedfloor.runs import privacy, revealed
from fedfloor.runs.round import Record

FILE = "replay.jsonl"
EVALUATION = "evaluation.json"  # which a run writes at its end
WORKS = "works"  # the different works of a round's visits, to which its plan refers by number


@dataclass(frozen=True)
class Round:
    """A round as it took place.

    Attributes:
        plan: the resolved plan.
        lost: device and number of each lost visit.
        answered: question → the devices that answered it.
        model: digest of the global packet after the round.
        late: the devices whose results would have come after the round's end.
        arrivals: the results in the order of their arrival, unless all were waited for.
    """

    number: int
    plan: Node
    lost: frozenset[tuple[int, int]]
    answered: Mapping[str, Sequence[int]]
    model: str
    late: tuple[int, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

    @classmethod
    def of(cls, record: Record, packet: Packet) -> Round:
        """Return the record of a round, given the packet after it."""
        outcome = record.outcome
        lost = frozenset((receipt.device, receipt.visit) for receipt in outcome.receipts if receipt.lost)
        answered: dict[str, list[int]] = {}
        for device, answers in sorted(outcome.answers.items()):
            for what in answers:
                answered.setdefault(what, []).append(device)
        digest = parcel.digest(packet)
        return cls(record.view.round, outcome.resolved, lost, answered, digest, record.late, record.arrivals)

    def row(self) -> dict[str, Any]:
        """Return the record as JSON; works, which recur in a plan, are listed, and numbers are in their places."""
        works: list[Any] = []

        def number(work: Any) -> int:
            if work not in works:
                works.append(work)
            return works.index(work)

        plan = _with_works(text.to_json(self.plan), number)
        lost = sorted(list(visit) for visit in self.lost)
        about = {"round": self.number, "plan": plan, WORKS: works, "lost": lost, "answered": dict(self.answered)}
        arrivals = [arrival.row() for arrival in self.arrivals]
        return {**about, "late": list(self.late), "arrivals": arrivals, "model": self.model}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Round:
        """Return the record from :meth:`row`."""
        lost = frozenset((int(device), int(visit)) for device, visit in row["lost"])
        plan = text.from_json(_with_works(row["plan"], row[WORKS].__getitem__))
        answered = {str(what): [int(k) for k in devices] for what, devices in row["answered"].items()}
        late = tuple(int(k) for k in row["late"])
        arrivals = tuple(Arrival(int(k), int(v), *map(float, times)) for k, v, *times in row["arrivals"])
        return cls(int(row["round"]), plan, lost, answered, str(row["model"]), late, arrivals)


def _with_works(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a plan's JSON with each work changed; one that is null is left out."""
    if isinstance(value, list):
        return [_with_works(one, change) for one in value]
    if not isinstance(value, dict):
        return value
    changed = {name: _with_works(one, change) for name, one in value.items() if name != "work"}
    return changed if value.get("work") is None else changed | {"work": change(value["work"])}


def append(out: Path, new: Round) -> None:
    """Append a round to a run's record."""
    regular.append(out / FILE, json_text(new.row(), separators=(",", ":")))


def cut(out: Path, last: int) -> None:
    """Remove the rounds after ``last`` from a run's record."""
    path = out / FILE
    if not path.exists():
        return
    lines = regular.read_bytes(path).splitlines(keepends=True)
    os.truncate(path, sum(map(len, lines[:last])))


class Recording:
    """The rounds of a run on real machines, in place of the method's plans.

    Args:
        run: the folder of the run.

    Raises:
        SettingError: the folder has no run of real machines that has ended, or its record is damaged.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        path = run / FILE
        if not (run / "experiment.toml").exists():
            raise SettingError(f"--replay: {run} is no folder of a run.")
        if not path.exists():
            raise SettingError(
                f"--replay: the run in {run} has no {FILE}, which runs on real machines write. A simulation is "
                f"repeated by its experiment: fedfloor run {run / 'experiment.toml'}."
            )
        if not (run / EVALUATION).exists():
            raise SettingError(f"the run in {run} has not ended. Continue it with --resume where it ran.", key="record")
        self.rounds = self._read(path)
        self.now = Round(0, Parallel(()), frozenset(), {}, "")  # the round that is carried out

    @staticmethod
    def _read(path: Path) -> dict[int, Round]:
        rounds: dict[int, Round] = {}
        for number, line in enumerate(regular.read_bytes(path).splitlines(), start=1):
            try:
                one = Round.read(json.loads(line))
                if one.number != number:
                    raise ValueError(f"it is of round {one.number}")
            except (SettingError, *MALFORMED) as error:
                raise SettingError(f"{path}: line {number} is damaged ({error}).", key="record") from error
            rounds[number] = one
        if not rounds:
            raise SettingError(f"{path} has no rounds.", key="record")
        return rounds

    def simulated(self, given: Experiment) -> Experiment:
        """Return the run's experiment as a simulation in which its plans are carried out.

        Args:
            given: the experiment of the run's folder.

        Raises:
            SettingError: the run cannot be repeated to the bit.
        """
        method = given.configured
        if privacy.mechanism(method) is not None or privacy.by_visits(method):
            raise SettingError(
                "--replay: the noise of this run was drawn by the operating system and is secret, so that the run "
                "cannot be repeated to the bit."
            )
        return replace(
            given,
            name=f"{given.name}-replay",
            engine=replace(given.engine, shortcuts="off", kind="ranks", device="cpu"),
            faults=replace(given.faults, visit=0.0),
            deploy=replace(given.deploy, simulate=False),
            round=replace(given.round, close=None),
        )

    def check_data(self, digest: str) -> None:
        """Raise SettingError if these are not the data of the run, given their SHA-256."""
        given = toml(self.run / "experiment.toml", "experiment").get("provenance", {}).get("data_sha256")
        if given != digest:
            raise SettingError(
                f"--replay: the data of the run in {self.run} have SHA-256 {given}, those found here {digest}. Replay "
                "it where its data are; samples that only devices have cannot be replayed."
            )

    def plan(self, number: int) -> Node:
        """Return the plan of a round, which is carried out next.

        Raises:
            RunError: the run had fewer rounds.
        """
        if number not in self.rounds:
            raise RunError(f"round {number}: the run in {self.run} has {len(self.rounds)} rounds.")
        self.now = self.rounds[number]
        return self.now.plan

    def needed(self, number: int) -> set[int]:
        """Return the earlier models from which visits of rounds after ``number`` start."""
        later = (node for n, one in self.rounds.items() if n > number for node, _ in walk.every(one.plan))
        return {node.version for node in later if isinstance(node, Since) and node.version <= number}

    def late(self, number: int) -> tuple[int, ...]:
        """Return the devices whose results came after a round's end."""
        return self.rounds[number].late

    def arrivals(self, number: int) -> tuple[Arrival, ...]:
        """Return the results of a round in the order of their arrival."""
        return self.rounds[number].arrivals

    def began_s(self, number: int) -> float:
        """Return the time at which the last result before a round arrived, s."""
        before = self.rounds[number - 1].arrivals if number > 1 else ()
        return max((one.arrived_s for one in before), default=0.0)

    def check(self, packet: Packet) -> None:
        """Raise RunError if the round's model differs from that of the run."""
        if parcel.digest(packet) != self.now.model:
            raise RunError(
                f"round {self.now.number}: the model differs from that of the run in {self.run}. Its machines had "
                "other samples, another release, or processors of another kind.",
                key="replay-differs",
            )


class ReplayExecutor(LocalExecutor):
    """The executor of simulated devices; the visits and answers that a recorded round lacks are lost.

    A record may be a stranger's: devices do for it what they would do for an edge, and no more.

    Args:
        recording: the rounds.
        method: the method of the experiment.
    """

    def __init__(self, recording: Recording, method: ConfiguredMethod) -> None:
        super().__init__()
        self._recording = recording
        self._method = method

    def visit(
        self, engine: Engine, work: Work, packet: Packet, key: Key, extractor: FrozenExtractor
    ) -> tuple[Packet, Receipt] | None:
        """Train; None where the visit was lost.

        Raises:
            SettingError: the work is more than the experiment can require.
        """
        if (key.device, key.visit) in self._recording.now.lost:
            return None
        self._check(engine, work, key.device)
        return super().visit(engine, work, packet, key, extractor)

    def answers(self, engine: Engine, node: Probe, packet: Packet, tick: int, devices: Sequence[int]) -> dict[int, Any]:
        """Return the answers of the devices that answered.

        Raises:
            SettingError: the question is none of the experiment's, or has settings that no edge may send.
        """
        known = self._recording.now
        asked = question(node)
        if known.number == 0:
            return super().answers(engine, node, packet, tick, devices)
        if not any(covers(own, node) for own in revealed.questions(self._method, engine.task)):
            raise SettingError(f"--replay: the experiment has no question '{node.what}' of this form.")
        if why := asked.excess():
            raise SettingError(f"--replay: round {known.number}, question '{node.what}': {why}")
        some = [k for k in devices if k in known.answered.get(node.what, ())]
        if asked.trains:
            for device in some:
                self._check(engine, Work(**Work.fields(node.settings)), device)
        return super().answers(engine, node, packet, tick, some)

    def _check(self, engine: Engine, work: Work, device: int) -> None:
        samples = int(engine.park.holdings[device])
        if why := bounds.flaw(work) or bounds.excess(work, self._method, samples):
            raise SettingError(f"--replay: round {self._recording.now.number}, device {device}: {why}")
