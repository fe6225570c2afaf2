"""What a sink is, which there are, and whether their libraries are here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from fedfloor.errors import SettingError, unknown
from fedfloor.tracking.points import About, Point

LIVE = ("tensorboard", "mlflow")


class Sink(Protocol):
    """Shows a ledger elsewhere. It may raise anything: that never reaches the training."""

    def open(self, what: About) -> str:
        """Begin, or go on with what an earlier start of the run left; return where.

        A sink that failed is opened again; after every opening all rounds are sent from the first one on.
        """
        ...

    def send(self, new: Sequence[Point]) -> None:
        """Take rounds in; those it holds already must not appear twice."""
        ...

    def close(self, status: str, files: Sequence[Path]) -> None:
        """End.

        Args:
            status: ``"FINISHED"``, ``"FAILED"`` or ``"KILLED"``.
            files: what the run made.
        """
        ...


def check(kinds: Iterable[str], option: str = "--track") -> None:
    """Make sure that these sinks exist and that their libraries are installed; nothing is imported yet.

    Raises:
        SettingError: an unknown sink, or a missing library.
    """
    for kind in kinds:
        if kind not in LIVE:
            raise unknown(option, kind, LIVE)
        if not _installed(kind):
            raise SettingError(f"{option} {kind}: {kind} is not installed. pip install 'fedfloor[tracking]' brings it.")


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ImportError:
        return False


def make(kind: str, place: Path) -> Sink:
    """Return a sink.

    Args:
        kind: one of :data:`LIVE`.
        place: folder for event files.
    """
    if kind == "tensorboard":
        from fedfloor.tracking.tensorboard import TensorBoard

        return TensorBoard(place)
    from fedfloor.tracking.mlflow import Mlflow

    return Mlflow()
