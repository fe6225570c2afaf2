"""Questions before training: on files, in Python, at the command line, and by ``[data] agree``."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import fedfloor
from benchmarks.ask import FAULTS, FIRST, others, renamed, written
from commands import Command
from fedfloor.data.sources import SOURCES
from fedfloor.runs.asking import before
from fedfloor.runs.parks import build_park
from refusals import refused


def plant(folder: Path, fault: str = "", seed: int = 1) -> Path:
    draw = np.random.default_rng(seed)
    tables = FIRST.made(draw)
    sensors = [name for name in tables["site-2"] if name not in ("time", "state")]
    if fault:
        FAULTS[fault][1](tables, "site-2", sensors, draw)
    written(tables, folder)
    return folder


def experiment(folder: Path, **changes: object) -> fedfloor.Experiment:
    base = fedfloor.Experiment(
        data=fedfloor.DataSettings(path=str(folder), device="file", columns=fedfloor.Columns(label="state")),
        model=fedfloor.ModelSettings("logistic"), rounds=1,
    )  # fmt: skip
    return fedfloor.load(base, changes=changes)


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        ("a sensor missing", {"data.columns.values": ["temp", "pressure", "load"]}),
        ("columns in another order", {"data.columns.values": ["temp", "pressure", "flow", "load"]}),
        ("rows sent twice", {"data.copies": "drop"}),
        ("status texts in a twentieth", {"data.missing_texts": ["Bad Input"], "data.missing": "previous"}),
        ("two thirds missing", {"data.missing": "previous"}),
    ],
)
def test_the_proposed_setting_lets_the_data_be_read(tmp_path: Path, fault: str, changes: dict[str, object]) -> None:
    folder = plant(tmp_path / "plant", fault)
    sentences = " ".join(one.sentence for one in fedfloor.ask(folder).findings)
    assert all(key in sentences for key in changes)
    with pytest.raises(fedfloor.SettingError):
        build_park(experiment(folder))
    assert build_park(experiment(folder, **changes)).devices == 6


def test_ask_in_python_shows_sites_and_sensors(tmp_path: Path) -> None:
    asked = fedfloor.ask(plant(tmp_path / "plant"))
    assert asked.findings == ()
    assert [row["site"] for row in asked.by_site()] == [f"site-{k}" for k in range(1, 7)]
    first = asked.by_site()[0]
    assert (first["rows"], first["every_s"], first["gaps"], first["from"]) == (400, 60.0, 0, "2026-03-02 06:00:00")
    assert [row["sensor"] for row in asked.by_sensor()] == ["temp", "pressure", "flow", "load"]
    assert all(row["min"] <= row["q5"] < row["q50"] < row["q95"] <= row["max"] for row in asked.by_sensor())


def test_an_experiment_is_asked_by_its_own_columns(tmp_path: Path) -> None:
    folder = plant(tmp_path / "plant", "a sensor missing")
    whole = fedfloor.ask(experiment(folder))
    assert [(one.kind, one.sites) for one in whole.findings] == [("missing", ("site-2",))]
    fewer = fedfloor.ask(experiment(folder, **{"data.columns.values": ["temp", "pressure", "load"]}))
    assert fewer.findings == ()


def test_data_without_files_are_asked_by_their_rows() -> None:
    asked = fedfloor.ask("machines", changes={"park.devices": 4})
    assert len(asked.sites) == 4
    assert all(site.rows > 0 and len(site.sensors) > 1 for site in asked.sites)
    with refused("ask"):
        fedfloor.ask("labels", changes={"park.devices": 2})


def test_the_command_tells_sites_sensors_and_findings(command: Command, tmp_path: Path) -> None:
    plant(tmp_path / "plant", "°F beside °C")
    said = command("ask", str(tmp_path / "plant"))
    assert said.code == 1
    assert "'site-2', sensor 'temp'" in said.out
    assert "in °F" in said.out
    document = json.loads(command("ask", str(tmp_path / "plant"), "--json").out)
    assert [one["kind"] for one in document["findings"]] == ["unit"]
    assert len(document["sites"]) == 6
    good = command("ask", str(plant(tmp_path / "good")))
    assert good.code == 0
    assert "All sites fit together." in good.out


def test_the_command_refuses_what_it_cannot_ask(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert command("ask", str(tmp_path / "empty")).code == 2
    (tmp_path / "bare.csv").write_text("time,temp\n")
    (tmp_path / "notes.md").write_text("# notes\n")
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    for name in ("nothing.csv", "bare.csv", "notes.md", "arrays.npz"):
        assert command("ask", str(tmp_path / name)).code == 2, name
    plant(tmp_path / "plant")
    assert "--set" in command("ask", str(tmp_path / "plant"), "--set", "rounds=1").err


def test_agree_refuses_warns_or_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = plant(tmp_path / "plant", "a class in capitals")
    with refused("data.agree"):
        before(experiment(folder, **{"data.agree": "refuse"}), resume=False)
    before(experiment(folder, **{"data.agree": "refuse"}), resume=True)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        before(experiment(folder, **{"data.agree": "warn"}), resume=False)
    assert "'WORN'" in caplog.text
    caplog.clear()
    before(experiment(folder, **{"data.agree": "off"}), resume=False)
    before(experiment(folder), resume=False)
    assert not caplog.records


def test_a_run_is_refused_before_its_data_are_read(tmp_path: Path) -> None:
    folder = plant(tmp_path / "plant", "a sensor renamed")
    with refused("data.agree"):
        fedfloor.run(experiment(folder, **{"data.agree": "refuse"}), tmp_path / "run", ranks=1)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_table_that_cannot_be_read_is_named_and_others_are_asked(tmp_path: Path) -> None:
    folder = plant(tmp_path / "plant")
    (folder / "site-3.csv").write_text("time,temp\n1,2,3\n")
    (folder / "site-4.csv").write_text("")
    found = {one.sites: one.sentence for one in fedfloor.ask(folder).findings}
    assert {("site-3",), ("site-4",)} <= found.keys()
    assert "cannot be read" in found["site-3",]


def test_a_table_with_a_column_of_devices_is_asked_by_device(tmp_path: Path) -> None:
    tables = FIRST.made(np.random.default_rng(0))
    names = list(next(iter(tables.values())))
    rows = [
        f"{name},{','.join(cells)}" for name, table in tables.items() for cells in zip(*table.values(), strict=True)
    ]
    path = tmp_path / "all.csv"
    path.write_text("\n".join([",".join(["machine", *names]), *rows]) + "\n")
    asked = fedfloor.ask(path)
    assert [site.name for site in asked.sites] == [*tables]
    assert asked.findings == ()


def test_units_below_the_header_and_other_names_of_the_time_are_told(tmp_path: Path) -> None:
    tables = FIRST.made(np.random.default_rng(0))
    renamed(tables["site-2"], "time", "Zeit")
    written(tables, tmp_path / "plant")
    for k in (1, 2, 3):
        path = tmp_path / "plant" / f"site-{k}.csv"
        head, *rest = path.read_text().splitlines()
        path.write_text("\n".join([head, f",{'bar' if k == 3 else '°C'},bar,l/h,%,", *rest]) + "\n")
    asked = fedfloor.ask(tmp_path / "plant")
    assert asked.by_sensor()[0]["unit"] == "°C/bar"
    assert {(one.kind, one.sites) for one in asked.findings} == {("renamed", ("site-2",)), ("unit", ("site-3",))}
    assert others(tables, "site-6", 2) == ["site-6", "site-1"]


def test_the_page_shows_what_the_command_prints(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/ask.md").read_text(encoding="utf-8")
    script = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "make_sites.py", "exec"), {"__name__": "__main__"})
    monkeypatch.setenv("COLUMNS", "120")
    lines = [line.rstrip() for line in command("ask", "plant").out.splitlines() if line.strip()]
    shown = page.partition("```text\n")[2].partition("```")[0]
    assert lines == [line for line in shown.splitlines() if line.strip()]


def labelled(folder: Path, texts: dict[str, list[str]]) -> Path:
    tables = FIRST.made(np.random.default_rng(0))
    for name, table in tables.items():
        table["state"] = [*texts.get(name, texts[""])] * (len(table["state"]) // len(texts[""]))
    written(tables, folder)
    return folder


def test_a_class_that_is_a_number_written_in_another_way_is_named_once(tmp_path: Path) -> None:
    folder = labelled(tmp_path / "plant", {"": ["0", "0", "1", "0"], "site-3": ["0.0", "0.0", "1.0", "0.0"]})
    found = [(one.kind, one.sites, one.sensors) for one in fedfloor.ask(folder).findings]
    assert found == [("spelling", ("site-3",), ("0", "0.0")), ("spelling", ("site-3",), ("1", "1.0"))]


def test_measured_labels_do_not_leave_a_site(tmp_path: Path) -> None:
    folder = labelled(tmp_path / "plant", {"": ["1.25", "2.5", "7", "3.5"]})
    asked = fedfloor.ask(folder)
    assert asked.findings == ()
    assert all(site.classes == {} for site in asked.sites)
    assert "1.25" not in json.dumps(asked.to_dict())


def test_machines_of_one_name_in_two_files_are_told_apart(tmp_path: Path) -> None:
    tables = FIRST.made(np.random.default_rng(0))
    for table in tables.values():
        table["machine"] = ["M1"] * len(table["time"])
    FAULTS["°F beside °C"][1](tables, "site-2", ["temp"], np.random.default_rng(0))
    written(tables, tmp_path / "plant")
    asked = fedfloor.ask(tmp_path / "plant")
    assert [site.name for site in asked.sites] == [f"{name}/M1" for name in tables]
    assert [one.sites for one in asked.findings if one.kind == "unit"] == [("site-2/M1",)]
    assert "data.factory=folder" in asked.findings[0].sentence


def test_a_file_a_month_is_one_device(tmp_path: Path) -> None:
    tables = FIRST.made(np.random.default_rng(0))
    for name, table in tables.items():
        table["machine"] = ["M1" if name < "site-4" else "M2"] * len(table["time"])
    for months, name in enumerate(tables):
        tables[name]["time"] = [text.replace("2026-03", f"2026-0{months + 1}") for text in tables[name]["time"]]
    written(tables, tmp_path / "plant")
    asked = fedfloor.ask(tmp_path / "plant")
    assert [(site.name, site.rows) for site in asked.sites] == [("M1", 1200), ("M2", 1200)]


def test_marks_of_missing_values_are_named_and_do_not_count(tmp_path: Path) -> None:
    asked = fedfloor.ask(plant(tmp_path / "plant", "-9999 in a twentieth"))
    (one,) = asked.findings
    assert one.sites == ("site-2",)
    assert "'data.missing_texts=[\"-9999\"]'" in one.sentence
    assert min(row["min"] for row in asked.by_sensor()) > 0


def test_normalisation_by_device_ends_the_finding_that_proposes_it(command: Command, tmp_path: Path) -> None:
    plant(tmp_path / "plant", "°F beside °C")
    (command.folder / "e.toml").write_text(
        f'rounds = 1\nmodel.name = "logistic"\n[data]\npath = "{tmp_path}/plant"\ndevice = "file"\n'
        'columns = { label = "state" }\nagree = "refuse"\n'
    )
    assert "--set data.normalise=device" in command("ask", "e.toml").out
    assert command("ask", "e.toml", "--set", "data.normalise=device").code == 0
    assert command("run", "e.toml").code == 2
    ran = command("run", "e.toml", "--set", "data.normalise=device")
    assert ran.code == 0, ran.err


def test_a_misspelt_data_set_is_recognised(command: Command) -> None:
    command.refused(command("ask", "machins"), "unknown experiment 'machins'", "Did you mean 'machines'?")
    command.refused(command("ask", "bda"), "unknown experiment 'bda'", "machines", "skab")
    assert "skab" in SOURCES
    said = command("ask", "machines", "--set", "park.devices=3")
    assert (said.code, "All sites fit together." in said.out) == (0, True), said


def test_a_misspelt_class_is_no_class_that_others_lack(tmp_path: Path) -> None:
    folder = plant(tmp_path / "plant")
    for path in folder.iterdir():
        path.write_text(path.read_text().replace("worn", "running"))
    path = folder / "site-2.csv"
    path.write_text(path.read_text().replace("running", "runing", 1))
    (one,) = fedfloor.ask(folder).findings
    assert (one.kind, one.sites, one.sensors) == ("spelling", ("site-2",), ("running", "runing"))


def test_control_characters_in_a_header_are_blanks(command: Command, tmp_path: Path) -> None:
    """They would colour the terminal, or move the text of a page; line breaks are usual in workbooks."""
    (tmp_path / "plant").mkdir()
    for site in "abc":
        rows = "\n".join(f"{k},{k % (7 + ord(site) % 3)}.5,{'ok' if k % 3 else 'worn'}" for k in range(120))
        header = 'time,"\x1b[31mTemp\n[°C]\u202e",state'
        (tmp_path / f"plant/{site}.csv").write_text(f"{header}\n{rows}\n", encoding="utf-8")
    for said in (
        command("ask", str(tmp_path / "plant")),
        command("new", str(tmp_path / "plant"), "--set", "data.device=file"),
    ):
        assert said.code == 0, said.err
        assert not {*"\x1b\u202e"} & {*said.out, *said.err}
        assert "[31mTemp [°C]" in said.out + said.err
