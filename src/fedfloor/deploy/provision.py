"""Provisioning: one folder per machine with keys, certificates and settings; a repetition adds only new files.

``--check`` inspects such a folder: certificates, keys and missing files.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import getpass
import glob
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cryptography import x509

from fedfloor import config
from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED, FedfloorError, RunError, SettingError, unknown
from fedfloor.base.strict import json_text
from fedfloor.deploy import authority, broker, journal, released, settings
from fedfloor.deploy.authority import Authority, Holder
from fedfloor.deploy.device import foreign_requests
from fedfloor.deploy.machines import EXPERIMENT, Certified, Files, certified, settings_files
from fedfloor.deploy.park_file import ParkFile, reachable
from fedfloor.deploy.settings import ALARMS, AlarmSettings, CloudSettings, DeviceSettings, EdgeSettings, Tls
from fedfloor.parts.travel.chains import secure

KINDS: dict[str, type[DeviceSettings | EdgeSettings | CloudSettings | AlarmSettings]] = {
    "device": DeviceSettings, "edge": EdgeSettings, "cloud": CloudSettings, "alarms": AlarmSettings,
}  # fmt: skip
BROKER_FILES = ("acl", "revoked.crl", "ca.crt", "broker.crt", "broker.key")  # beside mosquitto.conf
SOON = dt.timedelta(days=30)  # before the end of a certificate


@dataclass(frozen=True)
class Index:
    """The index of an authority's certificates.

    Args:
        park: name of the park.
        numbers: device → its number in the experiment.
        revoked: (name, serial, time) of each revoked certificate.
        out: names that receive no new certificate until ``--renew``.
        issued: name → serials of all its certificates; those before a renewal stay valid until they expire, so that
            a revocation covers all of them.
    """

    park: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    revoked: tuple[tuple[str, int, str], ...] = ()
    out: tuple[str, ...] = ()
    issued: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def read_index(path: Path) -> Index:
    """Read an index that :func:`index_json` wrote.

    Raises:
        SettingError: the file is missing or has another content.
    """
    try:
        body = json.loads(regular.read_text(path))
        return Index(body["park"], body["numbers"], tuple((n, int(s, 16), t) for n, s, t in body["revoked"]),
                      tuple(body["out"]),
                      {n: tuple(int(s, 16) for s in some) for n, some in body.get("issued", {}).items()})  # fmt: skip
    except (OSError, *MALFORMED) as error:
        raise SettingError(
            f"{path} cannot be read ({error}): restore it from a copy, or start in a new folder."
        ) from error


def index_json(index: Index) -> bytes:
    """Return an index as encoded JSON."""
    body = {
        "park": index.park, "numbers": dict(index.numbers), "out": list(index.out),
        "revoked": [[name, f"{serial:x}", when] for name, serial, when in index.revoked],
        "issued": {name: [f"{serial:x}" for serial in serials] for name, serials in index.issued.items()},
    }  # fmt: skip
    return (json_text(body, indent=1, ensure_ascii=False) + "\n").encode()


def serials_issued(
    index: Index, holders: Mapping[str, Certified], out: Path, files: Mapping[PurePosixPath, bytes]
) -> dict[str, tuple[int, ...]]:
    """Return name → serials of all certificates: those of the index, those in ``out``, and those in ``files``."""
    serials = dict(index.issued)
    for name, holder in holders.items():
        certificates = [authority.certificate(out / holder.cert)] if (out / holder.cert).exists() else []
        certificates += [x509.load_pem_x509_certificate(files[holder.cert])] if holder.cert in files else []
        serials[name] = tuple(dict.fromkeys((*serials.get(name, ()), *(cert.serial_number for cert in certificates))))
    return serials


RENEW = dt.timedelta(days=30)
INDEX = PurePosixPath("authority/index.json")


@dataclass(frozen=True)
class Done:
    """The result of provisioning.

    Args:
        folder: the folder of all files.
        rows: name, state (``new``, ``kept``, ``renewed``, ``revoked``) and last day of each certificate.
        written: new or changed files, as paths relative to ``folder``.
        notes: the next steps for the user.
    """

    folder: Path
    rows: tuple[dict[str, Any], ...]
    written: tuple[str, ...]
    notes: tuple[str, ...]


@regular.unwritable_by_others()
def provision(
    park: ParkFile, out: Path, revoke: Sequence[str] = (), renew: Sequence[str] = (),
    at: dt.datetime | None = None, user: str | None = None,
) -> Done:  # fmt: skip
    """Write certificates, keys and settings for every machine of a park; valid files are kept.

    Args:
        park: the park.
        out: the folder; its subfolder ``authority`` stays on this machine, the others are for the machines.
        revoke: names whose certificates are revoked, effective from the brokers' next reload.
        renew: names that receive a new certificate and key.
        at: the time; default: this machine's clock.
        user: account of brokers that are started as root; default: root if this process runs as root, which then owns
            the brokers' files.

    Raises:
        SettingError: a name is unknown, the folder is of another park, a device's number would change, the experiment
            cannot be read, or its model is larger than ``message_mb``.
        RunError: a file could not be written; nothing was changed.
    """
    moment = at or authority.now()
    user = user or (getpass.getuser() if hasattr(os, "getuid") and os.getuid() == 0 else None)
    fits = tuple(f"warning: {line}" for line in misfits(park))  # raises if the experiment cannot be read
    sized = compare_sizes(park)
    index, ca = authority_of(park, out, moment)
    holders = {entry.holder.name: entry for entry in certified(park)}
    known = {*holders, *index.numbers, *index.out}
    for name in (*revoke, *renew):
        if name not in known:
            raise unknown("name", name, known)
    check_numbers(park, index)
    check_roles(holders, index)
    gone = tuple(dict.fromkeys((*index.out, *revoke)))
    gone = tuple(name for name in gone if name not in renew)
    files: Files = dict(
        zip((PurePosixPath("authority/ca.crt"), PurePosixPath("authority/ca.key")), ca.pem(), strict=True)
    )
    rows = [
        add_certificate(entry, park, ca, out, files, moment, fresh=name in renew, gone=name in gone)
        for name, entry in holders.items()
    ]
    revoked = (*index.revoked, *revoked_serials(revoke, holders, out, index, moment))
    numbers = dict(index.numbers) | {device.name: device.number for device in park.device if device.number is not None}
    issued = serials_issued(index, holders, out, files)
    files[INDEX] = index_json(Index(park.name, numbers, revoked, gone, issued))
    add_settings(park, ca, revoked, gone, out, files, moment, user, renewed=len(revoked) != len(index.revoked))
    written = write_files(out, files, [path for name in gone for path in revoked_files(name, holders, out)])
    journal.record(out, ca, issued, revoked, moment)
    notes = (*next_steps(park, index, rows, written, revoke), *fits, *sized, *unguarded(park))
    return Done(out, tuple(rows), tuple(map(str, written)), notes)


HALF = " If an interrupted fedfloor park provision has written a part of it, delete the folder."


def authority_of(park: ParkFile, out: Path, at: dt.datetime) -> tuple[Index, Authority]:
    """Return a folder's index and authority; create both in an empty folder."""
    path = out / INDEX
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise SettingError(f"--out {out}: the folder holds other files: name an empty or a new folder.{HALF}")
        return Index(park.name), authority.found(park.name, at)
    index = read_index(path)
    if index.park != park.name:
        raise SettingError(f"--out {out} is the folder of park '{index.park}', not '{park.name}': name another folder.")
    return index, authority.load(out / "authority")


