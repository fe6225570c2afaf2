"""Time: what a device holds at its position, and the order in which a visit goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedfloor.data.dataset import Indices
from fedfloor.errors import SettingError, require


class Stream(Protocol):
    """What device k holds is a pure function of (seed, k, position); the clock or the visits set the position."""

    @property
    def kind(self) -> str:
        """The stream's name in ``[data] stream``."""
        ...

    def position(self, tick: int, visits: int) -> int:
        """Return where a device stands, from the park's clock and how often it was visited so far."""
        ...

    def window(self, size: int, seed: int, device: int, position: int) -> Indices | None:
        """Return the local sample numbers (of 0..size−1) that a device holds at a position; None means all of them."""
        ...


@dataclass(frozen=True)
class Static:
    """Nothing streams: a device always holds its whole local set.

    >>> Static().position(tick=7, visits=3), Static().window(size=10, seed=0, device=2, position=0)
    (0, None)
    """

    kind: Literal["static"] = "static"

    def position(self, tick: int, visits: int) -> int:
        """Return 0: neither time nor visits change what is held."""
        del tick, visits
        return 0

    def window(self, size: int, seed: int, device: int, position: int) -> Indices | None:
        """Return None: the whole local set."""
        del size, seed, device, position
        return None


def batch_order(
    size: int, batch_size: int, epochs: int | None, steps: int | None, rng: np.random.Generator
) -> Iterator[tuple[Indices, int]]:
    """Return the passes of one visit: (a permutation of 0..size−1, how many of its mini-batches to use).

    Mini-batch i of a pass is ``order[i * batch_size : (i + 1) * batch_size]``; the last one of a pass may be smaller.
    ``epochs`` gives that many whole passes; ``steps`` that many mini-batches over endless reshuffled passes. The
    permutations are drawn from ``rng`` as the passes are asked for, so it must not be used for anything else meanwhile.

    Args:
        size: samples held, at least 1.
        batch_size: at least 1.
        epochs: passes, or None.
        steps: mini-batches, or None; exactly one of the two is given.
        rng: keyed by (seed, round, tick, device, visit).

    Raises:
        SettingError: a number out of range, or both or neither of ``epochs`` and ``steps``.

    >>> [(len(order), batches) for order, batches in batch_order(10, 4, None, 5, np.random.default_rng(0))]
    [(10, 3), (10, 2)]
    """
    require(size >= 1, "samples of a device", size, "at least 1")
    require(batch_size >= 1, "[work] batch_size", batch_size, "a whole number of at least 1")
    per_pass = -(-size // batch_size)
    if epochs is not None and steps is None:
        require(epochs >= 1, "[work] epochs", epochs, "a whole number of at least 1")
        return _passes(size, per_pass, epochs * per_pass, rng)
    if steps is not None and epochs is None:
        require(steps >= 1, "[work] steps", steps, "a whole number of at least 1")
        return _passes(size, per_pass, steps, rng)
    raise SettingError(f"[work] epochs = {epochs!r}, steps = {steps!r}: set exactly one of them.")


def _passes(size: int, per_pass: int, steps: int, rng: np.random.Generator) -> Iterator[tuple[Indices, int]]:
    for done in range(0, steps, per_pass):
        yield rng.permutation(size), min(per_pass, steps - done)
