"""Reading CSV: all dialects give the same numbers, and the quick way reads what the careful way reads."""

from __future__ import annotations

import bz2
import gzip
import io
import logging
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfloor.base.errors import SettingError
from fedfloor.data.files import rows as lines
from fedfloor.data.files import sheet
from fedfloor.data.files.layout import TableLayout
from fedfloor.data.reading import Columns, Reading
from refusals import refused
from tables import HEADER, plant, text

ROLES = ("device", "label")


def written(folder: Path, content: str | bytes, name: str = "plant.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def numbers(path: Path, reading: Reading | None = None) -> tuple[object, ...]:
    found = sheet.read(path, reading or Reading(), ROLES)
    assert found.time is not None
    return found.columns, found.x.tobytes(), found.text, found.time.tolist()


def german(rows: list[list[str]]) -> str:
    return text([[cell.replace(".", ",") for cell in row] for row in rows], ";", "\r\n")


def excel(rows: list[list[str]]) -> str:
    return text([[f'"{cell}"' for cell in row] for row in rows], ",", "\r\n")


def archive(*members: tuple[str, str], way: int = zipfile.ZIP_DEFLATED) -> bytes:
    with zipfile.ZipFile(held := io.BytesIO(), "w", way) as made:
        for name, content in members:
            made.writestr(name, content)
    return held.getvalue()


def blanks(rows: list[list[str]]) -> str:
    return text([["", *(f'"{cell}"' if " " in cell else cell for cell in row), ""] for row in rows], "   ")


DIALECTS: dict[str, Callable[[list[list[str]]], str | bytes]] = {
    "semicolons": lambda rows: text(rows, ";"),
    "tabs": lambda rows: text(rows, "\t"),
    "bars": lambda rows: text(rows, "|"),
    "CRLF": lambda rows: text(rows, end="\r\n"),
    "CR": lambda rows: text(rows, end="\r"),
    "byte order mark": lambda rows: "\ufeff" + text(rows),
    "quoted": excel,
    "gzip": lambda rows: gzip.compress(text(rows).encode()),
    "bzip2": lambda rows: bz2.compress(text(rows).encode()),
    "xz": lambda rows: lzma.compress(text(rows).encode()),
    "zip": lambda rows: archive(("__MACOSX/._plant.csv", "?"), ("may/plant.csv", text(rows))),
    "blanks": blanks,
    "blanks and CRLF": lambda rows: blanks(rows).replace("\n", "\r\n"),
    "blank lines": lambda rows: text(rows).replace("\n", "\n\n").rstrip("\n"),
    "spaces": lambda rows: text(rows, " , "),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects_give_the_same_numbers(tmp_path: Path, name: str) -> None:
    plain = written(tmp_path, text(plant()))
    assert numbers(written(tmp_path, DIALECTS[name](plant()), "other.csv")) == numbers(plain)


def test_decimal_comma(tmp_path: Path) -> None:
    plain = written(tmp_path, text(plant()))
    comma = written(tmp_path, german(plant()), "g.csv")
    assert numbers(comma, Reading(decimal=",")) == numbers(plain)
    rows = plant()
    rows[5][2] = "0.5"  # a time
    comma = written(tmp_path, german(rows), "g.csv")
    assert sheet.read(comma, Reading(decimal=","), ROLES).time[4] == 0.5  # type: ignore[index]


def test_rows_are_counted_as_lines_even_where_cells_hold_line_ends(tmp_path: Path) -> None:
    head = '"a",b,"two\nlines",label,device\n'
    found = sheet.read(written(tmp_path, head + '1,2,3,"x\ny",d\n\n4,5,6,z,d\n'), Reading(), ROLES)
    assert found.columns == ("a", "b", "two lines")
    assert found.line.tolist() == [3, 6]
    assert found.text["label"] == ["x\ny", "z"]
    with refused("odd-text"):
        sheet.read(written(tmp_path, head + '1,2,3,"x\ny",d\n\n4,five,6,z,d\n'), Reading(), ROLES)


def test_a_delimiter_within_quotes_is_none() -> None:
    assert lines.delimiter_of('"a, b, c, d";"e, f";g') == ";"


def test_numbers_as_written(tmp_path: Path) -> None:
    cells = ["16777216", "-7", "+1e-3", " 2.5 ", "1E5", ".5", "3.", "-0", "", "NA", "n/a", "NaN", "null", "-", "?"]
    body = "".join(f"{cell},d,l\n" for cell in cells)
    x = sheet.read(written(tmp_path, "v,device,label\n" + body), Reading(), ROLES).x[:, 0]
    assert x[:8].tolist() == [16777216, -7, np.float32(1e-3), 2.5, 1e5, 0.5, 3, 0]
    assert np.isnan(x[8:]).all()


def times(folder: Path, *cells: str) -> list[float]:
    path = written(folder, "v,device,label,time\n" + "".join(f"1,d,l,{cell}\n" for cell in cells))
    found = sheet.read(path, Reading(), ROLES).time
    assert found is not None
    return found.tolist()


def test_times(tmp_path: Path) -> None:
    day = 1772323200.0  # 2026-03-01T00:00:00Z: 20,513 days of 86,400 s
    assert day == 20513 * 86400
    assert times(tmp_path, "2026-03-01", "2026-03-01 00:00:01", "2026-03-01T01:00:00.5") == [day, day + 1, day + 3600.5]
    assert times(tmp_path, "2026-03-01T00:00Z", "2026-03-01T02:00+01:00", "2026-03-01T02:00+00:00") == [
        day, day + 3600, day + 7200
    ]  # fmt: skip
    assert times(tmp_path, "1", "1.5", "-3e2") == [1, 1.5, -300]
    with refused("no-time"):
        times(tmp_path, "2026-03-01T06:29", "2026-03-01T06:30Z")
    with refused("no-time"):
        times(tmp_path, "1", "1_0")


WORDS = ["", " ", "1", "-2.5", "+3", "4,5", "1e3", "1e39", "-inf", "nan", "NA", "?", "-", "x", "1_0", "1.2.3", "\u0663"]
FIELD = st.sampled_from(WORDS) | st.floats(-1e6, 1e6).map(str) | st.text("0123456789.,e+-", max_size=5)


def careful(cells: list[list[str]], layout: TableLayout) -> np.ndarray:
    return np.array([[layout.number(line, row[i], i) for i in layout.values] for line, row in enumerate(cells, 2)])


def ended(read: Callable[[], np.ndarray]) -> np.ndarray | str:
    """Return what was read, or the error's message."""
    try:
        return read()
    except SettingError as error:
        return str(error)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(FIELD, FIELD).map(list), min_size=1, max_size=6), st.sampled_from([".", ","]))
