"""A table of one's own: rows of sensors with columns for device, factory, time and label."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError
from fedfloor.park.cache import Writer, remember
from fedfloor.park.dataset import Dataset, Indices, Inputs, Owned, Values
from fedfloor.park.names import classes_of, codes, natural_order
from fedfloor.park.reading import Reading
from fedfloor.park.series import assemble, fill, say_missing
from fedfloor.park.sheet import Sheet, read
from fedfloor.park.split import Rows

RECIPE = "table 2"
MEANT = ("columns", "classes", "window", "missing", "split", "sort", "small", "decimal")
BLOCK = 1 << 23  # bytes of samples put in order at once


class MissingValuesError(SettingError):
    """Values are missing, and nothing was said about what to do.

    Args:
        message: where the first one is, and what can be said.
        count: how many.
        has_time: whether rows have times, so that there is a value before.
    """

    def __init__(self, message: str, count: int, *, has_time: bool) -> None:
        super().__init__(message)
        self.count, self.has_time = count, has_time


def load(path: Path, reading: Reading, seed: int) -> Dataset:
    """Read one table: its devices are the natural owners, in the order of their names.

    Args:
        path: a CSV file, packed with gzip or not.
        reading: what its columns are called, windows, split, missing values.
        seed: of random splits.

    Raises:
        SettingError: a mistake in the table; the message names file, row and column.
    """
    reading.only(MEANT, "a table")
    entry = remember(f"{RECIPE} {reading.recipe()}", [path], lambda writer: _parse(path, reading, writer))
    return of_entry(path.name, entry.arrays, entry.facts, reading, seed)


def of_entry(
    name: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], reading: Reading, seed: int,
    inputs: Inputs | None = None, **more: Any,
) -> Dataset:  # fmt: skip
    """Make a data set of what :func:`write` has written.

    Args:
        name: the data set's name.
        arrays, facts: what was written.
        reading: window, split, missing values.
        seed: of random splits.
        inputs: what a sample is made of; told by the reading if None.
        more: for :class:`~fedfloor.park.split.Rows`.
    """
    rows = Rows(
        arrays["x"], arrays["y"], arrays["segment"], arrays.get("owner"), arrays.get("part"),
        arrays.get("time"), arrays.get("line"), arrays["file"], tuple(facts["files"]), **more,
    )  # fmt: skip
    say_missing(name, facts["missing"], rows.x.size, reading.missing)
    inputs = inputs or Inputs(
        "table", tuple(facts["columns"]), missing=reading.missing, names=reading.columns.roles(),
        decimal=reading.decimal,
    )  # fmt: skip
    factory = None if facts["factory"] is None else np.array(facts["factory"], np.int32)
    owned = Owned(tuple(facts["devices"]), factory, tuple(facts["factories"]))
    return assemble(name, tuple(facts["classes"]), rows, reading, inputs, owned, facts["digest"], seed)


def _parse(path: Path, reading: Reading, writer: Writer) -> Mapping[str, Any]:
    sheet = read(path, reading, required=("device", "label"))
    return write(writer, [sheet], sheet.text["device"], sheet.text.get("factory"), sheet.text["label"], reading)


def write(
    writer: Writer, sheets: Sequence[Sheet], device: Sequence[str] | None, factory: Sequence[str] | None,
    label: Sequence[str], reading: Reading, part: NDArray[np.int8] | None = None,
) -> Mapping[str, Any]:  # fmt: skip
    """Check the rows of tables, put them in the order of devices and times, write them, and return the facts.

    Args:
        writer: takes the arrays.
        sheets: the tables; each is a recording of its own where there are several.
        device, factory, label: of every row of all tables, one after the other; None where nobody knows.
        reading: columns, classes, missing values, order.
        part: int8, of every row 0 training or 1 test, where the tables come split.

    Raises:
        SettingError: a mistake; the message names file, row and column.
    """
    roles = reading.columns.roles()
    everything = _Joined(sheets)
    _check_ids(sheets, roles["id"])
    classes = classes_of(label, reading.classes, lambda row: everything.place(row, roles["label"]))
    devices = [] if device is None else natural_order(device)
    owner = np.zeros(len(label), np.int32) if device is None else codes(device or (), devices)
    factories, factory_of = _factory_of(everything, owner, devices, factory, roles["factory"])
    order = np.lexsort((everything.file, owner))  # stable: rows keep their order within
    order = everything.in_time(order, owner, devices, reading, roles)
    segment = everything.segments(order, owner)
    missing = everything.missing()
    if missing and reading.missing == "refuse":
        raise everything.hole(missing)
    if missing and reading.missing == "previous":
        x = _filled(everything.rows(order), segment)
        _check_filled(x, owner[order], devices, everything.columns)
        writer.append("x", x)
    else:
        for rows in everything.blocks(order):
            writer.append("x", rows)
    writer.append("y", codes(label, classes)[order].astype(np.int64))
    writer.append("segment", segment)
    writer.append("line", everything.line[order])
    writer.append("file", everything.file[order])
    for name, values in (("owner", None if device is None else owner), ("part", part), ("time", everything.time)):
        if values is not None:
            writer.append(name, values[order])
    return {
        "columns": everything.columns, "classes": classes, "devices": devices, "factories": factories,
        "factory": factory_of, "files": [sheet.title for sheet in sheets], "missing": missing,
        "digest": everything.digest([*(device or ()), *(factory or ()), *label], reading),
    }  # fmt: skip


def _check_ids(sheets: Sequence[Sheet], column: str) -> None:
    seen: dict[str, str] = {}
    for sheet in sheets:
        for row, value in enumerate(sheet.text.get("id", ())):
            if value in seen:
                raise SettingError(
                    f"{sheet.place(row, column)}: '{value}' is in {seen[value]} already. Every row needs an id of its "
                    "own: remove the copy."
                )
            seen[value] = f"{sheet.title}, row {sheet.line[row]},"


def _factory_of(
    rows: _Joined, owner: NDArray[np.int32], devices: Sequence[str], factory: Sequence[str] | None, column: str
) -> tuple[list[str], list[int] | None]:
    """Return the factories' names and the factory of each device.

    Raises:
        SettingError: a device is in two of them.
    """
    if factory is None:
        return [], None
    names = natural_order(factory)
    code = codes(factory, names)
    _, first = np.unique(owner, return_index=True)
    of_device = code[first]
    odd = np.flatnonzero(code != of_device[owner])
    if len(odd):
        row, device = int(odd[0]), devices[owner[odd[0]]]
        raise SettingError(
            f"{rows.place(row, column)}: device '{device}' is in factory '{factory[row]}' here, but in "
            f"'{names[of_device[owner[row]]]}' in row {rows.line[first[owner[row]]]}. A device stands in one factory."
        )
    return names, of_device.tolist()


def _filled(x: Values, segment: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return rows [T, C] filled along their recordings, ready-made windows [T, C, L] each along itself."""
    x = x.astype(np.float32, copy=False)
    if x.ndim == 2:
        return fill(x, segment)
    windows, channels, length = x.shape
    flat = x.transpose(0, 2, 1).reshape(-1, channels)
    return (
        fill(flat, np.repeat(np.arange(windows, dtype=np.int32), length))
        .reshape(-1, length, channels)
        .transpose(0, 2, 1)
    )


