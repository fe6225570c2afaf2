"""MOON: the contrastive term by hand and by finite differences, its head, the device's memory, and μ = 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import floor
from fedfloor.base.errors import RunError
from fedfloor.models.layers import Projected
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import SHORT, Contrastive, contrast, features, frozen
from fedfloor.parts.objectives.registry import objective
from fedfloor.plan.nodes import Train, Work, device
from fedfloor.plan.schedule import Key
from floor import batch_norm, bits, dropout, park, walk
from networks import build
from refusals import refused

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)


def adapted(goal: Objective, model: str = "cnn-tutorial", classes: int = 3, side: int = 18) -> Network:
    return build(model, (1, side, side), classes, seed=0, adapt=goal.adapt)


# -- by hand -----------------------------------------------------------------------------------------------------------


def by_hand() -> tuple[Network, Tensor, Tensor]:
    """A head whose z of the sample (3, 4) is (3, 4), with flat models whose z are (4, 3) and (0, 4)."""
    network = Network(nn.Sequential(Projected(2, 2, 3)).double(), "0.classifier")
    network.flat.zero_()

    def with_projection(matrix: list[list[float]]) -> Tensor:
        flat = torch.zeros_like(network.flat)
        parts = network.named(flat)
        parts["0.hidden.weight"].copy_(torch.eye(2))
        parts["0.projection.weight"].copy_(torch.tensor(matrix))
        return flat

    network.flat.copy_(with_projection([[1, 0], [0, 1]]))
    return network, with_projection([[0, 1], [1, 0]]), with_projection([[0, 0], [0, 1]])


def test_the_term_by_hand() -> None:
    # cosines of z = (3, 4): with z_glob = (4, 3) it is (12 + 12)/25 = 0.96, with z_prev = (0, 4) it is 16/20 = 0.8;
    # ℓ = −log(e^{0.96/τ}/(e^{0.96/τ} + e^{0.8/τ})), τ = 0.5; the classifier is 0, so that the cross-entropy is log 3
    network, arrived, previous = by_hand()
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    y = torch.tensor([2])
    goal = Contrastive(mu=2.0, temperature=0.5, dim=2)
    visit = Visit(arrived, {"previous": previous}, network)
    loss, logits = goal.loss(network.module, x, y, replace(visit, per_sample=goal.per_sample(x, visit)))
    term = -math.log(math.exp(1.92) / (math.exp(1.92) + math.exp(1.6)))
    assert float(loss.detach()) == pytest.approx(math.log(3) + 2 * term, rel=1e-12)
    assert logits.tolist() == [[0.0, 0.0, 0.0]]
    # at the device's first visit the term is left out
    first = Visit(arrived, {}, network)
    assert goal.per_sample(x, first) == {}
    assert float(goal.loss(network.module, x, y, first)[0].detach()) == pytest.approx(math.log(3), rel=1e-12)


def test_a_batch_is_a_mean_of_pytorchs_cosines() -> None:
    goal = Contrastive(mu=1.5, temperature=0.2, dim=7)
    network = adapted(goal, "mlp-2nn")
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(5, 1, 18, 18, generator=rng)
    y = torch.randint(3, (5,), generator=rng)
    moved = [network.flat + 0.02 * torch.randn(network.flat.shape, generator=rng) for _ in range(2)]
    visit = Visit(moved[0], {"previous": moved[1]}, network)
    z, glob, prev = (features(visit, x, "5.classifier", model) for model in (network.flat, *moved))
    assert z.shape == (5, 7)
    cosine = torch.nn.functional.cosine_similarity
    said = torch.stack([cosine(z, glob), cosine(z, prev)], 1) / 0.2
    term = torch.nn.functional.cross_entropy(said, torch.zeros(5, dtype=torch.int64))  # how the authors write it
    plain = Plain().loss(network.module, x, y, visit)[0]
    got = goal.loss(network.module, x, y, replace(visit, per_sample=goal.per_sample(x, visit)))[0]
    # some ten roundings of 2^-24 in cosines that are divided by τ = 0.2
    assert float((got - plain).detach()) == pytest.approx(1.5 * float(term), abs=1e-5)
    assert float(term) > 0.1


@pytest.mark.parametrize("scale", [1.0, 1e-9], ids=["usual", "shorter than the floor under the norm"])
def test_the_terms_gradient_is_pytorchs(scale: float) -> None:
    rng = torch.Generator().manual_seed(2)
    z = (scale * torch.randn(6, 4, generator=rng, dtype=torch.float64)).requires_grad_()
    apart = torch.randn(6, 4, generator=rng, dtype=torch.float64)
    u = torch.nn.functional.normalize(z, dim=1, eps=SHORT)
    wanted = torch.nn.functional.softplus((u * apart).sum(1) / 0.3).mean()
    term, gradient = contrast(z.detach(), apart, 0.3)
    assert float(term) == pytest.approx(float(wanted.detach()), rel=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, z)[0], rtol=1e-10, atol=0)


@pytest.mark.parametrize("remembered", [True, False])
def test_gradients_are_finite_differences(remembered: bool) -> None:
    goal = Contrastive(mu=0.8, temperature=0.5, dim=3)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    network = Network(*goal.adapt(body, "3", 3, (2, 3, 3)))
    network = Network(network.module.double(), network.classifier)
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(5, 2, 3, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (5,), generator=rng)
    arrived, last = (
        network.flat + 0.3 * torch.randn(network.flat.shape, generator=rng, dtype=torch.float64) for _ in range(2)
    )
    visit = Visit(arrived, {"previous": last} if remembered else {}, network)
    visit = replace(visit, per_sample=goal.per_sample(x, visit))

    def total() -> Tensor:
        return goal.loss(network.module, x, y, visit)[0]

    gradient = torch.zeros_like(network.flat)
    for into, one in zip(network.views(gradient), torch.autograd.grad(total(), network.parameters), strict=True):
        into.copy_(one)
    for i in range(network.trained):
        at = float(network.flat[i])
        ends = []
        for step in (1e-6, -1e-6):
            network.flat[i] = at + step
            ends.append(float(total().detach()))
        network.flat[i] = at
        # rounding makes some 1e-16/1e-6 of a loss of about 2
        assert float(gradient[i]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=2e-9)


# -- the head ----------------------------------------------------------------------------------------------------------


def test_the_head_replaces_the_classifier() -> None:
    plain = build("cnn-tutorial", (1, 28, 28), 62, seed=0)
    network = adapted(Contrastive(), classes=62, side=28)
    head = {
        "11.hidden.weight": (64, 64), "11.hidden.bias": (64,), "11.projection.weight": (256, 64),
        "11.projection.bias": (256,), "11.classifier.weight": (62, 256), "11.classifier.bias": (62,),
    }  # fmt: skip
    was = plain.state(plain.flat)
    now = network.state(network.flat)
    assert [name for name in now if name not in head] == [name for name in was if not name.startswith("11.")]
    assert {name: tuple(one.shape) for name, one in now.items() if name in head} == head
    assert all(bits(now[name]) == bits(one) for name, one in was.items() if not name.startswith("11."))
    assert network.classifier == "11.classifier"
    assert network.classifier_parameters == 62 * 257


class Named(nn.Module):
    """A network whose last layer is not a linear layer."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(shape[0], classes, shape[1])
        self.classifier = "head"

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits.flatten(1)


def convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Named(shape, classes)


def nameless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(shape[0], classes, shape[1]), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("test_parts_contrastive:convolution", "objective"),
        ("test_parts_contrastive:nameless", "objective"),
    ],
)
def test_a_network_without_a_linear_classifier_is_refused(model: str, said: str) -> None:
    with refused(said):
        adapted(Contrastive(), model)


def test_a_network_built_for_another_objective_is_refused(tmp_path: Path) -> None:
    of = floor.adapted(park(), Plain(), folder=tmp_path)
    with refused("objective"):
        walk(of, Train(device(0), Work(objective="contrastive", epochs=1)))


@pytest.mark.parametrize("make", [batch_norm, dropout], ids=["batch norm", "dropout"])
def test_features_are_the_starts_in_evaluation_mode_and_leave_no_trace(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    module = make((2, 3, 3), 3)
    path = str(len(module) - 1)  # type: ignore[arg-type]
    network = Network(module, path)
    x = torch.randn(5, 2, 3, 3).contiguous(memory_format=torch.channels_last)
    module.eval()
    expected = module[:-1](x).detach()  # type: ignore[index]
    logits = module(x).detach()  # type: ignore[index]
    arrived = network.flat.clone()
    network.flat.mul_(1.5)
    module.train()
    before = (bits(arrived), bits(network.flat), torch.random.get_rng_state().tolist())
    views = [parameter.data_ptr() for parameter in module.parameters()]
    got = features(Visit(arrived, {}, network), x, path)
    assert bits(got) == bits(expected)
    assert not got.requires_grad
    assert module.training
    assert [parameter.data_ptr() for parameter in module.parameters()] == views
    assert (bits(arrived), bits(network.flat), torch.random.get_rng_state().tolist()) == before
    assert bits(frozen(Visit(arrived, {}, network), x)) == bits(logits)  # no hook was left behind


def test_features_of_a_layer_that_is_not_called() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(2, 2)
            self.idle = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            said: Tensor = self.used(x)
            return said

    network = Network(Skips())
    with refused("layer", RunError):
        features(Visit(network.flat.clone(), {}, network), torch.zeros(1, 2), "idle")


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mu": -1.0}, "objective contrastive: mu"),
        ({"mu": math.inf}, "objective contrastive: mu"),
        ({"temperature": 0.0}, "objective contrastive: temperature"),
        ({"dim": 0}, "objective contrastive: dim"),
        ({"dim": 2.5}, "part-settings"),
    ],
)
def test_settings_are_checked(settings: dict[str, float], said: str) -> None:
    with refused(said):
        objective("contrastive", settings)