def check_roles(holders: Mapping[str, Certified], index: Index) -> None:
    """Raise SettingError if a device has the name of an earlier edge, broker or bridge, or the reverse.

    The key of the earlier certificate would give its owner the new holder's rights.
    """
    for name, one in holders.items():
        if name in index.issued and (name in index.numbers) != (one.what == "device"):
            before = "a device" if name in index.numbers else "no device"
            raise SettingError(
                f"'{name}' ({one.what}) was {before} when it was provisioned before, and that certificate may still "
                "be valid: choose another name.",
                key="name-certified-before",
            )


def check_numbers(park: ParkFile, index: Index) -> None:
    """Raise SettingError if a device would change its number, or take another device's."""
    for device in park.device:
        before = index.numbers.get(device.name, device.number)
        if before != device.number:
            raise SettingError(
                f"device '{device.name}' was provisioned with number {before} and would now have {device.number}: add "
                f"new devices at the end of the park file, or write number = {before} for it."
            )
    holders = {number: name for name, number in index.numbers.items()}
    for device in park.device:
        if device.number is not None and holders.get(device.number, device.name) != device.name:
            raise SettingError(
                f"device '{device.name}' has number {device.number}, with which '{holders[device.number]}' was "
                "provisioned: choose another."
            )


def add_certificate(
    entry: Certified, park: ParkFile, ca: Authority, out: Path, files: Files, at: dt.datetime, *,
    fresh: bool, gone: bool,
) -> dict[str, Any]:  # fmt: skip
    """Add a new certificate to ``files`` unless a valid one exists; return its row of the result."""
    path = out / entry.cert
    holder = entry.holder
    row = {"name": holder.name, "what": entry.what, "folder": str(entry.cert.parent), "state": "kept", "until": None}
    if gone:
        return row | {"state": "revoked"}
    old = authority.certificate(path) if path.exists() and (out / entry.key).exists() else None
    if old is not None and not fresh and _still_good(old, holder, at) and _fits(old, out / entry.key):
        return row | {"until": f"{old.not_valid_after_utc:%Y-%m-%d}"}
    files[entry.cert], files[entry.key] = authority.issue(ca, holder, park.valid_days, at)
    issued = x509.load_pem_x509_certificate(files[entry.cert])
    return row | {"state": "new" if old is None else "renewed", "until": f"{issued.not_valid_after_utc:%Y-%m-%d}"}


