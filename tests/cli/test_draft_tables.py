"""Drafts of tables as strangers bring them: the label last, switches, codes, series with periods, short recordings."""

from __future__ import annotations

import math
import random
import tomllib
from typing import Any

import numpy as np
import pytest

from commands import Command
from fedfloor.drafting.guess import guess
from fedfloor.drafting.profile import TableProfile

DEALT = ("data.columns.device=", "park.devices=4", 'data.partition={kind="dirichlet",alpha=1.0}')
DEAL = tuple(word for setting in DEALT for word in ("--set", setting))
SERIES = (
    "--task", "forecasting", "--set", "data.columns.device=", "--set", "park.devices=2", "--set",
    'data.partition={kind="blocks"}',
)  # fmt: skip


def draft(command: Command, *words: str) -> dict[str, Any]:
    said = command("new", "t.csv", "--force", *words)
    assert said.code == 0, said.err
    return tomllib.loads((command.folder / "t.toml").read_text())


def write(command: Command, header: str, rows: list[str]) -> None:
    (command.folder / "t.csv").write_text("\n".join([header, *rows]) + "\n")


def test_the_last_column_is_offered_as_the_label_beside_a_device_that_lacks(command: Command) -> None:
    draw = random.Random(0)
    write(command, "first,age,strength", [f"{draw.random()},{n % 7},{draw.random()}" for n in range(300)])
    said = command("new", "t.csv")
    assert said.code == 2
    assert "no column 'device'" in said.err
    assert "No label either; candidates: 'strength' (the last column, numbers) or 'age' (7 numbers)" in said.err
    assert "'first' (the first column, numbers): --set data.columns.label=strength" in said.err
    assert draft(command, *DEAL, "--set", "data.columns.label=strength")["data"]["task"] == {"kind": "regression"}


def test_a_series_is_dealt_in_blocks(command: Command) -> None:
    write(command, "flow", [str(n % 9) for n in range(300)])
    assert (
        "--set park.devices=10 --set 'data.partition={kind=\"blocks\"}' (parts"
        in command("new", "t.csv", "--task", "forecasting").err
    )


def test_switches_are_one_sensor_and_codes_with_digits_are_categories(command: Command) -> None:
    draw = random.Random(1)
    rows = [
        f"{draw.random():.4f},{n % 2 == 0},{'AF4R'[n % 4]},{'ja' if n % 3 else 'nein'},{n // 7 % 2}" for n in range(400)
    ]
    write(command, "heat,pump on,drive,valve,label", rows)
    document = draft(command, *DEAL, "--set", "data.columns.ignore=[]")
    assert document["data"]["columns"]["categories"] == {
        "pump on": ["False", "True"], "drive": "one-hot", "valve": ["nein", "ja"],
    }  # fmt: skip
    assert command("run", "t.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1").code == 0
    assert command("predict", "out", "t.csv").code == 0


def test_a_site_that_each_machine_has_several_of_is_no_factory(command: Command) -> None:
    rows = [f"m{n % 4},{n % 3 + 1},{n * 37 % 101},{n % 2}" for n in range(200)]
    write(command, "machine,site,heat,label", rows)
    assert draft(command)["data"]["columns"]["factory"] == ""


def test_machines_within_a_device_are_found_beyond_the_first_rows(command: Command) -> None:
    rows = [f"line {n // 900},pump {n // 300},{n * 37 % 101},{n % 2}" for n in range(1800)]
    write(command, "machine,pump_id,heat,label", rows)
    assert guess(TableProfile.of(command.folder / "t.csv", {}), {}).settings["columns"]["device"] == "pump_id"


@pytest.mark.parametrize(("hour", "season"), [(24, 24), (0, None)])
def test_a_period_sizes_windows_and_calendars_are_no_targets(command: Command, hour: int, season: int | None) -> None:
    draw = np.random.default_rng(2)
    load = [3 + (math.sin(2 * math.pi * n / hour) if hour else 0) + draw.normal(0, 0.2) for n in range(1500)]
    write(command, "number,hour,load", [f"{n + 1},{n % 24},{value:.4f}" for n, value in enumerate(load)])
    document = draft(command, *SERIES)
    assert document["data"]["columns"]["ignore"] == ["number"]
    assert document["data"]["task"]["sensors"] == ["load"]
    assert document["data"]["task"].get("season") == season
    assert document["data"]["window"] == {"length": season or 20, "step": 1}
    given = draft(command, *SERIES, "--set", "data.window={length=8,step=2}")["data"]
    assert given["window"] == {"length": 8, "step": 2}
    assert "season" not in given["task"]


