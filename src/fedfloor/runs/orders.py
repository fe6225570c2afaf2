"""How a run is carried out: nothing in here changes its results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedfloor.errors import require


@dataclass(frozen=True)
class Limits:
    """When to stop before the schedule's last round; the schedules stay as they are.

    Args:
        stop_after: number of the last round to do.
        accuracy: stop once an evaluation reaches it, in (0, 1].
    """

    stop_after: int | None = None
    accuracy: float | None = None

    def __post_init__(self) -> None:
        last, share = self.stop_after, self.accuracy
        require(last is None or last >= 1, "stop after (--stop-after)", last, "a whole number of at least 1")
        require(
            share is None or 0 < share <= 1,
            "until accuracy (--until)",
            share,
            "a share, above 0 and at most 1, such as 0.8",
        )


@dataclass(frozen=True)
class Orders:
    """Where a run lies, whether it goes on, and when it stops.

    Args:
        out: the run's folder.
        resume: go on from the last checkpoint.
        force: resume in spite of a changed experiment, version or CPU.
        limits: when to stop early.
    """

    out: Path
    resume: bool = False
    force: bool = False
    limits: Limits = Limits()
