"""A linear monitor of normal operation: principal components with the statistics T² and Q."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Monitor(nn.Module):
    """u = W(z − c) of samples z [n, …] with D numbers each, [n, D]; the mean of u² is the score.

    Method ``pca`` sets c and W so that the score is T²/τ² + Q/δ²; see :class:`fedfloor.methods.pca.Pca`. Before, W is
    the unit matrix and c is 0.

    Args:
        size: D.
    """

    residuals = True  # its outputs are what is left of a sample: the task squares them
    set_by = "pca"  # no optimiser step touches it

    def __init__(self, size: int) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.weight = nn.Parameter(torch.eye(size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return u."""
        return (x.flatten(1) - self.center) @ self.weight.T
