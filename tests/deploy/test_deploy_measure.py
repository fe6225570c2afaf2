"""A running park, measured as a network profile."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_deploy_up import EXPERIMENT

from commands import Command
from fedfloor.deploy import live
from fedfloor.deploy.measure import link_table
from fedfloor.network import profile
from parks import needs_mosquitto


def test_rates_follow_from_seconds_and_one_that_does_not_show_is_left_out() -> None:
    """A round trip of 20 ms; 1 MB goes down in 80 ms: 100 Mbit/s; up it takes no longer than nothing."""
    assert link_table(0.02, 0.08, -0.001, 1_000_000, "here") == {"latency_s": 0.01, "down_bps": 1e8, "source": "here"}


def test_seconds_of_a_visit_are_priced_once_for_each(command: Command) -> None:
    def seconds(beside: float) -> float:
        (row,) = command(
            "price", "tiny.toml", "--rounds", "1", "--json", "--set", "network.profile=5g-edge", "--set",
            f"network.devices.seconds_per_visit={beside}", "--set", "method.name=hierfavg", "--set",
            "methods.hierfavg.edge_rounds=3",
        ).document["rows"]  # fmt: skip
        return float(row["seconds_per_round"])

    assert seconds(0.5) - seconds(0.0) == pytest.approx(3 * 0.5)  # three visits of a device, one after the other


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
def test_a_park_is_measured_and_priced_by_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)

    def fedfloor(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedfloor", *words], cwd=tmp_path, capture_output=True, text=True, timeout=500
        )

    try:
        up = fedfloor("park", "live", "up", "tiny.toml", "--out", "live", "--devices", "4", "--stay")
        assert up.returncode == 0, up.stderr
        done = fedfloor("park", "live", "measure", "--park", "live", "--out", "here.toml", "--repeats", "2", "--json")
        assert done.returncode == 0, done.stderr
    finally:
        live.down(tmp_path / "live")
    assert {row["of"] for row in json.loads(done.stdout)["rows"]} == {"device_edge", "edge_cloud", "devices"}
    made = profile.from_table(tomllib.loads((tmp_path / "here.toml").read_text()))
    assert made.device_edge is not None
    assert 0 < made.device_edge.latency_s < 10
    assert made.devices.seconds_per_sample is not None
    lines = [json.loads(line) for line in (tmp_path / "live/run/ledger.jsonl").read_text().splitlines()]
    priced = json.loads(
        fedfloor("price", "live/run/experiment.toml", "--json", "--set", "network.profile=here.toml").stdout
    )
    sent = {row["link"]: row["MB_per_round"] for row in priced["links"]}
    for link, size in lines[-1]["measured"]["bytes"].items():  # measured with the messages' headers
        assert 0 <= size / 1e6 - sent[link] < 0.2, link
