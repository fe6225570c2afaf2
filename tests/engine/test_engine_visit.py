from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedfloor.base.chance import generator
from fedfloor.base.errors import RunError
from fedfloor.base.outside import load
from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.engine.engine import Engine, Samples
from fedfloor.engine.visit import VisitStats, train
from fedfloor.models.network import Network, build
from fedfloor.models.zoo import Shape
from fedfloor.park.park import Park
from fedfloor.park.stream import batch_order
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.plan.schedule import Key
from floor import batch_norm, bits, dropout, engine, network, park, visits, walk
from refusals import refused

KEY = Key(seed=5, round=7, tick=2, device=3, visit=1)
NOTHING = Visit(None, {})


def visit(of: Engine, work: Work, key: Key = KEY, device: int = 0) -> VisitStats:
    return train(of.network, of.samples(device), work, Plain(), NOTHING, key)


def batches(samples: Samples, work: Work, key: Key = KEY) -> Iterator[tuple[Tensor, Tensor]]:
    """The mini-batches of a visit, as a plain loop sees them."""
    rng = generator(key.seed, "batches", *key.place())
    for order, count in batch_order(len(samples), work.batch_size, work.epochs, work.steps, rng):
        for i in range(count):
            rows = torch.from_numpy(order[i * work.batch_size : (i + 1) * work.batch_size])
            yield samples.values(rows).contiguous(), samples.y[rows]


def by_torch(module: nn.Module, samples: Samples, work: Work, key: Key = KEY) -> Tensor:
    """Train a plain module with torch.optim.SGD on the same mini-batches; return its parameters as one vector."""
    optimizer = torch.optim.SGD(
        module.parameters(), lr=work.rate, momentum=work.momentum, weight_decay=work.weight_decay
    )
    module.train()
    for x, y in batches(samples, work, key):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def big(model: str = "mlp-2nn", samples: int = 70, shape: tuple[int, int, int] = (1, 28, 28)) -> Engine:
    return engine(park((samples, 5), shape=shape, classes=10), model)


# -- the steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("length", [{"epochs": 2}, {"steps": 4}, {"steps": 1}], ids=str)
def test_equals_torch_optim_sgd_to_the_bit(momentum: float, length: dict[str, int]) -> None:
    of = big()  # 70 samples by 32: 32, 32 and the 6 that are left
    work = Work(batch_size=32, rate=0.1, momentum=momentum, **length)
    module = copy.deepcopy(of.network.module)
    got = visit(of, work)
    assert bits(of.network.flat) == bits(by_torch(module, of.samples(0), work))
    assert got.steps == work.batches(70)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_weight_decay_is_torchs_up_to_rounding(momentum: float) -> None:
    # Here w ← (1 − ηλ)w − ηg, there w ← w − η(g + λw): some four roundings a step, of weights below 1/2 (2^-25 each) or
    # of what is far smaller. 6 steps make less than 1e-6; without its decay a weight of 0.03 would be off by 1e-3.
    of = big()
    work = Work(epochs=2, batch_size=32, rate=0.1, momentum=momentum, weight_decay=0.05)
    module = copy.deepcopy(of.network.module)
    bare = copy.deepcopy(of.network.module)
    visit(of, work)
    expected = by_torch(module, of.samples(0), work)
    assert float(abs(expected).max()) < 0.5
    assert torch.allclose(of.network.flat, expected, rtol=0, atol=1e-6)
    without = by_torch(bare, of.samples(0), replace(work, weight_decay=0.0))
    assert float(abs(without - expected).max()) > 5e-4


def test_epochs_are_as_many_steps() -> None:
    by_epochs = big()
    by_steps = big()
    visit(by_epochs, Work(epochs=3, batch_size=32, rate=0.1))
    visit(by_steps, Work(steps=9, batch_size=32, rate=0.1))
    assert bits(by_epochs.network.flat) == bits(by_steps.network.flat)


