"""Mutated tables, each through ``fedfloor new`` and loading, and some through a round of training.

``PYTHONPATH=. python tests/programs/fuzz_tables.py --count 500`` checks tables 0 to 499; every table is a pure
function of its number. It has a form (delimiter, decimal mark, times, encoding, packing, CSV, Parquet or Excel) that
does not change its meaning, and none, one or two defects. What it means is known: what is loaded must be that, or an
error or a note must name the column, the row or the value that was changed. Tracebacks and silent changes of meaning
are failures.
"""

from __future__ import annotations

import argparse
import bz2
import copy
import csv
import gzip
import io
import json
import logging
import lzma
import math
import os
import random
import re
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor import cli, config
from fedfloor.data.dataset import Dataset
from fedfloor.data.files import columnar
from fedfloor.runs.parks import load_data
from papers import documents

USUAL = re.compile(
    r"split: by|split alternatives|is taken for the|columns: device is|fractions are written|^\s*$|─|^ +factory  "
    r"|^  (north|south)  |^\d+ devices in|^label skew|^experiment: |no plain meaning"
)
GOOD = ("as meant", "refused", "told")
NUMBER = re.compile(r"\s*-?\d+\.\d+(e[+-]\d+)?\s*")
DEVICES = 4
ROWS = 24
START = datetime(2026, 1, 20, 6, tzinfo=UTC)
SENSORS = ("temperature", "pressure", "vibration")
COLUMNS = ("device", "factory", "time", *SENSORS, "label")
GERMAN = ("Maschine", "Werk", "Zeitstempel", "Öltemperatur", "Druck", "Schwingung", "Zustand")
CLOCKS: dict[str, Callable[[datetime], str]] = {
    "ISO": lambda t: t.strftime("%Y-%m-%dT%H:%M:%S"),
    "ISO with a blank": lambda t: t.strftime("%Y-%m-%d %H:%M"),
    "ISO with a zone": lambda t: t.isoformat(),
    "Z": lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "German": lambda t: t.strftime("%d.%m.%Y %H:%M"),
    "US": lambda t: t.strftime("%m/%d/%Y %I:%M %p"),
    "named month": lambda t: t.strftime("%d %b %Y %H:%M"),
    "seconds": lambda t: str(int(t.timestamp())),
}


@dataclass
class Truth:
    """What a table means: its sensors, and (device, factory, time, label, values) of every row."""

    sensors: list[str]
    records: list[tuple[str, str | None, datetime | None, str, tuple[float, ...]]]


@dataclass
class Table:
    """A table on its way to a file.

    Args:
        keys: what each column is: ``device``, …, a sensor's, or ``extra``.
        header, rows: texts.
        truth: what it means; None where it has no meaning and must be refused, or accepted with a note.
        words: any of these in a message names what was changed; empty for any message.
        sets: changes for ``fedfloor new``.
        above, below: lines of a CSV file beside the table.
        after: what is done to the file's bytes.
    """

    keys: list[str]
    header: list[str]
    rows: list[list[str]]
    truth: Truth | None
    words: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    above: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    after: list[Callable[[bytes], bytes]] = field(default_factory=list)
    kind: str = "csv"
    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    end: str = "\n"
    quoted: bool = False
    packed: str = ""
    suffix: str = ".csv"
    text: list[str] = field(default_factory=list)

    def at(self, key: str) -> int:
        """Return the number of a column."""
        return self.keys.index(key)

    def unclear(self, *words: object) -> None:
        """Give the table no meaning."""
        self.truth = None
        self.words += map(str, words)


# -- forms and defects -------------------------------------------------------------------------------------------------


def plant(rng: random.Random) -> Table:
    """Return a plain table of a plant."""
    records = []
    rows = []
    for k in range(DEVICES):
        for row in range(ROWS):
            worn = (row // 2 + k) % 3 == 0
            values = tuple(round(rng.gauss(level + 6 * worn, spread), 3) for level, spread in ((50, 2), (3, 1), (0, 9)))
            when = START + timedelta(hours=row)
            names = (f"press {k}", ("north", "south")[k % 2])
            records.append((*names, when, ("ok", "worn")[worn], values))
            rows.append([*names, "", *(f"{value:.3f}" for value in values), ("ok", "worn")[worn]])
    return Table(list(COLUMNS), list(COLUMNS), rows, Truth(list(SENSORS), records))


def form(table: Table, rng: random.Random) -> str:
    """Choose how a table is written."""
    table.kind = rng.choice(["csv"] * 6 + ["parquet", "xlsx"])
    name = rng.choice(list(CLOCKS))
    for row, record in zip(table.rows, table.truth.records, strict=True):  # type: ignore[union-attr]
        row[table.at("time")] = CLOCKS[name](record[2])  # type: ignore[arg-type]
    if table.kind != "csv":
        table.suffix = f".{table.kind}"
        return f"{table.kind}, times {name}"
    table.delimiter = rng.choice(",,;;\t|")
    table.decimal = "," if table.delimiter != "," and rng.random() < 0.5 else "."
    if rng.random() < 0.3:
        table.header = list(GERMAN)
        table.truth.sensors = list(GERMAN[3:6])  # type: ignore[union-attr]
    table.encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))
    table.end = rng.choice(("\n", "\n", "\r\n"))
    table.quoted = rng.random() < 0.2
    table.packed = rng.choice(("", "", "", "", ".gz", ".bz2", ".xz", ".zip"))
    table.suffix = rng.choice((".csv", ".csv", ".txt", ".tsv")) + table.packed
    mark = {"\t": "tab"}.get(table.delimiter, table.delimiter)
    quoted = ", quoted" if table.quoted else ""
    return f"csv{table.packed} '{mark}' decimal '{table.decimal}' {table.encoding}{quoted}, times {name}"


