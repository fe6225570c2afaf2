"""Models that are sums equal those of all rows in one place, however rows are divided."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy import stats
from sklearn.cluster import KMeans as Lloyd
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as Reference
from sklearn.naive_bayes import GaussianNB

from fedfloor import load, run
from fedfloor.base.checking import checked
from fedfloor.base.errors import RunError
from fedfloor.config import ROUNDS as MOST
from fedfloor.engine.engine import Samples
from fedfloor.engine.limit import flaw
from fedfloor.experiment import Experiment
from fedfloor.inference.onnx import export
from fedfloor.inference.trained import load_model
from fedfloor.methods.catalog import EXACT
from fedfloor.methods.exact.bayes import Bayes
from fedfloor.methods.exact.charts import CUSUM, EWMA, XbarS
from fedfloor.methods.exact.components import Components
from fedfloor.methods.exact.kmeans import KMeans
from fedfloor.methods.exact.logistic import Logistic
from fedfloor.methods.exact.percentiles import Percentiles
from fedfloor.methods.exact.rows import SampleRows
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.page import write
from fedfloor.report.remarks import remarks
from fedfloor.runs.parks import build_park, network_of
from fedfloor.tasks.classification import Classification
from refusals import refused

Floats = NDArray[np.float64]
ROWS = 120
# which device has a row, by the number of the row and its class
DIVISIONS: dict[str, Any] = {
    "one device": lambda n, _: 0 * n,
    "equal": lambda n, _: n % 4,
    "one training row on a device": lambda n, _: np.where((n == 7) | (n == 8), 3, np.where(n % 11 == 0, 2, n % 2)),
    "a class on a device": lambda _, label: label,
}


def table(folder: Path, task: str, division: str, classes: int = 3) -> Path:
    """Write rows of three sensors, some of them equal, whose label depends on them."""
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(ROWS, 3)) * [1.0, 5.0, 0.1] + [0.0, 20.0, 3.0], 2)
    x[10:20] = x[20:30]  # ties
    y = x @ [1.0, 0.2, 4.0] + rng.normal(size=ROWS) * 0.3
    label = np.searchsorted(np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1]), y)
    device = DIVISIONS[division](np.arange(ROWS), label)
    words = ["normal", "normal", "fault"] if task == "reconstruction" else [f"class {k}" for k in range(classes)]
    cells = [f"{v:.4f}" for v in y] if task == "regression" else [words[k] for k in label]
    lines = [f"m{k},{','.join(map(str, row))},{cell}" for k, row, cell in zip(device, x.tolist(), cells, strict=True)]
    path = folder / "rows.csv"
    path.write_text("\n".join(["device,a,b,c,label", *lines]) + "\n")
    return path


def asked(
    path: Path, task: str, name: str, rounds: int = 1, data: Any = (), method: Any = (), **more: Any
) -> Experiment:
    split = {"kind": "random", "test": 0.5}
    about = {
        "rounds": rounds, "method": {"name": name, **dict(method)}, "evaluate": {"every": rounds},
        "data": {"path": str(path), "task": task, "split": split, **dict(data)}, **more,
    }  # fmt: skip
    return checked(Experiment, about, "")


def fitted(experiment: Experiment, folder: Path, ranks: int = 1) -> dict[str, Floats]:
    run(experiment, out=folder / "run", ranks=ranks)
    return {
        name.removeprefix("theta."): value for name, value in load_file(folder / "run" / "model.safetensors").items()
    }


def pooled(experiment: Experiment) -> tuple[Floats, NDArray[Any]]:
    """Return all training samples as a device's model sees them, in one place."""
    park = build_park(experiment)
    mean, std = map(torch.from_numpy, mean_and_deviation(park, experiment.data.normalise))
    x, y = park.pooled()
    samples = Samples(x, y, mean, std, scale=park.dataset.scale, channels_last=False)
    return samples.values(slice(None)).double().numpy(), y


