"""Simulation of a run without training: plans, previews and prices, also of finished runs on another network."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor import config
from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.base.names import REFERENCES_FOLDER, ROUNDLESS
from fedfloor.base.strict import json_text
from fedfloor.engine import travel
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.questions import question
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import State
from fedfloor.network.price import Price
from fedfloor.network.profile import NetworkSettings
from fedfloor.network.sites import RadioUplink, Sites, radio_uplink
from fedfloor.park.park import Park
from fedfloor.plan import text, walk
from fedfloor.plan.nodes import Node, Probe, Work
from fedfloor.plan.outcome import Outcome
from fedfloor.plan.schedule import NOTHING, Answers, Foreknown, Packet, RoundContext, losing
from fedfloor.runs import folder, ledger, prepare, pricing, replay
from fedfloor.runs import round as round_
from fedfloor.runs.compare import PlannedRun, ground
from fedfloor.runs.ledger import Line
from fedfloor.runs.parks import build_park, network_of
from fedfloor.runs.replay import Recording
from fedfloor.runs.resolving import resolved
from fedfloor.runs.round import Position, Setup, Versions, step, training
from fedfloor.runs.unforeseen import watched

log = logging.getLogger(__name__)

UNEQUAL = 1.5  # ratio of passes between methods from which a note is logged


@dataclass(frozen=True)
class ForecastRound:
    """A planned and priced round without training.

    Args:
        normalised: price of the normalisation's surveys before round 1, not contained in ``price``.
    """

    number: int  # 0: the method's initial questions
    plan: Node  # with all choices made
    price: Price  # of the plan
    normalised: Price | None = None


def rounds(
    experiment: Experiment, park: Park, last: int, state: State | None = None, recording: Recording | None = None,
    unforeseen: Callable[[], None] | None = None,
) -> Iterator[ForecastRound]:  # fmt: skip
    """Yield the priced rounds of an experiment up to ``last``, for methods whose plans do not depend on training.

    Args:
        state: the method's initial state; default: from placeholder answers to its initial questions.
        recording: the rounds of a run on real machines, in place of the method's plans.
        unforeseen: called when a plan reads what only training gives, so that the rounds of a run may be others.

    Raises:
        SettingError: the experiment has no network.
    """
    setup = dry(experiment, park)
    if setup.price_model is None:
        raise SettingError(
            "the experiment names no network. Add one, such as --set network.profile=lte-cat-m2; fedfloor list links "
            "lists the profiles.",
            key="network.profile",
        )
    if recording is not None:
        setup = replace(setup, recorded=recording, close=None)
    if unforeseen is not None:
        setup = replace(setup, method=watched(experiment.configured, unforeseen))
    questions = setup.method.setup(setup.view(0))
    point = Position(state=state) if state is not None else opened(setup)
    for _ in range(last):
        after, record = step(setup, point)
        if questions is not None and point.round == 0:
            yield ForecastRound(0, questions, record.prices[0])
        yield ForecastRound(
            after.round, record.outcome.resolved, record.prices[-1], setup.surveyed(experiment, after.round)
        )
        point = after


def first_round(experiment: Experiment, park: Park) -> Node:
    """Return the plan of the first round with all choices made."""
    setup = dry(experiment, park, loss_chance=0.0, priced=False)
    _, record = step(setup, opened(setup))
    return record.outcome.resolved


def passes(experiment: Experiment, park: Park) -> float:
    """Return the mean number of passes over the samples of a visited device in the first round.

    Raises:
        SettingError: the method's plan depends on the results of training.
    """
    trained = 0.0
    held = {-1: int(park.holdings.sum())}
    visits = list(walk.visited(first_round(experiment, park)))
    for visit, times in visits:
        device = walk.number(visit)
        samples = held.setdefault(device, int(park.holdings[device]))
        work = visit.work
        trained += times * (samples * (work.epochs or 0) if work.steps is None else work.steps * work.batch_size)
    return trained / max(1, sum(held[device] for device in {walk.number(visit) for visit, _ in visits}))


def warn_of_unequal_passes(runs: Sequence[PlannedRun], park: Park) -> None:
    """Log a note if the runs of a comparison differ in their passes over devices' samples in a round."""
    found: dict[str, float] = {}
    for run in runs:
        name = run.experiment.method.name
        if run.start is None and name not in found and ground(run.experiment) == ground(runs[0].experiment):
            with suppress(SettingError):
                found[name] = passes(run.experiment, park)
    counts = [count for count in found.values() if count]
    if counts and max(counts) > UNEQUAL * min(counts):
        log.info(
            "methods do not train equally much: passes over a visited device's samples in a round are %s. Set epochs, "
            "steps or laps so that they agree, such as methods.fedavg.work.epochs, or compare at equal cost with --at.",
            ", ".join(f"{count:.3g} ({name})" for name, count in sorted(found.items(), key=lambda pair: pair[1])),
        )


