"""Streams: the windows of samples that a device holds at a position, and the order of samples in a visit.

A window is here the samples that a device holds at a time, ``[data] stream``; the consecutive rows that make a single
sample, ``[data] window``, were cut when the data were read (:mod:`fedfloor.data.split`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, require
from fedfloor.data.dataset import Indices, Labels, Values


@dataclass(frozen=True)
class Cycle:
    """Cyclic drift of the class mix, as on a production line that changes its product.

    Let P passes over a device's n samples form one stretch of P·n places, and let σ_j be the place of the sample at
    place j after a stable sort of the stretch by class. The samples are then used in the order of (1 − s)·j + s·σ_j, so
    that with s = 1 class follows class, and with s = 0 the order is unchanged. With two equally frequent classes about
    the first s/(4 − 2s) of the stretch has only one class, and the last s/(4 − 2s) only the other.

    Every sample still occurs P times in P passes. A device's classes are in ascending order from a start drawn by
    (seed, device), which differs between devices. This drift is fedfloor's own, not from a paper.

    Args:
        strength: s in [0, 1].
        period: P, passes per cycle, at least 1.
    """

    strength: float = 1.0
    period: int = 1
    kind: Literal["cycle"] = "cycle"

    def __post_init__(self) -> None:
        require(0 <= self.strength <= 1, "data.stream.drift.strength", self.strength, "from 0 to 1")
        require(self.period >= 1, "data.stream.drift.period", self.period, "a whole number of passes, at least 1")

    def order(self, classes: Labels, seed: int, device: int) -> Indices:
        """Return the order of the places of a stretch, int64 [P·n], given their classes.

        >>> Cycle(strength=0.0).order(np.array([1, 0, 1, 0]), seed=0, device=0).tolist()
        [0, 1, 2, 3]
        """
        present, number = np.unique(classes, return_inverse=True)
        first = int(generator(seed, "drift", device).integers(len(present)))
        by_class = np.argsort((number - first) % len(present), kind="stable")
        place = np.arange(len(classes))
        sorted_place = np.empty(len(classes), np.int64)
        sorted_place[by_class] = place
        return np.argsort((1 - self.strength) * place + self.strength * sorted_place, kind="stable")


def endless(labels: Labels, seed: int, device: int, first: int, count: int, drift: Cycle | None = None) -> Indices:
    """Return a section of a device's endless stream: the local numbers of ``count`` samples from place ``first`` on.

    Pass p is the permutation of 0..n−1 drawn by (seed, device, p); place i of the stream is place i mod n of pass i//n.

    Args:
        labels: int64 [n], the classes of the device's local set, at least one.
        seed, device: the key of the draws.
        first: at least 0.
        count: at least 1.
        drift: the drift of the class mix, which changes the order; None: no drift.

    >>> both = endless(np.zeros(4, int), seed=0, device=1, first=0, count=8)
    >>> sorted(both[:4].tolist()), sorted(both[4:].tolist())
    ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    passes = 1 if drift is None else drift.period
    length = passes * len(labels)  # passes of the stretch that are sorted together
    low, high = first // length, -(-(first + count) // length)
    numbers = range(low * passes, high * passes)
    whole = np.concatenate([generator(seed, "stream", device, number).permutation(len(labels)) for number in numbers])
    if drift is not None:
        stretches = whole.reshape(-1, length)
        whole = np.concatenate([plain[drift.order(labels[plain], seed, device)] for plain in stretches])
    return whole[first - low * length :][:count]


