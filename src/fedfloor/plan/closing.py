"""The end of a round, or of its meetings at edges, before the last visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfloor.base.errors import require


@dataclass(frozen=True)
class Close:
    """The end of a meeting: with the first results, at a deadline, or at the earlier of both.

    Args:
        first: the number of results with which it ends.
        deadline_s: the time at which it ends, in s from the beginning of the round, or from the arrival of the model at
            an edge.
        at: the site of the meetings that end: the ``cloud``, or every ``edge``.
    """

    first: int | None = None
    deadline_s: float | None = None
    at: Literal["cloud", "edge"] = "cloud"

    def __post_init__(self) -> None:
        given = self.first is not None or self.deadline_s is not None
        require(given, "round.close", "{}", "{ first = 8 }, { deadline_s = 60 } or both")
        require(self.first is None or self.first >= 1, "round.close: first", self.first, "a whole number from 1 on")
        above = self.deadline_s is None or self.deadline_s > 0
        require(above, "round.close: deadline_s", self.deadline_s, "seconds, above 0")
