"""The files for each machine of a park: settings, systemd units and a compose file, in a folder of its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.deploy.authority import Holder
from fedfloor.deploy.broker import FILES
from fedfloor.deploy.park_file import DeviceTable, FactoryTable, ParkFile
from fedfloor.deploy.record import MARKS
from fedfloor.deploy.settings import (
    ALARMS,
    CLOUD,
    AlarmSettings,
    AlarmSource,
    CloudEdge,
    CloudSettings,
    DeviceSettings,
    EdgeSettings,
    Endpoint,
    Named,
    Samples,
    Tls,
    to_toml,
)

STATE = "state"  # the folder that processes write to, beside that of marks
ACL = "acl"
CACHES = {"FEDFLOOR_CACHE": f"{STATE}/cache", "NUMBA_CACHE_DIR": f"{STATE}/cache/numba"}  # a service has no home folder
SEEN = 65  # devices of a secure sum that one of them sees, masking.ALL_PAIRS and itself
ALONE = {"OMP_NUM_THREADS": "1"}  # a second thread would change results, and a gateway has other work


@dataclass(frozen=True)
class Service:
    """A long-lived process.

    Args:
        name: name of its unit.
        about: description, for the unit.
        words: its command; paths are relative to the machine's folder.
        env: environment variables in addition to the inherited ones.
        after: services of the same machine that must be started before.
        idle: whether it ends by itself when its work is done.
        files: limit on open files; 0: the system's default.
        writes: a file outside its state folder that it may overwrite.
    """

    name: str
    about: str
    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    after: Sequence[str] = ()
    idle: bool = False
    files: int = 0
    writes: str = ""


BROKER_WORDS = "mosquitto", "-c", "mosquitto.conf"


def cloud_services(park: ParkFile) -> tuple[Service, ...]:
    """Return the services of the cloud's machine: the broker and the cloud's loop; with Flower none.

    A schedule that needs neither reports nor the authority replaces the loop.
    """
    if park.cloud.transport == "flower":
        return ()
    waits = park.schedule is not None and not park.schedule.reports and park.schedule.release is None
    schedule = Service(
        "fedfloor-schedule", "fedfloor park schedule", ("fedfloor", "park", "schedule", "cloud.toml"), ALONE,
        after=("fedfloor-broker",),
    )  # fmt: skip
    return (
        Service("fedfloor-broker", "broker of the cloud", BROKER_WORDS, files=FILES),
        Service("fedfloor-cloud", "fedfloor park cloud", ("fedfloor", "park", "cloud", "cloud.toml"), ALONE,
                after=("fedfloor-broker",), idle=True),
        *((schedule,) if waits else ()),
    )  # fmt: skip


def factory_services(factory: FactoryTable) -> tuple[Service, ...]:
    """Return the services of a factory's base station: the broker and the edge."""
    return (
        Service("fedfloor-broker", f"broker of {factory.name}", BROKER_WORDS, files=FILES),
        Service(
            "fedfloor-edge", f"edge of {factory.name}", ("fedfloor", "park", "edge", f"edge-{factory.name}.toml"),
            ALONE, after=("fedfloor-broker",), writes=ACL,
        ),
    )  # fmt: skip


def device_services(device: DeviceTable) -> tuple[Service, ...]:
    """Return the services of a device: its agent, and the reader of its sensors if it has any."""
    program = ("fedfloor-agent",) if device.agent else ("fedfloor", "park", "device")
    services = [Service("fedfloor-device", f"device {device.name}", (*program, f"device-{device.name}.toml"), ALONE)]
    if device.sense:
        words = ("fedfloor", "park", "sense", device.sense, "--into", str(device.data.path))
        services.append(Service("fedfloor-sense", f"sensors of {device.name}", words))
    return tuple(services)


def alarm_services() -> tuple[Service, ...]:
    """Return the service of the machine that keeps alarms."""
    return (
        Service(
            "fedfloor-alarms",
            "alarms of all devices",
            ("fedfloor", "model", "alarms", "--park", ".", "--follow"),
            ALONE,
        ),
    )


def service_environment(service: Service, folder: PurePath) -> dict[str, str]:
    """Return a service's environment variables, whose paths are in the state folder of ``folder``."""
    caches = {} if service.words[0] == "mosquitto" else {name: str(folder / path) for name, path in CACHES.items()}
    return {**service.env, **caches}


