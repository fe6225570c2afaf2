"""Boosted trees are those of all samples in one place, and models as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedfloor import run
from fedfloor.checking import checked
from fedfloor.config import combined
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.models.forest import Forest
from fedfloor.parts.histograms import Histograms
from fedfloor.parts.objective import Objective, Visit
from fedfloor.runs.api import Run
from fedfloor.tasks.regression import Regression

Floats = NDArray[np.float64]
KINDS = ["classification", "regression"]


def table(folder: Path, kind: str = "regression") -> Path:
    """Write 240 rows of four devices whose label is a step in a, a slope in b and an interaction of both."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3)).round(4)
    y = 3.0 * (x[:, 0] > 0.25) + x[:, 1] * (x[:, 0] > 0.25) + 0.5 * x[:, 1]
    labels = ["low", "middle", "high"]
    cells = [labels[int(v > 0.5) + int(v > 3.0)] for v in y] if kind == "classification" else [f"{v:.5f}" for v in y]
    lines = [f"m{n % 4},{','.join(map(str, row))},{label}" for n, (row, label) in enumerate(zip(x, cells, strict=True))]
    path = folder / f"{kind}.csv"
    path.write_text("\n".join(["device,a,b,c,label", *lines]) + "\n")
    return path


def asked(path: Path, rounds: int = 44, **more: Any) -> Experiment:
    about: dict[str, Any] = {
        "rounds": rounds, "data": {"path": str(path), "split": {"kind": "random"}},
        "method": {"name": "boosting"}, "methods": {"boosting": {"trees": 10}}, "evaluate": {"every": 44},
    }  # fmt: skip
    for key, value in more.items():
        about[key] = {**about.get(key, {}), **value}
    return checked(Experiment, about, "")


def value(done: Run) -> float:
    found = done.headline[1]
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_factories_and_ranks_give_the_same_trees(tmp_path: Path, kind: str) -> None:
    path, task = table(tmp_path, kind), {"task": kind} if kind == "regression" else {}
    values = [
        run(asked(path, data=task, park={"factories": factories}), tmp_path / f"{factories}", ranks=factories).headline
        for factories in (1, 2)
    ]
    assert values[0][1] == pytest.approx(values[1][1], rel=1e-5)


def reference(x: Floats, y: Floats, edges: list[Floats], trees: int, depth: int, rate: float, ridge: float) -> Floats:
    """Return the outputs of symmetric trees for the squares (f − y)², by exhaustive search."""
    out = np.zeros(len(y))
    for _ in range(trees):
        gradient, node = 2 * (out - y), np.zeros(len(y), int)
        for level in range(depth):
            best: tuple[float, NDArray[np.bool_]] | None = None
            for column, own in enumerate(edges):
                for edge in own:
                    right = x[:, column] > edge
                    sides = [(node == n) & side for n in range(2**level) for side in (right, ~right)]
                    gain = sum(gradient[s].sum() ** 2 / (2 * s.sum() + ridge) for s in sides)
                    if best is None or gain > best[0] + 1e-9:
                        best = gain, right
            assert best is not None
            node = node + 2**level * best[1]
        for n in range(2**depth):
            mine = node == n
            out[mine] -= rate * gradient[mine].sum() / (2 * mine.sum() + ridge)
    return out


def adapted(goal: Objective, features: int, outputs: int) -> Forest:
    module, _ = goal.adapt(torch.nn.Linear(features, outputs), None, outputs, (features,))
    assert isinstance(module, Forest)
    return module


