"""What real machines cost beside the training itself: a visit through a broker, a round of FedGS, an idle agent.

A Mosquitto broker, with and without TLS, and agents as processes of this machine; the edge is in this process. Overhead
of a visit is the time from handing the model over until what came back may be mixed, less the seconds of training. That
of the cloud's round is the time from encoding the model for each factory until all have come back and are decoded, over
the cloud's broker, from edges that are processes of their own and send it back at once.
"""

from __future__ import annotations

import getpass
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import numpy as np

from fedfloor.base.errors import RunError
from fedfloor.deploy import cloud, edge, processes, provision
from fedfloor.deploy.message import MOST_BYTES, Message, decode, encode
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile
from fedfloor.deploy.settings import (
    CLOUD,
    CloudEdge,
    CloudSettings,
    DeviceSettings,
    EdgeSettings,
    Endpoint,
    Named,
    Tls,
    read,
    to_toml,
)
from fedfloor.deploy.signing import signer_of
from fedfloor.deploy.uplink import Downlink, Uplink
from fedfloor.engine.engine import FrozenExtractor
from fedfloor.plan.nodes import Work
from fedfloor.plan.schedule import Key
from fedfloor.runs import ledger

Row = dict[str, object]
FIGURES = (
    "payload_mb", "least_ms", "overhead_ms", "most_ms", "cpu_ms", "first_visit_s", "round_s", "most_s", "training_s",
)  # fmt: skip
PARK = "bench"
HERE = "127.0.0.1"
FEDGS = """
rounds = {rounds}
seed = 0
data.samples_per_device = 100
data.stream = {{ kind = "fifo", window = 32 }}
park = {{ devices = {devices}, factories = 1 }}
model.name = "{model}"
method.name = "fedgs"
methods.fedgs = {{ iterations = 50, devices = {devices}, random = {random}, work.batch_size = 32 }}
engine.shortcuts = "off"
"""


@dataclass(frozen=True)
class Case:
    """What is measured: visits to one device, rounds of FedGS with several, or the cloud's with factories."""

    name: str
    model: str
    devices: int = 1
    tls: bool = False
    factories: int = 0


PLAIN = (
    Case("visit 2NN", "mlp-2nn"),
    Case("visit FedGS's CNN", "cnn-fedgs"),
    Case("FedGS round, T = 50", "mlp-2nn", 10),
)
NUMBERS = {"mlp-2nn": 209_662, "cnn-fedgs": 6_603_710}  # of 62 classes
CASES = (
    *PLAIN,
    *(replace(one, name=f"{one.name}, TLS", tls=True) for one in PLAIN),
    Case("cloud's round 2NN, 2 factories, TLS", "mlp-2nn", tls=True, factories=2),
    Case("cloud's round FedGS's CNN, 2 factories, TLS", "cnn-fedgs", tls=True, factories=2),
)


def measure(cases: Sequence[Case], repeats: int, say: Callable[[str], None]) -> list[Row]:
    """Measure cases; return a row for each.

    Args:
        cases: what.
        repeats: visits, or a third as many rounds.
        say: told what is being measured.

    Raises:
        RunError: there is no Mosquitto, or a process did not come up.
    """
    rows = []
    for case in cases:
        say(case.name)
        if case.factories:
            with tempfile.TemporaryDirectory(prefix="ff-") as folder:
                rows.append({"case": case.name, **dict.fromkeys(FIGURES), **_exchanges(Path(folder), case, repeats)})
            continue
        with tempfile.TemporaryDirectory(prefix="ff-") as folder, _floor(Path(folder), case, repeats) as floor:
            row = _rounds(floor) if case.devices > 1 else _visits(floor, repeats)
            idle = floor.idle_mib
            busy = max(_resident(one.pid) for one in floor.agents)
        rows.append(
            {
                "case": case.name,
                **dict.fromkeys(FIGURES),
                **row,
                "agent_idle_mib": round(idle),
                "agent_busy_mib": round(busy),
            }
        )
    return rows


