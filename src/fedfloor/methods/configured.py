"""A method with parts exchanged by configuration, and the server's step after each of its rounds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.machine import require_memory
from fedfloor.base.names import SPEC
from fedfloor.base.outside import load
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.methods.returned import checked
from fedfloor.parts import fitting, named, server
from fedfloor.parts.fitting import Choice
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.mixing import summable, weighting
from fedfloor.parts.mixing.mix import Equal, Mix
from fedfloor.parts.mixing.weighting import reweighted
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.selection import selection
from fedfloor.parts.selection.selection import Everyone, Selection
from fedfloor.parts.server import Server, Sgd
from fedfloor.parts.travel import chains, codecs
from fedfloor.parts.travel.path import PathPart
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import ARRIVED, CLOUD, KEEP, Node, Parallel, Probe, Select, Sequence, Train, Work, device
from fedfloor.plan.outcome import Outcome
from fedfloor.plan.questions import CENSUS, CLASSES, asked, covers, facts_of

VISIT_BYTES = 200  # least size of a visit's receipt
LARGE = 1000  # settings of at least this value are named if a plan is too long
WEIGHTS = "class_weights"  # key of a state's notes
MIX = "mix"  # key of a state's notes: settings of the mixing rule that change from round to round
MEET_AT_EDGES = (
    "Choose a method whose models meet at edges first, such as hierfavg or fedgs, or leave edge_travel and "
    "edge_travel_down out: models of devices are coded by method.travel."
)
MOMENTS = "server."  # prefix of the server's moments among a state's tensors


@dataclass(frozen=True)
class Parts:
    """The parts named by ``[method]`` or a method's own table; None: the method's own part.

    Args:
        objective: the objective that devices minimise.
        mix: the aggregation of models at the cloud.
        server: the cloud's step with the mixed model.
        selection: the policy that draws the devices available to the method in a round.
        edge_mix: the aggregation of models at edges.
        travel, travel_down: the text of the codecs of devices' uploads, and of the model on its way to devices.
        edge_travel, edge_travel_down: the same between edges and the cloud.
    """

    objective: Objective | None = None
    mix: Mix | None = None
    server: Server | None = None
    selection: Selection | None = None
    edge_mix: Mix | None = None
    travel: str | None = None
    travel_down: str | None = None
    edge_travel: str | None = None
    edge_travel_down: str | None = None

    def over(self, below: Parts) -> Parts:
        """Return these parts, with missing parts taken from ``below``."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return replace(below, **given)


