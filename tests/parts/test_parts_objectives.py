"""Objectives: terms and gradients worked out by hand, finite differences, and what is plain training to the bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedfloor.base.errors import RunError
from fedfloor.base.outside import load
from fedfloor.engine.engine import Engine
from fedfloor.engine.visit import VisitStats, train
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import WIDTHS, Distilled, Mmd, Prox, frozen, mmd_squared
from fedfloor.parts.objectives.registry import objective
from fedfloor.plan.nodes import Parallel, Sequence, Work, device
from fedfloor.plan.nodes import Train as TrainNode
from fedfloor.plan.schedule import Key
from floor import batch_norm, bits, digest, dropout, engine, park, start, visits, walk
from refusals import refused

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)


def small(seed: int = 0) -> Network:
    """A network with convolutions (its weights lie channels-last) and a frozen layer, in float64."""
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)
    )
    for parameter in module[4].parameters():
        parameter.requires_grad = False
    return Network(module.double())


def batch(n: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, 2, 3, 3, generator=rng, dtype=torch.float64), torch.randint(3, (n,), generator=rng)


def total(goal: Objective, network: Network, visit: Visit) -> tuple[Tensor, Tensor]:
    """Return the whole objective [] and its gradient as the engine forms it [trained]."""
    x, y = batch()
    visit = replace(visit, per_sample=goal.per_sample(x, visit))
    loss, _ = goal.loss(network.module, x, y, visit)
    gradient = torch.zeros(network.trained, dtype=torch.float64)
    for into, one in zip(network.views(gradient), torch.autograd.grad(loss, network.parameters), strict=True):
        into.copy_(one)
    term = goal.penalty(network.flat[: network.trained], visit)
    return (loss.detach(), gradient) if term is None else (loss.detach() + term[0], gradient + term[1])


@pytest.mark.parametrize("goal", [Plain(), Prox(0.7), Mmd(0.1), Mmd(2.0), Distilled(0.7)], ids=str)
def test_gradients_are_finite_differences(goal: Objective) -> None:
    network = small()
    rng = torch.Generator().manual_seed(2)
    arrived = network.flat + 0.5 * torch.randn(network.flat.shape, generator=rng, dtype=torch.float64)
    visit = Visit(arrived, {}, network)
    _, gradient = total(goal, network, visit)
    step = 1e-6
    for i in range(network.trained):
        at = float(network.flat[i])
        network.flat[i] = at + step
        up, _ = total(goal, network, visit)
        network.flat[i] = at - step
        down, _ = total(goal, network, visit)
        network.flat[i] = at
        # rounding makes 1e-16/1e-6 of a loss of about 10 (MMD² adds 19 kernels), the third derivative less
        assert float(gradient[i]) == pytest.approx(float(up - down) / (2 * step), rel=1e-6, abs=1e-8)


# -- the proximal term -------------------------------------------------------------------------------------------------


def test_prox_by_hand() -> None:
    # μ = 1/2, w − w_start = (1, −2, 2): (1/4)·(1 + 4 + 4) = 2.25, gradient (0.5, −1, 1); what is not trained stays out
    start = torch.tensor([1.0, 1.0, 1.0, 7.0])
    weights = torch.tensor([2.0, -1.0, 3.0])
    found = Prox(0.5).penalty(weights, Visit(start, {}))
    assert found is not None
    assert (float(found[0]), found[1].tolist()) == (2.25, [0.5, -1.0, 1.0])
    assert weights.tolist() == [2.0, -1.0, 3.0]


def by_autograd(of: Engine, work: Work, mu: float) -> list[float]:
    """Train a copy of the engine's module by PyTorch alone; return the losses with their terms, and leave the model."""
    module = copy.deepcopy(of.network.module)
    before = [p.detach().clone() for p in module.parameters()]
    steps = torch.optim.SGD(module.parameters(), lr=work.rate, momentum=work.momentum, weight_decay=work.weight_decay)
    samples = of.samples(0)
    losses = []
    x, y = samples.values(slice(None)), samples.y
    for _ in range(work.steps or 0):
        loss = nn.functional.cross_entropy(module(x), y)
        loss = loss + mu / 2 * sum((p - q).square().sum() for p, q in zip(module.parameters(), before, strict=True))
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    of.network.flat.copy_(torch.cat([p.detach().flatten() for p in module.parameters()]))
    return losses


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_a_proximal_visit_is_what_autograd_makes_of_it(momentum: float, decay: float) -> None:
    work = Work(steps=6, batch_size=8, rate=0.2, momentum=momentum, weight_decay=decay)  # all 8 samples in every batch
    ours, theirs, none = (engine(park((8, 5))) for _ in range(3))
    arrived = ours.network.flat.clone()
    got = train(ours.network, ours.samples(0), work, Prox(2.0), Visit(arrived, {}, ours.network), KEY)
    losses = by_autograd(theirs, work, 2.0)
    # some ten roundings of 2^-24 per step of weights below 1
    assert (ours.network.flat - theirs.network.flat).abs().max() < 1e-6
    assert (got.loss_first, got.loss_last) == pytest.approx((losses[0], losses[-1]), rel=1e-5)
    without = by_autograd(none, work, 0.0)
    assert (ours.network.flat - none.network.flat).abs().max() > 1e-3  # and the term is felt
    assert got.loss_first == pytest.approx(without[0], rel=1e-5)  # at the start there is no distance yet


