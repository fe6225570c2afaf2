"""The report's section on personal models, compared with the shared model and with local training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, Literal

from markupsafe import Markup

from fedfloor.base.names import LOCAL_ONLY, count
from fedfloor.report.charts import diagonal
from fedfloor.report.groups import Compared, Group
from fedfloor.report.ledger import Place, by_place
from fedfloor.report.numbers import metric, percent
from fedfloor.report.sections import chart, folded, scroll, section, table
from fedfloor.tasks.figures import Figure

ByDevice = Mapping[Place, float]  # device → metric, mean over the seeds
HEAD = ["method", "shared", "own", "gain", "lose", "worst: shared", "worst: own"]
OTHERS = {"fedavg": "FedAvg", LOCAL_ONLY: "local"}  # methods with which personal models are compared, and their columns


def known(groups: Sequence[Group]) -> list[Group]:
    """Return the groups with both personal models and a shared model."""
    return [group for group in groups if any(final.shared for final in group.finals)]


def story(compared: Compared, first: Group) -> str:
    """Return a text on how many devices gain by a personal model over the shared model and over local training."""
    measure = compared.placed
    own = _means(first, "devices", measure)
    shared = _means(first, "shared", measure)
    pairs = [(own[k], shared[k]) for k in own.keys() & shared.keys()]
    if not pairs:
        return f"No device has {measure.phrase} both by its own model of {first.label.shown} and by the shared model."
    gain, lose = _gains(pairs, measure)
    expected = "by the classes that devices hold the expected " if compared.figures == "expected" else ""
    sentence = (
        f"With a model of its own by {first.label.shown}, {expected}{measure.name} is better than with the shared "
        f"model on {gain} of {count(len(pairs), 'device')} and worse on {lose}: on average "
        f"{metric(measure, mean(a for a, _ in pairs))} instead of {metric(measure, mean(b for _, b in pairs))}."
    )
    for name, values in _others(compared, measure).items():
        gain, lose = _gains([(own[k], values[k]) for k in own.keys() & values.keys()], measure)
        against = "models that devices train by themselves" if name == OTHERS[LOCAL_ONLY] else name
        sentence += f" Against {against}, {gain} gain and {lose} lose."
    return sentence


def section_of(compared: Compared, drawn: dict[str, Any]) -> str:
    """Return the section's HTML; "" if no device has a personal model."""
    groups = known(compared)
    measure = compared.placed
    if not groups:
        return ""
    others = _others(compared, measure)
    head = [*HEAD, *(cell for name in others for cell in (name, f"gain on {name}", f"lose to {name}")), "sent"]
    expected = compared.figures == "expected"
    body = table(_caption(measure, others, expected=expected), head, [_row(group, others, measure) for group in groups])
    note = "Each dot is a device: to the right by the shared model, upwards by its own. Above the dotted line it "
    note += "gains." if measure.kind.better == "higher" else "loses, below it gains."
    body += chart("personal", _drawing(groups, measure), note, drawn)
    names = groups[0].runs[0].park.names
    columns = list[tuple[str, ByDevice]]()
    for group in groups:
        columns.append((f"{group.label.shown}: shared", _means(group, "shared", measure)))
        columns.append((f"{group.label.shown}: own", _means(group, "devices", measure)))
    columns += others.items()
    devices = sorted({place: place[0] for _, values in columns for place in values}.items(), key=lambda item: item[1])
    rows = [
        [k[1] or names.site("device", k[0]), *(metric(measure, values.get(k)) for _, values in columns)]
        for k, _ in devices
    ]
    listing = scroll(table("", ["device", *(name for name, _ in columns)], rows, "plain"), "all devices")
    body += folded(f"All {count(len(devices), 'device')}", listing, kind="list")
    return section("A model for each device", Markup(body), "personal")


def _caption(headline: Figure, others: Mapping[str, ByDevice], *, expected: bool) -> str:
    better = "higher" if headline.kind.better == "higher" else "lower"
    by_classes = " Expected from the device's classes, as no test sample belongs to a device."
    text = (
        f"{headline.title} on devices, the mean over them and the seeds ({better} is better), by the shared model and "
        "by each device's own; how many devices gain and lose by it; the worst device; the share of the model's "
        "numbers that a device sends, FedAvg's being all. The shared model of methods that keep a part at the device "
        "has the mean of these parts."
    )
    lacking = " fedfloor run --references adds models trained locally on each device (local)."
    return text + by_classes * expected + lacking * (OTHERS[LOCAL_ONLY] not in others)


def _row(group: Group, others: Mapping[str, ByDevice], headline: Figure) -> list[str]:
    own = _means(group, "devices", headline)
    shared = _means(group, "shared", headline)
    both = own.keys() & shared.keys()
    cells = ["–"] * 6
    if both:
        cells = [metric(headline, mean(shared[k] for k in both)), metric(headline, mean(own[k] for k in both))]
        cells += map(str, _gains([(own[k], shared[k]) for k in both], headline))
        cells += [metric(headline, headline.worst(each[k] for k in both)) for each in (shared, own)]
    for values in others.values():
        pairs = [(own[k], values[k]) for k in own.keys() & values.keys()]
        cells += [metric(headline, mean(b for _, b in pairs)) if pairs else "–", *map(str, _gains(pairs, headline))]
    sends = [final.shared.sends if final.shared else 1.0 for final in group.finals]
    return [group.label.shown, *cells, percent(mean(sends))]


def _gains(pairs: Sequence[tuple[float, float]], headline: Figure) -> tuple[int, int]:
    """Return the numbers of pairs whose first value is better, and worse, than the second."""
    return sum(headline.gain(a, b) > 0 for a, b in pairs), sum(headline.gain(a, b) < 0 for a, b in pairs)


def _means(group: Group, of: Literal["devices", "shared"], headline: Figure) -> ByDevice:
    """Return the devices' metrics of their personal models, or of the ``shared`` model: device → mean over seeds."""
    places = by_place(group.finals, of, headline)
    return {place: mean(values) for place, values in places.items() if values}


def _others(compared: Compared, headline: Figure) -> dict[str, ByDevice]:
    """Return the devices' metrics of FedAvg and of local training, by column, for those that are in the report."""
    columns = dict[str, ByDevice]()
    for method, name in OTHERS.items():
        groups = [group for group in compared if group.runs[0].method == method and not known([group])]
        if len(groups) == 1 and (values := _means(groups[0], "devices", headline)):
            columns[name] = values
    return columns


def _drawing(groups: Sequence[Group], headline: Figure) -> Any:
    pairs = [(_means(group, "shared", headline), _means(group, "devices", headline)) for group in groups]
    every = [value for both in pairs for values in both for value in values.values()]
    clouds = []
    for group, (shared, own) in zip(groups, pairs, strict=True):
        devices = [k for k in own if k in shared]
        names = group.runs[0].park.names
        points = {"x": [shared[k] for k in devices], "y": [own[k] for k in devices]}
        clouds.append((group, {**points, "text": [k[1] or names.site("device", k[0]) for k in devices]}))
    axes = (f"{headline.axis}, shared model", f"{headline.axis}, own model")
    ends = [min(every, default=0.0), max(every, default=1.0)]
    return diagonal(clouds, ends, axes, "%{text}: own %{y:.4g}, shared %{x:.4g}", height=420, size=8)
