"""Columns beside the roles: numbers of sensors and the marks in them, few texts as categories, others left out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfloor.base.errors import SettingError
from fedfloor.base.names import typed
from fedfloor.data.files.columnar import is_parquet
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.excerpt import Excerpt
from fedfloor.data.files.joined import SPANS, parts_of
from fedfloor.data.files.layout import looks_like_time
from fedfloor.data.files.marks import USUAL, grouped, grouped_hint, other_marks
from fedfloor.data.files.times import READ
from fedfloor.data.kinds import (
    CALLED,
    FEW,
    filled,
    is_date,
    is_time,
    judged_by,
    kind_of,
    mostly_text,
    textual,
    word_of,
)
from fedfloor.data.reading import Columns, ignoring
from fedfloor.data.roles import declared, profiles_of
from fedfloor.drafting.profile import TableProfile

UNIT = re.compile(r"[+-]?\d[\d.,' ]*+\s*+((?:[^\W\d_]|[°%])[^\W_]{0,3}(?:/[^\W_]{1,3})?|)")  # the unit after a number
ODD_NUMBER = re.compile(r'="[+-]?[\d.,]+"|\([\d.,]+\)|[−–]\d[\d.,]*|\d[\d.,]*-|0x[\da-f]+', re.IGNORECASE)
LEFT_OUT = ("quality", "row number", "time")  # kinds of columns that are no sensors
SWITCHES = (("false", "true"), ("no", "yes"), ("n", "y"), ("off", "on"), ("nein", "ja"), ("aus", "an"), ("aus", "ein"))


@dataclass(frozen=True)
class SensorColumns:
    """What columns beside the roles are.

    Args:
        columns: the settings of columns, with categories and those left out.
        settings: further keys of ``[data]``: marks in numbers, and qualities of values.
        evidence: column that is left out → the reason, as a predicate.
    """

    columns: Mapping[str, Any]
    settings: Mapping[str, Any]
    evidence: Mapping[str, str]


def sensors_of(
    profile: TableProfile, given: Mapping[str, Any], columns: Mapping[str, Any], roles: Mapping[str, str]
) -> SensorColumns:
    """Return what the columns are that have none of the roles; ``columns`` are those set so far.

    Raises:
        SettingError: texts that seem to be times or numbers, but cannot be read.
    """
    table = profile.top
    free = _free(table, columns, roles)
    decimal, mark, settings = _marks_in_numbers(profile, free, given, columns, roles.get("label", ""))
    if columns.get("values"):
        return SensorColumns(columns, settings, {})

    # columns of texts, numbers of rows, and qualities
    profiles = profiles_of(table, free, roles, decimal, mark)
    texts = [name for name in free if mostly_text(profiles[name].cells, decimal)]
    if texts and "time" not in given.get("columns", {}):
        of_texts = {name: table.cells(name) for name in texts}
        _check_times(profile.path.name, of_texts, given.get("time_format"), has_time="time" in roles)
    odd = [name for name in free if kind_of(profiles[name]).kind in LEFT_OUT or name in texts]
    profiles = profiles_of(profile.counted if odd else table, odd, roles, decimal, mark)
    kinds = {name: kind_of(profiles[name]) for name in odd}
    for name in odd:
        if name in texts and kinds[name].kind not in LEFT_OUT:
            _check_numbers(profile.path.name, name, table.cells(name), decimal)
            kinds = {**kinds, name: textual(profiles[name])}

    # few texts are categories, unless they copy the label; all else is left out
    label = roles.get("label", "label")
    category = [name for name, kind in kinds.items() if kind.kind == "category"]
    few = {
        name: coded(cells) for name in category
        if not _copies(cells := profile.counted.cells(name), profile.counted, label)
    }  # fmt: skip
    left = [name for name in odd if name not in few]
    judged = {value: name for name in left if (value := judged_by(profiles[name])) in free}
    makes = ""
    if judged and "quality" not in given:
        settings = {**settings, "quality": judged}
        makes = ", which makes its other values missing (data.quality),"
    evidence = {name: kinds[name].evidence + (makes if name in judged.values() else "") for name in left}
    coding = {"categories": {**columns.get("categories", {}), **few}} if few else {}
    ignored = {"ignore": [*columns.get("ignore", ()), *evidence]} if evidence else {}
    return SensorColumns({**columns, **coding, **ignored}, settings, evidence)


def _free(table: Excerpt, columns: Mapping[str, Any], roles: Mapping[str, str]) -> list[str]:
    """Return the columns without a role, set or usual."""
    taken = {
        *(name for role, name in Columns().roles().items() if roles.get(role) != ""),
        *roles.values(),
        *(part for name in roles.values() for part in parts_of(name)),
        *(part for role in SPANS for part in parts_of(columns.get(role, ""))),
        *declared(columns),
        columns.get("id", "id"),
    }
    return [name for name in table.names if name not in taken]


def _marks_in_numbers(
    profile: TableProfile, free: Sequence[str], given: Mapping[str, Any], columns: Mapping[str, Any], label: str
) -> tuple[str, str, dict[str, Any]]:
    """Return the decimal mark, that between thousands or "", and the settings of those that are not given."""
    table = profile.top
    sensors = [name for name in table.names if name in free or name in columns.get("values", ())]
    measured = [cell for name in sensors for cell in table.cells(name)]
    # numbers of a Parquet file have no decimal mark: its texts may have commas beside them
    written = [table.cells(name) for name in sensors] if is_parquet(profile.path) else [measured]
    told = not is_parquet(profile.path) and given.get("decimal") == ","
    usual = {",": ".", ".": ","}.get(given.get("thousands", ""), "")  # the decimal mark beside that of thousands
    told = told or (usual == "," and "decimal" not in given)
    comma = told or (given.get("decimal", ",") == "," and usual != "." and any(map(_commas, written)))
    decimal = "," if comma else "."
    target = table.cells(label) if label in table.names else []
    mark = given.get("thousands") or _thousands([*measured, *target], decimal)
    if not mark and "decimal" not in given:
        _check_groups(profile, sensors, decimal)
    guessed = {"thousands": mark, "decimal": "," if comma else ""}
    return decimal, mark, {key: text for key, text in guessed.items() if text and key not in given}


def _check_groups(profile: TableProfile, sensors: Sequence[str], decimal: str) -> None:
    """Refuse a column whose marks before three digits would be read as fractions, but seem to count thousands."""
    for name in sensors:
        # most columns are settled by a few rows
        if not any(decimal in cell for cell in profile.top.cells(name)):
            continue
        if pair := grouped(profile.counted.cells(name), decimal):
            raise SettingError(
                f"{profile.path.name}, column '{name}': {grouped_hint(pair, decimal)}", key="grouped-numbers"
            )


def _copies(cells: Sequence[str], table: Excerpt, label: str) -> bool:
    """Return whether each text of a column occurs with one label only."""
    return label in table.names and len({*zip(cells, table.cells(label), strict=True)}) == len({*filled(cells)})


def coded(cells: Sequence[str]) -> str | list[str]:
    """Return the coding of a column with few texts: 0 and 1 for two, such as off and on, otherwise a sensor per text.

    >>> coded(["True", "False", "NA"]), coded(["ja", "nein"]), coded(["b", "a"]), coded(["low", "mid", "high"])
    (['False', 'True'], ['nein', 'ja'], ['a', 'b'], 'one-hot')
    """
    known = {*filled(cells)}
    texts = {cell.casefold(): cell for cell in known}
    switch = next((pair for pair in SWITCHES if {*pair} == {*texts}), ())
    if len(switch) == len(known):
        return [texts[text] for text in switch]
    return natural_order([*known]) if len(known) == 2 else "one-hot"


def _check_times(table: str, texts: Mapping[str, Sequence[str]], form: str | None, *, has_time: bool) -> None:
    """Refuse to ignore columns of texts that are the time, judged by their names and cells."""
    for name, cells in texts.items():
        known = filled(cells)
        odd = [cell for cell in known if not is_date(cell, form)]
        shaped = 2 * sum(map(looks_like_time, known)) >= len(known)
        if odd and (shaped or word_of(name) in CALLED["time"]):
            raise SettingError(
                f"{table}, column '{name}': '{odd[0]}' looks like a date or time, but cannot be read. {READ} "
                f"Or leave the column out: {ignoring(name)}.",
                key="no-time",
            )
    dates = [name for name, cells in texts.items() if is_time(cells, form, numbers=False)]
    if dates and not has_time:
        raise SettingError(
            f"{table}: columns {', '.join(map(repr, dates))} hold dates. Choose the time: "
            f"{typed('data.columns.time', dates[0])}. Or leave them out: {ignoring(*dates)}."
            + f" If a row is a life, from one date to the other: {typed('data.task', 'survival')}."
            * (len(dates) > 1),
            key="choice-of-time",
        )


def _check_numbers(table: str, name: str, cells: Sequence[str], decimal: str) -> None:
    """Refuse to ignore a column of numbers that are written with a unit, with other marks or in an odd form."""
    known = [cell.translate(USUAL) for cell in filled(cells)]
    if len({*known}) == 1:
        return
    odd, hint = _odd_form(known) or _odd_unit(known, decimal)
    if not hint:
        return
    raise SettingError(
        f"{table}, column '{name}': '{odd}' looks like a number, but cannot be read as one. {hint} Or leave the column "
        f"out: {ignoring(name)}; if its texts are classes: --set 'data.columns.categories."
        f'{json.dumps(name, ensure_ascii=False)}="one-hot"\'.',
        key="no-number",
    )


def _odd_form(known: Sequence[str]) -> tuple[str, str] | None:
    """Return a cell and a hint if cells are numbers in another form than digits; few texts are codes."""
    forms = [cell for cell in known if ODD_NUMBER.fullmatch(cell)]
    fits = 2 * len(forms) >= len(known) and len({*forms}) > FEW
    return (forms[0], "Write plain numbers, such as -42.5.") if fits else None


def _odd_unit(known: Sequence[str], decimal: str) -> tuple[str, str]:
    """Return a cell and a hint if cells are numbers with units, or with other marks; a hint of "" otherwise.

    A letter after a number may be a code, as in 12A and 7B: units that differ have a blank before them.
    """
    matches = {cell: match[1] for cell in {*known} if (match := UNIT.fullmatch(cell))}
    units = Counter(matches[cell] for cell in known if cell in matches)
    apart = sum(cell in matches and cell.endswith(f" {matches[cell]}") for cell in known)
    if not units or 2 * max(*units.values(), apart) < len(known):
        return "", ""
    unit = max(units, key=lambda each: units[each])
    odd = next(cell for cell in known if matches.get(cell) == unit)
    if not unit:
        marks = other_marks(odd, decimal)
        return odd, f"{marks}." if marks else ""
    named = [repr(each) for each, _ in units.most_common() if each]
    if len(named) > 1:
        text = f"Its numbers have several units ({', '.join(named)}): convert them to one, and write them without it."
        return odd, text
    return odd, f"Write the numbers without '{unit}'."


def _commas(cells: Sequence[str]) -> bool:
    """Return whether some fractions are written with commas and none with points."""
    return any(re.fullmatch(r"[+-]?\d+,\d+", cell) for cell in cells) and not any(
        re.fullmatch(r"[+-]?\d*\.\d+", cell) for cell in cells
    )


def _thousands(cells: Sequence[str], decimal: str) -> str:
    """Return the mark between thousands, if numbers with both marks show it, otherwise ""."""
    mark = "." if decimal == "," else ","
    form = re.compile(rf"[+-]?\d{{1,3}}(?:[{mark}]\d{{3}})+[{decimal}]\d+")
    return mark if any(map(form.fullmatch, cells)) else ""
