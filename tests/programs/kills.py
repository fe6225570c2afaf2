"""FedSR's MNIST experiment with lost visits, killed ten times and resumed: ``make kills`` (needs MNIST; 3 minutes).

The whole process group is killed with SIGKILL at random moments. In the end the ledger (but for ``wall_s``) and the
model must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = (sys.executable, "-m", "fedfloor", "run", "fedsr-mnist", "--stop-after", "12", "--set", "faults.visit=0.1")
KILLS = 10


def begin(out: Path) -> subprocess.Popen[bytes]:
    more = ["--resume"] if (out / "experiment.toml").exists() else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*COMMAND, "--out", str(out), *more], start_new_session=True, **quiet)  # type: ignore[call-overload,no-any-return]


def figures(out: Path) -> tuple[list[dict[str, object]], str]:
    lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    plain = [{key: value for key, value in line.items() if key != "wall_s"} for line in lines]
    return plain, hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def disturb(out: Path, rng: random.Random) -> int:
    """Kill the run again and again; return how often it was killed before it ended by itself."""
    for kills in range(KILLS):
        process = begin(out)
        time.sleep(rng.uniform(1.5, 8.5))
        if process.poll() is not None:
            return kills
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return KILLS


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        calm = Path(folder) / "calm"
        killed = Path(folder) / "killed"
        if begin(calm).wait():
            print("the run does not work undisturbed: is MNIST there? (fedfloor list datasets)")
            return 1
        kills = disturb(killed, random.Random(0))
        begin(killed).wait()
        same = figures(calm) == figures(killed)
        print(
            f"{kills} kills, {len(figures(killed)[0])} rounds: ledger and model {'are the same' if same else 'DIFFER'}"
        )
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
