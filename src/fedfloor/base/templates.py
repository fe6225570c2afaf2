"""Templates in a package's folder ``templates``; values are escaped in HTML and SVG files only."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@cache
def _environment(room: str, *, html: bool) -> Environment:
    return Environment(
        loader=PackageLoader(room), autoescape=html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def template(room: str, name: str) -> Template:
    """Return a template of a package, such as ``"fedfloor.report"``; those of HTML and SVG escape values."""
    return _environment(room, html=name.endswith((".html", ".svg"))).get_template(name)


def render(room: str, name: str, /, **values: Any) -> str:
    """Return a filled-in template; a missing value is an error."""
    return template(room, name).render(**values)
