"""The section on single devices: their spread, and a table that sorts, with a spark line and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles
from typing import Any

from markupsafe import Markup

from fedfloor.base.names import LOCAL_ONLY
from fedfloor.base.templates import render
from fedfloor.report import charts, words
from fedfloor.report.evaluation_records import PlaceRecord
from fedfloor.report.front import places
from fedfloor.report.groups import Compared, Group
from fedfloor.report.ledger import Place, over_rounds
from fedfloor.report.numbers import metric, plain
from fedfloor.report.sections import PIECES, chart, folded, scroll, section, soft, table
from fedfloor.tasks.figures import ACCURACY, Figure

LONG = 60  # rows; a longer table is folded
FENCE = 1.5  # quartile ranges beyond the quartile, after Tukey
SPARK_PX = (120, 18)
FEWEST = 6  # samples in which two models must differ to be told apart at 5 %
LEAST = 4  # devices from which on quartiles have a meaning

Cell = tuple[Any, float | None]  # what is shown, and by what it is sorted; None at the end


@dataclass(frozen=True)
class Places:
    """A metric on every device: of each method, of each device alone, and of the method in front over the rounds."""

    measure: Figure
    methods: tuple[tuple[Group, Mapping[Place, float]], ...]
    alone: Mapping[Place, float]
    courses: Mapping[Place, Sequence[tuple[int, float]]]

    @cached_property
    def span(self) -> tuple[int, int, float, float]:
        """The first and the last round of the courses, and their least and greatest value; there must be one."""
        points = [point for course in self.courses.values() for point in course]
        rounds = [number for number, _ in points]
        values = [value for _, value in points]
        return min(rounds), max(rounds), min(values), max(values)

    @property
    def first(self) -> Mapping[Place, float]:
        """The metric of the method in front."""
        return self.methods[0][1]

    @property
    def fence(self) -> float | None:
        """The value from which on a device is far behind the others; None for few devices."""
        values = list(self.first.values())
        if len(values) < LEAST:
            return None
        low, _, high = quantiles(values, method="inclusive")
        reach = FENCE * (high - low)
        return low - reach if self.measure.kind.better == "higher" else high + reach

    def verdict(self, place: Place, samples: int | None) -> str:
        """Return what sharing does to a device, and whether it is far behind the others.

        Args:
            samples: the number of the device's test samples, by which an accuracy may differ by chance; None or 0 if
                it has none.
        """
        value = self.first.get(place)
        alone = self.alone.get(place)
        if value is None:
            return "not defined" if samples else "not tested"
        parts = []
        if alone is not None:
            parts.append(self.sharing(self.measure.gain(value, alone), samples))
        if self.is_far_behind(value, samples):
            parts.append("far behind the others")
        return ", ".join(parts) or "as the others"

    def sharing(self, gain: float, samples: int | None) -> str:
        """Return what sharing does to a device.

        An accuracy's gain of fewer than :data:`FEWEST` samples may be chance: by McNemar's exact test five of five
        have a p of 2·½^5 = 6 %, and if others are lost in turn, more.
        """
        if gain == 0:
            return "as alone"
        if self.measure == ACCURACY and samples and round(abs(gain) * samples) < FEWEST:
            return f"{'gain' if gain > 0 else 'loss'} may be chance"
        return f"{'gains' if gain > 0 else 'loses'} by sharing"

    def is_far_behind(self, value: float, samples: int | None) -> bool:
        """Return whether a device is beyond Tukey's fence, an accuracy also by two standard errors of its samples."""
        if self.fence is None or self.measure.gain(value, self.fence) >= 0:
            return False
        usual = median(self.first.values())
        error = math.sqrt(usual * (1 - usual) / samples) if self.measure == ACCURACY and samples else 0.0
        return self.measure.gain(usual, value) > 2 * error


