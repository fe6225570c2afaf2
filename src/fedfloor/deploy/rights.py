"""Taking a device's rights at a running broker: its access list is rewritten, and the broker reads it again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from fedfloor.deploy.topics import parts

BROKER = "mosquitto"


def without(text: str, device: str) -> str:
    """Return an access list without the rules of a device and those by which others pass its messages on.

    >>> bridge = "user b\\ntopic write fedfloor/p/out/n0/e\\ntopic write fedfloor/p/out/n1/e\\n"
    >>> print(without("user n0\\ntopic read fedfloor/p/in/+/n0\\n" + bridge, "n0"), end="")
    user n0
    user b
    topic write fedfloor/p/out/n1/e
    """
    kept, user = [], ""
    for line in text.splitlines(keepends=True):
        words = line.split()
        if words[:1] == ["user"]:
            user = words[1]
        if words[:1] != ["topic"]:
            kept.append(line)
            continue
        kind, names = parts(words[-1])
        passed_on = words[1] == "write" and kind in ("out", "status") and names[:1] == (device,)
        if user != device and not passed_on:
            kept.append(line)
    return "".join(kept)


def withdraw(acl: Path, pid: Path, device: str) -> bool:
    """Take a device's rights at the broker of this machine; return whether the broker was told to read them.

    Args:
        acl: the broker's access list. It is overwritten in place: a service may write to the file, not to its folder.
        pid: the file with the number of the broker's process.
        device: its name.

    Raises:
        OSError: the list cannot be read or written.
    """
    text = acl.read_text(encoding="utf-8")
    acl.write_text(without(text, device), encoding="utf-8")
    try:
        number = int(pid.read_text())
        if Path(f"/proc/{number}/comm").read_text().strip() != BROKER:  # in a container of its own, or ended
            return False
        os.kill(number, signal.SIGHUP)
    except (OSError, ValueError):
        return False
    return True
