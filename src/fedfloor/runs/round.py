"""One round: planned by a method, resolved, priced, carried out by a carrier, and absorbed by the method.

:func:`step` is the only place where these follow each other. The loop of a run calls it with an engine that trains, a
forecast with a carrier that only makes the choices; what else happens around a round (ledger, evaluation, privacy
loss) observes it: :class:`Observer`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.chance import generator, secret
from fedfloor.base.errors import SettingError
from fedfloor.engine import ranks
from fedfloor.engine.engine import Engine
from fedfloor.engine.executor import executor_of
from fedfloor.engine.team import Team
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import Method, Resources, State, View
from fedfloor.network.arrivals import Flights
from fedfloor.network.price import Closing, Price
from fedfloor.network.sites import Sites
from fedfloor.park.normalise import steps
from fedfloor.park.park import Park
from fedfloor.plan import schedule, visit_order
from fedfloor.plan.closing import Close
from fedfloor.plan.flow import Arrival, VisitFlow
from fedfloor.plan.nodes import Node, Probe
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.plan.schedule import NOTHING, Answers, Foreknown, Key, Packet, RoundContext
from fedfloor.runs import pricing
from fedfloor.runs.closing import ClosedRound, closed
from fedfloor.runs.pricing import PriceModel
from fedfloor.runs.resolving import ResolvedPlan, questions_first, resolved

Versions = Mapping[int, Tensor]  # number of a round → the global model after it


class Carrier(Protocol):
    """The contract of a carrier, which carries out the plans of rounds."""

    @property
    def trains(self) -> bool:
        """Whether its outcomes have packets, which the method absorbs."""
        ...

    @property
    def secret(self) -> bool:
        """Whether random draws of plans come from the operating system instead of the seed."""
        ...

    @property
    def foresees(self) -> bool:
        """Whether choices of devices can be made before the round, as no device is absent."""
        ...

    @property
    def visits(self) -> Mapping[int, int]:
        """The number of each device's local updates so far."""
        ...

    @property
    def team(self) -> Team | None:
        """The ranks that make choices together."""
        ...

    def context(self, number: int) -> RoundContext:
        """Return the facts of a round that a walk without training needs."""
        ...

    def ask(self, node: Probe, packet: Packet, tick: int) -> Answers:
        """Put a question to devices."""
        ...

    def census(self, tick: int) -> NDArray[np.int64]:
        """Return the class counts of all devices' samples at a tick, int64 [K, F]."""
        ...

    def stand_on(self, sites: Sites) -> None:
        """Move the devices to other places on the network."""
        ...

    def run(
        self, plan: Node, packet: Packet, number: int, tick: int, versions: Versions, known: Foreknown = NOTHING
    ) -> Outcome:
        """Carry out a round's plan, which starts with a packet at a tick; ``known`` is not asked and chosen again."""
        ...


Departure = tuple[int, int, int, float]  # its number, device, version of the model, time in s


class RealVisits(Protocol):
    """The contract of the visits of real machines, whose results arrive in the order that wall time dictates."""

    def begin(self, view: View, point: Position, plan: Callable[[View], Node]) -> None:
        """Note the round after a point, with whose model visits depart from now on, and how it is planned."""
        ...

    def flights(self, flow: VisitFlow) -> Flights:
        """Return the rounds of a flow of visits."""
        ...

    def closed(self, made: ResolvedPlan, close: Close) -> ClosedRound:
        """Let the visits of a plan depart; return the plan without those that are late."""
        ...

    def arrivals(self, number: int) -> tuple[Arrival, ...]:
        """Return the results of the present round in the order of their arrival."""
        ...

    def began_s(self, number: int) -> float:
        """Return the time at which the last result before the present round arrived, s."""
        ...

    def on_their_way(self) -> tuple[Departure, ...]:
        """Return the visits whose results have not counted in a round yet, in the order of their departure."""
        ...


class RecordedPlans(Protocol):
    """The contract of the rounds of an earlier run, which are carried out again."""

    def plan(self, number: int) -> Node:
        """Return the resolved plan of a round."""
        ...

    def needed(self, number: int) -> set[int]:
        """Return the earlier models from which visits of rounds after ``number`` start."""
        ...

    def late(self, number: int) -> tuple[int, ...]:
        """Return the devices whose results came after a round's end."""
        ...

    def arrivals(self, number: int) -> tuple[Arrival, ...]:
        """Return the results of a round in the order of their arrival, unless all were waited for."""
        ...

    def began_s(self, number: int) -> float:
        """Return the time at which the last result before a round arrived, s."""
        ...


