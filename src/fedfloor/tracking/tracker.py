"""Sinks that follow a running run, and ledgers replayed into them afterwards."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fedfloor.errors import FedfloorError, RunError
from fedfloor.runs.folder import owned
from fedfloor.tracking.sinks import Point, Sink, about, check, figures, make, points, safe_round

if TYPE_CHECKING:  # it brings PyTorch, which takes seconds
    from fedfloor.runs.ledger import Follow, Line

log = logging.getLogger(__name__)

RETRY_S = 60.0  # until a sink that failed is tried again,
PATIENCE = 20.0  # and after so many times as long as it took to fail: one that hangs costs a twentieth at most
FILES = ("experiment.toml", "model.safetensors", "report.html")


class Tracker:
    """Sends one run's ledger to one sink; a failure of the sink does not stop the run.

    A round is sent once a checkpoint covers it: a resume cuts the ledger to the checkpoint and makes later lines anew,
    so that a sink is never ahead of the ledger. The sink is opened with the first line, when the run's processes have
    been started: a library that starts threads or takes seconds to import keeps no run from starting.
    """

    def __init__(self, kind: str, folder: Path, sink: Sink) -> None:
        self.kind, self.folder, self.sink = kind, folder, sink
        self.began = self.opened = self.warned = False
        self.problem = ""
        self.classes: tuple[str, ...] = ()
        self.waiting: list[Point] = []
        self.again_at = -math.inf

    def __call__(self, line: Line) -> None:
        """Take a new line in."""
        self.began = True
        if self.opened:
            self._try(lambda: self._add(line))
        if self.opened or time.monotonic() >= self.again_at:
            self._try(self._send)

    def close(self, status: str) -> None:
        """Send the rest and end; log the command that sends the rounds missed by a failed sink."""

        def end() -> None:
            self._send()
            self.sink.close(status, _files(self.folder))

        self._try(end)
        if self.problem:
            log.warning(
                "%s did not get all of %s. Once it can: fedfloor track %s --to %s",
                self.kind, self.folder, shlex.quote(str(self.folder)), self.kind,
            )  # fmt: skip

    def _try(self, action: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            action()
            self.problem = ""
        except Exception as error:  # of any kind: the training is worth more
            now = time.monotonic()
            self.opened, self.again_at = False, now + max(RETRY_S, PATIENCE * (now - began))
            self.problem = reason(error)
            if not self.warned:
                log.warning("%s: %s. The run goes on without it.", self.kind, self.problem)
            self.warned = True

    def _add(self, line: Line) -> None:
        self.waiting.append(Point(line.round, time.time(), figures(asdict(line), self.classes)))

    def _send(self) -> None:
        if not self.opened:
            run = about(self.folder)
            self.sink.open(run)
            self.classes, self.waiting = run.classes, points(run)
            self.opened = True
        safe = safe_round(self.folder)
        ready = [point for point in self.waiting if point.round <= safe]
        if ready:
            self.sink.send(ready)
            self.waiting = self.waiting[len(ready) :]


@contextlib.contextmanager
def follow(folder: Path | str, kinds: Sequence[str]) -> Iterator[Follow]:
    """Send the run in ``folder`` to sinks while the body runs; yields the function that takes its ledger lines.

    ``with follow("runs/a", ["tensorboard"]) as record: fedfloor.run(experiment, "runs/a", report=record)``

    Args:
        folder: the run's folder; it need not exist yet.

    Raises:
        SettingError: an unknown sink, or its library is not installed.
    """
    check(kinds)
    folder = Path(folder)
    trackers: list[Tracker] = []
    if kinds:
        from fedfloor.runs.launch import is_first

        if is_first():  # of several ranks only the first sends
            trackers = [Tracker(kind, folder, make(kind, folder)) for kind in dict.fromkeys(kinds)]

    def record(line: Line) -> None:
        for tracker in trackers:
            tracker(line)

    try:
        yield record
    except BaseException as error:
        for tracker in trackers:
            if tracker.began:
                tracker.close("FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    for tracker in trackers:
        if (folder / "ledger.jsonl").exists():
            tracker.close("FINISHED")


def replay(folder: Path, kind: str, place: Path | None = None) -> tuple[int, str]:
    """Send the ledger of a finished or stopped run to a sink; return the number of rounds, and their place.

    Args:
        place: folder for event files; the run's own where it is left out.

    Raises:
        SettingError: another process works in the run's folder.
        RunError: the sink fails.
    """
    sink = make(kind, place or folder)
    with owned(folder) if place is None else contextlib.nullcontext():
        run = about(folder)
        last = safe_round(folder) or math.inf
        ready = [point for point in points(run) if point.round <= last]
        ended = (folder / "model.safetensors").exists()
        try:
            where = sink.open(run)
            sink.send(ready)
            sink.close("FINISHED" if ended else "KILLED", _files(folder))
        except FedfloorError:
            raise
        except Exception as error:
            raise RunError(f"{kind} could not take in {folder}: {reason(error)}.") from error
    return len(ready), where


def _files(folder: Path) -> list[Path]:
    return [folder / name for name in FILES if (folder / name).exists()]


def reason(error: Exception) -> str:
    """Return an error's message on one line and without a user's name and password.

    >>> reason(ValueError("no answer from http://me:secret@host/api. "))
    'no answer from http://host/api'
    """
    text = " ".join(re.sub(r"//[^/@\s]+@", "//", str(error)).split()) or type(error).__name__
    return (text if len(text) <= 300 else text[:300] + " …").rstrip(".")
