"""What ``[decide]`` chose: the threshold of a class, by what it was chosen, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from fedfloor.names import count
from fedfloor.report.groups import Group, spoken
from fedfloor.report.ledger import Run
from fedfloor.report.numbers import figure, listed
from fedfloor.report.records import DecidedRecord, DecideRecord

HEAD = ["method", "seed", "decided", "recall", "precision", "F1", "found", "missed", "false alarms"]
SHARES = ("recall", "precision", "f1")
COUNTS = ("found", "missed", "false_alarms")


def decided(run: Run) -> tuple[str, DecideRecord] | None:
    """Return the class that has a threshold in a run's last model, and what is known of it; None without one."""
    final = run.evaluation
    if final is None or final.decide is None or final.decide.positive is None:
        return None
    return final.classes[final.decide.positive], final.decide


def story(group: Group) -> str:
    """Return a group's threshold and its figures beside those of the likeliest class, means over the seeds."""
    known = [one for one in map(decided, group.runs) if one is not None]
    if not known or len({(name, made.validation.by) for name, made in known}) > 1:
        return ""
    (name, first), every = known[0], [made for _, made in known]
    limits = [made.threshold for made in every]
    low, high = f"{min(limits):.4g}", f"{max(limits):.4g}"
    many = "" if len(every) == 1 else f", means of {len(every)} seeds"
    return (
        f"{spoken(group.label)} decides for '{name}' where its probability is at least "
        f"{low if low == high else f'{low} to {high}'} ({_chosen(name, first)}). On the {_on(group.runs[0])} samples"
        f"{many}: {_words([made.decided for made in every])}; by the likeliest class, as in all other figures here: "
        f"{_words([made.likeliest for made in every])}."
    )


def _words(found: Sequence[DecidedRecord]) -> str:
    shares = [f"{'F1' if of == 'f1' else of} {figure(_mean(found, of), 3)}" for of in SHARES]
    alarms = [one.false_alarms for one in found]
    many = count(alarms[0], "false alarm") if len(set(alarms)) == 1 else f"{mean(alarms):.1f} false alarms"
    return listed([*shares, many])


def _mean(found: Sequence[DecidedRecord], of: str) -> float | None:
    """Return the mean of a figure; None where a seed has none."""
    values = [getattr(one, of) for one in found]
    return None if None in values else mean(values)


def _chosen(name: str, made: DecideRecord) -> str:
    held = made.validation
    kept = ", which no threshold reaches there" if held.missed_rule else ""
    return f"{held.by}{kept}; chosen on {count(held.samples, 'validation sample')}, {held.positives:,} of them '{name}'"


def _on(run: Run) -> str:
    return "test" if run.on == "test" else "same validation"


def rows(found: Sequence[Group]) -> list[list[str]]:
    """Return two rows of text per run that has a threshold: what it comes to, and the likeliest class."""
    cells = []
    for group in found:
        for run in group.runs:
            if (known := decided(run)) is None:
                continue
            name, made = known
            ways = {f"'{name}' from {made.threshold:.4g} on": made.decided, "likeliest class": made.likeliest}
            for way, one in ways.items():
                shares = [figure(getattr(one, of)) for of in SHARES]
                cells.append([spoken(group.label), str(run.seed), way, *shares,
                              *[f"{getattr(one, of):,}" for of in COUNTS]])  # fmt: skip
    return cells


def caption(found: Sequence[Group]) -> str:
    """Return how the thresholds were chosen, and on which samples the figures are."""
    runs = [run for group in found for run in group.runs]
    known = [(run, *one) for run in runs if (one := decided(run)) is not None]
    ways = listed(list(dict.fromkeys(_chosen(name, made) for _, name, made in known)))
    on = listed(list(dict.fromkeys(_on(run) for run, _, _ in known)))
    return (
        f"The last round's model on the {on} samples. A sample is of the class where its probability reaches the "
        f"threshold ({ways}), else of the likeliest other class. predict and ONNX files decide by the threshold; the "
        "headline and all other figures of this page are those of the likeliest class."
    )
