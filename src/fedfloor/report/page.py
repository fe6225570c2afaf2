"""The report: one page that carries everything it shows and loads nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedfloor._version import __version__
from fedfloor.plan.draw import svg, tree
from fedfloor.report import figures, words
from fedfloor.report.groups import Group, groups
from fedfloor.report.ledger import Park, Run, collect
from fedfloor.report.table import natural_target, paired, summary

# Nothing may be fetched: a report is opened years later, and inside networks that have no way out.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
)
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%233b82f6' "
    "d='M1 15V7l5 3V7l5 3V3h4v12z'/%3E%3C/svg%3E"
)


def write(paths: Iterable[Path], out: Path, target: float | None = None) -> Path:
    """Write the report of run folders as one self-contained HTML page.

    Args:
        paths: run folders, or folders that contain run folders.
        out: the page; replaced as a whole, so that it is never half written.
        target: the accuracy whose first round is compared; by default the highest round figure that was reached.

    Returns:
        ``out``.

    Raises:
        SettingError: a path is no run folder, or a file in it is damaged.
    """
    page = render(collect(paths), target)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    return out


def render(runs: Sequence[Run], target: float | None = None) -> str:
    """Return the report's HTML."""
    found = groups(runs)
    hindsight = target is None
    target = natural_target(runs) if target is None else target
    drawn: dict[str, Any] = {}
    sections = [
        _summary_section(runs, target, hindsight=hindsight),
        '<div class="pair">' + _curve_sections(found, target, drawn) + "</div>",
        _device_section(found, drawn),
        _class_section(found, drawn),
        _holdings_section(found, drawn),
        _plan_section(found),
        _config_section(runs),
    ]
    names = list(dict.fromkeys(run.name for run in runs))
    title = names[0] if len(names) == 1 else f"{len(names)} experiments"
    return _document(title, _header(title, runs, target), "".join(sections), _scripts(drawn))


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
    from plotly.offline import get_plotlyjs

    # "</" would end the script element in the middle of a label
    body = ",".join(f'"{name}":{figure.to_json()}' for name, figure in drawn.items()).replace("</", "<\\/")
    script = files("fedfloor.report").joinpath("page.js").read_text(encoding="utf-8")
    data = f'<script type="application/json" id="figures">{{{body}}}</script>'
    return f"{data}\n<script>{get_plotlyjs()}</script>\n<script>{script}</script>"


def _header(title: str, runs: Sequence[Run], target: float | None) -> str:
    parks = list(dict.fromkeys(words.park_words(run.park) for run in runs))
    verdict = words.verdict(summary(runs, target))
    return (
        f'<header><h1>{escape(title)}</h1><p class="soft">{escape("; ".join(parks))}</p>'
        f'<p class="verdict">{escape(verdict)}</p></header>'
    )


def _section(heading: str, body: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<section{attribute}><h2>{escape(heading)}</h2>{body}</section>"


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    body = f"<caption><span>{escape(caption)}</span></caption><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table"><table>{body}</table></div>'


def _summary_section(runs: Sequence[Run], target: float | None, *, hindsight: bool) -> str:
    rows = summary(runs, target)
    caption = words.summary_caption(rows, hindsight=hindsight)
    body = _table(caption, words.summary_head(target), [words.summary_cells(row) for row in rows])
    pairs = paired(runs)
    if pairs:
        head = ["methods", "common seeds", "difference in accuracy"]
        body += "<h3>Method against method</h3>" + _table(
            words.PAIRED, head, [words.paired_cells(row) for row in pairs]
        )
    return _section("Summary", body)


def _chart(name: str, figure: Any | None, caption: str, drawn: dict[str, Any], min_width: int = 0) -> str:
    if figure is None:
        return '<p class="soft">These runs did not measure it.</p>'
    drawn[name] = figure
    wide = f' style="min-width:{min_width}px"' if min_width else ""
    height = f"min-height:{figure.layout.height}px"
    chart = f'<div class="chart" id="{name}" style="{height}"></div>'
    inner = f'<div class="scroll" tabindex="0" role="region" aria-label="chart"><div{wide}>{chart}</div></div>'
    note = "<noscript>The charts need JavaScript, which this page carries.</noscript>"
    return f"<figure>{inner if min_width else chart}{note}<figcaption>{escape(caption)}</figcaption></figure>"


def _curve_sections(found: Sequence[Group], target: float | None, drawn: dict[str, Any]) -> str:
    how = words.curve_caption(any(len(group.runs) > 1 for group in found))
    upper = _chart("accuracy", figures.accuracy_figure(found, target), words.accuracy_caption(how, target), drawn)
    lower = _chart("loss", figures.loss_figure(found), "Mean loss of the global model on the test data. " + how, drawn)
    return _section("Accuracy against rounds", upper) + _section("Loss against rounds", lower)


def _device_section(found: Sequence[Group], drawn: dict[str, Any]) -> str:
    return _section("Accuracy per device", _chart("devices", figures.device_figure(found), words.DEVICES, drawn))


def _class_section(found: Sequence[Group], drawn: dict[str, Any]) -> str:
    bars = len(found) * max(len(group.runs[0].park.classes) for group in found)
    caption = words.CLASSES + (words.WHISKERS if any(len(group.runs) > 1 for group in found) else "")
    chart = _chart("classes", figures.class_figure(found), caption, drawn, 7 * bars if bars > 40 else 0)
    return _section("Accuracy per class", chart)


def _holdings_section(found: Sequence[Group], drawn: dict[str, Any]) -> str:
    firsts: dict[Park, Run] = {}
    for group in found:
        firsts.setdefault(group.runs[0].park, group.runs[0])
    charts = []
    for i, (park, run) in enumerate(firsts.items()):
        columns = min(len(park.devices), figures.MOST_DEVICES)
        width = int(80 + max(8.5 * columns, min(18 * columns, 1000)))  # up to 120 columns fit a wide screen
        caption = words.holdings_caption(run, columns)
        charts.append(_chart(f"holdings-{i}", figures.holdings_figure(park), caption, drawn, width))
    return _section("Who holds which classes", "".join(charts))


def _plan_section(found: Sequence[Group]) -> str:
    parts = []
    for group in found:
        run = group.runs[0]
        parts.append(f"<h3>{escape(group.label)}</h3>")
        if run.plan is None:
            parts.append('<p class="soft">This run folder has no plan.json.</p>')
            continue
        factories = [device.factory for device in run.park.devices]
        picture = svg(run.plan, factories.__getitem__)
        text = f"<details><summary>The same as text</summary><pre>{escape(tree(run.plan))}</pre></details>"
        scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="plan">{picture}</div>'
        caption = f"<figcaption>{escape(words.plan_caption(run))}</figcaption>"
        parts.append(f"<figure>{scroll}{caption}{text}</figure>")
    return _section("A round as a plan", "".join(parts), "plan")


def _config_section(runs: Sequence[Run]) -> str:
    parts = [
        f"<details><summary>{escape(run.method)}, seed {run.seed} ({escape(run.folder.name)})</summary>"
        f'<pre tabindex="0">{escape(run.config)}</pre></details>'
        for run in runs
    ]
    note = '<p class="soft">What each experiment file came to, with every default filled in, and where it ran.</p>'
    return _section("Resolved configuration", note + "".join(parts))