def _still_good(cert: x509.Certificate, holder: Holder, at: dt.datetime) -> bool:
    span = cert.not_valid_after_utc - cert.not_valid_before_utc
    left = cert.not_valid_after_utc - at
    same = set(authority.addresses(cert)) == set(holder.addresses) and authority.of_device(cert) == holder.device
    return left > min(RENEW, span / 3) and same


def _fits(cert: x509.Certificate, key: Path) -> bool:
    """Return whether a key is that of a certificate; it may not be after a renewal that was killed between the two."""
    with contextlib.suppress(SettingError):
        return authority.private_key(key).public_key() == cert.public_key()
    return False


def revoked_serials(
    revoke: Iterable[str], holders: Mapping[str, Certified], out: Path, index: Index, at: dt.datetime
) -> Iterator[tuple[str, int, str]]:
    """Yield name, serial and time of each certificate to be revoked now."""
    for name in revoke:
        path = out / (holders[name].cert if name in holders else PurePosixPath("devices", name, "device.crt"))
        present = (authority.certificate(path).serial_number,) if path.exists() else ()
        if not present and name not in index.out:
            raise SettingError(f"--revoke {name}: there is no certificate of this name in {out}. Check the name.")
        before = {serial for _, serial, _ in index.revoked}
        for serial in dict.fromkeys((*index.issued.get(name, ()), *present)):
            if serial not in before:
                yield name, serial, at.isoformat(timespec="seconds")


def add_settings(
    park: ParkFile, ca: Authority, revoked: Sequence[tuple[str, int, str]], gone: Sequence[str], out: Path,
    files: Files, at: dt.datetime, user: str | None, *, renewed: bool,
) -> None:  # fmt: skip
    """Add all files other than certificates to ``files``."""
    reach = crosses(park)
    listed = out / "authority" / "revoked.crl"
    serials = [(serial, dt.datetime.fromisoformat(when)) for _, serial, when in revoked]
    crl = regular.read_bytes(listed) if listed.exists() and not renewed else authority.revocations(ca, serials, at)
    files[PurePosixPath("authority/revoked.crl")] = crl
    for place, hub in hubs(park):
        files[place / "revoked.crl"] = crl
        files[place / "mosquitto.conf"] = broker.conf(park, hub, user, crosses=reach).encode()
        files[place / "acl"] = broker.acl(park, hub, gone, crosses=reach).encode()
    for device, number in released.numbers(journal.read(out, ca.cert)).items():
        if device not in gone:
            files[PurePosixPath("devices", device, released.NAME)] = released.text(number)
    root = ca.pem()[0]
    for path, text in settings_files(park, gone, crosses=reach).items():
        files[path] = text
        if path.name == EXPERIMENT.name:  # one per machine
            files[path.parent / "ca.crt"] = root


