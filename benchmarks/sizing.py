"""Memory and processor time of the machines of a park: ``python -m benchmarks.sizing --out results/sizing.md``.

``--only TEXT`` measures the parks whose titles contain a text, and keeps the other rows of the page.

Starts parks of real processes on this machine (``fedfloor park live up``) and reads, until they end, the peak of each
process' resident memory and its processor time from /proc. Linux, with Mosquitto.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from papers.documents import publish

POLL_S = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
SUMS = ("rounds=3", "park.devices=8", "park.factories=2", "method.name=bayes")
CASES = {  # title → the experiment and its changes
    "pictures of 28 × 28, 2NN of 200,000 numbers": ("demo-live", ()),
    "windows of 20 rows, 1-D CNN": (
        "demo-faults", ("rounds=3", "park.devices=8", "method.name=hierfavg", "evaluate.headline=accuracy"),
    ),
    "rows of sensors, naive Bayes as sums": ("demo-faults", SUMS),
    "rows of sensors, naive Bayes as secure sums": (
        "demo-faults", (*SUMS, "method.travel={ kind = 'secure-sum', bits = 64, bound = 1e6, together = true }"),
    ),
}  # fmt: skip
ABOUT = "Made by `python -m benchmarks.sizing`: real processes on one machine with 2 cores, which other work shared."
COLUMNS = ["park", "process", "number", "memory, median", "memory, most", "processor time, start and 3 rounds"]
Used = tuple[float, float]  # MB, s


def used(pid: int) -> Used | None:
    """Return the peak of a process' resident memory and its processor time; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), None)
    return None if peak is None else (int(peak) / 1000, (int(fields[11]) + int(fields[12])) / TICKS)


def park(name: str, changes: tuple[str, ...], place: Path) -> dict[str, list[Used]]:
    """Run a park; return kind → memory and processor time of each process."""
    words = [sys.executable, "-m", "fedfloor", "park", "live", "up", name, "--out", str(place)]
    words += [word for change in changes for word in ("--set", change)]
    most = dict[tuple[str, str], Used]()
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            for member in members(place):
                if (now := used(member["pid"])) is not None:
                    most[member["kind"], member["name"]] = now
            time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    found = defaultdict[str, list[Used]](list)
    for (kind, _), own in most.items():
        found[kind].append(own)
    return found


def members(place: Path) -> list[dict[str, str]]:
    """Return the processes that a park has started so far."""
    try:
        listed = json.loads((place / "live.json").read_text())
    except (OSError, ValueError):
        return []
    return listed["members"] if isinstance(listed, dict) else listed


def main() -> None:
    """Measure, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    before = given.out.with_suffix(".json")
    known = json.loads(before.read_text(encoding="utf-8"))["blocks"][-1]["rows"] if given.only else []
    rows = [row for row in known if given.only not in row[0]]
    for title, (name, changes) in CASES.items():
        if given.only not in title:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = park(name, changes, Path(folder) / "park")
        for kind, own in found.items():
            sizes = [size for size, _ in own]
            spent = median(time for _, time in own)
            sized = (f"{median(sizes):.0f} MB", f"{max(sizes):.0f} MB")
            rows.append([title, kind, str(len(own)), *sized, f"{spent:.1f} s"])
    blocks = ["# Memory and processor time of a park's machines", ABOUT, {"columns": COLUMNS, "rows": rows}]
    publish(given.out, blocks)


if __name__ == "__main__":
    main()
