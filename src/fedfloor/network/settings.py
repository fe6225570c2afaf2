"""The ``[network]`` table: a profile, and what differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedfloor.checking import checked, toml
from fedfloor.errors import SettingError, unknown
from fedfloor.network.profile import Network

FOLDER = Path(__file__).parent / "profiles"
Given = Mapping[str, Any]


@dataclass(frozen=True)
class NetworkSettings:
    """The ``[network]`` table. Without a profile runs are not priced.

    Args:
        profile: a profile by name, or the path of a TOML file of one's own.
        route: in place of the profile's; and so are the tables.
        device_edge, edge_cloud, device_cloud, device_device: keys of a link that differ from the profile's.
        devices: keys that differ from the profile's.
        radio: keys that differ from the profile's.
        cloud_clock_hz: in place of the profile's.
    """

    profile: str | None = None
    route: str | None = None
    device_edge: Mapping[str, Any] | None = None
    edge_cloud: Mapping[str, Any] | None = None
    device_cloud: Mapping[str, Any] | None = None
    device_device: Mapping[str, Any] | None = None
    devices: Mapping[str, Any] | None = None
    radio: Mapping[str, Any] | None = None
    cloud_clock_hz: float | None = None

    def changes(self) -> dict[str, Any]:
        """Return what is said beside the profile."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "profile"}
        return {name: value for name, value in said.items() if value is not None}


def _own_error(table: dict[str, Any]) -> str:
    """Return what is wrong with a profile as it is."""
    try:
        built(table)
    except SettingError as error:
        return str(error)
    return ""


def profiles() -> dict[str, Path]:
    """Return the profiles that come with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def network(settings: NetworkSettings) -> Network | None:
    """Return the network that an experiment names, or None where it names none.

    Raises:
        SettingError: no such profile or file, an unknown key, or a value out of range; names the file that has it.
    """
    changes = settings.changes()
    if settings.profile is None and not changes:
        return None
    base: dict[str, Any] = {} if settings.profile is None else read(settings.profile)
    try:
        return built(merged(base, changes))
    except SettingError as error:
        if settings.profile in (None, *profiles()) or (changes and str(error) != _own_error(base)):
            raise
        raise SettingError(f"network.profile: {settings.profile}: {error}") from error


def read(profile: str) -> dict[str, Any]:
    """Return a profile's tables.

    Raises:
        SettingError: there is none of this name, or no such file, or it is not TOML.
    """
    known = profiles()
    path = known.get(profile, Path(profile))
    if profile not in known and not profile.endswith(".toml"):
        raise SettingError(f"network.profile: {unknown('network profile', profile, known)}")
    return {"name": path.stem} | toml(path, "network.profile:")


def merged(base: Given, changes: Given) -> dict[str, Any]:
    """Lay tables over others, key by key.

    >>> merged({"radio": {"channels": 4, "attempts": 8}}, {"radio": {"channels": 1}})
    {'radio': {'channels': 1, 'attempts': 8}}
    """
    both = dict(base)
    for name, value in changes.items():
        below = both.get(name)
        both[name] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return both


def built(table: dict[str, Any]) -> Network:
    """Return a network from its tables.

    Raises:
        SettingError: an unknown key, a wrong type, or a value out of range.
    """
    return checked(Network, table, "network")
