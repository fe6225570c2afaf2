"""A table of one's own: rows of sensors with columns for device, factory, time and label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.bins import labelled, numbers
from fedfloor.data.cache import Writer, remember
from fedfloor.data.categories import describe, encoded, listed, sources
from fedfloor.data.dataset import Dataset, Inputs, Owned, Values
from fedfloor.data.files import expanded
from fedfloor.data.joined import Joined
from fedfloor.data.names import check_no_measure, classes_of, codes, natural_order
from fedfloor.data.reading import DIALECT, Reading
from fedfloor.data.series import assemble, fill, say_missing
from fedfloor.data.sheet import Sheet, scan, settled
from fedfloor.data.split import Rows
from fedfloor.errors import SettingError

RECIPE = "table 7"
MEANT = (
    "columns", "classes", "window", "missing", "split", "sort", "small", "decimal", "test", "bins", "remaining", "task",
    *DIALECT,
)  # fmt: skip


def load(path: Path, reading: Reading, seed: int) -> Dataset:
    """Read one table: its devices are the natural owners, in the order of their names.

    Args:
        path: a CSV file, packed or not.
        reading: what its columns are called, windows, split, missing values.
        seed: of random splits.

    Raises:
        SettingError: a mistake in the table; the message names file, row and column.
    """
    reading.only(MEANT, "a table")
    paths = [path] if reading.test is None else [path, _test_table(path, reading.test)]
    entry = remember(f"{RECIPE} {reading.recipe()}", paths, lambda writer: _parse(paths, reading, writer))
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
        more: for :class:`~fedfloor.data.split.Rows`.
    """
    rows = Rows(
        arrays["x"], arrays["y"], arrays["segment"], arrays.get("owner"), arrays.get("part"),
        arrays.get("time"), arrays.get("line"), arrays["file"], tuple(facts["files"]), run=arrays.get("run"),
        target=arrays.get("target"), **more,
    )  # fmt: skip
    each = rows.x.size // max(1, rows.x.shape[1])  # values of one sensor
    sensors = len({*sources(facts["columns"], facts.get("categories") or ())})
    say_missing(name, facts["missing"], each, sensors or rows.x.shape[1], reading.missing)
    inputs = inputs or Inputs(
        "table", tuple(facts["columns"]), missing=reading.missing, names=reading.columns.roles(),
        decimal=reading.decimal, dialect=reading.dialect() | facts.get("order", {}), coding=_coding(facts, reading),
        device_of=facts.get("device_of", {}),
    )  # fmt: skip
    factory = None if facts["factory"] is None else np.array(facts["factory"], np.int32)
    owned = Owned(tuple(facts["devices"]), factory, tuple(facts["factories"]))
    return assemble(name, tuple(facts["classes"]), rows, reading, inputs, owned, facts["digest"], seed)


