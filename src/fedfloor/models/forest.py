"""Boosted trees as a network of fixed size, which is sent, averaged and exported like any other network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfloor.models.layers import STATISTICS, Statistics

SLOTS = 4  # nodes of a level whose sums devices send: the left children of so many splits
NODES = {"1": 1, "2": 1, "4": SLOTS - 2}  # whose sums a tensor holds: levels send the first, two or all
LAST = 8  # splits of the last level
REACH = 100.0  # range of the first bins, in standard deviations from the mean
CODE = 32  # a split's code is leaf + 32·(2·feature + missing), which is exact as a float32
FEATURES = 1 << 18  # the most of a split's code
BLOCK = 8  # trees of a tensor: devices receive the one with the newest tree
NAMED = 64  # numbers of a row that are hashed at once
MEMO_BYTES = 1 << 28  # of outputs and features that a process remembers
ROUNDS_OF_BINS = 4  # that refine the edges of a feature, until bins hold about the same number of samples
STEEPEST = 3.0  # |g|/h of a sample, at most
ROUNDED = 1e-5  # the share by which rounding to single precision changes sums, at most
TINY = 1e-9  # a sum per sample that is none
REFINING = -1.0  # the phase in which the bins of all features are refined; otherwise the number of a tree's level


def splits_of(depth: int) -> int:
    """Return the greatest number of splits of a tree.

    >>> [splits_of(depth) for depth in (1, 2, 3, 4, 6)]
    [1, 3, 7, 15, 23]
    """
    inner = sum(min(int(2**level), SLOTS) for level in range(depth - 1))
    last = 2 ** (depth - 1)
    return inner + min(int(last), LAST)


def scope(level: int) -> str:
    """Return the part of a forest that travels while a level grows: the sums of its nodes and the unfinished tree.

    >>> scope(0), scope(2), scope(5)
    ('sums.all+sums.1+growing', 'sums.all+sums.1+sums.2+growing', 'sums.*+growing')
    """
    nodes = "sums.1" if 0 <= level < 2 else "sums.1+sums.2" if level == 2 else ""
    return f"sums.all+{nodes}+growing" if nodes else "sums.*+growing"


def handed(tree: int) -> str:
    """Return the part of a forest that differs from the last tree's: its features and edges, and the tree before.

    >>> handed(0), handed(9)
    ('base+columns+grid+grown', 'base+columns+grid+grown+trees.1')
    """
    return "base+columns+grid+grown" + (f"+trees.{(tree - 1) // BLOCK}" if tree else "")


class Forest(nn.Module):
    """T trees of at most D levels: f(x) = base + Σ_t leaf_t[n_t(x)].

    Split s of a tree divides one of its leaves: samples with x_j > θ, and those without x_j if the split says so, move
    to leaf s + 1, the others stay. At most :data:`SLOTS` leaves of a level are divided, and :data:`LAST` of the last. A
    window is described by :class:`Statistics` of each sensor; a missing value of a single row is NaN.

    Args:
        shape: (channels,) or (channels, length); other shapes are flattened.
        outputs: K, the number of outputs per sample.
        trees, depth, bins: T, D, and the number B of bins of a feature in one tree.
        columns: the number of features F' that a tree may use.
        grows: whether a device's sums are part of the network, as method ``boosting`` requires.
        paired: whether the K = 2 outputs are −f/2 and f/2 of a single f, as for two classes.

    Attributes:
        features: samples → features, [n, F].
        sums: after a visit the negative sums of derivatives, otherwise 0; for W = K, or 1 if paired. ``all``: those of
            |g| and h of all samples, [2W]; ``1``, ``2`` and ``4``: those of g and h by node, feature and bin, the last
            of which counts missing values, [nodes, F', B + 1, 2W].
        growing: the unfinished tree: S codes of splits, S thresholds, the numbers of the leaves to sum, the phase, the
            steps to which g and h of a sample are rounded, and the key of the drawn rows.
        columns: [F], the features in an order of which the unfinished tree uses the first F'.
        grid: [F', B − 1], its edges, ascending; the number of a value's bin is the number of edges below the value.
        trees: a row per complete tree, whose number is ``grown``: the codes and the thresholds of S splits, and S + 1
            leaves of W numbers; in tensors of :data:`BLOCK` trees.
    """

    set_by = "boosting"
    title = "boosted trees"
    reads_missing = True

    def __init__(
        self, shape: tuple[int, ...], outputs: int, trees: int = 1, depth: int = 1, bins: int = 2, *,
        columns: int | None = None, grows: bool = False, paired: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.windows = len(shape) == 2
        self.paired = paired
        self.features = Statistics() if self.windows else nn.Flatten()
        width = 1 if paired else outputs
        splits = self.splits = splits_of(depth)
        chosen = described(shape) if columns is None else columns
        sums = {"all": torch.zeros(2 * width)}
        sums |= {name: torch.zeros(nodes, chosen, bins + 1, 2 * width) for name, nodes in NODES.items()}
        self.sums = nn.ParameterDict((name, nn.Parameter(part, requires_grad=grows)) for name, part in sums.items())
        self.growing = _fixed(
            torch.tensor([-1.0] * splits + [0.0] * splits + [-1.0] * SLOTS + [REFINING, 0.0, 0.0, 0.0])
        )
        self.columns = _fixed(torch.arange(float(described(shape))))
        self.grid = _fixed(torch.from_numpy(first_grid(bins)).float().repeat(chosen, 1))
        self.base = _fixed(torch.zeros(width))
        row = torch.cat([torch.full((splits,), -1.0), torch.zeros(splits + (splits + 1) * width)])
        self.trees = nn.ParameterList(map(_fixed, row.repeat(trees, 1).split(BLOCK)))
        self.grown = _fixed(torch.zeros(1))
        self._memo: dict[bytes, Remembered] = {}

    def described(self, x: Tensor) -> Tensor:
        """Return the features of samples, [n, F], with NaN for the missing values of single rows."""
        features: Tensor = self.features(torch.nan_to_num(x) if self.windows else x)
        return features

    def raw(self, features: Tensor) -> Tensor:
        """Return f of the complete trees, [n, W]."""
        split, threshold, leaf = self.parts(torch.cat(list(self.trees)))
        reached = leaves(features, split, threshold)
        grown = torch.arange(len(leaf), device=features.device) < self.grown
        first = torch.arange(len(leaf), device=features.device) * leaf.shape[1]
        added = leaf.flatten(0, 1)[reached + first] * grown[:, None]
        return self.base + added.sum(1)

    def parts(self, trees: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the codes [T, S], the thresholds [T, S] and the leaves [T, S + 1, W] of rows of ``trees``."""
        split, threshold, leaf = trees.tensor_split([self.splits, 2 * self.splits], 1)
        return split, threshold, leaf.reshape(len(trees), self.splits + 1, -1)

    def outputs(self, raw: Tensor) -> Tensor:
        """Return the outputs [n, K] for f [n, W]."""
        return torch.cat([-raw / 2, raw / 2], 1) if self.paired else raw

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all complete trees, [n, K]."""
        return self.outputs(self.raw(self.described(x)))

    def implausible(self, numbers: Mapping[str, NDArray[Any]]) -> str:
        """Return why a device's sums are refused, or "".

        Each sample is in one bin of each feature, and its h is at least |g|/3 before both are rounded to their steps.

        Args:
            numbers: the tensors, flat, by name: the device's sums, negative, and those of the model that it received.
        """
        width = len(self.sums["all"]) // 2
        columns, bins = self.sums["1"].shape[1:3]
        phase, step_g, step_h, _ = (float(number) for number in numbers["growing"][-4:])
        whole = -numbers["sums.all"].astype(np.float64).reshape(2, width)
        nodes = [-numbers[f"sums.{name}"].astype(np.float64) for name in NODES]
        g, h = np.moveaxis(np.concatenate(nodes).reshape(-1, columns, bins, 2, width), 3, 0)  # [nodes, F', B + 1, W]
        slack = ROUNDED * float(np.abs(whole).max()) + TINY
        each = np.stack([g, h]).sum(axis=3)  # [2, nodes, F', W]
        each = each.sum(axis=1, keepdims=True) if phase == REFINING else each
        negative = (h < -slack).any() or (np.abs(g) > STEEPEST * (h + step_h) + step_g + slack).any()
        uneven = (np.abs(each - each[:, :, :1]) > slack).any()
        beyond = (np.abs(each.sum(axis=1)) > whole[:, None] + slack).any()
        false = negative or uneven or beyond or not np.isfinite(each).all()
        return "its sums are those of no samples, as they contradict each other." if false else ""

    def remembered(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of samples [n, F], the samples' names, int64 [n], and f [n, W], one tree after the other.

        The order of additions does not depend on the number of samples, so that f of a sample is the same to the bit
        wherever the sample lies. What is known from the last call for the same samples in the same order is not
        computed again.
        """
        place = hashlib.blake2b(x.cpu().contiguous().numpy().data, digest_size=16).digest()
        known = self._memo.pop(place, None)
        if known is None:
            features = self.described(x)
            known = Remembered(features, named(features), self.base.expand(len(x), -1), self.base.clone())
        trees = torch.cat(list(self.trees))
        grown = int(self.grown.nan_to_num().clamp(0, len(trees)))
        forest = torch.cat([self.base, trees[:grown].flatten()])
        raw = known.raw
        done = (len(known.forest) - len(self.base)) // trees.shape[1]
        if done > grown or not known.forest.equal(forest[: len(known.forest)]):
            raw = self.base.expand(len(x), -1)
            done = 0
        for tree in range(done, grown):
            split, threshold, leaf = self.parts(trees[tree : tree + 1])
            raw = raw + leaf[0][leaves(known.features, split, threshold, quick=True)[:, 0]]
        self._memo[place] = Remembered(known.features, known.names, raw, forest)
        while len(self._memo) > 1 and len(self._memo) * known.features.nbytes > MEMO_BYTES:
            del self._memo[next(iter(self._memo))]
        return known.features, known.names, raw


class Remembered(NamedTuple):
    """What a process knows of samples: features [n, F], names [n], f [n, W], and the base and trees that gave f."""

    features: Tensor
    names: Tensor
    raw: Tensor
    forest: Tensor


def named(rows: Tensor, *, some: bool = False) -> Tensor:
    """Return a number from 0 to 2³² − 1 for each row [n, F], int64 [n], that depends on the bits of the row alone.

    With ``some`` it depends on :data:`NAMED` of its numbers, at most: enough to put rows in an order.
    """
    chosen = rows[:, :: -(-rows.shape[1] // NAMED)] if some else rows
    total = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    for number, part in enumerate(chosen.split(NAMED, 1)):
        bits = part.float().nan_to_num().contiguous().view(torch.int32).long()
        place = torch.arange(1, part.shape[1] + 1, device=rows.device) + number * NAMED
        mixed = ((bits ^ place * 0x9E3779B1) % 2**32) * 0x85EBCA6B % 2**32
        total += ((mixed ^ (mixed >> 13)) * 0xC2B2AE35 % 2**32).sum(1)
    return total % 2**32


def leaves(features: Tensor, split: Tensor, threshold: Tensor, *, quick: bool = False) -> Tensor:
    """Return the leaf that samples reach in trees, int64 [n, T], for features [n, F] and splits [T, S].

    A model may be from an unknown source: codes that name no split of these features divide nothing. With ``quick`` the
    values decide what is computed, which an exported model cannot.
    """
    code = torch.nan_to_num(split).clamp(-1, 2**24).to(torch.int64)
    column = (code // CODE // 2).clamp(0, features.shape[1] - 1)
    rightwards = (code // CODE) % 2 == 1
    missing = None if quick and not bool(features.isnan().any()) else torch.isnan(features)
    used = int((code >= 0).any(0).sum()) if quick else split.shape[1]
    node = torch.zeros_like(features[:, column[:, 0]], dtype=torch.int64)
    for number in range(used):
        right = features[:, column[:, number]] > threshold[:, number]
        if missing is not None:
            right = right | (missing[:, column[:, number]] & rightwards[:, number])
        here = (node == code[:, number] % CODE) & (code[:, number] >= 0)
        node = torch.where(here & right, number + 1, node)
    return node


def first_grid(bins: int) -> NDArray[np.float64]:
    """Return edges before any is refined, [bins − 1]: narrower near the mean, and beyond all but spoilt values.

    >>> first_grid(4).tolist()
    [-6.25, 0.0, 6.25]
    """
    places = np.linspace(-1, 1, bins + 1)[1:-1]
    edges: NDArray[np.float64] = REACH * places**3 * np.abs(places)
    return edges


def described(shape: tuple[int, ...]) -> int:
    """Return the number of features of samples of a shape."""
    return STATISTICS * shape[0] if len(shape) == 2 else prod(shape)


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
