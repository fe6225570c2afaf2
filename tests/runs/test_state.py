"""What a method carries from round to round is the same before and after a checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfloor.methods.contract import State
from fedfloor.runs import checkpoint, ledger
from fedfloor.runs.checkpoint import Checkpoint
from refusals import refused

NOTES = {"group of": {3: (0, 1), 4: ()}, "round": 7, "share": 0.1, "done": False, "none": None, "info": {"µ": "é"}}


def circle() -> dict[str, object]:
    notes: dict[str, object] = {}
    notes["itself"] = notes
    return notes


def test_notes_are_what_json_makes_of_them() -> None:
    notes = State({}, NOTES).notes
    assert notes == {**NOTES, "group of": {"3": [0, 1], "4": []}}
    assert State({}, notes).notes == notes
    assert json.loads(json.dumps(notes)) == notes


def test_notes_are_copied() -> None:
    counts = [1, 2]
    state = State({}, {"counts": counts})
    counts.append(3)
    assert state.notes == {"counts": [1, 2]}


def test_a_resumed_state_is_the_one_that_was_saved(tmp_path: Path) -> None:
    state = State({"w": torch.ones(2)}, NOTES, {"m": torch.zeros(1)})
    checkpoint.save_to(tmp_path, Checkpoint(round=1, tick=1, state=state))
    latest = checkpoint.latest(tmp_path)
    assert latest is not None
    assert latest.state.notes == state.notes
    assert list(latest.state.tensors) == ["m"]


def test_a_checkpoint_says_who_holds_the_frozen_part_and_an_older_one_nobody(tmp_path: Path) -> None:
    checkpoint.save_to(tmp_path, Checkpoint(round=1, tick=1, state=State({}), holders=frozenset({7, 2, 300})))
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.holders == {2, 7, 300}
    (file,) = tmp_path.glob("*/state.json")
    about = json.loads(file.read_text())
    assert about.pop("holders") == [2, 7, 300]
    assert about.pop("format") == 2  # an older one has no digests either
    (file.parent / "SHA256SUMS").unlink()
    file.write_text(json.dumps(about))
    older = checkpoint.latest(tmp_path)
    assert older is not None
    assert older.holders == frozenset()


@pytest.mark.parametrize(
    "notes",
    [
        {"counts": np.zeros(2)},
        {"count": np.int64(3)},
        {"model": torch.zeros(1)},
        {"devices": {1, 2}},
        {(0, 1): "a pair"},
        [1, 2],
        circle(),
        {"loss": math.nan},
    ],
    ids=["array", "NumPy number", "tensor", "set", "key", "no mapping", "circle", "no number"],
)
def test_what_is_no_json_is_refused(notes: dict[str, object]) -> None:
    with refused("state-of-method"):
        State({}, notes)


@pytest.mark.parametrize("line", [b'{"round": 1, "strange": 2}', b"[1]", b"nothing", b"\xff", b"[" * 100_000])
def test_a_damaged_line_of_a_ledger_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(line + b"\n")
    with refused("damaged-ledger"):
        ledger.read(tmp_path / "ledger.jsonl")
