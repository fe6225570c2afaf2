"""The headline of every device over the rounds: ``devices.jsonl`` of a run's folder, a line per evaluated round."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from fedfloor.base import regular
from fedfloor.base.errors import MALFORMED
from fedfloor.base.strict import json_text
from fedfloor.engine.evaluate import Score

FILE = "devices.jsonl"
MOST = 500  # most devices of a park whose rounds are written down
DIGITS = 5


def append(out: Path, number: int, headline: str, devices: Sequence[int], score: Score) -> None:
    """Append a round: device → headline of the model on its test samples, or expected from its classes.

    Devices without a value are left out. Parks of more than 500 devices have no such file.
    """
    known = {str(k): short(value) for k, value in zip(devices, score.devices, strict=True) if value is not None}
    if len(devices) > MOST or not known:
        return
    regular.append(out / FILE, json_text({"round": number, "headline": headline, "devices": known}))


def short(value: float) -> float:
    """Return a value with five digits.

    >>> short(0.123456789)
    0.12346
    """
    return float(f"{value:.{DIGITS}g}")


def cut(out: Path, last: int) -> None:
    """Remove the rounds after ``last``, and a damaged line with all after it."""
    path = out / FILE
    if not path.exists():
        return
    kept = 0
    for line in regular.read_bytes(path).splitlines(keepends=True):
        if not line.endswith(b"\n") or _round(line) > last:
            break
        kept += len(line)
    os.truncate(path, kept)


def _round(line: bytes) -> float:
    """Return the round of a line, for a damaged one ∞."""
    try:
        return float(json.loads(line)["round"])
    except MALFORMED:
        return math.inf
