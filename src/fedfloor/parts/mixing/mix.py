"""Mixing rules, which aggregate models: the facts that a rule may read, and the means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.parts import fitting
from fedfloor.parts.travel.path import PathPart
from fedfloor.plan.nodes import Node, Scalar

if TYPE_CHECKING:  # methods refer to rules by name, so that listing methods does not import PyTorch
    from torch import Tensor

    from fedfloor.parts.selection.selection import Selection


@dataclass(frozen=True)
class Branch:
    """The facts of a branch in which a device trained.

    Args:
        samples: the number of samples of the distinct devices that trained in the branch.
        accuracy: the devices' training accuracy in their last visits, weighted by samples, in [0, 1].
        loss: the mean loss of the sent model over all samples of the devices; None without a ``Probe`` for it.
    """

    samples: int
    accuracy: float
    loss: float | None = None


@dataclass(frozen=True)
class Meeting:
    """The facts of an aggregation for a rule that reads every model.

    Args:
        start: the model that was sent, float32 [P].
        models: the returned models in the plan's order, without branches in which every visit was lost.
        branches: the facts of each model's branch.
        rate: the devices' learning rate η.
        classes: the number of classes.
        trained: the number of trained values at the front of a model, before frozen parameters and batch norm's
            statistics; None: all.
        rng: the generator of random draws; keyed by seed, round and the branches' first visit, so equal on every rank.
        settings: the rule's settings for its next round, filled by a rule that changes them.
    """

    start: Tensor
    models: Sequence[Tensor]
    branches: Sequence[Branch]
    rate: float
    classes: int
    trained: int | None = None
    rng: np.random.Generator | None = None
    settings: dict[str, Scalar] = field(default_factory=dict)


class Mix(PathPart):
    """A mixing rule, a frozen dataclass of its settings: a mean, or a rule that reads every model (``whole``).

    Attributes:
        whole: whether the rule reads every model; then it defines ``mixed``, else ``weight``.
        bounded: whether the mixed model is never farther from the start than the sum of all models' distances, as for
            every mean; the cloud then checks the models of edges that mix by this rule.
        asks: the question that a ``Probe`` must put to the devices before they train, such as ``loss``.
        assumes_sgd: whether it interprets the change of a model as the rate times a sum of gradients.
        reads_accuracy: whether it reads the training accuracy of visits.
    """

    whole: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    asks: ClassVar[str | None] = None
    assumes_sgd: ClassVar[bool] = False

    @property
    def reads_accuracy(self) -> bool:
        return False

    @property
    def least(self) -> int:
        """The least number of models that the rule needs; with fewer, the sent model remains the global model."""
        return 1

    @property
    def sound(self) -> int:
        """The least number of models for which the rule's guarantee holds; with fewer, a warning is logged."""
        return self.least

    @property
    def excludes(self) -> Mapping[str, str]:
        separate = {fitting.SEPARATE: "there are no models to mix. Leave it out."}
        single = {fitting.COHORTS: "it reads the losses of a single model. Choose another rule."}
        exact = {fitting.SUMS: "it adds up something else. Leave it out."}
        return {**super().excludes, **separate, **exact} | (single if self.asks is not None else {})

    def weight(self, samples: int) -> float:
        """Return a branch's weight in the mean of models, and of packet entries beside ``w`` under every rule."""
        return float(samples > 0)

    @property
    def additive(self) -> bool:
        """Whether the rule reads only the sum of what :meth:`leave` returns on devices, as every mean does."""
        return not self.whole

    def of_sum(self, start: Tensor, total: Tensor, weight: float, trained: int, rng: np.random.Generator) -> Tensor:
        """Return the mixed model [P] of an additive rule: w + total/weight.

        Args:
            total: Σ weight_k · leave(change_k), float64 [P].
            weight: Σ weight_k.
        """
        return (start.double() + total / weight).to(start.dtype)

    def planned(self, node: Node, selection: Selection | None, devices: Sequence[int], park_devices: int) -> Mix:
        """Return the rule with settings that depend on a round's plan; SettingError: the plan does not fit.

        Args:
            node: the plan that contains the rule.
            selection: the policy that drew the devices that may take part; None without a policy.
            devices: the drawn devices, ascending.
            park_devices: K, the number of devices in the park.
        """
        return self

    def mixed(self, met: Meeting) -> Tensor:
        """Return the mixed model [P], a new tensor.

        Raises:
            SettingError: the rule is a mean, or is ``whole`` without defining this method.
        """
        raise SettingError(
            f"mixing rule {type(self).__name__} is 'whole' without a method 'mixed': define it, or set whole = False."
        )


