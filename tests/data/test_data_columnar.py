"""Parquet, Excel, and large CSV files: by columns the same is read as row by row, and mistakes have their place."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data.files import columnar, packed, rows, sheet
from fedfloor.data.files.layout import TableLayout
from fedfloor.data.files.own import load
from fedfloor.data.reading import Reading, Window
from fedfloor.inference import inputs
from model_files import sensors_of
from refusals import refused
from tables import plant, text

ROLES = ("device", "label")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


def outcome(path: Path, reading: Reading, *, quick: bool) -> object:
    """Return what is read by columns, or row by row; or the error."""
    before = columnar.QUICK
    columnar.QUICK = 0 if quick else 1 << 60
    try:
        found = sheet.read(path, reading, ROLES)
    except SettingError as error:
        return str(error)
    finally:
        columnar.QUICK = before
    time = None if found.time is None else found.time.tobytes()
    return found.columns, found.x.tobytes(), found.line.tolist(), found.text, time


def is_quick(path: Path, reading: Reading) -> bool:
    """Return whether a table is read by columns to its end."""
    layout = TableLayout.of(path, plant()[0], reading, (), lenient=True)
    try:
        list(columnar.csv_batches(layout, header=reading.header is None))
    except columnar.UnfitError:
        return False
    return True


NUMBERS = ["", "1", "-2.5", "+3", " 4", "1e3", "1e39", "inf", "-nan", "nan(1)", "NaN", "NA", "nA", "?", "-", "x", "1_0",
           "0x1F", "1,5", "\u0663", "\xa07", "1e400", "1e-400", "0.1", ".5", "3.", "123456789012345678901234567890",
           "2.4703282292062328e-324", "9007199254740993", "1d5", "infinity", "1\0", "tRue"]  # fmt: skip
TIMES = ["1", "1.5", "1e3", "nan", "", "2026-03-01", "2026-03-01T06:30:00", "2026-03-01 06:30:01", "2026-03-01T06:30Z",
         "2026-03-01T06:30:00Z", "2026-03-01T06:30:60", "2026-03-01T24:00:00", "2026-02-30T06:30:00", "20260301",
         "2026-03-01T06:30:00.5", "2026-03-01T06:30:00.123", "2026-03-01T06:30:00.123456", "0000-01-01T00:00:00",
         "9999-12-31T23:59:59", "1600-01-01", "2026-03-01T06:30:00+01", "01.03.2026 06:30", "2026-W10-1", "2026-03-01Z",
         "2026-03-01T06:30:00,123", "2026-03-01_06:30:00", " 2026-03-01"]  # fmt: skip
NUMBER = st.sampled_from(NUMBERS) | st.floats(-1e6, 1e6).map(str) | st.text("0123456789.,e+- ", max_size=6)
PLAIN = st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr) | st.sampled_from(["", "NA", "-", "7"])
WORD = st.sampled_from(["a", "b ", " Säge", "", "NA", "none", "-", 'q"', "a\rb"]) | st.text(
    "ab c\xe9\u2028", min_size=1
)


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_by_columns_the_same_is_read_as_row_by_row(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    decimal = data.draw(st.sampled_from([".", ","]))
    odd = data.draw(st.booleans())  # else most tables are read by columns to their ends
    number = NUMBER if odd else PLAIN.map(lambda cell: cell.replace(".", decimal))
    moment = st.sampled_from(TIMES) if odd else st.sampled_from([TIMES[:2], TIMES[6:8], TIMES[5:6], TIMES[9:10]])
    word = WORD if odd else st.sampled_from(["a", " b", "Säge"])
    kind = None if odd else data.draw(moment)
    times = st.sampled_from(TIMES) if odd else st.sampled_from(kind)
    row = st.tuples(word, times, number, word, number).map(list)
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    delimiter = ";" if decimal == "," else data.draw(st.sampled_from([",", "\t"]))
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    head = data.draw(st.sampled_from(["", "\ufeff"])) + delimiter.join(["device", "time", "x", "label", "y"])
    tail = data.draw(st.sampled_from([end, "", end + end])) if odd else end
    content = head + end + end.join(delimiter.join(cells) for cells in rows) + tail
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(content.encode())
    reading = Reading(decimal=decimal)
    assert outcome(path, reading, quick=True) == outcome(path, reading, quick=False)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_plain_tables_are_read_by_columns(
    tmp_path: Path, packed: bool, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "PIECE", 512)  # several batches
    content = text(plant(), end=end).encode()
    path = tmp_path / "plant.csv.gz"
    path.write_bytes(gzip.compress(content) if packed else content)
    assert is_quick(path, Reading())
    assert outcome(path, Reading(), quick=True) == outcome(path, Reading(), quick=False)
    path.write_bytes(content.split(end.encode(), 1)[1])
    headless = Reading(header=tuple(plant()[0]))
    assert is_quick(path, headless)
    assert outcome(path, headless, quick=True) == outcome(path, headless, quick=False)


@pytest.mark.parametrize(
    "spoil",
    [lambda t: t.replace("press 2", '"press 2"'), lambda t: t.replace("\n", "\n\n", 9), lambda t: t.replace("\n", "\r"),
     lambda t: t.replace("press 3", "press\0"), lambda t: t + "press 1,hall 1\n",
     lambda t: t.replace(",7,", ",7,x", 1), lambda t: t.replace("press 3", "Bürste")[:-1] + "\udcfc"],
)  # fmt: skip
def test_what_only_rows_show_is_read_row_by_row(tmp_path: Path, spoil: Any) -> None:
    path = tmp_path / "plant.csv"
    path.write_bytes(spoil(text(plant())).encode("utf-8", "surrogateescape"))
    assert not is_quick(path, Reading())
    assert outcome(path, Reading(), quick=True) == outcome(path, Reading(), quick=False)


def test_a_mistake_below_blank_lines_has_its_row(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    path.write_text("device,time,x,label\n\n\nd,2026-03-01,1,ok\nd,noon,1,ok\n")
    by_columns = outcome(path, Reading(), quick=True)
    assert by_columns == outcome(path, Reading(), quick=False)
    assert str(by_columns).startswith("plant.csv, row 5, column 'time': 'noon' is no time.")


# -- Parquet -----------------------------------------------------------------------------------------------------------

START = dt.datetime(2026, 3, 1, 6, 30)


@pytest.mark.parametrize("delimiter", [None, ";", "tab"])
def test_decimal_commas_and_given_delimiters_by_columns(tmp_path: Path, delimiter: Any) -> None:
    path = tmp_path / "plant.csv"
    mark = "\t" if delimiter == "tab" else ";"
    path.write_text("1,5;2,5;d;ok,\n1,0;-2,5;d;worn\n".replace(";", mark))
    names = ("x", "y", "device", "label")
    reading = Reading(header=names, decimal=",", delimiter=delimiter)
    by_columns = outcome(path, reading, quick=True)
    assert by_columns == outcome(path, reading, quick=False)
    assert isinstance(by_columns, tuple)
    assert by_columns[1] == np.float32([[1.5, 2.5], [1, -2.5]]).tobytes()
    layout = TableLayout.of(path, names, reading, (), lenient=True)
    assert sum(len(batch.x) for batch in columnar.csv_batches(layout, header=False)) == 2


def columns(**more: Any) -> dict[str, Any]:
    rows = range(40)
    return {
        "device": [f"m{i % 4}" for i in rows],
        "time": [START + dt.timedelta(seconds=i, milliseconds=250) for i in rows],
        "x": [0.1 * i for i in rows], "n": list(rows), "label": ["worn" if i % 3 else "ok" for i in rows],
    } | more  # fmt: skip


def stored(path: Path, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns(**more)), path, row_group_size=7)
    return path


def as_csv(path: Path) -> Path:
    given = columns()
    rows = zip(*given.values(), strict=True)
    path.write_text(",".join(given) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def test_parquet_holds_what_csv_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = sheet.read(as_csv(tmp_path / "t.csv"), Reading(), ROLES)
    assert wanted.time is not None
    small = pa.array(columns()["n"], pa.int8())
    zoned = pa.array(columns()["time"], pa.timestamp("us", "UTC"))
    for more in ({}, {"device": pa.array(columns()["device"]).dictionary_encode()}, {"n": small}, {"time": zoned},
                 {"n": pa.array(columns()["n"], pa.decimal128(5, 1))}, {"time": list(map(str, columns()["time"]))},
                 {"time": pa.array(columns()["time"], pa.timestamp("ns"))}):  # fmt: skip
        monkeypatch.setattr(columnar, "ROWS", 16)
        got = sheet.read(stored(tmp_path / "t.parquet", **more), Reading(), ROLES)
        assert (got.columns, got.text, got.line.tolist()) == (wanted.columns, wanted.text, list(range(1, 41)))
        assert np.array_equal(got.x, wanted.x)
        assert got.time is not None
        assert np.array_equal(got.time, wanted.time)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"x": [1.0] * 39 + [float("inf")]}, "not-finite"),
        ({"x": ["1"] * 30 + ["5 bar"] * 10}, "odd-text"),
        ({"seen": columns()["time"]}, "no-numbers"),
        ({"label": [*columns()["label"][:20], None, *columns()["label"][21:]]}, "conversion"),
        ({"time": [*columns()["time"][:20], None, *columns()["time"][21:]]}, "no-time"),
        ({"time": [f"{i}:00 Uhr" for i in range(40)]}, "no-time"),
        ({"l": [[1]] * 40}, "no-numbers"),
        ({"x": [None] * 20 + [1.0] * 20}, "missing"),
    ],
)  # fmt: skip
def test_mistakes_in_parquet_have_their_place(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    with refused(told):
        load(stored(tmp_path / "t.parquet", **more), Reading(), 0)


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "t.parquet")
    for content in (path.read_bytes()[:-9], b"PAR1", b"", b"device,label\n"):
        path.write_bytes(content)
        with refused("damaged-table"):
            load(path, Reading(), 0)


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    for name in ("may", "june"):
        stored(tmp_path / "months" / f"{name}.parquet", time=list(range(40)) if name == "may" else list(range(50, 90)))
    assert load(tmp_path / "months", Reading(), 0).owned.names == ("m0", "m1", "m2", "m3")
    for name in ("m1", "m2"):
        stored(tmp_path / "files" / f"{name}.parquet", device=[name] * 40)
    assert load(tmp_path / "files", Reading(device="file"), 0).owned.names == ("m1", "m2")


def test_a_model_reads_parquet(tmp_path: Path) -> None:
    trained = load(stored(tmp_path / "t.parquet"), Reading(window=Window(2)), 0)
    sensors = sensors_of(trained.inputs.describe())
    assert sensors is not None
    by_csv, by_parquet = (
        inputs.table(one, sensors, ("ok", "worn")) for one in (as_csv(tmp_path / "t.csv"), tmp_path / "t.parquet")
    )
    assert np.array_equal(by_csv.x, by_parquet.x)


# -- Excel -------------------------------------------------------------------------------------------------------------


def workbook(path: Path, *sheets: str, **more: Any) -> Path:
    book = openpyxl.Workbook()
    for number, name in enumerate(sheets or ("Tabelle1",)):
        page = book.active if not number else book.create_sheet()
        page.title = name
        given = columns(**more)
        page.append(list(given))
        for row in zip(*given.values(), strict=True):
            page.append(row)
    book.create_sheet("empty")
    book.save(path)
    return path


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_workbook_holds_what_csv_holds(tmp_path: Path, decimal: str) -> None:
    wanted = sheet.read(as_csv(tmp_path / "t.csv"), Reading(), ROLES)
    got = sheet.read(workbook(tmp_path / "t.xlsx"), Reading(decimal=decimal), ROLES)  # type: ignore[arg-type]
    assert (got.columns, got.text, got.line.tolist()) == (wanted.columns, wanted.text, wanted.line.tolist())
    assert np.array_equal(got.x, wanted.x)
    assert got.time is not None
    assert got.time == pytest.approx(wanted.time)


def test_sheets_and_mistakes_of_workbooks(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", "north", "south")
    with refused("conversion"):
        load(path, Reading(), 0)
    found = load(path, Reading(sheet="south"), 0)
    assert found.inputs.dialect == {"sheet": "south"}
    with refused("no-sheet"):
        load(path, Reading(sheet="sout"), 0)
    with refused("odd-text"):
        load(workbook(path, x=[1, 2, 3, 4, "#DIV/0!", *range(35)]), Reading(), 0)
    path.write_bytes(path.read_bytes()[:-99])
    with refused("damaged-table"):
        load(path, Reading(), 0)


ENDLESS = "xl/worksheets/sheet1.xml", 'r="41"', 'r="999999999"'
CHARTS = "xl/_rels/workbook.xml.rels", "/worksheet", "/chartsheet"
BOMB = "xl/worksheets/sheet1.xml", "<sheetData>", f"<sheetData>{' ' * (1 << 20)}"


@pytest.mark.parametrize(("part", "old", "new"), [ENDLESS, CHARTS, BOMB])
def test_a_workbook_that_has_no_cells_or_no_end_is_refused(
    tmp_path: Path, part: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows up to a single false number were read for hours, and a workbook of charts alone ended in a traceback."""
    monkeypatch.setattr(rows, "MOST_ROWS", 1000)
    monkeypatch.setattr(packed, "LARGE", 1 << 19)
    monkeypatch.setattr(packed, "RATIO", 50)
    path = workbook(tmp_path / "t.xlsx")
    with zipfile.ZipFile(path) as made:
        texts = {name: made.read(name).decode() for name in made.namelist() if name != "docProps/core.xml"}  # a date
    assert old in texts[part]
    texts[part] = re.sub(r'([A-Z])41"', r'\g<1>999999999"', texts[part].replace(old, new))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as false:
        for name, text in texts.items():
            false.writestr(name, text)
    with refused("bomb" if len(new) > 99 else "damaged-table"):
        load(path, Reading(), 0)


