"""The charts of a report as Plotly figures: curves, classes, factories, devices. Plotly is imported when needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from statistics import fmean as mean
from typing import Any

from fedfloor.base.templates import render
from fedfloor.report.evaluation_records import ChartRecord, ErrorsRecord
from fedfloor.report.groups import CLASSES, Against, Compared, Group, curve, half_width, values
from fedfloor.report.ledger import Matrix, RecordedRound, RecordedRun, by_place, spent
from fedfloor.report.numbers import NAMES, unit
from fedfloor.report.records import HeadlineRecord, ParkRecord
from fedfloor.report.table import cost
from fedfloor.tasks.figures import ACCURACY, LOSS, Figure

# After Okabe and Ito's palette (jfly.uni-koeln.de/color), adjusted for contrast on white and on near-black.
COLOURS = ("#2b7bd1", "#d55e00", "#0b9b74", "#b06ac4", "#b58500", "#39a5dc", "#d4467f", "#75808c")
DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
HATCHES = ("", "/", "x", ".", "\\", "-", "+", "|")
GREY = "#808a96"  # visible on white and on black
SHADE = "rgba(128,138,150,0.10)"
DOTTED = {"color": GREY, "width": 1.3, "dash": "dot"}


def layout(height: int = 380) -> dict[str, Any]:
    """Return the common layout of all charts; the page's style sheet sets the colours of text and grid."""
    return {
        "template": "none",
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 24, "b": 50},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": True,
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "font": {"size": 13}},
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "xaxis": {"automargin": True, "zeroline": False, "title": {"font": {"size": 14}}},
        "yaxis": {"automargin": True, "zeroline": False, "title": {"font": {"size": 14}, "standoff": 12}},
    }


def _figure(traces: Sequence[Mapping[str, Any]], height: int = 380, **settings: Any) -> Any:
    """Return a Plotly figure of traces, scatter plots by default, in the common layout changed by ``settings``."""
    import plotly.graph_objects as go

    figure = go.Figure(traces)
    figure.update_layout(**layout(height))
    figure.update_layout(**settings)
    return figure


def colour(number: int) -> str:
    """Return the colour of a method or a channel, which repeats after eight."""
    return COLOURS[number % len(COLOURS)]


def _symbol(i: int, **settings: Any) -> dict[str, Any]:
    return {"color": colour(i), "symbol": SYMBOLS[i % len(SYMBOLS)], **settings}


