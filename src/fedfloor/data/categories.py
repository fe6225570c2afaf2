"""Sensors that are texts become numbers: one column per value (one-hot), or the place in a given order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.names import natural_order
from fedfloor.data.reading import Categories, OneHot
from fedfloor.data.sheet import CATEGORY, NO_LABEL, Sheet
from fedfloor.errors import SettingError, nearest

log = logging.getLogger(__name__)

MOST = 100  # values of a one-hot column, where they are not listed


def encoded(sheets: Sequence[Sheet], categories: Categories | None, *, known: bool = False) -> list[Sheet]:
    """Return tables whose columns of texts stand as numbers behind their sensors; see :func:`listed` for the values.

    One-hot: x_v = 1 where the text is v, else 0, for each value v in its order; ordinal: the place 0, 1, … in the list.
    A missing text is missing in all its columns.

    Args:
        sheets: with the texts.
        categories: column → how; with all values listed.
        known: whether a model or a park fixed the values before: then an unseen text is 0 in all columns of a one-hot
            one and missing in an ordinal one, and stated, rather than refused.

    Raises:
        SettingError: a text that is not listed; the message names file, row and column.
    """
    return [_one(sheet, categories, known=known) for sheet in sheets] if categories else list(sheets)


def listed(sheets: Sequence[Sheet], categories: Categories | None) -> Categories | None:
    """Return the categories with every value listed: those of a one-hot column are pooled over all tables, sorted.

    Only the set of values leaves a table, neither rows nor how many of them have a value.

    Raises:
        SettingError: there are more than :data:`MOST`.
    """
    if categories is None:
        return None
    found: dict[str, OneHot | tuple[str, ...]] = {}
    for name, how in categories.items():
        if not isinstance(how, str):
            found[name] = how
            continue
        texts = {text for sheet in sheets for text in sheet.text[CATEGORY + name] if text.casefold() not in NO_LABEL}
        if not 1 < len(texts) <= MOST:
            many = f"{len(texts)} different texts, more than {MOST}" if texts else "no text in any row"
            many = f"'{texts.pop()}' in every row" if len(texts) == 1 else many
            raise SettingError(
                f"{sheets[0].title}, column '{name}': {many}: no categories. Leave the column out: [data] columns = "
                f'{{ ignore = ["{name}"] }}; or list those that count: {name} = {{ kind = "one-hot", values = […] }}.'
            )
        found[name] = OneHot(tuple(natural_order(list(texts))))
    return found


def columns_of(categories: Categories) -> tuple[str, ...]:
    """Return the names of the columns that categories become.

    >>> columns_of({"grade": ("low", "high"), "material": OneHot(("alu", "steel"))})
    ('grade', 'material=alu', 'material=steel')
    """
    names: list[str] = []
    for name, how in categories.items():
        names += [f"{name}={value}" for value in how.values] if isinstance(how, OneHot) else [name]
    return tuple(names)


def sources(columns: Sequence[str], categories: Collection[str]) -> list[str]:
    """Return for each column the one of texts that it stands for a value of, or itself.

    >>> sources(["temp", "grade", "material=alu", "material=steel"], ["grade", "material"])
    ['temp', 'grade', 'material', 'material']
    """
    return [next((text for text in categories if name.startswith(f"{text}=")), name) for name in columns]


def scales(categories: Categories) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean and the deviation that the columns of categories have by definition, whatever the samples.

    One-hot: 0 and 1, which leaves them as they are; ordinal with V values: of the places 0 … V − 1, each once, that is
    (V − 1)/2 and √((V² − 1)/12), 1 if V = 1.

    >>> scales({"grade": ("low", "high"), "material": OneHot(("alu", "steel"))})
    (array([0.5, 0. , 0. ], dtype=float32), array([0.5, 1. , 1. ], dtype=float32))
    """
    found: list[tuple[float, float]] = []
    for how in categories.values():
        many = len(how.values) if isinstance(how, OneHot) else len(how)
        places = ((many - 1) / 2, ((many**2 - 1) / 12) ** 0.5 or 1.0)
        found += [(0.0, 1.0)] * many if isinstance(how, OneHot) else [places]
    mean, deviation = np.array(found, np.float32).reshape(-1, 2).T
    return mean, deviation


def describe(categories: Categories | None) -> dict[str, Any]:
    """Return categories as JSON, for a model's header."""
    told: dict[str, Any] = {}
    for name, how in (categories or {}).items():
        kind, values = ("one-hot", how.values) if isinstance(how, OneHot) else ("ordinal", tuple(how))
        told[name] = {"kind": kind, "values": list(values)}
    return told


def described(told: Mapping[str, Any]) -> Categories | None:
    """Return categories as :func:`describe` wrote them; None for none.

    >>> described({"grade": {"kind": "ordinal", "values": ["low", "high"]}})
    {'grade': ('low', 'high')}
    """
    found: dict[str, OneHot | tuple[str, ...]] = {}
    for name, how in told.items():
        values = tuple(map(str, how["values"]))
        found[name] = OneHot(values) if how["kind"] == "one-hot" else values
    return found or None


def _one(sheet: Sheet, categories: Categories, *, known: bool) -> Sheet:
    blocks = [sheet.x.astype(np.float32, copy=False)]
    for name, how in categories.items():
        if isinstance(how, str):
            raise ValueError(f"{name}: values are not listed")
        blocks.append(_numbers(sheet, name, how, known=known))
    names = (*sheet.columns, *columns_of(categories))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingError(f"{sheet.title}: column '{twice}' is there already, beside the categories. Rename one.")
    text = {role: texts for role, texts in sheet.text.items() if not role.startswith(CATEGORY)}
    return replace(sheet, x=np.concatenate(blocks, axis=1), columns=names, text=text)


def _numbers(sheet: Sheet, name: str, how: OneHot | tuple[str, ...], *, known: bool) -> NDArray[np.float32]:
    """Return the columns [T, V], or [T, 1] of an ordinal one."""
    texts, one_hot = sheet.text[CATEGORY + name], isinstance(how, OneHot)
    values: tuple[str, ...] = how.values if isinstance(how, OneHot) else how
    place: dict[str, float] = {value: number for number, value in enumerate(values)}
    code = np.array([place.get(text, -1.0) for text in texts], np.float64)
    for row in np.flatnonzero(code == -1.0).tolist():
        if texts[row].casefold() in NO_LABEL:
            code[row] = np.nan
        elif not known:
            raise SettingError(
                f"{sheet.place(row, name)}: '{texts[row]}' is not listed.{nearest(texts[row], values)} Values: "
                f"{', '.join(values)} ([data] columns.categories)."
            )
    if (code == -1.0).any():
        odd = Counter(texts[row] for row in np.flatnonzero(code == -1.0).tolist())
        became = f"0 for all of {', '.join(values[:5])}" if one_hot else "a missing value"
        log.warning(
            "%s, column '%s': texts that training never had, each taken as %s: %s.", sheet.title, name, became,
            ", ".join(f"'{text}' ({count:,} rows)" for text, count in odd.most_common(5)),
        )  # fmt: skip
    if not one_hot:
        code[code < 0] = np.nan
        return code.astype(np.float32).reshape(-1, 1)
    x: NDArray[np.float32] = (code[:, None] == np.arange(len(values))).astype(np.float32)
    x[np.isnan(code)] = np.nan
    return x
