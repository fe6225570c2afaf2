"""Rounds per second beside other frameworks: each side in processes of its own, in turn, several times over.

    python benchmarks/peers/run.py --python .venv-peers/bin/python --repeats 3

Every side does the same work (``workload.py``). A side's figure is the median over its rounds, after one to warm up;
of each repetition the ratio to fedfloor's in the same repetition is taken, and of these the median, so that a machine
whose speed drifts does not matter. Memory is the peak of the sum over a side's processes, shared pages shared out.
*Whole* is how long a side's command takes for all of its rounds, with imports, start-up and end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# name, program with its options, processes that train (0: as many as there are cores)
SIDES = (
    ("fedfloor", "side_fedfloor.py", 0),
    ("fedfloor, 1 rank", "side_fedfloor.py", 1),
    ("bare loop", "side_bare.py", 1),
    ("pfl 0.6", "side_pfl.py", 1),
    ("Flower 1.41 simulation", "side_flower.py", 0),
    ("Flower 1.41 simulation, 1 actor", "side_flower.py", 1),  # its default: two cores for each client
    # as in its examples: samples made anew for each message, and everybody evaluates in every round
    ("Flower 1.41 simulation, 1 actor, as in examples", "side_flower.py --examples", 1),
)


def main() -> None:
    """Measure, and print a table or JSON."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--python", default=sys.executable, help="of the environment that has all frameworks")
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--rounds", type=int, default=6, help="timed rounds of each side in each repetition")
    asked.add_argument("--epochs", default="5,1")
    asked.add_argument("--only", default="", help="sides whose name holds this, beside fedfloor itself")
    asked.add_argument("--json", action="store_true")
    said = asked.parse_args()
    sides = [one for one in SIDES if one[0] == "fedfloor" or said.only in one[0]]
    rows = []
    for epochs in map(int, said.epochs.split(",")):
        rows += rows_of(said.python, sides, epochs, said.rounds, said.repeats)
    if said.json:
        print(json.dumps({"rows": rows, "cores": cores(), "machine": platform.machine()}, indent=2))
        return
    print(f"{cores()} cores; seconds are medians; the ratio is a side's time to fedfloor's\n")
    print("| side | E | s per round | times fedfloor's | whole, s | times fedfloor's | peak MiB |\n" + "|---" * 7 + "|")
    figures = "{seconds_per_round:.3g} | {ratio:.3g} | {whole_s:.3g} | {whole_ratio:.3g} | {peak_mib:.0f}"
    for row in rows:
        print(f"| {{side}} | {{epochs}} | {figures} |".format(**row))


def rows_of(
    python: str, sides: Sequence[tuple[str, str, int]], epochs: int, rounds: int, repeats: int
) -> list[dict[str, object]]:
    """Measure all sides in turn, ``repeats`` times, and return a row for each."""
    seconds, wholes, peaks = ({name: list[float]() for name, _, _ in sides} for _ in range(3))
    for turn in range(repeats):
        for name, program, ranks in sides:
            print(f"E {epochs}, repetition {turn + 1} of {repeats}: {name}", file=sys.stderr)
            told, whole, peak = measured(python, program, epochs, rounds, ranks or cores())
            seconds[name].append(statistics.median(told))
            wholes[name].append(whole)
            peaks[name].append(peak)
    rows: list[dict[str, object]] = []
    for name, _, _ in sides:
        row = {"seconds_per_round": statistics.median(seconds[name]), "ratio": ratio(seconds, name)}
        row |= {"whole_s": statistics.median(wholes[name]), "whole_ratio": ratio(wholes, name)}
        rows.append({"side": name, "epochs": epochs, **row, "peak_mib": max(peaks[name])})
    return rows


def ratio(times: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the median, over the repetitions, of a side's time divided by fedfloor's."""
    return statistics.median(theirs / ours for theirs, ours in zip(times[name], times["fedfloor"], strict=True))


def measured(python: str, program: str, epochs: int, rounds: int, ranks: int) -> tuple[list[float], float, float]:
    """Run a side; return the seconds of its rounds, those of the whole command and its peak memory in MiB."""
    file, *options = program.split()
    command = [
        python,
        str(HERE / file),
        *options,
        "--epochs",
        str(epochs),
        "--rounds",
        str(rounds + 1),
        "--ranks",
        str(ranks),
    ]
    mark = f"FEDFLOOR_SIDE={uuid.uuid4().hex}"
    here = os.pathsep.join((str(HERE), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, **ONE, "PYTHONPATH": here, **dict([mark.split("=")])}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, memory_mib(mark.encode()))
            time.sleep(0.3)
        whole = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        if process.returncode:
            sys.exit(f"{program} failed:\n{err.read()[-3000:]}")
        return json.loads(out.read().strip().splitlines()[-1]), whole, peak


def memory_mib(mark: bytes) -> float:
    """Return the proportional memory of all processes that have a mark in their environment."""
    total = 0
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (one / "environ").read_bytes():
                lines = (one / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def cores() -> int:
    """Return how many processor cores there are to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
