"""Cell files for radio allocation: positions, speeds and data of the devices around a base station."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from fedfloor.base.chance import generator
from fedfloor.base.checking import check_kind, checked, toml
from fedfloor.base.errors import SettingError, require
from fedfloor.network import radio
from fedfloor.network.profile import NetworkProfile, NetworkSettings, RadioModel, build
from fedfloor.network.radio import Floats
from fedfloor.network.sites import Sites, allocation_problem, draw_sites
from fedfloor.solvers.allocation.problem import AllocationProblem

PROFILE = "rafed"
OWN = ("distance_m", "cycles_per_bit", "clock_hz", "data_bits")  # keys a device may set
DIGITS = {"x_m": 2, "y_m": 2, "cycles_per_bit": 2, "clock_hz": -6, "data_bits": -3}  # decimals in a file: cm, MHz, kbit


@dataclass(frozen=True)
class CellDevice:
    """A ``[[device]]`` of a cell file; left-out values are drawn by the seed from the network's ranges.

    Args:
        name: default: its number, from 0.
        x_m, y_m: position relative to the base station, m.
        distance_m: distance in m instead of x_m and y_m; the direction, used only in the drawing, is then random.
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
            raise SettingError(f"device x_m = {self.x_m}, y_m = {self.y_m}: give both, or distance_m.")
        if self.x_m is not None and self.y_m is not None:
            if self.distance_m is not None:
                raise SettingError("a device has x_m, y_m and distance_m: give its position, or its distance.")
            away = 0 < math.hypot(self.x_m, self.y_m) < math.inf
            require(away, "device (x_m, y_m)", (self.x_m, self.y_m), "away from the base station at (0, 0)")
        for name in OWN:
            given = getattr(self, name)
            least = given is None or given > 0 or (given == 0 and name == "cycles_per_bit")
            require(least and (given is None or given < math.inf), f"device {name}", given, "above 0, and finite")


@dataclass(frozen=True)
class CellSettings:
    """A cell file: the devices around one base station, and their radio.

    Args:
        name: the name of the cell; default: the file's.
        devices: number of devices if none is described; their values are drawn from the network's ranges.
        seed: the seed of the draws.
        device: the described devices.
        network: the network, as in experiments; default profile: RaFed's.
    """

    name: str = ""
    devices: int | None = None
    seed: int = 0
    device: tuple[CellDevice, ...] = ()
    network: NetworkSettings = field(default_factory=NetworkSettings)

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed", self.seed, "a whole number of at least 0")
        require(self.devices is None or self.devices >= 1, "devices", self.devices, "a whole number of at least 1")
        if (self.devices is None) == (not self.device):
            got = "has no devices" if self.devices is None else "has devices and [[device]] entries"
            raise SettingError(f"cell '{self.name}' {got}: give devices = 40, or describe each in a [[device]].")


@dataclass(frozen=True, eq=False)
class Cell:
    """A base station and the devices around it.

    Args:
        settings: the ``[network]`` of its file.
        x_m, y_m: float64 [K], positions relative to the base station, m.
    """

    name: str
    settings: NetworkSettings
    names: tuple[str, ...]
    x_m: Floats
    y_m: Floats
    sites: Sites

    def problem(self) -> AllocationProblem:
        """Return the allocation problem of the cell; a visit is one pass over a device's data."""
        problem = allocation_problem(self.sites, 0.0)
        if problem is None:  # checked on construction
            raise SettingError(f"cell '{self.name}': its uplink is not a radio.")
        return problem


def read(path: Path) -> Cell:
    """Read a cell file.

    Raises:
        SettingError: the file is missing or not TOML, a key, type or value is wrong, or a device is out of reach.
    """
    document = toml(path, "cell file")
    check_kind(document, "cell file", path)
    try:
        settings = _settings({"name": path.stem} | document)
        own = settings.network.profile
        if own is not None and (path.parent / own).is_file():
            settings = replace(settings, network=replace(settings.network, profile=str(path.parent / own)))
        return place_devices(settings)
    except SettingError as error:
        raise SettingError(f"{path}: {error}", key=error.key) from error


