"""Code named in a stranger's experiment: commands that only look ask before they import it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedfloor.base import outside
from fedfloor.base.errors import SettingError
from fedfloor.cli.app import app
from fedfloor.runs import replay
from run_folders import make_run

METHOD = """
from dataclasses import dataclass
from pathlib import Path
from fedfloor.methods.fedavg import FedAvg

Path("imported").touch()


@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""
EXPERIMENT = """
rounds = 1
data.samples_per_device = 32
park.devices = 2
model.name = "logistic"
network.profile = "wifi"
"""
COMMANDS = [["price"], ["draw"], ["price", "--json"], ["draw", "--json"]]


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "e.toml").write_text(f'{EXPERIMENT}method.name = "mine:Mine"\n')
    (tmp_path / "plain.toml").write_text(EXPERIMENT)
    return tmp_path


def done(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "fedfloor", *words]
    return subprocess.run(line, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_to_look_at_an_experiment_imports_nothing(stranger: Path, words: list[str]) -> None:
    command, *more = words
    refused = done(stranger, command, "e.toml", *more)
    assert refused.returncode == 2
    assert "'mine:Mine'" in refused.stderr
    assert "--own-code" in refused.stderr
    assert not (stranger / "imported").exists()


def test_to_price_finished_runs_imports_nothing_unasked(stranger: Path) -> None:
    make_run(stranger / "run", [0.5])
    text = (stranger / "run" / "experiment.toml").read_text()
    (stranger / "run" / "experiment.toml").write_text(text.replace('"fedsr"', '"mine:Mine"').split("[methods")[0])
    words = ("price", "run", "--network", "wifi", "--out", "copies")
    refused = done(stranger, *words)
    assert refused.returncode == 2
    assert "run names code outside fedfloor, 'mine:Mine'" in refused.stderr
    assert not (stranger / "imported").exists()
    done(stranger, *words, "--own-code")
    assert (stranger / "imported").exists()


def test_to_repeat_a_run_imports_nothing_unasked(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stranger / "run").mkdir()
    (stranger / "e.toml").rename(stranger / "run" / "experiment.toml")
    monkeypatch.chdir(stranger)
    monkeypatch.setattr(replay, "Recording", lambda folder: SimpleNamespace(simulated=interrupted))
    assert isinstance(CliRunner().invoke(app, ["run", "--replay", "run"]).exception, SettingError)
    assert not (stranger / "imported").exists()
    with monkeypatch.context() as patched:  # the import is forgotten
        patched.setattr(outside, "_LOADED", {})
        patched.setattr(sys, "path", [*sys.path])
        CliRunner().invoke(app, ["run", "--replay", "run", "--own-code"])
        del sys.modules["mine"]
    assert (stranger / "imported").exists()


def interrupted(_: object) -> None:
    raise SettingError("nothing is trained.")


@pytest.mark.parametrize(
    "words",
    [
        ["price", "e.toml", "--own-code"],
        ["draw", "plain.toml", "--set", "method.name=mine:Mine"],
        ["price", "plain.toml", "--methods", "fedavg,mine:Mine"],
        ["compare", "plain.toml", "--methods", "mine:Mine"],
        ["run", "e.toml"],
    ],
    ids=" ".join,
)
def test_what_is_trusted_typed_or_carried_out_is_imported(stranger: Path, words: list[str]) -> None:
    imported = done(stranger, *words)
    assert imported.returncode == 0, imported.stderr
    assert (stranger / "imported").exists()
    typed = not {"--set", "--methods"}.isdisjoint(words)
    assert ("names code outside fedfloor" in imported.stderr) != typed  # it is printed before


@pytest.mark.parametrize("answer", ["y", "n"])
def test_at_a_terminal_a_person_is_asked(stranger: Path, answer: str) -> None:
    leader, terminal = pty.openpty()
    os.write(leader, f"{answer}\n".encode())
    line = [sys.executable, "-m", "fedfloor", "draw", "e.toml"]
    asked = subprocess.run(line, cwd=stranger, stdin=terminal, capture_output=True, text=True, timeout=300)
    os.close(leader)
    os.close(terminal)
    assert "Import it?" in asked.stderr
    assert asked.returncode == (0 if answer == "y" else 2)
    assert (stranger / "imported").exists() == (answer == "y")


def test_the_permission_ends_with_the_command(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stranger)
    assert isinstance(CliRunner().invoke(app, ["price", "e.toml"]).exception, SettingError)
    monkeypatch.syspath_prepend(str(stranger))
    assert outside.load("mine:Mine", "method").__name__ == "Mine"  # in Python, the caller's own code runs anyway