@pytest.mark.parametrize("division", DIVISIONS)
def test_ridge_is_scikit_learns_pooled_one(division: str, tmp_path: Path) -> None:
    experiment = asked(table(tmp_path, "regression", division), "regression", "ridge")
    weight = fitted(experiment, tmp_path)["weight"]
    x, y = pooled(experiment)
    task: Any = build_park(experiment).dataset.task
    reference = Reference(alpha=1.0).fit(x, (y.astype(np.float64) - task.center) / task.scale)
    np.testing.assert_allclose(weight[1:, 0], reference.coef_, atol=1e-8)
    np.testing.assert_allclose(weight[0], reference.intercept_, atol=1e-8)


def test_ridge_has_no_quantiles(tmp_path: Path) -> None:
    task: Any = {"kind": "regression", "loss": "quantile"}
    with refused("data.task.loss"):
        run(asked(table(tmp_path, "regression", "equal"), task, "ridge"), out=tmp_path / "run")


def test_k_means_needs_no_memory_for_all_differences_at_a_time() -> None:
    rows = SampleRows(np.random.default_rng(0).normal(size=(2000, 300)), np.zeros(2000), Classification())
    theta = {**KMeans(states=8).parameters((300,), 1), "phase": np.ones(1)}
    tracemalloc.start()
    KMeans(states=8).sums(rows, theta)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 * rows.x.nbytes  # all differences at a time have 32 times the size of the rows


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("division", DIVISIONS)
def test_logistic_is_scikit_learns_pooled_one(division: str, classes: int, tmp_path: Path) -> None:
    experiment = asked(table(tmp_path, "classification", division, classes), "classification", "logistic", rounds=10)
    weight = fitted(experiment, tmp_path)["weight"]
    x, y = pooled(experiment)
    reference = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-12).fit(x, y)
    np.testing.assert_allclose(weight[1:].T, reference.coef_, atol=1e-8)
    np.testing.assert_allclose(weight[0], reference.intercept_, atol=1e-8)


@pytest.mark.parametrize("sizes", [[60] * 5, [30, 40, 60, 80, 90]])
def test_logistic_comes_near_the_minimum_where_each_round_lacks_a_device(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = (x @ [2.0, -1.0, 0.0] + rng.normal(size=300) > 0).astype(np.int64)
    whole = LogisticRegression(C=1.0, tol=1e-12).fit(x, y).coef_[0]
    owner = np.repeat(np.arange(5), sizes)
    model = Logistic()
    theta = model.parameters((3,), 2)
    far = []
    for _ in range(40):
        rows = np.flatnonzero(owner != rng.integers(5))
        some = SampleRows(x[rows], y[rows], Classification())
        theta, _ = model.solve(model.sums(some, theta), len(rows), theta)
        far.append(float(np.abs(theta["weight"][1:, 0] - whole).max()))
    assert max(far[12:]) < 0.2 * np.abs(whole).max()


@pytest.mark.parametrize("bits", [32, 64])
def test_secure_sums_are_exact_to_their_step(bits: int, tmp_path: Path) -> None:
    path = table(tmp_path, "classification", "equal")
    open_sums = fitted(asked(path, "classification", "logistic", 8), tmp_path)["weight"]
    travel = {"kind": "secure-sum", "bits": bits, "together": True}
    masked = fitted(asked(path, "classification", "logistic", 8, method={"travel": travel}), tmp_path / "masked")[
        "weight"
    ]
    np.testing.assert_allclose(masked, open_sums, atol={32: 1e-5, 64: 1e-10}[bits])
    assert (masked != open_sums).any()


@pytest.mark.parametrize("division", DIVISIONS)
def test_limits_of_charts_are_those_of_all_rows(division: str, tmp_path: Path) -> None:
    experiment = asked(table(tmp_path, "reconstruction", division), "reconstruction", "shewhart")
    x = pooled(experiment)[0]
    theta = fitted(experiment, tmp_path)
    np.testing.assert_allclose(theta["mean"], x.mean(0), atol=1e-9)
    np.testing.assert_allclose(theta["sigma"], x.std(0, ddof=1), rtol=1e-9)


@pytest.mark.parametrize("division", DIVISIONS)
@pytest.mark.parametrize("alpha", [0.0027, 0.05])
def test_hotellings_limit_is_that_of_all_rows(division: str, alpha: float, tmp_path: Path) -> None:
    path = table(tmp_path, "reconstruction", division)
    experiment = asked(path, "reconstruction", "hotelling", methods={"hotelling": {"alpha": alpha}})
    x = pooled(experiment)[0]
    theta = fitted(experiment, tmp_path)
    away = x - x.mean(0)
    wanted = np.einsum("ij,ij->i", away @ np.linalg.inv(np.cov(x.T)), away)
    np.testing.assert_allclose((((x - theta["mean"]) @ theta["whiten"].T) ** 2).sum(1), wanted, rtol=1e-9)
    n = len(x)
    limit = 3 * (n + 1) * (n - 1) / (n * (n - 3)) * stats.f.ppf(1 - alpha, 3, n - 3)
    np.testing.assert_allclose(theta["limit"], limit, rtol=1e-12)


def test_a_mean_far_from_zero_takes_a_second_round(tmp_path: Path) -> None:
    path = table(tmp_path, "reconstruction", "equal")
    header, *lines = path.read_text().splitlines()
    far = [",".join([d, str(1e5 + float(a)), *rest]) for d, a, *rest in (line.split(",") for line in lines)]
    path.write_text("\n".join([header, *far]) + "\n")
    experiment = asked(path, "reconstruction", "shewhart", 3, data={"normalise": "unit"})
    x = pooled(experiment)[0]
    theta = fitted(experiment, tmp_path)
    np.testing.assert_allclose(theta["sigma"], x.std(0, ddof=1), rtol=1e-9)
    once = fitted(replace(experiment, rounds=1), tmp_path / "once")
    assert abs(once["sigma"][0] / theta["sigma"][0] - 1) > 1e-9
    assert [line.info["samples"] for line in run(experiment, out=tmp_path / "again").lines] == [len(x)] * 2


def signal() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(5, 2, 12)))


