"""Which samples stacked visits step on, from the same keyed generators as the loop's, and what the visits then say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from fedfloor.chance import generator
from fedfloor.data.dataset import Indices
from fedfloor.engine.cohort.program import Order
from fedfloor.engine.visit import Trained, check_finite
from fedfloor.park.stream import batch_order
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key


def batches(held: Indices, work: Work, key: Key) -> list[Indices]:
    """Return the mini-batches of a visit in order, as rows of a pool.

    Args:
        held: which rows of the pool the device holds.
        work: epochs or steps, batch size.
        key: of the visit.
    """
    rng, size = generator(key.seed, "batches", *key.place()), work.batch_size
    found: list[Indices] = []
    for order, count in batch_order(len(held), size, work.epochs, work.steps, rng):
        rows = held[order[: count * size]]
        found += [rows[first : first + size] for first in range(0, len(rows), size)]
    return found


def stacked(visits: Sequence[Sequence[Indices]], kind: np.dtype) -> Order:
    """Return the order of visits side by side, those with more mini-batches first.

    Args:
        visits: the mini-batches of each, in falling order of their number.
        kind: of the shares.
    """
    steps, batch = len(visits[0]), max(len(one) for visit in visits for one in visit)
    rows = np.zeros((steps, len(visits), batch), np.int64)
    share = np.zeros((steps, len(visits), batch), kind)
    many = np.zeros(steps, np.int64)
    for k, visit in enumerate(visits):
        many[: len(visit)] += 1
        for s, one in enumerate(visit):
            rows[s, k, : len(one)], rows[s, k, len(one) :] = one, one[0]
            share[s, k, : len(one)] = 1 / len(one)
        rows[len(visit) :, k] = visit[-1][0]
    return Order(rows, share, many)


def fetching(*there: Tensor) -> Callable[[], list[np.ndarray]]:
    """Return what brings tensors from the device as float64, once, and lets go of them there."""
    left, here = list(there), list[np.ndarray]()

    def fetched() -> list[np.ndarray]:
        while left:
            here.append(left.pop(0).double().cpu().numpy())
        return here

    return fetched


class LazyMetrics:
    """What stacked visits say: their losses come from the device once, when the first is asked.

    Args:
        losses, hits: [S, K] on the device: mean losses, and samples classified rightly, of the mini-batches.
        visits: the mini-batches of each.
        keys: of the visits.
        work: what was done.
        held: samples that each trained on.
    """

    def __init__(
        self, losses: Tensor, hits: Tensor, visits: Sequence[Sequence[Indices]], keys: Sequence[Key], work: Work,
        held: Sequence[int],
    ) -> None:  # fmt: skip
        self._fetched = fetching(losses, hits)
        self._sizes = [[len(one) for one in visit] for visit in visits]
        self._keys, self._work, self._held = keys, work, held

    def of(self, k: int) -> Callable[[], list[Trained]]:
        """Return what tells of visit ``k``."""
        return lambda: [self._trained(k)]

    def _trained(self, k: int) -> Trained:
        """Return what a visit says.

        Raises:
            DivergedError: a loss is no finite number.
        """
        sizes, work = self._sizes[k], self._work
        losses, hits = (one[: len(sizes), k] for one in self._fetched())
        wrong = losses[~np.isfinite(losses)]
        if len(wrong):
            check_finite(float(wrong[0]), self._keys[k], work)
        per_pass = -(-self._held[k] // work.batch_size)
        last = slice((len(sizes) - 1) // per_pass * per_pass, None)
        seen = sum(sizes[last])
        right = float(hits[last].sum()) / seen if seen else math.nan
        if work.steps is not None:
            return Trained(len(sizes), float(losses[0]), float(losses[-1]), right)
        return Trained(len(sizes), float(losses[:per_pass].mean()), float(losses[last].mean()), right)


class LazyUnionMetrics:
    """What the visits of stacked super nodes say: each sample's loss comes from the device once.

    Args:
        each, right: [K, B] on the device: the losses of single samples, and whether they were classified rightly.
        sizes: of each super node, its devices' mini-batches.
        keys: of each super node, of its visits.
        work: what was done.
    """

    def __init__(
        self, each: Tensor, right: Tensor, sizes: Sequence[np.ndarray], keys: Sequence[Sequence[Key]], work: Work
    ) -> None:
        self._fetched = fetching(each, right)
        self._sizes, self._keys, self._work = sizes, keys, work

    def of(self, k: int) -> Callable[[], list[Trained]]:
        """Return what tells of super node ``k``."""
        found: list[Trained] = []

        def told() -> list[Trained]:
            if not found:
                found.extend(self._trained(k))
            return found

        return told

    def _trained(self, k: int) -> list[Trained]:
        sizes = self._sizes[k]
        starts = sizes.cumsum() - sizes
        means, right = ((np.add.reduceat(one[k, : sizes.sum()], starts) / sizes).tolist() for one in self._fetched())
        for key, loss in zip(self._keys[k], means, strict=True):
            check_finite(loss, key, self._work)
        return [Trained(1, loss, loss, hit) for loss, hit in zip(means, right, strict=True)]
