"""Label skew: how far devices' class shares are from those of all devices, and how far chance alone takes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.park.park import Park

NEGLIGIBLE = 1.1  # times what chance alone makes; up to here there is nothing to choose devices by
SLIGHT, MODERATE = 0.1, 0.4  # below; more is strong


class LabelSkew(NamedTuple):
    """The label skew of a park; of more than 5,000 devices, of those that are shown.

    Attributes:
        measured: ½ Σ_c |p_k(c) − P(c)|, the mean over devices k, from 0 to 1; p_k the class shares of the device's
            training samples, P those of all devices' samples.
        expected: what ``measured`` comes to on average where every device draws as many samples independently from P.
    """

    measured: float
    expected: float

    @property
    def negligible(self) -> bool:
        """Whether devices differ in their labels hardly more than by chance."""
        return self.measured <= NEGLIGIBLE * self.expected

    @property
    def grade(self) -> str:
        """The judgement in a word or two.

        >>> LabelSkew(0.01, 0.013).grade, LabelSkew(0.05, 0.01).grade, LabelSkew(0.9, 0.2).grade
        ('no more than chance', 'slight', 'strong')
        """
        if self.negligible:
            return "no more than chance"
        return "slight" if self.measured < SLIGHT else "moderate" if self.measured < MODERATE else "strong"

    @property
    def words(self) -> str:
        """The figures in a sentence."""
        return (
            f"label skew {self.measured:.3f}, {self.grade} (mean distance of a device's class shares from those of all "
            f"devices, 0 to 1); samples dealt by chance alone give {self.expected:.3f}"
        )


def label_skew(park: Park) -> LabelSkew | None:
    """Return a park's label skew; None where the samples stay on real devices.

    Args:
        park: the devices.
    """
    if park.told is not None:
        return None
    counts = park.shown_counts
    sizes, whole = counts.sum(axis=1), counts.sum(axis=0)
    share = whole / whole.sum()
    measured = np.abs(counts / sizes[:, None] - share).sum(axis=1) / 2
    several, of = np.unique(sizes, return_inverse=True)
    return LabelSkew(float(measured.mean()), float(deviation(several, share[share > 0])[of].mean()))


def deviation(sizes: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Return float64 [len(sizes)], E[½ Σ_c |X_c/n − P_c|] for the counts X of n independent draws from P.

    Each X_c is binomial, and by De Moivre E|X − np| = 2m·C(n, m)·p^m·(1 − p)^(n − m + 1) with m = ⌊np⌋ + 1.

    Args:
        sizes: n, int64, each at least 1.
        share: P, float64 [F], all above 0.

    >>> deviation(np.array([1, 2]), np.array([0.5, 0.5])).round(4).tolist()
    [0.5, 0.25]
    """
    if len(share) == 1:
        return np.zeros(len(sizes))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, int(sizes.max()) + 1)))))
    n, p = sizes[:, None], share[None]
    m = np.minimum(np.floor(n * p).astype(np.int64) + 1, n)
    ways = log_factorial[n] - log_factorial[m] - log_factorial[n - m]
    each = np.exp(np.log(2.0 * m) + ways + m * np.log(p) + (n - m + 1) * np.log1p(-p)) / n
    total: NDArray[np.float64] = each.sum(axis=1) / 2
    return total
