"""Drafts of tables with a life per row: a table per site, states, dates that are missing, clocks, and predictions."""

from __future__ import annotations

import csv
import io
import json
import shlex
import tomllib
from typing import Any

import numpy as np
import pandas as pd
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


def repairs(many: int = 40, seed: int = 0, **names: str) -> pd.DataFrame:
    """Return a table of one site's repairs, in which the machines P0 to P14 recur; ``names``: column → another name."""
    draw = np.random.default_rng(seed)
    begin = pd.Timestamp("2023-01-01") + pd.to_timedelta(draw.integers(0, 900, many), "D")
    days = 20 + np.floor(500 * draw.weibull(1.5, many))
    end = begin + pd.to_timedelta(days, "D")
    over = end < pd.Timestamp("2026-01-01")
    table = pd.DataFrame({
        "pump": [f"P{n % 15}" for n in range(many)], "kind": [("ball", "roller", "cone")[n % 3] for n in range(many)],
        "load": draw.normal(50, 5, many).round(2), "installed": begin,
        "removed": end.where(over), "status": np.where(over, "failed", "running"),
    })  # fmt: skip
    return table.rename(columns=names)


GERMAN = {"pump": "Lager-Nr.", "load": "Last [kN]", "installed": "Einbaudatum", "removed": "Ausbaudatum"}


