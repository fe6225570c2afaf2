"""A layer whose input is fused with the features of another network, as FedFusion's three operators do it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedfloor.errors import SettingError

CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {
    3: nn.Conv1d,
    4: nn.Conv2d,
    5: nn.Conv3d,
}  # by dimensions of [n, C, …]


class Gate(nn.Module):
    """γ⊙y + (1 − γ)⊙x, γ = 0 at first: one γ per channel, or one for all.

    Args:
        gates: how many γ: the number of channels, or 1.
    """

    def __init__(self, gates: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(gates))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the fused features [batch, C, …]."""
        gamma = self.gamma.view(-1, *(1,) * (x.dim() - 2))
        return x + gamma * (y - x)  # in this form equal streams, and γ = 0, give x to the bit


class Mixture(nn.Module):
    """W·[x; y]: a 1×1 convolution from the 2C channels of both to C; a linear layer where features are vectors.

    Args:
        channels: C.
        dimensions: those of the features [batch, C, …].
    """

    def __init__(self, channels: int, dimensions: int) -> None:
        super().__init__()
        if dimensions == 2:
            self.mix: nn.Module = nn.Linear(2 * channels, channels)
        else:
            self.mix = CONVOLUTIONS[dimensions](2 * channels, channels, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the fused features [batch, C, …]."""
        said: Tensor = self.mix(torch.cat([x, y], 1))
        return said


class Fused(nn.Module):
    """A layer behind a fusion of what comes in, x, with the features ``other``, y; on its own it takes y = x.

    Attributes:
        layer: the layer.
        fusion: :class:`Gate` or :class:`Mixture`.
        other: y [batch, C, …], while a device trains; None otherwise.
    """

    def __init__(self, layer: nn.Module, fusion: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.fusion = fusion
        self.other: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer makes of the fused features."""
        said: Tensor = self.layer(self.fusion(x, x if self.other is None else self.other))
        return said


def fused(module: nn.Module) -> tuple[str, Fused]:
    """Return the path of a network's fused layer, and the layer.

    Raises:
        SettingError: it has none.

    >>> fused(nn.Sequential(nn.Linear(4, 5), Fused(nn.Linear(5, 3), Gate(5))))[0]
    '1'
    """
    for path, part in module.named_modules():
        if isinstance(part, Fused):
            return path, part
    raise SettingError(
        f"objective fusion: the network {type(module).__name__} has no fused layer: it was built for another "
        "objective. Use the method fedfusion, or build it with adapt = Fusion().adapt."
    )
