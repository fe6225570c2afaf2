"""The objective of boosted trees: a device's sums of first and second derivatives replace the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedfloor.base.errors import SettingError, require
from fedfloor.base.machine import require_memory
from fedfloor.parts.objectives.objective import Objective, Visit
from fedfloor.parts.travel import chains
from fedfloor.tasks.classification import CLASSIFICATION

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.forest import Forest
    from fedfloor.tasks.task import Task

NUMBERS = 1 << 22  # in one addition to the sums
FARTHEST = 3.0  # greatest change of an output in a step, in standard deviations or log-odds
LEAST_BINS = 24  # of a feature in one tree, by default
EXPECTED = 192  # bins of all features together, by default, where features are few


@dataclass(frozen=True)
class Histograms(Objective):
    """The sums of g_i = ∂ℓ_i/∂f and h_i = ∂²ℓ_i/∂f² over samples, by node of the growing level, feature and bin.

    The loss is linear in the network's sums S: Σ S·(g, h)/n, so that one step at rate 1 from S = 0 leaves −(g, h)/n
    there. h_i is at least |g_i|/3, so that no leaf changes by more than 3: second derivatives of rare classes and of
    a quantile's loss are about 0. g_i and h_i are rounded to multiples of a step that the cloud chooses such that their
    sums are exact as float32, whatever the order of additions.

    Args:
        trees: T, the greatest number of trees in the network.
        depth: D, the number of levels of a tree.
        bins: B, the number of bins of a feature in one tree; 0: 24, or more if features are fewer than eight.
        columns: the share of the features that a tree may use.
        rows: the share of the rows that a tree learns from, drawn by their values.
        paired: whether two outputs are those of two classes; the task decides.
    """

    trees: int = 100
    depth: int = 6
    bins: int = 0
    columns: float = 1.0
    rows: float = 1.0
    paired: bool = False

    def __post_init__(self) -> None:
        require(self.trees >= 1, "trees", self.trees, "a whole number of at least 1")
        require(1 <= self.depth <= 8, "depth", self.depth, "a whole number from 1 to 8")
        require(self.bins == 0 or 4 <= self.bins <= 256, "bins", self.bins, "0, or a whole number from 4 to 256")
        require(0 < self.columns <= 1, "columns", self.columns, "above 0 and at most 1")
        require(0 < self.rows <= 1, "rows", self.rows, "above 0 and at most 1")

    def for_task(self, task: Task) -> Objective:
        return replace(self, paired=task == CLASSIFICATION)

    @property
    def descends(self) -> bool:
        """No: the weights are sums."""
        return False

    @property
    def withdraws(self) -> bool:
        """Yes: sums that a secure sum cuts off would grow other trees, of which nobody learns."""
        return True

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        """Return the forest, which replaces the experiment's network."""
        from fedfloor.models.forest import FEATURES, SLOTS, Forest, described, splits_of
        from fedfloor.models.network import COPIES
        from fedfloor.tasks.residual import FromLast, Residual

        if isinstance(module, (FromLast, Residual)):
            raise SettingError(
                "method 'boosting' predicts classes and numbers: it neither forecasts nor reconstructs. Choose another "
                "method, or another task."
            )
        if described(shape) > FEATURES:
            raise SettingError(
                f"method 'boosting' takes at most {FEATURES:,} features; these are {described(shape):,}."
            )
        columns = used(self.columns, described(shape))
        bins = self.bins or max(LEAST_BINS, EXPECTED // columns)
        numbers = self.trees * (splits_of(self.depth) + 1) * (2 + classes) + 2 * SLOTS * columns * bins * classes
        setting = f"methods.boosting with {self.trees} trees of depth {self.depth} and {bins} bins"
        require_memory(setting, COPIES * 4 * numbers, "Take fewer of them.")
        paired = self.paired and classes == 2
        return Forest(shape, classes, self.trees, self.depth, bins, columns=columns, grows=True, paired=paired), None

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (the task's mean loss [] with the gradient of the linear one, outputs [n, K])."""
        import torch

        forest: Forest = module  # type: ignore[assignment]
        from fedfloor.models.forest import NODES, named

        with torch.no_grad():
            # mini-batches are shuffled: the same order lets the forest remember
            order = named(x.flatten(1), some=True).argsort()
            features, names, raw = forest.remembered(x[order])
            y = y[order]
        losses, out, first, second = self._derivatives(forest, raw, y, visit)
        with torch.no_grad():
            total, sums = self._sums(forest, features, names, first, second)
            if chains.together(visit.work.travel):  # with noise in place of crews, its rule limits their length
                chains.check_sums(max(float(part.abs().max()) for part in (total, sums)) / len(y), visit.work.travel)
        parts = [total, *sums.split(list(NODES.values()))]
        linear = sum((part * own).sum() for part, own in zip(forest.sums.values(), parts, strict=True))
        return losses.mean() + (linear - linear.detach()) / len(y), out[order.argsort()]

    def _sums(
        self, forest: Forest, features: Tensor, names: Tensor, first: Tensor, second: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of |g| and h [2W], and of g and h by slot, feature and bin, [slots, F', B + 1, 2W]."""
        import torch

        from fedfloor.models.forest import REFINING, SLOTS, leaves

        splits = forest.splits
        code, threshold, slots, about = forest.growing.split([splits, splits, SLOTS, 4])
        phase, step_g, step_h, key = about.nan_to_num().tolist()
        if self.rows < 1:
            kept = uniform(names, key) < self.rows
            features = features[kept]
            first = first[kept]
            second = second[kept]
            names = names[kept]
        second = torch.maximum(second, first.abs() / FARTHEST)
        first = rounded(first, step_g, uniform(names, key + 1)[:, None])
        second = rounded(second, step_h, uniform(names, key + 2)[:, None])
        edges = forest.grid.nan_to_num()
        columns = forest.columns[: len(edges)].nan_to_num().clamp(0, features.shape[1] - 1).long()
        values = features[:, columns]
        numbers = torch.cat([first, second], 1)
        bins = torch.searchsorted(edges, values.T.contiguous()).T  # [n, F']
        if phase == REFINING:
            slot = quarter(values, bins, edges)
        else:
            node = leaves(features, code[None], threshold[None], quick=True)
            match = node == slots.nan_to_num(-1.0).long()
            slot = torch.where(match.any(1), match.int().argmax(1), -1)[:, None].expand(bins.shape)
        bins = torch.where(torch.isnan(values), edges.shape[1] + 1, bins)
        shape = SLOTS, len(columns), edges.shape[1] + 2, numbers.shape[1]
        sums = torch.zeros(shape, dtype=numbers.dtype, device=features.device)
        flat = sums.view(-1, numbers.shape[1])
        place = (slot * len(columns) + torch.arange(len(columns), device=slot.device)) * sums.shape[2] + bins
        at_once = max(1, NUMBERS // (len(columns) * numbers.shape[1]))
        for own, some in zip(place.split(at_once), numbers.split(at_once), strict=True):
            inside = own[:, 0] >= 0
            flat.index_add_(0, own[inside].flatten(), some[inside].repeat_interleave(len(columns), 0))
        return torch.cat([first.abs().sum(0), second.sum(0)]), sums

    @staticmethod
    def _derivatives(forest: Forest, raw: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the losses [n], the outputs [n, K], and the derivatives g and h of the losses by f, [n, W] each."""
        import torch

        with torch.enable_grad():
            raw = raw.detach().requires_grad_()
            out = forest.outputs(raw)
            losses = visit.task.losses(out, y) if visit.data is None else visit.data.losses(out, y)
            (first,) = torch.autograd.grad(losses.sum(), raw, create_graph=True)
            second = torch.zeros_like(first)
            for k in range(raw.shape[1]) if first.requires_grad else ():
                (row,) = torch.autograd.grad(first[:, k].sum(), raw, retain_graph=True, allow_unused=True)
                if row is not None:
                    second[:, k] = row[:, k]
        return losses.detach(), out.detach(), first.detach(), second.detach()


def used(share: float, features: int) -> int:
    """Return the number of features that a tree may use.

    >>> used(0.3, 10), used(0.25, 10)
    (3, 3)
    """
    return math.ceil(round(share * features, 9))


def rounded(x: Tensor, step: float, share: Tensor) -> Tensor:
    """Return numbers as multiples of a step, the next or the last one by a share in [0, 1); of step 0 as they are."""
    return (x / step + share).floor() * step if step > 0 else x


def uniform(names: Tensor, key: float) -> Tensor:
    """Return a number in [0, 1) for each row, float32 [n], by the row's name and a key: equal rows have equal ones."""
    mixed = names ^ (int(key) * 0x9E3779B1 % 2**32)
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D % 2**32
    mixed = (mixed ^ (mixed >> 12)) * 0x297A2D39 % 2**32
    return ((mixed ^ (mixed >> 15)) >> 8).float() / 2**24


def quarter(values: Tensor, bins: Tensor, edges: Tensor) -> Tensor:
    """Return the quarter, from 0, of its bin in which each value lies, [n, F]; 0 in the outer bins.

    Args:
        values: [n, F].
        bins: the numbers of the values' bins, [n, F].
        edges: [F, B − 1], ascending.
    """
    import torch

    column = torch.arange(values.shape[1], device=values.device)
    low = edges[column, (bins - 1).clamp(min=0)]
    high = edges[column, bins.clamp(max=edges.shape[1] - 1)]
    share = ((values - low) / (high - low).clamp(min=1e-30)).nan_to_num(0.0, 0.0, 0.0)
    inner = (bins > 0) & (bins < edges.shape[1])
    return torch.where(inner, (share * 4).long().clamp(0, 3), 0)
