"""Kaplan–Meier, AFT and Cox by sums equal those of all lives in one place, and lifelines, however lives are divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedfloor import load_model, run
from fedfloor.base.checking import checked
from fedfloor.experiment import Experiment
from fedfloor.methods.exact.aft import AFT
from fedfloor.methods.exact.cox import Cox
from fedfloor.methods.exact.kaplanmeier import KaplanMeier
from fedfloor.methods.exact.rows import SampleRows
from fedfloor.methods.exact.sums import ExactSums
from fedfloor.runs.parks import build_park
from fedfloor.tasks.lives import SurvivalCurve, log_rank
from fedfloor.tasks.survival import Survival
from refusals import refused

Floats = NDArray[np.float64]
MODELS: dict[str, tuple[ExactSums, dict[str, Any]]] = {
    "Weibull": (AFT(), {"distribution": "weibull"}),
    "log-normal": (AFT(), {"distribution": "log-normal"}),
    "Kaplan–Meier": (KaplanMeier(), {"distribution": "steps", "points": 1000}),
    "Efron": (Cox(), {"distribution": "steps", "points": 1000}),
    "Breslow": (Cox(ties="breslow"), {"distribution": "steps", "points": 1000}),
    "on a coarse grid": (Cox(), {"distribution": "steps", "points": 5}),
}


def lives(seed: int, many: int, *, ties: bool = False, late: bool = False) -> tuple[Floats, Floats]:
    """Return covariates [n, 3] and targets [n, 4] of lives, of which a third still run."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(many, 3))
    life = 50 * np.exp(x @ [0.5, -0.3, 0.0]) * rng.weibull(1.8, many)
    ends = rng.uniform(20, 120, many)
    time = np.minimum(life, ends)
    time = np.ceil(time / 10) * 10 if ties else time
    entry = np.where(rng.random(many) < 0.3, np.floor(time * rng.random(many) / 20) * 10, 0.0) * late
    return x, np.stack([time, life <= ends, np.minimum(entry, time / 2), np.ones(many)], 1)


def fitted(model: ExactSums, task: Survival, x: Floats, y: Floats, parts: list[NDArray[np.int64]]) -> Any:
    """Return the parameters after all rounds, from the sums of each part, and what is stated of them."""
    theta = model.parameters(x.shape[1:], task.outputs(2, 4, x.shape[1:]))
    stated = dict[str, Floats]()
    for _ in range(60):
        sums = [model.sums(SampleRows(x[part], y[part], task), theta) for part in parts]
        total: Any = {name: sum(each[name] for each in sums) for name in sums[0]}
        after, done = model.solve(total, len(x), theta)
        stated |= model.stated(total, theta, after)
        theta = after
        if done:
            return {**theta, **stated}
    raise AssertionError("60 rounds were not enough")


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), devices=st.integers(1, 60), ties=st.booleans(), late=st.booleans())
def test_sums_of_devices_equal_those_of_all_lives(
    name: str, seed: int, devices: int, ties: bool, late: bool
) -> None:  # fmt: skip
    """Devices may have one life or none."""
    model, about = MODELS[name]
    x, y = lives(seed, 60, ties=ties, late=late)
    task = Survival(**about).fitted(y)
    owner = np.random.default_rng(seed).integers(0, devices, 60)
    apart = fitted(model, task, x, y, [np.flatnonzero(owner == k) for k in range(devices)])
    whole = fitted(model, task, x, y, [np.arange(60)])
    for key in ("weight", "hazard", "at_risk", "failures", "effects", "groups"):
        if key in whole:
            np.testing.assert_allclose(apart[key], whole[key], rtol=1e-8, atol=1e-8)