@dataclass(frozen=True)
class TrainingCarrier:
    """The carrier that trains with an engine; every rank calls it with the same arguments."""

    engine: Engine
    trains: bool = True

    @property
    def secret(self) -> bool:
        """Whether random draws of plans come from the operating system."""
        return self.engine.secret

    @property
    def foresees(self) -> bool:
        """Whether the devices are simulated."""
        return not executor_of(self.engine).at_once

    @property
    def visits(self) -> Mapping[int, int]:
        """The number of each device's local updates so far."""
        return self.engine.memory.visits

    @property
    def team(self) -> Team:
        """The engine's ranks."""
        return self.engine.team

    def context(self, number: int) -> RoundContext:
        """Return the facts of a round, with the visits that are lost."""
        return ranks.context(self.engine, number)

    def ask(self, node: Probe, packet: Packet, tick: int) -> Answers:
        """Put a question to the engine's devices."""
        return ranks.asked(self.engine, node, packet, tick)

    def census(self, tick: int) -> NDArray[np.int64]:
        """Return the census that devices report at a tick."""
        return executor_of(self.engine).census(self.engine, range(self.engine.park.devices), tick)

    def stand_on(self, sites: Sites) -> None:
        """Move the engine's devices, and the radio uplink that follows from their places."""
        self.engine.stand_on(sites)

    def run(
        self, plan: Node, packet: Packet, number: int, tick: int, versions: Versions, known: Foreknown = NOTHING
    ) -> Outcome:
        """Train, and record the lengths of updates if these are limited."""
        outcome = ranks.run(self.engine, plan, packet, round_number=number, tick=tick, versions=versions, known=known)
        if self.engine.limit is not None:
            self.engine.limit.note(outcome.resolved, outcome.receipts)
        return outcome


