"""One or several of the user's tables: rows of sensors with columns for device, factory, time and label."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError
from fedfloor.base.names import typed
from fedfloor.data.cache import CacheEntry, Writer, remember
from fedfloor.data.dataset import Dataset, Indices, Inputs, Owned, Values
from fedfloor.data.ended import told
from fedfloor.data.files import expanded
from fedfloor.data.files.categories import describe, encoded, listed, sources
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.encode import (
    MOST_NUMBERS,
    OddLabelsError,
    check_no_measure,
    classes_of,
    codes,
    finished,
    labelled,
    lives,
    natural_order,
    numbers,
)
from fedfloor.data.files.evaluated import normal_without_label, readings
from fedfloor.data.files.excerpt import head
from fedfloor.data.files.layout import UnlabelledError
from fedfloor.data.files.marks import grouped, grouped_hint
from fedfloor.data.files.rows import is_workbook
from fedfloor.data.files.sheet import Sheet, scan, settled
from fedfloor.data.files.union import JoinedTables
from fedfloor.data.files.units import agreed, differing, units_of
from fedfloor.data.reading import DIALECT, Problem, Reading
from fedfloor.data.series import assemble, fill, say_missing
from fedfloor.data.split import Rows, pieces
from fedfloor.tasks.regression import LIVES

log = logging.getLogger(__name__)

RECIPE = "table 13"
# tables, and rows of each, in which marks between thousands are looked for
EXAMINED = 20
UNITS = 1000  # tables whose units are compared, at most
LOOKED_AT = 2000
MEANT = (
    "columns", "classes", "window", "missing", "split", "sort", "copies", "small", "decimal", "test", "bins",
    "remaining", "ended", "task", *DIALECT,
)  # fmt: skip


def load(path: Path, reading: Reading, seed: int, ask: Callable[[], None] = lambda: None) -> Dataset:
    """Read a table, whose devices are the natural owners in the order of their names.

    Args:
        path: the table's file.
        reading: its format and the conversion to samples.
        seed: the seed of random splits.
        ask: refuses files that would be misread; called before they are parsed, unless the cache has them.

    Raises:
        SettingError: a mistake in the table; the message names file, row and column.
    """
    reading.only(MEANT, "a table")
    paths = [path]
    if reading.test is not None:
        test = expanded(reading.test)
        if not test.is_file():
            raise SettingError(
                f"[data] test = '{reading.test}': {'a folder' if test.is_dir() else 'no such file'}. The test samples "
                f"for a table must be in a table like {path.name}."
            )
        if test.resolve() == path.resolve():
            raise SettingError(
                f"[data] test = '{reading.test}': the same file as [data] path. Give another table, or a split."
            )
        paths.append(test)

    def parse(writer: Writer) -> Mapping[str, Any]:
        ask()
        return _parse(paths, reading, writer)

    entry = remember(f"{RECIPE} {reading.recipe()}", paths, parse)
    return of_entry(path.name, entry, reading, seed)


def of_entry(
    name: str, entry: CacheEntry, reading: Reading, seed: int, inputs: Inputs | None = None, **more: Any
) -> Dataset:
    """Return a data set made from the output of :func:`write`."""
    arrays = entry.arrays
    facts = entry.facts
    rows = Rows(
        arrays["x"], arrays["y"], arrays["segment"], arrays.get("owner"), arrays.get("part"),
        arrays.get("time"), arrays.get("line"), arrays["file"], tuple(facts["files"]), run=arrays.get("run"),
        target=arrays.get("target"), **more,
    )  # fmt: skip
    each = rows.x.size // max(1, rows.x.shape[1])  # number of values of a sensor
    sensors = len({*sources(facts["columns"], facts.get("categories") or ())})
    say_missing(name, facts["missing"], each, sensors or rows.x.shape[1], reading.missing)
    if reading.ended is not None:
        log.info(
            "%s: %d of %d %s do not end with %s (data.ended), and %s.", name, *facts["running"],
            "recordings" if reading.remaining else "lives", told(reading.ended),
            "still run" if reading.lasting else "are left out",
        )  # fmt: skip
    # a model needs the coding of labels and sensors; tables do not contain labels of ``remaining``
    coding: dict[str, Any] = {"bins": list(reading.bins)} if reading.bins and not reading.remaining else {}
    coding |= {"categories": facts["categories"]} if facts.get("categories") else {}
    coding |= {"units": facts["units"]} if facts.get("units") else {}  # for comparison: values are not converted
    lives = reading.ended is not None and not reading.remaining  # whose state tells predictions which are over
    inputs = inputs or Inputs(
        "table", tuple(facts["columns"]), missing=reading.missing,
        names=reading.columns.roles() | ({"label": ""} if reading.ended is not None and not lives else {}),
        decimal=reading.decimal, coding=coding,
        dialect=reading.dialect() | facts.get("order", {}) | ({"ended": reading.ended} if lives else {}),
        device_of=facts.get("device_of", {}), ignored=reading.columns.ignore,
    )  # fmt: skip
    factory = None if facts["factory"] is None else np.array(facts["factory"], np.int32)
    owned = Owned(tuple(facts["devices"]), factory, tuple(facts["factories"]))
    data = assemble(name, tuple(facts["classes"]), rows, reading, inputs, owned, facts["digest"], seed)
    return replace(data, notes=(*data.notes, *facts.get("differ", ()), *facts.get("clocks", ())))


def _parse(paths: Sequence[Path], reading: Reading, writer: Writer) -> Mapping[str, Any]:
    label = ("label",) if reading.labelled else ()
    required = label if reading.whole or not reading.columns.device else ("device", *label)
    normal, *_ = readings(paths, reading)  # only of a detector: rows for testing need their labels
    both = [*zip(paths, (normal, reading), strict=False)]
    scanned = normal_without_label([scan(path, own, required=required) for path, own in both], reading)
    sheets = settled(scanned, reading)
    tell_grouped(sheets, reading)
    sheets, running = finished(sheets, reading)
    sheets, reading = labelled(sheets, reading)
    check_labels(sheets, reading)
    categories = listed(sheets, reading.columns.categories)
    sheets = encoded(sheets, categories, reading)
    texts = {
        role: sheets[0].text[role] if len(sheets) == 1 else [*chain.from_iterable(sheet.text[role] for sheet in sheets)]
        for role in ("device", "factory", "label")
        if all(role in sheet.text for sheet in sheets)
    }
    part = None
    if len(sheets) > 1:
        part = np.repeat(np.arange(2, dtype=np.int8), [len(sheet.line) for sheet in sheets])
        odd = next((sheet for sheet in sheets if "factory" in sheet.text and "factory" not in texts), None)
        if odd is not None:
            raise SettingError(
                f"{odd.title} has a column '{reading.columns.factory}', but the other table has none. "
                "Give both one, or none."
            )
    facts = write(writer, sheets, texts.get("device"), texts.get("factory"), texts.get("label"), reading, part)
    return {**facts, "categories": describe(categories), "running": running}


def tell_grouped(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Warn of sensors whose marks before three digits are read as fractions, but seem to count thousands.

    The first rows of the first tables are looked at. A draft refuses such a column.
    """
    given = {name: value for name, value in reading.dialect().items() if name != "until"}
    for sheet in sheets[:EXAMINED] if reading.thousands is None else ():
        if is_parquet(sheet.path) or is_workbook(sheet.path):
            continue  # their numbers are no texts
        table = head(sheet.path, LOOKED_AT, given | {"decimal": reading.decimal})
        for name in {*sheet.columns} & {*table.names}:
            cells = table.cells(name)
            if any(reading.decimal in cell for cell in cells) and (pair := grouped(cells, reading.decimal)):
                log.warning("%s, column '%s': %s", sheet.title, name, grouped_hint(pair, reading.decimal))


