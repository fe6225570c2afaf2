"""`fedfloor new` on tables with the usual blemishes of a plant's data: each is refused or noted with a way out."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from commands import Command
from fedfloor.base.errors import SettingError
from fedfloor.data.files import own
from fedfloor.data.reading import Columns, DraftReading, Reading
from fedfloor.drafting.draft import draft
from model_files import sensors_of


def quality(path: Path, **cells: str) -> Path:
    """Write 200 parts with a measured grade; ``row_N`` replaces the grade in row N."""
    rng = random.Random(0)
    lines = ["machine,time,heat,grade"]
    for n in range(200):
        grade = cells.get(f"row_{n + 2}", f"{rng.gauss(50, 5):.2f}")
        lines.append(f"m{n // 50},{n % 50},{rng.gauss(180, 3):.1f},{grade}")
    path.write_text("\n".join(lines) + "\n")
    return path


GRADE = ("--set", "data.columns.label=grade")


@pytest.mark.parametrize("text", ["n.i.O.", "<5"])
def test_a_measured_label_with_a_text_is_refused(command: Command, text: str) -> None:
    quality(command.folder / "q.csv", row_7=text)
    command.refused(
        command("new", "q.csv", *GRADE), f"q.csv, row 7, column 'grade': '{text}' is not a number, but", "list all",
        f'.isin(["{text.casefold()}"])\n    table = table[~missing]\n',
    )  # fmt: skip


def test_codes_with_a_text_are_classes(command: Command) -> None:
    lines = [f"m{n % 4},{n % 7},{['normal', '0.007', '0.014', '0.021'][n // 4 % 4]}\n" for n in range(160)]
    (command.folder / "q.csv").write_text("machine,heat,label\n" + "".join(lines))
    assert command("new", "q.csv").code == 0


def test_rows_without_a_measured_label_become_no_class(command: Command) -> None:
    quality(command.folder / "q.csv", row_7="")
    said = command("new", "q.csv", *GRADE)
    command.refused(said, "q.csv, row 7, column 'grade': empty", "Leave these rows out. To", "table[~missing]\n")
    (command.folder / "c.csv").write_text("machine,heat,label\nm1,1,2\nm1,2,\nm2,2,3\n")
    command.refused(command("new", "c.csv"), 'or as a class: table.loc[missing, "label"] = "none"')


def test_marks_of_missing_targets_are_noted(command: Command) -> None:
    quality(command.folder / "q.csv", **{f"row_{n}": "-999" for n in range(5, 200, 20)})
    said = command("new", "q.csv", *GRADE)
    assert "the target 'grade' is -999 in 8 of the rows examined" in said.err


def test_few_targets_that_decide_the_error_are_noted(command: Command) -> None:
    """1 % of the rows with another unit hid whether a model was any good."""
    quality(command.folder / "q.csv", row_9="90000")
    said = command("new", "q.csv", *GRADE)
    assert "the target 'grade' is 90000 or the like in 1 % of the rows" in said.err


def test_settings_are_checked_before_the_file(command: Command) -> None:
    (command.folder / "q.toml").write_text("mine")
    quality(command.folder / "q.csv")
    command.refused(command("new", "q.csv", "--task", "regresion"), "Did you mean 'regression'?")
    command.refused(command("new", "q.csv"), "q.toml exists already")


def recordings(root: Path, head: str = "acc,wear", *, flat: bool = False, rows: int = 60) -> Path:
    """Write four recordings of each of four machines, with a state for each, and rows in the order of time."""
    rng = random.Random(1)
    for m in range(4):
        for k in range(4):
            state = "worn" if (m + k) % 2 else "good"
            folder = root if flat else root / f"hall {m // 2}"
            folder.mkdir(parents=True, exist_ok=True)
            lines = [head]
            for n in range(rows):
                cells = {"t [s]": n / 100, "acc": f"{rng.gauss(0, 2 if state == 'worn' else 1):.3f}", "wear": state}
                lines.append(",".join(str(cells[name]) for name in head.split(",")))
            (folder / f"M{m}_2026010{k + 1}.csv").write_text("\n".join(lines) + "\n")
    return root


FILES = ("--set", "data.device=file", "--set", "data.file_name=DEVICE_*.csv", "--set", "data.factory=folder")


@pytest.mark.parametrize("head", ["acc,wear", "t [s],acc,wear"])
def test_recordings_with_one_label_each_become_windows(command: Command, head: str) -> None:
    recordings(command.folder / "vib", head)
    said = command("new", "vib", *FILES, "--set", "data.columns.label=wear")
    assert said.code == 0, said.err
    assert "each recording has a single class, therefore samples are windows of 20 rows" in said.err
    assert ("'t [s]' is taken for the time" in said.err) == ("t [s]" in head)
    assert "windows of 20 rows; good" in said.out
    assert command("new", "vib", *FILES, "--set", "data.columns.label=wear", "--set", "data.window.length=1",
                   "--force").code == 0  # fmt: skip


def test_a_temperature_t_is_no_time(command: Command) -> None:
    lines = [f"m{n % 2},{n // 2 + n % 3},{'a' if n % 3 else 'b'}\n" for n in range(60)]
    (command.folder / "t.csv").write_text("machine,T,label\n" + "".join(lines))
    said = command("new", "t.csv")
    assert said.code == 0, said.err
    assert "taken for the time" not in said.err


def test_labels_of_files_and_devices_of_names_are_proposed(command: Command) -> None:
    recordings(command.folder / "vib")
    said = command("new", "vib", *FILES)
    command.refused(said, "hall 0/M0_20260101.csv", "It may be 'wear' (2 texts)")
    recordings(command.folder / "flat", flat=True)
    command.refused(command("new", "flat"), "('M0', 'M1', 'M2', … (4)): --set data.device=file --set "
                    "'data.file_name=DEVICE_*'")  # fmt: skip
    lines = [f"line {n // 20 % 3},°{'CF'[n // 60 % 2]},{n % 7},{n % 2}\n" for n in range(120)]
    (command.folder / "q.csv").write_text("line,temp_unit,heat,label\n" + "".join(lines))
    command.refused(command("new", "q.csv"), "It may be 'line' (3 texts) or 'temp_unit' (2 texts)")


def test_the_column_that_separates_equal_times_is_proposed(command: Command) -> None:
    lines = [f"m{n // 80},{n // 40 % 2},{n % 40},{n % 7},{n // 3 % 2}\n" for n in range(160)]
    (command.folder / "c.csv").write_text("unit,campaign,cycle,heat,label\n" + "".join(lines))
    command.refused(command("new", "c.csv"), "'m0' has this time in row 2 already", "--set data.columns.run=campaign")
    assert command("new", "c.csv", "--set", "data.columns.run=campaign").code == 0


def test_texts_for_missing_values(command: Command) -> None:
    path = quality(command.folder / "q.csv")
    rows = path.read_text().splitlines()
    for row, text in ((30, "Bad Input"), (150, "I/O Timeout")):
        cells = rows[row].split(",")
        rows[row] = ",".join([*cells[:2], text, cells[3]])
    path.write_text("\n".join(rows) + "\n")
    setting = """data.missing_texts=["Bad Input", "I/O Timeout"]"""
    command.refused(command("new", "q.csv", *GRADE), "row 31, column 'heat'", f"--set '{setting}'")
    said = command("new", "q.csv", *GRADE, "--set", setting)
    assert said.code == 0, said.err
    assert 'missing = "previous" # 2 missing' in (command.folder / "q.toml").read_text()
    reading = Reading(columns=Columns("machine", time="time", label="grade"), task="regression", missing="mean",
                      missing_texts=("bad input", "I/O Timeout"))  # fmt: skip
    sensors = sensors_of(own.load(path, reading, 0).inputs.describe())
    assert sensors is not None
    assert sensors.dialect["missing_texts"] == ["bad input", "I/O Timeout"]


def test_all_problems_of_a_table_are_told_and_solved_at_once(tmp_path: Path) -> None:
    lines = ["machine,heat,load,spare,mode,wear"]
    modes = ("idle", "run", "rinse")
    for n in range(600):
        mode = modes[n // 10 % 3] if n > 300 else modes[n % 2]
        lines.append(f"m{n // 100},{n % 31 if n % 97 else ''},{n % 7},,{mode},{n * n % 97 / 10}")
    path = tmp_path / "plant.csv"
    path.write_text("\n".join(lines) + "\n")
    columns = Columns(device="machine", label="wear", categories={"mode": ("idle", "run")})
    reading = DraftReading(columns=columns)
    with pytest.raises(SettingError):
        own.load(path, reading, 0)
    assert [(problem.kind, problem.columns) for problem in reading.told] == [
        ("measure", ()), ("unlisted", ("mode",)), ("empty", ("spare",)), ("missing", ())
    ]  # fmt: skip
    with pytest.raises(SettingError, match=re.escape(reading.told[0].text)):  # the first is what an experiment refuses
        own.load(path, Reading(columns=columns), 0)
    notes = draft(path, tmp_path / "plant.toml", ["data.columns.label=wear"]).notes
    for start in ("the label is a number", "'spare' holds no value", "'mode' holds a few texts"):
        assert sum(note.startswith(start) for note in notes) == 1


@pytest.mark.parametrize("gap", [False, True])
def test_a_text_beyond_the_rows_examined_is_no_missing_value(command: Command, gap: bool) -> None:
    rng = random.Random(0)
    lines = ["device,time,heat,level,label"]
    for n in range(32_000):
        level = "standby" if n > 31_950 else "" if gap and n == 31_940 else ("off", "on")[n // 5 % 2]
        lines.append(f"m{n // 8000},{n % 8000},{rng.gauss(0, 1):.2f},{level},{'ok' if n % 3 else 'bad'}")
    (command.folder / "p.csv").write_text("\n".join(lines) + "\n")
    said = command("new", "p.csv")
    assert said.code == 0, said.err
    assert "did not occur in training" not in said.err
    text = (command.folder / "p.toml").read_text()
    assert 'level = "one-hot"' in text
    assert ("1 missing" in text) == gap
    assert ("missing =" in text) == gap


@pytest.mark.parametrize(("taken", "role"), [("id", "device"), ("time", "label"), ("factory", "run")])
def test_a_column_with_the_name_of_a_role_may_have_another(command: Command, taken: str, role: str) -> None:
    """Train on a table whose machines are in a column `id`, which by default is the identity of rows."""
    named = {"device": "machine", "label": "state", "run": "shift"} | {role: taken}
    lines = [",".join([*named.values(), "load"])]
    lines += [f"m{n % 3},{'ab'[n // 3 % 2]},{n // 10},{n * 7 % 10}.5" for n in range(60)]
    (command.folder / "plant.csv").write_text("\n".join(lines) + "\n")
    settings = [word for key, name in named.items() for word in ("--set", f"data.columns.{key}={name}")]
    command("new", "plant.csv", *settings)
    assert f'{role} = "{taken}"' in (command.folder / "plant.toml").read_text()
    command("run", "plant.toml", "--set", "rounds=1")
