"""Tables whose rows are no samples, or whose header names no sensors: each is refused with its conversion."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base.errors import SettingError
from fedfloor.base.names import some
from fedfloor.data.files.excerpt import Excerpt, Excerpts
from fedfloor.data.files.joined import parts_of
from fedfloor.data.files.layout import looks_like_time
from fedfloor.data.files.recipes import (
    LOOKED_AT,
    SORTED,
    ConversionError,
    as_text,
    code_of,
    converted,
    literal,
    pivoted,
    then,
)
from fedfloor.data.files.rows import SheetsError, is_workbook, place
from fedfloor.data.files.tables_beside import check_log
from fedfloor.data.files.tree import stem_of
from fedfloor.data.files.unlike_rows import OF_ROWS, check_names, check_sums
from fedfloor.data.kinds import is_number, is_text, word_of
from fedfloor.data.reading import skipped
from fedfloor.data.roles import NAMED, is_nameless, roles_of, stated

PAIR = re.compile(r"\d+:[+-]?\d[\d.eE+-]*")  # index:value
FLAGS = {"0", "1", "0.0", "1.0"}
FEWEST = 3  # columns of one label, at least
ANNOTATIONS = ("#group", "#datatype", "#default")
INFLUX = {"result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"}
KEYS = (  # names of columns with names of sensors
    "tag", "tag_name", "tagname", "tag_id", "field", "variable", "variable_name", "sensor", "sensor_name", "sensor_id",
    "signal", "signal_name", "channel", "channel_name", "parameter", "metric", "metric_name", "point", "point_id",
    "data_point", "node_id", "item", "item_id", "topic", "var_name",
    "measurement", "attribute", "property", "series", "kanal",
    "messstelle", "messgrösse", "merkmal", "signalname",
)  # fmt: skip
VALUES = (
    "value", "val", "values", "var_value",
    "reading", "measured_value", "numeric_value", "tag_value", "sensor_value", "wert",
    "messwert",
)  # fmt: skip


def check_table(path: Path, given: Mapping[str, Any], excerpts: Excerpts) -> None:
    """Refuse a table whose rows are no samples, or whose header has a cell without a name."""
    try:
        table = excerpts.head(path, LOOKED_AT, given)
        if table.first and not given.get("header"):
            _check_influx(path, table)
            _check_channels(path, table, given)
            _check_pairs(path, table)
            _check_nameless(path, table, given)
            _check_short_header(path, table, given)
            check_names(path, given)
        if given.get("skip") is None and (above := excerpts.preamble(path, given)):
            given = {**given, "skip": above}
            table = excerpts.head(path, LOOKED_AT, given)
        check_sums(path, given, table)
    except ConversionError:
        raise
    except SheetsError as several:
        folder = stem_of(path.name)
        raise ConversionError(
            "sheets", error=several, folder=code_of(folder), path=code_of(path), names=code_of(several.sheets),
            file=code_of(literal(folder) + "/{name}.csv"), quoted=shlex.quote(folder),
        ) from several  # fmt: skip
    except SettingError as error:
        if error.key in OF_ROWS:
            raise
        return  # the table's reader reports the mistake
    if {len(row) for row in table.rows} == {len(table.names)} == {len({*table.names})}:
        check_log(path, table)
        _check_long(path, table, given)
        _check_one_hot(path, table, given)


def _check_influx(path: Path, table: Excerpt) -> None:
    """Refuse InfluxDB's annotated CSV, with rows of annotations above each header, and a row per field."""
    if table.first[0] not in ANNOTATIONS:
        return
    names = next((row for row in table.rows if row and row[0] not in ANNOTATIONS), [])
    kept = [name for name in names if name == "_time" or (name and name not in INFLUX)]
    out = f"{stem_of(path.name)}-wide.csv"
    per_field = "_field" in names
    write = f"to_csv({code_of(out)}, index=False)"
    raise ConversionError(
        "influx", name=path.name, path=code_of(path), last=code_of(names[-1] if names else "_value"),
        per_field=", and which has a row per field" if per_field else "",
        write=pivoted(kept, "_field", "_value", write) if per_field else f"table[{code_of(kept)}].{write}",
        then=then(out, SORTED),
    )  # fmt: skip


