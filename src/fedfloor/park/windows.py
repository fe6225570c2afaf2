"""What each device holds now: its window, worked out once per position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices, Labels
from fedfloor.park.stream import Stream


class Now(NamedTuple):
    """What a device holds: where it stands, the local numbers of the samples (None: all), and int64 [F] counts."""

    position: int
    window: Indices | None
    counts: NDArray[np.int64]


class Windows:
    """The windows of a park's devices. A device's last one is kept: it is asked for its census, then trained.

    Args:
        stream: what is held when.
        seed: of the stream.
        y: int64, the class of every sample of the data set.
        indices: for each device its training samples.
        counts: int64 [K, F], the class counts of the local sets.
    """

    def __init__(
        self, stream: Stream, seed: int, y: Labels, indices: Sequence[Indices], counts: NDArray[np.int64]
    ) -> None:
        self.stream, self.seed, self.y, self.indices, self.counts = stream, seed, y, indices, counts
        self._last: dict[int, Now] = {}

    def at(self, device: int, tick: int, visits: int) -> Now:
        """Return what a device holds at a tick, after so many visits in the run."""
        position = self.stream.position(tick, visits)
        last = self._last.get(device)
        if last is None or last.position != position:
            last = self._last[device] = self._made(device, position)
        return last

    def _made(self, device: int, position: int) -> Now:
        labels = self.y[self.indices[device]]
        window = self.stream.held(labels, self.seed, device, position)
        if window is None:
            return Now(position, None, self.counts[device])
        return Now(position, window, np.bincount(labels[window], minlength=self.counts.shape[1]))
