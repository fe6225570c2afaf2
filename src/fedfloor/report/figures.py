"""The report's charts, as Plotly figures; Plotly is imported where it is used.

Colours of text and grid are left to the page, which follows the reader's light or dark scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedfloor.report.groups import Group, accuracy, curve, half_width, last_lines, loss, values
from fedfloor.report.ledger import Park, Round

COLOURS = ("#3b82f6", "#e8710a", "#16a34a", "#a855f7", "#db2777", "#0d9488", "#b7791f", "#64748b")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
MOST_DEVICES = 120
GREY = "#808a96"  # seen on white and on black
SHADE = "rgba(128,138,150,0.10)"


def accuracy_figure(found: Sequence[Group], target: float | None = None) -> Any | None:
    """Draw accuracy against rounds; None if nothing was evaluated.

    Args:
        found: the runs, grouped by experiment.
        target: an accuracy to mark with a line.
    """
    figure = _curves(found, accuracy, "accuracy")
    if figure is not None and target is not None:
        figure.add_hline(y=target, line={"color": GREY, "width": 1, "dash": "dot"})
    return figure


def loss_figure(found: Sequence[Group]) -> Any | None:
    """Draw the loss on the test data against rounds; None if nothing was evaluated."""
    return _curves(found, loss, "loss")


def _curves(found: Sequence[Group], what: Callable[[Round], float | None], name: str) -> Any | None:
    import plotly.graph_objects as go

    traces: list[Any] = []
    for i, group in enumerate(found):
        traces += _group_traces(go, group, what, i)
    if not traces:
        return None
    figure = go.Figure(traces)
    figure.update_layout(**_layout(), xaxis_title="round", yaxis_title=name, hovermode="x unified")
    longest = max(group.runs[0].rounds[-1].number for group in found)
    figure.update_xaxes(tickformat="d", **({"dtick": 1} if longest <= 10 else {}))
    return figure


def _group_traces(go: Any, group: Group, what: Callable[[Round], float | None], i: int) -> list[Any]:
    mean = curve(group, what)
    colour = COLOURS[i % len(COLOURS)]
    line = {"color": colour, "width": 2.4, "dash": DASHES[i // len(COLOURS) % len(DASHES)]}
    traces = []
    if mean.half_width is not None and mean.rounds:
        up = [m + h for m, h in zip(mean.mean, mean.half_width, strict=True)]
        down = [m - h for m, h in zip(mean.mean, mean.half_width, strict=True)]
        around, back = [*mean.rounds, *reversed(mean.rounds)], [*up, *reversed(down)]
        band = {
            "fill": "toself",
            "fillcolor": _faint(colour),
            "line": {"width": 0},
            "mode": "lines",
            "hoverinfo": "skip",
        }
        traces.append(go.Scatter(x=around, y=back, legendgroup=group.label, showlegend=False, **band))
        traces += [_seed_trace(go, group, values(run, what), colour) for run in group.runs]
    if mean.rounds:
        mode = "lines+markers" if len(mean.rounds) <= 40 else "lines"
        marker = {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 6, "color": colour}
        own = {"name": group.label, "legendgroup": group.label, "mode": mode, "line": line, "marker": marker}
        traces.append(go.Scatter(x=list(mean.rounds), y=list(mean.mean), hovertemplate="%{y:.4f}", **own))
    return traces


def _seed_trace(go: Any, group: Group, series: dict[int, float], colour: str) -> Any:
    line = {"color": colour, "width": 0.8}
    quiet = {"showlegend": False, "hoverinfo": "skip", "opacity": 0.55, "mode": "lines", "legendgroup": group.label}
    return go.Scatter(x=list(series), y=list(series.values()), line=line, **quiet)


def holdings_figure(park: Park) -> Any:
    """Draw who holds which classes: a bubble per device and class, its area the number of samples."""
    import plotly.graph_objects as go

    order = sorted(range(len(park.devices)), key=lambda k: (park.devices[k].factory, k))[:MOST_DEVICES]
    cells = [
        (place, label, count, k)
        for place, k in enumerate(order)
        for label, count in enumerate(park.devices[k].counts)
        if count
    ]
    largest = max((count for _, _, count, _ in cells), default=1)
    factories = [park.devices[k].factory for k in order]
    marker = {
        "size": [count for _, _, count, _ in cells],
        "sizemode": "area",
        "sizeref": 2 * largest / bubble_px(park) ** 2,
        "sizemin": 1.5,
        "color": [COLOURS[factories[place] % len(COLOURS)] for place, _, _, _ in cells],
        "line": {"width": 0},
        "opacity": 0.85,
    }
    words = [f"device {k}, class {park.classes[label]}: {count} samples" for _, label, count, k in cells]
    xy = {"x": [place for place, *_ in cells], "y": [label for _, label, *_ in cells]}
    figure = go.Figure(
        go.Scatter(**xy, mode="markers", marker=marker, text=words, hovertemplate="%{text}<extra></extra>")
    )
    height = int(min(1500, max(300, 130 + len(park.classes) * (30 if len(park.classes) <= 20 else 17))))
    figure.update_layout(**_layout(height) | {"margin": {"l": 50, "r": 16, "t": 40, "b": 50}, "showlegend": False})
    every = max(1, len(order) // 40)
    ticks = list(range(0, len(order), every))
    axis = {"title": "device", "range": [-0.6, len(order) - 0.4], "tickvals": ticks, "tickangle": 0, "showgrid": False}
    figure.update_xaxes(**axis, ticktext=[str(order[i]) for i in ticks])
    classes = {"tickvals": list(range(len(park.classes))), "ticktext": list(park.classes)}
    figure.update_yaxes(title="class", **classes, range=[-0.7, len(park.classes) - 0.3])
    _mark_factories(figure, factories)
    return figure


def bubble_px(park: Park) -> float:
    """Return the widest bubble's diameter in pixels: as wide as a device's column where that is narrow."""
    shown = max(1, min(len(park.devices), MOST_DEVICES))
    return float(min(26, max(7, 900 / shown), max(10, 17 if len(park.classes) > 20 else 26)))


def _mark_factories(figure: Any, factories: Sequence[int]) -> None:
    """Shade every second factory and name them above, as far as there is room for names."""
    start = 0
    named = len(set(factories)) <= 12
    for i in range(1, len(factories) + 1):
        if i < len(factories) and factories[i] == factories[start]:
            continue
        if factories[start] % 2 == 0:
            figure.add_vrect(x0=start - 0.5, x1=i - 0.5, fillcolor=SHADE, line_width=0, layer="below")
        if named:
            name = f"factory {factories[start]}" if len(set(factories)) <= 5 else f"F{factories[start]}"
            place = {"x": (start + i - 1) / 2, "y": 1.0, "yref": "paper", "yanchor": "bottom", "showarrow": False}
            figure.add_annotation(text=name, font={"size": 11}, **place)
        start = i


def class_figure(found: Sequence[Group]) -> Any | None:
    """Draw the accuracy per class in the last evaluated round, a bar per experiment; None if there is none."""
    import plotly.graph_objects as go

    bars = []
    for i, group in enumerate(found):
        columns = [line.by_class for line in last_lines(group, lambda line: line.by_class) if line.by_class is not None]
        samples = [[value for value in column if value is not None] for column in zip(*columns, strict=False)]
        if not samples:
            continue
        means = [sum(sample) / len(sample) if sample else None for sample in samples]
        widths = [half_width(sample) or 0.0 for sample in samples]
        whiskers = {
            "type": "data",
            "array": widths,
            "visible": len(group.runs) > 1,
            "thickness": 1,
            "width": 2,
            "color": GREY,
        }
        own = {"name": group.label, "marker": {"color": COLOURS[i % len(COLOURS)]}, "error_y": whiskers}
        names = list(group.runs[0].park.classes)[: len(means)]
        bars.append(go.Bar(x=names, y=means, hovertemplate="%{y:.4f}", **own))
    if not bars:
        return None
    figure = go.Figure(bars)
    figure.update_layout(**_layout(), barmode="group", bargap=0.25, xaxis_title="class", yaxis_title="accuracy")
    figure.update_xaxes(type="category", tickangle=0)
    figure.update_yaxes(range=[0, 1.02])
    return figure


def device_figure(found: Sequence[Group]) -> Any | None:
    """Draw, per experiment, the accuracy of the 10, 50 and 90 % device in the last evaluated round; None without."""
    import plotly.graph_objects as go

    traces, rows = [], 0
    for i, group in enumerate(found):
        spreads = [line.by_device for line in last_lines(group, lambda line: line.by_device) if line.by_device]
        if not spreads:
            continue
        rows += 1
        picked = [
            [spread.p10 for spread in spreads],
            [spread.p50 for spread in spreads],
            [spread.p90 for spread in spreads],
        ]
        ends = [sum(column) / len(column) for column in picked]
        colour = COLOURS[i % len(COLOURS)]
        marker = {"symbol": ["line-ns", "diamond", "line-ns"], "size": [16, 12, 16], "color": colour, "opacity": 1}
        marker["line"] = {"width": [3, 0, 3], "color": colour}
        own = {"mode": "lines+markers", "line": {"color": colour, "width": 5}, "marker": marker, "name": group.label}
        words = [f"{name} % of devices are below" for name in (10, 50, 90)]
        tips = {"text": words, "hovertemplate": "%{x:.4f}: %{text}<extra>%{fullData.name}</extra>"}
        traces.append(go.Scatter(x=ends, y=[group.label] * 3, showlegend=False, **own, **tips))
    if not traces:
        return None
    figure = go.Figure(traces)
    figure.update_layout(**_layout(130 + 44 * rows), xaxis_title="accuracy on the device")
    figure.update_yaxes(type="category", autorange="reversed")
    return figure


def _layout(height: int = 380) -> dict[str, Any]:
    return {
        "template": "none",
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 24, "b": 50},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": True,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {"automargin": True, "zeroline": False},
        "yaxis": {"automargin": True, "zeroline": False},
    }


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"
