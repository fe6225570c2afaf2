"""Texts for other programs: strict JSON (RFC 8259), CSV in which no cell is a formula, lines that move no terminal.

Python's own writers also write NaN and Infinity, cells that a spreadsheet executes, and control characters.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # first characters, by OWASP


def json_text(value: Any, **style: Any) -> str:
    """Return ``json.dumps(value, **style)`` as strict JSON.

    JSON has no notation for a number that is not finite: it becomes null, as a number that is not defined.

    Raises:
        TypeError: the value has a part that is no JSON.

    >>> json_text({"R2": [0.5, -math.inf, math.nan]})
    '{"R2": [0.5, null, null]}'
    """
    try:
        return json.dumps(value, allow_nan=False, **style)
    except ValueError:
        return json.dumps(_defined(value), allow_nan=False, **style)


def _defined(value: Any) -> Any:
    """Return JSON's values with None for every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _defined(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV with ``\\n`` at their ends; None is an empty cell.

    Names of devices and classes may come from strangers. A text that a spreadsheet would execute as a formula has an
    apostrophe before it (OWASP, "CSV Injection"); numbers, also negative ones, are unchanged.

    >>> csv_text([["device", "class"], ["=1+1", "@SUM(A1)"], [-0.5, "-0.5"], [None, "-"]])
    "device,class\\n'=1+1,'@SUM(A1)\\n-0.5,-0.5\\n,-\\n"
    """
    text = io.StringIO(newline="")
    line = SimpleNamespace(write=lambda row: text.write(f"{row[:-2]}\n"))  # only with these line ends \r is quoted
    csv.writer(line, lineterminator="\r\n").writerows([*map(_inert, row)] for row in rows)
    return text.getvalue()


def _inert(cell: object) -> object:
    if not isinstance(cell, str) or len(cell) < 2 or not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def printable(text: str) -> str:
    r"""Return a text with control characters escaped, except line breaks.

    >>> print(printable("a\x1b[2J"))
    a\x1b[2J
    >>> printable("10\u00a0%") == "10\u00a0%"
    True
    """
    return "".join(c if c.isprintable() or c in "\n\u00a0\u202f" else c.encode("unicode_escape").decode() for c in text)


class EscapedFormatter(logging.Formatter):
    """A format of log lines in which control characters, such as of names in others' files, are escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        return printable(super().format(record))