@dataclass(eq=False)
class Setup:
    """The facts that the rounds of a run have in common.

    Args:
        method: the method that plans and absorbs.
        carrier: the carrier of its plans.
        rounds: the number of rounds in the whole schedule.
        start: the initial global packet.
        trained, layout: of the network, as in :class:`~fedfloor.methods.contract.View`.
        price_model: the price model of rounds; None: rounds have no price.
        priced: whether rounds are priced; otherwise the price model only serves views.
        close: the end of rounds before their last visit; None: they wait for all.
        loss_chance: the probability that a visit is lost, which decides with ``close`` what arrives.
        differing: fields of views that differ from the park's, such as ``invited``.
        real: the visits of real machines that arrive in their own time; None: simulated time.
        recorded: the rounds of an earlier run, in place of the method's plans.
    """

    method: Method
    park: Park
    carrier: Carrier
    rounds: int
    seed: int
    start: Packet
    trained: int = 0
    layout: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    price_model: PriceModel | None = None
    priced: bool = True
    close: Close | None = None
    loss_chance: float = 0.0
    differing: Mapping[str, Any] = field(default_factory=dict)
    real: RealVisits | None = None
    recorded: RecordedPlans | None = None
    _flight: Flights | None = None

    @cached_property
    def resources(self) -> Resources | None:
        """The devices' resources on the network, for methods that need them."""
        known = self.price_model is not None and self.method.needs.network
        return self.price_model.resources(self.start) if known and self.price_model is not None else None

    def stand_at(self, tick: int) -> None:
        """Move devices to the factories to which they belong at a tick."""
        # before a view, which states the factories of devices
        if self.price_model is None or self.park.mobility is None:
            return
        moved = self.price_model.at(self.park.factory_at(tick))
        if moved is not self.price_model:
            self.price_model = moved
            self.__dict__.pop("resources", None)
            self.carrier.stand_on(moved.sites)

    def view(self, number: int, tick: int = 0, receipts: tuple[Receipt, ...] = ()) -> View:
        """Return a method's view of a round (0: the set-up) that begins at a tick."""
        park = self.park
        census = self.carrier.census(tick) if self.method.needs.census_now(number) else None
        arrivals = (lambda flow: self.flight(flow).round(number).arrivals) if self.method.needs.clock else None
        view = View(
            number,
            self.rounds,
            park.sizes,
            park.factory_at(tick),
            self.start,
            receipts,
            self.trained,
            self.layout,
            resources=self.resources,
            census=census,
            held=park.holdings,
            sensors=park.dataset.inputs.columns,
            arrivals=arrivals,
        )
        return replace(view, **self.differing) if self.differing else view

    def flight(self, flow: VisitFlow) -> Flights:
        """Return the rounds of a flow of visits; a run has a single flow.

        Raises:
            SettingError: the flow is not possible in the park or on its network.
        """
        if self._flight is None and self.real is not None:
            self._flight = self.real.flights(flow)
        elif self._flight is None:
            self._flight = pricing.flight(flow, self.park, self.seed, self.price_model, self.start)
        elif not same_flow(self._flight.flow, flow):
            raise SettingError(
                "the devices that take part in a federation that does not wait, their work and the number of visits "
                "at once must be the same in all rounds. Give one work for all rounds."
            )
        return self._flight

    def resolved(self, plan: Node, point: Position) -> ResolvedPlan:
        """Return the plan of the round after a point with all choices made, as far as they can be made before it."""
        carrier = self.carrier
        packet = point.state.packet
        tick = point.tick
        # a real device may be absent at the moment of the choice
        if not carrier.foresees:
            return ResolvedPlan(plan, None)
        if not visit_order.count_selects(plan) and self.close is None:
            return ResolvedPlan(plan, plan)
        first = questions_first(plan)
        # a later question is answered by a model that is trained by then
        if first is None:
            return ResolvedPlan(plan, None)
        answers = tuple(carrier.ask(question, packet, tick) for question in first)
        context = carrier.context(point.round + 1)
        trained = Counter(carrier.visits)
        made = resolved(plan, self.park, context, tick, trained, Foreknown((), answers), carrier.team)
        return ResolvedPlan(plan, made.resolved, Foreknown(made.chosen, answers), tuple(made.receipts))

    def closed(self, view: View, made: ResolvedPlan, point: Position) -> ClosedRound:
        """Return a round's plan without the visits that are late."""
        if self.recorded is not None:
            return ClosedRound(made, self.recorded.late(view.round))
        if self.close is None:
            return ClosedRound(made)
        if self.real is not None:
            return self.real.closed(made, self.close)
        if self.price_model is None and self.close.deadline_s is not None:
            raise SettingError("round.close: deadline_s has no meaning without a network. Name one, or set first.")
        clock = self.price_model or pricing.StepClock(pricing.StepSites.of(self.park))

        def price(whole: Node, closing: Closing | None) -> Price:
            facts = (view.round, point.tick, made.numbers, point.holders)
            return clock.price(whole, point.state.packet, *facts, closing=closing)

        key = Key(self.seed, view.round, point.tick, -1, 0)
        return closed(made, self.close, self.park, key, self.loss_chance, price)

    def prices(
        self, view: View, plan: Node, point: Position, numbers: Sequence[int] | None, paid: Price | None = None
    ) -> tuple[Price, ...]:  # fmt: skip
        """Return the prices of the initial questions (in round 1) and of the round; () without a network.

        Args:
            plan: the resolved plan.
            numbers: the number of each visit among its device's visits; None: as in the walk of the plan.
            paid: the price of the round, if it is known.
        """
        if self.price_model is None or not self.priced:
            return ()
        if self.method.needs.clock and (real := self.recorded or self.real) is not None:
            began_s = real.began_s(view.round)
            arrivals = real.arrivals(view.round)
            return (self.price_model.arrived(plan, point.state.packet, view.round, arrivals, began_s),)
        if self._flight is not None:
            flown = self._flight.round(view.round).price
            return () if flown is None else (flown,)
        questions = self.method.setup(replace(view, round=0)) if view.round == 1 else None
        before = () if questions is None else (self.price_model.price(questions, self.start, 0, 0),)
        holders = before[-1].holders if before else point.holders
        if paid is not None:
            return (*before, paid)
        paid = self.price_model.price(plan, point.state.packet, view.round, point.tick, numbers, holders)
        return (*before, paid)

    def arrivals(self, number: int) -> tuple[Arrival, ...]:
        """Return the results of a round in the order of their arrival, unless its devices are waited for."""
        if (real := self.recorded or self.real) is not None:
            return real.arrivals(number)
        return self._flight.round(number).arrivals if self._flight is not None else ()

    def needed(self, versions: Versions, number: int) -> Versions:
        """Return the earlier models from which visits on their way after a round have started."""
        needed = frozenset[int]() if self._flight is None else self._flight.round(number).needed
        needed = needed if self.recorded is None else frozenset(self.recorded.needed(number))
        return {version: versions[version] for version in sorted(needed) if version in versions}

    def surveyed(self, experiment: Experiment, number: int) -> Price | None:
        """Return the price of the normalisation's surveys, which is part of round 1; None without surveys."""
        if self.price_model is None or number != 1:
            return None
        return self.price_model.survey(steps(self.park, experiment.data.normalise), self.start)


def training(
    method: Method,
    engine: Engine,
    rounds: int,
    price_model: PriceModel | None = None,
    start: Mapping[str, Tensor] | None = None,
    **differing: Any,
) -> Setup:
    """Return the setup of rounds that an engine carries out; ``start``: by default its network's present model."""
    network = engine.network
    start = {"w": network.flat.clone().cpu()} if start is None else start
    carrier = TrainingCarrier(engine)
    facts = (network.trained, network.layout)
    chance = engine.loss_chance
    shared = (method, engine.park, carrier, rounds, engine.seed, start)
    return Setup(*shared, *facts, price_model, loss_chance=chance, differing=differing)


