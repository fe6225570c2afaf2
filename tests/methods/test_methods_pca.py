"""Federated PCA is the PCA of all samples in one place, in one round, at the price of one answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedfloor import run
from fedfloor.base.checking import checked
from fedfloor.experiment import Experiment
from fedfloor.methods.pca import monitor, pooled
from fedfloor.models.layers import Monitor
from fedfloor.runs.parks import build_park


def asked(**more: object) -> Experiment:
    about = {
        "rounds": 1, "data": {"name": "machines", "task": "reconstruction"}, "park": {"devices": 6},
        "model": {"name": "monitor"}, "method": {"name": "pca"}, "network": {"profile": "lte-cat-m2"}, **more,
    }  # fmt: skip
    return checked(Experiment, about, "")


def moments(x: np.ndarray) -> np.ndarray:
    row, column = np.triu_indices(x.shape[1])
    away = x - x.mean(0)
    return np.concatenate([[len(x)], x.mean(0), (away.T @ away)[row, column]])


def test_moments_of_parts_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(loc, 2, (n, 4)) + 100 for n, loc in ((1, 5), (30, 0), (200, -3))]
    mean, covariance = pooled([moments(one) for one in parts], 4)
    whole = np.concatenate(parts)
    np.testing.assert_allclose(mean, whole.mean(0), rtol=1e-13)
    np.testing.assert_allclose(covariance, np.cov(whole.T, bias=True), rtol=1e-12, atol=1e-12)


def test_the_score_is_t_squared_and_q_over_their_limits() -> None:
    # two sensors with correlation 0.8: λ = 1.8 and 0.2 along (1, ±1)/√2; one component explains 90 %
    mean, weight, kept = monitor(np.array([1.0, 2.0]), np.array([[4.0, 1.6], [1.6, 1.0]]), 0.85, "T2+Q")
    assert kept == 1
    from scipy.stats import chi2

    limit = chi2.ppf(0.99, 1)
    z = np.array([[1.0, 1.0], [1.0, -1.0]])  # √2 along either component
    u = z * [2.0, 1.0] @ weight.T
    score = (u**2).mean(1)
    np.testing.assert_allclose(score, [2 / 1.8 / limit, 2 / (0.2 * limit)], rtol=1e-12)  # Box with one λ: g = λ, h = 1
    alone = monitor(mean, np.array([[4.0, 1.6], [1.6, 1.0]]), 0.85, "Q")[1]
    np.testing.assert_allclose(((z * [2.0, 1.0] @ alone.T) ** 2).mean(1), [0, 2 / (0.2 * limit)], atol=1e-12)


def test_federated_is_pooled_to_one_millionth(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    experiment = asked()
    done = run(experiment, out=tmp_path / "run")
    park = build_park(experiment)
    mean, std = (np.asarray(one) for one in park.standard)
    x = (park.pooled()[0].astype(np.float64) - mean) / std
    center, weight, kept = monitor(x.mean(0), np.cov(x.T, bias=True), 0.9, "T2+Q")
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    test = (park.test()[0].astype(np.float64) - mean) / std
    own = (((test - center) @ weight.T) ** 2).mean(1)
    with torch.no_grad():
        federated = (((torch.from_numpy(test) - tensors["center"].double()) @ tensors["weight"].double().T) ** 2).mean(
            1
        )
    # single precision holds the model; a score of about 1 is an alarm
    np.testing.assert_allclose(federated.numpy(), own, rtol=1e-6, atol=1e-6)
    assert done.lines[-1].info["components"] == kept


def test_it_costs_one_answer_per_device(tmp_path: Path) -> None:
    done = run(asked(data={"name": "machines", "task": "reconstruction", "normalise": "unit"}), out=tmp_path / "run")
    answer = 4 * (1 + 8 + 36)
    assert done.lines[-1].priced["bytes"]["device_edge_up"] == 6 * answer
    assert done.lines[-1].priced["bytes"]["device_edge_down"] == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_the_same_on_any_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    done = run(asked(), out=tmp_path / "run", ranks=ranks)
    assert done.lines[-1].figures["AUROC"] == pytest.approx(0.97, abs=0.02)


def test_the_monitor_begins_as_the_sample_itself() -> None:
    x = torch.randn(3, 2, 4)
    assert torch.equal(Monitor(8)(x), x.flatten(1))
