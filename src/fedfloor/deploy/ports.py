"""TCP ports of this machine: which are free, and who holds those that are not."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from fedfloor.errors import RunError, require


def free(count: int, first: int | None = None) -> list[int]:
    """Return ports on which nobody listens.

    Args:
        count: how many.
        first: the first of that many in a row; left out, the system chooses.

    Raises:
        RunError: one of those in a row is taken; says by whom where that can be known.
    """
    if first is not None:
        require(1 <= first <= 65536 - count, "--ports", first, f"from 1 to {65536 - count}")
        ports = list(range(first, first + count))
        for port in ports:
            need(port)
        return ports
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]


def need(port: int, host: str = "127.0.0.1") -> None:
    """Check that nobody listens on a port.

    Raises:
        RunError: somebody does, or the system does not let us.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise RunError(f"port {port} of {host} cannot be used: {error.strerror or error}.") from error
            who = holder(port)
            by = f" by {who}" if who else " by a process of somebody else"
            raise RunError(f"port {port} is in use{by}: stop that, or choose other ports.") from error


def holder(port: int) -> str | None:
    """Return the name and process number of who listens on a port, where this user may know it (Linux)."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for folder in Path("/proc").glob("[0-9]*") if sockets else ():
        with contextlib.suppress(OSError):
            if any(os.readlink(one) in sockets for one in (folder / "fd").iterdir()):
                return f"'{(folder / 'comm').read_text().strip()}' (process {folder.name})"
    return None


def _inodes(port: int) -> Sequence[str]:
    found = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:  # 0A: it listens
                    found.append(fields[9])
    return found
