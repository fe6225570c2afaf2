"""A park of real machines in one process: an in-memory broker, agents and edges in threads."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedfloor import config
from fedfloor.deploy import authority, cloud
from fedfloor.deploy.device import Agent
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.mqtt import Connection, nothing
from fedfloor.deploy.settings import (
    CloudEdge,
    CloudSettings,
    DataSource,
    Deadlines,
    DeviceSettings,
    EdgeSettings,
    Endpoint,
    Named,
    Tls,
)
from fedfloor.experiment import Experiment
from fedfloor.methods.fedavg import FedAvg
from fedfloor.park.park import Park
from fedfloor.runs import launch, ledger
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.parks import build_park

NOWHERE = Endpoint("127.0.0.1", 1)
SMALL = """
name = "live"
rounds = {rounds}
data.samples_per_device = 24
park = {{ devices = {devices}, factories = {factories} }}
model.name = "{model}"
method.name = "{method}"
work = {{ batch_size = 10, momentum = 0.5, lr = 0.05 }}
engine.shortcuts = "off"
methods.hierfavg.edge_rounds = 2
{more}
"""
MORE = {
    "fedgs": "data.stream = { kind = 'fifo', window = 10 }\n"
    "methods.fedgs = { iterations = 4, devices = 2, random = 1, work.batch_size = 5 }",
    "hfedms": "data.stream = { kind = 'fifo', window = 10 }\nmethods.hfedms = { period = 2, share = 1.0, memory = 5 }",
    "boosting": "methods.boosting = { depth = 2, bins = 4 }",  # its sums are of 784 features and 62 classes
}


def experiment(
    folder: Path, method: str, rounds: int = 2, devices: int = 8, model: str = "logistic", more: str = "",
    factories: int = 2,
) -> Path:  # fmt: skip
    path = folder / "experiment.toml"
    more = more or MORE.get(method, "")
    park = {"devices": devices, "factories": factories}
    path.write_text(SMALL.format(method=method, rounds=rounds, model=model, more=more, **park))
    return path


def matches(pattern: str, topic: str) -> bool:
    """MQTT's rule, for patterns with "+"."""
    ours, theirs = pattern.split("/"), topic.split("/")
    return len(ours) == len(theirs) and all(a in ("+", b) for a, b in zip(ours, theirs, strict=True))


@dataclass(frozen=True)
class Abroad(FedAvg):
    """A method of one's own: its chains may cross factories."""


@dataclass
class Broker:
    """An MQTT broker without a network."""

    links: list[InMemory] = field(default_factory=list)
    retained: dict[str, bytes] = field(default_factory=dict)
    said: list[tuple[str, bytes]] = field(default_factory=list)

    def deliver(self, topic: str, payload: bytes, retain: bool) -> None:
        self.said.append((topic, payload))
        if retain:
            self.retained[topic] = payload
        for link in list(self.links):
            link.offer(topic, payload)


