"""README and docs, executed: their files are written, their commands typed, their Python run."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import tomlkit

import warm
from fedfloor.cli.options import LIMITS
from fedfloor.experiment import Experiment
from fedfloor.methods.chosen import PARTS
from fedfloor.parts.attacks import ATTACKS
from fedfloor.report.ledger import collect
from fedfloor.report.table import Budget, at, paired, paired_at, summary
from fedfloor.runs.ledger import Line
from run_folders import make_run

HERE = Path(__file__).parents[2]
PAGES = [HERE / "README.md", *sorted((HERE / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def fedfloor(command: str, folder: Path, log: Path | None = None) -> subprocess.CompletedProcess[str] | warm.Done:
    """Call a command, or with ``python FILE`` a file of the page; with ``log`` PyTorch is there already."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    typed_words = shlex.split(os.path.expandvars(command))
    if log is not None and typed_words[0] != "python":
        return warm.fedfloor(typed_words, folder, log)
    words = [sys.executable, *(typed_words[1:] if typed_words[0] == "python" else ["-m", "fedfloor", *typed_words])]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def shortened(command: str) -> str:
    """One round and one seed are enough to see that a command works."""
    command = re.sub(r"--seeds 0(,\d+)+", "--seeds 0", command)
    command = re.sub(r"(reproduce fedsr\S* .*--scale) 0\.01", r"\1 0.002", command)  # of 500 rounds
    command = re.sub(r"--stop-after \d+", "--stop-after 1", command)
    if command.startswith("run fedsr-mnist"):
        command += " --set methods.fedsr.laps=1"  # of 5, each over all devices and 60,000 pictures
    if not command.startswith(("run", "compare", "sweep")) or "--stop-after" in command:
        return command
    return command + " --stop-after 1"


