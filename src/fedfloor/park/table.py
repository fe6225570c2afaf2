"""A table of one's own: rows of sensors with columns for device, factory, time and label."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError
from fedfloor.park.cache import Writer, remember
from fedfloor.park.dataset import Dataset, Indices, Inputs, Owned
from fedfloor.park.names import classes_of, codes, natural_order
from fedfloor.park.reading import Reading
from fedfloor.park.series import Rows, assemble, fill, say_missing
from fedfloor.park.sheet import Sheet, read

RECIPE = "table 2"


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


def load(path: Path, reading: Reading, seed: int) -> Dataset:
    """Read one table: its devices are the natural owners, in the order of their names.

    Args:
        path: a CSV file, packed with gzip or not.
        reading: what its columns are called, windows, split, missing values.
        seed: of random splits.

    Raises:
        SettingError: a mistake in the table; the message names file, row and column.
    """
    entry = remember(f"{RECIPE} {reading.recipe()}", [path], lambda writer: _parse(path, reading, writer))
    return of_entry(path.name, entry.arrays, entry.facts, reading, seed)


def of_entry(
    name: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], reading: Reading, seed: int
) -> Dataset:
    """Make a data set of what :func:`write` has written."""
    rows = Rows(
        arrays["x"], arrays["y"], arrays["segment"], arrays["owner"],
        time=arrays.get("time"), line=arrays["line"], file=arrays["file"], files=tuple(facts["files"]),
    )  # fmt: skip
    say_missing(name, facts["missing"], rows.x.size, reading.missing)
    inputs = Inputs(
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
    writer: Writer, sheets: Sequence[Sheet], device: Sequence[str], factory: Sequence[str] | None,
    label: Sequence[str], reading: Reading,
) -> Mapping[str, Any]:  # fmt: skip
    """Check the rows of tables, put them in the order of devices and times, write them, and return the facts.

    Args:
        writer: takes the arrays.
        sheets: the tables; each is a recording of its own where there are several.
        device, factory, label: of every row of all tables, one after the other.
        reading: columns, classes, missing values, order.

    Raises:
        SettingError: a mistake; the message names file, row and column.
    """
    roles = reading.columns.roles()
    everything = _Joined(sheets)
    _check_ids(sheets, roles["id"])
    classes = classes_of(label, reading.classes, lambda row: everything.place(row, roles["label"]))
    devices = natural_order(device)
    owner = codes(device, devices)
    factories, factory_of = _factory_of(everything, owner, devices, factory, roles["factory"])
    order = np.lexsort((everything.file, owner))  # stable: rows keep their order within
    order = everything.in_time(order, owner, devices, reading, roles)
    x, segment = everything.x[order], everything.segments(order, owner)
    missing = int(np.isnan(x).sum())
    everything.check_measured()
    if missing and reading.missing == "refuse":
        raise everything.hole(missing, carried=not np.isnan(fill(x, segment)).any())
    if reading.missing == "previous":
        x = fill(x, segment)
        everything.check_filled(x, order, lambda row: devices[owner[row]])
    writer.append("x", x)
    writer.append("y", codes(label, classes)[order].astype(np.int64))
    writer.append("segment", segment)
    writer.append("owner", owner[order])
    writer.append("line", everything.line[order])
    writer.append("file", everything.file[order])
    if everything.time is not None:
        writer.append("time", everything.time[order])
    return {
        "columns": everything.columns, "classes": classes, "devices": devices, "factories": factories,
        "factory": factory_of, "files": [sheet.path.name for sheet in sheets], "missing": missing,
        "digest": everything.digest([*device, *(factory or ()), *label], reading),
    }  # fmt: skip


def _check_ids(sheets: Sequence[Sheet], column: str) -> None:
    every = [value for sheet in sheets for value in sheet.text.get("id", ())]
    if len(set(every)) == len(every):
        return
    seen: dict[str, str] = {}
    for sheet in sheets:
        for row, value in enumerate(sheet.text.get("id", ())):
            if value in seen:
                raise SettingError(
                    f"{sheet.place(row, column)}: '{value}' is in {seen[value]} already. Every row needs an id of its "
                    "own: remove the copy."
                )
            seen[value] = f"{sheet.path.name}, row {sheet.line[row]},"


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


class _Joined:
    """Several tables as one."""

    def __init__(self, sheets: Sequence[Sheet]) -> None:
        self.sheets = sheets
        self.columns = list(sheets[0].columns)
        for sheet in sheets[1:]:
            if list(sheet.columns) != self.columns:
                raise SettingError(
                    f"{sheet.path.name}, row 1 (the header): sensors {', '.join(sheet.columns)}, but "
                    f"{sheets[0].path.name} has {', '.join(self.columns)}. All tables need the same ones in one order."
                )
            if (sheet.time is None) != (sheets[0].time is None):
                raise SettingError(f"{sheet.path.name}: one of the tables has times, another has none.")
        self.x = np.concatenate([sheet.x for sheet in sheets])
        self.line: Indices = np.concatenate([sheet.line for sheet in sheets])
        self.file = np.repeat(np.arange(len(sheets), dtype=np.int32), [len(sheet.line) for sheet in sheets])
        self.first = np.cumsum([0, *(len(sheet.line) for sheet in sheets)])
        times = [sheet.time for sheet in sheets if sheet.time is not None]
        self.time = np.concatenate(times) if times else None

    def place(self, row: int, column: str) -> str:
        number = int(self.file[row])
        return self.sheets[number].place(row - int(self.first[number]), column)

    def segments(self, order: Indices, owner: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the recording of each row: a device's rows in one file."""
        change = (np.diff(owner[order]) != 0) | (np.diff(self.file[order]) != 0)
        return np.concatenate([[0], np.cumsum(change)]).astype(np.int32)

    def check_measured(self) -> None:
        silent = np.flatnonzero(np.isnan(self.x).all(axis=0))
        if len(silent):
            name = self.columns[silent[0]]
            raise SettingError(
                f"{self.place(0, name)}: no value, and none in any other row. Leave the column out: [data] columns = "
                f'{{ ignore = ["{name}"] }}.'
            )

    def check_filled(self, x: NDArray[np.float32], order: Indices, device: Callable[[int], str]) -> None:
        """Refuse rows [T, C] with a sensor that a recording has no value of, so that none could be carried on."""
        holes = np.argwhere(np.isnan(x))
        if len(holes):
            row, name = int(order[holes[0, 0]]), self.columns[holes[0, 1]]
            raise SettingError(
                f"{self.place(row, name)}: no value, and device '{device(row)}' has none in this whole recording that "
                'could stand for it. Set [data] missing = "mean", or leave the column out: [data] columns = '
                f'{{ ignore = ["{name}"] }}.'
            )

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
            device = devices[owner[row]]
            if step[wrong[0]] == 0:
                raise SettingError(
                    f"{self.place(row, roles['time'])}: device '{device}' has this time in row {self.line[before]} "
                    "already. A device has one row for each time: remove the copy."
                )
            more = f" ({len(wrong)} times in all)" if len(wrong) > 1 else ""
            raise SettingError(
                f"{self.place(row, roles['time'])}: earlier than row {self.line[before]} of the same device "
                f"'{device}'{more}. Put the rows in order, or set [data] sort = true."
            )
        return self.by_start(order, owner)

    def by_start(self, order: Indices, owner: NDArray[np.int32]) -> Indices:
        """Return the order with each device's recordings in the order of their first times."""
        if self.time is None or len(self.sheets) == 1:
            return order
        segment = self.segments(order, owner)
        _, first = np.unique(segment, return_index=True)
        begin = self.time[order[first]][segment]
        return order[np.lexsort((begin, owner[order]))]  # stable: a recording stays in one piece

    def hole(self, count: int, *, carried: bool) -> MissingValuesError:
        row, column = np.argwhere(np.isnan(self.x))[0]
        more = f" ({count:,} missing values in all)" if count > 1 else ""
        message = (
            f"{self.place(int(row), self.columns[column])}: no value{more}. Say what to do with [data] missing = "
            '"previous" (the device\'s last value), "mean" (the sensor\'s mean over all devices) or "drop" (leave such '
            "samples out)."
        )
        return MissingValuesError(message, count, has_time=self.time is not None and carried)

    def digest(self, words: Sequence[str], reading: Reading) -> str:
        """Return the SHA-256 of what was read."""
        digest = hashlib.sha256(reading.recipe().encode())
        for part in (self.x, self.line, *([] if self.time is None else [self.time])):
            digest.update(np.ascontiguousarray(part).data)
        digest.update("\0".join(words).encode())
        return digest.hexdigest()
