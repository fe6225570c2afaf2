"""The settings in which the methods of a report differ."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

from fedfloor.report.groups import Compared, contestants
from fedfloor.report.ledger import RecordedRun
from fedfloor.report.sections import scroll, section, soft, table

ELSEWHERE = ("name.", "seed.", "provenance.", "method.name.")
MISSING = "–"


def differs_section(compared: Compared) -> str:
    """Return a table of the settings that are not the same in all methods; "" for one method."""
    rivals = contestants(compared)
    if len(rivals) < 2:
        return ""
    columns = [settings(group.runs[0]) for group in rivals]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *cells] for key in sorted(keys) if len(set(cells := [c.get(key, MISSING) for c in columns])) > 1]
    note = "Settings with the same value in every run, and the seed, are left out."
    if not rows:
        return section("What differs", soft("The methods have the same settings."), "differs")
    head = ["setting", *(group.label.shown for group in rivals)]
    return section("What differs", scroll(table("", head, rows, "plain"), "what differs") + soft(note), "differs")


def settings(run: RecordedRun) -> dict[str, str]:
    """Return the settings of a run as texts by their dotted keys, those of its method without the method's name."""
    own = f"methods.{run.method}."
    every = {key: str(value) for key, value in _flat(tomllib.loads(run.config))}
    shown = {key: value for key, value in every.items() if not f"{key}.".startswith(ELSEWHERE)}
    given = {key.removeprefix(own): value for key, value in shown.items() if key.startswith(own)}
    return {key: value for key, value in shown.items() if not key.startswith("methods.")} | given


def _flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with their dotted keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
