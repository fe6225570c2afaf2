"""Several tables as one: their rows one after the other, each knowing where it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.categories import sources
from fedfloor.data.dataset import Indices, Values
from fedfloor.data.reading import Reading
from fedfloor.data.sheet import Sheet
from fedfloor.errors import SettingError

PIECE = 1 << 16  # words put into a digest at once
BLOCK = 1 << 26  # bytes of samples put in order at once


class MissingValuesError(SettingError):
    """Values are missing, and nothing was said about what to do.

    Args:
        message: where the first one is, and what can be said.
        count: how many.
        has_time: whether there is a value before or after each: rows have times, and every recording has at least one
            value of every sensor.
    """

    def __init__(self, message: str, count: int, *, has_time: bool) -> None:
        super().__init__(message)
        self.count, self.has_time = count, has_time


class EmptySensorsError(SettingError):
    """Sensors have no value in any row.

    Args:
        message: which is the first, and what can be done.
        columns: all of them.
    """

    def __init__(self, message: str, columns: Sequence[str]) -> None:
        super().__init__(message)
        self.columns = tuple(columns)


class Joined:
    """Several tables as one."""

    def __init__(self, sheets: Sequence[Sheet]) -> None:
        self.sheets = sheets
        self.columns = list(sheets[0].columns)
        for sheet in sheets[1:]:
            if list(sheet.columns) != self.columns:
                raise SettingError(
                    f"{sheet.title}, row 1 (the header): sensors {', '.join(sheet.columns)}, but "
                    f"{sheets[0].title} has {', '.join(self.columns)}. All tables need the same ones in one order."
                )
            if (sheet.time is None) != (sheets[0].time is None):
                raise SettingError(f"{sheet.title}: one of the tables has times, another has none.")
        self.line: Indices = np.concatenate([sheet.line for sheet in sheets])
        self.file = np.repeat(np.arange(len(sheets), dtype=np.int32), [len(sheet.line) for sheet in sheets])
        self.first = np.cumsum([0, *(len(sheet.line) for sheet in sheets)])
        self.run = self.file if "run" not in sheets[0].text else self._runs()
        times = [sheet.time for sheet in sheets if sheet.time is not None]
        self.time = np.concatenate(times) if times else None

    def _runs(self) -> NDArray[np.int32]:
        """Return the number of each row's run, by file and by the column for it, in the order of their first rows."""
        number: dict[tuple[int, str], int] = {}
        names = [(file, name) for file, sheet in enumerate(self.sheets) for name in sheet.text["run"]]
        return np.array([number.setdefault(name, len(number)) for name in names], np.int32)

    def named_runs(self, owner: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """Return the run of each row where a column names them: one for a name and a device, whatever the file."""
        if "run" not in self.sheets[0].text:
            return None
        number: dict[tuple[int, str], int] = {}
        names = zip(owner.tolist(), (name for sheet in self.sheets for name in sheet.text["run"]), strict=True)
        return np.array([number.setdefault(name, len(number)) for name in names], np.int32)

    def place(self, row: int, column: str) -> str:
        """Return the place of a cell in words."""
        number = int(self.file[row])
        return self.sheets[number].place(row - int(self.first[number]), column)

    def rows(self, order: Indices) -> Values:
        """Return the samples of rows [n, …], without ever holding all of them twice."""
        if len(self.sheets) == 1:
            return self.sheets[0].x[order]
        first = self.sheets[0].x
        x = np.empty((len(order), *first.shape[1:]), first.dtype)
        for number in np.unique(self.file[order]):
            mine = self.file[order] == number
            x[mine] = self.sheets[number].x[order[mine] - self.first[number]]
        return x

    def blocks(self, order: Indices) -> Iterator[Values]:
        """Return the samples of rows, :data:`BLOCK` bytes at a time."""
        many = max(1, BLOCK * len(order) // max(1, sum(sheet.x.nbytes for sheet in self.sheets)))
        for start in range(0, len(order), many):
            yield self.rows(order[start : start + many])

    def missing(self, categories: Collection[str] = ()) -> dict[str, int]:
        """Return how many values of each sensor are missing, where any are; a text counts once for all its columns.

        Args:
            categories: the columns of texts that are sensors, see :func:`~fedfloor.data.categories.sources`.
        """
        found: dict[str, int] = {}
        names = sources(self.columns, categories)
        for sheet in self.sheets if self.sheets[0].x.dtype.kind == "f" else ():
            count = np.isnan(sheet.x).sum(axis=(0, *range(2, sheet.x.ndim)))
            for channel in np.flatnonzero(count).tolist():
                name = names[channel] if channel < len(names) else str(channel)
                if name not in names[:channel]:
                    found[name] = found.get(name, 0) + int(count[channel])
        return found

    def first_hole(self) -> tuple[int, int]:
        """Return the row and the column of the first missing value."""
        number = next(number for number, sheet in enumerate(self.sheets) if np.isnan(sheet.x).any())
        row, column, *_ = np.argwhere(np.isnan(self.sheets[number].x))[0]
        return int(row + self.first[number]), int(column)

    def segments(self, order: Indices, owner: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the recording of each row: a device's rows in one file, of one run where a column says so."""
        change = (np.diff(owner[order]) != 0) | (np.diff(self.run[order]) != 0)
        return np.concatenate([[0], np.cumsum(change)]).astype(np.int32)

    def check_measured(self) -> None:
        """Refuse a sensor without a single value."""
        silent = np.ones(len(self.columns), np.bool_)
        for sheet in self.sheets:
            if sheet.x.dtype.kind != "f" or len(self.columns) != sheet.x.shape[1]:
                return  # pictures, whose channels have no names
            silent &= np.isnan(sheet.x).all(axis=(0, *range(2, sheet.x.ndim)))
        if silent.any():
            names = [self.columns[i] for i in np.flatnonzero(silent)]
            raise EmptySensorsError(
                f"{self.place(0, names[0])}: no value, and none in any other row. {self.left_out(names[0])}", names
            )

    def check_filled(self, x: NDArray[np.float32], order: Indices, device: Callable[[int], str]) -> None:
        """Refuse rows [T, C, …] with a sensor that a recording has no value of, so that none could be carried on."""
        holes = np.argwhere(np.isnan(x))
        if len(holes):
            row, name = int(order[holes[0, 0]]), self.columns[holes[0, 1]]
            whose = f"device '{device(row)}' has" if device(row) else "there is"
            raise SettingError(
                f"{self.place(row, name)}: no value, and {whose} none in this whole recording that could stand for it. "
                f'Set [data] missing = "mean". {self.left_out(name)}'
            )

    def left_out(self, name: str) -> str:
        """Return how to do without a sensor."""
        if self.sheets[0].cell != Sheet.cell:
            return "Or leave it out of the array."
        return f'Or leave the column out: [data] columns = {{ ignore = ["{name}"] }}.'

    def in_time(
        self, order: Indices, owner: NDArray[np.int32], devices: Sequence[str], reading: Reading, roles: dict[str, str]
    ) -> Indices:
        """Return the order of the rows with times ascending in each recording; refuse what is out of order or twice."""
        if self.time is None:
            return order
        if reading.sort:
            order = np.lexsort((self.time, self.run, owner))
        same = (np.diff(owner[order]) == 0) & (np.diff(self.run[order]) == 0)
        step = np.diff(self.time[order])
        wrong = np.flatnonzero(same & (step <= 0))
        if len(wrong):
            row, before = int(order[wrong[0] + 1]), int(order[wrong[0]])
            device = f"device '{devices[owner[row]]}'" if devices else "the recording"
            if step[wrong[0]] == 0:
                raise SettingError(
                    f"{self.place(row, roles['time'])}: {device} has this time in row {self.line[before]} "
                    "already. A device has one row for each time: remove the copy."
                )
            more = f" ({len(wrong)} times in all)" if len(wrong) > 1 else ""
            raise SettingError(
                f"{self.place(row, roles['time'])}: {device} was at a later time in row {self.line[before]} "
                f"already{more}. Put the rows in order, or set [data] sort = true (--set data.sort=true)."
            )
        return self.by_start(order, owner)

    def by_start(self, order: Indices, owner: NDArray[np.int32]) -> Indices:
        """Return the order with each device's recordings in the order of their first times."""
        if self.time is None or not self.run.any():
            return order
        segment = self.segments(order, owner)
        _, first = np.unique(segment, return_index=True)
        begin = self.time[order[first]][segment]
        return order[np.lexsort((begin, owner[order]))]  # stable: a recording stays in one piece

    def hole(self, count: int, *, carried: bool) -> MissingValuesError:
        """Return the error for missing values; ``carried`` if each has a value before or after it."""
        row, column = self.first_hole()
        more = f" ({count:,} missing values in all)" if count > 1 else ""
        message = (
            f"{self.place(int(row), self.columns[column])}: no value{more}. Say what to do with [data] missing = "
            '"previous" (the device\'s last value), "mean" (the sensor\'s mean over all devices) or "drop" (leave such '
            "samples out)."
        )
        return MissingValuesError(message, count, has_time=self.time is not None and carried)

    def digest(self, words: Iterator[str], part: NDArray[np.int8] | None, reading: Reading) -> str:
        """Return the SHA-256 of what was read: shapes and names of columns too, and which rows are for testing."""
        arrays = [
            array for array in (*(sheet.x for sheet in self.sheets), self.line, self.time, part) if array is not None
        ]
        told = [reading.recipe(), self.columns, [(array.shape, array.dtype.str) for array in arrays]]
        digest = hashlib.sha256(repr(told).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        for number, piece in enumerate(iter(lambda: list(islice(words, PIECE)), [])):
            digest.update(("\0" * (number > 0) + "\0".join(piece)).encode())
        return digest.hexdigest()