def check_effects(table: Floats, unit: float, theirs: Any) -> None:
    """Compare effects and standard errors of three covariates with those of lifelines."""
    np.testing.assert_allclose(table[:, 0] * unit, theirs.params_.to_numpy()[:3], atol=1e-5)
    np.testing.assert_allclose(
        np.sqrt(np.diag(table[:, 1:4])) * unit, theirs.standard_errors_.to_numpy()[:3], atol=1e-5
    )


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("distribution", ["weibull", "log-normal"])
def test_aft_is_lifelines_pooled_one(distribution: str, late: bool) -> None:
    lifelines = pytest.importorskip("lifelines")
    x, y = lives(1, 300, late=late)
    task = Survival(distribution=distribution).fitted(y)  # type: ignore[arg-type]
    assert task.center is not None and task.scale is not None  # noqa: PT018
    found = fitted(AFT(), task, x, y, [np.arange(0, 300, 2), np.arange(1, 300, 2)])
    weight = found["weight"]
    table = pd.DataFrame(
        dict(zip("abc", x.T, strict=True)) | {"t": y[:, 0], "f": y[:, 1]} | ({"e": y[:, 2]} if late else {})
    )
    theirs = lifelines.WeibullAFTFitter() if distribution == "weibull" else lifelines.LogNormalAFTFitter()
    theirs._scipy_fit_options = {"ftol": 1e-15, "maxiter": 500} if distribution == "weibull" else {"gtol": 1e-8}
    wanted = theirs.fit(table, "t", "f", entry_col="e" if late else None).params_.to_numpy()
    check_effects(found["effects"], AFT().unit(task), theirs)
    scale = task.scale / weight[-1]
    ours = [*(weight[1:-1] * scale), task.center + scale * weight[0]]
    np.testing.assert_allclose(ours, wanted[:4], atol=1e-6)
    np.testing.assert_allclose(np.log(scale), -wanted[4] if distribution == "weibull" else wanted[4], atol=1e-6)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_cox_is_lifelines_pooled_one(ties: bool, late: bool) -> None:
    lifelines = pytest.importorskip("lifelines")
    x, y = lives(2, 300, ties=ties, late=late)
    task = Survival(distribution="steps", points=1000).fitted(y)
    found = fitted(Cox(), task, x, y, [np.arange(0, 300, 2), np.arange(1, 300, 2)])
    table = pd.DataFrame(
        dict(zip("abc", x.T, strict=True)) | {"t": y[:, 0], "f": y[:, 1]} | ({"e": y[:, 2]} if late else {})
    )
    theirs = lifelines.CoxPHFitter().fit(
        table, "t", "f", entry_col="e" if late else None, fit_options={"precision": 1e-9}
    )
    np.testing.assert_allclose(found["weight"], theirs.params_, atol=2e-6)  # they stop at a Newton decrement
    check_effects(found["effects"], 1.0, theirs)


@pytest.mark.parametrize("model", [AFT(), Cox()])
@pytest.mark.parametrize("kept", ["as many lives", "other numbers of lives"])
def test_rounds_without_some_devices_come_near_the_maximum(model: Any, kept: str) -> None:
    """In each of 60 rounds one of ten devices is missing: weights then vary as those of nine tenths of the lives do."""
    x, y = lives(5, 400)
    task = Survival(distribution="weibull" if isinstance(model, AFT) else "steps").fitted(y)
    whole = fitted(model, task, x, y, [np.arange(400)])["weight"]
    sizes = np.full(10, 40) if kept == "as many lives" else np.arange(13, 68, 6)
    owner = np.repeat(np.arange(10), sizes)
    rng = np.random.default_rng(0)
    theta = model.parameters(x.shape[1:], task.outputs(2, 4, x.shape[1:]))
    far = []
    for _ in range(60):
        rows = np.flatnonzero(owner != rng.integers(10))
        theta, _done = model.solve(model.sums(SampleRows(x[rows], y[rows], task), theta), len(rows), theta)
        far.append(float(np.abs(theta["weight"] - whole).max()))
    assert max(far[12:]) < 0.2 * float(np.abs(whole).max())