def faint(colour: str, share: float = 0.16) -> str:
    """Return a hexadecimal colour with an opacity of ``share``.

    >>> faint("#ff0000")
    'rgba(255,0,0,0.16)'
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"


# shares that differ by less are drawn on an axis of their part of it; and the least part
NEAR = 0.5
NARROWEST = 0.02
FEW_ROUNDS = 10  # up to which each has a tick
MARKED = 12  # symbols along a curve: enough to distinguish curves without colours


def headline_figure(compared: Compared, target: float | None = None) -> Any | None:
    """Return a chart of the headline against rounds; None if nothing was evaluated."""
    headline = compared.headline
    return _curves(compared, headline.read, headline.axis, share=headline.share, target=target)


def cost_figure(compared: Compared, kind: str, target: float | None = None) -> Any | None:
    """Return a chart of the headline against the cost of rounds; None without evaluations or if no run has this cost.

    Args:
        kind: ``"seconds"``, ``"bytes"`` or ``"joules"``.
    """
    most = max((cost(run, kind) or 0.0 for run in compared.runs), default=0.0)
    if not most:
        return None
    size, symbol = unit(kind, most)
    use = spent(kind)

    def scaled(line: RecordedRound) -> float | None:
        used = use(line)
        return None if used is None else used / size

    headline = compared.headline
    figure = _curves(compared, headline.read, headline.axis, share=headline.share, against=scaled, target=target)
    if figure is not None:
        figure.update_layout(xaxis_title_text=f"{NAMES[kind]} on the network ({symbol})", hovermode="closest")
        figure.update_xaxes(tickformat="", dtick=None, rangemode="tozero")
    return figure


AGES = ((0, "the present model"), (1, "1 or 2 models old"), (3, "3 to 9 models old"), (10, "10 or more models old"))
MOST_VISITS = 400  # drawn in a timeline


LATE = "late, in vain"
RESTS = "waits for the end of the round"
TRAVELS = "model or result on its way"


def timeline_figure(run: RecordedRun, unit_s: float = 1.0) -> Any:
    """Return a chart of visits in time: a line from departure to arrival for each, by the age of its model.

    Where the times of training are known, only they have the colour of the age: before, the model is on its way to the
    device or waits for a link; after, the result. A thin line follows until the round ends. A late result, which does
    not count, is drawn until then.

    Args:
        unit_s: the seconds in a unit of the axis of time.
    """
    name_of = partial(run.park.names.site, "device")
    names = [TRAVELS, *(name for _, name in AGES), LATE, RESTS]
    lines = {name: list[tuple[int, float, float, str]]() for name in names}
    for line in (line for line in run.rounds if line.arrivals):
        if len(lines[RESTS]) >= MOST_VISITS:
            break
        began = min(row[2] for row in line.arrivals)
        ended = max(row[3] for row in line.arrivals)
        departures = sorted((row[0], row[2]) for row in line.arrivals)
        for k, version, departed, arrived, *training in line.arrivals:
            age = max(name for name in AGES if name[0] <= line.round - 1 - version)[1]
            begins, ends = training or (departed, arrived)
            lines[age].append((k, begins, ends, f"round {line.round}, from the model of round {version}"))
            if departed < begins:
                lines[TRAVELS].append((k, departed, begins, f"round {line.round}, the model"))
            if ends < arrived:
                lines[TRAVELS].append((k, ends, arrived, f"round {line.round}, the result"))
            again = min((at for one, at in departures if one == k and at >= arrived), default=ended)
            lines[RESTS].append((k, arrived, again, f"round {line.round}"))
        lines[LATE] += [(k, began, ended, f"round {line.round}, late") for k in sorted({*line.late})]
    styles = [{"color": "#c3cad2", "width": 6}, *({"color": colour(i), "width": 6} for i in range(len(AGES)))]
    styles += [{"color": colour(len(AGES)), "width": 3, "dash": "dot"}, {"color": "#9aa3ad", "width": 1}]
    traces = []
    for (name, rows), style in zip(lines.items(), styles, strict=True):
        x = [time for _, begin, end, _ in rows for time in (begin / unit_s, end / unit_s, None)]
        y = [place for k, *_ in rows for place in (name_of(k), name_of(k), None)]
        hover = [text for *_, text in rows for _ in range(3)]
        traces.append({"x": x, "y": y, "mode": "lines", "name": name, "line": style, "text": hover,
                       "hovertemplate": "%{y}: %{text}<extra></extra>"})  # fmt: skip
    devices = {k for rows in lines.values() for k, *_ in rows}
    order = [name_of(k) for k in sorted(devices, reverse=True)]
    figure = _figure([trace for trace in traces if trace["x"]], height=120 + 16 * len(devices))
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=order)
    return figure


def loss_figure(compared: Compared) -> Any | None:
    """Return a chart of the loss against rounds; None if nothing was evaluated."""
    axes = {CLASSES: LOSS.axis, "reconstruction": "reconstruction error", "survival": "negative log-likelihood"}
    axis = axes.get(compared.task, "loss on scaled targets")
    return _curves(compared, LOSS.read, axis, share=False)


def _curves(
    compared: Compared, read: Against, axis: str, *, share: bool, against: Against | None = None,
    target: float | None = None,
) -> Any | None:  # fmt: skip
    traces = []
    for i, group in enumerate(compared):
        traces += _group_traces(group, read, i, share=share, against=against)
    if not traces:
        return None
    settings: dict[str, Any] = {"showlegend": len(compared) > 1, "hovermode": "x unified"}
    figure = _figure(traces, **settings, xaxis_title_text="round", yaxis_title_text=axis)
    places = [x for trace in traces for x in trace["x"]]
    figure.update_xaxes(tickformat="d", **({"dtick": 1} if max(places) - min(places) < FEW_ROUNDS else {}))
    if share:
        lines = [trace for trace in traces if "fill" not in trace]  # wide intervals may leave the chart
        heights = [y for trace in lines for y in trace["y"]]
        figure.update_yaxes(**share_axis([*heights, *([] if target is None else [target])], axis))
    if target is not None:
        figure.add_hline(y=target, line=DOTTED)
    return figure


def share_axis(heights: Sequence[float], title: str) -> dict[str, Any]:
    """Return the settings of an axis of shares: from 0 to 1, or of the part that they are in where they are near.

    An axis that does not begin at 0 says so.

    >>> share_axis([0.1, 0.9], "accuracy")
    {'range': [0, 1.02], 'tickformat': '.0%'}
    >>> share_axis([0.79, 0.99], "accuracy")
    {'range': [0.78, 1.0], 'tickformat': '.0%', 'title_text': 'accuracy (axis from 78\\xa0%)'}
    """
    low, high = min(heights), max(heights)
    if high - low > NEAR:
        return {"range": [0, 1.02], "tickformat": ".0%"}
    span = max(high - low, NARROWEST)
    decimals = max(0, math.ceil(-math.log10(span)) - 1)
    step = 10.0 ** -(decimals + 2)
    room = span / 20
    begin = math.floor(round((min(low, high - span) - room) / step, 6)) * step if low > span else 0.0
    end = min(1 + room, math.ceil(round((high + room) / step, 6)) * step)
    told = {"title_text": f"{title} (axis from {100 * begin:.{decimals}f}\u00a0%)"} if begin > 0 else {}
    return {"range": [round(begin, 6), round(end, 6)], "tickformat": f".{decimals}%", **told}


def _group_traces(group: Group, read: Against, i: int, *, share: bool, against: Against | None) -> list[dict[str, Any]]:
    curved = curve(group, read, against)
    if not curved.rounds:
        return []
    traces = []
    of_group = {"legendgroup": group.label}
    quiet = {"mode": "lines", "hoverinfo": "skip", "showlegend": False, **of_group}
    if curved.half_width is not None:
        low, high = 0.0, 1.0 if share else math.inf
        up = [min(m + h, high) for m, h in zip(curved.mean, curved.half_width, strict=True)]
        down = [max(m - h, low) for m, h in zip(curved.mean, curved.half_width, strict=True)]
        around = {"x": [*curved.rounds, *reversed(curved.rounds)], "y": [*up, *reversed(down)]}
        traces.append({**around, "fill": "toself", "fillcolor": faint(colour(i)), "line": {"width": 0}, **quiet})
    for run in group.runs if len(group.runs) > 1 else ():
        series = values(run, read)
        places = values(run, against) if against else dict(zip(series, series, strict=True))
        known = [number for number in series if number in places]
        points = {"x": [places[number] for number in known], "y": [series[number] for number in known]}
        traces.append({**points, "line": {"color": colour(i), "width": 0.8}, "opacity": 0.55, **quiet})
    line = {"color": colour(i), "width": 2.6, "dash": DASHES[i % len(DASHES)]}
    own = {"name": group.label.shown, "mode": "lines+markers", "line": line, **of_group}
    own["marker"] = _symbol(i, size=8, maxdisplayed=MARKED)
    value = "%{y:.1%}" if share else "%{y:.4g}"
    own["hovertemplate"] = value if against is None else f"{value} at %{{x:.4g}}"
    return [*traces, {"x": list(curved.rounds), "y": list(curved.mean), **own}]


Samples = list[list[float]]  # name → values of the seeds


def class_figure(compared: Compared) -> Any | None:
    """Return a chart of the accuracy per class in the last evaluated round, a mark per experiment; None without it."""
    measured = [(i, group, samples) for i, group in enumerate(compared) if (samples := class_samples(group))]
    if not measured:
        return None
    names = max((group.runs[0].park.classes for _, group, _ in measured), key=len)
    traces = []
    for place, (i, group, samples) in enumerate(measured):
        shift = (place - (len(measured) - 1) / 2) * 0.62 / len(measured)
        known = [(row, sample) for row, sample in enumerate(samples) if sample]
        own: dict[str, Any] = {"mode": "markers", "name": group.label.shown, "marker": _symbol(i, size=9)}
        own |= {"x": [mean(sample) for _, sample in known], "y": [row + shift for row, _ in known]}
        own |= {"error_x": _whiskers([sample for _, sample in known], colour(i))}
        traces.append({**own, "text": [names[row] for row, _ in known], "hovertemplate": "%{text}: %{x:.1%}"})
    height = 110 + len(names) * max(22, 11 * len(measured))
    figure = _figure(traces, height, **_legend(compared, height))
    figure.update_xaxes(title_text="accuracy", range=[-0.02, 1.03], tickformat=".0%", side="bottom")
    figure.update_yaxes(tickvals=list(range(len(names))), ticktext=list(names), range=[len(names) - 0.4, -0.6])
    return figure


def class_samples(group: Group) -> Samples:
    """Return the accuracies of each class in the last round that every seed evaluated."""
    columns = [line.by_class for line in group.last_lines(lambda line: line.by_class) if line.by_class is not None]
    return [[value for value in column if value is not None] for column in zip(*columns, strict=False)]


def factory_figure(compared: Compared) -> Any | None:
    """Return a chart of the final models' headline per factory, a bar per experiment; None if no run has it."""
    measure = compared.placed
    measured = [(i, group, by_place(group.finals, "factories", measure))
                for i, group in enumerate(compared) if group.finals]  # fmt: skip
    site_names = compared[0].runs[0].park.names
    names = {
        place: place[1] or site_names.site("factory", place[0])
        for _, _, places in measured for place, values in places.items() if values
    }  # fmt: skip
    if not names:
        return None
    bars = []
    for i, group, places in measured:
        samples = {place: values for place, values in places.items() if values}
        own: dict[str, Any] = {"type": "bar", "name": group.label.shown, "orientation": "h", "marker": _hatched(i)}
        own |= {"x": list(map(mean, samples.values())), "y": [names[place] for place in samples]}
        whiskers = _whiskers(list(samples.values()), GREY, measure)
        bars.append({**own, "error_x": whiskers, "hovertemplate": f"%{{y}}: {_tip(measure)}"})
    height = 110 + len(names) * (12 + 15 * len(bars))
    figure = _figure(bars, height, **_legend(compared, height), barmode="group", bargap=0.25)
    figure.update_xaxes(title_text=_axis(compared, measure))
    order = [*dict.fromkeys(names[place] for place in sorted(names, key=lambda place: place[0]))]
    figure.update_xaxes(**{"range": [0, 1.03], "tickformat": ".0%"} if measure.share else {"rangemode": "tozero"})
    figure.update_yaxes(
        type="category", ticksuffix=" ", categoryorder="array", categoryarray=order, autorange="reversed", title=""
    )
    return figure


