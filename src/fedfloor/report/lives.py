"""The report's section on lives: predicted curves beside the observed one, chances to fail, and factors of columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from markupsafe import Markup

from fedfloor.base.names import count
from fedfloor.report.charts import GREY, colour, faint, layout
from fedfloor.report.evaluation_records import FactorRecord, LivesRecord
from fedfloor.report.groups import Compared, Group
from fedfloor.report.sections import chart, section, table, title

MOST = 20  # rows of a table of factors
TIME = "time ratio"
Known = Sequence[tuple[Group, Sequence[LivesRecord]]]


def section_of(compared: Compared, drawn: dict[str, Any]) -> str:
    """Return the section's HTML; "" if no run predicts lives."""
    every = [(group, [final.lives for final in group.finals if final.lives]) for group in compared]
    known = [(group, lives) for group, lives in every if lives]
    if not known:
        return ""
    first = known[0][1][0]
    body = chart("lives", _curves(known), _caption(known), drawn)
    if any(lives[0].groups for _, lives in known):
        body += title("Chances to fail") + _chances(known)
    body += table(
        "", ["lives for testing", "failures", "their median life", "95 % interval"], [_median(first)], "plain"
    )
    return section("How long they live", Markup(body) + Markup("").join(map(_factors, compared)), "lives")


def _factors(group: Group) -> Markup:
    """Return the table of a method's factors, of its first seed; "" for a method without any."""
    known = [(run, run.evaluation.factors) for run in group.runs if run.evaluation and run.evaluation.factors]
    if not known:
        return Markup("")
    run, found = known[0]
    order = sorted(found.rows, key=lambda row: -abs(row.effect) / (row.error or math.inf))
    rows = [_factor(row, scaled=found.scaled) for row in order[:MOST]]
    seed = "" if len(group.runs) == 1 else f", seed {run.seed}"
    effect = "stretches a life, 0.9 to nine tenths" if found.ratio == TIME else "multiplies the risk at every age"
    caption = f"{group.label.shown}{seed}: the factor by which a step of a column {effect}, with all others the same"
    if any(row.p is not None for row in order):
        caption += "; intervals of 95 % and p by the summed information (Wald)"
    else:
        caption += "; without intervals, as several samples are of one machine"
    caption += f"; weights are pulled to 0 by ridge = {found.ridge:g}" if found.ridge else ""
    caption += f". The {MOST} clearest of {len(order)}." if len(order) > MOST else "."
    heading = title("What shortens lives, and what lengthens them")
    body = heading + table(caption, ["column", "step", found.ratio, "95 % interval", "p"], rows)
    if not found.groups:
        return body
    tests = [[one.name, str(one.values), f"{one.statistic:.4g}", str(one.freedom), _p(one.p)] for one in found.groups]
    told = "The log-rank test that machines of all values live equally long, other columns left aside."
    return body + table(told, ["column", "values", "χ²", "degrees of freedom", "p"], tests)


def _factor(row: FactorRecord, *, scaled: bool) -> list[str]:
    step = f"instead of {row.than}" if row.than else f"+{row.step:g}{' (as normalised)' if scaled else ''}"
    interval = "–" if row.low is None or row.high is None else f"{row.low:.3g} to {row.high:.3g}"
    return [row.name, step, f"{row.ratio:.3g}", interval, _p(row.p)]


def _p(value: float | None) -> str:
    return "–" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _caption(known: Known) -> str:
    first = known[0][1][0]
    seeds = "" if len(known[0][0].runs) == 1 else f", seed {known[0][0].runs[0].seed}"
    return (
        f"The share of machines that live longer{seeds}: the grey steps are {count(first.samples, 'life', 'lives')} "
        f"for testing as observed, of which {first.failures:,} ended (Kaplan–Meier, with intervals of 95 %); the other "
        "lines are the mean of the predicted curves."
    )


def _curves(known: Known) -> Any:
    import plotly.graph_objects as go

    first = known[0][1][0]
    grid = [0.0, *first.grid]
    grey = GREY
    step: dict[str, Any] = {"mode": "lines", "line": {"shape": "hv", "color": grey, "width": 2}}
    edge = {"mode": "lines", "line": {"shape": "hv", "width": 0}, "showlegend": False, "hoverinfo": "skip"}
    traces = [
        {"x": grid, "y": [1.0, *first.low], **edge},
        {"x": grid, "y": [1.0, *first.high], **edge, "fill": "tonexty", "fillcolor": faint(grey, 0.2)},
        {"x": grid, "y": [1.0, *first.observed], "name": "observed", **step},
    ]
    for i, (group, lives) in enumerate(known):
        own = lives[0]
        name = group.label.shown if len(known) > 1 else "predicted"
        traces.append({"x": [0.0, *own.grid], "y": [1.0, *own.predicted], "name": name, "mode": "lines",
                       "line": {"color": colour(i), "width": 2, "shape": "hv" if own.steps else "linear"}})  # fmt: skip
    figure = go.Figure(traces)
    figure.update_layout(**layout(380))
    unit = f" ({first.unit})" if first.unit else ""
    figure.update_layout(
        showlegend=True, xaxis_title_text=f"age{unit}", yaxis_title_text="share still running", yaxis_range=[0, 1.02]
    )
    return figure


def _chances(known: Known) -> str:
    """Return a table of predicted and observed chances to fail within the horizon, means over the seeds."""
    first = known[0][1][0]
    most = max(len(lives[0].groups) for _, lives in known)
    rows = []
    for place in range(most):
        cells = []
        for _, lives in known:
            own = [each.groups[place] for each in lives if place < len(each.groups)]
            both = (mean(g.predicted for g in own), mean(g.observed for g in own)) if own else ()
            cells += [f"{100 * share:.1f} %" for share in both] or ["–", "–"]
        rows.append([["lowest risk", "highest risk"][place > 0] if place in (0, most - 1) else str(place + 1), *cells])
    names = [group.label.shown + ": " if len(known) > 1 else "" for group, _ in known]
    head = ["group", *(f"{name}{kind}" for name in names for kind in ("predicted", "observed"))]
    unit = f" {first.unit}" if first.unit else ""
    return table(
        f"Chance to fail within {first.within:g}{unit} from the age at which the observation of a life begins, 0 for a "
        "new machine (fedfloor predict counts from the present age), or of recordings from each sample; in groups of "
        "equal size by the predicted chance.",
        head,
        rows,
    )


def _median(first: LivesRecord) -> list[str]:
    median, low, high = ("beyond the data" if value is None else f"{value:.4g}" for value in first.median)
    unit = f" {first.unit}" if first.unit else ""
    return [f"{first.samples:,}", f"{first.failures:,}", f"{median}{unit}", f"{low} to {high}{unit}"]
