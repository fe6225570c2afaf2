"""Rankings of samples by their scores for a class, for the metrics that depend on the order alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ranking:
    """The ranking of samples by a score for a class.

    Args:
        own: int64 [B], the number of samples of the class with each distinct score, from the lowest.
        others: int64 [B], the number of other samples with each of these scores.
    """

    own: Counts
    others: Counts

    @property
    def auroc(self) -> float | None:
        """P(a sample of the class scores above another sample) + ½ P(equal); None if one kind of sample is missing."""
        pairs = int(self.own.sum()) * int(self.others.sum())
        below = np.cumsum(self.others) - self.others
        return float((self.own * (below + self.others / 2)).sum() / pairs) if pairs else None

    @property
    def average_precision(self) -> float | None:
        """Σ_t (R_t − R_t−1)·P_t over the distinct scores t from the highest, with recall R and precision P."""
        own = self.own[::-1]
        every = (self.own + self.others)[::-1]
        total = int(own.sum())
        return float((own * np.cumsum(own) / np.cumsum(every)).sum() / total) if total else None


def ranking(scores: NDArray[np.floating[Any]], own: NDArray[np.bool_]) -> Ranking:
    """Return the ranking of samples by a score.

    Args:
        scores: [n], higher for samples more similar to the class.
        own: bool [n], whether a sample has the class.

    >>> found = ranking(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    >>> found.auroc, round(found.average_precision, 4)
    (0.75, 0.8333)
    """
    distinct, at = np.unique(scores, return_inverse=True)
    counts = [np.bincount(at[label], minlength=len(distinct)) for label in (own, ~own)]
    return Ranking(*counts)


@dataclass(frozen=True, eq=False)
class Rankings(Mapping[int, Ranking]):
    """Class → the ranking of samples by their score for it, made when it is read: sorting takes most of the time.

    Args:
        y: int64 [n], the classes of the samples.
        scores: [n, S], the samples' scores for S classes.
        scored: the S classes.
    """

    y: NDArray[np.int64]
    scores: NDArray[Any]
    scored: Sequence[int]

    def __getitem__(self, label: int) -> Ranking:
        return ranking(self.scores[:, self.scored.index(label)], self.y == label)

    def __iter__(self) -> Iterator[int]:
        return iter(self.scored)

    def __len__(self) -> int:
        return len(self.scored)