def test_the_quick_way_reads_what_the_careful_way_reads(cells: list[list[str]], decimal: str) -> None:
    layout = TableLayout(Path("t.csv"), Reading(decimal=decimal), ("a", "b"), (0, 1), {}, None, False)
    block = list(enumerate(cells, 2))
    wanted = ended(lambda: careful(cells, layout))
    got = ended(lambda: layout.numbers(block))
    assert isinstance(got, str) or np.array_equal(got, wanted, equal_nan=True)
    assert not isinstance(got, str) or got == wanted


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, text(plant()))
    whole = numbers(path)
    monkeypatch.setattr(lines, "BLOCK", 7)
    assert numbers(path) == whole
    rows = plant()
    rows[20][HEADER.index("flow")] = "x"
    rows[40][2] = "y"
    with refused("odd-text"):
        sheet.read(written(tmp_path, text(rows)), Reading(), ROLES)


def test_equal_texts_are_one_object(tmp_path: Path) -> None:
    """A million rows hold few names: each is kept once."""
    found = sheet.read(written(tmp_path, text(plant())), Reading(), ROLES)
    assert len({id(word) for word in found.text["device"]}) == 4


def test_a_sensor_that_single_precision_cannot_resolve_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = "".join(f"{1e6 + i / 100},{20 + i / 100},d,l\n" for i in range(3))
    with caplog.at_level(logging.WARNING):
        sheet.read(written(tmp_path, "coarse,fine,device,label\n" + body), Reading(), ROLES)
    assert "plant.csv, column 'coarse': values from 1000000.0 to 1000000.02" in caplog.text
    assert "fine" not in caplog.text


