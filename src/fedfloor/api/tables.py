"""Tables of results: as text, in a notebook, and of pandas, which is optional."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from fedfloor.base.errors import SettingError

Cells = Sequence[Sequence[str]]


def pandas(noun: str) -> Any:
    """Return the module pandas.

    Raises:
        SettingError: it is not installed.
    """
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as absent:
        raise SettingError(f"{noun} needs pandas: pip install pandas.") from absent


def written(value: Any) -> str:
    """Return a value as the text of a cell, numbers with four digits.

    >>> [written(value) for value in (0.123456, 3, None, True, [0.5, 0.123456])]
    ['0.1235', '3', '–', 'yes', '0.5, 0.1235']
    """
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, list):
        return ", ".join(map(written, value))
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def lines(cells: Cells) -> list[str]:
    """Return a table as lines of text, the first with the names of its columns.

    >>> lines([("method", "seeds"), ("fedavg", "[0]")])
    ['method  seeds', 'fedavg  [0]']
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def html(cells: Cells, before: Iterable[str] = (), after: Iterable[str] = (), folder: object = None) -> str:
    """Return a table as HTML, with sentences before and after it, and the folder of its files."""
    head, *rows = cells
    first = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    above, below = ("".join(f"<p>{escape(text)}</p>" for text in texts) for texts in (before, after))
    where = "" if folder is None else f"<p>folder: <code>{escape(str(folder))}</code></p>"
    return f"<div>{above}<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>{below}{where}</div>"