def device_section(compared: Compared, drawn: dict[str, Any]) -> str:
    """Return the headline per device: a table, if recorded, and its spread; "" without a headline."""
    if not compared.by_place:
        return ""
    known = any(final.devices for group in compared for final in group.finals)
    spread = chart("devices", charts.device_figure(compared), words.devices_caption(compared, dots=known), drawn)
    if not known:
        return section(words.places_title(compared, "device"), spread, "devices")
    body = _sorted_table(compared) + spread
    rows = _every_method(compared)
    if len(compared) > 1:
        caption = soft(words.places_caption(compared, "device", spread=False))
        head = ["device", *[group.label.shown for group in compared]]
        listing = scroll(table("", head, rows, "plain"), "all devices")  # a caption inside would scroll out of view
        body += folded("Every method on every device", listing + caption, kind="list")
    return section(words.places_title(compared, "device"), body, "devices")


def _sorted_table(compared: Compared) -> Markup:
    """Return the table of devices, the worst first; long ones are folded."""
    measure = compared.placed
    every = tuple((group, places(group, measure)) for group in compared)
    own = tuple((group, values) for group, values in every if values)
    if not own:
        return Markup("")
    alone = next((values for group, values in own if group.runs[0].method == LOCAL_ONLY and group is not own[0][0]), {})
    listed = _listed(compared)
    where = Places(measure, own, alone, _courses(own[0][0], measure, listed))
    head, rows = _cells(compared, where, listed)
    sorts = Markup(render("fedfloor.report", "sortable.html", head=head, rows=rows))
    caption = soft(_caption(compared, where))
    if len(rows) > LONG:
        return Markup(
            folded(words.devices_listed(len(rows), compared), scroll(sorts, "devices") + caption, kind="list")
        )
    return scroll(sorts, "devices") + caption


def _listed(compared: Compared) -> dict[Place, PlaceRecord]:
    """Return the recorded devices, ascending by number."""
    whole = [final for group in compared for final in group.finals]
    every = {place.key: place for final in whole for place in final.devices or ()}
    return dict(sorted(every.items(), key=lambda item: item[0][0]))


def _courses(group: Group, measure: Figure, listed: Iterable[Place]) -> dict[Place, list[tuple[int, float]]]:
    """Return the metric of a method on each device over the rounds, of the first seed that has the device."""
    found = dict[Place, list[tuple[int, float]]]()
    for run in group.runs:
        known = {place.key for place in (run.evaluation and run.evaluation.devices) or ()}
        courses = over_rounds(run) if run.headline == measure else {}
        for place in known.intersection(listed) - found.keys():
            if len(points := courses.get(place[0], [])) > 1:
                found[place] = points
    return found


def _cells(
    compared: Compared, where: Places, listed: Mapping[Place, PlaceRecord]
) -> tuple[list[str], list[list[Cell]]]:  # fmt: skip
    """Return the head and the rows of the table, the worst device first."""
    names = compared[0].runs[0].park.names
    measure = where.measure
    halls = {place.factory: place.name for group in compared for final in group.finals
             for place in final.factories or () if place.name}  # fmt: skip
    several = any(run.park.factories > 1 for run in compared.runs)
    counted = any(place.samples for place in listed.values())
    unit = " (%)" if measure.share else f" ({measure.own})" if measure.own else ""
    alone = ["each alone", "gain"] if where.alone else []
    head = ["device", *(["factory"] if several else []), *(["test samples"] if counted else [])]
    head += [f"{where.methods[0][0].label.shown}{unit}", *alone, *(["over the rounds"] if where.courses else [])]
    head += [*(["all methods"] if len(where.methods) > 1 else []), "verdict"]
    rising = measure.kind.better == "higher"
    rows = []
    for key, place in sorted(listed.items(), key=lambda item: _place(where.first.get(item[0]), rising=rising)):
        value = where.first.get(key)
        own = where.alone.get(key)
        role = f" ({place.role})" if place.role else ""
        row: list[Cell] = [(f"{place.name or names.short('device', place.number)}{role}", place.number)]
        hall = "–" if place.factory is None else halls.get(place.factory) or names.short("factory", place.factory)
        row += [(hall, place.factory)] if several else []
        row += [(f"{place.samples:,}" if place.samples else "–", place.samples)] if counted else []
        row.append(_number(measure, value))
        gain = None if value is None or own is None else measure.gain(value, own)
        row += [_number(measure, own), _signed(measure, gain, value)] if where.alone else []
        row += [_course(where, key)] if where.courses else []
        row += [(_spark(where, key), value)] if len(where.methods) > 1 else []
        row += [(where.verdict(key, place.samples), gain if where.alone else value)]
        rows.append(row)
    return head, rows