def device_figure(compared: Compared) -> Any | None:
    """Return a chart of the 10, 50 and 90 % device's headline per experiment in the last evaluated round, or None."""
    traces = []
    rows = 0
    measure = compared.placed
    for i, group in enumerate(compared):
        if spreads := group.last_spreads(measure):
            traces += [*_dots(group, i, rows, measure), _spread(group, spreads, i, rows, measure)]
            rows += 1
    if not traces:
        return None
    figure = _figure(traces, 110 + 54 * rows, xaxis_title_text=_axis(compared, measure))
    figure.update_xaxes(**{"tickformat": ".3~%"} if measure.share else {})
    labels = {trace["y"][0]: trace["name"] for trace in traces if "name" in trace}
    figure.update_yaxes(tickvals=list(labels), ticktext=list(labels.values()), range=[rows - 0.45, -0.6])
    return figure


def _axis(compared: Compared, headline: Figure) -> str:
    expected = compared.figures == "expected"
    return f"{'expected ' if expected else ''}{headline.axis}"


def _tip(headline: Figure) -> str:
    """Return the format of a metric on the horizontal axis under the pointer."""
    return "%{x:.1%}" if headline.share else "%{x:.4g}"


def _spread(group: Group, spreads: Sequence[HeadlineRecord], i: int, row: int, headline: Figure) -> dict[str, Any]:
    ends = [mean(column) for column in zip(*((s.p10, s.p50, s.p90) for s in spreads), strict=True)]
    marker = {"symbol": ["line-ns", "diamond", "line-ns"], "size": [16, 12, 16], "color": colour(i), "opacity": 1}
    marker["line"] = {"width": [3, 0, 3], "color": colour(i)}
    own = {"mode": "lines+markers", "line": {"color": colour(i), "width": 5}, "marker": marker, "showlegend": False}
    words = [f"{name} % of devices are below" for name in (10, 50, 90)]
    tips = {"text": words, "hovertemplate": f"{_tip(headline)}: %{{text}}{NAMED}"}
    return {"x": ends, "y": [row] * 3, "name": group.label.shown, **own, **tips}


