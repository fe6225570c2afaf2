"""Boosted trees are those of all samples in one place, and models as any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedfloor import run
from fedfloor.api.run import Run
from fedfloor.base.checking import checked
from fedfloor.base.errors import RunError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.boosting import Boosting
from fedfloor.methods.contract import View
from fedfloor.models import forest
from fedfloor.models.forest import ROUNDS_OF_BINS, Forest
from fedfloor.models.network import Network
from fedfloor.parts.mixing import means
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.parts.trees import growing
from fedfloor.parts.trees.histograms import Histograms
from fedfloor.plan import walk
from fedfloor.plan.outcome import Outcome, Receipt
from fedfloor.runs import forecast
from fedfloor.runs.parks import build_park
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.regression import Regression
from refusals import refused

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
    path = table(tmp_path, kind)
    task = {"task": kind} if kind == "regression" else {}
    values = [
        run(asked(path, data=task, park={"factories": factories}), tmp_path / f"{factories}", ranks=factories).headline
        for factories in (1, 2)
    ]
    assert values[0][1] == pytest.approx(values[1][1], rel=1e-5)


def reference(x: Floats, y: Floats, grids: list[Floats], settings: dict[str, Any]) -> Floats:
    """Return the outputs of trees for the squares (f − y)², by exhaustive search over rows; no value is missing."""
    out = np.zeros(len(y))
    for grid in grids:
        gradient = 2 * (out - y)
        nodes = [np.ones(len(y), bool)]
        ends: list[NDArray[np.bool_]] = []
        for level in range(settings["depth"]):
            best = [split for node in nodes if (split := divided(x, gradient, node, grid, settings)) is not None]
            best.sort(key=lambda split: -split[0])
            kept = best[: 8 if level == settings["depth"] - 1 else 4]
            ends += [node for node in nodes if not any(node is split[1] for split in kept)]
            nodes = [side for split in kept for side in split[2:]]
        for node in [*ends, *nodes]:
            out[node] -= settings["rate"] * gradient[node].sum() / (2 * node.sum() + 2 * settings["ridge"])
    return out


def divided(
    x: Floats, gradient: Floats, node: NDArray[np.bool_], grid: Floats, settings: dict[str, Any]
) -> tuple[float, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Return the gain of the best division of a node's rows, the node, and both sides; None without a gain."""

    def score(rows: NDArray[np.bool_]) -> float:
        return float(gradient[rows].sum() ** 2 / (2 * rows.sum() + 2 * settings["ridge"]))

    best = None
    for column, own in enumerate(grid):
        for edge in own:
            left = node & (x[:, column] <= edge)
            right = node & (x[:, column] > edge)
            if min(left.sum(), right.sum()) < settings["least"]:
                continue
            gain = score(left) + score(right) - score(node)
            if gain > (best[0] if best else 2e-9):
                best = gain, node, left, right
    return best


def adapted(goal: Objective, features: int, outputs: int, task: Any = None) -> Forest:
    module, _ = (goal if task is None else goal.for_task(task)).adapt(
        torch.nn.Linear(features, outputs), None, outputs, (features,)
    )
    assert isinstance(module, Forest)
    return module


