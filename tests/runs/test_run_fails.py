"""What happens when a run fails: exit code 1, a clear message, and what was reached stays on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import TINY, Command, Said, lines

DIVERGES = """
from dataclasses import dataclass
from fedfloor.methods.contract import Method
from fedfloor.plan.nodes import Parallel, Train, Work, device

@dataclass(frozen=True)
class Diverges(Method):
    round: int = 3

    def plan(self, state, view, rng):
        rates = (0.01, 3e38 if view.round == self.round else 0.01)
        return Parallel(tuple(Train(device(k), Work(epochs=2, rate=rate)) for k, rate in zip((1, 3), rates)))
"""


def diverging(command: Command, *words: str) -> Said:
    command.module("diverging_method", DIVERGES)
    return command.run("--set", "method.name=diverging_method:Diverges", *words)


def test_a_loss_that_is_no_number_names_device_and_round(command: Command) -> None:
    assert diverging(command, "--stop-after", "2").code == 0
    model = (command.folder / "out" / "model.safetensors").read_bytes()
    said = diverging(command, "--resume")
    assert said.code == 1
    for words in ("the loss of device 3 became", "in round 3", "learning rate 3e+38", "Lower work.lr"):
        assert words in said.err
    assert "Traceback" not in said.err
    places = [path.name for path in (command.folder / "out" / "checkpoint").iterdir()]
    assert places == ["round-00000002"]
    assert [row["round"] for row in lines(command.folder / "out")] == [1, 2]
    assert (command.folder / "out" / "model.safetensors").read_bytes() == model
    assert diverging(command, "--resume", "--stop-after", "2").code == 0  # still a run that can be gone on with


def test_a_run_that_fails_keeps_its_last_good_round(command: Command) -> None:
    assert diverging(command).code == 1
    places = [path.name for path in (command.folder / "out" / "checkpoint").iterdir()]
    assert places == ["round-00000002"]
    again = diverging(command, "--resume")
    assert again.code == 1
    assert "round 1/3" not in again.err  # it goes on where it failed


REFUSES = """
from dataclasses import dataclass
from fedfloor.base.errors import SettingError
from fedfloor.methods.contract import Method
from fedfloor.plan.nodes import Parallel, Train, Work, device

@dataclass(frozen=True)
class Refuses(Method):
    def plan(self, state, view, rng):
        if view.round == 3:
            raise SettingError("not in round 3.")
        return Parallel((Train(device(1), Work(epochs=1)),))
"""


def test_a_plan_that_is_refused_late_keeps_what_was_done(command: Command) -> None:
    command.module("refusing_method", REFUSES)
    said = command.run("--set", "method.name=refusing_method:Refuses")
    assert (said.code, said.err.splitlines()[-1]) == (2, "error: not in round 3.")
    places = [path.name for path in (command.folder / "out" / "checkpoint").iterdir()]
    assert places == ["round-00000002"]


def test_a_run_that_fails_before_its_first_round_leaves_nothing(command: Command) -> None:
    said = diverging(command, "--set", "methods.diverging_method:Diverges.round=1")
    command.refused(said, "the loss of device 3 became", "in round 1", code=1)


def test_a_learning_rate_out_of_this_world(command: Command) -> None:
    command.refused(command.set("work.lr=3e38"), "Lower work.lr", code=1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a ledger, but not for a checkpoint."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", place], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_full_disk(command: Command, small_disk: Path) -> None:
    out = ("run", "tiny.toml", "--ranks", "1", "--out", str(small_disk / "run"))
    said = command(*out)
    assert said.code == 1
    assert "error: the disk is full: " in said.err
    assert "free disk space, then continue with --resume" in said.err
    assert "Traceback" not in said.err
    assert not [path for path in small_disk.rglob("*") if path.name.endswith(".part")]
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    assert command(*out, "--resume").code == 0
    assert command.run().code == 0
    assert lines(small_disk / "run") == lines(command.folder / "out")


@pytest.mark.slow
def test_a_disk_without_room_for_the_report(command: Command, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)
    said = command("run", "tiny.toml", "--ranks", "1", "--out", str(small_disk / "run"))
    assert said.code == 1
    assert "report.html could not be written: No space left on device. The runs are unaffected" in said.err
    assert command("report", str(small_disk / "run"), "--out", "page.html").code == 0


# -- more ranks than there is work for ---------------------------------------------------------------------------------

ONE_CORE = (
    "import os, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from fedfloor.cli import main; main()"
)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the cores of a process cannot be set here")
def test_more_ranks_than_cores_and_branches_are_told_and_work(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    words = ["run", "tiny.toml", "--ranks", "2", "--out", "two", "--set", "method.name=ring"]
    got = subprocess.run([sys.executable, "-c", ONE_CORE, *words], cwd=tmp_path, capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    assert "2 ranks on 1 cores: ranks will share cores" in got.stderr
    assert "2 ranks, but this plan has parallel work for 1: the others are idle." in got.stderr
    assert len(lines(tmp_path / "two")) == 3


def test_memories_that_a_power_cut_may_have_damaged_are_written_anew(command: Command) -> None:
    # What no checkpoint names was not yet put through to the disk: its name is there, and what it holds is anything.
    words = ("run", "tiny.toml", "--ranks", "1", "--set", "method.name=scaffold")
    assert command(*words, "--out", "whole").code == 0
    assert command(*words, "--out", "cut", "--stop-after", "2").code == 0
    whole = command.folder / "whole" / "memory"
    cut = command.folder / "cut" / "memory"
    coming = {path.name: path.read_bytes() for path in whole.iterdir() if not (cut / path.name).exists()}
    assert len(coming) == 4
    for name in coming:
        (cut / name).touch()
    assert command(*words, "--out", "cut", "--resume").code == 0
    assert {name: (cut / name).read_bytes() for name in coming} == coming
