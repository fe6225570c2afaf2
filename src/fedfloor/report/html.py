"""The pieces of HTML that sections are made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

Drawn = dict[str, Any]  # the page's Plotly figures by the id of their place


def section(heading: str, body: str, name: str) -> str:
    """Return a section with its heading; ``name`` is its address on the page."""
    return f'<section id="s-{name}"><h2>{escape(heading)}</h2>{body}</section>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Return a table whose cells know their column, so that a narrow screen can show each row as a card."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = []
    for row in rows:
        cells = [f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head, row, strict=True)]
        lines.append(f'<tr><th scope="row">{escape(row[0])}</th>{"".join(cells[1:])}</tr>')
    note = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = f"{note}<thead><tr>{columns}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<table class="{kind or "cards"}">{body}</table>'


def folded(title: str, body: str, *, shown: bool = False, kind: str = "figure") -> str:
    """Return something long behind a line to click on; a ``figure`` is unfolded for print."""
    return f'<details class="{kind}"{" open" if shown else ""}><summary>{escape(title)}</summary>{body}</details>'


def scroll(inner: str, label: str) -> str:
    """Return something wide in a box that scrolls sideways on a narrow screen."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{inner}</div>'


def chart(name: str, figure: Any | None, caption: str, drawn: Drawn, min_width: int = 0) -> str:
    """Return the place of a Plotly figure with its caption, and put the figure into ``drawn``.

    Args:
        name: the place's id.
        figure: what is drawn there; None says that nothing was measured.
        caption: how it was made.
        drawn: where figures are collected.
        min_width: narrower screens scroll, px.
    """
    if figure is None:
        return '<p class="soft">These runs did not measure it.</p>'
    drawn[name] = figure
    inner = f'<div class="chart" id="{name}" style="min-height:{figure.layout.height}px"></div>'
    if min_width:
        inner = scroll(f'<div class="wide" style="min-width:{min_width}px">{inner}</div>', caption.split(".")[0])
    note = "<noscript>The charts need JavaScript, which this page carries.</noscript>"
    return f"<figure>{inner}{note}<figcaption>{escape(caption)}</figcaption></figure>"