def _dots(group: Group, i: int, row: int, headline: Figure) -> list[dict[str, Any]]:
    """Return the devices as dots below their bar, if the final models were evaluated per device."""
    places = {place: values for place, values in by_place(group.finals, "devices", headline).items() if values}
    if not places:
        return []
    site_names = group.runs[0].park.names
    names = [name or site_names.site("device", number) for number, name, _ in places]
    marker = {"size": 7, "color": faint(colour(i), 0.55), "symbol": "circle", "line": {"width": 0}}
    tips = {"text": names, "hovertemplate": f"%{{text}}: {_tip(headline)}<extra></extra>"}
    where = {"x": list(map(mean, places.values())), "y": [row + 0.24] * len(places)}
    return [{**where, "mode": "markers", "marker": marker, "showlegend": False, **tips}]


def _whiskers(samples: Samples, colour: str, headline: Figure = ACCURACY) -> dict[str, Any]:
    means = list(map(mean, samples))
    widths = [half_width(sample) or 0.0 for sample in samples]
    most = 1.0 if headline.share else math.inf
    up = [min(width, most - mean) for mean, width in zip(means, widths, strict=True)]
    down = [min(width, max(mean, 0.0)) for mean, width in zip(means, widths, strict=True)]
    shown = {"visible": any(widths), "thickness": 1.2, "width": 3, "color": colour}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **shown}


