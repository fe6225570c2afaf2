"""A demonstration with a park of real processes: train, release, detect drift, train again, release, roll back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor import config
from fedfloor.base import regular
from fedfloor.base.errors import RunError
from fedfloor.deploy import live
from fedfloor.deploy.live import TrialPark
from fedfloor.deploy.processes import Crew, tail
from fedfloor.experiment import Experiment
from fedfloor.rollout.drift import BLOCK, LEARN
from fedfloor.runs.parks import build_park

Say = Callable[[str], None]
Rows = list[dict[str, Any]]
WAIT_S = 60.0  # to wait for a device's predictions and reports
BRIGHTER = 60  # of 255, as with a new lamp
CANARY = "device-0"
SENSOR = "device-1"


class Demonstration:
    """The steps of the demonstration, each by a command of a user where one exists.

    Args:
        trial: the park; its devices predict the files in ``rows/DEVICE`` of its folder.
        say: prints a line.
    """

    def __init__(self, trial: TrialPark, say: Say) -> None:
        self.trial = trial
        self.rows = list[dict[str, Any]]()
        self._say = say

    def run(self, crew: Crew, follow: Callable[[dict[str, Any]], None]) -> bool:
        """Carry out all steps; return whether all succeeded."""
        half = config.read(self.trial.park.experiment).rounds // 2
        self._step("train", lambda: self._train(crew, follow, "--stop-after", str(half)))
        self._step(
            "release to a canary", lambda: self._released("model", "release", str(self.trial.run), "--canary", CANARY)
        )
        self._step("promote", lambda: self._released("model", "promote"))
        self._step("predict as usual", lambda: self._predicted("usual", LEARN * BLOCK + BLOCK, 0))
        self._step("a sensor drifts", lambda: self._predicted("brighter", 8 * BLOCK, BRIGHTER))
        self._step("train on", lambda: self._train(crew, follow, "--resume"))
        self._step("release the new version", lambda: self._released("model", "release", str(self.trial.run)))
        self._step("roll back", lambda: self._released("model", "rollback"))
        return all(row["came out"] for row in self.rows)

    def _step(self, name: str, act: Callable[[], tuple[bool, str]]) -> None:
        """Carry out a step, unless an earlier step failed."""
        if not all(row["came out"] for row in self.rows):
            return
        self._say(f"{name} …")
        began = time.monotonic()
        came_out, result = act()
        row = {"step": name, "seconds": round(time.monotonic() - began, 1), "came out": came_out, "result": result}
        self.rows.append(row)
        self._say(f"{name}: {result}")

    def _train(self, crew: Crew, follow: Callable[[dict[str, Any]], None], *more: str) -> tuple[bool, str]:
        seen = len(live.ledger(self.trial.folder))
        process = live.cloud(crew, self.trial, *more)
        code = live.follow(crew, process, lambda line: follow(line) if line["round"] > seen else None)
        if code:
            raise RunError(f"the run ended with exit code {code}. Last lines of its log:\n{tail(Path(process.log))}")
        last = live.ledger(self.trial.folder)[-1]
        return last["round"] > seen, f"accuracy {last['accuracy']:.3f} after round {last['round']}"

    def _released(self, *words: str) -> tuple[bool, str]:
        """Release, promote or roll back; return whether devices serve their version in time, and a text."""
        rows = self._command(*words, "--wait", str(WAIT_S))
        there = [row for row in rows if row["state"] == "serving" and row["runs"] == row["version"]]
        versions = ", ".join(f"version {number}" for number in sorted({row["version"] for row in rows}))
        return len(there) == len(rows) > 0, f"{len(there)} of {len(rows)} devices serve {versions}"

    def _predicted(self, name: str, count: int, brighter: int) -> tuple[bool, str]:
        """Let a device predict pictures; return whether it detects drift in brighter ones only, and a text."""
        folder = self.trial.folder / "rows" / SENSOR
        part = folder / f".{name}.part"
        with part.open("wb") as file:
            np.save(file, self._pictures(count, brighter))
        os.replace(part, folder / f"{name}.npy")
        until = time.monotonic() + WAIT_S
        drift = ""
        while time.monotonic() < until:
            (row,) = [row for row in self._command("model", "list", "--live", "--wait", "2") if row["device"] == SENSOR]
            drift = row["drift"] or ""
            if bool(drift) == bool(brighter) and self._done(f"{name}.npy", count):
                break
        return bool(drift) == bool(brighter), f"{SENSOR} predicted {count} pictures; drift: {drift or 'none'}"

    def _pictures(self, count: int, brighter: int) -> NDArray[np.uint8]:
        park = build_park(config.read(self.trial.park.experiment))
        x, _ = park.samples(int(SENSOR.rpartition("-")[2]))
        drawn = np.random.default_rng(brighter).integers(len(x), size=count)
        return np.minimum(x[drawn].astype(np.int64) + brighter, 255).astype(np.uint8)

    def _done(self, file: str, count: int) -> bool:
        """Return whether a device has predicted all samples of a file."""
        place = self.trial.place / "devices" / SENSOR / "state" / "models" / "rows.json"
        known = json.loads(regular.read_text(place)) if place.exists() else {}
        return bool(known.get(file, [0, 0])[1] >= count)

    def _command(self, *words: str) -> Rows:
        """Run a command of fedfloor, and return the rows of its JSON document."""
        whole = [*words, "--park", str(self.trial.place), "--json"]
        if words[:2] != ("model", "list"):
            self._say(f"  $ fedfloor {' '.join(words)} --park {self.trial.place}")
        done = subprocess.run([sys.executable, "-m", "fedfloor", *whole], capture_output=True, text=True)
        if not done.stdout.strip():
            raise RunError(f"fedfloor {' '.join(words[:2])} failed: {done.stderr.strip()[-2000:]}")
        rows: Rows = json.loads(done.stdout)["rows"]
        return rows


@contextmanager
def park(experiment: Experiment, folder: Path) -> Iterator[TrialPark]:
    """Yield a new park whose devices predict; end its processes afterwards."""
    trial = live.prepare(experiment, folder, predict=True)
    try:
        yield trial
    finally:
        live.down(trial.folder)
