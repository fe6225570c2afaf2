"""Mosquitto's configuration: who may connect, read and write, the bridges between factories' brokers, and revocation.

Topics begin with ``fedfloor/PARK``: ``in/EDGE/DEVICE`` carries requests to a device, ``out/DEVICE/EDGE`` its answers,
and ``status/DEVICE`` whether it is connected; likewise ``in/cloud/EDGE``, ``out/EDGE/cloud`` and ``status/EDGE`` at
the cloud's broker. If rounds cross factories, each factory's broker connects to the cloud's, which relays messages.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.strict import printable
from fedfloor.deploy.mqtt import ENVELOPE, PACKET_BYTES, topic_parts
from fedfloor.deploy.park_file import QUEUED_MESSAGES, RELEASES, CloudTable, FactoryTable, ParkFile
from fedfloor.deploy.settings import ALARMS

BROKER = "mosquitto"


def without(text: str, device: str) -> str:
    """Return an access list without a device's rules and without the bridges' rules for its messages.

    >>> bridge = "user b\\ntopic write fedfloor/p/out/n0/e\\ntopic write fedfloor/p/out/n1/e\\n"
    >>> print(without("user n0\\ntopic read fedfloor/p/in/+/n0\\n" + bridge, "n0"), end="")
    user n0
    user b
    topic write fedfloor/p/out/n1/e
    """
    kept = []
    user = ""
    for line in text.splitlines(keepends=True):
        words = line.split()
        if words[:1] == ["user"]:
            user = words[1]
        if words[:1] != ["topic"]:
            kept.append(line)
            continue
        kind, names = topic_parts(words[-1])
        passed_on = words[1] == "write" and kind in ("out", "status") and names[:1] == (device,)
        if user != device and not passed_on:
            kept.append(line)
    return "".join(kept)


def withdraw(acl: Path, pid: Path, device: str) -> bool:
    """Revoke a device's rights at this machine's broker; return whether the broker reloads the list at once.

    Args:
        acl: the broker's access list, overwritten in place, as a service may write to the file but not to its folder.
        pid: the file with the process id of the broker.

    Raises:
        OSError: the list cannot be read or written.
    """
    text = regular.read_text(acl)
    acl.write_text(without(text, device), encoding="utf-8")
    try:
        number = int(regular.read_text(pid))
        if Path(f"/proc/{number}/comm").read_text().strip() != BROKER:  # the broker has ended, or runs in a container
            return False
        os.kill(number, signal.SIGHUP)
    except (OSError, ValueError):
        return False
    return True


LEAST = (2, 0, 11)  # oldest version of Mosquitto; versions before 2.0.19 need a distribution's security fixes

QUEUED = 10_000  # messages queued for a slow client: each device of a large factory may answer; bytes are limited, too
INFLIGHT = 20  # unacknowledged messages to or from a client
FILES = 65_536  # open files of a broker, above the client ports of one address (28,232 on Linux)
SPARE_FILES = 1_024  # open files for other purposes than connections
SPARE_MODELS = 8  # messages of the largest size that fit into a broker's memory beside one for each device
PID = "state/broker.pid"


Hub = CloudTable | FactoryTable  # the site of a broker


def conf(park: ParkFile, hub: Hub, user: str | None = None, *, crosses: bool = True) -> str:
    """Return a broker's ``mosquitto.conf``; its paths are relative to the broker's working directory.

    Args:
        user: account of the broker if it is started as root; None: Mosquitto's own user.
        crosses: whether rounds cross factories; if not, no broker connects to another.
    """
    from fedfloor.base.templates import render

    limit = park.message_mb * 1_000_000
    clients = park.devices_of(hub) if isinstance(hub, FactoryTable) else park.factory
    return render(
        "fedfloor.deploy", "mosquitto.conf", hub=hub, park=park, user=user, top=f"fedfloor/{park.name}", limit=limit,
        packet=PACKET_BYTES + ENVELOPE, inflight=INFLIGHT, queued=QUEUED,
        queued_bytes=QUEUED_MESSAGES * limit, pid=PID, room=SPARE_MODELS + len(clients),
        connections=FILES - SPARE_FILES, devices=devices_allowed(park), dials=crosses and hub is not park.cloud,
    )  # fmt: skip


def acl(park: ParkFile, hub: Hub, shut_out: Sequence[str] = (), *, crosses: bool = True) -> str:
    """Return the access list of a broker; clients that it does not name have no rights.

    A device reads its own inbox and writes its own status and its outboxes to existing edges: with free topic names it
    could store any number of retained messages. The edge writes to any device under its own name and reads the answers.
    At the cloud's broker the cloud has the rights of an edge and edges those of devices; a bridge passes on only
    messages of its own factory's edge and devices.

    Args:
        crosses: whether rounds cross factories; if not, only a factory's own edge and devices have rights there.
    """
    from fedfloor.base.templates import render

    top = f"fedfloor/{park.name}"
    devices = devices_allowed(park, shut_out)
    if not isinstance(hub, FactoryTable):
        edges = [one for one in park.factory if one.name not in shut_out]
        bridges = [one for one in park.factory if crosses and one.bridge not in shut_out]
        return render("fedfloor.deploy", "acl-cloud", top=top, edges=edges, bridges=bridges, devices=devices, park=park)
    return render(
        "fedfloor.deploy", "acl", factory=hub, top=top, shut_out=shut_out, crosses=crosses,
        edges=park.factory if crosses else (hub,), devices=devices, releases=RELEASES, alarms=ALARMS,
    )  # fmt: skip


def check_version(program: str) -> None:
    """Check that an installed Mosquitto is recent enough.

    Raises:
        SettingError: it is older than :data:`LEAST`, or does not print its version.
    """
    least = ".".join(map(str, LEAST))
    try:
        text = subprocess.run([program, "-h"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"{program} cannot be started: {error}. Install Mosquitto {least} or later.") from error
    numbers = re.search(r"mosquitto version (\d+)\.(\d+)\.(\d+)", text)
    if numbers is None:
        raise SettingError(
            f"{program} -h does not print a version: install Mosquitto {least} or later.", key="version-of-mosquitto"
        )
    if tuple(map(int, numbers.groups())) < LEAST:
        raise SettingError(
            f"{program} is Mosquitto {'.'.join(numbers.groups())}; must be {least} or later: upgrade it.",
            key="version-of-mosquitto",
        )


def devices_allowed(park: ParkFile, shut_out: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the devices of each factory that are not revoked."""
    return {
        one.name: [device.name for device in park.devices_of(one) if device.name not in shut_out]
        for one in park.factory
    }


def main(words: Sequence[str]) -> int:
    """Check the installed Mosquitto before a systemd unit starts it: ``python -m fedfloor.deploy.broker PROGRAM``."""
    try:
        check_version(*words)
    except SettingError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