Defect = Callable[[Table, random.Random], str]
DEFECTS: list[Defect] = []
ONLY: dict[Defect, str] = {}


def defect(*kinds: str) -> Callable[[Defect], Defect]:
    """Register a defect, for some kinds of files only."""

    def register(function: Defect) -> Defect:
        DEFECTS.append(function)
        ONLY[function] = " ".join(kinds)
        return function

    return register


def some_cell(table: Table, rng: random.Random, key: str = "") -> tuple[int, int]:
    """Return the row and the column of a cell, of a sensor if no key is given."""
    return rng.randrange(len(table.rows)), table.at(key or rng.choice([key for key in table.keys if key in SENSORS]))


def place_of(table: Table, row: int) -> str:
    """Return how messages count a row."""
    return f"row {row + 2}"


def number_of(text: str, decimal: str) -> float | None:
    """Return the number that a cell plainly holds; None for any other text."""
    plain = re.fullmatch(rf"\s*[+-]?\d+([.{decimal}]\d+)?\s*", text)
    return float(text.replace(",", ".")) if plain and abs(float(text.replace(",", "."))) < 3e38 else None


def value_defect(written: str, key: str = "") -> Defect:
    """Return a defect that writes a text into one cell."""

    def odd_cell(table: Table, rng: random.Random) -> str:
        row, column = some_cell(table, rng, key)
        table.rows[row][column] = written
        value = number_of(written, table.decimal) if not key else None
        if value is not None and table.truth:
            where = [one for one in table.keys if one in SENSORS].index(table.keys[column])
            *roles, x = table.truth.records[row]
            table.truth.records[row] = (*roles, (*x[:where], value, *x[where + 1 :]))  # type: ignore[assignment]
        else:
            table.unclear(place_of(table, row), f"'{table.header[column]}'", "missing", written)
            table.words += ["stands between thousands"] * bool(re.search(r"\d[,.' ]\d{3}", written))
        return f"{ascii(written)[:40]} in one cell of '{table.keys[column]}'"

    return odd_cell


for _text in (
    "", "NA", "n/a", "-", "?", "null", "abc", "inf", "-inf", "1e39", "1e400", "1_000", "0x1F", "5.1 °C", "12 %", "(5)",
    "#DIV/0!", "#N/A", "1,5", "1.5", "1,234.5", "1.234,5", "1'000", "1 000", "--5", "5e", "true", "１２", "\0", "a\0b",
    " ", "NaN", "1;2", '"', 'a"b', "=1+1", "2026-01-20", "06:00", "99999999999999999999", "nan ", "\u200b5", "−5",
    "5-", "+5", "1.2.3",
):  # fmt: skip
    defect()(value_defect(_text))
for _key, _texts in {
    "time": ("", "NA", "yesterday", "2026-13-01T00:00:00", "32.01.2026 06:00", "25:00", "1", "2026-01-20", "0", "inf"),
    "label": ("", "NA", "nan", " ", "null", "5", "0.5", "OK?", "a,b;c", "x" * 300),
    "device": ("", " ", "NA", "press  0", "0", "1.0", "../x", "press 0/1", "Press 0"),
    "factory": ("", "east", "NA"),
}.items():
    for _text in _texts:
        defect()(value_defect(_text, _key))


def column_defect(about: str, change: Callable[[str, int], str], meaning: bool = False) -> Defect:
    """Return a defect that rewrites all cells of one sensor; ``meaning`` if the numbers stay the same."""

    def apply(table: Table, rng: random.Random) -> str:
        _, column = some_cell(table, rng)
        before = [row[column] for row in table.rows]
        for number, row in enumerate(table.rows):
            row[column] = change(row[column], number)
        if [row[column] for row in table.rows] == before or (
            f"decimal {'points' if table.decimal == '.' else 'commas'}" in about
        ):
            raise ValueError(about)
        if not meaning:
            table.unclear(f"'{table.header[column]}'", *["missing"] * any(not row[column] for row in table.rows))
            table.words += ["stands between thousands"] * ("thousands" in about)
        return f"sensor {about}"

    return apply


