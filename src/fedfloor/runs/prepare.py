"""Preparation of the first round of an experiment: weights, engine, state, folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedfloor.base import regular
from fedfloor.base.chance import drawing, generator
from fedfloor.base.errors import RunError, SettingError, shown
from fedfloor.base.machine import one_thread
from fedfloor.base.names import excerpt
from fedfloor.config import resolved
from fedfloor.data.dataset import Dataset
from fedfloor.engine import place, ranks, travel
from fedfloor.engine.engine import Engine
from fedfloor.engine.limit import Limit
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import Placement, keep_memory
from fedfloor.engine.team import Team
from fedfloor.experiment import Experiment, ModelSettings
from fedfloor.methods.configured import ConfiguredMethod
from fedfloor.methods.contract import State, View
from fedfloor.models import Network, plain, saved
from fedfloor.models.network import builder, unseeded
from fedfloor.park import recorded, summaries
from fedfloor.park.described import LabelSkew, describe, label_skew
from fedfloor.park.park import Park
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Work
from fedfloor.runs import checks, folder, pricing
from fedfloor.runs.orders import Orders
from fedfloor.runs.parks import findings_of, network_of
from fedfloor.runs.pricing import PriceModel
from fedfloor.tasks.classification import CLASSIFICATION

log = logging.getLogger(__name__)

NAMED = 3  # most tensors named in a message
Shapes = Mapping[str, tuple[int, ...]]


def digest(model: ModelSettings) -> dict[str, str]:
    """Return the digest of the initial model of a run; "" if its weights are random."""
    if model.init_from is None:
        return {}
    with _read(model.init_from) as path:
        return {"init_sha256": hashlib.sha256(regular.read_bytes(path)).hexdigest()}


def begin(network: Network, model: ModelSettings, data: Dataset, *, logged: bool) -> None:
    """Load a trained model's weights into a network, in place of the random ones.

    Every tensor of the file must match one of the network, except those of a classifier that the network has replaced;
    every tensor of the network must be in the file, except those of its classifier and of additions to
    ``[model] name``. Tensors match by name and shape, up to a common prefix of a wrapped network. A classifier is
    loaded as a whole or not at all.
    """
    if model.init_from is None:
        return
    with _read(model.init_from) as path:
        about, tensors = saved.content(path)
    _check_samples(path, about, data)
    into = network.named(network.flat)
    file = _shapes(tensors)
    whole = _shapes(into)
    heads = _head(file, about.get("classifier")), _head(whole, network.classifier)
    pairs = matched(file, whole)
    if not (heads[0] <= set(pairs) and heads[1] <= set(pairs.values())):
        pairs = {name: place for name, place in pairs.items() if name not in heads[0] and place not in heads[1]}
    with drawing():  # the network without adaptations by an objective
        bare = _shapes(plain(model.name, data.shape, data.outputs, model.settings).state_dict())
    wrong = []  # tensors without a match, or without valid numbers
    for name in (name for name in file if name not in heads[0] | set(pairs)):
        both = f"{file[name]} in the file, {whole.get(name)} in the network"
        wrong.append(f"{name} is {both if name in whole else 'not in the network'}")
    needed = set(matched(bare, whole).values()) - heads[1] - set(pairs.values())
    wrong += [f"{name} is missing in the file" for name in whole if name in needed]
    wrong += [f"{name} holds infinite or undefined numbers" for name in pairs if not tensors[name].isfinite().all()]
    if wrong or not pairs:
        raise SettingError(
            f"model.init_from: {path} (network {shown(about.get('model'))}) does not fit network '{model.name}': "
            f"{excerpt(wrong, NAMED) if wrong else 'they have no tensor in common'}. Give a run of the same network, "
            "or leave init_from out."
        )
    for name, span in pairs.items():
        into[span].copy_(tensors[name])
    if logged:
        taken = set(pairs.values())
        fresh = [name for name in into if name not in pairs.values()]
        rest = f"random: {excerpt(fresh, NAMED)}" if fresh else "none is random"
        log.info("model.init_from: %d of %d tensors are from %s (round %s); %s.", len(taken), len(into), path,
                 shown(about.get("round")), rest)  # fmt: skip


@contextmanager
def _read(given: str) -> Iterator[Path]:
    """Yield the path of a model's file; errors in the body name the setting."""
    try:
        yield saved.model_file(Path(given))[0]
    except SettingError as error:
        raise SettingError(f"model.init_from: {error}") from error


def _head(names: Iterable[str], classifier: str | None) -> set[str]:
    """Return the names of the tensors of a model's classifier."""
    return {name for name in names if classifier and name.startswith(f"{classifier}.")}


