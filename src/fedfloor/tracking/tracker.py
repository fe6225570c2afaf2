"""Export of a run to sinks, during the run or afterwards."""

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

from fedfloor.base.errors import FedfloorError, RunError
from fedfloor.runs.folder import owned
from fedfloor.tracking.sinks import Point, Sink, about, check, figures, make, points, safe_round

if TYPE_CHECKING:  # it imports PyTorch, which takes seconds
    from fedfloor.runs.ledger import Follow, Line

log = logging.getLogger(__name__)

RETRY_S = 60.0  # wait before a failed sink is retried,
PATIENCE = 20.0  # at least this multiple of the duration of the failure, so that a slow sink costs at most a twentieth
FILES = ("experiment.toml", "model.safetensors", "report.html")


class Tracker:
    """A process step that sends a run's ledger to a sink; a failure of the sink does not stop the run.

    A round is sent when a checkpoint covers it, as a resume truncates the ledger to the checkpoint and repeats later
    rounds. The sink is opened with the first line, after the start of the run's processes, so that a library that
    starts threads or takes seconds to import does not interfere with the start.
    """

    def __init__(self, kind: str, folder: Path, sink: Sink) -> None:
        self.kind = kind
        self.folder = folder
        self.sink = sink
        self.began = self.opened = self.warned = False
        self.problem = ""
        self.classes: tuple[str, ...] = ()
        self.waiting: list[Point] = []
        self.again_at = -math.inf

    def __call__(self, line: Line) -> None:
        """Send the rounds that checkpoints cover, after a new ledger line."""
        self.began = True
        if self.opened:
            self._try(lambda: self._add(line))
        if self.opened or time.monotonic() >= self.again_at:
            self._try(self._send)

    def close(self, status: str) -> None:
        """Send the remaining rounds and end; log the command that sends rounds missed because of failures."""

        def end() -> None:
            self._send()
            self.sink.close(status, _files(self.folder))

        self._try(end)
        if self.problem:
            log.warning(
                "%s did not receive all rounds of %s. To send them later: fedfloor track %s --to %s",
                self.kind, self.folder, shlex.quote(str(self.folder)), self.kind,
            )  # fmt: skip

    def _try(self, action: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            action()
            self.problem = ""
        except Exception as error:  # no error of a sink may stop the training
            now = time.monotonic()
            self.opened = False
            self.again_at = now + max(RETRY_S, PATIENCE * (now - began))
            self.problem = reason(error)
            if not self.warned:
                log.warning("%s: %s. The run continues without it.", self.kind, self.problem)
            self.warned = True

    def _add(self, line: Line) -> None:
        self.waiting.append(Point(line.round, time.time(), figures(asdict(line), self.classes)))

    def _send(self) -> None:
        if not self.opened:
            run = about(self.folder)
            self.sink.open(run)
            self.classes = run.classes
            self.waiting = points(run)
            self.opened = True
        safe = safe_round(self.folder)
        ready = [point for point in self.waiting if point.round <= safe]
        if ready:
            self.sink.send(ready)
            self.waiting = self.waiting[len(ready) :]


@contextlib.contextmanager
def follow(folder: Path | str, kinds: Sequence[str]) -> Iterator[Follow]:
    """Send the run in ``folder`` to sinks while the body runs; yield a function to be called with its ledger lines.

    ``with follow("runs/a", ["tensorboard"]) as record: fedfloor.run(experiment, "runs/a", report=record)``

    Args:
        folder: the run's folder; it need not exist yet.

    Raises:
        SettingError: a sink is unknown, or its library is not installed.
    """
    check(kinds)
    folder = Path(folder)
    trackers: list[Tracker] = []
    if kinds:
        from fedfloor.runs.launch import is_first

        if is_first():  # only the first of several ranks sends
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
    """Send the ledger of a finished or stopped run to a sink; return the number of rounds, and their location.

    Args:
        place: folder for event files; default: in the run's folder.

    Raises:
        SettingError: another process is using the run's folder.
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
            raise RunError(f"{kind} could not store {folder}: {reason(error)}.") from error
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
