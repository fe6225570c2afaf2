"""What the ranks of one host share: the memory each of them takes for the data, and how much of it is its own.

Ranks are started as ``torchrun`` starts them, each in an interpreter of its own. What a parser made lies in the cache
and is mapped into every rank, so that the system keeps one copy of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, cast

import numpy as np

from fedfloor.data.sources import load, looked_in

Row = dict[str, object]
NAMES = ("mnist", "cifar-10", "femnist")
CHUNK = 1000
MIB = 1 << 10  # KiB


def measure(names: Iterable[str], ranks: int, said: Callable[[str], None]) -> list[Row]:
    """Return a row per data set that is there: MiB of data, and of each rank's memory once it has seen all of them.

    Args:
        names: data sets.
        ranks: processes.
        said: told what is being measured.
    """
    rows: list[Row] = []
    for name in names:
        if not looked_in([name])[0]["found"]:
            continue
        said(name)
        command = [sys.executable, __file__, name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started = [subprocess.Popen(command, **pipes) for _ in range(ranks)]  # type: ignore[call-overload]
        ready = [json.loads(one.stdout.readline()) for one in started]  # all have read: now they are looked at together
        found = [_asked(one) for one in started]
        for one in started:  # not before all have answered: what nobody else maps any more would be one's own
            one.communicate("")
        mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
        rows.append({
            "data": name, "ranks": ranks, "samples_mib": round(ready[0] / (1 << 20), 1),
            "mapped_mib": round(mean["mapped"] / MIB, 1), "own_mib": round(mean["own"] / MIB, 1),
            "share_mib": round(mean["share"] / MIB, 1),
        })  # fmt: skip
    return rows


def _asked(process: subprocess.Popen[str]) -> dict[str, int]:
    # both are pipes
    asked = cast(IO[str], process.stdin)
    told = cast(IO[str], process.stdout)
    asked.write("now\n")
    asked.flush()
    return dict(json.loads(told.readline()))


def _rank(name: str) -> None:
    """Look at every sample of a data set, say how many bytes they are, and when asked what of them lies in memory."""
    data = load(name)
    for start in range(0, len(data.y), CHUNK):
        data.take(np.arange(start, min(start + CHUNK, len(data.y))), 0)
    print(data.sample_bits // 8 * len(data.y), flush=True)
    sys.stdin.readline()
    print(json.dumps(mapped(Path("/proc/self/smaps").read_text())), flush=True)
    sys.stdin.readline()


def mapped(smaps: str) -> dict[str, int]:
    """Return KiB of mapped NumPy files in a process's memory: all, its own, and its share where others map them too.

    >>> mapped("7f0-7f1 r--s 0 08:01 7 /c/x.npy\\nRss: 8 kB\\nPss: 4 kB\\nPrivate_Clean: 2 kB\\nPrivate_Dirty: 0 kB\\n")
    {'mapped': 8, 'own': 2, 'share': 4}
    """
    keys = {"Rss:": "mapped", "Private_Clean:": "own", "Private_Dirty:": "own", "Pss:": "share"}
    found = {"mapped": 0, "own": 0, "share": 0}
    inside = False
    for line in smaps.splitlines():
        first, *rest = line.split()
        if "-" in first:
            inside = line.endswith(".npy")
        elif inside and first in keys:
            found[keys[first]] += int(rest[0])
    return found


if __name__ == "__main__":
    _rank(sys.argv[1])
