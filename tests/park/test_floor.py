"""Park files: what they may say, what is drawn, and that a written park is the same park."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import refusals
from allocation_parks import RAFED
from fedfloor.api.source import bundled
from fedfloor.base.errors import SettingError
from fedfloor.network import cell
from fedfloor.network.cell import Cell


def made(folder: Path, text: str) -> Cell:
    (folder / "here.toml").write_text(text, encoding="utf-8")
    return cell.read(folder / "here.toml")


def test_devices_are_drawn_as_the_network_says(tmp_path: Path) -> None:
    here = made(tmp_path, "devices = 2000\nseed = 3\n" + RAFED)
    distance = here.sites.distance_m
    assert distance is not None
    assert here.name == "here"
    assert np.allclose(np.hypot(here.x_m, here.y_m), distance, rtol=1e-12)
    for values, low, high in ((distance, 2, 50), (here.sites.cycles_per_bit, 10, 30), (here.sites.clock_hz, 1e9, 2e9)):
        assert low <= values.min() < values.max() <= high
        # the mean of 2000 uniform draws is within 5 of its standard deviations, (high − low)/√(12·2000), of the middle
        assert abs(values.mean() - (low + high) / 2) < 5 * (high - low) / math.sqrt(12 * 2000)
    quarters = np.histogram(np.arctan2(here.y_m, here.x_m), bins=4, range=(-math.pi, math.pi))[0]
    assert quarters.min() > 500 - 5 * math.sqrt(2000 * 0.25 * 0.75)  # as many on each side


def test_what_a_device_says_goes_before_what_is_drawn(tmp_path: Path) -> None:
    own = """
[[device]]
name = "press"
x_m = 3.0
y_m = -4.0
cycles_per_bit = 20.0
clock_hz = 1e9
data_bits = 4e7
[[device]]
distance_m = 7.0
"""
    here = made(tmp_path, own + RAFED)
    assert here.names == ("press", "1")
    assert here.sites.distance_m is not None
    assert here.sites.distance_m.tolist() == [5.0, 7.0]  # 3² + 4² = 5²
    assert math.hypot(here.x_m[1], here.y_m[1]) == pytest.approx(7.0)
    assert here.problem().compute_s[0] == pytest.approx(20 * 4e7 / 1e9)
    drawn = made(tmp_path, "devices = 2\n" + RAFED)
    assert here.sites.clock_hz[1] == drawn.sites.clock_hz[1]  # left out, it is what the seed draws


def test_a_written_park_is_the_same_park(tmp_path: Path) -> None:
    first = made(tmp_path, "devices = 40\nseed = 1\n" + RAFED)
    text = cell.to_toml(first)
    again = made(tmp_path, text)
    assert cell.to_toml(again) == text
    for name, off in (("distance_m", 0.01), ("cycles_per_bit", 0.005), ("clock_hz", 5e5), ("data_bits", 500)):
        assert np.abs(getattr(again.sites, name) - getattr(first.sites, name)).max() <= off, name  # rounding
    assert np.array_equal(again.problem().airtime_s, made(tmp_path, "seed = 9\n" + text).problem().airtime_s)


def test_the_bundled_parks_are_what_their_command_draws(tmp_path: Path) -> None:
    parks = bundled("experiments/cells")
    assert list(parks) == [f"rafed-{i}" for i in range(5)]
    for i, path in enumerate(parks.values()):
        (tmp_path / path.name).write_text(f"devices = 40\nseed = {i}\n", encoding="utf-8")
        assert cell.to_toml(cell.read(tmp_path / path.name)) == path.read_text(encoding="utf-8")


def test_a_profile_of_ones_own_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RAFED.replace("[network.", "["), encoding="utf-8")
    here = made(tmp_path, 'devices = 3\n[network]\nprofile = "mine.toml"\n[network.radio]\nchannels = 7\n')
    assert here.problem().channels == 7
    assert here.problem().devices == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cell 'here' has no devices: give devices = 40, or describe each in a [[device]]."),
        ("devices = 0", "devices = 0: must be a whole number of at least 1."),
        ("devices = -1", "devices = -1: must be a whole number of at least 1."),
        ("devices = 2.5", "devices = 2.5: must be a whole number."),
        ("seed = -1\ndevices = 1", "seed = -1: must be a whole number of at least 0."),
        ("devcies = 3", "unknown key 'devcies'. Did you mean 'devices'?"),
        ("devices = 3\n[[device]]\ndistance_m = 4", "has devices and [[device]] entries"),
        ("[device]\nx_m = 3", "write [[device]]"),
        ("[[device]]\nx_m = 1\ny_mm = 2", "[[device]] number 0: [device] unknown key 'y_mm'. Did you mean 'y_m'?"),
        ("[[device]]\nx_m = 1", "x_m = 1.0, y_m = None: give both, or distance_m."),
        ("[[device]]\nx_m = 1\ny_m = 1\ndistance_m = 2", "give its position, or its distance"),
        ("[[device]]\nx_m = 0\ny_m = 0", "away from the base station"),
        (
            "[[device]]\ndistance_m = 3\n[[device]]\ndistance_m = -3",
            "number 1: device distance_m = -3.0: must be above",
        ),
        ("[[device]]\nclock_hz = 0", "device clock_hz = 0.0: must be above 0"),
        ("[[device]]\ndata_bits = inf", "device data_bits"),
        ("[[device]]\ncycles_per_bit = -1", "device cycles_per_bit = -1.0"),
        ('[[device]]\nname = "a"\n[[device]]\nname = "a"', "names of devices = ['a']: must be different."),
        ("devices = 1\n[network.radio]\nchannels = 0", "radio.channels = 0: must be a whole number of at least 1"),
        (
            "devices = 1\n[network.radio]\nchanels = 3",
            "[network.radio] unknown key 'chanels'. Did you mean 'channels'?",
        ),
        ("devices = 1 # 2\nx", "here.toml is not valid TOML"),
    ],
)
def test_a_park_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingError) as refused:
        made(tmp_path, text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('sharing = "sinr"', "", "cell"),
        ("payload_nats = 25000", "", "cell"),
        ("data_bits = [4e7, 8e7]", "", "cell"),
        ("data_bits = [4e7, 8e7]", "seconds_per_sample = 1e-3", "cell"),
    ],
)
def test_a_network_without_what_is_needed_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(RAFED.replace("[network.", "[").replace(old, new), encoding="utf-8")
    with refusals.refused(message):
        made(tmp_path, 'devices = 1\n[network]\nprofile = "mine.toml"')


def test_a_device_out_of_reach_is_named(tmp_path: Path) -> None:
    """γN0/s < −ln(1 − ζ): at ζ = 10⁻⁴ s must exceed 10⁴·N0, 40 dB; at 500 m it is 60 − 37.6 dB (facts: 60 at 50 m)."""
    text = '[[device]]\ndistance_m = 40.0\n[[device]]\nname = "crane"\ndistance_m = 500.0\n'
    network = RAFED.replace("[network.radio]", "[network.radio]\noutage = 1e-4")
    with refusals.refused("out-of-reach"):
        made(tmp_path, text + network)
    assert made(tmp_path, text.replace("500.0", "50.0") + network).names[1] == "crane"
