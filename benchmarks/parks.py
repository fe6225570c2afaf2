"""RaFed's figures about allocation with 50 parks, point by point; goes on where it was stopped.

    python -m benchmarks.parks [--results results] [--only rafed-fig8]

The file of a point, ``results/rafed-parks/FIGURE-NUMBER.json``, holds the rows of ``fedfloor reproduce`` and in them
each park's median over the draws, so that schemes can be compared park by park. ``python -m benchmarks.pages`` makes
the page of the points that are done.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedfloor.report.groups import half_width
from fedfloor.report.numbers import interval
from fedfloor.runs.folder import write
from papers import allocation, rafed
from papers.catalog import STUDIES
from papers.documents import table

ROOT = Path(__file__).parents[1]
FOLDER = "rafed-parks"
SEEDS = tuple(range(10))  # five parks each
# of points of which 50 parks leave a claim undecided
MORE = {
    ("rafed-fig6", "γ = 1, 40 devices"): tuple(range(100)),
    ("rafed-fig6", "γ = 0.1, 40 devices"): tuple(range(100)),
}
FIGURES = ("rafed-fig8", "rafed-fig3", "rafed-fig6", "rafed-fig7", "rafed-fig5")
DISTURBS = 0.1  # γ from which on collisions take time
ORDER = ("rafed-fig3", "rafed-fig5", "rafed-fig6", "rafed-fig7", "rafed-fig8")
STEADY = (
    "Of the median over the draws in each park, with parks of the same number in a pair: 0.1 is a tenth less time with "
    "more devices"
)
HEAD = """\
# rafed-parks

RaFed (Gao et al.), Figs. 3 and 5 to 8 with 50 parks, 5 draws of every scheme in each, where the pages of the single
figures have 5 parks. Fig. 6 has 500 parks with 40 devices at γ = 1 and 0.1: 50 left the claims about it undecided.

```bash
python -m benchmarks.parks
```
"""


def points() -> Iterator[tuple[str, allocation.Asked]]:
    """Yield a file's name and what it holds, for every point of every figure: first those where devices disturb."""
    every = []
    for name in FIGURES:
        whole = allocation.asked(STUDIES[name], "", 1.0, SEEDS)
        for i, point in enumerate(whole.points):
            seeds = MORE.get((name, point.key), SEEDS)
            what = allocation.asked(STUDIES[name], "", 1.0, seeds)
            every.append((f"{name}-{i:02}.json", replace(what, points=(point,))))
    for quiet in (False, True):
        yield from (one for one in every if (one[1].points[0].radio.get("threshold", 1.0) < DISTURBS) == quiet)


def finished(path: Path, what: allocation.Asked) -> bool:
    """Return whether the file of a point is there, with all of its parks."""
    return path.exists() and json.loads(path.read_text(encoding="utf-8")).get("parks") == list(what.parks)


def document(what: allocation.Asked, commit: str) -> dict[str, Any]:
    """Return what the file of a point holds."""
    began = time.process_time()
    rows = allocation.rows(what)
    seconds = round(time.process_time() - began, 1)
    return {**allocation.about(what), "commit": commit, "processor_s": seconds, "rows": rows}


def page(folder: Path) -> str:
    """Return the page of the points that are done."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    lines = [HEAD]
    for name in ORDER:
        rows = allocation.shown([row for one in found if one["table"] == name for row in one["rows"]])
        if rows:
            cells = [[value or "–" for value in row.values()] for row in rows]
            lines += [f"## {STUDIES[name].source.split(', ')[-1]}: {STUDIES[name].title}", ""]
            lines += [table(list(rows[0]), cells), ""]
    lines += ["## Fig. 7: RaFed's latency with more devices, park by park", "", f"{STEADY}.", ""]
    lines += [table(("γ", "devices", "ln of the ratio"), steps(found)), ""]
    commits = sorted({one["commit"][:10] for one in found})
    lines += [
        f"Made of the files in [{FOLDER}]({FOLDER}), commit {', '.join(commits)}. ± is the half width of a 95 % "
        "interval over the parks. Choices:",
        "",
    ]
    notes = dict.fromkeys(note for one in found for note in one["notes"])
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


def steps(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each γ and each step from some devices to more: the mean over parks of ln(t / t'), its interval.

    Args:
        found: the files of Fig. 7's points; parks of the same number are compared.
    """
    known: dict[str, list[tuple[int, list[float]]]] = {}
    for row in (row for one in found if one["table"] == "rafed-fig7" for row in one["rows"]):
        if row["scheme"] == rafed.RAFED.label:
            gamma = row["point"].split(",")[0].removeprefix("γ = ")
            known.setdefault(gamma, []).append((row["devices"], row["parks_s"]))
    lines = []
    for gamma, points in known.items():
        for (few, before), (many, after) in pairwise(sorted(points)):
            ratios = [math.log(one / other) for one, other in zip(before, after, strict=False)]
            lines.append([gamma, f"{few} to {many}", interval(statistics.fmean(ratios), half_width(ratios), 3)])
    return lines


def main() -> int:
    """Do the points that are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="holds the folder of the files")
    parser.add_argument("--only", default="", help="files whose names hold this")
    given = parser.parse_args()
    said = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    commit = subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()
    folder = given.results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, what in points():
        if given.only in name and not finished(folder / name, what):
            made = document(what, commit)
            write(folder / name, json.dumps(made, ensure_ascii=False) + "\n")
            print(f"{time.strftime('%H:%M:%S')} {name}, {what.points[0].key}: {made['processor_s']} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
