"""The one type for what happens to an update between a device's training and the mean: :class:`PathPart`.

Codecs, limits, attacks, mixing rules and the work of a visit are such parts. Whoever carries an update calls ``leave``
at the sender and ``arrive`` at the receiver; prices and the wire read its bytes, the privacy statement what it hides,
the accountant its noise, and one loop (:mod:`fedfloor.parts.fitting`) what it cannot be combined with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedfloor.parts import fitting
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers

UPDATE = "update"  # entries of what others learn from a visit: the update, and the receipt's loss and accuracy
RECEIPT = "receipt"
SUM = "sum"  # of the updates, where these are masked
NONE = np.zeros(0, np.uint8)
HIDDEN = {UPDATE: "", RECEIPT: "", SUM: ""}


Kind = Literal["drawn", "sums", "steps"]


@dataclass(frozen=True)
class AddedNoise:
    """Gaussian noise that a part adds to a bounded quantity, as the privacy accounting reads it.

    Args:
        kind: ``drawn``: the cloud adds it to the sum of a round's randomly drawn devices; ``sums``: devices add it to
            what they send, in every visit; ``steps``: devices add it to the gradients of their samples.
        multiplier: z, the standard deviation in units of the bound.
        delta: δ for which ε is stated.
        key: the setting to raise for less privacy loss.
        about: further numbers for the statement of privacy, such as the bound ``clip``.
        steps: for ``steps``, the number of a device's samples → the share q of them in a step, and a visit's steps.
    """

    kind: Kind
    multiplier: float
    delta: float
    key: str
    about: Mapping[str, float | None] = field(default_factory=dict)
    steps: Callable[[int], tuple[float, int]] = lambda _: (1.0, 1)


class PathPart:
    """The base of everything that happens to an update; each member is neutral unless a part overrides it."""

    @property
    def traits(self) -> Mapping[str, str]:
        """What the part is for other settings: :mod:`fedfloor.parts.fitting`."""
        if self.privacy is None:
            return {}
        return dict.fromkeys((fitting.PROTECTED, *((fitting.NOISED,) if self.privacy.kind == "sums" else ())), "")

    @property
    def excludes(self) -> Mapping[str, str]:
        """The traits of methods and settings that it excludes, with reasons: :mod:`fedfloor.parts.fitting`."""
        return fitting.PROTECTING if self.privacy is not None else {}

    @property
    def privacy(self) -> AddedNoise | None:
        """The noise by which the part protects devices or samples; None without any."""
        return None

    @property
    def reveals(self) -> Mapping[str, str]:
        """What others learn from a visit, where the part changes it: ``update``, ``receipt``, ``sum`` → content.

        "": hidden. A part with noise hides all, as receipts then have no metrics.
        """
        return {} if self.privacy is None else HIDDEN

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        """Return what a device passes on of a change [n]: side information, and the numbers for the next part."""
        return NONE, x

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        """Return the receiver's numbers, from the result of :meth:`leave`."""
        return numbers

    @property
    def additive(self) -> bool:
        """Whether what follows needs no more than sums of updates."""
        return True

    @property
    def crosses(self) -> bool:
        """Whether its :meth:`stages` involve the cloud, for the devices of all factories."""
        return False

    def stages(self, devices: int) -> Sequence[tuple[int, int]]:
        """Return the bytes (down, up) that each device exchanges beside its payload in every stage of a visit.

        Args:
            devices: the number of devices that exchange messages with each other.
        """
        return ()
