"""Networks as they are written: profiles, what changes them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedfloor.network import profile
from fedfloor.network.profile import NetworkProfile, NetworkSettings, from_table
from refusals import refused

CELL = {"device_edge": {"sharing": "sinr"}, "radio": {}, "devices": {"distance_m": 10.0}}


@pytest.mark.parametrize("name", profile.profiles())
def test_profiles_say_where_their_numbers_are_from(name: str) -> None:
    table = profile.read_tables(name)
    assert profile.build(NetworkSettings(profile=name)) == from_table(table)
    assert table["about"]
    parts = [part for part in table.values() if isinstance(part, dict)]
    assert parts
    assert all(part.get("source") for part in parts)


def test_the_cell_of_hfedms() -> None:
    found = profile.build(NetworkSettings(profile="lte-cat-m2"))
    assert found is not None
    link = found.device_edge
    assert (link.up_bps, link.down_bps, link.sharing, link.over, link.duplex) == (4e6, 7e6, "serial", "park", "half")


def test_changes_are_laid_over_the_profile() -> None:
    found = profile.build(NetworkSettings(profile="lte-cat-m2", device_edge={"up_bps": 1.0}, route="via_edge"))
    assert found is not None
    assert (found.device_edge.up_bps, found.device_edge.down_bps) == (1.0, 7e6)
    assert profile.build(NetworkSettings()) is None
    assert profile.build(NetworkSettings(route="via_edge")) == NetworkProfile()


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "hall.toml"
    path.write_text("[device_edge]\nup_bps = 5\n", encoding="utf-8")
    found = profile.build(NetworkSettings(profile=str(path)))
    assert found is not None
    assert (found.name, found.device_edge.up_bps) == ("hall", 5)
    path.write_text("[device_edge\n", encoding="utf-8")
    with refused("not-toml"):
        profile.read_tables(str(path))
    with refused("unreadable-file"):
        profile.read_tables(str(tmp_path / "other.toml"))
    with refused("network.profile"):
        profile.read_tables("lte-cat-m3")


def test_a_radio_is_complete() -> None:
    assert from_table(CELL).radio is not None
    for lacking in ("radio", "devices"):
        with refused("network.device_edge.sharing"):
            from_table({key: part for key, part in CELL.items() if key != lacking})
    with refused("network.edge_cloud.sharing"):
        from_table({**CELL, "edge_cloud": {"sharing": "sinr"}})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"device_edge": {"up_bps": 0}}, "network.device_edge.up_bps"),
        ({"device_edge": {"up_bps": -4e6}}, "network.device_edge.up_bps"),
        ({"device_edge": {"down_bps": float("nan")}}, "network.device_edge.down_bps"),
        ({"device_edge": {"latency_s": -0.1}}, "network.device_edge.latency_s"),
        ({"device_edge": {"sharing": "serial"}}, "network.device_edge.sharing"),
        ({"device_edge": {"sharing": "shared"}}, "network.device_edge.sharing"),
        ({"device_edge": {"upbps": 1}}, "unknown-key"),
        ({"route": "straight"}, "network.route"),
        ({"route": "direct"}, "network.route"),
        ({"cloud_clock_hz": 0.0}, "network.cloud_clock_hz"),
        ({"devices": {"clock_hz": 0.0}}, "network.devices.clock_hz"),
        ({"devices": {"clock_hz": [2e9, 1e9]}}, "network.devices.clock_hz"),
        ({"devices": {"idle_w": -1.0}}, "network.devices.idle_w"),
        ({"radio": {"channels": 0}}, "network.radio.channels"),
        ({"radio": {"attempts": 0}}, "network.radio.attempts"),
        ({"radio": {"powers_dbm": []}}, "network.radio.powers_dbm"),
        ({"radio": {"powers_dbm": [3.0, 1.0]}}, "network.radio.powers_dbm"),
        ({"radio": {"powers_dbm": [0.0, float("inf")]}}, "network.radio.powers_dbm"),
        ({"radio": {"noise_dbm_per_mhz": float("nan")}}, "network.radio.noise_dbm_per_mhz"),
        ({"radio": {"outage": 1.0}}, "network.radio.outage"),
        ({"radio": {"path_loss": "C"}}, "network.radio.path_loss"),
        ({"radio": {"threshold": 0.0}}, "network.radio.threshold"),
    ],
)
def test_what_is_refused(table: dict[str, Any], words: str) -> None:
    with refused(words):
        from_table(table)