def test_a_flipped_byte_in_a_workbook_is_no_traceback(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx")
    whole = path.read_bytes()
    read = 0
    places = range(0, len(whole), 97)
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with contextlib.suppress(SettingError):
            load(path, Reading(), 0)
            read += 1
    assert read < len(places)  # what is damaged where it matters is refused


@pytest.mark.parametrize("column", ["device", "time", "note"])
def test_texts_that_are_no_utf_8_are_a_damaged_file(tmp_path: Path, column: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    offsets = pa.py_buffer(np.arange(3, dtype=np.int32).tobytes())
    wrong = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xb2")])
    usual = {"device": ["a", "a"], "time": ["1", "2"], "note": ["x", "y"], "label": ["ok", "bad"], "x": [1.0, 2.0]}
    parquet.write_table(pa.table({**usual, column: wrong}), tmp_path / "t.parquet")
    with refused("damaged-table"):
        sheet.read(tmp_path / "t.parquet", Reading(), ("device", "time", "label", "note"))
    with refused("damaged-table"):
        list(columnar.parquet_rows(tmp_path / "t.parquet"))


def test_numbers_beyond_single_precision_are_refused_by_columns_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "QUICK", 0)
    path = tmp_path / "t.csv"
    path.write_text("device,label,x\na,ok,1\na,ok,1e39\n")
    with refused("not-finite"):
        sheet.read(path, Reading(), ("device", "label"))


def test_numbers_that_are_texts_in_parquet_are_numbers(tmp_path: Path) -> None:
    wanted = sheet.read(stored(tmp_path / "numbers.parquet"), Reading(), ROLES)
    as_texts = ["" if np.isnan(x) else repr(float(x)) for x in wanted.x[:, wanted.columns.index("x")]]
    got = sheet.read(stored(tmp_path / "texts.parquet", x=as_texts), Reading(), ROLES)
    assert np.array_equal(got.x, wanted.x, equal_nan=True)


def test_new_run_and_predict_on_parquet_and_excel(command: Command) -> None:
    for make, ending in ((stored, "parquet"), (workbook, "xlsx")):
        make(command.folder / f"plant.{ending}", operator=["Anna"] * 40)
        done = command("new", f"plant.{ending}", "--force")
        assert done.code == 0, done.err
        assert "operator" in (command.folder / "plant.toml").read_text()
        assert command("run", "plant.toml", "--ranks", "1", "--stop-after", "1", "--out", f"runs/{ending}").code == 0
        assert command("predict", f"runs/{ending}", f"plant.{ending}").code == 0