def weigh(rule: Mix, samples: int) -> float:
    """Return a branch's weight by a rule; SettingError: it is not a finite number of at least 0."""
    weight = rule.weight(samples)
    if type(weight) is float and 0 <= weight < math.inf:
        return weight
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    allowed = "a finite number of at least 0"
    require(0 <= number < math.inf, f"mixing rule {type(rule).__name__}: weight({samples})", weight, allowed)
    return number


@dataclass(frozen=True)
class BySamples(Mix):
    """Σ_k n_k w_k / Σ_k n_k: a branch's weight is the number of samples of its distinct trained devices."""

    kind: Literal["by_samples"] = "by_samples"

    @property
    def excludes(self) -> Mapping[str, str]:
        return {trait: why for trait, why in super().excludes.items() if trait != fitting.SUMS}

    def weight(self, samples: int) -> float:
        return float(samples)


@dataclass(frozen=True)
class Equal(Mix):
    """(1/n) Σ_k w_k: all branches in which a device trained have the same weight."""

    kind: Literal["equal"] = "equal"


@dataclass(frozen=True)
class OfModels(Mix):
    """The base of bounded rules that read every model."""

    whole: ClassVar[bool] = True
    bounded: ClassVar[bool] = True


@dataclass(frozen=True)
class InverseDistance(OfModels):
    """IDA: weights by the inverse distance from the mean; see :func:`fedfloor.parts.mixing.means.inverse_distance`.

    Args:
        factors: the factors of the weights: ``none``; ``accuracy``, 1/max(1/C, training accuracy) of IDA + INTRAC;
            ``samples``, n_k of IDA + FedAvg.
    """

    factors: Literal["none", "accuracy", "samples"] = "none"
    kind: Literal["inverse_distance"] = "inverse_distance"

    def __post_init__(self) -> None:
        known = ("none", "accuracy", "samples")
        require(self.factors in known, "mix.factors", self.factors, f"one of {', '.join(known)}")

    @property
    def reads_accuracy(self) -> bool:
        return self.factors == "accuracy"

    def mixed(self, met: Meeting) -> Tensor:
        """Return Σ_k α_k w_k / Σ_k α_k."""
        from fedfloor.parts.mixing import means

        factors: list[float] | None = None
        if self.factors == "accuracy":
            factors = means.intrac([branch.accuracy for branch in met.branches], met.classes)
        elif self.factors == "samples":
            factors = [float(branch.samples) for branch in met.branches]
        return means.inverse_distance(met.models, factors)


@dataclass(frozen=True)
class QFair(Mix):
    """q-FedAvg: devices with a larger loss weigh more; see :func:`fedfloor.parts.mixing.means.q_fair`.

    Args:
        q: q ≥ 0; 0 is the plain mean.
    """

    q: float = 1.0
    kind: Literal["q_fair"] = "q_fair"
    whole: ClassVar[bool] = True
    asks: ClassVar[str | None] = "loss"  # the loss of the sent model
    assumes_sgd: ClassVar[bool] = True  # Δ_k = (w − w_k)/η

    def __post_init__(self) -> None:
        require(0 <= self.q < math.inf, "mix.q", self.q, "a number of at least 0")

    def mixed(self, met: Meeting) -> Tensor:
        """Return w − Σ_k Δ_k / Σ_k h_k; real machines that did not answer the question for their loss are left out.

        If none has answered, w is returned.
        """
        from fedfloor.parts.mixing.means import q_fair

        losses = [branch.loss for branch in met.branches if branch.loss is not None]
        if not losses:
            return met.start
        models = [model for model, branch in zip(met.models, met.branches, strict=True) if branch.loss is not None]
        return q_fair(met.start, models, losses, met.rate, self.q, met.trained)
