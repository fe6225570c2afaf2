"""TensorBoard: one event file that says what the ledger says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fedfloor.tracking.points import About, Point

OURS = "events.out.tfevents.*.fedfloor"


class TensorBoard:
    """Writes an event file, a new one at every start; each tells the whole story and takes back what older ones told.

    So older ones can go, but for the last: a TensorBoard that is looking stands in it, and would not find on.

    Records are written by this thread, not by TensorBoard's own writer: it would start another one, and a process
    with several threads cannot be copied, which is how ranks start fast.

    Args:
        place: folder for the event file.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.path = place

    def open(self, what: About) -> str:  # noqa: ARG002
        """Begin a new event file."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.place.mkdir(parents=True, exist_ok=True)
        older = sorted(self.place.glob(OURS))[:-1]
        self.path = self.place / f"events.out.tfevents.{time.time_ns():020d}.fedfloor"
        now = time.time()
        start = SessionLog(status=SessionLog.START)  # with step 0: forget all points of this run
        _append(
            self.path, [Event(wall_time=now, file_version="brain.Event:2"), Event(wall_time=now, session_log=start)]
        )
        for path in older:
            path.unlink(missing_ok=True)
        return str(self.place)

    def send(self, new: Sequence[Point]) -> None:
        """Write one event per round."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        events = []
        for point in new:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.figures.items()]
            events.append(Event(wall_time=point.time_s, step=point.round, summary=Summary(value=values)))
        _append(self.path, events)

    def close(self, status: str, files: Sequence[Path]) -> None:
        """Do nothing: every round is in the file already."""


def _append(path: Path, events: Sequence[object]) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())  # type: ignore[attr-defined]