def _hatched(i: int) -> dict[str, Any]:
    outline = {"color": colour(i), "width": 1}
    shape = HATCHES[i % len(HATCHES)]
    if not shape:
        return {"color": faint(colour(i), 0.5), "line": outline, "pattern": {}}
    pattern = {"shape": shape, "fgcolor": colour(i), "bgcolor": faint(colour(i), 0.3), "size": 6}
    return {"color": colour(i), "line": outline, "pattern": pattern}


def _legend(compared: Compared, height: int) -> dict[str, Any]:
    """Return a legend at a fixed distance above a drawing of ``height`` px."""
    return {"showlegend": len(compared) > 1, "legend_y": 1 + 8 / (height - 74)}


FEW_POINTS = 300  # most points drawn with their intervals
AT_ONCE = 2  # methods drawn at first; a click on a name adds others
NAMED = "<extra>%{fullData.name}</extra>"  # shows the name of the trace beside a tip


def scatter(known: Sequence[tuple[Group, Sequence[ErrorsRecord]]]) -> Any:
    """Return a chart of predicted against true numbers for the samples of each group's first seed."""
    every = [errors[0].points for _, errors in known]
    ends = [extreme(extreme(*points.true, *points.predicted) for points in every) for extreme in (min, max)]
    clouds = []
    for i, (group, points) in enumerate(zip((group for group, _ in known), every, strict=True)):
        site_names = group.runs[0].park.names
        names = [site_names.site("device", number) for number in points.device] or [""] * len(points.true)
        own: dict[str, Any] = {"x": points.true, "y": points.predicted, "text": names}
        if points.low and len(points.true) <= FEW_POINTS:
            up = [high - value for high, value in zip(points.high, points.predicted, strict=True)]
            down = [value - low for low, value in zip(points.low, points.predicted, strict=True)]
            bars = {"type": "data", "symmetric": False, "array": up, "arrayminus": down}
            own["error_y"] = bars | {"thickness": 1, "width": 0, "color": faint(colour(i), 0.35)}
        clouds.append((group, own))
    first = known[0][1][0]
    target = first.targets[0].name + (f" ({first.unit})" if first.unit else "")
    axes = (f"true {target}", f"predicted {target}")
    return diagonal(clouds, ends, axes, "%{text}: %{y:.4g} for %{x:.4g}", height=460, size=6)