def _coding(facts: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """Return what a model must know of how labels and sensors were made; labels of ``remaining`` stand in no table."""
    coding: dict[str, Any] = {"bins": list(reading.bins)} if reading.bins and not reading.remaining else {}
    return coding | ({"categories": facts["categories"]} if facts.get("categories") else {})


def _parse(paths: Sequence[Path], reading: Reading, writer: Writer) -> Mapping[str, Any]:
    label = () if reading.remaining or not reading.asked.labelled else ("label",)
    required = label if reading.whole or not reading.columns.device else ("device", *label)
    sheets, reading = labelled(settled([scan(path, reading, required=required) for path in paths], reading), reading)
    check_labels(sheets, reading)
    categories = listed(sheets, reading.columns.categories)
    sheets = encoded(sheets, categories, known=reading.whole)
    texts = {
        role: sheets[0].text[role] if len(sheets) == 1 else [*chain.from_iterable(sheet.text[role] for sheet in sheets)]
        for role in ("device", "factory", "label")
        if all(role in sheet.text for sheet in sheets)
    }
    part = None
    if len(sheets) > 1:
        part = np.repeat(np.arange(2, dtype=np.int8), [len(sheet.line) for sheet in sheets])
        odd = next((one for one in sheets if "factory" in one.text and "factory" not in texts), None)
        if odd is not None:
            raise SettingError(f"{odd.title} has a column '{reading.columns.factory}', the other table has none.")
    facts = write(writer, sheets, texts.get("device"), texts.get("factory"), texts.get("label"), reading, part)
    return {**facts, "categories": describe(categories)}


def _test_table(path: Path, said: str) -> Path:
    """Return the table of the test samples.

    Raises:
        SettingError: it is the other table, or no file.
    """
    test = expanded(said)
    if not test.is_file():
        raise SettingError(
            f"[data] test = '{said}': {'a folder' if test.is_dir() else 'no such file'}. The test samples of a table "
            f"lie in a table like {path.name}."
        )
    if test.resolve() == path.resolve():
        raise SettingError(f"[data] test = '{said}': that is [data] path itself. Give another table, or a split.")
    return test


def check_labels(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Refuse a column that is named as the label, but holds a measure; not where the classes are listed."""
    if not reading.whole and not reading.classes and reading.asked.kind == "classification":
        where = f"{sheets[0].title}, {sheets[0].cell.format(reading.columns.label)}"
        check_no_measure([text for sheet in sheets for text in sheet.text["label"]], where)


def write(
    writer: Writer, sheets: Sequence[Sheet], device: Sequence[str] | None, factory: Sequence[str] | None,
    label: Sequence[str] | NDArray[np.float32] | None, reading: Reading, part: NDArray[np.int8] | None = None,
) -> Mapping[str, Any]:  # fmt: skip
    """Check the rows of tables, put them in the order of devices and times, write them, and return the facts.

    Args:
        writer: takes the arrays.
        sheets: the tables; each is a recording of its own where there are several.
        device, factory, label: of every row of all tables, one after the other; None where nobody knows. Labels of a
            regression may be numbers [N, targets] already.
        reading: columns, classes, missing values, order.
        part: int8, of every row 0 training or 1 test, where the tables come split.

    Raises:
        SettingError: a mistake; the message names file, row and column.
    """
    roles = reading.columns.roles()
    everything = Joined(sheets)
    _check_ids(sheets, roles["id"])
    least = 1 if reading.whole or not reading.asked.labelled else 2
    target, classes = None, tuple[str, ...]([""])  # bins of numbers follow from the split
    if label is None:
        label = [""] * len(everything.line)
    elif isinstance(label, np.ndarray):
        target, label = label, [str(row) for row in label.tolist()]
    elif reading.number is not None:
        target = numbers(label, lambda row: everything.place(row, roles["label"]))
    else:
        classes = classes_of(label, reading.classes, lambda row: everything.place(row, roles["label"]), least)
    devices = [] if device is None else natural_order(device)
    owner = np.zeros(len(everything.line), np.int32) if device is None else codes(device or (), devices)
    factories, factory_of = _factory_of(everything, owner, devices, factory, roles["factory"])
    order = np.lexsort((everything.run, owner))  # stable: rows keep their order within
    order = everything.in_time(order, owner, devices, reading, roles)
    segment = everything.segments(order, owner)
    missing = everything.missing(reading.columns.categories or ())
    everything.check_measured()
    if missing and reading.missing == "refuse":
        raise everything.hole(
            sum(missing.values()), carried=not np.isnan(_filled(everything.rows(order), segment)).any()
        )
    if missing and reading.missing == "previous":
        x = _filled(everything.rows(order), segment)
        everything.check_filled(x, order, lambda row: devices[owner[row]] if devices else "")
        writer.append("x", x)
    else:
        for rows in everything.blocks(order):
            writer.append("x", rows)
    y = codes(label, classes) if target is None else np.zeros(len(label))
    writer.append("y", y[order].astype(np.int64))
    writer.append("segment", segment)
    writer.append("line", everything.line[order])
    writer.append("file", everything.file[order])
    run = everything.named_runs(owner)
    for name, values in (
        ("owner", None if device is None else owner), ("part", part), ("time", everything.time), ("run", run),
        ("target", target),
    ):  # fmt: skip
        if values is not None:
            writer.append(name, values[order])
    return {
        "columns": everything.columns, "classes": classes, "devices": devices, "factories": factories,
        "factory": factory_of, "files": [sheet.title for sheet in sheets], "missing": missing,
        "digest": everything.digest(chain(device or (), factory or (), label), part, reading),
        "order": {"time_format": sheets[0].order} if sheets[0].order else {},
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
            seen[value] = f"{sheet.title}, row {sheet.line[row]},"


def _factory_of(
    rows: Joined, owner: NDArray[np.int32], devices: Sequence[str], factory: Sequence[str] | None, column: str
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