def grouped(text: str, mark: str, point: str) -> str:
    """Return a number in the thousands with marks between groups."""
    whole, _, fraction = f"{float(text) + 20000:.3f}".partition(".")
    return f"{whole[:-3]}{mark}{whole[-3:]}{point}{fraction}"


for _about, _change, _meaning in (
    ("with units", lambda text, row: f"{text} bar", False),
    ("with units in some rows", lambda text, row: text + " °C" * (row % 7 == 3), False),
    ("in percent", lambda text, row: f"{text}%", False),
    ("empty", lambda text, row: "", False),
    ("constant", lambda text, row: "7", False),
    ("missing in every third row", lambda text, row: "" if row % 3 == 1 else text, False),
    ("of texts", lambda text, row: ("low", "mid", "high")[row % 3], False),
    ("of many texts", lambda text, row: f"batch {row}", False),
    ("of dates", lambda text, row: f"2026-02-{1 + row % 28:02}T10:00:00", False),
    ("true or false", lambda text, row: ("true", "false")[row % 2], False),
    ("with decimal commas in some rows", lambda text, row: text.replace(".", ",") if row % 5 == 2 else text, False),
    ("with decimal points in some rows", lambda text, row: f"\x01{text}" if row % 5 == 2 else text, False),
    ("grouped in thousands, English", lambda text, row: grouped(text, ",", "."), False),
    ("grouped in thousands, German", lambda text, row: grouped(text, ".", ","), False),
    ("grouped in thousands, Swiss", lambda text, row: grouped(text, "'", "."), False),
    ("with -999 where nothing was measured", lambda text, row: "-999" if row % 9 == 4 else text, False),
    ("with exponents", lambda text, row: f"{float(text):.7e}", True),
    ("with zeros behind", lambda text, row: f"{text}00", True),
    ("with blanks around", lambda text, row: f"  {text} ", True),
):  # fmt: skip
    defect()(column_defect(_about, _change, _meaning))


def relabelled(about: str, change: Callable[[str, int], str], *words: str, meaning: bool | None = False) -> Defect:
    """Return a defect that rewrites all labels: they are meant so, or (None) the old ones are, or (False) who knows."""

    def apply(table: Table, rng: random.Random) -> str:
        column = table.at("label")
        for number, row in enumerate(table.rows):
            row[column] = change(row[column], number)
        if meaning and table.truth:
            table.truth.records = [
                (device, factory, time, row[column], x)
                for (device, factory, time, _, x), row in zip(table.truth.records, table.rows, strict=True)
            ]
        elif meaning is False:
            table.unclear(*words)
        return f"labels {about}"

    return apply


for _about, _change, _words, _meaning in (
    ("0 and 1", lambda text, row: str(int(text == "worn")), (), True),
    ("true and false", lambda text, row: str(text == "worn").lower(), (), True),
    ("with blanks around", lambda text, row: f" {text} ", (), None),
    ("0.0 and 1.0", lambda text, row: f"{float(text == 'worn')}", ("0.0", "1.0", "0", "1"), False),
    ("that measure", lambda text, row: f"{row / 7:.3f}", ("measure", "fraction", "the label is a number"), False),
    ("of 50 numbers", lambda text, row: str(row % 50), ("numbers",), False),
    ("of one class", lambda text, row: "ok", ("one class",), False),
    ("all blank", lambda text, row: "", ("label",), False),
    ("missing in every fourth row", lambda text, row: "" if row % 4 == 2 else text, ("label",), False),
    ("in two cases", lambda text, row: text.upper() if row % 2 else text, ("OK", "WORN"), False),
    ("of a class with one sample", lambda text, row: "broken" if row == 5 else text, ("broken",), False),
    ("different in every row", lambda text, row: f"state {row}", ("state",), False),
):  # fmt: skip
    defect()(relabelled(_about, _change, *_words, meaning=_meaning))


@defect("csv")
def short_row(table: Table, rng: random.Random) -> str:
    row = rng.randrange(len(table.rows))
    del table.rows[row][-rng.randint(1, 3) :]
    table.unclear(place_of(table, row))
    return "a short row"


@defect("csv")
def long_row(table: Table, rng: random.Random) -> str:
    row = rng.randrange(len(table.rows))
    table.rows[row].insert(rng.randrange(8), "5")
    table.unclear(place_of(table, row))
    return "a long row"


@defect("csv")
def trailing_delimiters(table: Table, rng: random.Random) -> str:
    header = rng.random() < 0.5
    table.header += [""] * header
    table.keys += ["extra"] * header
    for row in table.rows:
        row.append("")
    table.unclear("column 8", "row 2", "cells")
    return f"a delimiter at the end of every row{' and of the header' if header else ''}"


