"""A deployed park, real processes and a real broker: the simulation's bits, and what goes on without whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfloor.runs import ledger
from live_park import experiment, figures, simulated
from live_processes import flower, needs_broker, processes

METHODS = ("fedavg", "fedsr", "hierfavg", "fedgs", "hfedms")


@pytest.mark.slow
@needs_broker
@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_park_is_its_simulation_to_the_bit(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3)
    _, wanted = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        assert park.cloud().wait(240) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    got = ledger.read(tmp_path / "live/ledger.jsonl")
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


@pytest.mark.slow
@needs_broker
def test_hierfavg_over_flower_and_mqtt_is_its_simulation_to_the_bit(tmp_path: Path) -> None:
    what = experiment(tmp_path, "hierfavg", rounds=3)
    _, wanted = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        flower(park)
        assert park.cloud().wait(300) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    got = ledger.read(tmp_path / "live/ledger.jsonl")
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
