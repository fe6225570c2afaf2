"""The documentation as a web site: it builds, and an undocumented public name does not get through."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]


def build(root: Path, site: Path, *, execute: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {} if execute else {"FEDFLOOR_DOCS_EXECUTE": "0"}
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    return subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_the_site_builds_with_every_command_and_public_name(tmp_path: Path) -> None:
    done = build(HERE, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = (tmp_path / "reference" / "commands" / "index.html").read_text()
    for name in ("new", "run", "compare", "sweep", "report", "datasets"):
        assert f"fedfloor {name}" in commands
    assert "Parallel" in (tmp_path / "reference" / "plans" / "index.html").read_text()
    assert "fedsr" in (tmp_path / "reference" / "cards" / "index.html").read_text()
    assert (tmp_path / "results" / "rafed-fig3" / "index.html").is_file()
    tutorial = (tmp_path / "tutorial" / "index.html").read_text()
    assert "In round 10, the share" in tutorial or "accuracy <b>" in tutorial  # outputs, computed by the build
    assert tutorial.count("<svg") >= 2
    overview = (tmp_path / "llms.txt").read_text()
    assert overview.startswith("# fedfloor\n\n> ")
    for path in re.findall(r"\]\(([^)]+)\)", overview):
        assert (tmp_path / path / "index.html").is_file(), path
    links = runpy.run_path(str(HERE / "docs" / "links.py"))
    assert not links["dead"](tmp_path)


def test_the_table_of_methods_is_that_of_the_sources() -> None:
    made = runpy.run_path(str(HERE / "docs" / "methods.py"))
    assert (HERE / "docs" / "methods.md").read_text(encoding="utf-8") == made["page"]()


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">x</a><a href="b.html#away">y</a><a href="c.html">z</a>')
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1><img src="https://other.example/x.png">')
    dead = runpy.run_path(str(HERE / "docs" / "links.py"))["dead"]
    assert dead(tmp_path) == ["a.html: b.html#away", "a.html: c.html"]


@pytest.mark.slow
def test_an_undocumented_public_name_fails_the_build(tmp_path: Path) -> None:
    for name in ("src", "docs"):
        shutil.copytree(HERE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "mkdocs.yml", tmp_path)
    method = tmp_path / "src" / "fedfloor" / "methods" / "fedavg.py"
    before, plan, after = method.read_text(encoding="utf-8").partition("    def plan(self")
    assert plan
    method.write_text(f"{before}    def dice(self):\n        return 4\n\n{plan}{after}", encoding="utf-8")
    done = build(tmp_path, tmp_path / "site", execute=False)
    assert done.returncode != 0
    assert "fedfloor.methods.fedavg.FedAvg.dice" in done.stdout + done.stderr