def test_many_columns(tmp_path: Path) -> None:
    names = [f"s{i}" for i in range(3000)]
    row = ",".join(["1"] * 3000)
    path = written(tmp_path, f"{','.join(names)},device,label\n{row},d,a\n{row},d,b\n")
    assert sheet.read(path, Reading(), ROLES).x.shape == (2, 3000)


def test_a_line_that_names_the_delimiter_is_no_header(tmp_path: Path) -> None:
    plain = sheet.read(written(tmp_path, text(plant(), ";")), Reading(), ROLES)
    told = sheet.read(written(tmp_path, "sep=;\n" + text(plant(), ";")), Reading(), ROLES)
    assert (told.columns, told.line.tolist()) == (plain.columns, (plain.line + 1).tolist())
    assert np.array_equal(told.x, plain.x)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("device,label,a\np,ok,1\ndevice,label,a\np,ok,2\n", "repeated-header"),
        ("device,label,a\np,ok,1,\n", "length-of-row"),
        ("Report,,,\ndevice,label,a,b\np,ok,1,2\n", "names-of-columns"),
        ('device,label,a\np,ok,"1,234.5"\n', "marks"),
        ('device,label,a\np,ok,"1.234,5"\n', "marks"),
    ],
)
def test_what_exports_add_is_named(tmp_path: Path, content: str, told: str) -> None:
    with refused(told):
        sheet.read(written(tmp_path, content), Reading(), ROLES)


def test_names_given_for_a_table_that_has_them_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "device,label,a\np,ok,1\n")
    with refused("data.header"):
        sheet.read(path, Reading(header=("device", "label", "a")), ROLES)


def test_a_cell_with_a_nul_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "device;label;a;b\np;good;1,5;2,5\np;good;1\0003;2,5\n")
    with refused("odd-text"):
        sheet.read(path, Reading(decimal=","), ROLES)


def test_neither_utf8_nor_whole(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(3000).hex().encode()
    packed = gzip.compress(b"device,label,a\np,good,1\np,\xe9" + noise)
    with refused("encoding"):
        sheet.read(written(tmp_path, packed[:-800], "plant.csv.gz"), Reading(), ROLES)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (bz2.compress(b"device,label,x\n" + b"1,a,2\n" * 1000)[:-9], "damaged-table"),
        (lzma.compress(b"device,label,x\n" + b"1,a,2\n" * 1000)[:-9], "damaged-table"),
        (archive(("a.csv", "device,label,x\n" + "1,a,2\n" * 1000))[:-30], "damaged-table"),
        (
            archive(("a.csv", "device,label,x\n1,a,2\n"), way=zipfile.ZIP_STORED).replace(b"1,a,2", b"1,a,3"),
            "damaged-table",
        ),
        (archive(("a.csv", ""), ("b.csv", "")), "archive"),
        (archive(("folder/", "")), "archive"),
    ],
    ids=["bzip2 cut short", "xz cut short", "zip cut short", "zip with a wrong checksum", "two tables", "no table"],
)  # fmt: skip
def test_damaged_and_ambiguous_archives_are_refused_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    with refused(told):
        sheet.read(written(tmp_path, content, "may.zip"), Reading(), ROLES)


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    content = bytearray(archive(("a.csv", "device,label,x\n1,a,2\n")))
    for header, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(header) + at] |= 1
    with refused("damaged-archive"):
        sheet.read(written(tmp_path, bytes(content), "may.zip"), Reading(), ROLES)


