"""FedFusion: the operators by hand and by finite differences, where they go, what they leave alone, and the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import floor
from fedfloor.base.errors import SettingError
from fedfloor.engine.visit import train
from fedfloor.methods.fedfusion import FedFusion
from fedfloor.models.layers import Fused, Gate, Mixture, fused
from fedfloor.models.network import Network
from fedfloor.parts.objectives.layers import OPERATORS, Fusion
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.registry import objective, to_spec
from fedfloor.plan.nodes import Train, Work, device
from fedfloor.plan.schedule import Key
from floor import bits, park, start, walk
from networks import build
from refusals import refused

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)
SHAPE = (1, 18, 18)


def adapted(goal: Objective, model: str = "cnn-tutorial", shape: tuple[int, ...] = SHAPE, classes: int = 3) -> Network:
    return build(model, shape, classes, seed=0, adapt=goal.adapt)


# -- the operators -----------------------------------------------------------------------------------------------------


def test_gates_by_hand() -> None:
    # two channels of two pixels: γ = (1/4, 1) gives (1/4)·y + (3/4)·x of the first and y of the second channel
    x = torch.tensor([[[4.0, 8.0], [1.0, 2.0]]])
    y = torch.tensor([[[0.0, 4.0], [5.0, 6.0]]])
    multi = Gate(2)
    single = Gate(1)
    assert multi.gamma.tolist() == [0.0, 0.0]
    assert bits(multi(x, y)) == bits(x)
    multi.gamma.data.copy_(torch.tensor([0.25, 1.0]))
    assert multi(x, y).tolist() == [[[3.0, 7.0], [5.0, 6.0]]]
    single.gamma.data.fill_(0.5)
    assert single(x, y).tolist() == [[[2.0, 6.0], [3.0, 4.0]]]
    # vectors have one number per channel
    assert multi(torch.tensor([[4.0, 1.0]]), torch.tensor([[0.0, 5.0]])).tolist() == [[3.0, 5.0]]


@pytest.mark.parametrize("sides", [(), (2,), (2, 1), (1, 2, 1)], ids=str)
def test_a_mixture_by_hand(sides: tuple[int, ...]) -> None:
    # one channel, W = (2, 3), b = 1: 2x + 3y + 1
    mixture = Mixture(1, 2 + len(sides))
    for parameter in mixture.parameters():
        parameter.data.fill_(1.0)
    weight = next(mixture.parameters())
    weight.data[:, 0] = 2.0
    weight.data[:, 1] = 3.0
    x = torch.full((2, 1, *sides), 5.0)
    y = torch.full((2, 1, *sides), 7.0)
    assert mixture(x, y).tolist() == torch.full((2, 1, *sides), 32.0).tolist()


def test_the_loss_uses_the_arrived_models_features() -> None:
    # x = 2·v, y = 6·v (v = 1), γ = 1/4: z = 2 + (1/4)·4 = 3, logits (3, 0) and label 0: log(1 + e^{−3})
    body = nn.Sequential(nn.Linear(1, 1, bias=False), Fused(nn.Linear(1, 2, bias=False), Gate(1)))
    network = Network(body.double(), "1.layer")
    names = [name for name, _ in body.named_parameters()]
    assert names == ["0.weight", "1.layer.weight", "1.fusion.gamma"]
    network.flat.copy_(torch.tensor([2.0, 1.0, 0.0, 0.25]))
    arrived = torch.tensor([6.0, 9.0, 9.0, 0.9], dtype=torch.float64)  # only what makes the features matters
    goal = Fusion("single")
    visit = Visit(arrived, {}, network)
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.tensor([0])
    about = replace(visit, per_sample=goal.per_sample(x, visit))
    assert about.per_sample["other"].tolist() == [[6.0]]
    loss, logits = goal.loss(network.module, x, y, about)
    assert logits.tolist() == [[3.0, 0.0]]
    assert float(loss.detach()) == pytest.approx(float(torch.log1p(torch.tensor(-3.0).double().exp())), rel=1e-12)
    assert fused(network.module)[1].other is None
    assert network.module(x).tolist() == [[2.0, 0.0]]  # on its own, y = x
    with pytest.raises(RuntimeError):
        goal.loss(network.module, torch.ones(1, 7, dtype=torch.float64), y, about)
    assert fused(network.module)[1].other is None  # whatever happens


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("layer", [None, "4"], ids=["before flattening", "vectors"])
def test_gradients_are_finite_differences(operator: str, layer: str | None) -> None:
    goal = objective("fusion", {"operator": operator, "layer": layer})
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Tanh(), nn.Linear(12, 3))
    network = Network(*goal.adapt(body, "4", 3, (2, 3, 3)))
    network = Network(network.module.double(), network.classifier)
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(5, 2, 3, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (5,), generator=rng)
    arrived = network.flat + 0.3 * torch.randn(network.flat.shape, generator=rng, dtype=torch.float64)
    network.flat.add_(0.1 * torch.randn(network.flat.shape, generator=rng, dtype=torch.float64))  # γ is not 0 either
    visit = Visit(arrived, {}, network)
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
        # rounding makes some 1e-16/1e-6 of a loss of about 1
        assert float(gradient[i]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=2e-9)


# -- where they go -----------------------------------------------------------------------------------------------------


def conv(path: str, channels: int, *more: int) -> dict[str, tuple[int, ...]]:
    return {f"{path}.fusion.mix.weight": (channels, *more), f"{path}.fusion.mix.bias": (channels,)}


@pytest.mark.parametrize(
    ("model", "shape", "operator", "layer", "names", "classifier"),
    [
        ("cnn-tutorial", SHAPE, "multi", None, {"8.fusion.gamma": (64,)}, "11"),
        ("cnn-tutorial", SHAPE, "single", None, {"8.fusion.gamma": (1,)}, "11"),
        ("cnn-tutorial", SHAPE, "conv", None, conv("8", 64, 128, 1, 1), "11"),
        ("cnn-tutorial", SHAPE, "multi", "11", {"11.fusion.gamma": (64,)}, "11.layer"),
        ("cnn-tutorial", SHAPE, "multi", "3", {"3.fusion.gamma": (32,)}, "11"),
        ("mlp-2nn", (1, 3, 3), "multi", None, {"5.fusion.gamma": (200,)}, "5.layer"),
        ("mlp-2nn", (1, 3, 3), "conv", None, conv("5", 200, 400), "5.layer"),
        ("cnn-sensor", (4, 9), "multi", None, {"8.fusion.gamma": (64,)}, "9"),
        ("cnn-sensor", (4, 9), "conv", None, conv("8", 64, 128, 1, 1), "9"),
    ],
)  # fmt: skip
def test_where_the_operator_goes(
    model: str, shape: tuple[int, ...], operator: str, layer: str | None, names: Mapping[str, object], classifier: str
) -> None:
    plain = build(model, shape, 3, seed=0)  # type: ignore[arg-type]
    network = adapted(Fusion(operator, layer), model, shape)  # type: ignore[arg-type]
    was = plain.state(plain.flat)
    now = network.state(network.flat)
    assert {name: tuple(one.shape) for name, one in now.items() if ".fusion." in name} == names
    kept = {name.replace(".layer", ""): one for name, one in now.items() if name not in names}
    assert {name: bits(one) for name, one in kept.items()} == {name: bits(one) for name, one in was.items()}
    assert network.classifier == classifier
    assert network.classifier_parameters == plain.classifier_parameters


class Block(nn.Module):
    """A network whose forward flattens by itself, with a layer that is called twice and one that is never."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(shape[0], 2, shape[1])
        self.act = nn.Tanh()
        self.unused = nn.Identity()
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(2, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.act(self.act(self.body(x)).flatten(1)))
        return logits


