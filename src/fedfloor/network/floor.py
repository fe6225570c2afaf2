"""Cell files for the allocation of radio: where devices stand, how fast they compute, on what network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from fedfloor.chance import generator
from fedfloor.checking import checked, toml
from fedfloor.errors import SettingError, require
from fedfloor.network import radio, uplink
from fedfloor.network.profile import Network, Radio
from fedfloor.network.radio import Floats
from fedfloor.network.settings import NetworkSettings, network
from fedfloor.network.sites import Sites, sites
from fedfloor.solvers.allocation.problem import AllocationProblem

PROFILE = "rafed"
OWN = ("distance_m", "cycles_per_bit", "clock_hz", "data_bits")  # what a device may say of itself
DIGITS = {"x_m": 2, "y_m": 2, "cycles_per_bit": 2, "clock_hz": -6, "data_bits": -3}  # written: cm, MHz, kbit


@dataclass(frozen=True)
class Device:
    """A ``[[device]]`` of a cell file; what is left out is drawn by the seed, as the network says.

    Args:
        name: default: its number, from 0.
        x_m, y_m: where it stands, the base station being at (0, 0).
        distance_m: in place of x_m and y_m; only the picture needs the direction, which is then drawn.
        cycles_per_bit, clock_hz, data_bits: see :class:`~fedfloor.network.profile.Devices`.
    """

    name: str | None = None
    x_m: float | None = None
    y_m: float | None = None
    distance_m: float | None = None
    cycles_per_bit: float | None = None
    clock_hz: float | None = None
    data_bits: float | None = None

    def __post_init__(self) -> None:
        if (self.x_m is None) != (self.y_m is None):
            raise SettingError(f"device x_m = {self.x_m}, y_m = {self.y_m}: say both, or distance_m.")
        if self.x_m is not None and self.y_m is not None:
            if self.distance_m is not None:
                raise SettingError("a device has x_m, y_m and distance_m: say where it stands, or how far away.")
            there = 0 < math.hypot(self.x_m, self.y_m) < math.inf
            require(there, "device (x_m, y_m)", (self.x_m, self.y_m), "away from the base station at (0, 0)")
        for name in OWN:
            given = getattr(self, name)
            least = given is None or given > 0 or (given == 0 and name == "cycles_per_bit")
            require(least and (given is None or given < math.inf), f"device {name}", given, "above 0, and finite")


@dataclass(frozen=True)
class Settings:
    """A cell file: the devices around one base station, and their radio.

    Args:
        name: of the cell; default: the file's.
        devices: how many, where no device is described; distances and the rest are drawn as the network says.
        seed: of what is drawn.
        device: the devices.
        network: as in experiments; without a profile it is RaFed's.
    """

    name: str = ""
    devices: int | None = None
    seed: int = 0
    device: tuple[Device, ...] = ()
    network: NetworkSettings = field(default_factory=NetworkSettings)

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed", self.seed, "a whole number of at least 0")
        require(self.devices is None or self.devices >= 1, "devices", self.devices, "a whole number of at least 1")
        if (self.devices is None) == (not self.device):
            what = "has no devices" if self.devices is None else "has devices and [[device]] entries"
            raise SettingError(f"cell '{self.name}' {what}: say devices = 40, or describe each in a [[device]].")


@dataclass(frozen=True, eq=False)
class Floor:
    """A base station and the devices around it.

    Args:
        name: of the cell.
        settings: what its file says of the network.
        names: of the devices.
        x_m, y_m: float64 [K].
        sites: what the network knows of them.
    """

    name: str
    settings: NetworkSettings
    names: tuple[str, ...]
    x_m: Floats
    y_m: Floats
    sites: Sites

    def problem(self) -> AllocationProblem:
        """Return who could upload on which channel with how much power; a visit is one pass over a device's data."""
        found = uplink.problem(self.sites, 0.0)
        if found is None:  # checked when it was made
            raise SettingError(f"cell '{self.name}': its uplink is no radio.")
        return found


def read(path: Path) -> Floor:
    """Read a cell file.

    Raises:
        SettingError: the file is not there or not TOML; a key, type or value is wrong; a device is out of reach.
    """
    document = toml(path, "cell file")
    try:
        settings = from_table({"name": path.stem} | document)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error
    own = settings.network.profile
    if own is not None and (path.parent / own).is_file():
        settings = replace(settings, network=replace(settings.network, profile=str(path.parent / own)))
    try:
        return floor(settings)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error


def from_table(document: dict[str, Any]) -> Settings:
    """Check a parsed cell file.

    Raises:
        SettingError: an unknown key (the nearest is named), a wrong type, or a value out of range.
    """
    entries = document.get("device", [])
    if not isinstance(entries, list):
        raise SettingError("[device]: each device is a table of a list: write [[device]].")
    devices = tuple(_device(i, entry) for i, entry in enumerate(entries))
    rest = {key: value for key, value in document.items() if key != "device"}
    known = checked(Settings, rest | ({"device": [{}]} if devices else {}), "")
    return replace(known, device=devices)


