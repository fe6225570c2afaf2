"""Chains of layers written out: losses, logits and gradients are those of automatic differentiation, to the bit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

from fedfloor import models
from fedfloor.engine import chain
from fedfloor.engine.engine import Samples
from fedfloor.engine.visit import VisitStats, train
from fedfloor.models.layers import Asinh, Projected, Soft
from fedfloor.models.network import Network
from fedfloor.models.zoo import LISTED_ON, REPRODUCING
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import Represented
from fedfloor.parts.objectives.registry import objective
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key

KEY = Key(0, 1, 0, 0, 0)
Said = tuple[Tensor, Tensor, Tensor]


def by_pytorch(net: Network, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Said:
    """Return losses, logits and the flat gradient, by automatic differentiation."""
    torch.manual_seed(7)
    logits = net.module(x)
    losses = cross_entropy(logits, y, reduction="mean" if weights is None else "none")
    gradients = torch.autograd.grad(losses, net.parameters, grad_outputs=weights)
    return losses.detach(), logits.detach(), flattened(net, gradients)


def written_out(net: Network, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Said:
    torch.manual_seed(7)
    one = chain.chain_of(net)
    assert one is not None
    loss, logits, gradients = one.mean(x, y) if weights is None else one.weighted(x, y, weights)
    return loss, logits, flattened(net, gradients)


def flattened(net: Network, gradients: Sequence[Tensor]) -> Tensor:
    flat = torch.zeros_like(net.flat)
    for view, gradient in zip(net.views(flat), gradients, strict=True):
        view.copy_(gradient)
    return flat


def alike(net: Network, x: Tensor, classes: int) -> None:
    """Compare a network's step both ways, on mini-batches of several sizes."""
    net.module.train()
    before = x.clone()
    for size in {1, min(2, len(x)), len(x)}:
        y = torch.arange(size) % classes
        for weights in (None, torch.linspace(0.0, 1.0, size)):
            wanted = by_pytorch(net, x[:size], y, weights)
            got = written_out(net, x[:size], y, weights)
            assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert torch.equal(x, before)


def pictures(net: Network, shape: Sequence[int], many: int) -> Tensor:
    x = torch.randn(many, *shape)
    return x.contiguous(memory_format=torch.channels_last) if net.channels_last else x


# other layers: PyTorch's way back
SERIES = {
    "mlp-window", "cnn-window", "cnn-sensor", "cnn-sensor-gn", "cnn-sensor-bn", "tcn", "lstm", "gru", "transformer",
    *REPRODUCING[2],
}  # fmt: skip


@pytest.mark.parametrize("model", [name for name in LISTED_ON if name not in SERIES])
def test_the_networks_of_the_papers(model: str) -> None:
    shape, classes = LISTED_ON[model]
    net = models.build(model, shape, classes, seed=0)
    alike(net, pictures(net, shape, 5), classes)
    one = chain.chain_of(net)
    assert one is not None
    assert all(bool(gradient.any()) for gradient in one.mean(pictures(net, shape, 5), torch.arange(5))[2])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 33), min_size=2, max_size=5), st.integers(1, 40), st.integers(0, 9))
def test_fully_connected_networks_of_any_width(widths: list[int], many: int, seed: int) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net = Network(nn.Sequential(*layers[:-1]))
    alike(net, torch.randn(many, widths[0]), widths[-1])


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.Conv2d(2, 4, (3, 2), dilation=(2, 1)), nn.MaxPool2d((3, 2), stride=(1, 2), padding=1), nn.Dropout(0.3)),
        (nn.ReLU(), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Dropout(0.0), nn.ReLU()),
        (nn.Conv2d(2, 1, 3), nn.ReLU(), nn.Conv2d(1, 3, 1)),
        (nn.Conv2d(2, 1, 3), nn.ReLU(inplace=True), nn.Conv2d(1, 3, 1)),
        (nn.Flatten(), nn.ReLU(), nn.Linear(162, 7), nn.ReLU()),
        (nn.Flatten(), nn.Linear(162, 7), Asinh()),
        (nn.Flatten(), nn.Linear(162, 7), Soft()),
        (nn.Dropout(0.2), nn.MaxPool2d(3, dilation=2), nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 2)),
    ],
)
def test_layers_with_settings_of_their_own(layers: tuple[nn.Module, ...]) -> None:
    torch.manual_seed(0)
    width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, 2, 9, 9)).shape[1]
    net = Network(nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 5)))
    alike(net, pictures(net, (2, 9, 9), 17), 5)