def _exchanges(folder: Path, case: Case, repeats: int) -> Row:
    """Time rounds of the cloud with edges that send back what they receive."""
    what = folder / "experiment.toml"
    what.write_text('name = "bench"\n')
    above, *ports = processes.free(1 + case.factories)
    factories = tuple(FactoryTable(f"e{m}", HERE, port, HERE) for m, port in enumerate(ports))
    devices = tuple(DeviceTable(f"d{m}", one.name) for m, one in enumerate(factories))
    park = ParkFile(PARK, what, CloudTable(HERE, above, HERE), factories, devices, folder=folder)
    place = folder / "park"
    provision.provision(park, place, user=getpass.getuser())
    (place / "cloud/state").mkdir()
    broker = started_broker(place / "cloud")
    over = list[float]()
    spent = list[float]()
    files = [place / "factories" / one.name / f"edge-{one.name}.toml" for one in factories]
    edges = [multiprocessing.get_context("spawn").Process(target=_send_back, args=(one,), daemon=True) for one in files]
    for process in edges:
        process.start()
    model = {"w": np.random.default_rng(0).standard_normal(NUMBERS[case.model], np.float32)}
    session = time.time_ns()
    most = dict.fromkeys(range(case.factories), MOST_BYTES)
    try:
        with Downlink(read(CloudSettings, place / "cloud/cloud.toml")) as way:
            first = Message("walk", CLOUD, session=session, arrays=model)
            signer = way.channel.filter.signer
            for number in range(repeats + 1):
                began = time.perf_counter()
                asked = {m: encode(replace(first, number=2 * number + m + 1, receiver=f"e{m}"), signer) for m in most}
                came = [decode(one) for one in way.request(asked, 120.0, most).values()]
                over.append(1000 * (time.perf_counter() - began))
                if number in (0, repeats):  # the first round is no measurement
                    spent.append(time.process_time() + sum(computed_s(one.pid) for one in (*edges, broker)))
                if len(came) < case.factories or not np.array_equal(came[-1].arrays["w"], model["w"]):
                    raise RunError("an edge did not answer: try again.")
    finally:
        for process in edges:
            process.terminate()
        broker.terminate()
        broker.wait()
    told = {"least_ms": min(over[1:]), "overhead_ms": statistics.median(over[1:]), "most_ms": max(over[1:])}
    told["cpu_ms"] = 1000 * (spent[1] - spent[0]) / repeats  # of cloud, broker and edges
    return {
        "payload_mb": round(4 * NUMBERS[case.model] / 1e6, 2),
        **{name: round(one, 1) for name, one in told.items()},
    }


def _send_back(file: Path) -> None:
    """Run an edge that sends back what it receives, until it is terminated."""
    numbers = count(1)
    session = time.time_ns()

    def answer(request: bytes) -> bytes:
        got = decode(request)
        back = Message("walked", name, session=session, number=next(numbers), answers=got.identity, arrays=got.arrays)
        return encode(replace(back, receiver=CLOUD), signer)

    settings = read(EdgeSettings, file)
    name = settings.name
    signer = signer_of(settings.tls, settings.name)
    with Uplink(settings, answer, session):
        threading.Event().wait()


def _visits(floor: _Floor, repeats: int) -> Row:
    """Time visits of one step; the first, in which the agent imports PyTorch, is told apart."""
    engine = floor.edge.engine
    factory = floor.edge.factory
    packet = {"w": engine.network.flat.clone()}
    over = []
    first_s = 0.0
    for visit in range(repeats + 2):
        before = factory.trained_s
        began = time.perf_counter()
        key = Key(engine.seed, 1, 0, 0, visit)
        if factory.visit(engine, Work(steps=1, batch_size=32), packet, key, FrozenExtractor(frozen=False)) is None:
            raise RunError("the device did not train: its log is gone with the folder; try again.")
        seconds = time.perf_counter() - began - (factory.trained_s - before)
        if visit == 0:
            first_s = seconds
        elif visit > 1:
            over.append(1000 * seconds)
    size = engine.network.size / 1e6
    figures = {"least_ms": min(over), "overhead_ms": statistics.median(over), "most_ms": max(over)}
    told = {name: round(one, 1) for name, one in figures.items()}
    return {"payload_mb": round(size, 2), **told, "first_visit_s": round(first_s, 1)}


