"""Construction of an experiment's park, without PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from fedfloor.base.names import alike, count, excerpt, misspelt
from fedfloor.data.dataset import Dataset
from fedfloor.data.files.own import load as load_own
from fedfloor.data.files.spellings import option as spelt
from fedfloor.data.ranges import values_beyond
from fedfloor.data.reading import DeviceSplit
from fedfloor.data.sources import load
from fedfloor.experiment import Experiment
from fedfloor.park.build import build
from fedfloor.park.described import class_counts
from fedfloor.park.park import Park
from fedfloor.park.peers import differing
from fedfloor.parts.objectives.objective import adapting
from fedfloor.runs import keeping

if TYPE_CHECKING:
    from fedfloor.methods.configured import ConfiguredMethod
    from fedfloor.models import Network

log = logging.getLogger(__name__)
NAMED = 10  # most classes named in a warning
RARE = 10  # a class is rare in training if its share there is smaller than in the test data by this factor
ADVICE = (
    "A split by time tests on the end of each recording: split = { kind = 'device' } or { kind = 'run' } holds out "
    "whole devices or recordings, { kind = 'stratified' } a share of each class."
)


def load_data(experiment: Experiment) -> Dataset:
    """Return the data set of an experiment."""
    data = experiment.data
    seed = experiment.seed
    if data.path is not None:
        return keeping.tasked(experiment, load_own(Path(data.path), data, seed))
    loaded = load(
        data.name, root=Path(data.root) if data.root else None, devices=experiment.park.devices,
        samples_per_device=data.samples_per_device, seed=seed, reading=data,
        like=data.like,
    )  # fmt: skip
    return keeping.tasked(experiment, loaded)


def warn_of_gaps(park: Park) -> None:
    """Log the findings on a park's data as warnings."""
    for sentence in findings_of(park):
        log.warning("%s: %s", park.dataset.name, sentence)


UNJUDGED = {"?", "unknown", "unbekannt", "inconnu", "desconocido", "undefined", "unlabeled", "unlabelled"}
_KNOWN = WeakKeyDictionary[Park, tuple[str, ...]]()


def findings_of(park: Park) -> tuple[str, ...]:
    """Return sentences on data: pace of recordings, sensors of devices, classes and values of one part, names alike.

    The terminal, ``park.json``, drafts, reports and Python have these sentences, which are made once for a park.
    """
    if park not in _KNOWN:
        named = (*_alike(park.dataset), *_unjudged(park), *_misspelt(park))
        sentences = (*differing(park), *_beyond(park), *_untaught(park), *named)
        _KNOWN[park] = (*park.dataset.notes, *sentences)
    return _KNOWN[park]


def _alike(data: Dataset) -> Iterator[str]:
    """Yield a sentence for each pair of classes or devices whose names differ only in capitals, blanks or marks."""
    often = dict(zip(data.classes, np.bincount(data.y, minlength=len(data.classes)).tolist(), strict=False))
    pairs = alike(sorted(data.classes, key=lambda name: -often[name]))  # the usual spelling comes first
    for other, name in (sorted(pair, key=data.classes.index) for pair in pairs):
        advice = f"give them the same name, or {spelt({text: usual for usual, text in pairs})}"
        yield f"classes '{other}' and '{name}' count as two: if they are the same, {advice}."
    for other, name in alike(data.owned.names):
        yield f"devices '{other}' and '{name}' count as two: if they are the same, give them the same name."


def _unjudged(park: Park) -> Iterator[str]:
    """Yield a sentence for each class whose name denotes samples that nobody judged."""
    for name in park.dataset.classes if park.dataset.task.labelled and park.dataset.target is None else ():
        if name.casefold() in UNJUDGED:
            many = count(sum(class_counts(park)[name]), "sample")
            yield f"class '{name}' has {many}: if these were not judged, leave their rows out; now it is a class."


def _misspelt(park: Park) -> Iterator[str]:
    """Yield a sentence for each rare class whose name is probably that of a frequent one with a typing error."""
    if park.dataset.task.labelled and park.dataset.target is None:
        counts = {name: sum(both) for name, both in class_counts(park).items()}
        for name, meant in misspelt(counts).items():
            many = count(counts[name], "sample")
            yield (
                f"class '{name}' has {many}: did you mean '{meant}'? If so, correct these labels, or "
                f"{spelt({name: meant})}; now it is a class."
            )