@pytest.mark.parametrize("kinds", [2, 4])
@pytest.mark.parametrize("late", [False, True])
def test_the_first_sums_of_cox_hold_lifelines_log_rank_test_between_kinds(kinds: int, late: bool) -> None:
    statistics = pytest.importorskip("lifelines.statistics")
    x, y = lives(6, 300, ties=True, late=late)
    kind = np.random.default_rng(0).integers(0, kinds, 300)
    x = np.hstack([x[:, :1], np.eye(kinds)[kind]])
    task = Survival(distribution="steps", points=1000).fitted(y)
    at_risk, failures = fitted(Cox(), task, x, y, [np.arange(0, 300, 2), np.arange(1, 300, 2)])["groups"]
    at_risk, failures = at_risk[2:], failures[2:]  # of the kinds alone
    value, freedom, p = log_rank(at_risk, failures)
    assert freedom == kinds - 1
    if not late:  # theirs with entries counts them otherwise
        theirs = statistics.multivariate_logrank_test(y[:, 0], kind, y[:, 1])
        np.testing.assert_allclose([value, p], [theirs.test_statistic, theirs.p_value], rtol=1e-8)
    curves = [SurvivalCurve.of(y[mine, 0], y[mine, 1] > 0, y[mine, 2]) for mine in (kind == k for k in range(kinds))]
    for k, curve in enumerate(curves):
        place = np.searchsorted(task.grid, curve.times)
        np.testing.assert_array_equal(at_risk[k, place], curve.at_risk)
        np.testing.assert_array_equal(failures[k, place], curve.failures)


def test_effects_are_stated_only_after_the_last_step() -> None:
    x, y = lives(1, 300)
    task = Survival(distribution="weibull").fitted(y)
    theta = AFT().parameters((3,), 2)
    total = AFT().sums(SampleRows(x, y, task), theta)
    assert not AFT().stated(total, theta, AFT().solve(total, 300, theta)[0])


def test_what_lives_do_not_determine_has_no_known_error() -> None:
    x, y = lives(1, 300)
    x = np.hstack([x, x[:, :1], np.zeros((300, 1))])  # a column twice, and one that never varies
    task = Survival(distribution="weibull").fitted(y)
    unknown = np.diag(fitted(AFT(), task, x, y, [np.arange(300)])["effects"][:, 6:])
    assert (unknown[[0, 3, 4]] > 0.1).all()
    assert (unknown[[1, 2]] < 1e-12).all()


def test_cox_with_breslows_ties_maximises_the_partial_likelihood_by_hand() -> None:
    # lives of 1, 1 and 2 with x = 0, 1 and 0: l = β − 2·log(2 + e^β), whose maximum is e^β = 2
    y = np.array([[1.0, 1, 0, 1], [1, 1, 0, 1], [2, 0, 0, 1]])
    task = Survival(distribution="steps", center=0.0, scale=1.0, grid=(1.0,))
    theta = fitted(Cox(ties="breslow"), task, np.array([[0.0], [1.0], [0.0]]), y, [np.array([0]), np.array([1, 2])])
    np.testing.assert_allclose(theta["weight"], [np.log(2)], atol=1e-8)
    np.testing.assert_allclose(theta["hazard"], [2 / 4], atol=1e-8)


@pytest.mark.parametrize("model", [AFT(), Cox()])
def test_a_covariate_that_separates_is_named_and_a_ridge_keeps_it_finite(model: Any) -> None:
    x, y = lives(3, 100)
    x[:, 1] = y[:, 1] == 0  # those that still run
    task = Survival(distribution="weibull" if isinstance(model, AFT) else "steps").fitted(y)
    with refused("separates"):
        fitted(model, task, x, y, [np.arange(100)])
    kind = type(model)
    assert np.isfinite(fitted(kind(ridge=1.0), task, x, y, [np.arange(100)])["weight"]).all()


