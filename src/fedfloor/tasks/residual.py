"""Networks whose outputs are residuals: what is left of a sample when its reconstruction is taken off."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """r = x̂ − x, [n, D], of a network that gives reconstructions x̂ [n, D] of samples x [n, …] with D numbers each.

    >>> import torch
    >>> Residual(nn.Sequential(nn.Flatten()))(torch.ones(2, 3, 4)).abs().sum().item()
    0.0
    """

    residuals = True

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the residuals."""
        found: Tensor = self.body(x) - x.flatten(1)
        return found
