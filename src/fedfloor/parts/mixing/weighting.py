"""Weighted losses of samples: by class or by the focal factor, also within a method's own objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedfloor.base.errors import SettingError, require, shown
from fedfloor.parts.objectives.correction import Variates
from fedfloor.parts.objectives.layers import Fusion
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import Contrastive, Distilled, Mmd, Prox
from fedfloor.parts.trees.histograms import Histograms

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


CENSUS = "census"
EQUAL = ""
T = TypeVar("T", bound="PerSample")


class PerSample(Objective):
    """An objective F(w) = (1/b) Σ_i ℓ_i, a mean over samples that may be weighted by class.

    Subclasses are frozen dataclasses with the fields ``weights``, ``smoothing`` and ``cap`` of :class:`Weighted`.
    """

    weights: str
    smoothing: float
    cap: float

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def excludes(self) -> Mapping[str, str]:
        return {}  # it is joined with the method's own objective

    @property
    def equal(self) -> bool:
        return self.weights != CENSUS and set(numbers(self.weights)) == {1.0}

    needs_classes = True

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return ℓ_i [n] of logits [n, F] and classes int64 [n]."""
        raise NotImplementedError

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Return (mean of the samples' losses [], logits [batch, classes])."""
        if self.is_plain:
            return Plain().loss(module, x, y, visit)
        logits = module(x)
        return self.losses(logits, y).mean(), logits

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        if self.weights not in (CENSUS, EQUAL):
            _check_count(len(numbers(self.weights)), classes)
        return module, classifier


def _check_settings(kind: str, goal: PerSample) -> None:
    require(0 <= goal.smoothing < math.inf, f"objective {kind}: smoothing", goal.smoothing, "a number of at least 0")
    require(1 <= goal.cap < math.inf, f"objective {kind}: cap", goal.cap, "a number of at least 1")
    if goal.weights not in (CENSUS, EQUAL):
        numbers(goal.weights, kind)


def _check_count(given: int, classes: int) -> None:
    if given != classes:
        raise SettingError(
            f"method.objective: {given} class weights, but the data have {classes} classes. Give one weight per class, "
            f'in the order of park.json, or weights = "{CENSUS}".'
        )


@lru_cache(maxsize=64)
def numbers(text: str, kind: str = "weighted") -> tuple[float, ...]:
    """Return the class weights of a setting, which are separated by blanks.

    >>> numbers("0.5 20")
    (0.5, 20.0)
    """
    try:
        weights = tuple(float(word) for word in text.split())
    except ValueError:
        weights = ()
    if not weights or not all(0 <= number < math.inf for number in weights) or not any(weights):
        raise SettingError(
            f'objective {kind}: weights = {shown(text)}: must be "{CENSUS}", or one number of at least 0 per class, '
            "not all of them 0, such as [1, 20].",
            key="objective",
        )
    return weights


def from_counts(counts: Sequence[int] | np.ndarray, smoothing: float, cap: float) -> tuple[float, ...]:
    """Return a_c = min(cap, (n + F·s)/(F·(n_c + s))) of F classes: the inverse frequency of each class.

    With s = 0 it is n/(F·n_c), scikit-learn's ``class_weight = "balanced"``, which gives every class the same share of
    the summed loss. n_c is the number of samples of a class over all devices, n = Σ n_c; negative counts, which can
    result from the noise of a private census, are replaced by 0. Absent classes get the cap.

    >>> from_counts([970, 30], 0.0, 100.0)
    (0.5154639175257731, 16.666666666666668)
    >>> from_counts([1000, 0], 0.0, 100.0)
    (0.5, 100.0)
    """
    real = np.asarray(counts, np.float64).clip(0)
    many = len(real)
    total = real.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = (total + many * smoothing) / (many * (real + smoothing))
    return tuple(np.nan_to_num(weights, nan=1.0, posinf=cap).clip(max=cap).tolist())


def of_counts(weights: Sequence[float], cap: float, rounding: float) -> bool:
    """Return whether class weights are those of some counts: Σ_c 1/a_c = F, but for weights at the cap.

    Each is then at least 1/F. Smoothing changes the counts, not this sum.

    >>> of_counts(from_counts([970, 30], 1.0, 10.0), 10.0, 1e-9), of_counts((0.0, 1.0), 10.0, 1e-9)
    (True, False)
    """
    if not weights or not 0 < min(weights) <= max(weights) <= cap:
        return False
    total = sum(1 / weight for weight in weights)
    return len(weights) * (1 - rounding) <= total <= len(weights) * (1 + 1 / cap) * (1 + rounding)


def settled(goal: T, weights: Sequence[float]) -> T:
    """Return an objective with class weights from the census in place of its setting ``weights``."""
    return replace(goal, weights=" ".join(map(repr, weights)))  # type: ignore[type-var]


def class_weights(goal: PerSample, logits: Tensor) -> Tensor:
    """Return an objective's class weights [F], with the type and device of the logits."""
    if goal.weights == CENSUS:
        raise SettingError(
            f"weights = '{CENSUS}' needs the census before round 1, which is only taken for the objective of [method]. "
            "Set the objective there, or give one number per class."
        )
    weights = _placed(goal.weights, logits.device, logits.dtype)
    _check_count(len(weights), logits.shape[-1])
    return weights


@lru_cache(maxsize=64)
def _placed(text: str, device: torch.device, kind: torch.dtype) -> Tensor:
    """Return weights on a device, cached there: a recorded step must not copy to the device."""
    import torch

    return torch.tensor(numbers(text), dtype=kind, device=device)


@dataclass(frozen=True)
class Weighted(PerSample):
    """(1/b) Σ_i a_{y_i}·ℓ_i with the cross-entropy ℓ_i of sample i and the weight a_c of class c; the divisor is b.

    By default a_c = min(cap, (n + F·s)/(F·(n_c + s))) from the class counts n_c of all devices' local sets, which the
    devices report once before round 1: the question ``classes``, with the price and privacy cost of a census. With the
    divisor b, devices without rare samples take smaller steps than devices with such samples, and the sum over all
    devices is the balanced risk. With weights of 1 it is plain cross-entropy to the bit. King and Zeng, "Logistic
    regression in rare events data", Political Analysis 2001.

    Args:
        weights: ``"census"``, or F numbers a_c of at least 0 in the order of the classes.
        smoothing: s ≥ 0, the number of samples added to each class.
        cap: the largest class weight from the census, at least 1.
    """

    weights: str = CENSUS
    smoothing: float = 1.0
    cap: float = 100.0

    def __post_init__(self) -> None:
        _check_settings("weighted", self)
        if self.weights == EQUAL:
            numbers(self.weights)

    @property
    def is_plain(self) -> bool:
        return self.equal

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return a_{y_i}·ℓ_i, [n]."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits, y, reduction="none") * class_weights(self, logits)[y]


def by_census(goal: Objective | None) -> PerSample | None:
    """Return the objective if its class weights are set by the census, else None."""
    return goal if isinstance(goal, PerSample) and goal.weights == CENSUS else None


def counted(answers: Mapping[int, Mapping[str, object]]) -> np.ndarray:
    """Return the sum of the class counts in devices' answers (device → question → answer), int64 [F]."""
    total: np.ndarray = np.sum([np.asarray(answer["classes"], np.int64) for answer in answers.values()], axis=0)
    return total


LEAST = 1e-12  # lower limit of 1 − p: for γ below 1 the power's slope at 0 is infinite


@dataclass(frozen=True)
class Focal(PerSample):
    """(1/b) Σ_i a_{y_i}·(1 − p_i)^γ·ℓ_i with the cross-entropy ℓ_i = −log p_i and p_i the probability of i's class.

    With γ = 0 it is the objective ``weighted`` to the bit, and with equal weights plain cross-entropy. Lin et al.,
    "Focal loss for dense object detection", ICCV 2017, arXiv 1708.02002; its α is a weight per class here.

    Args:
        gamma: γ ≥ 0; the paper's best is 2.
        weights: 1 for every class by default; ``"census"`` or F numbers as in ``weighted``.
        smoothing: as in ``weighted``.
        cap: as in ``weighted``.
    """

    gamma: float = 2.0
    weights: str = EQUAL
    smoothing: float = 1.0
    cap: float = 100.0

    def __post_init__(self) -> None:
        require(0 <= self.gamma < math.inf, "objective focal: gamma", self.gamma, "a number of at least 0")
        _check_settings("focal", self)

    @property
    def is_plain(self) -> bool:
        return self.gamma == 0 and (self.weights == EQUAL or self.equal)

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return a_{y_i}·(1 − p_i)^γ·ℓ_i, [n]."""
        from torch.nn.functional import cross_entropy

        each = cross_entropy(logits, y, reduction="none")
        if self.gamma:
            each = each * (-(-each).expm1()).clamp(min=LEAST).pow(self.gamma)
        return each if self.weights == EQUAL else each * class_weights(self, logits)[y]


FITS = (Prox, Variates, Contrastive, Distilled, Mmd, Fusion, Histograms)  # objectives that read Visit.data
WHY = {
    "corrected": "its correction consists of gradients of the cross-entropy itself",
    "gated": "it is a loss over its own layers",
}


def _of_part(name: str) -> Any:
    return property(lambda self: getattr(self.part, name))


@dataclass(frozen=True)
class Reweighted(Objective):
    """An objective F(w) + g(w) in which the mean of weighted or focal losses replaces the cross-entropy F.

    ``method.objective = "weighted"`` or ``"focal"`` turns a method's own objective into this one: FedProx's pull,
    MOON's contrast and SCAFFOLD's variates do not change. If every sample has the weight 1, a method keeps its own
    objective.

    Args:
        part: the objective with the term g.
        data: the losses per sample.
    """

    part: Objective
    data: PerSample

    needs_classes = True
    needs_start, assumes_sgd, remembers, least_steps = map(
        _of_part, ("needs_start", "assumes_sgd", "remembers", "least_steps")
    )
    travels, counts_equally, send, passes, trains = map(
        _of_part, ("travels", "counts_equally", "send", "passes", "trains")
    )
    begin, per_sample, penalty, remember = map(_of_part, ("begin", "per_sample", "penalty", "remember"))

    def adapt(
        self, module: nn.Module, classifier: str | None, classes: int, shape: tuple[int, ...]
    ) -> tuple[nn.Module, str | None]:
        self.data.adapt(module, classifier, classes, shape)
        return self.part.adapt(module, classifier, classes, shape)

    def loss(self, module: nn.Module, x: Tensor, y: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        return self.part.loss(module, x, y, replace(visit, data=self.data))


def reweighted(own: Objective, data: PerSample, name: str, method: str) -> Objective:
    """Return a method's own objective with other losses per sample; SettingError: it cannot be combined."""
    if isinstance(own, Plain | PerSample):
        return data
    if type(own) not in FITS:
        why = WHY.get(name, "it is not known to be the cross-entropy with a further term")
        raise SettingError(
            f"method.objective with losses of samples, and method '{method}': its own objective is '{name}', and {why}."
            " Leave method.objective out, or choose another method.",
            key="method.objective",
        )
    return own if data.is_plain else Reweighted(own, data)