def test_prox_pulls_to_the_model_that_arrived_at_this_device() -> None:
    # In a chain w_start is what the neighbour sent: two visits by hand-over equal a chain of the two.
    work = Work(objective="prox", settings={"mu": 1.0}, epochs=1, batch_size=4, rate=0.1)
    of = engine(park())
    chain = walk(of, Sequence((TrainNode(device(0), work), TrainNode(device(1), work))))
    one = engine(park())
    first = walk(one, TrainNode(device(0), work))
    second = walk(one, TrainNode(device(1), work), first.packet)
    assert bits(chain.packet["w"]) == bits(second.packet["w"])
    assert bits(chain.packet["w"]) != bits(first.packet["w"])


# -- two streams -------------------------------------------------------------------------------------------------------


def test_mmd_by_hand() -> None:
    # one sample each, a = 0 and b = 2: k(a, a) = k(b, b) = 19 and k(a, b) = Σ exp(−4/(2s)), so MMD² = 2·(19 − Σ …); its
    # derivative in b is 2·Σ (b/s) exp(−b²/(2s))
    a = torch.zeros(1, 1, dtype=torch.float64)
    b = torch.full((1, 1), 2.0, dtype=torch.float64, requires_grad=True)
    found = mmd_squared(a, b)
    assert float(found.detach()) == pytest.approx(38 - 2 * sum(math.exp(-2 / s) for s in WIDTHS), rel=1e-12)
    (slope,) = torch.autograd.grad(found, b)
    assert float(slope) == pytest.approx(2 * sum(2 / s * math.exp(-2 / s) for s in WIDTHS), rel=1e-12)
    # two samples, a = (0, 0) and b = (0, 2): the means of k are 19, (19 + c)/2 and (19 + c)/2, c = Σ exp(−2/s), over
    # pairs; 19 + (19 + c)/2 − (19 + c) = (19 − c)/2
    c = sum(math.exp(-2 / s) for s in WIDTHS)
    two = mmd_squared(torch.zeros(2, 1, dtype=torch.float64), torch.tensor([[0.0], [2.0]], dtype=torch.float64))
    assert float(two) == pytest.approx((19 - c) / 2, rel=1e-12)


def test_equal_streams_are_no_distance_apart() -> None:
    same = torch.randn(32, 10, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found = mmd_squared(same.detach(), same)
    assert 0 <= float(found.detach()) < 1e-5  # 3·32² kernels of up to 19, added in float32
    (slope,) = torch.autograd.grad(found, same)
    assert float(slope.abs().max()) < 1e-3  # the widest slopes are 1/√s = 1000 times a rounding


def test_distillation_by_hand() -> None:
    # Two classes, two samples of class 0. The model that arrived says (ln 3, 0) of both, so p = (3/4, 1/4); the trained
    # one says (0, 0) and (ln 3, 0): q = (1/2, 1/2) and p. KL(p ‖ q) = 3/4 ln(3/2) + 1/4 ln(1/2), and 0; cross-entropies
    # ln 2 and ln(4/3). Slopes in logits: (λ(q − p) + q − (1, 0))/2 of the first sample, (p − (1, 0))/2 of the second.
    given = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64, requires_grad=True)
    said = torch.log(torch.tensor([[0.75, 0.25], [0.75, 0.25]], dtype=torch.float64))
    visit = Visit(None, {}, per_sample={"log_probabilities": said})
    loss, _ = Distilled(0.4).loss(nn.Identity(), given, torch.tensor([0, 0]), visit)
    apart = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(loss.detach()) == pytest.approx((math.log(2) + math.log(4 / 3) + 0.4 * apart) / 2, rel=1e-12)
    (slope,) = torch.autograd.grad(loss, given)
    assert slope.tolist()[0] == pytest.approx([(-0.4 * 0.25 - 0.5) / 2, (0.4 * 0.25 + 0.5) / 2], rel=1e-12)
    assert slope.tolist()[1] == pytest.approx([-0.125, 0.125], rel=1e-12)


@pytest.mark.parametrize("make", [batch_norm, dropout], ids=["batch norm", "dropout"])
def test_the_frozen_stream_is_the_start_in_evaluation_mode_and_leaves_no_trace(
    make: Callable[..., nn.Module],
) -> None:
    of = engine(park(shape=(2, 3, 3)), make((2, 3, 3), 3))  # two channels: channels-last is another order
    network = of.network
    samples = of.samples(1)
    x = samples.values(slice(None))
    network.module.eval()
    expected = network.module(x).detach()
    arrived = network.flat.clone()
    network.flat.mul_(1.5)
    network.module.train()
    before = (bits(arrived), bits(network.flat), torch.random.get_rng_state().tolist())
    got = frozen(Visit(arrived, {}, network), x)
    assert bits(got) == bits(expected)
    assert not got.requires_grad
    assert network.module.training
    assert (bits(arrived), bits(network.flat), torch.random.get_rng_state().tolist()) == before


