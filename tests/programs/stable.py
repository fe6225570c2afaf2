"""The interfaces that stay stable, as JSON: ``python tests/programs/stable.py write`` renews ``stable.json`` beside it.

Whoever changes one of them renews the file, adds a line to the changelog, and raises the version as docs/stability.md
says.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import click
import typer.main

import fedfloor
from fedfloor.cli.app import app
from fedfloor.deploy import message
from fedfloor.experiment import Experiment
from fedfloor.plan.nodes import Work
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.text import KINDS
from fedfloor.runs.ledger import Line

FILE = Path(__file__).with_name("stable.json")


def commands(command: click.Command, name: str) -> dict[str, list[str]]:
    """Return every command with its options and arguments."""
    if isinstance(command, click.Group):
        below = {key: value for child in command.commands for key, value in _child(command, child, name).items()}
        return dict(sorted(below.items()))
    return {
        name: sorted(option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts))
    }


def _child(group: click.Group, child: str, name: str) -> dict[str, list[str]]:
    return commands(group.commands[child], f"{name} {child}")


def tables(kind: type[Any], prefix: str = "") -> list[str]:
    """Return the keys of an experiment file."""
    keys = []
    for name, hint in get_type_hints(kind).items():
        if name == "_":
            continue
        if is_dataclass(hint) and isinstance(hint, type):
            keys += tables(hint, f"{prefix}{name}.")
        else:
            keys.append(f"{prefix}{name}")
    return sorted(keys)


def interfaces() -> dict[str, Any]:
    """Return the stable interfaces of this tree."""
    return {
        "commands": commands(typer.main.get_command(app), "fedfloor"),
        "experiment": tables(Experiment),
        "ledger": sorted(field.name for field in fields(Line)),
        "plan": {name: sorted(field.name for field in fields(kind)) for name, kind in sorted(KINDS.items())},
        "python": sorted(fedfloor.__all__),
        "receipt": [field.name for field in fields(Receipt)],
        "wire": message.VERSION,
        "work": sorted(field.name for field in fields(Work)),
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit("usage: python tests/programs/stable.py write")
    FILE.write_text(json.dumps(interfaces(), indent=1, sort_keys=True) + "\n")
