"""Checks before the first round: ranks with equal experiments, and mini-batches that fit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from fedfloor.base.chance import generator
from fedfloor.base.checking import toml_text
from fedfloor.base.errors import SettingError
from fedfloor.base.machine import require_memory
from fedfloor.config import resolved
from fedfloor.engine import local_update, steps
from fedfloor.engine.engine import Engine
from fedfloor.engine.executor import AttackingExecutor
from fedfloor.engine.place import Placement
from fedfloor.engine.team import Team
from fedfloor.experiment import Experiment
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.models.network import Network
from fedfloor.park.normalise import Surveyed, normaliser
from fedfloor.park.park import Park
from fedfloor.parts import fitting
from fedfloor.parts.attacks import Attackers
from fedfloor.parts.fitting import Choice
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.mixing.private import STATISTICS
from fedfloor.parts.objectives.objective import Objective
from fedfloor.parts.objectives.registry import to_spec
from fedfloor.parts.travel.chains import chain
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel
from fedfloor.plan.questions import CENSUS
from fedfloor.runs import folder, privacy
from fedfloor.runs.checkpoint import Checkpoint
from fedfloor.runs.orders import Limits
from fedfloor.tasks.figures import ALWAYS, fits, named, of_task

FLOAT_BYTES = 4  # bytes of a value of a sample in training


def agree(
    team: Team, experiment: Experiment, park: Park, point: Checkpoint | None, start: dict[str, torch.Tensor]
) -> None:
    """Raise an error if ranks differ in experiment, versions, checkpoint or initial model, as hosts' files may."""
    plain = replace(  # the data have a digest, and so has the first model
        experiment,
        provenance={},
        data=replace(experiment.data, root=None, path=None, test=None),
        model=replace(experiment.model, init_from=None, keep=False),
    )
    whole = toml_text(resolved(plain), "the resolved experiment")
    whole.get("network", {}).pop("profile", None)  # its content is part of the resolved experiment
    mine = {
        "experiment": whole,
        "versions": {k: v for k, v in folder.provenance(park.dataset.digest).items() if k not in folder.FREE},
        "round of the last checkpoint": point.round if point else 0,
        "model": hashlib.sha256((point.state.packet if point else start)["w"].numpy().data).hexdigest(),
    }
    theirs = [json.loads(bytes(parts[0])) for parts in team.gather([json.dumps(mine).encode()])]
    for rank, other in enumerate(theirs):
        for name, value in other.items():
            if value != theirs[0][name]:
                raise SettingError(
                    f"rank {rank} differs from rank 0 in its {name}: {_difference(value, theirs[0][name])}. All hosts "
                    "need the same files, versions and kind of CPU, and access to the same run's folder."
                )


def _difference(mine: object, other: object) -> str:
    """Return a description of a difference; for tables, of the keys that differ."""
    if not isinstance(mine, Mapping) or not isinstance(other, Mapping):
        return f"{mine} instead of {other}"
    mine = folder.flat(mine)
    theirs = folder.flat(other)
    keys = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
    return "; ".join(f"{key} {mine.get(key, 'not set')} instead of {theirs.get(key, 'not set')}" for key in keys)


def budgets_fit(limits: Limits, *, priced: bool) -> None:
    """Raise SettingError for a budget of seconds, bytes or joules if the run has no prices."""
    if limits.budgets and not priced:
        raise SettingError(
            f"{', '.join(limits.budgets)}: such a budget (--until, --at) needs a network, and the experiment has none, "
            "so that its rounds have no price. Give it a [network], or stop by rounds or accuracy."
        )


def figures_fit(experiment: Experiment, park: Park, limits: Limits) -> None:
    """Raise SettingError for a headline undefined on the data, or a limit on a metric that is not recorded."""
    headline = experiment.evaluate.figure
    data = park.dataset
    fits(headline, data.classes, np.bincount(data.y_test, minlength=len(data.classes)), data.task.kind)
    known = {figure.name for figure in (*ALWAYS, *of_task(data.task.kind, lives=data.task.lives), headline)}
    for name in limits.targets:
        if headline.called(name):
            headline.check_target(limits.targets[name], f"until {name} (--until)")
        elif named(name, "--until").name not in known:
            raise SettingError(
                f"--until {name}: this run records {', '.join(sorted(known))}. Set [evaluate] headline = "
                f'"{named(name).name}" to judge the run by it.'
            )


