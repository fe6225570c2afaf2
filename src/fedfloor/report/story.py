"""The results as plain text: the target, the winner, significance, references, thresholds, and caveats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import numpy as np

from fedfloor.base.names import count
from fedfloor.report import words
from fedfloor.report.contrast import TESTS_ALONE, contrast
from fedfloor.report.decisions import decision_story
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.groups import Compared, Group, contestants, display_name
from fedfloor.report.ledger import by_place
from fedfloor.report.notes import diverged, exact, failed, lost, private, reported, returned, unfinished, untrained
from fedfloor.report.numbers import COSTS, amount, distance, listed, metric
from fedfloor.report.rare import rarest
from fedfloor.report.remarks import remarks
from fedfloor.report.table import Row, leader, paired, seen_from, summary
from fedfloor.report.traffic import traffic
from fedfloor.report.words import CHANCE
from fedfloor.tasks.figures import ACCURACY, Figure
from fedfloor.tasks.metric import described

LEAST = {
    "rounds": "the fewest rounds", "seconds": "the least time", "bytes": "the fewest bytes",
    "joules": "the least energy",
}  # fmt: skip
MOST = 4  # most methods named one by one
LEAST_UNITS = 5  # test units of an interval
NO_MEASUREMENT = "this is not a measurement, as no test sample belongs to a device"
SLACK = 1e-9  # of rounded shares
NOTES = (untrained, diverged, failed, unfinished, returned, lost, private, exact, reported)
TEN = 10  # devices from which on "nine in ten" has a meaning


def story(
    compared: Compared, target: float | None, *, hindsight: bool = False, against: str | None = None
) -> list[str]:  # fmt: skip
    """Return the runs' results as text; every element is a paragraph of one or two sentences.

    Args:
        hindsight: whether the target was chosen after the results; it is then no result of a single method.
        against: the label of the method that the others are compared with; default: the best one.
    """
    return [part.text for part in paragraphs(compared, target, hindsight=hindsight, against=against)]


class Paragraph(NamedTuple):
    """A paragraph of the story; ``statistics``: it compares methods seed by seed, with intervals and p-values."""

    text: str
    statistics: bool = False


def paragraphs(
    compared: Compared, target: float | None, *, hindsight: bool = False, against: str | None = None
) -> list[Paragraph]:  # fmt: skip
    """Return the story by paragraphs; arguments as :func:`story`."""
    rivals = contestants(compared)
    rows = summary(rivals.runs, target)
    headline = rivals.headline
    best = leading(rivals)
    pairs = paired(compared.runs, against=against)
    place = standing(rivals)
    needs = {tuple(row[f"{kind}_to_target"] for kind in ("rounds", *COSTS)) for row in rows}
    aim = not place or (target is not None and (not hindsight or len(needs) > 1))
    reached = verdict(rows, headline) if aim else ""
    if hindsight and reached and place:
        reached += " That target was chosen with hindsight: it is the best that all seeds of a method reached, rounded."
    results = [
        rarest(rivals), place, apart(compared), ranked(rivals), reached, prices(rows, headline) if aim else "",
        traffic(rivals), *map(decision_story, best), *remarks(rivals),
    ]  # fmt: skip
    differences = [winner(rivals, pairs, against), varying(rivals)]
    differences += [] if against else [contrast(compared, group, pairs) for group in best]
    notes = [note(compared) for note in NOTES]
    texts = [*map(Paragraph, results), *(Paragraph(text, True) for text in differences)]
    texts += [Paragraph(text) for text in (*map(devices, best), *notes)]
    return [Paragraph(_begun(part.text), part.statistics) for part in texts if part.text]


def _begun(text: str) -> str:
    return text[0].upper() + text[1:] if text.startswith("centralised") else text


def apart(compared: Compared) -> str:
    """Return a note if runs have different headlines, otherwise ""."""
    figures = dict.fromkeys(run.headline for run in compared.runs)
    names = list(dict.fromkeys(figure.name for figure in figures))
    if len(names) < len(figures):  # metrics of one's own with other settings
        names = list(dict.fromkeys(map(described, figures)))
    return f"These runs have different headlines ({listed(names)}); here they are judged by accuracy." * (
        len(names) > 1
    )


def ranked(compared: Compared) -> str:
    """Return a note if methods are ranked by the median device, otherwise ""."""
    if compared.headline == compared.recorded:
        return ""
    name = compared.recorded.name
    return (
        f"Devices have different models, and no test sample belongs to a device: methods are ranked by the {name} that "
        f"the median device can expect by the classes it holds. The column {name} has the mean over all models on all "
        "test samples, also of classes that a model's devices do not hold."
    )


def verdict(rows: Sequence[Row], headline: Figure = ACCURACY) -> str:
    """Return a text on the rounds in which methods reached the target of the headline.

    >>> row = {"method": "fedsr", "seeds": [0], "target": 0.9, "reached": 1, "rounds_to_target": 6.0, "rounds": 8}
    >>> verdict([row, row | {"method": "fedavg", "reached": 0, "rounds_to_target": None}])
    'fedsr reached an accuracy of 90\xa0% after 6 rounds; fedavg did not within 8.'
    """
    if all(row["target"] is None for row in rows):
        return f"No {headline.name} to compare has been reached yet."
    order = sorted(
        rows, key=lambda row: (row["rounds_to_target"] is None, row["rounds_to_target"] or 0, -row["reached"])
    )
    target = goal(headline, rows[0]["target"])
    reached = [row for row in order if row["reached"]]
    parts = [_reached(row, "it" if i else f"{headline.phrase} of {target}") for i, row in enumerate(reached)]
    missed = [row for row in order if not row["reached"] and not row.get("diverged")]
    for rounds in sorted({row["rounds"] for row in missed}):
        names = [display_name(row["method"]) for row in missed if row["rounds"] == rounds]
        methods = listed(names) if len(names) <= MOST else f"{len(names)} {'others' if parts else 'methods'}"
        within = f"within {rounds}" if parts else f"reach {headline.phrase} of {target} within {count(rounds, 'round')}"
        parts.append(f"{methods} did not {within}")
    return "; ".join(parts) + "." if parts else f"No run that did not diverge reached {headline.phrase} to compare."


def goal(headline: Figure, target: float) -> str:
    """Return a target as text, with all its digits.

    >>> goal(ACCURACY, 0.8), goal(ACCURACY, 0.985)
    ('80\xa0%', '98.5\xa0%')
    """
    return f"{100 * target:.10g}\u00a0%" if headline.share else headline.amount(f"{target:g}")


def prices(rows: Sequence[Row], headline: Figure = ACCURACY) -> str:
    """Return a text on the target's cost on the network, and the best methods by rounds, time, bytes and energy.

    Only methods with all seeds at the target are compared.
    """
    reached = [row for row in rows if row["rounds_to_target"] is not None]
    kinds = [kind for kind in COSTS if any(row[f"{kind}_to_target"] for row in reached)]
    if not kinds:
        return ""
    first: dict[str, list[str]] = {}
    for kind in ("rounds", *kinds):
        known = [row for row in reached if row[f"{kind}_to_target"] is not None]
        least = min(row[f"{kind}_to_target"] for row in known)
        methods = listed([display_name(row["method"]) for row in known if row[f"{kind}_to_target"] == least])
        cost = f"{least:g}" if kind == "rounds" else amount(kind, least)
        first.setdefault(methods, []).append(f"{LEAST[kind]} ({cost})")
    target = goal(headline, rows[0]["target"])
    if len(reached) == 1:
        costs = listed([amount(kind, reached[0][f"{kind}_to_target"]) for kind in kinds])
        return f"To {headline.phrase} of {target}, {display_name(reached[0]['method'])} used {costs} on the network."
    needs = [f"{methods} needed {listed(least)}" for methods, least in first.items()]
    end = "the first by every measure" if len(needs) == 1 else "the order of the methods depends on the measure"
    return f"To {headline.phrase} of {target}, {'; '.join(needs)}: {end}."


def _reached(row: Row, target: str) -> str:
    name = display_name(row["method"])
    seeds = len(row["seeds"])
    if row["rounds_to_target"] is None:
        return f"{name} reached {target} with {row['reached']} of {seeds} seeds within {count(row['rounds'], 'round')}"
    rounds = float(row["rounds_to_target"])
    length = count(int(rounds), "round") if rounds.is_integer() else f"{rounds:.1f} rounds"
    return f"{name} reached {target} after {length}" + (f" (mean of {seeds} seeds)" if seeds > 1 else "")


def standing(compared: Compared) -> str:
    """Return a text with each method's headline in the last round that all its seeds evaluated, the best first."""
    rows = {row["method"]: row for row in summary(compared.runs)}
    headline = compared.headline
    known = sorted((g for g in compared if rows[g.label][headline.key] is not None),
                   key=lambda g: -headline.gain(rows[g.label][headline.key], 0.0))  # fmt: skip
    if not known:
        return ""
    last = {group.label: group.last_lines(headline.read)[0].round for group in known}
    same = len(set(last.values())) == 1
    parts = []
    for group in known[:MOST]:
        row = rows[group.label]
        when = "" if same else f" (round {last[group.label]})"
        shown = metric(headline, row[headline.key], row["low"], row["high"])
        parts.append(f"{group.label.shown} {shown}{when}")
    more = f", and {len(known) - MOST} more below" if len(known) > MOST else ""
    opening = f"In round {last[known[0].label]}" if same else "In their last rounds"
    seeds = len(known[0].runs)
    equal = all(len(group.runs) == seeds for group in known)
    mean = "" if all(len(group.runs) == 1 for group in known) else " (mean over the seeds"
    mean += f", {seeds} each)" if mean and equal and len(known) > 1 else f", {seeds})" if mean and equal else ""
    mean += ")" if mean and not equal else ""
    right = "of the test samples" if known[0].runs[0].on == "test" else f"of the {known[0].runs[0].on} samples"
    figure_of = f"the share {right} that the model gets right"
    if headline != compared.recorded:
        figure_of = f"the {headline.name}, expected by the classes it holds"
    elif headline != ACCURACY:
        figure_of = f"the {headline.name} of the model {right.replace('of', 'on', 1)}"
    over = list(dict.fromkeys(rows[group.label]["over"] for group in known[:MOST] if rows[group.label]["over"]))
    brackets = f" In brackets: the 95 % interval over {'; '.join(over)}." if over else ""
    return f"{opening}, {figure_of}{mean}: {', '.join(parts)}{more}.{brackets}"