@defect()
def no_header(table: Table, rng: random.Random) -> str:
    if table.kind != "csv":
        return "nothing"
    if rng.random() < 0.5:
        table.sets.append(f"data.header={json.dumps(table.header, ensure_ascii=False)}")
        table.text.append("no header")
        return "no header, named in [data] header"
    table.text.append("no header")
    table.unclear("header", "column")
    return "no header"


@defect()
def header_given_twice(table: Table, rng: random.Random) -> str:
    table.sets.append(f"data.header={json.dumps(table.header, ensure_ascii=False)}")
    table.unclear("row 1", "row 2", "header")
    return "[data] header, but the table has one"


@defect("csv")
def title_above(table: Table, rng: random.Random) -> str:
    line = rng.choice(("Export of plant 7", "# made on 2026-01-20", "sep=;", ";;;", "", "Report;;;;;;"))
    table.above.append(line)
    if line and line != f"sep={table.delimiter}":
        table.unclear()
    return f"a line '{line}' above the header"


@defect("csv")
def total_below(table: Table, rng: random.Random) -> str:
    line = rng.choice(("Total;96", "# end", ",,,,,,", ";;;;;;", "96 rows selected."))
    table.below.append(line)
    table.unclear()
    return f"a line '{line}' below the table"


@defect("csv")
def blank_lines(table: Table, rng: random.Random) -> str:
    row = rng.randrange(1, len(table.rows))
    table.rows.insert(row, [])
    table.below += ["", ""]
    return "blank lines"


@defect("csv")
def header_again(table: Table, rng: random.Random) -> str:
    row = rng.randrange(1, len(table.rows))
    table.rows.insert(row, list(table.header))
    table.unclear(place_of(table, row))
    return "the header again among the rows"


@defect()
def same_name_twice(table: Table, rng: random.Random) -> str:
    column = table.at(rng.choice(SENSORS))
    table.header[column] = table.header[column - 1]
    table.unclear("twice", table.header[column])
    return "a column's name twice"


@defect()
def blank_name(table: Table, rng: random.Random) -> str:
    column = table.at(rng.choice(table.keys))
    table.header[column] = rng.choice(("", "  "))
    table.unclear("no name", "no column")
    return "a column without a name"


@defect()
def odd_name(table: Table, rng: random.Random) -> str:
    key = rng.choice([key for key in table.keys if key in SENSORS])
    name = rng.choice((
        "a b", "Druck (bar)", "Temp, inside", 'say "x"', "10", "x" * 300, "a.b", "データ", "#1", "a\nb", "values",
        "T\tC", "Temperature", "[x]", "a=b", "{", "ignore",
    ))  # fmt: skip
    if name in table.header:
        return "nothing"
    if table.truth:
        where = [key for key in table.keys if key in SENSORS].index(key)
        table.truth.sensors[where] = name
    table.header[table.at(key)] = name
    return f"a sensor called {name[:20]!r}"


@defect()
def role_elsewhere(table: Table, rng: random.Random) -> str:
    key = rng.choice(("device", "factory", "time", "label"))
    table.header[table.at(key)] = f"col_{key[0]}x"
    if key != "time":  # which a column of dates shows
        table.unclear(f"'{key}'", f"col_{key[0]}x")
    return f"the column for the {key} has a name of its own"


@defect()
def role_left_out(table: Table, rng: random.Random) -> str:
    key = rng.choice(("device", "factory", "time", "label"))
    number = table.at(key)
    for row in (table.header, table.keys, *table.rows):
        del row[number]
    if table.truth and key in ("factory", "time"):
        blank = {"factory": 1, "time": 2}[key]
        table.truth.records = [(*one[:blank], None, *one[blank + 1 :]) for one in table.truth.records]  # type: ignore[misc]
    else:
        table.unclear(f"'{key}'")
    return f"no column for the {key}"


@defect()
def role_said_wrongly(table: Table, rng: random.Random) -> str:
    key, other = rng.sample(("device", "factory", "time", "label"), 2)
    table.sets.append(f"data.columns.{key}={rng.choice((table.header[table.at(other)], 'no such', ''))}")
    table.unclear(f"columns.{key}", f"{key} is", "no such", "column", key)
    return f"--set {table.sets[-1]}"


def setting_defect(setting: str) -> Defect:
    """Return a defect that is a setting; where it is taken, the table means what it did, or a message names the key."""

    def apply(table: Table, rng: random.Random) -> str:
        table.sets.append(setting)
        key = setting.partition("=")[0].removeprefix("data.")
        # milliseconds; categories; remaining lives
        table.words += [key, key.split(".")[-1], "1970-01-21", "sensors, one for each", "rows left"]
        return f"--set {setting}"

    return apply


