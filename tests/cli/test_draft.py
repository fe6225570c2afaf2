"""`fedfloor new`: an experiment file that runs, from a look at the data."""

from __future__ import annotations

import gzip
import json
import os
import tomllib
from pathlib import Path

import pytest

from commands import Command
from fedfloor import config
from fedfloor.data.made.machines import Machines, columns, recordings
from fedfloor.drafting import sketch, training
from fedfloor.drafting.draft import draft, title
from fedfloor.runs.launch import build_park
from own_data import table as own_table
from tables import HEADER, Lines, plant, put, text


def holes(rows: Lines) -> None:
    put(9, "speed", "")(rows)
    put(17, "temp", "NaN")(rows)


@pytest.fixture
def table(command: Command) -> Path:
    path = command.folder / "plant.csv"
    path.write_text(text(plant()))
    return path


def test_two_commands_from_a_table_with_holes_to_a_model(command: Command, table: Path) -> None:
    table.write_text(text(plant(holes)))
    said = command("new", "plant.csv")
    assert said.code == 0, said
    assert said.new == {"plant.toml"}
    assert "2 of 720 values are missing" in said.err
    assert "fedfloor run plant.toml" in said.out
    lines = (command.folder / "plant.toml").read_text()
    assert lines.startswith(
        "# 4 devices in 2 factories, 96 training and 24 test samples: 6 sensors; good 50 %, worn 50 %\n"
    )
    assert 'missing = "previous" # 2 missing; or "mean", "drop"\n' in lines
    ran = command("run", "plant.toml", "--ranks", "1", "--out", "out", "--set", "rounds=3")
    assert ran.code == 0, ran
    assert (command.folder / "out" / "ledger.jsonl").read_text().count("\n") == 3


def test_what_is_drafted(command: Command, table: Path) -> None:
    assert command("new", "plant.csv").code == 0
    written = tomllib.loads((command.folder / "plant.toml").read_text())
    assert written == {
        "name": "plant",
        "rounds": 604,
        "data": {"path": "plant.csv", "split": {"kind": "time"}},
        "model": {"name": "mlp-sensor-soft"},
        "work": {"batch_size": 8, "lr": 0.02, "momentum": 0.9},
        "evaluate": {"every": 24},
        "method": {"name": "boosting"},
    }
    park = build_park(config.read(Path("plant.toml")))
    assert (park.sizes == 24).all()  # batches of 8: a visit has three steps


