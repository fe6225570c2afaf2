"""MOON: the contrastive term by hand and by finite differences, its head, the device's memory, and μ = 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.ranks import Engine
from fedfloor.engine.team import Alone
from fedfloor.engine.visit import Key, train
from fedfloor.errors import RunError, SettingError
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.fedmmd import FedMMD
from fedfloor.methods.moon import Moon
from fedfloor.models import build
from fedfloor.models.network import Network
from fedfloor.models.projection import Projected
from fedfloor.park.park import Park
from fedfloor.parts.contrastive import Contrastive
from fedfloor.parts.frozen import features, frozen
from fedfloor.parts.objective import Objective, Plain, Visit
from fedfloor.parts.objectives import objective
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Sequence, Train, Work, device
from floor import batch_norm, bits, digest, dropout, park, plan_of, start, walk

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)


def adapted(goal: Objective, model: str = "cnn-tutorial", classes: int = 3, side: int = 18) -> Network:
    return build(model, (1, side, side), classes, seed=0, adapt=goal.adapt)


def with_head(here: Park, goal: Objective, folder: Path, model: str = "mlp-2nn") -> Engine:
    data = here.dataset
    made = build(model, data.shape, len(data.classes), 0, adapt=goal.adapt)
    return Engine(here, made, Alone(), DeviceMemory(folder), seed=0)


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
    x, y = torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([2])
    goal, visit = Contrastive(mu=2.0, temperature=0.5, dim=2), Visit(arrived, {"previous": previous}, network)
    loss, logits = goal.loss(network.module, x, y, replace(visit, aside=goal.aside(x, visit)))
    term = -math.log(math.exp(1.92) / (math.exp(1.92) + math.exp(1.6)))
    assert float(loss.detach()) == pytest.approx(math.log(3) + 2 * term, rel=1e-12)
    assert logits.tolist() == [[0.0, 0.0, 0.0]]
    # at the device's first visit the term is left out
    first = Visit(arrived, {}, network)
    assert goal.aside(x, first) == {}
    assert float(goal.loss(network.module, x, y, first)[0].detach()) == pytest.approx(math.log(3), rel=1e-12)


def test_a_batch_is_a_mean_of_pytorchs_cosines() -> None:
    goal = Contrastive(mu=1.5, temperature=0.2, dim=7)
    network = adapted(goal, "mlp-2nn")
    rng = torch.Generator().manual_seed(3)
    x, y = torch.randn(5, 1, 18, 18, generator=rng), torch.randint(3, (5,), generator=rng)
    moved = [network.flat + 0.02 * torch.randn(network.flat.shape, generator=rng) for _ in range(2)]
    visit = Visit(moved[0], {"previous": moved[1]}, network)
    z, glob, prev = (features(visit, x, "5.classifier", model) for model in (network.flat, *moved))
    assert z.shape == (5, 7)
    cosine = torch.nn.functional.cosine_similarity
    said = torch.stack([cosine(z, glob), cosine(z, prev)], 1) / 0.2
    term = torch.nn.functional.cross_entropy(said, torch.zeros(5, dtype=torch.int64))  # how the authors write it
    plain = Plain().loss(network.module, x, y, visit)[0]
    got = goal.loss(network.module, x, y, replace(visit, aside=goal.aside(x, visit)))[0]
    # some ten roundings of 2^-24 in cosines that are divided by τ = 0.2
    assert float((got - plain).detach()) == pytest.approx(1.5 * float(term), abs=1e-5)
    assert float(term) > 0.1


@pytest.mark.parametrize("remembered", [True, False])
def test_gradients_are_finite_differences(remembered: bool) -> None:
    goal = Contrastive(mu=0.8, temperature=0.5, dim=3)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    network = Network(*goal.adapt(body, "3", 3, (2, 3, 3)))
    network = Network(network.module.double(), network.classifier)
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 2, 3, 3, generator=rng, dtype=torch.float64), torch.randint(3, (5,), generator=rng)
    arrived, last = (
        network.flat + 0.3 * torch.randn(network.flat.shape, generator=rng, dtype=torch.float64) for _ in range(2)
    )
    visit = Visit(arrived, {"previous": last} if remembered else {}, network)
    visit = replace(visit, aside=goal.aside(x, visit))

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
    plain, network = build("cnn-tutorial", (1, 28, 28), 62, seed=0), adapted(Contrastive(), classes=62, side=28)
    head = {
        "11.hidden.weight": (64, 64), "11.hidden.bias": (64,), "11.projection.weight": (256, 64),
        "11.projection.bias": (256,), "11.classifier.weight": (62, 256), "11.classifier.bias": (62,),
    }  # fmt: skip
    was, now = plain.state(plain.flat), network.state(network.flat)
    assert [name for name in now if name not in head] == [name for name in was if not name.startswith("11.")]
    assert {name: tuple(one.shape) for name, one in now.items() if name in head} == head
    assert all(bits(now[name]) == bits(one) for name, one in was.items() if not name.startswith("11."))
    assert network.classifier == "11.classifier"
    assert network.classifier_parameters == 62 * 257


class Named(nn.Module):
    """A network whose last layer is no linear layer."""

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
        ("test_parts_contrastive:convolution", "the network's classifier is 'head', a Conv2d"),
        ("test_parts_contrastive:nameless", "the network's classifier is unknown: a projection head replaces"),
    ],
)
def test_a_network_without_a_linear_classifier_is_refused(model: str, said: str) -> None:
    with pytest.raises(SettingError) as caught:
        adapted(Contrastive(), model)
    assert said in str(caught.value)
    assert "Name it with model.classifier" in str(caught.value)


def test_a_network_built_for_another_objective_is_refused(tmp_path: Path) -> None:
    of = with_head(park(), Plain(), tmp_path)
    with pytest.raises(SettingError, match=r"the network has no projection head.*Use the method moon"):
        walk(of, Train(device(0), Work(objective="contrastive", epochs=1)))


@pytest.mark.parametrize("make", [batch_norm, dropout], ids=["batch norm", "dropout"])
def test_features_are_the_starts_in_evaluation_mode_and_leave_no_trace(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    module = make((2, 3, 3), 3)
    path = str(len(module) - 1)  # type: ignore[arg-type]
    network = Network(module, path)
    x = torch.randn(5, 2, 3, 3).contiguous(memory_format=torch.channels_last)
    module.eval()
    expected, logits = module[:-1](x).detach(), module(x).detach()  # type: ignore[index]
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
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            said: Tensor = self.used(x)
            return said

    network = Network(Skips())
    with pytest.raises(RunError, match="does not call its layer 'idle'"):
        features(Visit(network.flat.clone(), {}, network), torch.zeros(1, 2), "idle")


# -- memory ------------------------------------------------------------------------------------------------------------

MOON = Work(objective="contrastive", settings={"mu": 1.0, "dim": 8}, epochs=1, batch_size=4, rate=0.1)


def test_a_device_keeps_the_model_its_visit_ended_with(tmp_path: Path) -> None:
    here, goal = park(), Contrastive(dim=8)
    of = with_head(here, goal, tmp_path)
    arrived = start(of)
    first = walk(of, Train(device(0), MOON), arrived)
    assert bits(of.memory.load(0)["previous"]) == bits(first.packet["w"])
    # without a memory a visit is plain, and another device has none
    plain = replace(MOON, objective="plain", settings={})
    assert bits(walk(of, Train(device(0), plain), arrived).packet["w"]) == bits(first.packet["w"])
    other = walk(of, Train(device(1), MOON), arrived).packet["w"]
    assert bits(walk(of, Train(device(1), plain), arrived).packet["w"]) == bits(other)
    # with one it is not: the visit from the same start ends elsewhere
    again = walk(of, Train(device(0), MOON), arrived)
    assert bits(again.packet["w"]) != bits(first.packet["w"])
    assert bits(of.memory.load(0)["previous"]) == bits(again.packet["w"])


def test_the_term_draws_to_the_global_model_and_away_from_the_last_one(tmp_path: Path) -> None:
    # b − a, how much nearer z is to z_prev than to z_glob, after the same visit with and without the term
    nearer = []
    for mu in (0.0, 5.0):
        of = with_head(park((64, 5)), Contrastive(mu=mu, dim=8), tmp_path / str(mu))
        arrived = of.network.flat.clone()
        rng = torch.Generator().manual_seed(0)
        previous = arrived + 0.05 * torch.randn(arrived.shape, generator=rng)
        goal, visit = Contrastive(5.0, dim=8), Visit(arrived, {"previous": previous}, of.network)
        x = of.samples(0).values(slice(None))
        work = Work(epochs=10, batch_size=64, rate=0.1)
        train(of.network, of.samples(0), work, Contrastive(mu, dim=8), visit, KEY)
        z = features(visit, x, "5.classifier", of.network.flat)
        nearer.append(float((z / z.norm(dim=1, keepdim=True) * goal.aside(x, visit)["apart"]).sum(1).mean()))
    assert nearer[1] < nearer[0] - 0.1


def test_a_memory_of_another_model_is_refused(tmp_path: Path) -> None:
    here = park()
    walk(with_head(here, Contrastive(dim=8), tmp_path), Train(device(0), MOON))
    of = with_head(here, Contrastive(dim=8), tmp_path)
    of.memory.commit(0, {"previous": torch.zeros(7)})
    with pytest.raises(SettingError) as caught:
        walk(of, Train(device(0), MOON))
    size = of.network.flat.numel()
    assert f"a device memory from another model: the model kept has 7 numbers, this one {size}." in str(caught.value)
    assert "Start the run in a new folder" in str(caught.value)


asked: list[int] = []


class Once(Contrastive):
    """Counts the samples it is asked about aside."""

    def aside(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        asked.append(len(x))
        return super().aside(x, visit)


class EachTime(Contrastive):
    """Asks the frozen streams again in every mini-batch."""

    def aside(self, x: Tensor, visit: Visit) -> Mapping[str, Tensor]:
        return {}

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        return super().loss(module, x, y, replace(visit, aside=super().aside(x, visit)))


def test_passes_ask_once_and_end_where_asking_each_time_would(tmp_path: Path) -> None:
    ends = []
    for kind in (Once, EachTime):
        of = with_head(park((30, 5)), Contrastive(dim=8), tmp_path)
        visit = Visit(of.network.flat.clone(), {"previous": of.network.flat * 1.1}, of.network)
        train(of.network, of.samples(0), Work(epochs=3, batch_size=7, rate=0.1), kind(dim=8), visit, KEY)
        ends.append(of.network.flat.clone())
    assert sum(asked) == 30
    # a sample's features may be rounded otherwise in another batch: 15 steps of some 2^-24 each
    assert float((ends[0] - ends[1]).abs().max()) < 1e-6


# -- with μ = 0 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp-2nn", "floor:dropout", "floor:batch_norm"])
def test_with_mu_0_it_is_plain_on_the_same_network_to_the_bit(model: str, tmp_path: Path) -> None:
    def twice(work: Work) -> tuple[object, ...]:
        of = with_head(park(), Contrastive(dim=8), tmp_path / work.objective / str(work.settings), model)
        visits = Parallel(tuple(Train(device(k), work) for k in (0, 1, 3)))
        outcome = walk(of, Sequence((visits, visits)), start(of))
        return digest(outcome)[0], [(r.loss_first, r.loss_last) for r in outcome.receipts]

    work = replace(MOON, epochs=2, momentum=0.5, settings={"mu": 0.0, "dim": 8})
    plain = twice(replace(work, objective="plain", settings={}))
    none = objective("contrastive", {"mu": 0})
    assert not none.needs_start
    assert not none.remembers
    assert twice(work) == plain
    assert twice(replace(work, settings={"mu": 0.5, "dim": 8})) != plain


def test_the_methods_without_their_terms_are_fedavg(tmp_path: Path) -> None:
    here, work = park(), WorkSettings(epochs=2, batch_size=4, lr=0.1)

    def after(method: Moon | FedAvg | FedMMD, goal: Objective, name: str) -> bytes:
        of = with_head(here, goal, tmp_path / name)
        packet = start(of)
        for number in (1, 2, 3):
            packet = dict(walk(of, plan_of(method, here, number=number), packet, number).packet)
        return bits(packet["w"])

    head = Contrastive(dim=8)
    fedavg = after(FedAvg(fraction=0.6, work=work), head, "a")
    assert after(Moon(mu=0.0, dim=8, fraction=0.6, work=work), head, "b") == fedavg
    assert after(Moon(mu=1.0, dim=8, fraction=0.6, work=work), head, "c") != fedavg
    fedavg = after(FedAvg(fraction=0.6, work=work), Plain(), "d")
    assert after(FedMMD(weight=0.0, fraction=0.6, work=work), Plain(), "e") == fedavg
    assert after(FedMMD(weight=0.1, fraction=0.6, work=work), Plain(), "f") != fedavg


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mu": -1.0}, "objective contrastive: mu = -1.0: must be a number of at least 0."),
        ({"mu": math.inf}, "objective contrastive: mu = inf"),
        ({"temperature": 0.0}, "objective contrastive: temperature = 0.0: must be above 0."),
        ({"dim": 0}, "objective contrastive: dim = 0: must be a whole number of at least 1."),
        ({"dim": 2.5}, "objective 'contrastive': dim = 2.5: must be a whole number."),
    ],
)
def test_settings_are_checked(settings: dict[str, float], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        objective("contrastive", settings)
    assert said in str(caught.value)


@pytest.mark.parametrize("make", [lambda: Moon(mu=-1.0), lambda: FedMMD(weight=-1.0), lambda: Moon(fraction=0.0)])
def test_methods_check_their_settings(make: Callable[[], object]) -> None:
    with pytest.raises(SettingError):
        make()
