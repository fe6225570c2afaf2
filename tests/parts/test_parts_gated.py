"""Gated units with columns of the device's own: a layer by hand, what is trained when, and whose columns are whose."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedfloor.base.errors import SettingError
from fedfloor.engine.engine import Engine
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.team import Alone
from fedfloor.models.gated import GatedHead, head_of, through
from fedfloor.models.network import Network
from fedfloor.parts.objectives.layers import Gated
from fedfloor.parts.objectives.objective import Visit
from fedfloor.parts.objectives.registry import objective
from fedfloor.plan.nodes import Parallel, Train, Work, device
from floor import bits, digest, park, start, visits, walk
from gates import FROZEN, WARM, columns, gated
from networks import build
from refusals import refused

# -- the head ----------------------------------------------------------------------------------------------------------


def test_a_gated_layer_by_hand() -> None:
    # x = 2: tanh(0.5·2 + 0.1 − 0.1) σ(−1·2 + 1.5 + 0.5) = tanh(1)/2, as σ(0) = 1/2; with it the logits are
    # (1·h + 0 + 0.25, −2·h + 1 − 1)
    head = GatedHead(features=1, units=1, layers=1, classes=2).double()
    numbers = [0.5, -1.0, 0.1, 1.5, 1.0, -2.0, 0.0, 1.0, -0.1, 0.5, 0.25, -1.0]  # W1 W2 b1 b2, W b, V1 V2 V
    torch.nn.utils.vector_to_parameters(torch.tensor(numbers, dtype=torch.float64), head.parameters())
    h = math.tanh(1) / 2
    assert head(torch.full((1, 1), 2.0, dtype=torch.float64))[0].tolist() == pytest.approx([h + 0.25, -2 * h])


def test_logits_that_are_no_numbers_are_still_the_heads() -> None:
    # a model that diverged is told as such, and not as a network that does not fit
    net = nn.Sequential(nn.Linear(2, 3), GatedHead(features=3, units=4, layers=1, classes=2))
    assert through(net, net[1], torch.full((1, 2), math.nan))[1].isnan().all()  # type: ignore[arg-type]
    for wrong in (nn.Softmax(1), nn.Flatten(0)):
        with refused("objective"):
            through(nn.Sequential(net, wrong), net[1], torch.zeros(1, 2))  # type: ignore[arg-type]


def test_the_second_layer_is_fed_the_first() -> None:
    # every weight and column 0 but: first layer value 1·x, last layer 3·h; x = 1: h1 = tanh(1)/2, h2 = tanh(2·h1)/2
    head = GatedHead(features=1, units=1, layers=2, classes=1).double()
    with torch.no_grad():
        for p in head.parameters():
            p.zero_()
        head.gates[0].weight[0, 0] = 1
        head.gates[1].weight[0, 0] = 2
        head.out.weight[0, 0] = 3
    found = head(torch.ones(1, 1, dtype=torch.float64))
    assert found.item() == pytest.approx(3 * math.tanh(math.tanh(1)) / 2)


def test_weights_begin_as_the_authors_do() -> None:
    # Keras draws dense layers from ±√(6/(inputs + outputs)), and W1, W2 are one each: ±√(6/(8 + 40)) for both halves
    head = GatedHead(features=8, units=40, layers=2, classes=5)
    found = [(head.out.weight, 6 / 45)]
    for gate, square in zip(head.gates, (6 / 48, 6 / 80), strict=True):
        found += [(half, square) for half in gate.weight.chunk(2)]
    for weight, square in found:
        assert 0.9 * square**0.5 < weight.abs().max().item() <= square**0.5  # 200 draws or more: 0.9^200 = 7e-10
    assert not any(part.bias.any() for part in (*head.gates, head.out))


def test_columns_begin_at_0_and_lie_at_the_end_of_what_is_trained() -> None:
    of = gated(park())
    head = head_of(of.network)
    network = of.network
    assert not head.own.columns.any()
    assert network.parameters[-1] is head.own.columns
    shared = sum(p.numel() for p in head.parameters()) - 11
    assert Gated(1, 4).trains(network) == slice(network.trained - 11 - shared, network.trained)
    assert Gated(1, 4, frozen=False).trains(network) == slice(0, network.trained - 11)


@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_are_finite_differences(frozen: bool) -> None:
    torch.manual_seed(0)
    goal = Gated(2, 3, frozen)
    plain = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    network = Network(*goal.adapt(plain, "3", 3, ()))
    assert network.flat.dtype == torch.float64
    columns_ = network.flat[-(2 * 2 * 3 + 3) :]
    columns_.normal_(generator=torch.Generator().manual_seed(2))
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(5, 2, 3, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(3, (5,), generator=rng)

    def loss() -> Tensor:
        visit = Visit(None, {}, network)
        return goal.loss(network.module, x, y, replace(visit, per_sample=goal.per_sample(x, visit)))[0]

    part = goal.trains(network)
    step = 1e-6
    gradient = torch.cat([one.permute(0, 2, 3, 1).flatten() if one.dim() == 4 else one.flatten()  # channels last
                          for one in torch.autograd.grad(loss(), network.within(part))])  # fmt: skip
    assert len(gradient) == part.stop - part.start
    for i, slope in zip(range(part.start, part.stop), gradient.tolist(), strict=True):
        at = float(network.flat[i])
        network.flat[i] = at + step
        up = float(loss().detach())
        network.flat[i] = at - step
        down = float(loss().detach())
        network.flat[i] = at
        assert slope == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-8)  # 1e-16/1e-6 of a loss of 1


# -- visits ------------------------------------------------------------------------------------------------------------


def test_a_frozen_visit_leaves_the_extractor_and_trains_the_head_and_the_columns(tmp_path: Path) -> None:
    of = gated(park(), tmp_path)
    head = Gated(1, 4).trains(of.network).start
    end = of.network.trained
    before = start(of)["w"]
    after = walk(of, Train(device(1), FROZEN), {"w": before}).packet["w"]
    assert bits(after[:head]) == bits(before[:head])
    assert bits(after[end:]) == bits(before[end:])  # what batch norm counts
    assert bool((after[head:end] != before[head:end]).all())


def test_a_frozen_visit_is_the_head_trained_alone_on_features(tmp_path: Path) -> None:
    # PyTorch alone, all 8 samples in every step: the features of the extractor in evaluation mode, then the head
    of = gated(park((8, 5)), tmp_path)
    module = copy.deepcopy(of.network.module).eval()
    samples = of.samples(0)
    features = module[:5](samples.values(slice(None))).detach()
    steps = torch.optim.SGD(module[5].parameters(), lr=0.2, momentum=0.5)
    for _ in range(6):
        steps.zero_grad()
        nn.functional.cross_entropy(module[5](features), samples.y).backward()
        steps.step()
    walk(of, Train(device(0), replace(FROZEN, epochs=6, batch_size=8)))
    expected = torch.cat([p.detach().flatten() for p in module[5].parameters()])
    got = of.network.flat[Gated(1, 4).trains(of.network)]
    assert float((got - expected).abs().max()) < 1e-6  # some ten roundings of 2^-24 per step of weights below 1


def test_the_warm_up_is_plain_training_with_columns_of_0() -> None:
    here = park()
    plan = Parallel(visits((0, 1, 3), WARM))
    warm = gated(here)
    plain = gated(here)
    frozen = copy.deepcopy(plain.network.module)
    frozen[5].own.columns.requires_grad_(False)  # behind what is trained: where it was
    plain = replace(plain, network=Network(frozen, "5"))
    got = walk(warm, plan)
    assert digest(got)[::2] == digest(walk(plain, Parallel(visits((0, 1, 3), replace(WARM, objective="plain",
                                                                                     settings={})))))[::2]  # fmt: skip
    assert not columns(warm, got.packet["w"]).any()
    assert not warm.memory.held


def test_devices_keep_their_columns_and_the_model_has_the_mean(tmp_path: Path) -> None:
    here = park()
    of = gated(here, tmp_path)
    outcome = walk(of, Parallel(visits((0, 1, 3), FROZEN)))
    own = {k: of.memory.load(k)["own"] for k in (0, 1, 3)}
    assert set(of.memory.held) == set(own)
    for k in own:  # what others did at the same time is not in it
        alone = gated(here, tmp_path / str(k))
        walk(alone, Train(device(k), FROZEN))
        assert bits(alone.memory.load(k)["own"]) == bits(own[k])
    # Σ n_k own_k / Σ n_k with n = 6, 10, 9; two additions, a multiplication and a division round
    mean = sum(n * own[k].double() for k, n in ((0, 6), (1, 10), (3, 9))) / 25
    assert float((columns(of, outcome.packet["w"]) - mean).abs().max()) < 4 * 2**-24 * float(mean.abs().max() + 1)


def test_a_device_goes_on_from_its_own_columns_and_a_new_one_from_the_mean(tmp_path: Path) -> None:
    of = gated(park(), tmp_path)
    first = walk(of, Parallel(visits((0, 1, 3), FROZEN))).packet
    still = replace(FROZEN, rate=1e-30)  # a visit that changes nothing: what it ends with it began with
    own = of.memory.load(1)["own"]
    mean = columns(of, first["w"]).clone()
    assert bits(own) != bits(mean)
    walk(of, Parallel(visits((1, 2), still)), first, number=2)
    assert bits(of.memory.load(1)["own"]) == bits(own)
    assert bits(of.memory.load(2)["own"]) == bits(mean)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_a_memory_of_another_model_is_refused() -> None:
    of = gated(park())
    before = bits(of.network.flat)
    with refused("device-memory"):
        Gated(1, 4).arrive(of.network.flat, {"own": torch.zeros(7)}, of.network)
    assert bits(of.network.flat) == before


class Backwards(nn.Module):
    """A network that defines its classifier first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.body = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x.flatten(1)))
        return out


