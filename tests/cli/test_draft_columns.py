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