def matched(names: Shapes, places: Shapes) -> dict[str, str]:
    """Return {name: place} of the tensors with equal names and shapes, after removing the best matching prefixes.

    >>> matched({"0.weight": (2, 3), "1.bias": (2,)}, {"body.0.weight": (2, 3), "body.1.bias": (4,), "gamma": ()})
    {'0.weight': 'body.0.weight'}
    """
    best: dict[str, str] = {}
    for left in _prefixes(names):
        inside = [name for name in names if name.startswith(left)]
        for right in _prefixes(places) if len(inside) > len(best) else ():
            pairs = {name: right + name.removeprefix(left) for name in inside}
            pairs = {name: place for name, place in pairs.items() if places.get(place) == names[name]}
            if len(pairs) > len(best):  # the shortest prefixes come first
                best = pairs
    return best


def _prefixes(names: Iterable[str]) -> list[str]:
    """Return the path prefixes of tensors with their trailing dots, shortest first, beginning with ""."""
    paths = [name.split(".") for name in names]
    prefixes = {"".join(f"{part}." for part in path[:depth]) for path in paths for depth in range(len(path))}
    return sorted(prefixes, key=lambda prefix: (prefix.count("."), prefix))


def _check_samples(path: Path, about: Mapping[str, Any], data: Dataset) -> None:
    stated = about.get("shape")
    names = about.get("classes")
    classifier = about.get("classifier")
    if not isinstance(stated, list) or not isinstance(names, list) or not isinstance(classifier, str | None):
        raise SettingError(
            f"model.init_from: {path} is damaged: its shape and its classes must be lists, and its classifier a text. "
            "Give the model.safetensors of a run."
        )
    shape = tuple(stated)
    classes = len(names)
    if (shape, classes) != (data.shape, len(data.classes)):
        raise SettingError(
            f"model.init_from: {path} was trained on {classes} classes and samples of shape {shown(shape)}, these data "
            f"have {len(data.classes)} and {data.shape}. Give a model trained on data of this form, or leave "
            "init_from out."
        )


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def engine(
    experiment: Experiment, method: ConfiguredMethod, park: Park, team: Team, memory: DeviceMemory, *,
    live: bool = False,
) -> tuple[Engine, PriceModel | None]:  # fmt: skip
    """Return an engine with the initial model, and the price model of its rounds, None without a network."""
    torch.set_num_threads(1)
    keep_memory()
    data = park.dataset
    network = network_of(experiment, method, park)
    begin(network, experiment.model, data, logged=team.rank == 0)
    parts = (network.trained, network.classifier_parameters, partial(travel.coded, network))
    price_model = pricing.build_price_model(experiment, park, *parts, method.coded(Work()))
    sites = None if price_model is None else price_model.sites
    chance = experiment.faults.visit
    normalise = experiment.data.normalise
    shortcuts = experiment.engine.shortcuts == "auto" and not live
    placement = where(experiment, live=live)
    processor = place.device_of(placement, team.rank)
    made = Engine(park, network.to(processor), team, memory, experiment.seed, chance, normalise, sites, shortcuts)
    made.cohort = place.engaged(placement, experiment.engine.precision, processor)
    if made.cohort is not None and data.task != CLASSIFICATION:
        if experiment.engine.kind == "cohort":
            raise SettingError(
                f"engine.kind = 'cohort' supports only classifiers, but data.task is '{data.task.kind}'. Leave it out."
            )
        made.cohort = None
    deploy = experiment.deploy
    rule = deploy.limit if live or deploy.simulate else None
    if rule is not None:
        made.limit = Limit(rule)
        made.limit.pieces(made.network, "all")  # refuse wrong pieces before the first round
    made.attackers = None if experiment.faults.acting is None else checks.attacking(experiment, park, live=live)
    return made, price_model


def where(experiment: Experiment, *, live: bool = False) -> Placement:
    """Return the placement of a run; real machines and runs with a limit on updates train visit by visit on CPUs."""
    settings = experiment.engine
    deploy = experiment.deploy
    if live:
        return Placement("ranks", "cpu")
    attackers = experiment.faults.attackers is not None
    if not (deploy.simulate and deploy.norm_limit) and not attackers:
        return place.placed(settings.kind, settings.device)
    if settings.kind == "cohort":
        whose = "faults.attackers" if attackers else "deploy.simulate"
        raise SettingError(
            f"{whose} with engine.kind = 'cohort': every update is checked separately. Set engine.kind = 'ranks'.",
            key="engine.kind",
        )
    return place.placed("ranks", settings.device)


