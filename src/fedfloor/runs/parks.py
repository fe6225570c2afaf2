"""The park an experiment describes; made without PyTorch."""

from __future__ import annotations

from pathlib import Path

from fedfloor.data.dataset import Dataset
from fedfloor.data.own import load as load_own
from fedfloor.data.sources import load
from fedfloor.experiment import Experiment
from fedfloor.park.build import build
from fedfloor.park.park import Park


def load_data(experiment: Experiment) -> Dataset:
    """Return the data set an experiment names."""
    data, seed = experiment.data, experiment.seed
    if data.path is not None:
        return load_own(Path(data.path), data, seed)
    return load(
        data.name, root=Path(data.root) if data.root else None, devices=experiment.park.devices,
        samples_per_device=data.samples_per_device, seed=seed, reading=data, like=data.procedural,
    )  # fmt: skip


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