class ConfiguredMethod(Method):
    """A method as executed by a run, with exchanged parts in its plans, and the server's step before ``absorb``.

    Args:
        name: the method's, for error messages.
        method: the method.
        parts: the exchanged parts.
    """

    def __init__(self, name: str, method: Method, parts: Parts) -> None:
        self.name = name
        self.method = method
        self.parts = parts
        if isinstance(parts.objective, weighting.PerSample):
            reweighted(method.objective, parts.objective, objectives.to_spec(method.objective)[0], name)
        self._check_codecs()
        fitting.check(self.choices)

    @property
    def path(self) -> tuple[PathPart, ...]:
        """The parts that a device's update passes on its way into the mean, in order."""
        every = (self.private_work, *chains.chain(self.parts.travel or ""), self.parts.mix)
        return tuple(part for part in every if part is not None)

    @property
    def choices(self) -> list[Choice]:
        """The method and its parts, with what they are and what they exclude: :mod:`fedfloor.parts.fitting`."""
        parts = self.parts
        chosen: list[tuple[str, object]] = []
        if parts.objective is not None:
            chosen.append((f"method.objective = '{objectives.to_spec(parts.objective)[0]}'", parts.objective))
        if parts.server is not None:
            chosen.append((f"method.server = '{named.to_spec(parts.server, server.SERVERS)[0]}'", parts.server))
        if parts.selection is not None:
            chosen.append(
                (f"method.selection = '{named.to_spec(parts.selection, selection.SELECTIONS)[0]}'", parts.selection)
            )
        for key, rule in (("mix", parts.mix), ("edge_mix", parts.edge_mix)):
            if rule is not None:
                chosen.append((f"method.{key} = '{mixing.to_spec(rule)[0]}'", rule))
        for key in ("travel", "travel_down", "edge_travel", "edge_travel_down"):
            for codec in chains.chain(getattr(parts, key) or ""):
                chosen.append((f"method.{key} = '{named.to_spec(codec, codecs.CODECS)[0]}'", codec))
        if self.private_work is not None:
            chosen.append(("work.sample_clip", self.private_work))
        made = [Choice(key, getattr(part, "traits", {}), getattr(part, "excludes", {})) for key, part in chosen]
        return [Choice(f"method '{self.name}'", self._traits()), *self._between(), *made]

    def _traits(self) -> dict[str, str]:
        """Return what the method is, as parts and settings exclude it."""
        needs = self.method.needs
        share = getattr(self.method, "fraction", 1.0)
        rule = self.parts.mix or getattr(self.method, "mix", None)
        noised = fitting.NOISED in getattr(rule, "traits", {})
        traits = {
            fitting.COHORTS: "which may have several models" if needs.cohorts else "",
            fitting.SEPARATE: "which aggregates no models" if needs.separate else "",
            fitting.CLOCK: "which does not wait" if needs.clock else "",
            fitting.SUMS: "whose updates are sums" if needs.sums else "",
            fitting.RECURS: "" if self.objective.descends or noised else "which adds up the same rows in each round",
            fitting.OBJECTIVE: "whose rounds depend on its own objective" if needs.objective else "",
            fitting.REMEMBERS: "whose devices keep tensors between visits already" if needs.remembers else "",
            fitting.PARTIAL: "" if needs.scopes == {"all"} else "whose rounds train only a part of the model",
            fitting.PERSONAL: "which has no single model" if needs.personal else "",
            fitting.DRAWS: f"which draws devices by fraction = {share}" if share != 1.0 else "",
            fitting.READS_ACCURACY: "whose mixing rule reads the devices' training accuracy"
            if getattr(rule, "reads_accuracy", False)
            else "",
            fitting.READS_SAMPLES: self._revealing(),
        }
        return {trait: which for trait, which in traits.items() if which}

    def _revealing(self) -> str:
        """Return what devices answer without noise or masks about single samples; "" for nothing."""
        for question in self.questions:
            facts = facts_of(question.what)
            if facts.reads == "samples":
                return f"whose devices answer '{facts.name}' one by one, which reveals {facts.reveals}"
        return ""

    def _between(self) -> list[Choice]:
        """Return the choice of codecs between the cloud and edges, if there are any."""
        if not (self.parts.edge_travel or self.parts.edge_travel_down):
            return []
        why = f"it has several models, or none that travels. {MEET_AT_EDGES}"
        return [Choice("method.edge_travel", excludes={fitting.COHORTS: why, fitting.SEPARATE: why})]

    @property
    def objective(self) -> Objective:
        goal = self.parts.objective
        own = self.method.objective
        if isinstance(goal, weighting.PerSample):
            return reweighted(own, goal, objectives.to_spec(own)[0], self.name)
        return goal or own

    @property
    def server(self) -> Server:
        return self.parts.server or self.method.server

    @property
    def short_batches(self) -> bool:
        own = getattr(self.method, "work", self.method)
        return bool(getattr(own, "short_batches", False))

    @property
    def built_in(self) -> bool:
        """Whether the method belongs to the package, not to the user."""
        return type(self.method).__module__.startswith("fedfloor.")

    @property
    def needs(self) -> Needs:
        """The method's needs; a method from outside the package crosses factories unless it declares otherwise."""
        needs = self.method.needs
        return needs if needs.crosses is not None else replace(needs, crosses=not self.built_in)

    @property
    def questions(self) -> tuple[Probe, ...]:
        """The only questions that rounds and set-up put to devices, without their devices."""
        rule = self.parts.mix
        own = getattr(self.method, "mix", None)
        needs = self.method.needs
        replaced = None if rule is None else getattr(own, "asks", None)
        asked = [question for question in needs.questions if replaced is None or question.what != replaced]
        if rule is not None and rule.asks is not None:
            asked.append(Probe((), rule.asks))
        if needs.census:
            asked.append(Probe((), CENSUS.name))
        if weighting.by_census(self.parts.objective) is not None:
            asked.append(Probe((), CLASSES.name))
        return tuple(question for number, question in enumerate(asked) if question not in asked[:number])

    @property
    def private_work(self) -> WorkSettings | None:
        """The work of devices that clip the gradients of samples (``work.sample_clip``); None for other methods."""
        work = getattr(self.method, "work", None)
        return work if isinstance(work, WorkSettings) and work.sample_clip is not None else None

    def setup(self, view: View) -> Node | None:
        node = self.method.setup(view)
        if node is not None:
            node = self._loaded(node)
            self._check_questions(node)
        if weighting.by_census(self.parts.objective) is None:
            return node
        probe = Probe(tuple(view.devices), CLASSES.name)
        if node is None:
            return probe
        same = any((other.what, other.devices) == (probe.what, probe.devices) for other in walk.probes(node))
        return node if same else Sequence((probe, node))

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        state = checked(self.method.init(view, answers, rng), view.start, self.name, "init")
        notes = {**state.notes, "trained": view.trained}
        goal = weighting.by_census(self.parts.objective)
        if goal is not None and answers:
            notes[WEIGHTS] = weighting.from_counts(weighting.counted(answers), goal.smoothing, goal.cap)
        return replace(state, notes=notes)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        if self.parts.selection is not None:
            view = replace(view, invited=selection.drawn(self.parts.selection, view.devices, view.sizes, rng))
        node = self._loaded(self.method.plan(state, view, rng))
        self._check_plan(node)
        node = self._minimising(node, tuple(state.notes.get(WEIGHTS, ())))
        if self.parts.travel or self.parts.travel_down:
            node = self._coded(node)
        if self.parts.mix is not None and walk.rates(node):  # a round without training aggregates nothing
            node = self._mixed(node, self.parts.mix)
            rule = self.parts.mix.planned(node, self.parts.selection, view.devices, len(view.sizes))
            if MIX in state.notes:
                rule = replace(rule, **state.notes[MIX])  # type: ignore[type-var]
            node = node if rule == self.parts.mix else self._mixed(node, rule)
        if self.parts.edge_mix is not None and walk.rates(node):
            node = self._mixed(node, self.parts.edge_mix, "edge")
        if self.parts.travel or self.parts.travel_down:
            summable.check(node, replace(view, invited=None).factories)
        if (self.parts.edge_travel or self.parts.edge_travel_down) and walk.rates(node):
            node = self._coded_edges(node)
        self._check_questions(node)
        self._check_visits(node)
        return node

    def own_plan(self, before: View, view: View, answers: Answers, weights: tuple[float, ...]) -> Node:
        """Return the plan of a round by the first state: its work is what does not depend on earlier rounds.

        Args:
            before, view: a park's facts before the first round and in this one.
            answers: the answers to the questions of :meth:`setup`.
            weights: class weights from the census; () without such weights.

        Raises:
            SettingError: the method makes no plan for such a park.
        """
        own = getattr(self.method, "work", None)
        rng = np.random.default_rng(0)
        other = self.needs.network or self.needs.clock  # these decide on devices, not on their work
        if other and isinstance(own, WorkSettings):
            node: Node = Train(device(0), own.at(view.round, view.rounds, self.method.objective))
        else:
            node = self.method.plan(self.method.init(before, answers, rng), view, rng)  # it imports nothing by name
        node = self._minimising(node, weights)
        return self._coded(node) if self.parts.travel or self.parts.travel_down else node

    def _minimising(self, node: Node, weights: tuple[float, ...]) -> Node:
        """Return a plan with the exchanged objective in place of the method's own.

        Args:
            weights: class weights from the census; () without such weights.
        """
        goal = self.parts.objective
        if goal is None:
            return node
        if weights and isinstance(goal, weighting.PerSample):
            goal = weighting.settled(goal, weights)
        name, settings = objectives.to_spec(goal)
        own = objectives.to_spec(self.method.objective)  # any other objective serves a purpose of the method

        def changed(work: Work) -> Work:
            if work.objective != own[0]:
                return work
            if isinstance(goal, weighting.PerSample):
                own_objective = objectives.objective(work.objective, work.settings)
                joined, about = objectives.to_spec(reweighted(own_objective, goal, work.objective, self.name))
                return replace(work, objective=joined, settings=about)
            if name == own[0] and dict(work.settings) != own[1]:
                raise SettingError(
                    f"method.objective = '{name}' with method '{self.name}': it is the method's own, which sets it "
                    f"from round to round. Leave it out; its settings are in [methods.{self.name}]."
                )
            return replace(work, objective=name, settings=settings)

        return walk.with_work(node, changed)

    @property
    def notes_plans(self) -> bool:
        """Whether a plan depends on the plans of earlier rounds."""
        return type(self.method).noted is not Method.noted

    def noted(self, state: State, plan: Node) -> State:
        return self.method.noted(state, plan)

    def over(self, state: State) -> bool:
        return self.method.over(state)

    def left(self, state: State) -> float | None:
        return self.method.left(state)

    def absorb(self, state: State, outcome: Outcome) -> State:
        """Return the next state: the server steps, unless no model returned, then the method absorbs the round."""
        moments = {
            name.removeprefix(MOMENTS): tensor for name, tensor in state.tensors.items() if name.startswith(MOMENTS)
        }
        own = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(MOMENTS)}
        if self.server != Sgd() and not outcome.packet["w"].equal(state.packet["w"]):
            trained = int(state.notes["trained"])
            model = outcome.packet["w"].clone()
            start = state.packet["w"][:trained]
            mean = model[:trained].clone()
            model[:trained], moments = server.step(self.server, start, mean, moments, outcome.rng)
            outcome = replace(outcome, packet={**outcome.packet, "w": model})  # other tensors take the mean
        after = checked(self.method.absorb(replace(state, tensors=own), outcome), outcome.packet, self.name, "absorb")
        kept = {f"{MOMENTS}{name}": value for name, value in moments.items()}
        notes = {**after.notes, **{key: state.notes[key] for key in ("trained", WEIGHTS, MIX) if key in state.notes}}
        if outcome.mix:
            notes[MIX] = dict(outcome.mix)
            notes["info"] = {**after.notes.get("info", {}), **outcome.mix}
        return State(after.packet, notes, {**after.tensors, **kept})

    def _mixed(self, node: Node, mix: Mix, kind: str = "cloud") -> Node:
        (name, settings) = mixing.to_spec(mix)
        key = "method.mix" if kind == "cloud" else "method.edge_mix"
        if mix.asks is not None and kind == "edge":
            raise SettingError(f"{key} = '{name}': it reads answers that only the cloud has. Use it as method.mix.")
        equally = self.objective.counts_equally and self.method.objective.counts_equally  # as the packet requires
        if equally and not mix.whole and mix != Equal():
            raise SettingError(
                f"{key} = '{name}' with method '{self.name}': the vectors of its devices beside the model are averaged "
                f"equally, but this rule would weigh them as it weighs the models. Leave {key} out, or choose "
                "'equal' or a rule that reads every model."
            )
        changed, meeting = walk.with_mix(
            node, name, settings, mix.asks, lambda rule, own: mixing.rule(rule, own).asks, kind
        )
        if not meeting:
            raise SettingError(
                f"{key} = '{name}' with method '{self.name}': its rounds aggregate no models at the {kind}. "
                f"Leave {key} out, or choose another method."
            )
        for branches in meeting:  # the engine checks too, but not for a drawing
            mixing.check(mix, name, branches)
        return changed

    def _check_codecs(self) -> None:
        """Check that codecs for changes are only on the way up from devices, and that a rule's ``leave`` is called."""
        rule = self.parts.mix
        if rule is not None and not rule.whole and not chains.secure(self.parts.travel or ""):
            adds = rule.privacy is not None and rule.privacy.kind == "sums"
            if adds or type(rule).leave is not PathPart.leave:
                raise SettingError(
                    f"method.mix = '{mixing.to_spec(rule)[0]}': devices call its leave, and add its noise, in secure "
                    "sums alone. Set method.travel = 'secure-sum', or write a codec."
                )
        if dropping := [codec for codec in chains.chain(self.parts.travel_down or "") if codec.changes]:
            name = named.to_spec(dropping[0], codecs.CODECS)[0]
            raise SettingError(
                f"method.travel_down = '{name}': it encodes the change of a model, which only a device with the "
                "previous version can use, and devices that were not visited have older ones. Choose 'float16', "
                "'bfloat16' or 'int8', which encode the model itself."
            )
        between = self.parts.edge_travel, self.parts.edge_travel_down
        if dropping := [one for text in between for one in chains.chain(text or "") if one.changes]:
            name = named.to_spec(dropping[0], codecs.CODECS)[0]
            raise SettingError(
                f"method.edge_travel = '{name}': only devices can use it, which keep its error or mask it. Choose "
                "'float16', 'bfloat16' or 'int8'."
            )

    def _check_questions(self, node: Node) -> None:
        """Check that a plan puts only questions to devices that the method's needs declare.

        Raises:
            SettingError: a question is not declared, so that devices would not answer it.
        """
        declared = self.questions
        for question in asked(node):
            if not any(covers(one, question) for one in declared):
                settings = f", settings={dict(question.settings)}" if question.settings else ""
                raise SettingError(
                    f"method '{self.name}' asks devices for '{question.what}', which its needs do not declare, and "
                    f'devices answer only declared questions: add questions=(Probe((), "{question.what}"{settings}),) '
                    "to its Needs."
                )

    def _coded(self, node: Node) -> Node:
        """Return the plan with the codecs in its visits to devices."""

        def coded(at: Node) -> Node:
            if isinstance(at, Select) or (isinstance(at, Train) and at.site != CLOUD):
                return replace(at, work=self.coded(at.work))
            return at

        return walk.changed(node, coded)

    def _coded_edges(self, node: Node) -> Node:
        """Return the plan with the codecs between the cloud and edges."""
        beside = [kind for kind in (self.objective, self.method.objective) if kind.travels]
        if beside or walk.scopes(node) != {"all"}:
            raise self._no_edge_travel("devices send only a part of the model, or tensors beside it")

        def coded(at: Node) -> Node:
            if not isinstance(at, Parallel) or at.at != CLOUD or at.mix == KEEP:
                return at
            up = self.parts.edge_travel or ""
            down = self.parts.edge_travel_down or ""
            return replace(at, travel=up, travel_down=down) if all(map(walk.edge_of, at.children)) else at

        made = walk.changed(node, coded)
        if made == node:
            raise self._no_edge_travel("no models travel between the cloud and edges that aggregate")
        return made

    def _no_edge_travel(self, why: str) -> SettingError:
        return SettingError(
            f"method.edge_travel with method '{self.name}': {why}. {MEET_AT_EDGES}", key="method.edge_travel"
        )

    def coded(self, work: Work) -> Work:
        """Return a device's work with the codecs; unchanged if its visits send nothing."""
        if work.sends in ("nothing", ARRIVED):
            return work
        return replace(
            work, travel=self.parts.travel or "", travel_down=work.travel_down or self.parts.travel_down or ""
        )

    def _loaded(self, node: Node) -> Node:
        if not self.built_in:
            walk.fold(node, lambda at, _: [load(spec, key) for key, spec in walk.names(at) if SPEC.fullmatch(spec)])
        return node

    def _check_plan(self, node: Node) -> None:
        """Check that a selection has devices to visit, and that the receipts of a plan's visits fit into memory."""
        at_cloud = bool(walk.visits(node, cloud=True)[-1]) and not walk.devices(node)
        if self.parts.selection not in (None, Everyone()) and at_cloud:
            raise SettingError(
                f"method.selection with method '{self.name}': its rounds visit no devices. Leave method.selection out.",
                key="method.selection",
            )
        visits = walk.count_visits(node)
        sizes = {key: value for key, value in vars(self.method).items() if type(value) is int and value >= LARGE}
        large = "".join(f", with {key} = {value}" for key, value in sizes.items())
        label = f"method '{self.name}' plans {visits:,} visits in a round{large}"
        require_memory(label, VISIT_BYTES * visits, "Set smaller numbers.")

    def _check_visits(self, node: Node) -> None:
        goals: dict[str, Work] = {}
        walk.with_work(
            node,
            lambda work: goals.setdefault(
                f"{work.objective} {work.steps} {work.beyond_sgd} {work.sample_clip} {work.sample_noise}", work
            ),
        )
        other = next((work for work in goals.values() if work.beyond_sgd), None)
        if other is not None:
            for meeting in walk.mixes(node):
                if mixing.rule(meeting.mix, meeting.settings).assumes_sgd:
                    raise self._needs_sgd(f"mixing rule '{meeting.mix}'", other)
        private = None if self.private_work is None else self.private_work.at(1, 1)
        for work in goals.values():
            goal = objectives.objective(work.objective, work.settings)
            if private is not None and (work.sample_clip, work.sample_noise) != (
                private.sample_clip,
                private.sample_noise,
            ):
                raise SettingError(
                    f"work.sample_clip with method '{self.name}': some of its visits do not clip the gradients of "
                    "samples, or have other noise. Build their work with its setting 'work', or leave sample_clip out."
                )
            if work.steps is not None and work.steps < goal.least_steps:
                raise SettingError(
                    f"objective '{work.objective}' with visits of work.steps = {work.steps}: it needs visits of at "
                    f"least {goal.least_steps} mini-batches. Set work.steps or work.epochs, or another objective."
                )
            if goal.travels and any(part.privacy and part.privacy.kind == "sums" for part in self.path):
                raise SettingError(
                    f"method '{self.name}': its devices send '{min(goal.travels)}' beside the model, without the noise "
                    "of their updates. Choose a method or an objective that sends the model alone."
                )
            if goal.assumes_sgd and work.beyond_sgd:
                raise self._needs_sgd(f"objective '{work.objective}'", work)
        parts = sorted({work.trains for work in walk.works(node) if work.borrows})  # an own part stays
        if parts and self.server != Sgd():
            raise SettingError(
                f"method.server with method '{self.name}': a round trains only part of the model (work.trains = "
                f"'{parts[0]}'), and the server's momentum or rate would move the rest. Leave method.server out: the "
                "mixed model is then the next one.",
                key="method.server",
            )

    def _needs_sgd(self, part: str, work: Work) -> SettingError:
        return SettingError(
            f"method '{self.name}': its {part} reads the change of a visit as the rate times a sum of gradients, which "
            f"it is not with {work.beyond_sgd}. Leave that setting out, or choose another {part.rpartition(' ')[0]}."
        )
