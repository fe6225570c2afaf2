"""Drafts of columns that are no plain sensors: marks of missing values, booleans and durations of Parquet."""

from __future__ import annotations

import numpy as np
import pytest

from commands import Command


def test_marks_of_missing_values_are_noted_with_their_setting(command: Command) -> None:
    marks = ["-9999", "-999.9", "9.9E+37", "65535"]
    draw = np.random.default_rng(0)
    rows = []
    for row in range(400):
        cells = [mark if row % 50 == 7 + k else f"{draw.normal(5):.3f}" for k, mark in enumerate(marks)]
        rows.append(f"{'AB'[row % 2]},{','.join(cells)},{'ok' if row % 3 else 'worn'}")
    (command.folder / "t.csv").write_text("machine,a,b,c,d,state\n" + "\n".join(rows) + "\n")
    made = command("new", "t.csv")
    assert made.code == 0, made.err
    for sensor, mark in zip("abcd", marks, strict=True):
        note = next(line for line in made.err.splitlines() if f"'{sensor}' is {mark.lower()} in" in line)
        assert f'data.missing_texts=["{mark.lower()}"]' in note
    listed = "data.missing_texts=" + str(marks).replace("'", '"')
    again = command("new", "t.csv", "--force", "--set", listed)
    assert again.code == 0, again.err
    assert "missing_texts=" not in again.err


def test_booleans_and_durations_of_parquet(command: Command) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    many = 200
    table = pa.table({
        "machine": ["AB"[row * 2 // many] for row in range(many)],
        "time": pa.array([1_500_000 * row for row in range(many)], pa.duration("us")),
        "temp": [float(row * 7 % 13) for row in range(many)],
        "on": [row % 5 < 2 for row in range(many)],
        "state": ["ok" if row % 3 else "worn" for row in range(many)],
    })  # fmt: skip
    parquet.write_table(table, command.folder / "t.parquet")
    made = command("new", "t.parquet", "--set", "data.columns.time=time")
    assert made.code == 0, made.err
    assert "training: 0 to 268.5" in made.err


def test_the_clock_of_labview_is_no_sensor(command: Command) -> None:
    rows = [
        f"{row * 0.001:.3f},{'AB'[row * 2 // 400]},{row * 7 % 13},{'ok' if row % 3 else 'worn'}" for row in range(400)
    ]
    (command.folder / "t.csv").write_text("X_Value,machine,temp,state\n" + "\n".join(rows) + "\n")
    assert "'X_Value' is taken for the time" in command("new", "t.csv").err


ROWS = [
    f"2026-03-02 06:{row:02}:00,{m},{row * 7 % 13},{row * 5 % 11},{'ok' if row % 3 else 'worn'}"
    for m in "AB"
    for row in range(60)
]
BLOCKS = ("--set", "data.columns.device=", "--set", "park.devices=2", "--set", 'data.partition={kind="blocks"}')


def test_rows_of_separators_are_no_samples(command: Command) -> None:
    """As spreadsheets write them below a table, some shorter; and one within a table."""
    lines = ["timestamp,machine,temp,vib,state", *ROWS[:30], ",,,,", *ROWS[30:], ",,", *[",,,,"] * 40, " , , , , "]
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")
    made = command("new", "t.csv")
    assert made.code == 0, made.err
    assert "43 rows without any value, the first of which is row 32" in made.err
    assert "96 training and 24 test samples" in (command.folder / "t.toml").read_text()


@pytest.mark.parametrize("many", [120, 60_000], ids=["by rows", "by columns"])
def test_rows_of_separators_without_device_time_and_label(command: Command, many: int) -> None:
    lines = ["temp,vib,flow", *(f"{row * 7 % 13}.125,{row * 5 % 11}.25,{row % 17}.5" for row in range(many))]
    (command.folder / "t.csv").write_text("\n".join([*lines, *[",,"] * 50]) + "\n")
    made = command("new", "t.csv", "--task", "reconstruction", *BLOCKS)
    assert made.code == 0, made.err
    assert f"50 rows without any value, the first of which is row {many + 2}" in made.err
    assert f"{many * 4 // 5:,} training and {many // 5:,} test samples" in (command.folder / "t.toml").read_text()
