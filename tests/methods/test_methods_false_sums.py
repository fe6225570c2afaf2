"""Sums that no samples have are refused, those of any samples are not, and none of them ends a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedfloor.methods.catalog import EXACT
from fedfloor.methods.exact.kmeans import KMeans
from fedfloor.methods.exact.rows import SampleRows
from fedfloor.methods.exact.sums import ExactSums
from fedfloor.tasks.classification import Classification
from fedfloor.tasks.regression import Regression
from fedfloor.tasks.survival import Survival

Floats = NDArray[np.float64]
Sums = dict[str, Floats]
ROWS = 60


def data(name: str, seed: int) -> tuple[ExactSums, SampleRows, int]:
    """Return a model, samples of its task, with ties and constants, and its number of outputs."""
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(size=(ROWS, 3)) * [1.0, 50.0, 1e-3] + [0.0, 300.0, 0.0], 3)
    x[:, 2] *= seed % 3 > 0  # a constant sensor
    model = KMeans(states=3) if name == "kmeans" else EXACT[name]()
    if name in ("aft", "cox", "kaplanmeier"):
        return *lives(model, x, rng, seed), 2 if name == "aft" else 0
    y = rng.integers(0, 3, ROWS) if name in ("bayes", "logistic") else rng.normal(size=(ROWS, 1))
    if name in ("ewma", "cusum", "xbars"):
        x = x[:, :, None] + rng.normal(size=(ROWS, 3, 8))
    task: Any = Regression(center=0.0, scale=2.0) if name == "ridge" else Classification()
    return model, SampleRows(x, y, task), 3


def lives(model: ExactSums, x: Floats, rng: np.random.Generator, late: int) -> tuple[ExactSums, SampleRows]:
    time = np.ceil(rng.weibull(1.8, ROWS) * 5) * 10
    entry = np.where(rng.random(ROWS) < 0.3, 5.0, 0.0)
    y = np.stack([time, rng.random(ROWS) < 0.7, entry, np.ones(ROWS)], 1)
    kind = ("weibull", "log-normal")[late % 2] if type(model).__name__ == "AFT" else "steps"
    task = Survival(distribution=kind).fitted(y)  # type: ignore[arg-type]
    told: Any = model.for_task(task)
    return told, SampleRows((x - x.mean(0)) / [1, 50, 1e-3], y, task)


def stated(model: ExactSums, rows: SampleRows, parts: list[NDArray[Any]], theta: Mapping[str, Floats]) -> list[Sums]:
    return [dict(model.sums(SampleRows(rows.x[part], rows.y[part], rows.task), theta)) for part in parts]


def start(model: ExactSums, rows: SampleRows, outputs: int) -> Mapping[str, Floats]:
    return model.parameters(rows.x.shape[1:], outputs or len(rows.task.grid))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), devices=st.integers(1, 50))
def test_sums_of_samples_are_plausible_however_few(name: str, seed: int, devices: int) -> None:
    model, rows, outputs = data(name, seed)
    theta = start(model, rows, outputs)
    owner = np.random.default_rng(seed).integers(0, devices, ROWS)
    parts = [part for k in range(devices) if len(part := np.flatnonzero(owner == k))]
    for _ in range(4):
        each = stated(model, rows, parts, theta)
        for part, sums in zip(parts, each, strict=True):
            mean = {key: np.asarray(value / len(part)) for key, value in sums.items()}
            assert not model.implausible(mean, 1.0, theta)
        total = {key: np.asarray(sum(sums[key] for sums in each)) for key in each[0]}
        assert not model.implausible(total, float(ROWS), theta)
        theta, done = model.solve(total, float(ROWS), theta)
        if done:
            break


FALSE: dict[str, Callable[[Floats], Floats]] = {
    "of the opposite sign": lambda v: -v,
    "drawn at random": lambda v: np.random.default_rng(0).normal(size=v.shape) * (np.sqrt((v**2).mean()) + 1e-9),
    "enormous": lambda v: v * 0 - 1e300,
}


@pytest.mark.parametrize("kind", FALSE)
@pytest.mark.parametrize("name", EXACT)
def test_false_sums_are_refused_in_each_round(name: str, kind: str) -> None:
    model, rows, outputs = data(name, 2)
    theta = start(model, rows, outputs)
    for _ in range(3):
        (sums,) = stated(model, rows, [np.arange(ROWS)], theta)
        false = {key: np.asarray(FALSE[kind](np.asarray(value, np.float64))) for key, value in sums.items()}
        with np.errstate(all="ignore"):
            assert model.implausible({key: value / ROWS for key, value in false.items()}, 1.0, theta)
        theta, done = model.solve(sums, float(ROWS), theta)
        if done:
            break


@pytest.mark.parametrize(
    ("name", "key", "at", "value"),
    [
        ("shewhart", "second", 0, 0.0),  # less than the square of the mean
        ("hotelling", "second", (0, 1), 1e6),  # a covariance above the product of deviations
        ("ridge", "zz", (0, 0), 2.0),  # two samples for each
        ("bayes", "number", 0, -0.5), ("bayes", "number", 1, 3.0), ("kmeans", "number", 0, -0.5),
        ("kmeans", "number", 1, 9.0), ("logistic", "loss", (), -1.0), ("kaplanmeier", "failures", 0, 1.5),
        ("kaplanmeier", "at_risk", 0, 7.0), ("kaplanmeier", "failures", 1, -0.5), ("cox", "failures", 0, 1e9),
        ("cox", "failures", 1, -0.5), ("cox", "risk", (0, 0), -1.0), ("cox", "ends", (0, 0), 1e6),
    ],
)  # fmt: skip
def test_a_single_false_number_is_refused(name: str, key: str, at: Any, value: float) -> None:
    model, rows, outputs = data(name, 1)
    theta = start(model, rows, outputs)
    if name == "kmeans":
        theta = {**theta, "phase": np.ones(1), "candidates": rows.x[:12]}
    (sums,) = stated(model, rows, [np.arange(ROWS)], theta)
    mean = {name: np.array(each / ROWS) for name, each in sums.items()}
    assert not model.implausible(mean, 1.0, theta)
    mean[key][at] = value
    assert model.implausible(mean, 1.0, theta)


@pytest.mark.parametrize("name", ["shewhart", "hotelling"])
def test_a_negative_variance_behind_masks_is_not_told_as_constant_sensors(name: str) -> None:
    model, rows, outputs = data(name, 1)
    theta = start(model, rows, outputs)
    (sums,) = stated(model, rows, [np.arange(ROWS)], theta)
    with pytest.raises(np.linalg.LinAlgError, match="negative variance"):
        model.solve({**sums, "second": -sums["second"]}, float(ROWS), theta)


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize(
    ("name", "key", "at", "value"),
    [
        ("ridge", "zy", (1, 0), 1e4), ("ridge", "yy", 0, -1e9), ("logistic", "gradient", (0, 1), 1.5),
        ("logistic", "gradient", (2, 0), 1.0), ("logistic", "curvature", (0, 0), 0.3), ("aft", "gradient", -1, 5.0),
        ("aft", "value", (), 5.0), ("aft", "gradient", 0, 2.0), ("cox", "x", (0, 1), 50.0),
    ],
)  # fmt: skip
def test_a_shifted_number_is_refused_in_each_round(name: str, key: str, at: Any, value: float, rounds: int) -> None:
    """What a device can still shift: AFT's sums of sensors over failures, in later rounds Cox's across the weights."""
    model, rows, outputs = data(name, 2)
    theta = start(model, rows, outputs)
    for _ in range(rounds):
        (sums,) = stated(model, rows, [np.arange(ROWS)], theta)
        theta, _ = model.solve(sums, float(ROWS), theta)
    (sums,) = stated(model, rows, [np.arange(ROWS)], theta)
    mean = {name: np.array(each / ROWS) for name, each in sums.items()}
    assert not model.implausible(mean, 1.0, theta)
    mean[key][at] += value
    assert model.implausible(mean, 1.0, theta)