def test_what_recurs_exactly_is_no_target(command: Command) -> None:
    draw = np.random.default_rng(2)
    shift = [round(5 * math.sin(2 * math.pi * n / 24), 1) for n in range(1500)]
    write(command, "shift,load", [f"{value},{3 + value / 5 + draw.normal(0, 0.2):.4f}" for value in shift])
    document = draft(command, *SERIES)
    assert document["data"]["task"]["season"] == 24
    text = (command.folder / "t.toml").read_text()
    assert "'shift': the same again after 24 rows" in text
    assert "the next 10 rows of load" in text


def test_numbers_of_parts_are_no_sensors(command: Command) -> None:
    numbers = np.random.default_rng(0).permutation(200_000)[:300]
    rows = [f"m{n % 3},{numbers[n]},{n * 37 % 101},{n % 2}" for n in range(300)]
    write(command, "machine,Teilenummer,heat,label", rows)
    assert draft(command)["data"]["columns"]["ignore"] == ["Teilenummer"]


@pytest.mark.parametrize(("name", "left"), [("Charge", True), ("Charge [mAh]", False)])
def test_a_measure_with_the_name_of_a_batch_is_a_sensor(command: Command, name: str, left: bool) -> None:
    """Whole numbers that hardly recur number batches, unless they have a unit or follow another sensor."""
    numbers = np.random.default_rng(0).permutation(200_000)[:300]
    rows = [f"m{n % 3},{numbers[n]},{n * 37 % 101},{n % 2}" for n in range(300)]
    write(command, f"machine,{name},heat,label", rows)
    assert ("ignore" in draft(command)["data"]["columns"]) == left
    rows = [f"m{n % 3},{numbers[n]},{numbers[n] + 20_000 * (n % 5)},{n % 2}" for n in range(300)]
    write(command, f"machine,{name},volts,label", rows)
    assert "ignore" not in draft(command)["data"]["columns"]


def test_windows_are_as_short_as_recordings_need(command: Command) -> None:
    rows = [f"{k},{n},{n * n + k}" for k in range(12) for n in range(10 + k % 4)]
    write(command, "machine,cycle,crack", rows)
    assert draft(command, "--set", "data.remaining=true")["data"]["window"] == {"length": 6, "step": 1}


@pytest.mark.parametrize(("label", "life"), [("strength", False), ("rul", True)])
def test_scores_of_lives_are_not_of_other_numbers(command: Command, label: str, life: bool) -> None:
    draw = random.Random(3)
    write(command, f"heat,{label}", [f"{draw.random():.4f},{1000 * draw.random():.1f}" for _ in range(300)])
    draft(command, *DEAL, "--set", f"data.columns.label={label}", "--task", "regression")
    assert command("run", "t.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1").code == 0
    answer = command("predict", "out", "t.csv")
    assert ("NASA score" in answer.out) == life
    assert ("RMSE uncapped" in answer.out) == life
    headed = command("run", "t.toml", "--out", "o", "--set", "rounds=1", "--set", "evaluate.headline=NASA score")
    assert headed.code == 0, headed.err


def test_a_file_called_like_a_published_one_with_names_of_its_own(command: Command) -> None:
    rows = [f"m{n % 3},{n * 37 % 101},{n % 2}" for n in range(200)]
    path = command.folder / "train_FD002.txt"
    path.write_text("\n".join(["machine,heat,label", *rows]) + "\n")
    said = command("new", path.name, "--set", "data.format=table")
    assert said.code == 0, said.err


