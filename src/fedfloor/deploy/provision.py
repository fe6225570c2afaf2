"""One folder per machine with its keys, certificates and settings; run again, provisioning adds what is new."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cryptography import x509

from fedfloor import config
from fedfloor.deploy import authority, broker, journal
from fedfloor.deploy.authority import Authority, Holder
from fedfloor.deploy.device import foreign_requests
from fedfloor.deploy.machines import EXPERIMENT, Certified, Files, certified, settings_files
from fedfloor.deploy.park_file import ParkFile
from fedfloor.deploy.settings import ALARMS
from fedfloor.errors import RunError, SettingError, unknown


@dataclass(frozen=True)
class Index:
    """The index of an authority.

    Args:
        park: name of the park.
        numbers: device → its number in the experiment.
        revoked: (name, serial, time) of each certificate that is good no more.
        out: names that get no new certificate until ``--renew``.
        issued: name → the serials of all its certificates, also of those before a renewal, which are good until they
            run out: a revocation covers all of them.
    """

    park: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    revoked: tuple[tuple[str, int, str], ...] = ()
    out: tuple[str, ...] = ()
    issued: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def read_index(path: Path) -> Index:
    """Read an index that :func:`index_json` wrote.

    Raises:
        SettingError: it is something else.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return Index(body["park"], body["numbers"], tuple((n, int(s, 16), t) for n, s, t in body["revoked"]),
                      tuple(body["out"]),
                      {n: tuple(int(s, 16) for s in some) for n, some in body.get("issued", {}).items()})  # fmt: skip
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}): put it back from a copy, or start in a new folder."
        ) from error


def index_json(index: Index) -> bytes:
    """Return an index as JSON."""
    body = {
        "park": index.park, "numbers": dict(index.numbers), "out": list(index.out),
        "revoked": [[name, f"{serial:x}", when] for name, serial, when in index.revoked],
        "issued": {name: [f"{serial:x}" for serial in serials] for name, serials in index.issued.items()},
    }  # fmt: skip
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()


def serials_issued(
    index: Index, holders: Mapping[str, Certified], out: Path, files: Mapping[PurePosixPath, bytes]
) -> dict[str, tuple[int, ...]]:
    """Return the serials of all certificates so far: those known, those that lie there, and those just made."""
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
        folder: where everything lies.
        rows: for each certificate its name, state (``new``, ``kept``, ``renewed``, ``revoked``) and last day.
        written: files that are new or changed, as paths in ``folder``.
        notes: the next steps.
    """

    folder: Path
    rows: tuple[dict[str, Any], ...]
    written: tuple[str, ...]
    notes: tuple[str, ...]


def provision(
    park: ParkFile, out: Path, revoke: Sequence[str] = (), renew: Sequence[str] = (),
    at: dt.datetime | None = None, user: str | None = None,
) -> Done:  # fmt: skip
    """Write certificates, keys and settings for every machine of a park; files that are valid already stay.

    Args:
        park: the park.
        out: the folder; ``authority`` in it stays on this machine, the others go to the machines.
        revoke: names whose certificates are good no more, from the brokers' next reload on.
        renew: names that get a new certificate and key now.
        at: the time; default: this machine's clock.
        user: account that runs brokers that are started as root.

    Raises:
        SettingError: an unknown name, a folder of another park, numbers of devices that would change, an experiment
            that cannot be read.
        RunError: something could not be written; nothing was changed.
    """
    moment = at or authority.now()
    fits = tuple(f"warning: {line}" for line in misfits(park))  # an experiment that cannot be read ends it here
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
    notes = (*next_steps(park, index, rows, written, revoke), *fits)
    return Done(out, tuple(rows), tuple(map(str, written)), notes)


def authority_of(park: ParkFile, out: Path, at: dt.datetime) -> tuple[Index, Authority]:
    """The authority and its memory, or new ones in a folder that is empty."""
    path = out / INDEX
    if not path.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise SettingError(f"--out {out}: holds something else already: name an empty or a new folder.")
        return Index(park.name), authority.found(park.name, at)
    index = read_index(path)
    if index.park != park.name:
        raise SettingError(f"--out {out} is that of park '{index.park}', not of '{park.name}': name another folder.")
    return index, authority.load(out / "authority")


def check_roles(holders: Mapping[str, Certified], index: Index) -> None:
    """Raise SettingError where a device has the name of an earlier edge, broker or bridge, or the other way round.

    Whoever has the earlier certificate's key would have the new holder's rights.
    """
    for name, one in holders.items():
        if name in index.issued and (name in index.numbers) != (one.what == "device"):
            before = "a device" if name in index.numbers else "no device"
            raise SettingError(
                f"'{name}' ({one.what}) was {before} when it was provisioned before, and a certificate of that may "
                "still be good: choose another name."
            )


def check_numbers(park: ParkFile, index: Index) -> None:
    """Raise SettingError where a device would change its number, or take another's."""
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
                f"device '{device.name}' has number {device.number}, which '{holders[device.number]}' was provisioned "
                "with: give it another."
            )


