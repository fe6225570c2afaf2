"""Networks around networks: with differences as outputs, from the sample or its newest row; or without an input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """The residuals r = x̂ − x [n, D] of a network's reconstructions x̂ [n, D] for samples x [n, …] of D numbers.

    >>> import torch
    >>> Residual(nn.Sequential(nn.Flatten()))(torch.ones(2, 3, 4)).abs().sum().item()
    0.0
    """

    residuals = True

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the residuals [n, D] for samples x [n, …]."""
        residuals: Tensor = self.body(x) - x.flatten(1)
        return residuals


class FromLast(nn.Module):
    """The forecasts ŷ = x_L + f(x − x_L) [n, S·H·Q] of a network f with changes from the newest row x_L as inputs.

    The level of a machine or a drifting sensor has no effect on f, as in NLinear (Zeng et al., AAAI 37 (2023) 11121,
    where f is linear). The last linear layer of f is initialised with 0: training starts from persistence.

    Args:
        body: f, for windows [n, C, L] or single rows [n, C], which keep their level.
        channels: the channels of the S forecast sensors; the others keep their level.
        each: the number of outputs per sensor, H·Q.

    >>> FromLast(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), (1,), 2)(torch.ones(4, 3, 2)).shape
    torch.Size([4, 2])
    """

    def __init__(self, body: nn.Module, channels: Sequence[int], each: int) -> None:
        super().__init__()
        self.body = body
        self.channels = list(channels)
        self.each = each
        last = [layer for layer in body.modules() if isinstance(layer, nn.Linear)][-1:]
        for parameter in (parameter for layer in last for parameter in layer.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Return the forecasts [n, S·H·Q], sensor by sensor."""
        newest = x
        if x.dim() == 3:
            newest = x[:, :, -1]
            forecast = x.new_zeros(x.shape[1]).index_fill(0, torch.tensor(self.channels, device=x.device), 1.0)
            x = x - (newest * forecast)[:, :, None]
        change: Tensor = self.body(x)
        return change + newest[:, self.channels].repeat_interleave(self.each, 1)


class Without(nn.Module):
    """A network that does not read one channel of its inputs [n, C, …], which is 0 for it.

    >>> Without(nn.Sequential(nn.Flatten()), 1)(torch.ones(1, 3))
    tensor([[1., 0., 1.]])
    """

    def __init__(self, body: nn.Module, channel: int) -> None:
        super().__init__()
        self.body = body
        self.channel = channel

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's outputs."""
        read = x.new_ones(x.shape[1]).index_fill(0, torch.tensor([self.channel], device=x.device), 0.0)
        outputs: Tensor = self.body(x * read.view(1, -1, *(1,) * (x.dim() - 2)))
        return outputs