def _place(value: float | None, *, rising: bool) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else value if rising else -value


def _number(measure: Figure, value: float | None) -> Cell:
    return "–" if value is None else plain(measure, value), value


def _signed(measure: Figure, gain: float | None, like: float | None) -> Cell:
    return "–" if gain is None else f"{'+' if gain > 0 else ''}{plain(measure, gain, like)}", gain


def _course(where: Places, place: Place) -> Cell:
    """Return a device's metric over the rounds as a line, which sorts by its change."""
    points = where.courses.get(place)
    if points is None:
        return "–", None
    start, stop, low, high = where.span
    width, height = SPARK_PX
    across = (width - 8) / ((stop - start) or 1)
    up = (height - 8) / ((high - low) or 1.0)
    drawn = [(4 + (number - start) * across, height - 4 - (value - low) * up) for number, value in points]
    (first, begin) = points[0]
    (last, end) = points[-1]
    begun = metric(where.measure, begin)
    ended = metric(where.measure, end)
    label = f"round {first}: {begun}, round {last}: {ended}"
    return Markup(PIECES.course(drawn, charts.colour(0), width, height, label)), where.measure.gain(end, begin)


def _spark(where: Places, place: Place) -> Markup:
    """Return a device's metric by every method as dots on a line from the worst to the best value of all devices."""
    every = [value for _, values in where.methods for value in values.values()]
    low, high = min(every), max(every)
    width, height = SPARK_PX
    span = high - low or 1.0
    dots = [
        (6 + (values[place] - low) / span * (width - 12), charts.colour(i), charts.SYMBOLS[i % len(charts.SYMBOLS)],
         f"{group.label.shown} {metric(where.measure, values[place])}")
        for i, (group, values) in enumerate(where.methods) if place in values
    ]  # fmt: skip
    return Markup(PIECES.spark(dots[::-1], width, height))  # the method in front is drawn last


def _caption(compared: Compared, where: Places) -> str:
    """Return the caption of the table."""
    expected = "The values are expected from the classes that devices hold. " if compared.figures == "expected" else ""
    ends = [value for _, values in where.methods for value in values.values()]
    low, high = (metric(where.measure, value) for value in (min(ends), max(ends)))
    dots = f"A dot per method, from {low} at the left to {high} at the right. " if len(where.methods) > 1 else ""
    if where.courses:
        low, high = (metric(where.measure, value) for value in where.span[2:])
        dots += f"Over the rounds: {where.methods[0][0].label.shown}, from {low} at the bottom to {high} at the top. "
    on = f"on the {words.on(compared.runs)} samples of each device"
    errors = ""
    few = " The verdict on a single device rests on its own test samples alone, and may be chance."
    if where.measure == ACCURACY:
        errors = ", and two standard errors of the device's own test samples below the median device"
        few = f" A gain or loss of fewer than {FEWEST} of them may be chance." if where.alone else ""
    return (
        f"{where.measure.title} of the final models {on}, the worst first; a click on a column's name sorts by it. "
        f"{expected}{dots}Far behind: {FENCE:g} quartile ranges beyond the quartile of all devices{errors}.{few}"
    )


def _every_method(compared: Compared) -> list[list[str]]:
    """Return the metric of each method on each device as texts."""
    measure = compared.placed
    columns = [places(group, measure) for group in compared]
    names = compared[0].runs[0].park.names
    rows = []
    for key, place in _listed(compared).items():
        none = "trains only" if place.role == "trains only" else "–" if measure == ACCURACY else "not defined"
        means = [metric(measure, column[key]) if key in column else none for column in columns]
        rows.append([place.name or names.short("device", place.number), *means])
    return rows
