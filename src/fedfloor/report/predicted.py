"""Predicted numbers beside the true ones: a picture, errors by range, and how often learnt levels hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from fedfloor.names import count
from fedfloor.report.groups import Group, spoken
from fedfloor.report.html import Drawn, chart, folded, scroll, section, table
from fedfloor.report.looks import COLOURS, GREY, SYMBOLS, faint, layout
from fedfloor.report.numbers import listed
from fedfloor.report.records import ErrorsOfRecord, ErrorsRecord

FIGURES: dict[str, Callable[[ErrorsOfRecord], float]] = {
    "RMSE": lambda one: one.rmse,
    "mean absolute error": lambda one: one.mae,
    "mean error": lambda one: one.bias,
}
FEW = 300  # points of which each has its interval
AT_ONCE = 2  # methods that are drawn before a click on the others' names


def errors_section(found: Sequence[Group], drawn: Drawn) -> str:
    """Return predicted numbers beside the true ones, or nothing where no run predicts any."""
    known = [(group, every) for group in found if (every := _errors(group))]
    if not known:
        return ""
    first = known[0][1][0]
    body = chart("predicted", scatter(known), _caption(known), drawn)
    body += "<h3>Error by range</h3>" + _by_name(known, [one.name for one in first.ranges], "ranges", first)
    if first.levels:
        body += "<h3>How often the learnt levels hold</h3>" + _calibration(known, first)
    if len(first.targets) > 1:
        names = [one.name for one in first.targets]
        body += folded(f"All {len(names)} targets", scroll(_by_name(known, names, "targets", first), "all targets"))
    return section("Predicted against true", body, "predicted")


def _errors(group: Group) -> list[ErrorsRecord]:
    return [run.evaluation.errors for run in group.runs if run.evaluation and run.evaluation.errors]


def scatter(known: Sequence[tuple[Group, Sequence[ErrorsRecord]]]) -> Any:
    """Draw the samples of each group's first seed: the true number to the right, the predicted one upwards."""
    import plotly.graph_objects as go

    every = [
        value for _, errors in known for one in (errors[0].points.true, errors[0].points.predicted) for value in one
    ]
    ends = [min(every), max(every)]
    line = {"color": GREY, "width": 1.3, "dash": "dot"}
    traces = [go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip")]
    for i, (group, errors) in enumerate(known):
        points, colour = errors[0].points, COLOURS[i % len(COLOURS)]
        marker = {"size": 6, "color": faint(colour, 0.7), "symbol": SYMBOLS[i % len(SYMBOLS)], "line": {"width": 0}}
        own: dict[str, Any] = {"name": spoken(group.label), "mode": "markers", "marker": marker}
        if i >= AT_ONCE:
            own["visible"] = "legendonly"
        if points.low and len(points.true) <= FEW:
            up = [high - value for high, value in zip(points.high, points.predicted, strict=True)]
            down = [value - low for low, value in zip(points.low, points.predicted, strict=True)]
            bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
            own["error_y"] = bars | {"thickness": 1, "width": 0, "color": faint(colour, 0.35)}
        called = group.runs[0].park.names
        names = [called.site("device", number) for number in points.device] or [""] * len(points.true)
        tip = "%{text}: %{y:.4g} for %{x:.4g}<extra>%{fullData.name}</extra>"
        traces.append(go.Scatter(x=points.true, y=points.predicted, text=names, hovertemplate=tip, **own))
    figure = go.Figure(traces)
    first = known[0][1][0]
    what = first.targets[0].name + (f" ({first.unit})" if first.unit else "")
    figure.update_layout(**layout(460) | {"showlegend": len(known) > 1}, hovermode="closest")
    figure.update_layout(xaxis_title_text=f"true {what}", yaxis_title_text=f"predicted {what}")
    return figure


def _caption(known: Sequence[tuple[Group, Sequence[ErrorsRecord]]]) -> str:
    group, errors = known[0]
    first, points = errors[0], len(errors[0].points.true)
    some = "" if points == first.samples else f" of {first.samples:,}, evenly over the true values"
    capped = "" if first.cap is None else f" True values above {first.cap:g} count as it."
    several = "" if len(first.targets) == 1 else f" Drawn is '{first.targets[0].name}'."
    seeds = "" if len(group.runs) == 1 else f", seed {group.runs[0].seed}"
    bars = ""
    if first.levels:
        bars = f" Intervals lie between the levels {first.levels[0]:g} and {first.levels[-1]:g}."
        bars = bars if points <= FEW else ""
    hidden = "" if len(known) <= AT_ONCE else " A click on a name shows its method or hides it."
    return (
        f"The last round's model{seeds}: {count(points, 'sample')}{some}. Predictions on the dotted line are right, "
        f"those above it too high.{capped}{bars}{several}{hidden}"
    )


def _by_name(
    known: Sequence[tuple[Group, Sequence[ErrorsRecord]]], names: Sequence[str], part: str, first: ErrorsRecord
) -> str:
    """Return a table of errors by the names of ranges or of targets; means over the seeds."""
    head = ["range" if part == "ranges" else "target", "samples"]
    if len(known) > 1:
        head += [f"{spoken(group.label)}: RMSE (mean error)" for group, _ in known]
    else:
        head += [*FIGURES, *(["inside the interval"] if first.levels else [])]
    rows = []
    for name in names:
        cells = []
        for _, errors in known:
            mine = [one for every in errors for one in getattr(every, part) if one.name == name]
            values = [_number([read(one) for one in mine]) for read in FIGURES.values()]
            if len(known) > 1:
                cells.append(f"{values[0]} ({values[-1]})")
                continue
            cells += [*values, *([_percent([one.inside or 0.0 for one in mine])] if first.levels else [])]
        many = next((one.samples for one in getattr(first, part) if one.name == name), 0)
        rows.append([name, f"{many:,}", *cells])
    unit = f" in {first.unit}" if first.unit else ""
    several = "; means over the seeds" if any(len(errors) > 1 for _, errors in known) else ""
    return table(f"Errors{unit}: predicted − true{several}.", head, rows)


def _calibration(known: Sequence[tuple[Group, Sequence[ErrorsRecord]]], first: ErrorsRecord) -> str:
    """Return which share of the true numbers is not above each learnt level."""
    rows = []
    for at, level in enumerate(first.levels):
        shares = [_percent([every.targets[0].below[at] for every in errors]) for _, errors in known]
        rows.append([f"{100 * level:g} %", *shares])
    inside = [_percent([every.targets[0].inside or 0.0 for every in errors]) for _, errors in known]
    rows.append([f"{100 * (first.levels[-1] - first.levels[0]):g} % between", *inside])
    head = [
        "level",
        *[f"not above it, {spoken(group.label)}" if len(known) > 1 else "not above it" for group, _ in known],
    ]
    wide = listed([f"{100 * level:g} %" for level in first.levels])
    note = f"The share of true values that are not above the predicted levels {wide}: alike where they are calibrated."
    return table(note, head, rows)


def _number(values: Sequence[float]) -> str:
    return f"{mean(values):.4g}".replace("-", "−") if values else "–"


def _percent(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f} %" if values else "–"
