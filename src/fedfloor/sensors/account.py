"""The account of a source's values: each is a number, a label or missing with its reason, and counted once."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from fedfloor.base.errors import nearest, shown
from fedfloor.data.files.layout import coarse
from fedfloor.sensors.events import Missing, Refusal, label, number, warn_once

log = logging.getLogger(__name__)

SILENT_S = 30.0  # time after the first update from which sensors without a value are named
MOST_OTHERS = 1_000  # addresses kept as suggestions
LONGEST_OTHER = 200  # characters
MOST_SILENT = 20  # sensors without a value that the log names
MOST_REASONS = 100  # counted separately
EXACT = 2**53  # whole numbers up to which float64 represents all
Number = int | float


class ValueAccount:
    """The account of all values of a source.

    Args:
        names: C names of the sensors.
        offsets: C numbers to subtract from the values.
    """

    def __init__(self, names: Sequence[str], offsets: Sequence[Number]) -> None:
        self.names = tuple(names)
        self.offsets = tuple(offsets)
        self.missing = Counter[str]()  # by reason
        self.refused = Counter[str]()
        self.labels = 0
        self._numbers = np.zeros(len(names), np.int64)
        self._absent = np.zeros(len(names), np.int64)
        self._low = np.full(len(names), np.inf)
        self._high = np.full(len(names), -np.inf)
        self._others: dict[str, None] = {}
        self._warned = set[str]()
        self._began = math.inf

    def number(self, column: int, value: object, now: float) -> float:
        """Return the value of a sensor, NaN if it is missing.

        Args:
            now: this machine's monotonic clock, in s.
        """
        self._began = min(self._began, now)
        result = number(value, self.offsets[column])
        if isinstance(result, Missing):
            self._absent[column] += 1
            return self._miss(f"sensor '{self.names[column]}'", result)
        self._numbers[column] += 1
        self._low[column] = min(self._low[column], result)
        self._high[column] = max(self._high[column], result)
        if abs(result) > EXACT and isinstance(value, int):
            self._warn(f"{column} exact", "%s: whole numbers above 2^53 are rounded; set [offsets]", self.names[column])
        return result

    def label(self, value: object) -> str:
        """Return the label of a value, "" if it is missing."""
        result = label(value)
        if isinstance(result, Missing):
            self._miss("labels.address", result)
            return ""
        self.labels += 1
        return result

    def spans(self, value: object, count: int) -> None:
        """Count a message with labels of time spans; without any, it is refused."""
        self.labels += count
        if not count:
            self.refuse(Refusal("no label with since, until and label", "", f"{value!r:.200}"))

    def _miss(self, noun: str, missing: Missing) -> float:
        known = missing.reason in self.missing or len(self.missing) < MOST_REASONS
        reason = missing.reason if known else "other"
        self.missing[reason] += 1
        self._warn(f"{noun} {reason}", "%s: a value is missing (%s), and others may be.", noun, reason)
        return math.nan

    def refuse(self, refusal: Refusal) -> None:
        """Count messages or rows that are left out, and log the first of a subject for its reason."""
        self.refused[refusal.reason] += refusal.count
        key = f"{refusal.subject} {refusal.reason}"
        text = "left out (%s), and others will be: %s"
        self._warn(key, text, refusal.reason, refusal.detail)

    def suggest(self, others: Iterable[str]) -> None:
        """Keep addresses that the source reports, for suggestions."""
        suggestions(self._others, others)

    def review(self, addresses: Sequence[str], now: float, *, end: bool = False) -> None:
        """Log sensors that had no value so far, and sensors whose variation single precision does not resolve.

        Args:
            addresses: C addresses of the sensors.
            now: as in :meth:`number`.
            end: whether no further values follow.
        """
        if end or now - self._began >= SILENT_S:
            for column in np.flatnonzero(self._numbers + self._absent == 0)[:MOST_SILENT]:
                key = f"{column} silent"
                name = self.names[column]
                if key not in self._warned:  # advice takes time
                    advice = absent(addresses[column], self._others)
                    self._warn(key, "sensor '%s': no value so far.%s", name, advice)
        for column, step in coarse(self._low, self._high).items():
            self._warn(
                f"{column} coarse",
                "sensor '%s': its values vary by less than models resolve, whose inputs have steps of %.2g there. Set "
                "[offsets] %s = %d to keep its variation, and subtract the same number in the experiment's tables.",
                self.names[column],
                step,
                self.names[column],
                math.floor(self._low[column] + self.offsets[column]),
            )

    @property
    def silent(self) -> list[str]:
        """The sensors without any value so far, not even a missing one."""
        return [self.names[column] for column in np.flatnonzero(self._numbers + self._absent == 0)]

    def status(self) -> dict[str, Any]:
        """Return the numbers of values, numbers and labels, of missing ones and refusals by reason, and silent sensors.

        The number of values is the sum of numbers, labels and missing ones.
        """
        numbers = int(self._numbers.sum())
        return {
            "values": numbers + self.labels + self.missing.total(),
            "numbers": numbers,
            "labels": self.labels,
            "missing": dict(sorted(self.missing.items())),
            "left_out": dict(sorted(self.refused.items())),
            "silent": self.silent,
        }

    def _warn(self, key: str, text: str, *more: object) -> None:
        warn_once(self._warned, key, text, *more)


def suggestions(known: dict[str, None], others: Iterable[str]) -> None:
    """Add addresses to those known, up to limits, because they come from outside."""
    for address in others:
        if len(known) >= MOST_OTHERS:
            return
        if len(address) <= LONGEST_OTHER:
            known[address] = None


def absent(address: str, others: Collection[str]) -> str:
    """Return advice for an address without a value.

    >>> print(absent("press#tmep", ["press#temp", "press#load"]).strip())
    The source reports nothing at 'press#tmep'. Did you mean 'press#temp'? Reported: 'press#temp', 'press#load'.
    """
    known = [other for other in others if other != address]
    some = ", ".join(shown(other, 100) for other in known[:10]) + (", …" if len(known) > 10 else "")
    at = f" The source reports nothing at {shown(address)}.{nearest(address, known, 0.7)}"
    return at + (f" Reported: {some}." if some else "")