def table(folder: Path, **changed: Any) -> Experiment:
    """Write a table of lives on four devices, one of which has two, and return an experiment with it."""
    x, y = lives(4, 120, ties=True)
    owner = np.where(np.arange(120) < 2, 3, np.arange(120) % 3)
    rows = zip(owner, x.round(3).tolist(), y.tolist(), strict=True)
    lines = [f"m{k},{','.join(map(str, row))},{life[0]},{'failed' if life[1] else 'running'}" for k, row, life in rows]
    (folder / "lives.csv").write_text("\n".join(["machine,a,b,c,hours,state", *lines]) + "\n")
    about: dict[str, Any] = {
        "rounds": 12, "method": {"name": "aft"},
        "data": {
            "path": str(folder / "lives.csv"), "ended": "failed", "split": {"kind": "random", "test": 0.5},
            "columns": {"device": "machine", "life": "hours", "label": "state"}, "task": {"kind": "survival"},
        },
    }  # fmt: skip
    for key, value in changed.items():
        about["data" if key == "task" else key] |= {"task": value} if key == "task" else value
    return checked(Experiment, about, "")


def numbers(run_folder: Path) -> dict[str, Floats]:
    return {key.removeprefix("theta."): value for key, value in load_file(run_folder / "model.safetensors").items()}


def test_a_run_gives_the_curve_of_all_training_lives(tmp_path: Path) -> None:
    experiment = table(tmp_path, task={"kind": "survival", "distribution": "steps"}, method={"name": "kaplanmeier"})
    run(experiment, out=tmp_path / "run", ranks=1)
    target = build_park(experiment).dataset.target
    assert target is not None
    curve = SurvivalCurve.of(target[:, 0].astype(np.float64), target[:, 1] > 0)
    theta = numbers(tmp_path / "run")
    last = (target[:, 0] == target[:, 0].max()).sum()  # they still ran, at a time of the grid beyond all failures
    np.testing.assert_array_equal(theta["at_risk"], [*curve.at_risk, last])
    np.testing.assert_array_equal(theta["failures"], [*curve.failures, 0])
    model = load_model(tmp_path / "run")
    answer = model.answer(np.zeros((1, 4), np.float32)).parts()
    assert float(answer["median"][0]) == curve.median()[0]


@pytest.mark.parametrize("name", ["aft", "cox"])
def test_a_run_keeps_the_weights_before_a_step(name: str, tmp_path: Path) -> None:
    """Half of a step is taken back towards them where it was too long."""
    task = {"kind": "survival", "distribution": "steps" if name == "cox" else "weibull"}
    run(table(tmp_path, task=task, method={"name": name}), out=tmp_path / "one", ranks=1, rounds=1)
    first = numbers(tmp_path / "one")
    start = {"aft": [0.0, 0, 0, 0, 0, 1], "cox": [0.0, 0, 0, 0]}[name]
    np.testing.assert_array_equal(first["last"], start)
    assert np.abs(first["weight"] - start).max() > 0.01


@pytest.mark.parametrize("bits", [32, 64])
def test_secure_sums_of_lives_are_exact_to_their_step(bits: int, tmp_path: Path) -> None:
    run(table(tmp_path), out=tmp_path / "open", ranks=1)
    travel = {"kind": "secure-sum", "bits": bits, "bound": 1000.0, "together": True}
    masked = table(tmp_path, method={"name": "aft", "travel": travel})
    run(masked, out=tmp_path / "masked", ranks=1)
    first, second = (numbers(tmp_path / name)["weight"] for name in ("open", "masked"))
    np.testing.assert_allclose(second, first, atol={32: 1e-3, 64: 1e-9}[bits])


@pytest.mark.parametrize("name", ["aft", "kaplanmeier", "cox"])
def test_another_distribution_is_refused_with_the_setting(name: str, tmp_path: Path) -> None:
    other = "steps" if name == "aft" else "weibull"
    with refused("data.task.distribution"):
        run(
            table(tmp_path, task={"kind": "survival", "distribution": other}, method={"name": name}), out=tmp_path / "r"
        )


def test_another_task_is_refused(tmp_path: Path) -> None:
    experiment = table(tmp_path, method={"name": "ridge"})
    with refused("combination"):
        run(experiment, out=tmp_path / "run")