def leading(compared: Compared) -> list[Group]:
    """Return a list with the best group, or the only one; [] if none was evaluated."""
    rows = summary(compared.runs)
    headline = compared.headline
    scored = [
        (headline.gain(row[headline.key], 0.0), -i) for i, row in enumerate(rows) if row[headline.key] is not None
    ]
    return [compared[-max(scored)[1]]] if scored else []


def winner(compared: Compared, every: Sequence[Row], against: str | None = None) -> str:
    """Return a text on the lead of the best method, seed by seed, and on its significance.

    Args:
        every: the paired differences, also those of references.
        against: the label of the method that the others are compared with, instead of the best one.
    """
    if len(compared) < 2 and not against:
        return ""
    labels = {group.label for group in compared} | ({row["against"] for row in every} if against else set())
    pairs = [row for row in every if {row["method"], row["against"]} <= labels]
    if not pairs:
        return "No two methods were evaluated with a common seed, so they cannot be compared seed by seed."
    headline = compared.headline
    rows = pairs
    if not against:
        best = leader(compared, pairs)
        rows = [seen_from(row, best) for row in pairs if best in (row["method"], row["against"])]
    rows = sorted(rows, key=lambda row: headline.gain(row["difference"], 0.0), reverse=bool(against))
    sentences = [_difference(row, headline) for row in rows[:MOST]]
    if len(rows) > MOST:
        clear = sum(map(words.beyond_chance, rows[MOST:]))
        others = "other methods" if against else "methods further behind"
        apart = f"differ from {display_name(rows[0]['against'])}" if against else "are behind"
        sentences.append(f"Of the {len(rows) - MOST} {others}, {clear} {apart} by more than chance.")
    return " ".join(sentences)


