"""Commands in processes of their own that need not wait for PyTorch.

Each is a copy of a server that has imported the libraries, but nothing of fedfloor: what a command imports of it, it
imports anew, as one typed at a prompt does; and whatever a page's modules or another command did is not there.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("torch", "numpy", "scipy.optimize", "pydantic", "tomlkit", "typer", "rich.console", "warm")


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


def fedfloor(words: Sequence[str], folder: Path, log: Path, timeout: float = 300) -> Done:
    """Call ``fedfloor WORDS…`` in a folder and wait for it; what it prints goes to two files beside ``log``."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(LIBRARIES))
    out, err = (log.with_suffix(suffix) for suffix in (".out", ".err"))
    process = server.Process(target=_be, args=(list(words), str(folder), str(out), str(err), dict(os.environ)))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"fedfloor {' '.join(words)}: more than {timeout} seconds\n{err.read_text()}")
    return Done(process.exitcode, out.read_text(), err.read_text())


def _be(words: list[str], folder: str, out: str, err: str, environment: dict[str, str]) -> None:
    """Be ``python -m fedfloor WORDS…``, started in a folder."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, out), (2, err)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False, encoding="utf-8") for number in (1, 2))  # noqa: SIM115
    sys.argv = ["fedfloor", *words]
    sys.path.insert(0, folder)
    assert not [name for name in sys.modules if name.split(".")[0] == "fedfloor"], "it would not be imported anew"
    from fedfloor.cli import main

    main()