def crosses(park: ParkFile) -> bool:
    """Return whether the experiment's rounds reach devices of other factories.

    Raises:
        SettingError: they do, and there is no broker at the cloud to relay the messages.
    """
    experiment = config.read(park.experiment)
    reaches = bool(foreign_requests(experiment, experiment.configured))
    if reaches and park.cloud.transport == "flower":
        raise SettingError(
            f"method '{experiment.method.name}' crosses factories, which the cloud's broker relays: set "
            "cloud.transport = 'mqtt' in the park file."
        )
    return reaches


def hubs(park: ParkFile) -> Iterator[tuple[PurePosixPath, broker.Hub]]:
    """Yield the folder and the site of each broker."""
    if park.cloud.transport == "mqtt":
        yield PurePosixPath("cloud"), park.cloud
    for factory in park.factory:
        yield PurePosixPath("factories", factory.name), factory


def revoked_files(name: str, holders: Mapping[str, Certified], out: Path) -> list[Path]:
    """Return the files of a revoked holder: a device's whole folder, otherwise a certificate and its key."""
    if name in holders and holders[name].what != "device":
        return [out / holders[name].cert, out / holders[name].key]
    return [path for path in (out / "devices" / name).glob("*") if path.is_file()]


def write_files(out: Path, files: Files, gone: Sequence[Path]) -> list[PurePosixPath]:
    """Write new and changed files, atomically by renaming, and delete ``gone``; return the written paths.

    A new folder appears as a whole: a part of it would be no park's, and refused by the next attempt.
    """
    fresh = [
        path for path, text in files.items() if not (out / path).is_file() or regular.read_bytes(out / path) != text
    ]
    fresh.sort(key=lambda path: path == INDEX)  # the index last
    stage = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sweep_stages(out)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-{os.getpid()}-", dir=out.parent))
        whole = stage / out.name
        for path in fresh:
            create_file(whole / path, files[path], private=path.suffix == ".key")
        new = not out.exists()
        place = whole if new else out
        for folder in dict.fromkeys(path.parent for path in files):
            (place / folder).mkdir(parents=True, exist_ok=True)
            (place / folder).chmod(0o700)  # it holds a key, which whoever may write here could replace
        if new:
            os.replace(whole, out)
        else:
            for path in fresh:
                os.replace(whole / path, out / path)
        for old in gone:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"--out {out} could not be written: {error.strerror or error}.") from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
    return fresh


def sweep_stages(out: Path) -> None:
    """Delete folders with keys that killed processes have left beside a park's folder."""
    for stage in out.parent.glob(f".{glob.escape(out.name)}-*-*"):
        process = stage.name.rsplit("-", 2)[1]
        if process.isdecimal() and not Path("/proc", process).exists():
            shutil.rmtree(stage, ignore_errors=True)


