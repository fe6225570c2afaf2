"""Publishers for tests of sensors: Sparkplug B payloads by hand, a broker without TLS, an OPC UA server."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from parks import MOSQUITTO, free_port, until

BEGIN = 1_790_000_000  # s since 1970, in the past


def varint(value: int) -> bytes:
    """A whole number as protobuf writes it: seven bits a byte, the lowest first, the eighth where others follow."""
    out = bytearray()
    while True:
        low = value & 0x7F
        value = value >> 7
        out.append(low | 0x80 * bool(value))
        if not value:
            return bytes(out)


def field(number: int, value: object, wire: int | None = None) -> bytes:
    """A field: number and wire type (0: varint, 1: eight bytes, 2: with its length, 5: four bytes), and the value."""
    if isinstance(value, bool | int):
        return varint(number << 3) + varint(int(value))
    if isinstance(value, float):
        form, wire = ("<f", 5) if wire == 5 else ("<d", 1)
        return varint(number << 3 | wire) + struct.pack(form, value)
    data = value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]
    return varint(number << 3 | 2) + varint(len(data)) + data


def metric(
    value: object = None,
    name: str = "",
    alias: int | None = None,
    ms: int | None = None,
    datatype: int = 10,
    historical: bool = False,
) -> bytes:
    """A metric of the specification, 6.4; ``datatype`` 3: Int32, 8: UInt64, 9: Float, 10: Double, 11: Boolean."""
    numbers = {3: 10, 4: 11, 8: 11, 9: 12, 10: 13, 11: 14, 12: 15}
    out = field(1, name) if name else b""
    out += b"" if alias is None else field(2, alias)
    out += b"" if ms is None else field(3, ms)
    out += field(4, datatype) if name else b""
    out += field(5, True) if historical else b""
    if value is None:
        return out + field(7, True)
    if isinstance(value, int) and value < 0:
        value += 1 << (32 if datatype == 3 else 64)
    return out + field(numbers[datatype], value, 5 if datatype == 9 else None)


def payload(ms: int, seq: int | None, *metrics: bytes) -> bytes:
    out = field(1, ms) + b"".join(field(2, one) for one in metrics)
    return out + (b"" if seq is None else field(3, seq))


@contextmanager
def open_broker(folder: Path, port: int | None = None) -> Iterator[int]:
    """A broker that lets everybody in; yields its port."""
    port = port or free_port()
    (folder / "open.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
    assert MOSQUITTO is not None
    process = subprocess.Popen([MOSQUITTO, "-c", str(folder / "open.conf")], stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: _listens(port), 20)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


OPCUA = """
import asyncio, math, sys
from datetime import UTC, datetime, timedelta
from asyncua import Server, ua

async def serve(port, nodes, begin, pace_s, kept, names):
    server = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}")
    index = await server.register_namespace("plant")
    press = await server.nodes.objects.add_object(index, "Press")
    every = [await press.add_variable(ua.NodeId(f"Press.{i}", index), f"S{i}", 0.0) for i in range(nodes)]
    state = await press.add_variable(ua.NodeId("Press.State", index), "State", "ok")
    before = datetime.fromtimestamp(begin + int(names or 0) - 1, UTC)
    for node, value in [(node, 0.0) for node in every if begin] + [(state, "ok")]:
        await node.write_value(ua.DataValue(ua.Variant(value), SourceTimestamp=before))
    async with server:
        for node in every if kept else ():
            await server.historize_node_data_change(node, period=None, count=100_000)
        print("up", flush=True)
        step = int(names or 0)
        while True:
            moment = datetime.fromtimestamp(begin + step, UTC) if begin else datetime.now(UTC).replace(microsecond=0)
            for i, node in enumerate(every):
                value = ua.Variant(math.sin(step / 5 + i))
                await node.write_value(ua.DataValue(value, SourceTimestamp=moment))
            if step % 20 == 0:
                text = ("ok", "worn")[step // 20 % 2]
                await state.write_value(ua.DataValue(ua.Variant(text), SourceTimestamp=moment))
            step += 1
            await asyncio.sleep(pace_s)

port, nodes, begin, pace_s, kept, names = sys.argv[1:]
asyncio.run(serve(int(port), int(nodes), float(begin), float(pace_s), kept == "kept", names))
"""


@contextmanager
def opcua_server(
    nodes: int, begin: float = BEGIN, pace_s: float = 1.0, port: int | None = None, kept: bool = False, step: int = 0
) -> Iterator[int]:
    """An OPC UA server; its nodes ``ns=2;s=Press.0``, … change once a step, a second of its clock. Yields its port.

    Args:
        begin: its clock at step 0; 0: the clock of this machine.
        pace_s: real seconds of a step.
        kept: whether it keeps a history.
    """
    pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
    port = port or free_port()
    words = [str(port), str(nodes), str(begin), str(pace_s), "kept" if kept else "", str(step)]
    process = subprocess.Popen(
        [sys.executable, "-c", OPCUA, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield port
    finally:
        process.kill()
        process.wait(20)


class SparkplugNode:
    """A Sparkplug edge node: it stores what it measures while its connection is cut, and sends that afterwards."""

    def __init__(self, port: int, sensors: int) -> None:
        self.port = port
        self.sensors = sensors
        self.births = -1
        self.stored = list[tuple[int, list[float]]]()
        self.client: Any = None

    def topic(self, kind: str) -> str:
        return f"spBv1.0/plant/{kind}/press"

    def connect(self) -> None:
        from paho.mqtt import client as mqtt
        from paho.mqtt.enums import CallbackAPIVersion

        self.births += 1
        client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        death = payload(int(time.time() * 1e3), None, metric(self.births, "bdSeq", datatype=8))
        client.will_set(self.topic("NDEATH"), death, qos=1)
        client.on_message = lambda *_: self.birth()
        client.on_connect = lambda *_: (client.subscribe(self.topic("NCMD"), 1), self.birth())
        client.max_inflight_messages_set(1000)
        self.client = client
        client.connect("127.0.0.1", self.port, 10)
        client.loop_start()
        assert until(lambda: self.seq >= 0, 20)

    seq = -1
    last: tuple[int, list[float]] = (0, [])

    def birth(self) -> None:
        ms, values = self.last
        metrics = [metric(value, f"Press/{i}", i, ms) for i, value in enumerate(values or [0.0] * self.sensors)]
        self.seq = 0
        born = payload(int(time.time() * 1e3), 0, metric(self.births, "bdSeq", datatype=8), *metrics)
        self.client.publish(self.topic("NBIRTH"), born, qos=0)

    def send(self, ms: int, values: list[float], historical: bool = False) -> None:
        self.seq = (self.seq + 1) % 256
        metrics = [metric(value, alias=i, ms=ms, historical=historical) for i, value in enumerate(values)]
        self.client.publish(self.topic("NDATA"), payload(ms, self.seq, *metrics), qos=0)

    def measure(self, ms: int, values: list[float]) -> None:
        self.last = ms, values
        if self.client is None:
            self.stored.append((ms, values))
        else:
            self.send(ms, values)

    def cut(self) -> None:
        """The cable is pulled: no good-bye to the broker."""
        self.client._sock_close()
        self.client.loop_stop()
        self.client = None
        self.seq = -1

    def mend(self) -> None:
        self.connect()
        for ms, values in self.stored:
            self.send(ms, values, historical=True)
        self.stored.clear()


class Cable:
    """A TCP connection that can be cut: it hands on to another port."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.whole = True
        self.ends = list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            if not self.whole:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            self.ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.whole = False
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.ends.clear()

    def mend(self) -> None:
        self.whole = True