@pytest.mark.parametrize(("name", "strong"), [("mmd", 0.1), ("distilled", 10.0)])
def test_the_frozen_stream_holds_the_logits_back(name: str, strong: float) -> None:
    # the same visit with λ = 0 and with λ > 0: how far the logits go from those of the model that arrived
    apart = []
    for weight in (0.0, strong):
        of = engine(park((64, 5)))
        x = of.samples(0).values(slice(None))
        before = of.network.module(x).detach()
        work = Work(objective=name, settings={"weight": weight}, epochs=20, batch_size=64, rate=0.05)
        walk(of, TrainNode(device(0), work))
        apart.append(float((of.network.module(x).detach() - before).norm()))
    assert apart[1] < apart[0] / 4


# -- nothing added is plain --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [("prox", {"mu": 0.0}), ("prox", {"mu": 0}), ("mmd", {"weight": 0.0}), ("distilled", {"weight": 0.0})],
)
@pytest.mark.parametrize("model", ["mlp-2nn", batch_norm, dropout], ids=["mlp", "batch norm", "dropout"])
def test_with_weight_0_it_is_plain_to_the_bit(
    name: str, settings: dict[str, float], model: str | Callable[..., nn.Module]
) -> None:
    def run(work: Work) -> tuple[object, ...]:
        torch.manual_seed(0)
        of = engine(park(), model if isinstance(model, str) else model((1, 3, 3), 3))
        return digest(walk(of, Parallel(visits((0, 1, 3), work)), start(of)))[::2]  # without the plan

    plain = run(Work(epochs=2, batch_size=4, rate=0.1, momentum=0.5))
    assert not objective(name, settings).needs_start
    assert run(Work(objective=name, settings=settings, epochs=2, batch_size=4, rate=0.1, momentum=0.5)) == plain
    other = dict.fromkeys(settings, 0.5)
    assert run(Work(objective=name, settings=other, epochs=2, batch_size=4, rate=0.1, momentum=0.5)) != plain


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("proxx", {}, "unknown objective"),
        ("prox", {}, "part-settings"),
        ("prox", {"nu": 1.0}, "unknown setting of objective 'prox'"),
        ("prox", {"mu": -1.0}, "objective prox: mu"),
        ("prox", {"mu": math.nan}, "objective prox: mu"),
        ("prox", {"mu": "0.1"}, "part-settings"),
        ("prox", {"mu": True}, "part-settings"),
        ("mmd", {"weight": math.inf}, "objective mmd: weight"),
        ("distilled", {"weight": -0.1}, "objective distilled: weight"),
        ("mmd", {"needs_start": True}, "unknown setting of objective 'mmd'"),
        ("plain", {"mu": 0.1}, "part-settings"),
        ("floor:Counting", {"remembers": True}, "part-settings"),
        ("floor:Rememberer", {}, "own-part"),
    ],
)
def test_settings_are_checked(name: str, settings: dict[str, object], said: str) -> None:
    if ":" in name:
        load(name, "objective")
    with refused(said):
        objective(name, settings)  # type: ignore[arg-type]


def test_an_objective_that_did_not_ask_for_the_start_is_told() -> None:
    with refused("visit-lacks", RunError):
        Visit(None, {}).arrived()
    with refused("visit-lacks", RunError):
        frozen(Visit(torch.zeros(1), {}), torch.zeros(1, 1))


def test_losses_of_a_visit_have_the_term_in_them() -> None:
    of = engine(park((8, 5)))
    arrived = of.network.flat.clone()
    far = Visit(arrived + 1, {}, of.network)

    def once(goal: Objective) -> VisitStats:
        of.network.flat.copy_(arrived)
        return train(of.network, of.samples(0), Work(steps=1, batch_size=8, rate=0.1), goal, far, KEY)

    # every one of the P trained weights is 1 away: (μ/2)·P, to the rounding of a sum in float32
    expected = once(Plain()).loss_first + 0.5 * 0.1 * of.network.trained
    assert once(Prox(0.1)).loss_first == pytest.approx(expected, rel=1e-5)


class Double(nn.Module):
    """A network in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5).double()
        self.head = nn.Linear(5, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.body(x.double()).relu())
        return said


@pytest.mark.parametrize(
    ("name", "settings"), [("contrastive", {}), ("fusion", {}), ("fusion", {"operator": "conv"}), ("gated", {})]
)
def test_what_an_objective_adds_to_a_network_is_of_the_networks_precision(name: str, settings: dict[str, str]) -> None:
    module, _ = objective(name, settings).adapt(Double(), "head", 3, (4,))
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
    assert module(torch.zeros(2, 4)).dtype == torch.float64
