"""Makes pages when the documentation is built: commands, Python, results, and the tutorial with its outputs.

A public name without a docstring, or one that stands on no page here, fails the build. Pages link to results and
experiments as they stand in the repository; in the site both are beside the pages.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import nbclient
import nbformat
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PLACE = tempfile.TemporaryDirectory(prefix="fedfloor-docs-")  # of the tutorial's runs, until the build ends
SOURCE = ROOT / "src"
KINDS = {"tutorial": "Tutorial", "how-to": "How-to", "explanation": "Explanation", "reference": "Reference"}
GENERATED = "---\nkind: reference\n---\n\n"  # above the pages that are made here
BESIDE = ("results", "experiments")  # folders of the repository that are part of the site
PAGES = {  # of the Python reference: title, and the first and last public name in the order of ``fedfloor.__all__``
    "experiments": ("Experiments, runs and models", "load", "Trained"),
    "settings": ("Settings", "Experiment", "Survival"),
    "methods": ("Methods", "FedAvg", "Resources"),
    "plans": ("Plans and their outcome", "Node", "Receipt"),
    "parts": ("Parts of methods", "Objective", "AttackedVisit"),
    "tasks": ("Questions, tasks and metrics", "Question", "TestedSamples"),
    "checks": ("Checks and errors", "check_method", "RunError"),
}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    package = griffe.load("fedfloor", search_paths=[str(SOURCE)])
    missing = sorted(undocumented(package))
    if missing:
        raise PluginError("public names without a docstring: " + ", ".join(missing))
    _execute(files)
    files.append(File.generated(config, "llms.txt", content=overview(config)))
    pages = {"reference/commands.md": commands(), "reference/cards.md": cards(), **python(package)}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=GENERATED + text))
    for folder in BESIDE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file():
                files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def _execute(files: Files) -> None:
    """Replace the tutorial by one with its outputs, computed now; $FEDFLOOR_DOCS_EXECUTE=0 leaves it as it is."""
    tutorial = files.get_file_from_path("tutorial.ipynb")
    if tutorial is None or os.environ.get("FEDFLOOR_DOCS_EXECUTE") == "0":
        return
    book = nbformat.read(str(tutorial.abs_src_path), as_version=4)
    place = Path(PLACE.name)
    client = nbclient.NotebookClient(book, timeout=900, resources={"metadata": {"path": str(place)}})
    client.execute()
    for cell in book.cells:
        shown = cell.get("outputs", [])
        cell["outputs"] = [one for one in shown if one.get("name") != "stderr"]  # progress
    nbformat.write(book, str(place / "tutorial.ipynb"))
    tutorial.abs_src_path = str(place / "tutorial.ipynb")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page with links as they are in the site, where results and experiments are beside the pages."""
    inside = page.file.src_uri.startswith(f"{BESIDE[0]}/")
    if inside:
        markdown = re.sub(r"\[([^]]*)\]\((?!\.\.|https?:)([^)#.]+)\)", r"\1 (folder `results/\2`)", markdown)
        return markdown.replace("](../docs/", "](../")
    return re.sub(rf"\]\(\.\./({'|'.join(BESIDE)})/", r"](\1/", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Return a page's HTML with its kind on top; links of a notebook lead to pages of the site, as others do."""
    kind = kind_of(Path(page.file.abs_src_path)) if page.file.abs_src_path else page.meta.get("kind")
    top = f'<p class="kind">{KINDS[kind]}</p>\n' if kind else ""
    if page.file.src_uri.endswith(".ipynb"):
        html = re.sub(r'href="([\w-]+)\.md', r'href="../\1/', html)
    return top + html


def kind_of(path: Path) -> str | None:
    """Return the kind of a page, which its front matter or a notebook's metadata names; None: home, and results."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return str(json.loads(text)["metadata"]["kind"])
    found = re.match(r"---\nkind: ([\w-]+)\n---\n\n# ", text)
    return found[1] if found else None


def entries(nav: Any, title: str = "Overview") -> Iterator[tuple[str, str]]:
    """Yield title and path of every page of a navigation, in its order."""
    if isinstance(nav, str):
        yield title, nav
    elif isinstance(nav, dict):
        for name, below in nav.items():
            yield from entries(below, name)
    else:
        for item in nav:
            yield from entries(item)


def overview(config: Any) -> str:
    """Return llms.txt, the list of pages for programs that read: a title, a summary, and a link per page by section."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for section in config["nav"]:
        ((title, pages),) = section.items()
        lines += ["", f"## {title}", ""]
        for name, path in entries(pages):
            place = str(Path(path).with_suffix("")).removesuffix("index")
            source = ROOT / "docs" / path
            kind = kind_of(source) if source.exists() else "reference"
            lines.append(f"- [{name}]({f'{place}/' if place and place != '.' else './'}){f': {kind}' if kind else ''}")
    return "\n".join(lines) + "\n"


def public(package: griffe.Module) -> dict[str, griffe.Object]:
    """Return what ``fedfloor.__all__`` names, in its order, by its path."""
    names = [name for name in package.exports or () if str(name) != "__version__"]
    found = {}
    for name in names:
        member = package[str(name)]
        found[str(name)] = member.final_target if member.is_alias else member
    return found


def undocumented(package: griffe.Module) -> Iterator[str]:
    """Yield the public names, and public members of public classes, that have no docstring.

    A member that a base class describes, such as the plan of a method, needs none of its own.
    """
    for thing in public(package).values():
        bases = thing.mro() if thing.is_class else []
        known = {name for base in bases for name, member in base.members.items() if member.docstring is not None}
        members = [(name, m) for name, m in thing.members.items() if name not in known] if thing.is_class else []
        described = [(thing, thing.path), *((m, m.path) for name, m in members if not name.startswith("_"))]
        yield from (path for m, path in described if not (m.is_alias or m.is_attribute or m.docstring is not None))


def python(package: griffe.Module) -> dict[str, str]:
    """Return a page per group of public names, and one that lists them."""
    things = public(package)
    names = list(things)
    index = ["# Python\n", "`from fedfloor import …`: these names are public, all else is private.\n"]
    pages = {}
    seen = []
    for page, (title, first, last) in PAGES.items():
        group = names[names.index(first) : names.index(last) + 1]
        seen += group
        body = "\n\n".join(f"::: {things[name].path}" for name in group)
        pages[f"reference/{page}.md"] = f"# {title}\n\n{body}\n"
        index.append(f"- [{title}]({page}.md): {', '.join(f'`{name}`' for name in group)}")
    if seen != names:
        raise PluginError(f"docs/reference.py leaves out {sorted(set(names) - set(seen))}")
    return {"reference/python.md": "\n".join(index) + "\n", **pages}


def commands() -> str:
    """Return every command with its help, as the command line prints it."""
    sys.path.insert(0, str(SOURCE))
    import typer

    app = typer.main.get_command(importlib.import_module("fedfloor.cli").app)
    parts = ["# Commands\n", "Every command that prints a table takes `--json`.\n"]
    for name, command in every("fedfloor", app):
        text = command.get_help(command.make_context(name, [], resilient_parsing=True))
        parts.append(f"## {name}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def cards() -> str:
    """Return every method's card, as ``fedfloor list methods NAME`` prints it."""
    catalog = importlib.import_module("fedfloor.methods.catalog")
    parts = ["# Methods by name\n"]
    for name in [*catalog.METHODS, *catalog.EXACT, *catalog.REFERENCES]:
        text, settings = catalog.card(name)
        defaults = "\n".join(f"    {row['setting']} = {row['default']!r}" for row in settings)
        parts.append(f"## {name}\n\n```text\n{text}\n\nDefaults:\n{defaults}\n```\n")
    return "\n".join(parts)


def every(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, and groups that do something by themselves, by their whole names."""
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if hasattr(command, "commands"):
            yield from every(f"{name} {word}", command)
