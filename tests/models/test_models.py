from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedfloor.base.errors import SettingError
from fedfloor.models import count
from fedfloor.models.network import Network, glorot, plain
from networks import build
from refusals import refused

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)


# -- initial weights -------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64), st.integers(0, 2**31))
def test_initial_weights_depend_on_the_seed_alone(seed: int, elsewhere: int) -> None:
    first = build("logistic", (1, 3, 3), 4, seed).flat
    torch.manual_seed(elsewhere)
    assert torch.equal(build("logistic", (1, 3, 3), 4, seed).flat, first)
    assert not torch.equal(build("logistic", (1, 3, 3), 4, seed + 1).flat, first)


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build("lenet", COLOUR, 10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_counting_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    count("lenet", COLOUR, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_glorot_weights_are_uniform_within_their_bound_and_biases_are_zero() -> None:
    """U(−a, a) with a = √(6/(fan in + fan out)) has the deviation a/√3; 6 million draws of it have it within 0.2 %."""
    network = build("cnn-fedgs", GREY, 62, seed=0, init="glorot")
    state = network.state(network.flat)
    bounds = {"0": 6 / (25 + 32 * 25), "3": 6 / (32 * 25 + 64 * 25), "7": 6 / (3136 + 2048), "9": 6 / (2048 + 62)}
    assert {f"{layer}.{kind}" for layer in bounds for kind in ("weight", "bias")} == set(state)
    for layer, square in bounds.items():
        weight = state[f"{layer}.weight"].double()
        assert 0.97 * square**0.5 < float(weight.abs().max()) <= square**0.5  # 800 draws all below 0.97 a: e^-24
        assert not bool(state[f"{layer}.bias"].any())
    assert float(state["7.weight"].double().std()) == pytest.approx((6 / (3136 + 2048) / 3) ** 0.5, rel=2e-3)


def test_glorot_weights_depend_on_the_seed_alone() -> None:
    first = build("lenet", COLOUR, 10, 3, init="glorot").flat
    torch.manual_seed(4)
    before = torch.get_rng_state()
    assert torch.equal(build("lenet", COLOUR, 10, 3, init="glorot").flat, first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(build("lenet", COLOUR, 10, 4, init="glorot").flat, first)
    assert torch.equal(build("lenet", COLOUR, 10, 3, init="default").flat, build("lenet", COLOUR, 10, 3).flat)


def test_glorot_leaves_frozen_weights_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    free = module[1].weight.clone()
    glorot("mine", module)
    assert torch.equal(module[0].weight, frozen)
    assert bool(module[0].bias.any())
    assert not torch.equal(module[1].weight, free)


def test_glorot_without_a_layer_to_draw_is_refused() -> None:
    with refused("model"):
        glorot("mine", nn.Sequential(nn.PReLU()))


# -- one flat vector -------------------------------------------------------------------------------------------------


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def test_the_flat_vector_is_the_network() -> None:
    module = with_statistics().eval()
    x = torch.rand(3, 1, 3, 3)
    before = module(x)
    named = {name: value.clone() for name, value in module.state_dict().items()}
    network = Network(module)
    torch.testing.assert_close(module(x), before)  # the layout may change the order of sums, so the last bits
    assert network.flat.numel() == network.trained + 4 + 4  # running mean and variance; the batch counter stays out
    state = network.state(network.flat)
    assert {*state, "1.num_batches_tracked"} == set(named)
    assert all(torch.equal(value, named[name]) for name, value in state.items())
    network.flat.zero_()
    assert all(not bool(p.any()) for p in module.parameters())
    assert not bool(module(x).any())


def test_views_of_another_vector_have_the_parameters_places() -> None:
    network = Network(with_statistics())
    other = network.flat.clone()
    for view, parameter in zip(network.views(other), network.parameters, strict=True):
        assert torch.equal(view, parameter)
        assert view.stride() == parameter.stride()
        view.zero_()
    assert not bool(other[: network.trained].any())
    assert torch.equal(other[network.trained :], network.flat[network.trained :])


def test_frozen_parameters_come_after_the_trained_ones() -> None:
    module = with_statistics()
    module[0].weight.requires_grad_(False)  # 4·1·3·3, the first of all
    module[1].bias.requires_grad_(False)  # 4
    numbers = {name: torch.full_like(value, i) for i, (name, value) in enumerate(module.state_dict().items())}
    module.load_state_dict(numbers)
    network = Network(module)
    trained = ["0.bias", "1.weight", "3.weight", "3.bias"]
    frozen = ["0.weight", "1.bias"]
    order = [*trained, *frozen, "1.running_mean", "1.running_var"]
    assert list(network.state(network.flat)) == order
    assert network.flat.tolist() == [float(numbers[name].view(-1)[0]) for name in order for _ in numbers[name].view(-1)]
    assert network.trained == 4 + 4 + 8 + 2
    assert [p.shape for p in network.parameters] == [numbers[name].shape for name in trained]
    assert [view.shape for view in network.views(network.flat)] == [p.shape for p in network.parameters]
    network.flat[network.trained :].zero_()
    assert not bool(module[0].weight.any())  # frozen ones are views as well
    assert bool(module[0].bias.any())


# -- your own, and what is refused -----------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)), None


def flat(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))

def too_wide(shape, classes):
    return flat(shape, 11)

def images_out(shape, classes):
    return nn.Conv2d(shape[0], classes, 1)

def no_parameters(shape, classes):
    return nn.Flatten()

def other_shape(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(5, classes))

def a_pair(shape, classes):
    return Pair(torch.Size(shape).numel(), classes)

class Flat(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))

class Spare(Flat):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.spare = nn.ParameterDict({"one": nn.Parameter(torch.zeros(3)), "two": nn.Parameter(torch.zeros(3))})

    def forward(self, x):
        return self[1](self[0](x))

class Frozen(Spare):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.spare.requires_grad_(False)
        self[1].bias.requires_grad_(False)

class Detached(Flat):
    def forward(self, x):
        return super().forward(x).detach()

class FailsInTraining(Flat):
    def forward(self, x):
        if self.training:
            raise ValueError("not today")
        return super().forward(x)

def all_frozen(shape, classes):
    return flat(shape, classes).requires_grad_(False)

def normalised(shape, classes):
    return nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Dropout(), flat(shape, classes))

