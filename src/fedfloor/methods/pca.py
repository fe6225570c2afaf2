"""Principal component analysis in one round, as a reference for deeper models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require
from fedfloor.methods.contract import Answers, Method, Needs, State, View
from fedfloor.plan.nodes import Node, Probe
from fedfloor.plan.outcome import Outcome

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
SMALLEST = 1e-9  # smaller variances of standardised sensors are rounding errors
Statistic = Literal["T2+Q", "T2", "Q"]


@dataclass(frozen=True)
class Pca(Method):
    r"""Federated principal component analysis: each device answers one question, and the cloud's result is exact.

    ::

        each device k: n_k, its mean m_k and S_k = Σ_i (x_i − m_k)(x_i − m_k)ᵀ
        n ← Σ n_k;  m ← Σ n_k m_k / n;  S ← Σ_k S_k + n_k (m_k − m)(m_k − m)ᵀ
        z = (x − m)/σ with σ² the diagonal of S/n;  eigenvalues λ_1 ≥ λ_2 ≥ … and vectors v_i of their covariance
        k ← the least number of components that explain a share of Σ λ_i;  t_i = v_iᵀ z
        T² = Σ_{i≤k} t_i²/λ_i,  Q = Σ_{i>k} t_i²;  score = T²/τ² + Q/δ²

    τ² and δ² are the 99 % quantiles under normality: of χ² with k degrees of freedom, and Box's g·χ² with h, where
    g = Σ λ²/Σ λ and h = (Σ λ)²/Σ λ² over i > k. The score is Yue and Qin's combined index; alarms begin at the
    threshold of the task. With one device it is the principal component analysis of its samples; with several devices
    the result is that of all samples in one place, up to rounding.

    Travels: one answer of 1 + D + D(D + 1)/2 numbers per device, for samples of D numbers, and no model.

    Jackson and Mudholkar, Technometrics 21 (1979) 341; Box, Annals of Mathematical Statistics 25 (1954) 290; Yue and
    Qin, Industrial & Engineering Chemistry Research 40 (2001) 4403. The sums follow Chan, Golub and LeVeque, 1983.

    Args:
        explained: the share of the variance that the components explain.
        statistic: the statistic from which the score is computed, T², Q or both.
    """

    title = "PCA"

    explained: float = 0.9
    statistic: Statistic = "T2+Q"

    def __post_init__(self) -> None:
        require(0 < self.explained < 1, "methods.pca.explained", self.explained, "a share, above 0 and below 1")

    @property
    def needs(self) -> Needs:
        return Needs(scopes=frozenset(), questions=(Probe((), "moments"),), draws=False)

    def init(self, view: View, answers: Answers, rng: np.random.Generator) -> State:
        """Return the first state, with the places of the model's two tensors."""
        if view.layout and sorted(view.layout) != ["center", "weight"]:
            raise SettingError("method 'pca' needs the network [model] name = \"monitor\". Set it.")
        return State(view.start, {"size": view.layout["center"][1] - view.layout["center"][0]} if view.layout else {})

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        return Probe(tuple(view.devices), "moments")

    def absorb(self, state: State, outcome: Outcome) -> State:
        import torch

        moments = [answer["moments"].double().numpy() for _, answer in sorted(outcome.answers.items())]
        mean, covariance = pooled(moments, int(state.notes["size"]))
        center, weight, kept = monitor(mean, covariance, self.explained, self.statistic)
        flat: Tensor = torch.from_numpy(np.concatenate([center, weight.ravel()])).to(outcome.packet["w"])
        notes = {**state.notes, "info": {"components": kept, "answers": len(moments)}}
        return State({**outcome.packet, "w": flat}, notes, state.tensors)


def pooled(moments: list[Floats], size: int) -> tuple[Floats, Floats]:
    """Return mean [D] and covariance [D, D] of all samples from devices' moments.

    >>> pooled([np.array([1, 2.0, 0.0]), np.array([3, 4.0, 6.0])], 1)
    (array([3.5]), array([[2.25]]))
    """
    row, column = np.triu_indices(size)
    count = 0.0
    mean = np.zeros(size)
    scatter = np.zeros((size, size))
    for moment in moments:
        n = moment[0]
        own = moment[1 : 1 + size]
        own_scatter = np.zeros((size, size))
        own_scatter[row, column] = own_scatter[column, row] = moment[1 + size :]
        apart = own - mean
        scatter += own_scatter + np.outer(apart, apart) * (count * n / (count + n))
        mean = mean + apart * n / (count + n)
        count = count + n
    return mean, scatter / max(count, 1.0)


def monitor(mean: Floats, covariance: Floats, explained: float, statistic: Statistic) -> tuple[Floats, Floats, int]:
    """Return c [D] and W [D, D] of a :class:`~fedfloor.models.layers.Monitor`, and the number of components k."""
    from scipy.stats import chi2

    size = len(mean)
    variance = np.diag(covariance)
    varies = variance > SMALLEST * max(1.0, float(variance.max(initial=0.0)))
    if not varies.any():
        raise SettingError(
            "method 'pca': no sensor changes in the training samples, so that there is nothing to learn. Check the "
            "columns and the normalisation."
        )
    sigma = np.where(varies, np.sqrt(np.maximum(variance, 0.0)), 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(sigma, sigma))
    values = np.maximum(values[::-1], 0.0)
    vectors = vectors[:, ::-1]
    kept = int(np.searchsorted(np.cumsum(values) / values.sum(), explained - 1e-12)) + 1
    kept = min(kept, int((values > SMALLEST).sum()))
    rest = values[kept:]
    scale = np.zeros(size)
    if statistic != "Q":
        scale[:kept] = 1 / (values[:kept] * chi2.ppf(0.99, kept))
    if statistic != "T2" and rest.sum() > SMALLEST:
        spread = (rest**2).sum() / rest.sum()
        freedom = rest.sum() ** 2 / (rest**2).sum()
        scale[kept:] = 1 / (spread * chi2.ppf(0.99, freedom))
    weight = np.sqrt(size * scale)[:, None] * vectors.T / sigma  # the mean of squares is the score
    return mean, weight, kept