def block(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Block(shape, classes)


def nameless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(9, 4), nn.Unflatten(1, (4, 1)), nn.Conv1d(4, classes, 1), nn.Flatten(1)
    )


def test_a_network_of_ones_own() -> None:
    network = adapted(Fusion(), "test_parts_fusion:block", (1, 3, 3))
    assert [name for name in network.state(network.flat) if name.endswith("gamma")] == ["head.1.fusion.gamma"]
    assert network.classifier == "head.1.layer"
    # a layer with the classifier inside it
    network = adapted(Fusion(layer="head"), "test_parts_fusion:block", (1, 3, 3))
    assert network.classifier == "head.layer.1"
    assert network.classifier_parameters == 9
    # without a known classifier flattening is found, the one that trained layers feed
    assert fused(adapted(Fusion(), "test_parts_fusion:nameless", (1, 3, 3)).module)[0] == "4"


@pytest.mark.parametrize(
    ("model", "layer", "said"),
    [
        ("logistic", None, "this network has no features to fuse: no trained layer before"),
        ("logistic", "0", "layer = '0' has no trained layer before it"),
        ("mlp-2nn", "head", "layer = 'head': model 'Sequential' has no such layer."),
        ("mlp-2nn", "", "layer = '': model 'Sequential' has no such layer."),
        ("test_parts_fusion:block", "act", "layer = 'act' is called 2 times in a forward pass, and it must be once."),
        ("test_parts_fusion:block", "unused", "layer = 'unused' is called 0 times"),
    ],
)
def test_networks_and_layers_that_do_not_fit(model: str, layer: str | None, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        adapted(Fusion(layer=layer), model, (1, 3, 3))
    assert f"objective fusion: {said}" in str(caught.value)


def test_a_network_built_for_another_objective_is_refused() -> None:
    of = floor.adapted(park(), Plain())
    with refused("objective"):
        walk(of, Train(device(0), Work(objective="fusion", epochs=1)))


def test_settings() -> None:
    with refused("part-settings"):
        objective("fusion", {"operator": "mul"})
    with refused("unknown operator of objective fusion"):
        Fusion("mult")  # type: ignore[arg-type]
    for smoothing in (1.0, -0.1):
        with refused("methods.fedfusion.smoothing"):
            FedFusion(smoothing=smoothing)
    assert to_spec(Fusion("conv", "3")) == ("fusion", {"operator": "conv", "layer": "3"})


# -- what they leave alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["multi", "single"])
def test_it_predicts_like_the_plain_network(operator: str) -> None:
    plain = build("cnn-tutorial", SHAPE, 3, seed=0)  # type: ignore[arg-type]
    network = adapted(Fusion(operator))  # type: ignore[arg-type]
    x = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(0))
    for gamma in (0.0, 0.3):
        network.named(network.flat)["8.fusion.gamma"].fill_(gamma)
        assert bits(network.module(x)) == bits(plain.module(x))


