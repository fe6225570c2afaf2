"""Drafts of tables with a life per row: states of which one is a failure, dates that are missing, and clocks."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from commands import Command


def pumps(command: Command, states: dict[int, str] | None = None, *, dated: bool = True, name: str = "t.csv") -> None:
    """Write 60 pumps at two sites, of which each third still runs; ``states``: row → another state."""
    draw = np.random.default_rng(0)
    start = np.datetime64("2024-01-01")
    lines = ["installed,removed,status,pressure,site"]
    for row in range(60):
        begin = start + np.timedelta64(int(draw.integers(0, 300)), "D")
        end = begin + np.timedelta64(int(draw.integers(20, 300)), "D")
        state = (states or {}).get(row, "still running" if row % 3 == 0 else "failed")
        date = "" if state == "still running" or (not dated and row == 1) else str(end)
        lines.append(f"{begin},{date},{state},{10 + row % 4},{'Aalen' if row % 2 else 'Bremen'}")
    (command.folder / name).write_text("\n".join(lines) + "\n")


def drafted(command: Command, *words: str) -> tuple[dict[str, Any], str]:
    made = command("new", "t.csv", "--force", *words)
    assert made.code == 0, made.err
    return tomllib.loads((command.folder / "t.toml").read_text())["data"], made.err


def test_a_third_state_still_runs_and_is_named_with_its_number(command: Command) -> None:
    pumps(command, {4: "replaced preventively", 5: "replaced preventively"})
    data, told = drafted(command)
    assert (data["task"], data["ended"], data["columns"]["label"]) == ("survival", "failed", "status")
    assert "'still running' 20, 'replaced preventively' 2" in told


@pytest.mark.parametrize("other", ["Failed", "failed "])
def test_a_state_in_two_spellings_is_refused_with_all_texts(other: str, command: Command) -> None:
    pumps(command, {4: other})
    shown = other.strip()
    if shown == "failed":  # blanks at the end are cut off, as everywhere
        assert drafted(command, "--task", "survival")[0]["ended"] == "failed"
        return
    said = command("new", "t.csv", "--task", "survival")
    command.refused(said, "which text is that of a life that ended?", "'failed' 39", "'Failed' 1", "data.ended=TEXT")


def test_a_failure_without_its_date_is_refused(command: Command) -> None:
    pumps(command, dated=False)
    command.refused(
        command("new", "t.csv"), "column 'removed': empty in 1 row of lives that ended", "row 2 below the header"
    )


@pytest.mark.parametrize("clock", [range(60), [1.5 * row + row % 2 for row in range(1, 61)]])
def test_a_clock_is_no_life(clock: list[float], command: Command) -> None:
    draw = np.random.default_rng(0)
    rows = [
        f"{time},{'AB'[k % 2]},{draw.normal():.3f},{'failed' if k % 5 == 0 else 'ok'}" for k, time in enumerate(clock)
    ]
    (command.folder / "t.csv").write_text("time,machine,temp,state\n" + "\n".join(rows) + "\n")
    assert "task" not in drafted(command)[0]


def test_two_dates_of_a_life_are_no_sensors_to_ask_about(command: Command) -> None:
    pumps(command)
    drafted(command)
    said = command("ask", "t.toml")
    assert (said.code, "All sites fit together." in said.out) == (0, True), said