@dataclass(frozen=True, kw_only=True)
class Position:
    """The state of a run between two rounds.

    Attributes:
        round: the number of the last finished round.
        tick: the park's clock.
        clock_s: the time since the beginning of the run; s on the network, or mini-batches without one if rounds end
            early. Real machines have their own.
        state: the method's state.
        receipts: the receipts of the last round's visits.
        holders: the devices with the current frozen part of the model, if rounds are priced.
        versions: number of a round → the global model after it, if visits that started from it are on their way.
        departures: the visits on their way on real machines, in the order of their departure.
    """

    round: int = 0
    tick: int = 0
    clock_s: float = 0.0
    state: State
    receipts: tuple[Receipt, ...] = ()
    holders: frozenset[int] = frozenset()
    versions: Versions = field(default_factory=dict)
    departures: tuple[Departure, ...] = ()


@dataclass(frozen=True)
class Record:
    """What a round was: the method's view and plan, the outcome, and the prices (of initial questions, too).

    Attributes:
        late: the devices whose results would have come after the round's end.
        arrivals: the results of the round in the order of their arrival, of methods that do not wait, and of rounds
            that end early.
    """

    view: View
    plan: Node
    outcome: Outcome
    prices: tuple[Price, ...]
    late: tuple[int, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


class PlanRefusedError(Exception):
    """An observer's refusal of a plan, which is then not carried out."""


class Observer:
    """The contract of an observer of rounds; by default it does nothing."""

    def planned(self, view: View, plan: Node) -> None:
        """Note a plan before it is carried out.

        Raises:
            PlanRefusedError: the plan must not be carried out.
        """

    def carried_out(self, point: Position, outcome: Outcome) -> None:
        """Note a plan's outcome before it is priced and absorbed."""


def same_flow(one: VisitFlow, other: VisitFlow) -> bool:
    """Return whether two flows have the same times; learning rates do not matter."""
    first, second = (replace(flow, work=replace(flow.work, rate=0.0, settings={})) for flow in (one, other))
    return first == second


def planned(setup: Setup, point: Position) -> tuple[View, Node]:
    """Return a method's view of the round after a point, and its plan."""
    number = point.round + 1
    setup.stand_at(point.tick)
    view = setup.view(number, point.tick, point.receipts)

    def plan(seen: View) -> Node:
        rng = secret() if setup.carrier.secret else generator(setup.seed, "plan", seen.round)
        return setup.method.plan(point.state, seen, rng)

    if setup.recorded is not None:
        return view, setup.recorded.plan(number)
    if setup.real is not None:
        setup.real.begin(view, point, plan)
    return view, plan(view)


def step(setup: Setup, point: Position, observer: Observer | None = None) -> tuple[Position, Record]:
    """Carry out the round after a point; return the next point and the round's record.

    The round has a price before anything is trained, unless the devices are real or its choices depend on training.

    Raises:
        PlanRefusedError: the observer refuses the plan; nothing is trained.
    """
    observer = observer or Observer()
    view, plan = planned(setup, point)
    observer.planned(view, plan)
    # Time comes first: who is chosen, who is late and what it costs is known before anything is trained
    round_ = setup.closed(view, setup.resolved(plan, point), point)
    made = round_.made
    prices = () if made.whole is None else setup.prices(view, made.whole, point, made.numbers, round_.price)
    versions = {**point.versions, point.round: point.state.packet["w"]} if setup.method.needs.clock else {}
    # The plan is carried out
    outcome = setup.carrier.run(made.plan, point.state.packet, view.round, point.tick, versions, made.known)
    outcome = replace(outcome, answers=schedule.merged([*made.known.answers, outcome.answers]))
    observer.carried_out(point, outcome)
    # … or afterwards, if choices depended on training or on who was there
    if made.whole is None:
        numbers = [receipt.visit for receipt in outcome.receipts] if setup.carrier.trains else None
        prices = setup.prices(view, outcome.resolved, point, numbers)
    # The method learns what came of its plan
    if setup.carrier.trains:
        outcome = pricing.stamped(outcome, prices[-1] if prices else None)
        state = setup.method.absorb(point.state, outcome)
    else:
        state = setup.method.noted(point.state, outcome.resolved)
    began_s = point.clock_s + sum(price.seconds for price in prices[:-1])  # after the initial questions
    arrivals = tuple(one.later(began_s) for one in round_.arrivals) or setup.arrivals(view.round)
    took_s = prices[-1].seconds if prices else round_.seconds
    after = Position(
        round=view.round,
        tick=point.tick + outcome.ticks,
        clock_s=began_s + took_s,
        state=state,
        receipts=outcome.receipts if setup.carrier.trains else (),
        holders=prices[-1].holders if prices else frozenset(),
        versions=setup.needed(versions, view.round),
        departures=setup.real.on_their_way() if setup.real is not None else (),
    )
    return after, Record(view, plan, outcome, prices, round_.late, arrivals)