def _check_filled(
    x: NDArray[np.float32], owner: NDArray[np.int32], devices: Sequence[str], columns: Sequence[str]
) -> None:
    holes = np.argwhere(np.isnan(x))
    if len(holes):
        row, column = holes[0][:2]
        whose = f"device '{devices[owner[row]]}' has" if devices else "there is"
        raise SettingError(
            f"column '{columns[column]}': {whose} a recording without a single value, so "
            'that none can be carried on. Set [data] missing = "mean", or leave that sensor out.'
        )


class _Joined:
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
        times = [sheet.time for sheet in sheets if sheet.time is not None]
        self.time = np.concatenate(times) if times else None

    def place(self, row: int, column: str) -> str:
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
        many = max(1, BLOCK * len(order) // max(1, sum(sheet.x.nbytes for sheet in self.sheets)))
        for start in range(0, len(order), many):
            yield self.rows(order[start : start + many])

    def missing(self) -> int:
        return sum(int(np.isnan(sheet.x).sum()) for sheet in self.sheets if sheet.x.dtype.kind == "f")

    def first_hole(self) -> tuple[int, int]:
        number = next(number for number, sheet in enumerate(self.sheets) if np.isnan(sheet.x).any())
        row, column, *_ = np.argwhere(np.isnan(self.sheets[number].x))[0]
        return int(row + self.first[number]), int(column)

    def segments(self, order: Indices, owner: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the recording of each row: a device's rows in one file."""
        change = (np.diff(owner[order]) != 0) | (np.diff(self.file[order]) != 0)
        return np.concatenate([[0], np.cumsum(change)]).astype(np.int32)

    def in_time(
        self, order: Indices, owner: NDArray[np.int32], devices: Sequence[str], reading: Reading, roles: dict[str, str]
    ) -> Indices:
        """Return the order of the rows with times ascending in each recording; refuse what is out of order or twice."""
        if self.time is None:
            return order
        if reading.sort:
            order = np.lexsort((self.time, self.file, owner))
        same = (np.diff(owner[order]) == 0) & (np.diff(self.file[order]) == 0)
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
                f"already{more}. Put the rows in order, or set [data] sort = true."
            )
        return order

    def hole(self, count: int) -> MissingValuesError:
        row, column = self.first_hole()
        more = f" ({count:,} missing values in all)" if count > 1 else ""
        message = (
            f"{self.place(int(row), self.columns[column])}: no value{more}. Say what to do with [data] missing = "
            '"previous" (the device\'s last value), "mean" (the sensor\'s mean over all devices) or "drop" (leave such '
            "samples out)."
        )
        return MissingValuesError(message, count, has_time=self.time is not None)

    def digest(self, words: Sequence[str], reading: Reading) -> str:
        """Return the SHA-256 of what was read."""
        digest = hashlib.sha256(reading.recipe().encode())
        for part in (*(sheet.x for sheet in self.sheets), self.line, *([] if self.time is None else [self.time])):
            digest.update(np.ascontiguousarray(part).data)
        digest.update("\0".join(words).encode())
        return digest.hexdigest()
