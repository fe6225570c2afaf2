"""The documentation as a web site: it builds, and an undocumented public name does not get through."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedfloor

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


KINDS = ("tutorial", "how-to", "explanation", "reference")
SECTIONS = 8
AT_FIRST = 33  # pages, and groups that open, of the navigation before anything is opened: "about thirty"
LONGEST = 12  # rows of a table in what is read from its beginning


def navigation() -> list[Any]:
    class Tolerant(yaml.SafeLoader):
        """A loader that leaves out tags of Python, of which mkdocs.yml may have some."""

    Tolerant.add_multi_constructor("", lambda loader, suffix, node: None)
    found: list[Any] = yaml.load((HERE / "mkdocs.yml").read_text(encoding="utf-8"), Tolerant)["nav"]
    return found


def test_the_navigation_shows_about_thirty_entries_in_eight_sections() -> None:
    sections = [below for item in navigation() for below in item.values() if not isinstance(below, str)]
    assert len(sections) == SECTIONS
    assert sum(map(len, sections)) <= AT_FIRST


def test_every_page_is_of_one_kind_and_stands_once_in_the_navigation() -> None:
    made = runpy.run_path(str(HERE / "docs" / "reference.py"))
    listed = [path for _, path in made["entries"](navigation())]
    assert len(set(listed)) == len(listed)
    pages = [*(HERE / "docs").glob("*.md"), HERE / "docs" / "tutorial.ipynb"]
    assert {page.name for page in pages} == {path for path in listed if "/" not in path}
    kinds = {page.name: made["kind_of"](page) for page in pages}
    assert kinds.pop("index.md") is None  # it only leads to the others
    assert {name: kind for name, kind in kinds.items() if kind not in KINDS} == {}


@pytest.mark.parametrize("page", sorted((HERE / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_keeps_to_its_kind(page: Path) -> None:
    """A reference has no steps to follow; what is read from its beginning has no long table, and shows what to type."""
    kind = runpy.run_path(str(HERE / "docs" / "reference.py"))["kind_of"](page)
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```.*?```", text, flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    if kind == "reference":
        assert not re.findall(r"^(?:#+ )?\d+\. .*", text, flags=re.MULTILINE)
    if kind in ("tutorial", "how-to"):
        assert blocks or "`fedfloor " in text
        assert max((table.count("\n|") - 1 for table in tables), default=0) <= LONGEST
    if kind in ("tutorial", "explanation"):
        assert not re.findall(r"^\| (?:key|option|setting|solver|extractor)\b.*", text, flags=re.MULTILINE)
    if kind == "explanation":
        assert "sudo " not in page.read_text(encoding="utf-8")


def test_pages_and_sections_that_messages_name_are_there() -> None:
    named = re.compile(r"docs/([\w-]+\.md)(?:, section '([^']+)')?|\('([^']+)' in docs/([\w-]+\.md)\)")
    for source in sorted((HERE / "src").rglob("*")):
        if source.suffix not in (".py", ".toml"):
            continue
        for one in named.findall(source.read_text(encoding="utf-8")):
            page = HERE / "docs" / (one[0] or one[3])
            section = one[1] or one[2]
            assert page.is_file(), f"{source}: {page.name}"
            headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert not section or section in headings, f"{source}: {page.name}, {section}"


def test_every_public_name_stands_on_a_page_of_the_reference() -> None:
    pages = runpy.run_path(str(HERE / "docs" / "reference.py"))["PAGES"]
    names = [name for name in fedfloor.__all__ if name != "__version__"]
    spans = [names[names.index(first) : names.index(last) + 1] for _, first, last in pages.values()]
    assert [name for span in spans for name in span] == names


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
