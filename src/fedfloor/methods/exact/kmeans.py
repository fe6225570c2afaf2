"""k-means by sums: the states in which machines run normally, and the distance from the nearest one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedfloor.base.errors import require
from fedfloor.methods.exact.plausible import miscounted, too_small
from fedfloor.methods.exact.rows import Floats, Named, SampleRows, Shapes
from fedfloor.methods.exact.sums import ExactSums

if TYPE_CHECKING:
    from torch import Tensor

EACH = 4  # candidates for each centre


@dataclass(frozen=True)
class KMeans(ExactSums):
    r"""k-means by Lloyd's iteration: operating states of normal operation, and the distance from the nearest one.

    ::

        round 1: Σ x and Σ x² give the mean m and the deviation s of each number; 4k candidates ← m + s·N(0, 1)
        round 2: devices count the samples nearest to each candidate; the cloud draws k of them as k-means++ does from
            weighted points, with the first at random and each other by its count times its squared distance
        later, each device k and centre c: n_kc and Σ x of its samples nearest to c [D], and Σ_i min_c ‖x_i − c‖²/D
        c ← Σ_k Σ x/Σ_k n_kc, unless no sample is near, until no sample changes its centre: then the centres stay

    The residual of a sample is its difference from the nearest centre; a score is its mean square.

    Why: machines that run in several states are normal in each, and not between them. Draws depend on ``seed`` alone,
    so that all divisions of the samples give the same centres; from these starts on it is scikit-learn's ``KMeans``
    with ``algorithm="lloyd"`` on all samples in one place.

    Travels: 2 + 4k·(1 + D) numbers of 8 bytes per device and round up, and the centres down.

    Lloyd, IEEE Transactions on Information Theory 28 (1982) 129; Arthur and Vassilvitskii, SODA 2007; candidates that
    are weighted by counts: Bahmani et al., VLDB 2012.

    Args:
        states: k.
        seed: of the candidates and of the draws among them.
    """

    title: ClassVar[str] = "k-means"
    usual: ClassVar[int | None] = 22
    tasks: ClassVar[tuple[str, ...]] = ("reconstruction",)
    sends: ClassVar[str] = "number and mean of a device's samples near each centre, which are single samples if few are"

    states: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.states <= 1000, "methods.kmeans.states", self.states, "a whole number from 1 to 1,000")

    def parameters(self, shape: tuple[int, ...], outputs: int) -> Named:
        size = prod(shape)
        first = {"centers": np.zeros((self.states, size)), "candidates": np.zeros((EACH * self.states, size))}
        return first | {"phase": np.zeros(1)}

    def shapes(self, shape: tuple[int, ...], outputs: int) -> Shapes:
        many = max(EACH * self.states, 2)
        return {"number": (many,), "first": (many, prod(shape)), "cost": ()}

    def sums(self, rows: SampleRows, theta: Named) -> Named:
        x = rows.x.reshape(len(rows.x), -1)
        many = max(len(theta["candidates"]), 2)
        number = np.zeros(many)
        first = np.zeros((many, x.shape[1]))
        if theta["phase"][0] == 0:
            first[:2] = x.sum(0), (x**2).sum(0)
            return {"number": number, "first": first, "cost": np.zeros(())}
        points = theta["candidates"] if theta["phase"][0] == 1 else theta["centers"]
        apart = np.stack([((x - point) ** 2).sum(1) for point in points], 1)  # one after the other, for memory
        own = np.eye(len(points))[apart.argmin(1)]
        number[: len(points)] = own.sum(0)
        first[: len(points)] = own.T @ x
        return {"number": number, "first": first, "cost": np.asarray(apart.min(1).sum() / x.shape[1])}

    def implausible(self, total: Named, count: float, theta: Named) -> bool:
        first = total["first"]
        if theta["phase"][0] == 0:
            return too_small(first[1], first[0], count)
        number = total["number"]
        return bool(total["cost"] < 0 or first[number <= 0].any()) or miscounted(number, count, all_counted=True)

    def gradient(self, total: Named, theta: Named) -> Floats:
        if theta["phase"][0] < 2:  # there are no centres yet
            return super().gradient(total, theta)
        number = total["number"][: self.states]
        return total["first"][: self.states] - number[:, None] * theta["centers"]

    def solve(self, total: Named, count: float, theta: Named) -> tuple[Named, bool]:
        phase = int(theta["phase"][0])
        rng = np.random.default_rng([self.seed, phase])
        centers = theta["centers"]
        candidates = theta["candidates"]
        done = False
        if phase == 0:
            mean = total["first"][0] / count
            spread = np.sqrt(np.maximum(total["first"][1] / count - mean**2, 0.0))
            candidates = mean + spread * rng.standard_normal(candidates.shape)
            centers = candidates[: self.states]
        elif phase == 1:
            centers = drawn(candidates, np.maximum(np.rint(total["number"]), 0.0), self.states, rng)
        else:
            number = np.rint(total["number"][: self.states])
            mean = total["first"][: self.states] / np.maximum(number, 1.0)[:, None]
            after = np.where(number[:, None] > 0, mean, centers)
            done = bool(np.allclose(after, centers, rtol=0, atol=1e-12 * max(1.0, np.abs(after).max())))
            centers = after
        return {"centers": centers, "candidates": candidates, "phase": np.array([min(phase + 1.0, 2.0)])}, done

    def outputs(self, x: Tensor, theta: Mapping[str, Tensor]) -> Tensor:
        flat = x.flatten(1)
        centers = theta["centers"]
        nearest = (flat[:, None] - centers).square().sum(2).argmin(1)
        return flat - centers[nearest]


def drawn(points: Floats, weights: Floats, many: int, rng: np.random.Generator) -> Floats:
    """Return ``many`` of the weighted points [n, D], drawn as k-means++ does; fewer with a weight repeat."""
    if not weights.any():  # false sums
        return points[:many]
    chosen = [int(rng.choice(len(points), p=weights / weights.sum()))]
    for _ in range(many - 1):
        apart = ((points[:, None] - points[chosen]) ** 2).sum(2).min(1) * weights
        known = apart.sum() > 0
        chosen.append(int(rng.choice(len(points), p=apart / apart.sum())) if known else chosen[0])
    return points[chosen]
