r"""Discrete Gaussian noise, P(X = x) ∝ exp(−x²/(2σ²)) on the whole numbers, which can be masked and summed.

Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, arXiv 2004.00010. The sum of
n independent devices' numbers is within

.. math:: τ = 10 Σ_{k=1}^{n−1} \exp(−2π²σ² k/(k+1))

of a discrete Gaussian of variance nσ². A sum of the devices' integer vectors, of d numbers and Euclidean norm at most
S, is therefore ½ε²-concentrated differentially private with ε² ≤ S²/(nσ²) + τd/2 (Kairouz, Liu, Steinke, "The
distributed discrete Gaussian mechanism for federated learning with secure aggregation", ICML 2021, arXiv 2102.06387,
Theorem 1). With σ ≥ :data:`LEAST_DEVIATION` τ is below 10^−65 for each device, so that ε equals the Gaussian
mechanism's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LEAST_DEVIATION = 4.0  # least standard deviation of a device's noise, in steps
TAIL = 10.0  # noise exceeds this number of standard deviations with a probability of 10^−23
AT_ONCE = 1 << 16  # numbers to draw at a time


def discrete_gaussian(deviation: float, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return discrete Gaussian numbers, int64 [size]; zeros if the deviation is 0.

    Discrete Laplace numbers of scale t = ⌊σ⌋ + 1 are accepted with the probability exp(−(|x| − σ²/t)²/(2σ²)): Algorithm
    3 of Canonne et al., in double precision, which makes frequencies exact to about 2^−50.

    >>> discrete_gaussian(0.0, 2, np.random.default_rng(0)).tolist()
    [0, 0]
    """
    drawn = np.zeros(size, np.int64)
    filled = size if deviation == 0 else 0
    scale = math.floor(deviation) + 1
    while filled < size:
        many = min(AT_ONCE, 2 * (size - filled) + 16)
        x = np.floor(rng.standard_exponential(many) * scale)  # geometric: P(x) ∝ exp(−x/t)
        negative = rng.random(many) < 0.5
        chance = np.exp(-((x - deviation**2 / scale) ** 2) / (2 * deviation**2))
        kept = (rng.random(many) < chance) & ~(negative & (x == 0))
        some = np.where(negative, -x, x)[kept][: size - filled]
        drawn[filled : filled + len(some)] = some
        filled += len(some)
    return drawn
