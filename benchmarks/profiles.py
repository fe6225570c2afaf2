"""Where the time of a round goes: a table of every workload of ``fedfloor bench simulation``, on one rank.

    pip install py-spy
    python benchmarks/profiles.py                     # all workloads, 15 s each
    python benchmarks/profiles.py --only LeNet --raw profiles/

py-spy looks 200 times a second at the stack of a process that does one round after another. Each look counts for the
first row of :data:`PARTS` that one of its frames belongs to.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the source tree
from benchmarks.simulation import CASES, Case, Ranks
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Alone

RATE = 200
# what a look is counted as: frames that hold one of these
PARTS = (
    ("steps", ("plain (fedfloor/engine/visit.py", "heavy (fedfloor/engine/visit.py", "fedfloor/engine/fused.py")),
    ("products, convolutions", ("gemm", "mkl_", "dnnl", "convolution", "addmm")),
    ("other layers, loss", ("(torch/nn/", "autograd::Engine", "cross_entropy", "log_softmax", "run_backward")),
    ("data", ("fedfloor/engine/samples.py", "_Asides", "batch_order", "fedfloor/park/", "fedfloor/data/")),
    ("mixing", ("fedfloor/engine/aggregation.py", "fedfloor/engine/tree.py", "fedfloor/parts/mixing/mix.py")),
    (
        "visits",
        ("fedfloor/engine/visit.py", "fedfloor/engine/local_update.py", "fedfloor/parts/objectives/objective.py"),
    ),
    ("plans", ("fedfloor/",)),
)


def main() -> None:
    """Profile, and print a table; with ``--rounds`` be the process that is looked at."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="workloads whose name holds this")
    asked.add_argument("--seconds", type=float, default=15.0)
    asked.add_argument("--raw", type=Path, help="a folder for the stacks, one per line, as flame graphs are made of")
    asked.add_argument("--rounds", help=argparse.SUPPRESS)
    said = asked.parse_args()
    if said.rounds:
        rounds(next(one for one in CASES if one.name == said.rounds), said.seconds)
        return
    names = [name for name, _ in PARTS]
    print(f"| workload | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for case in CASES:
        if said.only in case.name:
            found = looked_at(case, said.seconds, said.raw)
            total = sum(found.values())
            print(f"| {case.name} | {' | '.join(f'{100 * found[name] / total:.1f} %' for name in names)} |", flush=True)


def rounds(case: Case, seconds: float) -> None:
    """Do one round after another."""
    torch.set_num_threads(1)
    keep_memory()
    ranks = Ranks(case, Alone())
    number = 0
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        ranks.work(number := number + 1)


def looked_at(case: Case, seconds: float, kept: Path | None) -> Counter[str]:
    """Return how many looks each part has."""
    with tempfile.TemporaryDirectory() as folder:
        place = (kept or Path(folder)) / f"{''.join(c if c.isalnum() else '-' for c in case.name)}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        spy = ("py-spy", "record", "--native", "--rate", str(RATE), "--format", "raw", "--output", str(place), "--")
        work = (sys.executable, __file__, "--rounds", case.name, "--seconds", str(seconds))
        subprocess.run((*spy, *work), check=True, capture_output=True)
        found: Counter[str] = Counter()
        for line in place.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            part = part_of(stack)
            if part:
                found[part] += int(count)
        return found


def part_of(stack: str) -> str | None:
    """Return the part that a stack counts as; None outside of rounds."""
    inside = stack.partition("Ranks.work (benchmarks/simulation.py")[2]
    if not inside:
        return None
    return next((name for name, frames in PARTS if any(one in inside for one in frames)), "plans")


if __name__ == "__main__":
    main()
