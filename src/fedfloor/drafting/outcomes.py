"""Columns that tell how recordings end, or which rows are anomalies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from fedfloor.data.kinds import CALLED, answers, kind_of, normal_of
from fedfloor.data.roles import profiles_of
from fedfloor.drafting.profile import TableProfile
from fedfloor.drafting.sketch import Proposal

FAILED = re.compile(
    r"fail(ed|ure)?|broken|dead|event|eol|end.of.life|worn(.out)?|defect(ive)?|burnt.out|broke(n)?.down|breakdown"
    r"|ausgefallen|ausfall|defekt|kaputt|verschlissen|gebrochen|verschleiß"
    r"|(en.)?panne|défaillan(t|ce)|cassée?|usée?|fall[oa]|averiad[oa]|rot[oa]|guast[oa]|rott[oa]",
    re.IGNORECASE,
)
RUNNING = re.compile(
    r"(still.)?(running|in.(service|operation|betrieb|use)|going)|censored|suspended|active|alive|surviv(ed|ing)|ok"
    r"|operat(ing|ional)|open|installed|not.failed|(none|no).(yet|failure)"
    r"|läuft(.noch)?|aktiv|noch.in.betrieb|eingebaut|offen|en.(marche|service|fonctionnement|exploitation)|fonctionne"
    r"|en.(servicio|marcha|funcionamiento)|in.(servizio|funzione)"
    r"|(planned|preventive|scheduled|precautionary)(.(replacement|exchange|removal|maintenance|overhaul))?"
    r"|(geplant|vorbeugend|präventiv)(er?.(tausch|austausch|wechsel|ersatz|wartung))?|préventi(f|ve)",
    re.IGNORECASE,
)  # of a recording that does not end in failure: it still runs, or was ended for another reason


def marks(profile: TableProfile, given: Mapping[str, Any], guessed: Mapping[str, Any], *, judged: bool) -> Proposal:
    """Leave out columns that mark anomalies, but keep the first as the label for evaluation.

    :func:`~fedfloor.data.kinds.kind_of` decides. As a sensor such a column would reveal the anomalies. If its name has
    a legend of its codes, such as ``Attack (1: no attack, -1: attack)``, the code of normal operation is taken from it.
    """
    columns: dict[str, Any] = {**given.get("columns", {}), **guessed.get("columns", {})}
    table = profile.counted
    told = {*columns.get("values", ()), *columns.get("ignore", ()), *given.get("columns", {}).get("categories", ())}
    told |= {name for role, name in columns.items() if role in CALLED and role != "label"}
    free = [name for name in table.names if name not in told]
    marked = [name for name, profile in profiles_of(table, free, {}).items() if kind_of(profile).kind == "label"]
    marked = [name for name in (*answers(marked), *marked) if name in marked]
    marked = [*dict.fromkeys(marked)]
    sentences = []
    settings = {}
    if judged and marked and "label" not in columns and "label" not in table.names:
        columns["label"] = marked[0]
        sentences.append(f"'{marked[0]}' is taken for the label, which is only used for evaluation")
    label = columns.get("label", "label")
    task = task_table(given)
    if judged and label in table.names and "normal" not in task and (normal := normal_of(label)) is not None:
        settings = {"task": {**task, "normal": normal}}
        sentences.append(f"'{normal}' is normal operation, by the name of '{label}'")
    rest = [name for name in marked if name != label]
    if rest:
        columns["ignore"] = [*columns.get("ignore", ()), *rest]
        sentences.append(
            f"{', '.join(map(repr, rest))}: left out, because these columns mark anomalies and are no sensors"
        )
    if sentences:
        settings |= {"columns": _without(columns, "categories") | _coded_but(columns, marked)}
    return Proposal(settings, sentences)


def endings(profile: TableProfile, given: Mapping[str, Any], guessed: Mapping[str, Any]) -> Proposal:
    """Take the column that separates recordings to failure from those that still run for the label.

    Such a column has two texts: one for each recording, of which one matches :data:`FAILED` or :data:`RUNNING`; or one
    of them in the last rows of some recordings only, which marks their ends.
    """
    columns: dict[str, Any] = {**given.get("columns", {}), **guessed.get("columns", {})}
    table = profile.counted
    places = {role: columns.get(role, role) for role in ("device", "factory", "time", "run")}
    whose = [table.cells(name) for role, name in places.items() if role in ("device", "run") and name in table.names]
    recording = [*zip(*whose, strict=True)] or [()] * len(table.rows)
    label = given.get("columns", {}).get("label")
    last = {whole: row for row, whole in enumerate(recording)}.values()
    for name in table.names:
        if name in places.values() or label not in (None, name):
            continue
        cells = table.cells(name)
        failed = [text for text in {*cells} if FAILED.fullmatch(text)]
        failed = failed or [text for text in {*cells} if not RUNNING.fullmatch(text)]
        each = len({*zip(recording, cells, strict=True)}) == len({*recording})
        marks = Counter(cells[row] for row in last).items() & Counter(cells).items()  # they are in last rows only
        failed = failed if each else [text for text, times in marks if times > 1]
        if len({*cells}) == 2 and len(failed) == 1:
            ignore = [other for other in columns.get("ignore", ()) if other != name]
            rest = _without(columns, "ignore", "categories") | ({"ignore": ignore} if ignore else {})
            rest |= _coded_but(columns, [name])
            which = "" if each else "last "
            note = f"recordings whose {which}'{name}' is not '{failed[0]}' still run and are left out"
            return Proposal({"columns": rest | {"label": name}, "ended": failed[0]}, [note])
    note = (
        "each recording is taken to end in failure; where some still run, name the column that distinguishes them, and "
        "its text for a failure: --set data.columns.label=NAME --set data.ended=TEXT"
    )
    return Proposal(notes=[note])


def _without(columns: Mapping[str, Any], *roles: str) -> dict[str, Any]:
    """Return the settings of columns without some."""
    return {role: name for role, name in columns.items() if role not in roles}


def _coded_but(columns: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the categories of columns without some of them, if others remain."""
    few = {name: how for name, how in columns.get("categories", {}).items() if name not in names}
    return {"categories": few} if few else {}


def task_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given task as a table."""
    given = data.get("task")
    return dict(given) if isinstance(given, Mapping) else {"kind": given}
