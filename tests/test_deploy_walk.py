"""The live engine, with real agents and edges but neither network nor processes: the simulation's bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_park import experiment, figures, live, simulated

METHODS = ("fedavg", "fedsr", "hierfavg", "fedgs", "hfedms")


@pytest.mark.parametrize("method", METHODS)
def test_a_park_of_machines_is_its_simulation_to_the_bit(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
