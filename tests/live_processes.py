"""A park of real processes on this machine: a Mosquitto broker without TLS, agents, edges."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fedfloor import config
from fedfloor.deploy.settings import Address, CloudEdge, CloudSettings, DataSource, Deadlines, read, to_toml
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park
from live_park import device_settings, edge_settings

BROKER = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
needs_broker = pytest.mark.skipif(BROKER is None, reason="needs Mosquitto: apt install mosquitto")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def broker(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a broker that takes anybody."""
    file = folder / "mosquitto.conf"
    file.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_queued_messages 0\n")
    process = subprocess.Popen([str(BROKER), "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.02)
    raise TimeoutError("the broker does not listen")


def command(*words: str | Path, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "fedfloor", *map(str, words)], stdout=said, stderr=said, env=environment
        )


@dataclass
class Processes:
    """The processes of a park."""

    folder: Path
    what: Path
    port: int
    broker: subprocess.Popen[bytes]
    devices: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    edges: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_device(self, k: int) -> None:
        self.devices[k] = command("device", self.folder / f"device-d{k}.toml", log=self.folder / f"d{k}.log")

    def start_edge(self, m: int) -> None:
        self.edges[m] = command("edge", self.folder / f"edge-e{m}.toml", log=self.folder / f"e{m}.log")

    def cloud(self, *more: str) -> subprocess.Popen[bytes]:
        self.others.append(command("cloud", self.folder / "cloud.toml", *more, log=self.folder / "cloud.log"))
        return self.others[-1]

    def wait_for_doors(self, deadline_s: float = 60) -> None:
        until = time.monotonic() + deadline_s
        while not all((self.folder / f"e{m}.sock").exists() for m in self.edges):
            if time.monotonic() > until:
                raise TimeoutError(self.logs())
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.read_text()[-2000:]}" for one in sorted(self.folder.glob("*.log")))

    def everyone(self) -> Sequence[subprocess.Popen[bytes]]:
        return [*self.others, *self.edges.values(), *self.devices.values(), self.broker]


@contextmanager
def processes(
    folder: Path, what: Path, deadlines: Deadlines | None = None, data: Callable[[int], DataSource] | None = None
) -> Iterator[Processes]:
    park, port = build_park(config.read(what, [])), free_port()
    where, samples = Address("127.0.0.1", port), "devices" if data else "experiment"
    made = Processes(folder, what, port, broker(folder, port))
    try:
        for k in range(park.devices):
            settings = device_settings(folder, what, k, int(park.factory_of[k]), where, data(k) if data else None)
            (folder / f"device-d{k}.toml").write_text(to_toml(settings))
            made.start_device(k)
        for m in range(park.factories):
            edge = replace(edge_settings(folder, what, park, m, where, deadlines), samples=samples)
            (folder / f"edge-e{m}.toml").write_text(to_toml(edge))
            made.start_edge(m)
        known = tuple(CloudEdge(f"e{m}", m, Address(socket=folder / f"e{m}.sock")) for m in made.edges)
        cloud = CloudSettings("trial", what, folder / "live", known, deadlines=deadlines or Deadlines(round_s=300),
                              samples=samples)  # fmt: skip
        (folder / "cloud.toml").write_text(to_toml(cloud))
        made.wait_for_doors()
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


FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
}


def flower(park: Processes) -> None:
    """Start a SuperLink and a SuperNode for each edge, without TLS, and let the cloud use them."""
    folder = park.folder
    programs = Path(sys.executable).parent
    port = free_port()
    path = os.pathsep.join((str(programs), os.environ["PATH"]))  # Flower starts programs of its own
    environment = {**os.environ, **FLOWER, "FLWR_HOME": str(folder / "link"), "PATH": path}

    def start(name: str, *words: str, **more: str) -> None:
        with (folder / f"{name}.log").open("ab") as said:
            park.others.append(
                subprocess.Popen(
                    [str(programs / words[0]), *words[1:]], stdout=said, stderr=said, env={**environment, **more}
                )
            )

    start(
        "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
        "--disable-runtime-dependency-installation",
    )  # fmt: skip
    until = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
        time.sleep(0.1)
    for m in park.edges:
        start(
            f"node{m}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port",
            str(free_port()), "--node-config", f"factory={m}",
            FEDFLOOR_EDGE=str(folder / f"edge-e{m}.toml"), FLWR_HOME=str(folder / f"node{m}"),
        )  # fmt: skip
    settings = read(CloudSettings, folder / "cloud.toml")
    (folder / "cloud.toml").write_text(to_toml(replace(settings, superlink=Address("127.0.0.1", port))))


def rounds(park: Processes, until: Callable[[list[ledger.Line]], bool], deadline_s: float = 120) -> list[ledger.Line]:
    """Return the ledger's lines once they are as wanted."""
    path, end = park.folder / "live/ledger.jsonl", time.monotonic() + deadline_s
    while time.monotonic() < end:
        lines = ledger.read(path) if path.exists() else []
        if until(lines):
            return lines
        time.sleep(0.05)
    raise TimeoutError(park.logs())
