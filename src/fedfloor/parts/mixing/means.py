"""Means of models for mixing rules: with given weights, by distance, and robust to outliers.

All functions take the n models in the order of the plan's branches, return the same bits for the same order, process a
few thousand coordinates at a time, and do not change their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.errors import DivergedError, SettingError, require

Models = Tensor | Sequence[Tensor]  # a tensor [n, P], or n flat models [P]
T = TypeVar("T", float, Tensor)

CHUNK = 1 << 14  # coordinates per chunk: 2 MB for 30 models, which stay in the cache


def rows(models: Models) -> list[Tensor]:
    """Return the models as a list of flat vectors [P], views of the inputs."""
    models = list(models)
    if not models:
        raise SettingError("no models to mix: at least one branch must return.", key="no-models")
    sizes = sorted({model.numel() for model in models})
    if len(sizes) > 1:
        raise SettingError(
            f"models of {sizes[0]} and {sizes[-1]} numbers cannot be mixed: all models must have the same size.",
            key="models-differ",
        )
    return models


def spans(size: int) -> Iterator[slice]:
    """Yield the chunks of ``size`` coordinates.

    >>> [s.stop - s.start for s in spans(40_000)]
    [16384, 16384, 7232]
    """
    for low in range(0, size, CHUNK):
        yield slice(low, min(low + CHUNK, size))


def mean(models: Models, weights: Sequence[float] | None = None) -> Tensor:
    """Return the mean Σ_k a_k·w_k / Σ_k a_k, added along a binary tree over the models.

    The order of additions is that of the engine's sums: without weights the result equals the engine's rule ``equal``,
    with the numbers of samples ``by_samples``, to the bit.

    ``models``: w_k, float32 [n, P]. ``weights``: a_k, n numbers above 0; all 1 by default.

    >>> mean(torch.tensor([[1.0, 2.0], [5.0, 2.0]]), [3.0, 1.0])
    tensor([2., 2.])
    """
    models = rows(models)
    shares = [1.0] * len(models) if weights is None else _checked("weight", weights, len(models), above=True)
    if len(models) == 1:
        return models[0].clone()
    total = _tree(shares)
    out = torch.empty_like(models[0])
    for span in spans(out.numel()):
        parts = [model[span] * share for model, share in zip(models, shares, strict=True)]
        torch.div(_tree(parts), total, out=out[span])
    return out


def _tree(parts: list[T]) -> T:
    while len(parts) > 1:
        left = parts[-1:] if len(parts) % 2 else []
        parts = [a + b for a, b in zip(parts[:-1:2], parts[1::2], strict=True)] + left
    return parts[0]


def inverse_distance(models: Models, factors: Sequence[float] | None = None) -> Tensor:
    """IDA: return the mean with weights α_k = c_k/(‖w̄ − w_k‖₁ + ε), where w̄ is the plain mean of the models.

    The argument ``factors`` selects the variant: None for IDA, :func:`intrac` for IDA + INTRAC, the devices' numbers of
    samples n_k for IDA + FedAvg. With equal distances and no factors the result is the plain mean, up to the rounding
    of the distances. By the formula a model equal to w̄ gets nearly all the weight.

    Yeganeh et al., DCL at MICCAI 2020, arXiv 2008.07665. The paper's formulas could not be looked up; the 1-norm over
    all coordinates, ε = 10⁻¹⁰ (which only prevents 1/0), and w̄ without weights are choices of this implementation.

    ``models``: w_k, float32 [n, P]. ``factors``: c_k, n numbers above 0; all 1 by default.

    >>> inverse_distance(torch.tensor([[0.0], [2.0], [7.0]]))  # w̄ = 3: weights 1/3, 1, 1/4
    tensor([2.3684])
    """
    return mean(models, inverse_distance_weights(models, factors))


def inverse_distance_weights(models: Models, factors: Sequence[float] | None = None) -> list[float]:
    """Return the weights α_k of :func:`inverse_distance`, divided by the largest weight."""
    models = rows(models)
    for number, model in enumerate(models, 1):
        if not bool(torch.isfinite(model).all()):
            raise DivergedError(
                f"model {number} of {len(models)} holds infinite or undefined numbers. Lower work.lr; "
                "the last checkpoint is untouched."
            )
    shares = [1.0] * len(models) if factors is None else _checked("factor", factors, len(models), above=True)
    centre = mean(models)
    far = _totals(models, lambda model, span: (model[span] - centre[span]).abs_())
    alphas = [share / (distance + 1e-10) for share, distance in zip(shares, far, strict=True)]
    # relative to the largest: equal weights are exactly 1, and the mean with weights 1 is the plain mean to the bit
    return [alpha / max(alphas) for alpha in alphas]


def intrac(accuracies: Sequence[float], classes: int) -> list[float]:
    """Return IDA's factors c_k = 1/max(1/C, acc_k) of the devices' training accuracies: larger errors weigh more.

    ``accuracies``: acc_k, n shares in [0, 1]. ``classes``: C.

    >>> intrac([0.5, 0.01], classes=10)
    [2.0, 10.0]
    """
    for accuracy in accuracies:
        require(0 <= accuracy <= 1, "training accuracy", accuracy, "a share between 0 and 1")
    return [1 / max(1 / classes, accuracy) for accuracy in accuracies]


def q_fair(
    start: Tensor, models: Models, losses: Sequence[float], rate: float, q: float, trained: int | None = None
) -> Tensor:
    """q-FedAvg: return w − Σ_k F_k^q·u_k / Σ_k h_k with u_k = (w − w_k)/η, h_k = q·F_k^(q−1)·‖u_k‖² + F_k^q/η.

    It is computed as w + s·(w̃ − w), where w̃ is the mean of the models with weights F_k^q and s = (Σ F_k^q/η)/Σ h_k ≤
    1: a larger q gives more weight to the devices with the largest loss, and a shorter step. With q = 0 it is the plain
    mean to the bit: FedAvg if all devices hold the same number of samples. As in the authors' code 10⁻¹⁰ is added to
    every loss. Devices are assumed to be drawn in proportion to their samples, and then weigh the same. Li et al., ICLR
    2020, arXiv 1905.10497.

    ``start``: w, the model from which the devices started, float32 [P]. ``models``: w_k, float32 [n, P]. ``losses``:
    F_k, the mean loss of w on all samples of device k, n numbers of at least 0. ``rate``: η; 1/η estimates the
    Lipschitz constant. ``trained``: the number of trained values at the front; all by default. Values after them, such
    as batch norm's statistics, have no gradient: they take the value of w̃, and do not count in ‖u_k‖.
    """
    require(0 < rate < math.inf, "rate", rate, "a number above 0")
    require(0 <= q < math.inf, "q", q, "a number of at least 0")
    for loss in losses:
        if not math.isfinite(loss):
            raise DivergedError(f"a device's loss is {loss}. Lower work.lr; the last checkpoint is untouched.")
    models = rows([start, *models])[1:]
    raised = [loss + 1e-10 for loss in _checked("loss", losses, len(models), above=False)]
    powers = [(loss / max(raised)) ** q for loss in raised]  # divided by the largest F^q, which cancels in s and w̃
    steps = _totals([model[:trained] for model in models], lambda model, span: (model[span] - start[span]).square_())
    norms = [step / rate**2 for step in steps]
    curved = sum(q * power / loss * norm for power, loss, norm in zip(powers, raised, norms, strict=True))
    straight = sum(powers) / rate
    # weights that underflow to 0 are replaced by the smallest positive number
    towards = mean(models, [max(power, 1e-38) for power in powers])
    if curved > 0 or not math.isfinite(curved):
        towards[:trained] = torch.lerp(start[:trained], towards[:trained], straight / (curved + straight))
    return towards


def _totals(models: Sequence[Tensor], term: Callable[[Tensor, slice], Tensor]) -> list[float]:
    return [sum(float(term(w, span).sum(dtype=torch.float64)) for span in spans(w.numel())) for w in models]


def _checked(name: str, values: Sequence[float], n: int, *, above: bool) -> list[float]:
    require(len(values) == n, f"the number of {name} values", len(values), f"one per model, {n}")
    for value in values:
        good = math.isfinite(value) and (value > 0 if above else value >= 0)
        require(good, name, value, "a number above 0" if above else "a number of at least 0")
    return [float(value) for value in values]


def gaussian_sum(
    updates: Iterable[Tensor], clip: float, deviation: float, rng: np.random.Generator,
    lengths: list[float] | None = None, nothing: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return Σ_k Δ_k·min(1, C/‖Δ_k‖) + N(0, σ²I), float64 [P]: the Gaussian mechanism on clipped updates.

    Args:
        updates: Δ_k, float64 [P], at least one, or none with ``nothing``.
        clip: C > 0; infinity: no clipping.
        deviation: σ ≥ 0; 0: no noise.
        rng: the generator of the noise.
        lengths: a list to which each ‖Δ_k‖ is appended.
        nothing: zeros, float64 [P], the sum of no updates.

    >>> gaussian_sum([torch.tensor([3.0, 4.0]).double()], 1.0, 0.0, np.random.default_rng(0)).tolist()
    [0.6000000000000001, 0.8]
    """
    total: Tensor | None = None
    for update in updates:
        part = clipped(update, clip)
        if lengths is not None:
            lengths.append(float(update.norm()))
        total = part.clone() if total is None else total.add_(part)
    total = nothing if total is None else total
    if total is None:
        raise SettingError("no updates to add up: at least one branch must return.")
    return noisy(total, deviation, rng)


