"""Networks whose outputs are differences: from the sample itself, or from its newest row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
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


class FromLast(nn.Module):
    """ŷ = g·x_last + f(x): forecasts [n, S·H·L] of a network f that gives changes from the newest row of a window.

    g [S] is learnt and begins at 1, and the last linear layer of f begins at 0: training starts from persistence.

    Args:
        body: f.
        channels: of the S sensors that are forecast among those of a window.
        each: outputs per sensor, H·L.

    >>> FromLast(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), (1,), 2)(torch.ones(4, 3, 2)).shape
    torch.Size([4, 2])
    """

    def __init__(self, body: nn.Module, channels: Sequence[int], each: int) -> None:
        super().__init__()
        self.body, self.channels, self.each = body, list(channels), each
        self.gain = nn.Parameter(torch.ones(len(self.channels)))
        last = [layer for layer in body.modules() if isinstance(layer, nn.Linear)][-1:]
        for parameter in (one for layer in last for one in layer.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return the forecasts, sensor by sensor."""
        newest = x[:, self.channels, -1] if x.dim() == 3 else x[:, self.channels]
        found: Tensor = self.body(x) + (self.gain * newest).repeat_interleave(self.each, 1)
        return found
