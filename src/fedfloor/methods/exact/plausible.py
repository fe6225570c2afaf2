"""What sums over samples have in common, whichever samples these are, and false sums may lack.

Each condition also holds for sums over several devices, and for means of such sums.
"""

from __future__ import annotations

import numpy as np

from fedfloor.methods.exact.rows import Floats

ROUNDING = 1e-9  # the greatest share by which rounding changes a sum
WHOLE = 128  # rows of matrices of products, up to which these are judged as a whole, and not only pair by pair


def miscounted(number: Floats, count: float, *, all_counted: bool = False) -> bool:
    """Return whether counts are negative, or together more than all samples (or fewer, if each is counted)."""
    slack = ROUNDING * count
    excess = float(number.sum()) - count
    return bool((number < -slack).any()) or excess > slack or (all_counted and excess < -slack)


def too_small(second: Floats, first: Floats, number: Floats | float) -> bool:
    """Return whether sums of squares are smaller than those of any samples with these sums: (Σv)² > n·Σv²."""
    root = np.sqrt(np.maximum(second, 0.0) * np.maximum(number, 0.0))
    return bool((second < 0).any() or (np.abs(first) > root * (1 + ROUNDING) + ROUNDING * np.asarray(number)).any())


def indefinite(products: Floats, count: float) -> bool:
    """Return whether matrices [..., P, P] are not Σ vvᵀ with weights ≥ 0: they have a direction with a negative sum."""
    square = np.diagonal(products, axis1=-2, axis2=-1)
    slack = ROUNDING * (count + float(np.abs(square).max(initial=0.0)))
    if (square < -slack).any() or (np.abs(products - np.swapaxes(products, -1, -2)) > slack).any():
        return True
    root = np.sqrt(np.maximum(square, 0.0)) + np.sqrt(slack)
    if (np.abs(products) > root[..., :, None] * root[..., None, :]).any():
        return True
    if products.shape[-1] > WHOLE:
        return False
    try:
        np.linalg.cholesky(products + slack * np.eye(products.shape[-1]))
    except np.linalg.LinAlgError:
        return True
    return False
