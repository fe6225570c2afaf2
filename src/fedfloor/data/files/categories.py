"""Sensors that are texts (categories) as numbers: a column for each text, or a place in an order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, nearest
from fedfloor.base.names import count, toml_key, toml_list
from fedfloor.data.files.encode import natural_order
from fedfloor.data.files.layout import CATEGORY, NO_LABEL
from fedfloor.data.files.sheet import Sheet
from fedfloor.data.files.spellings import truths
from fedfloor.data.reading import Categories, OneHot, Problem, Reading

log = logging.getLogger(__name__)

MOST = 100  # values of a one-hot column that need not be listed, at most


def encoded(sheets: Sequence[Sheet], categories: Categories | None, reading: Reading) -> list[Sheet]:
    """Return tables with columns of texts appended to their sensors as numbers; :func:`listed` gives the values.

    One-hot: x_v = 1 if the text is v, else 0, for each value v in its order; ordinal: the position 0, 1, … in the list.
    A missing text is missing in all its columns. An unlisted text of a single device is logged and not refused.
    """
    return [_encoded(sheet, categories, reading) for sheet in sheets] if categories else list(sheets)


def listed(sheets: Sequence[Sheet], categories: Categories | None) -> Categories | None:
    """Return the categories with all values listed, those of a one-hot column pooled over all tables and sorted.

    Only the set of values (at most :data:`MOST`) leaves a table; rows and counts do not.
    """
    if categories is None:
        return None
    result: dict[str, OneHot | tuple[str, ...]] = {}
    for name, how in categories.items():
        if not isinstance(how, str):
            result[name] = how
            continue
        texts = {text for sheet in sheets for text in sheet.text[CATEGORY + name] if text.casefold() not in NO_LABEL}
        if not 1 < len(texts) <= MOST:
            many = f"{len(texts)} different texts, more than {MOST}" if texts else "no text in any row"
            such = toml_list(natural_order([*texts])[:3])
            many = f"'{texts.pop()}' in every row" if len(texts) == 1 else many
            raise SettingError(
                f"{sheets[0].title}, column '{name}': {many}: not a category. Leave the column out: [data] columns = "
                f"{{ ignore = {toml_list([name])} }}; or list the relevant values: {toml_key(name)} = "
                f'{{ kind = "one-hot", values = {such} }}.',
                key="no-category",
            )
        result[name] = OneHot(tuple(natural_order(list(texts))))
    return result


def columns_of(categories: Categories) -> tuple[str, ...]:
    """Return the names of the columns made from categories.

    >>> columns_of({"grade": ("low", "high"), "material": OneHot(("alu", "steel"))})
    ('grade', 'material=alu', 'material=steel')
    """
    names: list[str] = []
    for name, how in categories.items():
        names += [f"{name}={value}" for value in how.values] if isinstance(how, OneHot) else [name]
    return tuple(names)


def sources(columns: Sequence[str], categories: Collection[str]) -> list[str]:
    """Return for each column the column of texts that it was made from, or the column itself.

    >>> sources(["temp", "grade", "material=alu", "material=steel"], ["grade", "material"])
    ['temp', 'grade', 'material', 'material']
    """
    return [next((text for text in categories if name.startswith(f"{text}=")), name) for name in columns]


def scales(categories: Categories) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the means and standard deviations defined for the columns of categories, regardless of the samples.

    One-hot: 0 and 1, which leave the column unchanged; ordinal with V values: those of the positions 0 … V − 1, that is
    (V − 1)/2 and √((V² − 1)/12), or 1 if V = 1.

    >>> scales({"grade": ("low", "high"), "material": OneHot(("alu", "steel"))})
    (array([0.5, 0. , 0. ], dtype=float32), array([0.5, 1. , 1. ], dtype=float32))
    """
    pairs: list[tuple[float, float]] = []
    for how in categories.values():
        many = len(how.values) if isinstance(how, OneHot) else len(how)
        places = ((many - 1) / 2, ((many**2 - 1) / 12) ** 0.5 or 1.0)
        pairs += [(0.0, 1.0)] * many if isinstance(how, OneHot) else [places]
    mean, deviation = np.array(pairs, np.float32).reshape(-1, 2).T
    return mean, deviation


