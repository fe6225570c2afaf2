"""Which method: tables of what was compared and repriced, and the page that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import choose, pages


def row(method: str, accuracy: float, reached: float | None = None) -> dict[str, Any]:
    costs: dict[str, Any] = {f"{kind}_to_target": reached and 60 * reached for kind in ("seconds", "bytes", "joules")}
    return {
        "method": method,
        "accuracy": accuracy,
        "half_width": 0.05,
        "rounds_to_target": reached,
        "seconds": 90.0,
        **costs,
    }


def write(folder: Path, name: str, *rows: dict[str, Any], **more: Any) -> None:
    (folder / f"choose-{name}.json").write_text(json.dumps({"rows": rows, **more}))


def test_rows_join_what_was_compared_and_repriced(tmp_path: Path) -> None:
    gap = {"method": "fedavg", "against": "ring", "difference": 0.1, "half_width": 0.2}
    write(tmp_path, "static", row("ring", 0.5), row("fedcs", 0.4), row("fedavg", 0.6), paired=[gap])
    for network in (choose.FAST, choose.SLOW):
        write(tmp_path, f"static-{network}", row("ring", 0.5), row("fedavg", 0.6, 2.5))
    assert list(choose.rows(tmp_path, "static")) == [
        ["fedavg", "0.600 ± 0.050", "", "2.5", "150 B", "2.5 min", "150 J", "2.5 min", "150 J"],
        ["ring", "0.500 ± 0.050", "−0.100 ± 0.200", *"––––––"],
        ["fedcs", "0.400 ± 0.050", "", *"––––––"],
    ]
    for park in choose.PARKS:
        write(tmp_path, f"{park}-fedcs", row("fedcs", 0.4))
        write(tmp_path, f"{park}-{choose.SLOW}", row("fedavg", 0.6))
    assert next(choose.fedcs(tmp_path)) == ["data that stay", "0.400 ± 0.050", "1.5 min", "1.5 min"]


def test_the_page_is_up_to_date() -> None:
    text = choose.PAGE.read_text(encoding="utf-8")
    assert choose.renewed(text, pages.RESULTS) == text, "python -m benchmarks.pages"
    with pytest.raises(ValueError, match="0 tables stand below 'Data that stay'"):
        choose.renewed(text.replace("## Data that stay", "## Data"), pages.RESULTS)