def memory_fits(experiment: Experiment, park: Park) -> None:
    """Raise SettingError if a device's samples, at four bytes per value, do not fit into memory during training."""
    window = getattr(park.stream, "window", None)
    each = experiment.data.samples_per_device
    most = int(park.holdings.max())
    held = f"data.stream.window = {window}" if window else f"data.samples_per_device = {each}" if each else ""
    name = f"{held or f'the largest device, with {most} samples'}, of shape {list(park.dataset.shape)}"
    advice = "Use smaller samples, more devices, or a shorter window ([data] stream)."
    require_memory(name, FLOAT_BYTES * most * math.prod(park.dataset.shape), advice)


def precision_fits(experiment: Experiment, placement: Placement) -> None:
    """Raise SettingError for a precision of products that a run's placement does not carry out."""
    given = experiment.engine.precision
    (kind, device) = placement
    if given == "float32" or (given == "tf32" and device == "cuda") or (given == "bf16" and kind == "cohort"):
        return
    needed = "a cohort (engine.kind = 'cohort')" if given == "bf16" else "a CUDA device (engine.device = 'cuda')"
    raise SettingError(
        f"engine.precision = '{given}': needs {needed}, and this run trains by {kind} on {device}, in float32. Set "
        "that, or leave engine.precision out."
    )


def is_priced(experiment: Experiment) -> bool:
    """Return whether an experiment's rounds have a price."""
    return experiment.network.built is not None


def parts_there(engine: Engine, method: ConfiguredMethod) -> None:
    """Raise SettingError for parts of another task, or a network without the parts that a method trains."""
    if method.objective.needs_classes and engine.task.kind != "classification":
        name, given = to_spec(method.objective)
        raise SettingError(
            f"objective '{given.get('samples', name)}' is defined for classes, and data.task is '{engine.task.kind}'. "
            "Choose another objective (method.objective) or another method."
        )
    for scope in sorted(method.needs.scopes):
        engine.network.part(scope)
    work = getattr(method.method, "work", None)
    if isinstance(work, WorkSettings):
        steps.rate_factors(engine.network, work.at(1, 1))
    if any(step.privacy is not None for step in chain(method.parts.travel or "")) and engine.network.variances:
        raise SettingError(f"method.travel with noise: {STATISTICS}.", key="method.travel")
    if method.needs.remembers and "classifier" in method.needs.scopes:
        if engine.task.kind != "classification":
            raise SettingError(
                f"method '{method.name}': its devices keep features by class, and data.task is '{engine.task.kind}'. "
                f"Disable this memory (methods.{method.name}.memory = 0), or choose another method."
            )
        local_update.require_head(engine, f"of method '{method.name}'")


def method_fits(experiment: Experiment, method: ConfiguredMethod, park: Park, *, live: bool) -> None:
    """Raise SettingError for a method or setting that cannot be combined with others, real machines or decisions."""
    experiment.deploy.needed(park.factory_of.tolist())  # raises if the quorum can never be met
    fitting.check([*settings(experiment, live=live), *method.choices])
    if live and privacy.on_devices(method):
        check_answers(experiment, method)
    if live and method.needs.own and park.dataset.task.calibrates:
        raise SettingError(
            f"method '{experiment.method.name}' with data.task = '{park.dataset.task.kind}' gives each device's model "
            "its own threshold, which only simulations compute. Choose another method."
        )


