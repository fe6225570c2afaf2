"""Two network namespaces joined by a line that loses packets and delays them.

The line is a pair of TUN devices and a thread between them, for kernels without ``netem``; where there is netem, it
does the harm and the thread only carries over.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

TUNSETIFF = 0x400454CA
IFF_TUN = 0x1
IFF_NO_PI = 0x1000
ADDRESSES = ("10.44.0.1", "10.44.0.2")
LARGEST = 65_536


def can_have_lines() -> bool:
    if os.getuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        return False
    return subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True).returncode == 0


needs_lines = pytest.mark.skipif(not can_have_lines(), reason="network namespaces and TUN devices need root and ip")


@dataclass
class Line:
    """A line: how to run something at each end, who makes it a bad one, and what became of its packets."""

    at: tuple[Sequence[str], Sequence[str]]
    by: str
    carried: int = 0
    lost: int = 0


def tun(name: str) -> int:
    made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return made


def run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True).returncode == 0


def spoiling(name: str, device: str, loss: float, delay_s: float) -> list[str]:
    """The command that lets netem lose and delay what a device in a namespace sends."""
    words = f"tc -n {name} qdisc add dev {device} root netem loss {loss:.3%} delay {1000 * delay_s:.0f}ms"
    return words.split()


@contextmanager
def bad_line(loss: float, delay_s: float) -> Iterator[Line]:
    """Join two namespaces.

    Args:
        loss: chance that a packet is lost, in either direction.
        delay_s: by which each is late.
    """
    names = [f"ff{os.getpid()}-{end}" for end in (0, 1)]
    devices = [f"fft{os.getpid() % 100_000}{end}" for end in (0, 1)]
    with ExitStack() as stack:
        ends = []
        for name, device, own, other in zip(names, devices, ADDRESSES, reversed(ADDRESSES), strict=True):
            assert run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "del", name)
            ends.append(tun(device))
            stack.callback(os.close, ends[-1])
            assert run("ip", "link", "set", device, "netns", name)
            assert run("ip", "-n", name, "addr", "add", own, "peer", other, "dev", device)
            assert run("ip", "-n", name, "link", "set", device, "up")
            assert run("ip", "-n", name, "link", "set", "lo", "up")
        netem = all(run(*spoiling(name, device, loss, delay_s)) for name, device in zip(names, devices, strict=True))
        inside = tuple(("ip", "netns", "exec", name) for name in names)
        line = Line((inside[0], inside[1]), "netem" if netem else "relay")
        over = threading.Event()
        harm = (0.0, 0.0) if netem else (loss, delay_s)
        thread = threading.Thread(target=_carry, args=(line, ends, *harm, over), daemon=True)
        thread.start()
        try:
            yield line
        finally:
            over.set()
            thread.join(5)


def _carry(line: Line, ends: Sequence[int], loss: float, delay_s: float, over: threading.Event) -> None:
    """Carry packets from one end to the other; those that are delayed keep their order."""
    rng = random.Random(0)
    late = list[tuple[float, int, int, bytes]]()
    count = 0
    while not over.is_set():
        pause = max(0.0, late[0][0] - time.monotonic()) if late else 0.05
        for end in select.select(ends, [], [], min(pause, 0.05))[0]:
            packet = os.read(end, LARGEST)
            count = count + 1
            if rng.random() < loss:
                line.lost += 1
            else:
                heapq.heappush(late, (time.monotonic() + delay_s, count, ends[1 - ends.index(end)], packet))
        while late and late[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(late)
            os.write(to, packet)
            line.carried += 1
