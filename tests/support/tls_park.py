"""A park of agents and edges in threads, whose brokers are real processes that speak TLS and are bridged."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedfloor import config
from fedfloor.deploy import provision
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile
from fedfloor.deploy.settings import Deadlines, Endpoint, Tls
from fedfloor.runs.parks import build_park
from live_park import Live, live
from parks import Broker, broker, free_port

HERE = "127.0.0.1"


@dataclass
class Secured:
    """A running park, its park file, its brokers, and the folder its certificates lie in."""

    live: Live
    park: ParkFile
    brokers: dict[int, Broker]
    out: Path

    def home(self, k: int) -> int:
        return int(self.park.device[k].factory[1:])


def described(folder: Path, what: Path) -> ParkFile:
    """The park of an experiment, on ports that are free."""
    stands = build_park(config.read(what, [])).factory_of.tolist()
    factories = tuple(FactoryTable(f"e{m}", HERE, free_port(), HERE) for m in range(max(stands) + 1))
    devices = tuple(DeviceTable(f"d{k}", f"e{m}") for k, m in enumerate(stands))
    return ParkFile("trial", what, CloudTable(HERE, free_port(), HERE), factories, devices, folder=folder)


@contextmanager
def secured(folder: Path, what: Path, deadlines: Deadlines | None = None) -> Iterator[Secured]:
    """Provision a park and start it."""
    park = described(folder, what)
    out = folder / "out"
    provision.provision(park, out, user=getpass.getuser())

    def connect(name: str, factory: int, will: tuple[str, bytes] | None) -> MqttConnection:
        stem, place = ("edge", out / "factories") if name.startswith("e") else ("device", out / "devices")
        files = Tls(*(place / name / one for one in ("ca.crt", f"{stem}.crt", f"{stem}.key")))
        return MqttConnection(name, Endpoint(HERE, park.factory[factory].port), files, will)

    with ExitStack() as stack:
        started = [stack.enter_context(broker(out / place, one.port)) for place, one in provision.hubs(park)]
        brokers = dict(enumerate(started[1:]))
        running = stack.enter_context(live(folder, what, deadlines, connect))
        yield Secured(running, park, brokers, out)
