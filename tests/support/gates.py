"""What the tests of gated units share: a network whose extractor behaves otherwise in training, with a gated head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.models.network import Network
from fedfloor.park.park import Park
from fedfloor.parts.objectives.layers import Gated
from fedfloor.plan.nodes import Work

FROZEN = Work(objective="gated", settings={"layers": 1, "units": 4}, epochs=2, batch_size=4, rate=0.2, momentum=0.5)
WARM = replace(FROZEN, settings={"layers": 1, "units": 4, "frozen": False})


def body(classes: int = 3) -> nn.Sequential:
    """A network for samples 1×3×3 whose extractor behaves otherwise in training: batch norm and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, classes)
    )


def gated(here: Park, folder: Path | None = None, goal: Gated | None = None) -> Engine:
    """An engine whose network has a gated head in the place of its classifier."""
    module, path = (goal or Gated(1, 4)).adapt(body(), "5", 3, ())
    return Engine(here, Network(module, path), Alone(), DeviceMemory(folder), seed=0)


def columns(of: Engine, model: Tensor) -> Tensor:
    """The columns in a flat model: 2·4 of the layer and 3 of the last one, at the end of what is trained."""
    return model[of.network.trained - 11 : of.network.trained]
