"""Settings that messages propose can be pasted into an experiment, whatever the columns are called."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedfloor.base.errors import SettingError
from fedfloor.data.files import own
from fedfloor.data.reading import Columns, Reading

PROPOSED = re.compile(r"\[data\] (columns[a-z.]*) = (\{.*?\})(?=[.;] |[.;]?$)")
NAMES = ("plain", "Spritzdruck [bar]", 'a "quoted" one', "Drehzahl 1/min")


def proposed(message: str) -> list[dict[str, Any]]:
    found = PROPOSED.findall(message)
    assert found, message
    return [tomllib.loads(f"{key} = {table}") for key, table in found]


def table(folder: Path, name: str, cells: list[str]) -> Path:
    path = folder / "t.csv"
    called = '"' + name.replace('"', '""') + '"'
    rows = [f"{'ab'[row % 2]},{row},{cell},{'ok' if row % 3 else 'bad'}" for row, cell in enumerate(cells)]
    path.write_text(f"device,x,{called},label\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cells", [["1", "2", "high", "4"] * 4, [""] * 16], ids=["texts", "nothing"])
def test_a_column_that_cannot_be_read_is_left_out_as_proposed(tmp_path: Path, name: str, cells: list[str]) -> None:
    path = table(tmp_path, name, cells)
    with pytest.raises(SettingError) as error:
        own.load(path, Reading(missing="mean"), 0)
    tables = proposed(str(error.value))
    ignored = [each["columns"]["ignore"] for each in tables if "ignore" in each["columns"]]
    assert ignored == [[name]]
    assert own.load(path, Reading(columns=Columns(ignore=(name,))), 0).inputs.columns == ("x",)
    for each in tables:
        assert each["columns"].get("categories", {name: "one-hot"}) == {name: "one-hot"}


@pytest.mark.parametrize("name", NAMES)
def test_a_category_with_too_many_texts_is_listed_as_proposed(tmp_path: Path, name: str) -> None:
    reading = Reading()
    reading = replace(reading, columns=Columns(categories={name: "one-hot"}))
    with pytest.raises(SettingError) as error:
        own.load(table(tmp_path, name, [f"t{row}" for row in range(150)]), reading, 0)
    assert proposed(str(error.value))[0] == {"columns": {"ignore": [name]}}
    listed = str(error.value).partition("relevant values: ")[2].rstrip(".")
    assert tomllib.loads(listed) == {name: {"kind": "one-hot", "values": ["t0", "t1", "t2"]}}


def test_a_parquet_column_of_dates_is_left_out_as_proposed(tmp_path: Path) -> None:
    name = "Spritzdruck [bar]"
    columns = {"device": ["a", "b"] * 8, "x": [*range(16)], name: pa.array([b"x"] * 16), "label": ["ok", "bad"] * 8}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(SettingError) as error:
        own.load(tmp_path / "t.parquet", Reading(), 0)
    assert proposed(str(error.value)) == [{"columns": {"ignore": [name]}}]
