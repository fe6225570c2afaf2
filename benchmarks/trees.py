"""How fast a round is in one source tree beside another: rounds of both in turn, as machines drift.

    git worktree add ../before COMMIT
    python benchmarks/trees.py ../before/src src --repeats 7

A worker process per tree builds the cases of ``fedfloor bench simulation`` and ``bench fedgs`` with its own code, and
does one round when it is asked to; the other waits meanwhile. Rows are the median of the ratios old / new of rounds
that followed each other (above 1: the new tree is faster), with the lowest and highest quartile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def worker(*, cpu: bool) -> None:
    """Answer each line ``case number`` of standard input with the round's seconds, of the processor if ``cpu``."""
    import torch

    from benchmarks import simulation, super_node
    from fedfloor.engine.place import keep_memory
    from fedfloor.engine.team import Alone

    torch.set_num_threads(1)
    keep_memory()
    kept: dict[str, Callable[[int], object]] = {}
    for line in sys.stdin:
        name, _, number = line.strip().rpartition(" ")
        if name not in kept:
            kept.clear()  # one network at a time
            try:
                kept[name] = _round(name, simulation, super_node, Alone)
            except StopIteration:  # the tree does not have this case
                print("nan", flush=True)
                continue
        clock = time.process_time if cpu else time.perf_counter
        began = clock()
        kept[name](int(number))
        print(clock() - began, flush=True)


def _round(name: str, simulation: object, super_node: object, alone: type) -> Callable[[int], object]:
    what, case = name.split(": ", 1)
    if what == "FedAvg":
        known = next(one for one in simulation.CASES if one.name == case)  # type: ignore[attr-defined]
        return simulation.Ranks(known, alone()).alone  # type: ignore[attr-defined,no-any-return]
    known = next(one for one in super_node.CASES if one.name == case)  # type: ignore[attr-defined]
    rounds = super_node._Rounds(known, alone())  # type: ignore[attr-defined]
    return lambda number: rounds.work("one", number)


class Tree:
    """A source tree's worker."""

    def __init__(self, source: Path, *, cpu: bool) -> None:
        self.source = source.resolve()
        settings = os.environ | {"PYTHONPATH": f"{self.source}:{self.source.parent}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker", *(["--cpu"] if cpu else [])]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=settings)

    def round(self, case: str, number: int) -> float:
        """Return the seconds of a round."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        self.process.stdin.write(f"{case} {number}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main() -> None:
    """Measure, print a table, and with ``--json`` one document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, help="the old tree's src folder, and the new one's")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each tree, after one to warm up")
    parser.add_argument("--seconds", type=float, default=0.0, help="at least so long for each case")
    parser.add_argument("--only", default="", help="cases whose names hold this")
    parser.add_argument(
        "--cpu", action="store_true", help="compare seconds of the processor: for a machine that others use, too"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    if given.worker:
        worker(cpu=given.cpu)
        return
    from benchmarks import simulation, super_node

    old, new = (Tree(one, cpu=given.cpu) for one in given.trees)
    cases = [f"FedAvg: {one.name}" for one in simulation.CASES] + [f"FedGS: {one.name}" for one in super_node.CASES]
    rows = []
    for case in (one for one in cases if given.only in one):
        if any(math.isnan(tree.round(case, 1)) for tree in (old, new)):
            continue
        ratios: list[float] = []
        began = time.monotonic()
        number = 1
        while len(ratios) < given.repeats or time.monotonic() - began < given.seconds:
            number += 1
            order = (old, new) if number % 2 else (new, old)
            took = {tree: tree.round(case, number) for tree in order}
            ratios.append(took[old] / took[new])
        low, middle, high = statistics.quantiles(ratios, n=4)
        row = {"case": case, "rounds": len(ratios), "speed": middle, "quartile_low": low, "quartile_high": high}
        rows.append({key: round(one, 3) if isinstance(one, float) else one for key, one in row.items()})
        print(f"{case:44} {middle:.3f} ({low:.3f} to {high:.3f}), {len(ratios)} rounds", file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps({"rows": rows}))
    else:
        mean = statistics.geometric_mean(row["speed"] for row in rows)  # type: ignore[misc]
        print(f"geometric mean {mean:.3f}")


if __name__ == "__main__":
    main()
