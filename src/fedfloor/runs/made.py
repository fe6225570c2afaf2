"""The engine an experiment describes, and the state its method begins with."""

from __future__ import annotations

import torch

from fedfloor import models
from fedfloor.chance import generator
from fedfloor.engine import place, ranks
from fedfloor.engine.allocator import keep_memory
from fedfloor.engine.engine import Engine
from fedfloor.engine.limit import Limit
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import Placement
from fedfloor.engine.team import Team
from fedfloor.errors import RunError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.combined import Combined
from fedfloor.methods.contract import State, View
from fedfloor.park.park import Park
from fedfloor.parts.objective import adapting
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node
from fedfloor.runs import pricing
from fedfloor.runs.pricing import Tariff
from fedfloor.runs.start import begin
from fedfloor.tasks.classification import CLASSIFICATION


def engine(
    experiment: Experiment, method: Combined, park: Park, team: Team, memory: DeviceMemory, *, live: bool = False
) -> tuple[Engine, Tariff | None]:
    """Return an engine that holds the first model, and what its rounds cost; None without a network.

    Args:
        experiment: names the network and says what is drawn.
        method: the experiment's.
        park: whose devices are visited.
        team: the ranks.
        memory: what devices keep.
        live: whether it is part of a park of real machines.

    Raises:
        SettingError: something in the experiment does not fit.
    """
    torch.set_num_threads(1)
    keep_memory()
    data, model = park.dataset, experiment.model
    adapt = adapting(data.task, method.objective)
    seed = experiment.seed
    network = models.build(model.name, data.shape, data.outputs, seed, model.classifier, adapt, model.init)
    begin(network, model, data, tell=team.rank == 0)
    costs = pricing.tariff(experiment, park, network.trained, network.classifier_parameters, network.parcel)
    sites = None if costs is None else costs.sites
    chance, normalise = experiment.faults.visit, experiment.data.normalise
    shortcuts = experiment.engine.shortcuts == "auto" and not live
    here = where(experiment, live=live)
    there = place.device_of(here, team.rank)
    made = Engine(park, network.to(there), team, memory, experiment.seed, chance, normalise, sites, shortcuts)
    made.cohort = place.engaged(here, experiment.engine.precision, there)
    if made.cohort is not None and data.task != CLASSIFICATION:
        if experiment.engine.kind == "cohort":
            raise SettingError(
                f"engine.kind = 'cohort' steps classifiers alone, and data.task is '{data.task.kind}'. Leave it out."
            )
        made.cohort = None
    deploy = experiment.deploy
    made.limit = Limit(deploy.norm_limit) if deploy.norm_limit and (live or deploy.simulate) else None
    return made, costs


def where(experiment: Experiment, *, live: bool = False) -> Placement:
    """Return where and how an experiment is trained: real machines, and what a limit judges, visit by visit on CPUs.

    Raises:
        SettingError: CUDA is configured, and there is none; or a cohort, whose visits no limit can judge.
    """
    settings, deploy = experiment.engine, experiment.deploy
    if live:
        return Placement("ranks", "cpu")
    if not (deploy.simulate and deploy.norm_limit):
        return place.placed(settings.kind, settings.device)
    if settings.kind == "cohort":
        raise SettingError("deploy.simulate with engine.kind = 'cohort': the limit needs engine.kind = 'ranks'.")
    return place.placed("ranks", settings.device)


def first_state(engine: Engine, method: Combined, view: View) -> tuple[Node | None, State]:
    """Ask what a method wants to know before the first round, if anything, and return what was asked and its state.

    Args:
        engine: asks.
        method: the experiment's.
        view: before the first round.

    Raises:
        RunError: the method cannot do without the answer of a device that gave none.
    """
    plan, answers = method.setup(view), {}
    if plan is not None:
        answers = dict(ranks.run(engine, plan, view.start, round_number=0, tick=0).answers)
    try:
        return plan, method.init(view, answers, generator(engine.seed, "init"))
    except SettingError as error:
        silent = sorted(set() if plan is None else walk.devices(plan) - set(answers))
        if not silent:
            raise
        text = f"devices {silent} did not answer, and the method cannot do without: {error}"
        raise RunError(f"{text} See to them, then start again.") from error
