"""Data in forms that are not read: the message that refuses them, and the lines in it, which are run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import refusals
from fedfloor.data.files import own
from fedfloor.data.files.conversions import ConversionError, check
from fedfloor.data.reading import Reading
from fedfloor.drafting.draft import draft

PANDAS = importlib.util.find_spec("pandas") is not None  # no requirement: the lines are compiled where it is missing
LONGEST = 20  # lines


def refused(path: Path | str, **given: object) -> str:
    """Return the message; a new experiment and a run have the same."""
    with refusals.refused("conversion", ConversionError) as caught:
        check(Path(path), given)
    for read in (lambda: draft(Path(path), Path("x.toml"), []), lambda: own.load(Path(path), Reading(), 0)):
        if not given:
            with refusals.refused("conversion", ConversionError) as again:
                read()
            assert str(again.value) == str(caught.value)
    return str(caught.value)


def convert(message: str) -> bool:
    """Run the lines of a message; return whether they were run."""
    code = textwrap.dedent("\n".join(line for line in message.splitlines() if line.startswith("    ")))
    assert 1 <= len(code.splitlines()) <= LONGEST
    if code.startswith("python "):
        subprocess.run([sys.executable, *code.split()[1:]], check=True)
        return True
    compiled = compile(code, "message", "exec")
    if "pandas" in code and not PANDAS:
        return False
    exec(compiled, {})
    return True
