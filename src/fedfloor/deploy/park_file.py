"""Park files: which machines a park has, at which addresses, with which names; ``fedfloor provision`` reads them."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedfloor.checking import checked, toml
from fedfloor.data.files.buffer import BUFFERS
from fedfloor.deploy.settings import ALARMS, CLOUD, NAME, TRANSPORTS, DataSource, Schedule
from fedfloor.errors import SettingError, require, unknown

HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62}))*\.?")
PATH = re.compile(r"(/[\w.,:=~+@-]+)+")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
RELEASES = "releases"  # the name under which the authority's holder releases models at brokers
LONGEST = 55  # 64 that a certificate's common name may have, less "fedfloor " before a park's
LISTED = ("factory", "device")
SOURCE = ("kind", "path", "name")


@dataclass(frozen=True)
class CloudTable:
    """The ``[cloud]`` table.

    Args:
        address: name or IP address under which factories reach it.
        port: of its broker.
        bind: the local address the broker listens on; default: all.
        transport: ``"mqtt"``, or ``"flower"`` where requests to edges go through a SuperLink that runs already.
    """

    address: str
    port: int = 8883
    bind: str = "0.0.0.0"
    transport: str = "mqtt"
    name = CLOUD
    broker = f"broker-{CLOUD}"  # the common name of its broker's certificate

    def __post_init__(self) -> None:
        check_address("cloud.address", self.address)
        check_address("cloud.bind", self.bind)
        _check_port("cloud.port", self.port)
        require(self.transport in TRANSPORTS, "cloud.transport", self.transport, " or ".join(TRANSPORTS))


@dataclass(frozen=True)
class FactoryTable:
    """A ``[[factory]]``: a base station with a broker and an edge.

    Args:
        name: also its edge's.
        address: name or IP address under which devices reach its broker.
        port: of the broker.
        bind: the local address the broker listens on; default: all.
    """

    name: str
    address: str
    port: int = 8883
    bind: str = "0.0.0.0"

    def __post_init__(self) -> None:
        check_name("factory", self.name)
        check_address(f"factory '{self.name}' address", self.address)
        check_address(f"factory '{self.name}' bind", self.bind)
        _check_port(f"factory '{self.name}' port", self.port)

    @property
    def broker(self) -> str:
        """The common name of its broker's certificate."""
        return f"broker-{self.name}"

    @property
    def bridge(self) -> str:
        """The common name of the certificate with which its broker dials the cloud's."""
        return f"bridge-{self.name}"


@dataclass(frozen=True)
class DeviceTable:
    """A ``[[device]]``.

    Args:
        name: part of its topics, and its certificate's common name.
        factory: name of the factory whose broker it reaches.
        number: in the experiment; default: its place in the file, from 0.
        x_m, y_m: where it stands, the base station being at (0, 0).
        clock_hz: its clock rate.
        data: where its samples come from: ``kind`` partition, folder (with ``path``) or function (with ``name``).
        predict: folder on the device of files that grow, whose rows a released model predicts.
        agent: whether it only predicts, by ``fedfloor-agent``, which needs no PyTorch.
        sense: file on the device that describes its sensors, whose rows go to ``data.path``.
    """

    name: str
    factory: str
    number: int | None = None
    x_m: float | None = None
    y_m: float | None = None
    clock_hz: float | None = None
    data: dict[str, str] = field(default_factory=dict)
    predict: str | None = None
    agent: bool = False
    sense: str | None = None

    def __post_init__(self) -> None:
        check_name("device", self.name)
        require(not self.agent or bool(self.predict), f"device '{self.name}' agent", True, "beside predict")
        buffer = str(self.data.get("path", "")).endswith(BUFFERS)
        require(not self.sense or buffer, f"device '{self.name}' sense", self.sense, "beside data.path, a .sqlite file")
        require(self.number is None or self.number >= 0, f"device '{self.name}' number", self.number, "at least 0")
        both = (self.x_m is None) == (self.y_m is None)
        require(both, f"device '{self.name}' (x_m, y_m)", (self.x_m, self.y_m), "both given, or neither")
        require(self.clock_hz is None or self.clock_hz > 0, f"device '{self.name}' clock_hz", self.clock_hz, "above 0")
        _ = self.source

    @property
    def source(self) -> DataSource:
        """Where its samples come from."""
        where = f"device '{self.name}' data"
        for key in self.data:
            if key not in SOURCE:
                raise unknown(f"key in {where}", key, SOURCE)
        path = self.data.get("path")
        try:
            return DataSource(self.data.get("kind", "partition"), Path(path) if path else None, self.data.get("name"))
        except SettingError as error:
            raise SettingError(f"{where}: {error}") from None


