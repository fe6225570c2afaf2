"""Imports go one way (design, section 3), and what trains imports with PyTorch and NumPy alone."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedfloor
from docs import rooms

ROOT = Path(fedfloor.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
OPTIONAL = (
    "pydantic", "plotly", "sklearn", "threadpoolctl", "ortools", "numba", "typer", "rich", "pooch", "requests",
    "tensorboard", "mlflow", "bayes_opt", "transformers", "skimage", "onnxruntime", "flwr", "paho", "cryptography",
    "pyarrow", "openpyxl", "starlette", "uvicorn", "prometheus_client", "asyncua", "google",
)  # fmt: skip

# A room (a folder or a file of the package) → what it may import of ours, beside itself and base. Only cli sees all.
LAYERS = {each["name"]: each["rooms"] for each in rooms.layers()}
MAY = rooms.imports()
OUTSIDERS = {"__init__", "__main__", "cli"}
# All that solvers may import beside the standard library; bayes_opt: an optional extra, for the sampler of that name.
NUMBERS = {"numpy", "scipy", "numba", "ortools", "sklearn", "threadpoolctl", "bayes_opt"}


def room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports anywhere in it; ``from fedfloor import x`` counts as fedfloor.x."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: imports name the whole way"
            module = node.module or ""
            yield from (f"fedfloor.{a.name}" for a in node.names) if module == "fedfloor" else [module]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def ours(path: Path) -> set[str]:
    """The rooms a file imports."""
    modules = [name.split(".") for name in imported(path) if name.split(".")[0] == "fedfloor"]
    assert ["fedfloor"] not in modules or room(path) in OUTSIDERS, f"{path} imports the whole package"
    return {"base" if parts[1] == "__version__" else parts[1] for parts in modules if len(parts) > 1}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    here = room(path)
    if here in OUTSIDERS:
        return
    assert here in MAY, f"{here} is a new room: say here what it may import"
    assert ours(path) <= MAY[here] | {here}


def test_rooms_import_downwards_in_the_map() -> None:
    place = {name: number for number, layer in enumerate(LAYERS.values()) for name in layer}
    assert {(name, one) for name, may in MAY.items() for one in may - {"base"} if place[one] < place[name]} == set()


def test_the_map_is_drawn_from_the_table() -> None:
    assert Path(rooms.HERE, "rooms.svg").read_text(encoding="utf-8") == rooms.drawn(), "python docs/rooms.py"


def test_rooms_do_not_import_in_circles() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if room(path) != "__init__":  # it only hands on, when asked
            graph.setdefault(room(path), set()).update(ours(path) - {room(path)})
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("plan") < order.index("engine") < order.index("runs") < order.index("cli")


def test_files_do_not_import_in_circles() -> None:
    """Neither do those that import for type annotations only."""
    files = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in FILES}
    graph: dict[Path, set[Path]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found = (files.get(name, files.get(node.module or "")) for name in names)
                graph.setdefault(path, set()).update(one for one in found if one is not None)
    assert list(graphlib.TopologicalSorter(graph).static_order())  # raises graphlib.CycleError


def test_nobody_imports_the_command_line() -> None:
    assert {room(path) for path in FILES if "cli" in ours(path)} == {"__main__", "cli"}


def test_the_report_neither_trains_nor_needs_what_trains() -> None:
    heavy = {name for path in FILES if room(path) == "report" for name in imported(path)}
    assert not {name for name in heavy if name.split(".")[0] in ("torch", "safetensors")}


def test_solvers_know_numbers_only() -> None:
    for path in (path for path in FILES if room(path) == "solvers"):
        others = {name.split(".")[0] for name in imported(path)} - {"fedfloor"}
        assert others <= NUMBERS | set(sys.stdlib_module_names), path


def test_every_rule_names_rooms_that_can_exist() -> None:
    assert set().union(*MAY.values()) <= set(MAY)
    assert {room(path) for path in FILES} <= set(MAY) | OUTSIDERS


# -- in a process of its own -------------------------------------------------------------------------------------------

BARE = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}: this machine is bare", name=name)


sys.meta_path.insert(0, Blocked())
"""

EVERYTHING_THAT_TRAINS = """
import importlib, pkgutil
import fedfloor
for room in ("data", "park", "plan", "methods", "parts", "models", "engine", "runs"):
    package = importlib.import_module(f"fedfloor.{room}")
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
from fedfloor.experiment import DataSettings, ModelSettings, ParkSettings
experiment = fedfloor.Experiment(
    rounds=1, data=DataSettings(samples_per_device=32), park=ParkSettings(devices=2), model=ModelSettings("logistic")
)
print(fedfloor.run(experiment, sys.argv[1], ranks=1).stopped)
"""

LOOKING_AROUND = """
import contextlib, io
import fedfloor
assert fedfloor.Experiment().method.name == "fedavg"
from fedfloor import cli
for words in (
    ["--help"], ["run", "--help"], ["list", "methods"], ["list", "methods", "fedsr"], ["list", "datasets"],
    ["list", "datasets", "--json"],
    ["datasets", "get", "--help"],
):
    sys.argv = ["fedfloor", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        cli.main()
    assert out.getvalue(), words
print("done")
"""


def alone(program: str, blocked: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    text = BARE.format(blocked=blocked) + program
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_bare_machine_trains(tmp_path: Path) -> None:
    got = alone(EVERYTHING_THAT_TRAINS, OPTIONAL, str(tmp_path / "run"))
    assert got.stdout == "finished\n", got.stderr


@pytest.mark.slow
def test_looking_around_does_not_wait_for_pytorch() -> None:
    got = alone(LOOKING_AROUND, ("torch",))
    assert got.stdout == "done\n", got.stderr
