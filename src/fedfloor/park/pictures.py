"""Devices' samples that have to be made, such as rendered images: kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from fedfloor.data.dataset import Values


class Pictures:
    """Makes devices' samples, and keeps those of the most recently used devices.

    Args:
        make: device → all its samples.
        most: bytes kept; a device with more is made anew each time.
    """

    def __init__(self, make: Callable[[int], Values], most: int) -> None:
        self.make, self.most = make, most
        self._kept: OrderedDict[int, Values] = OrderedDict()
        self._bytes = 0

    def of(self, device: int) -> Values:
        """Return a device's samples; do not write into them."""
        x = self._kept.get(device)
        if x is not None:
            self._kept.move_to_end(device)  # the last one is the most recently used
            return x
        x = self.make(device)
        if x.nbytes <= self.most:
            self._kept[device] = x
            self._bytes += x.nbytes
            while self._bytes > self.most:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return x
