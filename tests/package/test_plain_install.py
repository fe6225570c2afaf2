"""What ``pip install .`` brings without the extras, whose bounds hold others back: the commands run with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
TABLE = "machine,load,state\n" + "".join(
    f"{machine},{0.01 * i},{'worn' if i > 60 else 'good'}\n" for machine in "abc" for i in range(90)
)


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def resolved(folder: Path) -> dict[str, str]:
    """The packages of a plain installation of today, with their versions."""
    report = folder / "report.json"
    command = (*PIP, "install", "--dry-run", "--ignore-installed", "--report", str(report), str(TREE))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"pip resolves nothing here: {done.stderr.strip()[-200:]}")
    packages = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return {one["name"]: one["version"] for one in packages if one["name"] != "fedfloor"}


@pytest.mark.slow
def test_the_commands_run_with_what_a_plain_installation_brings(tmp_path: Path) -> None:
    other = [f"{name}=={release}" for name, release in resolved(tmp_path).items() if installed(name) != release]
    site = tmp_path / "site"
    if other:
        subprocess.run((*PIP, "install", "--no-deps", "--target", str(site), *other), check=True, timeout=600)
    (tmp_path / "plant.csv").write_text(TABLE)
    paths = [str(site), str(TREE / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    for command in ("--help", "list methods fedavg", "new plant.csv", "run plant.toml --stop-after 1"):
        done = subprocess.run(
            (sys.executable, "-m", "fedfloor", *command.split()),
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command} with {other}\n{done.stderr}"
