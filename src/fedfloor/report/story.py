"""The results as plain text: the target, the winner, significance, references, thresholds, and caveats."""

from __future__ import annotations

from collections.abc import Sequence

from fedfloor.figures import ACCURACY, Figure
from fedfloor.names import count
from fedfloor.report.contrast import contrast
from fedfloor.report.decisions import decision_story
from fedfloor.report.groups import Compared, Group, contestants, display_name
from fedfloor.report.notes import diverged, exact, failed, lost, private, reported, returned, unfinished, untrained
from fedfloor.report.numbers import COSTS, amount, figure, interval, listed
from fedfloor.report.remarks import remarks
from fedfloor.report.table import Row, leader, paired, seen_from, summary

LEAST = {
    "rounds": "the fewest rounds", "seconds": "the least time", "bytes": "the fewest bytes",
    "joules": "the least energy",
}  # fmt: skip
MOST = 4  # most methods named one by one


def story(compared: Compared, target: float | None) -> list[str]:
    """Return the runs' results as text; every element is a paragraph of one or two sentences."""
    rivals = contestants(compared)
    rows, headline, best = summary(rivals.runs, target), rivals.headline, _leader(rivals)
    place = standing(rivals)
    reached = "" if place and target is None else verdict(rows, headline)
    paragraphs = [
        apart(compared), reached, prices(rows, headline), place, *map(decision_story, best), *remarks(rivals),
        winner(rivals), *(contrast(compared, group) for group in best), *map(devices, best),
    ]  # fmt: skip
    notes = untrained, diverged, failed, unfinished, returned, lost, private, exact, reported
    paragraphs += [note(compared) for note in notes]
    return [text[0].upper() + text[1:] if text.startswith("centralised") else text for text in paragraphs if text]


def apart(compared: Compared) -> str:
    """Return a note if runs have different headlines, otherwise ""."""
    names = list(dict.fromkeys(run.headline.name for run in compared.runs))
    return f"These runs have different headlines ({listed(names)}); here they are judged by accuracy." * (
        len(names) > 1
    )


def verdict(rows: Sequence[Row], headline: Figure = ACCURACY) -> str:
    """Return a text on the rounds in which methods reached the target of the headline.

    >>> row = {"method": "fedsr", "seeds": [0], "target": 0.9, "reached": 1, "rounds_to_target": 6.0, "rounds": 8}
    >>> verdict([row, row | {"method": "fedavg", "reached": 0, "rounds_to_target": None}])
    'fedsr reached an accuracy of 0.90 after 6 rounds; fedavg did not within 8.'
    """
    if all(row["target"] is None for row in rows):
        return f"No {headline.name} to compare has been reached yet."
    order = sorted(
        rows, key=lambda row: (row["rounds_to_target"] is None, row["rounds_to_target"] or 0, -row["reached"])
    )
    target = f"{rows[0]['target']:.2f}" if round(rows[0]["target"], 2) == rows[0]["target"] else str(rows[0]["target"])
    target = headline.amount(f"{rows[0]['target']:g}") if headline.own else target
    reached = [row for row in order if row["reached"]]
    parts = [_reached(row, "it" if i else f"{headline.phrase} of {target}") for i, row in enumerate(reached)]
    missed = [row for row in order if not row["reached"] and not row.get("diverged")]
    for rounds in sorted({row["rounds"] for row in missed}):
        names = [display_name(row["method"]) for row in missed if row["rounds"] == rounds]
        methods = listed(names) if len(names) <= MOST else f"{len(names)} {'others' if parts else 'methods'}"
        within = f"within {rounds}" if parts else f"reach {headline.phrase} of {target} within {count(rounds, 'round')}"
        parts.append(f"{methods} did not {within}")
    return "; ".join(parts) + "." if parts else f"No run that did not diverge reached {headline.phrase} to compare."


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
    target = headline.amount(f"{rows[0]['target']:g}")
    if len(reached) == 1:
        costs = listed([amount(kind, reached[0][f"{kind}_to_target"]) for kind in kinds])
        return f"To {headline.phrase} of {target}, {display_name(reached[0]['method'])} used {costs} on the network."
    needs = [f"{methods} needed {listed(least)}" for methods, least in first.items()]
    end = "the first by every measure" if len(needs) == 1 else "the order of the methods depends on the measure"
    return f"To {headline.phrase} of {target}, {'; '.join(needs)}: {end}."


def _reached(row: Row, target: str) -> str:
    name, seeds = display_name(row["method"]), len(row["seeds"])
    if row["rounds_to_target"] is None:
        return f"{name} reached {target} with {row['reached']} of {seeds} seeds within {count(row['rounds'], 'round')}"
    rounds = float(row["rounds_to_target"])
    length = count(int(rounds), "round") if rounds.is_integer() else f"{rounds:.1f} rounds"
    return f"{name} reached {target} after {length}" + (f" (mean of {seeds} seeds)" if seeds > 1 else "")


