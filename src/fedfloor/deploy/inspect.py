"""An inspection of a provisioned folder: certificates, keys and missing files."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from fedfloor.deploy import authority, broker, settings
from fedfloor.deploy.machines import EXPERIMENT, certified
from fedfloor.deploy.park_file import ParkFile
from fedfloor.deploy.settings import AlarmSettings, CloudSettings, DeviceSettings, EdgeSettings, Tls
from fedfloor.errors import SettingError

KINDS: dict[str, type[DeviceSettings | EdgeSettings | CloudSettings | AlarmSettings]] = {
    "device": DeviceSettings,
    "edge": EdgeSettings,
    "cloud": CloudSettings,
    "alarms": AlarmSettings,
}
NEEDED = {
    "mosquitto.conf": ("acl", "revoked.crl", "ca.crt", "broker.crt", "broker.key"),
}
SOON = dt.timedelta(days=30)


def unprovisioned(folder: Path, park: ParkFile) -> list[str]:
    """Return a message for each certificate of a park file that is missing in a provisioned folder."""
    missing = [one for one in certified(park) if not (folder / one.cert).exists()]
    how = f"fedfloor provision PARK.toml --out {folder}"
    return [f"{one.what} '{one.holder.name}' was not provisioned, or was revoked: {how} writes it" for one in missing]


def faults(folder: Path, at: dt.datetime | None = None) -> list[str]:
    """Return a message for each fault of a provisioned folder, or of one machine's part of it.

    Args:
        folder: searched with its subfolders.
        at: the time; default: this machine's clock.

    Raises:
        SettingError: the folder was not provisioned.
    """
    known = [path for path in sorted(folder.rglob("ca.crt")) if path.is_file()]
    if not known:
        raise SettingError(
            f"--check {folder}: has no ca.crt: name a folder that fedfloor provision wrote, or a part of it."
        )
    moment = at or authority.now()
    return list(dict.fromkeys(wrong for path in known for wrong in folder_faults(path.parent, moment)))


def folder_faults(place: Path, at: dt.datetime) -> Iterator[str]:
    """Yield the faults of one machine's folder."""
    yield from readable_keys(place)
    for name, others in NEEDED.items():
        if (place / name).exists():
            yield from (f"{place / one} is missing" for one in others if not (place / one).exists())
    if (place / "mosquitto.conf").exists():
        yield from broker_faults()
    yield from missing_files(place)
    try:
        root = authority.certificate(place / "ca.crt")
    except SettingError as error:
        yield str(error)
        return
    for path in sorted(place.glob("*.crt")):
        yield from certificate_faults(path, place, at)
    listed = authority.fault(place / "ca.crt", root, root, authority.common_name(root), at)
    if listed:
        yield listed


def readable_keys(place: Path) -> Iterator[str]:
    """Yield the private keys that other users can read."""
    for path in sorted(place.glob("*.key")):
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0
        if mode & 0o077:
            yield f"{path} is a private key that others can read (mode {mode:04o}): chmod 600 {path}"


def broker_faults() -> Iterator[str]:
    """Yield the fault of this machine's Mosquitto, if it has one."""
    program = shutil.which("mosquitto", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    try:
        if program is not None:  # otherwise the folder is of another machine
            broker.check_version(program)
    except SettingError as error:
        yield str(error)


def missing_files(place: Path) -> Iterator[str]:
    """Yield the faults of settings files, and the missing files to which they refer."""
    for path in sorted(place.glob("*.toml")):
        kind = KINDS.get(path.stem.split("-")[0])
        if kind is None or path.name == EXPERIMENT.name:
            continue
        try:
            read: CloudSettings | DeviceSettings | EdgeSettings | AlarmSettings = settings.read(kind, path)
        except SettingError as error:
            yield str(error)
            continue
        experiment = () if isinstance(read, AlarmSettings) else (read.experiment,)
        files = [*experiment, *([] if read.tls is None else vars(read.tls).values())]
        yield from (f"{one} is missing; {path.name} names it" for one in files if not one.exists())


def certificate_faults(path: Path, place: Path, at: dt.datetime) -> Iterator[str]:
    """Yield the fault of a certificate, or a warning that it expires soon."""
    if path.name == "ca.crt":
        return
    try:
        cert = authority.certificate(path)
        authority.check(Tls(place / "ca.crt", path, path.with_suffix(".key")), authority.common_name(cert), at)
    except SettingError as error:
        yield str(error)
        return
    if cert.not_valid_after_utc - at < min(SOON, (cert.not_valid_after_utc - cert.not_valid_before_utc) / 3):
        until = f"{cert.not_valid_after_utc:%Y-%m-%d}"
        yield f"{path} is valid only until {until}: run fedfloor provision again and copy the renewed files"