def lazy(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

def no_module(shape, classes):
    return torch.zeros(classes)

def takes_nothing():
    return flat((1, 28, 28), 10)

def refuses(shape, classes):
    raise ValueError("only on Mondays")

not_callable = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own")
def test_a_network_of_your_own() -> None:
    network = build("own_networks:flat", GREY, 10, seed=0)
    assert count("own_networks:flat", GREY, 10) == network.trained == 7_850
    same = build("logistic", GREY, 10, seed=0)
    assert torch.equal(network.flat, same.flat)  # the same layers drawn from the same seed


@pytest.mark.usefixtures("own")
def test_a_network_with_frozen_parameters() -> None:
    network = build("own_networks:Frozen", GREY, 10, seed=0)
    assert network.trained == 7_840
    assert network.flat.numel() == count("own_networks:Frozen", GREY, 10) == 7_840 + 10 + 2 * 3
    assert [p.shape for p in network.parameters] == [(10, 784)]


@pytest.mark.usefixtures("own")
def test_trying_a_network_out_leaves_no_trace() -> None:
    network = build("own_networks:normalised", GREY, 10, seed=0)
    state = network.module.state_dict()
    same = build("logistic", GREY, 10, seed=0).module.state_dict()  # nothing is drawn before or between
    assert (state["0.running_mean"].item(), state["0.running_var"].item()) == (0, 1)
    assert state["0.num_batches_tracked"] == 0
    assert network.module.training
    assert all(p.grad is None for p in network.parameters)
    assert torch.equal(state["2.1.weight"], same["1.weight"])


REFUSED = {
    "own_networks:too_wide": "gives (11,) outputs per sample; data.task needs (10,): one per class, target",
    "own_networks:images_out": "gives (10, 28, 28) outputs per sample",
    "own_networks:no_parameters": "has no parameters: there is nothing to train",
    "own_networks:all_frozen": "has only frozen parameters: there is nothing to train",
    "own_networks:Spare": "parameters that its output does not depend on: spare.one, spare.two. Use them in forward()",
    "own_networks:Detached": "cannot be trained: RuntimeError: element 0 of tensors does not require grad",
    "own_networks:FailsInTraining": "(1, 28, 28) while it is trained: ValueError: not today",
    "own_networks:other_shape": "does not take samples of shape (1, 28, 28)",
    "own_networks:a_pair": "gives a tuple: it must give a tensor [batch, 10]",
    "own_networks:lazy": "has lazy layers: give them their sizes",
    "own_networks:no_module": "returned Tensor: it must return a torch.nn.Module",
    "own_networks:takes_nothing": "could not be built: TypeError: takes_nothing() takes 0 positional arguments",
    "own_networks:refuses": "could not be built: ValueError: only on Mondays",
    "own_networks:not_callable": "could not be built: TypeError: 'int' object is not callable",
    "own_networks:flta": "module 'own_networks' has no 'flta'. Did you mean 'flat'?",
    "own_netwrks:flat": "no module 'own_netwrks' in the current folder or the installed packages",
    "mlp2nn": "unknown model 'mlp2nn'. Did you mean 'mlp-2nn'? Known: ae-conv, ae-dense, ae-lstm, cnn-fedgs",
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("name", "said"), REFUSED.items(), ids=REFUSED)
def test_refused(name: str, said: str) -> None:
    with pytest.raises(SettingError) as error:
        build(name, GREY, 10, seed=0)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["cnn-tutorial", "cnn-small", "lenet"])
def test_pooling_before_the_relu_changes_no_bit(name: str) -> None:
    ours = build(name, (3, 32, 32), 10, seed=0)
    theirs = Network(plain(name, (3, 32, 32), 10))
    theirs.flat.copy_(ours.flat)
    assert [type(part) for part in ours.module] != [type(part) for part in theirs.module]
    x = torch.randn(20, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.arange(20) % 10
    losses = [torch.nn.functional.cross_entropy(one.module(x), y) for one in (ours, theirs)]
    assert losses[0].equal(losses[1])
    gradients = [torch.autograd.grad(loss, one.parameters) for loss, one in zip(losses, (ours, theirs), strict=True)]
    assert all(a.equal(b) for a, b in zip(*gradients, strict=True))