def _check_channels(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse exports of oscilloscopes with blocks of properties, and a column of times beside that of each channel."""
    names = next((row for row in table.rows if len(row) >= 4 and {*row[::2]} == {"Name"}), None)
    if names is not None and not is_workbook(path):
        out = f"{stem_of(path.name)}-wide.csv"
        settings = dict(setting.split("=", 1) for setting in as_text(path, given))
        raise ConversionError(
            "channels", name=path.name, path=code_of(path), many=len(names) // 2, out=code_of(out), then=then(out),
            encoding=settings.get("encoding", '"utf-8-sig"'), mark=settings.get("sep", '","'),
        )  # fmt: skip


def _check_pairs(path: Path, table: Excerpt) -> None:
    """Refuse rows of a label and pairs ``index:value``, as LIBSVM and SVMlight write them.

    A text instead of the label means a header, such as one with channels of a controller: ``time,1:1,1:2``.
    """
    if len(table.first) > 1 and is_number(table.first[0]) and all(PAIR.fullmatch(cell) for cell in table.first[1:]):
        out = f"{stem_of(path.name)}-columns.csv"
        raise ConversionError("pairs", name=path.name, path=code_of(path), out=code_of(out), then=then(out))


def _check_nameless(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse a first row of values if it is too long for names to be written in a command."""
    many = len(table.first)
    if many <= NAMED or is_workbook(path) or not is_nameless(path, table.names, given):
        return
    read, write, out = converted(path, given, "named")
    raise ConversionError(
        "nameless", place=place(path, 1), first=", ".join(map(repr, table.names[:3])), many=many, write=write,
        read=f"{read.removesuffix(')')}, header=None)", then=then(out),
    )  # fmt: skip


def _check_one_hot(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse a label in several columns, of which exactly one is 1 in each row: the others would state it."""
    columns = given.get("columns", {})
    label = roles_of(table, {}, given.get("time_format")).get("label")
    if label is None or columns.get("label") in table.names or columns.get("ignore"):
        return
    classes = _exclusive(table, table.names.index(label)) if label in table.names else []
    if len(classes) < FEWEST:
        return
    read, write, out = converted(path, given, "labelled")
    raise ConversionError(
        "one_hot", name=path.name, few=some(classes, 3), many=len(classes), read=read, write=write, label=label,
        classes=code_of(classes), then=then(out, "data.columns.label=label"),
    )  # fmt: skip


def _exclusive(table: Excerpt, own: int) -> list[str]:
    """Return the most adjacent columns around one, of which exactly one is 1 and the others are 0 in each row.

    Three of them, with the one, must vary: a flag that is always 1 completes any flags that are always 0.
    """
    cells = np.array(table.rows).T
    flags = np.array([{*column} <= FLAGS for column in cells.tolist()])
    varies = np.array([len({*column}) > 1 for column in cells.tolist()])
    if not (flags[own] and varies[own]):
        return []
    breaks = np.flatnonzero(~flags)
    first = breaks[breaks < own].max(initial=-1) + 1
    stop = breaks[breaks > own].min(initial=len(flags))
    ones = cells[first:stop].astype(float).cumsum(axis=0)
    above = np.vstack([np.zeros(ones.shape[1]), ones])
    totals = above.sum(axis=1)
    groups = list[tuple[int, int]]()
    for start in range(first, own + 1):  # the longest group from here on has as many 1s as there are rows
        end = first + int(np.searchsorted(totals, totals[start - first] + len(table.rows), side="right")) - 1
        single = end > own and (above[end - first] - above[start - first] == 1).all()
        if single and varies[start:end].sum() >= FEWEST:
            groups.append((start, end))
    start, end = max(groups, key=lambda group: group[1] - group[0], default=(own, own))
    return table.names[start:end]


def _check_short_header(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse a header with one cell fewer than each row, as pandas and R write for an unnamed index."""
    names = table.names
    body = table.rows
    longer = {len(row) for row in body} == {len(names) + 1} and len({row[0] for row in body}) == len(body)
    if not longer or len(names) < 2 or any(map(is_number, names)) or is_workbook(path):
        return
    if not any(row[-1] for row in body) or not any(map(is_number, body[0])):  # final delimiters; names below a title
        return
    index = "time" if looks_like_time(body[0][0]) else "index"
    read, _, out = converted(path, given, "named")
    raise ConversionError(
        "index", name=path.name, few=len(names), many=len(names) + 1, read=read, out=code_of(out), index=code_of(index),
        above=max(skipped(given.get("skip")), default=0) + 1, header=code_of([index, *names]), then=then(out),
    )  # fmt: skip


def _check_long(path: Path, table: Excerpt, given: Mapping[str, Any]) -> None:
    """Refuse tables with a row per sensor and time: a column of sensors' names, and a column of their values.

    If only one of the two columns has a usual name, the other must be the only further column of texts (of numbers),
    and several sensors must have a value at the same time.
    """
    names = table.names
    columns = given.get("columns", {})
    known = {role: name for role, name in columns.items() if isinstance(name, str) and name in names}
    roles = roles_of(table, known, given.get("time_format"))
    cells = {name: table.cells(name) for name in names}
    if "unit" in map(word_of, filter(None, [roles.get("device")])) and is_text(cells.get(roles["device"], []), "."):
        del roles["device"]  # the column "unit" is a unit of measurement
    free = [name for name in names if name not in stated(columns) | {*roles.values()}]
    index = [name for role in ("device", "factory", "run", "time") if (name := roles.get(role)) in cells]
    sensors = _sensors(free, cells)
    if "time" not in roles or roles["time"] not in cells or sensors is None:
        return
    key, value, both = sensors

    def different(*among: str) -> int:
        return len({*zip(*(cells[name] for name in among), strict=True)})

    if 2 * different(key) > len(table.rows) or not (both or different(*index) < different(*index, key)):
        return
    index += [
        name for name in free if name not in (key, value) and looks_like_time(cells[name][0]) and different(name) > 1
    ]
    label = roles.get("label")
    if label in cells and different(label) > 1 and different(*index, label) == different(*index):
        index.append(label)
    for name in free:  # other columns that distinguish rows
        if name not in (*index, key, value) and different(*index, key) < different(*index, key, name):
            index.append(name)
    index = [part for name in index for part in _columns_of(name, names)]
    read, write, out = converted(path, given, "wide")
    own = f'table = table[~table[{code_of(key)}].str.startswith("$")]  # of the archive itself\n'
    own = own if any(tag.startswith("$") for tag in cells[key]) else ""
    wide = pivoted(index, key, value, write)
    machines = Counter(tag.partition(".")[0] for tag in {*cells[key]} if "." in tag)
    if "device" not in roles and machines.total() == different(key) > len(machines) > 1:  # tags such as P101.temp
        wide = f'table[["device", "sensor"]] = table[{code_of(key)}].str.split(".", n=1, expand=True)\n'
        wide += pivoted(["device", *index], "sensor", value, write)
    raise ConversionError(
        "long", name=path.name, key=key, value=value, read=read, write=own + wide,
        setting=shlex.quote(f"data.columns.device={key}"), then=then(out, SORTED),
    )  # fmt: skip


def _columns_of(name: str, names: Sequence[str]) -> list[str]:
    parts = parts_of(name)
    return parts if len(parts) > 1 and {*parts} <= {*names} else [name]


def _sensors(free: Sequence[str], cells: Mapping[str, Sequence[str]]) -> tuple[str, str, bool] | None:
    """Return the columns of sensors' names and of their values, and whether both names are usual; None if not found."""

    def called(words: Sequence[str]) -> str | None:
        return next((name for word in words for name in free if word_of(name) == word), None)

    key, value = called(KEYS), called(VALUES)
    if key and value:
        whole = all(re.fullmatch(r"-?\d+", cell) for cell in cells[key])
        return (key, value, True) if whole or is_text(cells[key], ".") else None
    if not (key or value):
        return None
    texts = [name for name in free if is_text(cells[name], ".") and not looks_like_time(cells[name][0])]
    numbers = [name for name in free if all(is_number(cell.replace(",", ".")) for cell in cells[name] if cell)]
    if len(texts) != 1 or len(numbers) != 1 or not {key, value} - {None} <= {*texts, *numbers}:
        return None
    return texts[0], numbers[0], False