def diagonal(
    clouds: Sequence[tuple[Group, dict[str, Any]]], ends: Sequence[float], axes: tuple[str, str], tip: str, *,
    height: int, size: int,
) -> Any:  # fmt: skip
    """Return a chart of each group's points (a Plotly trace) and the diagonal; height and point size in px."""
    line: dict[str, Any] = {"x": ends, "y": ends, "mode": "lines", "line": DOTTED}
    traces = [{**line, "showlegend": False, "hoverinfo": "skip"}]
    for i, (group, points) in enumerate(clouds):
        own = {"name": group.label.shown, "mode": "markers", "hovertemplate": f"{tip}{NAMED}", **points}
        own["marker"] = _symbol(i, size=size, line={"width": 0}) | {"color": faint(colour(i), 0.7)}
        traces.append({**own, "visible": None if i < AT_ONCE else "legendonly"})
    settings: dict[str, Any] = {"showlegend": len(clouds) > 1, "hovermode": "closest"}
    return _figure(traces, height, **settings, xaxis_title_text=axes[0], yaxis_title_text=axes[1])


def control_figure(record: ChartRecord) -> Any:
    """Return control charts below each other: each value over the samples, its limits, alarms, abnormal samples."""
    many = len(record.values)
    traces: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    names: list[dict[str, Any]] = []
    outside = [[not each.limits[0] <= value <= each.limits[2] for value in each.value] for each in record.values]
    last = len(record.alarm) - 0.5
    for place, each in enumerate(record.values):
        axis = f"y{place + 1}" if place else "y"
        top = 1 - place / many
        upper = top - 0.14 / many
        axes[f"yaxis{place + 1 if place else ''}"] = {
            "domain": [top - 0.94 / many, upper], "automargin": True, "zeroline": False,
        }  # fmt: skip
        # above the chart, as a long name beside it would be cut off
        names.append({"text": escape(each.name), "showarrow": False, "font": {"size": 13}, "xref": "paper", "x": 0,
                      "xanchor": "left", "yref": "paper", "y": upper, "yanchor": "bottom"})  # fmt: skip
        own = {"yaxis": axis, "hovertemplate": f"{escape(each.name)} %{{y:.5g}} at sample %{{x}}<extra></extra>"}
        numbers = list(range(1, len(each.value) + 1))
        traces.append({"x": numbers, "y": each.value, "mode": "lines", "name": "value", "showlegend": not place,
                       "line": {"color": colour(0), "width": 1.3}, **own})  # fmt: skip
        # an alarm is marked at the values that are beyond their limits, or at all if none is
        blamed = [out[place] or not any(out) for out in zip(*outside, strict=True)]
        alarms = [n for n, alarm in enumerate(record.alarm) if alarm and blamed[n]]
        marked = {"x": [n + 1 for n in alarms], "y": [each.value[n] for n in alarms], "mode": "markers"}
        first = not any(trace["name"] == "alarm" and trace["x"] for trace in traces)
        traces.append({**marked, "name": "alarm", "showlegend": first,
                       "marker": {"color": colour(1), "size": 5}, **own})  # fmt: skip
        low, center, high = each.limits
        for level, dash in ((center, "dot"), *((end, "dash") for end in {low, high} - {center})):
            line = {"color": GREY, "width": 1.3, "dash": dash}
            shapes.append(
                {"type": "line", "x0": 0.5, "x1": last + 1, "y0": level, "y1": level, "yref": axis, "line": line}
            )
    for begin, end in _spans(record.abnormal):
        shapes.append({"type": "rect", "x0": begin + 0.5, "x1": end + 0.5, "y0": 0, "y1": 1, "yref": "paper",
                       "fillcolor": faint(colour(1)), "line": {"width": 0}, "layer": "below"})  # fmt: skip
    settings = {"shapes": shapes, "annotations": names, "hovermode": "closest", "xaxis_title_text": "sample", **axes}
    figure = _figure(traces, 110 + 160 * many, **settings)
    figure.update_layout(xaxis={"anchor": f"y{many}" if many > 1 else "y"})
    return figure


