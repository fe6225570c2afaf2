"""The flow of visits in a federation whose cloud does not wait for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedfloor.plan.nodes import Work


@dataclass(frozen=True)
class VisitFlow:
    """The rule by which visits depart from the cloud while others are still on their way.

    At first, ``concurrency`` devices drawn at random depart with the initial model. Whenever a result arrives, a
    device drawn among those at rest departs with the present model. With the ``buffer``-th result since the last round
    the round ends: the results make the next model. A device whose result is in the buffer rests until the round ends,
    so that no device is twice in a round; then visits depart until ``concurrency`` are on their way again.

    Args:
        work: the work of every visit.
        devices: the devices that take part.
        concurrency: M, the number of visits on their way.
        buffer: K, the number of results that end a round.
    """

    work: Work
    devices: tuple[int, ...]
    concurrency: int
    buffer: int


class Arrival(NamedTuple):
    """The arrival of a visit's result at the cloud.

    Attributes:
        device: the number of the device.
        version: the number of the round after which the model departed; 0: the initial model.
        departed_s, arrived_s: times since the beginning of the run; s, or mini-batches without a network.
        received_s, trained_s: times of the beginning and the end of training; None where a real machine has not
            reported how long both took.
    """

    device: int
    version: int
    departed_s: float
    arrived_s: float
    received_s: float | None = None
    trained_s: float | None = None

    def later(self, seconds: float) -> Arrival:
        """Return the arrival of a run that began earlier by some seconds."""
        times = (None if time is None else time + seconds for time in self[2:])
        return Arrival(self.device, self.version, *times)  # type: ignore[arg-type]

    def row(self) -> tuple[float, ...]:
        """Return what is known of it."""
        return tuple(value for value in self if value is not None)

    @property
    def round(self) -> int:
        """The round in which the visit departed, by which its work and its random draws are those of a usual visit."""
        return self.version + 1

    def age(self, number: int) -> int:
        """Return the number of global models that were made while the visit was on its way, in round ``number``."""
        return number - 1 - self.version
