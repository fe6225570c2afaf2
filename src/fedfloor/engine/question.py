"""A question to devices: what a ``Probe`` asks, what it costs, and which answers are taken.

A question is one class. Whoever carries a ``Probe`` out, prices it, forecasts a run, takes an answer from the wire or
counts what answers reveal asks the class, and knows no question by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedfloor import ranges
from fedfloor.engine.engine import Engine
from fedfloor.models.parcel import Packet
from fedfloor.network.price import QuestionCost
from fedfloor.park.park import Park
from fedfloor.plan.nodes import Scalar


@dataclass(frozen=True)
class Sizes:
    """What questions are priced by.

    Args:
        model: bytes of the packet.
        number: bytes of one number of it.
        gradient: bytes of a gradient of the trained numbers.
        classes: F, of which a census counts samples.
        classifier: how many numbers of the model are its classifier's; 0 where that is unknown.
        shape: of a sample.
        samples: of a device, the mean.
    """

    model: int
    number: int
    gradient: int
    classes: int
    classifier: int
    shape: tuple[int, ...]
    samples: float


@dataclass(frozen=True)
class Question(ABC):
    """A question with its settings.

    Attributes:
        counts: whether the answer is class counts (they may carry a census's noise); zeros stand for a device that does
            not answer.
        drifts: whether the answer changes with the park's clock.
        weighs: whether the size of an answer decides how much it counts, so that far larger ones are refused.
        vector: whether the answer is a tensor [n] in the model's type; else it is JSON.
        extracts: whether it extracts features: devices take it with the settings of their own experiment alone.
        trains: whether its settings are those of a visit's work.
    """

    settings: Mapping[str, Scalar]

    counts: ClassVar[bool] = False
    drifts: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    vector: ClassVar[bool] = False
    extracts: ClassVar[bool] = False
    trains: ClassVar[bool] = False

    def harmless(self, classes: int) -> float:  # noqa: ARG002
        """Return the size up to which an answer is never taken for too large."""
        return 0.0

    def excess(self) -> str:
        """Return why the settings ask for more than a device does for others; "" where they do not."""
        return ""

    @abstractmethod
    def answer(self, engine: Engine, device: int, packet: Packet, tick: int) -> Any:
        """Answer for a device with the model that arrived; the engine's network may be overwritten."""

    @abstractmethod
    def price(self, sizes: Sizes) -> QuestionCost:
        """Return bytes down and up, passes over the device's samples, and whether the model goes along."""

    def pretended(self, park: Park, device: int, trained: int) -> Any:  # noqa: ARG002
        """Return an answer that a forecast goes on with, where nothing is trained; ``trained`` numbers has a model."""
        return park.classes(device)

    def checked(self, answer: object, device: int, engine: Engine) -> Any:  # noqa: ARG002
        """Return an answer in JSON that came from somewhere else.

        Raises:
            RefusedError: it is out of range, or the question is not answered in JSON.
        """
        raise ranges.RefusedError("kind", "the question is not answered in JSON.")

    def fits(self, vector: Tensor, device: int, engine: Engine) -> None:  # noqa: ARG002
        """Refuse a vector of the right length whose numbers no such device can have.

        Raises:
            RefusedError: they are.
        """
        return

    def length(self, engine: Engine) -> int | None:  # noqa: ARG002
        """Return how many numbers a vector has; None where only devices know."""
        return None
