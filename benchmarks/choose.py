"""Which method? The tables of docs/choose.md, made from what ``make choose`` printed: ``python -m benchmarks.choose``.

``runs/choose-PARK.json`` is what ``fedfloor compare`` printed with ``--json`` for the park, ``…-NETWORK.json`` what
``fedfloor price`` printed for a network, ``…-fedcs.json`` the comparison of FedCS, which decides by the network, on
the slow one. ``python -m benchmarks.pages`` takes the tables into the page, beside that of the factory benchmark.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedfloor.api import benchmark
from fedfloor.report.numbers import amount
from papers import documents

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/choose.md"
PARKS = {"static": ("Data that stay", "0.65"), "stream": ("Data that stream past", "0.70")}
FAST = "5g-edge"
SLOW = "lte-cat-m2"
FACTORY = "On factory data"
FEDCS = "FedCS on the slow network"
ABOUT = "Tables of [which method](../docs/choose.md), which has the settings; means of three seeds. By `make choose`."
Row = Mapping[str, Any]


def rows(runs: Path, park: str) -> Iterator[list[str]]:
    """Yield a park's rows, the most accurate method first; FedCS, which is not repriced, without costs."""
    compared = _read(runs / f"choose-{park}.json")
    priced = {network: _by_method(_read(runs / f"choose-{park}-{network}.json")) for network in (FAST, SLOW)}
    for row in sorted(compared["rows"], key=lambda row: -row["accuracy"]):
        name = row["method"]
        fast, slow = (priced[network].get(name, {}) for network in (FAST, SLOW))
        reached = fast.get("rounds_to_target")
        cells = [name, f"{row['accuracy']:.3f} ± {row['half_width']:.3f}", gap(compared["paired"], name)]
        cells += ["–" if reached is None else f"{reached:.3g}", amount("bytes", fast.get("bytes_to_target"))]
        for costs in (fast, slow):
            cells += [amount(kind, costs.get(f"{kind}_to_target")) for kind in ("seconds", "joules")]
        yield cells


def gap(paired: list[Row], name: str) -> str:
    """Return how far a method is above FedAvg, bold where the interval excludes 0.

    >>> gap([{"method": "fedavg", "against": "ring", "difference": 0.2, "half_width": 0.1}], "ring")
    '**−0.200 ± 0.100**'
    """
    for one in paired:
        if {one["method"], one["against"]} == {name, "fedavg"}:
            away = one["difference"] if one["method"] == name else -one["difference"]
            text = f"{away:+.3f} ± {one['half_width']:.3f}".replace("-", "−")
            return f"**{text}**" if abs(away) > one["half_width"] else text
    return ""


def fedcs(runs: Path) -> Iterator[list[str]]:
    """Yield how FedCS ends on the slow network, and how long it takes beside FedAvg."""
    for park, (title, _) in PARKS.items():
        (own,) = _read(runs / f"choose-{park}-fedcs.json")["rows"]
        usual = _by_method(_read(runs / f"choose-{park}-{SLOW}.json"))["fedavg"]
        accuracy = f"{own['accuracy']:.3f} ± {own['half_width']:.3f}"
        yield [title.lower(), accuracy, amount("seconds", own["seconds"]), amount("seconds", usual["seconds"])]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _by_method(document: Mapping[str, Any]) -> dict[str, Row]:
    return {row["method"]: row for row in document["rows"]}


def tables(results: Path) -> dict[str, str]:
    """Return the tables of the page by the headings that they stand below."""
    blocks = _read(results / "choose.json")["blocks"]
    found = {
        one.removeprefix("## "): documents.table(**table) for one, table in pairwise(blocks) if isinstance(table, dict)
    }
    page = benchmark.page(benchmark.results(results / "benchmark" / benchmark.RESULTS))
    first = page.partition("## Which method\n\n")[2].partition("\n## ")[0]
    table = "|" + first.partition("\n|")[2].partition("\n\n")[0].rstrip()
    found[FACTORY] = table.replace("](#", "](../results/benchmark.md#")
    return found


def renewed(text: str, results: Path) -> str:
    """Return the page with its tables renewed: the first one below each of their headings.

    Raises:
        ValueError: a heading or its table is not there.
    """
    for heading, table in tables(results).items():
        pattern = rf"(^##+ {re.escape(heading)}\n(?:(?!#|\|).*\n)*)(?:\|.*\n)+"
        text, times = re.subn(pattern, lambda found, new=table: f"{found[1]}{new}\n", text, flags=re.M)
        if times != 1:
            raise ValueError(f"{PAGE.name}: {times} tables stand below {heading!r}; exactly one must.")
    return text


def main() -> None:
    """Write the JSON and the page of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of what make choose printed")
    given = parser.parse_args()
    blocks: list[Any] = ["# choose", ABOUT]
    for park, (title, target) in PARKS.items():
        columns = ["method", "accuracy", "above FedAvg", f"rounds to {target}", "bytes", "5G: time", "energy"]
        table = {"columns": [*columns, "LTE: time", "energy"], "rows": list(rows(given.runs, park))}
        blocks += [f"## {title}", table]
    columns = ["data", "accuracy", "LTE: time", "FedAvg's time"]
    blocks += [f"## {FEDCS}", {"columns": columns, "rows": list(fedcs(given.runs))}]
    documents.publish(ROOT / "results/choose.md", blocks)


if __name__ == "__main__":
    main()
