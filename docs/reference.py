"""Makes the reference when the documentation is built: commands from their help, Python from its docstrings.

An undocumented public name, or a room of the package that nobody describes here, fails the build.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[1] / "src"
ROOMS = {
    "": "what a script imports",
    "data": "what there is to learn from",
    "park": "what exists: devices and factories",
    "plan": "what a round is",
    "methods": "who decides: a file per paper",
    "parts": "what methods share",
    "models": "networks",
    "network": "what it costs: links, radio, price",
    "tasks": "what a model is asked for: classes, numbers, the next rows",
    "solvers": "numbers only: who sends when and how loud",
    "engine": "who executes",
    "runs": "what happened",
    "inference": "what a trained model is used for",
    "tracking": "runs shown elsewhere",
    "report": "what people see",
    "reproduce": "published tables, computed again",
    "bench": "how fast it is",
    "deploy": "real machines",
    "cli": "the commands",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    package = griffe.load("fedfloor", search_paths=[str(SOURCE)])
    missing = sorted(undocumented(package))
    if missing:
        raise PluginError("public names without a docstring: " + ", ".join(missing))
    pages = {"reference/commands.md": commands(), **python(package)}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def undocumented(thing: griffe.Object) -> Iterator[str]:
    """Yield the public modules, classes and functions below ``thing`` that have no docstring."""
    for name, member in thing.members.items():
        if member.is_alias or (name.startswith("_") and name != "__init__"):
            continue
        described = name == "__init__" or member.is_attribute or member.docstring is not None
        if not described:
            yield member.path
        if member.is_module or member.is_class:
            yield from undocumented(member)


def is_module(member: griffe.Object | griffe.Alias) -> bool:
    """Return whether a member is a module of the package, not a name that was imported."""
    return not member.is_alias and member.is_module


def below(package: griffe.Object | griffe.Alias) -> list[Any]:
    """Return the public modules that stand in a package."""
    return [m for name, m in sorted(package.members.items()) if is_module(m) and not name.startswith("_")]


def python(package: griffe.Module) -> dict[str, str]:
    """Return a page per room and one that lists them."""
    rooms = {name for name, m in package.members.items() if is_module(m) and m.is_subpackage}
    if rooms != set(ROOMS) - {""}:
        raise PluginError(f"docs/reference.py describes the rooms {sorted(ROOMS)}, the package has {sorted(rooms)}")
    pages, index = {}, ["# Python\n", "The library comes first; the command line is a thin user of it.\n"]
    for room, what in ROOMS.items():
        inside = package.members[room] if room else package
        modules = [m for m in below(inside) if room or not m.is_subpackage]
        modules += [inner for m in modules if m.is_subpackage for inner in below(m)]
        title = f"fedfloor.{room}" if room else "fedfloor"
        body = "\n\n".join(f"::: {m.path}" for m in modules)
        pages[f"reference/{room or 'fedfloor'}.md"] = f"# {title}: {what}\n\n{body}\n"
        index.append(f"- [{title}]({room or 'fedfloor'}.md): {what}")
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


def every(name: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group, and groups that do something by themselves, by their whole names."""
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if hasattr(command, "commands"):
            yield from every(f"{name} {word}", command)
