"""Sinks say what the ledger says; whatever happens to them, the training goes on."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from fedfloor.tracking.sinks import tracking_uri
from run_folders import make_run
from sinks import ledger_points, mlflow_runs, one_mlflow_run, tensorboard_points

pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An MLflow store of the test's own."""
    uri = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


# -- TensorBoard -------------------------------------------------------------------------------------------------------


def test_tensorboard_says_what_the_ledger_says(command: Command) -> None:
    assert command.run("--track", "tensorboard").code == 0
    assert tensorboard_points(command.folder / "out") == ledger_points(command.folder / "out", single=True)


def test_tensorboard_that_is_looking_while_a_run_is_resumed(command: Command) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command.run("--track", "tensorboard", "--stop-after", "2")
    looking = EventAccumulator(str(command.folder / "out")).Reload()
    assert [event.step for event in looking.Scalars("loss")] == [1, 2]
    for _ in range(3):
        command.run("--track", "tensorboard", "--resume")
        assert [event.step for event in looking.Reload().Scalars("loss")] == [1, 2, 3]
    assert len(list((command.folder / "out").glob("*tfevents*"))) == 2
    assert tensorboard_points(command.folder / "out") == ledger_points(command.folder / "out", single=True)


def test_times_are_those_of_the_rounds(command: Command, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    make_run(tmp_path / "a", [0.1, 0.2, 0.3])  # rounds of 1.5 s
    assert command("track", "a", "--to", "tensorboard", "--out", "events").code == 0
    times = [e.wall_time for e in EventAccumulator(str(tmp_path / "events" / "a")).Reload().Scalars("accuracy")]
    assert [later - before for before, later in itertools.pairwise(times)] == pytest.approx([1.5, 1.5])


def test_a_line_that_does_not_fit_the_park_is_named(command: Command, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [0.1, 0.2])
    (folder / "ledger.jsonl").write_text((folder / "ledger.jsonl").read_text().replace("[0.2, null", "[0.2"))
    (folder / ".lock").touch()
    for to in ("tensorboard", "mlflow", "csv"):
        said = command("track", "a", "--to", to)
        command.refused(said, "ledger.jsonl, line 2: accuracies of 2 classes, park.json has 3")


# -- MLflow ------------------------------------------------------------------------------------------------------------


def test_mlflow_says_what_the_ledger_says(command: Command, store: str) -> None:
    said = command.run("--track", "mlflow", "--json")
    assert said.code == 0, said.err
    assert said.document["rows"]  # MLflow printed nothing between
    run = one_mlflow_run(store, "tiny")
    assert run.points == ledger_points(command.folder / "out")
    assert (run.name, run.status) == ("out", "FINISHED")
    assert run.params["rounds"] == "3"
    assert run.params["methods.fedavg.work.batch_size"] == "32"
    assert run.tags["fedfloor.method"] == "fedavg"
    assert len(run.tags["fedfloor.data_sha256"]) == 64
    assert run.files == {"experiment.toml", "model.safetensors", "report.html"}


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("databricks", "databricks"),
        ("databricks://plant", "databricks://plant"),
        ("my runs", "file://{here}/my%20runs"),  # a folder, as MLflow wants to have it
    ],
)
def test_where_mlflow_keeps_runs(given: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert tracking_uri() == used.format(here=tmp_path)


def test_mlflow_goes_on_with_the_same_run(command: Command, store: str) -> None:
    command.run("--track", "mlflow", "--stop-after", "2")
    first = one_mlflow_run(store, "tiny")
    for _ in range(2):  # the second time nothing is left to do
        assert command.run("--track", "mlflow", "--resume").code == 0
        again = one_mlflow_run(store, "tiny")
        assert again.id == first.id
        assert again.points == ledger_points(command.folder / "out")
    assert command("track", "out", "--to", "mlflow").code == 0
    assert one_mlflow_run(store, "tiny") == again


def test_an_mlflow_run_that_somebody_deleted_is_made_anew(command: Command, store: str) -> None:
    from mlflow import MlflowClient

    command.run("--track", "mlflow")
    first = one_mlflow_run(store, "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        MlflowClient(tracking_uri=store).delete_run(first.id)
    assert command("track", "out", "--to", "mlflow").code == 0
    second = one_mlflow_run(store, "tiny")
    assert second.id != first.id
    assert second.points == first.points


def test_a_comparison_is_a_run_for_each_of_its_runs(command: Command, store: str) -> None:
    words = ("compare", "tiny.toml", "--ranks", "1", "--methods", "fedavg,fedsr", "--out", "all")
    assert command(*words, "--track", "mlflow", "--track", "tensorboard").code == 0
    for name, run in mlflow_runs(store, "tiny").items():
        assert run.points == ledger_points(command.folder / "all" / name)
        assert tensorboard_points(command.folder / "all" / name) == ledger_points(command.folder / "all" / name, True)
    assert set(mlflow_runs(store, "tiny")) == {"fedavg-seed0", "fedsr-seed0"}


def test_a_sweep_is_a_run_for_each_of_its_trials(command: Command, store: str) -> None:
    words = ("sweep", "tiny.toml", "--ranks", "1", "--methods", "fedavg", "--grid", "work.lr=0.1,0.2", "--out", "all")
    assert command(*words, "--track", "mlflow").code == 0
    runs = [run for number in (1, 2) for run in mlflow_runs(store, f"tiny-trial{number}").items()]
    assert [name for name, _ in runs] == ["fedavg-trial1-seed0", "fedavg-trial2-seed0"]
    for name, run in runs:
        assert run.points == ledger_points(command.folder / "all" / name)


def test_without_a_store_named_and_without_a_database_it_is_mlruns(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert command.run("--track", "mlflow").code == 0
    assert one_mlflow_run((command.folder / "mlruns").as_uri(), "tiny").name == "out"


def test_class_names_that_mlflow_cannot_take(command: Command, tmp_path: Path, store: str) -> None:
    folder = make_run(tmp_path / "a", [0.1])
    park = json.loads((folder / "park.json").read_text())
    (folder / "park.json").write_text(json.dumps(park | {"classes": ["ok", "..", "a/b ☃"]}))
    (folder / "ledger.jsonl").write_text((folder / "ledger.jsonl").read_text().replace("null, 0.05", "0.5, 0.05"))
    assert command("track", "a", "--to", "mlflow").code == 0
    names = [name for name in one_mlflow_run(store, "trial").points[1] if name.startswith("class/")]
    assert sorted(name.split("-")[0] for name in names) == ["class/", "class/a_b__", "class/ok"]


# -- CSV ---------------------------------------------------------------------------------------------------------------


def test_csv_says_what_the_ledgers_say(command: Command) -> None:
    command("compare", "tiny.toml", "--ranks", "1", "--methods", "fedavg,fedsr", "--seeds", "0,1", "--out", "all")
    said = command("track", "all", "--to", "csv", "--out", "-")
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert len(rows) == 12
    for row in rows:
        assert row["run"] == f"{row['method']}-seed{row['seed']}"
        measured = {
            name.replace(":", "/", 1): float(value)
            for name, value in row.items()
            if value and name not in ("run", "method", "seed", "round")
        }
        assert measured == ledger_points(command.folder / "all" / row["run"])[int(row["round"])]
    assert command("track", "all", "--to", "csv").code == 0
    assert (command.folder / "all" / "ledger.csv").read_text() == said.out


def test_csv_of_rounds_without_evaluation_and_of_prices(command: Command, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [None, 0.5])
    (folder / "ledger.jsonl").write_text(
        (folder / "ledger.jsonl")
        .read_text()
        .replace('"priced": null', '"priced": {"seconds": 2.5, "bytes": {"device_edge_up": 8}}')
        .replace('"info": {}', '"info": {"chosen": 3, "note": "text"}')
    )
    rows = list(csv.DictReader(io.StringIO(command("track", "a", "--to", "csv", "--out", "-").out)))
    assert (rows[0]["accuracy"], rows[1]["accuracy"]) == ("", "0.5")
    assert [row["priced:bytes.device_edge_up"] for row in rows] == ["8", "8"]
    assert list(rows[0])[-5:] == [
        "class:0",
        "class:</script>",
        "priced:seconds",
        "priced:bytes.device_edge_up",
        "info:chosen",
    ]


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["tensorboard", "mlflow"])
def test_a_missing_library_is_told_before_anything_is_done(
    command: Command, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.run()
    monkeypatch.setitem(sys.modules, library, None)
    for words in (
        ("run", "tiny.toml", "--out", "other", "--track", library),
        ("compare", "tiny.toml", "--methods", "fedavg", "--out", "other", "--track", library),
        ("track", "out", "--to", library),
    ):
        command.refused(
            command(*words), f"{library} is not installed. Install it with pip install 'fedfloor[tracking]'."
        )


REFUSED = {
    "run tiny.toml --out other --track tensorbord": "unknown --track 'tensorbord'. Did you mean 'tensorboard'?",
    "track out --to cvs": "unknown --to 'cvs'. Did you mean 'csv'?",
    "track out --to mlflow --out x": "--out x: MLflow stores runs at MLFLOW_TRACKING_URI. Leave --out out.",
    "track out --to csv --out - --json": "--out - prints CSV on standard output",
    "track out --to tensorboard --out -": "--out - prints CSV on standard output",
    "track out --to csv --out no/such/file.csv": "--out no/such/file.csv: No such file or directory.",
    "track nothing --to csv": "nothing is not a run folder",
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused(command: Command, words: str) -> None:
    command.run()
    command.refused(command(*words.split()), REFUSED[words])


def test_a_refused_run_leaves_the_sinks_of_the_one_that_is_there_alone(command: Command, store: str) -> None:
    command.run("--track", "mlflow")
    before: Any = one_mlflow_run(store, "tiny")
    command.refused(command.run("--track", "mlflow"), "already holds a run")
    assert one_mlflow_run(store, "tiny") == before


def test_a_server_that_is_down(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        said = command.run("--track", "mlflow")
        refused = command("track", "out", "--to", "mlflow")
    assert said.code == 0
    assert said.err.count("The run continues without it.") == 1
    assert "To send them later: fedfloor track out --to mlflow" in said.err
    assert (refused.code, refused.err[:39]) == (1, "error: mlflow could not store " + refused.err[30:39])
    assert "secret" not in said.err + refused.err
    store = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert command("track", "out", "--to", "mlflow").code == 0
    assert one_mlflow_run(store, "tiny").points == ledger_points(command.folder / "out")