@pytest.mark.parametrize(
    ("module", "path", "said"),
    [
        (nn.Sequential(nn.Linear(4, 3)), None, "objective"),
        (nn.Sequential(nn.Conv2d(1, 3, 3)), "0", "objective"),
        (Backwards(), "head", "objective"),
    ],
)
def test_networks_without_a_fitting_classifier_are_refused(module: nn.Module, path: str | None, said: str) -> None:
    with refused(said):
        Gated().adapt(module, path, 3, ())


@pytest.mark.parametrize("work", [WARM, FROZEN], ids=["warm-up", "frozen"])
def test_what_comes_after_the_classifier_is_refused(work: Work, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 3), nn.LogSoftmax(1))
    network = Network(*Gated(1, 4).adapt(module, "1", 3, ()))
    of = Engine(park(), network, Alone(), DeviceMemory(tmp_path), seed=0)
    with refused("objective"):
        walk(of, Train(device(0), work))


def test_a_network_that_was_not_made_for_it_is_refused(tmp_path: Path) -> None:
    of = Engine(park(), build("mlp-2nn", (1, 3, 3), 3, 0), Alone(), DeviceMemory(tmp_path), seed=0)
    with refused("objective"):
        walk(of, Train(device(0), FROZEN))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layers": 0}, "objective gated: layers = 0: must be a whole number of at least 1."),
        ({"units": 0}, "objective gated: units = 0: must be a whole number of at least 1."),
        ({"frozen": 1}, "objective 'gated': frozen = 1: must be true or false."),
    ],
)
def test_settings_are_checked(settings: dict[str, int], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        objective("gated", settings)
    assert str(caught.value) == said
