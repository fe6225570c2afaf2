"""How a run is carried out: nothing in here changes its results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """When to stop before the schedule's last round; the schedules stay as they are.

    Args:
        stop_after: number of the last round to do.
        accuracy: stop once an evaluation reaches it, in (0, 1].
    """

    stop_after: int | None = None
    accuracy: float | None = None


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