def test_many_small_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    # how many samples are turned into floats at a time must not move the mini-batches' boundaries
    whole = big()
    pieces = big()
    visit(whole, Work(epochs=2, batch_size=16, rate=0.1))
    monkeypatch.setattr("fedfloor.engine.engine.CHUNK_BYTES", 1)
    visit(pieces, Work(epochs=2, batch_size=16, rate=0.1))
    assert bits(whole.network.flat) == bits(pieces.network.flat)


def two_pixels(y: tuple[int, ...] = (0, 1)) -> Engine:
    """Logistic regression with zero weights on the pictures (1, 0) and (0, 1)."""
    pool = SamplePool(np.array([[[[255, 0]]], [[[0, 255]]]], np.uint8), np.array(y))
    of = engine(Park(pooled("two", ("a", "b"), pool, pool, ""), (np.arange(2),), np.zeros(1, np.int32)), "logistic")
    of.network.flat.zero_()
    return of


def test_one_step_of_logistic_regression_by_hand() -> None:
    # Zero weights: p = (½, ½). ∂F/∂z = (p − y)/2 is (−¼, ¼) for the first picture and (¼, −¼) for the second. As each
    # lights one pixel, ∂F/∂W = [[−¼, ¼], [¼, −¼]] and ∂F/∂b = 0; with η = 4, W = [[1, −1], [−1, 1]]: exact in floats,
    # but for the pixel 255·(1/255), which may miss 1 by 2^-24.
    of = two_pixels()
    visit(of, Work(epochs=1, batch_size=2, rate=4.0))
    assert np.allclose(of.network.flat.tolist(), [1, -1, -1, 1, 0, 0], rtol=0, atol=2.0**-22)


def test_the_receipt_by_hand() -> None:
    # First pass: both classes have score 0, so the loss is ln 2 and, as the first of equal scores wins, one of two is
    # right. One step (above, η = 4) later each picture's scores are (1, −1) or (−1, 1): loss ln(1 + e^−2), both right.
    got = visit(two_pixels(), Work(epochs=2, batch_size=2, rate=4.0))
    assert got.steps == 2
    assert got.loss_first == pytest.approx(math.log(2), abs=1e-6)
    assert got.loss_last == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-6)
    assert got.accuracy == 1.0
    one = visit(two_pixels(), Work(epochs=1, batch_size=2, rate=4.0))
    assert (one.loss_first, one.accuracy) == (one.loss_last, 0.5)


def test_the_receipt_of_steps_is_about_its_first_and_last_mini_batch() -> None:
    # Both pictures are class a, one per mini-batch: the first has loss ln 2. Its step moves W by η/2 = 1 on its own
    # pixel and b by 1, for a, and as much against b; the other picture sees the bias alone: scores (1, −1), loss
    # ln(1 + e^−2).
    got = visit(two_pixels((0, 0)), Work(steps=2, batch_size=1, rate=2.0))
    assert got.steps == 2
    assert got.loss_first == pytest.approx(math.log(2), abs=1e-6)
    assert got.loss_last == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-6)


@pytest.mark.parametrize(("device", "who"), [(3, "device 3"), (-1, "the cloud")])
def test_a_loss_that_is_no_number_names_who_and_when(device: int, who: str) -> None:
    with refused("diverged", RunError):
        visit(big(), Work(epochs=3, batch_size=8, rate=1e38), replace(KEY, device=device), device=0)


# -- chance ------------------------------------------------------------------------------------------------------------


def test_dropout_masks_are_keyed_by_the_visit_and_by_nothing_else() -> None:
    # With one sample there is only one order of batches: what differs between visits are the masks.
    here = park((1, 3))

    def after(key: Key, before: int = 0) -> bytes:
        of = engine(here, dropout(here.dataset.shape, 3))
        of.network.flat.fill_(0.01)
        torch.manual_seed(before)
        torch.rand(before)
        visit(of, Work(steps=3, batch_size=1, rate=0.1), key)
        return bits(of.network.flat)

    assert after(KEY) == after(KEY, before=9)
    other: list[dict[str, int]] = [{"seed": 6}, {"round": 8}, {"tick": 3}, {"device": 4}, {"visit": 2}]
    results = [after(KEY), *(after(replace(KEY, **change)) for change in other)]
    assert len(set(results)) == 6