def _difference(row: Row, headline: Figure) -> str:
    name = display_name(row["method"])
    other = display_name(row["against"])
    gap = headline.gain(row["difference"], 0.0)
    rounds = row["rounds"]
    when = f"in round {rounds[0]}" if len(rounds) == 1 else "in their last common rounds" if rounds else "at their ends"
    if gap == 0 and row["low"] == row["high"] and row["half_width"] is None:
        seeds = "the only common seed" if len(row["seeds"]) == 1 else "every common seed"
        equal = "are equally accurate" if headline == ACCURACY else f"have the same {headline.name}"
        return f"{name} and {other} {equal} {when}, with {seeds}."
    ahead = "ahead of" if gap >= 0 else "behind"
    size = distance(headline, gap)
    text = f"{name} is {ahead} {other} by {size} {when}"
    if row["low"] is None:
        seed = ", with one common seed" if len(row["seeds"]) == 1 else ""
        return f"{text}{seed}: {words.lacking(row)} needed to exclude chance."
    clear, evidence = words.evidence(row, headline)
    if not clear:
        return f"No significant difference: {text} ({evidence})."
    if words.one_draw(row):
        return f"{text} ({evidence}): {TESTS_ALONE}."
    return f"{text} ({evidence}): more than chance explains."


def varying(compared: Compared) -> str:
    """Return a text on what intervals leave out: seeds that were not tried, and test units where they are too few."""
    texts = []
    for group in compared:
        final = group.finals[0] if group.finals else None
        if not any(run.seeded for run in group.runs):
            texts.append(f"Another seed gives the same model of {group.label.shown}, which draws nothing at random.")
        elif len(group.runs) == 1 and len(compared) == 1:
            texts.append("This is one run with one seed: the difference to another seed is not known.")
        if final and final.resampled and final.resampled.units < LEAST_UNITS and group.label == compared[0].label:
            units = count(final.resampled.units, final.resampled.unit)
            texts.append(f"The test samples of a run are of {units}: too few to estimate what others would give.")
    return " ".join(texts)