def grown(
    x: Floats, y: NDArray[Any], parts: list[NDArray[np.int64]], grids: list[Floats] | None = None, **settings: Any
) -> tuple[Forest, Floats]:
    """Grow trees from parts of samples without an engine: the sums of the objective, and the method's absorb."""
    method = Boosting(**settings)
    task = CLASSIFICATION if y.dtype == np.int64 else Regression().fitted(y[:, None])
    outputs = int(y.max()) + 1 if y.dtype == np.int64 else 1
    module = adapted(method.objective, x.shape[1], outputs, task)
    network = Network(module)
    goal = method.objective
    inputs = torch.from_numpy(x).float()
    targets = torch.from_numpy(y) if y.dtype == np.int64 else torch.from_numpy(y).float()[:, None]
    rounds = ROUNDS_OF_BINS * (2 if method.columns < 1 else 1) + method.trees * method.depth
    sizes = np.array([len(part) for part in parts])
    about = {"layout": network.layout, "sensors": tuple("abcdef"[: x.shape[1]])}
    view = View(0, rounds, sizes, np.zeros(len(parts), int), {"w": network.flat.clone()}, **about)  # type: ignore[arg-type]
    state = method.init(view, {}, np.random.default_rng(0))
    for number in range(1, rounds + 1):
        plan = method.plan(state, replace(view, round=number), np.random.default_rng(0))
        visits = list(walk.visited(plan))
        if not visits:
            break
        models = []
        receipts = []
        for part, (visit, _) in zip(parts, visits, strict=True):
            network.flat.copy_(state.packet["w"])
            if grids is not None and state.notes.get("level") == 0 and not receipts:
                grids.append(module.grid.double().numpy().copy())
            trained = network.part(visit.work.trains)
            loss, _ = goal.loss(module, inputs[part], targets[part], Visit(None, {}, task=task))
            gradients = torch.autograd.grad(loss, network.within(trained))
            network.flat[trained] -= torch.cat([gradient.flatten() for gradient in gradients])
            models.append(network.flat.clone())
            receipts.append(Receipt(visit.site.index, 0, 0, 1, len(part), 0.0, 0.0, 0.0, 0, lost=False))
        mean = means.mean(models, sizes.tolist())
        state = method.absorb(state, Outcome({"w": mean}, plan, tuple(receipts)))
    network.flat.copy_(state.packet["w"])
    return module, module(inputs).detach().numpy()


def cut(many: int, *ends: int) -> list[NDArray[np.int64]]:
    return np.split(np.arange(many), ends)


def test_a_forest_is_that_of_an_exhaustive_search_at_the_same_edges() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2)).astype(np.float32).astype(float)
    y = np.where(x[:, 0] > 0, 1.0, -1.0) * x[:, 1]
    y = (y - y.mean()) / y.std()  # as the task takes targets
    settings = {"trees": 6, "depth": 4, "bins": 8, "rate": 0.5, "ridge": 1.0, "least": 3.0}
    grids: list[Floats] = []
    forest, outputs = grown(x, y, cut(90, 5, 50), grids, **settings)
    wanted = reference(x, y, grids[: int(forest.grown)], settings)
    np.testing.assert_allclose(outputs[:, 0], wanted, atol=2e-3)  # g is rounded to 2⁻¹¹ and more
    assert forest.base.item() == pytest.approx(0.0, abs=1e-3)


def test_the_edges_are_quantiles_and_every_tree_uses_others() -> None:
    rng = np.random.default_rng(1)
    x = np.stack([rng.normal(size=4000), rng.lognormal(0, 2, 4000)], 1)
    x = (x - x.mean(0)) / x.std(0)
    grids: list[Floats] = []
    grown(x, x[:, 0].copy(), cut(4000), grids, trees=16, depth=1, bins=16)
    every = np.sort(np.concatenate(grids, 1), 1)
    ranks = np.stack([np.searchsorted(np.sort(x[:, j]), every[j]) for j in range(2)]) / len(x)
    assert np.abs(ranks - np.arange(1, 241) / 241).max() < 0.03  # 240 edges; a quarter of a bin holds 1/60


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 6), st.sampled_from([2, 3, 0]), st.sampled_from([1.0, 0.5]))
def test_trees_are_the_same_to_the_bit_however_rows_are_divided(
    seed: int, devices: int, kinds: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(80, 4))
    x[:, 3] = rng.integers(0, 3, 80)
    x[rng.random(x.shape) < 0.1] = np.nan
    score = np.nan_to_num(x[:, 0]) + np.isnan(x[:, 1]) + rng.normal(size=80) / 3
    y = np.digitize(score, [0.0, 0.8][: kinds - 1]).astype(np.int64) if kinds else score
    settings = {"trees": 4, "depth": 4, "bins": 8, "columns": share, "rows": 0.8, "least": 2.0}
    settings |= {"monotone": {"a": 1, "b": -1}} if kinds != 3 else {}
    whole, first = grown(x, y, cut(80), **settings)
    apart = rng.permutation(80)
    ends = np.sort(rng.choice(np.arange(1, 80), devices - 1, replace=False))
    parts = [part for part in np.split(apart, ends) if len(part)]
    split, second = grown(x, y, parts, **settings)
    assert Network(whole).flat.equal(Network(split).flat)
    assert first.tobytes() == second.tobytes()
    assert np.abs(first).max() > 0.01


