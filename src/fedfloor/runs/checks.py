"""What must hold before the first round: ranks that are about to do the same, and mini-batches that fit."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import torch

from fedfloor.config import resolved
from fedfloor.engine.team import Team
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import folder
from fedfloor.runs.checkpoint import Checkpoint


def agree(
    team: Team, experiment: Experiment, park: Park, point: Checkpoint | None, start: dict[str, torch.Tensor]
) -> None:
    """Make sure that all ranks are about to do the same: hosts may differ in files, versions or folders.

    Raises:
        SettingError: they are not.
    """
    plain = replace(  # the data have a digest, and so has the first model
        experiment,
        provenance={},
        data=replace(experiment.data, root=None, path=None),
        model=replace(experiment.model, init_from=None),
    )
    mine = {
        "experiment": resolved(plain),
        "versions": {k: v for k, v in folder.provenance(park.dataset.digest).items() if k not in folder.FREE},
        "round of the last checkpoint": point.round if point else 0,
        "model": hashlib.sha256((point.state.packet if point else start)["w"].numpy().data).hexdigest(),
    }
    theirs = [json.loads(bytes(one[0])) for one in team.gather([json.dumps(mine).encode()])]
    for rank, other in enumerate(theirs):
        for what, value in other.items():
            if value != theirs[0][what]:
                raise SettingError(
                    f"rank {rank} differs from rank 0 in its {what}: {value} instead of {theirs[0][what]}. All hosts "
                    "need the same files, versions and kind of CPU, and must see the same run's folder."
                )


def batches_fit(experiment: Experiment, park: Park, largest: int) -> None:
    """Refuse mini-batches that are larger than what the smallest device holds.

    Args:
        experiment: whose partition and validation share say what to do about it.
        park: the devices.
        largest: the plan's largest mini-batch.

    Raises:
        SettingError: they do not fit.
    """
    smallest = int(park.sizes.argmin())
    if largest <= park.sizes[smallest]:
        return
    held = experiment.evaluate.validation if experiment.evaluate.on == "validation" else 0.0
    aside = " beside those held out for validation" if held else ""
    enough = math.ceil(largest / (1 - held)) + bool(held)
    kind = getattr(experiment.data.partition, "kind", "")
    larger = {"dominant": f"samples = {enough}"} | dict.fromkeys(("natural", "dirichlet"), f"at_least = {enough}")
    more = f", or ask for larger ones with the partition's {larger[kind]}" if kind in larger else ""
    name = f" ({park.names[smallest]})" if park.names else ""
    raise SettingError(
        f"work.batch_size = {largest} is larger than what device {smallest}{name} holds "
        f"({park.sizes[smallest]} samples{aside}). Lower work.batch_size, use fewer devices{more}; or let such "
        "devices train with fewer samples at a time: work.short_batches = true."
    )