for _setting in (
    "data.time_format=%d/%m/%y", "data.time_format=ms", "data.time_format=month-first", "data.time_format=dd.mm",
    "data.decimal=;", "data.decimal=,", "data.thousands=.", "data.encoding=utf-99", "data.encoding=ascii",
    "data.sheet=Sheet9", 'data.classes=["ok"]', 'data.classes=["ok","worn","ok"]', "data.window.length=400",
    "data.window=5", "data.missing=ignore", 'data.split={kind="weeks"}', "data.split=time", "data.bins=[1,2]",
    "data.bins=3", "data.remaining=true", 'data.columns.values=["pressure","presure"]', "data.columns=device",
    'data.columns.ignore="label"', 'data.columns.categories={pressure="one-hot"}', "data.device=file",
    "data.factory=folder", "data.layout=device/file", "data.test=other.csv", "data.format=npz",
    'data.split={kind="last",rows=500}', "data.header=[]", "data.size=[3,3]", "data.small=keep",
    "data.colums.device=a", 'data.columns.run="label"', "park.devices=99", "data.columns.device=5",
    'data.columns.time=["time"]',
):  # fmt: skip
    defect()(setting_defect(_setting))


@defect()
def subset(table: Table, rng: random.Random) -> str:
    keys = [key for key in table.keys if key in SENSORS]
    drop = rng.choice(keys)
    names = [table.header[table.at(key)] for key in keys if key != drop]
    if rng.random() < 0.5:
        table.sets.append(f"data.columns.values={json.dumps(names, ensure_ascii=False)}")
    else:
        table.sets.append(f"data.columns.ignore={json.dumps([table.header[table.at(drop)]], ensure_ascii=False)}")
    if table.truth:
        left = [i for i, key in enumerate(keys) if key != drop]
        table.truth.sensors = [table.truth.sensors[i] for i in left]
        table.truth.records = [(*one[:4], tuple(one[4][i] for i in left)) for one in table.truth.records]  # type: ignore[misc]
    return "a sensor left out by a setting"


@defect()
def columns_moved(table: Table, rng: random.Random) -> str:
    order = rng.sample(range(len(table.keys)), len(table.keys))
    kept = [i for i in order if table.keys[i] in SENSORS]
    table.header = [table.header[i] for i in order]
    table.keys = [table.keys[i] for i in order]
    table.rows = [[row[i] if i < len(row) else "" for i in order] for row in table.rows]
    if table.truth and len(kept) == len(table.truth.sensors) == 3:
        old = sorted(kept)
        where = [old.index(i) for i in kept]
        table.truth.sensors = [table.truth.sensors[i] for i in where]
        table.truth.records = [(*one[:4], tuple(one[4][i] for i in where)) for one in table.truth.records]  # type: ignore[misc]
    return "columns in another order"


@defect()
def rows_shuffled(table: Table, rng: random.Random) -> str:
    if rng.random() < 0.5:
        rng.shuffle(table.rows)
        table.sets.append("data.sort=true")
        return "rows in any order, [data] sort = true"
    i, j = 3, 9
    table.rows[i], table.rows[j] = table.rows[j], table.rows[i]
    if "time" in table.keys:
        table.unclear("time", "order")
    return "two rows exchanged"


@defect()
def row_twice(table: Table, rng: random.Random) -> str:
    row = rng.randrange(len(table.rows))
    table.rows.insert(row, list(table.rows[row]))
    table.unclear("already", "time", "copy")
    return "a row twice"


@defect()
def few_rows(table: Table, rng: random.Random) -> str:
    many = rng.choice((0, 1, 2, 3, ROWS, ROWS + 1))
    table.rows = table.rows[:many]
    table.unclear()
    return f"only {many} rows"


@defect()
def one_hot(table: Table, rng: random.Random) -> str:
    table.header.append("product")
    table.keys.append("extra")
    for row in table.rows:
        row.append(rng.choice("LMH"))
    table.unclear("product")
    return "a column of a few texts"


@defect()
def extra_column(table: Table, rng: random.Random) -> str:
    about, cell = rng.choice((
        ("a row number", lambda row, cells: str(row + 1)), ("a copy of the label", lambda row, cells: cells[-1]),
        ("comments", lambda row, cells: f"looked at by hand, {row}" if row % 9 == 1 else ""),
        ("a second date", lambda row, cells: f"2026-03-{1 + row % 28:02}"), ("constants", lambda row, cells: "3"),
        ("nothing at all", lambda row, cells: ""),
    ))  # fmt: skip
    table.header.append("more")
    table.keys.append("extra")
    for number, row in enumerate(table.rows):
        row.append(cell(number, row))
    table.unclear("more", "dates")
    return f"a column with {about}"


