"""Mixing rules, which aggregate models: the rules by name, and the facts that a rule may read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.parts import fitting, named
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers
from fedfloor.parts.travel.path import NONE, RECEIPT, SUM, AddedNoise, PathPart
from fedfloor.plan import nodes, walk
from fedfloor.plan.nodes import CLOUD, Node, Parallel, Scalar

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
class _OfModels(Mix):
    """The base of bounded rules that read every model."""

    whole: ClassVar[bool] = True
    bounded: ClassVar[bool] = True


@dataclass(frozen=True)
class InverseDistance(_OfModels):
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


@dataclass(frozen=True)
class Median(_OfModels):
    """The median of every coordinate; see :func:`fedfloor.parts.mixing.means.median`."""

    kind: Literal["median"] = "median"

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import median

        return median(met.models)


@dataclass(frozen=True)
class TrimmedMean(_OfModels):
    """The mean of every coordinate without its extremes; see :func:`fedfloor.parts.mixing.means.trimmed_mean`.

    Args:
        share: b in [0, 1/2), the share trimmed at each end.
    """

    share: float = 0.1
    kind: Literal["trimmed_mean"] = "trimmed_mean"

    def __post_init__(self) -> None:
        allowed = "at least 0 and below 0.5, as half at each end is every model"
        require(0 <= self.share < 0.5, "mix.share", self.share, allowed)

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import trimmed_mean

        return trimmed_mean(met.models, self.share)


@dataclass(frozen=True)
class _Bearing(_OfModels):
    """The base of rules that tolerate a number of arbitrary models."""

    outliers: int = 1

    def __post_init__(self) -> None:
        require(self.outliers >= 0, "mix.outliers", self.outliers, "a whole number of at least 0")


@dataclass(frozen=True)
class _ByNeighbours(_Bearing):
    """The base of rules with Krum's scores, a model's distances to its n − f − 2 nearest neighbours."""

    guarantee: bool = True

    @property
    def least(self) -> int:
        return self.sound if self.guarantee else self.outliers + 3

    @property
    def sound(self) -> int:
        return 2 * self.outliers + 3


@dataclass(frozen=True)
class Krum(_ByNeighbours):
    """The model that is nearest to its neighbours; see :func:`fedfloor.parts.mixing.means.krum`.

    Args:
        outliers: f, the number of models that may be arbitrary; n ≥ 2f + 3 models must take part.
        guarantee: whether fewer models are refused; with ``false`` f + 3 are enough, without the rule's guarantee, and
            a warning is logged.
    """

    kind: Literal["krum"] = "krum"

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import krum

        return krum(met.models, self.outliers, guarantee=self.guarantee)


@dataclass(frozen=True)
class MultiKrum(_ByNeighbours):
    """The plain mean of the models with the best Krum scores; see :func:`fedfloor.parts.mixing.means.multi_krum`.

    Args:
        outliers: f, as in Krum; at least m + f models must take part, too.
        guarantee: as in Krum.
        keep: m, the number of kept models; n − f by default.
    """

    keep: int | None = None
    kind: Literal["multi_krum"] = "multi_krum"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.keep is None or self.keep >= 1, "mix.keep", self.keep, "a whole number of at least 1")

    @property
    def least(self) -> int:
        return max(super().least, (self.keep or 0) + self.outliers)

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import multi_krum

        return multi_krum(met.models, self.outliers, self.keep, guarantee=self.guarantee)


@dataclass(frozen=True)
class Bulyan(_Bearing):
    """A selection by Krum, then the mean of the middle of every coordinate; see :func:`robust.bulyan`.

    Args:
        outliers: f, the number of models that may be arbitrary; n ≥ 4f + 3 models must take part.
    """

    kind: Literal["bulyan"] = "bulyan"

    @property
    def least(self) -> int:
        return 4 * self.outliers + 3

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.robust import bulyan

        return bulyan(met.models, self.outliers)


@dataclass(frozen=True)
class GeometricMedian(_OfModels):
    """RFA: the geometric median of the models; see :func:`fedfloor.parts.mixing.robust.geometric_median`.

    Args:
        smoothing: ν > 0, the lower limit of distances.
        iterations: R, the greatest number of steps.
    """

    smoothing: float = 1e-6
    iterations: int = 100
    kind: Literal["geometric_median"] = "geometric_median"

    def __post_init__(self) -> None:
        require(0 < self.smoothing < math.inf, "mix.smoothing", self.smoothing, "a number above 0")
        require(self.iterations >= 1, "mix.iterations", self.iterations, "a whole number of at least 1")

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.robust import geometric_median

        return geometric_median(met.models, self.smoothing, self.iterations)


@dataclass(frozen=True)
class CentredClipping(_OfModels):
    """A mean of updates clipped around their own mean; see :func:`fedfloor.parts.mixing.robust.centred_clipping`.

    Args:
        radius: τ > 0, the distance from the centre to which models are clipped; the median distance by default.
        iterations: L, the number of moves of the centre.
    """

    radius: float | None = None
    iterations: int = 3
    kind: Literal["centred_clipping"] = "centred_clipping"

    def __post_init__(self) -> None:
        require(self.radius is None or self.radius > 0, "mix.radius", self.radius, "a number above 0")
        require(self.iterations >= 1, "mix.iterations", self.iterations, "a whole number of at least 1")

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.robust import centred_clipping

        return centred_clipping(met.start, met.models, self.radius, self.iterations)


@dataclass(frozen=True)
class NormBound(_OfModels):
    """The mean, by samples, of clipped updates; see :func:`fedfloor.parts.mixing.robust.norm_bound`.

    Args:
        bound: C > 0, the greatest length of an update; the median of the lengths by default.
    """

    bound: float | None = None
    kind: Literal["norm_bound"] = "norm_bound"

    def __post_init__(self) -> None:
        require(self.bound is None or self.bound > 0, "mix.bound", self.bound, "a number above 0")

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.robust import norm_bound

        return norm_bound(met.start, met.models, [float(branch.samples) for branch in met.branches], self.bound)


@dataclass(frozen=True)
class FoolsGold(_OfModels):
    """A mean in which updates with the same direction weigh less; see :func:`robust.foolsgold`."""

    kind: Literal["foolsgold"] = "foolsgold"

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.robust import foolsgold

        return foolsgold(met.start, met.models)


@dataclass(frozen=True)
class Private(Mix):
    r"""The Gaussian mechanism at the cloud: w + (Σ_k clip(w_k − w, C) + N(0, z²C² I)) / (q·K).

    clip(Δ, C) = Δ·min(1, C/‖Δ‖). Adding or removing a device changes the sum by at most C. A round whose devices are
    drawn by the selection ``poisson`` with probability q is therefore one step of the Poisson-subsampled Gaussian
    mechanism with noise multiplier z; :mod:`fedfloor.runs.privacy` accounts for all rounds. The denominator is the
    expected number of devices, never the actual number. With z = 0, C = ∞ and q = 1 it is the mean ``equal``, up to
    rounding.

    With a ``quantile`` γ, C follows that quantile of the updates' norms: Σ_k (1[‖Δ_k‖ ≤ C] − 1/2) gets the noise
    N(0, σ_b²), its mean b̃ over q·K (plus 1/2) is compared with γ, and C ← C·exp(−η(b̃ − γ)) for the next round. The
    updates then get the noise multiplier (z⁻² − (2σ_b)⁻²)^(−1/2), so that both together are one step with z (Andrew,
    Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive clipping", NeurIPS 2021, Theorem 1).

    If ``distributed``, the devices of a secure sum add the noise before masking: discrete Gaussian noise
    (:mod:`fedfloor.parts.protection.discrete`) with the variance z²(C·2^f + √P/2)²/m per device, in steps of 2^−f,
    where √P/2 bounds the effect of rounding on the norm, and m is the least number of devices in a sum. No party knows
    the noise. The denominator is the number of devices in the sum. With z = 0 it is the plain secure sum.

    McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR 2018, arXiv
    1710.06963, Algorithm 1 with the estimator f̃_f. The noise is drawn in double precision and rounded; information
    that rounding can reveal (Mironov, CCS 2012) is not accounted for.

    Args:
        clip: C > 0, the greatest norm of a device's update; with a quantile, that of the first round.
        noise: z ≥ 0, the noise's standard deviation in units of C.
        delta: δ in (0, 1) for which ε is stated; below one over the number of devices.
        expected: q·K; derived from the selection and the park by default.
        quantile: γ in (0, 1), the intended share of updates shorter than C; by default C is fixed.
        clip_rate: η > 0, the rate of the changes of C.
        count_noise: σ_b of the count, above z/2; q·K/20 by default, as in the paper.
        distributed: whether the devices of secure sums add the noise, instead of the cloud.
    """

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    expected: float | None = None
    quantile: float | None = None
    clip_rate: float = 0.2
    count_noise: float | None = None
    distributed: bool = False
    kind: Literal["private"] = "private"
    whole: ClassVar[bool] = True

    @property
    def traits(self) -> Mapping[str, str]:
        return {**super().traits, fitting.NOISED if self.distributed else fitting.BOUNDED: ""}

    @property
    def privacy(self) -> AddedNoise:
        about: dict[str, float | None] = {"clip": self.clip}
        if self.quantile is not None:  # the count of short updates and the updates form one step with the joint noise
            about |= {"quantile": self.quantile, "count_noise": self.count_noise}
        return AddedNoise("sums" if self.distributed else "drawn", self.noise, self.delta, "mix.noise", about)

    @property
    def reveals(self) -> Mapping[str, str]:
        return {RECEIPT: "", SUM: ""} if self.distributed else {}

    def __post_init__(self) -> None:
        require(self.clip > 0, "mix.clip", self.clip, "a number above 0")
        require(0 <= self.noise < math.inf, "mix.noise", self.noise, "a number of at least 0")
        require(0 < self.delta < 1, "mix.delta", self.delta, "above 0 and below 1")
        least = self.expected is None or 1 <= self.expected < math.inf
        require(least, "mix.expected", self.expected, "a number of at least 1, or left out")
        if self.noise and math.isinf(self.clip):
            raise SettingError(
                f"mix.noise = {self.noise} with clip = inf: without a bound on updates no noise hides a device. Set "
                "mix.clip, such as 1.0."
            )
        self._check_quantile()

    def _check_quantile(self) -> None:
        if self.quantile is None:
            require(self.count_noise is None, "mix.count_noise", self.count_noise, "left out without mix.quantile")
            return
        require(0 < self.quantile < 1, "mix.quantile", self.quantile, "above 0 and below 1, such as 0.5")
        require(0 < self.clip_rate < math.inf, "mix.clip_rate", self.clip_rate, "a number above 0")
        require(math.isfinite(self.clip), "mix.clip", self.clip, "a finite number, from which C follows mix.quantile")
        if self.count_noise is not None:
            allowed = f"a number above half of mix.noise, {self.noise / 2:g}"
            require(self.noise / 2 < self.count_noise < math.inf, "mix.count_noise", self.count_noise, allowed)

    def planned(self, node: Node, selection: Selection | None, devices: Sequence[int], park_devices: int) -> Private:
        """Return the rule with its denominator, after a check that a round of the plan is one step of the mechanism.

        Raises:
            SettingError: the devices are not drawn by Poisson sampling, δ is too large for their number, or a device
                reveals more in the round than one clipped update.
        """
        from fedfloor.parts.objectives.registry import objective
        from fedfloor.parts.selection.selection import Everyone, Poisson
        from fedfloor.parts.travel.codecs import secure

        if self.distributed and not all(secure(work.travel) for work in walk.works(node)):
            raise SettingError(
                "mix.distributed = true: devices add the noise to sums that hide it. Set method.travel = 'secure-sum', "
                "or leave distributed out: the cloud then adds the noise."
            )
        if not isinstance(selection, (Poisson, Everyone, type(None)) if self.distributed else Poisson):
            raise unfit(
                'its devices are not drawn at random alone: set method.selection = { kind = "poisson", share = 0.1 }, '
                "the chance that a device takes part in a round"
            )
        if self.noise:
            require(self.delta < 1 / park_devices, "mix.delta", self.delta, f"below one over {park_devices} devices")
        if walk.probes(node):
            raise unfit("the method's rounds have questions to devices, whose answers have no noise")
        if isinstance(node, nodes.Sequence):
            # beside it the plan has a question of the method's own rule, or hands models out, which reveals nothing
            meeting = [child for child in node.children if not isinstance(child, nodes.Broadcast)]
            node = meeting[0] if len(meeting) == 1 else node
        at_once = isinstance(node, Parallel) and (node.at, node.mix) == (CLOUD, "private")
        if not at_once or any(walk.meets(child) or len(walk.devices(child)) != 1 for child in walk.children(node)):
            raise unfit("rounds of the method are more than parallel visits that the cloud averages")
        if sorted(map(walk.first_device, walk.children(node))) != sorted(devices):
            raise unfit("the method selects among the drawn devices, so that participation is not random alone")
        for work in walk.works(node):
            goal = objective(work.objective, work.settings)
            if goal.travels:
                raise unfit(f"devices send '{min(goal.travels)}' beside the model, which is not clipped")
        if self.distributed or not isinstance(selection, Poisson):
            return self
        expected = selection.share * park_devices
        if self.quantile is None or self.count_noise is not None:
            return replace(self, expected=expected)
        if expected / 20 <= self.noise / 2:
            raise SettingError(
                f"mix.quantile with {expected:g} devices in a round on average: their count would have the noise "
                f"{expected / 20:g}, which has to be above half of mix.noise = {self.noise}. Set mix.count_noise = "
                f"{max(1.0, self.noise):g}, or let more devices take part.",
                key="mix.quantile",
            )
        return replace(self, expected=expected, count_noise=expected / 20)

    @property
    def update_noise(self) -> float:
        """The noise multiplier of the updates: z, or more if the count of short updates uses a part of z."""
        if self.quantile is None or not self.noise or self.count_noise is None:
            return self.noise
        return float((self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    @property
    def additive(self) -> bool:
        return self.quantile is None

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        """Return clip(Δ, C): in secure sums, devices clip their updates themselves."""
        import torch

        from fedfloor.parts.mixing.means import clipped

        return NONE, clipped(torch.from_numpy(x).double(), self.clip).numpy()

    def of_sum(self, start: Tensor, total: Tensor, weight: float, trained: int, rng: np.random.Generator) -> Tensor:
        from fedfloor.parts.mixing.means import noisy

        mixed = start.clone()
        front = slice(trained)
        noise = self.noise * self.clip if self.noise and not self.distributed else 0.0
        mixed[front] = noisy(total[front], noise, rng).div_(self.expected or weight).add_(start[front])
        return mixed

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import gaussian_sum

        if self.expected is None or met.rng is None:
            raise unfit("its plan names no mix.expected, the devices that take part in a round on average")
        if any(not model[met.trained :].equal(met.start[met.trained :]) for model in met.models if met.trained):
            raise unfit(STATISTICS)
        front = slice(met.trained)
        mixed = met.start.clone()
        updates = (model[front].double().sub_(met.start[front]) for model in met.models)
        lengths = list[float]()
        deviation = self.update_noise * self.clip if self.noise else 0.0
        total = gaussian_sum(updates, self.clip, deviation, met.rng, lengths)
        mixed[front] = total.div_(self.expected).add_(met.start[front])
        if self.quantile is not None:
            short = sum(0.5 if length <= self.clip else -0.5 for length in lengths)
            short += met.rng.normal(0.0, self.count_noise or 0.0) if self.noise else 0.0
            away = 0.5 + short / self.expected - self.quantile
            met.settings["clip"] = self.clip * math.exp(-self.clip_rate * away)
        return mixed


_MIXES: tuple[Any, ...] = (
    BySamples, Equal, InverseDistance, QFair, Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian,
    CentredClipping, NormBound, FoolsGold, Private,
)  # fmt: skip
MIXES: dict[str, Callable[..., Mix]] = {mix.kind: mix for mix in _MIXES}


def rule(name: str, settings: Mapping[str, Scalar]) -> Mix:
    """Return a mixing rule by name, or the user's ``module:Name``, with its settings.

    >>> rule("by_samples", {}).weight(600), rule("equal", {}).weight(600), rule("equal", {}).weight(0)
    (600.0, 1.0, 0.0)
    """
    made: Mix = named.make("mixing rule", name, settings, MIXES, Mix)
    if made.whole:
        named.complete("mixing rule", name, made, Mix, writes=("mixed",))
    return made


def to_spec(mix: Mix) -> tuple[str, dict[str, Scalar]]:
    """Return a rule's name and settings, in the form of a ``Parallel``.

    >>> to_spec(QFair(q=2.0)), to_spec(Equal())
    (('q_fair', {'q': 2.0}), ('equal', {}))
    """
    return named.to_spec(mix, MIXES)


def check(mix: Mix, name: str, branches: int) -> None:
    """Check that a rule can mix a number of branches; SettingError: too few."""
    if branches < mix.least:
        fewer = replace(mix, guarantee=False).least if isinstance(mix, _ByNeighbours) else mix.least
        against = " mix.guarantee = false accepts so few, without the rule's guarantee." if branches >= fewer else ""
        raise SettingError(
            f"mix '{name}' has {branches} models to mix: it needs at least {mix.least}. Let "
            f"{mix.least - branches} more take part, or lower its settings (mix.outliers, mix.keep).{against}"
        )


STATISTICS = "batch norm's statistics travel with the model; take a network with group norm or without normalisation"


def unfit(reason: str) -> SettingError:
    """Return the error of the rule ``private`` for a reason why updates are not protected."""
    return SettingError(
        f"mix 'private': {reason}. It needs a method with parallel visits and one aggregation, such as fedavg."
    )
