"""Layers of networks and objectives: for windows of sensors, a linear monitor, fusion of features, a projection."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fedfloor.base.errors import SettingError

GROUPS = 8  # number of channel groups of group norm
STATISTICS = 7  # numbers for each channel
LEAST_DEVIATION = 0.03  # added before the logarithm, so that constant sensors and rounding do not stand out


class Dilated(nn.Module):
    """Two dilated causal convolutions over time with group norm, and a shortcut around them: [n, width, 1, length].

    Windows are pictures of height 1, channels-last, which makes a step on a CPU 1.1 times as fast as ``Conv1d``.

    Bai, Kolter and Koltun, arXiv 1803.01271, with group norm instead of weight norm, and no dropout.

    Args:
        width: the number of output channels, a multiple of 8.
        kernel: the number of rows in a convolution, ``dilation`` rows apart.
    """

    def __init__(self, channels: int, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        past = nn.ZeroPad2d(((kernel - 1) * dilation, 0, 0, 0))
        rows = (1, kernel)
        self.body = nn.Sequential(
            past, nn.Conv2d(channels, width, rows, dilation=(1, dilation)), nn.GroupNorm(GROUPS, width), nn.ReLU(),
            past, nn.Conv2d(width, width, rows, dilation=(1, dilation)), nn.GroupNorm(GROUPS, width), nn.ReLU(),
        )  # fmt: skip
        self.straight = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.straight(x))


class Statistics(nn.Module):
    """Seven numbers for each channel of a window: [n, channels, length] → [n, 7·channels], whatever the length.

    They are the mean, the minimum, the maximum, the last row, the trend over half the window (of the least-squares
    line), log(σ + 0.03) and log(σ' + 0.03) with the standard deviations σ of the rows and σ' of the differences of
    successive rows, in units of the channel's deviation. The numbers of a constant channel are exact, whatever the
    order in which a processor or a runtime adds up rows: its σ is 0, and not a rounding error, which log enlarges.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[2]
        first = x[:, :, :1]
        moved = x - first
        place = torch.arange(rows, dtype=x.dtype, device=x.device) - (rows - 1) / 2  # from the middle
        trend = (moved * place).sum(2) * (6 / (rows * (rows + 1)))  # half the window times Σ x·p / Σ p²
        deviations = [one.std(2, correction=0) for one in (moved, x.diff(dim=2, prepend=first))]
        varies = [torch.log(1 + one / LEAST_DEVIATION) + log(LEAST_DEVIATION) for one in deviations]
        return torch.cat([first[:, :, 0] + moved.mean(2), x.amin(2), x.amax(2), x[:, :, -1], trend, *varies], 1)


class Concatenated(nn.Module):
    """The features of several modules beside each other, [n, Σ features]."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class LastRow(nn.Module):
    """The newest row of a window, [n, width, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., -1]


class Recurrent(nn.Module):
    """An LSTM or GRU of one layer over a window, from its oldest row: the last state, layer-normalised, [n, width]."""

    def __init__(self, cells: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.cells = cells
        self.norm = nn.LayerNorm(cells.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.cells(x.transpose(1, 2))[0]
        last: Tensor = self.norm(states[:, -1])
        return last


class Embedded(nn.Module):
    """The embedding of rows, plus a trained vector for each position: [n, channels, length] → [n, length, width]."""

    def __init__(self, channels: int, length: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Linear(channels, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.rows(x.transpose(1, 2))
        return rows + self.places


class Attention(nn.Module):
    """A transformer block with layer norm first and no dropout: [n, length, width] → the same shape.

    Vaswani et al., NeurIPS 2017; norm first: Xiong et al., ICML 2020.

    Args:
        width: the width of the vectors, a multiple of ``heads``.
    """

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.queries = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return y + body(y), with y = x + attention(x)."""
        n, length, width = x.shape
        parts = self.queries(self.before(x)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(n, length, width)
        between: Tensor = x + self.out(mixed)
        added: Tensor = self.body(between)
        return between + added


class MeanRow(nn.Module):
    """The mean of a window's vectors, [n, length, width] → [n, width]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Widened(nn.ConvTranspose1d):
    """A transposed convolution over time with stride 2, from ⌈length / 2⌉ rows to ``length``."""

    def __init__(self, channels: int, width: int, length: int) -> None:
        super().__init__(channels, width, 7, stride=2, padding=3, output_padding=1 - length % 2)


class Unrolled(nn.Module):
    """The decoder of a window: an LSTM that reads the code in every row, and a layer that maps each state to a row."""

    def __init__(self, code: int, width: int, channels: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.cells = nn.LSTM(code, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.rows = nn.Linear(width, channels)

    def forward(self, code: Tensor) -> Tensor:
        states: Tensor = self.cells(code[:, None].expand(-1, self.length, -1))[0]
        rows: Tensor = self.rows(self.norm(states))
        return rows.transpose(1, 2).flatten(1)


class Asinh(nn.Module):
    """asinh x = ln(x + √(x² + 1)): about x near 0, and ±ln 2|x| far from it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.asinh(x)


class Soft(nn.Module):
    """The identity within ±c, c = 3, and ±(c + asinh(|x| − c)) beyond: a logarithm, with equal slopes at c."""

    within = 3.0

    def forward(self, x: Tensor) -> Tensor:
        inside = x.clamp(-self.within, self.within)
        return inside + torch.asinh(x - inside)


class Monitor(nn.Module):
    """The residuals u = W(z − c) [n, D] of samples z [n, …] with D numbers each; the mean of u² is the score.

    Method ``pca`` sets c and W so that the score is T²/τ² + Q/δ²; see :class:`fedfloor.methods.pca.Pca`. Initially W is
    the unit matrix and c is 0.
    """

    residuals = True  # the outputs are residuals, which the task squares
    set_by = "pca"  # no optimiser step changes it

    def __init__(self, size: int) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.weight = nn.Parameter(torch.eye(size), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - self.center) @ self.weight.T


# convolutions by the number of dimensions of features [n, C, …]
CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {2: nn.Linear, 3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}


class Gate(nn.Module):
    """The fusion γ⊙y + (1 − γ)⊙x with γ = 0 at first: one γ per channel, or a single γ."""

    def __init__(self, gates: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(gates))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        gamma = self.gamma.view(-1, *(1,) * (x.dim() - 2))
        return x + gamma * (y - x)  # in this form the result is x to the bit for equal streams, and for γ = 0


class Mixture(nn.Module):
    """The fusion W·[x; y]: a 1×1 convolution from the 2C channels of both streams to C; a linear layer for vectors.

    Args:
        dimensions: the number of dimensions of the features [batch, C, …].
    """

    def __init__(self, channels: int, dimensions: int) -> None:
        super().__init__()
        kernel = () if dimensions == 2 else (1,)
        self.mix = CONVOLUTIONS[dimensions](2 * channels, channels, *kernel)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        fused_features: Tensor = self.mix(torch.cat([x, y], 1))
        return fused_features


class Fused(nn.Module):
    """A layer preceded by a fusion of its input x with other features y; without other features y = x."""

    def __init__(self, layer: nn.Module, fusion: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.fusion = fusion
        self.other: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.fusion(x, x if self.other is None else self.other))
        return outputs


def fused(module: nn.Module) -> tuple[str, Fused]:
    """Return the path of a network's fused layer, and the layer; SettingError: it has none.

    >>> fused(nn.Sequential(nn.Linear(4, 5), Fused(nn.Linear(5, 3), Gate(5))))[0]
    '1'
    """
    for path, part in module.named_modules():
        if isinstance(part, Fused):
            return path, part
    raise SettingError(
        f"objective fusion: the network {type(module).__name__} has no fused layer: it was built for another "
        "objective. Use the method fedfusion, or build it with adapt = Fusion().adapt.",
        key="objective",
    )


class Projected(nn.Sequential):
    """A projection head, Linear f → f, ReLU, Linear f → d with the output z, followed by the classifier Linear d → C.

    Li, He and Song, CVPR 2021, arXiv 2103.16257.

    >>> [name for name, _ in Projected(8, 4, 3).named_parameters() if name.endswith("weight")]
    ['hidden.weight', 'projection.weight', 'classifier.weight']
    """

    def __init__(self, features: int, dim: int, classes: int) -> None:
        super().__init__(
            OrderedDict(
                hidden=nn.Linear(features, features),
                relu=nn.ReLU(),
                projection=nn.Linear(features, dim),
                classifier=nn.Linear(dim, classes),
            )
        )
