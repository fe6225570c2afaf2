"""Noisy censuses: discrete Laplace noise on every count, and the total ε of a run's reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import require

LEAST_EPSILON = 1e-6  # for a smaller ε the noise of a count is of the order of millions
SECRET_BYTES = 32  # of a real device's key


def check_epsilon(epsilon: float | None) -> None:
    """Raise SettingError if the ε of a census is too small or not a number; None and infinity mean no noise."""
    if epsilon is not None:
        require(epsilon >= LEAST_EPSILON, "park.census_epsilon", epsilon, f"at least {LEAST_EPSILON:g}, or left out")


def noise(epsilon: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    r"""Return ``size`` draws of discrete Laplace noise, P(X = x) = (1 − q)/(1 + q)·q^|x| with q = e^(−ε).

    It is the difference of two geometric variables. Added to each count, it makes a census ε-differentially private:
    adding or removing a sample changes one count by 1. (Replacing a sample changes two counts: 2ε.)

    Ghosh, Roughgarden and Sundararajan, "Universally utility-maximizing privacy mechanisms", SIAM J. Comput. 2012,
    arXiv 0811.2841 (geometric mechanism). The numbers are drawn by inversion in double precision, with probabilities
    exact to about 2^−53. For an exact sampler see Canonne, Kamath and Steinke, "The discrete Gaussian for
    differential privacy", NeurIPS 2020, arXiv 2004.00010.

    Args:
        epsilon: ε; infinity means no noise.

    >>> noise(float("inf"), 3, np.random.default_rng(0)).tolist()
    [0, 0, 0]
    """
    if math.isinf(epsilon):
        return np.zeros(size, np.int64)
    heads = -math.expm1(-epsilon)
    return rng.geometric(heads, size) - rng.geometric(heads, size)


def noisy(
    counts: NDArray[np.int64], epsilon: float | None, seed: int, tick: int, device: int, position: int,
    secret: int | None = None,
) -> NDArray[np.int64]:  # fmt: skip
    """Return the counts that a device reports, int64 [F]; they may be negative.

    The same samples in the same tick give the same report, so that averaging repeated reports does not reduce the
    noise. Noise from the public ``seed`` can be recomputed and gives no protection; a device's ``secret`` does. The
    counts are then part of the key, as the same noise on the counts of two data sets would reveal their difference.

    Args:
        counts: int64 [F].
        epsilon: ε of one report; None: no noise.
        seed, tick, device, position: the key of the noise.
        secret: the secret key of a real device, instead of the seed.
    """
    if epsilon is None or math.isinf(epsilon):
        return counts
    key = (seed, ()) if secret is None else (secret, counts.tolist())
    return counts + noise(epsilon, len(counts), generator(key[0], "census noise", tick, device, position, *key[1]))


def shares(reports: Iterable[Sequence[int] | NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return float64 [F]: the class shares of devices' reports [F], P = Σ_k n_k P_k / Σ_k n_k (FedGS, Eq. 2).

    Noise is summed with the counts; negative sums count as 0; if all are 0, the shares are equal.

    >>> shares([[3, 0], [3, 2]]).tolist()
    [0.75, 0.25]
    """
    total = np.sum([np.asarray(row) for row in reports], axis=0).clip(0)
    result: NDArray[np.float64] = total / total.sum() if total.any() else np.full(len(total), 1 / len(total))
    return result


def composed(epsilon: float, reports: int, delta: float | None = None) -> float:
    """Return the total ε of k reports of a device: k·ε, or, with δ, that of advanced composition if it is smaller.

    By advanced composition the run is (ε', δ)-differentially private with ε' = ε·√(2k ln(1/δ)) + kε(e^ε − 1).

    Dwork, Rothblum and Vadhan, "Boosting and differential privacy", FOCS 2010, Theorem III.3.

    Args:
        epsilon: ε of one report.
        reports: k.
        delta: δ in (0, 1), or None for pure differential privacy.

    Raises:
        SettingError: δ is out of range.

    >>> composed(0.1, 500), round(composed(0.1, 500, delta=1e-5), 2)
    (50.0, 15.99)
    """
    plain = epsilon * reports if reports else 0.0
    if delta is None:
        return plain
    require(0 < delta < 1, "delta", delta, "above 0 and below 1")
    if epsilon > 1:  # e^ε − 1 > ε: never smaller than k·ε, and e^ε may overflow
        return plain
    advanced = epsilon * math.sqrt(2 * reports * math.log(1 / delta)) + reports * epsilon * math.expm1(epsilon)
    return min(plain, advanced)