THETA = {"mean": torch.tensor([0.1, -0.2]).double(), "sigma": torch.tensor([1.5, 0.5]).double()}


def test_an_ewma_is_its_recursion() -> None:
    values, lines = EWMA(weight=0.3, width=2.5).drawn(signal(), THETA)
    for i in range(5):
        for c in range(2):
            mean = z = float(THETA["mean"][c])
            share = 0.0
            for x in signal()[i, c].tolist():
                z = 0.3 * x + 0.7 * z
                share = 0.49 * share + 0.09
            assert float(values[i, c]) == pytest.approx(z)
            room = 2.5 * math.sqrt(share) * float(THETA["sigma"][c])
            assert lines[:, c].tolist() == pytest.approx([mean - room, mean, mean + room])


def test_a_cusum_is_its_recursion() -> None:
    values, lines = CUSUM(slack=0.25, height=4.0).drawn(signal(), THETA)
    for i in range(5):
        for c in range(2):
            up = down = 0.0
            for x in signal()[i, c].tolist():
                u = (x - float(THETA["mean"][c])) / float(THETA["sigma"][c])
                up = max(0.0, up + u - 0.25)
                down = max(0.0, down - u - 0.25)
            assert [float(values[i, c]), float(values[i, 2 + c])] == pytest.approx([up, -down])
    assert lines[:, 0].tolist() == [-4.0, 0.0, 4.0]


@pytest.mark.parametrize("division", ["one device", "a class on a device"])
def test_xbar_s_limits_are_those_of_all_windows(division: str, tmp_path: Path) -> None:
    window = {"window": {"length": 4, "step": 4}, "split": {"kind": "time", "test": 0.5}}
    experiment = asked(table(tmp_path, "reconstruction", division), "reconstruction", "xbars", data=window)
    x = pooled(experiment)[0]
    theta = fitted(experiment, tmp_path)
    np.testing.assert_allclose(theta["mean"], x.mean((0, 2)), atol=1e-9)
    np.testing.assert_allclose(theta["sigma"], x.std(2, ddof=1).mean(0), rtol=1e-9)
    values, lines = XbarS().drawn(torch.from_numpy(x), {name: torch.from_numpy(one) for name, one in theta.items()})
    np.testing.assert_allclose(values[:, :3].numpy(), x.mean(2))
    # A₃ = 1.628, B₃ = 0 and B₄ = 2.266 for four rows: Montgomery's table
    room = 1.628 * theta["sigma"]
    np.testing.assert_allclose((lines[2, :3] - lines[1, :3]).numpy(), room, rtol=1e-3)
    np.testing.assert_allclose(lines[2, 3:].numpy(), 2.266 * theta["sigma"], rtol=1e-3)
    assert not lines[0, 3:].any()