@dataclass(frozen=True)
class ParkFile:
    """A park file.

    Args:
        name: of the park, part of every topic.
        experiment: the experiment file; a relative path begins at the park file.
        cloud: where the factories meet.
        factory: the factories; their places in the file are their numbers in the experiment.
        device: the devices; every one has a number.
        message_mb: the largest message that a broker has room for, in millions of bytes, 268 at most.
        valid_days: of certificates; they are renewed by running ``provision`` in their last 30 days.
        folder: where a machine's folder lies on that machine; for its systemd units.
        programs: where ``fedfloor`` and ``python`` lie there.
        user: account that runs them there.
        schedule: for which reasons ``fedfloor schedule`` starts a run.
    """

    name: str
    experiment: Path
    cloud: CloudTable
    factory: tuple[FactoryTable, ...] = ()
    device: tuple[DeviceTable, ...] = ()
    message_mb: int = 128
    valid_days: int = 365
    folder: Path = Path("/srv/fedfloor")
    programs: Path = Path("/opt/fedfloor/bin")
    user: str = "fedfloor"
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        check_name("park", self.name)
        require(1 <= self.message_mb <= 268, "message_mb", self.message_mb, "from 1 to 268")
        require(1 <= self.valid_days <= 3650, "valid_days", self.valid_days, "from 1 to 3650")
        require(bool(self.factory), "factory", [], "one [[factory]] or more")
        require(bool(self.device), "device", [], "one [[device]] or more")
        object.__setattr__(self, "device", tuple(_numbered(self.device)))
        check_names(self)
        check_numbers(self.device)
        check_ports(self)
        for name in self.schedule.canary if self.schedule else ():
            if name not in (known := [device.name for device in self.device]):
                raise unknown("device in schedule.canary", name, known)

    def devices_of(self, factory: FactoryTable) -> tuple[DeviceTable, ...]:
        """The devices that stand in a factory."""
        return tuple(device for device in self.device if device.factory == factory.name)


def read(path: Path) -> ParkFile:
    """Read a park file.

    Raises:
        SettingError: no such file, an unknown key, a wrong value, an unknown factory, two of one name or on one port.
    """
    return from_document(toml(path, "park file"), path)


def from_document(document: dict[str, Any], path: Path) -> ParkFile:
    """Return the park that a park file's tables describe; see :func:`read`."""
    lists: dict[str, list[Any]] = {}
    for key in LISTED:
        rows = document.pop(key, [])
        if not isinstance(rows, list):
            raise SettingError(f"park file {path}: {key} = {rows!r}: write [[{key}]], with two brackets, for each one.")
        lists[key] = rows
    given = document.get("experiment")
    if isinstance(given, str):
        document["experiment"] = str(path.parent / given)
    for key, kind in (("factory", FactoryTable), ("device", DeviceTable)):
        for i, row in enumerate(lists[key]):
            checked(kind, row, _row_label(key, i, row))
    park = checked(ParkFile, {"name": path.stem} | document | lists, "")
    check_units(park)
    return park


