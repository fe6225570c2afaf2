"""The charts of accuracy per class, per factory and per device: a line of its own for each name, on any screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedfloor.figures import ACCURACY, Figure
from fedfloor.report.evaluation import by_place
from fedfloor.report.groups import Group, figures_of, half_width, last_lines, placed, spoken
from fedfloor.report.looks import COLOURS, GREY, HATCHES, SYMBOLS, faint, layout

Samples = list[list[float]]  # the seeds' values, a list for each name


def class_figure(found: Sequence[Group]) -> Any | None:
    """Draw the accuracy per class in the last evaluated round, a mark per experiment; None if there is none."""
    import plotly.graph_objects as go

    measured = [(i, group, samples) for i, group in enumerate(found) if (samples := class_samples(group))]
    if not measured:
        return None
    names = max((group.runs[0].park.classes for _, group, _ in measured), key=len)
    traces = []
    for place, (i, group, samples) in enumerate(measured):
        colour = COLOURS[i % len(COLOURS)]
        shift = (place - (len(measured) - 1) / 2) * 0.62 / len(measured)
        known = [(row, sample) for row, sample in enumerate(samples) if sample]
        means = [sum(sample) / len(sample) for _, sample in known]
        marker = {"color": colour, "symbol": SYMBOLS[i % len(SYMBOLS)], "size": 9}
        own = {"mode": "markers", "name": spoken(group.label), "marker": marker}
        own |= {"error_x": _whiskers([sample for _, sample in known], colour)}
        tips = {"text": [names[row] for row, _ in known], "hovertemplate": "%{text}: %{x:.4f}"}
        traces.append(go.Scatter(x=means, y=[row + shift for row, _ in known], **own, **tips))
    figure = go.Figure(traces)
    height = 110 + len(names) * max(22, 11 * len(measured))
    figure.update_layout(**layout(height) | _legend(height, shown=len(found) > 1))
    figure.update_layout(xaxis_title_text="accuracy (share right)")
    figure.update_xaxes(range=[-0.02, 1.03], side="bottom")
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=list(names), range=[len(names) - 0.4, -0.6])
    return figure


def class_samples(group: Group) -> Samples:
    """Return the accuracies of each class in the last round that every seed evaluated."""
    columns = [line.by_class for line in last_lines(group, lambda line: line.by_class) if line.by_class is not None]
    return [[value for value in column if value is not None] for column in zip(*columns, strict=False)]


def factory_figure(found: Sequence[Group]) -> Any | None:
    """Draw the final models' headline per factory, a bar per experiment; None if no run has an evaluation of it."""
    import plotly.graph_objects as go

    of = placed(run for group in found for run in group.runs)
    measured = [
        (i, group, by_place(finals, lambda one: one.factories, of))
        for i, group in enumerate(found)
        if (finals := [r.evaluation for r in group.runs if r.evaluation])
    ]
    called = found[0].runs[0].park.names
    names = {
        place[0]: place[1] or called.site("factory", place[0])
        for _, _, places in measured for place, values in places.items() if values
    }  # fmt: skip
    if not names:
        return None
    bars = []
    for i, group, places in measured:
        samples = {place[0]: values for place, values in places.items() if values}
        colour = COLOURS[i % len(COLOURS)]
        own = {"name": spoken(group.label), "orientation": "h", "marker": _hatched(colour, i)}
        own |= {"error_x": _whiskers(list(samples.values()), GREY, of), "hovertemplate": "%{y}: %{x:.4f}"}
        means = [sum(values) / len(values) for values in samples.values()]
        bars.append(go.Bar(x=means, y=[names[number] for number in samples], **own))
    figure = go.Figure(bars)
    height = 110 + len(names) * (12 + 15 * len(bars))
    figure.update_layout(**layout(height) | _legend(height, shown=len(found) > 1), barmode="group", bargap=0.25)
    figure.update_layout(xaxis_title_text=_axis(found, of))
    order = [names[number] for number in sorted(names)]
    figure.update_xaxes(**{"range": [0, 1.03]} if of.share else {"rangemode": "tozero"})
    figure.update_yaxes(
        type="category", ticksuffix=" ", categoryorder="array", categoryarray=order, autorange="reversed", title=""
    )
    return figure