def _settings(document: dict[str, Any]) -> CellSettings:
    entries = document.pop("device", [])
    if not isinstance(entries, list):
        raise SettingError("[device]: devices are a list of tables: write [[device]].")
    devices = []
    for i, entry in enumerate(entries):
        try:
            devices.append(checked(CellDevice, entry, "device"))
        except SettingError as error:
            raise SettingError(f"[[device]] number {i}: {error}", key=error.key) from error
    settings = checked(CellSettings, document | ({"device": [{}]} if devices else {}), "")
    return replace(settings, device=tuple(devices))


def place_devices(settings: CellSettings) -> Cell:
    """Return the cell of a file, with left-out values drawn.

    Raises:
        SettingError: a name is given twice, the network has no radio, a number is missing, or a device is out of reach.
    """
    own = settings.network if settings.network.profile else replace(settings.network, profile=PROFILE)
    entries = settings.device or tuple(CellDevice() for _ in range(settings.devices or 0))
    names = tuple(str(i) if entry.name is None else entry.name for i, entry in enumerate(entries))
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, "names of devices", twice, "different")
    network, physics = _radio_network(settings.name, build(own), entries)
    count = len(entries)
    zeros = np.zeros(len(entries), np.int64)
    unbounded = replace(network, radio=replace(physics, outage=None))  # the reach is checked at the final positions
    drawn = draw_sites(unbounded, settings.seed, zeros, zeros + 1, 1)
    angle = generator(settings.seed, "floor angle").uniform(0, 2 * math.pi, count)
    # described values replace the drawn ones
    values = {key: getattr(drawn, key).copy() for key in OWN}
    positions = np.zeros((2, count))
    for i, entry in enumerate(entries):
        for key in OWN:
            if getattr(entry, key) is not None:
                values[key][i] = getattr(entry, key)
        if entry.x_m is not None and entry.y_m is not None:
            positions[:, i] = entry.x_m, entry.y_m
            values["distance_m"][i] = math.hypot(entry.x_m, entry.y_m)
        else:
            positions[:, i] = values["distance_m"][i] * np.array([math.cos(angle[i]), math.sin(angle[i])])
    placed = replace(drawn, network=network, **values)
    radio.check_reach(physics, radio.usable(physics, placed.received_w), values["distance_m"], names)
    return Cell(settings.name, own, names, positions[0], positions[1], placed)


def _radio_network(
    name: str, network: NetworkProfile | None, entries: Sequence[CellDevice]
) -> tuple[NetworkProfile, RadioModel]:
    """Return the network and its radio; raise SettingError if values for an allocation are missing."""
    if network is None or network.radio is None or network.uplink.sharing != "sinr":
        problem = f"its network has no radio with shared channels. Set profile = '{PROFILE}', or a "
        problem += "[network.radio] and sharing = 'sinr' for its device_edge."
    elif network.radio.payload_nats is None:
        problem = "[network.radio] payload_nats, the size of an upload, is missing: 25000 nats are 4.5 kB."
    elif network.devices.seconds_per_sample is not None:
        problem = "seconds_per_sample needs samples; set cycles_per_bit, clock_hz, data_bits."
    else:
        lacking = [i for i, entry in enumerate(entries) if entry.data_bits is None]
        if network.devices.data_bits is not None or not lacking:
            return network, network.radio
        problem = f"device {lacking[0]} has no data_bits: set them in its [[device]], or in [network.devices] for all, "
        problem += "as a number or [low, high]."
    raise SettingError(f"cell '{name}': {problem}")


def to_toml(cell: Cell) -> str:
    """Return a cell file with all values, rounded to cm, MHz and kbit, which is read without random draws."""
    document = tomlkit.document()
    document["name"] = cell.name
    document["network"] = {"profile": cell.settings.profile, **cell.settings.changes()}
    columns = {"x_m": cell.x_m, "y_m": cell.y_m} | {key: getattr(cell.sites, key) for key in OWN if key != "distance_m"}
    listed = tomlkit.aot()
    for i, name in enumerate(cell.names):
        entry = tomlkit.table()
        if name != str(i):
            entry["name"] = name
        for key, values in columns.items():
            value = float(values[i])
            digits = DIGITS[key]
            rounded = int(round(value, digits)) if digits < 0 else round(value, digits)
            entry[key] = value if value and not rounded else rounded  # never rounded to 0
        listed.append(entry)
    document["device"] = listed
    return tomlkit.dumps(document)
