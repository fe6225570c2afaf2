"""No message makes a machine import, open or download anything by name."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calls
import fedfloor
from fedfloor import config
from fedfloor.base import outside
from fedfloor.base.ranges import RefusedError
from fedfloor.deploy import names, subtasks
from fedfloor.deploy.message import Message
from fedfloor.deploy.names import PartNames
from live_park import Live, experiment, live
from refusals import refused

ROOT = Path(fedfloor.__file__).parent
DEPLOY = "fedfloor.deploy."
OWN = """
import subprocess
from subprocess import call
from dataclasses import dataclass
from fedfloor.methods.fedavg import FedAvg
from fedfloor.parts.objectives.objective import Plain

@dataclass(frozen=True)
class Mine(FedAvg):
    pass

@dataclass(frozen=True)
class Goal(Plain):
    pass

@dataclass(frozen=True)
class Opens:
    args: str
    def __post_init__(self):
        call(self.args, shell=True)
"""

# Texts and JSON in the place of a part's name.
ATTEMPTS: list[Any] = [
    # dotted names of what runs commands, imported already or not
    "subprocess:call", "subprocess:run", "subprocess:Popen", "subprocess:check_output", "os:system", "os:popen",
    "os:execvp", "os:remove", "posix:system", "shutil:rmtree", "pty:spawn", "multiprocessing:Process", "runpy:run_path",
    "importlib:import_module", "importlib:reload", "ctypes:CDLL", "webbrowser:open", "code:interact", "timeit:timeit",
    "pickle:loads", "marshal:loads", "torch:load", "numpy:load", "numpy:fromfile", "pathlib:Path", "tempfile:mkdtemp",
    "urllib.request:urlopen", "socket:create_connection", "http.server:HTTPServer", "sys:exit", "signal:raise_signal",
    # builtins and attributes of classes
    "builtins:exec", "builtins:eval", "builtins:open", "builtins:__import__", "builtins:compile", "builtins:print",
    "subprocess:Popen.__init__", "pathlib:Path.unlink", "os:environ.clear", "builtins:type.mro",
    # modules of the house that run things, or read files
    "fedfloor.base.outside:load", "fedfloor.runs.launch:run", "fedfloor.deploy.processes:Crew", "fedfloor.cli:main",
    "fedfloor.engine.memory:DeviceMemory", "fedfloor.inference.trained:load_model",
    "fedfloor.parts.objectives.objective:Plain",
    # of the experiment's own module: what it imports, and what is no part
    "own_goals:subprocess", "own_goals:call", "own_goals:Opens", "own_goals:FedAvg", "own_goals:dataclass",
    # other forms
    ":call", "subprocess:", "subprocess.call", "subprocess:call:call", " subprocess:call", "subprocess\x00:call",
    "file:///etc/passwd", "../../tmp/x.onnx", "/etc/passwd", "google/mobilenet_v2_1.0_224", "Plain", "PLAIN", "",
    # JSON of other types
    None, True, 0, -1, 1.5, float("nan"), [], ["subprocess:call"], {}, {"name": 0}, {"name": "subprocess:call"},
    {"name": 99, "digest": ""}, {"name": -1, "digest": ""}, {"name": 0, "digest": "0" * 16},
    {"name": 0.0, "digest": ""}, {"name": True, "digest": ""}, {"kind": "subprocess:call"},
    {"name": {"name": 0}, "digest": ""},
]  # fmt: skip
PLACES = ("visit", "features", "weights", "profile", "mix", "chain")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_goals", raising=False)


@pytest.fixture
def park(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A park whose experiment names a method and an objective of its own."""
    (tmp_path / "own_goals.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    what = experiment(tmp_path, "own_goals:Mine", rounds=1)
    with live(tmp_path, what) as made:
        made.run()
        yield made


def forged(park: Live, place: str, name: Any, settings: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
    """Let an edge, or the cloud, name something in a place; return the answer."""
    head = {"device": 0, "held": None, "trained": 0, "tick": 0, "visit": 0}
    agent = park.agents[0]
    edge = park.edges[0]
    model = {"w": edge.engine.network.flat.numpy()}
    work = {"objective": name, "epochs": 1, "settings": settings}
    if place == "visit":
        return agent.reply("e0", Message("visit", "e0", about=head | {"work": work}, arrays=model))
    if place in ("mix", "chain"):
        leaf = {"node": "train", "site": "device:0", "work": work if place == "chain" else {"epochs": 1}, "radio": None}
        rule = {"mix": name, "settings": settings} if place == "mix" else {"mix": "equal", "settings": {}}
        plan = {"node": "parallel", "children": [leaf], "at": "cloud", **rule}
        about = {"plan": plan, "mine": [0], "tick": 0, "frozen": False, "heard": {}, "visits": {}}
        return edge.reply(Message("walk", "cloud", about=about | {"held": {}, "trained": {}, "kept": {}}, arrays=model))
    what = {"features": "features", "weights": "features", "profile": "profile"}[place]
    key = {"features": "extractor", "weights": "weights", "profile": "objective"}[place]
    asked = {"extractor": "onnx"} if place == "weights" else {"epochs": 1} if place == "profile" else {}
    about = head | {"what": what, "settings": {**asked, **settings, key: name}}
    return agent.reply("e0", Message("probe", "e0", about=about, arrays=model))


@pytest.mark.parametrize("place", PLACES)
def test_no_message_names_what_is_imported_or_opened(
    park: Live, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    imported = []
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", lambda name, *_: imported.append(name))
        patched.setattr(outside, "load", lambda spec, _: imported.append(spec))
        for attempt in ATTEMPTS:
            for settings in ({"args": f"touch {mark}", "shell": True}, {}):
                kind, about, _ = forged(park, place, attempt, settings)
                lost = kind == "walked" and not isinstance(attempt, str)  # the edge passes it on, the device refuses it
                assert kind in ("refused", "failed") or lost, (place, attempt, kind, about)
    assert not imported
    assert sorted(tmp_path.rglob("*")) == before  # nothing was run, and nothing written
    assert len(park.run("again")) == 1  # everybody is still there


def test_what_the_experiment_names_travels_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_goals.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    what = experiment(tmp_path, "fedavg", rounds=2, more='[methods.fedavg]\nobjective = "own_goals:Goal"')
    read = config.read(what, [])
    table = names.table(read)
    assert [text for text, _ in table.entries] == ["own_goals:Goal"]
    told = table.refer({"objective": "own_goals:Goal", "epochs": 1, "settings": {}})
    assert told["objective"] == {"name": 0, "digest": table.entries[0][1]}
    assert names.work(told, table).objective == "own_goals:Goal"
    with live(tmp_path, what) as park:
        lines = park.run()
    assert [line.lost for line in lines] == [0, 0]


def test_another_source_by_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables = []
    for body in (OWN, OWN + "\nRATE = 2\n"):
        (tmp_path / "own_goals.py").write_text(body)
        what = experiment(tmp_path, "own_goals:Mine")
        tables.append(names.table(config.read(what, [])))
    work = tables[0].refer({"objective": "own_goals:Goal", "epochs": 1})
    assert names.work(work, tables[0]).objective == "own_goals:Goal"
    with refused("foreign code", RefusedError):
        names.work(work, tables[1])


def test_weights_are_named_by_number_wherever_the_file_lies(tmp_path: Path) -> None:
    tables = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.onnx").write_bytes(b"the same")
        what = tmp_path / folder / "x.toml"
        file = tmp_path / folder / "net.onnx"
        what.write_text(f'method.name = "fldg"\nmethods.fldg.extractor = "onnx"\nmethods.fldg.weights = "{file}"\n')
        tables.append(names.table(config.read(what, [])))
    sent = tables[0].reference({"extractor": "onnx", "weights": str(tmp_path / "a" / "net.onnx")})
    assert tables[1].resolved(sent) == {"extractor": "onnx", "weights": str(tmp_path / "b" / "net.onnx")}
    with refused("foreign code", RefusedError):
        PartNames(()).resolved({"extractor": "onnx", "weights": "x"})


@pytest.mark.parametrize(
    "work",
    [
        None, [], "plain", {}, {"epochs": 0}, {"epochs": -1}, {"epochs": 1, "steps": 1}, {"steps": 1 << 40},
        {"epochs": 1.5}, {"epochs": "1"}, {"epochs": 1, "rate": "0.1"}, {"epochs": 1, "batch_size": 0},
        {"epochs": 1, "settings": [1]}, {"epochs": 1, "settings": {"mu": [1]}}, {"epochs": 1, "more": 1},
        {"epochs": True}, {"epochs": 1, "momentum": None}, {"epochs": 1, "rate": float("inf")},
        {"epochs": 1, "beta1": 2.0}, {"epochs": 1, "beta2": float("nan")}, {"epochs": 1, "eps": -1.0},
        {"epochs": 1, "clip_norm": float("nan")}, {"epochs": 1, "clip_norm": 0.0},
        {"epochs": 1, "factors": "head"}, {"epochs": 1, "factors": "head nan"}, {"epochs": 1, "factors": {"head": 2}},
        {"epochs": 1, "rate": 3e38, "factors": "head 2.0"},
        {"epochs": 1, "own": 1}, {"epochs": 1, "rate": 10**400}, {"epochs": 1, "clip_norm": 10**400},
    ],
    ids=lambda work: str(work)[:80],
)  # fmt: skip
def test_a_work_of_other_types_is_refused(work: Any) -> None:
    with refused("header", RefusedError):
        names.work(work, PartNames(()))


COMBINED = "fedfloor.methods.configured.ConfiguredMethod."
ENTRY = ("fedfloor.runs.loop.", "fedfloor.runs.launch.", f"{COMBINED}plan", f"{COMBINED}setup",
         "fedfloor.api.conformance.", "fedfloor.api.", "fedfloor.drafting.")  # fmt: skip
TIERS = {
    "device": (
        ["device", "worker"],
        ["device.Agent", "worker.Worker", "checks.MessageFilter", "mqtt.MqttConnection", "message"],
    ),
    "edge": (
        ["edge"],
        ["edge.Edge", "factory_executor.FactoryExecutor", "channel.DeviceChannel", "checks.MessageFilter", "joining",
         "subtasks", "mqtt.MqttConnection", "uplink.Uplink", "message"],
    ),
    "cloud": (
        ["cloud", "cloud_executor", "edge_requests"],
        ["cloud_executor.CloudExecutor", "edge_requests.EdgeRequests", "uplink.Downlink", "channel.DeviceChannel",
         "checks.MessageFilter", "joining", "subtasks", "message"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_nothing_that_a_message_starts_leads_to_an_import_by_name(tier: str) -> None:
    """The walk has edges too many: an attribute may be any method of that name.

    So what only the cloud's own loop calls, which writes plans and begins runs, and the tests of a method's author,
    whose methods are named "run" and "experiment", the interface for Python, whose names are "model" and "of", and
    drafts, whose sketch has an "experiment" and a "dataset", are left out by name: ``ENTRY``.
    """
    modules, handlers = TIERS[tier]
    graph = calls.Graph(ROOT, [DEPLOY + one for one in modules])
    roots = list(calls.methods_of(graph, *(DEPLOY + one for one in handlers)))
    assert len(roots) > 30
    assert graph.path([*roots, "fedfloor.methods.chosen.combined"], {"fedfloor.base.outside.load"})  # it would be seen
    for target in (
        "fedfloor.base.outside.load", "fedfloor.methods.chosen.combined", "fedfloor.config.read",
        "fedfloor.methods.catalog.find", "eval", "exec", "compile", "__import__", "pickle.loads", "torch.load",
        "runpy.run_path", "os.system", "subprocess.run", "subprocess.Popen", "subprocess.call",
    ):  # fmt: skip
        assert graph.path(roots, {target}, ENTRY) == []


def test_modules_are_imported_by_name_in_one_place() -> None:
    """All other calls of ``import_module`` give a literal."""
    found = []
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
                found += [str(file.relative_to(ROOT))] if not isinstance(node.args[0], ast.Constant) else []
    assert sorted(found) == ["__init__.py", "base/outside.py"]


def test_a_plan_that_names_a_part_by_text_is_refused_at_the_edge(park: Live) -> None:
    engine = park.edges[0].engine
    body = {"plan": {"node": "parallel", "children": [], "at": "cloud", "mix": "own_goals:Goal", "settings": {}}}
    about = body | {"mine": [], "tick": 0, "frozen": False, "heard": {}, "visits": {}}
    message = Message("walk", "cloud", about=about, arrays={"w": np.zeros(engine.network.flat.numel(), np.float32)})
    with refused("foreign code", RefusedError):
        subtasks.read_subtask(message, engine, park.edges[0].names)


def test_a_plan_of_more_turns_than_a_list_can_hold_is_refused_at_the_edge(park: Live) -> None:
    engine = park.edges[0].engine
    turns = {"node": "repeat", "times": 10**12, "child": {"node": "parallel", "children": []}}
    body = {"plan": {"node": "parallel", "children": [turns]}, "updates": {}}
    about = body | {"mine": [0], "tick": 0, "frozen": False, "heard": {}, "visits": {}}
    message = Message("walk", "cloud", about=about, arrays={"w": np.zeros(engine.network.flat.numel(), np.float32)})
    with refused("plan"):
        subtasks.read_subtask(message, engine, park.edges[0].names)
