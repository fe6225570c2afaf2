"""Differentially private SGD: every way to add up clipped gradients is the same sum, and what cannot be is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfloor
from fedfloor import models
from fedfloor.base.errors import RunError
from fedfloor.config import read
from fedfloor.engine import private
from fedfloor.models.network import Network
from fedfloor.parts.objectives.objective import Plain, Visit
from fedfloor.plan.nodes import Repeat, Select, Sequence, Train, Work, device
from fedfloor.plan.schedule import Key
from fedfloor.runs import privacy
from fedfloor.runs.folder import owned
from refusals import refused

WORK = Work(steps=3, batch_size=4, rate=0.1, sample_clip=0.5, sample_noise=0.7)
NETWORKS = {"mlp-2nn": (1, 8, 8), "cnn-small": (1, 28, 28), "lenet": (3, 32, 32), "cnn-sensor": (3, 30)}
SAMPLED = """
name = "sampled"
rounds = 2
data = {{ name = "labels", samples_per_device = 20 }}
park = {{ devices = 4, factories = 2 }}
model.name = "{model}"
method.name = "{method}"
work = {{ batch_size = 5, lr = 0.05, {work} }}
{more}
"""


class Samples:
    """Samples of a device, as training asks for them."""

    def __init__(self, shape: tuple[int, ...], n: int = 12) -> None:
        torch.manual_seed(1)
        self.x, self.y = torch.randn(n, *shape), torch.arange(n) % 5

    def __len__(self) -> int:
        return len(self.y)

    def values(self, rows: torch.Tensor | slice) -> torch.Tensor:
        return self.x[rows]

    def chunk(self, batch_size: int) -> int:
        return batch_size


def network(name: str) -> Network:
    return models.build(name, NETWORKS[name], 5, 0)


def visit(one: Network) -> Visit:
    return Visit(None, {}, one, {}, WORK, 3, None)  # type: ignore[arg-type]


def trained(name: str, work: Work, samples: Samples, *, hidden: bool = False) -> torch.Tensor:
    one = network(name)
    private.train_private(one, samples, work, Plain(), visit(one), Key(0, 1, 0, 0, 0), {}, hidden=hidden)
    return one.flat.clone()


@pytest.mark.parametrize("name", NETWORKS)
def test_by_layers_by_samples_and_one_by_one_are_the_same_sum(name: str) -> None:
    one = network(name)
    samples = Samples(NETWORKS[name])
    clip = 0.3
    one.module.eval()
    shaped = one.shaped_like(one.parameters)
    wanted = torch.zeros_like(one.flat)
    for x, y in zip(samples.x, samples.y, strict=True):
        loss, _ = Plain().loss(one.module, x[None], y[None], visit(one))
        gradient = torch.zeros_like(one.flat)
        for view, part in zip(shaped(gradient), torch.autograd.grad(loss, one.parameters), strict=True):
            view.copy_(part)
        wanted += gradient * min(1.0, clip / float(gradient.norm()))
    ways = [way(one, one.parameters, Plain(), visit(one), clip) for way in (private._by_layers, private._by_samples)]
    assert ways[0] is not None
    for add in ways:
        total = torch.zeros_like(one.flat)
        add(samples.x, samples.y, shaped(total))  # type: ignore[misc]
        assert float((total - wanted).norm() / wanted.norm()) < 1e-5
        more = torch.zeros_like(one.flat)
        add(samples.x[:-1], samples.y[:-1], shaped(more))  # type: ignore[misc]
        assert float((total - more).norm()) <= clip * (1 + 1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_sample_whose_gradient_is_not_finite_adds_nothing(name: str, value: float) -> None:
    one = network(name)
    samples = Samples(NETWORKS[name])
    one.module.eval()
    shaped = one.shaped_like(one.parameters)
    wanted = torch.zeros_like(one.flat)
    finite = torch.arange(len(samples)) != 3
    samples.x[3] = value * samples.x[3].sign()
    for way in (private._by_layers, private._by_samples):
        add = way(one, one.parameters, Plain(), visit(one), 0.3)
        assert add is not None
        total = torch.zeros_like(one.flat)
        wanted = torch.zeros_like(one.flat)
        add(samples.x, samples.y, shaped(total))
        add(samples.x[finite], samples.y[finite], shaped(wanted))
        assert bool(total.isfinite().all())
        assert torch.allclose(total, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["mlp-2nn", "cnn-sensor-gn"])
def test_a_model_that_fails_for_one_sample_moves_by_no_more_than_its_clipped_gradient(name: str) -> None:
    """The guarantee holds for a model of an attacker's choice: with the same noise, one sample moves a step by C/b."""
    shape = {**NETWORKS, "cnn-sensor-gn": (3, 30)}[name]
    work = replace(WORK, steps=1, batch_size=12, rate=1.0)
    ends = []
    for value in (float("nan"), 1.0):
        one = models.build(name, shape, 5, 0)
        samples = Samples(shape)
        samples.x[3] *= value
        stats = private.train_private(one, samples, work, Plain(), visit(one), Key(0, 1, 0, 0, 0), {})
        ends.append(one.flat.clone())
        assert stats.loss_last is None
    assert float((ends[0] - ends[1]).norm()) <= 0.5 / 12 * (1 + 1e-4)


