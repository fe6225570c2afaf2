"""What a page beside a run costs its rounds: in one run, the page's process is let go and held in turn, round by round.

Three readers follow the page's events all the while. Two figures: the median ratio of a round with the page to the mean
of its neighbours without it, and the page's share of the machine, which other work on the machine leaves alone.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fedfloor
from fedfloor import config
from fedfloor.api.source import bundled
from fedfloor.base.machine import cores
from fedfloor.runs.ledger import Line
from fedfloor.watch.serve import serving

Row = dict[str, object]
PAIRS = 5  # rounds with the page, for each repetition
WARM = 3  # rounds that are not counted: the page's process starts, caches fill
READER = """
import socket, sys
host, port = sys.argv[1].split("/")[2].split(":")
readers = [socket.create_connection((host, int(port))) for _ in range(3)]
for one in readers:
    one.sendall(b"GET /events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
while all([one.recv(100_000) for one in readers]):
    pass
"""


def measure(ranks: int, repeats: int, say: Callable[[str], None]) -> list[Row]:
    """Train the demo's experiment with fewer samples, 10 × ``repeats`` rounds; return one row."""
    last = WARM + 2 * PAIRS * repeats + 1
    changes = [f"rounds={last}", "network.profile='lte-cat-m2'", "data.samples_per_device=50", "evaluate.every=1000"]
    what = config.read(bundled()["demo"], changes)
    seconds = dict[int, float]()
    with tempfile.TemporaryDirectory() as place, serving(folder := Path(place) / "run") as (url, page):
        reader = subprocess.Popen([sys.executable, "-c", READER, url])
        # of the page: seconds of computing, and for which it was let go
        spent = [0.0, 0.0]
        let_go = [0.0, 0.0]

        def turn(line: Line) -> None:
            seconds[line.round] = line.wall_s
            if line.round >= WARM:  # even rounds have the page
                (_held if line.round % 2 == 0 else _resumed)(page, spent, let_go)
            if line.round % 20 == 0:
                say(f"round {line.round} of {last}: {line.wall_s:.2f} s")

        try:
            fedfloor.run(what, folder, ranks=ranks, report=turn)
        finally:
            os.kill(page, signal.SIGCONT)
            reader.kill()
            reader.wait()
    pairs = [(seconds[k], (seconds[k - 1] + seconds[k + 1]) / 2) for k in range(WARM + 1, last, 2)]
    ratios = sorted(one / other for one, other in pairs)
    low, high = (ratios[round(len(ratios) / 2 + way * len(ratios) ** 0.5)] for way in (-1, 1))  # of 95 %, of the median
    return [
        {
            "ranks": ranks, "rounds": len(ratios), "with_page_s": statistics.median(one for one, _ in pairs),
            "without_s": statistics.median(other for _, other in pairs),
            "slower_percent": 100 * (statistics.median(ratios) - 1),
            "interval": f"{100 * (low - 1):.1f} to {100 * (high - 1):.1f}",
            "page_share_percent": 100 * spent[0] / (let_go[0] * cores()),
        }
    ]  # fmt: skip


def _resumed(page: int, spent: list[float], let_go: list[float]) -> None:
    os.kill(page, signal.SIGCONT)
    spent[1], let_go[1] = _computed_s(page), time.monotonic()


def _held(page: int, spent: list[float], let_go: list[float]) -> None:
    if let_go[1]:
        spent[0] += _computed_s(page) - spent[1]
        let_go[0] += time.monotonic() - let_go[1]
    os.kill(page, signal.SIGSTOP)


def _computed_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