def test_missing_values_go_to_the_side_where_they_fit() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(200, 2))
    x[rng.random(200) < 0.3, 0] = np.nan
    y = np.where(np.isnan(x[:, 0]) | (x[:, 0] > 0.5), 1.0, -1.0)
    y = y - y.mean()
    _, outputs = grown(x, y / y.std(), cut(200, 60), trees=30, depth=2, rate=0.3)
    assert np.abs(outputs[:, 0] - y / y.std()).max() < 0.05


def test_rounding_errors_of_a_value_that_many_samples_have_change_no_output() -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 2, size=(300, 3)).astype(float)
    x = (x - x.mean(0)) / x.std(0)
    y = np.where((x[:, 0] > 0) & (x[:, 1] > 0), 1.0, -1.0) + 0.2 * x[:, 2]
    forest, outputs = grown(x, (y - y.mean()) / y.std(), cut(300, 90), trees=8, depth=3)
    for shift in (-1e-3, 1e-3):
        moved = forest(torch.from_numpy(x + shift).float()).detach().numpy()
        assert moved.tobytes() == outputs.tobytes()


def test_the_two_outputs_of_two_classes_are_one_function() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(100, 2))
    y = (x[:, 0] > 0).astype(np.int64)
    forest, outputs = grown(x, y, cut(100, 30), trees=10, depth=2)
    assert forest.base.numel() == 1
    assert (outputs[:, 0] == -outputs[:, 1]).all()
    assert ((outputs[:, 1] > 0) == (y == 1)).mean() > 0.95
    two_targets = adapted(Histograms(trees=2), 3, 2, Regression().fitted(np.eye(2)))
    assert two_targets.base.numel() == 2


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.sampled_from([1, -1]), st.booleans())
def test_outputs_never_fall_along_a_sensor_on_which_they_must_not(seed: int, sign: int, classes: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(150, 3))
    score = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + rng.normal(size=150) / 2
    y = (score > 0).astype(np.int64) if classes else (score - score.mean()) / score.std()
    forest, outputs = grown(x, y, cut(150, 40), trees=12, depth=4, rate=0.5, least=2.0, monotone={"a": sign})
    along = np.repeat(x[:20], 60, 0)
    along[:, 0] = np.tile(np.linspace(-4, 4, 60), 20)
    rises = forest(torch.from_numpy(along).float()).detach().numpy()[:, -1].reshape(20, 60)
    assert (np.diff(sign * rises, axis=1) >= -1e-6).all()  # the order of additions rounds
    assert np.ptp(outputs) > 0.1


def test_windows_have_the_signs_of_their_levels() -> None:
    method = Boosting(monotone={"b": -1})
    assert method._signs(("a", "b"), 14, 1) == [0, -1] * 4 + [0] * 6
    assert method._signs(("a", "b"), 2, 1) == [0, -1]
    for sensors, outputs in ((("a", "c"), 1), (("a", "b"), 3)):
        with pytest.raises(SettingError):
            method._signs(sensors, 2, outputs)


def test_a_lost_device_leaves_trees_of_the_others(tmp_path: Path) -> None:
    done = run(asked(table(tmp_path), data={"task": "regression"}, faults={"visit": 0.3}), tmp_path / "out")
    assert value(done) < 1.8  # the deviation of the label


def test_lost_devices_and_rare_classes_throw_no_leaf_far(tmp_path: Path) -> None:
    path = table(tmp_path, "classification")
    settings = {"methods": {"boosting": {"trees": 20}}, "evaluate": {"every": 100}}
    done = run(asked(path, 100, faults={"visit": 0.3}, **settings), tmp_path / "out")
    assert done.lines[-1].loss is not None
    assert done.lines[-1].loss < 1.0  # it is ln 3 without trees


def test_a_tree_for_which_no_row_is_drawn_changes_nothing() -> None:
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    _, outputs = grown(x, y, cut(30), trees=10, depth=2, rows=0.03)
    assert np.isfinite(outputs).all()


def test_nodes_without_weight_are_not_divided_and_warn_of_nothing() -> None:
    with np.errstate(all="raise"):
        assert growing.best_split(np.zeros((2, 5, 2)), Boosting(), 0.0) is None


def test_every_feature_of_a_row_counts_in_its_name() -> None:
    rows = torch.zeros(2, 130)
    rows[1, 77] = 1.0
    assert len(set(forest.named(rows).tolist())) == 2


