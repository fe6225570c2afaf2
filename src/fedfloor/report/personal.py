"""The report on models of devices' own: each beside the shared model, and beside one that a device trains by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from markupsafe import Markup

from fedfloor.figures import Figure
from fedfloor.names import LOCAL_ONLY, count
from fedfloor.report.charts import AT_ONCE, COLOURS, GREY, SYMBOLS, faint, layout
from fedfloor.report.groups import Group, display_name, figures_of, members, placed
from fedfloor.report.ledger import by_place
from fedfloor.report.numbers import figure, percent
from fedfloor.report.records import EvaluationRecord
from fedfloor.report.sections import chart, folded, scroll, section, table

ByDevice = Mapping[int, float]  # a device's number → its figure, the mean over the seeds
HEAD = ["method", "shared", "own", "gain", "lose", "worst: shared", "worst: own"]
OTHERS = {"fedavg": "FedAvg", LOCAL_ONLY: "local"}  # methods that own models are measured against, and their columns


def known(compared: Sequence[Group]) -> list[Group]:
    """Return the groups whose devices have models of their own beside a shared one."""
    return [group for group in compared if any(run.evaluation and run.evaluation.shared for run in group.runs)]


def story(compared: Sequence[Group], first: Group) -> str:
    """Return how many devices gain by their own model, against the shared one and against local training."""
    measure, own, shared = placed(members(compared)), _own(first, compared), _shared(first, compared)
    pairs = [(own[k], shared[k]) for k in own.keys() & shared.keys()]
    if not pairs:
        return f"No device has {measure.phrase} by its own model of {display_name(first.label)} and by the shared one."
    gain, lose = _gains(pairs, measure)
    sentence = (
        f"With a model of its own by {display_name(first.label)}, {measure.name} is better than with the shared model "
        f"on {gain} of {count(len(pairs), 'device')} and worse on {lose}: on average "
        f"{measure.amount(figure(mean(a for a, _ in pairs), 3))} instead of {figure(mean(b for _, b in pairs), 3)}."
    )
    for name, values in _others(compared).items():
        gain, lose = _gains([(own[k], values[k]) for k in own.keys() & values.keys()], measure)
        against = "models that devices train by themselves" if name == OTHERS[LOCAL_ONLY] else name
        sentence += f" Against {against}, {gain} gain and {lose} lose."
    return sentence


def section_of(compared: Sequence[Group], drawn: dict[str, Any]) -> str:
    """Return each device's own model beside the shared and the local one, or nothing where none has one."""
    groups, measure = known(compared), placed(members(compared))
    if not groups:
        return ""
    others = _others(compared)
    head = [*HEAD, *(cell for name in others for cell in (name, f"gain on {name}", f"lose to {name}")), "sent"]
    expected = figures_of(members(compared)) == "expected"
    body = table(
        _caption(measure, others, expected=expected), head, [_row(group, compared, others, measure) for group in groups]
    )
    note = "Each dot is a device: to the right by the shared model, upwards by its own. Above the dotted line a device "
    note += "gains." if measure.kind.better == "higher" else "loses, below it gains."
    body += chart("personal", _drawing(groups, compared, measure), note, drawn)
    names = groups[0].runs[0].park.names
    columns = [(f"{display_name(group.label)}: {kind}", values) for group in groups
               for kind, values in (("shared", _shared(group, compared)), ("own", _own(group, compared)))]  # fmt: skip
    columns += others.items()
    devices = sorted(set().union(*(values for _, values in columns)))
    rows = [[names.site("device", k), *(figure(values.get(k)) for _, values in columns)] for k in devices]
    listing = scroll(table("", ["device", *(name for name, _ in columns)], rows, "plain"), "all devices")
    body += folded(f"All {count(len(devices), 'device')}", listing, kind="list")
    return section("A model for each device", Markup(body), "personal")


def _caption(headline: Figure, others: Mapping[str, ByDevice], *, expected: bool) -> str:
    better = "higher" if headline.kind.better == "higher" else "lower"
    by_classes = " Expected by the classes that a device holds: no test sample belongs to a device."
    text = (
        f"{headline.title} on devices, the mean over them and the seeds ({better} is better), by the shared model and "
        "by each device's own; how many devices gain and lose by it; the worst device; the share of the model's "
        "numbers that a device sends, FedAvg's being all. The shared model of methods that keep a part at the device "
        "has the mean of these parts."
    )
    lacking = " fedfloor run --references adds models that devices train by themselves (local)."
    return text + by_classes * expected + lacking * (OTHERS[LOCAL_ONLY] not in others)


