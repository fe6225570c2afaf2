"""Growth of a tree from sums over all samples: the cloud's part of boosted trees, numbers only.

Sums are float64 arrays [nodes, F, B + 1, 2W]: by feature and bin the sums of g and of h for each of W outputs; the last
bin holds missing values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.base.chance import generator
from fedfloor.models.forest import BLOCK, CODE, LAST, NODES, ROUNDS_OF_BINS, SLOTS, first_grid
from fedfloor.parts.trees.histograms import FARTHEST

Floats = NDArray[np.float64]
Notes = tuple[dict[str, Any], dict[str, Tensor]]
Bounds = tuple[Floats, Floats]  # of a leaf's outputs before the learning rate: the least and the greatest, [W] each
SUMS = ("sums.all", *(f"sums.{name}" for name in NODES))
GOLDEN = (math.sqrt(5) - 1) / 2
EMPTY = 1e-9  # share of the weight of all samples below which a cell is empty
NARROW = 1e-3  # width of the cell of a single value, relative to the empty cells beside it
EXACT = 20  # bits of the largest sum, in steps: leaves 4 bits of a float32 for the rounding of means over devices


class Rule(Protocol):
    """The settings by which nodes are divided, those of :class:`fedfloor.methods.boosting.Boosting`."""

    @property
    def rate(self) -> float: ...
    @property
    def ridge(self) -> float: ...
    @property
    def least(self) -> float: ...
    @property
    def depth(self) -> int: ...


class Sums(NamedTuple):
    """What devices sent in a round, summed over all samples.

    Attributes:
        total: sums of |g| and of h, [2W].
        parts: sums of g and of h by node, feature and bin.
    """

    total: Floats
    parts: Floats


@dataclass(frozen=True)
class Split:
    """The best division of a node: its gain, place, and the sums on both sides.

    Args:
        edge, last: the first and the last of the edges that divide the node's samples like this.
        missing: whether samples without the feature belong to the right side.
        left, right: sums of g and h, [2W].
    """

    gain: float
    column: int
    edge: int
    last: int
    missing: bool
    left: Floats
    right: Floats


@dataclass
class Tree:
    """An unfinished tree.

    Attributes:
        codes, thresholds: of its splits so far.
        ends: leaf → sums of g and h, [2W].
        bounds: leaf → the least and the greatest of its outputs that keep the forest monotone.
        open: the leaves that may be divided next, in pairs of a left child, whose sums devices send, and the right one.
        parents: the sums of the nodes that the pairs came from, [pairs, F + 1, B + 1, 2W]; none for the root.
    """

    codes: list[int] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    ends: dict[int, Floats] = field(default_factory=dict)
    bounds: dict[int, Bounds] = field(default_factory=dict)
    open: list[tuple[int, int]] = field(default_factory=list)
    parents: list[Floats] = field(default_factory=list)


def best_split(sums: Floats, rule: Rule, mean: float, signs: NDArray[np.int64] | None = None) -> Split | None:
    """Return the division of a node with the largest gain G_l²/(H_l + λ) + G_r²/(H_r + λ) − G²/(H + λ).

    Missing values belong to the side where the gain is larger; where none is missing, to the heavier side. The
    threshold is in the middle of the edges between which no sample of the node lies: beside a value that many samples
    have, such as 0 or 1 of a category, it would decide by rounding errors.

    Args:
        sums: [F, B + 1, 2W] of the node.
        mean: the mean h of a sample, summed over outputs.
        signs: [F], 1 where outputs must not fall as the feature rises, −1 where they must not rise, otherwise 0.

    Returns:
        None where no division gains, or each leaves too little on a side.
    """
    width = sums.shape[2] // 2
    absent = sums[:, -1:]
    below = sums[:, :-1].cumsum(1)[:, :-1]
    total = sums.sum(1, keepdims=True)
    sides = np.stack([below + absent, below])  # [missing on the right?, F, B − 1, 2W]
    ridge = rule.ridge * mean / width

    def score(part: Floats) -> Floats:
        below = part[..., width:] + ridge
        parts = np.divide(part[..., :width] ** 2, below, out=np.zeros_like(below), where=below > 0)
        return parts.sum(-1)  # type: ignore[no-any-return]

    other = total - sides
    gain = score(sides) + score(other) - score(total)
    weight = np.minimum(sides[..., width:].sum(-1), other[..., width:].sum(-1))
    gain = np.where(weight >= max(rule.least * mean, 1e-12), gain, 0.0)
    if signs is not None:
        falls = (output(other, ridge) - output(sides, ridge)) * signs[:, None, None] < 0
        gain = np.where(falls.any(-1), 0.0, gain)
    place = int(gain.argmax())
    missing, column, edge = (int(i) for i in np.unravel_index(place, gain.shape))
    if not gain[missing, column, edge] > 1e-9 * mean:
        return None
    left = sides[missing, column, edge]
    right = other[missing, column, edge]
    if gain[0, column, edge] == gain[1, column, edge]:
        missing = int(right[width:].sum() > left[width:].sum())
    alike = (below[column] == below[column, edge]).all(1)  # hardly a sample lies between these edges: h is above 0
    last = int(np.flatnonzero(alike)[-1])
    return Split(float(gain.flat[place]), column, edge, last, bool(missing), left, right)


def grow(tree: Tree, sums: Floats, columns: NDArray[np.int64], grid: Floats, rule: Rule, mean: float, *,
         last: bool, signs: NDArray[np.int64] | None = None) -> Tree:  # fmt: skip
    """Return a tree with another level.

    Args:
        sums: of the root, or of the left child of each open pair; the right child's are the parent's without them.
        columns: the feature of each row of sums.
        grid: [F, B − 1], the edges.
        last: whether the leaves of this level remain.
        signs: of the rows of sums, see :func:`best_split`.
    """
    nodes: list[tuple[int, Floats]] = []
    if not tree.open:
        nodes.append((0, sums[0]))
        whole = sums[0, 0].sum(0)
        far = np.full(len(whole) // 2, FARTHEST)
        tree = Tree(ends={0: whole}, bounds={0: (-far, far)})
    for (left, right), parent, own in zip(tree.open, tree.parents, sums, strict=False):
        nodes += [(left, own), (right, bounded(parent - own))]
    splits = [(split, leaf, own) for leaf, own in nodes if (split := best_split(own, rule, mean, signs)) is not None]
    splits.sort(key=lambda known: -known[0].gain)
    grown = Tree(list(tree.codes), list(tree.thresholds), dict(tree.ends), dict(tree.bounds))
    for split, leaf, own in splits[: LAST if last else SLOTS]:
        grown.codes.append(leaf + CODE * (2 * int(columns[split.column]) + split.missing))
        grown.thresholds.append(float(grid[split.column, [split.edge, split.last]].mean()))
        new = len(grown.codes)
        grown.ends[leaf] = split.left
        grown.ends[new] = split.right
        sign = 0 if signs is None else int(signs[split.column])
        ridge = rule.ridge * mean / len(split.left) * 2
        grown.bounds[leaf], grown.bounds[new] = divided(tree.bounds[leaf], split, sign, ridge)
        grown.open.append((leaf, new))
        grown.parents.append(own)
    return grown


def divided(bounds: Bounds, split: Split, sign: int, ridge: float) -> tuple[Bounds, Bounds]:
    """Return the bounds of both sides: those of the node, and with a sign also the middle between both outputs.

    No output on one side of the middle is then beyond one on the other, however often both are divided again.
    """
    if not sign:
        return bounds, bounds
    low, high = bounds
    middle = (np.clip(output(split.left, ridge), low, high) + np.clip(output(split.right, ridge), low, high)) / 2
    below = (low, middle)
    above = (middle, high)
    return (below, above) if sign > 0 else (above, below)


def bounded(sums: Floats) -> Floats:
    """Return sums in which h is at least |g|/3, so that no leaf changes by more than 3.

    Rounding, lost devices, noise and codecs can make h smaller, and differences of sums even negative.
    """
    width = sums.shape[-1] // 2
    g = sums[..., :width]
    h = sums[..., width:]
    return np.concatenate([g, np.maximum(h, np.abs(g) / FARTHEST)], -1)


def output(sums: Floats, ridge: Floats | float) -> Floats:
    """Return −G/(H + λ) for sums [..., 2W]; 0 where no sample was counted."""
    width = sums.shape[-1] // 2
    below = sums[..., width:] + ridge
    return np.divide(-sums[..., :width], below, out=np.zeros_like(below), where=below > 0)


def refine(sums: Floats, grid: Floats, levels: Floats, *, apart: bool = False) -> Floats:
    """Return edges of each feature at quantiles weighted by h, by interpolation within quarters of bins, [F, L].

    Args:
        sums: [4, F, B + 1, 2W], by quarter of a bin; outer bins have only the first.
        grid: [F, B − 1], the edges of the bins.
        levels: [L], of the quantiles, ascending in (0, 1).
        apart: whether edges stay away from values that many samples have.

    The part of the weight below an edge is wrong by at most that of a quarter.
    """
    width = sums.shape[3] // 2
    weight = sums[:, :, :-1, width:].sum(3)  # [4, F, B]
    edges = np.empty((len(grid), len(levels)))
    for column, own in enumerate(grid):
        steps = np.diff(own)[:, None] * np.arange(4) / 4
        places = np.append((own[:-1, None] + steps).ravel(), own[-1])  # upper ends of all quarters but the outer bins
        inner = weight[:, column, 1:-1].T.ravel()
        mass = weight[0, column, 0] + np.append(0.0, inner.cumsum())
        total = mass[-1] + weight[0, column, -1]
        edges[column] = np.interp(levels * total, mass, places)
        if apart:
            edges[column] = between_values(edges[column], places, np.diff(mass) > EMPTY * total)
    return edges


def between_values(edges: Floats, places: Floats, filled: NDArray[np.bool_]) -> Floats:
    """Return edges beside empty cells moved to the middle between the filled cells around them.

    A value that many samples have, such as 0 or 1 of a category, attracts edges up to rounding errors, so that its cell
    is narrow beside the empty ones. Edges in wider cells divide the samples of these.

    Args:
        places: [n + 1], the ends of the cells, ascending.
        filled: which cells hold samples, [n].

    >>> places, filled = np.array([0.0, 1e-6, 0.4, 1.0, 1.2]), np.array([True, False, False, True])
    >>> between_values(np.array([1e-6, 0.5]), places, filled).round(3)
    array([0.5, 0.5])
    """
    cells = np.arange(len(filled))
    after = np.minimum.accumulate(np.where(filled, cells, len(filled))[::-1])[::-1]  # the next filled cell, or itself
    before = np.maximum.accumulate(np.where(filled, cells, -1))  # the last filled cell, or itself
    moved = edges.copy()
    for number, cell in enumerate(np.searchsorted(places, edges, side="left") - 1):
        inside = cell >= 0 and filled[cell]
        first = cell + 1 if cell < 0 or inside else before[cell] + 1  # of the empty cells at the edge or after it
        if first == len(filled) or filled[first]:
            continue
        low, high = places[first], places[after[first]]
        if not inside or places[cell + 1] - places[cell] < NARROW * (high - low):
            moved[number] = (low + high) / 2
    return moved


def chosen(edges: Floats, bins: int, tree: int) -> Floats:
    """Return the edges of each feature that a tree uses, [F, B − 1]: every m-th of all, from another one in each tree.

    The first are those of a sequence without gaps, the fractional part of tree·φ, so that a few trees use all edges.
    """
    width = edges.shape[1]
    step = width / (bins - 1)
    if step <= 1:
        return edges[:, np.minimum(np.arange(bins - 1), width - 1)]
    offset = ((tree + 1) * GOLDEN + np.arange(len(edges)) * GOLDEN**2) % 1
    places = ((offset[:, None] + np.arange(bins - 1)) * step).astype(int)
    return np.take_along_axis(edges, np.minimum(places, width - 1), 1)


def step_of(total: float) -> float:
    """Return the step, a power of two, to which numbers with a sum of at most ``total`` are rounded.

    >>> step_of(1000.0) * 2**EXACT
    1024.0
    """
    return float(2.0 ** (math.ceil(math.log2(total)) - EXACT)) if total > 0 else 0.0


class ForestState:
    """A forest's numbers between two rounds, as the cloud changes them.

    Args:
        w: the flat model.
        layout: the place of each tensor in it.
        notes, tensors: the method's state: the level, the unfinished tree, the sums of h and of |g| over all samples.
    """

    def __init__(
        self, w: Tensor, layout: Mapping[str, Sequence[int]], notes: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        self.layout = {name: slice(*place) for name, place in layout.items()}
        self.numbers = w.double().cpu().numpy().copy()
        self.notes = notes
        self.tensors = tensors
        self.outputs = self.numbers[self.layout["base"]].size
        self.features = notes["features"]
        self.splits = (self.numbers[self.layout["growing"]].size - SLOTS - 4) // 2

    def part(self, name: str) -> Floats:
        """Return a view of a tensor, flat."""
        return self.numbers[self.layout[name]]

    @property
    def grid(self) -> Floats:
        """The edges of the unfinished tree, a view [F, B − 1]."""
        return self.part("grid").reshape(self.features, -1)

    def flat(self, like: Tensor) -> Tensor:
        """Return the model as a flat tensor, with sums of 0."""
        for name in SUMS:
            self.part(name)[:] = 0.0
        return torch.from_numpy(self.numbers).to(like)

    def sums(self, w: Tensor, answered: int, samples: int) -> Sums:
        """Return the sums over all samples from the mean of the devices' models.

        They are the whole multiples of the steps that are nearest. If devices were lost, the sums of the others are
        scaled to all samples.
        """
        received = w.double().cpu().numpy()
        mean = -np.concatenate([received[self.layout[name]] for name in SUMS])
        sums = mean.reshape(-1, 2, self.outputs) * answered
        steps = self.part("growing")[-3:-1, None]
        sums = np.where(steps > 0, np.round(sums / np.where(steps > 0, steps, 1.0)) * steps, sums)
        if answered != samples:
            sums *= samples / answered
        total, *parts = bounded(sums.reshape(-1, 2 * self.outputs))
        return Sums(total, np.reshape(parts, (SLOTS, self.features, -1, 2 * self.outputs)))

    def measure(self, g: float, h: float) -> None:
        """Set the steps of the next round by bounds of the sums of |g| and of h of all samples."""
        self.part("growing")[-3:-1] = step_of(2 * g), step_of(2 * h)

    def refined(self, sums: Sums, rule: Rule, edges: int, done: int) -> Notes:
        """Take a Newton step of the base, and move edges to quantiles; after the last round, begin the first tree.

        Where a tree uses a share of the features, the edges of one share are refined after those of another.

        Args:
            edges: the number of edges of a feature that are known in the end.
            done: the number of earlier rounds.
        """
        inside = sums.parts[:, 0].sum((0, 1))
        self.part("base")[:] += output(inside, rule.ridge * sums.total[self.outputs :] / self.notes["drawn"])
        columns = self.part("columns")
        every = self.tensors["edges"].numpy().copy()
        share, turn = divmod(done + 1, ROUNDS_OF_BINS)
        if turn:
            outer = 1 / (2 * edges)  # what lies beyond the outer edges is not resolved
            self.grid[:] = refine(sums.parts, self.grid, np.linspace(outer, 1 - outer, self.grid.shape[1]))
        else:
            levels = np.arange(1, edges + 1) / (edges + 1)
            every[columns[: self.features].astype(int)] = refine(sums.parts, self.grid, levels, apart=True)
            if share * self.features >= len(every):
                return self._begin(0, {"edges": torch.from_numpy(every)})
            columns[:] = np.roll(columns, -self.features)
            self.grid[:] = first_grid(self.grid.shape[1] + 1)
        return {"info": {"trees": 0}}, {"edges": torch.from_numpy(every)}

    def _begin(self, tree: int, tensors: Mapping[str, Tensor]) -> Notes:
        """Begin a tree: with no split, and its own choice of features and edges."""
        columns = self.part("columns")
        if self.features < len(columns):
            columns[:] = generator(self.notes["key"], "features of a tree", tree).permutation(len(columns))
        edges = tensors["edges"].numpy()[columns[: self.features].astype(int)]
        self.grid[:] = chosen(edges, self.grid.shape[1] + 1, tree)
        about = self.part("growing")
        about[: self.splits] = -1.0
        about[2 * self.splits : -4] = [0, *[-1] * (SLOTS - 1)]
        about[-4] = 0.0
        about[-1] = (self.notes["key"] + 3 * tree) % 2**20
        return {"level": 0, "tree": tree, "info": {"trees": tree}}, {"edges": tensors["edges"]}

    def grow(self, sums: Sums, rule: Rule) -> Notes:
        """Add a level to the unfinished tree; complete it after its last level, or where no node can be split."""
        about = self.part("growing")
        level = self.notes["level"]
        tree = self.notes["tree"]
        kept = self.tensors
        before = Tree()
        if level:
            count = self.notes["splits"]
            before = Tree(
                codes=[int(code) for code in about[:count]],
                thresholds=list(about[self.splits : self.splits + count]),
                ends=dict(enumerate(kept["ends"].numpy())),
                bounds={leaf: (low, high) for leaf, (low, high) in enumerate(kept["bounds"].numpy())},
                open=[tuple(pair) for pair in self.notes["open"]],
                parents=list(kept["parents"].numpy()),
            )
        mean = float(sums.total[self.outputs :].sum()) / self.notes["drawn"]
        last = level == rule.depth - 1
        columns = self.part("columns")[: self.features].astype(int)
        signs = np.array(self.notes["signs"])[columns] if "signs" in self.notes else None
        grown = grow(before, sums.parts, columns, self.grid, rule, mean, last=last, signs=signs)
        count = len(grown.codes)
        if last or not grown.open:
            self._complete(tree, grown, rule.rate, rule.ridge * mean / self.outputs)
            return self._begin(tree + 1, kept)
        about[:count] = grown.codes
        about[self.splits : self.splits + count] = grown.thresholds
        about[2 * self.splits : -4] = ([left for left, _ in grown.open] + [-1] * SLOTS)[:SLOTS]
        about[-4] = level + 1
        tensors = {
            "edges": kept["edges"],
            "ends": torch.from_numpy(np.stack([grown.ends[leaf] for leaf in range(count + 1)])),
            "bounds": torch.from_numpy(np.stack([grown.bounds[leaf] for leaf in range(count + 1)])),
            "parents": torch.from_numpy(np.stack(grown.parents)),
        }
        return {"level": level + 1, "splits": count, "open": grown.open, "info": {"trees": tree}}, tensors

    def _complete(self, tree: int, grown: Tree, rate: float, ridge: float) -> None:
        """Write a tree into the forest."""
        count = len(grown.codes)
        size = 2 * self.splits + (self.splits + 1) * self.outputs
        row = self.part(f"trees.{tree // BLOCK}").reshape(-1, size)[tree % BLOCK]
        row[:count] = grown.codes
        row[self.splits : self.splits + count] = grown.thresholds
        leaf = row[2 * self.splits :].reshape(self.splits + 1, self.outputs)
        for number, end in grown.ends.items():
            leaf[number] = rate * np.clip(output(end, ridge), *grown.bounds[number])
        self.part("grown")[:] = tree + 1


def begun(
    packet: Mapping[str, Tensor], notes: Mapping[str, Any], features: int, edges: int
) -> tuple[dict[str, Tensor], Mapping[str, Any], dict[str, Tensor]]:
    """Return the packet, notes and tensors before the first round."""
    known = {"edges": torch.zeros(features, edges, dtype=torch.float64)}
    model = ForestState(packet["w"], notes["layout"], notes, known)
    model.measure(4.0 * notes["samples"], 4.0 * notes["samples"])  # |g| and h of a sample are rarely above 4
    return {**packet, "w": model.flat(packet["w"])}, notes, known
