"""Devices that change factory as time goes on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfloor.chance import generator
from fedfloor.data.dataset import Owners
from fedfloor.errors import require


@dataclass(frozen=True)
class Mobility:
    """Devices that are guests in other factories for a time.

    Time is cut into turns of ``every`` ticks. In the first all devices are at home; in each other one max(2, share·K)
    devices, drawn anew, hand their places on in a ring: each goes to the home of the one before it, which may be in its
    own factory. So factories keep their sizes, and everybody else is at home.

    Args:
        every: ticks that a turn lasts, at least 1.
        share: share of the devices that are guests, in (0, 1].
    """

    every: int
    share: float = 0.1

    def __post_init__(self) -> None:
        require(self.every >= 1, "park.mobility.every", self.every, "a whole number of ticks, at least 1")
        require(0 < self.share <= 1, "park.mobility.share", self.share, "a share, above 0 and at most 1")

    def factory_of(self, home: Owners, seed: int, tick: int) -> Owners:
        """Return int32 [K], the factory that each device stands in at a tick: a function of seed and turn.

        Args:
            home: int32 [K], the factory that each belongs to.
            seed: of the draws.
            tick: the park's clock.

        >>> home = np.array([0, 0, 1, 1], np.int32)
        >>> moving = Mobility(every=10, share=1.0)
        >>> moving.factory_of(home, seed=0, tick=9).tolist(), moving.factory_of(home, seed=0, tick=10).tolist()
        ([0, 0, 1, 1], [1, 1, 0, 0])
        """
        turn, devices = tick // self.every, len(home)
        if turn == 0 or devices == 1:
            return home
        guests = min(devices, max(2, round(self.share * devices)))
        who = generator(seed, "mobility", turn).choice(devices, guests, replace=False)
        now = home.copy()
        now[who] = home[np.roll(who, 1)]
        return now
