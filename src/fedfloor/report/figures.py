"""The curves against rounds, and against what they cost, as Plotly figures; Plotly is imported where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedfloor.figures import LOSS
from fedfloor.report.groups import CLASSES, Against, Group, curve, judged, spoken, task, values
from fedfloor.report.ledger import Round, Run, spent
from fedfloor.report.looks import COLOURS, DASHES, GREY, SYMBOLS, faint, layout
from fedfloor.report.price import NAMES, unit
from fedfloor.report.table import cost

MARKED = 12  # symbols along a curve: enough to tell curves apart without their colours


def headline_figure(found: Sequence[Group], target: float | None = None) -> Any | None:
    """Draw the headline against rounds; None if nothing was evaluated.

    Args:
        found: the runs, grouped by experiment.
        target: a value to mark with a line.
    """
    of = judged(run for group in found for run in group.runs)
    figure = _curves(found, of.read, of.axis, share=of.share)
    if figure is not None and target is not None:
        figure.add_hline(y=target, line={"color": GREY, "width": 1.3, "dash": "dot"})
    return figure


def cost_figure(found: Sequence[Group], kind: str, target: float | None = None) -> Any | None:
    """Draw the headline against what the rounds cost; None if nothing was evaluated or no run cost anything of it.

    Args:
        found: the runs, grouped by experiment.
        kind: ``"seconds"``, ``"bytes"`` or ``"joules"``.
        target: a value to mark with a line.
    """
    most = max((cost(run, kind) or 0.0 for group in found for run in group.runs), default=0.0)
    if not most:
        return None
    size, symbol = unit(kind, most)
    use = spent(kind)

    def scaled(line: Round) -> float | None:
        used = use(line)
        return None if used is None else used / size

    of = judged(run for group in found for run in group.runs)
    figure = _curves(found, of.read, of.axis, share=of.share, against=scaled)
    if figure is not None:
        figure.update_layout(xaxis_title_text=f"{NAMES[kind]} on the network ({symbol})", hovermode="closest")
        figure.update_xaxes(tickformat="", dtick=None, rangemode="tozero")
        if target is not None:
            figure.add_hline(y=target, line={"color": GREY, "width": 1.3, "dash": "dot"})
    return figure


def loss_figure(found: Sequence[Group]) -> Any | None:
    """Draw the loss against rounds; None if nothing was evaluated."""
    classes = task(run for group in found for run in group.runs) == CLASSES
    return _curves(found, LOSS.read, LOSS.axis if classes else "loss (of scaled targets)", share=False)


def _curves(
    found: Sequence[Group], what: Against, name: str, *, share: bool, against: Against | None = None
) -> Any | None:
    import plotly.graph_objects as go

    traces: list[Any] = []
    for i, group in enumerate(found):
        traces += _group_traces(go, group, what, i, share=share, against=against)
    if not traces:
        return None
    figure = go.Figure(traces)
    figure.update_layout(**layout() | {"showlegend": len(found) > 1}, hovermode="x unified")
    figure.update_layout(xaxis_title_text="round", yaxis_title_text=name)
    longest = max(run.last for group in found for run in group.runs)
    figure.update_xaxes(tickformat="d", **({"dtick": 1} if longest <= 10 else {}))
    if share:
        figure.update_yaxes(rangemode="tozero")
    return figure


def _group_traces(go: Any, group: Group, what: Against, i: int, *, share: bool, against: Against | None) -> list[Any]:
    mean = curve(group, what, against)
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
    if len(group.runs) > 1 and mean.rounds:
        traces += [_seed_trace(go, group, run, what, against, colour) for run in group.runs]
    if mean.rounds:
        line = {"color": colour, "width": 2.6, "dash": DASHES[i % len(DASHES)]}
        marker = {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8, "color": colour, "maxdisplayed": MARKED}
        own = {"name": spoken(group.label), "legendgroup": group.label, "line": line, "marker": marker}
        tip = "%{y:.4f}" if against is None else "%{y:.4f} at %{x:.4g}"
        traces.append(
            go.Scatter(x=list(mean.rounds), y=list(mean.mean), mode="lines+markers", hovertemplate=tip, **own)
        )
    return traces


def _seed_trace(go: Any, group: Group, run: Run, what: Against, against: Against | None, colour: str) -> Any:
    series = values(run, what)
    places = values(run, against) if against else dict(zip(series, series, strict=True))
    points = [(places[number], value) for number, value in series.items() if number in places]
    line = {"color": colour, "width": 0.8}
    quiet = {"showlegend": False, "hoverinfo": "skip", "opacity": 0.55, "mode": "lines", "legendgroup": group.label}
    return go.Scatter(x=[x for x, _ in points], y=[y for _, y in points], line=line, **quiet)