def devices(group: Group) -> str:
    """Return a text on the headline that a group's model attains on nine of ten devices; of few, on the extremes."""
    alone = Compared([group])
    measure = alone.placed
    spreads = group.last_spreads(measure)
    if not spreads or not alone.by_place:
        return ""
    every = by_place(group.finals, "devices", measure)
    named = {key: _named(key[1], key[0]) for key in every}
    means = {named[key]: mean(values) for key, values in every.items() if values}
    order = sorted(means, key=lambda device: measure.gain(means[device], 0.0))
    if (len(order) or group.runs[0].park.size) < TEN:
        return _extremes(group, order[0], order[-1], means, alone) if len(order) > 1 else ""
    higher = measure.kind.better == "higher"
    # a tenth of the devices, rounded down, is worse
    end = means[order[len(order) // TEN]] if order else mean([one.p10 if higher else one.p90 for one in spreads])
    end = (math.floor(1000 * end + SLACK) if higher else math.ceil(1000 * end - SLACK)) / 1000
    right = f"{measure.phrase} of at {'least' if higher else 'most'} {metric(measure, end)}"
    name = group.label.shown
    about = "nine" if order else "about nine"
    if alone.figures == "measured":
        which = "with test samples" if measure == ACCURACY else "on which it is defined"
        return f"On {about} in ten of the devices {which}, the model of {name} has {right}."
    if alone.figures == "expected":
        return (
            f"By the classes they hold, {about} devices in ten can expect the model of {name} to have {right}; "
            f"{NO_MEASUREMENT}."
        )
    return (
        f"On {about} devices in ten, the model of {name} has {right}, measured or expected by the classes they hold: "
        "the runs do not record which."
    )


def _extremes(group: Group, worst: str, best: str, means: Mapping[str, float], alone: Compared) -> str:
    """Return a text on the worst and the best of a few devices."""
    measure = alone.placed
    name = group.label.shown
    low, high = (metric(measure, means[device]) for device in (worst, best))
    if alone.figures == "expected":
        return (
            f"By the classes they hold, of {len(means)} devices {worst} can expect the least of the model of {name}, "
            f"{measure.phrase} of {low}, and {best} the most, {high}; {NO_MEASUREMENT}."
        )
    if low == high:
        return f"On each of {len(means)} tested devices, the model of {name} has {measure.phrase} of {low}."
    several = len(group.runs) > 1
    seeds = " (means over the seeds that tested them)" if several else ""
    more = "" if several or not group.finals else _by_chance(group.finals[0], measure)
    return (
        f"Of {len(means)} tested devices{seeds}, the model of {name} is worst on {worst}, with {measure.phrase} of "
        f"{low}, and best on {best}, with {high}.{more}"
    )


def _named(name: str | None, number: int) -> str:
    return name if name and not name.isdigit() else f"device {name or number}"


def _by_chance(final: EvaluationRecord, measure: Figure) -> str:
    """Return texts on devices without a sample of the rarest class, and on whether chance explains the differences.

    It does if Pearson's test of equal shares, χ² = Σ_k (e_k − n_k·ē)²/(n_k·ē·(1 − ē)) of the errors e_k of n_k samples
    with their common share ē, has a p-value of 0.05 or more. Dependent samples differ by chance even more.
    """
    from scipy.special import chdtrc

    places = [place for place in final.devices or () if place.samples and place.accuracy is not None]
    if measure != ACCURACY or len(places) < 2:
        return ""
    tested = {name: sum(row) for name, row in zip(final.classes, final.confusion, strict=True) if sum(row)}
    without = [_named(place.name, place.number) for place in places if not place.rarest]
    text = ""
    if without and len(tested) > 1:
        which = listed(without) if len(without) <= MOST else f"{len(without)} of them"
        have = "has" if len(without) == 1 else "have"
        text = f" {which} {have} no test sample of '{min(tested, key=lambda name: tested[name])}'."
    samples = np.array([place.samples for place in places])
    errors = np.array([round(place.samples * (1 - place.accuracy)) for place in places])  # type: ignore[operator]
    share = errors.sum() / samples.sum()
    if 0 < share < 1:
        statistic = ((errors - samples * share) ** 2 / (samples * share * (1 - share))).sum()
        if chdtrc(len(places) - 1, statistic) >= CHANCE:
            text += " Chance in these samples explains the differences between devices."
    return text
