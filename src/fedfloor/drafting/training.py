"""Network or trees, rounds and work of a draft, by the size and kind of its data."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.names import count
from fedfloor.data.dataset import Dataset
from fedfloor.drafting import findings
from fedfloor.drafting.readable import MOST_WINDOWS, WINDOW
from fedfloor.drafting.sketch import Proposal, Sketch
from fedfloor.models.forest import ROUNDS_OF_BINS, described
from fedfloor.park.described import raw_bytes
from fedfloor.park.normalise import DeviceNormaliser, normaliser
from fedfloor.park.park import Park
from fedfloor.runs import forecast, trials
from fedfloor.runs.parks import check_promise

log = logging.getLogger(__name__)
HELD_OUT = (0.1, 0.2, 0.3, 0.4, 0.5)  # shares of the training samples that are tried for a promise

# single rows train fast, but networks need many rounds for thresholds
ROUNDS = 20
ROUNDS_OF_ROWS = 50
PATIENCE = 5  # evaluations in which held-out samples do not gain before a run ends
PLENTY = 10_000  # training samples of which trees, too, are drafted with some held out to end by
STEPS = 1000  # of a device on windows in all
MOST_ROUNDS = 100  # devices with few windows take few steps in a round
SCATTERED = ("random", "stratified")  # kinds of splits that test rows whose neighbours train
# of boosting: trees and their levels, at most; rounds between two evaluations
TREES = 100
LEVELS = 6
EVERY = 24
# share of the statistics of windows that a tree uses, where they are so many
DECORRELATED = 0.3
CORRELATED = 20
MOST_HELD = 5e7  # the same times the features of a window, held in memory
MOST_AT_ONCE = 5000  # features times outputs, for one tree, which beyond uses a share of the features
MOST_ADDED = 3e7  # the same times windows: numbers added up in a round, about a second of one core
# samples of a mini-batch, usually and at least; steps of a pass, if batches allow
BATCH = 32
SMALL_BATCH = 8
VISIT = 4
CLIP = 1.0  # norm of gradients in forecasting, at most
HEAVY = 0.25  # share of sensors with heavy tails from which the network applies asinh to its input
SMALLEST_PICTURE = 18  # pixels per side, for the network with convolutions


def set_training(sketch: Sketch, park: Park, *, detects: bool) -> list[str]:
    """Decide on network, method, rounds and work, unless given; simple models come before networks.

    Args:
        sketch: the draft.
        park: its park.
        detects: whether anomalies of rows are found without labels.

    Returns:
        Sentences on them.
    """
    document = sketch.document
    paced = sketch.given.rounds
    free = not paced and not {"model", "method", "work"} & {*document}
    model = document.get("model", {})
    method = document.get("method", {})
    sketch.set({"model": model, "method": method})

    # charts for detectors, what a task is usually drafted with, trees, or a network
    rounds = None
    notes: Sequence[str] = ()
    if detects and not model.get("name") and not method.get("name"):
        sketch.set({"model.name": "monitor", "method.name": "pca"})
        rounds = 1
    elif free and (usual := park.dataset.task.drafts):
        rounds = usual["rounds"]
        methods = {**document.get("methods", {}), **usual["methods"]}
        sketch.set({"model": {**model, **usual["model"]}, "method": {**method, **usual["method"]}, "methods": methods})
    elif free and _grows(park.dataset, detects=detects):
        sketch.set({"method.name": "boosting"})
        forest = _forest(sketch, park)
        sketch.set(forest.settings)
        notes = forest.notes
        rounds = _rounds_of_trees(sketch.document, park.dataset)
    if "name" not in sketch.document["model"]:
        sketch.set({"model.name": network_of(park.dataset, detects=detects)})

    # its work and rounds
    sketch.set(_work(sketch.document, park))
    if "name" not in sketch.document["method"]:
        sketch.set({"method.name": "fedavg"})
    if not paced:
        sketch.set({"rounds": rounds or rounds_of(sketch.document, park)})
    if free and rounds is None and not park.dataset.task.ahead:
        stop = _stop(sketch, 2)
        evaluate = {"evaluate": sketch.document.get("evaluate", {})}
        sketch.set(evaluate | (stop | {"rounds": MOST_ROUNDS} if stop else {}))
    return [*notes]


def _forest(sketch: Sketch, park: Park) -> Proposal:
    """Decide on the share of features, the number of trees and their end, unless given.

    The statistics of a window resemble each other: trees that use some of them differ, as those of a random forest.
    """
    document = sketch.document
    given = document.get("methods", {}).get("boosting", {})
    share = {"columns": _share(park.dataset), "trees": TREES, **given}["columns"]
    trees = given.get("trees", TREES)
    notes = []
    stop = {} if len(park.dataset.y) < PLENTY else _stop(sketch, EVERY)
    if not stop:
        evaluate = document.get("evaluate", {})
        stop = {"evaluate": evaluate if "every" in evaluate else {**evaluate, "every": EVERY}}
        data = sketch.experiment().data
        scale = normaliser(data.normalise)
        own = scale if isinstance(scale, DeviceNormaliser) else None
        scattered = getattr(data.split, "kind", "") in SCATTERED and len(park.dataset.shape) == 1
        many = TREES if "trees" in given else trials.trees(park, own, share, scattered=scattered)
        if many < TREES:
            trees = many
            notes.append(
                f"{count(many, 'tree')}, because more of them predict training samples that are held out worse: --set "
                f"methods.boosting.trees=N --set rounds=M for others"
            )
    settings = {"columns": share, "trees": trees, **given}
    usual = {"columns": 1.0, "trees": TREES}
    chosen = {key: value for key, value in settings.items() if key in given or value != usual[key]}
    return Proposal(stop | ({"methods.boosting": chosen} if chosen else {}), notes)


def _rounds_of_trees(document: Mapping[str, Any], data: Dataset) -> int:
    """Return the rounds that bins and trees need: those of the bins as often as shares make up all features."""
    settings = {"columns": 1.0, "trees": TREES, "depth": LEVELS, **document.get("methods", {}).get("boosting", {})}
    features = described(data.shape)
    shares = math.ceil(features / math.ceil(round(settings["columns"] * features, 9)))
    return int(ROUNDS_OF_BINS * shares + settings["trees"] * settings["depth"])


def _stop(sketch: Sketch, every: int) -> dict[str, Any]:
    """Return settings with which a run ends when held-out samples no longer gain, and keeps its best model.

    Empty where some of them are given, or the data do not allow it.
    """
    evaluate = sketch.document.get("evaluate", {})
    if {"on", "every", "patience"} & {*evaluate}:
        return {}
    stop = {"evaluate": evaluate | {"on": "both", "every": every, "patience": PATIENCE}}
    try:
        sketch.park(stop)
    except SettingError:  # too few samples or devices to hold some out
        return {}
    return stop


def promise(sketch: Sketch, park: Park) -> Proposal:
    """Hold out as many samples, unless their share is given, as what the task promises needs.

    Raises:
        SettingError: no share suffices.
    """
    if park.dataset.task.promised is None:
        return Proposal()
    evaluate = sketch.document.get("evaluate", {})
    shares = [evaluate["validation"]] if "validation" in evaluate else HELD_OUT
    for share in shares:
        try:
            check_promise(sketch.park({"evaluate.validation": share}))
        except SettingError as error:
            if share == shares[-1]:
                raise
            log.debug("%s", error)
        else:
            if share in (evaluate.get("validation"), HELD_OUT[0]):
                break
            note = f"{share:.0%} of the training samples are held out, from which the promise of the task comes"
            return Proposal({"evaluate": evaluate | {"validation": share}}, [note])
    return Proposal({"evaluate": evaluate})


def on_traffic(document: dict[str, Any], park: Park) -> list[str]:
    """Return a sentence on what the draft sends over its network, beside the raw data; none without a network."""
    if config.from_table(document).network.profile is None:
        return []

    def cost(changed: Mapping[str, Any]) -> str:
        experiment = config.from_table({**document, **changed})
        last = experiment.configured.method.expected(experiment.rounds)
        prices = [planned.price for planned in forecast.rounds(experiment, park, last)]
        sent = sum(sum(price.bytes.values()) for price in prices)
        seconds = sum(price.seconds for price in prices)
        return f"{sent / 1e6:.3g} MB in " + (f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds:.3g} s")

    note = f"on this network training sends {cost({})}; the devices' training data have {raw_bytes(park) / 1e6:.3g} MB"
    if document["method"]["name"] == "boosting":
        other = {"method": {"name": "fedavg"}, "rounds": rounds_of(document, park)}
        note += f". With a network, method fedavg and {other['rounds']} rounds: {cost(other)}"
    return [note]


def rounds_of(document: Mapping[str, Any], park: Park) -> int:
    """Return the number of rounds of a network: for windows about ``STEPS`` steps of a device, within bounds."""
    if park.dataset.inputs.kind != "table" or park.dataset.task.ahead:
        return ROUNDS
    if len(park.dataset.shape) == 1:
        return ROUNDS_OF_ROWS
    work = document["work"]
    steps = work.get("steps") or work.get("epochs", 1) * math.ceil(park.sizes.mean() / work["batch_size"])
    return int(min(max(STEPS // steps, ROUNDS), MOST_ROUNDS))


def _work(document: Mapping[str, Any], park: Park) -> dict[str, Any]:
    """Return the work of devices and the scaling of pictures, unless given.

    Small devices use short mini-batches, of which a usual one makes several in a pass: one tiny device does not make
    those of all others tiny.
    """
    given = document.get("work", {})
    work: dict[str, Any] = dict(given)
    dataset = park.dataset
    if "batch_size" not in given:
        size = int(min(BATCH, max(SMALL_BATCH, park.sizes.mean() // VISIT), park.sizes.max()))
        short = "partition" in document["data"] or park.sizes.min() < size  # dealt: other sizes by seed
        work = work | {"batch_size": size} | ({"short_batches": True} if short else {}) | given
    if dataset.inputs.kind == "table" and not {"lr", "momentum", "optimizer"} & {*given}:
        rate = 0.01 if dataset.task.targets else 0.02
        rows = dataset.shape[-1] if dataset.task.ahead else WINDOW
        linear = round(0.05 * min(1.0, WINDOW / rows), 4)  # a linear layer's gradient grows with the number of inputs
        work = work | {"lr": linear if document["model"]["name"] == "linear" else rate, "momentum": 0.9}
        if dataset.task.ahead:  # jumps of mostly constant sensors, such as rain, make a linear layer diverge
            work = {**work, "clip_norm": work.get("clip_norm", CLIP)}
    work = work if "lr" in work else {**work, "lr": 0.05}
    scaled = dataset.inputs.kind != "image" or "normalise" in document["data"]
    return {"work": work} | ({} if scaled else {"data.normalise": "standard"})


def network_of(data: Dataset, *, detects: bool = False) -> str:
    """Return the name of the simplest network that suits the samples."""
    if detects:
        return "ae-dense" if len(data.shape) == 1 else "ae-conv"
    if data.inputs.kind == "image":
        return "cnn-tutorial" if min(data.shape[1:]) >= SMALLEST_PICTURE else "mlp-2nn"
    if len(data.shape) == 1:
        heavy = len(findings.heavy_tailed(data)) >= HEAVY * data.shape[0]
        return "mlp-sensor-asinh" if heavy else "mlp-sensor-soft"
    return "linear" if data.task.ahead else "cnn-window"  # NLinear, the simple model that deeper networks must beat


def _grows(data: Dataset, *, detects: bool) -> bool:
    """Return whether boosted trees are drafted: for classes or numbers of rows or windows, within bounds of cost."""
    return not detects and not data.task.ahead and data.inputs.kind == "table" and not _excess(data)


def _excess(data: Dataset) -> str:
    """Return the bound of cost that windows exceed; "" within the bounds, and for rows."""
    if len(data.shape) == 1 or data.inputs.kind != "table" or data.task.ahead:
        return ""
    features = described(data.shape)
    if len(data.y) > (most := int(min(MOST_WINDOWS, MOST_HELD / features))):
        return f"{len(data.y):,} windows are more than {most:,}"
    enough = _share(data) ** 2 * features >= 1
    return "" if enough else f"{len(data.y):,} windows are too many for trees that use √{features} features or more"


def on_excess(data: Dataset) -> list[str]:
    """Return a sentence on windows whose cost decides for a network, otherwise an empty list."""
    bound = _excess(data)
    if not bound:
        return []
    return [
        f"{bound}, beyond which the cost of trees decides for a network; trees: --set method.name=boosting --set "
        f"rounds={ROUNDS_OF_BINS + TREES * LEVELS}, best with fewer windows: --set data.window.step=N"
    ]


def _share(data: Dataset) -> float:
    """Return the share of the features that a tree uses, within bounds of what is sent and added up in a round."""
    targets = 0 if data.target is None else data.target.shape[1]
    features = described(data.shape)
    windows = len(data.shape) > 1
    sums = features * data.task.outputs(len(data.classes), targets, data.shape)
    most = min(MOST_AT_ONCE, MOST_ADDED / len(data.y)) if windows else MOST_AT_ONCE
    return min(DECORRELATED if windows and features >= CORRELATED else 1.0, math.ceil(100 * most / sums) / 100)
