"""What a codec does: it encodes numbers, decodes them, and may keep what an encoding left out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfloor.parts import fitting
from fedfloor.parts.travel.packing import Bytes, NumberLayout, Numbers
from fedfloor.parts.travel.path import PathPart

Chance = Callable[[int], np.random.Generator]  # place of a codec in its chain → its generator
Kept = Mapping[str, Numbers]  # what a device keeps for a codec, by name
ERROR = "error"  # the name of the error of a device's earlier changes


@dataclass(frozen=True)
class Codec(PathPart, ABC):
    """A codec, which encodes numbers as fewer or shorter ones and decodes them approximately.

    Attributes:
        changes: whether it encodes only changes of a model, as it drops numbers that a model needs.
        feedback: whether the device keeps tensors from one change to the next: its error, unless the codec overrides
            :meth:`correct` and :meth:`keep`.
        whole: whether it changes nothing, so that a chain omits it.
        summed: whether only a sum of payloads can be decoded.
    """

    changes: ClassVar[bool] = False
    feedback: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    summed: ClassVar[bool] = False

    @property
    def excludes(self) -> Mapping[str, str]:
        why = "the error that a device keeps from one visit does not belong to the next. Choose 'int8' or a codec "
        why += "without feedback."
        kept = {fitting.COHORTS: why, fitting.OBJECTIVE: why} if self.feedback else {}
        exact = "it rounds or leaves out numbers, so that the model would be another one. Leave it out."
        lossy = {} if self.whole or self.summed else {fitting.SUMS: exact}
        return {fitting.SEPARATE: "no models travel. Leave it out.", **super().excludes, **lossy, **kept}

    @property
    def error(self) -> float:
        """The greatest length of the error, relative to the length of the encoded vector."""
        return math.inf

    @abstractmethod
    def after(self, layout: NumberLayout) -> NumberLayout:
        """Return the layout of the numbers that the next codec gets."""

    def side(self, layout: NumberLayout) -> int:
        """Return the number of bytes of side information."""
        return 0

    @abstractmethod
    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        """Encode numbers: return the side information, and the numbers for the next codec."""

    @abstractmethod
    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        """Decode the result of :meth:`leave`: return the numbers, up to the codec's error.

        Raises:
            RefusedError: :meth:`leave` cannot have returned these bytes.
        """

    def correct(self, change: Numbers, kept: Kept) -> Numbers:
        """Return what a chain with this codec encodes instead of a change [n]: u + e.

        Args:
            change: the change u of the model in this visit, which must not be altered.
            kept: the result of :meth:`keep` for the device's previous change; empty at first.
        """
        return change + kept[ERROR] if ERROR in kept else change

    def keep(self, change: Numbers, corrected: Numbers, decoded: Numbers, kept: Kept) -> dict[str, Numbers]:
        """Return what the device keeps for its next change, by name, [n] each: the error e.

        Args:
            change, kept: the arguments of :meth:`correct`.
            corrected: its result, which must not be altered.
            decoded: what the receiver decodes.
        """
        return {ERROR: corrected - decoded}
