"""The note that a run whose training diverged leaves in its folder: ``diverged.json``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedfloor.errors import DivergedError, RunError
from fedfloor.runs import ledger
from fedfloor.runs.folder import write_json

NAME = "diverged.json"


@contextmanager
def noted(folder: Path) -> Iterator[None]:
    """Write down in which round training diverged, where it does in the body.

    The round is the one after the ledger's last.

    Args:
        folder: the run's.
    """
    try:
        yield
    except DivergedError as error:
        with contextlib.suppress(RunError):  # the first error is the one to be told
            write_json(folder / NAME, {"round": _done(folder) + 1, "why": str(error)})
        raise


def forget(folder: Path) -> None:
    """Delete the note of an earlier attempt, as the run goes on."""
    (folder / NAME).unlink(missing_ok=True)


def _done(folder: Path) -> int:
    path = folder / "ledger.jsonl"
    lines = ledger.read(path) if path.exists() else []
    return lines[-1].round if lines else 0


def round_of(folder: Path) -> int | None:
    """Return the round in which a run diverged, or None where it did not."""
    path = folder / NAME
    return int(json.loads(path.read_text(encoding="utf-8"))["round"]) if path.exists() else None
