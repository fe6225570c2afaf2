"""The selection problem of FedGS: a given number of devices with batches that add up to given class counts.

Li, Qi, Wang, Sun, Li, Chen, "Data Heterogeneity-Robust Federated Learning via Group Client Selection in Industrial
IoT", IEEE IoT-J 9(18), 2022, arXiv 2202.01512, Eq. 6 and 10-13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedfloor.base.errors import SettingError, require
from fedfloor.solvers.solution import Floats, Integers, Solution, confirm

ROUNDING = 1e-13  # relative to the sums of which a value is the difference


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """The problem: minimise d(x) = ‖A x − y‖₂ over x ∈ {0, 1}^N with Σ x = L.

    Args:
        counts: A [F, N], the samples of each class in each candidate's next batch.
        target: y [F], the target sum of the chosen batches; negative if too much is given already.
        how_many: L, 0 … N.
        share: P [F], the target class shares, with the sum 1; default: (y + b)/Σ(y + b).
        given: b [F], the samples of devices that take part in any case; default: none.
    """

    counts: Floats
    target: Floats
    how_many: int
    share: Floats | None = None
    given: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("counts", "target", "share", "given"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        shape = self.counts.shape
        require(len(shape) == 2 and min(shape) > 0, "shape of counts", shape, "(F, N), both at least 1")
        for name, least in (("counts", 0.0), ("target", -math.inf), ("share", 0.0), ("given", 0.0)):
            values = getattr(self, name)
            if values is not None:
                fits = name == "counts" or values.shape == shape[:1]
                require(fits, f"shape of {name}", values.shape, f"({shape[0]},): the classes of counts")
                _within(name, values, least)
        whole = isinstance(self.how_many, int | np.integer) and 0 <= self.how_many <= shape[1]
        require(whole, "how_many", self.how_many, f"a whole number of 0 … {shape[1]}, the candidates")
        object.__setattr__(self, "how_many", int(self.how_many))
        if self.share is not None:
            require(math.isclose(self.share.sum(), 1, rel_tol=1e-6), "sum of share", float(self.share.sum()), "1")

    @property
    def candidates(self) -> int:
        """The number of candidates, N."""
        return int(self.counts.shape[1])

    @property
    def already(self) -> Floats:
        """The samples b [F] of devices that take part in any case; zeros by default."""
        return np.zeros(self.target.shape) if self.given is None else self.given

    @property
    def wanted(self) -> Floats:
        """The target class shares, P [F]."""
        if self.share is not None:
            return self.share
        whole = self.target + self.already
        if whole.min() < 0 or whole.sum() <= 0:
            raise SettingError("share is not given, and target + given are not class shares: give share [F].")
        return np.asarray(whole / whole.sum())


def _within(name: str, values: Floats, least: float) -> None:
    bad = values[~(np.isfinite(values) & (values >= least))]
    allowed = "finite" if math.isinf(least) else "finite and at least 0"
    require(bad.size == 0, name, float(bad[0]) if bad.size else None, allowed)


def batches(
    counts: Floats, share: Floats, how_many: int, batch_size: float, given: Floats | None = None
) -> SelectionProblem:
    """Return FedGS's problem with y = (n·L + Σ b)·P − b, so that all batches together have the shares P.

    ``counts``: A [F, N]. ``share``: P [F]. ``how_many``: L. ``batch_size``: n. ``given``: b [F].

    >>> batches(np.eye(2), np.array([0.25, 0.75]), 2, 4, np.array([3.0, 1.0])).target
    array([0., 8.])
    """
    require(batch_size > 0, "batch_size", batch_size, "above 0")
    b = np.zeros(len(share)) if given is None else np.asarray(given, np.float64)
    whole = batch_size * how_many + b.sum()
    return SelectionProblem(counts, whole * np.asarray(share, np.float64) - b, how_many, share, given)


def value(problem: SelectionProblem, choice: Integers) -> float:
    """Return d(x) = ‖A x − y‖₂ of a choice, the candidates with x = 1.

    >>> value(SelectionProblem(np.eye(2), np.array([3.0, 5.0]), 1), np.array([1]))
    5.0
    """
    return float(np.linalg.norm(problem.counts[:, choice].sum(1) - problem.target))


def divergence(problem: SelectionProblem, choice: Integers) -> float:
    """Return the class divergence ‖(A x + b)/Σ(A x + b) − P‖₂, Eq. 6; ‖P‖₂ if the sum is 0."""
    held = problem.counts[:, choice].sum(1) + problem.already
    return float(np.linalg.norm(held / max(held.sum(), 1e-300) - problem.wanted))


def whole_bound(problem: SelectionProblem) -> float:
    """Return a bound for whole counts: min ‖v − y‖₂ over v ∈ ℤ^F; 0 for other counts.

    If every batch has n samples, Σ v = n·L, too: the rounded y is then corrected where that costs least (Conway,
    Sloane, IEEE Trans. Inf. Theory 28(2), 1982).
    """
    A = problem.counts
    y = problem.target
    if (np.rint(A) != A).any():
        return 0.0
    v = np.rint(y)
    off = np.sort(y - v)
    sizes = A.sum(0)
    if sizes.min() == sizes.max():
        missing = int(sizes[0] * problem.how_many - v.sum())
        if 0 < missing <= off.size:
            off[-missing:] -= 1
        elif -off.size <= missing < 0:
            off[:-missing] += 1
    return float(np.linalg.norm(off))


def check(problem: SelectionProblem, choice: Integers) -> None:
    """Raise SettingError for a choice that the problem does not allow."""
    n, k = problem.candidates, problem.how_many
    fits = choice.shape == (k,) and choice.dtype == np.int64 and bool((np.diff(choice) > 0).all())
    fits = fits and (k == 0 or (int(choice[0]) >= 0 and int(choice[-1]) < n))
    require(fits, "choice", choice.tolist(), f"{k} different candidates of 0 … {n - 1} in ascending order, int64")


def verify(problem: SelectionProblem, solution: Solution[Integers]) -> None:
    """Check a solution's choice, value and bound by plain NumPy; an error names what differs."""
    check(problem, solution.choice)
    largest = max(1.0, float(np.abs(problem.target).max()), float(problem.counts.max()) * problem.how_many)
    confirm("selection", value(problem, solution.choice), solution, ROUNDING * largest)
