"""Parks for tests of releases: models made by hand, brokers and agents that are real processes."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.deploy import provision
from fedfloor.deploy.park_file import CloudTable, DeviceTable, FactoryTable, ParkFile
from fedfloor.rollout import registry
from fedfloor.rollout.registry import MODELS, Registry
from parks import Broker, Client, broker, free_port, until

HERE = "127.0.0.1"
TOP = "fedfloor/trial"
COLUMNS = ("heat", "load", "speed")
# What a device that predicts has: all other packages are as good as not installed
ALONE = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        allowed = {"fedfloor", "numpy", "onnxruntime", "paho", "cryptography", "cffi", "_cffi_backend"}
        first = name.split(".")[0]
        if first not in allowed | set(sys.stdlib_module_names) and not first.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}: this device is bare", name=name)


sys.meta_path.insert(0, Absent())
from fedfloor.rollout.agent import main
sys.exit(main(sys.argv[1:]))
"""


def model(seed: int = 0, network: str = "logistic", window: int = 0, **more: Any) -> bytes:
    """A classifier of three sensors, or of windows of them, as ``fedfloor export`` writes it."""
    from onnx import TensorProto, helper, numpy_helper

    shape = [3, window] if window else [3]
    size = 3 * max(window, 1)
    weight = np.random.default_rng(seed).normal(size=(size, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "model", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("probabilities", "logits")],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    about: dict[str, Any] = {
        "classes": ["good", "bad"], "shape": shape, "round": 2, "columns": COLUMNS, "missing": "refuse",
        "decide": {"positive": "bad", "threshold": 0.5},
        "window": {"length": window, "step": window} if window else None,
    }  # fmt: skip
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (about | more).items()}
    helper.set_model_props(made, {"fedfloor": "0", "model": network, **texts})
    data: bytes = made.SerializeToString()
    return data


def registered(known: Registry, data: bytes | Mapping[str, bytes], network: str = "logistic") -> Registry:
    """The registry after one more version, made of an ONNX file alone, or of one for each device."""
    number = len(known.versions) + 1
    models = {"": data} if isinstance(data, bytes) else data
    files = {device: (hashlib.sha256(one).hexdigest(), len(one)) for device, one in models.items()}
    (known.place / MODELS).mkdir(exist_ok=True)
    for device, (sha256, _) in files.items():
        (known.place / MODELS / f"{sha256}.onnx").write_bytes(models[device])
    return known.appended("register", version=number, network=network, run={"folder": "r"}, files=files, scale=None)


def provisioned(folder: Path, devices: int = 4) -> Path:
    """Provision a park whose devices stand in two factories in turn, on ports that are free; return its folder."""
    what = folder / "experiment.toml"
    what.write_text('name = "e"\nmodel.name = "logistic"\nmethod.name = "fedavg"\ndata.samples_per_device = 8\n')
    factories = tuple(FactoryTable(name, HERE, free_port(), HERE) for name in ("north", "south"))
    homes = [factories[k % 2].name for k in range(devices)]
    listed = tuple(DeviceTable(f"d{k}", home, predict=str(folder / f"rows-d{k}")) for k, home in enumerate(homes))
    for one in listed:
        Path(str(one.predict)).mkdir()
    park = ParkFile("trial", what, CloudTable(HERE, free_port(), HERE), factories, listed)
    provision.provision(park, folder / "out", user=getpass.getuser())
    return folder / "out"


@dataclass
class Park:
    """A park whose brokers run, and agents that are started by a program."""

    out: Path
    brokers: dict[str, Broker]
    program: Sequence[str]
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def registry(self) -> Registry:
        return registry.read(self.out)

    def start(self, *names: str) -> None:
        """Start agents of devices, without any package that they do not need."""
        for name in names:
            place = self.out / "devices" / name
            words = [*self.program, f"device-{name}.toml"]
            with (place / "log").open("ab") as log:
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                self.agents[name] = subprocess.Popen(words, cwd=place, stdout=log, stderr=log, env=env)

    def kill(self, name: str) -> None:
        self.agents[name].kill()
        self.agents[name].wait()

    def log(self, name: str) -> str:
        return (self.out / "devices" / name / "log").read_text()

    def client(self, name: str) -> Client:
        """A client with the certificate of an edge, or of a device."""
        edge = name in self.brokers
        home = name if edge else self.registry.devices[name].name
        place = self.out / ("factories" if edge else "devices") / name
        return Client(self.brokers[home].port, place, "edge" if edge else "device")

    def command(self, *words: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "fedfloor", *words]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def connected(self) -> bool:
        """Wait until all agents are connected; return whether they are."""
        logs = self.brokers.values()
        return until(lambda: all(any(f"as {name} (" in one.log() for one in logs) for name in self.agents), 60)


@contextmanager
def running(out: Path, program: Sequence[str] = (sys.executable, "-c", ALONE)) -> Iterator[Park]:
    """Start the brokers of a provisioned park; its agents are that program."""
    with ExitStack() as stack:
        ports = {edge.name: edge.broker.port for edge in registry.read(out).floor}
        brokers = {n: stack.enter_context(broker(out / "factories" / n, port)) for n, port in ports.items()}
        park = Park(out, brokers, program)
        try:
            yield park
        finally:
            for one in park.agents.values():
                one.kill()
                one.wait()
