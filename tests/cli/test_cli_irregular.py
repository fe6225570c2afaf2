"""Pipes and devices in folders of users, runs and parks: refused at once, by name, by every command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedfloor
from fedfloor.base.errors import FedfloorError
from fedfloor.cli.app import app
from fedfloor.deploy.journal import FOLDER
from fedfloor.experiment import DataSettings, Experiment, ModelSettings, ParkSettings
from rollouts import provisioned

ROWS = "t,a,b,label\n" + "".join(f"{i},{i % 7},{i % 5},{'xy'[i % 2]}\n" for i in range(40))
OUTSIDE = "outside the data folder"


def failed(*words: str) -> str:
    """The error of a command."""
    done = CliRunner().invoke(app, [*words])
    assert isinstance(done.exception, FedfloorError), done
    return str(done.exception)


@pytest.mark.parametrize("name", ["a.csv", "pipe", "z.csv"])
def test_new_refuses_a_folder_with_a_pipe(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for device in ("d1.csv", "d2.csv"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / device).write_text(ROWS)
    os.mkfifo(tmp_path / "data" / name)
    assert f"{name}: neither a file nor a folder" in failed("new", "data")


def test_new_opens_no_file_outside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d1.csv").symlink_to("/dev/zero")
    (tmp_path / "data" / "d2.csv").write_text(ROWS)
    assert OUTSIDE in failed("new", "data")
    (tmp_path / "data" / "d1.csv").unlink()
    (tmp_path / "secret.csv").write_text("Zeit,passwort\n1,geheim\n")
    (tmp_path / "data" / "d1.csv").symlink_to(tmp_path / "secret.csv")
    text = failed("new", "data")
    assert OUTSIDE in text
    assert "passwort" not in text


@pytest.mark.parametrize("command", ["report", "predict", "export"])
def test_a_pipe_in_the_place_of_a_runs_file(tmp_path: Path, command: str) -> None:
    experiment = Experiment(
        rounds=1,
        data=DataSettings(samples_per_device=32),
        park=ParkSettings(devices=2),
        model=ModelSettings("logistic"),
    )
    run = fedfloor.run(experiment, tmp_path / "run").folder
    for name in ("ledger.jsonl", "model.safetensors", "experiment.toml"):
        (run / name).unlink()
        os.mkfifo(run / name)
    (tmp_path / "x.csv").write_text(ROWS)
    words = {"predict": ["predict", str(run), str(tmp_path / "x.csv")]}
    assert "pipe" in failed(*words.get(command, [command, str(run)]))


@pytest.mark.parametrize("command", ["park audit", "model rollback", "model list"])
@pytest.mark.parametrize("name", [FOLDER / "1.json", Path("authority/journal.head")])
def test_a_pipe_in_a_parks_journal(tmp_path: Path, command: str, name: Path) -> None:
    place = provisioned(tmp_path)
    (place / name).unlink()
    os.mkfifo(place / name)
    done = CliRunner().invoke(app, [*command.split(), "--park", str(place)])
    assert done.exit_code
    assert "journal" in f"{done.output} {done.exception}"
