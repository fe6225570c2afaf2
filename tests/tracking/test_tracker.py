"""What a sink is told, and when; and that a run goes on whatever the sink does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fedfloor.runs import ledger
from fedfloor.tracking import tracker
from fedfloor.tracking.sinks import About, Point
from run_folders import make_run


class Notes:
    """A sink that writes down what it is told, and fails when told to."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.fails = False

    def open(self, what: About) -> str:
        self.told.append(f"open {what.name}")
        return "here"

    def send(self, new: Sequence[Point]) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.told.append("send " + ",".join(str(point.round) for point in new))

    def close(self, status: str, files: Sequence[Path]) -> None:
        self.told.append(f"close {status} {','.join(path.name for path in files)}")


def checkpoint(folder: Path, number: int) -> None:
    (folder / "checkpoint" / f"round-{number:08d}").mkdir(parents=True)


def test_a_sink_is_never_ahead_of_the_checkpoint(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", [0.1, 0.2, 0.3])
    notes = Notes()
    lines = ledger.read(folder / "ledger.jsonl")
    follows = tracker.Tracker("notes", folder, notes)
    assert notes.told == []  # opened when the run's processes have been started, not before
    follows(lines[2])
    assert notes.told == ["open a"]
    checkpoint(folder, 2)
    follows(ledger.Line(**{**vars(lines[2]), "round": 4}))
    assert notes.told[1:] == ["send 1,2"]
    checkpoint(folder, 4)
    follows(ledger.Line(**{**vars(lines[2]), "round": 5}))
    assert notes.told[2:] == ["send 3,4"]
    follows.close("KILLED")
    assert notes.told[3:] == ["close KILLED experiment.toml"]


def test_a_sink_that_fails_is_said_once_and_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker, "RETRY_S", 0.0)
    monkeypatch.setattr(tracker, "PATIENCE", 0.0)
    folder = make_run(tmp_path / "a", [0.1, 0.2, 0.3])
    notes = Notes()
    checkpoint(folder, 3)
    lines = ledger.read(folder / "ledger.jsonl")
    follows = tracker.Tracker("notes", folder, notes)
    notes.fails = True
    for line in lines[:2]:
        follows(line)
    assert [record.getMessage() for record in caplog.records] == [
        "notes: [Errno 28] No space left on device. The run continues without it."
    ]
    notes.fails = False
    follows(lines[2])
    follows.close("FINISHED")
    assert notes.told[-3:] == ["open a", "send 1,2,3", "close FINISHED experiment.toml"]
    assert len(caplog.records) == 1


def test_a_sink_that_fails_is_left_alone_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_run(tmp_path / "a b", [0.1, 0.2, 0.3])
    notes = Notes()
    checkpoint(folder, 3)
    notes.fails = True
    follows = tracker.Tracker("notes", folder, notes)
    for line in ledger.read(folder / "ledger.jsonl"):
        follows(line)
    assert notes.told == ["open a b"]
    follows.close("FINISHED")  # the last chance
    assert notes.told == ["open a b", "open a b"]
    assert caplog.records[-1].getMessage().endswith(f"To send them later: fedfloor track '{folder}' --to notes")


def test_a_run_that_fails_is_shown_as_failed_and_one_that_never_began_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "a", [0.1])
    notes = Notes()
    monkeypatch.setattr(tracker, "make", lambda kind, place: notes)
    monkeypatch.setattr(tracker, "check", lambda kinds: None)
    with pytest.raises(ValueError, match="refused"), tracker.follow(folder, ["notes"]):
        raise ValueError("refused")
    assert notes.told == []
    (line,) = ledger.read(folder / "ledger.jsonl")

    def fail(error: type[BaseException]) -> None:
        with tracker.follow(folder, ["notes"]) as record:
            record(line)
            raise error

    for error, status in ((RuntimeError, "FAILED"), (KeyboardInterrupt, "KILLED")):
        with pytest.raises(error):
            fail(error)
        assert notes.told[-1] == f"close {status} experiment.toml"


def test_ranks_other_than_the_first_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "a", [0.1])
    notes = Notes()
    monkeypatch.setattr(tracker, "make", lambda kind, place: notes)
    monkeypatch.setattr(tracker, "check", lambda kinds: None)
    for rank, told in (("1", []), ("0", ["open a", "close FINISHED experiment.toml"])):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with tracker.follow(folder, ["notes"]):
            pass
        assert notes.told == told