def device_figure(found: Sequence[Group]) -> Any | None:
    """Draw, per experiment, the headline of the 10, 50 and 90 % device in the last evaluated round; None without."""
    import plotly.graph_objects as go

    traces, rows = [], 0
    of = placed(run for group in found for run in group.runs)
    for i, group in enumerate(found):
        lines = last_lines(group, lambda line: line.spread(of))
        spreads = [spread for line in lines if (spread := line.spread(of))]
        if not spreads:
            continue
        traces += [*_dots(go, group, i, rows, of), _spread(go, group, spreads, i, rows)]
        rows += 1
    if not traces:
        return None
    figure = go.Figure(traces)
    figure.update_layout(**layout(110 + 54 * rows), xaxis_title_text=_axis(found, of))
    labels = {trace.y[0]: trace.name for trace in traces if trace.mode == "lines+markers"}
    figure.update_yaxes(tickvals=list(labels), ticktext=list(labels.values()), range=[rows - 0.45, -0.6])
    return figure


def _axis(found: Sequence[Group], of: Figure) -> str:
    expected = figures_of(run for group in found for run in group.runs) == "expected"
    return f"{'expected ' if expected else ''}{of.axis}"


def _spread(go: Any, group: Group, spreads: Sequence[Any], i: int, row: int) -> Any:
    picked = ([s.p10 for s in spreads], [s.p50 for s in spreads], [s.p90 for s in spreads])
    ends = [sum(column) / len(column) for column in picked]
    colour = COLOURS[i % len(COLOURS)]
    marker = {"symbol": ["line-ns", "diamond", "line-ns"], "size": [16, 12, 16], "color": colour, "opacity": 1}
    marker["line"] = {"width": [3, 0, 3], "color": colour}
    own = {"mode": "lines+markers", "line": {"color": colour, "width": 5}, "marker": marker}
    words = [f"{name} % of devices are below" for name in (10, 50, 90)]
    tips = {"text": words, "hovertemplate": "%{x:.4f}: %{text}<extra>%{fullData.name}</extra>"}
    return go.Scatter(x=ends, y=[row] * 3, name=spoken(group.label), showlegend=False, **own, **tips)


def _dots(go: Any, group: Group, i: int, row: int, of: Figure) -> list[Any]:
    """Return the single devices as dots below their bar, where the final models were evaluated device by device."""
    finals = [run.evaluation for run in group.runs if run.evaluation]
    places = {place: values for place, values in by_place(finals, lambda one: one.devices, of).items() if values}
    if not places:
        return []
    means = [sum(values) / len(values) for values in places.values()]
    called = group.runs[0].park.names
    names = [name or called.site("device", number) for number, name, _ in places]
    marker = {"size": 7, "color": faint(COLOURS[i % len(COLOURS)], 0.55), "symbol": "circle", "line": {"width": 0}}
    tips = {"text": names, "hovertemplate": "%{text}: %{x:.4f}<extra></extra>"}
    return [go.Scatter(x=means, y=[row + 0.24] * len(means), mode="markers", marker=marker, showlegend=False, **tips)]


def _whiskers(samples: Samples, colour: str, of: Figure = ACCURACY) -> dict[str, Any]:
    means = [sum(sample) / len(sample) for sample in samples]
    widths = [half_width(sample) or 0.0 for sample in samples]
    most = 1.0 if of.share else math.inf
    up = [min(width, most - mean) for mean, width in zip(means, widths, strict=True)]
    down = [min(width, max(mean, 0.0)) for mean, width in zip(means, widths, strict=True)]
    shown = {"visible": any(widths), "thickness": 1.2, "width": 3, "color": colour}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **shown}


def _hatched(colour: str, i: int) -> dict[str, Any]:
    pattern = {"shape": HATCHES[i % len(HATCHES)], "fgcolor": colour, "bgcolor": faint(colour, 0.3), "size": 6}
    flat = colour if pattern["shape"] else faint(colour, 0.5)
    return {"color": flat, "line": {"color": colour, "width": 1}, "pattern": pattern if pattern["shape"] else {}}


def _legend(height: int, *, shown: bool) -> dict[str, Any]:
    """Return a legend at a fixed distance above the drawing, however tall that is."""
    return {"showlegend": shown, "legend": layout()["legend"] | {"y": 1 + 8 / (height - 74)}}