def plan_of(experiment: Experiment, park: Park, number: int = 1) -> Node:
    """Return the plan of a round, for methods whose plan does not depend on the results of earlier rounds.

    Earlier rounds are planned, too, if the plan depends on the clock or on the devices trained so far.

    Raises:
        SettingError: the experiment has no round of this number.
    """
    if not 1 <= number <= experiment.rounds:
        raise SettingError(f"--round {number}: the experiment has rounds 1 to {experiment.rounds}.")
    setup = dry(experiment, park, priced=False, bare=True)
    point = opened(setup)
    method = experiment.configured
    reads = method.needs.census or method.notes_plans
    for _ in range(1, number) if reads or park.mobility is not None else ():
        point, _ = step(setup, point)
    return round_.planned(setup, replace(point, round=number - 1))[1]


def opening(experiment: Experiment, park: Park) -> tuple[Node, Packet]:
    """Return the plan of the first round, and the global packet before it, with a model of zeros.

    Placeholders replace the answers to the method's initial questions.
    """
    setup = dry(experiment, park)
    point = opened(setup)
    return round_.planned(setup, point)[1], point.state.packet


def dry(
    experiment: Experiment, park: Park, *, loss_chance: float | None = None, priced: bool = True, bare: bool = False
) -> Setup:  # fmt: skip
    """Return the setup of an experiment's rounds without training, with a model of zeros.

    Args:
        loss_chance: the probability that a visit is lost; by default the experiment's.
        priced: whether rounds are priced.
        bare: whether views may lack the model and the network if the method reads neither them nor the census.
    """
    method = experiment.configured
    chance = experiment.faults.visit if loss_chance is None else loss_chance
    carrier = DryCarrier(park, experiment.seed, chance)
    facts = (park, carrier, experiment.rounds, experiment.seed)
    if bare and not (experiment.round.close or method.needs.network or method.needs.clock or method.needs.census):
        return Setup(method, *facts, start={})
    network = network_of(experiment, method, park)
    parts = (network.trained, network.classifier_parameters, partial(travel.coded, network))
    price_model = pricing.build_price_model(experiment, park, *parts, method.coded(Work()))
    carrier.air = None if price_model is None else price_model.air
    start = {"w": torch.zeros_like(network.flat)}
    return Setup(
        method, *facts, start, network.trained, network.layout, price_model, priced, experiment.round.close, chance
    )


def opened(setup: Setup) -> Position:
    """Return the point before the first round, with placeholders for the answers to the method's initial questions."""
    view = setup.view(0)
    questions = setup.method.setup(view)
    answers = {} if questions is None else pretended(questions, setup.trained, setup.park)
    return Position(state=setup.method.init(view, answers, generator(setup.seed, "init")))


class DryCarrier:
    """The carrier that makes a plan's choices as in a run with training, and trains nothing."""

    trains = False
    secret = False
    foresees = True
    team = None

    def __init__(self, park: Park, seed: int, loss_chance: float = 0.0, air: RadioUplink | None = None) -> None:
        self.park = park
        self.seed = seed
        self.loss_chance = loss_chance
        self.air = air
        self.visits = Counter[int]()  # device → number of its local updates so far

    def context(self, number: int) -> RoundContext:
        """Return the facts of a round, with the visits that are lost."""
        return losing(self.seed, number, self.loss_chance, None if self.air is None else self.air.lost)

    def ask(self, node: Probe, packet: Packet, tick: int) -> Answers:  # noqa: ARG002
        """Return no answers."""
        return {}

    def census(self, tick: int) -> NDArray[np.int64]:
        """Return the census of the visits counted so far."""
        every = range(self.park.devices)
        return self.park.census(every, tick, [self.visits[k] for k in every])

    def stand_on(self, sites: Sites) -> None:
        """Set the radio uplink that follows from the devices' places."""
        self.air = radio_uplink(sites, self.seed)

    def run(
        self, plan: Node, packet: Packet, number: int, tick: int, versions: Versions, known: Foreknown = NOTHING  # noqa: ARG002
    ) -> Outcome:  # fmt: skip
        """Count the visits of a plan."""
        made = resolved(plan, self.park, self.context(number), tick, self.visits, known)
        return Outcome(packet, made.resolved, ticks=max(1, walk.span(plan)))


def pretended(questions: Node, trained: int, park: Park) -> dict[int, dict[str, Any]]:
    """Return placeholder answers to a method's initial questions: losses are 1, gradients are 0.

    Class counts replace features and their hashes, so that groups differ from those of a run.
    """
    answers: dict[int, dict[str, Any]] = {}
    for node in walk.probes(questions):
        for k in node.devices:
            answers.setdefault(k, {})[node.what] = question(node).pretended(park, k, trained)
    return answers


LEFT = (".lock", "report.html", "checkpoint", "memory", REFERENCES_FOLDER)  # files that are not copied with a run


