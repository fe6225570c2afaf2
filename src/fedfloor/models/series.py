"""Layers for windows of sensors [n, channels, length]: dilated convolutions, recurrence, attention, autoencoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

GROUPS = 8  # of channels, of group norm


class Dilated(nn.Module):
    """Two causal convolutions over time, dilated, with group norm, beside the way straight on: [n, width, length].

    Bai, Kolter and Koltun, arXiv 1803.01271, with group norm in the place of weight norm, and no dropout.

    Args:
        channels: of what comes in.
        width: channels of what goes out, a multiple of 8.
        kernel: rows that a convolution sees, ``dilation`` rows apart.
        dilation: in rows.
    """

    def __init__(self, channels: int, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        past = nn.ConstantPad1d(((kernel - 1) * dilation, 0), 0.0)
        self.body = nn.Sequential(
            past, nn.Conv1d(channels, width, kernel, dilation=dilation), nn.GroupNorm(GROUPS, width), nn.ReLU(),
            past, nn.Conv1d(width, width, kernel, dilation=dilation), nn.GroupNorm(GROUPS, width), nn.ReLU(),
        )  # fmt: skip
        self.straight = nn.Conv1d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(body(x) + straight(x))."""
        return torch.relu(self.body(x) + self.straight(x))


class LastRow(nn.Module):
    """The newest row of a window, [n, width]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x[:, :, −1]."""
        return x[..., -1]


class Recurrent(nn.Module):
    """An LSTM or a GRU that reads a window from its oldest row on; its state after the newest, normalised: [n, width].

    Args:
        cells: ``nn.LSTM(…, batch_first=True)`` or ``nn.GRU``, of one layer.
    """

    def __init__(self, cells: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.cells, self.norm = cells, nn.LayerNorm(cells.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the state of every sample."""
        states: Tensor = self.cells(x.transpose(1, 2))[0]
        last: Tensor = self.norm(states[:, -1])
        return last


class Embedded(nn.Module):
    """Rows as vectors, each with a trained vector of its place: [n, channels, length] → [n, length, width].

    Args:
        channels, length: of a window.
        width: of the vectors.
    """

    def __init__(self, channels: int, length: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Linear(channels, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors."""
        rows: Tensor = self.rows(x.transpose(1, 2))
        return rows + self.places


class Attention(nn.Module):
    """A transformer's block, layer norm first, without dropout: [n, length, width] → the same.

    Vaswani et al., NeurIPS 2017; norm first: Xiong et al., ICML 2020.

    Args:
        width: of the vectors, a multiple of ``heads``.
        heads: of the attention.
        inner: width of the layer between.
    """

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.queries, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return x + attention(x), and what the two layers make of that added to it."""
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
        """Return the mean."""
        return x.mean(1)


class Widened(nn.ConvTranspose1d):
    """A transposed convolution over time with stride 2 that gives ``length`` rows of a half as many, rounded up.

    Args:
        channels, width: of what comes in and goes out.
        length: rows that go out.
    """

    def __init__(self, channels: int, width: int, length: int) -> None:
        super().__init__(channels, width, 7, stride=2, padding=3, output_padding=1 - length % 2)


class Unrolled(nn.Module):
    """A window from a code: an LSTM that reads the code in every row, and a layer that makes a row of each state.

    Args:
        code, width: numbers of the code and of the state.
        channels, length: of the window, which is given flat, [n, channels·length].
    """

    def __init__(self, code: int, width: int, channels: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.cells, self.norm = nn.LSTM(code, width, batch_first=True), nn.LayerNorm(width)
        self.rows = nn.Linear(width, channels)

    def forward(self, code: Tensor) -> Tensor:
        """Return the windows."""
        states: Tensor = self.cells(code[:, None].expand(-1, self.length, -1))[0]
        rows: Tensor = self.rows(self.norm(states))
        return rows.transpose(1, 2).flatten(1)