def settings(experiment: Experiment, *, live: bool) -> list[Choice]:
    """Return the settings of an experiment that exclude traits of methods, parts or other settings.

    Args:
        live: whether the devices are real machines.
    """
    evaluate = experiment.evaluate
    network = experiment.network.built
    chosen: list[tuple[bool, Choice]] = [
        (live, REAL_MACHINES),
        (experiment.round.close is not None, CLOSING),
        (network is not None and network.uplink.sharing == "sinr", INTERFERING),
        (experiment.decide.asked, DECIDING),
        (bool(evaluate.coverage), COVERAGE),
        (evaluate.finetune is not None, FINETUNING),
        (evaluate.patience is not None, PATIENCE),
        (experiment.model.init_from is not None, STARTING),
        (experiment.park.mobility is not None, MOVING),
    ]
    made = [choice for given, choice in chosen if given]
    limit = experiment.deploy.limit if live or experiment.deploy.simulate else None
    if limit is not None:
        made.append(Choice("deploy.norm_limit", excludes=limit.excludes))
    if experiment.faults.acting is not None:
        made.append(Choice("faults.attackers", excludes=experiment.faults.acting.attack.excludes))
    return made


NO_BEST = "it has no single model that is the best. Leave evaluate.patience out."
ONE_MODEL = "real machines exchange a single model. Simulate it, or choose another method, such as 'fedrep'."
REAL_MACHINES = Choice(
    "real machines",
    {fitting.LIVE: ""},
    {fitting.COHORTS: ONE_MODEL, fitting.SEPARATE: ONE_MODEL},
)
CLOSING = Choice(
    "round.close",
    {fitting.CLOSE: ""},
    {
        fitting.PROTECTED: "the sum or its noise is for all devices that begin, and the privacy loss for a random "
        "choice of them. Leave one of them out.",
        fitting.COHORTS: "its cohorts meet separately. Leave it out.",
        fitting.SEPARATE: "there is no meeting that could end early. Leave it out.",
        fitting.CLOCK: "leave it out.",
        fitting.INTERFERENCE: "late uploads would change the interference of the others. Leave it out, or choose "
        "another network.",
    },
)
MOVING = Choice("park.mobility", {fitting.MOVES: ""})
INTERFERING = Choice("a radio whose uploads interfere (sharing = 'sinr')", {fitting.INTERFERENCE: ""})
DECIDING = Choice(
    "[decide]", {fitting.DECIDE: ""}, {fitting.PERSONAL: "there is no single model for decisions. Leave [decide] out."}
)
COVERAGE = Choice(
    "evaluate.coverage",
    excludes={fitting.LIVE: "it counts samples by class, and real devices keep theirs. Leave it out."},
)
TRAINS_EACH = (
    "it trains every device's model before it is evaluated, and is for simulations without [decide]. Leave it out."
)
FINETUNING = Choice(
    "evaluate.finetune",
    {fitting.FINETUNE: ""},
    {
        fitting.OBJECTIVE: "the method builds a model of its own. Leave it out.",
        fitting.LIVE: TRAINS_EACH,
        fitting.DECIDE: TRAINS_EACH,
    },
)
PATIENCE = Choice(
    "evaluate.patience",
    excludes={fitting.PERSONAL: NO_BEST, fitting.SEPARATE: NO_BEST, fitting.FINETUNE: NO_BEST},
)
STARTING = Choice(
    "model.init_from", excludes={fitting.OBJECTIVE: "the method builds a model of its own. Leave it out."}
)


def check_answers(experiment: Experiment, method: ConfiguredMethod) -> None:
    """Check that real devices, whose updates have masks or noise, answer no questions that read single samples.

    Raises:
        SettingError: exact class counts change with a stream, or devices add noise and the normalisation has questions.
    """
    if privacy.by_visits(method) and isinstance(normaliser(experiment.data.normalise), Surveyed):
        raise SettingError(f"data.normalise with method '{method.name}': {privacy.NO_SURVEY}", key="data.normalise")
    counts = any(question.what == CENSUS.name for question in method.questions)
    if counts and experiment.data.stream.kind != "static" and experiment.park.census_epsilon is None:
        raise SettingError(
            f"method '{method.name}' asks for class counts at every tick of data.stream = "
            f"'{experiment.data.stream.kind}', and two of them differ by single labels, which masks or noise on "
            "updates do not hide. Set park.census_epsilon, such as 1.0, or leave data.stream out."
        )


