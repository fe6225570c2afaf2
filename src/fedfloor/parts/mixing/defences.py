"""Mixing rules that withstand some false models: their settings, and the models that each needs.

Their computations are in :mod:`fedfloor.parts.mixing.robust` and :mod:`fedfloor.parts.mixing.means`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedfloor.base.errors import require
from fedfloor.parts.mixing.mix import Meeting, OfModels

if TYPE_CHECKING:  # methods refer to rules by name, so that listing methods does not import PyTorch
    from torch import Tensor


@dataclass(frozen=True)
class Median(OfModels):
    """The median of every coordinate; see :func:`fedfloor.parts.mixing.means.median`."""

    kind: Literal["median"] = "median"

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.means import median

        return median(met.models)


@dataclass(frozen=True)
class TrimmedMean(OfModels):
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
class _Bearing(OfModels):
    """The base of rules that tolerate a number of arbitrary models."""

    outliers: int = 1

    def __post_init__(self) -> None:
        require(self.outliers >= 0, "mix.outliers", self.outliers, "a whole number of at least 0")


@dataclass(frozen=True)
class ByNeighbours(_Bearing):
    """The base of rules with Krum's scores, a model's distances to its n − f − 2 nearest neighbours."""

    guarantee: bool = True

    @property
    def least(self) -> int:
        return self.sound if self.guarantee else self.outliers + 3

    @property
    def sound(self) -> int:
        return 2 * self.outliers + 3


@dataclass(frozen=True)
class Krum(ByNeighbours):
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
class MultiKrum(ByNeighbours):
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
class GeometricMedian(OfModels):
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
class CentredClipping(OfModels):
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
class NormBound(OfModels):
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
class FoolsGold(OfModels):
    """A mean in which updates with the same direction weigh less; see :func:`robust.foolsgold`."""

    kind: Literal["foolsgold"] = "foolsgold"

    def mixed(self, met: Meeting) -> Tensor:
        from fedfloor.parts.mixing.robust import foolsgold

        return foolsgold(met.start, met.models)
