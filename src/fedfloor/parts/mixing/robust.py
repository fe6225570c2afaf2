"""Aggregation rules that tolerate arbitrary models: clipped, geometric, selected and similarity-weighted means.

As in :mod:`fedfloor.parts.mixing.means` the models are in the order of the plan's branches, arguments do not change,
and equal orders give equal bits. A model that holds infinite or undefined numbers is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.errors import DivergedError, SettingError
from fedfloor.parts.mixing.means import Models, mean, neighbour_scores, rows, spans, squared_distances


def finite(models: Models) -> list[Tensor]:
    """Return the models that hold no infinite or undefined numbers; RunError if there are none."""
    kept = [model for model in rows(models) if bool(torch.isfinite(model).all())]
    if not kept:
        raise DivergedError("every returned model holds infinite or undefined numbers. Lower work.lr.")
    return kept


def distances(models: Sequence[Tensor], centre: Tensor) -> NDArray[np.float64]:
    """Return ‖w_k − centre‖ of every model, float64 [n]."""
    squares = np.zeros(len(models))
    for span in spans(centre.numel()):
        squares += [float((model[span].double() - centre[span]).square().sum()) for model in models]
    return np.sqrt(squares)


def centred_clipping(start: Tensor, models: Models, radius: float | None = None, iterations: int = 3) -> Tensor:
    """Centred clipping: return v after L steps v ← v + (1/n) Σ_k (w_k − v)·min(1, τ/‖w_k − v‖) from v = w.

    One iteration is the mean of updates clipped to the norm τ. With τ = ∞ it is the plain mean, up to rounding. No
    model changes v by more than τ/n in an iteration. Karimireddy, He, Jaggi, ICML 2021, arXiv 2012.10333, begin with
    the previous round's result; w, the model that was sent, is that result, and devices send no momentum.

    ``start``: w, float32 [P]. ``models``: w_k, float32 [n, P]. ``radius``: τ > 0; by default the median distance of the
    models from v in each iteration. ``iterations``: L ≥ 1.

    >>> centred_clipping(torch.zeros(1), torch.tensor([[1.0], [1.0], [9.0]]), radius=1.0, iterations=1)
    tensor([1.])
    """
    models = finite(models)
    centre = start.double()
    for _ in range(iterations):
        far = distances(models, centre)
        bound = float(np.median(far)) if radius is None else radius
        shares = [min(1.0, bound / distance) if distance > 0 else 1.0 for distance in far]
        moved = centre.clone()
        for span in spans(centre.numel()):
            for model, share in zip(models, shares, strict=True):
                moved[span] += (model[span] - centre[span]) * (share / len(models))
        centre = moved
    return centre.to(start.dtype)


def geometric_median(models: Models, smoothing: float = 1e-6, iterations: int = 100) -> Tensor:
    """RFA: return the geometric median argmin_v Σ_k ‖w_k − v‖ by the smoothed Weiszfeld algorithm.

    v ← Σ_k β_k w_k / Σ_k β_k, β_k = 1/max(ν, ‖w_k − v‖), starting from the plain mean, until a step is shorter than ν
    or a millionth of the mean distance, at most R times. It tolerates arbitrary models if they are fewer than half.
    Pillutla, Kakade, Harchaoui, IEEE Trans. Signal Process. 70, 2022, arXiv 1912.13445, where few iterations are
    enough; here models have equal weights, whatever the numbers of samples.

    ``models``: w_k, float32 [n, P]. ``smoothing``: ν > 0. ``iterations``: R ≥ 1.

    >>> geometric_median(torch.tensor([[0.0], [1.0], [1.0], [1.0], [900.0]])).round(decimals=4)
    tensor([1.])
    """
    models = finite(models)
    centre = mean(models)
    for _ in range(iterations):
        far = distances(models, centre)
        weights = 1 / np.maximum(far, smoothing)
        before = centre
        centre = mean(models, (weights / weights.max()).clip(1e-38).tolist())
        if distances([before], centre)[0] <= max(smoothing, 1e-6 * float(far.mean())):
            break
    return centre


def bulyan(models: Models, outliers: int) -> Tensor:
    """Bulyan: return each coordinate's mean of the θ − 2f values nearest its median, among θ = n − 2f models by Krum.

    With f = 0 it is the plain mean, up to rounding. El Mhamdi, Guerraoui, Rouault, ICML 2018, arXiv 1802.07927.

    ``models``: w_k, float32 [n, P]. ``outliers``: f; n ≥ 4f + 3.

    >>> bulyan(torch.tensor([[1.0], [2.0], [3.0], [2.0], [2.0], [2.0], [9e9]]), 1)
    tensor([2.])
    """
    models = rows(models)
    n = len(models)
    f = outliers
    if n < 4 * f + 3:
        raise SettingError(
            f"bulyan with {n} models and outliers = {f}: 4·{f} + 3 = {4 * f + 3} models are needed.", key="bulyan"
        )
    apart = squared_distances(models)
    left = list(range(n))
    chosen = list[int]()
    while len(chosen) < n - 2 * f:
        scores = neighbour_scores(apart[np.ix_(left, left)], max(1, len(left) - f - 2))
        chosen.append(left.pop(min(range(len(left)), key=scores.__getitem__)))
    keep = n - 4 * f
    out = torch.empty_like(models[0])
    for span in spans(out.numel()):
        block = np.sort(np.stack([models[i][span].numpy() for i in sorted(chosen)], axis=1), axis=1)
        middle = np.median(block, axis=1, keepdims=True)
        nearest = np.argsort(np.abs(block - middle), axis=1, kind="stable")[:, :keep]
        out[span] = torch.from_numpy(np.take_along_axis(block, np.sort(nearest, axis=1), axis=1).mean(1))
    return out


def foolsgold_weights(updates: Sequence[Tensor]) -> list[float]:
    """Return FoolsGold's weights of updates, in [0, 1]: updates with the same direction weigh less.

    c_ij = cos(Δ_i, Δ_j), v_i = max(0, max_{j≠i} c_ij); if v_i < v_j, c_ij is scaled by v_i/v_j (pardoning);
    a_i = 1 − max_j c_ij, divided by the largest, then logit: ½ + ln(a/(1 − a)), clipped to [0, 1]. Fung, Yoon,
    Beschastnikh, RAID 2020, arXiv 1808.04866, with the similarities of one round: the per-device history of the paper's
    cloud is omitted. Honest devices with equal data are taken for an attacker, too.

    ``updates``: Δ_k, [n, P].
    """
    if len(updates) == 1:
        return [1.0]
    gram = np.zeros((len(updates), len(updates)))
    for span in spans(updates[0].numel()):
        block = torch.stack([update[span] for update in updates]).double().numpy()
        gram += block @ block.T
    length = np.sqrt(np.diag(gram)).clip(1e-30)
    cosines = gram / np.outer(length, length)
    np.fill_diagonal(cosines, 0.0)
    most = cosines.max(axis=1)
    cosines *= np.minimum(1.0, most[:, None] / most.clip(1e-30)[None, :])
    weights = (1 - cosines.max(axis=1)).clip(0, 1)
    if not weights.any():  # all updates have the same direction
        return [1.0] * len(updates)
    weights = (weights / weights.max()).clip(1e-6, 0.99)
    return [float(weight) for weight in (np.log(weights / (1 - weights)) + 0.5).clip(0, 1)]


def foolsgold(start: Tensor, models: Models) -> Tensor:
    """FoolsGold: return w + Σ_k a_k Δ_k / Σ_k a_k with :func:`foolsgold_weights`; equal weights if all are 0.

    ``start``: w, float32 [P]. ``models``: w_k = w + Δ_k, float32 [n, P].
    """
    models = finite(models)
    weights = foolsgold_weights([model - start for model in models])
    kept = [(model, weight) for model, weight in zip(models, weights, strict=True) if weight > 0]
    return mean([model for model, _ in kept], [weight for _, weight in kept]) if kept else mean(models)


def norm_bound(start: Tensor, models: Models, weights: Sequence[float], bound: float | None = None) -> Tensor:
    """Norm bound: return w + Σ_k a_k Δ_k·min(1, C/‖Δ_k‖) / Σ_k a_k, the mean of clipped updates.

    Sun, Kairouz, Suresh, McMahan, arXiv 1911.07963. With C = ∞ it is the mean with these weights, up to rounding.

    ``start``: w, float32 [P]. ``models``: w_k = w + Δ_k, float32 [n, P]. ``weights``: a_k, n numbers above 0.
    ``bound``: C > 0; by default the median length of the updates.

    >>> norm_bound(torch.zeros(1), torch.tensor([[1.0], [2.0], [90.0]]), [1.0, 1.0, 1.0])
    tensor([1.6667])
    """
    every = rows(models)
    far = distances(finite(every), start.double())
    pairs = [(model, a) for model, a in zip(every, weights, strict=True) if bool(torch.isfinite(model).all())]
    most = float(np.median(far)) if bound is None else bound
    total = math.fsum(a for _, a in pairs)
    mixed = start.double()
    for (model, weight), length in zip(pairs, far, strict=True):
        share = weight / total * (most / length if length > most else 1.0)
        for span in spans(mixed.numel()):
            mixed[span] += (model[span].double() - start[span]) * share
    return mixed.to(start.dtype)
