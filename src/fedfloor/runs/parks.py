"""The park an experiment describes; made without PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fedfloor.data.dataset import Dataset
from fedfloor.data.own import load as load_own
from fedfloor.data.sources import load
from fedfloor.experiment import Experiment
from fedfloor.park.build import build
from fedfloor.park.described import class_gaps
from fedfloor.park.park import Park

log = logging.getLogger(__name__)
NAMED = 10  # classes in a warning


def load_data(experiment: Experiment) -> Dataset:
    """Return the data set an experiment names."""
    data, seed = experiment.data, experiment.seed
    if data.path is not None:
        return load_own(Path(data.path), data, seed)
    return load(
        data.name, root=Path(data.root) if data.root else None, devices=experiment.park.devices,
        samples_per_device=data.samples_per_device, seed=seed, reading=data, like=data.procedural,
    )  # fmt: skip


def announced_park(experiment: Experiment) -> Park:
    """Return the park an experiment describes, with a warning where training and test data have other classes."""
    park = build_park(experiment)
    warn_of_gaps(park)
    return park


def warn_of_gaps(park: Park) -> None:
    """Warn of classes that only the test data or only the training data have, by name."""
    untrained, untested = class_gaps(park)
    name = park.dataset.name
    if untrained:
        log.warning(
            "%s: %s of %s test samples are of classes that no training sample has, and will all be wrong: %s. A split "
            'by time leaves the end of each recording for testing; split = { kind = "device" } under [data] keeps '
            "whole recordings for it.",
            name, f"{sum(untrained.values()):,}", f"{park.test_samples:,}", _listed(untrained),
        )  # fmt: skip
    if untested:
        log.warning("%s: no test sample is of a class that training samples have, so that nothing shows how well it "
                    "is learnt: %s.", name, _listed(dict.fromkeys(untested)))  # fmt: skip


def _listed(classes: Mapping[str, int | None]) -> str:
    shown = [f"'{name}'" + ("" if count is None else f" ({count:,})") for name, count in classes.items()]
    return ", ".join(shown[:NAMED]) + (f" and {len(shown) - NAMED} more" if len(shown) > NAMED else "")


def build_park(experiment: Experiment) -> Park:
    """Return the park an experiment describes."""
    data, park, seed, evaluate = experiment.data, experiment.park, experiment.seed, experiment.evaluate
    return build(
        load_data(experiment),
        devices=park.devices,
        factories=park.factories,
        assignment=park.assignment,
        partition=data.partition,
        stream=data.stream,
        seed=seed,
        validation=evaluate.validation if evaluate.on == "validation" else None,
        census_epsilon=park.census_epsilon,
        mobility=park.mobility,
    )