@pytest.mark.parametrize("form", ["csv", "xlsx", "folders", "a column"])
def test_a_table_of_lives_per_site_is_a_survival(form: str, command: Command) -> None:
    names = GERMAN if form == "xlsx" else {}
    plants = command.folder / "plants"
    for number, site in enumerate(["plant-a", "plant-b", "plant-c"]):
        table = repairs(40 + number, number, **names)
        path = plants / (f"{site}/repairs.csv" if form == "folders" else f"{site}.{'xlsx' if names else 'csv'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "a column":
            table["site"] = site
        if names:
            table["status"] = table["status"].map({"failed": "ausgefallen", "running": "in Betrieb"})
            table.to_excel(path, index=False)
        else:
            table.to_csv(path, index=False)
    made = command("new", "plants")
    assert made.code == 0, made.err
    data = tomllib.loads((command.folder / "plants.toml").read_text())["data"]
    assert data["task"] == "survival"
    assert data["ended"] == ("ausgefallen" if names else "failed")
    start, end = ("Einbaudatum", "Ausbaudatum") if names else ("installed", "removed")
    assert data["columns"]["life"] == f"{start} + {end}"
    assert data["columns"]["run"] == ("Lager-Nr." if names else "pump")
    assert data["columns"]["categories"] == {"kind": "one-hot"}  # 13 rows of each at a site, but lives depend on them
    keeper = {"csv": "file", "xlsx": "file"}.get(form)
    assert data.get("device") == keeper
    assert data["columns"].get("device") == ("site" if form == "a column" else None)
    ran = command("run", "plants.toml", "--rounds", "2")
    assert ran.code == 0, ran.err
    park = json.loads((command.folder / "runs/plants/park.json").read_text())
    assert [device["name"] for device in park["devices"]] == ["plant-a", "plant-b", "plant-c"]


def test_machines_whose_names_recur_at_many_sites_have_lives_and_no_recordings(command: Command) -> None:
    """15 machines at each of 8 sites, with the same names: 320 rows of 15 names, but 2.7 of a machine."""
    tables = [repairs(seed=number).assign(site=f"site {number}") for number in range(8)]
    pd.concat(tables).to_csv(command.folder / "t.csv", index=False)
    data, told = drafted(command)
    assert data["task"] == "survival"
    assert (data["columns"]["device"], data["columns"]["run"]) == ("site", "pump")
    assert "'pump' names the machines" in told


def test_recordings_of_sensors_per_site_are_no_lives(command: Command) -> None:
    (command.folder / "plants").mkdir()
    draw = np.random.default_rng(0)
    for site in "ab":
        rows = [f"m{k // 60},{k % 60},{draw.normal():.3f},{('ok', 'failed')[k % 60 > 50]}" for k in range(240)]
        (command.folder / f"plants/{site}.csv").write_text("\n".join(["machine,hours,temp,status", *rows]) + "\n")
    made = command("new", "plants")
    assert "survival" not in made.err, made.err


def test_a_misspelt_failure_is_refused_and_another_slip_is_asked_about(command: Command) -> None:
    pumps(command, {4: "faild"})
    command.refused(command("new", "t.csv"), "'faild' in 1 row", "Did you mean 'failed'")
    pumps(command, {3: "still runing"})
    assert "'still runing' (1): did you mean 'still running'?" in drafted(command)[1]


def test_predictions_name_machines_and_count_the_rows_that_trained(command: Command) -> None:
    pd.concat([repairs(seed=n).assign(site=f"site {n}") for n in range(3)]).to_csv(
        command.folder / "t.csv", index=False
    )
    drafted(command)
    assert command("run", "t.toml").code == 0
    said = command("predict", "runs/t", "t.csv", "--json", "--within", "90")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    park = json.loads((command.folder / "runs/t/park.json").read_text())
    held = [sum(device["counts"]) for device in park["devices"]]
    assert all(25 < many < 40 for many in held)  # some of the 15 machines of each site are for testing
    assert [row["trained"] for row in document["by_device"]] == held
    assert document["rows"][0]["recording"] == "P0"
    people = command("predict", "runs/t", "t.csv", "--within", "90").out
    assert "the chance to fail within 90 days from the present age on" in people
    usual = json.loads(command("predict", "runs/t", "t.csv", "--json").out)["rows"]
    print(document["rows"][:2])
    for row in document["rows"]:  # a machine that has failed has no chance to fail
        known = [row[name] is not None for name in ("chance", "median", "low", "high")]
        assert known == [row["label"] != "failed"] * 4
    running = [row["label"] == "running" for row in usual]
    both = [(more["chance"], less["chance"]) for more, less in zip(document["rows"], usual, strict=True)]
    left = [pair for pair, runs in zip(both, running, strict=True) if runs]
    assert len({more > less for more, less in left}) == 1
    assert 0 < len(left) < len(both)
    assert command("predict", "runs/t", "t.csv", "--within", "0").code == 2


def test_columns_of_a_life_are_no_sensors(command: Command) -> None:
    """Lives at one site are observed from their start on, those at the other from an age on."""
    draw = np.random.default_rng(0)
    rows = [
        [f"P{n}", "ab"[n % 2], f"{draw.normal(50, 5):.2f}", 0 if n % 2 else 100 + n, 400 + int(draw.integers(900)),
         ("failed", "running")[n % 4 == 0]]
        for n in range(160)
    ]  # fmt: skip
    text = io.StringIO()
    csv.writer(text).writerows([["pump", "site", "temp", "entry", "hours", "status"], *rows])
    (command.folder / "t.csv").write_text(text.getvalue())
    data, told = drafted(command)
    assert data["columns"]["entry"] == "entry"
    assert "life is 'hours'" in told
    assert "1 sensor: temp" in told
    ran = command("run", "t.toml", "--rounds", "3")
    said = command("predict", "runs/t", "t.csv")
    for one in (told, ran.err, said.err):
        assert "never changes" not in one
        assert "'hours'" not in one.replace("'hours' is taken for the life", "").replace("life is 'hours'", "")


@pytest.mark.parametrize("words", [(), ("--method", "kaplanmeier", "--set", "data.task.distribution=steps")])
def test_lives_need_no_sensors(words: tuple[str, ...], command: Command) -> None:
    """Of two thirds that failed at 100 and 300, and a third that ran at 500: S(100) = 2/3, S(300) = 1/3."""
    rows = [f"P{k},s{k // 3 % 4},{(100, 300, 500)[k % 3]},{int(k % 3 < 2)}" for k in range(120)]
    (command.folder / "t.csv").write_text("pump,site,hours,failed\n" + "\n".join(rows) + "\n")
    data, told = drafted(command)
    assert (data["ended"], data["columns"]["label"]) == ("1", "failed")
    assert "no sensor;" in told
    ran = command("run", "t.toml", *words)
    assert ran.code == 0, ran.err
    ages = [row.rpartition(",")[0] for row in rows]  # nobody says which of them have failed
    (command.folder / "t.csv").write_text("pump,site,hours\n" + "\n".join(ages) + "\n")
    said = command("predict", "runs/t", "t.csv", "--json", "--within", "250")
    chances = [row["chance"] for row in json.loads(said.out)["rows"][:3]]
    if words:  # from 100 on: half fail until 350; from 300 and 500 on, 550 and 750 are beyond the last observed time
        assert chances[0] == pytest.approx(0.5, abs=0.1)
        assert chances[1:] == [None, None]
    else:
        assert chances == sorted(chances)


@pytest.mark.parametrize("name", ["2", "true", "my column", "Jan's"])
def test_a_proposed_column_can_be_typed_as_proposed(name: str, command: Command) -> None:
    rows = [f"m{k % 3},{k * 7 % 11}.5,{'ab'[k % 2]}" for k in range(60)]
    (command.folder / "t.csv").write_text(f"machine,temp,{name}\n" + "\n".join(rows) + "\n")
    said = command("new", "t.csv")
    option = said.err.partition("It may be ")[2].partition(": ")[2].partition(". If")[0]
    words = shlex.split(option)
    assert words[0] == "--set", said.err
    made = command("new", "t.csv", *words)
    assert made.code == 0, made.err
    assert tomllib.loads((command.folder / "t.toml").read_text())["data"]["columns"]["label"] == name


def test_tables_of_lives_are_asked_by_site(command: Command) -> None:
    """Machines have few rows, and the dates of a life are no times of rows."""
    (command.folder / "plants").mkdir()
    for number in range(3):
        repairs(40, number).to_csv(command.folder / f"plants/plant-{number}.csv", index=False)
    said = command("ask", "plants")
    assert (said.code, "All sites fit together." in said.out) == (0, True), said.out
    assert [word in said.out for word in ("plant-0", "plant-2", "load", "P1")] == [True, True, True, False]


OPEN = ("", "")  # of a machine that still runs: no date of its end, no cause
TABLES: dict[str, tuple[str, tuple[str, ...], str, Any]] = {
    "a fate": ("plant,machine,built,out,fate", ("worn out", "still running"), "fate", "worn out"),
    "causes beside an empty cell": ("site,pump,installed,removed,reason", ("seal,bearing", ""), "reason", "*"),
    "causes beside a state": (
        "plant,unit,commissioned,scrapped,cause", ("seal,shaft", "in service"), "cause", ["shaft", "seal"],
    ),
    "planned replacements": (
        "site,pump,installed,removed,reason", ("seal,planned replacement", ""), "reason", ["seal"],
    ),
    "no state": ("site,pump,installed,removed", (), "removed", "*"),
    "German": ("Anlage,Gerät,Inbetriebnahme,Außerbetriebnahme,Grund", ("Lager,Welle", ""), "Grund", "*"),
    "French": ("usine,machine,mise en service,date de panne,état", ("en panne", "en marche"), "état", "en panne"),
    "a mark of those that run": ("site,asset,hours_run,censored", ("0", "1"), "censored", "0"),
}  # fmt: skip


def kept(command: Command, header: str, states: tuple[str, ...], *, each: int = 1) -> None:
    """Write 60 machines at two sites, of which each third still runs, with some rows each."""
    draw = np.random.default_rng(0)
    lines = [header]
    for row in range(60 * each):
        begin = np.datetime64("2023-01-01") + np.timedelta64(int(draw.integers(0, 300)), "D")
        days = int(draw.integers(20, 300))
        runs = row % 3 == 0
        time = str(24 * days) if "hours" in header else f"{begin},{'' if runs else begin + np.timedelta64(days, 'D')}"
        texts = states[runs].split(",") if states else ["-"]
        state = [texts[row % len(texts)]] if states else []
        lines.append(",".join([("Aalen", "Bremen")[row // each % 2], f"M{row // each:02}", time, *state]))
    (command.folder / "t.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_lives_as_plants_keep_them(name: str, command: Command) -> None:
    header, states, label, ended = TABLES[name]
    kept(command, header, states)
    data, told = drafted(command)
    assert (data["task"], data["columns"]["label"], data["ended"]) == ("survival", label, ended)
    assert (data["columns"]["device"], data["columns"]["run"]) == tuple(header.split(",")[:2])
    still = 20 + 20 * (name == "planned replacements")
    assert f"{still} of 60 still run" in told


def test_machines_that_were_repaired_several_times_are_lives(command: Command) -> None:
    kept(command, "site,machine,start,repair date,outcome", ("repaired", "running"), each=5)
    assert drafted(command)[0]["ended"] == "repaired"


def test_a_log_of_stops_is_no_table_of_lives(command: Command) -> None:
    kept(command, "site,machine,start,end,cause", ("jam,no parts", ""), each=5)
    assert command("new", "t.csv").code != 0


def test_unknown_words_of_an_outcome_are_asked_for(command: Command) -> None:
    kept(command, "site,pump,installed,removed,result", ("X", "Y"))
    text = (command.folder / "t.csv").read_text()
    (command.folder / "t.csv").write_text(text.replace(",,Y", ",2024-06-01,Y"))
    command.refused(command("new", "t.csv"), "If a row is a life, from one date to the other: --set data.task=survival")
    said = command("new", "t.csv", "--task", "survival")
    command.refused(said, "column 'result'", "which text is that of a life that ended?", "'X' 40", "data.ended=TEXT")


def test_lives_without_a_date_of_their_end_still_run_and_are_predicted(command: Command) -> None:
    kept(command, "site,pump,installed,removed", ())
    drafted(command)
    assert command("run", "t.toml", "--out", "r").code == 0
    rows = json.loads(command("predict", "r", "t.csv", "--within", "90", "--json").out)["rows"]
    assert [row["label"] for row in rows[:3]] == ["running", "failed", "failed"]
    assert [row["chance"] is None for row in rows[:3]] == [False, True, True]