# -- a visit -----------------------------------------------------------------------------------------------------------


SETTINGS = {"prox": {"mu": 0.5}, "contrastive": {"mu": 1.0, "dim": 7}}


def built(model: str, goal: str) -> Network:
    return models.build(model, (1, 28, 28), 4, seed=0, adapt=objective(goal, SETTINGS.get(goal, {})).adapt)


def trained(net: Network, work: Work, goal: str, shape: tuple[int, ...]) -> tuple[Tensor, VisitStats]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (23, *shape), dtype=np.uint8)
    y = rng.integers(0, 4, 23)
    data = Samples(x, y, torch.zeros(1), torch.ones(1), scale=1 / 255, channels_last=net.channels_last)
    visit = Visit(net.flat.clone(), {"previous": net.flat.mul(1.1)}, net)
    got = train(net, data, work, objective(goal, SETTINGS.get(goal, {})), visit, KEY)
    return net.flat.clone(), got


@pytest.mark.parametrize("model", ["mlp-2nn", "cnn-fldg-mnist"])
@pytest.mark.parametrize(
    ("work", "goal"),
    [
        (Work(epochs=2, batch_size=5, rate=0.05), "plain"),
        (Work(epochs=2, batch_size=5, rate=0.05, momentum=0.5, weight_decay=0.01), "plain"),
        (Work(epochs=None, steps=3, batch_size=8, rate=0.05, weight_decay=0.01), "plain"),
        (Work(epochs=2, batch_size=5, rate=0.05), "prox"),
        (Work(epochs=1, batch_size=5, rate=0.05, momentum=0.9), "prox"),
        (Work(epochs=2, batch_size=5, rate=0.05, momentum=0.5), "contrastive"),
    ],
)
def test_a_visit_ends_with_the_same_model_and_says_the_same(
    model: str, work: Work, goal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    asked = chain.Chain.mean
    monkeypatch.setattr(chain.Chain, "mean", lambda *some: (ways.append("written"), asked(*some))[1])
    got = trained(built(model, goal), work, goal, (1, 28, 28))
    assert ways
    del ways[:]
    monkeypatch.setattr(chain, "chain_of", lambda _: None)
    wanted = trained(built(model, goal), work, goal, (1, 28, 28))
    assert not ways
    assert torch.equal(got[0], wanted[0])
    assert got[1] == wanted[1]


class Pull(Represented):
    def term(self, z: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        return z.square().sum() / 2, z


class Untouched(Pull):
    loss = Plain.loss


@pytest.mark.parametrize(
    ("classifier", "goal", "times", "plain"),
    [("4", Pull(), 5, False), ("4", Untouched(), 5, True), ("1", Pull(), 0, True)],
    ids=["of the last layer", "a loss without it", "of another layer"],  # data go into the first: nothing is moved
)
def test_a_term_of_what_goes_into_the_classifier(
    classifier: str, goal: Objective, times: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    asked = chain.Chain.mean
    monkeypatch.setattr(chain.Chain, "mean", lambda *some: (ways.append("written"), asked(*some))[1])
    data = Samples(
        np.eye(5, 4, dtype=np.uint8),
        np.zeros(5, np.int64),
        torch.zeros(1),
        torch.ones(1),
        scale=1.0,
        channels_last=False,
    )

    def visit(goal: Objective) -> tuple[Tensor, VisitStats]:
        torch.manual_seed(0)
        net = Network(sequence(nn.Linear(4, 9), nn.ReLU(), nn.Dropout(0.4), nn.Linear(9, 2)), classifier)
        said = train(net, data, Work(epochs=1, batch_size=1, rate=0.1), goal, Visit(None, {}, net), KEY)
        return net.flat, said

    got = visit(goal)
    usual = visit(Plain())[0]
    assert len(ways) == times + 5
    assert torch.equal(got[0], usual) == plain
    monkeypatch.setattr(chain, "chain_of", lambda _: None)
    differentiated = visit(goal)
    assert torch.equal(got[0], differentiated[0])
    assert got[1] == differentiated[1]


def test_a_part_of_the_model_is_trained_by_automatic_differentiation() -> None:
    net = models.build("mlp-2nn", (1, 28, 28), 4, seed=0)
    start = net.flat.clone()
    trained(net, Work(epochs=1, batch_size=5, rate=0.05, trains="classifier"), "plain", (1, 28, 28))
    part = net.span(net.classifier or "")[0]
    assert torch.equal(net.flat[: part.start], start[: part.start])
    assert not torch.equal(net.flat[part], start[part])


# -- what is no chain --------------------------------------------------------------------------------------------------


class Louder(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Noise(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Taller(Projected):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def sequence(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *layers)


def changed(how: Callable[[nn.Sequential], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        module = sequence(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
        how(module)
        return module

    return make


def tied(module: nn.Sequential) -> None:
    module[3].weight = module[1].weight = nn.Parameter(torch.eye(4)[:, :4])
    module[1].bias = nn.Parameter(torch.zeros(4))
    module[3].bias = nn.Parameter(torch.zeros(4))


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a hook before": lambda m: m[1].register_forward_pre_hook(lambda *_: None),
    "a hook after": lambda m: m[1].register_forward_hook(lambda *_: None),
    "a hook on the way back": lambda m: m[2].register_full_backward_hook(lambda *_: None),
    "a hook of a gradient": lambda m: m[1].weight.register_hook(lambda g: 0 * g),
    "a layer's own forward": lambda m: setattr(m[1], "forward", torch.sin),
    "a layer that is never trained": lambda m: setattr(m[2], "train", lambda _=True: m[2]),
    "a frozen parameter": lambda m: m[1].weight.requires_grad_(requires_grad=False),
    "a parameter of the whole": lambda m: m.register_parameter("scale", nn.Parameter(torch.ones(3))),
    "parameters of two layers": tied,
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_layer_does_beside_makes_no_chain(what: str) -> None:
    assert chain.chain_of(Network(changed(lambda _: None)())) is not None
    assert chain.chain_of(Network(changed(CHANGES[what])())) is None


def shared() -> nn.Module:
    one = nn.Linear(4, 4)
    return sequence(one, nn.ReLU(), one)


@pytest.mark.parametrize(
    "module",
    [
        shared(),
        sequence(Louder(4, 3)),
        sequence(Noise(0.0), nn.Linear(4, 3)),
        sequence(nn.Linear(4, 3, bias=False)),
        sequence(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 3)),
        sequence(nn.ReLU(inplace=True), nn.Linear(4, 3)),
        sequence(nn.Linear(4, 3), nn.ReLU()),
        sequence(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)),
        sequence(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        sequence(nn.Sequential(nn.Linear(4, 3)), nn.Linear(3, 3)),
        sequence(nn.Dropout(1.0), nn.Linear(4, 3)),
        sequence(nn.Dropout(0.5, inplace=True), nn.Linear(4, 3)),
        sequence(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
        sequence(nn.Linear(4, 3)).double(),
        nn.Sequential(nn.Linear(4, 3)),  # of rows or of windows
        nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(15, 3)),
        nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(6, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 3)),
        sequence(Taller(4, 3, 2)),
        nn.Linear(4, 3),
    ],
    ids=str,
)
def test_layers_that_make_no_chain(module: nn.Module) -> None:
    assert chain.chain_of(Network(module)) is None


def test_a_projection_head_is_part_of_a_chain_unless_somebody_looks_into_it() -> None:
    net = Network(sequence(Projected(4, 3, 2)))
    alike(net, torch.randn(7, 4), 2)
    head = net.module[1]
    assert isinstance(head, Projected)
    head.projection.register_forward_hook(lambda *_: None)
    assert chain.chain_of(net) is None


def test_a_network_is_built_once_and_again_when_somebody_changes_it() -> None:
    net = models.build("cnn-fldg-mnist", (1, 28, 28), 3, seed=0)
    first = chain.chain_of(net)
    assert first is chain.chain_of(net) is not None
    dropout = net.module[4]
    assert isinstance(dropout, nn.Dropout)
    dropout.p = 0.1
    assert chain.chain_of(net) is not first
    alike(net, pictures(net, (1, 28, 28), 4), 3)
    hook = net.module[0].register_forward_hook(lambda *_: None)
    assert chain.chain_of(net) is None
    hook.remove()
    assert chain.chain_of(net) is not None


def test_parameters_in_another_order_make_no_chain() -> None:
    layer = nn.Linear(6, 5)
    prune.random_unstructured(layer, "weight", 0.5)
    prune.remove(layer, "weight")
    assert list(layer._parameters) == ["bias", "weight"]
    assert chain.chain_of(Network(sequence(layer, nn.ReLU(), nn.Linear(5, 3)))) is None


def test_nothing_of_a_mini_batch_is_kept() -> None:
    net = models.build("cnn-small", (1, 28, 28), 3, seed=0)
    x = pictures(net, (1, 28, 28), 4)
    seen = weakref.ref(x)
    written_out(net, x, torch.arange(4) % 3)
    del x
    assert seen() is None