def grown(x: Floats, y: Floats, parts: list[slice], **settings: Any) -> tuple[Forest, Floats]:
    """Grow trees from parts of samples without an engine: the sums of the objective, and the method's absorb."""
    from fedfloor.methods.boosting import REFINING, Boosting
    from fedfloor.methods.contract import State
    from fedfloor.models.network import Network
    from fedfloor.plan.nodes import Sequence
    from fedfloor.plan.outcome import Outcome

    method = Boosting(**settings)
    goal = method.objective
    module = adapted(goal, x.shape[1], 1)
    network = Network(module)
    state = State({"w": network.flat.clone()}, {"layout": network.layout, "samples": len(y), "last": 100})
    task = Regression().fitted(y[:, None])
    inputs, targets = torch.from_numpy(x).float(), torch.from_numpy(y).float()[:, None]
    for _ in range(REFINING + method.trees * method.depth):
        mean = torch.zeros_like(network.flat)
        for part in parts:
            network.flat.copy_(state.packet["w"])
            loss, _ = goal.loss(module, inputs[part], targets[part], Visit(None, {}, task=task))
            (gradient,) = torch.autograd.grad(loss, [module.sums])
            network.flat[: gradient.numel()] -= gradient.flatten()
            mean += network.flat * len(targets[part]) / len(targets)
        state = method.absorb(state, Outcome({"w": mean}, Sequence(())))
    network.flat.copy_(state.packet["w"])
    return module, module(inputs).detach().numpy()[:, 0]


def test_a_forest_is_that_of_an_exhaustive_search_at_the_same_edges() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2)).astype(np.float32).astype(float)
    y = np.where(x[:, 0] > 0, 1.0, -1.0) * x[:, 1]
    y = (y - y.mean()) / y.std()  # as the task takes targets
    parts = [slice(0, 5), slice(5, 50), slice(50, 90)]
    forest, found = grown(x, y, parts, trees=6, depth=2, bins=8, rate=0.5, ridge=1.0)
    edges = [own.double().numpy() for own in forest.edges]
    wanted = reference(x, y, edges, 6, 2, 0.5, 1.0)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert forest.base.item() == pytest.approx(0.0, abs=1e-6)
    shares = np.stack([np.histogram(x[:, j], [-np.inf, *edges[j], np.inf])[0] for j in range(2)]) / len(x)
    assert np.abs(shares - 1 / 8).max() < 0.05  # bins hold about equally many samples


def test_parts_of_any_size_give_the_trees_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    whole, first = grown(x, y, [slice(0, 60)], trees=4, depth=3, bins=16)
    apart, second = grown(x, y, [slice(0, 1), slice(1, 20), slice(20, 60)], trees=4, depth=3, bins=16)
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert whole.feature.equal(apart.feature)
    assert np.abs(first).max() > 0.1


def test_a_level_to_come_changes_no_output() -> None:
    forest = Forest((2,), 1, trees=2, depth=2, bins=4)
    with torch.no_grad():
        forest.feature.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        forest.leaf.copy_(torch.arange(8.0).view(2, 4, 1))
        forest.progress[:] = 1.0
    x = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    assert forest.leaves(x).tolist() == [[1, 0], [0, 0]]
    forest.progress[:] = 4.0
    assert forest.leaves(x).tolist() == [[3, 3], [2, 0]]
    assert forest(x)[:, 0].tolist() == [3.0 + 7.0, 2.0 + 4.0]


@pytest.mark.parametrize("number", [torch.nan, -1.0, 1e9])
def test_a_forest_of_any_numbers_gives_outputs_and_sums(number: float) -> None:
    goal = Histograms(trees=2, depth=2, bins=4)
    forest = adapted(goal, 2, 1)
    with torch.no_grad():
        for tensor in (forest.feature, forest.progress, forest.edges):
            tensor.fill_(number)
    loss, out = goal.loss(forest, torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), Visit(None, {}))
    assert out.shape == (3, 1)
    assert torch.autograd.grad(loss, [forest.sums])[0].shape == forest.sums.shape


def test_a_message_for_another_forest_is_refused() -> None:
    forest = adapted(Histograms(trees=2, depth=2, bins=4), 2, 1)
    for other in (Histograms(trees=9, depth=2, bins=4), Histograms(trees=2, depth=2, bins=8)):
        with pytest.raises(SettingError, match="has other trees, depth or bins"):
            other.loss(forest, torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), Visit(None, {}))


