"""Sizes that no memory holds are refused before arrays are made; mutated experiment files end in no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import Command
from fedfloor.base import machine
from refusals import refused

PICTURES = ("data.name=procedural", "data.samples_per_device=2", "model.name=logistic")
SIZES = {
    "devices": (["park.devices=10**12"], "[park] devices = 1000000000000 with [data] samples_per_device = 40: needs"),
    "samples": (["data.samples_per_device=10**14"], "with [data] samples_per_device = 100000000000000: needs"),
    "devices that are made when visited": (
        ["data.name=procedural", "park.devices=10**13"], "[park] devices = 10000000000000: needs 360,000.0 GB",
    ),
    "samples beyond 64 bits": (
        ["data.name=procedural", "data.samples_per_device=2**62"], "less than 2^63 samples.",
    ),
    "pictures": (
        [*PICTURES, "data.procedural={shape=[1,1000000,1000000],test_samples=1}"],
        "[data] samples_per_device = 2 with data.procedural.shape = [1, 1000000, 1000000]: needs 2,000.0 GB",
    ),
    "test pictures": (
        [*PICTURES, "data.procedural={test_samples=10**12}"], "data.procedural.test_samples = 1000000000000 and",
    ),
    "a window": (["data.stream={kind='fifo',window=10**12}"], "data.stream.window = 1000000000000: needs 792,000.0 GB"),
    "a period": (
        ["data.stream={kind='fifo',window=2,drift={kind='cycle',period=10**13}}"], "data.stream.drift.period = 100000",
    ),
    "a network": (
        [*PICTURES, "data.procedural={shape=[1,3000,3000],test_samples=1,classes=2}", "model.name=mlp-2nn"],
        "model.name = 'mlp-2nn' on samples of shape (1, 3000, 3000): needs 21.6 GB",
    ),
    "laps": (
        ["method.name=fedsr", "methods.fedsr.laps=10**12"],
        "method 'fedsr' plans 4,000,000,000,000 visits in a round, with laps = 1000000000000: needs 800,000.0 GB",
    ),
    "iterations": (
        ["method.name=fedgs", "methods.fedgs={iterations=10**15,devices=1,random=0}"], "with iterations = 100000000000",
    ),
    "hashes": (["method.name=fldgl", "methods.fldgl={hashes=10**12,groups=2}"], "hashes = 1000000000000: needs"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), SIZES.values(), ids=SIZES)
def test_a_size_that_no_memory_holds_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, changes: list[str], message: str
) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda: 8e9)
    numbers = {f"10**{power}": str(10**power) for power in (12, 13, 14, 15)} | {"2**62": str(2**62)}
    for text, number in numbers.items():
        changes = [change.replace(text, number) for change in changes]
    said = command.set(*changes)
    assert (said.code, said.out) == (2, ""), said
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.samples_per_device=50000"], "data.samples_per_device = 50000, of shape [1, 28, 28]: needs 0.2 GB"),
        (["data.stream={kind='fifo',window=50000}"], "data.stream.window = 50000, of shape [1, 28, 28]: needs 0.2 GB"),
        ([*PICTURES, "data.procedural={test_samples=50000}"], "data.procedural.test_samples = 50000 and "),
    ],
)
def test_a_size_that_fits_as_it_is_stored_and_not_as_it_is_trained_on_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, changes: list[str], message: str
) -> None:
    """These ended as runs that failed, with exit code 1, once a device trained."""
    monkeypatch.setattr(machine, "free_bytes", lambda: 1e8)
    said = command.set(*changes)
    assert (said.code, said.out) == (2, ""), said
    assert message in said.err
    assert not (command.folder / "out").exists()


def test_what_is_free_is_the_least_of_all_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    without = machine.free_bytes()
    assert without > 1 << 20
    for name, text in (("max", "9000000\n"), ("current", "5000000\n"), ("stat", "anon 7\nactive_file 300000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert machine.free_bytes() == 4_300_000  # files in memory give way
    machine.require_memory("park.devices = 3", 4_000_000, "Use fewer devices.")
    with refused("memory"):
        machine.require_memory("park.devices = 3", 5_000_000, "Use fewer devices.")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.free_bytes() > 4_300_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory by /proc and fork")
def test_no_mutated_experiment_file_ends_in_a_traceback() -> None:
    """Kinds that are lists, times, 10^59 and their like; 200 files here, thousands by hand (see the script)."""
    script = Path(__file__).parents[1] / "programs" / "fuzz_experiments.py"
    done = subprocess.run(
        [sys.executable, str(script), "--first", "0", "--count", "200"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    came = json.loads(done.stdout.splitlines()[-1])
    assert sum(came.values()) == 200
    assert came["planned"] >= 8  # enough of them reach the park and the plan