@defect("csv")
def date_and_time(table: Table, rng: random.Random) -> str:
    column = table.at("time")
    table.header[column : column + 1] = ["date", "time"]
    table.keys[column : column + 1] = ["extra", "time"]
    for row in table.rows:
        row[column : column + 1] = [*row[column].replace("T", " ").split(" "), ""][:2]
    table.unclear("date", "time")
    return "date and time in two columns"


@defect()
def ambiguous_dates(table: Table, rng: random.Random) -> str:
    column = table.at("time")
    for number, row in enumerate(table.rows):
        row[column] = f"{1 + number % ROWS // 12:02}/{1 + number % 12:02}/2026"
    table.unclear("time_format", "read")
    return "dates that can be read in two ways"


@defect()
def mixed_times(table: Table, rng: random.Random) -> str:
    column = table.at("time")
    name = rng.choice(list(CLOCKS))
    if not table.truth or len(table.rows) < 50 or table.truth.records[0][2] is None:
        return "nothing"
    for row, record in list(zip(table.rows, table.truth.records, strict=False))[40:]:
        row[column] = CLOCKS[name](record[2])  # type: ignore[arg-type]
    table.unclear("one way", "no time", "time")
    return f"times of two forms, {name} from row 42 on"


@defect()
def epochs(table: Table, rng: random.Random) -> str:
    unit, factor = rng.choice((("ms", 1000), ("us", 1_000_000)))
    if not table.truth or len(table.truth.records) != len(table.rows):
        return "nothing"
    for row, record in zip(table.rows, table.truth.records, strict=True):
        row[table.at("time")] = str(int((record[2] or START).timestamp() * factor))
    table.sets.append(f"data.time_format={unit}")
    return f"epochs in {unit}, named"


@defect("csv")
def wrong_bytes(table: Table, rng: random.Random) -> str:
    what = rng.choice(("empty", "cut", "nul", "noise", "latin", "mac", "mark", "quote", "newline"))

    def change(raw: bytes) -> bytes:
        place = len(raw) // 2 + rng.randrange(40)
        return {
            "empty": b"", "cut": raw[:place], "nul": raw[:place] + b"\0\0" + raw[place:],
            "noise": rng.randbytes(300), "latin": raw[:place] + b"\xe4\x80\xff" + raw[place:],
            "mac": raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r"), "quote": raw[:place] + b'"' + raw[place:],
            "newline": raw[:place] + b"\n" + raw[place:],
            "mark": raw[:place] + b"\xef\xbb\xbf" + raw[place:],
        }[what]  # fmt: skip

    table.after.append(change)
    if what != "mac":
        table.unclear()
    return f"bytes: {what}"


@defect()
def damaged_file(table: Table, rng: random.Random) -> str:
    if table.kind == "csv" and not table.packed:
        return "nothing"
    what = rng.choice(("cut", "flipped", "named as CSV"))
    if what == "named as CSV":
        table.suffix = ".csv"
    table.after.append(lambda raw: raw)
    table.text.append(what)
    if what != "named as CSV" or table.kind != "csv":  # how a CSV file is packed is told by its first bytes
        table.unclear()
    return f"the file {what}"


# -- files -------------------------------------------------------------------------------------------------------------