def first_state(engine: Engine, method: ConfiguredMethod, view: View) -> tuple[Node | None, State]:
    """Return a method's initial questions, None without any, and its initial state after their answers."""
    plan = method.setup(view)
    answers = {}
    if plan is not None:
        answers = dict(ranks.run(engine, plan, view.start, round_number=0, tick=0).answers)
    try:
        return plan, method.init(view, answers, generator(engine.seed, "init"))
    except SettingError as error:
        silent = sorted(set() if plan is None else walk.devices(plan) - set(answers))
        if not silent:
            raise
        text = f"devices {silent} did not answer, and the method needs their answers: {error}"
        raise RunError(f"{text} Check these devices, then start again.", key="no-answer") from error


def prepare(experiment: Experiment, orders: Orders, park: Park, *, live: bool = False) -> None:
    """Prepare a run's folder before any rank starts: describe a new run, and raise SettingError if one exists.

    A resume does not change the folder before all checks are done, and then calls :func:`record`.
    """
    checks.figures_fit(experiment, park, orders.limits)
    if not live and where(experiment).device == "cpu":
        checks.memory_fits(experiment, park)
    model = experiment.model
    if ":" not in model.name:
        builder(model.name, model.settings)  # an unknown name is reported before errors of the folder
    out = orders.out
    check_place(orders, live=live)
    if orders.replay is not None:
        orders.replay.check_data(park.dataset.digest)
    if orders.resume:
        folder.check_same(out, _document(experiment, out, park, live=live), force=orders.force)
    checks.precision_fits(experiment, where(experiment, live=live))
    if not orders.resume:
        record(experiment, out, park, live=live)
        warn(experiment, label_skew(park))
        if ":" in model.name:
            warn_unseeded(experiment, park.dataset)


def check_place(orders: Orders, *, live: bool = False) -> None:
    """Raise SettingError if a run's folder holds a run already, or none to resume."""
    out = orders.out
    began = (out / "experiment.toml").exists()
    if orders.resume and not began:
        raise SettingError(f"--resume: {out} holds no run. Leave --resume out to start one there.")
    if not orders.resume and (began or (out / "ledger.jsonl").exists() or any((out / "checkpoint").glob("round-*"))):
        other = "name another folder as out in cloud.toml" if live else "give another folder with --out"
        again = "--resume --force" if orders.force else "--resume"
        raise SettingError(f"{out} already holds a run. Continue it with {again}, or {other}.", key="exists")


def record(experiment: Experiment, out: Path, park: Park, *, live: bool = False) -> None:
    """Write the description of a run: ``experiment.toml``, ``park.json``, statistics of sensors, and hashes of rows."""
    folder.write(out / "experiment.toml", _document(experiment, out, park, live=live))
    skew = label_skew(park)
    findings = findings_of(park)
    more: dict[str, Any] = {} if skew is None else {"label_skew": skew._asdict()}
    more |= {"findings": findings} if findings else {}
    folder.write_json(out / "park.json", describe(park) | more)
    if hashes := recorded.record(park):
        folder.write_arrays(out / recorded.FILE, hashes)
    if (sensors := summaries.summarised(park)) is not None:
        folder.write_json(out / summaries.FILE, sensors.to_dict())


def _document(experiment: Experiment, out: Path, park: Park, *, live: bool) -> str:
    here = where(experiment, live=live)
    provenance = folder.provenance(park.dataset.digest) | digest(experiment.model) | here.described
    return resolved(replace(experiment, provenance=provenance), out)


def warn_unseeded(experiment: Experiment, data: Dataset) -> None:
    """Warn if the initial weights of a user's own network do not follow the experiment's seed."""
    model = experiment.model
    with one_thread():
        reason = unseeded(model.name, data.shape, data.outputs, model.settings)
    if reason:
        log.warning(
            "model '%s': %s. Draw weights from PyTorch's global generator without seeding it. Weights read from a file "
            "are equal on purpose.", model.name, reason,
        )  # fmt: skip


def warn(experiment: Experiment, skew: LabelSkew | None) -> None:
    """Warn if a method chooses devices by labels although these hardly differ; ``skew`` is None if unknown."""
    if skew is not None and skew.negligible and experiment.configured.needs.labels:
        skewed = ' Skewed labels: data.partition, such as { kind = "dirichlet", alpha = 0.3 }.'
        log.warning(
            "Method '%s' chooses devices by their labels, which hardly differ here: it is not expected to be better "
            "than a random choice.%s", experiment.method.name, "" if experiment.data.path else skewed,
        )  # fmt: skip