def test_a_sensor_that_fails_once_leaves_predictions_as_they_are(command: Command) -> None:
    """A value 100 deviations out: a network that takes it as it is answers some hundred deviations, too."""
    draw = np.random.default_rng(4)
    x = draw.normal(size=(400, 6))
    rows = [",".join([*(f"{value:.4f}" for value in row), f"{row.sum():.4f}"]) for row in x]
    write(command, "a,b,c,d,e,f,thickness", rows)
    assert draft(command, *DEAL, "--set", "data.columns.label=thickness")["model"]["name"] == "mlp-sensor-soft"
    assert command("run", "t.toml", "--ranks", "1", "--out", "out", "--set", "rounds=10").code == 0
    (command.folder / "odd.csv").write_text("a,b,c,d,e,f\n-100,0,0,0,0,0\n")
    assert abs(command("predict", "out", "odd.csv", "--json").document["rows"][0]["predicted"]["thickness"]) < 20


def test_dates_that_rows_are_not_in_the_order_of_are_no_time(command: Command) -> None:
    rows = [f"m{n % 3},2026-01-{n * 7 % 28 + 1:02},{n * 37 % 101},{n // 4 % 2}" for n in range(200)]
    write(command, "machine,built on,heat,label", rows)
    columns = draft(command)["data"]["columns"]
    assert columns["time"] == ""
    assert columns["ignore"] == ["built on"]
    said = command("new", "t.csv", "--force", "--set", "data.columns.time=built on")
    assert said.code == 2
    assert "has this time in row 2 already" in said.err  # sorting would not help
    rows = [f"m{n % 3},2026-01-{n * 9 % 28 + 1:02},{n * 37 % 101},{n // 4 % 2}" for n in range(28)]
    write(command, "machine,timestamp,heat,label", rows)
    assert "data.sort=true" in command("new", "t.csv", "--force").err


def test_a_mark_of_anomalies_that_all_rows_lack_is_no_sensor(command: Command) -> None:
    draw = random.Random(5)
    write(command, "heat,flow,is_anomaly", [f"{draw.random():.4f},{draw.random():.4f},0" for _ in range(300)])
    document = draft(command, *DEAL, "--task", "reconstruction")
    assert document["data"]["columns"]["label"] == "is_anomaly"
    assert document["evaluate"]["headline"] == "reconstruction error"


def test_a_forecast_of_sensors_that_jump_does_not_diverge(command: Command) -> None:
    """As rain and gusts do: still for hundreds of rows, then a hundred deviations away."""
    draw = np.random.default_rng(6)
    x = np.where(draw.random((1200, 12)) < 0.004, 100.0, 0.01) * draw.normal(size=(1200, 12))
    write(command, ",".join(f"rain {i}" for i in range(12)), [",".join(f"{value:.4f}" for value in row) for row in x])
    assert draft(command, *SERIES)["work"]["clip_norm"] == 1.0
    ran = command("run", "t.toml", "--ranks", "1", "--out", "out", "--set", "rounds=3")
    assert ran.code == 0, ran.err


def test_a_flag_in_the_last_row_marks_the_end_of_a_recording(command: Command) -> None:
    """Four of twelve tools still run; the lives of the others are known, and no row before the last tells the flag."""
    rows = [f"t{k},{n},{n * n + k % 5},{int(n == 39 and k % 3 > 0)}" for k in range(12) for n in range(40)]
    write(command, "machine,hour,wear,failed", rows)
    said = command("new", "t.csv", "--force", "--set", "data.remaining=true")
    assert "4 of 12 recordings do not end with '1' (data.ended), and are left out" in said.err
    assert "recordings whose last 'failed' is not '1' still run and are left out" in said.err
    said = command("new", "t.csv", "--force", "--set", 'data.split={kind="device"}')
    assert "'1' is in the last rows of recordings only and seems to mark their ends" in said.err
    write(command, "machine,hour,wear,failed", [row[:-1] + str(n % 2) for n, row in enumerate(rows)])
    assert "mark their ends" not in command("new", "t.csv", "--force").err


@pytest.mark.parametrize("name", ["t_ms", "Zeit_s"])
def test_a_time_may_have_its_unit_behind_it(command: Command, name: str) -> None:
    write(
        command,
        f"machine,{name},heat,label",
        [f"m{k},{20 * n},{n * 37 % 101},{n % 2}" for k in range(3) for n in range(40)],
    )
    assert draft(command)["data"]["columns"]["time"] == name
