"""The steps of the demonstration without its processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedfloor.cli import demonstration
from fedfloor.cli.demonstration import SENSOR, Demonstration


def demo(folder: Path) -> Demonstration:
    return Demonstration(cast(Any, SimpleNamespace(place=folder, folder=folder)), print)


def test_training_that_goes_on_shows_its_new_rounds_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = [{"round": number, "accuracy": number / 10} for number in (1, 2)]
    new = [{"round": number, "accuracy": number / 10} for number in (3, 4)]

    def follow(crew: object, process: object, show: Callable[[dict[str, Any]], None]) -> int:
        recorded.extend(new)
        for line in recorded:
            show(line)
        return 0

    monkeypatch.setattr(demonstration.live, "ledger", lambda _: recorded)
    monkeypatch.setattr(demonstration.live, "cloud", lambda *_: SimpleNamespace(log="log"))
    monkeypatch.setattr(demonstration.live, "follow", follow)
    shown = list[int]()
    done = demo(tmp_path)._train(cast(Any, None), lambda line: shown.append(line["round"]))
    assert shown == [3, 4]
    assert done == (True, "accuracy 0.400 after round 4")


def test_a_file_is_done_when_all_its_rows_are_predicted(tmp_path: Path) -> None:
    made = demo(tmp_path)
    assert not made._done("usual.npy", 5)  # nothing is predicted yet
    memory = tmp_path / "devices" / SENSOR / "state" / "models" / "rows.json"
    memory.parent.mkdir(parents=True)
    memory.write_text(json.dumps({"usual.npy": [100, 5]}))  # where it goes on: byte and row
    assert made._done("usual.npy", 5)
    assert not made._done("usual.npy", 6)
    assert not made._done("brighter.npy", 1)
