"""The loop of a run: plan, carry out, absorb, evaluate, record. Every rank runs it; only the first one writes."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedfloor.base import names
from fedfloor.base.errors import DivergedError, RunError, SettingError
from fedfloor.engine import calibrate, separate
from fedfloor.engine.charted import charted
from fedfloor.engine.engine import Engine, RemoteExecutor
from fedfloor.engine.evaluate import Score, evaluate, tested_on
from fedfloor.engine.executor import triggered
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Team
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import title
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import State, View
from fedfloor.park.normalise import DeviceNormaliser, normaliser
from fedfloor.park.park import Park
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.travel import chains
from fedfloor.plan import text, walk
from fedfloor.plan.nodes import Node
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.plan.schedule import several
from fedfloor.runs import (
    checkpoint,
    checks,
    decide,
    folder,
    history,
    keeping,
    ledger,
    prepare,
    pricing,
    privacy,
    replay,
    results,
    revealed,
)
from fedfloor.runs import round as round_
from fedfloor.runs.checkpoint import Checkpoint
from fedfloor.runs.factors import factors
from fedfloor.runs.ledger import Follow
from fedfloor.runs.orders import Orders
from fedfloor.runs.prepare import record
from fedfloor.runs.results import Coverage
from fedfloor.tasks.figures import ACCURACY

log = logging.getLogger(__name__)

TOO_FEW = "fewer models or answers arrived than the mixing rule needs"
CHECKPOINT_S = 5.0  # interval between checkpoints: the work that a kill may lose; results do not depend on it


def execute(
    experiment: Experiment, orders: Orders, team: Team, park: Park, report: Follow, interrupted: Callable[[], bool],
    live: RemoteExecutor | None = None,
) -> str:  # fmt: skip
    """Run an experiment with a team of ranks; every rank calls it.

    Args:
        park: the park, equal on every rank.
        report: called with each new ledger line on the first rank.
        interrupted: called after each round; returns whether the user wants to stop.
        live: the executor of real machines; None: simulation.

    Returns:
        The reason of the end: ``"finished"``, ``"stopped"`` (a limit) or ``"interrupted"``.
    """
    method = experiment.configured
    checks.method_fits(experiment, method, park, live=live is not None)
    place = orders.out / "memory" if live is None else None
    point = checkpoint.latest(orders.out / "checkpoint", place, warn=team.rank == 0) if orders.resume else None
    memory = DeviceMemory(place, *((point.memory, point.visits) if point else ()))
    engine, price_model = prepare.engine(experiment, method, park, team, memory, live=live is not None)
    if live is not None:
        engine.executor = live
        engine.factories = live
        engine.secret = privacy.mechanism(method) is not None
        live.keep(checkpoint.named(orders.out / "checkpoint"))
    checks.parts_there(engine, method)
    start = {"w": engine.network.flat.clone().cpu()}
    if point is not None:
        if engine.limit is not None:
            engine.limit = engine.limit.knowing(point.updates)
        checks.packet_fits(point.state.packet, engine.network, method.objective)
    decide.check(experiment, park, warn=team.rank == 0)
    calibrate.check(park)
    ledger.check(orders.out / "ledger.jsonl", point.line if point else None)
    checks.agree(team, experiment, park, point, start)
    if team.rank == 0:  # nothing has been changed so far
        if orders.resume:
            record(experiment, orders.out, park, live=live is not None)
        discard_after(point, orders.out, memory)
    team.gather([])
    setup = round_.training(method, engine, experiment.rounds, price_model, start)
    setup.close = experiment.round.close
    if orders.replay is not None:
        setup.recorded = orders.replay
        engine.executor = replay.ReplayExecutor(orders.replay, method)
    job = _Run(experiment, orders, setup, engine, method, report, interrupted, live)
    point = point or job.begin()
    if live is None or not (method.needs.clock or setup.close is not None):
        return job.go(start, point)
    visits = live.visits(engine, point)
    with visits.taking():
        setup.real = visits
        setup.carrier = round_.TrainingCarrier(visits.engine)
        return job.go(start, point)


def discard_after(point: Checkpoint | None, out: Path, memory: DeviceMemory) -> None:
    """Remove from a run's folder what an earlier attempt wrote after a checkpoint, and memories that it damaged.

    Args:
        point: the checkpoint; None: the run begins.
        out: the run's folder.
    """
    last = point.round if point else 0
    checkpoint.discard_after(out / "checkpoint", last)
    ledger.cut(out / "ledger.jsonl", point.line if point else None)
    replay.cut(out, last)
    history.cut(out, last)
    results.forget(out)
    memory.tidy()
    memory.sweep(checkpoint.memories(out / "checkpoint"))


class _Run(round_.Observer):
    """One rank's part in a run."""

    def __init__(
        self, experiment: Experiment, orders: Orders, setup: round_.Setup, engine: Engine, method: ConfiguredMethod,
        report: Follow, interrupted: Callable[[], bool], live: RemoteExecutor | None = None,
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self.orders = orders
        self.setup = setup
        self.engine = engine
        self.method = method
        self.report = report
        self.interrupted = interrupted
        self.live = live
        self.first = engine.team.rank == 0
        self.saved = time.monotonic()
        # devices reveal no second sum over a round unless all of them take part again, and no second update with noise:
        # at most one round is repeated
        hides = chains.secure(method.parts.travel or "") or privacy.by_visits(method)
        self.unrepeatable = live is not None and hides
        self.looked = False
        self.warned = not self.first
        self.cutting = not self.first  # as failing, of updates that secure sums cut
        self.failing = not self.first  # whether visits that count as no change are logged already
        self.demands = False  # whether a mixing rule needs more than one model
        self.scored: tuple[int, Score | None] = (0, None)
        self.coverage = Coverage(engine.park) if experiment.evaluate.coverage else None
        self.triggered = triggered(engine)
        self.took_place: replay.Round | None = None  # the last round, if the machines are real

    def begin(self) -> Checkpoint:
        """Carry out the method's initial questions, and return its initial state."""
        plan, state = prepare.first_state(self.engine, self.method, self.setup.view(0))
        reports = {} if plan is None else results.reports(self.experiment, plan)
        answers = {} if plan is None else revealed.answered(plan)
        surveyed = self.setup.surveyed(self.experiment, 1)
        clock_s = 0.0 if surveyed is None else surveyed.seconds
        return Checkpoint(clock_s=clock_s, state=state, reports=reports, answers=answers)

    def go(self, start: dict[str, torch.Tensor], point: Checkpoint) -> str:
        why = "stopped" if self.reached(point) else "finished"
        last = min(self.experiment.rounds, self.orders.limits.stop_after or self.experiment.rounds)
        begun = privacy.rounds_begun(self.orders.out, point.round) if self.engine.secret else point.round
        budget = self.orders.limits.epsilon
        last = privacy.last_round(self.method, budget, self.engine.park.devices, last, begun - point.round)
        while why == "finished" and point.round < last and not self.over(point):
            after = self.next(point)
            if after is None:
                why = "stopped"
                break
            point = after
            if self.first:
                self.write(point, now=point.round == last)
            if self.reached(point):
                why = "stopped"
            elif self.asked_to_stop() and point.round < last and not self.over(point):
                why = "interrupted"
        if why == "finished" and point.round < self.experiment.rounds and not self.over(point):
            why = "stopped"
        if why != "interrupted" and point.round != self.orders.limits.stop_after:  # both go on with --resume
            self.check_trained(start, point)
        if point.round:
            self.end(point)
        return why

    def check_trained(self, start: dict[str, torch.Tensor], point: Checkpoint) -> None:
        """Raise an error if no round changed the model.

        Raises:
            RunError: every visit was lost or refused, or a mixing rule never had the models or answers that it needs.
        """
        lost = not point.visits and point.receipts and all(receipt.lost for receipt in point.receipts)
        if not lost and not (self.demands and same(start, point.state.packet)):
            return
        why = f"every visit was lost or refused.{refusal_of(point.receipts)}" if lost else f"{TOO_FEW}."
        error = RunError(
            f"none of {point.round} rounds changed the model: {why} Correct the cause, and start a new run.",
            key="no-change",
        )
        if self.first:
            results.write_failure(self.orders.out, point.round, error)
            self.save(point)
        raise error

    def next(self, point: Checkpoint) -> Checkpoint | None:
        """Carry out one round, and return its checkpoint; None if it would exceed the budget of ε.

        If the round fails, a checkpoint of the previous round is written.
        """
        try:
            if self.live is not None:
                self.live.begin(point.round + 1)
            return self.round(point)
        except Exception as error:
            if self.first:
                with contextlib.suppress(RunError):  # the first error takes precedence
                    results.write_failure(self.orders.out, point.round + 1, error)
                    if point.round and isinstance(error, RunError | SettingError):  # a later plan may be refused, too
                        self.save(point)
            raise

    def round(self, point: Checkpoint) -> Checkpoint | None:
        began = time.perf_counter()
        before = dict(self.engine.memory.visits) if self.coverage is not None else {}
        try:
            after, record = round_.step(self.setup, point, self)
        except round_.PlanRefusedError:
            return None
        number = after.round
        outcome = record.outcome
        if self.live is not None:
            self.took_place = replay.Round.of(record, after.state.packet)
        if self.orders.replay is not None:
            self.orders.replay.check(after.state.packet)
        failed = self.unchanged(number, outcome.receipts)
        self.check(after.state, number)
        state, score, kept = self.judge(after.state, number, after.tick, point.best)
        self.scored = (number, score)
        held = dict(self.engine.memory.held)
        visits = dict(+self.engine.memory.visits)
        known = len(record.view.sizes) if record.view.census is not None else 0
        reports = Counter(point.reports) + results.reports(self.experiment, record.plan, known)
        answers = revealed.together(point.answers, revealed.answered(record.plan, known))
        wall = time.perf_counter() - began
        priced = pricing.to_row(record.prices, self.setup.surveyed(self.experiment, number))
        refused = {str(receipt.device): receipt.refused for receipt in outcome.receipts if receipt.refused}
        info = dict(state.notes.get("info", {})) | ({"refused": refused} if refused else {}) | failed
        info |= {"late": list(record.late)} if record.late else {}
        hashed = text.digest(outcome.resolved)
        line = ledger.line(number, score, outcome.receipts, hashed, wall, info, priced, point.line)
        line = replace(line, **self.observed(record, state, after.tick, before, score is not None))
        updates = self.engine.limit.copy().known if self.engine.limit is not None else {}
        return Checkpoint(
            **(vars(after) | {"state": state}),
            memory=held,
            line=line,
            visits=visits,
            reports=reports,
            updates=updates,
            best=kept,
            answers=answers,
        )

    def observed(
        self, record: round_.Record, state: State, tick: int, before: Mapping[int, int], evaluated: bool
    ) -> dict[str, Any]:  # fmt: skip
        """Return the entries of a ledger line that some runs have: measurements, coverage, a backdoor's success."""
        measured = None
        backdoor = None
        if self.live is not None:
            measured = self.live.measured()
            trained = self.engine.memory.visits
            measured["untrained"] = [k for k in range(self.engine.park.devices) if not trained[k]]
        if evaluated and self.triggered is not None:
            backdoor = self.evaluate(state, record.view.round, tick, self.triggered).accuracy
        coverage = self.coverage.of(record.outcome, before) if self.coverage else None
        arrivals = [arrival.row() for arrival in record.arrivals] or None
        return {"measured": measured, "coverage": coverage, "backdoor": backdoor, "arrivals": arrivals}

    def carried_out(self, point: round_.Position, outcome: Outcome) -> None:
        """Log a round without a single result; raise an error if real devices keep failing."""
        number = point.round + 1
        if outcome.receipts and all(receipt.lost for receipt in outcome.receipts):
            self.all_lost(number, outcome.receipts)
        rules = [mixing.rule(at.mix, at.settings) for at in walk.mixes(outcome.resolved)]
        self.demands = any(rule.least > 1 or rule.asks for rule in rules)
        if self.demands and not self.warned and same(point.state.packet, outcome.packet):
            self.warned = True
            log.warning("round %d: %s, and the model is unchanged; logged once.", number, TOO_FEW)

    def judge(
        self, state: State, number: int, tick: int, kept: checkpoint.Best | None
    ) -> tuple[State, Score | None, checkpoint.Best | None]:
        """Evaluate a round's model if one is due; return the state, the score and the best model so far.

        The state is that of the best round where no later one was better for long enough (``evaluate.patience``).
        """
        wanted = number % self.experiment.evaluate.every == 0 or number == self.experiment.rounds
        wanted = wanted or self.method.over(state)
        score = self.evaluate(state, number, tick) if wanted else None
        if score is not None and not math.isfinite(score.loss):
            raise DivergedError(
                f"the loss of the global model is {score.loss} after round {number}. "
                "Lower work.lr; the last checkpoint is untouched."
            )
        model = state.packet["w"]
        if score is not None and not self.method.needs.personal:
            kept = checkpoint.better(kept, number, model, score, self.experiment, self.engine, self.method)
        if kept is not None and kept.ends(number, self.experiment) and kept.round < number:
            state = replace(state, packet={**state.packet, "w": kept.model.clone()})
            score = self.evaluate(state, number, tick)
        return state, score, kept

    def planned(self, view: View, plan: Node) -> None:
        """Count a round in the privacy loss before it trains; refuse it if it would exceed the budget of ε."""
        if self.engine.secret:
            privacy.begin_round(self.orders.out)
        trained = privacy.visits_begun(self.orders.out, dict(+self.engine.memory.visits))
        if not privacy.allows(self.method, self.orders.limits.epsilon, self.held, trained, plan):
            raise round_.PlanRefusedError
        if self.live is not None and privacy.by_visits(self.method):
            privacy.begin_visits(self.orders.out, plan)
        if not self.looked:
            self.look(plan, view.round)
        if self.first and view.round == 1:
            about = {"round": 1, "method": title(self.experiment.method.name), "plan": text.to_json(plan)}
            folder.write_json(self.orders.out / "plan.json", about)

    @property
    def held(self) -> list[privacy.Held]:
        """Each device's samples at a time, as the privacy accounting reads them."""
        park = self.engine.park
        return list(zip(park.holdings.tolist(), park.copies.tolist(), strict=True))

    def evaluate(self, state: State, number: int, tick: int, park: Park | None = None) -> Score:
        """Return the metrics of a global model, or of all personal models, on the experiment's evaluation data.

        With a ``park``, the model is evaluated on its test samples.
        """
        headline = self.experiment.evaluate.figure
        tune = None
        engine = self.engine
        if park is not None:
            headline = ACCURACY
            engine = tested_on(engine, park)
        if self.experiment.evaluate.finetune is not None:
            base = getattr(self.method.method, "work", self.experiment.work)
            settings = self.experiment.evaluate.finetune.over(base)
            rounds = self.experiment.rounds
            works = (settings.at(earlier, rounds) for earlier in range(number, 0, -1))
            work = next(
                work for work in works if work.rate > 0
            )  # a cosine schedule may end at 0, but none begins there
            tune = separate.Tuning(work, number, tick)
        if tune or self.method.needs.own or several(state.packet):
            return separate.evaluate(engine, state.packet, headline, state.cohorts, tune, self.method.needs.own)
        return evaluate(engine, state.packet["w"], self.method.objective, headline)

    def beside(self, state: State) -> dict[str, Any]:
        """Return the metrics of the shared model besides personal models, in simulations only."""
        own = self.method.needs.own
        headline = self.experiment.evaluate.figure
        others = bool(own) or self.experiment.evaluate.finetune is not None
        if self.live is not None or several(state.packet) or not others:
            return {}
        return results.of_shared(self.engine, state.packet["w"], headline, own)

    def all_lost(self, number: int, receipts: Sequence[Receipt]) -> None:
        """Log that every visit of a round was lost or refused; raise an error if real devices keep failing."""
        if self.live is not None:
            self.live.no_success(number)
        if not self.warned:
            self.warned = True
            rest = "is unchanged" if privacy.mechanism(self.method) is None else "gets the noise alone"
            text = "round %d: every visit was lost or refused, and the model %s; logged once.%s"
            log.warning(text, number, rest, refusal_of(receipts))

    def unchanged(self, number: int, receipts: Sequence[Receipt]) -> dict[str, int]:
        """Return the numbers of a round's visits that count as no change, or whose change is cut; {} without any.

        Only a simulation knows it: real devices do not state what could depend on their samples.

        Raises:
            DivergedError: training failed in every visit.
        """
        if self.live is not None or not privacy.on_devices(self.method):
            return {}
        mine = self.engine.unchanged
        trained = sum(not receipt.lost for receipt in receipts)
        parts = [json.loads(bytes(part)) for (part,) in self.engine.team.gather([json.dumps(vars(mine)).encode()])]
        mine.visits = mine.withdrawn = mine.cut = 0
        mine.why = mine.beyond = ""
        visits, withdrawn = (sum(part[name] for part in parts) for name in ("visits", "withdrawn"))
        why = next((part["why"] for part in parts if part["why"]), "")
        if withdrawn and not self.failing:
            self.failing = True
            many = names.count(withdrawn, "device")
            whose = "its crew" if withdrawn == 1 else "their crews"
            log.warning("round %d: %s withdrew from a secure sum, with %s; logged once: %s", number, many, whose, why)
        cut = sum(part["cut"] for part in parts)
        if cut and not self.cutting:
            self.cutting = True
            beyond = next(part["beyond"] for part in parts if part["beyond"])
            log.warning("round %d: updates of %d visits are cut; logged once, of one: %s", number, cut, beyond)
        found = {"cut": cut} if cut else {}
        if not visits:
            return found
        text = f"round {number}: training failed in {visits} of {trained} visits, which count as no change"
        if visits >= trained:
            raise DivergedError(f"{text}. {why}")
        if not self.failing:
            self.failing = True
            log.warning("%s; logged once. %s", text, why)
        return {"unchanged": visits, **found}

    def look(self, plan: Node, number: int) -> None:
        """Check that mini-batches of the first plan fit the data; log if the plan cannot keep all ranks busy."""
        self.looked = True
        if number == 1 and not self.method.short_batches:
            largest = max(walk.batch_sizes(plan), default=0)
            checks.batches_fit(self.experiment, self.engine.park, largest, self.engine.network)
        for doubt in checks.doubts(plan) if self.first else ():
            log.warning("%s", doubt)
        branches = walk.widest(plan)
        size = self.engine.team.size
        if self.first and branches < size:
            log.info("%d ranks, but this plan has parallel work for %d: the others are idle.", size, branches)

    def check(self, state: State, number: int) -> None:
        for name, value in state.packet.items():
            if not bool(torch.isfinite(value).all()):
                raise DivergedError(
                    f"the global packet '{name}' holds infinite or undefined numbers after round {number}. "
                    "Lower work.lr; the last checkpoint is untouched."
                )

    def write(self, point: Checkpoint, *, now: bool) -> None:
        """Write a checkpoint if one is due, then the ledger line."""
        if now or self.unrepeatable or time.monotonic() - self.saved > CHECKPOINT_S:
            self.save(point)
        if self.took_place is not None:
            replay.append(self.orders.out, self.took_place)
        number, score = self.scored
        if score is not None and number == point.round:
            name = self.experiment.evaluate.figure.name
            history.append(self.orders.out, number, name, self.engine.park.roster.numbers.tolist(), score)
        if point.line is not None:
            ledger.append(self.orders.out / "ledger.jsonl", point.line)
            self.report(point.line)

    def save(self, point: Checkpoint) -> None:
        """Write a checkpoint, and delete device memories to which no checkpoint refers."""
        folder.flush(self.orders.out / "ledger.jsonl")  # the lines before a checkpoint are on the disk before it
        place = self.orders.out / "checkpoint"
        self.engine.memory.settle(point.memory)
        checkpoint.save_to(place, point)
        self.engine.memory.sweep(checkpoint.memories(place))
        if self.live is not None:
            self.live.keep(checkpoint.named(place))
        self.saved = time.monotonic()

    def reached(self, point: Checkpoint) -> bool:
        return point.line is not None and self.orders.limits.reached(
            point.line, ledger.total(point.line), self.experiment.evaluate.figure
        )

    def over(self, point: Checkpoint) -> bool:
        """Return whether the model is final, or has not improved on held-out samples for as long as allowed."""
        waited = point.best is not None and point.best.waited(point.round, self.experiment.evaluate)
        return waited or self.method.over(point.state)

    def asked_to_stop(self) -> bool:
        """Return whether the user wants to stop, equally on every rank."""
        return any(bytes(part) == b"1" for (part,) in self.engine.team.gather([b"1" if self.interrupted() else b"0"]))

    def end(self, point: Checkpoint) -> None:
        """Evaluate the last model on every rank, unless this was just done; the first rank writes the results."""
        number, score = self.scored
        if score is None or number != point.round:
            score = self.evaluate(point.state, point.round, point.tick)
        one_model = not self.method.needs.separate
        shared = point
        if self.method.needs.own and one_model and self.live is None:
            # a device without a personal part receives the mean of the others'
            mean = separate.mean_part(self.engine, point.state.packet["w"])
            shared = replace(point, state=replace(point.state, packet={**point.state.packet, "w": mean}))
        beside = self.beside(shared.state) if one_model else {}
        models = decide.models(self.experiment, self.engine, self.method, shared) if one_model else []
        packet = point.state.packet
        cohorts = dict[int, int]()
        if several(packet):  # every rank sends the question to its share of the devices without a cohort
            cohorts = separate.cohorts_of(self.engine, packet, point.state.cohorts)
        measured = keeping.recalibrated(self.experiment, self.engine, packet["w"], score)
        if not self.first:
            return
        self.save(point)
        park = self.engine.park
        real = self.live is not None
        spent = privacy.rounds_begun(self.orders.out, point.round)
        trained = privacy.visits_begun(self.orders.out, point.visits)
        own_scale = isinstance(normaliser(self.experiment.data.normalise), DeviceNormaliser)
        stated = privacy.statement(self.method, spent, self.held, trained, own_scale=own_scale)
        evaluations = -(-point.round // self.experiment.evaluate.every)
        exact = revealed.statement(self.experiment, self.method, self.engine.task, point.answers, trained, evaluations)
        results.write_privacy(self.orders.out, self.experiment, point.reports, park, stated, exact, secret=real)
        results.write_memory(self.orders.out, self.engine.memory)
        more = (decide.about(models) if models else {}) | beside
        more |= {"seeded": results.seeded(self.experiment, park.dataset)}
        more |= {"cohorts": [cohorts[k] for k in sorted(cohorts)]} if cohorts else {}
        if point.best is not None and point.best.ends(point.round, self.experiment):
            more["returned"] = point.best.round
        if self.method.over(point.state) and point.round < self.experiment.rounds:
            more["over"] = True
        if (left := self.method.left(point.state)) is not None:
            more["gradient_norm"] = left
        if one_model and (charts := charted(self.engine, packet["w"])):
            more["charts"] = charts
        if found := factors(self.method.method, self.engine, point.state):
            more["factors"] = found
        results.write_evaluation(self.orders.out, self.experiment, point.round, score, more | measured)
        for model in models:
            results.write_model(self.orders.out, self.experiment, self.engine, model)
        if cohorts or (self.method.needs.own and one_model) or self.engine.task.apart:
            results.write_devices(self.orders.out, self.experiment, self.engine, point.round, packet, cohorts)


def same(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two packets have the same model."""
    return "w" in before and "w" in after and torch.equal(before["w"].cpu(), after["w"].cpu())


def refusal_of(receipts: Sequence[Receipt]) -> str:
    """Return the first reason for which a visit was refused as a sentence; "" if none was."""
    why = next((receipt.refused for receipt in receipts if receipt.refused), "")
    return f" {why.rstrip('.')}." if why else ""