def unit(service: Service, park: ParkFile) -> str:
    """Return the text of a service's systemd unit, which may write to its state, marks and ``writes`` only."""
    from fedfloor.base.templates import render

    mosquitto = service.words[0] == "mosquitto"
    return render(
        "fedfloor.deploy", "unit.service", service=service, park=park, mosquitto=mosquitto,
        program="/usr/sbin/mosquitto" if mosquitto else str(park.programs / service.words[0]),
        arguments=shlex.join(service.words[1:]), environment=service_environment(service, park.folder),
        state=f"{park.folder}/{STATE}", marks=f"{park.folder}/{STATE}{MARKS}",
    )  # fmt: skip


def compose(services: Sequence[Service], park: ParkFile) -> str:
    """Return the text of a compose file for the services of one machine, to be used in the machine's folder.

    Args:
        park: the park, whose name becomes the project's.
    """
    from fedfloor.base.templates import render

    rows = [
        {
            "name": service.name.removeprefix("fedfloor-"), "idle": service.idle, "files": service.files,
            "command": _yaml_list(["sh", "-c", f"mkdir -p {STATE} && exec {shlex.join(service.words)}"]),
            "environment": service_environment(service, PurePosixPath("/park")),
            "after": service.after and _yaml_list([name.removeprefix("fedfloor-") for name in service.after]),
        }
        for service in services
    ]  # fmt: skip
    name = "".join(c if c.isalnum() else "-" for c in park.name.lower())
    return render("fedfloor.deploy", "compose.yaml", name=name, services=rows)


def _yaml_list(words: Sequence[str]) -> str:
    return json.dumps(list(words), ensure_ascii=False)


QUORUM = """\
# A round begins once [deploy] quorum of experiment.toml (by default 1 device) is connected. It waits for that at most
# join_s of [deadlines] (by default 60 s); then the run ends, and goes on with --resume.
"""
LOCAL = ("localhost", "127.0.0.1")
EXPERIMENT = Path("experiment.toml")
STATE_PATH = Path(STATE)
Files = dict[PurePosixPath, bytes]


@dataclass(frozen=True)
class Certified:
    """A certificate of a park: its holder, the holder's role, and the paths of certificate and key."""

    holder: Holder
    what: str
    cert: PurePosixPath
    key: PurePosixPath


def certified(park: ParkFile) -> list[Certified]:
    """Return the entries of all certificates that a park needs."""

    def entry(holder: Holder, role: str, folder: str, stem: str) -> Certified:
        place = PurePosixPath(folder)
        return Certified(holder, role, place / f"{stem}.crt", place / f"{stem}.key")

    entries = [entry(Holder(CLOUD), "cloud", "cloud", CLOUD)]
    if park.cloud.transport == "mqtt":
        broker = Holder(park.cloud.broker, _with_local(park.cloud.address), client=False)
        entries.append(entry(broker, "broker", "cloud", "broker"))
    for factory in park.factory:
        place = f"factories/{factory.name}"
        entries += [
            entry(Holder(factory.broker, _with_local(factory.address), client=False), "broker", place, "broker"),
            entry(Holder(factory.bridge), "bridge", place, "bridge"),
            entry(Holder(factory.name), "edge", place, "edge"),
        ]
    entries.append(entry(Holder(ALARMS), ALARMS, ALARMS, ALARMS))
    return entries + [entry(Holder(d.name, device=True), "device", f"devices/{d.name}", "device") for d in park.device]


def _with_local(address: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((address, *LOCAL)))


def settings_files(park: ParkFile, shut_out: Sequence[str], *, crosses: bool = True) -> Files:
    """Return the settings, units, compose files and experiment of all machines: path → text.

    Args:
        crosses: whether rounds cross factories; if not, edges receive only their own devices.

    Raises:
        SettingError: the experiment cannot be read.
    """
    try:
        experiment = regular.read_bytes(park.experiment)
    except OSError as error:
        raise SettingError(
            f"experiment {park.experiment}: {error.strerror or error}. Name it in the park file."
        ) from error
    machines: list[tuple[str, str, object, Sequence[Service]]] = []
    machines.append(("cloud", "cloud.toml", cloud_settings(park, shut_out), cloud_services(park)))
    machines += [
        (f"factories/{one.name}", f"edge-{one.name}.toml", edge_settings(park, one, shut_out, crosses=crosses),
         factory_services(one))
        for one in park.factory
    ]  # fmt: skip
    machines += [
        (f"devices/{one.name}", f"device-{one.name}.toml", device_settings(park, one, shut_out, crosses=crosses),
         device_services(one))
        for one in park.device if one.name not in shut_out
    ]  # fmt: skip
    machines.append((ALARMS, f"{ALARMS}.toml", alarm_settings(park, shut_out), alarm_services()))
    files: Files = {}
    for folder, name, settings, services in machines:
        place = PurePosixPath(folder)
        files[place / name] = to_toml(settings).encode()
        files[place / EXPERIMENT.name] = experiment
        if isinstance(settings, CloudSettings):
            files[place / name] = QUORUM.encode() + files[place / name]
        if services:
            files[place / "compose.yaml"] = compose(services, park).encode()
        for service in services:
            files[place / f"{service.name}.service"] = unit(service, park).encode()
    return files


