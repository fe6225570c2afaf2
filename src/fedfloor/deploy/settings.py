"""The TOML settings file of each process on a real machine: ``fedfloor park cloud|edge|device FILE``.

Paths in a file are relative to the file's folder.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from fedfloor.base import checking
from fedfloor.base.errors import SettingError, require

T = TypeVar("T")


def read(kind: type[T], path: Path | str) -> T:
    """Return the settings in a file.

    Args:
        kind: one of :class:`DeviceSettings`, :class:`EdgeSettings`, :class:`CloudSettings`, :class:`AlarmSettings`.

    Raises:
        SettingError: the file is missing or not TOML, or a key or value is wrong; the message names file and key.
    """
    return checking.read(kind, Path(path), "settings file", "`fedfloor park provision PARK.toml` writes such files.")


def to_toml(settings: object) -> str:
    """Return settings as the TOML text of a settings file, without values that are not set.

    >>> from fedfloor.deploy.settings import Endpoint
    >>> print(to_toml(Endpoint("127.0.0.1", 1883)), end="")
    host = "127.0.0.1"
    port = 1883
    """
    import tomlkit  # not installed on devices that only predict

    return tomlkit.dumps(plain(settings))


def plain(value: Any) -> Any:
    """Return settings, or a value in them, as values of TOML; defaults are left out."""
    if is_dataclass(value):
        rows = {
            entry.name: plain(getattr(value, entry.name))
            for entry in fields(value)
            if getattr(value, entry.name) != entry.default
        }
        return dict(sorted(rows.items(), key=lambda row: isinstance(row[1], (dict, list))))  # tables come last in TOML
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


CLOUD = "cloud"  # the sender of the cloud's requests
ALARMS = "alarms"  # name and folder of the process that keeps alarms
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # without '/', '+' and '#', as names are parts of topics


@dataclass(frozen=True)
class Endpoint:
    """The address of a broker or a server.

    Args:
        host: host name or IP address.
        port: TCP port, 1 to 65535.
    """

    host: str
    port: int

    def __post_init__(self) -> None:
        require(bool(self.host), "a broker's host", self.host, "a name or an IP address")
        require(1 <= self.port <= 65535, "a broker's port", self.port, "from 1 to 65535")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Tls:
    """The TLS files of a process.

    Args:
        ca: certificate of the trusted authority.
        cert: certificate of the process, with its name as common name.
        key: private key of the process.
    """

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True)
class DataSource:
    """The source of a device's samples.

    Args:
        kind: ``"partition"`` (a share of the experiment's data, for trials), ``"folder"`` or ``"function"``.
        path: path of the folder.
        name: ``module:function``; the function returns the samples of a tick.
    """

    kind: str = "partition"
    path: Path | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        kinds = ("partition", "folder", "function")
        function = self.kind == "function"
        require(self.kind in kinds, "data.kind", self.kind, "partition, folder or function")
        require(self.kind != "folder" or self.path is not None, "data.path", self.path, "a folder, for kind = 'folder'")
        require(not function or bool(self.name), "data.name", self.name, "module:function, for kind = 'function'")


Samples = Literal["experiment", "devices"]
Transport = Literal["mqtt", "flower"]


@dataclass(frozen=True)
class Deadlines:
    """The longest waits in s, after which a request counts as lost.

    Args:
        visit_s: wait for a visit to a device with its training.
        probe_s: wait for the answer to a probe.
        join_s: wait for devices to connect when the edge starts, and to return after the end of its connection to the
            broker; at the cloud likewise for edges, for the holdings of all devices, and for the quorum of a round.
        round_s: wait for a whole round of a factory.
    """

    visit_s: float = 600.0
    probe_s: float = 120.0
    join_s: float = 60.0
    round_s: float = 3600.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(value > 0, f"deadlines.{name}", value, "a number above 0")


CLOCK_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
SPAN = re.compile(r"(\d{1,6})([smhd])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def span_s(text: str, name: str) -> int:
    """Return a span such as ``"90s"``, ``"30m"``, ``"24h"`` or ``"7d"`` in s.

    Raises:
        SettingError: the text has another form, or the span is zero or more than 366 days.

    >>> span_s("24h", "every")
    86400
    """
    match = SPAN.fullmatch(text)
    seconds = int(match[1]) * UNITS_S[match[2]] if match else 0
    allowed = 'a whole number with its unit, such as "90s", "30m", "24h" or "7d", above 0 and at most "366d"'
    require(0 < seconds <= 366 * UNITS_S["d"], name, text, allowed)
    return seconds


@dataclass(frozen=True)
class Schedule:
    """The ``[schedule]`` table: conditions for ``fedfloor park schedule`` to start a run. Spans are texts: ``"24h"``.

    Args:
        every: span from the start of a run to the start of the next.
        at: time of day, ``"02:00"``, by clock and time zone of the machine that runs ``fedfloor park schedule``.
        windows: number of new windows in all devices' buffers since the start of the last run.
        drift: number of devices that began to report drift since the start of the last run.
        pause: shortest span from the start of a run to one started by ``windows`` or ``drift``.
        look: span between two checks of the conditions.
        release: devices that receive a run's model if it is better than the version in use: ``"canary"`` or ``"all"``;
            default: the model is only announced.
        canary: names of devices, for ``release = "canary"``.
        epsilon: privacy budget of all runs of a private experiment; a run that would exceed it is not started.
        what: ``"model"``: a run trains the released model further; ``"thresholds"``: it keeps that model, and finds the
            thresholds of what is promised again (:mod:`fedfloor.runs.keeping`).
    """

    every: str | None = None
    at: str | None = None
    windows: int | None = None
    drift: int | None = None
    pause: str = "1h"
    look: str = "1m"
    release: str | None = None
    canary: tuple[str, ...] = ()
    epsilon: float | None = None
    what: Literal["model", "thresholds"] = "model"

    def __post_init__(self) -> None:
        require(self.what in ("model", "thresholds"), "schedule.what", self.what, "model or thresholds")
        least = self.epsilon
        require(least is None or 0 < least < math.inf, "schedule.epsilon", least, "a number above 0, such as 8.0")
        given = any(entry is not None for entry in (self.every, self.at, self.windows, self.drift))
        require(given, "schedule", {}, "a table with every, at, windows or drift")
        for name in ("every", "pause", "look"):
            if (text := getattr(self, name)) is not None:
                span_s(text, f"schedule.{name}")
        _ = self.time
        for name in ("windows", "drift"):
            count = getattr(self, name)
            require(count is None or count >= 1, f"schedule.{name}", count, "a whole number of at least 1")
        require(self.release in (None, "canary", "all"), "schedule.release", self.release, "canary or all")
        fits = (self.release == "canary") == bool(self.canary)
        require(fits, "schedule.canary", list(self.canary), 'names of devices, for release = "canary" only')

    @property
    def reports(self) -> bool:
        """Whether a condition depends on devices' reports."""
        return self.windows is not None or self.drift is not None

    @property
    def time(self) -> dt.time | None:
        """The time of day in ``at``; None without ``at``."""
        match = self.at is not None and CLOCK_TIME.fullmatch(self.at)
        require(self.at is None or bool(match), "schedule.at", self.at, 'a time of day, such as "02:00"')
        return dt.time(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Named:
    """A device's name and number in the experiment; ``edge`` names the edge of a device of another factory."""

    name: str
    device: int
    edge: str = ""

    def __post_init__(self) -> None:
        check_names(name=self.name)
        check_numbers(device=self.device)


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of a device agent.

    Args:
        park: name of the park, part of every topic.
        name: name of the device and of its certificate.
        factory: number of its factory.
        device: its number in the experiment.
        broker: the MQTT broker of its factory.
        experiment: the experiment file.
        memory: folder of the files kept between visits.
        state: folder for its log and counters.
        tls: TLS files; None: no encryption or authentication, for tests only.
        data: the source of its samples.
        predict: folder with growing files, for whose rows a released model makes predictions.
        released: file with the number of its last release when it was provisioned: it accepts no older one.
        edge: name of its factory's edge, the only one from which it accepts the facts of a sample.
        visitors: names of other factories' edges from which it accepts requests, where rounds cross factories.
        devices: numbers of devices in its factory and in the park when it was provisioned, above which it takes part in
            no secure sum; empty where it sees all devices of a sum.
    """

    park: str
    name: str
    factory: int
    device: int
    broker: Endpoint
    experiment: Path
    memory: Path
    state: Path
    tls: Tls | None = None
    data: DataSource = DataSource()
    predict: Path | None = None
    released: Path = Path("released")
    edge: str = field(kw_only=True)
    visitors: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_names(park=self.park, name=self.name, edge=self.edge)
        check_numbers(factory=self.factory, device=self.device)
        require(len(self.devices) in (0, 2), "devices", list(self.devices), "numbers of its factory and of the park")

    @property
    def models(self) -> Path:
        """The folder of the models for predictions, with their personal parts."""
        return self.state / "models"


@dataclass(frozen=True)
class EdgeSettings:
    """Settings of an edge service at a factory's base station.

    Args:
        park: name of the park, part of every topic.
        name: name of the edge and of its certificate.
        factory: number of its factory.
        broker: the MQTT broker of its factory.
        experiment: the experiment file.
        state: folder for its log and counters.
        devices: the devices of its factory.
        neighbours: devices of other factories, reached over the bridge between brokers.
        tls: TLS files; None: no encryption or authentication, for tests only.
        deadlines: the longest waits.
        samples: as of :class:`CloudSettings`.
        acl: access list of its factory's broker on the same machine, from which devices that flood it are removed.
        reach: ``"factory"`` if it was provisioned for rounds within factories, so that it cannot send to devices of
            other factories.
        cloud: the cloud's MQTT broker; None: requests arrive through Flower's SuperNode on the same machine.
    """

    park: str
    name: str
    factory: int
    broker: Endpoint
    experiment: Path
    state: Path
    devices: tuple[Named, ...]
    neighbours: tuple[Named, ...] = ()
    tls: Tls | None = None
    deadlines: Deadlines = Deadlines()
    samples: Samples = "experiment"
    acl: Path | None = None
    reach: Literal["park", "factory"] = "park"
    cloud: Endpoint | None = None

    def __post_init__(self) -> None:
        check_names(park=self.park, name=self.name)
        check_numbers(factory=self.factory)
        check_distinct("device", [entry.device for entry in (*self.devices, *self.neighbours)])
        check_distinct("name", [entry.name for entry in (*self.devices, *self.neighbours)])


@dataclass(frozen=True)
class CloudEdge:
    """An edge in the settings of the cloud.

    Args:
        name: name of the edge.
        factory: number of its factory.
        devices: devices of its factory; if given, an edge that lists other devices is refused.
    """

    name: str
    factory: int
    devices: tuple[Named, ...] = ()

    def __post_init__(self) -> None:
        check_names(name=self.name)
        check_numbers(factory=self.factory)


@dataclass(frozen=True)
class CloudSettings:
    """Settings of the cloud.

    Args:
        park: name of the park.
        experiment: the experiment file.
        out: the folder of the run.
        edges: the edges, one per factory.
        broker: the cloud's MQTT broker.
        tls: TLS files; None: no encryption or authentication, for tests only.
        transport: ``"mqtt"``, or ``"flower"`` for a loop that runs as Flower's ServerApp without a broker.
        deadlines: the longest waits.
        samples: ``"experiment"`` if each device holds a share of the experiment's data, ``"devices"`` if each device
            reports its own samples.
        schedule: conditions for ``fedfloor park schedule`` to start a run.
        message_mb: the largest message for which the park's brokers have memory, in MB.
    """

    park: str
    experiment: Path
    out: Path
    edges: tuple[CloudEdge, ...]
    broker: Endpoint | None = None
    tls: Tls | None = None
    transport: Transport = "mqtt"
    deadlines: Deadlines = Deadlines()
    samples: Samples = "experiment"
    schedule: Schedule | None = None
    message_mb: int = 128

    def __post_init__(self) -> None:
        check_names(park=self.park)
        check_distinct("factory", [entry.factory for entry in self.edges])
        check_distinct("name", [entry.name for entry in self.edges])
        needs = self.transport == "mqtt" and self.broker is None
        require(not needs, "broker", None, "a host and a port, for transport = 'mqtt'")


@dataclass(frozen=True)
class AlarmSource:
    """A factory whose devices' alarms are kept.

    Args:
        name: name of the factory.
        broker: its MQTT broker.
        devices: names of its devices; messages about other devices are ignored.
    """

    name: str
    broker: Endpoint
    devices: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in (self.name, *self.devices):
            check_names(name=name)


@dataclass(frozen=True)
class AlarmSettings:
    """Settings of the process that keeps the alarms of a park.

    Args:
        park: name of the park.
        state: folder for the alarms.
        tls: its TLS files, with which it may read at every factory's broker.
        factories: the factories, with their brokers and devices.
    """

    park: str
    state: Path
    tls: Tls
    factories: tuple[AlarmSource, ...]

    def __post_init__(self) -> None:
        check_names(park=self.park)
        check_distinct("name", [entry.name for entry in self.factories])
        check_distinct("device", [device for entry in self.factories for device in entry.devices])


def check_names(**names: str) -> None:
    """Raise SettingError unless names, given by key, can be parts of a topic."""
    allowed = "1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or a digit"
    for key, name in names.items():
        require(bool(NAME.fullmatch(name)), key, name, allowed)


def check_numbers(**numbers: int) -> None:
    """Raise SettingError for a negative number, given by key."""
    for key, number in numbers.items():
        require(number >= 0, key, number, "a number of at least 0")


def check_distinct(key: str, values: list[Any]) -> None:
    """Raise SettingError if a value occurs twice."""
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise SettingError(f"{key} {twice[0]!r} is given twice: each value must be unique.")
