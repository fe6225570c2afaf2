"""The wheel of devices without PyTorch: built, installed where nothing else is, and serving there by real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fedfloor import __version__
from fedfloor.rollout import delivery, registry
from fedfloor.rollout.agent import USAGE
from parks import needs_mosquitto
from rollouts import TOP, model, provisioned, registered, running

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MEMORY_MIB = 100
INSTALLED_MB = 250
WAIT_S = 60.0
# Imports every module of the wheel; prints their names
EVERY = """
import importlib, pkgutil
import fedfloor

names = [found.name for found in pkgutil.walk_packages(fedfloor.__path__, "fedfloor.")]
for name in names:
    importlib.import_module(name)
print(*names)
"""
Run = subprocess.CompletedProcess[str]


def call(*words: str | Path) -> Run:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)


def pip(*words: str | Path) -> None:
    done = call(sys.executable, "-m", "pip", *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _installed_packages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel, and what it requires."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT / "agent")
    venv.create(folder / "bare", symlinks=True)
    pip(
        "--python",
        folder / "bare/bin/python",
        "install",
        "--quiet",
        folder / f"fedfloor_agent-{__version__}-py3-none-any.whl",
    )
    return folder / "bare/bin"


def test_the_wheel_holds_what_the_agent_imports_and_every_module_imports_there(bare: Path) -> None:
    done = call(bare / "python", "-I", "-c", EVERY)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert {"fedfloor.rollout.agent", "fedfloor.rollout.model", "fedfloor.deploy.mqtt"} <= {*names}
    assert len(names) < 30  # else something imports a room that trains
    for absent in ("torch", "pydantic", "typer"):
        assert call(bare / "python", "-I", "-c", f"import {absent}").returncode == 1
    size = sum(path.stat().st_size for path in (bare.parent / "lib").rglob("*") if path.is_file()) / 1e6
    print(f"installed, without Python: {size:.0f} MB")
    assert size < INSTALLED_MB


def test_the_wheel_has_the_program(bare: Path, tmp_path: Path) -> None:
    agent = bare / "fedfloor-agent"
    done = call(agent, "--help")
    assert (done.returncode, done.stderr.strip()) == (0, USAGE)
    done = call(agent, tmp_path / "device.toml")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: settings file {tmp_path / 'device.toml'}: No such file")


@needs_mosquitto
def test_a_device_that_has_the_wheel_alone_serves_shared_and_cohort_models(bare: Path, tmp_path: Path) -> None:
    out = provisioned(tmp_path, devices=2)
    cohorts = {"d0": model(2), "d1": model(3)}
    registered(registered(registry.read(out), model(1)), cohorts)
    with running(out, (str(bare / "fedfloor-agent"),)) as park:
        park.start("d0", "d1")
        edge = park.client("north")
        edge.subscribe(f"{TOP}/predictions/d0")
        table = tmp_path / "rows-d0" / "press.csv"
        table.write_text("heat,load,speed\n")
        for version in (1, 2):
            now = registry.release(park.registry, version)
            rows = delivery.deliver(now, ["d0", "d1"], WAIT_S)
            assert {row["device"]: (row["state"], row["runs"]) for row in rows} == dict.fromkeys(
                ("d0", "d1"), ("serving", version)
            ), park.log("d0")
            with table.open("a") as file:
                file.writelines(f"{i},{-i},0.5\n" for i in range(200))
            answers = [json.loads(edge.hears()[1]) for _ in range(200)]
            assert {one["version"] for one in answers} == {version}
        for name, data in cohorts.items():
            held = [path.read_bytes() for path in (out / "devices" / name / "state/models").glob("*.onnx")]
            assert sorted(held) == sorted([model(1), data])
        peaks = [peak_mib(one.pid) for one in park.agents.values()]
        print(f"memory at most: {max(peaks):.0f} MiB")
        assert max(peaks) <= MEMORY_MIB
        edge.close()


def peak_mib(pid: int) -> float:
    """The memory that a process had resident at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
