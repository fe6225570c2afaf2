"""Which objectives can be stacked, and what they add to the cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from fedfloor.parts.correction import Corrected, Variates
from fedfloor.parts.objective import Objective, Plain
from fedfloor.parts.proximal import WIDTHS, Distilled, Mmd, Prox
from fedfloor.parts.replay import Replay
from fedfloor.parts.weighting import Focal, PerSample, Weighted

WHY = {
    "contrastive": "it looks into the network's layers",
    "fusion": "it looks into the network's layers",
    "reweighted": "a term of its own stands beside losses that samples are weighed by",
    "gated": "every device has numbers of its own in the network",
}


@dataclass(frozen=True)
class Term:
    """A term of the weights alone: its value [K] and gradient [K, trained].

    Args:
        kind: ``""``: none; ``"pull"``: (weight/2)·‖w − a‖²; ``"tilt"``: ⟨a, w⟩ − height; a is each model's anchor.
        weight: of the pull.
    """

    kind: str = ""
    weight: float = 0.0

    def of(self, weights: Tensor, anchor: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
        """Return value and gradient; the gradient is not to be changed."""
        if self.kind == "pull":
            away = weights - anchor
            return away.square().sum(1).mul(self.weight / 2), away.mul_(self.weight)
        return (weights * anchor).sum(1) - height, anchor


NOTHING = Term()


def refused(name: str, goal: Objective) -> str:
    """Return why an objective cannot be stacked; nothing where it can.

    >>> refused("plain", Plain()), refused("mine:Own", Plain())
    ('', '')
    """
    if type(goal) in (Plain, Prox, Corrected, Variates, Distilled, Mmd, Replay, Weighted, Focal):
        return ""
    kind = type(goal)
    same = ("penalty", "per_sample", "arrive", "begin", "features", "trains")
    if kind.loss is Plain.loss and all(getattr(kind, hook) is getattr(Objective, hook) for hook in same):
        return ""
    return f"objective '{name}': {WHY.get(name, 'its loss is not known to be a sum over samples')}"


def term(goal: Objective) -> Term:
    """Return the term of the weights alone that an objective adds."""
    if isinstance(goal, Prox) and goal.mu > 0:
        return Term("pull", goal.mu)
    tilts = isinstance(goal, Variates) or (isinstance(goal, Corrected) and goal.weight > 0)
    return Term("tilt") if tilts else NOTHING


def anchor(of: Term, ready: Mapping[str, Tensor], start: Tensor | None, part: slice) -> Tensor:
    """Return what a device's term is measured from, [trained]."""
    if of.kind == "pull" and start is not None:
        return start[part]
    return ready["slope"]


def second(goal: Objective) -> Distilled | Mmd | None:
    """Return the objective where it compares with the logits of the model as it arrived."""
    return goal if isinstance(goal, (Mmd, Distilled)) and goal.weight > 0 else None


def of_samples(goal: Objective) -> PerSample | None:
    """Return the objective where its losses are others than the samples' cross-entropies."""
    return goal if isinstance(goal, PerSample) and not goal.is_plain else None


def distance(goal: Distilled | Mmd, fixed: Tensor, logits: Tensor, share: Tensor) -> Tensor:
    """Return what such an objective adds to the losses, [K].

    Args:
        goal: the objective.
        fixed: logits of the models as they arrived, [K, B, F].
        logits: of the models under training, [K, B, F].
        share: each sample's weight in the loss, [K, B]: 1/b, or 0 for what fills up.
    """
    if isinstance(goal, Distilled):
        apart = kl_div(logits.log_softmax(2), fixed.log_softmax(2), reduction="none", log_target=True).sum(2)
        return goal.weight * (apart * share).sum(1)
    inside = _kernels(logits, logits) + _kernels(fixed, fixed) - 2 * _kernels(fixed, logits)
    return goal.weight * torch.einsum("kij,ki,kj->k", inside, share, share).clamp(min=0)


def _kernels(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_s exp(−‖a_i − b_j‖²/(2s)) over the widths s, [K, B, B]."""
    apart = (a[:, :, None] - b[:, None]).square().sum(3)
    return torch.stack([(apart / (-2 * width)).exp() for width in WIDTHS]).sum(0)
