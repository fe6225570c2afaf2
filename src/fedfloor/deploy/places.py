"""Which files each machine of a park gets, and where: ``cloud``, ``factories/NAME`` and ``devices/NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedfloor.deploy import units
from fedfloor.deploy.authority import Holder
from fedfloor.deploy.park_file import SUPERLINK, Device, Factory, ParkFile
from fedfloor.deploy.settings import (
    Address,
    CloudEdge,
    CloudSettings,
    DeviceSettings,
    EdgeSettings,
    Named,
    Tls,
    to_toml,
)
from fedfloor.errors import SettingError

LOCAL = ("localhost", "127.0.0.1")
DOOR = Address(socket=Path("state/door.sock"))
EXPERIMENT, STATE = Path("experiment.toml"), Path(units.STATE)
Files = dict[PurePosixPath, bytes]


@dataclass(frozen=True)
class Certified:
    """A certificate of a park: whose, what that is, and where certificate and key lie."""

    holder: Holder
    what: str
    cert: PurePosixPath
    key: PurePosixPath


def certified(park: ParkFile) -> list[Certified]:
    """Return every certificate that a park needs."""

    def one(holder: Holder, what: str, folder: str, stem: str) -> Certified:
        place = PurePosixPath(folder)
        return Certified(holder, what, place / f"{stem}.crt", place / f"{stem}.key")

    found = [one(Holder(SUPERLINK, _distinct(park.cloud.address), client=False), "cloud", "cloud", SUPERLINK)]
    for factory in park.factory:
        place = f"factories/{factory.name}"
        found += [
            one(Holder(factory.broker, _distinct(factory.address), client=False), "broker", place, "broker"),
            one(Holder(factory.bridge), "bridge", place, "bridge"),
            one(Holder(factory.name), "edge", place, "edge"),
        ]
    return found + [one(Holder(d.name), "device", f"devices/{d.name}", "device") for d in park.device]


def _distinct(address: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((address, *LOCAL)))


def settings_files(park: ParkFile, shut_out: Sequence[str], *, crosses: bool = True) -> Files:
    """Return the settings of every process, with its units, its compose file and the experiment.

    Args:
        park: the park.
        shut_out: names that were revoked: they get none, and no edge speaks to them.
        crosses: whether rounds cross factories; without that edges know their own devices only.

    Raises:
        SettingError: the experiment cannot be read.
    """
    try:
        experiment = park.experiment.read_bytes()
    except OSError as error:
        raise SettingError(
            f"experiment {park.experiment}: {error.strerror or error}. Name it in the park file."
        ) from error
    files: Files = {}
    _machine(files, park, PurePosixPath("cloud"), "cloud.toml", to_toml(_cloud(park, shut_out)), units.cloud(park))
    files[PurePosixPath("cloud/state/flwr/config.toml")] = _connection(park)
    for one in park.factory:
        place, text = PurePosixPath("factories", one.name), to_toml(_edge(park, one, shut_out, crosses=crosses))
        _machine(files, park, place, f"edge-{one.name}.toml", text, units.factory(park, one))
    for device in park.device:
        if device.name not in shut_out:
            place, text = PurePosixPath("devices", device.name), to_toml(_device(park, device))
            _machine(files, park, place, f"device-{device.name}.toml", text, units.device(device))
    for place in {path.parent for path in files if path.suffix == ".yaml"}:
        files[place / EXPERIMENT.name] = experiment
    return files


def _machine(
    files: Files, park: ParkFile, place: PurePosixPath, name: str, text: str, services: Sequence[units.Service]
) -> None:
    files[place / name] = text.encode()
    files[place / "compose.yaml"] = units.compose(services, park).encode()
    for service in services:
        files[place / f"{service.name}.service"] = units.unit(service, park).encode()


def _connection(park: ParkFile) -> bytes:
    """How Flower's own commands reach the SuperLink."""
    root = park.folder / "ca.crt"
    return (
        f'[superlink]\ndefault = "park"\n\n[superlink.park]\naddress = "{park.cloud.place}"\n'
        f'root-certificates = "{root}"\n'
    ).encode()


def _tls(stem: str) -> Tls:
    return Tls(Path("ca.crt"), Path(f"{stem}.crt"), Path(f"{stem}.key"))


def _named(devices: Sequence[Device], shut_out: Sequence[str]) -> tuple[Named, ...]:
    return tuple(Named(d.name, d.number or 0) for d in devices if d.name not in shut_out)


def _edge(park: ParkFile, one: Factory, shut_out: Sequence[str], *, crosses: bool) -> EdgeSettings:
    near = [
        Named(d.name, d.number or 0, edge=d.factory)
        for d in park.device
        if crosses and d.factory != one.name and d.name not in shut_out
    ]
    return EdgeSettings(
        park=park.name, name=one.name, factory=park.factory.index(one), broker=Address(one.address, one.port),
        listen=DOOR, experiment=EXPERIMENT, state=STATE, devices=_named(park.devices_of(one), shut_out),
        neighbours=tuple(near), tls=_tls("edge"), samples=_samples(park), acl=Path(units.ACL),
        reach="park" if crosses else "factory",
    )  # fmt: skip


def _device(park: ParkFile, one: Device) -> DeviceSettings:
    (factory,) = (f for f in park.factory if f.name == one.factory)
    return DeviceSettings(
        park=park.name, name=one.name, factory=park.factory.index(factory), device=one.number or 0,
        broker=Address(factory.address, factory.port), experiment=EXPERIMENT, memory=STATE / "memory", state=STATE,
        tls=_tls("device"), data=one.source, edge=factory.name,
    )  # fmt: skip


def _cloud(park: ParkFile, shut_out: Sequence[str]) -> CloudSettings:
    return CloudSettings(
        park=park.name, experiment=EXPERIMENT, out=STATE / "run", root=Path("ca.crt"),
        edges=tuple(
            CloudEdge(one.name, i, devices=_named(park.devices_of(one), shut_out)) for i, one in enumerate(park.factory)
        ),
        superlink=Address(park.cloud.address, park.cloud.port), samples=_samples(park),
    )  # fmt: skip


def _samples(park: ParkFile) -> str:
    """Return who knows what devices hold: the experiment, if all hold their share of its data."""
    return "experiment" if all(one.source.kind == "partition" for one in park.device) else "devices"
