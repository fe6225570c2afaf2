"""RaFed's figures about allocation with 50 parks, point by point; goes on where it was stopped.

    python -m benchmarks.parks [--results results] [--only rafed-fig8]

The file of a point, ``results/rafed-parks/FIGURE-NUMBER.json``, holds the rows of ``fedfloor reproduce`` and in them
each park's median over the draws, so that schemes can be compared park by park. ``python -m benchmarks.pages`` makes
the page of the points that are done.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfloor.runs.folder import write
from papers import allocation
from papers.catalog import STUDIES
from papers.documents import table

ROOT = Path(__file__).parents[1]
FOLDER = "rafed-parks"
SEEDS = tuple(range(10))  # five parks each
# of points of which 50 parks leave a claim undecided
MORE = {
    ("rafed-fig6", "γ = 1, 40 devices"): tuple(range(100)),
    ("rafed-fig6", "γ = 0.1, 40 devices"): tuple(range(100)),
    ("rafed-fig7", "γ = 0.1, 80 devices"): tuple(range(40)),
    ("rafed-fig7", "γ = 0.1, 120 devices"): tuple(range(40)),
    ("rafed-fig7", "γ = 0.1, 160 devices"): tuple(range(40)),
}
FIGURES = ("rafed-fig8", "rafed-fig3", "rafed-fig6", "rafed-fig7", "rafed-fig5")
DISTURBS = 0.1  # γ from which on collisions take time
ORDER = ("rafed-fig3", "rafed-fig5", "rafed-fig6", "rafed-fig7", "rafed-fig8")
HEAD = """\
# rafed-parks

RaFed (Gao et al.), Figs. 3 and 5 to 8 with 50 parks, 5 draws of every scheme in each, where the pages of the single
figures have 5 parks. Fig. 6 has 500 parks with 40 devices at γ = 1 and 0.1, Fig. 7 has 200 with 80 devices or more at
γ = 0.1: 50 left the claims about them undecided.

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
    commits = sorted({one["commit"][:10] for one in found})
    lines += [
        f"Made of the files in [{FOLDER}]({FOLDER}), commit {', '.join(commits)}. ± is the half width of a 95 % "
        "interval over the parks. Choices:",
        "",
    ]
    notes = dict.fromkeys(note for one in found for note in one["notes"])
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


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