def test_trees_that_differ_in_a_threshold_are_not_taken_for_remembered() -> None:
    module = adapted(Histograms(trees=1, depth=1, bins=4), 1, 1)
    x = torch.tensor([[-1.0], [0.5], [2.0]])
    with torch.no_grad():
        module.grown[:] = 1.0
        for threshold in (0.0, 1.0):
            module.trees[0][:] = torch.tensor([0.0, threshold, 0.0, 1.0])  # a split, its threshold, two leaves
            assert module.remembered(x)[2].equal(module.raw(x))


@pytest.mark.parametrize("number", [torch.nan, -1.0, 1e9, 1e30, torch.inf])
def test_a_forest_of_any_numbers_gives_outputs_and_sums(number: float) -> None:
    goal = Histograms(trees=2, depth=2, bins=4)
    forest = adapted(goal, 2, 2)
    with torch.no_grad():
        for tensor in (*forest.trees, forest.grown, forest.grid, forest.growing, forest.columns):
            tensor.fill_(number)
    loss, out = goal.loss(forest, torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), Visit(None, {}))
    assert out.shape == (3, 2)
    assert torch.autograd.grad(loss, [forest.sums["1"]])[0].shape == forest.sums["1"].shape


def test_sums_that_noise_has_changed_throw_no_output_far(tmp_path: Path) -> None:
    noise = {"attackers": {"kind": "gaussian", "deviation": 0.02, "share": 0.25}}
    path = table(tmp_path)
    done = run(asked(path, data={"task": "regression"}, faults=noise, deploy={"simulate": True}), tmp_path / "out")
    assert value(done) < 1.8  # the deviation of the label
    assert all(line.train_loss is None or line.train_loss > 0 for line in done.lines)


def test_windows_are_described_by_statistics_of_each_sensor() -> None:
    window = torch.tensor([[[1.0, 2.0, 6.0]]])
    described = Forest((1, 3), 2).described(window)
    assert described[:, :5].tolist() == [[3.0, 1.0, 6.0, 6.0, 2.5]]
    assert described.shape == (1, 7)


def test_rare_classes_do_not_throw_outputs_far(tmp_path: Path) -> None:
    goal = Histograms(trees=1, depth=1, bins=4)
    forest = adapted(goal, 1, 3)
    with torch.no_grad():
        forest.base.copy_(torch.tensor([20.0, -20.0, 0.0]))
    y = torch.tensor([1])
    loss, _ = goal.loss(forest, torch.zeros(1, 1), y, Visit(None, {}))
    (sums,) = torch.autograd.grad(loss, [forest.sums["all"]])
    first, second = sums.view(2, 3)
    assert (first.abs() / second)[:2].max().item() == pytest.approx(3.0)


