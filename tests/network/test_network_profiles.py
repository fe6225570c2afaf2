"""Networks: the profiles that come along, what differs from them, and what is refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.network import profile
from fedfloor.network.profile import Devices, LinkClass, NetworkProfile, NetworkSettings

NAMES = sorted(profile.profiles())


def load(name: str) -> NetworkProfile:
    return profile.from_table(profile.read_tables(name))


# -- the profiles ------------------------------------------------------------------------------------------------------


def test_the_profiles() -> None:
    assert NAMES == ["5g-edge", "ethernet", "lte-cat-m2", "nb-iot", "rafed", "wifi"]


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_profile_has_a_source(name: str) -> None:
    assert load(name).name == name
    assert load(name).about.endswith(".")
    tables = {key: part for key, part in profile.read_tables(name).items() if isinstance(part, dict)}
    assert set(tables) >= {"device_edge", "edge_cloud", "devices"}
    for key, part in tables.items():
        assert len(part.get("source", "").split()) >= 5, f"{name}.{key}"
    loose = [key for key, one in profile.read_tables(name).items() if isinstance(one, int | float)]
    assert not loose, "a number that stands in no table has no source"


def test_the_profile_of_hfedms_has_the_papers_rates() -> None:
    link = load("lte-cat-m2").device_edge
    assert (link.up_bps, link.down_bps, link.latency_s) == (4e6, 7e6, 0.0)
    assert (link.sharing, link.over, link.duplex) == ("serial", "park", "half")
    assert load("lte-cat-m2").edge_cloud == LinkClass(source=load("lte-cat-m2").edge_cloud.source)


def test_the_profile_of_rafed_has_the_papers_settings() -> None:
    network = load("rafed")
    radio = network.radio
    devices = network.devices
    assert radio is not None
    assert network.uplink.sharing == "sinr"
    assert network.uplink.down_bps is None
    assert (radio.channels, radio.bandwidth_hz, radio.noise_dbm_per_mhz) == (4, 250e3, -114.0)
    assert (radio.path_loss_exponent, radio.payload_nats) == (3.76, 25_000.0)
    assert radio.powers_dbm == tuple(range(21))
    assert (radio.iterations_scale, radio.iterations_offset) == (89.154, 0.00934)
    assert (devices.cycles_per_bit, devices.clock_hz) == ((10.0, 30.0), (1e9, 2e9))
    assert devices.data_bits == (5 * 8e6, 10 * 8e6)
    assert (devices.distance_m, devices.capacitance) == ((2.0, 50.0), 2e-28)


def test_rates_that_their_sources_derive() -> None:
    nb_iot = load("nb-iot").device_edge
    ethernet = load("ethernet").device_edge
    edge = load("5g-edge").device_edge
    assert nb_iot.up_bps == 1000 / 16e-3
    assert nb_iot.down_bps == pytest.approx(680 / 26e-3, rel=0.01)
    assert ethernet.up_bps == pytest.approx(1e9 * 1448 / 1538, rel=1e-3)
    elements = 273 * 12 / (1e-3 / 28) * 948 / 1024  # that carry bits, per second and layer (TS 38.306)
    down, up = (3 + 10 / 14) / 5, (1 + 2 / 14) / 5  # of the slots DDDSU, where S has 10 symbols down and 2 up
    assert edge.down_bps == pytest.approx(0.6 * 2 * 6 * elements * 0.86 * down, rel=0.1)
    assert edge.up_bps == pytest.approx(0.6 * 6 * elements * 0.92 * up, rel=0.1)


@pytest.mark.parametrize(
    ("name", "watt"), [("lte-cat-m2", 6.4), ("wifi", 6.4), ("ethernet", 6.4), ("5g-edge", 10.5), ("nb-iot", 0.0425)]
)
def test_training_draws_what_the_source_says(name: str, watt: float) -> None:
    """A pass takes yD/f seconds and (α/2)·yD·f² joules, so training draws (α/2)·f³ watt."""
    devices = load(name).devices
    assert isinstance(devices.capacitance, float)
    assert isinstance(devices.clock_hz, float)
    assert devices.capacitance / 2 * devices.clock_hz**3 == pytest.approx(watt, rel=0.01)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "rafed"])
def test_sending_draws_no_less_than_receiving_nor_that_than_idling(name: str) -> None:
    devices = load(name).devices
    assert devices.transmit_w >= devices.receive_w >= devices.idle_w > 0


# -- what differs from a profile ---------------------------------------------------------------------------------------


def test_keys_that_are_not_named_stay_as_the_profile_has_them() -> None:
    changed = profile.build(NetworkSettings("rafed", radio={"channels": 1}, devices={"clock_hz": 1e9}))
    plain = load("rafed")
    assert changed is not None
    assert plain.radio is not None
    assert changed.radio == replace(plain.radio, channels=1)
    assert changed.devices == replace(plain.devices, clock_hz=1e9)
    assert (changed.device_edge, changed.route) == (plain.device_edge, plain.route)


def test_a_network_without_a_profile_is_made_of_its_tables() -> None:
    made = profile.build(NetworkSettings(device_edge={"up_bps": 1e6}, devices={"idle_w": [1.0, 2.0]}))
    assert made == NetworkProfile(device_edge=LinkClass(up_bps=1e6), devices=Devices(idle_w=(1.0, 2.0)))
    assert profile.build(NetworkSettings()) is None


def test_one_key_is_changed_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[network]\nprofile = "wifi"\n')
    what = config.read(tmp_path / "own.toml", ["network.device_edge.up_bps=1e6"])
    plain = load("wifi")
    assert profile.build(what.network) == replace(plain, device_edge=replace(plain.device_edge, up_bps=1e6))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_writes_its_whole_network_down(name: str) -> None:
    changes: dict[str, Any] = {"profile": name, "device_edge": {"latency_s": 0.25}, "cloud_clock_hz": 3e9}
    what = config.from_table({"network": changes})
    text = config.resolved(what)
    again = config.from_table(tomllib.loads(text))
    assert profile.build(again.network) == profile.build(what.network)
    assert config.resolved(again) == text
    written = tomllib.loads(text)["network"]
    assert written.pop("profile") == name
    made = profile.build(NetworkSettings(**written))  # it stands there whole, whatever becomes of the profile
    assert made == replace(profile.build(what.network), name="", about="")  # type: ignore[type-var]


# -- what is refused ---------------------------------------------------------------------------------------------------


def said(table: dict[str, Any]) -> str:
    with pytest.raises(SettingError) as error:
        config.from_table({"network": table})
    assert error.value.exit_code == 2
    return str(error.value)


RATE = "must be above 0, in bits per second, or left out: no limit."
RANGE = "must be above 0, or [low, high] with 0 < low <= high."
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"profil": "wifi"}, "[network] unknown key 'profil'. Did you mean 'profile'? Known: "),
    ({"profile": "wify"}, "network.profile: unknown network profile 'wify'. Did you mean 'wifi'? Known: 5g-edge, "),
    ({"profile": 5}, "network.profile = 5: must be a text in quotes."),
    ({"route": "detour"}, "network.route = 'detour': must be 'via_edge' or 'direct'."),
    ({"route": "direct"}, "network.route = 'direct' needs a [network.device_cloud] table with the rates of that link."),
    ({"device_edge": {"up_bp": 1e6}}, "[network.device_edge] unknown key 'up_bp'. Did you mean 'up_bps'? Known: "),
    ({"device_edge": {"up_bps": -1.0}}, f"network.device_edge.up_bps = -1.0: {RATE}"),
    ({"edge_cloud": {"down_bps": 0}}, f"network.edge_cloud.down_bps = 0.0: {RATE}"),
    ({"device_edge": {"up_bps": "fast"}}, "network.device_edge.up_bps = 'fast': must be a number"),
    ({"device_cloud": {"latency_s": -0.1}}, "network.device_cloud.latency_s = -0.1: must be seconds, at least 0."),
    ({"device_edge": {"sharing": "fair"}}, "network.device_edge.sharing = 'fair': must be 'serial', 'dedicated' or"),
    ({"device_edge": {"sharing": "serial"}},
     "network.device_edge.sharing = 'serial': transfers that take turns need up_bps or down_bps."),
    ({"devices": {"clok_hz": 1e9}}, "[network.devices] unknown key 'clok_hz'. Did you mean 'clock_hz'? Known: "),
    ({"devices": {"clock_hz": 0}}, f"network.devices.clock_hz = 0.0: {RANGE}"),
    ({"devices": {"clock_hz": [2e9, 1e9]}}, f"network.devices.clock_hz = (2000000000.0, 1000000000.0): {RANGE}"),
    ({"devices": {"distance_m": [0, 50]}}, f"network.devices.distance_m = (0.0, 50.0): {RANGE}"),
    ({"devices": {"idle_w": [2, 1]}},
     "network.devices.idle_w = (2.0, 1.0): must be at least 0, or [low, high] with 0 <= low <= high."),
    ({"profile": "rafed", "devices": {"distance_m": 0}}, f"network.devices.distance_m = 0.0: {RANGE}"),
    ({"radio": {"channels": 0}}, "network.radio.channels = 0: must be a whole number of at least 1."),
    ({"radio": {"attempts": 0}}, "network.radio.attempts = 0: must be a whole number of at least 1."),
    ({"radio": {"threshold": 0}}, "network.radio.threshold = 0.0: must be above 0."),
    ({"radio": {"powers_dbm": []}}, "network.radio.powers_dbm = (): must be ascending powers in dBm."),
    ({"radio": {"powers_dbm": [20, 10]}}, "network.radio.powers_dbm = (20.0, 10.0): must be ascending powers in dBm."),
    ({"radio": {"outage": 1}}, "network.radio.outage = 1.0: must be a chance, above 0 and below 1."),
    ({"cloud_clock_hz": 0}, "network.cloud_clock_hz = 0.0: must be cycles per second, above 0."),
    ({"device_edge": {"sharing": "sinr"}},
     "network.device_edge.sharing = 'sinr' needs [network.radio]. Profile 'rafed' has both."),
    ({"device_edge": {"sharing": "sinr"}, "radio": {}},
     "network.device_edge.sharing = 'sinr' needs [network.devices] distance_m, metres. Profile 'rafed' has both."),
    ({"profile": "rafed", "edge_cloud": {"sharing": "sinr"}},
     "network.edge_cloud.sharing = 'sinr': only device_edge and device_cloud can interfere."),
]  # fmt: skip


@pytest.mark.parametrize(("table", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_refused(table: dict[str, Any], message: str) -> None:
    assert said(table).startswith(message)


# -- a profile of one's own --------------------------------------------------------------------------------------------


def test_a_profile_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    own = tmp_path / "hall.toml"
    own.write_text("[device_edge]\nup_bps = 1e6\n")
    assert load(str(own)) == NetworkProfile(name="hall", device_edge=LinkClass(up_bps=1e6))


def test_a_profile_that_cannot_be_read(tmp_path: Path) -> None:
    missing, broken, wrong = (tmp_path / f"{name}.toml" for name in ("missing", "broken", "wrong"))
    broken.write_text("[device_edge\n")
    wrong.write_text("[devise_edge]\nup_bps = 1e6\n")
    assert said({"profile": str(missing)}) == f"network.profile: {missing}: No such file or directory."
    assert said({"profile": str(tmp_path / "x.toml" / "..")}).startswith(
        "network.profile: unknown network profile "
    )  # no TOML file
    assert said({"profile": str(broken)}).startswith(f"network.profile: {broken} is not valid TOML: ")
    unknown = "[network] unknown key 'devise_edge'. Did you mean 'device_edge'?"
    assert said({"profile": str(wrong)}).startswith(f"network.profile: {wrong}: {unknown}")
    assert said({"profile": str(wrong), "radio": {"channels": 0}}).startswith(f"network.profile: {wrong}: {unknown}")
    wrong.write_text("[device_edge]\nup_bps = 1e6\n")  # what is stated beside it is not the file's
    assert said({"profile": str(wrong), "device_edge": {"up_bps": -1.0}}).startswith("network.device_edge.up_bps = -1")