def add_certificate(
    entry: Certified, park: ParkFile, ca: Authority, out: Path, files: Files, at: dt.datetime, *,
    fresh: bool, gone: bool,
) -> dict[str, Any]:  # fmt: skip
    """Put a new certificate into ``files`` unless there is a good one; return its row."""
    path, holder = out / entry.cert, entry.holder
    row = {"name": holder.name, "what": entry.what, "folder": str(entry.cert.parent), "state": "kept", "until": None}
    if gone:
        return row | {"state": "revoked"}
    old = authority.certificate(path) if path.exists() and (out / entry.key).exists() else None
    if old is not None and not fresh and _still_good(old, holder, at):
        return row | {"until": f"{old.not_valid_after_utc:%Y-%m-%d}"}
    files[entry.cert], files[entry.key] = authority.issue(ca, holder, park.valid_days, at)
    issued = x509.load_pem_x509_certificate(files[entry.cert])
    return row | {"state": "new" if old is None else "renewed", "until": f"{issued.not_valid_after_utc:%Y-%m-%d}"}


def _still_good(cert: x509.Certificate, holder: Holder, at: dt.datetime) -> bool:
    span = cert.not_valid_after_utc - cert.not_valid_before_utc
    left = cert.not_valid_after_utc - at
    return left > min(RENEW, span / 3) and set(authority.addresses(cert)) == set(holder.addresses)


def revoked_serials(
    revoke: Iterable[str], holders: Mapping[str, Certified], out: Path, index: Index, at: dt.datetime
) -> Iterator[tuple[str, int, str]]:
    """Yield name, serial and time of each certificate that is revoked now."""
    for name in revoke:
        path = out / (holders[name].cert if name in holders else PurePosixPath("devices", name, "device.crt"))
        present = (authority.certificate(path).serial_number,) if path.exists() else ()
        if not present and name not in index.out:
            raise SettingError(f"--revoke {name}: there is no certificate of that name in {out}.")
        before = {serial for _, serial, _ in index.revoked}
        for serial in dict.fromkeys((*index.issued.get(name, ()), *present)):
            if serial not in before:
                yield name, serial, at.isoformat(timespec="seconds")


def add_settings(
    park: ParkFile, ca: Authority, revoked: Sequence[tuple[str, int, str]], gone: Sequence[str], out: Path,
    files: Files, at: dt.datetime, user: str | None, *, renewed: bool,
) -> None:  # fmt: skip
    """Put every other file than certificates into ``files``."""
    reach = crosses(park)
    listed = out / "authority" / "revoked.crl"
    serials = [(serial, dt.datetime.fromisoformat(when)) for _, serial, when in revoked]
    crl = listed.read_bytes() if listed.exists() and not renewed else authority.revocations(ca, serials, at)
    files[PurePosixPath("authority/revoked.crl")] = crl
    for place, hub in hubs(park):
        files[place / "revoked.crl"] = crl
        files[place / "mosquitto.conf"] = broker.conf(park, hub, user, crosses=reach).encode()
        files[place / "acl"] = broker.acl(park, hub, gone, crosses=reach).encode()
    root = ca.pem()[0]
    for path, text in settings_files(park, gone, crosses=reach).items():
        files[path] = text
        if path.name == EXPERIMENT.name:  # one per machine
            files[path.parent / "ca.crt"] = root