@pytest.mark.parametrize("out", ["plant.toml", "plans/plant.toml"])
def test_of_many_rows_some_tell_when_trees_no_longer_help(
    command: Command, table: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (command.folder / "plans").mkdir()
    monkeypatch.setattr(training, "PLENTY", 90)
    assert command("new", "plant.csv", "--out", out).code == 0
    found = config.read(Path(out))
    assert (found.method.name, found.rounds) == ("boosting", 604)
    assert (found.evaluate.on, found.evaluate.every, found.evaluate.patience) == ("both", 24, 5)


def test_as_json(command: Command, table: Path) -> None:
    document = command("new", "plant.csv", "--json").document
    assert document["experiment"] == "plant.toml"
    assert document["summary"].startswith("4 devices in 2 factories")
    assert [row["factory"] for row in document["rows"]] == ["hall 0", "hall 1"]
    assert document["rows"][0] == {
        "factory": "hall 0", "devices": 2, "samples": 48, "smallest": 24, "largest": 24, "classes": "good 24, worn 24"
    }  # fmt: skip


def test_what_is_there_is_not_overwritten(command: Command, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command.folder / "plant.toml").write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr(sketch, "load_data", None)  # refused before anything is read
        command.refused(command("new", "plant.csv"), "plant.toml exists already", "--force")
        command.refused(command("new", "plant.csv", "--out", "no/such.toml"), "no is not a writable folder", "--out")
        (command.folder / "sub").mkdir()
        command.refused(command("new", "plant.csv", "--out", "sub", "--force"), "sub is a folder", "--out")
    assert (command.folder / "plant.toml").read_text() == "mine"
    assert command("new", "plant.csv", "--force").code == 0
    assert tomllib.loads((command.folder / "plant.toml").read_text())["name"] == "plant"


def test_settings_are_carried_over(command: Command, table: Path) -> None:
    table.write_text(text(plant(put(1, "device", "thing"))))
    command.refused(command("new", "plant.csv"), "no column 'device'", "--set data.columns.device=NAME")
    changes = (
        'data.columns={device="thing"}', "data.window={length=5,step=1}", "work.lr=0.2", 'method.name="fedsr"',
        "rounds=7", 'data.classes=["worn","good"]', 'name="mine"', 'model.name="mlp-2nn"',
    )  # fmt: skip
    said = command("new", "plant.csv", *(word for change in changes for word in ("--set", change)))
    assert said.code == 0, said
    assert "6 sensors, windows of 5 rows" in said.out
    found = config.read(Path("plant.toml"))
    assert (found.name, found.rounds, found.method.name, found.work.lr) == ("mine", 7, "fedsr", 0.2)
    assert found.data.columns.device == "thing"
    assert found.data.window is not None
    assert (found.model.name, build_park(found).dataset.classes) == ("mlp-2nn", ("worn", "good"))
    assert found.work.batch_size == 8  # 20 windows of a device make three steps


def test_windows_get_trees_or_a_convolution(
    command: Command, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    words = ("new", "plant.csv", "--set", "data.window={length=5,step=1}", "--force")
    assert command(*words).code == 0
    trees = config.read(Path("plant.toml"))
    assert (trees.method.name, trees.model.name, trees.rounds) == ("boosting", "cnn-window", 616)
    for name in ("MOST_WINDOWS", "MOST_ADDED"):
        with monkeypatch.context() as patch:
            patch.setattr(training, name, 10)
            assert command(*words).code == 0
        network = config.read(Path("plant.toml"))
        assert (network.method.name, network.model.name) == ("fedavg", "cnn-window")
        assert network.rounds == 100  # a step or two in each
    assert command(*words, "--set", "work.epochs=10").code == 0
    assert config.read(Path("plant.toml")).rounds == 33  # 30 steps in each


@pytest.mark.parametrize(
    ("rows", "way", "note"),
    [
        ([row[:2] + row[3:] for row in plant(holes)], "mean", '2 missing; or "drop"'),
        ([[*row[:5], "" if row[0] == "press 1" else row[5], *row[6:]] for row in plant()], "previous", "30 missing"),
    ],
)
def test_holes_that_have_no_value_before_become_means(command: Command, rows: Lines, way: str, note: str) -> None:
    """Without times nothing can be carried on; a sensor that a device lacks has nowhere a value before."""
    (command.folder / "plant.csv").write_text(text(rows))
    assert command("new", "plant.csv").code == 0
    lines = (command.folder / "plant.toml").read_text()
    assert f'missing = "{way}" # {note}' in lines
    assert command("run", "plant.toml", "--ranks", "1", "--out", "out", "--set", "rounds=1").code == 0


def test_what_is_said_about_holes_stays(command: Command) -> None:
    (command.folder / "plant.csv").write_text(text(plant(holes)))
    assert command("new", "plant.csv", "--set", "data.missing=drop").code == 0
    lines = (command.folder / "plant.toml").read_text()
    assert 'missing = "drop"\n' in lines
    command.refused(command("new", "plant.csv", "--force", "--set", "data.missing=zero"), "data.missing = 'zero'")


def test_paths_with_spaces_and_links_from_anywhere(
    command: Command, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experiment file speaks of the data as seen from where it lies, and runs from any working folder."""
    halls = command.folder / "hall 1" / "raw"
    plans = command.folder / "my plans"
    halls.mkdir(parents=True)
    plans.mkdir()
    (halls / 'my "plant".csv.gz').write_bytes(gzip.compress(table.read_bytes()))
    (command.folder / "link").symlink_to(plans / "deep" / "er")
    (plans / "deep" / "er").mkdir(parents=True)
    said = command("new", 'hall 1/raw/my "plant".csv.gz', "--out", "link/my plan.toml")
    assert said.code == 0, said
    assert "fedfloor run 'link/my plan.toml'" in said.out
    written = tomllib.loads((plans / "deep" / "er" / "my plan.toml").read_text())
    assert written["data"]["path"] == '../../../hall 1/raw/my "plant".csv.gz'
    assert written["name"] == "my plan"  # the file's: its run lies in runs/my plan
    monkeypatch.chdir(halls)
    ran = command(
        "run", str(command.folder / "link" / "my plan.toml"), "--ranks", "1", "--out", "out", "--set", "rounds=1"
    )
    assert ran.code == 0, ran
    os.chdir(command.folder)
    assert command("run", "link/my plan.toml", "--ranks", "1", "--out", "o", "--set", "rounds=1").code == 0


def test_data_are_looked_for_beside_the_file_then_here(
    command: Command, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = command.folder / "plans"
    plans.mkdir()
    (plans / "a.toml").write_text('[data]\npath = "plant.csv"\n')
    assert config.read(Path("plans/a.toml")).data.path == "plant.csv"
    (plans / "plant.csv").write_text(table.read_text())
    assert config.read(Path("plans/a.toml")).data.path == "plans/plant.csv"
    for path in (table, plans / "plant.csv"):
        path.unlink()
    (plans / "plants.csv").write_text("")
    missing = command("run", "plans/a.toml", "--out", "out")
    command.refused(missing, str(plans / "plant.csv"), "does not exist. Did you mean 'plants.csv'?", "--set data.path=")


def test_a_workbook_of_another_kind_is_no_table(command: Command) -> None:
    (command.folder / "press.xls").write_bytes(b"PK")
    command.refused(
        command("new", "press.xls"),
        "press.xls is a workbook of an unsupported kind. Save it as .xlsx, or its sheet as CSV",
    )


def test_many_classes_and_odd_names_stay_one_comment(command: Command) -> None:
    rows = plant()
    for number, row in enumerate(rows[1:]):
        row[HEADER.index("label")] = f'"class\n{number // 4 % 12}"'
    (command.folder / "plant.csv").write_text(text(rows))
    said = command("new", "plant.csv")
    assert said.code == 0, said
    first = (command.folder / "plant.toml").read_text().splitlines()[0]
    assert "class 0 " in first
    assert first.endswith("… (12 classes)")
    assert config.read(Path("plant.toml")).name == "plant"


def test_a_tiny_device_does_not_make_the_batches_of_others_tiny(command: Command) -> None:
    rows = [row for row in plant() if row[0] != "press 3" or int(row[2]) < 5]
    (command.folder / "plant.csv").write_text(text(rows))
    assert command("new", "plant.csv").code == 0
    work = config.read(Path("plant.toml")).work
    assert (work.batch_size, work.short_batches) == (8, True)  # press 3 has four rows: one batch


def test_what_is_told_is_checked_before_anything_is_guessed(command: Command, table: Path) -> None:
    for told, words in (
        ("data=5", "data = 5: must be a table"),
        ("data.columns=5", "data.columns = 5: must be a table"),
        ("data.columns.ignore=speed", "data.columns.ignore = 'speed'"),
    ):
        said = command("new", "plant.csv", "--set", told)
        assert (said.code, said.new) == (2, set())
        assert words in said.err


def test_a_name_that_misleads(command: Command, table: Path) -> None:
    for name in ("plant.dat", "PLANT.CSV"):
        (command.folder / name).write_text(table.read_text())
    said = command("new", "plant.dat", "--out", "a.toml", "--set", "data.format=table")
    assert said.code == 0, said
    said = command("new", "PLANT.CSV")
    assert (said.code, said.new) == (0, {"PLANT.toml"})


def test_paths_that_cannot_be(command: Command, table: Path) -> None:
    os.mkfifo(command.folder / "pipe.csv")
    assert command("new", "plant.csv").code == 0
    for path, words in (
        ("~nobody-of-this-name/a.csv", "Give the full path"),
        (f"{'a' * 300}.csv", "File name too long"),
        ("pipe.csv", "neither a file nor a folder"),
    ):
        for arguments in (("new", path), ("run", "plant.toml", "--out", "out", "--set", f"data.path={path}")):
            said = command(*arguments)
            assert (said.code, said.new) == (2, set()), said
            assert words in said.err
            assert "Traceback" not in said.err


def test_titles() -> None:
    said = ["a/plant.csv", "plant.tsv.gz", "plant.npz", "halls.v2", ".csv", "a:b.csv"]
    assert [title(Path(path)) for path in said] == ["plant", "plant", "plant", "halls.v2", ".csv", "a-b"]
    assert title(Path(".")) == Path.cwd().name


# -- classes that only one part of the data has ------------------------------------------------------------------------


def to_failure(devices: int = 4, rows: int = 30, broken: int = 24) -> str:
    """Recordings that end in a fault, from row ``broken`` on; of 30 rows a split by time tests with the last six."""
    cells = (
        f"m{k},{row},{row + k},{row % 5},{('early' if row < broken else 'broken') if row else 'start'}"
        for k in range(devices)
        for row in range(rows)
    )
    return "\n".join(["device,time,a,b,label", *cells]) + "\n"


UNTRAINED = "24 of 24 test samples are of classes without training samples, and cannot be predicted: 'broken' (24)."
UNTESTED = "classes without test samples, whose accuracy cannot be evaluated: 'early'"


def test_classes_that_training_lacks_are_named_before_the_first_round(command: Command) -> None:
    """The default split of run-to-failure recordings: the accuracy was 0.0000 without a word."""
    (command.folder / "wear.csv").write_text(to_failure())
    said = command("new", "wear.csv", "--set", 'data.split={kind="time"}')
    assert said.code == 0
    ran = command(
        "run", "wear.toml", "--ranks", "1", "--out", "out", "--stop-after", "1", "--set", "model.name=logistic"
    )
    several = command(
        "compare", "wear.toml", "--methods", "fedavg,fedprox", "--ranks", "1", "--out", "both", "--stop-after", "1"
    )
    for one in (said, ran, several):
        assert one.err.count(f"wear.csv: {UNTRAINED}") == 1, one.err  # of several runs on one park once
        assert UNTESTED in one.err
    assert ran.err.index(UNTRAINED) < ran.err.index("stopped")
    assert json.loads((command.folder / "out" / "park.json").read_text())["untrained_classes"] == {"broken": 24}
    page = (command.folder / "out" / "report.html").read_text()
    assert "No training sample is of class broken: 100 % of the test samples cannot be right." in page


def test_where_both_parts_have_all_classes_nothing_is_said(command: Command, table: Path) -> None:
    (command.folder / "wear.csv").write_text(to_failure())
    for words in (("plant.csv",), ("wear.csv", "--set", "data.split={kind='device'}")):
        said = command("new", *words)
        assert said.code == 0, said.err
        assert "training sample" not in said.err
        name = words[0].removesuffix(".csv")
        ran = command("run", f"{name}.toml", "--ranks", "1", "--out", f"{name}-run", "--stop-after", "1")
        assert "training sample" not in ran.err
        assert "untrained_classes" not in (command.folder / f"{name}-run" / "park.json").read_text()


def test_a_class_of_which_training_has_next_to_nothing(command: Command) -> None:
    (command.folder / "wear.csv").write_text(to_failure(rows=100, broken=78))  # rows 0 to 79 are to train with
    said = command("new", "wear.csv", "--set", 'data.split={kind="time"}')
    assert "very few training samples of classes with many test samples: 'broken' (" in said.err


def test_a_sensor_with_the_name_of_a_label_or_a_time_is_named(command: Command) -> None:
    """SKAB's tables have two labels: the second one became a sensor that gives the first away."""
    for number in range(2):
        table = own_table(
            command.folder / "skab" / f"run {number}" / "log.csv", rows=30, head="time,timestamp,a,label,status"
        )
        rows = table.read_text().replace("?", "0").splitlines()
        table.write_text("\n".join(rows) + "\n")
    said = command("new", "skab")
    assert said.code == 0, said.err
    assert "skab: 'timestamp' is read as a sensor. If it is the time: --set data.columns.time=timestamp" in said.err
    assert "skab: 'status' is read as a sensor. If it is the label: --set data.columns.label=status; or" in said.err
    left_out = command("new", "skab", "--force", "--set", 'data.columns.ignore=["status", "timestamp"]')
    assert left_out.code == 0
    assert "read as a sensor" not in left_out.err


# -- a class that is rare ----------------------------------------------------------------------------------------------


def test_a_rare_class_is_named_with_the_settings_that_heed_it(command: Command) -> None:
    rows = [f"m{n % 4},{n // 4},{n % 7},{n % 5},{int(n // 4 % 40 == 3)}" for n in range(480)]
    (command.folder / "wear.csv").write_text("\n".join(["device,time,a,b,label", *rows]) + "\n")
    said = command("new", "wear.csv")
    assert said.code == 0, said.err
    text = (command.folder / "wear.toml").read_text()
    for part in ("class '1' has 2.", '[evaluate] headline = "F1 of 1"', '[decide] positive = "1" with [evaluate] on ='):
        assert part in said.err
        assert [line for line in text.splitlines() if part in line and line.startswith("# ")]
    headed = command("new", "wear.csv", "--force", "--set", 'evaluate.headline="F1 of 1"')
    assert headed.code == 0, headed.err
    assert "has 2." not in headed.err
    proposed = ("--set", 'evaluate.headline="F1 of 1"', "--set", "method.objective=weighted", "--set", "rounds=1")
    decided = ("--set", 'decide.positive="1"', "--set", "evaluate.on=both")
    assert command("run", "wear.toml", "--ranks", "1", "--out", "out", *proposed, *decided).code == 0


def machines(folder: Path, *left_out: str) -> Path:
    """Write recordings to failure of the made plant as a table."""
    made = columns(recordings(4, 2, 0, Machines(runs=3, life=120)), 2)
    names = [name for name in made if name not in {"fault", "regime", "wear", "row", *left_out}]
    lines = [
        ",".join(names),
        *(",".join(map(str, row)) for row in zip(*(made[n].tolist() for n in names), strict=True)),
    ]
    (folder / "plant.csv").write_text("\n".join(lines) + "\n")
    return folder / "plant.csv"


def test_a_label_of_many_numbers_is_predicted_as_a_number(command: Command) -> None:
    machines(command.folder)
    said = command("new", "plant.csv", "--json", "--set", "rounds=1")
    assert "data.bins=[" in " ".join(said.document["notes"])
    assert "life from 0 to " in said.document["summary"]
    assert "ranges" in said.document["rows"][0]
    drafted = config.read(command.folder / "plant.toml")
    assert drafted.data.number is not None
    assert drafted.data.columns.label == "life"
    assert command("run", "plant.toml").code == 0
    told = json.loads((command.folder / "runs/plant/evaluation.json").read_text())
    assert next(iter(told["figures"])) == "RMSE"
    classes = command("new", "plant.csv", "--task", "classification", "--out", "c.toml")
    assert classes.code == 2
    assert "measured values and no classes. To predict the number itself" in classes.err


def test_a_table_without_labels_needs_a_task(command: Command) -> None:
    machines(command.folder, "life")
    none = command("new", "plant.csv")
    assert none.code == 2
    assert "--set data.task=forecasting predicts the sensors' next rows" in none.err
    assert "--set data.remaining=true" in none.err
    assert command("new", "plant.csv", "--task", "guessing").code == 2
    drafted = command("new", "plant.csv", "--task", "forecasting", "--set", "rounds=1", "--set", "data.task.horizon=3")
    assert "predictions are made from windows of 20 rows" in drafted.err
    assert "label is" not in drafted.err
    assert command("run", "plant.toml").code == 0
    again = command("new", "plant.csv", "--task", "regression", "--set", "data.remaining=true", "--force", "--json")
    assert "rows left from 0 to" in again.document["summary"]


def test_a_counter_in_recordings_is_pointed_at(tmp_path: Path) -> None:
    path = machines(tmp_path)
    rows = path.read_text().splitlines()
    runs = [line.split(",")[2] for line in rows[1:]]
    numbers = [runs[: i + 1].count(run) for i, run in enumerate(runs)]
    counted = [f"{rows[0]},row", *(f"{line},{number}" for line, number in zip(rows[1:], numbers, strict=True))]
    path.write_text("\n".join(counted) + "\n")
    notes = draft(path, tmp_path / "a.toml", []).notes
    assert any("'row' counts up from row to row" in note for note in notes)


def test_anomalies_begin_with_principal_components(command: Command) -> None:
    """What anything deeper must beat, in one round; the autoencoder to try next is named and runs."""
    machines(command.folder, "life")
    drafted = command("new", "plant.csv", "--task", "reconstruction", "--set", "data.window.length=6")
    assert drafted.code == 0
    text = (command.folder / "plant.toml").read_text()
    asked = config.read(command.folder / "plant.toml")
    assert (asked.model.name, asked.method.name, asked.rounds) == ("monitor", "pca", 1)
    assert "a deeper network must be better" in text
    assert '"ae-conv", with rounds = 20' in text
    deeper = ["--set", "evaluate.headline=reconstruction error"]
    assert command("run", "plant.toml", *deeper, "--out", "a").code == 0
    deeper += ["--set", "model.name=ae-conv", "--set", "method.name=fedavg"]
    assert command("run", "plant.toml", *deeper, "--out", "b").code == 0
    again = command("new", "plant.csv", "--task", "reconstruction", "--set", "method.name=fedavg", "--out", "b.toml")
    assert again.code == 0
    asked = config.read(command.folder / "b.toml")
    assert (asked.model.name, asked.rounds) == ("ae-dense", 50)


def test_short_recordings_to_failure_are_tested_on_whole_devices(command: Command) -> None:
    """The last fifth of 60 rows has no window of 20: by time such devices would be refused."""
    rows = "".join(f"e{k},{n},{n * 0.5 + k}\n" for k in range(8) for n in range(60 + 40 * (k % 3)))
    (command.folder / "engines.csv").write_text(f"device,time,heat\n{rows}")
    made = command("new", "engines.csv", "--set", "data.remaining=true")
    assert made.code == 0, made
    assert tomllib.loads((command.folder / "engines.toml").read_text())["data"]["split"] == {"kind": "device"}
    assert "split: by device (whole devices, excluded from training), because by time the ends" in made.err
    assert "as given" not in made.err


@pytest.mark.parametrize(("running", "failed"), [("in service", "failed"), ("censored", "worn")])
def test_runs_that_have_not_failed_are_left_out_of_remaining_life(command: Command, running: str, failed: str) -> None:
    rows = "".join(
        f"e{k},{run},{n},{n * 0.5 + k},{running if run == k % 3 else failed}\n"
        for k in range(6) for run in range(3) for n in range(40)
    )  # fmt: skip
    (command.folder / "engines.csv").write_text(f"device,run,time,heat,state\n{rows}")
    words = ("new", "engines.csv", "--set", "data.remaining=true")
    made = command(*words, "--json")
    assert made.code == 0, made
    data = tomllib.loads((command.folder / "engines.toml").read_text())["data"]
    assert (data["ended"], data["columns"]["label"]) == (failed, "state")
    assert f"recordings whose 'state' is not '{failed}' still run and are left out" in made.err
    assert "6 of 18 recordings do not end with" in made.err
    assert "taken for the label" not in made.err
    (command.folder / "engines.csv").write_text(
        f"device,run,time,heat\n{rows}".replace(f",{running}", "").replace(f",{failed}", "")
    )
    assert "each recording is taken to end in failure" in command(*words, "--force").err
