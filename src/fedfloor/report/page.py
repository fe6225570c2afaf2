"""The report: a self-contained HTML page, which loads no other file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedfloor.base.templates import render as fill
from fedfloor.base.version import __version__
from fedfloor.report import lives, personal, recalibrated, sections
from fedfloor.report.devices import device_section
from fedfloor.report.differs import differs_section
from fedfloor.report.front import front, ordered, title
from fedfloor.report.groups import Compared, check_same_test, groups
from fedfloor.report.ledger import RecordedRun, collect
from fedfloor.report.story import MOST, Paragraph, paragraphs
from fedfloor.report.table import Budget, natural_target

# Nothing may be fetched, as a report must also open years later and without internet access.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
)
LIBRARY = "plotly-basic.min.js"  # plotly.js-basic-dist-min 4.1.1 from npm, as published: scatter, bar and pie charts
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%233b82f6' "
    "d='M1 15V7l5 3V7l5 3V3h4v12z'/%3E%3C/svg%3E"
)


def write(
    paths: Iterable[Path], out: Path, target: float | None = None, budget: Budget | None = None,
    against: str | None = None,
) -> Path:  # fmt: skip
    """Write the report of run folders as a self-contained HTML page, and return ``out``.

    Args:
        target: the value of the headline for the comparison of rounds and costs; default: the best rounded value.
        budget: an amount of cost at which the methods are also compared.
        against: the method that the others are compared with; default: each with each.

    Raises:
        SettingError: a path is not a run folder, a file in it is damaged, the runs have no price for the budget, or no
            method is called ``against``.
    """
    page = render(collect(paths), target, budget, against)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return out


def render(
    runs: Sequence[RecordedRun], target: float | None = None, budget: Budget | None = None, against: str | None = None
) -> str:  # fmt: skip
    """Return the report on runs as HTML; arguments as :func:`write`."""
    check_same_test(runs)
    runs = ordered(runs)
    compared = groups(runs)
    hindsight = target is None
    target = natural_target(runs) if target is None else target
    drawn: dict[str, Any] = {}
    main = Markup("").join(
        (
            sections.findings_section(compared),
            sections.summary_section(runs, target, hindsight=hindsight, against=against),
            sections.decision_section(compared),
            sections.budget_section(runs, budget, against),
            sections.curve_sections(compared, target, drawn),
            sections.cost_section(compared, target, drawn),
            sections.errors_section(compared, drawn),
            sections.control_section(compared, drawn),
            sections.promise_section(compared),
            _recalibrated(compared),
            lives.section_of(compared, drawn),
            device_section(compared, drawn),
            personal.section_of(compared, drawn),
            sections.cohort_section(compared),
            sections.factory_section(compared, drawn),
            sections.class_section(compared, drawn),
            sections.confusion_section(compared),
            sections.holdings_section(compared, drawn),
            sections.plan_section(compared),
            sections.timeline_section(compared, drawn),
            differs_section(compared),
            sections.config_section(compared),
        )
    )
    told = paragraphs(compared, target, hindsight=hindsight, against=against)
    told += [Paragraph(personal.story(compared, group)) for group in personal.known(compared)[:MOST]]
    if budget is not None:
        told.insert(1, Paragraph(sections.budget_story(runs, budget)))
    main = sections.words_section(told) + main
    contents = re.findall(r'<section id="(s-[a-z]+)"><h2>(.*?)</h2>', main)
    return fill(
        "fedfloor.report", "page.html", title=title(compared), front=front(compared), main=main, policy=POLICY,
        contents=[(name, Markup(heading)) for name, heading in contents], icon=ICON, version=__version__,
        figures=_json(drawn), style=_file("page.css"), library=_file(LIBRARY), script=_file("page.js"),
    )  # fmt: skip


def _recalibrated(compared: Compared) -> str:
    """Return the shares before and after of recalibrated models; "" without any."""
    rows = recalibrated.rows(compared)
    body = sections.table(recalibrated.NOTE, recalibrated.HEAD, rows)
    return sections.section("Before and after the recalibration", body, "recalibrated") if rows else ""


def _file(name: str) -> Markup:
    return Markup(files("fedfloor.report").joinpath(name).read_text(encoding="utf-8"))


def _json(drawn: dict[str, Any]) -> Markup:
    # "</" in a label would end the script element
    return Markup(
        "{" + ",".join(f'"{name}":{figure.to_json()}' for name, figure in drawn.items()).replace("</", "<\\/") + "}"
    )
