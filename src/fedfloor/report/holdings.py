"""The chart of who holds which classes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from fedfloor.report.ledger import Park
from fedfloor.report.looks import COLOURS, SHADE, layout

MOST_DEVICES = 120


def holdings_figure(park: Park, noun: str = "class") -> Any:
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
    names = park.names
    words = [
        f"{names.site('device', park.devices[k].number)}, {noun} {park.classes[label]}: {count:,} samples"
        for _, label, count, k in cells
    ]
    xy = {"x": [place for place, *_ in cells], "y": [label for _, label, *_ in cells]}
    figure = go.Figure(
        go.Scatter(**xy, mode="markers", marker=marker, text=words, hovertemplate="%{text}<extra></extra>")
    )
    _axes(figure, park, order)
    _mark_factories(figure, park, factories)
    return figure


def _axes(figure: Any, park: Park, order: Sequence[int]) -> None:
    height = int(min(1500, max(300, 130 + len(park.classes) * (30 if len(park.classes) <= 20 else 15))))
    names = park.names
    margin = {"l": 50, "r": 16, "t": 40, "b": 50}
    figure.update_layout(**layout(height) | {"margin": margin, "showlegend": False})
    every = max(1, -(-len(order) // 40))
    ticks = list(range(0, len(order), every))
    axis = {
        "title": "" if names.devices else "device",
        "range": [-0.6, len(order) - 0.4],
        "tickvals": ticks,
        "showgrid": False,
    }
    angle = -90 if names.devices or len(order) > 40 else 0  # on their side they have room even on paper
    texts = [names.short("device", park.devices[order[i]].number) for i in ticks]
    figure.update_xaxes(**axis, tickangle=angle, ticktext=texts)
    classes = {"tickvals": list(range(len(park.classes))), "ticktext": list(park.classes)}
    figure.update_yaxes(**classes, range=[len(park.classes) - 0.3, -0.7])


def bubble_px(park: Park) -> float:
    """Return the widest bubble's diameter in pixels: as wide as a device's column where that is narrow."""
    shown = max(1, min(len(park.devices), MOST_DEVICES))
    return float(min(26, max(7, 900 / shown), max(10, 15 if len(park.classes) > 20 else 26)))


def _mark_factories(figure: Any, park: Park, factories: Sequence[int]) -> None:
    """Shade every second factory and name them above, as far as there is room for names."""
    start = 0
    named = len(set(factories)) <= 12
    for i in range(1, len(factories) + 1):
        if i < len(factories) and factories[i] == factories[start]:
            continue
        if factories[start] % 2 == 0 and len(set(factories)) > 1:
            figure.add_vrect(x0=start - 0.5, x1=i - 0.5, fillcolor=SHADE, line_width=0, layer="below")
        if named and (park.factories > 1 or park.factory_names):
            whole = park.factory_names or len(set(factories)) <= 3
            name = park.names.site("factory", factories[start]) if whole else f"F{factories[start]}"
            place = {"x": (start + i - 1) / 2, "y": 1.0, "yref": "paper", "yanchor": "bottom", "showarrow": False}
            figure.add_annotation(text=escape(name), font={"size": 12}, **place)
        start = i