@pytest.mark.parametrize("explained", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("division", DIVISIONS)
def test_components_are_those_of_all_rows(division: str, explained: float, tmp_path: Path) -> None:
    about: dict[str, Any] = {"methods": {"components": {"explained": explained, "alpha": 0.01}}}
    experiment = asked(table(tmp_path, "reconstruction", division), "reconstruction", "components", **about)
    theta = {name: torch.from_numpy(one) for name, one in fitted(experiment, tmp_path).items()}
    x = pooled(experiment)[0]
    n = len(x)
    z = (x - x.mean(0)) / x.std(0, ddof=1)
    values, vectors = np.linalg.eigh(np.cov(z.T))
    values, vectors = values[::-1], vectors[:, ::-1]
    r = int(np.searchsorted(np.cumsum(values) / values.sum(), explained)) + 1
    t = z @ vectors
    left = values[r:]
    drawn, lines = Components(explained=explained).drawn(torch.from_numpy(x), theta)
    np.testing.assert_allclose(drawn[:, 0].numpy(), (t[:, :r] ** 2 / values[:r]).sum(1), rtol=1e-9)
    np.testing.assert_allclose(drawn[:, 1].numpy(), (t[:, r:] ** 2).sum(1), rtol=1e-9, atol=1e-12)
    limit = r * (n + 1) * (n - 1) / (n * (n - r)) * stats.f.ppf(0.99, r, n - r)
    np.testing.assert_allclose(float(lines[2, 0]), limit, rtol=1e-9)
    room = left.sum() and (left**2).sum() / left.sum() * stats.chi2.ppf(0.99, left.sum() ** 2 / (left**2).sum())
    np.testing.assert_allclose(float(lines[2, 1]), room, rtol=1e-9)


@pytest.mark.parametrize("bins", [16, 512])
@pytest.mark.parametrize("division", DIVISIONS)
def test_percentiles_are_within_a_bin_of_those_of_all_rows(division: str, bins: int, tmp_path: Path) -> None:
    about: dict[str, Any] = {"methods": {"percentiles": {"bins": bins, "alpha": 0.1}}}
    theta = fitted(
        asked(table(tmp_path, "reconstruction", division), "reconstruction", "percentiles", 2, **about), tmp_path
    )
    experiment = asked(tmp_path / "rows.csv", "reconstruction", "percentiles", 2, **about)
    x = pooled(experiment)[0]
    width = 16 * x.std(0, ddof=1) / bins
    model = Percentiles(bins=bins, alpha=0.1)
    rows = SampleRows(x, np.zeros(len(x)), Classification())
    first = model.parameters((3,), 3)
    second, _ = model.solve(model.sums(rows, first), len(x), first)
    whole, done = model.solve(model.sums(rows, second), len(x), second)
    assert done
    for name, share in (("low", 0.05), ("mean", 0.5), ("high", 0.95)):
        np.testing.assert_allclose(theta[name], whole[name], atol=1e-9)
        near = [np.quantile(x, share, axis=0, method=method) for method in ("lower", "higher")]
        assert (near[0] - width - 1e-9 <= theta[name]).all()
        assert (theta[name] <= near[1] + width + 1e-9).all()


def test_a_limit_beyond_the_bins_is_told(caplog: Any) -> None:
    x = np.concatenate([np.zeros(999), [1000.0]])[:, None]  # 32σ away
    rows = SampleRows(np.concatenate([x, 2000 + 0 * x[:2]]), np.zeros(1002), Classification())
    model = Percentiles(alpha=0.003)
    theta = model.parameters((1,), 1)
    for _ in range(2):
        theta, _done = model.solve(model.sums(rows, theta), 1002, theta)
    assert "1 sensor: a limit is beyond 8σ" in caplog.text
    np.testing.assert_allclose(theta["high"], theta["center"] + 8 * theta["sigma"])


@pytest.mark.parametrize("division", DIVISIONS)
def test_bayes_is_scikit_learns_pooled_one(division: str, tmp_path: Path) -> None:
    experiment = asked(table(tmp_path, "classification", division), "classification", "bayes")
    theta = fitted(experiment, tmp_path)
    x, y = pooled(experiment)
    reference = GaussianNB().fit(x, y)
    np.testing.assert_allclose(theta["mean"], reference.theta_, atol=1e-9)
    np.testing.assert_allclose(theta["variance"], reference.var_, rtol=1e-9)
    out = Bayes().outputs(torch.from_numpy(x), {name: torch.from_numpy(one) for name, one in theta.items()})
    np.testing.assert_allclose(out.numpy(), reference.predict_log_proba(x), atol=1e-8)


@pytest.mark.parametrize("division", DIVISIONS)
def test_kmeans_is_lloyds_on_all_rows(division: str, tmp_path: Path) -> None:
    path = table(tmp_path, "reconstruction", division)
    about: dict[str, Any] = {"methods": {"kmeans": {"states": 3}}}
    start = fitted(asked(path, "reconstruction", "kmeans", 2, **about), tmp_path / "start")["centers"]
    experiment = asked(path, "reconstruction", "kmeans", 30, **about)
    centers = fitted(experiment, tmp_path)["centers"]
    x = pooled(experiment)[0]
    reference = Lloyd(3, init=start, n_init=1, algorithm="lloyd", tol=0.0).fit(x)
    np.testing.assert_allclose(centers, reference.cluster_centers_, atol=1e-9)
    assert len({tuple(row) for row in centers.round(6)}) == 3


def test_windows_of_many_numbers_stay_within_a_secure_sum_by_default() -> None:
    """The distances of k-means grew with the numbers of a window: 12 devices of 12 withdrew from demo-anomaly."""
    rows = SampleRows(np.random.default_rng(0).normal(size=(64, 40, 10)), np.zeros(64, np.int64), Classification())
    kmeans = KMeans(states=2)
    theta = {**kmeans.parameters((40, 10), 400), "phase": np.full(1, 2.0)}
    for bits in (32, 64):
        mean = kmeans.mean_sums(rows, theta, kmeans.shapes((40, 10), 400), f"secure-sum bits={bits} together=true")
        assert mean[-1] == pytest.approx(np.square(rows.x).mean())


def test_a_device_whose_sums_are_too_large_for_the_mask_withdraws_with_its_crew(tmp_path: Path, caplog: Any) -> None:
    path = table(tmp_path, "reconstruction", "equal")
    header, *lines = path.read_text().splitlines()
    cells = [line.split(",") for line in lines]
    far = [",".join([d, str(float(a) + 500 * (d == "m3")), *rest]) for d, a, *rest in cells]
    path.write_text("\n".join([header, *far]) + "\n")
    about: dict[str, Any] = {"data": {"normalise": "unit"}, "evaluate": {"every": 3}}
    travel = {"kind": "secure-sum", "bits": 64, "bound": 1000.0, "together": True}
    experiment = asked(path, "reconstruction", "shewhart", 1, method={"travel": travel}, **about)
    sizes = build_park(experiment).sizes
    with refused("no-change", RunError):  # all are one crew
        run(experiment, out=tmp_path / "run")
    assert "round 1: 1 device withdrew from a secure sum, with its crew; logged once: a device's sum per" in caplog.text
    wide = {"travel": {**travel, "bound": 1e6}}
    whole = run(asked(path, "reconstruction", "shewhart", 1, method=wide, **about), out=tmp_path / "whole")
    assert whole.lines[-1].info["samples"] == sizes.sum()


@pytest.mark.parametrize("kind", ["ranks", "cohort"])
def test_a_crew_withdraws_in_cohorts_too(kind: str, tmp_path: Path) -> None:
    path = table(tmp_path, "classification", "equal")
    header, *lines = path.read_text().splitlines()
    cells = [line.split(",") for line in lines]
    path.write_text("\n".join([header, *(",".join([d, str(float(a) + 500), *rest]) for d, a, *rest in cells)]) + "\n")
    travel = {"kind": "secure-sum", "bits": 64, "bound": 1000.0, "together": True}
    about: dict[str, Any] = {"data": {"normalise": "unit"}, "engine": {"kind": kind}}
    experiment = asked(path, "classification", "bayes", 1, method={"travel": travel}, **about)
    with refused("no-change", RunError):
        run(experiment, out=tmp_path / "run")


@pytest.mark.parametrize("ranks", [1, 2])
def test_charts_are_in_the_report(ranks: int, tmp_path: Path) -> None:
    split = {"split": {"kind": "time", "test": 0.5}, "columns": {"time": "at"}}
    path = table(tmp_path, "reconstruction", "equal")
    header, *lines = path.read_text().splitlines()
    timed = [f"2026-01-01 00:{n // 60:02d}:{n % 60:02d},{line}" for n, line in enumerate(lines)]
    path.write_text("\n".join([f"at,{header}", *timed]) + "\n")
    experiment = asked(path, "reconstruction", "shewhart", 1, data=split)
    done = run(experiment, out=tmp_path / "run", ranks=ranks)
    charts = json.loads((tmp_path / "run" / "evaluation.json").read_text())["charts"]
    park = build_park(experiment)
    mean, sigma = park.pooled()[0].mean(0), park.pooled()[0].std(0, ddof=1)
    for chart in charts:
        rows = np.flatnonzero(park.test_devices == chart["device"])
        for number, each in enumerate(chart["values"]):
            np.testing.assert_allclose(each["value"], park.test(rows)[0][:, number], rtol=1e-4)
            np.testing.assert_allclose(each["limits"], mean[number] + sigma[number] * np.array([-3, 0, 3]), rtol=1e-4)
        ends = [(each["value"], each["limits"]) for each in chart["values"]]
        outside = np.any([[not low <= v <= high for v in value] for value, (low, _, high) in ends], 0)
        assert chart["alarm"] == outside.astype(int).tolist()
    assert "In control?" in write([done.folder], tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "data", "settings", "key"),
    [
        ("ridge", {}, {}, "combination"),
        ("ewma", {}, {}, "data.window"),
        ("xbars", {}, {}, "data.window"),
        ("shewhart", {}, {"width": 0.0}, "methods.shewhart.width"),
        ("hotelling", {}, {"alpha": 1.0}, "methods.hotelling.alpha"),
        ("percentiles", {}, {"bins": 1}, "methods.percentiles.bins"),
        ("components", {}, {"explained": 1.0}, "methods.components.explained"),
        ("kmeans", {}, {"states": 0}, "methods.kmeans.states"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, data: dict[str, Any], settings: dict[str, Any], key: str, tmp_path: Path
) -> None:  # fmt: skip
    path = table(tmp_path, "reconstruction", "equal")
    with refused(key):
        run(asked(path, "reconstruction", name, 1, data=data, methods={name: settings}), out=tmp_path / "run")


@pytest.mark.parametrize(
    "method",
    [{"travel": "float16"}, {"travel": ["int8"]}, {"travel": "top-k"}, {"mix": "median"}, {"mix": "equal"},
     {"travel_down": "int8"}, {"selection": {"kind": "fraction", "share": 0.5}}],
)  # fmt: skip
def test_what_changes_sums_is_refused(method: dict[str, Any], tmp_path: Path) -> None:
    with refused("combination"):
        _ = asked(table(tmp_path, "regression", "equal"), "regression", "ridge", method=method).configured


UNLABELLED = {"every": 1, "headline": "reconstruction error"}


def few(folder: Path, values: Any) -> Path:
    """Write rows of sensors of two devices, all normal."""
    lines = [f"m{n % 2},{','.join(map(str, row))},normal" for n, row in enumerate(values)]
    path = folder / "few.csv"
    path.write_text("\n".join([",".join(["device", *"abcdefgh"[: len(values[0])], "label"]), *lines]) + "\n")
    return path


def test_fewer_rows_than_sensors_have_no_t_squared(tmp_path: Path) -> None:
    path = few(tmp_path, np.random.default_rng(0).normal(size=(16, 8)).round(3).tolist())
    with refused("too-few-rows"):
        run(asked(path, "reconstruction", "hotelling", evaluate=UNLABELLED), out=tmp_path / "run")


@pytest.mark.parametrize("name", ["shewhart", "hotelling", "components"])
def test_a_sensor_that_never_changes_has_no_limits(name: str, tmp_path: Path, caplog: Any) -> None:
    rng = np.random.default_rng(0)
    path = few(tmp_path, [[round(a, 3), 7.25, round(b, 3)] for a, b in rng.normal(size=(60, 2)).tolist()])
    done = run(asked(path, "reconstruction", name, evaluate=UNLABELLED), out=tmp_path / "run")
    assert "1 sensor: no limits, as nothing changes" in caplog.text
    rows = [[0.0, 7.25, 0.0], [0.0, 100.0, 0.0], [9.0, 7.25, 0.0]]
    assert [*done.model.predict(np.array(rows, np.float32))] == [False, False, True]


@pytest.mark.parametrize("name", ["shewhart", "hotelling", "components"])
def test_sensors_in_far_apart_units_all_have_limits(name: str, tmp_path: Path, caplog: Any) -> None:
    values = np.random.default_rng(0).normal(size=(60, 3)) * [1e6, 1.0, 1e-6] + [2e6, 3.0, 4e-6]
    path = few(tmp_path, [[float(f"{v:.4g}") for v in row] for row in values.tolist()])
    experiment = asked(path, "reconstruction", name, evaluate=UNLABELLED, data={"normalise": "unit"})
    done = run(experiment, out=tmp_path / "run")
    assert "nothing changes" not in caplog.text
    rows = np.array([[2e6, 3.0, 4e-6], [9e6, 3.0, 4e-6], [2e6, 30.0, 4e-6], [2e6, 3.0, 4e-5]], np.float32)
    assert [*done.model.predict(rows)] == [False, True, True, True]


def test_sensors_that_never_change_are_refused(tmp_path: Path) -> None:
    with refused("constant-sensors"):
        run(asked(few(tmp_path, [[1.5, 2.5]] * 40), "reconstruction", "shewhart"), out=tmp_path / "run")


TASKS = {"ridge": "regression", "logistic": "classification", "bayes": "classification"}


@pytest.mark.parametrize("name", [name for name, method in EXACT.items() if method.tasks != ("survival",)])
def test_every_model_is_the_same_in_onnx(name: str, tmp_path: Path) -> None:
    task = TASKS.get(name, "reconstruction")
    window = {"window": {"length": 4, "step": 1}, "split": {"kind": "time", "test": 0.5}}
    path = table(tmp_path, task, "one device" if name in ("xbars", "ewma", "cusum") else "equal")
    done = run(
        asked(path, task, name, 3, data=window if name in ("xbars", "ewma", "cusum") else {}), out=tmp_path / "run"
    )
    export(load_model(done.folder), tmp_path / "model.onnx")  # compares both on samples about the training data
    assert (tmp_path / "model.onnx").stat().st_size < 20_000


def test_a_run_ends_when_no_round_changes_the_model(tmp_path: Path) -> None:
    """However many rounds are asked for; the last round is evaluated, and a resume has nothing left to do."""
    experiment = asked(table(tmp_path, "regression", "equal"), "regression", "ridge", rounds=604)
    done = run(experiment, out=tmp_path / "run")
    assert (done.stopped, len(done.lines)) == ("finished", 1)
    assert done.lines[-1].headline[1] is not None
    assert len(run(experiment, out=tmp_path / "run", resume=True).lines) == 1
    newton = asked(table(tmp_path, "classification", "equal"), "classification", "logistic", rounds=604)
    few = run(newton, out=tmp_path / "newton").lines
    assert 3 <= len(few) <= 12


@pytest.mark.parametrize(
    ("name", "task", "rounds", "norm"),
    [("logistic", "classification", 2, True), ("kmeans", "reconstruction", 3, True),
     ("kmeans", "reconstruction", 2, False), ("percentiles", "reconstruction", 1, False)],
)  # fmt: skip
def test_too_few_rounds_are_told(name: str, task: str, rounds: int, norm: bool, tmp_path: Path) -> None:
    run(asked(table(tmp_path, task, "equal"), task, name, rounds), out=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (found["gradient_norm"] > 0) is norm
    (told,) = [text for text in remarks(groups(collect([tmp_path / "run"]))) if text.startswith("Not converged: ")]
    assert f"after {rounds} round" in told
    assert ("gradient norm" in told) is norm


def test_each_kind_of_machine_may_have_limits_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"m{k},{k % 2},{rng.normal() * 2 + 10 * (k % 2):.4f},normal" for k in range(4) for _ in range(60)]
    rows += ["m0,0,10,fault"] * 4
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["device,kind,a,label", *rows]) + "\n")
    regime = {"kind": "regime", "columns": ["kind"], "regimes": 2}
    limits = fitted(asked(path, "reconstruction", "shewhart", data={"normalise": regime}), tmp_path)
    assert limits["mean"][1] == pytest.approx(0, abs=1e-5)  # in each kind's own mean and deviation, 2 and not 5
    assert limits["sigma"][1] == pytest.approx(1, abs=0.02)