def standing(compared: Compared) -> str:
    """Return a text with each method's headline in the last round that all its seeds evaluated, the best first."""
    rows, headline = {row["method"]: row for row in summary(compared.runs)}, compared.headline
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
        parts.append(f"{group.label.shown} {headline.amount(interval(row[headline.key], row['half_width'], 3))}{when}")
    more = f", and {len(known) - MOST} more below" if len(known) > MOST else ""
    opening = f"In round {last[known[0].label]}" if same else "In their last rounds"
    seeds = len(known[0].runs)
    equal = all(len(group.runs) == seeds for group in known)
    mean = "" if all(len(group.runs) == 1 for group in known) else " (mean over the seeds"
    mean += f", {seeds} each)" if mean and equal and len(known) > 1 else f", {seeds})" if mean and equal else ""
    mean += ")" if mean and not equal else ""
    right = "of the test samples" if known[0].runs[0].on == "test" else f"of the {known[0].runs[0].on} samples"
    figure_of = f"the share {right} that the model gets right"
    if headline != ACCURACY:
        figure_of = f"the {headline.name} of the model {right.replace('of', 'on', 1)}"
    return f"{opening}, {figure_of}{mean}: {', '.join(parts)}{more}."


def _leader(compared: Compared) -> list[Group]:
    """Return a list with the best group, or the only one; [] if none was evaluated."""
    rows, headline = summary(compared.runs), compared.headline
    scored = [
        (headline.gain(row[headline.key], 0.0), -i) for i, row in enumerate(rows) if row[headline.key] is not None
    ]
    return [compared[-max(scored)[1]]] if scored else []


def winner(compared: Compared) -> str:
    """Return a text on the lead of the best method, seed by seed, and on its significance."""
    if len(compared) < 2:
        single = len(compared) == 1 and len(compared[0].runs) == 1
        return "This is one run with one seed: the difference to another seed is not known." if single else ""
    pairs = paired(compared.runs)
    if not pairs:
        return "No two methods were evaluated with a common seed, so they cannot be compared seed by seed."
    best = leader(compared, pairs)
    first = next(group for group in compared if group.label == best)
    headline = compared.headline
    seen = (seen_from(row, best) for row in pairs if best in (row["method"], row["against"]))
    rivals = sorted(seen, key=lambda row: headline.gain(row["difference"], 0.0))
    sentences = [_difference(first, row, headline) for row in rivals[:MOST]]
    if len(rivals) > MOST:
        clear = sum(_beyond_chance(row) for row in rivals[MOST:])
        sentences.append(f"Of the {len(rivals) - MOST} methods further behind, {clear} are behind by more than chance.")
    return " ".join(sentences)


def _beyond_chance(row: Row) -> bool:
    width = row["half_width"]
    return width is not None and abs(row["difference"]) > width


def _difference(first: Group, row: Row, headline: Figure) -> str:
    name, other, width = first.label.shown, display_name(row["against"]), row["half_width"]
    gap = headline.gain(row["difference"], 0.0)
    rounds = row["rounds"]
    when = f"in round {rounds[0]}" if len(rounds) == 1 else "in their last common rounds" if rounds else "at their ends"
    if gap == 0 and not width:
        seeds = "the only common seed" if width is None else "every common seed"
        equal = "are equally accurate" if headline == ACCURACY else f"have the same {headline.name}"
        return f"{name} and {other} {equal} {when}, with {seeds}."
    words = f"{name} is ahead of {other} by {headline.amount(figure(gap, 3))} {when}"
    if gap < 0:
        words = f"{name} is behind {other} by {headline.amount(figure(-gap, 3))} {when}"
    if width is None:
        return f"{words}, with one common seed: more seeds are needed to exclude chance."
    words += f" (95 % interval {figure(gap - width, 3)} to {figure(gap + width, 3)}, {len(row['seeds'])} seeds)"
    if _beyond_chance(row):
        return f"{words}: more than chance explains."
    return f"No significant difference: {words}; the interval contains 0."


def devices(group: Group) -> str:
    """Return a text on the headline that a group's model attains on nine of ten devices."""
    alone = Compared([group])
    measure = alone.placed
    spreads = group.last_spreads(measure)
    if not spreads:
        return ""
    higher = measure.kind.better == "higher"
    end = sum(spread.p10 if higher else spread.p90 for spread in spreads) / len(spreads)
    kind, name = alone.figures, group.label.shown
    right = f"{measure.phrase} of at {'least' if higher else 'most'} {measure.amount(f'{end:.2f}')}"
    right = f"a share of at least {end:.2f} right" if measure == ACCURACY else right
    if kind == "measured":
        which = "with test samples" if measure == ACCURACY else "on which it is defined"
        return f"On nine in ten of the devices {which}, the model of {name} gets {right}."
    if kind == "expected":
        return (
            f"By the classes they hold, nine devices in ten can expect the model of {name} to get {right}; this is not "
            "a measurement, as no test sample belongs to a device."
        )
    return (
        f"On nine devices in ten, the model of {name} gets {right}, measured or expected by the classes they hold: the "
        "runs do not record which."
    )