meanwhile: list[threading.Thread] = []  # what runs while the next network is built


def interrupted(shape: Shape, classes: int) -> nn.Module:
    """A network during whose construction other threads run as far as they can."""
    first = nn.Linear(math.prod(shape), 4)
    while meanwhile:
        thread = meanwhile.pop()
        thread.start()
        thread.join(0.5)
    return nn.Sequential(nn.Flatten(), first, nn.Linear(4, classes))


def test_a_visit_in_another_thread_changes_no_initial_weights() -> None:
    """Visits seed the generator from which PyTorch draws initial weights, too."""
    here = park((3, 1))
    of = engine(here, dropout(here.dataset.shape, 3))
    name = f"{__name__}:interrupted"
    load(name, "model")
    alone = build(name, here.dataset.shape, 3, seed=0)
    other = threading.Thread(target=lambda: walk(of, visits([0])[0]))
    meanwhile.append(other)
    assert bits(build(name, here.dataset.shape, 3, seed=0).flat) == bits(alone.flat)
    other.join()


def test_training_leaves_evaluation_mode() -> None:
    here = park((1, 3))
    of = engine(here, dropout(here.dataset.shape, 3))
    of.network.module.eval()
    visit(of, Work(steps=1, batch_size=1))
    assert of.network.module.training


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("last", [False, True])
def test_what_a_device_holds_stays_as_it_is(kind: type, last: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 4, 4)).astype(kind)
    held = x.copy()
    ones = torch.ones(2)
    samples = Samples(x, np.zeros(3, np.int64), ones, 2 * ones, scale=0.5, channels_last=last)
    first = samples.values(slice(None))
    assert np.allclose(first, (0.5 * held - 1) / 2, rtol=0, atol=2.0**-20)  # roundings of numbers below 8
    first.zero_()
    assert bits(samples.values(slice(0, 2))) == bits(samples.values(torch.arange(2)))
    assert bool(samples.values(slice(None)).any())
    assert np.array_equal(x, held)


# -- samples -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp-2nn", "cnn-fedgs"])
def test_normalisation_is_float_arithmetic(model: str) -> None:
    here = park((40, 30), shape=(2, 5, 4), classes=3)
    every = np.concatenate([here.samples(k)[0] for k in range(2)]).astype(float) / 255
    mean = every.mean((0, 2, 3), keepdims=True)
    std = every.std((0, 2, 3), keepdims=True)
    raw = here.samples(0)[0].astype(float) / 255
    unit = engine(here, model).samples(0).values(slice(None))
    # x·fl(1/255): the factor's and the product's rounding, each by a share of at most 2^-24 of numbers up to 1
    assert np.allclose(unit.double(), raw, rtol=0, atol=2.0**-23)
    standard = engine(here, model, normalise="standard").samples(0).values(slice(None))
    # |value| < 4, |shift| < 2: the factor's, the product's, the shift's and the sum's roundings, each at most 2^-22
    assert np.allclose(standard.double(), (raw - mean) / std, rtol=0, atol=2.0**-20)
    assert tuple(standard.shape) == (40, 2, 5, 4)


def test_rows_are_chosen_before_they_are_made() -> None:
    of = big("cnn-tutorial", shape=(3, 18, 18))
    samples = of.samples(0)
    rows = torch.tensor([4, 1, 1])
    assert bits(samples.values(rows)) == bits(samples.values(slice(None))[rows])


