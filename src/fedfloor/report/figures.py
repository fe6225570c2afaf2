"""The curves against rounds, as Plotly figures; Plotly is imported where it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedfloor.report.groups import Group, accuracy, curve, loss, values
from fedfloor.report.ledger import Round
from fedfloor.report.looks import COLOURS, DASHES, GREY, SYMBOLS, faint, layout
from fedfloor.report.story import spoken

MARKED = 12  # symbols along a curve: enough to tell curves apart without their colours


def accuracy_figure(found: Sequence[Group], target: float | None = None) -> Any | None:
    """Draw accuracy against rounds; None if nothing was evaluated.

    Args:
        found: the runs, grouped by experiment.
        target: an accuracy to mark with a line.
    """
    figure = _curves(found, accuracy, "accuracy (share right)", share=True)
    if figure is not None and target is not None:
        figure.add_hline(y=target, line={"color": GREY, "width": 1.3, "dash": "dot"})
    return figure


def loss_figure(found: Sequence[Group]) -> Any | None:
    """Draw the loss against rounds; None if nothing was evaluated."""
    return _curves(found, loss, "loss (nats)", share=False)


def _curves(found: Sequence[Group], what: Callable[[Round], float | None], name: str, *, share: bool) -> Any | None:
    import plotly.graph_objects as go

    traces: list[Any] = []
    for i, group in enumerate(found):
        traces += _group_traces(go, group, what, i, share=share)
    if not traces:
        return None
    figure = go.Figure(traces)
    figure.update_layout(**layout() | {"showlegend": len(found) > 1}, hovermode="x unified")
    figure.update_layout(xaxis_title_text="round", yaxis_title_text=name)
    longest = max(group.runs[0].rounds[-1].number for group in found)
    figure.update_xaxes(tickformat="d", **({"dtick": 1} if longest <= 10 else {}))
    if share:
        figure.update_yaxes(rangemode="tozero")
    return figure


def _group_traces(go: Any, group: Group, what: Callable[[Round], float | None], i: int, *, share: bool) -> list[Any]:
    mean = curve(group, what)
    colour = COLOURS[i % len(COLOURS)]
    traces = []
    if mean.half_width is not None and mean.rounds:
        low, high = (0.0, 1.0) if share else (0.0, float("inf"))
        up = [min(m + h, high) for m, h in zip(mean.mean, mean.half_width, strict=True)]
        down = [max(m - h, low) for m, h in zip(mean.mean, mean.half_width, strict=True)]
        around, back = [*mean.rounds, *reversed(mean.rounds)], [*up, *reversed(down)]
        band = {"fill": "toself", "fillcolor": faint(colour), "line": {"width": 0}, "mode": "lines"}
        quiet = {"hoverinfo": "skip", "legendgroup": group.label, "showlegend": False}
        traces.append(go.Scatter(x=around, y=back, **band, **quiet))
        traces += [_seed_trace(go, group, values(run, what), colour) for run in group.runs]
    if mean.rounds:
        line = {"color": colour, "width": 2.6, "dash": DASHES[i % len(DASHES)]}
        marker = {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8, "color": colour, "maxdisplayed": MARKED}
        own = {"name": spoken(group.label), "legendgroup": group.label, "line": line, "marker": marker}
        traces.append(
            go.Scatter(x=list(mean.rounds), y=list(mean.mean), mode="lines+markers", hovertemplate="%{y:.4f}", **own)
        )
    return traces


def _seed_trace(go: Any, group: Group, series: dict[int, float], colour: str) -> Any:
    line = {"color": colour, "width": 0.8}
    quiet = {"showlegend": False, "hoverinfo": "skip", "opacity": 0.55, "mode": "lines", "legendgroup": group.label}
    return go.Scatter(x=list(series), y=list(series.values()), line=line, **quiet)
