"""Teams of processes on this machine: how they start, how they end, and what torchrun jobs refuse."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

import warm
from commands import TINY, Command, lines
from fedfloor.base.errors import RunError
from fedfloor.engine.team import Team
from fedfloor.runs import launch, terminal


def test_a_failing_first_rank_does_not_wait_for_the_others_work() -> None:
    def body(team: Team) -> None:
        if team.rank:
            time.sleep(60)  # a long branch
        raise RunError("the loss became nan")

    began = time.monotonic()
    with pytest.raises(RunError, match="nan"):
        launch.copies(2, 0, body)
    assert time.monotonic() - began < 20  # a second of grace, and the start


def test_a_progress_bar_leaves_the_process_single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    # otherwise ranks could not be copies of this process whenever somebody watches
    before = threading.active_count()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal.progress("run", 3):
        assert threading.active_count() == before


def test_a_batch_too_large_for_anybody_is_refused_even_if_they_are_not_drawn(command: Command) -> None:
    partition = 'data.partition={kind="dirichlet",alpha=0.5}'
    words = ("--set", partition, "--set", "methods.fedavg.fraction=0.3", "--set", "work.batch_size=64")
    command.refused(command.run(*words), "work.batch_size = 64 is larger than what device", "at_least = 64")


def test_a_ledger_with_missing_lines_is_refused(command: Command) -> None:
    assert command.run("--stop-after", "2").code == 0
    ledger = command.folder / "out" / "ledger.jsonl"
    ledger.write_text("")
    said = command.run("--resume")
    assert said.code == 1
    assert "line 1 is missing" in said.err
    assert "the checkpoint is of round 2" in said.err


def test_a_comparison_is_refused_under_torchrun(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = command("compare", "tiny.toml", "--methods", "fedavg,fedsr", "--out", "both")
    command.refused(said, "without torchrun")


def torchrun(before: str, folder: Path, *words: str) -> warm.Done:
    (folder / "tiny.toml").write_text(TINY)
    return warm.fedfloor(words, folder, folder / "log", 120, warm.Job(before=before))


APART = """
import os, sys
sys.argv += ["--out", "out" + os.environ["RANK"]]
"""


@pytest.mark.slow
def test_torchrun_resumes_a_shared_folder(tmp_path: Path) -> None:
    first = torchrun("", tmp_path, "run", "tiny.toml", "--out", "out", "--stop-after", "2")
    assert first.returncode == 0, first.stderr
    again = torchrun("", tmp_path, "run", "tiny.toml", "--out", "out", "--resume")
    assert again.returncode == 0, again.stderr
    assert [line["round"] for line in lines(tmp_path / "out")] == [1, 2, 3]


@pytest.mark.slow
def test_torchrun_refuses_folders_that_are_not_shared(tmp_path: Path) -> None:
    first = torchrun(APART, tmp_path, "run", "tiny.toml", "--stop-after", "2")
    assert first.returncode == 0, first.stderr
    (tmp_path / "out1").mkdir(exist_ok=True)
    again = torchrun(APART, tmp_path, "run", "tiny.toml", "--resume")
    assert again.returncode != 0
    assert "differs from rank 0 in its round of the last checkpoint: 0 instead of 2" in again.stderr
    assert [line["round"] for line in lines(tmp_path / "out0")] == [1, 2]


@pytest.mark.slow
def test_torchrun_tells_every_rank_why_it_does_not_start(command: Command) -> None:
    assert command.run("--stop-after", "1").code == 0
    again = torchrun("", command.folder, "run", "tiny.toml", "--out", "out")
    assert again.returncode != 0
    assert again.stderr.count("error: out already holds a run") == 2


OTHERWISE = """
import os, sys
sys.argv += ["--set", "network.profile=" + ("" if os.environ["RANK"] == "0" else "./elsewhere/") + "hall.toml"]
"""


@pytest.mark.slow
def test_hosts_may_have_a_networks_profile_in_different_places_but_not_different_ones(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for folder in (tmp_path, tmp_path / "elsewhere"):
        (folder / "hall.toml").write_text("[device_edge]\nup_bps = 1e6\n")
    done = torchrun(OTHERWISE, tmp_path, "run", "tiny.toml", "--out", "a")
    assert done.returncode == 0, done.stderr
    (tmp_path / "elsewhere" / "hall.toml").write_text("[device_edge]\nup_bps = 2e6\n")
    refused = torchrun(OTHERWISE, tmp_path, "run", "tiny.toml", "--out", "b")
    assert refused.returncode != 0
    assert "rank 1 differs from rank 0 in its experiment" in refused.stderr
