"""The report: one page that carries everything it shows and loads nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedfloor._version import __version__
from fedfloor.report import costs, predicted, sections, words
from fedfloor.report.budget import Budget
from fedfloor.report.groups import Group, groups
from fedfloor.report.ledger import Run, collect
from fedfloor.report.story import story
from fedfloor.report.table import natural_target

# Nothing may be fetched: a report is opened years later, and inside networks that have no way out.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
)
LIBRARY = "plotly-basic.min.js"  # plotly.js-basic-dist-min 4.1.1 from npm, as published: scatter, bar and pie charts
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%233b82f6' "
    "d='M1 15V7l5 3V7l5 3V3h4v12z'/%3E%3C/svg%3E"
)


def write(paths: Iterable[Path], out: Path, target: float | None = None, budget: Budget | None = None) -> Path:
    """Write the report of run folders as one self-contained HTML page.

    Args:
        paths: run folders, or folders that contain run folders.
        out: the page; replaced as a whole, so that it is never half written.
        target: the value of the headline whose first round is compared; by default the best round one that was reached.
        budget: the methods are also compared when so much is used up.

    Returns:
        ``out``.

    Raises:
        SettingError: a path is no run folder, a file in it is damaged, or the runs have no price for the budget.
    """
    page = render(collect(paths), target, budget)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return out


def render(runs: Sequence[Run], target: float | None = None, budget: Budget | None = None) -> str:
    """Return the report's HTML."""
    found = groups(runs)
    hindsight = target is None
    target = natural_target(runs) if target is None else target
    drawn: dict[str, Any] = {}
    main = "".join(
        (
            sections.summary_section(runs, target, hindsight=hindsight),
            sections.decision_section(found),
            costs.budget_section(runs, budget),
            sections.curve_sections(found, target, drawn),
            costs.cost_section(found, target, drawn),
            predicted.errors_section(found, drawn),
            sections.device_section(found, drawn),
            sections.cohort_section(found),
            sections.factory_section(found, drawn),
            sections.class_section(found, drawn),
            sections.confusion_section(found),
            sections.holdings_section(found, drawn),
            sections.plan_section(found),
            sections.config_section(found),
        )
    )
    names = list(dict.fromkeys(run.name for run in runs))
    title = names[0] if len(names) == 1 else f"{len(names)} experiments"
    told = story(found, target)
    if budget is not None:
        told.insert(1, costs.budget_story(runs, budget))
    return _document(title, _header(title, found, told) + _contents(main), main, _scripts(drawn))


def _document(title: str, header: str, main: str, scripts: str) -> str:
    style = files("fedfloor.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} – fedfloor</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="{ICON}"><style>{style}</style></head>\n<body>{header}<main>{main}</main>'
        f'<footer class="soft"><p>Made by fedfloor {__version__} from the run folders alone.</p></footer>{scripts}'
        "</body></html>\n"
    )


def _scripts(drawn: dict[str, Any]) -> str:
    # "</" would end the script element in the middle of a label
    body = ",".join(f'"{name}":{figure.to_json()}' for name, figure in drawn.items()).replace("</", "<\\/")
    room = files("fedfloor.report")
    library, script = (room.joinpath(name).read_text(encoding="utf-8") for name in (LIBRARY, "page.js"))
    data = f'<script type="application/json" id="figures">{{{body}}}</script>'
    return f"{data}\n<script>{library}</script>\n<script>{script}</script>"


def _header(title: str, found: Sequence[Group], sentences: Sequence[str]) -> str:
    parks = list(dict.fromkeys(words.park_words(run.park) for run in words.members(found)))
    told = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    about = escape("; ".join(parks))
    return f'<header><h1>{escape(title)}</h1><p class="soft">{about}</p><div class="story">{told}</div></header>'


def _contents(main: str) -> str:
    """Return links to the sections."""
    links = re.findall(r'<section id="(s-[a-z]+)"><h2>(.*?)</h2>', main)
    return "<nav>" + "".join(f'<a href="#{name}">{heading}</a>' for name, heading in links) + "</nav>"
