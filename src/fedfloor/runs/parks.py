"""The park an experiment describes; made without PyTorch."""

from __future__ import annotations

from pathlib import Path

from fedfloor.data.own import load as load_own
from fedfloor.data.sources import load
from fedfloor.experiment import Experiment
from fedfloor.park.build import build
from fedfloor.park.park import Park


def build_park(experiment: Experiment) -> Park:
    """Return the park an experiment describes."""
    data, park, seed, evaluate = experiment.data, experiment.park, experiment.seed, experiment.evaluate
    if data.path is not None:
        dataset = load_own(Path(data.path), data, seed)
    else:
        root = Path(data.root) if data.root else None
        made = data.samples_per_device
        dataset = load(
            data.name, root=root, devices=park.devices, samples_per_device=made, seed=seed, reading=data,
            like=data.procedural,
        )  # fmt: skip
    return build(
        dataset,
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
