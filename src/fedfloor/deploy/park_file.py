"""Park files: the machines of a park with their names and addresses, as read by ``fedfloor park provision``."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.base.checking import check_kind, checked, toml
from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.data.files.buffer import BUFFERS
from fedfloor.deploy.settings import ALARMS, CLOUD, NAME, DataSource, Schedule, Transport

HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,62})(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62}))*\.?")
PATH = re.compile(r"(/[\w.,:=~+@-]+)+")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
MOST_MB = 268  # the largest message_mb, as devices read no longer messages
QUEUED_MESSAGES = 4  # messages of the largest size that a broker queues for a slow client
RELEASES = "releases"  # name of the client that releases models at brokers
REMEDY = (
    "Write a park file, such as park.toml, which names the machines of the cloud, of factories and devices, with a "
    "[[device]] for each of the experiment's, and give that one:\n\n"
)
EXAMPLE = """\
experiment = "{}"

[cloud]
address = "10.42.0.1"

[[factory]]
name = "north"
address = "10.42.0.2"

[[device]]
name = "press-1"
factory = "north"
"""
LONGEST = 55  # the 64 characters of a common name without the prefix "fedfloor " of a park's


@dataclass(frozen=True)
class CloudTable:
    """The ``[cloud]`` table.

    Args:
        address: host name or IP address at which factories reach it.
        port: TCP port of its broker.
        bind: the local address on which the broker listens; default: all, of IPv4 and of IPv6.
        transport: ``"mqtt"``, or ``"flower"`` for requests to edges through a running SuperLink.
    """

    address: str
    port: int = 8883
    bind: str | None = None
    transport: Transport = "mqtt"
    name = CLOUD
    broker = f"broker-{CLOUD}"  # the common name of its broker's certificate

    def __post_init__(self) -> None:
        check_listener("cloud.", self)


@dataclass(frozen=True)
class FactoryTable:
    """A ``[[factory]]`` table: a base station with a broker and an edge.

    Args:
        name: name of the factory and of its edge.
        address: host name or IP address at which devices reach its broker.
        port: TCP port of the broker.
        bind: the local address on which the broker listens; default: all, of IPv4 and of IPv6.
    """

    name: str
    address: str
    port: int = 8883
    bind: str | None = None

    def __post_init__(self) -> None:
        check_name("factory", self.name)
        check_listener("", self)

    @property
    def broker(self) -> str:
        """The common name of its broker's certificate."""
        return f"broker-{self.name}"

    @property
    def bridge(self) -> str:
        """The common name of the certificate with which its broker connects to the cloud's."""
        return f"bridge-{self.name}"


@dataclass(frozen=True)
class DeviceTable:
    """A ``[[device]]`` table.

    Args:
        name: part of its topics, and the common name of its certificate.
        factory: name of the factory to whose broker it connects.
        number: its number in the experiment; default: its position in the file, from 0.
        x_m, y_m: its position in m relative to the base station.
        clock_hz: its clock rate.
        data: source of its samples: ``kind`` partition, folder (with ``path``) or function (with ``name``).
        predict: folder on the device with growing files, for whose rows a released model makes predictions.
        agent: whether it only predicts, with ``fedfloor-agent``, which does not need PyTorch.
        sense: file on the device that describes its sensors, whose rows are written to ``data.path``.
    """

    name: str
    factory: str
    number: int | None = None
    x_m: float | None = None
    y_m: float | None = None
    clock_hz: float | None = None
    data: DataSource = DataSource()  # noqa: RUF009, it is frozen
    predict: str | None = None
    agent: bool = False
    sense: str | None = None

    def __post_init__(self) -> None:
        check_name("device", self.name)
        require(not self.agent or bool(self.predict), "agent", True, "beside predict")
        buffer = str(self.data.path).endswith(BUFFERS)
        require(not self.sense or buffer, "sense", self.sense, "beside data.path, a .sqlite file")
        require(self.number is None or self.number >= 0, "number", self.number, "at least 0")
        both = (self.x_m is None) == (self.y_m is None)
        require(both, "(x_m, y_m)", (self.x_m, self.y_m), "both given, or neither")
        require(self.clock_hz is None or self.clock_hz > 0, "clock_hz", self.clock_hz, "above 0")