def test_a_published_table_without_commas_is_read(tmp_path: Path) -> None:
    """C-MAPSS separates by blanks and ends each line with two."""
    rows = "unit cycle setting label \n1 1 0.0023   ok  \n1 2 -0.0003 worn  \n"
    reading = Reading(columns=Columns(device="unit", time="cycle"))
    found = sheet.read(written(tmp_path, rows, "fd.txt"), reading, ROLES)
    assert found.columns == ("setting",)
    assert found.text["label"] == ["ok", "worn"]
    assert found.line.tolist() == [2, 3]


GERMAN = "13,616;1,167;333,887;1,226;1\n12,5;1,2;333,9;1,3;2\n"  # as many commas as semicolons
GERMAN_NAMES = ("a", "b", "c", "d", "label")


@pytest.mark.parametrize("decimal", [".", ","])
def test_decimal_commas_are_no_delimiters_where_they_are_as_many(tmp_path: Path, decimal: str) -> None:
    reading = Reading(header=GERMAN_NAMES, decimal=decimal)  # type: ignore[arg-type]
    path = written(tmp_path, GERMAN)
    if decimal == ".":
        with refused("marks"):
            sheet.read(path, reading, ("label",))
        return
    found = sheet.read(path, reading, ("label",))
    assert found.x.tolist() == np.float32([[13.616, 1.167, 333.887, 1.226], [12.5, 1.2, 333.9, 1.3]]).tolist()
    assert found.text["label"] == ["1", "2"]


@pytest.mark.parametrize(
    ("head", "decimal", "wanted"),
    [
        ("1,5;2,5;3,5", ".", ";"),
        ("1,5|2,5", ".", "|"),
        ("1,5\t2,5\tok", ".", "\t"),
        ("1.234,5;-,5;1,5e3", ".", ";"),
        ("1,5 2,5 3,5", ",", " "),
        ("1,5 2,5 3,5", ".", ","),
        ("2026-01-01 06:00,1,5", ",", ","),
        ("Temp, inside, left;label", ",", ";"),
        ("Temp, inside, left;label", ".", ","),
        ('device,time,label,"a;b"', ",", ","),
        ("a;b,c,d", ".", ","),
        ("1 mm, x;1,5;2", ".", ";"),
    ],
)
def test_which_delimiter_a_first_row_has(head: str, decimal: str, wanted: str) -> None:
    assert lines.delimiter_of(head, decimal) == wanted


@pytest.mark.parametrize(
    ("given", "content"),
    [
        (";", "device;label;a,b,c\nd;x;1\n"),
        ("tab", "device\tlabel\ta,b,c\nd\tx\t1\n"),
        ("blanks", "device label  a,b,c\nd  x 1\n"),
        ("|", "sep=;\ndevice|label|a,b,c\nd|x|1\n"),
        (",", 'device,label,"a,b,c"\nd,x,1\n'),
    ],
)
def test_a_delimiter_that_is_given(tmp_path: Path, given: str, content: str) -> None:
    found = sheet.read(written(tmp_path, content), Reading(delimiter=given), ROLES)  # type: ignore[arg-type]
    assert (found.columns, found.x.tolist(), found.text["label"]) == (("a,b,c",), [[1.0]], ["x"])


def test_texts_that_may_be_several_cells_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sheet.read(written(tmp_path, "device,label,a\nd,x|y,1\nd,616;1,2\n"), Reading(), ROLES)
    assert "plant.csv, column 'label': '616;1' may be several cells. If ';' is the delimiter: [data]" in caplog.text
    caplog.clear()
    sheet.read(written(tmp_path, "device,label,a\nd,x|y,1\nd,a;b,2\n"), Reading(), ROLES)
    sheet.read(written(tmp_path, "device,label,a\nd,616;1,2\n"), Reading(delimiter=","), ROLES)
    assert not caplog.text
    with refused("no-column"):
        sheet.read(written(tmp_path, "device,label;a,b\nd,x;1,2\n"), Reading(), ROLES)
