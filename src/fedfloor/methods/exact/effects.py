"""How strongly each number of a sample acts in a regression: its effect with a covariance, from summed information."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.methods.exact.rows import Floats, Named
from fedfloor.methods.exact.sums import EFFECTS

SETTLED = 0.01  # of its standard error: the longest step of a weight that is taken for the last
FLAT = 1e-10  # curvature of a direction of which lives say nothing, as a share of the largest


def effects(theta: Named, after: Named, information: Floats, pull: Floats, change: Floats) -> Named:
    """Return effects, their covariance J (I + Λ)⁻¹ Jᵀ by the delta method, and J N Nᵀ Jᵀ; {} before the last step.

    N are the directions of weights of which the lives say nothing, whatever a penalty says of them. What J N Nᵀ Jᵀ is
    not 0 for has no known error.

    Args:
        theta: the parameters for which sums were computed, with ``weight`` [V].
        after: those that follow from the sums.
        information: I, the negative second derivatives of the log-likelihood at the weights, [V, V].
        pull: the diagonal of Λ, a penalty's second derivatives, [V].
        change: the effects and J, their derivatives by the weights, [D, 1 + V].
    """
    values, vectors = np.linalg.eigh(information)
    flat = vectors[:, ~_is_curved(values)]
    if pull.any():
        values, vectors = np.linalg.eigh(information + np.diag(pull))
    known = _is_curved(values)
    spread = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    moved = np.abs(after["weight"] - theta["weight"])
    if (moved > SETTLED * np.sqrt((vectors**2 * spread).sum(axis=1))).any():
        return {}
    slopes: Any = change[:, 1:] @ vectors
    unknown: Any = change[:, 1:] @ flat
    return {EFFECTS: np.hstack([change[:, :1], (slopes * spread) @ slopes.T, unknown @ unknown.T])}


def _is_curved(values: Floats) -> NDArray[np.bool_]:
    curved: NDArray[np.bool_] = values > FLAT * values.max(initial=0.0)
    return curved
