"""Several tables as one: rows of devices and recordings in the order of time, and missing values."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.base.names import count, toml_list, typed
from fedfloor.data.dataset import Indices, Times, Values
from fedfloor.data.files.categories import sources
from fedfloor.data.files.clocks import (
    copied,
    interleaves,
    reset,
    shift,
    shifted,
    summer,
    zone_of,
    zone_of_recordings,
)  # fmt: skip
from fedfloor.data.files.joined import JOIN
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.files.times import written
from fedfloor.data.reading import Problem, Reading

log = logging.getLogger(__name__)

PIECE = 1 << 16  # texts added to a digest at a time
BLOCK = 1 << 26  # bytes of samples sorted at a time
LISTED = 40  # sensors that an advice names, at most
# devices whose clocks are compared, at least and at most; rows of each, at least
FEW = 3
MANY = 1000
LONG = 100


def _given_twice(column: str, *, coarse: bool) -> str:
    """Return what to do about times that a device has in several rows; ``coarse``: in most of its rows."""
    several = (
        "If several machines or recordings have the same name, set the column that distinguishes them: --set "
        "data.columns.run=NAME."
    )
    if coarse:
        return (
            "Times are coarser than rows, as days are: they give the rows of a device no order. Write the time of day "
            f"beside them, or leave them out: {typed('data.columns.time', '')}, and where rows are in order, --set "
            f"'data.split={{kind=\"last\",rows=N}}'. {several}"
        )
    return (
        f"A device must have one row for each time, and these rows differ: remove one of them. {several} If "
        f"'{column}' is no moment, such as a duration: {typed('data.columns.time', '')}."
    )


def _difference(names: Sequence[str], others: Sequence[str]) -> str:
    """Return a description of the difference between the sensors of two tables.

    >>> _difference(["a", "b"], ["a", "c"]), _difference(["a", "b"], ["b", "a"])
    ("'c' missing, 'b' added", 'in another order')
    """
    missing = [f"{name!r} missing" for name in others if name not in names]
    added = [f"{name!r} added" for name in names if name not in others]
    return ", ".join([*missing, *added]) or "in another order"


def _by_name(sheets: Sequence[Sheet]) -> str:
    """Return the advice to read the sensors that all tables have by their names."""
    shared = [name for name in sheets[0].columns if all(name in sheet.columns for sheet in sheets)]
    encoded = any("=" in name for name in shared)  # a value of a category, which is no column of the table
    if sheets[0].cell != Sheet.cell or encoded or not 0 < len(shared) <= LISTED:
        return "All tables need the same sensors in the same order."
    way = f"--set 'data.columns.values={toml_list(shared)}'"
    return f"To read those that all tables have, in whatever order: {way}."


def _device(owner: NDArray[np.int32], devices: Sequence[str], row: int) -> str:
    return f"device '{devices[owner[row]]}'" if devices else "the recording"


class JoinedTables:
    """Several tables, treated as one."""

    def __init__(self, sheets: Sequence[Sheet]) -> None:
        self.sheets = sheets
        self.columns = list(sheets[0].columns)
        for sheet in sheets[1:]:
            if list(sheet.columns) != self.columns:
                raise SettingError(
                    f"{sheet.title}, row 1 (the header): other sensors than in {sheets[0].title}: "
                    f"{_difference(sheet.columns, self.columns)}. {_by_name(sheets)}",
                    key="columns-differ",
                )
            if (sheet.time is None) != (sheets[0].time is None):
                raise SettingError(
                    f"{sheet.title}: one of the tables has times, another has none. Give all tables times, or none."
                )
        self.line: Indices = np.concatenate([sheet.line for sheet in sheets])
        self.file = np.repeat(np.arange(len(sheets), dtype=np.int32), [len(sheet.line) for sheet in sheets])
        self.first = np.cumsum([0, *(len(sheet.line) for sheet in sheets)])
        self.run = self.file if "run" not in sheets[0].text else self._numbered(self.file)
        times = [sheet.time for sheet in sheets if sheet.time is not None]
        self.time = np.concatenate(times) if times else None

    def _numbered(self, group: NDArray[np.int32]) -> NDArray[np.int32]:
        number: dict[tuple[int, str], int] = {}
        names = zip(group.tolist(), (name for sheet in self.sheets for name in sheet.text["run"]), strict=True)
        return np.array([number.setdefault(name, len(number)) for name in names], np.int32)

    def named_runs(self, owner: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """Return the run of each row [rows], by name and device across files; None without a column of runs."""
        return self._numbered(owner) if "run" in self.sheets[0].text else None

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in messages."""
        number = int(self.file[row])
        return self.sheets[number].place(row - int(self.first[number]), column)

    def rows(self, order: Indices) -> Values:
        """Return the samples of rows [n, …] without doubling the memory."""
        if len(self.sheets) == 1:
            return self.sheets[0].x[order]
        first = self.sheets[0].x
        x = np.empty((len(order), *first.shape[1:]), first.dtype)
        for number in np.unique(self.file[order]):
            mine = self.file[order] == number
            x[mine] = self.sheets[number].x[order[mine] - self.first[number]]
        return x

    def blocks(self, order: Indices) -> Iterator[Values]:
        """Yield the samples of rows, :data:`BLOCK` bytes at a time."""
        many = max(1, BLOCK * len(order) // max(1, sum(sheet.x.nbytes for sheet in self.sheets)))
        for start in range(0, len(order), many):
            yield self.rows(order[start : start + many])

    def missing(self, categories: Collection[str] = ()) -> dict[str, int]:
        """Return sensor → number of missing values, if any; a missing text counts once for all its columns."""
        counts: dict[str, int] = {}
        names = sources(self.columns, categories)
        for sheet in self.sheets if self.sheets[0].x.dtype.kind == "f" else ():
            count = np.isnan(sheet.x).sum(axis=(0, *range(2, sheet.x.ndim)))
            for channel in np.flatnonzero(count).tolist():
                name = names[channel] if channel < len(names) else str(channel)
                if name not in names[:channel]:
                    counts[name] = counts.get(name, 0) + int(count[channel])
        return counts

    def segments(self, order: Indices, owner: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the recording of each row: the rows of the same device, file and, with a column of runs, run."""
        change = (np.diff(owner[order]) != 0) | (np.diff(self.run[order]) != 0)
        return np.concatenate([[0], np.cumsum(change)]).astype(np.int32)

    def silent(self) -> tuple[str, ...]:
        """Return the sensors without a single value."""
        silent = np.ones(len(self.columns), np.bool_)
        for sheet in self.sheets:
            if sheet.x.dtype.kind != "f" or len(self.columns) != sheet.x.shape[1]:
                return ()  # the channels of pictures have no names
            silent &= np.isnan(sheet.x).all(axis=(0, *range(2, sheet.x.ndim)))
        return tuple(self.columns[i] for i in np.flatnonzero(silent))

    def left_out(self, name: str) -> str:
        """Return the advice to leave a sensor out."""
        if self.sheets[0].cell != Sheet.cell:
            return "Or leave it out of the array."
        return f"Or leave the column out: [data] columns = {{ ignore = {toml_list([name])} }}."

    def in_time(
        self, order: Indices, owner: NDArray[np.int32], devices: Sequence[str], reading: Reading, roles: dict[str, str]
    ) -> Indices:
        """Return the order of rows with ascending times in each recording; refuse disordered or equal times."""
        if self.time is None:
            return order
        if reading.sort:
            self._note_mixed(owner, roles["time"])
            order = np.lexsort((self.time, self.run, owner))
        step = self._steps(order, owner, self.time)
        wrong = np.flatnonzero(step <= 0)
        if len(wrong) and not reading.sort:
            ordered = np.lexsort((self.time, self.run, owner))
            sorted_step = self._steps(ordered, owner, self.time)
            if (sorted_step == 0).any():  # sorting would be of no help
                order = ordered
                step = sorted_step
                wrong = np.flatnonzero(sorted_step == 0)
        if len(wrong):
            reading.tell(Problem("times", self._misfit(order, owner, devices, step, wrong, roles)))
            return order
        self._note_clock(owner, roles["time"])
        if not self.run.any():
            return order
        # recordings of a device in the order of their first times
        segment = self.segments(order, owner)
        _, first = np.unique(segment, return_index=True)
        begin = self.time[order[first]][segment]
        return order[np.lexsort((begin, owner[order]))]  # stable, so that recordings are not divided

    def once(
        self, order: Indices, owner: NDArray[np.int32], label: Sequence[str] | NDArray[np.float32], reading: Reading
    ) -> Indices:
        """Return rows without those that are in an earlier table, too, if copies are to be left out; otherwise warn.

        Such a row has the device, time, sensors and label of the other one. Times that are no dates begin anew in each
        recording, so that only a whole table counts.
        """
        if self.time is None or len(self.sheets) < 2:
            return order
        again = self._again(owner, label)
        for number, sheet in enumerate(self.sheets):
            mine = again[self.file == number]
            if not mine.any() or not (sheet.dated or mine.all()):
                again[self.file == number] = False
                continue
            text = "are left out (data.copies)" if reading.copies else "count twice: --set data.copies=drop"
            log.warning(
                "%s: %s of its %s %s also in an earlier table, with the same device, time and values, and %s.",
                sheet.title, f"{mine.sum():,}", count(len(mine), "row"), "is" if mine.sum() == 1 else "are", text,
            )  # fmt: skip
        return order[~again[order]] if reading.copies else order

    def _again(self, owner: NDArray[np.int32], label: Sequence[str] | NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return a mask of the rows that equal a row of an earlier table in device, time, sensors and label, [T]."""
        time = cast(Times, self.time)
        ordered = np.lexsort((self.file, time, owner))
        same = (np.diff(owner[ordered]) == 0) & (np.diff(time[ordered]) == 0)
        shared = np.zeros(len(time), np.bool_)
        shared[ordered[:-1]] = same
        shared[ordered[1:]] |= same
        rows = ordered[shared[ordered]]  # the earliest table's first
        again = np.zeros(len(time), np.bool_)
        if len(rows):
            named = np.unique(np.asarray(label)[rows], axis=0, return_inverse=True)[1].ravel()
            keys = [self.rows(rows), time[rows], owner[rows], named]
            again[rows] = copied(keys) & ~copied([*keys, self.file[rows]])  # copies within a table are its own matter
        return again

    def _misfit(
        self, order: Indices, owner: NDArray[np.int32], devices: Sequence[str], step: Times, wrong: Indices,
        roles: Mapping[str, str],
    ) -> str:  # fmt: skip
        """Return the message on rows whose times do not ascend, with the probable cause and its remedy."""
        time = cast(Times, self.time)
        recording = self._recordings(owner)
        row = int(order[wrong[0] + 1])
        before = int(order[wrong[0]])
        device = _device(owner, devices, row)
        if (away := reset(time, recording)).size:
            return (
                f"{self.place(int(away[0]), roles['time'])}: the clock of {_device(owner, devices, away[0])} is at "
                f"{self._at(away[0])}, more than a year away from its other rows; {count(len(away), 'such row')} in "
                "total. The clock was reset: correct these times, or remove the rows. Sorting would only move them."
            )
        twice = step[wrong[0]] == 0
        has = f"{device} has this time" if twice else f"{device} has a later time"
        more = f" ({len(wrong)} such rows)" if len(wrong) > 1 else ""
        start = f"{self.place(row, roles['time'])}: {has} in row {self.line[before]} already{more}."
        if self.sheets[0].local and (zone := zone_of(time, recording)):
            return (
                f"{start} The clock goes back an hour, as at the end of summer time. Name the time zone, in which the "
                f"order of rows distinguishes both hours: --set data.zone={zone}, for example."
            )
        copies = sum(int(sheet.copies().sum()) for sheet in self.sheets)
        if 2 * copies > len(wrong):
            which = "rows are exact copies" if copies > 1 else "row is an exact copy"
            return f"{start} {copies:,} {which} of earlier ones. Leave them out: --set data.copies=drop."
        if twice:
            coarse = 2 * len(wrong) > len(time) and self.sheets[0].cell == Sheet.cell
            return f"{start} {_given_twice(roles['time'], coarse=coarse)}"
        names = [roles.get("label", ""), roles.get("run", "")]
        several = f" If recordings are numbered within each class: {typed('data.columns.run', JOIN.join(names))}."
        several = several if self.run.any() and all(names) else ""
        if interleaves(time, recording):
            return (
                f"{start} The clock was set back, or these are two recordings with the same times: sorting would mix "
                "their rows. Correct the clock, or set the column that distinguishes them: --set data.columns.run=NAME."
                f"{several}"
            )
        return f"{start} Put the rows in order, or set [data] sort = true (--set data.sort=true).{several}"

    def _note_clock(self, owner: NDArray[np.int32], column: str) -> None:
        """Warn of clocks that were reset, and of an hour that the beginning of summer time leaves out."""
        time = cast(Times, self.time)
        recording = self._recordings(owner)
        dated = self.sheets[0].dated
        if dated and (away := reset(time, recording)).size:
            log.warning(
                "%s: the clock is at %s, more than a year away from the device's other rows; %s in total. If the clock "
                "was reset, correct these times or remove the rows.",
                self.place(int(away[0]), column), self._at(away[0]), count(len(away), "such row"),
            )  # fmt: skip
        if self.sheets[0].local and (jump := summer(time, recording)) is not None:
            log.warning(
                "%s: the clock goes forward an hour, as at the beginning of summer time, and no hour is missing if "
                "times are local: --set data.zone=%s, for example.",
                self.place(jump[0], column), jump[1],
            )  # fmt: skip
        if self.sheets[0].local and self.run.any() and (zone := zone_of_recordings(time, owner)):
            log.warning(
                "%s, column '%s': recordings go back an hour, as at the end of summer time, and are divided for "
                "testing in another order than they were made. Name the time zone: --set data.zone=%s, for example.",
                self.sheets[0].title, column, zone,
            )  # fmt: skip

    def shifted_clocks(self, owner: NDArray[np.int32], devices: Sequence[str]) -> list[str]:
        """Return a sentence on each device of which both ends of its rows are off those of all others by hours."""
        if self.time is None or not self.sheets[0].dated or not FEW <= len(devices) <= MANY:
            return []
        order = np.lexsort((self.time, owner))
        first, rows = np.unique(owner[order], return_index=True, return_counts=True)[1:]
        if rows.min() < LONG:
            return []
        parts = np.split(self.time[order], first[1:])
        ends = np.array([part[[0, -1]] for part in parts])
        steps = np.array([np.median(np.diff(part)) for part in parts])
        apart = [shift(ends, steps, k) for k in range(len(parts))]
        return [shifted(name, off) for name, off in zip(devices, apart, strict=True) if off]

    def _note_mixed(self, owner: NDArray[np.int32], column: str) -> None:
        """Warn of rows of two courses of a clock that sorting mixes."""
        time = cast(Times, self.time)
        recording = self._recordings(owner)
        if interleaves(time, recording):
            zone = zone_of(time, recording) if self.sheets[0].local else None
            advice = f"name the time zone (--set data.zone={zone}, for example)" if zone else "correct the clock"
            log.warning(
                "%s: sorting by time mixes rows that follow each other in the table, as if a clock was set back: %s, "
                "or set the column that distinguishes recordings (--set data.columns.run=NAME).",
                self.sheets[0].title + f", column '{column}'", advice,
            )  # fmt: skip

    def _recordings(self, owner: NDArray[np.int32]) -> Indices:
        """Return the recording of each row: a number for each pair of device and run."""
        return owner.astype(np.int64) * (int(self.run.max()) + 1) + self.run

    def _at(self, row: int) -> str:
        return written(float(cast(Times, self.time)[row]), dated=self.sheets[0].dated)

    def _steps(self, order: Indices, owner: NDArray[np.int32], time: Times) -> Times:
        """Return the time from each row to the next, [rows − 1], infinite between recordings."""
        same = (np.diff(owner[order]) == 0) & (np.diff(self.run[order]) == 0)
        return np.where(same, np.diff(time[order]), np.inf)

    def hole(self, count: int, *, sparse: bool) -> Problem:
        """Return the problem of missing values; ``sparse``: rows are parts, most of which lack a sensor."""
        number = next(number for number, sheet in enumerate(self.sheets) if np.isnan(sheet.x).any())
        row, column, *_ = np.argwhere(np.isnan(self.sheets[number].x))[0]
        more = f" ({count:,} missing values in total)" if count > 1 else ""
        message = (
            f"{self.sheets[number].place(int(row), self.columns[column])}: no value{more}. Set [data] missing = "
            '"previous" (the device\'s last value before), "mean" (the sensor\'s mean over all devices) or "drop" '
            "(leave such samples out)."
        )
        return Problem("missing", message, count=count, carried=self.time is not None and not sparse)

    def digest(self, words: Iterator[str], part: NDArray[np.int8] | None, reading: Reading) -> str:
        """Return the SHA-256 of the data, including shapes, names of columns and the rows for testing."""
        arrays = [
            array for array in (*(sheet.x for sheet in self.sheets), self.line, self.time, part) if array is not None
        ]
        header = [reading.recipe(), self.columns, [(array.shape, array.dtype.str) for array in arrays]]
        digest = hashlib.sha256(repr(header).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        for number, piece in enumerate(iter(lambda: list(islice(words, PIECE)), [])):
            digest.update(("\0" * (number > 0) + "\0".join(piece)).encode())
        return digest.hexdigest()
