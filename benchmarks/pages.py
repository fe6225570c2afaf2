"""Pages of results, each made from JSON: ``python -m benchmarks.pages`` writes them and docs/choose.md anew.

    python -m benchmarks.pages --publish runs/reproduce-hfedms-cpd [--name hfedms-cpd]

first takes over what ``fedfloor reproduce`` wrote into a folder: its page, and the JSON with the values of single runs.

A page ``results/NAME.md`` is made from ``results/NAME.json`` or, where its command writes a file for each run, from the
files of the folder ``results/NAME``. A JSON with ``blocks`` is its page's paragraphs and tables; the other pages are
computed from figures of single runs by the modules that measure them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import (
    anomalies,
    ask,
    attacks,
    choose,
    cmapss,
    cohorts,
    coverage,
    evidence_pages,
    faults,
    forecast,
    parks,
    personal,
    private,
    private_beside,
    revealed,
    survival,
    tep_anomalies,
    updates,
    waiting,
)
from fedfloor.api import benchmark
from fedfloor.runs.folder import write
from papers import documents

RESULTS = Path(__file__).parents[1] / "results"


def read(source: Path) -> Any:
    """Return what a JSON file holds."""
    return json.loads(source.read_text(encoding="utf-8"))


def of_blocks(source: Path) -> str:
    """Return the page of paragraphs and tables."""
    return documents.page(read(source))


def of_forecasts(source: Path) -> str:
    """Return the page of forecasts."""
    found = read(source)
    return forecast.page({name: found[name] for name in forecast.ROWS}, found["persistence"], found["tuned"])


def of_anomalies(source: Path) -> str:
    """Return the page of anomalies of SKAB's runs."""
    found = read(source)
    return anomalies.page(found["rows"], found["federated less pooled"])


MADE: dict[str, Callable[[Path], str]] = {
    "anomalies": of_anomalies,
    "ask": lambda source: ask.page(read(source)),
    "benchmark": lambda source: benchmark.page(benchmark.results(source / benchmark.RESULTS)),
    "cmapss": cmapss.page,
    "cohorts": lambda source: cohorts.page(read(source)),
    "coverage": lambda source: coverage.page(read(source)),
    "faults": lambda source: faults.page(read(source)),
    "fedgs-baselines": lambda source: evidence_pages.baselines_page(evidence_pages.cells_of(source)),
    "fedgs-log": lambda source: evidence_pages.log_page(evidence_pages.cells_of(source)),
    "fedgs-skew": lambda source: evidence_pages.skew_page(evidence_pages.cells_of(source)),
    "forecast": of_forecasts,
    "hfedms-runs": lambda source: evidence_pages.hfedms_page(evidence_pages.cells_of(source)),
    "personal": lambda source: personal.page(read(source)),
    "private": lambda source: private.page(read(source)),
    "private_beside": lambda source: private_beside.page(read(source)),
    "rafed-parks": parks.page,
    "revealed": lambda source: revealed.page(read(source)),
    "robust": lambda source: "\n".join(attacks.page(source)) + "\n",
    "updates": lambda source: updates.page(read(source)),
    "waiting": lambda source: waiting.page(read(source)),
    "survival": lambda source: survival.page(read(source)["rows"]),
    "tep-anomalies": lambda source: tep_anomalies.page(read(source)),
}


def pages(results: Path = RESULTS) -> dict[str, str]:
    """Return the pages of all JSON files and folders of results: name → Markdown."""
    sources = sorted(path for path in results.iterdir() if path.suffix == ".json" or path.is_dir())
    return {one.stem: MADE.get(one.stem, of_blocks)(one) for one in sources}


def publish(folder: Path, name: str = "", results: Path = RESULTS) -> None:
    """Write a page, its JSON and its pictures from what a command wrote into a folder; the name is the table's."""
    found = read(folder / "table.json")
    text = (folder / "table.md").read_text(encoding="utf-8")
    table = found["table"]
    own = name or table
    for picture in folder.glob(f"{table}*.svg"):
        other = picture.name.replace(table, own)
        write(results / other, picture.read_text(encoding="utf-8"))
        text = text.replace(f"({picture.name})", f"({other})")
    text = text.replace(f"# {table}\n", f"# {own}\n", 1)
    documents.publish(results / f"{own}.md", [text.removesuffix("\n")], computed=found)


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--publish", type=Path, help="folder of fedfloor reproduce that is taken over first")
    parser.add_argument("--name", default="", help="of its page; the table's by default")
    given = parser.parse_args()
    if given.publish is not None:
        publish(given.publish, given.name)
    for name, text in pages().items():
        write(RESULTS / f"{name}.md", text)
    write(choose.PAGE, choose.renewed(choose.PAGE.read_text(encoding="utf-8"), RESULTS))


if __name__ == "__main__":
    main()
