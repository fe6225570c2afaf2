"""Drafts of tables whose clocks are numbers, are set back, stop, or run at different rates."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest

from commands import Command

START = np.datetime64("2026-03-02T06:00:00", "s")
MINUTE = np.timedelta64(60, "s")
FORMS = {
    "s": lambda time: f"{time.astype(int)}",
    "ms": lambda time: f"{time.astype(int)}000",
    "us": lambda time: f"{time.astype(int)}000001",
    "ns": lambda time: f"{time.astype(int)}000000001",
    "excel": lambda time: f"{time.astype(int) / 86400 + 25569:.8f}",
    "%Y%m%d%H%M%S": lambda time: f"{time.item():%Y%m%d%H%M%S}",
    "%Y%m%d%H%M": lambda time: f"{time.item():%Y%m%d%H%M}",
}


def plant(command: Command, times: list[str], *, machines: str = "AB", name: str = "t.csv") -> None:
    draw = np.random.default_rng(0)
    rows = [
        f"{time},{machine},{draw.normal():.3f},{draw.normal():.3f},{'ok' if row % 3 else 'worn'}"
        for machine in machines
        for row, time in enumerate(times)
    ]
    (command.folder / name).write_text("timestamp,machine,temp,vib,state\n" + "\n".join(rows) + "\n")


def drafted(command: Command, *words: str) -> tuple[dict[str, Any], str]:
    made = command("new", "t.csv", "--force", *words)
    assert made.code == 0, made.err
    return tomllib.loads((command.folder / "t.toml").read_text())["data"], made.err


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_are_moments_are_drafted_as_such(command: Command, form: str) -> None:
    plant(command, [FORMS[form](START + row * MINUTE) for row in range(60)])
    data, notes = drafted(command)
    assert data.get("time_format") == (None if form == "s" else form)
    assert "training: 2026-03-02 06:00:00 to 2026-03-02 06:4" in notes


def test_days_as_numbers(command: Command) -> None:
    plant(command, [f"{(START + day * 1440 * MINUTE).item():%Y%m%d}" for day in range(60)])
    data, notes = drafted(command)
    assert data["time_format"] == "%Y%m%d"
    assert "training: 2026-03-02 00:00:00 to 2026-04-1" in notes


@pytest.mark.parametrize(
    "numbers",
    [np.arange(60), np.arange(60) + 46_083, np.arange(60) * 0.25 + 46_083, np.arange(60) + 20_260_301],
    ids=["rows", "counts", "running time", "no dates"],
)
def test_other_numbers_stay_numbers(command: Command, numbers: np.ndarray[Any, Any]) -> None:
    plant(command, [f"{number:g}" if number < 1e5 else f"{number:.0f}" for number in numbers])
    data, notes = drafted(command)
    assert "time_format" not in data
    assert "training: 1" not in notes


def test_an_experiment_without_the_format_is_warned_of(command: Command) -> None:
    plant(command, [FORMS["ms"](START + row * MINUTE) for row in range(60)])
    drafted(command)
    text = (command.folder / "t.toml").read_text()
    (command.folder / "t.toml").write_text(text.replace('time_format = "ms"\n', ""))
    assert "milliseconds since 1970" in command("run", "t.toml", "--ranks", "1", "--stop-after", "1").err


def test_no_number_becomes_a_date_of_a_distant_year(command: Command) -> None:
    plant(command, [FORMS["ms"](START + row * MINUTE) for row in range(60)])
    _, notes = drafted(command, "--set", "data.time_format=s")
    assert "58136" not in notes