def _tls_files(stem: str) -> Tls:
    return Tls(Path("ca.crt"), Path(f"{stem}.crt"), Path(f"{stem}.key"))


def _named_devices(devices: Sequence[DeviceTable], shut_out: Sequence[str]) -> tuple[Named, ...]:
    return tuple(Named(d.name, d.number or 0) for d in devices if d.name not in shut_out)


def edge_settings(park: ParkFile, factory: FactoryTable, shut_out: Sequence[str], *, crosses: bool) -> EdgeSettings:
    """Return the settings of a factory's edge."""
    near = [
        Named(d.name, d.number or 0, edge=d.factory)
        for d in park.device
        if crosses and d.factory != factory.name and d.name not in shut_out
    ]
    return EdgeSettings(
        park=park.name, name=factory.name, factory=park.factory.index(factory),
        broker=Endpoint(factory.address, factory.port),
        experiment=EXPERIMENT, state=STATE_PATH, devices=_named_devices(park.devices_of(factory), shut_out),
        neighbours=tuple(near), tls=_tls_files("edge"), samples=samples_source(park), acl=Path(ACL),
        reach="park" if crosses else "factory", cloud=_cloud_broker(park),
    )  # fmt: skip


def device_settings(park: ParkFile, device: DeviceTable, shut_out: Sequence[str], *, crosses: bool) -> DeviceSettings:
    """Return the settings of a device."""
    visitors = [one.name for one in park.factory if crosses and one.name not in (device.factory, *shut_out)]
    (factory,) = (f for f in park.factory if f.name == device.factory)
    counts = len(park.devices_of(factory)), len(park.device)
    return DeviceSettings(
        park=park.name, name=device.name, factory=park.factory.index(factory), device=device.number or 0,
        broker=Endpoint(factory.address, factory.port), experiment=EXPERIMENT, memory=STATE_PATH / "memory",
        state=STATE_PATH, tls=_tls_files("device"), data=device.data, edge=factory.name,
        predict=Path(device.predict) if device.predict else None, visitors=tuple(visitors),
        devices=counts if max(counts) > SEEN else (),
    )  # fmt: skip


def cloud_settings(park: ParkFile, shut_out: Sequence[str]) -> CloudSettings:
    """Return the settings of the cloud."""
    hub = _cloud_broker(park)
    return CloudSettings(
        park=park.name, experiment=EXPERIMENT, out=STATE_PATH / "run",
        edges=tuple(
            CloudEdge(factory.name, i, devices=_named_devices(park.devices_of(factory), shut_out))
            for i, factory in enumerate(park.factory)
        ),
        samples=samples_source(park), broker=hub, tls=_tls_files(CLOUD),
        transport=park.cloud.transport, schedule=park.schedule, message_mb=park.message_mb,
    )  # fmt: skip


def alarm_settings(park: ParkFile, shut_out: Sequence[str]) -> AlarmSettings:
    """Return the settings of the process that keeps alarms."""
    sources = (
        AlarmSource(
            factory.name, Endpoint(factory.address, factory.port),
            tuple(one.name for one in _named_devices(park.devices_of(factory), shut_out)),
        )
        for factory in park.factory
    )  # fmt: skip
    return AlarmSettings(park.name, STATE_PATH, _tls_files(ALARMS), tuple(sources))


def _cloud_broker(park: ParkFile) -> Endpoint | None:
    return Endpoint(park.cloud.address, park.cloud.port) if park.cloud.transport == "mqtt" else None


def samples_source(park: ParkFile) -> Samples:
    """Return the source of samples: ``"experiment"`` if all devices hold a share of its data, else ``"devices"``."""
    return "experiment" if all(device.data.kind == "partition" for device in park.device) else "devices"