def member(folder: Path, ca: authority.Authority, name: str) -> Tls:
    """Issue a certificate of a park."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Tls(folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key")
    holder = authority.Holder(name, device=re.fullmatch(r"d\d+", name) is not None)
    cert, key = authority.issue(ca, holder, 30, authority.now())
    for path, text in zip((files.ca, files.cert, files.key), (ca.pem()[0], cert, key), strict=True):
        path.write_bytes(text)
    return files


class InMemory:
    """A link to :class:`Broker`."""

    def __init__(self, broker: Broker, will: tuple[str, bytes] | None = None) -> None:
        self.broker = broker
        self.will = will
        self.inbox: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self.topics: Sequence[str] = ()

    def start(
        self,
        topics: Sequence[str],
        heard: Callable[[str, bytes], None],
        joined: Callable[[], None],
        lost: Callable[[], None] = nothing,
    ) -> None:
        self.topics = topics
        self.broker.links.append(self)
        for topic, payload in list(self.broker.retained.items()):
            self.offer(topic, payload)
        joined()

        def listen() -> None:
            while (got := self.inbox.get()) is not None:
                heard(*got)

        threading.Thread(target=listen, daemon=True).start()

    def confirm(self, do: Callable[[], None]) -> None:
        do()

    def subscribe(self, topics: Sequence[str]) -> None:
        self.topics = [*self.topics, *topics]

    def unsubscribe(self, topics: Sequence[str]) -> None:
        self.topics = [one for one in self.topics if one not in topics]

    def offer(self, topic: str, payload: bytes) -> None:
        if any(matches(one, topic) for one in self.topics):
            self.inbox.put((topic, payload))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.broker.deliver(topic, payload, retain)

    def stop(self) -> None:
        if self in self.broker.links:
            self.broker.links.remove(self)
        self.inbox.put(None)

    def die(self) -> None:
        """Vanish as a killed process does: the broker tells the last will."""
        self.stop()
        if self.will:
            self.broker.deliver(*self.will, True)


def device_settings(
    folder: Path, what: Path, device: int, factory: int, broker: Endpoint = NOWHERE, data: DataSource | None = None
) -> DeviceSettings:
    place = folder / f"device-{device}"
    return DeviceSettings(
        "trial",
        f"d{device}",
        factory,
        device,
        broker,
        what,
        place / "memory",
        place,
        data=data or DataSource(),
        edge=f"e{factory}",
        visitors=tuple(f"e{m}" for m in range(9) if m != factory),
    )


def edge_settings(
    folder: Path, what: Path, park: Park, factory: int, broker: Endpoint = NOWHERE, deadlines: Deadlines | None = None,
    cloud: Endpoint | None = NOWHERE,
) -> EdgeSettings:  # fmt: skip
    every = {k: int(m) for k, m in enumerate(park.factory_of)}
    own = tuple(Named(f"d{k}", k) for k, m in every.items() if m == factory)
    others = tuple(Named(f"d{k}", k, f"e{m}") for k, m in every.items() if m != factory)
    return EdgeSettings(
        "trial", f"e{factory}", factory, broker, what, folder, own, others,
        deadlines=deadlines or Deadlines(60, 60, 20, 120), cloud=cloud,
    )  # fmt: skip


@dataclass
class Inside:
    """The way from the cloud to edges in the same process."""

    edges: Mapping[int, Edge]

    def request(self, messages: Mapping[int, bytes], deadline_s: float, most: Mapping[int, int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=lambda m=m, one=one: found.update({m: self.edges[m].answer(one)}))
            for m, one in messages.items()
            if m in self.edges
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(deadline_s)
        return dict(found)  # later answers are lost


@dataclass
class Live:
    """A park of agents and edges."""

    what: Path
    folder: Path
    broker: Broker
    agents: dict[int, Agent]
    links: dict[int, Any]
    edges: dict[int, Edge]
    join: Callable[[int], None]
    samples: str = "experiment"
    deadlines: Deadlines = field(default_factory=lambda: Deadlines(round_s=120))
    tls: Callable[[str], Tls | None] = lambda _: None

    def settings(self, out: str = "live") -> CloudSettings:
        known = tuple(CloudEdge(f"e{m}", m) for m in self.edges)
        return CloudSettings(
            "trial", self.what, self.folder / out, known, NOWHERE, self.tls("cloud"), deadlines=self.deadlines,
            samples=self.samples,
        )  # fmt: skip

    def run(self, out: str = "live", **more: object) -> list[ledger.Line]:
        cloud.run(self.settings(out), Inside(self.edges), **more)  # type: ignore[arg-type]
        return ledger.read(self.folder / out / "ledger.jsonl")


Connect = Callable[[str, int, "tuple[str, bytes] | None"], Connection]  # name, factory, last will


@contextmanager
def live(
    folder: Path, what: Path, deadlines: Deadlines | None = None, connect: Connect | None = None,
    data: Callable[[int], DataSource] | None = None, ca: authority.Authority | None = None,
) -> Iterator[Live]:  # fmt: skip
    """A running park; its links are in memory unless ``connect`` makes others.

    Devices hold their share of the experiment's data, or with ``data`` say what they hold. With an authority everybody
    signs.
    """

    def tls(name: str) -> Tls | None:
        return None if ca is None else member(folder / "tls", ca, name)

    read = config.read(what, [])
    park = build_park(read)
    broker = Broker()
    connect = connect or (lambda name, factory, will: InMemory(broker, will))
    agents: dict[int, Agent] = {}
    every: list[Agent] = []  # with those in whose place others came
    links: dict[int, Any] = {}

    def join(k: int) -> None:
        def link(will: tuple[str, bytes]) -> Connection:
            links[k] = connect(f"d{k}", int(park.factory_of[k]), will)
            return links[k]

        source = data(k) if data else None
        settings = device_settings(folder, what, k, int(park.factory_of[k]), data=source)
        agents[k] = Agent(replace(settings, tls=tls(f"d{k}")), read, None if data else park, link)
        every.append(agents[k])
        threading.Thread(target=agents[k].run, daemon=True).start()

    for k in range(park.devices):
        join(k)
    samples = "devices" if data else "experiment"
    edges = {
        m: Edge(
            replace(one, samples=samples, tls=tls(f"e{m}")), read, None if data else park, connect(f"e{m}", m, None)
        )
        for m in range(park.factories)
        for made in [edge_settings(folder, what, park, m, deadlines=deadlines)]
        for one in [replace(made, samples=samples, tls=tls(f"e{m}"))]
    }
    for edge in edges.values():
        edge.start()
    try:
        yield Live(what, folder, broker, agents, links, edges, join, samples, tls=tls)
    finally:
        for agent in every:
            agent.leave()
        for edge in edges.values():
            edge.stop()


def simulated(what: Path, out: Path, rounds: int | None = None) -> tuple[Experiment, list[ledger.Line]]:
    read = config.read(what, [])
    launch.start(read, Orders(out, limits=Limits(stop_after=rounds)), 1, launch.ignore)
    return read, ledger.read(out / "ledger.jsonl")


def figures(line: ledger.Line) -> dict[str, object]:
    """A ledger line but for what is measured."""
    return {name: one for name, one in vars(line).items() if name not in ("wall_s", "measured")}