def attacking(experiment: Experiment, park: Park, *, live: bool) -> AttackingExecutor:
    """Return the executor of a simulation with attackers.

    Raises:
        SettingError: the machines are real, the attack is undefined for the task, or a device does not exist.
    """
    attackers = cast(Attackers, experiment.faults.acting)
    fitting.check(settings(experiment, live=live))
    if attackers.attack.needs_classes and park.dataset.task.kind != "classification":
        raise SettingError(
            f"faults.attackers: attack '{attackers.name}' is defined for classes, and data.task is "
            f"'{park.dataset.task.kind}'. Choose an attack on updates, such as 'sign-flip'."
        )
    chosen = attackers.among(park.devices, park.names, generator(experiment.seed, "attackers"))
    return AttackingExecutor(attackers, chosen)


def doubts(plan: Node) -> list[str]:
    """Return a message for each mixing rule of a plan that has too few models for its guarantee."""
    sentences = []
    for node in walk.mixes(plan):
        rule = mixing.rule(node.mix, node.settings)
        many = len(node.children) if isinstance(node, Parallel) else node.how_many
        if rule.least <= many < rule.sound:
            sentences.append(
                f"mix '{node.mix}' has {many} models to mix, and its guarantee needs {rule.sound}: otherwise "
                "colluding attackers can pass for honest devices."
            )
    return list(dict.fromkeys(sentences))


def packet_fits(packet: Mapping[str, torch.Tensor], network: Network, objective: Objective) -> None:
    """Raise an error for a checkpoint of another network, or without a vector that the objective needs."""
    name = to_spec(objective)[0]
    numbers = packet["w"].numel()
    wanted = network.flat.numel()
    if numbers != wanted:
        raise SettingError(
            f"the checkpoint's model has {numbers} numbers, this network {wanted}: it is of another network, or lacks "
            f"the gamma, head or gates that objective '{name}' adds. Resume with its model and method, or start a new "
            "run with --out.",
            key="checkpoint",
        )
    lacking = [vector for vector in objective.travels if vector not in packet]
    if lacking:
        raise SettingError(
            f"the checkpoint has no '{lacking[0]}', which objective '{name}' reads: another method wrote it. Resume "
            "with that method, or start a new run with --out.",
            key="checkpoint",
        )


def batches_fit(experiment: Experiment, park: Park, largest: int, network: Network | None = None) -> None:
    """Raise SettingError for mini-batches that are larger than the data of the smallest device.

    Shorter ones are advised unless ``network`` has batch norm and that device a single sample.
    """
    smallest = int(park.holdings.argmin())
    if largest <= park.holdings[smallest]:
        return
    if park.stream.kind != "static":
        raise SettingError(
            f"work.batch_size = {largest} is larger than the samples of a device at a time (data.stream.window = "
            f"{park.holdings[smallest]}). Lower work.batch_size, or raise the window; or let devices train with fewer "
            "samples at a time: work.short_batches = true."
        )
    held = 0.0 if experiment.evaluate.on == "test" and park.validating is None else experiment.evaluate.validation
    aside = " beside those held out for validation" if held else ""
    enough = math.ceil(largest / (1 - held)) + bool(held)
    kind = getattr(experiment.data.partition, "kind", "")
    larger = {"dominant": f"samples = {enough}"} | dict.fromkeys(("natural", "dirichlet"), f"at_least = {enough}")
    more = f", or set larger ones with the partition's {larger[kind]}" if kind in larger else ""
    advice = f"Lower work.batch_size, use fewer devices{more}; or let such devices train with fewer samples at a time: "
    advice += "work.short_batches = true."
    if park.holdings[smallest] == 1 and network is not None and network.variances:
        advice = (
            f"Batch norm cannot be trained on one sample: use fewer devices{more}, or a network without batch norm."
        )
    raise SettingError(
        f"work.batch_size = {largest} is larger than what {park.display_names.site('device', smallest)} holds "
        f"({park.sizes[smallest]} samples{aside}). {advice}"
    )
