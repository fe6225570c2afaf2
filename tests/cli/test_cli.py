"""The commands: tables for people, one JSON document for programs, progress on standard error."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from commands import Command, lines
from fedfloor import __version__
from fedfloor.data.sources import SOURCES
from fedfloor.methods.catalog import EXACT, METHODS
from fedfloor.plan.text import digest, from_json
from fedfloor.runs import terminal
from run_folders import make_run

# -- run ---------------------------------------------------------------------------------------------------------------


def test_run_prints_a_table_and_writes_a_run(command: Command) -> None:
    said = command.run()
    assert said.code == 0
    assert "fedavg" in said.out
    assert said.out.endswith(f"report: {Path('out') / 'report.html'}\n")
    assert [text.split(",")[0] for text in said.err.splitlines()[:3]] == [f"tiny: round {i}/3" for i in (1, 2, 3)]
    for name in ("experiment.toml", "ledger.jsonl", "model.safetensors", "report.html", "park.json", "plan.json"):
        assert (command.folder / "out" / name).is_file()
    assert [row["round"] for row in lines(command.folder / "out")] == [1, 2, 3]


def test_run_json_is_one_document(command: Command) -> None:
    said = command.run("--json")
    (row,) = said.document["rows"]
    assert (row["method"], row["seeds"], row["rounds"]) == ("fedavg", [0], 3)
    assert row["accuracy"] == lines(command.folder / "out")[-1]["accuracy"]
    assert (command.folder / said.document["report"]).is_file()
    assert "round 3/3" in said.err


def test_the_folders_experiment_file_runs_again_alike(command: Command) -> None:
    command.set("seed=5", "work.lr=0.25", "method.name=fedsr", "methods.fedsr.laps=2")
    again = command("run", str(Path("out") / "experiment.toml"), "--ranks", "1", "--out", "again")
    assert again.code == 0
    assert lines(command.folder / "again") == lines(command.folder / "out")
    written = [(command.folder / name / "experiment.toml").read_text() for name in ("out", "again")]
    assert written[0] == written[1]


def test_stopped_and_resumed_it_is_the_same_run(command: Command) -> None:
    command("run", "tiny.toml", "--ranks", "1", "--out", "whole")
    stopped = command.run("--stop-after", "1")
    assert "stopped after" in stopped.err
    assert "round 1/1" in stopped.err
    assert "finished after" in command.run("--resume").err
    whole = command.folder / "whole"
    parts = command.folder / "out"
    assert lines(whole) == lines(parts)
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


def test_until_stops_at_the_first_evaluation_that_reaches_it(command: Command) -> None:
    easy = ["rounds=40", "work.lr=0.3", "methods.fedavg.work.epochs=5", "data.samples_per_device=100", "park.devices=2"]
    said = command.run("--until", "accuracy=0.2", *(word for change in easy for word in ("--set", change)))
    reached = [row["accuracy"] >= 0.2 for row in lines(command.folder / "out")]
    assert said.code == 0
    assert reached.index(True) == len(reached) - 1 < 39
    assert "stopped after" in said.err


def test_without_out_the_folder_has_the_experiments_name(command: Command) -> None:
    assert command("run", "tiny.toml", "--ranks", "1", "--set", "name=my trial").code == 0
    assert (command.folder / "runs" / "my trial" / "ledger.jsonl").is_file()


# -- draw --------------------------------------------------------------------------------------------------------------


def test_draw_shows_what_the_run_then_does(command: Command) -> None:
    command.set("method.name=fedsr")
    hashes = [row["plan_hash"] for row in lines(command.folder / "out")]
    for number, expected in enumerate(hashes, start=1):
        said = command("draw", "tiny.toml", "--set", "method.name=fedsr", "--round", str(number), "--json")
        assert said.document["plan_hash"] == digest(from_json(said.document["plan"])) == expected
    assert len(set(hashes)) > 1  # rings are drawn anew


def test_draw_a_tree(command: Command) -> None:
    said = command("draw", "tiny.toml")
    assert said.out.startswith("in parallel: 4 branches, meets at the cloud (mean by samples)\n")
    assert [text[3:11] for text in said.out.splitlines()[1:]] == [f"device {k}" for k in range(4)]
    assert (said.err, said.new) == ("", frozenset())


def test_draw_a_picture(command: Command) -> None:
    assert command("draw", "tiny.toml", "--svg", "plan.svg").out == "picture: plan.svg\n"
    root = ElementTree.parse(command.folder / "plan.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--svg missing/plan.svg", "--svg missing/plan.svg: No such file or directory."),
        ("--svg .", "--svg .: Is a directory."),
        ("--round 0", "--round 0: the experiment has rounds 1 to 3."),
        ("--round 4", "--round 4: the experiment has rounds 1 to 3."),
        ("--set method.name=fedsrr", "Did you mean 'fedsr'?"),
        ("--set method.mix=multi_krum --set park.devices=4", "has 4 models to mix: it needs at least 5."),
    ],
)
def test_draw_refuses(command: Command, words: str, message: str) -> None:
    command.refused(command("draw", "tiny.toml", *words.split()), message)


# -- report, methods, datasets, demo -----------------------------------------------------------------------------------


def test_report_json_is_the_runs_table(command: Command) -> None:
    ran = command.run("--json").document
    said = command("report", "out", "--target", "0.5", "--out", "page.html", "--json")
    assert said.new == {"page.html"}
    assert said.document["report"] == "page.html"
    (row,) = said.document["rows"]
    (before,) = ran["rows"]
    assert row == before | {"target": 0.5, "reached": 0, "rounds_to_target": None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere", "nowhere is not a run folder: it is not a folder."),
        ("tiny.toml", "tiny.toml is not a run folder: it is not a folder."),
        (".", ". is not a run folder: it has no experiment.toml"),
    ],
)
def test_report_refuses(command: Command, words: str, message: str) -> None:
    command.refused(command("report", *words.split()), message)


@pytest.mark.parametrize("target", ["2.0", "nan"])
def test_report_refuses_a_target_that_no_accuracy_has(command: Command, target: str) -> None:
    make_run(command.folder / "one", [0.5])
    message = f"target accuracy (--target) = {target}: must be a share, above 0 and at most 1, such as 0.8."
    command.refused(command("report", "one", "--target", target), message)


def test_a_report_that_cannot_be_written(command: Command) -> None:
    command.run()
    said = command("report", "out", "--out", "tiny.toml/page.html")
    command.refused(said, "tiny.toml/page.html could not be written: ", "The runs are unaffected")


def test_methods_and_their_cards(command: Command) -> None:
    rows = command("list", "methods", "--json").document["rows"]
    assert [row["method"] for row in rows] == [*METHODS, *EXACT]
    assert all(row["what"] for row in rows)
    card = command("list", "methods", "fedsr", "--json").document
    assert "arXiv 2403.14718" in card["card"]
    shown = command("list", "methods", "fedadam").out
    assert "settings, in [methods.fedadam]" in shown  # no markup of the terminal
    assert "0.00316" in shown  # no digit is lost
    assert card["card"] in command("list", "methods", "fedsr").out
    assert {"setting": "laps", "default": 5} in card["rows"]
    assert command("list", "methods", "FedSR").out == command("list", "methods", "fedsr").out
    assert command("list", "methods", "FLDG-L").out.startswith("fldgl\n")
    command.refused(command("list", "methods", "fedrs"), "Did you mean 'fedsr'?")
    assert command("list", "models", "LeNet").out == command("list", "models", "lenet").out


def test_datasets_says_what_there_is_and_how_to_get_it(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_DATA", "nowhere")
    rows = {row["name"]: row for row in command("list", "datasets", "--json").document["rows"]}
    assert list(rows) == list(SOURCES)
    assert [name for name, row in rows.items() if row["found"]] == ["labels", "procedural", "machines"]
    assert all("http" in row["how"] for name, row in rows.items() if not row["found"])
    shown = " ".join(command("list", "datasets").out.split())
    assert "[park]" in shown  # no markup of the terminal
    assert "[data]" in shown


def test_help_and_version(command: Command) -> None:
    assert "Train FedAvg and FedSR and compare them." in command("demo", "--help").out
    assert command("--version").out == f"fedfloor {__version__}\n"
    for name in ("run", "compare", "draw", "report", "list methods", "datasets"):
        said = command(*name.split(), "-h")
        assert said.code == 0
        assert said.out.startswith(f"Usage: fedfloor {name}")
    wrong = command("runn")
    assert (wrong.code, wrong.out) == (2, "")
    assert "Did you mean 'run'?" in wrong.err


def test_the_demonstration_of_an_unknown_task_is_refused(command: Command) -> None:
    command.refused(command("demo", "--task", "lives"), "unknown task (--task) 'lives'. Did you mean 'life'?")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "headline"),
    [("anomaly", "AUROC"), ("life", "RMSE"), ("forecast", "MASE"), ("faults", "macro_f1")],
    ids=str,
)
def test_the_demonstration_of_a_task_beats_training_alone_or_what_repeats(
    command: Command, task: str, headline: str
) -> None:
    said = command("demo", "--task", task, "--ranks", "1", "--out", task, "--json")
    assert said.code == 0, said.err
    found = {row["method"]: row[headline] for row in said.document["rows"]}
    wanted = {"fedavg", "fedsr", "local-only", "pooled"} | ({"scikit-learn"} if task != "anomaly" else set())
    assert wanted <= {*found}
    worst = found["persistence"] if task == "forecast" else found["local-only"]
    better = found["fedsr"] > worst if task in ("anomaly", "faults") else found["fedsr"] < worst
    assert better, found
    assert (command.folder / task / "report.html").exists()


def test_a_bundled_experiment_is_found_beside_a_folder_of_its_name(command: Command) -> None:
    (command.folder / "demo").mkdir()
    said = command("run", "demo", "--stop-after", "0")
    command.refused(said, "(--stop-after) = 0")


# -- the library -------------------------------------------------------------------------------------------------------

SCRIPT = """
import fedfloor
from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings

seen = []
run = fedfloor.run(
    fedfloor.Experiment(
        name="tiny", rounds=3, data=DataSettings(samples_per_device=40),
        park=ParkSettings(devices=4, factories=2), model=ModelSettings("logistic"),
    ),
    out="two", ranks=2, report=seen.append,
)
assert run.stopped == "finished" and list(run.lines) == seen and run.model_file.is_file()
print(run.accuracy)
"""


@pytest.mark.slow
def test_the_library_call_needs_no_guard(command: Command) -> None:
    (command.folder / "plain_script.py").write_text(SCRIPT)
    told = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    words = [sys.executable, "plain_script.py"]
    got = subprocess.run(words, cwd=command.folder, capture_output=True, text=True, env=told, timeout=120)
    assert got.returncode == 0, got.stderr
    assert command.run().code == 0
    assert lines(command.folder / "two") == lines(command.folder / "out")
    assert got.stdout == f"{lines(command.folder / 'out')[-1]['accuracy']}\n"
    assert (command.folder / "two" / "model.safetensors").read_bytes() == (
        command.folder / "out" / "model.safetensors"
    ).read_bytes()


def test_a_drawing_says_what_the_server_does(command: Command) -> None:
    plain, adam = (command("draw", "tiny.toml", *more).out for more in ((), ("--set", "method.name=fedadam")))
    assert "then the cloud steps" not in plain
    assert "then the cloud steps: adam, rate 0.00316, beta1 0.9, beta2 0.99, tau 0.001" in adam


def test_help_names_arguments_without_escapes(command: Command) -> None:
    said = command("new", "--help")
    assert "A table (such as CSV), a folder per device, or .npz." in " ".join(said.out.split())
    assert "[required]" in said.out
    assert "\\" not in said.out


def test_a_table_shows_the_columns_of_all_of_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show([{"case": "a", "seconds": 1.5}, {"case": "b", "bytes": 7}], as_json=False)
    shown = capsys.readouterr().out
    assert {"seconds", "bytes", "1.5000"} <= set(shown.split())