def _row(group: Group, compared: Sequence[Group], others: Mapping[str, ByDevice], headline: Figure) -> list[str]:
    own, shared = _own(group, compared), _shared(group, compared)
    both = sorted(own.keys() & shared.keys())
    cells = ["–"] * 6
    if both:
        cells = [figure(mean(shared[k] for k in both)), figure(mean(own[k] for k in both))]
        cells += map(str, _gains([(own[k], shared[k]) for k in both], headline))
        cells += [figure(headline.worst(shared[k] for k in both)), figure(headline.worst(own[k] for k in both))]
    for values in others.values():
        pairs = [(own[k], values[k]) for k in own.keys() & values.keys()]
        cells += [figure(mean(b for _, b in pairs)) if pairs else "–", *map(str, _gains(pairs, headline))]
    sends = [f.shared.sends if f.shared else 1.0 for f in _finals(group)]
    return [display_name(group.label), *cells, percent(mean(sends))]


def _gains(pairs: Sequence[tuple[float, float]], headline: Figure) -> tuple[int, int]:
    """Return the number of first values that are better than the second, and of those that are worse."""
    return sum(headline.gain(a, b) > 0 for a, b in pairs), sum(headline.gain(a, b) < 0 for a, b in pairs)


def _means(finals: Sequence[EvaluationRecord], headline: Figure, shared: bool) -> dict[int, float]:
    places = by_place(finals, "shared" if shared else "devices", headline)
    return {number: mean(values) for (number, _, _), values in places.items() if values}


def _finals(group: Group) -> list[EvaluationRecord]:
    return [run.evaluation for run in group.runs if run.evaluation]


def _own(group: Group, compared: Sequence[Group]) -> ByDevice:
    return _means(_finals(group), placed(members(compared)), shared=False)


def _shared(group: Group, compared: Sequence[Group]) -> ByDevice:
    return _means(_finals(group), placed(members(compared)), shared=True)


def _others(compared: Sequence[Group]) -> dict[str, ByDevice]:
    """Return the figures by FedAvg's model and by local ones, where the report has one run of each, by column."""
    columns = dict[str, ByDevice]()
    for method, name in OTHERS.items():
        groups = [group for group in compared if group.runs[0].method == method and not known([group])]
        if len(groups) == 1 and (values := _own(groups[0], compared)):
            columns[name] = values
    return columns


def _drawing(groups: Sequence[Group], compared: Sequence[Group], headline: Figure) -> Any:
    import plotly.graph_objects as go

    pairs = [(_shared(group, compared), _own(group, compared)) for group in groups]
    every = [value for both in pairs for values in both for value in values.values()]
    ends = [min(every, default=0.0), max(every, default=1.0)]
    line = {"color": GREY, "width": 1.3, "dash": "dot"}
    traces = [go.Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False, hoverinfo="skip")]
    for i, (group, (shared, own)) in enumerate(zip(groups, pairs, strict=True)):
        devices, names = sorted(own.keys() & shared.keys()), group.runs[0].park.names
        colour, symbol = COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]
        traces.append(
            go.Scatter(
                x=[shared[k] for k in devices], y=[own[k] for k in devices], mode="markers",
                name=display_name(group.label), text=[names.site("device", k) for k in devices],
                marker={"size": 8, "color": faint(colour, 0.7), "symbol": symbol, "line": {"width": 0}},
                hovertemplate="%{text}: own %{y:.4g}, shared %{x:.4g}<extra>%{fullData.name}</extra>",
                visible=True if i < AT_ONCE else "legendonly",
            )
        )  # fmt: skip
    drawing = go.Figure(traces)
    drawing.update_layout(**layout(420) | {"showlegend": len(groups) > 1}, hovermode="closest")
    drawing.update_layout(
        xaxis_title_text=f"{headline.axis}, shared model", yaxis_title_text=f"{headline.axis}, own model"
    )
    return drawing
