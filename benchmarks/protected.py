"""How fast rounds with codecs, secure sums and noise are in two versions, both in one run.

    python -m benchmarks.protected PATH [--only sums] [--times 5] [--ranks 1]

PATH is the folder of another version, such as one of ``git worktree add PATH COMMIT``. A case is one experiment: FedAvg
over 20 devices with what its name says on the way of updates. The versions take turns, the other one first in every
second turn; each trains in a process of its own. The figure is rounds a second, by the least of the wall times that the
ledger states for all rounds but the first: whatever else runs on the machine only makes rounds slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.against import HERE, table

EXPERIMENT = """
seed = 1
rounds = 9
data = { name = "labels", samples_per_device = 200 }
park = { devices = 20, factories = 2 }
model.name = "cnn-tutorial"
method.name = "fedavg"
evaluate.every = 1000
deploy.norm_limit = false
"""
WORK = "steps = 4, batch_size = 32, lr = 0.05"
CASES = {
    "plain": "",
    "int8": 'method.travel = "int8"\n',
    "top-k, 5 %": 'method.travel = { kind = "top-k", share = 0.05 }\n',
    "secure sums": 'method.travel = "secure-sum"\n',
    "noise of devices in secure sums": (
        "method.mix = { kind = 'private', clip = 0.5, noise = 1.0, delta = 1e-2, distributed = true }\n"
        "method.travel = 'secure-sum'\n"
    ),
    "noise at the cloud": (
        "method.mix = { kind = 'private', clip = 0.5, noise = 1.0, delta = 1e-2 }\n"
        "method.selection = { kind = 'poisson', share = 0.9 }\n"
    ),
    "noise on samples": "sample_clip = 1.0, sample_noise = 1.1",
}


def document(case: str) -> str:
    """Return the experiment of a case as TOML."""
    more = CASES[case]
    if case == "noise on samples":
        return f"{EXPERIMENT}work = {{ {WORK}, {more} }}\n"
    return f"{EXPERIMENT}work = {{ {WORK} }}\n{more}"


def rounds_a_second(tree: Path, case: str, ranks: int) -> float:
    """Return the rounds a second of a version in one run.

    Raises:
        SystemExit: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "experiment.toml")
        file.write_text(document(case))
        words = [sys.executable, "-m", "fedfloor", "run", str(file), "--out", f"{folder}/run", "--ranks", str(ranks)]
        paths = {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            words, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{tree}, {case}: {done.stderr.strip()[-500:]}")
        lines = Path(folder, "run/ledger.jsonl").read_text().splitlines()
    return 1 / min(json.loads(line)["wall_s"] for line in lines[1:])


def main() -> None:
    """Measure both versions in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    given = parser.parse_args()
    turns = []
    for number in range(given.times):
        found: dict[Path, dict[str, dict[str, float]]] = {HERE: {}, given.path.resolve(): {}}
        for case in [name for name in CASES if given.only in name]:
            order = list(found) if number % 2 else list(found)[::-1]
            for tree in order:
                found[tree][case] = {f"ranks_{given.ranks}": rounds_a_second(tree, case, given.ranks)}
        mine, theirs = found.values()
        turns.append((mine, theirs))
        print(f"turn {number + 1} of {given.times}", file=sys.stderr, flush=True)
    print("\n".join(table(turns, given.ranks)))


if __name__ == "__main__":
    main()