def test_without_bound_and_noise_and_with_every_sample_it_is_a_plain_step_on_all() -> None:
    samples = Samples(NETWORKS["mlp-2nn"])
    got = trained("mlp-2nn", Work(steps=2, batch_size=12, rate=0.1, sample_clip=1e9), samples)
    one = network("mlp-2nn")
    for _ in range(2):
        loss, _ = Plain().loss(one.module, samples.x, samples.y, visit(one))
        for parameter, gradient in zip(one.parameters, torch.autograd.grad(loss, one.parameters), strict=True):
            parameter.data.sub_(gradient, alpha=0.1)
    assert torch.allclose(got, one.flat, atol=1e-6)


def test_the_noise_has_its_deviation_and_is_keyed_or_secret() -> None:
    samples = Samples(NETWORKS["mlp-2nn"])
    plain, noisy = (trained("mlp-2nn", Work(steps=1, batch_size=4, rate=1.0, sample_clip=0.5, sample_noise=z), samples)
                    for z in (0.0, 2.0))  # fmt: skip
    assert float((noisy - plain).std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.02)
    assert torch.equal(trained("mlp-2nn", WORK, samples), trained("mlp-2nn", WORK, samples))
    first, second = (trained("mlp-2nn", WORK, samples, hidden=True) for _ in range(2))
    assert not torch.equal(first, second)


def file(folder: Path, model: str = "logistic", method: str = "fedavg", work: str = "", more: str = "") -> Path:
    path = folder / "sampled.toml"
    work = work or "sample_clip = 1.0, sample_noise = 1.0"
    path.write_text(SAMPLED.format(model=model, method=method, work=work, more=more))
    return path


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedsr", "fedgs", "fedper", "hierfavg"])
def test_no_shortcut_and_no_rank_drops_the_noise(tmp_path: Path, method: str) -> None:
    more = "methods.fedprox.mu = 0.1" if method == "fedprox" else ""
    runs = {}
    for name, shortcuts, ranks in (("one", "auto", 1), ("two", "auto", 2), ("off", "off", 1)):
        what = file(tmp_path, method=method, more=f'{more}\nengine.shortcuts = "{shortcuts}"')
        runs[name] = [line.loss for line in fedfloor.run(read(what), tmp_path / name, ranks=ranks).lines]
    assert runs["one"] == runs["two"] == runs["off"]
    plain = file(tmp_path, method=method, more=more, work="momentum = 0.0")
    assert runs["one"] != [line.loss for line in fedfloor.run(read(plain), tmp_path / "plain", ranks=1).lines]
    stated = json.loads((tmp_path / "one/privacy.json").read_text())["samples"]
    assert (stated["protects"], stated["noise_multiplier"]) == ("a sample of a device", 1.0)
    assert 0 < stated["epsilon"] < 100
    assert np.isclose(stated["share"], 5 / 20)


