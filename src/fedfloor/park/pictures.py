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

    def of(self, device: int) -> Values:
        """Return a device's samples; do not write into them."""
        kept = self._kept
        x = kept.pop(device, None)
        if x is None:
            x = self.make(device)
            if x.nbytes > self.most:
                return x
            while sum(other.nbytes for other in kept.values()) > self.most - x.nbytes:
                kept.popitem(last=False)
        kept[device] = x  # the last one is the most recently used
        return x
