"""Plans, a method and networks in which visits train a part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedfloor.base.outside import load
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe
from fedfloor.plan.nodes import Sequence as Chain
from floor import WORK, Rememberer, visits

PART = replace(WORK, trains="classifier")


@dataclass(frozen=True)
class Alternating(Method):
    """Rounds in which everybody trains the whole model alternate with rounds that train the classifier alone."""

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        scope = "all" if view.round % 2 else "classifier"
        branches = visits(view.devices, replace(WORK, momentum=0.0, trains=scope))
        return Chain((Parallel(branches), Broadcast(tuple(view.devices), scope)))


@dataclass(frozen=True)
class Joining(Method):
    """Whoever is named in a round may hold the rest of the model already, or not."""

    @property
    def needs(self) -> Needs:
        return Needs(questions=(Probe((), "loss"),))

    def setup(self, view: View) -> Node | None:
        return Probe((0, 1), "loss")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        scope, devices = JOINING[view.round - 1]
        met = Parallel(visits(devices, replace(WORK, momentum=0.0, trains=scope)))
        return Chain((met, Broadcast((0, 1)))) if view.round == 5 else met


JOINING = (
    ("classifier", (0, 1, 2)), ("all", (0, 1, 3)), ("classifier", (0, 1)), ("classifier", (0, 1, 3)), ("all", (0, 1)),
    ("classifier", (0, 1, 2)),
)  # fmt: skip


@dataclass(frozen=True)
class Asking(Method):
    """The plans of odd rounds read the census."""

    @property
    def needs(self) -> Needs:
        return Needs(census=True, census_in=lambda number: number % 2 == 1)

    def init(self, view: View, answers: object, rng: np.random.Generator) -> State:
        assert view.census is None
        return State(view.start)

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        met = Parallel(visits(view.devices, replace(WORK, momentum=0.0)))
        if view.round % 2 == 0:
            assert view.census is None
            return met
        assert view.census is not None
        assert view.census.shape[0] == len(view.sizes)
        return Chain((Probe(tuple(view.devices), "census"), met))


@dataclass(frozen=True)
class First(Plain):
    """An objective that trains the first layer's weights alone."""

    def trains(self, network: Network) -> slice:
        return slice(0, network.parameters[0].numel())


@dataclass(frozen=True)
class Personal(Plain):
    """An objective that evaluates devices with numbers of their own."""

    @property
    def personal(self) -> bool:
        return True


@dataclass(frozen=True)
class Ridge(Plain):
    """Cross-entropy + (1/2)‖w‖² of what is trained; it notes where that begins."""

    def penalty(self, weights: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        SEEN.append((visit.first, len(weights)))
        return weights.dot(weights) / 2, weights


SEEN: list[tuple[int, int]] = []
for name in ("First", "Personal", "Ridge"):
    load(f"scoped:{name}", "objective")


class Counted(nn.Module):
    """A layer whose buffer counts the samples that it saw, in training mode or not."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x


def layered(kind: str) -> nn.Module:
    """Return a network for pictures [1, 3, 3] and three classes, whose classifier is layer "last"."""
    torch.manual_seed(0)
    body: Mapping[str, list[nn.Module]] = {
        "plain": [nn.Flatten(), nn.Linear(9, 6), nn.Tanh()],
        "dropout": [nn.Flatten(), nn.Linear(9, 6), nn.Dropout(0.5)],
        "batch norm": [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 6)],
        "buffer": [nn.Flatten(), nn.Linear(9, 6), Counted()],
    }
    net = nn.Sequential(*body[kind])
    net.add_module("last", nn.Linear(6, 3))
    return net


def convolved(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network that ends in a convolution, whose classifier nobody can tell."""
    return nn.Sequential(nn.Conv2d(shape[0], classes, shape[1:]), nn.Flatten())  # type: ignore[arg-type]


def softmaxed(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network that says logarithms of probabilities, which come after its classifier, layer 1."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes), nn.LogSoftmax(1))


def flattening(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network whose classifier, layer 1, flattens what comes in: 2 channels of 7 × 7."""
    body = nn.Conv2d(shape[0], 2, 4, stride=4)
    return nn.Sequential(body, nn.Sequential(nn.Flatten(), nn.Linear(2 * 7 * 7, classes)))


@dataclass(frozen=True)
class Keeping(Rememberer):
    """It says that devices keep something of its own; no features."""

    @property
    def remembers(self) -> bool:
        return True