def _rounds(floor: _Floor) -> Row:
    settings = CloudSettings(PARK, floor.what, floor.folder / "run", (CloudEdge("e0", 0),), Endpoint("127.0.0.1", 1))
    cloud.run(settings, floor)
    lines = ledger.read(settings.out / "ledger.jsonl")[1:]  # in the first round the agents import PyTorch
    walls = [line.wall_s for line in lines]
    trained = statistics.median((line.measured or {})["training_s"] for line in lines)
    return {
        "round_s": round(statistics.median(walls), 2),
        "most_s": round(max(walls), 2),
        "training_s": round(trained, 2),
    }


@dataclass
class _Floor:
    """A broker, agents and an edge; also the way from the cloud to that edge."""

    folder: Path
    what: Path
    edge: edge.Edge
    agents: list[subprocess.Popen[bytes]]
    idle_mib: float = field(default=0.0)

    def ask(
        self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]  # noqa: ARG002
    ) -> dict[int, bytes]:  # fmt: skip
        """Ask the edge."""
        return {factory: self.edge.answer(frame) for factory, frame in messages.items()}


@contextmanager
def _floor(folder: Path, case: Case, repeats: int) -> Iterator[_Floor]:
    what = folder / "experiment.toml"
    (port,) = processes.free(1)
    what.write_text(
        FEDGS.format(
            rounds=1 + max(1, repeats // 3), devices=case.devices, random=min(2, case.devices - 1), model=case.model
        )
    )
    names = tuple(Named(f"d{k}", k) for k in range(case.devices))
    place = _provisioned(folder, what, port, names) if case.tls else open_to_anybody(folder, port)
    where = Endpoint("127.0.0.1", port)
    started = [started_broker(place)]
    try:
        for one in names:
            file = folder / f"{one.name}.toml"
            own = folder / one.name
            tls = _tls(folder, one.name, "device") if case.tls else None
            device = DeviceSettings(PARK, one.name, 0, one.device, where, what, own, own, tls, edge="e0")
            file.write_text(to_toml(device))
            started.append(subprocess.Popen([sys.executable, "-m", "fedfloor", "park", "device", str(file)]))
        tls = _tls(folder, "e0", "edge") if case.tls else None
        made = edge.of(EdgeSettings(PARK, "e0", 0, where, what, folder, names, tls=tls))
        made.start()
        made.channel.resume()
        floor = _Floor(folder, what, made, started[1:])
        floor.idle_mib = max(_resident(one.pid) for one in floor.agents)
        yield floor
        made.stop()
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            process.wait()


def open_to_anybody(folder: Path, port: int) -> Path:
    """Write the settings of a broker that takes anybody; return its folder."""
    told = f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nlog_dest none\n"
    (folder / "mosquitto.conf").write_text(told)
    return folder


def _provisioned(folder: Path, what: Path, port: int, names: Sequence[Named]) -> Path:
    """Write certificates, and the settings of a broker that asks for them; return its folder."""
    devices = tuple(DeviceTable(one.name, "e0") for one in names)
    park = ParkFile(PARK, what, CloudTable(HERE), (FactoryTable("e0", HERE, port, bind=HERE),), devices, folder=folder)
    provision.provision(park, folder / "park", user=getpass.getuser())
    place = folder / "park" / "factories" / "e0"
    (place / "state").mkdir()
    return place


def _tls(folder: Path, name: str, kind: str) -> Tls:
    place = folder / "park" / ("factories" if kind == "edge" else "devices") / name
    return Tls(place / "ca.crt", place / f"{kind}.crt", place / f"{kind}.key")


def computed_s(process: int | None) -> float:
    """Return the processor seconds that a process has spent."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started_broker(folder: Path) -> subprocess.Popen[bytes]:
    """Start the broker of a folder's settings.

    Raises:
        RunError: Mosquitto is not installed.
    """
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise RunError("there is no Mosquitto on this machine: apt install mosquitto.")
    return subprocess.Popen([program, "-c", "mosquitto.conf"], cwd=folder, stderr=subprocess.DEVNULL)


def _resident(process: int) -> float:
    """Return a process's resident memory, MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