def test_sums_that_noise_has_changed_throw_no_output_far(tmp_path: Path) -> None:
    noise = {"attackers": {"kind": "gaussian", "deviation": 0.02, "share": 0.25}}
    path = table(tmp_path)
    done = run(asked(path, data={"task": "regression"}, faults=noise, deploy={"simulate": True}), tmp_path / "out")
    assert value(done) < 1.8  # the deviation of the label
    assert all(line.train_loss is None or line.train_loss > 0 for line in done.lines)


def test_windows_are_described_by_statistics_of_each_sensor() -> None:
    window = torch.tensor([[[1.0, 2.0, 6.0]]])
    described = Forest((1, 3), 2).features(window)
    assert described[:, :5].tolist() == [[3.0, 1.0, 6.0, 6.0, 2.5]]
    assert described.shape == (1, 7)


def test_rare_classes_do_not_throw_outputs_far(tmp_path: Path) -> None:
    goal = Histograms(trees=1, depth=1, bins=4)
    forest = adapted(goal, 1, 2)
    with torch.no_grad():
        forest.base.copy_(torch.tensor([20.0, -20.0]))
    y = torch.tensor([1])
    loss, _ = goal.loss(forest, torch.zeros(1, 1), y, Visit(None, {}))
    (sums,) = torch.autograd.grad(loss, [forest.sums])
    first, second = sums.sum((0, 1, 2)).view(2, 2)
    assert (first.abs() / second).max().item() == pytest.approx(3.0)


def test_it_learns_classes_numbers_and_quantiles(tmp_path: Path) -> None:
    path = table(tmp_path)
    plain = run(asked(path, 84, data={"task": "regression"}, methods={"boosting": {"trees": 20}}), tmp_path / "plain")
    assert value(plain) < 0.8  # the deviation of the label is 1.8
    intervals = {"task": {"kind": "regression", "loss": "quantile"}}
    quantiles = run(asked(path, 84, data=intervals, methods={"boosting": {"trees": 20}}), tmp_path / "quantiles")
    assert value(quantiles) < 1.0
    classes = run(
        asked(table(tmp_path, "classification"), 84, methods={"boosting": {"trees": 20}}), tmp_path / "classes"
    )
    assert value(classes) > 0.85
    weighted = asked(
        table(tmp_path, "classification"), 84, methods={"boosting": {"trees": 20, "objective": "weighted"}}
    )
    assert value(run(weighted, tmp_path / "weighted")) > 0.8


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"methods": {"boosting": {"trees": 9}}}, r"4 \+ 9·4 = 40 rounds"),
        ({"work": {"sample_clip": 1.0}}, "method 'boosting' has work of its own"),
        ({"methods": {"boosting": {"trees": 10, "depth": 9}}}, "depth = 9"),
        ({"methods": {"boosting": {"trees": 10, "rate": 0.0}}}, "rate = 0"),
        ({"method": {"name": "boosting", "objective": "plain"}}, "leave it out"),
        ({"method": {"name": "boosting", "travel": {"kind": "sign"}}}, "does not belong to the next"),
        ({"evaluate": {"finetune": {"epochs": 1}}}, "evaluate.finetune with method 'boosting'"),
        ({"methods": {"boosting": {"trees": 10**9}}}, "memory"),
        ({"data": {"task": {"kind": "reconstruction", "normal": "low"}}}, "it neither forecasts nor reconstructs"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        run(asked(table(tmp_path, "classification"), **more), tmp_path / "out")


def test_trees_begin_with_none(tmp_path: Path) -> None:
    path = table(tmp_path, "classification")
    run(asked(path, 8), tmp_path / "first")
    with pytest.raises(SettingError, match=r"model\.init_from with method 'boosting'"):
        run(asked(path, 8, model={"init_from": str(tmp_path / "first")}), tmp_path / "second")


def test_rounds_that_complete_no_tree_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(asked(table(tmp_path, "classification"), 7), tmp_path / "out")
    assert [one.message for one in caplog.records if "rounds = 7" in one.message] == [
        "rounds = 7: a tree is complete after 8."
    ]


def test_devices_may_have_fewer_samples_than_the_mini_batch(tmp_path: Path) -> None:
    assert combined(asked(table(tmp_path))).short_batches
