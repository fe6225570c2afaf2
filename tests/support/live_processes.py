"""A park of real processes on this machine: a Mosquitto broker without TLS, agents, edges."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fedfloor import config
from fedfloor.deploy.settings import CloudEdge, CloudSettings, DataSource, Deadlines, Endpoint, to_toml
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park
from live_park import device_settings, edge_settings
from parks import free_port, listening, until

BROKER = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
needs_broker = pytest.mark.skipif(BROKER is None, reason="needs Mosquitto: apt install mosquitto")


def broker(
    folder: Path, port: int, host: str = "127.0.0.1", inside: Sequence[str] = ()
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a broker that takes anybody."""
    file = folder / f"mosquitto-{port}.conf"
    file.write_text(f"listener {port} {host}\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 0\n")
    words = [*inside, str(BROKER), "-c", str(file)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not until(lambda: port in listening(process.pid)):
        raise TimeoutError("the broker does not listen")
    return process


def command(*words: str | Path, log: Path, inside: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as said:
        return subprocess.Popen(
            [*inside, sys.executable, "-m", "fedfloor", *map(str, words)], stdout=said, stderr=said, env=environment
        )


@dataclass
class Processes:
    """The processes of a park."""

    folder: Path
    what: Path
    port: int
    broker: subprocess.Popen[bytes]
    cloud_port: int
    cloud_broker: subprocess.Popen[bytes]
    devices: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    edges: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)
    hall: Sequence[str] = ()  # in which network broker and edges run
    floor: Sequence[str] = ()  # and devices
    fork: Callable[[Path], Any] | None = None  # starts a device another way

    def start_device(self, k: int) -> None:
        file = self.folder / f"device-d{k}.toml"
        log = self.folder / f"d{k}.log"
        self.devices[k] = self.fork(file) if self.fork else command("park", "device", file, log=log, inside=self.floor)

    def start_edge(self, m: int) -> None:
        self.edges[m] = command(
            "park", "edge", self.folder / f"edge-e{m}.toml", log=self.folder / f"e{m}.log", inside=self.hall
        )

    def cloud(self, *more: str) -> subprocess.Popen[bytes]:
        self.others.append(
            command("park", "cloud", self.folder / "cloud.toml", *more, log=self.folder / "cloud.log", inside=self.hall)
        )
        return self.others[-1]

    def logs(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.read_text()[-2000:]}" for one in sorted(self.folder.glob("*.log")))

    def everyone(self) -> Sequence[subprocess.Popen[bytes]]:
        return [*self.others, *self.edges.values(), *self.devices.values(), self.broker, self.cloud_broker]


@contextmanager
def processes(
    folder: Path, what: Path, deadlines: Deadlines | None = None, host: str = "127.0.0.1",
    hall: Sequence[str] = (), floor: Sequence[str] = (), data: Callable[[int], DataSource] | None = None,
    fork: Callable[[Path], Any] | None = None, flower: bool = False,
) -> Iterator[Processes]:  # fmt: skip
    park = build_park(config.read(what, []))
    port = free_port()
    where = Endpoint(host, port)
    samples = "devices" if data else "experiment"
    above = Endpoint("127.0.0.1", free_port())
    brokers = broker(folder, port, host, hall), above.port, broker(folder, above.port, inside=hall)
    made = Processes(folder, what, port, *brokers, hall=hall, floor=floor, fork=fork)
    try:
        for k in range(park.devices):
            settings = device_settings(folder, what, k, int(park.factory_of[k]), where, data(k) if data else None)
            (folder / f"device-d{k}.toml").write_text(to_toml(settings))
            made.start_device(k)
        for m in range(park.factories):
            edge = replace(
                edge_settings(folder, what, park, m, where, deadlines, None if flower else above), samples=samples
            )
            edge = replace(edge, state=folder / f"state-{m}")
            edge.state.mkdir()
            (folder / f"edge-e{m}.toml").write_text(to_toml(edge))
            made.start_edge(m)
        known = tuple(CloudEdge(f"e{m}", m) for m in made.edges)
        waits = replace(deadlines or Deadlines(round_s=300), join_s=120.0)  # the cloud begins before edges are there
        way: dict[str, Any] = {"transport": "flower"} if flower else {"broker": above}
        cloud = CloudSettings("trial", what, folder / "live", known, deadlines=waits, samples=samples, **way)
        (folder / "cloud.toml").write_text(to_toml(cloud))
        yield made
    finally:
        for one in made.everyone():
            if one.poll() is None:
                one.send_signal(signal.SIGCONT)
                one.terminate()
        for one in made.everyone():
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()


def rounds(park: Processes, until: Callable[[list[ledger.Line]], bool], deadline_s: float = 120) -> list[ledger.Line]:
    """Return the ledger's lines once they are as wanted."""
    path = park.folder / "live/ledger.jsonl"
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        lines = ledger.read(path) if path.exists() else []
        if until(lines):
            return lines
        time.sleep(0.2)
    raise TimeoutError(park.logs())