def clipped(update: Tensor, clip: float) -> Tensor:
    """Return the clipped update Δ·min(1, C/‖Δ‖)."""
    length = float(update.norm())
    return update * (clip / length) if length > clip else update


def noisy(total: Tensor, deviation: float, rng: np.random.Generator) -> Tensor:
    """Add N(0, σ²I) to a sum in place, and return it."""
    for span in spans(len(total)) if deviation else ():
        total[span] += torch.from_numpy(rng.normal(0.0, deviation, span.stop - span.start))
    return total


def median(models: Models) -> Tensor:
    """Return the median of every coordinate; for an even number of models the mean of the two middle values.

    Yin et al., ICML 2018, arXiv 1803.01498.

    ``models``: float32 [n, P].

    >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]]))
    tensor([3.])
    """
    models = rows(models)
    out = torch.empty_like(models[0])
    middle = len(models) // 2
    for span, ordered in _sorted(models):
        high = ordered[:, middle]
        # halved before the addition: the sum of two large numbers may overflow
        out[span] = torch.from_numpy(high if len(models) % 2 else ordered[:, middle - 1] * 0.5 + high * 0.5)
    return out


def trimmed_mean(models: Models, share: float) -> Tensor:
    """Return the mean of every coordinate without its ⌊b·n⌋ smallest and ⌊b·n⌋ largest values.

    If b·n < 1, it is the plain mean to the bit. Yin et al., ICML 2018, arXiv 1803.01498.

    ``models``: float32 [n, P]. ``share``: b in [0, 1/2), the share trimmed at each end.

    >>> trimmed_mean(torch.tensor([[1.0], [90.0], [2.0], [4.0], [3.0]]), 0.2)
    tensor([3.])
    """
    allowed = "at least 0 and below 0.5, as half at each end is every model"
    require(0 <= share < 0.5, "share trimmed at each end", share, allowed)
    models = rows(models)
    n = len(models)
    cut = min(math.floor(share * n + 1e-9), (n - 1) // 2)  # 0.29·100 is 28.999999999999996; one value stays
    if cut == 0:
        return mean(models)
    out = torch.empty_like(models[0])
    for span, ordered in _sorted(models):
        out[span] = torch.from_numpy(ordered[:, cut : n - cut].sum(1)).div_(n - 2 * cut)
    return out


def krum(models: Models, outliers: int, *, guarantee: bool = True) -> Tensor:
    """Krum: return the model with the smallest sum of squared distances to its n − f − 2 nearest models.

    Among equal sums the first model. Blanchard et al., NeurIPS 2017.

    ``models``: float32 [n, P]. ``outliers``: f, the number of models that may be arbitrary; n ≥ 2f + 3. ``guarantee``:
    see :func:`krum_scores`.

    >>> krum(torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]]), outliers=1)
    tensor([1.])
    """
    return multi_krum(models, outliers, keep=1, guarantee=guarantee)


def multi_krum(models: Models, outliers: int, keep: int | None = None, *, guarantee: bool = True) -> Tensor:
    """Multi-Krum: return the plain mean of the m models with the best Krum scores.

    With m = 1 it is Krum, with f = 0 and m = n the plain mean. The paper allows every m from 1 to n and uses m = n − f
    in its experiments; a larger m is refused here, as it would include an outlier. Blanchard et al., NeurIPS 2017.

    ``models``: float32 [n, P]. ``outliers``: f, the number of models that may be arbitrary; n ≥ 2f + 3. ``keep``: m,
    from 1 to n − f; n − f by default.
    """
    models = rows(models)
    scores = krum_scores(models, outliers, guarantee=guarantee)
    most = len(models) - outliers
    m = most if keep is None else keep
    require(1 <= m <= most, "krum keep", m, f"1 to {most}, the {len(models)} models without {outliers} outliers")
    best = sorted(sorted(range(len(models)), key=lambda i: (scores[i], i))[:m])  # added in the order of the branches
    return mean([models[i] for i in best])


def krum_scores(models: Models, outliers: int, *, guarantee: bool = True) -> list[float]:
    """Return each model's sum of squared distances to its n − f − 2 nearest models.

    With ``guarantee = False`` fewer models than the 2f + 3 of the proof are accepted, and the nearest model counts if
    n − f − 2 is less than 1; f arbitrary models can then appear to be neighbours.

    >>> krum_scores(torch.tensor([[0.0], [1.0], [3.0]]), outliers=0)
    [1.0, 1.0, 4.0]
    """
    models = rows(models)
    n = len(models)
    require(outliers >= 0, "krum outliers", outliers, "a whole number of at least 0")
    if guarantee and n < 2 * outliers + 3:
        most = (n - 3) // 2
        fewer = f", or lower krum outliers to at most {most}" if most >= 0 else ""
        raise SettingError(
            f"krum with {n} models and outliers = {outliers}: it needs at least 2·{outliers} + 3 = {2 * outliers + 3} "
            f"models. Let {2 * outliers + 3 - n} more take part{fewer}.",
            key="krum",
        )
    return neighbour_scores(squared_distances(models), max(1, n - outliers - 2))


def squared_distances(models: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the squared distances ‖w_i − w_j‖², float64 [n, n]; infinite where undefined."""
    n = len(models)
    # differences instead of products: models differ less from each other than from 0
    upper = torch.zeros(n, n, dtype=torch.float64)
    for span in spans(models[0].numel()):
        block = torch.stack([model[span] for model in models])
        for i in range(n - 1):
            upper[i, i + 1 :] += (block[i + 1 :] - block[i]).square_().sum(1)
    upper = torch.nan_to_num(upper, nan=math.inf, posinf=math.inf)
    apart: NDArray[np.float64] = (upper + upper.T).numpy()
    return apart


def neighbour_scores(apart: NDArray[np.float64], neighbours: int) -> list[float]:
    """Return each model's sum of squared distances to its nearest models, given those of all pairs [n, n]."""
    return [float(np.sort(np.delete(row, i))[:neighbours].sum()) for i, row in enumerate(apart)]


def _sorted(models: list[Tensor]) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield chunks of coordinates with their n values in ascending order, float32 [chunk, n]."""
    for span in spans(models[0].numel()):
        block = np.stack([model[span].numpy() for model in models], axis=1)
        block += 0.0  # −0 becomes 0, as sorting does not define their order
        block.sort(axis=1)  # sorting contiguous rows is several times faster than sorting columns
        yield span, block