def typed(page: Path) -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks(page, "console") for line in block.splitlines()]
    return [line.removeprefix("fedfloor ") for line in lines if line.startswith(("fedfloor ", "python "))]


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page, "toml"):
        name = re.search(r'^name = "(.*?)"', block, re.MULTILINE)
        if name is not None:  # a block without is a part of an experiment, to be added by hand
            (folder / f"{name[1]}.toml").write_text(block)
    for block in blocks(page, "python"):
        if block.startswith("# "):
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(block)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if typed(page)], ids=lambda page: page.name)
def test_commands_in_the_docs_work(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    write_files(page, folder)
    lacking = [] if "FEDFLOOR_DATA" in os.environ else ["mnist", r"\btep\b"]
    for i, command in enumerate(typed(page)):
        if any(re.search(one, command) for one in lacking):
            lacking += [rf"runs/{name}\b" for name in re.findall(r"--set name=(\S+)", command)]  # which it would make
            continue
        newcomer = page.name == "README.md" and i == 0  # the first of all is typed as at a prompt
        done = fedfloor(shortened(command), folder, None if newcomer else tmp_path / "log")
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.slow
def test_the_readmes_python_runs_as_a_script(tmp_path: Path) -> None:
    (code,) = blocks(HERE / "README.md", "python")
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "all data in one place" in done.stdout
    assert done.stdout.splitlines()[-1] == "['good' 'worn']"


def test_every_setting_is_documented() -> None:
    page = (HERE / "docs" / "experiments.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(Experiment):
        inner = getattr(Experiment(), field.name)
        if dataclasses.is_dataclass(inner):
            for name in (f.name for f in dataclasses.fields(inner)):
                assert f"`{name}`" in page or f"[{field.name}] {name}`" in page, f"{field.name}.{name}"


def test_every_key_has_an_anchor_of_its_own() -> None:
    page = (HERE / "docs" / "experiments.md").read_text(encoding="utf-8")
    known = re.findall(r'<a id="([^"]+)"></a>', page)
    assert len(set(known)) == len(known)
    missing = []
    for field in dataclasses.fields(Experiment):
        inner = getattr(Experiment(), field.name)
        names = [f.name for f in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else []
        missing += [key for key in (f"{field.name}.{name}" for name in names) if key not in known]
    assert missing == []


def test_every_ledger_key_is_documented() -> None:
    page = (HERE / "docs" / "runs.md").read_text(encoding="utf-8")
    missing = [field.name for field in dataclasses.fields(Line) if f"`{field.name}`" not in page]
    assert not missing


def test_every_column_of_a_comparison_is_documented(tmp_path: Path) -> None:
    page = (HERE / "docs" / "report.md").read_text(encoding="utf-8")
    for method in ("fedavg", "fedsr"):
        make_run(tmp_path / method, [0.5], method=method)
    runs = collect([tmp_path])
    budget = Budget("rounds", 1)
    rows = [*summary(runs), *paired(runs), *at(runs, budget), *paired_at(runs, budget)]
    assert not [name for row in rows for name in row if f"`{name}`" not in page]


def test_every_limit_is_documented() -> None:
    page = (HERE / "docs" / "runs.md").read_text(encoding="utf-8")
    assert not [name for name in LIMITS if f"`--until {name}=" not in page]


def test_every_part_is_documented_with_its_settings() -> None:
    page = (HERE / "docs" / "parts.md").read_text(encoding="utf-8")
    for part, known in PARTS.items():
        (section,) = re.findall(rf"^## {part}\n(.*?)^## ", page, flags=re.DOTALL | re.MULTILINE | re.IGNORECASE)
        rows = {
            line.split("`")[1]: line.split("|")[2].strip() for line in re.findall(r"^\| `.*", section, re.MULTILINE)
        }
        settings = {name: [toml(f) for f in dataclasses.fields(made) if f.name != "kind"]  # type: ignore[arg-type]
                    for name, made in known.items()}  # fmt: skip
        assert rows == {name: ", ".join(f"`{one}`" for one in said) or "–" for name, said in settings.items()}


def test_every_attack_is_documented_with_its_settings() -> None:
    page = (HERE / "docs" / "parts.md").read_text(encoding="utf-8")
    section = page.partition("## Attacks\n")[2].partition("\n## ")[0]
    rows = {line.split("`")[1]: line.split("|")[2].strip() for line in re.findall(r"^\| `.*", section, re.MULTILINE)}
    settings = {name: [toml(f) for f in dataclasses.fields(made) if f.name != "kind"]  # type: ignore[arg-type]
                for name, made in ATTACKS.items()}  # fmt: skip
    assert rows == {name: ", ".join(f"`{one}`" for one in written) or "–" for name, written in settings.items()}


def toml(setting: dataclasses.Field[object]) -> str:
    """A setting with its default, as an experiment file has it."""
    if setting.default is dataclasses.MISSING or setting.default is None:
        return setting.name
    return tomlkit.dumps({setting.name: setting.default}).strip()


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target, place in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            if target.endswith(".png"):
                assert there.is_file(), f"{page.name}: {target}"
                continue
            made = target.startswith("reference/")  # when the site is built, which checks them too
            assert made or there.exists(), f"{page.name}: {target}"
            assert made or not place or place in anchors(there), f"{page.name}: {target}#{place}"


def test_code_imports_public_names_only() -> None:
    """Modules inside the package may change between versions; pages show what stays."""
    notebook = HERE / "docs" / "tutorial.ipynb"
    private = re.compile(r"^.*(?:from fedfloor\.\S+ import|import fedfloor\.).*$", re.MULTILINE)
    found = {page.name: private.findall(page.read_text(encoding="utf-8")) for page in (*PAGES, notebook)}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_lines_that_convert_are_python() -> None:
    text = (HERE / "docs" / "data-reference.md").read_text(encoding="utf-8")
    indented = re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", text)
    assert len(indented) > 3
    for lines in indented:
        compile(textwrap.dedent(lines), lines, "exec")


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return set(re.findall(r'<a id="([^"]+)">', text)) | {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in headings
    }
