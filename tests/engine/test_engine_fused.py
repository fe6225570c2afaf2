"""Large layers that take their own steps: the same steps, but for rounding, and only where they are the same."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedfloor.engine import steps
from fedfloor.engine.engine import Samples
from fedfloor.engine.visit import train
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.parts.objectives.registry import objective
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from floor import extended

WORK = Work(epochs=2, batch_size=5, rate=0.05)
KEY = Key(0, 1, 0, 0, 0)


def network(*, double: bool = False, first: int = 30) -> Network:
    """Return in–30–1100–1000–4: one layer of 1.1 million numbers, and another before it that is none."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, first), nn.ReLU(), nn.Linear(first, 1100), nn.Linear(1100, 1000), nn.Linear(1000, 4)]
    module = nn.Sequential(nn.Flatten(), *layers)
    return Network(module.double() if double else module)


def samples(kind: torch.dtype) -> Samples:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (23, 1, 4, 4), dtype=np.uint8)
    y = rng.integers(0, 4, 23)
    zero = torch.zeros(1, dtype=kind)
    one = torch.ones(1, dtype=kind)
    return Samples(x, y, zero, one, scale=1 / 255, channels_last=False)


def after(net: Network, *, shortcuts: bool, work: Work = WORK) -> tuple[torch.Tensor, list[float]]:
    got = train(net, samples(net.flat.dtype), work, Plain(), Visit(None, {}), KEY, shortcuts=shortcuts)
    return net.flat.clone(), [got.loss_first, got.loss_last, got.accuracy]


def test_a_visit_ends_with_the_same_model_but_for_rounding() -> None:
    # ten steps; float64 adds and multiplies to 2.2e-16, over sums of a thousand terms
    (plain, said), (ours, told) = (after(network(double=True), shortcuts=one) for one in (False, True))
    start = network(double=True)
    assert not ours.equal(start.flat)
    assert float((ours - plain).abs().max()) < 1e-12
    assert told == pytest.approx(said, abs=1e-10)
    assert [len(steps.large_layers(start, WORK, Plain()))] == [1]
    moved = (ours - start.flat).abs().split([p.numel() for p in start.parameters])
    assert all(float(one.max()) > 0 for one in moved)  # of every layer


def test_layers_are_as_before_afterwards() -> None:
    net = network()
    after(net, shortcuts=True)
    assert all("forward" not in vars(one) for one in net.module.modules())


def test_where_a_gradient_is_wanted_there_is_one() -> None:
    net = network()
    assert steps.large_layers(net, WORK, Plain())
    assert not steps.large_layers(net, replace(WORK, momentum=0.9), Plain())
    assert not steps.large_layers(net, replace(WORK, weight_decay=0.1), Plain())
    assert not steps.large_layers(net, replace(WORK, trains="classifier"), Plain())
    assert not steps.large_layers(net, WORK, objective("prox", {"mu": 0.1}))
    assert not steps.large_layers(net, extended(WORK), Plain())  # a field that is not known may need it


def test_the_first_layer_writes_its_gradient_down() -> None:
    """Nothing before it needs one, and the backward pass would not get that far."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 70000), nn.ReLU(), nn.Linear(70000, 16))
    twin = Network(copy.deepcopy(module))
    net = Network(module)
    assert steps.large_layers(net, WORK, Plain()) == [module[3]]
    one_step = replace(WORK, epochs=None, steps=1)
    plain = after(twin, shortcuts=False, work=one_step)[0]
    ours = after(net, shortcuts=True, work=one_step)[0]
    assert float((ours - plain).abs().max()) <= 1e-6 * float(plain.abs().max())


def test_a_layer_that_stands_twice_writes_its_gradient_down() -> None:
    square = nn.Linear(1100, 1100)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 1100), square, nn.ReLU(), square, nn.Linear(1100, 4))
    assert not steps.large_layers(Network(net), WORK, Plain())


def test_layers_that_share_their_weights_write_their_gradient_down() -> None:
    """The second one steps first in the backward pass, and the first one would go on with the new weights."""
    one, other = nn.Linear(1100, 1100), nn.Linear(1100, 1100)
    other.weight = one.weight
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 1100), one, nn.ReLU(), other, nn.Linear(1100, 4))
    assert not steps.large_layers(Network(net), WORK, Plain())


class Twice(nn.Sequential):
    """A chain of one's own that asks its large layer twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self[1]
        square = self[2]
        last = self[3]
        answer: torch.Tensor = last(square(square(first(self[0](x))).relu()))
        return answer


def test_a_chain_with_a_forward_of_its_own_writes_its_gradients_down() -> None:
    net = Network(Twice(nn.Flatten(), nn.Linear(16, 1100), nn.Linear(1100, 1100), nn.Linear(1100, 4)))
    assert not steps.large_layers(net, WORK, Plain())


def test_a_normalised_weight_is_no_parameter_and_takes_no_step_of_its_own() -> None:
    large = nn.utils.spectral_norm(nn.Linear(1100, 1000))
    net = Network(nn.Sequential(nn.Flatten(), nn.Linear(16, 1100), large, nn.Linear(1000, 4)))
    assert not steps.large_layers(net, WORK, Plain())


def test_a_large_layer_of_rows_takes_the_same_step() -> None:
    """Samples are four rows of four numbers: the layer is asked for [batch, 4, 1100]."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 1100), nn.ReLU(), nn.Linear(1100, 1000), nn.Flatten(), nn.Linear(4000, 4)]
    module = nn.Sequential(nn.Flatten(1, 2), *layers).double()
    twin = Network(copy.deepcopy(module))
    net = Network(module)
    assert len(steps.large_layers(net, WORK, Plain())) == 1
    plain = after(twin, shortcuts=False)[0]
    ours = after(net, shortcuts=True)[0]
    assert float((ours - plain).abs().max()) < 1e-12
