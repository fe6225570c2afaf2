"""The published tables by name, and what each costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfloor.base.errors import unknown
from fedfloor.data.sources import looked_in
from papers import (
    fedgs,
    fedgs_skew,
    fedgs_training,
    fedsr,
    fldg,
    fldg_training,
    hfedms,
    hfedms_training,
    rafed,
    rafed_training,
)
from papers.allocation import DRAWS, PARKS, Study
from papers.cells import Table
from papers.disclosure import PARKS as ATTACKED
from papers.disclosure import Disclosure
from papers.forgetting import Forgetting
from papers.groupings import POPULATIONS, Groupings
from papers.selection import SELECTIONS, Comparison
from papers.tuned import Tuned
from papers.work import lacking

TABLES: Mapping[str, Table] = {
    table.name: table
    for made in (fedsr, fedgs_training, fedgs_skew, rafed_training, hfedms_training, fldg_training)
    for table in made.tables()
}
STUDIES: Mapping[str, Study] = {study.name: study for study in rafed.studies()}
COMPARISONS: Mapping[str, Comparison] = {one.name: one for one in fedgs.comparisons()}
GROUPINGS: Mapping[str, Groupings] = {one.name: one for one in hfedms.groupings()}
FORGETTINGS: Mapping[str, Forgetting] = {one.name: one for one in hfedms_training.forgettings()}
DISCLOSURES: Mapping[str, Disclosure] = {one.name: one for one in fldg.disclosures()}
TUNINGS: Mapping[str, Tuned] = {one.name: one for one in hfedms_training.tuned()}
Kind = Tuned | Table | Study | Comparison | Groupings | Forgetting | Disclosure


def find(name: str) -> Kind:
    """Return what is published by name: a table or figure of runs, or what is read off without a table of them.

    Raises:
        SettingError: there is none of this name; the nearest one is named.
    """
    known: Mapping[str, Kind] = {
        **TABLES, **STUDIES, **COMPARISONS, **GROUPINGS, **FORGETTINGS, **TUNINGS, **DISCLOSURES,
    }  # fmt: skip
    if name not in known:
        raise unknown("table", name, known)
    return known[name]


def costs(scale: float) -> list[dict[str, Any]]:
    """Return a row per table: its runs and rounds with one seed, and how many of the runs are not possible here.

    A figure about allocation trains nothing: its runs are parks allocated, and it has no rounds. Nor does a comparison
    of samplers, whose runs are the selections that each of them makes, or of groupings, whose runs are those of each,
    or an attack on what devices tell.

    Args:
        scale: share of the papers' rounds.

    Raises:
        SettingError: the scale is none.
    """
    rows = []
    for table in (*TABLES.values(), *(one.table for one in FORGETTINGS.values())):
        rounds = table.scaled(scale)
        reasons = lacking(table.cells)
        runs = {cell.run for cell in table.cells}
        missing = {cell.run for cell in table.cells if cell.key in reasons}
        rows.append(
            {"table": table.name, "what": table.title, "source": table.source, "runs": len(runs)}
            | {"rounds_each": rounds, "rounds": (len(runs) - len(missing)) * rounds, "not_possible_here": len(missing)}
        )
    for tuning in TUNINGS.values():
        rounds = tuning.before + tuning.after
        many = len(tuning.table.cells)
        lacks = len(lacking(tuning.table.cells))
        row = {"table": tuning.name, "what": tuning.title, "source": tuning.source, "runs": many}
        rows.append(row | {"rounds_each": rounds, "rounds": (many - lacks) * rounds, "not_possible_here": lacks})
    for study in STUDIES.values():
        parks = max(1, round(scale * PARKS))
        draws = max(1, round(scale * DRAWS))
        rows.append(_untrained(study, len(study.points) * parks * draws))
    for one in COMPARISONS.values():
        each = max(1, round(scale * SELECTIONS))
        there = [looked_in([str(point.data["name"])])[0]["found"] for point in one.points]
        rows.append(_untrained(one, each * len(there), each * there.count(False)))
    for what in GROUPINGS.values():
        many = max(1, round(scale * POPULATIONS)) * len(what.points) * len(what.ways)
        rows.append(_untrained(what, many, 0 if looked_in(["femnist"])[0]["found"] else many))
    for attack in DISCLOSURES.values():
        many = max(1, round(scale * ATTACKED))
        rows.append(_untrained(attack, many * len(attack.points) * len(attack.tellings)))
    return rows


def _untrained(what: Study | Comparison | Groupings | Disclosure, runs: int, missing: int = 0) -> dict[str, Any]:
    row = {"table": what.name, "what": what.title, "source": what.source, "runs": runs}
    return row | {"rounds_each": 0, "rounds": 0, "not_possible_here": missing}