def _device(i: int, entry: dict[str, Any]) -> Device:
    try:
        return checked(Device, entry, "device")
    except SettingError as error:
        raise SettingError(f"[[device]] number {i}: {error}") from error


def floor(settings: Settings) -> Floor:
    """Return the cell of a file, with everything drawn that it leaves out.

    Raises:
        SettingError: names given twice, a network without radio, a number that nobody says, a device out of reach.
    """
    own = settings.network if settings.network.profile else replace(settings.network, profile=PROFILE)
    entries = settings.device or tuple(Device() for _ in range(settings.devices or 0))
    names = tuple(str(i) if one.name is None else one.name for i, one in enumerate(entries))
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, "names of devices", twice, "different")
    known, physics = _with_radio(settings.name, network(own), entries)
    count = len(entries)
    open_to_all = replace(known, radio=replace(physics, outage=None))  # reach is checked where they really stand
    drawn = sites(open_to_all, settings.seed, np.zeros(count, np.int64), np.ones(count, np.int64), 1)
    angle = generator(settings.seed, "floor angle").uniform(0, 2 * math.pi, count)
    return _placed(settings.name, own, known, names, entries, drawn, angle)


def _placed(
    name: str, own: NetworkSettings, known: Network, names: tuple[str, ...], entries: Sequence[Device], drawn: Sites,
    angle: Floats,
) -> Floor:  # fmt: skip
    """Put what devices say of themselves in place of what was drawn."""
    said = {key: getattr(drawn, key).copy() for key in OWN}
    spots = np.zeros((2, len(entries)))
    for i, one in enumerate(entries):
        for key in OWN:
            if getattr(one, key) is not None:
                said[key][i] = getattr(one, key)
        if one.x_m is not None and one.y_m is not None:
            spots[:, i] = one.x_m, one.y_m
            said["distance_m"][i] = math.hypot(one.x_m, one.y_m)
        else:
            spots[:, i] = said["distance_m"][i] * np.array([math.cos(angle[i]), math.sin(angle[i])])
    placed = replace(drawn, network=known, **said)
    if known.radio is not None:
        radio.check_reach(known.radio, radio.usable(known.radio, placed.received_w), said["distance_m"], names)
    return Floor(name, own, names, spots[0], spots[1], placed)


def _with_radio(name: str, known: Network | None, entries: Sequence[Device]) -> tuple[Network, Radio]:
    """Return the network and its radio, or refuse one that does not say what an allocation needs."""
    if known is None or known.radio is None or known.uplink.sharing != "sinr":
        raise SettingError(
            f"cell '{name}': its network has no radio whose channels are shared. Take profile = '{PROFILE}', or a "
            "[network.radio] and sharing = 'sinr' for its device_edge."
        )
    if known.radio.payload_nats is None:
        raise SettingError(
            f"cell '{name}': [network.radio] payload_nats is missing, the size of an upload: 25000 nats are 4.5 kB."
        )
    if known.devices.seconds_per_sample is not None:
        raise SettingError(f"cell '{name}': seconds_per_sample needs samples; say cycles_per_bit, clock_hz, data_bits.")
    if known.devices.data_bits is None:
        lacking = [i for i, one in enumerate(entries) if one.data_bits is None]
        if lacking:
            raise SettingError(
                f"cell '{name}': nobody says how much data device {lacking[0]} has: data_bits in its [[device]], or in "
                "[network.devices] for all, as a number or [low, high]."
            )
    return known, known.radio


def text(of: Floor) -> str:
    """Return the cell as a file that says everything, in centimetres, MHz and kbit; reading it draws nothing."""
    document = tomlkit.document()
    document["name"] = of.name
    document["network"] = {"profile": of.settings.profile, **of.settings.changes()}
    columns = {"x_m": of.x_m, "y_m": of.y_m} | {key: getattr(of.sites, key) for key in OWN if key != "distance_m"}
    listed = tomlkit.aot()
    for i, name in enumerate(of.names):
        entry = tomlkit.table()
        if name != str(i):
            entry["name"] = name
        for key, values in columns.items():
            entry[key] = _rounded(float(values[i]), DIGITS[key])
        listed.append(entry)
    document["device"] = listed
    return tomlkit.dumps(document)


def _rounded(value: float, digits: int) -> float | int:
    """Round, but never to nothing.

    >>> _rounded(1.234, 2), _rounded(1.2345e9, -6), _rounded(3.0, -3)
    (1.23, 1234000000, 3.0)
    """
    near = round(value, digits)
    if near == 0 and value != 0:
        return value
    return int(near) if digits < 0 else near