@pytest.mark.parametrize("method", ["fedavg", "fedsr"])
def test_a_run_stops_before_the_samples_budget_is_exceeded(tmp_path: Path, method: str) -> None:
    what = file(tmp_path, method=method)
    what.write_text(what.read_text().replace("rounds = 2\n", "rounds = 30\n"))
    first = fedfloor.run(read(what), tmp_path / "first", ranks=1, limits=fedfloor.Limits(stop_after=1))
    spent = json.loads((tmp_path / "first/privacy.json").read_text())["samples"]["epsilon"]
    assert len(first.lines) == 1
    budget = 2 * spent
    done = fedfloor.run(read(what), tmp_path / "run", ranks=1, limits=fedfloor.Limits(epsilon=budget))
    stated = json.loads((tmp_path / "run/privacy.json").read_text())["samples"]
    assert 1 < len(done.lines) < 30
    assert stated["epsilon"] <= budget
    more = stated["rounds"] // len(done.lines) * (len(done.lines) + 1)  # every device trains in every round
    assert privacy.epsilon(1.0, stated["share"], more, stated["delta"]) > budget
    with refused("--until"):
        fedfloor.run(read(what), tmp_path / "none", ranks=1, limits=fedfloor.Limits(epsilon=spent / 2))


def test_a_run_that_fails_before_its_first_round_keeps_the_count_of_its_visits(tmp_path: Path) -> None:
    def fail(counts: bool) -> None:
        (tmp_path / "run/experiment.toml").write_text("")
        if counts:
            privacy.begin_visits(tmp_path / "run", Train(device(3), Work(epochs=1)))
        raise RunError("no edge is connected.")

    for counts in (False, True):
        with pytest.raises(RunError, match="no edge"), owned(tmp_path / "run"):
            fail(counts)
        assert (tmp_path / "run").exists() == counts
    assert privacy.visits_begun(tmp_path / "run", {}) == {3: 1}  # edges have seen their updates


def test_a_scale_of_a_devices_own_samples_is_named(tmp_path: Path) -> None:
    method = read(file(tmp_path)).configured
    for own_scale in (False, True):
        stated = privacy.statement(method, 1, [(20, 1)], {0: 2}, own_scale=own_scale)["samples"]
        assert (privacy.OWN_SCALE in stated["not_covered"]) == own_scale
    assert "copies" not in stated
    assert privacy.statement(method, 1, [(20, 2)], {0: 2})["samples"]["copies"] == 2


def test_visits_of_rounds_that_are_begun_again_count_twice(tmp_path: Path) -> None:
    work = Work(epochs=1)
    plan = Sequence((Train(device(3), work), Repeat(2, Select("uniform", (1, 2), 1, work))))
    for _ in range(2):
        privacy.begin_visits(tmp_path, plan)
    assert privacy.visits_begun(tmp_path, {1: 1, 4: 5}) == {1: 4, 2: 4, 3: 2, 4: 5}
    (tmp_path / privacy.VISITS).write_text("[]")
    with refused("damaged-record"):
        privacy.visits_begun(tmp_path, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "moon"}, "work.sample_clip"),
        ({"work": "sample_noise = 1.0"}, "work.sample_noise"),
        ({"work": "sample_clip = 0.0"}, "work.sample_clip"),
        ({"work": "sample_clip = inf"}, "work.sample_clip"),
        ({"work": "sample_clip = 1.0, sample_noise = -1.0"}, "work.sample_noise"),
    ],
)
def test_what_cannot_be_private_is_refused_by_name(tmp_path: Path, change: dict[str, str], words: str) -> None:
    with refused(words):
        fedfloor.run(read(file(tmp_path, **change)), tmp_path / "run", ranks=1)


@pytest.mark.parametrize("name", ["lstm", "gru", "cnn-sensor-bn"])
def test_layers_that_mix_samples_or_have_no_gradient_of_one_are_refused(name: str) -> None:
    one = models.build(name, (3, 30), 5, 0)
    with refused("work.sample_clip"):
        private.train_private(one, Samples((3, 30)), WORK, Plain(), visit(one), Key(0, 1, 0, 0, 0), {})


@pytest.mark.parametrize("name", ["cnn-sensor-gn", "mlp-window", "cnn-window", "tcn", "transformer"])
def test_other_networks_go_sample_by_sample(name: str) -> None:
    one = models.build(name, (3, 30), 5, 0)
    before = one.flat.clone()
    private.train_private(one, Samples((3, 30)), WORK, Plain(), visit(one), Key(0, 1, 0, 0, 0), {})
    assert bool(torch.isfinite(one.flat).all())
    assert not torch.equal(before, one.flat)