def describe(categories: Categories | None) -> dict[str, Any]:
    """Return categories as JSON, for a model's header."""
    table: dict[str, Any] = {}
    for name, how in (categories or {}).items():
        kind, values = ("one-hot", how.values) if isinstance(how, OneHot) else ("ordinal", tuple(how))
        table[name] = {"kind": kind, "values": list(values)}
    return table


def described(table: Mapping[str, Any]) -> Categories | None:
    """Return the categories described by :func:`describe`; None if there are none.

    >>> described({"grade": {"kind": "ordinal", "values": ["low", "high"]}})
    {'grade': ('low', 'high')}
    """
    result: dict[str, OneHot | tuple[str, ...]] = {}
    for name, how in table.items():
        values = tuple(map(str, how["values"]))
        result[name] = OneHot(values) if how["kind"] == "one-hot" else values
    return result or None


def _encoded(sheet: Sheet, categories: Categories, reading: Reading) -> Sheet:
    blocks = [sheet.x.astype(np.float32, copy=False)]
    for name, how in categories.items():
        if isinstance(how, str):
            raise ValueError(f"{name}: values are not listed")
        blocks.append(_numbers(sheet, name, how, reading))
    names = (*sheet.columns, *columns_of(categories))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingError(
            f"{sheet.title}: column '{twice}' has the name of a column made from categories. Rename one of them."
        )
    text = {role: texts for role, texts in sheet.text.items() if not role.startswith(CATEGORY)}
    return replace(sheet, x=np.concatenate(blocks, axis=1), columns=names, text=text)


def _numbers(sheet: Sheet, name: str, how: OneHot | tuple[str, ...], reading: Reading) -> NDArray[np.float32]:
    """Return the columns of a one-hot category [T, V], or of an ordinal one [T, 1]."""
    texts = sheet.text[CATEGORY + name]
    one_hot = isinstance(how, OneHot)
    values: tuple[str, ...] = how.values if isinstance(how, OneHot) else how
    place: dict[str, float] = {value: number for number, value in enumerate(values)}
    if reading.whole:  # of a model
        place |= {other: place[value] for other, value in truths(values).items()}
    code = np.array([place.get(text, -1.0) for text in texts], np.float64)
    unlisted = np.flatnonzero(code == -1.0)
    empty = np.array([texts[row].casefold() in NO_LABEL for row in unlisted.tolist()], bool)
    code[unlisted[empty]] = np.nan
    unlisted = unlisted[~empty]
    if unlisted.size and not reading.whole:
        row = int(unlisted[0])
        text = (
            f"{sheet.place(row, name)}: '{texts[row]}' is not a listed value.{nearest(texts[row], values)} Values: "
            f"{', '.join(values)} ([data] columns.categories)."
        )
        reading.tell(Problem("unlisted", text, (name,)))
        code[unlisted] = 0.0  # whatever it is, a draft reads the column again in another coding
    elif unlisted.size:
        odd = Counter(texts[row] for row in unlisted.tolist())
        became = f"0 for all of {', '.join(values[:5])}" if one_hot else "a missing value"
        log.warning(
            "%s, column '%s': texts that did not occur in training, each taken as %s: %s.", sheet.title, name, became,
            ", ".join(f"'{text}' ({count(many, 'row')})" for text, many in odd.most_common(5)),
        )  # fmt: skip
    if not one_hot:
        code[code < 0] = np.nan
        return code.astype(np.float32).reshape(-1, 1)
    x: NDArray[np.float32] = (code[:, None] == np.arange(len(values))).astype(np.float32)
    x[np.isnan(code)] = np.nan
    return x