def check_labels(sheets: Sequence[Sheet], reading: Reading) -> None:
    """Check that the label column holds classes, unless the classes are listed.

    Raises:
        SettingError: the column holds measured values.
    """
    if not reading.whole and not reading.classes and reading.asked.kind == "classification":
        where = f"{sheets[0].title}, {sheets[0].cell.format(reading.columns.label)}"
        most = 2 if LIVES.fullmatch(reading.columns.label) else MOST_NUMBERS
        try:
            check_no_measure([text for sheet in sheets for text in sheet.text["label"]], where, reading, most)
        except OddLabelsError as error:
            sheet = next(sheet for sheet in sheets if error.texts[0] in sheet.text["label"])
            place = sheet.place(sheet.text["label"].index(error.texts[0]), reading.columns.label)
            odd = [text.casefold() for text in error.texts]
            message = place + str(error).removeprefix(where)
            raise UnlabelledError(message, sheet.path, reading.columns.label, reading.dialect(), odd) from error


def write(
    writer: Writer, sheets: Sequence[Sheet], device: Sequence[str] | None, factory: Sequence[str] | None,
    label: Sequence[str] | NDArray[np.float32] | None, reading: Reading, part: NDArray[np.int8] | None = None,
) -> Mapping[str, Any]:  # fmt: skip
    """Check the rows of tables, sort them by device and time, write them, and return facts about them.

    Args:
        writer: takes the arrays.
        sheets: the tables; if there are several, each is a separate recording.
        device, factory, label: the values of all rows of all tables in sequence; None if unknown. Labels of a
            regression may be numbers [N, targets].
        reading: the settings of columns, classes, missing values and order.
        part: int8 [N], 0 training or 1 test, if the tables have test samples; otherwise None.
    """
    roles = reading.columns.roles()
    everything = JoinedTables(sheets)
    _check_ids(sheets, roles["id"])
    least = 1 if reading.whole or not reading.asked.labelled else 2
    # bins of numbers are determined after the split
    target = None
    classes = tuple[str, ...]([""])
    if label is None:
        label = [""] * len(everything.line)
    elif isinstance(label, np.ndarray):
        target = label
        label = [str(row) for row in label.tolist()]
    elif reading.lasting:
        target = lives(label)
    elif reading.number is not None:
        target = numbers(label, lambda row: everything.place(row, roles["label"]), reading.decimal)
    else:
        classes = classes_of(label, reading.classes, lambda row: everything.place(row, roles["label"]), least)
    devices = [] if device is None else natural_order(device)
    owner = np.zeros(len(everything.line), np.int32) if device is None else codes(device or (), devices)
    factories, factory_of = _factory_of(everything, owner, devices, factory, roles["factory"])
    order = np.lexsort((everything.run, owner))  # stable, so that rows keep their order
    order = everything.in_time(everything.once(order, owner, label, reading), owner, devices, reading, roles)
    segment = everything.segments(order, owner)
    missing = _write_values(writer, everything, order, segment, reading)
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
    if reading.told:  # of a draft, which must not keep what it read
        raise SettingError(reading.told[0].text)
    return {
        "columns": everything.columns, "classes": classes, "devices": devices, "factories": factories,
        "factory": factory_of, "files": [sheet.title for sheet in sheets], "missing": missing,
        "digest": everything.digest(chain(device or (), factory or (), label), part, reading),
        "order": {"time_format": sheets[0].order} if sheets[0].order else {},
        **_units(everything, sheets, reading), "clocks": everything.shifted_clocks(owner, devices),
    }  # fmt: skip