@dataclass(frozen=True)
class ParkFile:
    """The content of a park file.

    Args:
        name: name of the park, part of every topic.
        experiment: path of the experiment file, relative to the park file.
        cloud: the cloud's machine.
        factory: the factories; their positions in the file are their numbers in the experiment.
        device: the devices, each with a number.
        message_mb: the largest message that brokers accept, in MB, at most 268.
        valid_days: validity of certificates; ``provision`` renews them in their last 30 days.
        folder: path of the machine's folder on each machine, for systemd units.
        programs: path of the folder with ``fedfloor`` and ``python`` on each machine.
        user: account that runs the services on each machine.
        schedule: the conditions under which ``fedfloor park schedule`` starts a run.
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
        require(1 <= self.message_mb <= MOST_MB, "message_mb", self.message_mb, f"from 1 to {MOST_MB}")
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
        """The devices of a factory."""
        return tuple(device for device in self.device if device.factory == factory.name)


def read(path: Path) -> ParkFile:
    """Read a park file.

    Raises:
        SettingError: the file is missing, a key or factory is unknown, a value is wrong, a name or port occurs twice.
    """
    return from_document(toml(path, "park file"), path)


def from_document(document: dict[str, Any], path: Path) -> ParkFile:
    """Return the park of a parsed park file; ``path`` is for errors and relative paths. Raises as :func:`read`."""
    check_kind(document, "park file", path, REMEDY + EXAMPLE.format(path.name))
    given = document.get("experiment")
    if isinstance(given, str):
        document["experiment"] = str(path.parent / given)
    lists: dict[str, list[Any]] = {}
    for key, kind in (("factory", FactoryTable), ("device", DeviceTable)):
        lists[key] = rows = document.pop(key, [])
        if not isinstance(rows, list):
            raise SettingError(f"park file {path}: {key} = {rows!r}: write [[{key}]], with two brackets.")
        for i, row in enumerate(rows, 1):
            try:
                checked(kind, row, "")
            except SettingError as error:
                name = row.get("name") if isinstance(row, dict) else None
                label = f"{key} {i} '{name}'" if isinstance(name, str) else f"{key} {i}"
                raise SettingError(f"{label}: {error}", key=error.key) from None
    park = checked(ParkFile, {"name": path.stem} | document | lists, "")
    check_units(park)
    return park


def check_units(park: ParkFile) -> None:
    """Raise SettingError if ``folder``, ``programs`` or ``user`` would add words or lines to systemd units."""
    for key, place in (("folder", park.folder), ("programs", park.programs)):
        allowed = "an absolute path without blanks, quotes, '%', '$' or control characters"
        require(bool(PATH.fullmatch(str(place))), key, str(place), allowed)
    require(bool(USER.fullmatch(park.user)), "user", park.user, "1 to 32 of a-z, 0-9, '_' and '-', the first no digit")


def check_name(label: str, name: str) -> None:
    """Raise SettingError unless a name can be part of topics and file names."""
    allowed = f"1 to {LONGEST} letters, digits, '.', '_' or '-', beginning with a letter or digit"
    require(bool(NAME.fullmatch(name)) and len(name) <= LONGEST, f"{label} name", name, allowed)


def check_address(label: str, given: str) -> None:
    """Raise SettingError unless a text is a host name or an IP address."""
    try:
        ipaddress.ip_address(given.partition("%")[0])
        require("%" not in given, label, given, "an address without a zone")
    except ValueError:
        numeric = given.rpartition(".")[2].isdecimal()  # a top-level domain is never a number (RFC 3696)
        host = bool(HOST.fullmatch(given)) and not numeric
        require(host, label, given, "a host name or an IP address, without a port")


def reachable(address: str, bind: str) -> bool:
    """Return whether a broker that listens on ``bind`` may be reached by its address.

    Mosquitto listens on addresses of one kind only, IPv4 or IPv6, for a given ``bind``. Host names may have both.

    >>> reachable("::1", "0.0.0.0"), reachable("10.0.0.3", "0.0.0.0"), reachable("edge.plant", "0.0.0.0")
    (False, True, True)
    """
    versions = set()
    for given in (address, bind):
        with contextlib.suppress(ValueError):
            versions.add(ipaddress.ip_address(given).version)
    return len(versions) < 2


def check_listener(label: str, table: CloudTable | FactoryTable) -> None:
    """Raise SettingError unless addresses and port of a broker are valid."""
    check_address(f"{label}address", table.address)
    if table.bind is not None:
        check_address(f"{label}bind", table.bind)
        fits = reachable(table.address, table.bind)
        require(fits, f"{label}bind", table.bind, f"of the same kind as address = '{table.address}', or left out")
    require(1 <= table.port <= 65535, f"{label}port", table.port, "a port from 1 to 65535")


def _numbered(devices: Iterable[DeviceTable]) -> Iterator[DeviceTable]:
    for i, device in enumerate(devices):
        yield device if device.number is not None else dataclasses.replace(device, number=i)


def check_names(park: ParkFile) -> None:
    """Raise SettingError if two certificates have the same name, by which brokers identify clients."""
    holders: dict[str, str] = {
        CLOUD: "the cloud",
        park.cloud.broker: "the cloud's broker",
        RELEASES: "the client that releases models",
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
    """Add the holder of a name; raise SettingError if the name is taken."""
    taken = next((holder for holder in holders if holder.lower() == name.lower()), None)  # file systems may ignore case
    if taken is not None:
        raise SettingError(
            f"'{name}' is the name of both {role} and {holders[taken]}. Rename one of them.", key="repeated-name"
        )
    holders[name] = role


def check_numbers(devices: Iterable[DeviceTable]) -> None:
    """Raise SettingError if two devices have the same number."""
    seen: dict[int | None, str] = {}
    for device in devices:
        if device.number in seen:
            raise SettingError(
                f"devices '{seen[device.number]}' and '{device.name}' both have number {device.number}: "
                "give each its own. The default is the position in the file, from 0."
            )
        seen[device.number] = device.name


def check_ports(park: ParkFile) -> None:
    """Raise SettingError if two brokers use the same port of the same machine."""
    seen: dict[tuple[str, int], str] = {(park.cloud.address.lower(), park.cloud.port): "the cloud's broker"}
    for factory in park.factory:
        place = (factory.address.lower(), factory.port)
        broker = f"the broker of factory '{factory.name}'"
        if place in seen:
            raise SettingError(
                f"{seen[place]} and {broker} both use port {factory.port} of {factory.address}: change one of them.",
                key="repeated-port",
            )
        seen[place] = broker
