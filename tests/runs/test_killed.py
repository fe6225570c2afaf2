"""``compare`` and ``sweep``, interrupted and killed again and again: they end with what they would have said."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import warm
from commands import TINY, lines

pytestmark = pytest.mark.slow

ROUNDS = 25
WORDS = {
    "compare": ("--methods", "fedavg,fedsr", "--seeds", "0,1"),
    "sweep": ("--methods", "fedavg,fedsr", "--grid", "work.lr=0.3,0.003", "--seeds", "0,1"),
}
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGKILL)


def moments(command: str, total: int) -> list[int]:
    """After how many rounds each signal comes: drawn by seed; Ctrl-C in the first half of a run, where it is heard."""
    rng = random.Random(command)
    early = rng.randrange(1, total // 3)
    late = rng.randrange(total // 2, total * 3 // 4)
    return [early, total // 2 // ROUNDS * ROUNDS + rng.randrange(1, ROUNDS // 2), late]


def begin(folder: Path, command: str, *more: str) -> warm.Started:
    """Start the command in a process group of its own."""
    words = (command, "tiny.toml", *WORDS[command], "--set", f"rounds={ROUNDS}", "--out", "all", "--json", *more)
    return warm.begin(words, folder, folder / "log")


def done(folder: Path) -> int:
    """The number of rounds that all ledgers together hold."""
    return sum(path.read_bytes().count(b"\n") for path in (folder / "all").glob("*/ledger.jsonl"))


def disturb(folder: Path, command: str, moment: int, by: signal.Signals, *more: str) -> None:
    """Start the command and stop it once ``moment`` rounds are on disk."""
    moment = max(moment, done(folder) + 1)  # reached only once it trains
    process = begin(folder, command, *more)
    while done(folder) < moment and process.poll() is None:
        time.sleep(0.001)
    assert process.poll() is None, f"it ended by itself, before round {moment}"
    if by is signal.SIGKILL:
        os.killpg(process.pid, by)
    else:
        os.kill(process.pid, by)
    assert process.wait(60) == (130 if by is signal.SIGINT else -by)
    assert command == "compare" or process.out.read_text() == ""  # a table of half a sweep would not be fair


def said(folder: Path, command: str, *more: str) -> tuple[str, dict[str, Any]]:
    process = begin(folder, command, *more)
    assert process.wait(120) == 0
    out = process.out.read_text()
    document = json.loads(out)
    for row in document["rows"]:
        row.pop("wall_s", None)
    return out, document


@pytest.mark.parametrize("command", WORDS)
def test_disturbed_and_resumed(tmp_path: Path, command: str) -> None:
    calm = tmp_path / "calm"
    killed = tmp_path / "killed"
    for folder in (calm, killed):
        folder.mkdir()
        (folder / "tiny.toml").write_text(TINY)
    text, want = said(calm, command, "--ranks", "1")
    total = done(calm)
    assert total == ROUNDS * len(list((calm / "all").glob("*-seed*")))
    for i, (moment, by) in enumerate(zip(moments(command, total), SIGNALS, strict=True)):
        disturb(killed, command, moment, by, "--ranks", "2", *(["--resume"] if i else []))
    again, got = said(killed, command, "--ranks", "2", "--resume")
    assert got == want
    if command == "sweep":
        assert again == text  # to the byte: nothing in it depends on the clock
        for name in ("best.toml", "sweep.json"):
            assert (killed / "all" / name).read_bytes() == (calm / "all" / name).read_bytes()
    for run in (calm / "all").glob("*-seed*"):
        other = killed / "all" / run.name
        assert lines(other) == lines(run)
        assert (other / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