def check_units(park: ParkFile) -> None:
    """Refuse texts that would add words or lines to systemd units, which hold these three as they are."""
    for key, place in (("folder", park.folder), ("programs", park.programs)):
        allowed = "an absolute path without blanks, quotes, '%', '$' or control characters"
        require(bool(PATH.fullmatch(str(place))), key, str(place), allowed)
    require(bool(USER.fullmatch(park.user)), "user", park.user, "1 to 32 of a-z, 0-9, '_' and '-', no digit first")


def _row_label(kind: str, i: int, row: Any) -> str:
    named = row.get("name") if isinstance(row, dict) else None
    return f"{kind} {i + 1}" + (f" '{named}'" if isinstance(named, str) else "")


def check_name(label: str, name: str) -> None:
    """Raise SettingError unless a name can be part of topics and files."""
    allowed = (
        f"1 to {LONGEST} letters, digits, '.', '_' or '-', the first a letter or digit: it is part of topics and files"
    )
    require(bool(NAME.fullmatch(name)) and len(name) <= LONGEST, f"{label} name", name, allowed)


def check_address(label: str, given: str) -> None:
    """Raise SettingError unless a text is a host name or an IP address."""
    try:
        ipaddress.ip_address(given.partition("%")[0])
        require("%" not in given, label, given, "an address without a zone")
    except ValueError:
        numeric = given.rpartition(".")[2].isdecimal()  # no top-level domain is a number (RFC 3696)
        host = bool(HOST.fullmatch(given)) and not numeric
        require(host, label, given, "a host name or an IP address, without a port")


def _check_port(label: str, port: int) -> None:
    require(1 <= port <= 65535, label, port, "a port from 1 to 65535")


def _numbered(devices: Iterable[DeviceTable]) -> Iterator[DeviceTable]:
    for i, device in enumerate(devices):
        yield device if device.number is not None else dataclasses.replace(device, number=i)


def check_names(park: ParkFile) -> None:
    """Every certificate has a name of its own, as brokers know their clients by it."""
    holders: dict[str, str] = {
        CLOUD: "the cloud",
        park.cloud.broker: "the cloud's broker",
        RELEASES: "whoever releases models",
        ALARMS: "the process that keeps alarms",
    }
    for factory in park.factory:
        for name, role in (
            (factory.name, f"the edge of factory '{factory.name}'"),
            (factory.broker, f"the broker of factory '{factory.name}'"),
            (factory.bridge, f"the bridge of factory '{factory.name}'"),
        ):
            reserve(holders, name, role)
    names = [factory.name for factory in park.factory]
    for device in park.device:
        reserve(holders, device.name, f"the device in factory '{device.factory}'")
        if device.factory not in names:
            raise SettingError(f"device '{device.name}': {unknown('factory', device.factory, names)}")


def reserve(holders: dict[str, str], name: str, role: str) -> None:
    """Note the holder of a name, or raise SettingError where the name is taken."""
    taken = next((holder for holder in holders if holder.lower() == name.lower()), None)  # folders may not know case
    if taken is not None:
        raise SettingError(f"two of one name: '{name}' is {role}, and {holders[taken]}. Rename one.")
    holders[name] = role


def check_numbers(devices: Iterable[DeviceTable]) -> None:
    """Raise SettingError where two devices have one number."""
    seen: dict[int | None, str] = {}
    for device in devices:
        if device.number in seen:
            raise SettingError(
                f"devices '{seen[device.number]}' and '{device.name}' both have number {device.number}: "
                "give each its own. "
                "A device without a number has its place in the file, from 0."
            )
        seen[device.number] = device.name


def check_ports(park: ParkFile) -> None:
    """Raise SettingError where two brokers have one port of one machine."""
    seen: dict[tuple[str, int], str] = {(park.cloud.address.lower(), park.cloud.port): "the cloud's broker"}
    for factory in park.factory:
        place, broker = (factory.address.lower(), factory.port), f"the broker of factory '{factory.name}'"
        if place in seen:
            raise SettingError(
                f"{seen[place]} and {broker} both want port {factory.port} of {factory.address}: change one of them."
            )
        seen[place] = broker
