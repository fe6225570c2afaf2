"""Mosquitto's configuration: who may connect, who may say and hear what, and how factories' brokers are bridged.

Topics begin with ``fedfloor/PARK``: ``in/EDGE/DEVICE`` goes to a device, ``out/DEVICE/EDGE`` comes from it,
``status/DEVICE`` says whether it is there. Of two factories' brokers the first in the park file dials the other, and
the one connection carries both ways only what crosses factories.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

from fedfloor.deploy.park_file import Factory, ParkFile
from fedfloor.errors import SettingError

LEAST = (2, 0, 11)  # of Mosquitto; from 2.0.19 on without published advisories, before with a distribution's fixes

ENVELOPE = 65_536  # bytes of topic and header beside a payload
QUEUED = 10_000  # messages kept for a slow client: each device of a large factory may answer; bytes bound them, too
INFLIGHT = 20  # messages to a client, and from one, that are not acknowledged yet
FILES = 65_536  # open files of a broker: more than one address has ports to connect from (28,232 on Linux)
SPARE_FILES = 1_024  # of them for anything but connections
SPARE_MODELS = 8  # messages of the largest size for which a broker has room beside one for each of its devices
PID = "state/broker.pid"
HEAD = "# Written by fedfloor provision; it is written anew each time.\n"


def conf(park: ParkFile, factory: Factory, user: str | None = None, *, crosses: bool = True) -> str:
    """Return a broker's ``mosquitto.conf``; its paths begin in the folder in which the broker is started.

    Args:
        park: the park.
        factory: whose broker it is.
        user: who runs it where it is started as root; left out, Mosquitto's own user.
        crosses: whether rounds cross factories; without that no broker dials another.
    """
    limit, room = park.message_mb * 1_000_000, SPARE_MODELS + len(park.devices_of(factory))
    lines = [
        "per_listener_settings false",
        "allow_anonymous false",
        "acl_file acl",
        f"max_packet_size {min(limit + ENVELOPE, 268_435_455)}",  # refused before it is read, the sender cut off
        f"max_inflight_messages {INFLIGHT}",
        f"max_queued_messages {QUEUED}",
        f"max_queued_bytes {4 * limit}",
        f"memory_limit {room * limit}",  # subscriptions and what is never released have no limit of their own
        "set_tcp_nodelay true",  # small messages would wait 40 ms for their acknowledgement
        "persistent_client_expiration 1d",
        f"pid_file {PID}",
        "persistence true",
        "persistence_location state/",
        "autosave_interval 60",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_type information",
        "connection_messages true",
        f"listener {factory.port} {factory.bind}",
        f"max_connections {FILES - SPARE_FILES}",
        "tls_version tlsv1.3",
        "cafile ca.crt",
        "certfile broker.crt",
        "keyfile broker.key",
        "require_certificate true",
        "use_identity_as_username true",
        # nobody pushes another off by taking his client's name; above its listener it would open port 1883 too
        "use_username_as_clientid true",
        "crlfile revoked.crl",
    ]
    if user is not None:
        lines.insert(0, f"user {user}")
    for other in park.factory[park.factory.index(factory) + 1 :] if crosses else ():
        lines += ["", *_bridge(park, factory, other)]
    return HEAD + "\n".join(lines) + "\n"


def _bridge(park: ParkFile, near: Factory, far: Factory) -> Iterator[str]:
    """The connection from ``near``, which dials, to ``far``; the revoked stay in it, without rights."""
    yield f"connection {near.name}-{far.name}"
    yield f"address {far.address}:{far.port}"  # an IPv6 address too stands there without brackets
    yield from (
        "bridge_cafile ca.crt", "bridge_certfile bridge.crt", "bridge_keyfile bridge.key",
        "bridge_tls_version tlsv1.3", "bridge_protocol_version mqttv50", f"remote_clientid {near.bridge}",
        "bridge_attempt_unsubscribe false", "notifications false", "cleansession false", "keepalive_interval 30",
        "restart_timeout 1 30",
    )  # fmt: skip
    top = f"fedfloor/{park.name}"
    for direction, here, there in (("out", near, far), ("in", far, near)):
        yield f"topic {top}/out/+/{there.name} {direction} 1"  # devices of one answer the other's edge
        for device in _allowed(park, here):
            yield f"topic {top}/status/{device} {direction} 1"
        for device in _allowed(park, there):
            yield f"topic {top}/in/{here.name}/{device} {direction} 1"


def acl(park: ParkFile, factory: Factory, shut_out: Sequence[str] = (), *, crosses: bool = True) -> str:
    """Return who may read and write what at a factory's broker; whoever is not named may nothing.

    A device reads its own inbox, writes its own outbox, to edges that there are, and status:
    topics without end would hold retained messages without end. The edge writes to any device
    under its own name and reads what is for it. A bridge speaks only for its own factory's edge and devices.

    Args:
        park: the park.
        factory: whose broker it is.
        shut_out: names that were revoked.
        crosses: whether rounds cross factories; without that only this factory's edge and devices have rights.
    """
    top, own = f"fedfloor/{park.name}", _allowed(park, factory, shut_out)
    edges = park.factory if crosses else (factory,)
    parts: dict[str, list[str]] = {
        factory.name: [
            f"write {top}/in/{factory.name}/+", f"read {top}/out/+/{factory.name}", f"read {top}/status/+",
        ]
    }  # fmt: skip
    for device in own:
        parts[device] = [
            f"read {top}/in/{'+' if crosses else factory.name}/{device}",
            *(f"write {top}/out/{device}/{one.name}" for one in edges),
            f"write {top}/status/{device}",
        ]  # fmt: skip
    for other in park.factory[: park.factory.index(factory)] if crosses else ():  # these dial this one
        theirs = _allowed(park, other, shut_out)
        parts[other.bridge] = [
            *(f"write {top}/in/{other.name}/{one}" for one in own), f"read {top}/out/+/{other.name}",
            *(f"read {top}/status/{one}" for one in own), *(f"write {top}/status/{one}" for one in theirs),
            *(f"read {top}/in/{factory.name}/{one}" for one in theirs),
            *(f"write {top}/out/{one}/{factory.name}" for one in theirs),
        ]  # fmt: skip
    return HEAD + "".join(
        f"\nuser {name}\n" + "".join(f"topic {rule}\n" for rule in rules)
        for name, rules in parts.items()
        if name not in shut_out
    )


def check_version(program: str) -> None:
    """Check that an installed Mosquitto is recent enough.

    Args:
        program: its path.

    Raises:
        SettingError: it is older than :data:`LEAST`, or does not print its version.
    """
    least = ".".join(map(str, LEAST))
    try:
        told = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"{program} cannot be started: {error}. Install Mosquitto {least} or later.") from error
    numbers = re.search(r"mosquitto version (\d+)\.(\d+)\.(\d+)", told)
    if numbers is None:
        raise SettingError(f"{program} -h prints no version: it must be Mosquitto {least} or later.")
    if tuple(map(int, numbers.groups())) < LEAST:
        raise SettingError(
            f"{program} is Mosquitto {'.'.join(numbers.groups())}; must be {least} or later: upgrade it."
        )


def _allowed(park: ParkFile, factory: Factory, shut_out: Sequence[str] = ()) -> list[str]:
    return [one.name for one in park.devices_of(factory) if one.name not in shut_out]


def main(words: Sequence[str]) -> int:
    """Check the Mosquitto that a unit is about to start: ``python -m fedfloor.deploy.broker PROGRAM``."""
    try:
        check_version(*words)
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
