"""How a run is carried out: nothing in here changes its results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedfloor.errors import require


@dataclass(frozen=True)
class Limits:
    """When to stop before the schedule's last round, whichever comes first; the schedules stay as they are.

    A budget is used up by the first round with which all rounds so far cost that much or more: that round is done and
    counted. Budgets need a run with a price.

    Args:
        stop_after: number of the last round to do.
        accuracy: stop once an evaluation reaches it, in (0, 1].
        seconds: budget of time on the network, s.
        bytes: budget of bytes, over all links together.
        joules: budget of energy, J.
    """

    stop_after: int | None = None
    accuracy: float | None = None
    seconds: float | None = None
    bytes: float | None = None
    joules: float | None = None

    def __post_init__(self) -> None:
        last, share = self.stop_after, self.accuracy
        require(last is None or last >= 1, "stop after (--stop-after)", last, "a whole number of at least 1")
        require(
            share is None or 0 < share <= 1,
            "until accuracy (--until)",
            share,
            "a share, above 0 and at most 1, such as 0.8",
        )
        for name, budget in self.budgets.items():
            require(0 < budget < math.inf, f"until {name} (--until)", budget, "a number above 0, such as 3600")

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that were given, by name."""
        given = {"seconds": self.seconds, "bytes": self.bytes, "joules": self.joules}
        return {name: budget for name, budget in given.items() if budget is not None}

    def reached(self, accuracy: float | None, total: Mapping[str, float] | None) -> bool:
        """Say whether a limit on the figures is reached.

        Args:
            accuracy: of the last round's evaluation; None if it had none.
            total: seconds, bytes and joules of all rounds so far; None if they have no price.

        >>> Limits(seconds=3600).reached(None, {"seconds": 3600.0, "bytes": 8e6, "joules": 0.0})
        True
        """
        if self.accuracy is not None and accuracy is not None and accuracy >= self.accuracy:
            return True
        return total is not None and any(total[name] >= budget for name, budget in self.budgets.items())


@dataclass(frozen=True)
class Orders:
    """Where a run lies, whether it goes on, and when it stops.

    Args:
        out: the run's folder.
        resume: go on from the last checkpoint.
        force: resume in spite of a changed experiment, version or CPU.
        limits: when to stop early.
        keep: leave the folder also where training diverges in the first round.
    """

    out: Path
    resume: bool = False
    force: bool = False
    limits: Limits = Limits()
    keep: bool = False