def _beyond(park: Park) -> Iterator[str]:
    """Yield a sentence on sensors whose test samples are far from all training samples, which may be anomalies."""
    if park.dataset.task.detects or park.remote is not None:
        return
    if beyond := values_beyond(park.dataset):
        shown = excerpt([f"'{name}' ({100 * share:.0f} % of them)" for name, share in beyond.items()], NAMED)
        yield (
            f"many test samples have values far from all training samples: {shown}. Predictions for them may "
            "be wrong: check units, and sensors that only increase."
        )


def _untaught(park: Park) -> Iterator[str]:
    """Yield sentences on classes without training samples, with few, and without test samples."""
    if park.dataset.task.detects or not park.dataset.task.labelled:  # classes are used for evaluation only
        return
    counts = class_counts(park)
    share = sum(train for train, _ in counts.values()) / max(1, park.test_samples)  # training samples per test sample
    kind = park.dataset.split
    whole = {"device": "devices", "run": "recordings"}.get(kind)
    drawn = f" split = {{ kind = '{kind}', by_class = true }} draws whole {whole} of each class." if whole else ""
    advice = drawn.lstrip() or ADVICE
    untrained = {key: test for key, (train, test) in counts.items() if test and not train}
    rare = [key for key, (train, test) in counts.items() if 0 < train * RARE < test * share and test >= RARE]
    untested = [key for key, (train, test) in counts.items() if train and not test]
    if untrained:
        shown = excerpt([f"'{key}' ({test:,})" for key, test in untrained.items()], NAMED)
        yield (
            f"{sum(untrained.values()):,} of {park.test_samples:,} test samples are of classes without training "
            f"samples, and cannot be predicted: {shown}. {advice}"
        )
    if rare:
        shown = excerpt([f"'{key}' ({counts[key][0]:,} for {counts[key][1]:,} to test)" for key in rare], NAMED)
        yield f"very few training samples of classes with many test samples: {shown}. {advice}"
    if untested:
        named = excerpt([f"'{key}'" for key in untested], NAMED)
        yield f"classes without test samples, whose accuracy cannot be evaluated: {named}.{drawn}"


def build_park(experiment: Experiment, samples: Dataset | None = None) -> Park:
    """Return the park of an experiment.

    Args:
        experiment: the experiment.
        samples: its data, if they are loaded already.
    """
    data = experiment.data
    settings = experiment.park
    seed = experiment.seed
    evaluate = experiment.evaluate
    samples = load_data(experiment) if samples is None else samples
    made = build(
        samples,
        devices=settings.devices,
        factories=settings.factories,
        assignment=settings.assignment,
        partition=data.partition,
        stream=data.stream,
        seed=seed,
        validation=None if evaluate.on == "test" and not samples.task.calibrates else evaluate.validation,
        whole_devices=data.path is not None and isinstance(data.split, DeviceSplit),
        census_epsilon=settings.census_epsilon,
        mobility=settings.mobility,
        recent=evaluate.recent,
    )
    park = keeping.prepared(experiment, made)
    if evaluate.on == "validation" or (evaluate.on == "test" and not samples.task.calibrates):
        return park
    # both: the park is evaluated on the real test samples, and a park like it on those held out of training
    return replace(keeping.prepared(experiment, replace(made, dataset=samples)), validating=park)


def check_promise(park: Park) -> None:
    """Check that held-out samples are enough for what the task promises.

    Raises:
        SettingError: they are too few; the message names what they can promise.
    """
    from fedfloor.engine import calibrate

    calibrate.check(park)


def network_of(experiment: Experiment, method: ConfiguredMethod, park: Park) -> Network:
    """Return an experiment's network with the additions of its method's objective, and weights drawn by the seed."""
    from fedfloor import models

    model = experiment.model
    data = park.dataset
    adapt = adapting(data.task, method.objective)
    return models.build(
        model.name, data.shape, data.outputs, experiment.seed, model.classifier, adapt, model.init, model.settings
    )


def packet_bytes(experiment: Experiment, park: Park) -> int:
    """Return the size in bytes of a model with the additions of its objective."""
    return 4 * network_of(experiment, experiment.configured, park).flat.numel()