def test_a_model_that_is_final_lacks_no_rounds(tmp_path: Path) -> None:
    experiment = asked(table(tmp_path, "classification", "equal"), "classification", "logistic", rounds=30)
    run(experiment, out=tmp_path / "run")
    assert "gradient_norm" not in json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert not any("Not converged" in text for text in remarks(groups(collect([tmp_path / "run"]))))


def test_a_forecast_counts_the_rounds_that_a_model_usually_takes(tmp_path: Path) -> None:
    for name, task, usual in (("ridge", "regression", 1), ("logistic", "classification", 8)):
        method = asked(table(tmp_path, task, "equal"), task, name, rounds=100).configured.method
        assert (method.expected(100), method.expected(1)) == (usual, 1)


@pytest.mark.parametrize("rounds", [{}, {"rounds": 3}])
def test_another_method_that_is_a_sum_does_not_inherit_rounds(rounds: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text('rounds = 1\nmethod.name = "pca"\ndata.name = "machines"\ndata.task = "reconstruction"\n')
    assert load(path, changes={"method.name": "kmeans", **rounds}).rounds == rounds.get("rounds", MOST)
    assert load(path, changes={"method.name": "fedavg"}).rounds == 1
    assert load(path, changes={"method.name": "pca"}).rounds == 1
    assert load(load(path), changes={"method.name": "shewhart", **rounds}).rounds == rounds.get("rounds", MOST)


@pytest.mark.parametrize("close", [{"first": 3}, {"deadline_s": 5.0}])
def test_rounds_of_sums_end_early(close: dict[str, Any], tmp_path: Path) -> None:
    experiment = asked(
        table(tmp_path, "classification", "equal"), "classification", "logistic", rounds=30, round={"close": close},
        network={"profile": "lte-cat-m2"},
    )  # fmt: skip
    lines = run(experiment, out=tmp_path / "run").lines
    assert 2 <= len(lines) <= 30


def test_a_count_of_more_samples_than_a_device_holds_is_a_flaw(tmp_path: Path) -> None:
    experiment = asked(table(tmp_path, "regression", "equal"), "regression", "ridge")
    network = network_of(experiment, experiment.configured, build_park(experiment))
    start = network.flat.clone()
    first, _ = network.layout["sums"]
    for count, why in (
        (1.0, ""),
        (0.0, ""),
        (1000.0, "count 1000 times"),
        (-1.0, "count -1 times"),
        (1.01, "1.01 times"),
    ):
        end = start.clone()
        end[first] = count
        assert why in flaw(network, start, end)
        assert bool(why) is bool(flaw(network, start, end))