def write(table: Table, folder: Path, rng: random.Random) -> Path:
    """Write a table as a file."""
    path = folder / f"plant{table.suffix}"
    sensors = {i for i, key in enumerate(table.keys) if key in SENSORS}
    if table.kind == "csv":
        text = io.StringIO()
        writer = csv.writer(
            text, delimiter=table.delimiter, lineterminator=table.end,
            quoting=csv.QUOTE_ALL if table.quoted else csv.QUOTE_MINIMAL,
        )  # fmt: skip
        if "no header" not in table.text:
            writer.writerow(table.header)
        for row in table.rows:
            writer.writerow([
                cell.replace(".", ",") if i in sensors and table.decimal == "," and NUMBER.fullmatch(cell)
                else cell.removeprefix("\x01") for i, cell in enumerate(row)
            ])  # fmt: skip
        above, below = ("".join(f"{line}{table.end}" for line in lines) for lines in (table.above, table.below))
        raw = f"{above}{text.getvalue()}{below}".encode(table.encoding, "replace")
    elif table.kind == "parquet":
        raw = _parquet(table)
    else:
        raw = _workbook(table)
    if table.kind == "csv":
        for change in table.after:
            raw = change(raw)
        raw = _pack(raw, table.packed)
    if "cut" in table.text:
        raw = raw[: len(raw) * 2 // 3]
    if "flipped" in table.text:
        place = rng.randrange(len(raw))
        raw = raw[:place] + bytes([raw[place] ^ 0xFF]) + raw[place + 1 :]
    path.write_bytes(raw)
    return path


def _pack(raw: bytes, how: str) -> bytes:
    if how == ".zip":
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("plant.csv", raw)
        return whole.getvalue()
    return {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(how, bytes)(raw)


def _typed(table: Table, column: int) -> list[Any]:
    """Return a column's cells as numbers and times where all of them are."""
    cells: list[str] = [row[column] if column < len(row) else "" for row in table.rows]
    for kind in (float, datetime.fromisoformat) if table.keys[column] != "label" else ():
        try:
            return [kind(cell) if cell else None for cell in cells]  # type: ignore[operator]
        except ValueError:
            continue
    return list(cells)


def _parquet(table: Table) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    columns = [pa.array(_typed(table, i)) for i in range(len(table.header))]
    whole = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays(columns, names=table.header), whole)
    return whole.getvalue()


def _workbook(table: Table) -> bytes:
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook()
    columns = [_typed(table, i) for i in range(len(table.header))]
    book.active.append([ILLEGAL_CHARACTERS_RE.sub("", name) for name in table.header])
    for cells in zip(*columns, strict=True):
        book.active.append([
            cell.replace(tzinfo=None) if isinstance(cell, datetime)
            else None if isinstance(cell, float) and not math.isfinite(cell)
            else ILLEGAL_CHARACTERS_RE.sub("", cell) if isinstance(cell, str) else cell for cell in cells
        ])  # fmt: skip
    whole = io.BytesIO()
    book.save(whole)
    return whole.getvalue()


# -- checks ------------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of a table."""

    number: int
    form: str
    defects: list[str]
    verdict: str
    message: str


@dataclass
class Said:
    """What a command printed."""

    code: int
    err: str
    failed: str = ""


def call(*words: str) -> Said:
    """Call ``fedfloor`` in this process."""
    out = io.StringIO()
    err = io.StringIO()
    code = 0
    failed = ""
    before = sys.argv
    logger = logging.getLogger("fedfloor")
    handlers = logger.handlers
    sys.argv = ["fedfloor", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        code = 1
        failed = traceback.format_exc()
    finally:
        sys.argv = before
        logger.handlers = handlers
    return Said(code, err.getvalue() + out.getvalue() * (code == 0), failed)


def mutant(number: int) -> tuple[Table, list[str]]:
    """Return a mutated table, and in words its form and its defects."""
    rng = random.Random(number)
    table = plant(random.Random(0))
    told = [form(table, rng)]
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 2))):
        cells = rng.random() < 0.3  # most defects are texts in a single cell
        fits = [one for one in DEFECTS if one.__name__.endswith("_cell") == cells]
        fits = [one for one in fits if not ONLY[one] or table.kind in ONLY[one].split()]
        before = copy.deepcopy(table)
        try:
            about = rng.choice(fits)(table, rng)
        except (ValueError, IndexError):  # a defect of a column that an earlier one took away
            table = before
            about = "nothing"
        if about != "nothing":
            told.append(about)
    return table, told


def loaded(data: Dataset) -> tuple[list[str], Counter[Any], dict[Any, float]]:
    """Return the sensors, the rows in any order, and the times of those that have one."""
    rows: Counter[Any] = Counter()
    times: dict[Any, float] = {}
    for test in (False, True):
        y, owner = (data.y_test, data.owner_test) if test else (data.y, data.owner)
        x = data.take_test(np.arange(len(y))) if test else data.take(np.arange(len(y)), 0)
        for i in range(len(y)):
            k = -1 if owner is None else int(owner[i])
            device = data.owned.names[k] if k >= 0 else ""
            factory = data.owned.factories[data.owned.factory[k]] if k >= 0 and data.owned.factory is not None else None
            key = (device, factory, data.classes[y[i]], tuple(x[i].ravel().tolist()))
            rows[key] += 1
            if not test and data.time is not None:
                times[key] = float(data.time[i])
    return list(data.inputs.columns), rows, times


def differs(data: Dataset, truth: Truth | None) -> str:
    """Return how data differ from what a table means; nothing where they do not."""
    if truth is None:
        return "the table has no plain meaning"
    sensors, rows, times = loaded(data)
    if sensors != truth.sensors:
        return f"sensors {sensors} instead of {truth.sensors}"
    meant = {(one[0], one[1], one[3], tuple(np.float32(one[4]).tolist())): one[2] for one in truth.records}
    if rows != Counter(meant.keys()):
        odd = next(iter((rows - Counter(meant.keys())) or (Counter(meant.keys()) - rows)))
        return f"row {odd}"
    has_time = next(iter(meant.values())) is not None
    if has_time != (data.time is not None):
        return f"{'no ' if has_time else ''}times"
    if has_time:
        shift = {round(times[key] - meant[key].timestamp(), 3) for key in times}  # type: ignore[union-attr]
        if len(shift) > 1:
            return "times"
    return ""