def consecutive_windows(
    labels: Labels, seed: int, device: int, numbers: range, window: int, drift: Cycle | None = None
) -> Indices:
    """Return int64 [P, n], the windows ``numbers`` of a device's endless stream, and later ones at no further cost.

    Window i has the places i·n … i·n + n − 1, n = ``window``. The later windows are those that end within the passes
    that ``numbers`` need. The other arguments are those of :func:`endless`.

    >>> consecutive_windows(np.zeros(5, int), seed=0, device=0, numbers=range(1), window=2).shape
    (2, 2)
    """
    length = len(labels) * (1 if drift is None else drift.period)
    first = numbers.start * window
    enough = numbers.stop * window
    count = (-(-enough // length) * length - first) // window
    return endless(labels, seed, device, first, count * window, drift).reshape(count, window)


class Stream(Protocol):
    """A stream: a device's samples as a pure function of (seed, k, position), the position set by clock or visits."""

    @property
    def kind(self) -> str:
        """The name of the stream in ``[data] stream``."""
        ...

    def position(self, tick: int, visits: int) -> int:
        """Return a device's position from the park's clock and its number of visits so far in the run."""
        ...

    def holds(self, size: int) -> int:
        """Return the number of samples that a device with a local set of ``size`` holds at a time."""
        ...

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices | None:
        """Return int64 [P, n], the local sample numbers of a device at a position, and at the next P − 1 positions.

        None means all samples, each once. P is at least ``least``, and larger if more windows cost nothing.

        Args:
            labels: int64 [size], the classes of the device's local set.
            seed, device: the key of the draws.
            position: the position, from :meth:`position`.
            least: at least 1.
        """
        ...


@runtime_checkable
class Altering(Stream, Protocol):
    """A stream that also alters its samples, as a pure function of (seed, k, position)."""

    def altered(self, x: Values, seed: int, device: int, position: int) -> Values:
        """Return the altered samples of a device at a position, of shape and type of the stored ones x [n, *shape]."""
        ...


@dataclass(frozen=True)
class Static:
    """The absence of a stream: a device always holds its whole local data.

    >>> Static().position(tick=7, visits=3), Static().holds(10), Static().held(np.zeros(10, int), 0, 2, position=0)
    (0, 10, None)
    """

    kind: Literal["static"] = "static"

    def position(self, tick: int, visits: int) -> int:  # noqa: ARG002
        """Return 0, as neither time nor visits change the samples."""
        return 0

    def holds(self, size: int) -> int:
        """Return the size of the local set."""
        return size

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices | None:  # noqa: ARG002
        """Return None: the whole local set."""
        return None


def most_copies(stream: Stream, size: int) -> int:
    """Return how often a sample of a local set occurs at most in what a device holds at a time.

    A window of n consecutive places of the endless stream meets at most ⌊(L − g + n − 1)/L⌋ + 1 stretches of L = P·size
    places, g = gcd(n, L), as it begins at a multiple of g in a stretch; each stretch has a sample P times. Samples of
    an unknown stream may all be the same.

    >>> most_copies(Static(), 20), most_copies(Fifo(10), 20), most_copies(Fifo(12), 20), most_copies(Fifo(80), 20)
    (1, 1, 2, 4)
    """
    if stream.kind == "static" or not size:
        return 1
    if stream.kind == "augmented":  # whole passes begin anew with each window
        return -(-stream.holds(size) // size)
    if not isinstance(stream, _Windowed):
        return stream.holds(size)
    passes = 1 if stream.drift is None else stream.drift.period
    length = passes * size
    window = stream.window
    stretches = (length - math.gcd(window, length) + window - 1) // length + 1
    return min(window, passes * stretches)


@dataclass(frozen=True)
class _Windowed:
    window: int
    drift: Cycle | None = None

    def __post_init__(self) -> None:
        require(self.window >= 1, "data.stream.window", self.window, "a whole number of at least 1")

    def holds(self, size: int) -> int:  # noqa: ARG002
        """Return the window's size."""
        return self.window

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices:
        """Return the device's windows from number ``position`` to the end of the passes of ``least`` windows."""
        return consecutive_windows(labels, seed, device, range(position, position + least), self.window, self.drift)


@dataclass(frozen=True)
class Fifo(_Windowed):
    """One-shot windows: every tick replaces the window by the next one, used or not.

    At tick t a device holds the samples t·n … t·n + n − 1 of its endless stream, n = ``window``, which consists of
    reshuffled passes over its local data (:func:`endless`).

    Li et al., "Data Heterogeneity-Robust Federated Learning via Group Client Selection in Industrial IoT" (FedGS).

    Args:
        window: n, samples held at a time, at least 1. If the local data are fewer, some occur several times.
        drift: the drift of the class mix with time.

    >>> Fifo(2).held(np.zeros(5, int), seed=0, device=0, position=Fifo(2).position(tick=2, visits=0))[0].tolist()
    [2, 4]
    """

    kind: Literal["fifo"] = "fifo"

    def position(self, tick: int, visits: int) -> int:  # noqa: ARG002
        """Return the tick."""
        return tick


@dataclass(frozen=True)
class Recycle(_Windowed):
    """Windows that a device keeps until it has trained on them.

    After v visits in the run a device holds the samples v·n … v·n + n − 1 of its endless stream, n = ``window``; the
    rest of a pass is filled up with the first samples of the next pass. Lost visits do not count. This follows FedGS's
    reference code, while its text has one-shot windows (:class:`Fifo`).

    Args:
        window: n, samples held at a time, at least 1. If the local data are fewer, some occur several times.
        drift: the drift of the class mix from window to window.
    """

    kind: Literal["recycle"] = "recycle"

    def position(self, tick: int, visits: int) -> int:  # noqa: ARG002
        """Return the number of visits so far in the run."""
        return visits


def batch_order(
    size: int, batch_size: int, epochs: int | None, steps: int | None, rng: np.random.Generator
) -> Iterator[tuple[Indices, int]]:
    """Yield the passes of a visit: (a permutation of 0 … size − 1, the number of its mini-batches to use).

    Mini-batch i of a pass is ``order[i * batch_size : (i + 1) * batch_size]``; the last one of a pass may be smaller.
    ``epochs`` gives that many whole passes; ``steps`` that many mini-batches over endless reshuffled passes. The
    permutations are drawn from ``rng`` pass by pass, so that it must not be used otherwise meanwhile.

    Args:
        size: number of samples, at least 1.
        epochs: number of passes, or None.
        steps: number of mini-batches, or None; exactly one of ``epochs`` and ``steps`` is given.
        rng: generator with the key (seed, round, tick, device, visit).

    Raises:
        SettingError: a number is out of range, or both or neither of ``epochs`` and ``steps`` are given.

    >>> [(len(order), batches) for order, batches in batch_order(10, 4, None, 5, np.random.default_rng(0))]
    [(10, 3), (10, 2)]
    """
    require(size >= 1, "samples of a device", size, "at least 1")
    require(batch_size >= 1, "[work] batch_size", batch_size, "a whole number of at least 1")
    if (epochs is None) == (steps is None):
        raise SettingError(f"[work] epochs = {epochs!r}, steps = {steps!r}: set exactly one of them.")
    key, count = ("epochs", epochs) if steps is None else ("steps", steps)
    require(count is not None and count >= 1, f"[work] {key}", count, "a whole number of at least 1")
    per_pass = -(-size // batch_size)
    total = (epochs or 0) * per_pass if steps is None else steps
    return ((rng.permutation(size), min(per_pass, total - done)) for done in range(0, total, per_pass))


BLOCK_BYTES = 1 << 16  # 64 KiB, some 90 windows of 32 samples and 62 classes
KEPT_BYTES = 1 << 27  # 128 MiB
OBJECT_BYTES = 1 << 10  # bytes of a block in addition to its numbers
WHOLE = slice(None)


class WindowBlock(NamedTuple):
    """The windows of a device at the positions ``first`` … ``end`` − 1, P of them.

    Args:
        windows: int64 [P, n], the local numbers of the samples; None: all samples, and P = 1.
        counts: int64 [P, F], class counts.
        before: the previous, used-up block.
    """

    first: int
    end: int
    windows: Indices | None
    counts: NDArray[np.int64]
    before: WindowBlock | None = None


class Windows:
    """A cache of the windows of a park's devices and their class counts, from each device's last position on.

    Passes are shuffled as a whole, so that all their windows are computed together. A device that has used up a block
    receives one of twice as many windows, up to ``BLOCK_BYTES``: little is wasted for a device that is visited once,
    and few passes are shuffled twice for a device that is visited at successive positions. The used-up block is also
    kept, for choices some ticks ahead of training. If blocks exceed ``KEPT_BYTES``, the oldest ones are dropped.

    Args:
        labels: training indices [n] → their classes, int64 [n].
        indices: the training samples of each device.
    """

    def __init__(
        self, stream: Stream, seed: int, labels: Callable[[Indices], Labels], indices: Sequence[Indices], classes: int
    ) -> None:
        self.stream = stream
        self.seed = seed
        self.labels = labels
        self.indices = indices
        self.classes = classes
        self._altering = stream if isinstance(stream, Altering) else None
        self._blocks: OrderedDict[int, WindowBlock] = OrderedDict()
        self._bytes = 0

    def check(self, devices: Sequence[int], visits: Sequence[int]) -> None:
        """Raise SettingError unless there is one number of visits per device."""
        if len(visits) != len(devices):
            raise SettingError(
                f"{len(visits)} visits for {len(devices)} devices. Give one number per device.",
                key="visits-and-devices",
            )

    def at(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> list[tuple[WindowBlock, int]]:
        """Return for each device the block of its current position, and that position.

        Args:
            visits: number of visits so far in the run, for each of ``devices``.

        Raises:
            SettingError: the length of ``visits`` is not that of ``devices``.
        """
        self.check(devices, visits)
        position_of = self.stream.position
        blocks = self._blocks
        result = []
        for device, seen in zip(devices, visits, strict=True):
            position = position_of(tick, seen)
            block = blocks.get(device)
            if block is None or not block.first <= position < block.end:
                before = None if block is None else block.before
                back = before is not None and before.first <= position < before.end
                block = before if before is not None and back else self._next(device, position)
            result.append((block, position))
        return result

    def held(self, devices: Sequence[int], tick: int, visits: Sequence[int]) -> list[Indices | slice]:
        """Return for each device the local numbers of its current samples; arguments as of :meth:`at`."""
        if self.stream.kind == "static":
            self.check(devices, visits)
            return [WHOLE] * len(devices)
        now = self.at(devices, tick, visits)
        return [WHOLE if block.windows is None else block.windows[position - block.first] for block, position in now]

    def altered(self, x: Values, devices: Sequence[int], tick: int, visits: Sequence[int]) -> Values:
        """Return the concatenated current samples x of devices as altered by the stream."""
        if self._altering is None:
            return x
        parts = []
        end = 0
        for device, seen in zip(devices, visits, strict=True):
            begin, end = end, end + self.stream.holds(len(self.indices[device]))
            place = self.stream.position(tick, seen)
            parts.append(self._altering.altered(x[begin:end], self.seed, device, place))
        return np.concatenate(parts)  # type: ignore[return-value]  # of one type, as the parts are

    def _next(self, device: int, position: int) -> WindowBlock:
        """Return a new block of a device from a position on, which replaces its previous one."""
        last = self._blocks.pop(device, None)
        used_up = last is not None and position == last.end
        block = self._made(device, position, 2 * (last.end - last.first) if last is not None and used_up else 1)
        if last is not None and used_up:
            block = block._replace(before=last._replace(before=None))
        self._blocks[device] = block
        self._bytes += _bytes(block) - (0 if last is None else _bytes(last))
        while self._bytes > KEPT_BYTES and len(self._blocks) > 1:
            self._bytes -= _bytes(self._blocks.popitem(last=False)[1])
        return block

    def _made(self, device: int, first: int, least: int) -> WindowBlock:
        indices = self.indices[device]
        classes = self.classes
        most = max(1, BLOCK_BYTES // (8 * (self.stream.holds(len(indices)) + classes)))
        labels = self.labels(indices)
        windows = self.stream.held(labels, self.seed, device, first, min(least, most))
        if windows is None:
            return WindowBlock(first, first + 1, None, np.bincount(labels, minlength=classes)[None])
        windows = windows[:most].copy()  # a copy, as a view would keep whole passes in memory
        several = len(windows)
        place = labels[windows] + classes * np.arange(several)[:, None]
        counts = np.bincount(place.ravel(), minlength=several * classes).reshape(several, classes)
        return WindowBlock(first, first + several, windows, counts)


def _bytes(block: WindowBlock) -> int:
    own = OBJECT_BYTES + block.counts.nbytes + (0 if block.windows is None else block.windows.nbytes)
    return own + (0 if block.before is None else _bytes(block.before))
