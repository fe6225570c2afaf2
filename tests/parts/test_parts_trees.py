"""Parts of boosted trees, by hand."""

from __future__ import annotations

import numpy as np

from fedfloor.parts.trees.growing import refine


def test_edges_at_quantiles_of_the_weight_by_hand() -> None:
    """Edges 0, 1, 2: below them weigh 2, above them 2, a quarter of the first bin 1, the second quarter of the other 4.

    Of the 12 a quarter, 3, lies below ¼. Three quarters, 9, are reached by 3 of the 4 between 1¼ and 1½. Samples
    without a value, in the last bin, do not count, and neither do gradients.
    """
    sums = np.full((4, 1, 5, 2), 7.0)
    sums[..., 1] = 0.0
    sums[0, 0, 0, 1] = sums[0, 0, 3, 1] = 2.0
    sums[:, 0, 1, 1] = 1.0
    sums[1, 0, 2, 1] = 4.0
    sums[0, 0, 4, 1] = 50.0
    edges = refine(sums, np.array([[0.0, 1.0, 2.0]]), np.array([0.25, 0.75]))
    assert edges.tolist() == [[0.25, 1.4375]]