def _spans(flags: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, last + 1) of each run of set flags.

    >>> _spans([0, 1, 1, 0, 1])
    [(1, 3), (4, 5)]
    """
    edges = [n for n in range(len(flags) + 1) if bool((*flags, 0)[n]) != bool((0, *flags)[n])]
    return list(zip(edges[::2], edges[1::2], strict=True))


MOST_DEVICES = 120


def holdings_figure(park: ParkRecord, noun: str = "class") -> Any:
    """Return a chart of the classes on each device: a bubble per device and class, its area the number of samples."""
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
        "color": [colour(factories[place]) for place, _, _, _ in cells],
        "line": {"width": 0},
        "opacity": 0.85,
    }
    names = park.names
    words = [
        f"{names.site('device', park.numbers[k])}, {noun} {park.classes[label]}: {count:,} samples"
        for _, label, count, k in cells
    ]
    bubbles = {"x": [place for place, *_ in cells], "y": [label for _, label, *_ in cells], "mode": "markers"}
    tips = {"text": words, "hovertemplate": "%{text}<extra></extra>"}
    height = int(min(1500, max(300, 130 + len(park.classes) * (30 if len(park.classes) <= 20 else 15))))
    figure = _figure([{**bubbles, "marker": marker, **tips}], height, margin_l=50, margin_t=40, showlegend=False)
    _holdings_axes(figure, park, order)
    _mark_factories(figure, park, factories)
    return figure


def _holdings_axes(figure: Any, park: ParkRecord, order: Sequence[int]) -> None:
    names = park.names
    every = max(1, -(-len(order) // 40))
    ticks = list(range(0, len(order), every))
    axis = {
        "title": "" if names.devices else "device",
        "range": [-0.6, len(order) - 0.4],
        "tickvals": ticks,
        "showgrid": False,
    }
    angle = -90 if names.devices or len(order) > 40 else 0  # rotated names also fit on paper
    texts = [names.short("device", park.numbers[order[i]]) for i in ticks]
    figure.update_xaxes(**axis, tickangle=angle, ticktext=texts)
    classes = {"tickvals": list(range(len(park.classes))), "ticktext": list(park.classes)}
    figure.update_yaxes(**classes, range=[len(park.classes) - 0.3, -0.7])


def bubble_px(park: ParkRecord) -> float:
    """Return the largest bubble's diameter in px, at most the width of a device's column."""
    shown = max(1, min(len(park.devices), MOST_DEVICES))
    return float(min(26, max(7, 900 / shown), max(10, 15 if len(park.classes) > 20 else 26)))


def _mark_factories(figure: Any, park: ParkRecord, factories: Sequence[int]) -> None:
    """Shade every second factory, and write the factories' names above if they fit."""
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


FEW = 14  # most classes with a number in every cell


def heat_map(matrix: Matrix, classes: Sequence[str]) -> str:
    """Return a confusion matrix as SVG.

    A cell's opacity is the square root of its share of the row, so that rare confusions are visible; small matrices
    also have numbers.

    Args:
        matrix: number of samples [true class][predicted class].

    >>> heat_map(((9, 1), (0, 2)), ["a", "b"]).count('class="cell"')
    3
    """
    few = len(classes) <= FEW
    cell, letter = (34.0, 7.2) if few else (12.0, 6.2)
    names = [name if len(name) <= 14 else name[:13] + "…" for name in classes]
    letters = max(len(name) for name in names)
    left = 26 + letter * letters
    upright = letters > (4 if few else 1)  # names too wide for their column are rotated
    top = 26 + (letter * letters if upright else 14)
    side = cell * len(classes)
    cells = [
        (left + j * cell, top + i * cell, count / total,
         f"{classes[i]} predicted as {classes[j]}: {count:,} of {total:,}")
        for i, total in enumerate(map(sum, matrix)) for j, count in enumerate(matrix[i]) if count
    ]  # fmt: skip
    return render(
        "fedfloor.report", "confusion.svg", few=few, cell=cell, names=names, left=left, top=top, side=side, cells=cells,
        upright=upright, width=left + max(side + 4, 168), height=top + max(side + 4, 116),  # or for the axes' titles
    )  # fmt: skip
