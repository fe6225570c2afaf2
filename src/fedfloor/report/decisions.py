"""Thresholds chosen on validation data, as text and as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from fedfloor.base.names import count
from fedfloor.report.evaluation_records import DecidedRecord, DecideRecord
from fedfloor.report.groups import Compared, Group
from fedfloor.report.ledger import RecordedRun
from fedfloor.report.numbers import listed, metric
from fedfloor.tasks.figures import ACCURACY

DECISION_HEAD = ["method", "seed", "decided", "recall", "precision", "F1", "found", "missed", "false alarms"]
SHARES = ("recall", "precision", "f1")
COUNTS = ("found", "missed", "false_alarms")


def decided(run: RecordedRun) -> tuple[str, DecideRecord] | None:
    """Return the class with a threshold in a run's last model, and the decision's record; None without one."""
    final = run.evaluation
    if final is None or final.decide is None or final.decide.positive is None:
        return None
    return final.classes[final.decide.positive], final.decide


def decision_story(group: Group) -> str:
    """Return a text on a group's threshold, with its metrics and those of the likeliest class, means over the seeds."""
    known = [decision for decision in map(decided, group.runs) if decision is not None]
    if not known or len({(name, made.validation.by) for name, made in known}) > 1:
        return ""
    (name, first) = known[0]
    every = [made for _, made in known]
    limits = [made.threshold for made in every]
    low, high = f"{min(limits):.4g}", f"{max(limits):.4g}"
    many = "" if len(every) == 1 else f", means of {len(every)} seeds"
    return (
        f"{group.label.shown} decides for '{name}' where its probability is at least "
        f"{low if low == high else f'{low} to {high}'} ({_decision_rule(name, first)}). On the "
        f"{_decided_on(group.runs[0])} samples{many}: {_decided_words([made.decided for made in every])}; by the "
        "likeliest class, as in all other figures here: "
        f"{_decided_words([made.likeliest for made in every])}."
    )


def _decided_words(decisions: Sequence[DecidedRecord]) -> str:
    """Return the means of a decision's metrics over the seeds as text, with a dash if a seed has no value."""
    shares = []
    for name in SHARES:
        values = [getattr(decision, name) for decision in decisions]
        value = None if None in values else mean(values)
        shares.append(f"{'F1' if name == 'f1' else name} {metric(ACCURACY, value)}")
    alarms = [decision.false_alarms for decision in decisions]
    many = count(alarms[0], "false alarm") if len(set(alarms)) == 1 else f"{mean(alarms):.1f} false alarms"
    return listed([*shares, many])


def _decision_rule(name: str, made: DecideRecord) -> str:
    held = made.validation
    kept = ", which no threshold attains on these samples" if held.missed_rule else ""
    return f"{held.by}{kept}; chosen on {count(held.samples, 'validation sample')}, {held.positives:,} of them '{name}'"


def _decided_on(run: RecordedRun) -> str:
    return "test" if run.on == "test" else "same validation"


def decision_rows(compared: Compared) -> list[list[str]]:
    """Return two rows of texts per run with a threshold: decisions by the threshold, and by the likeliest class."""
    cells = []
    for group, run in [(runs_of, run) for runs_of in compared for run in runs_of.runs]:
        if (known := decided(run)) is None:
            continue
        name, made = known
        ways = {f"'{name}' from {made.threshold:.4g} on": made.decided, "likeliest class": made.likeliest}
        for way, figures in ways.items():
            numbers = [metric(ACCURACY, getattr(figures, key)) for key in SHARES]
            numbers += [f"{getattr(figures, key):,}" for key in COUNTS]
            cells.append([group.label.shown, str(run.seed), way, *numbers])
    return cells


def decision_caption(compared: Compared) -> str:
    """Return a caption on the rules that chose the thresholds and on the samples of the metrics."""
    known = [(run, *decision) for run in compared.runs if (decision := decided(run)) is not None]
    ways = listed(list(dict.fromkeys(_decision_rule(name, made) for _, name, made in known)))
    on = listed(list(dict.fromkeys(_decided_on(run) for run, _, _ in known)))
    return (
        f"The last round's model on the {on} samples. A sample is of the class where its probability reaches the "
        f"threshold ({ways}), else of the likeliest other class. predict and ONNX files decide by the threshold; the "
        "headline and all other figures of this page are those of the likeliest class."
    )