def check(number: int, usual: Sequence[str] = (), train: bool = False) -> Outcome:
    """Check a table.

    Args:
        number: of the table.
        usual: lines that are printed for any table of the plant.
        train: whether a round is trained where it can be read.
    """
    rng = random.Random(number)
    table, told = mutant(number)
    quick = columnar.QUICK
    if number % 2:
        columnar.QUICK = 0  # read by columns, as large tables are
    try:
        with tempfile.TemporaryDirectory() as place, _at(place):
            path = write(table, Path(place), rng)
            words = [word for change in table.sets for word in ("--set", change)]
            said = call("new", path.name, "--out", "e.toml", *words)
            verdict, message = _judged(said, table, usual)
            if train and said.code == 0 and verdict in GOOD:
                ran = call("run", "e.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1")
                if ran.failed or ran.code not in (0, 2):
                    verdict = "training failed"
                    message = ran.failed or ran.err
    finally:
        columnar.QUICK = quick
    return Outcome(number, told[0], told[1:], verdict, message.replace(place, "").strip())


def _judged(said: Said, table: Table, usual: Sequence[str]) -> tuple[str, str]:
    if said.failed:
        return "traceback", said.failed
    lines = [line for line in said.err.splitlines() if line not in usual]
    message = "\n".join(lines)
    if said.code:
        error = [line for line in lines if line.startswith("error: ")]
        return ("refused" if said.code == 2 and error else "failed"), "\n".join(error) or message
    difference = differs(load_data(config.read(Path("e.toml"), [])), table.truth)
    if not difference:
        return "as meant", message
    named = not table.words or any(word.casefold() in message.casefold() for word in table.words)
    return ("told" if named and lines else "silent"), f"{message}\n({difference})"


@contextmanager
def _at(place: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def usual_lines() -> list[str]:
    """Return what is printed for the plain table."""
    rng = random.Random(0)
    table = plant(rng)
    for row, record in zip(table.rows, table.truth.records, strict=True):  # type: ignore[union-attr]
        row[2] = CLOCKS["ISO"](record[2])  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as place, _at(place):
        write(table, Path(place), rng)
        return call("new", "plant.csv", "--out", "e.toml").err.splitlines()


def fuzz(first: int, count: int, every: int = 10) -> list[Outcome]:
    """Check tables, and train a round with every ``every``-th."""
    usual = usual_lines()
    return [check(number, usual, number % every == 0) for number in range(first, first + count)]


def blocks(outcomes: Sequence[Outcome], sample: int) -> Iterator[str | dict[str, Any]]:
    """Yield what the page consists of: how many tables came to what, and a sample."""
    total = Counter(one.verdict for one in outcomes)
    yield "# Fuzzed tables"
    yield (
        f"`PYTHONPATH=. python tests/programs/fuzz_tables.py --count {len(outcomes)} --sample {sample} "
        "--out results/fuzzed-tables.md`: tables of a plant (4 devices, 24 rows each, 3 sensors) in some form with "
        "none, one or two defects, each by "
        "`fedfloor new` and loading, every tenth that is read also through a round of training. *As meant*: sensors, "
        "rows, times, devices and classes are those of the table without the defect. *Told*: read, and a message names "
        "the column, the row or the value of the defect. *Refused*: exit code 2 and an error."
    )
    yield ", ".join(f"{count} {verdict}" for verdict, count in total.most_common()) + f" of {len(outcomes)}."
    rows = []
    for one in outcomes[:: max(1, len(outcomes) // sample)][:sample]:
        kept = [line for line in dict.fromkeys(one.message.splitlines()) if not USUAL.search(line)]
        text = "; ".join(re.sub(r"^(note|error): plant[.\w]*[:,] ", "", line) for line in kept)
        text = text if len(text) < 240 else text[:240] + "…"
        cells = one.number, one.form, "; ".join(one.defects) or "–", one.verdict, text or "–"
        rows.append([str(cell).replace("|", "&#124;") for cell in cells])
    yield {"columns": ["table", "form", "defect", "outcome", "printed, but for what any table shows"], "rows": rows}


def main() -> int:
    """Check tables and show what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--answers", action="store_true", help="show what came of every table")
    parser.add_argument("--sample", type=int, default=50, help="tables in the page")
    parser.add_argument("--out", type=Path, help="write a page")
    given = parser.parse_args()
    outcomes = fuzz(given.first, given.count)
    for one in outcomes:
        if given.answers or one.verdict not in GOOD:
            print(
                f"--- {one.number}: {one.verdict}: {one.form}; {'; '.join(one.defects) or 'no defect'}\n{one.message}"
            )
    total = Counter(one.verdict for one in outcomes)
    print(json.dumps(total, sort_keys=True))
    if given.out:
        documents.publish(given.out, list(blocks(outcomes, given.sample)))
    return int(any(verdict not in GOOD for verdict in total))


if __name__ == "__main__":
    sys.exit(main())