def test_channels_last_is_the_contiguous_network_up_to_rounding() -> None:
    # Another memory format sums in another order: differences of some 2^-24 of the activations' sizes per step.
    of = big("cnn-tutorial", samples=40, shape=(3, 18, 18))
    fresh = network(park((5,), shape=(3, 18, 18), classes=10), "cnn-tutorial", seed=1).module
    fresh.load_state_dict(of.network.state(of.network.flat))
    plain = nn.Sequential(*[copy.deepcopy(part) for part in fresh])
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    before = of.network.flat.clone()
    work = Work(epochs=2, batch_size=16, rate=0.05, momentum=0.5)
    visit(of, work)
    by_torch(plain, of.samples(0), work)
    got = of.network.state(of.network.flat)
    moved = of.network.state(of.network.flat - before)
    for name, value in plain.state_dict().items():
        assert torch.allclose(got[name], value, rtol=0, atol=1e-5), name
        assert float(abs(moved[name]).max()) > 1e-4  # it did learn, and by far more than the tolerance


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_frozen_parameters_are_not_trained(momentum: float) -> None:
    here = park((20, 30), shape=(2, 6, 5))
    module = batch_norm((2, 6, 5), 3)
    module[0].weight.requires_grad_(False)
    of = engine(here, module)
    plain = copy.deepcopy(of.network.module)
    frozen = of.network.module[0].weight.clone()
    rest = of.network.flat.clone()
    work = Work(epochs=2, batch_size=8, rate=0.1, momentum=momentum)
    visit(of, work)
    by_torch(plain, of.samples(0), work)  # the optimiser leaves what has no gradient alone
    assert bits(of.network.module[0].weight) == bits(frozen)
    expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters() if p.requires_grad])
    assert bits(of.network.flat[: of.network.trained]) == bits(expected)
    assert not torch.equal(of.network.flat[: of.network.trained], rest[: of.network.trained])
    # They are part of what travels: the packet's numbers arrive and are mixed, (20·½ + 30·½)/50 = ½ without rounding.
    outcome = walk(of, Parallel(visits((0, 1), work)), {"w": torch.full_like(rest, 0.5)})
    mixed = outcome.packet["w"][of.network.trained :][: frozen.numel()]
    assert bool((mixed == 0.5).all())


# -- the flat layout ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cnn-fedgs", "batch-norm", "mlp-2nn"])
def test_a_model_as_a_vector_and_back(kind: str) -> None:
    here = park((20,), shape=(2, 6, 5))
    made = batch_norm((2, 6, 5), 3) if kind == "batch-norm" else kind
    of = engine(here, made)
    visit(of, Work(epochs=1, batch_size=8, rate=0.1))  # statistics have moved as well
    named = of.network.state(of.network.flat)
    assert all(value.is_contiguous() for value in named.values())
    fresh = copy.deepcopy(of.network.module)  # a plain module of the same kind, with other numbers
    for value in [*fresh.parameters(), *[b for b in fresh.buffers() if b.is_floating_point()]]:
        value.data = torch.full(value.shape, 0.25)
    fresh.load_state_dict(named)
    x = torch.rand(3, 2, 6, 5)
    fresh.eval(), of.network.module.eval()
    # one is channels-last and one is not: the same numbers, summed in another order
    assert torch.allclose(fresh(x), of.network.module(x), rtol=1e-5, atol=1e-6)
    assert bits(Network(fresh).flat) == bits(of.network.flat)


def test_statistics_of_batch_norm_are_part_of_the_vector() -> None:
    here = park((24,), shape=(2, 6, 5))
    of = engine(here, batch_norm((2, 6, 5), 3))
    plain = copy.deepcopy(of.network.module)
    for value in [*plain.parameters(), *plain.buffers()]:
        value.data = value.data.clone(memory_format=torch.contiguous_format)
    work = Work(epochs=1, batch_size=8, rate=0.1)
    visit(of, work)
    by_torch(plain, of.samples(0), work)
    statistics = torch.cat([plain[1].running_mean, plain[1].running_var])
    assert of.network.flat.numel() - of.network.trained == 8
    assert torch.allclose(of.network.flat[of.network.trained :], statistics, rtol=0, atol=1e-5)
    assert float(abs(statistics[:4]).max()) > 1e-3
