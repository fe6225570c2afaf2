"""Time: what a device holds at its position, and the order in which a visit goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from fedfloor.data.dataset import Indices, Labels, Values
from fedfloor.errors import SettingError, require
from fedfloor.park.passes import Cycle, windows


class Stream(Protocol):
    """What device k holds is a pure function of (seed, k, position); the clock or the visits set the position."""

    @property
    def kind(self) -> str:
        """The stream's name in ``[data] stream``."""
        ...

    def position(self, tick: int, visits: int) -> int:
        """Return where a device stands, from the park's clock and how often it was trained so far in the run."""
        ...

    def holds(self, size: int) -> int:
        """Return how many samples a device with a local set of ``size`` holds at a time."""
        ...

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices | None:
        """Return int64 [P, n], the local sample numbers that a device holds at a position, and at the P − 1 next ones.

        None means that it is always all of them, each once. P is ``least`` or more: windows that cost nothing more.

        Args:
            labels: int64 [size], the classes of the device's local set.
            seed: of the draws.
            device: whose.
            position: what :meth:`position` returned.
            least: at least 1.
        """
        ...


@runtime_checkable
class Altering(Stream, Protocol):
    """A stream whose samples are not as they are stored, in a way that is a pure function of (seed, k, position)."""

    def shown(self, x: Values, seed: int, device: int, position: int) -> Values:
        """Return what the device's samples of a position look like, an array of the same shape and type.

        Args:
            x: [n, *shape], as they are stored.
            seed: of the draws.
            device: whose.
            position: what :meth:`position` returned.
        """
        ...


@dataclass(frozen=True)
class Static:
    """Nothing streams: a device always holds its whole local set.

    >>> Static().position(tick=7, visits=3), Static().holds(10), Static().held(np.zeros(10, int), 0, 2, position=0)
    (0, 10, None)
    """

    kind: Literal["static"] = "static"

    def position(self, tick: int, visits: int) -> int:
        """Return 0: neither time nor visits change what is held."""
        del tick, visits
        return 0

    def holds(self, size: int) -> int:
        """Return the size of the local set."""
        return size

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices | None:
        """Return None: the whole local set."""
        del labels, seed, device, position, least
        return None


@dataclass(frozen=True)
class Fifo:
    """One-shot windows: with every tick the next one overwrites the last, whether that was used or not.

    At tick t a device holds the samples t·n … t·n + n − 1 of its endless stream, n = ``window``: passes over its local
    set, one after the other, each reshuffled (:func:`~fedfloor.park.passes.endless`).

    Li et al., "Data Heterogeneity-Robust Federated Learning via Group Client Selection in Industrial IoT" (FedGS).

    Args:
        window: n, samples held at a time, at least 1. Where the local set is smaller, some are held several times.
        drift: how the class mix moves with time, if it does.

    >>> Fifo(2).held(np.zeros(5, int), seed=0, device=0, position=Fifo(2).position(tick=2, visits=0))[0].tolist()
    [2, 4]
    """

    window: int
    drift: Cycle | None = None
    kind: Literal["fifo"] = "fifo"

    def __post_init__(self) -> None:
        require(self.window >= 1, "data.stream.window", self.window, "a whole number of at least 1")

    def position(self, tick: int, visits: int) -> int:
        """Return the tick."""
        del visits
        return tick

    def holds(self, size: int) -> int:
        """Return the window's size."""
        del size
        return self.window

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices:
        """Return the device's windows from number ``position`` on, to the end of the passes that ``least`` reach."""
        return windows(labels, seed, device, range(position, position + least), self.window, self.drift)


@dataclass(frozen=True)
class Recycle:
    """Windows that wait: a device holds its next one until it has been trained on it.

    After v visits in the run a device holds the samples v·n … v·n + n − 1 of its endless stream, n = ``window``: what a
    pass leaves that is less than a window is filled up with the first samples of the next pass. A visit that was lost
    does not count. This is what FedGS's reference code does, where its text has one-shot windows (:class:`Fifo`).

    Args:
        window: n, samples held at a time, at least 1. Where the local set is smaller, some are held several times.
        drift: how the class mix moves from window to window, if it does.
    """

    window: int
    drift: Cycle | None = None
    kind: Literal["recycle"] = "recycle"

    def __post_init__(self) -> None:
        require(self.window >= 1, "data.stream.window", self.window, "a whole number of at least 1")

    def position(self, tick: int, visits: int) -> int:
        """Return the number of visits so far in the run."""
        del tick
        return visits

    def holds(self, size: int) -> int:
        """Return the window's size."""
        del size
        return self.window

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices:
        """Return the device's windows from number ``position`` on, to the end of the passes that ``least`` reach."""
        return windows(labels, seed, device, range(position, position + least), self.window, self.drift)


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
