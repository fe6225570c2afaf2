"""Meters that are read, such as those of energy: their values only rise, and begin anew where one is replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedfloor.data.files import own
from fedfloor.data.reading import Columns, Reading
from fedfloor.drafting.findings import of_sensors

ROWS = 400
ANEW = 250  # of training rows


def halls(path: Path, kwh: list[np.ndarray], run: bool = False) -> dict[str, str]:
    """Return sensor → finding of a table with a meter in each hall."""
    draw = np.random.default_rng(0)
    lines = ["hall,day,shift,kwh,temp,state"]
    for number, values in enumerate(kwh):
        for row, value in enumerate(values):
            lines.append(
                f"h{number},{row},{row // 150},{value:.1f},{draw.normal(20, 2):.2f},{'ab'[int(draw.integers(2))]}"
            )
    path.write_text("\n".join(lines), "utf-8")
    columns = Columns(
        device="hall", time="day", label="state", run="shift" if run else None, ignore=() if run else ("shift",)
    )
    return {found.sensor: found.text for found in of_sensors(own.load(path, Reading(columns=columns), 0))}


def readings(number: int, begin: float = 9e4) -> np.ndarray:
    return begin + np.random.default_rng(number).gamma(2, 3, ROWS).cumsum()


def test_a_meter_that_only_rises_is_named_with_the_hall_where_it_was_replaced(tmp_path: Path) -> None:
    kwh = [readings(number) for number in range(4)]
    kwh[2][ANEW:] -= kwh[2][ANEW - 1]
    told = halls(tmp_path / "t.csv", kwh)
    assert [*told] == ["kwh"]
    assert told["kwh"].startswith("only rises, as a meter's readings do: later values are beyond those of training.")
    assert "It begins anew in h2, as a meter that was replaced." in told["kwh"]
    assert 'table.groupby(DEVICE)["kwh"].diff().clip(lower=0)' in told["kwh"]
    assert "anew in" not in halls(tmp_path / "u.csv", [readings(number) for number in range(4)])["kwh"]


@pytest.mark.parametrize("kind", ["falls", "recurs", "run", "some"])
def test_what_falls_or_begins_anew_in_each_recording_is_no_meter(tmp_path: Path, kind: str) -> None:
    kwh = [readings(number) for number in range(4)]
    for number, values in enumerate(kwh):
        if kind == "falls" or (kind == "some" and number % 2):
            values[::40] -= 100
        if kind == "recurs":
            values[:] = 5 + np.arange(ROWS) % 25
        if kind == "run":
            values[:] = 5 + np.arange(ROWS) % 150
    assert halls(tmp_path / "t.csv", kwh, run=kind == "run") == {}
