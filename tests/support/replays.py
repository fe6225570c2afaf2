"""Runs on real machines, and the simulations that repeat them."""

from __future__ import annotations

from pathlib import Path

from fedfloor import config
from fedfloor.runs import launch, ledger
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.replay import Recording
from live_park import figures


def replayed(run: Path, out: Path, ranks: int = 1) -> None:
    """Repeat a run in a simulation, which compares the model of each round, and compare what both have written."""
    recording = Recording(run)
    what = recording.simulated(config.read(run / "experiment.toml", []))
    launch.start(what, Orders(out, limits=Limits(len(recording.rounds)), replay=recording), ranks, launch.ignore)
    mine, theirs = (ledger.read(folder / "ledger.jsonl") for folder in (out, run))
    assert [figures(line) for line in mine] == [figures(line) for line in theirs]
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
