"""How fast rounds of two versions are beside a bare loop, both in one run.

    python -m benchmarks.against PATH [--only "E 1"] [--ranks 2] [--repeats 9] [--times 5]

PATH is the folder of another version, such as one of ``git worktree add PATH COMMIT``. The two versions take turns: in
each both do ``fedfloor bench simulation`` with their own code in a process of its own, the other version first in every
second turn. A row states the medians over the turns, and of the ratios of turns this version beside the other with the
least and the most of them. The machine should be quiet; the bare loop of each turn takes out most of what is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parents[1]


def measured(tree: Path, arguments: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return case → figure → value of a version's ``fedfloor bench simulation``.

    Raises:
        SystemExit: the version has no such command, or it failed.
    """
    words = [sys.executable, "-m", "fedfloor", "bench", "simulation", "--json", *arguments]
    paths = {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tree, env={**os.environ, **paths}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{tree}: 'fedfloor bench simulation' failed: {done.stderr.strip()[-500:]}")
    document = json.loads(done.stdout)
    rows = document["rows"] if isinstance(document, dict) else document
    return {str(row["case"]): {k: v for k, v in row.items() if isinstance(v, int | float)} for row in rows}


def table(turns: Sequence[tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]], ranks: int) -> list[str]:
    """Return the lines of a table of (this version's, the other's) figures, for cases and figures that both have.

    >>> print(table([({"a": {"ranks_2": 2.0}}, {"a": {"ranks_2": 1.0}})], 2)[-1])
    | a | 2 | 2.00 | 1.00 | 2.00 | 2.00 to 2.00 |
    """
    lines = ["| case | ranks | this | other | this ÷ other | least to most |", "|---|---|---|---|---|---|"]
    for case in turns[0][0]:
        for size in dict.fromkeys((1, ranks)):
            name = f"ranks_{size}"
            pairs = [
                (mine[case][name], theirs[case][name])
                for mine, theirs in turns
                if name in mine.get(case, {}) and name in theirs.get(case, {})
            ]
            if not pairs:
                continue
            this, other = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratios = [mine / theirs for mine, theirs in pairs]
            middle = statistics.median(ratios)
            span = f"{min(ratios):.2f} to {max(ratios):.2f}"
            lines.append(f"| {case} | {size} | {this:.2f} | {other:.2f} | {middle:.2f} | {span} |")
    return lines


def main() -> None:
    """Measure the two versions in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("against", type=Path, metavar="PATH")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each kind in a turn")
    parser.add_argument("--times", type=int, default=5, help="turns")
    given = parser.parse_args()
    if not (given.against / "src" / "fedfloor").is_dir():
        sys.exit(f"{given.against}: no src/fedfloor in it. Give the folder of another version.")
    words = ["--ranks", str(given.ranks), "--repeats", str(given.repeats)]
    words += ["--only", given.only] if given.only else []
    turns = []
    for turn in range(given.times):
        trees = (HERE, given.against.resolve())
        found = {tree: measured(tree, words) for tree in (trees if turn % 2 == 0 else reversed(trees))}
        turns.append((found[trees[0]], found[trees[1]]))
        print(f"turn {turn + 1} of {given.times}", file=sys.stderr, flush=True)
    print("\n".join(table(turns, given.ranks)))


if __name__ == "__main__":
    main()