def crosses(park: ParkFile) -> bool:
    """Return whether the experiment's rounds reach devices of other factories.

    Raises:
        SettingError: they do, and there is no broker at the cloud to relay what crosses.
    """
    experiment = config.read(park.experiment)
    reaches = bool(foreign_requests(experiment, config.combined(experiment)))
    if reaches and park.cloud.transport == "flower":
        raise SettingError(
            f"method '{experiment.method.name}' crosses factories, which the cloud's broker relays: set "
            "cloud.transport = 'mqtt' in the park file."
        )
    return reaches


def hubs(park: ParkFile) -> Iterator[tuple[PurePosixPath, broker.Hub]]:
    """Yield each broker's folder, and whose broker it is."""
    if park.cloud.transport == "mqtt":
        yield PurePosixPath("cloud"), park.cloud
    for factory in park.factory:
        yield PurePosixPath("factories", factory.name), factory


def revoked_files(name: str, holders: Mapping[str, Certified], out: Path) -> list[Path]:
    """The files of a revoked holder: a device's whole folder, else a certificate and its key."""
    if name in holders and holders[name].what != "device":
        return [out / holders[name].cert, out / holders[name].key]
    return [path for path in (out / "devices" / name).glob("*") if path.is_file()]


def write_files(out: Path, files: Files, gone: Sequence[Path]) -> list[PurePosixPath]:
    """Write what is new or different: all of it beside the folder first, then renamed into place; delete the rest."""
    fresh = [path for path, text in files.items() if not (out / path).is_file() or (out / path).read_bytes() != text]
    fresh.sort(key=lambda path: path == INDEX)  # the memory last
    stage = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        for path in fresh:
            create_file(stage / path, files[path], private=path.suffix == ".key")
        for path in fresh:
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(stage / path, out / path)
        for old in gone:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"--out {out} could not be written: {error.strerror or error}.") from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
    return fresh


def create_file(path: Path, text: bytes, *, private: bool) -> None:
    """Write a new file and its content to the disk; one that is private only its user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def misfits(park: ParkFile) -> Iterator[str]:
    """Yield where the experiment describes another park than the park file, and how to mend it."""
    described, where = config.read(park.experiment).park, park.experiment.name
    for key, count, listed in (
        ("devices", described.devices, len(park.device)),
        ("factories", described.factories, len(park.factory)),
    ):
        if count is not None and count != listed:
            yield f"the experiment has {count} {key}, the park file {listed}: set park.{key} = {listed} in {where}"
    names = [factory.name for factory in park.factory]
    factories = [names.index(device.factory) for device in sorted(park.device, key=lambda device: device.number or 0)]
    if described.factories not in (None, 1) and described.assignment != tuple(factories):
        yield f"the edges ask for devices where the park file has them: set park.assignment = {factories} in {where}"


def next_steps(
    park: ParkFile, index: Index, rows: Sequence[Mapping[str, Any]], written: Sequence[PurePosixPath],
    revoke: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield the next steps."""
    names = {device.name for device in park.device}
    again = bool(index.numbers)  # else nothing runs yet
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
        yield f"'{name}' is shut out from then on, and gets no certificate until --renew {name}"
    for row in rows:
        if row["state"] == "renewed":
            yield f"'{row['name']}' has a new certificate: copy {row['folder']} to its machine, restart what runs there"
    for name in sorted(set(index.numbers) - names - set(index.out) - set(revoke)):
        yield f"device '{name}' is no longer in the park file, but its certificate is good: --revoke {name} ends that"
