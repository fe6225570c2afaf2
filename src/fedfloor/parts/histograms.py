"""The objective of boosted trees: a device's sums of first and second derivatives replace the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedfloor.errors import SettingError, require
from fedfloor.machine import require_memory
from fedfloor.parts.objective import Objective, Visit, mean_loss

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedfloor.models.forest import Forest

NUMBERS = 1 << 22  # in one addition to the sums
FARTHEST = 3.0  # greatest change of an output in a step, in standard deviations or log-odds


@dataclass(frozen=True)
class Histograms(Objective):
    """The mean of g_i = ∂ℓ_i/∂f and h_i = ∂²ℓ_i/∂f² over samples, by node of the growing level, feature and bin.

    The loss is linear in the network's ``sums``, S: Σ S·(g, h), so that one step at rate 1 from S = 0 leaves −(g, h)
    there. h_i is at least |g_i|/3, so that no leaf changes by more than 3: second derivatives of rare classes and of
    a quantile's loss are about 0.

    Args:
        trees: T, the greatest number of trees in the network.
        depth: D, the number of levels of a tree.
        bins: B, the number of bins of a feature.
    """

    trees: int = 100
    depth: int = 4
    bins: int = 32

    def __post_init__(self) -> None:
        require(self.trees >= 1, "trees", self.trees, "a whole number of at least 1")
        require(1 <= self.depth <= 8, "depth", self.depth, "a whole number from 1 to 8")
        require(4 <= self.bins <= 256, "bins", self.bins, "a whole number from 4 to 256")

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        """Return the forest, which replaces the experiment's network."""
        from fedfloor.models.forest import Forest, described
        from fedfloor.models.network import COPIES
        from fedfloor.tasks.residual import FromLast, Residual

        if isinstance(module, (FromLast, Residual)):
            raise SettingError(
                "method 'boosting' predicts classes and numbers: it neither forecasts nor reconstructs. Choose another "
                "method, or another task."
            )
        features = described(shape)
        numbers = self.trees * 2**self.depth * classes + 2**self.depth * features * self.bins * classes
        setting = f"methods.boosting with {self.trees} trees of depth {self.depth} and {self.bins} bins"
        require_memory(setting, COPIES * 4 * numbers, "Take fewer of them.")
        return Forest(shape, classes, self.trees, self.depth, self.bins, grows=True), None

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (the task's mean loss [] with the gradient of the linear one, outputs [n, K])."""
        import torch

        forest: Forest = module  # type: ignore[assignment]
        if (*forest.threshold.shape, forest.edges.shape[1] + 1) != (self.trees, self.depth, self.bins):
            raise SettingError("objective histograms: the forest has other trees, depth or bins than the objective.")
        with torch.no_grad():
            features = forest.features(x)
            tree = int(forest.progress.nan_to_num().clamp(0, self.trees * self.depth - 1)) // self.depth
            node = forest.leaves(features, slice(tree, tree + 1))
            out = forest.outputs(features, slice(0, max(1, tree)))
        mean, derivatives = self._derivatives(out, y, visit)
        with torch.no_grad():
            sums, column = torch.zeros_like(forest.sums).flatten(0, 2), torch.arange(features.shape[1], device=x.device)
            at_once = max(1, NUMBERS // (features.shape[1] * derivatives.shape[1]))
            for rows in zip(*(part.split(at_once) for part in (features, node, derivatives)), strict=True):
                bins = torch.searchsorted(forest.edges, rows[0].T.contiguous()).T  # [rows, features]
                place = (rows[1] * len(column) + column) * self.bins + bins
                sums.index_add_(0, place.flatten(), rows[2].repeat_interleave(len(column), 0))
        linear = (forest.sums.flatten(0, 2) * sums).sum()
        return mean + (linear - linear.detach()), out

    @staticmethod
    def _derivatives(out: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return the mean loss [], and g and h of each sample, divided by the number of samples, [n, 2K]."""
        import torch

        with torch.enable_grad():
            out = out.detach().requires_grad_()
            mean = mean_loss(out, y, visit)
            (first,) = torch.autograd.grad(mean, out, create_graph=True)
            second = torch.zeros_like(first)
            for k in range(out.shape[1]) if first.requires_grad else ():
                (row,) = torch.autograd.grad(first[:, k].sum(), out, retain_graph=True, allow_unused=True)
                if row is not None:
                    second[:, k] = row[:, k]
        first = first.detach()
        return mean.detach(), torch.cat([first, torch.maximum(second.detach(), first.abs() / FARTHEST)], 1)
