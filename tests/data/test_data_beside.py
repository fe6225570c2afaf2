"""Tables beside the measurements: each is named as what it is, and the proposed lines join it without losing a row."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pandas
import pytest

from fedfloor.data.events import label_rows
from fedfloor.data.files import conversions
from fedfloor.data.files.tables_beside import joins
from refusals import refused


@pytest.fixture(autouse=True)
def sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pandas.DataFrame:
    monkeypatch.chdir(tmp_path)
    rows = [
        [f"2026-03-01 0{hour}:{minute:02}:00", f"P-{pump}", f"B{pump}{hour}", hour + pump / 10]
        for pump in range(3)
        for hour in range(6)
        for minute in (0, 30)
    ]
    table = pandas.DataFrame(rows, columns=["time", "asset", "batch", "temp"])
    table.to_csv("sensors.csv", index=False)
    return table


def run(text: str) -> None:
    """Run the lines of pandas in a message."""
    lines = re.search(r"\n\n(    import.*?)\n\n", text, re.DOTALL)
    assert lines is not None, text
    exec(textwrap.dedent(lines[1]), {})


def test_a_log_of_states_gives_each_row_the_state_in_force(sensors: pandas.DataFrame) -> None:
    log = pandas.DataFrame(
        [["2026-03-01 01:10:00", "P-0", "RUN", "STOP"], ["2026-03-01 03:40:00", "P-0", "STOP", "RUN"],
         ["2026-03-01 02:20:00", "P-1", "RUN", "FAULT"]],
        columns=["time", "tag", "from", "to"],
    )  # fmt: skip
    log.to_csv("log.csv", index=False)
    with refused("log-of-states"):
        conversions.check(Path("log.csv"), {})
    text = joins(Path("sensors.csv"), Path("log.csv"), {})
    assert "changes of state, of 'tag' to 'to'" in text
    run(text)
    command = {"event-device": "tag", "end": "end"}
    label_rows(Path("sensors.csv"), Path("states.csv"), Path("marked.csv"), kind="to", columns=command)
    found = pandas.read_csv("marked.csv", keep_default_na=False)
    rows, log["time"] = sensors.assign(time=pandas.to_datetime(sensors.time)), pandas.to_datetime(log.time)
    events = log.rename(columns={"tag": "asset"}).sort_values("time")
    wanted = pandas.merge_asof(rows.sort_values("time", kind="stable"), events, on="time", by="asset")
    wanted = wanted.sort_values(["asset", "time"])["to"].fillna("none")
    assert found.label.tolist() == wanted.tolist()


def test_repairs_have_the_command_that_labels_the_rows_before_them() -> None:
    repairs = [["P-0", "2026-03-01 02:00:00", "WO-1", "seal"], ["P-1", "2026-03-01 03:00:00", "WO-2", "seal"],
               ["P-2", "2026-03-01 04:00:00", "WO-3", "bearing"]]  # fmt: skip
    pandas.DataFrame(repairs, columns=["asset", "date", "work order", "text"]).to_csv("repairs.csv", index=False)
    text = joins(Path("sensors.csv"), Path("repairs.csv"), {})
    assert "fedfloor datasets label sensors.csv repairs.csv --event-device asset --kind text --within 24h" in text


def test_several_samples_of_a_batch_are_joined_without_losing_a_row(sensors: pandas.DataFrame) -> None:
    lab = pandas.DataFrame(
        [["B00", 1, 4.0, "ok"], ["B00", 2, 6.0, "off"], ["B11", 1, 3.0, "ok"], ["B25", 1, 1.0, "ok"]],
        columns=["batch", "sample", "purity", "verdict"],
    )
    lab.to_csv("lab.csv", index=False)
    text = joins(Path("sensors.csv"), Path("lab.csv"), {})
    assert "rows of 'batch', without a time and several of one" in text
    run(text)
    found = pandas.read_csv("joined.csv")
    assert len(found) == len(sensors)
    assert "sample" not in found
    assert found[found.batch == "B00"].purity.tolist() == [5.0, 5.0]
    assert set(found[found.batch == "B00"].verdict) == {"off / ok"}
    assert found.purity.notna().sum() == 6