def create_file(path: Path, text: bytes, *, private: bool) -> None:
    """Write a new file and flush it to the disk; a private file is readable only by its user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def misfits(park: ParkFile) -> Iterator[str]:
    """Yield a message for each difference between the experiment and the park file, with the remedy."""
    experiment = config.read(park.experiment)
    where = park.experiment.name
    described = experiment.park
    for key, count, listed in (
        ("devices", described.devices, len(park.device)),
        ("factories", described.factories, len(park.factory)),
    ):
        if count is not None and count != listed:
            yield f"the experiment has {count} {key}, the park file {listed}: set park.{key} = {listed} in {where}"
    names = [factory.name for factory in park.factory]
    factories = [names.index(device.factory) for device in sorted(park.device, key=lambda device: device.number or 0)]
    if described.factories not in (None, 1) and described.assignment != tuple(factories):
        yield f"the experiment's assignment differs from the park file's: set park.assignment = {factories} in {where}"
    try:
        experiment.deploy.needed(factories)
    except SettingError as error:
        yield f"{where}: {error}"


def unguarded(park: ParkFile) -> list[str]:
    """Return a warning if the experiment mixes by a mean, in which every device counts."""
    parts = config.read(park.experiment).configured.parts
    if parts.mix is not None and not parts.mix.additive:
        return []
    remedy = 'method.mix = "multi_krum" or "centred_clipping"'
    if secure(parts.travel or ""):
        remedy = "a rule that reads every update, in place of secure sums"
    return [
        "warning: the mean takes every update of ordinary length, also one in a harmful direction: if a device of this "
        f"park is not your own, use {remedy} (docs/robustness.md)"
    ]


def compare_sizes(park: ParkFile) -> list[str]:
    """Compare the experiment's model with the brokers' limit; return a note if its data are not on this machine.

    Raises:
        SettingError: the model is larger.
    """
    from fedfloor.deploy import sizes  # it imports PyTorch
    from fedfloor.runs.parks import build_park

    experiment = config.read(park.experiment)
    try:
        built = build_park(experiment)
    except FedfloorError as error:
        return [f"message_mb = {park.message_mb} was not compared with the model, as its data cannot be read: {error}"]
    sizes.check(experiment, built, park.message_mb)
    return []


def next_steps(
    park: ParkFile, index: Index, rows: Sequence[Mapping[str, Any]], written: Sequence[PurePosixPath],
    revoke: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield the next steps for the user: the files to copy and the services to restart."""
    names = {device.name for device in park.device}
    again = bool(index.numbers)  # otherwise nothing runs yet
    for place, hub in hubs(park) if again else ():
        changed = {path.name for path in written if path.parent == place}
        if "mosquitto.conf" in changed or {"broker.crt", "bridge.crt"} & changed:
            yield f"copy {place} and restart its broker: systemctl restart fedfloor-broker"
        elif {"acl", "revoked.crl"} & changed:
            yield f"copy acl and revoked.crl of {place} and reload: systemctl reload fedfloor-broker"
        if f"edge-{hub.name}.toml" in changed:
            yield f"copy edge-{hub.name}.toml and restart the edge of {hub.name}: systemctl restart fedfloor-edge"
    if again and PurePosixPath("cloud/cloud.toml") in written:
        yield "copy cloud/cloud.toml to the cloud's machine: it lists the devices of every factory"
    if again and PurePosixPath(ALARMS, f"{ALARMS}.toml") in written:
        yield f"copy {ALARMS} to the machine that keeps alarms and restart it: systemctl restart fedfloor-alarms"
    for name in revoke:
        yield f"'{name}' has no access after that, and receives no certificate until --renew {name}"
    for row in rows:
        if row["state"] == "renewed":
            yield f"'{row['name']}' has a new certificate: copy {row['folder']} to its machine, restart its services"
    for name in sorted(set(index.numbers) - names - set(index.out) - set(revoke)):
        yield f"device '{name}' is no longer in the park file, but its certificate is valid: --revoke {name} revokes it"


def unprovisioned(folder: Path, park: ParkFile) -> list[str]:
    """Return a message for each certificate of a park file that is missing in a provisioned folder."""
    missing = [one for one in certified(park) if not (folder / one.cert).exists()]
    how = f"fedfloor park provision PARK.toml --out {folder}"
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
            f"--check {folder}: has no ca.crt: name a folder that fedfloor park provision wrote, or a part of it."
        )
    moment = at or authority.now()
    return list(dict.fromkeys(wrong for path in known for wrong in folder_faults(path.parent, moment)))


def folder_faults(place: Path, at: dt.datetime) -> Iterator[str]:
    """Yield the faults of one machine's folder."""
    yield from readable_keys(place)
    if (place / "mosquitto.conf").exists():
        yield from listener_faults(place)
        yield from (f"{place / name} is missing" for name in BROKER_FILES if not (place / name).exists())
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


def listener_faults(place: Path) -> Iterator[str]:
    """Yield the fault of a broker that listens on no address of the kind by which it is reached."""
    lines = regular.read_text(place / "mosquitto.conf").splitlines()
    words = next((line.split() for line in lines if line.startswith("listener ")), [])
    if len(words) == 3 and (place / "broker.crt").exists():
        known = authority.addresses(authority.certificate(place / "broker.crt"))
        if known and not reachable(known[0], words[2]):  # the others are local ones
            yield (
                f"{place / 'mosquitto.conf'}: its broker listens on {words[2]} and cannot be reached by its address "
                f"{known[0]}: leave bind out of the park file, provision again and copy the file"
            )


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
        yield f"{path} is valid only until {until}: run fedfloor park provision again and copy the renewed files"