def reprice(runs: Sequence[Path], network: NetworkSettings, out: Path, follow: Callable[[Path], None]) -> list[Path]:
    """Write copies of runs' folders whose ledgers have the prices of another network.

    Each round's plan is made again and compared with the trained one by its hash. A method's initial questions are
    repeated if its plans depend on the answers. Of runs on real machines the recorded plans are priced, if wall time
    decided which visits counted, or the plans are not made again. Runs in which nothing travels are copied without a
    price. Radio with interference is refused on either network, as the lost updates are part of the training.
    ``follow`` is called with each finished copy.

    Raises:
        SettingError: ``out`` exists, a folder is not a run, two have the same name, a network has interference, or a
            plan depends on the results of training or on the network. Nothing is written then.
    """
    copies = [_copy_of(run, out) for run in runs]
    if len(set(copies)) < len(copies):
        raise SettingError("reprice: two of the runs have folders of the same name. Give them separately.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SettingError(f"{out} exists already. Give another folder with --out.", key="exists")
    park: Park | None = None
    built_for: tuple[object, ...] = ()
    afters = [_moved(run, network) for run in runs]
    ledgers = list[list[Line]]()
    for run, after in zip(runs, afters, strict=True):  # nothing is written before all runs are checked
        if sends_nothing(after):
            ledgers.append([])
            continue
        if park is None or ground(after) != built_for:
            park = build_park(after)
            built_for = ground(after)
        done = run / "ledger.jsonl"  # missing if training diverged in the first round
        ledgers.append(priced(after, park, ledger.read(done) if done.exists() else [], run))
    for run, copy, after, lines in zip(runs, copies, afters, ledgers, strict=True):
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*LEFT), dirs_exist_ok=True)
        folder.write(copy / "experiment.toml", config.resolved(after, copy))
        if lines:
            folder.write(copy / "ledger.jsonl", "".join(json_text(ledger.to_row(line)) + "\n" for line in lines))
        follow(copy)
    return copies


def _copy_of(run: Path, out: Path) -> Path:
    """Return the folder of a run's copy, which for a reference is in the copy of its run.

    >>> _copy_of(Path("runs/plant/references/pooled-seed0"), Path("out")).as_posix()
    'out/plant/references/pooled-seed0'
    """
    inside = run.parent.name == REFERENCES_FOLDER
    return out / run.parent.parent.name / REFERENCES_FOLDER / run.name if inside else out / run.name


def sends_nothing(experiment: Experiment) -> bool:
    """Return whether nothing travels in a run: of devices that train alone, and of references without rounds."""
    return experiment.method.name in ROUNDLESS or experiment.configured.method.needs.separate


def _moved(run: Path, network: NetworkSettings) -> Experiment:
    if not (run / "experiment.toml").is_file():
        raise SettingError(f"{run} is not a run folder: it has no experiment.toml.", key="folder-of-run")
    before = config.read(run / "experiment.toml")
    after = replace(before, network=network)
    for settings in (before.network, after.network):
        known = settings.built
        if known is not None and known.uplink.sharing == "sinr":
            raise SettingError(
                f"{run}: on network '{known.name or settings.profile}' updates are lost to interference, which "
                "changes the training: run the experiment on it.",
                key="network",
            )
    return after


def priced(experiment: Experiment, park: Park, lines: list[Line], run: Path) -> list[Line]:
    """Return a ledger with the prices of an experiment's network; raise SettingError if a plan differs."""
    live = (run / replay.FILE).exists()
    clock = experiment.configured.needs.clock
    closes = experiment.round.close is not None
    if live and clock:
        raise SettingError(
            f"{run}: its rounds took the time of its machines, which no other network changes. Simulate the experiment "
            "on this network instead.",
            key="network",
        )
    repriced = list[Line]()
    other = int(bool(lines))
    if not (live and closes):
        repriced, other = _priced(rounds(experiment, park, len(lines)), lines)
        if other and (state := _first_state(experiment, park)):
            repriced, other = _priced(rounds(experiment, park, len(lines), state), lines)
    if other and live:
        repriced, other = _priced(rounds(experiment, park, len(lines), recording=Recording(run)), lines)
    if other:
        timed = closes or clock
        why = "the plan depends on training or on the network, or was made by another version of fedfloor"
        why = "which results are in time depends on the network" if timed else why
        raise SettingError(f"{run}, round {other}: {why}. Run the experiment on this network instead.", key="network")
    return repriced


def _priced(rounds: Iterator[ForecastRound], lines: list[Line]) -> tuple[list[Line], int]:
    """Return the priced lines up to the first round whose plan differs from the trained one, and its number or 0."""
    repriced = list[Line]()
    before = list[Price]()
    for planned in rounds:
        before.append(planned.price)
        if planned.number == 0:
            continue
        line = lines[planned.number - 1]
        if text.digest(planned.plan) != line.plan_hash:
            return repriced, planned.number
        repriced.append(
            ledger.with_price(line, pricing.to_row(before, planned.normalised), repriced[-1] if repriced else None)
        )
        before = []
    return repriced, 0


def _first_state(experiment: Experiment, park: Park) -> State | None:
    """Return the method's initial state after repeating its initial questions; None without questions."""
    method = experiment.configured
    engine, price_model = prepare.engine(experiment, method, park, Alone(), DeviceMemory(None))
    setup = training(method, engine, experiment.rounds, price_model)
    questions, state = prepare.first_state(engine, method, setup.view(0))
    return None if questions is None else state
