"""Marks in numbers written as texts: of decimals, and between groups of three digits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

ALIKE = {"'": "'’", " ": " \xa0\u202f"}  # equivalent characters of a mark between thousands
USUAL = str.maketrans({other: mark for mark, alike in ALIKE.items() for other in alike[1:]})
SHOWING = 3  # different numbers with and without a mark that show its meaning, at least


def ungrouped(cell: str, thousands: str | None, decimal: str) -> str:
    """Return a number without the marks between groups of three digits; other texts unchanged.

    >>> ungrouped("1.234,5", ".", ","), ungrouped("12\\u202f345", " ", "."), ungrouped("1.5", ".", ",")
    ('1234,5', '12345', '1.5')
    """
    marks = ALIKE.get(thousands or "", thousands or "")
    if not any(mark in cell for mark in marks):
        return cell
    whole, mark, fraction = cell.strip().partition(decimal)
    fits = re.fullmatch(rf"[+-]?\d{{1,3}}([{re.escape(marks)}])\d{{3}}(\1\d{{3}})*", whole, re.ASCII)
    return re.sub(rf"[{re.escape(marks)}]", "", whole) + mark + fraction if fits else cell


def grouped(cells: Iterable[str], mark: str, *, alone: bool = False) -> tuple[str, str] | None:
    """Return a number with a mark and one without, if these show that it stands between thousands; None otherwise.

    Of ``2.054`` and ``895`` the first is probably the larger one: fractions of a column seldom all have three digits,
    beside whole numbers below 1000 without any.

    Args:
        cells: the cells of a column.
        mark: a point or a comma.
        alone: whether three digits after each mark suffice, because the table's decimal mark is another one.

    >>> grouped(["895", "2.054", "12.117", "77", "640", "1.003"], ".")
    ('2.054', '895')
    >>> grouped(["895", "2.054", "12.11", "77", "640", "1.003"], "."), grouped(["2.054", "12.117", "1.003"], ".")
    (None, None)
    >>> grouped(["2,054", "12,117", "1,003"], ",", alone=True)
    ('2,054', '')
    """
    group = re.compile(rf"[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})+", re.ASCII)
    marked, plain = dict[str, None](), dict[str, None]()
    for cell in cells:
        if mark in cell:
            if not group.fullmatch(cell):
                return None
            marked[cell] = None
        elif re.fullmatch(r"[+-]?\d+", cell, re.ASCII):
            if len(cell.lstrip("+-")) > len("999"):
                return None
            if int(cell):
                plain[cell] = None
    shown = len(marked) >= SHOWING and (alone or len(plain) >= SHOWING)
    return (next(iter(marked)), next(iter(plain), "")) if shown else None


def grouped_hint(pair: tuple[str, str], mark: str) -> str:
    """Return what shows that a mark stands between thousands, and the settings for both readings.

    >>> print(grouped_hint(("2,054", "895"), ","))
    '2,054' and the like have three digits after the mark, and '895' and the like are whole. If ',' stands between \
thousands: --set 'data.thousands=,'. If it is the decimal mark, write all fractions in full: 895,000.
    """
    settings = "--set 'data.thousands=,'" if mark == "," else "--set 'data.thousands=.' --set 'data.decimal=,'"
    whole = f", and '{pair[1]}' and the like are whole" if pair[1] else ", and the table's decimal mark is another one"
    in_full = f", write all fractions in full: {pair[1]}{mark}000." if pair[1] else f": --set 'data.decimal={mark}'."
    return (
        f"'{pair[0]}' and the like have three digits after the mark{whole}. If '{mark}' stands between thousands: "
        f"{settings}. If it is the decimal mark{in_full}"
    )


def other_marks(cell: str, decimal: str, *, decimals: bool = True) -> str:
    """Return advice on settings with which a number with other marks can be read; empty if there are none.

    Args:
        decimals: whether another decimal mark is possible.

    >>> other_marks("1,234", ".")
    "If ',' is the decimal mark: --set 'data.decimal=,'; if it stands between thousands: --set 'data.thousands=,'"
    >>> print(other_marks("1 234.5", "."))
    If ' ' stands between thousands: --set 'data.thousands=" "'
    >>> print(other_marks("1 234,5", "."))
    If ' ' stands between thousands and ',' is the decimal mark: --set 'data.thousands=" "' --set 'data.decimal=,'
    """
    cell = cell.translate(USUAL)
    other = "." if decimal == "," else ","
    fraction = re.fullmatch(rf"[+-]?\d*[{other}]\d+(e[+-]?\d+)?", cell, re.IGNORECASE | re.ASCII)
    hint = f"If '{other}' is the decimal mark: --set 'data.decimal={other}'" if fraction and decimals else ""
    groups = re.fullmatch(rf"[+-]?\d{{1,3}}([{other}' ])\d{{3}}(\1\d{{3}})*([{decimal}]\d+)?", cell, re.ASCII)
    if groups:
        hint += ("; if it" if hint else f"If '{groups[1]}'") + f" stands between thousands: {_thousands(groups[1])}"
    both = re.fullmatch(rf"[+-]?\d{{1,3}}([{decimal}' ])\d{{3}}(\1\d{{3}})*\{other}\d+", cell, re.ASCII)
    if decimals and both:
        hint = f"If '{both[1]}' stands between thousands and '{other}' is the decimal mark: "
        hint += f"{_thousands(both[1])} --set 'data.decimal={other}'"
    return hint


def _thousands(mark: str) -> str:
    quote = '"' if mark == "'" else "'"
    value = '" "' if mark == " " else mark  # a blank alone would be no value
    return f"--set {quote}data.thousands={value}{quote}"


def rewritten(path: Path, delimiter: str | None, decimal: str) -> str:
    """Return the command that writes a table of the other decimal mark with this one, as a further sentence."""
    out = f"{path.name.partition('.')[0]}-converted.csv"
    read = [repr(str(path)), "sep=None", "engine='python'", *(["decimal=','"] if decimal == "." else [])]
    write = [repr(out), "index=False", f"sep={delimiter or (',' if decimal == '.' else ';')!r}"]
    write += [f"decimal={decimal!r}"] if decimal != "." else []
    code = f"import pandas; pandas.read_csv({', '.join(read)}).to_csv({', '.join(write)})"
    return f" To write it so: python -c {shlex.quote(code)}"
