"""What is started on each machine, as commands, systemd units and a compose file; all in the machine's own folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath

from fedfloor.deploy.broker import FILES
from fedfloor.deploy.park_file import Device, Factory, ParkFile

STATE = "state"  # what a process writes lies here; the rest of its folder is never written to
ACL = "acl"
NODE_STATE = "state/node"
FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}  # fmt: skip
CACHES = {"FEDFLOOR_CACHE": f"{STATE}/cache", "NUMBA_CACHE_DIR": f"{STATE}/cache/numba"}  # who is shut in has no home
ALONE = {"OMP_NUM_THREADS": "1"}  # two threads change results (and a gateway has other work)


@dataclass(frozen=True)
class Service:
    """A long-lived process.

    Args:
        name: of its unit.
        about: what it is.
        words: its command; relative paths begin in the machine's folder.
        env: its environment, beside what it inherits.
        paths: more of it: files in the machine's folder, which whoever starts it writes out whole.
        after: services of the same machine that must be there before.
        idle: whether it ends by itself, with its work.
        files: how many it may have open; 0: the system's usual number.
        writes: a file beside its state that it may overwrite.
    """

    name: str
    about: str
    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    after: Sequence[str] = ()
    idle: bool = False
    files: int = 0
    writes: str = ""


def cloud(park: ParkFile) -> tuple[Service, ...]:
    """Return what runs on the cloud's machine: Flower's SuperLink and, for a run, the cloud's loop."""
    link = (
        "python", "-m", "fedfloor.deploy.superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "superlink.crt",
        "--ssl-keyfile", "superlink.key", "--enable-supernode-auth", "--host", park.cloud.bind, "--port",
        str(park.cloud.port), "--disable-runtime-dependency-installation",
    )  # fmt: skip
    flower, home = FLOWER | ALONE, {"FLWR_HOME": "state/flwr"}
    return (
        Service("fedfloor-superlink", "Flower SuperLink", link, flower, home),
        Service("fedfloor-cloud", "fedfloor cloud", ("fedfloor", "cloud", "cloud.toml"), flower, home,
                ("fedfloor-superlink",), idle=True),
    )  # fmt: skip


def factory(park: ParkFile, one: Factory) -> tuple[Service, ...]:
    """Return what runs on a factory's base station: the broker, the edge and the SuperNode."""
    node = (
        "flower-supernode", "--root-certificates", "ca.crt", "--superlink", park.cloud.place,
        "--host", "127.0.0.1", "--port", str(one.node_port), "--auth-supernode-private-key", "node",
        "--node-config", node_config(park, one),
    )  # fmt: skip
    flower, paths = FLOWER | ALONE, {"FLWR_HOME": NODE_STATE, "FEDFLOOR_EDGE": f"edge-{one.name}.toml"}
    return (
        Service("fedfloor-broker", f"broker of {one.name}", ("mosquitto", "-c", "mosquitto.conf"), files=FILES),
        Service("fedfloor-edge", f"edge of {one.name}", ("fedfloor", "edge", f"edge-{one.name}.toml"), ALONE,
                after=("fedfloor-broker",), writes=ACL),
        Service("fedfloor-supernode", f"Flower SuperNode of {one.name}", node, flower, paths, ("fedfloor-edge",)),
    )  # fmt: skip


def node_config(park: ParkFile, one: Factory) -> str:
    """Return what a SuperNode says of itself."""
    return f"factory={park.factory.index(one)}"


def device(one: Device) -> tuple[Service, ...]:
    """Return what runs on a device: its agent."""
    words = ("fedfloor", "device", f"device-{one.name}.toml")
    return (Service("fedfloor-device", f"device {one.name}", words, ALONE),)


def environment(service: Service, folder: PurePath) -> dict[str, str]:
    """Return a service's environment where its machine's folder is ``folder``."""
    return {**service.env, **{name: str(folder / path) for name, path in service.paths.items()}}


def _shut_in(service: Service, folder: PurePath) -> dict[str, str]:
    """Return a service's environment where it may write to its state only."""
    caches = {} if service.words[0] == "mosquitto" else {name: str(folder / path) for name, path in CACHES.items()}
    return environment(service, folder) | caches


def unit(service: Service, park: ParkFile) -> str:
    """Return a service as a systemd unit; it may write to its state and to what its ``writes`` names.

    Args:
        service: the service.
        park: says where things lie on a machine, and who runs them.
    """
    from fedfloor.templates import render

    mosquitto = service.words[0] == "mosquitto"
    return render(
        "fedfloor.deploy", "unit.service", service=service, park=park, mosquitto=mosquitto,
        program="/usr/sbin/mosquitto" if mosquitto else str(park.programs / service.words[0]),
        arguments=shlex.join(service.words[1:]), environment=_shut_in(service, park.folder),
        state=f"{park.folder}/{STATE}",
    )  # fmt: skip


def compose(services: Sequence[Service], park: ParkFile) -> str:
    """Return services of one machine as a compose file; started in the machine's folder.

    Args:
        services: of one machine.
        park: its name is the project's.
    """
    from fedfloor.templates import render

    rows = [
        {
            "name": one.name.removeprefix("fedfloor-"), "idle": one.idle, "files": one.files,
            "command": _listed(["sh", "-c", f"mkdir -p {STATE} && exec {shlex.join(one.words)}"]),
            "environment": _shut_in(one, PurePosixPath("/park")),
            "after": one.after and _listed([name.removeprefix("fedfloor-") for name in one.after]),
        }
        for one in services
    ]  # fmt: skip
    name = "".join(c if c.isalnum() else "-" for c in park.name.lower())
    return render("fedfloor.deploy", "compose.yaml", name=name, services=rows)


def _listed(words: Sequence[str]) -> str:
    return json.dumps(list(words), ensure_ascii=False)
