"""Conversion of updates of single sensors to rows: the valid values at every multiple of a period."""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

KEPT = 100_000  # updates kept while the clock may have been set back
BACK_S = 5.0  # duration after which the clock counts as set back
REWIND_S = 60.0  # of the source's clock, repeated after a reconnection
EDGE = 1e-6  # of a period: tolerance for rounding of times


@dataclass(frozen=True, eq=False)
class Row:
    """The values of all sensors at a time.

    Args:
        epoch: the number of times that the clock was set back.
        time: s since 1970, by the source's clock.
        values: float64 [C], NaN where a value is missing.
        label: the label, "" for none.
    """

    epoch: int
    time: float
    values: NDArray[np.float64]
    label: str = ""


Cells = Mapping[int, float]
Label = str | None  # "" for a missing label, None for an unchanged one
Pending = tuple[float, int, Cells, Label]
Held = tuple[list[tuple[int, Any, Any]], str, float]  # columns with values and times, and the label with its time


class RowGrid:
    """A converter of updates to rows at multiples of a period.

    The row at time t has every sensor's last value up to t. It is complete once all sensors have a value after t, or
    ``wait_s`` after the first of these arrived; while a source is alive without updates, its clock is assumed to run.
    A pause of more than ``gap_s`` has no rows. With ``period_s = 0`` there is a row at the time of each update.

    Args:
        columns: C, the number of sensors.
        period_s: the time between rows, in s.
        wait_s: the time to wait for late values, in s.
        gap_s: the longest pause within a recording, in s.
        hold_s: the age above which a value counts as missing, in s.
        epoch, last: epoch and time of the newest row so far.
        counts: numbers of values that came late or repeatedly, and of times that the clock went back.
    """

    def __init__(
        self, columns: int, period_s: float, wait_s: float, gap_s: float, hold_s: float = math.inf,
        epoch: int = 0, last: float = -math.inf, counts: Counter[str] | None = None,
    ) -> None:  # fmt: skip
        self.period_s = period_s
        self.wait_s = wait_s
        self.gap_s = gap_s
        self.hold_s = hold_s
        self.epoch = epoch
        self.last = last
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._begin(columns)

    def _begin(self, columns: int) -> None:
        self._values = np.full(columns, np.nan)
        self._times = np.full(columns, -np.inf)
        self._seen = np.full(columns, -np.inf)
        self._label = ""
        self._label_time = -math.inf
        self._pending = list[Pending]()
        self._order = 0
        self._newest = -math.inf
        self._reached = 0.0
        self._marks: deque[tuple[float, float]] = deque()  # (now, newest time at that moment)
        self._log: deque[tuple[Pending, Held]] = deque()  # with the preceding values
        self.broken = True  # no earlier value is carried over
        self._back = list[tuple[float, Cells, Label]]()
        self._back_since = 0.0

    def add(self, time: float, cells: Cells, label: Label, now: float, *, initial: bool = False) -> None:
        """Add the values of a time.

        Args:
            time: s since 1970; −∞ for initial values of unknown age.
            cells: column → value.
            label: the label, "" if it is missing, None if it is unchanged.
            now: this machine's monotonic clock, in s.
            initial: whether they were set before, so that they yield no row.
        """
        if initial:
            self._hold(time, cells, label, late=True)
            return
        if time <= self.last and self._repeats(time, cells):
            self.counts["repeated"] += len(cells)
            return
        if time < self.last - self.gap_s:
            self._back_since = self._back_since if self._back else now
            self._back.append((time, cells, label))
            return
        if time < self.last or (time == self.last and self.period_s):
            self._late(time, cells, label)
            return
        self._not_back()
        self._order += 1
        heapq.heappush(self._pending, (time, self._order, cells, label))
        self._seen[list(cells)] = np.maximum(self._seen[list(cells)], time)
        if time > self._newest:
            self._newest = time
            self._reached = now
            if not self._marks or now - self._marks[-1][0] > self.wait_s / 8:
                self._marks.append((now, time))

    def _repeats(self, time: float, cells: Cells) -> bool:
        """Return whether all values of a time have been added before, as by a repeated delivery."""
        columns = [*cells]
        same = self._times[columns] == time
        return bool(cells) and bool(same.all()) and np.array_equal(self._values[columns], [*cells.values()], True)

    def _late(self, time: float, cells: Cells, label: Label) -> None:
        self.counts["late"] += len(cells) or 1
        self._hold(time, cells, label, late=True)

    def _not_back(self) -> None:
        """Treat earlier values as late, because the clock was not set back."""
        for late in self._back:
            self._late(*late)
        self._back.clear()

    def _hold(self, time: float, cells: Cells, label: Label, *, late: bool = False) -> None:
        for column, value in cells.items():
            if not late or time >= self._times[column]:
                self._values[column] = value
                self._times[column] = time
        if label is not None and (not late or time >= self._label_time):
            self._label = label
            self._label_time = time

    def _held(self, cells: Cells) -> Held:
        """Return the present values of the columns that an update changes."""
        return [(column, self._values[column], self._times[column]) for column in cells], self._label, self._label_time

    def forget(self) -> None:
        """Forget all values, because the connection was lost before the first row."""
        self._values[:] = np.nan
        self._times[:] = -np.inf
        self._label = ""
        self._label_time = -math.inf

    def detach(self) -> RowGrid:
        """Return a grid without values for the time after a lost connection.

        This grid is set back by ``REWIND_S``, because a lost connection is detected late, and repeats its last rows
        with the values stored by the source.
        """
        last = max(self.last, self._newest)
        while self._log:
            update, (before, self._label, self._label_time) = self._log.pop()
            for column, value, moment in before:
                self._values[column] = value
                self._times[column] = moment
            heapq.heappush(self._pending, update)
            self.last = min(self.last, (self._number(update[0]) - 1) * self.period_s)
        self._marks.clear()
        self._not_back()
        self._reached = math.inf
        return RowGrid(
            len(self._values), self.period_s, self.wait_s, self.gap_s, self.hold_s, self.epoch, last, self.counts
        )

    def rows(self, now: float, *, alive: bool = False, end: bool = False) -> Iterator[Row]:
        """Yield the complete rows; with ``end`` all rows.

        Args:
            now: this machine's monotonic clock, in s; −∞ while more values wait to be added.
        """
        if self._back and (now - self._back_since >= BACK_S or len(self._back) >= KEPT or end):
            yield from self._turn_back(now)
        if not self.period_s:
            while self._pending:
                self.last = self._pending[0][0]
                while self._pending and self._pending[0][0] == self.last:
                    _, _, cells, label = heapq.heappop(self._pending)
                    self._hold(self.last, cells, label)
                self.broken = False
                yield self._row()
            return
        limit = self._number(self._newest)
        if not end:
            limit = math.floor(self._complete(now, alive=alive) / self.period_s + EDGE)
        while (number := self._next(limit)) is not None:
            self.last = number * self.period_s
            while self._pending and self._number(self._pending[0][0]) <= number:
                update = heapq.heappop(self._pending)
                self._log.append((update, self._held(update[2])))
                self._hold(update[0], update[2], update[3])
            while self._log and self._log[0][0][0] < self.last - REWIND_S:
                self._log.popleft()
            yield self._row()

    def _row(self) -> Row:
        """Return the row at the time reached, without values that are too old."""
        old = self.last - self._times > self.hold_s
        return Row(self.epoch, self.last, np.where(old, np.nan, self._values), self._label)

    def _number(self, time: float) -> int:
        """Return the number of the first row at or after a time."""
        return math.ceil(time / self.period_s - EDGE) if math.isfinite(time) else -(1 << 62)

    def _next(self, limit: float) -> int | None:
        """Return the number of the next row up to a limit; None if there is none."""
        ahead = self._number(self._pending[0][0]) if self._pending else None
        number = None if math.isinf(self.last) else round(self.last / self.period_s) + 1
        far = number is None or self.broken or (ahead is not None and (ahead - number) * self.period_s > self.gap_s)
        if far:
            number = ahead
        if number is None or number > limit:
            return None
        self.broken = False
        return number

    def _complete(self, now: float, *, alive: bool) -> float:
        """Return the time up to which all values have arrived, in s since 1970."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= self.wait_s:
            self._marks.popleft()
        complete = float(self._seen.min(initial=np.inf)) if len(self._seen) else -math.inf
        if self._marks and now - self._marks[0][0] >= self.wait_s:
            complete = max(complete, self._marks[0][1])
        if now - self._reached >= self.wait_s:
            complete = max(complete, self._newest)
        if alive and not self._back and math.isfinite(self._newest):
            complete = max(complete, self._newest + now - self._reached - self.wait_s)
        return complete if math.isfinite(complete) else -1e18

    def _turn_back(self, now: float) -> Iterator[Row]:
        """Begin a new epoch with the kept values after the clock was set back; yield the old epoch's rows."""
        back = self._back
        self._back = []
        yield from self.rows(now, end=True)
        log.warning(
            "the source's clock was set back by %.0f s: a new recording begins. If this happens often, set "
            'clock = "arrival".', self.last - back[0][0],
        )  # fmt: skip
        self.counts["clock went back"] += 1
        self._begin(len(self._values))
        self.epoch = self.epoch + 1
        self.last = -math.inf
        for time, cells, label in back:
            self.add(time, cells, label, now)
