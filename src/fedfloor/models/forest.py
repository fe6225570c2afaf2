"""Boosted trees as a network of fixed size, which is sent, averaged and exported like any other network."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from fedfloor.models.layers import STATISTICS, Statistics

REACH = 10.0  # range of the first bins, in standard deviations from the mean


class Forest(nn.Module):
    """T symmetric trees of depth D: f(x) = base + Σ_t leaf_t[Σ_l 2^l·(x_{j(t,l)} > θ_{t,l})].

    All nodes of a level of a tree have the same feature and threshold. Trees grow one level at a time: ``progress``
    counts the grown levels, and later levels send every sample to the left. A window is described by
    :class:`Statistics` of each sensor.

    Args:
        shape: (channels,) or (channels, length); other shapes are flattened.
        outputs: K, the number of outputs per sample.
        trees, depth, bins: T, D, and the number B of bins of a feature.
        grows: whether a device's sums are part of the network, as method ``boosting`` requires.

    Attributes:
        features: samples → features, [n, features].
        sums: [2^(D−1), features, B, 2K]; after a visit the negative sums of derivatives, otherwise 0.
        edges: [features, B − 1], ascending; the number of a value's bin is the number of edges below the value.
    """

    set_by = "boosting"
    title = "boosted trees"
    level: Tensor

    def __init__(
        self, shape: tuple[int, ...], outputs: int, trees: int = 1, depth: int = 1, bins: int = 2, *,
        grows: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        features = described(shape)
        self.features = Statistics() if len(shape) == 2 else nn.Flatten()
        self.register_buffer("level", torch.arange(trees * depth).view(trees, depth), persistent=False)
        self.sums = nn.Parameter(torch.zeros(2 ** (depth - 1), features, bins, 2 * outputs), requires_grad=grows)
        edges = torch.linspace(-1, 1, bins + 1)[1:-1]
        self.edges = _fixed((REACH * edges * edges.abs()).repeat(features, 1))  # narrower near the mean
        self.base = _fixed(torch.zeros(outputs))
        self.feature = _fixed(torch.zeros(trees, depth))
        self.threshold = _fixed(torch.zeros(trees, depth))
        self.leaf = _fixed(torch.zeros(trees, 2**depth, outputs))
        self.progress = _fixed(torch.zeros(1))

    def leaves(self, features: Tensor, trees: slice = slice(None)) -> Tensor:
        """Return the number of the leaf reached in each tree, int64 [n, T], for features [n, features]."""
        level = self.level[trees]
        column = self.feature[trees].long().clamp(0, features.shape[1] - 1)  # a model may be from an unknown source
        right = features[:, column.flatten()].view(-1, *column.shape) > self.threshold[trees]
        return ((right & (level < self.progress)) * 2 ** (level % column.shape[1])).sum(2)

    def outputs(self, features: Tensor, trees: slice = slice(None)) -> Tensor:
        """Return the outputs of some trees, [n, K]."""
        leaf = self.leaf[trees]
        first = torch.arange(len(leaf), device=leaf.device) * leaf.shape[1]
        return self.base + leaf.flatten(0, 1)[self.leaves(features, trees) + first].sum(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all trees, [n, K]."""
        return self.outputs(self.features(x))


def described(shape: tuple[int, ...]) -> int:
    """Return the number of features of samples of a shape."""
    return STATISTICS * shape[0] if len(shape) == 2 else prod(shape)


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