@pytest.mark.parametrize(("more", "draws"), [({}, False), ({"rows": 0.5}, True), ({"columns": 0.5}, True)])
def test_devices_draw_samples_and_features_only_where_a_tree_uses_a_share(more: dict[str, float], draws: bool) -> None:
    assert Boosting(**more).needs.draws is draws  # type: ignore[arg-type]


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
        ({"methods": {"boosting": {"trees": 6}}}, "rounds"),
        ({"work": {"sample_clip": 1.0}}, "work.sample_clip"),
        ({"methods": {"boosting": {"trees": 10, "depth": 9}}}, "methods.boosting.depth"),
        ({"methods": {"boosting": {"trees": 10, "rate": 0.0}}}, "methods.boosting.rate"),
        ({"method": {"name": "boosting", "objective": "plain"}}, "combination"),
        ({"method": {"name": "boosting", "travel": {"kind": "sign"}}}, "combination"),
        ({"evaluate": {"finetune": {"epochs": 1}}}, "combination"),
        ({"methods": {"boosting": {"trees": 10**9}}}, "memory"),
        ({"data": {"task": {"kind": "reconstruction", "normal": "low"}}}, "method"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with refused(words):
        run(asked(table(tmp_path, "classification"), **more), tmp_path / "out")


def test_a_forecast_has_the_bytes_of_a_run_with_trees_of_all_levels(tmp_path: Path) -> None:
    settings = {"methods": {"boosting": {"trees": 10, "depth": 3}}, "network": {"profile": "lte-cat-m2"}}
    what = asked(table(tmp_path), 34, data={"task": "regression"}, **settings)
    done = run(what, tmp_path / "out")
    planned = list(forecast.rounds(what, build_park(what), 34))
    assert [one.price.bytes for one in planned[1:]] == [line.priced["bytes"] for line in done.lines[1:] if line.priced]


def test_trees_begin_with_none(tmp_path: Path) -> None:
    path = table(tmp_path, "classification")
    run(asked(path, 8), tmp_path / "first")
    with refused("combination"):
        run(asked(path, 8, model={"init_from": str(tmp_path / "first")}), tmp_path / "second")


def test_rounds_that_complete_no_tree_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(asked(table(tmp_path, "classification"), 7), tmp_path / "out")
    assert [one.message for one in caplog.records if "rounds = 7" in one.message] == [
        "rounds = 7: a tree is complete after 10."
    ]


def test_devices_may_have_fewer_samples_than_the_mini_batch(tmp_path: Path) -> None:
    assert asked(table(tmp_path)).configured.short_batches


def told(phase: float, step: float) -> tuple[Forest, dict[str, NDArray[Any]]]:
    """Return a forest, and the tensors of a visit to samples, some of whose values are missing."""
    goal = Histograms(trees=1, depth=2, bins=8)
    module = adapted(goal, 3, 3)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3))).float()
    x[::7, 1] = torch.nan
    with torch.no_grad():
        module.growing[-4:] = torch.tensor([phase, step, step, 5.0])
        module.growing[-8] = 0.0  # the slot of the root
    loss, _ = goal.loss(module, x, torch.arange(50) % 3, Visit(None, {}))
    gradients = torch.autograd.grad(loss, list(module.sums.values()))
    with torch.no_grad():
        for own, gradient in zip(module.sums.values(), gradients, strict=True):
            own -= gradient
    network = Network(module)
    return module, {name: network.flat[slice(*at)].numpy().copy() for name, at in network.layout.items()}


@pytest.mark.parametrize("phase", [forest.REFINING, 0.0])
@pytest.mark.parametrize("step", [0.0, 0.125])
def test_sums_that_no_samples_have_are_told(phase: float, step: float) -> None:
    module, numbers = told(phase, step)
    assert module.implausible(numbers) == ""
    place = int(np.abs(numbers["sums.1"]).argmax())
    for name, factor, more in (("sums.1", -1, 0), ("sums.all", 0.5, 0), ("sums.2", 0, 1e30), ("sums.4", 1, -1)):
        assert "contradict" in module.implausible({**numbers, name: numbers[name] * factor + more})
    for value in (numbers["sums.1"][place] - 1, np.nan):
        one = numbers["sums.1"].copy()
        one[place] = value
        assert "contradict" in module.implausible({**numbers, "sums.1": one})


def test_trees_are_never_those_of_sums_that_a_mask_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A machine of twenty rows far from the other thousand has 19 of g per sample: it was cut to 8 without a word."""
    rng = np.random.default_rng(0)
    owner = np.where(np.arange(1020) < 20, 0, 1 + np.arange(1020) % 5)
    x = rng.normal(size=(1020, 2)).round(3)
    y = x @ [2.0, 1.0] + 100 * (owner == 0)
    lines = [f"m{k},{row[0]},{row[1]},{value:.3f}" for k, row, value in zip(owner, x.tolist(), y, strict=True)]
    path = tmp_path / "far.csv"
    path.write_text("\n".join(["device,a,b,label", *lines]) + "\n")

    def trees(name: str, **travel: Any) -> Run:
        method = {"travel": {"kind": "secure-sum", "together": True, **travel}} if travel else {}
        small = {"boosting": {"trees": 2, "depth": 2, "bins": 4}}
        about: Any = {"method": method, "methods": small, "evaluate": {"every": 8}, "park": {"factories": 1}}
        about["data"] = {"task": "regression"}
        return run(asked(path, 8, **about), out=tmp_path / name)

    plain = trees("plain")
    assert value(trees("wide", bits=64)) == pytest.approx(value(plain), rel=1e-6)
    with refused("no-change", RunError):  # all are one crew
        trees("narrow", bits=32)
    assert "a device's sum per sample is 1" in caplog.text
    assert "travel.secure-sum.bound = 8. Set bits = 64" in caplog.text
