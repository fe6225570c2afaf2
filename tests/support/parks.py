"""Parks for tests of deployment: park files, provisioned folders, brokers and clients that are real processes."""

from __future__ import annotations

import datetime as dt
import os
import queue
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedfloor.deploy import processes, provision
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
needs_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="Mosquitto is not installed (apt install mosquitto)")
WAIT_S = 10
PACE_S = 0.02
TOP = "fedfloor/plant"
NOW = dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)
PARK = """
experiment = "tiny.toml"
[cloud]
address = "cloud.example"
[[factory]]
name = "north"
address = "10.0.0.2"
[[factory]]
name = "south"
address = "10.0.0.3"
[[device]]
name = "camera"
factory = "north"
[[device]]
name = "robot"
factory = "south"
data = { kind = "folder", path = "/srv/robot" }
"""


_GIVEN: set[int] = set()


def free_port() -> int:
    """A TCP port that is free, and that this process has not given before: the system may offer one twice."""
    while True:
        (port,) = processes.free(1)
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port


def plant(folder: Path, devices: tuple[tuple[str, str], ...] = (), **more: Any) -> ParkFile:
    """Two factories on this machine; two devices in each unless others are named (name, factory)."""
    experiment = folder / "given.toml"
    if not experiment.exists():
        experiment.write_text('name = "given"\nmethod.name = "ring"\n')  # its rounds cross factories
    listed = devices or (("n0", "north"), ("n1", "north"), ("s0", "south"), ("s1", "south"))
    factories = tuple(
        FactoryTable(name, "127.0.0.1", port=18831 + i, bind="127.0.0.1") for i, name in enumerate(("north", "south"))
    )
    made = tuple(DeviceTable(name, factory) for name, factory in listed)
    return ParkFile("plant", experiment, CloudTable("127.0.0.1"), factories, made, **more)


def provisioned(park: ParkFile, folder: Path, **more: object) -> provision.Done:
    """Provision a park into ``folder/out`` at noon of a day in May."""
    return provision.provision(park, folder / "out", at=NOW, **more)  # type: ignore[arg-type]


@dataclass
class Broker:
    """A running Mosquitto in its folder."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def broker(folder: Path, port: int) -> Iterator[Broker]:
    """Start the broker of a provisioned factory, and wait until it listens."""
    (folder / "state").mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([str(MOSQUITTO), "-c", "mosquitto.conf"], cwd=folder, stdout=log, stderr=log)
    try:
        until(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield Broker(folder, port, process)
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    own = set()
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            own.add(os.readlink(path))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(int(fields[1].rsplit(":", 1)[1], 16))
    return found


def until(what: Any, seconds: float = WAIT_S) -> bool:
    """Wait until ``what()``, which is quick, is true; sleep for that many seconds in all.

    A time in which the whole machine stood still does not count.
    """
    for _ in range(round(seconds / PACE_S)):
        if what():
            return True
        time.sleep(PACE_S)
    return bool(what())


class Client:
    """An MQTT 5 client with a certificate; what it hears waits in ``heard``."""

    def __init__(self, port: int, folder: Path, stem: str | None, ca: Path | None = None, client_id: str = "") -> None:
        from paho.mqtt import client as mqtt

        self.heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.acks: queue.Queue[int] = queue.Queue()
        self.granted: queue.Queue[int] = queue.Queue()
        self.up = self.gone = False
        self.mqtt = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5)
        self.mqtt.on_message = lambda c, d, message: self.heard.put((message.topic, message.payload))
        self.mqtt.on_connect = self._connected
        self.mqtt.on_disconnect = self._disconnected
        self.mqtt.on_publish = lambda c, d, mid, code, properties: self.acks.put(code.value)
        self.mqtt.on_subscribe = lambda c, d, mid, codes, properties: self.granted.put(codes[0].value)
        self.mqtt.on_socket_open = lambda c, d, sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keys = () if stem is None else (str(folder / f"{stem}.crt"), str(folder / f"{stem}.key"))
        self.mqtt.tls_set(str(ca or folder / "ca.crt"), *keys, tls_version=ssl.PROTOCOL_TLS_CLIENT)
        try:
            self.mqtt.connect("127.0.0.1", port, keepalive=30)
        except (OSError, ssl.SSLError):
            self.gone = True
            return
        self.mqtt.loop_start()
        until(lambda: self.up or self.gone)

    def _connected(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        self.up = not code.is_failure

    def _disconnected(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        self.gone = True
        self.mqtt.loop_stop()

    def publish(self, topic: str, payload: bytes = b"x", retain: bool = False) -> int:
        """Publish and return the broker's reason code (0: taken, 135: not authorised)."""
        self.mqtt.publish(topic, payload, qos=1, retain=retain)
        return self.acks.get(timeout=WAIT_S)

    def says(self, topic: str, payload: bytes = b"x", retain: bool = False) -> bool:
        """Publish and return whether the broker took it, for nobody (16) or for somebody (0)."""
        return self.publish(topic, payload, retain) in (0, 16)

    def subscribe(self, topic: str) -> int:
        self.mqtt.subscribe(topic, qos=1)
        return self.granted.get(timeout=WAIT_S)

    def hears(self, seconds: float = WAIT_S) -> tuple[str, bytes] | None:
        try:
            return self.heard.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        self.mqtt.disconnect()
        self.mqtt.loop_stop()