@pytest.mark.parametrize("operator", ["multi", "single"])
def test_the_first_step_is_plain(operator: str) -> None:
    # γ = 0 and y = x: loss, logits and gradients are those of the plain network, and γ has none
    ends = {}
    for goal in (Plain(), Fusion(operator)):  # type: ignore[arg-type]
        of = floor.adapted(park((24, 5), shape=(1, 18, 18)), goal, "cnn-tutorial")
        work = Work(steps=1, batch_size=8, rate=0.1)
        got = train(of.network, of.samples(0), work, goal, Visit(of.network.flat.clone(), {}, of.network), KEY)
        parts = of.network.state(of.network.flat)
        ends[type(goal)] = got.loss_first, {n: one for n, one in parts.items() if "gamma" not in n}
        # the copy's features may be rounded otherwise: 2^-24 of γ's gradient at most
        assert all(float(one.abs().max()) < 1e-6 for name, one in parts.items() if "gamma" in name)
    (plain, was) = ends[Plain]
    (fusion, now) = ends[Fusion]
    assert fusion == pytest.approx(plain, rel=1e-6)
    assert max(float((a - b).abs().max()) for a, b in zip(was.values(), now.values(), strict=True)) < 1e-6


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_longer_visit_is_not_plain_and_trains_the_operator(operator: str) -> None:
    goal = Fusion(operator)  # type: ignore[arg-type]
    of = floor.adapted(park((24, 5)), goal)
    arrived = start(of)
    work = Work(objective="fusion", settings={"operator": operator}, epochs=2, batch_size=8, rate=0.1)
    got = walk(of, Train(device(0), work), arrived)
    plain = walk(of, Train(device(0), replace(work, objective="plain", settings={})), arrived)
    before = of.network.state(arrived["w"])
    after = of.network.state(got.packet["w"])
    assert all(float((after[n] - before[n]).abs().max()) > 1e-5 for n in after if ".fusion." in n)
    assert float((got.packet["w"] - plain.packet["w"]).abs().max()) > 1e-4


class EachTime(Fusion):
    """Asks the frozen stream again in every mini-batch."""

    def per_sample(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        return super().loss(module, x, y, replace(visit, per_sample=super().per_sample(x, visit)))


@pytest.mark.parametrize("operator", OPERATORS)
def test_passes_end_where_asking_each_time_would(operator: str) -> None:
    ends = []
    for kind in (Fusion, EachTime):
        goal = kind(operator)  # type: ignore[arg-type]
        of = floor.adapted(park((30, 5), shape=(1, 18, 18)), goal, "cnn-tutorial")
        visit = Visit(of.network.flat.clone(), {}, of.network)
        train(of.network, of.samples(0), Work(epochs=3, batch_size=7, rate=0.1), goal, visit, KEY)
        ends.append(of.network.flat.clone())
    # a sample's features may be rounded otherwise in another batch: 15 steps of some 2^-24 each
    assert float((ends[0] - ends[1]).abs().max()) < 1e-5