def _units(tables: JoinedTables, sheets: Sequence[Sheet], reading: Reading) -> dict[str, Any]:
    """Return sensor → unit, where the tables state it alike, and sentences on those of which they do not."""
    paths = {sheet.path: sheet.title for sheet in sheets[:UNITS]}
    stated = {title: units_of(path, reading.dialect()) for path, title in paths.items()}
    used = {*tables.columns}
    stated = {title: {name: unit for name, unit in each.items() if name in used} for title, each in stated.items()}
    return {"units": agreed(stated.values()), "differ": differing(stated)}


def _write_values(
    writer: Writer, tables: JoinedTables, order: Indices, segment: NDArray[np.int32], reading: Reading
) -> Mapping[str, int]:
    """Write the values of all sensors with missing values treated; return sensor → number of missing values."""
    silent = tables.silent()
    if silent:
        text = f"{tables.place(0, silent[0])}: no value, as in all other rows. {tables.left_out(silent[0])}"
        reading.tell(Problem("empty", text, silent))
    missing = tables.missing(reading.columns.categories or ())
    missing = {name: many for name, many in missing.items() if name not in silent}
    if missing and reading.missing == "refuse":
        sparse = not reading.columns.device and 2 * max(missing.values()) > len(order)
        reading.tell(tables.hole(sum(missing.values()), sparse=sparse))
    if missing and reading.missing == "previous":
        times = None if tables.time is None else tables.time[order]
        writer.append("x", _filled(tables.rows(order), pieces(segment, times, reading.gap_s)))
    else:
        for rows in tables.blocks(order):
            writer.append("x", rows)
    return missing


def _check_ids(sheets: Sequence[Sheet], column: str) -> None:
    seen: dict[str, tuple[Sheet, int]] = {}
    for sheet in sheets:
        for row, value in enumerate(sheet.text.get("id", ())):
            other, line = seen.setdefault(value, (sheet, row))
            if (other, line) != (sheet, row):
                raise SettingError(
                    f"{sheet.place(row, column)}: '{value}' is already the id in {other.title}, row "
                    f"{other.line[line]}. Every row needs a unique id: remove the copy. If it is no identity of rows, "
                    f"but names machines or recordings: {typed('data.columns.device', column)} or "
                    f"{typed('data.columns.run', column)}; otherwise: {typed('data.columns.id', '')} (it is then read "
                    "as a sensor).",
                    key="repeated-id",
                )


def _factory_of(
    rows: JoinedTables, owner: NDArray[np.int32], devices: Sequence[str], factory: Sequence[str] | None, column: str
) -> tuple[list[str], list[int] | None]:
    """Return the factories' names and the factory of each device."""
    if factory is None:
        return [], None
    if not devices:
        raise SettingError(
            f"{rows.place(0, column)}: a factory, but rows dealt to made-up devices have no factory. Leave the role "
            "out: --set data.columns.factory=. If this column names the devices: --set "
            f"'data.columns.device={column}' --set data.columns.factory=."
        )
    names = natural_order(factory)
    code = codes(factory, names)
    _, first = np.unique(owner, return_index=True)
    of_device = code[first]
    odd = np.flatnonzero(code != of_device[owner])
    if len(odd):
        row = int(odd[0])
        device = devices[owner[odd[0]]]
        raise SettingError(
            f"{rows.place(row, column)}: device '{device}' is in factory '{factory[row]}' here, but in "
            f"'{names[of_device[owner[row]]]}' in row {rows.line[first[owner[row]]]}. A device belongs to one factory; "
            '[data] columns.factory = "" leaves factories out.',
            key="device-in-two-factories",
        )
    return names, of_device.tolist()


def _filled(x: Values, segment: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return rows [T, C] filled along recordings, or ready-made windows [T, C, L] filled along each window."""
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
