"""Texts on a method's lead over each reference."""

from __future__ import annotations

from fedfloor.figures import ACCURACY, Figure
from fedfloor.names import LOCAL_ONLY, PERSISTENCE, POOLED, SCIKIT_LEARN, SEASONAL
from fedfloor.report.groups import Compared, Group
from fedfloor.report.numbers import figure
from fedfloor.report.table import Row, paired, seen_from

ABOUT = {
    POOLED: "pooled training (the same network, all data in one place)",
    LOCAL_ONLY: "local training only (each device by itself)",
    SCIKIT_LEARN: "gradient boosting (scikit-learn, on the pooled table; of a window five statistics of each sensor)",
    PERSISTENCE: "persistence (the last value repeated)",
    SEASONAL: "the seasonal forecast (the value one season before)",
}
# texts for a method behind and ahead, filled with the method, the reference, the difference, the metric
PLAIN = ("{} is behind {} by {} of {}", "{} is ahead of {} by {} of {}")
OPENINGS = {
    POOLED: (
        "Federation has a cost: {} is behind {} by {} of {}",
        "Federation costs nothing: {} is ahead of {} by {} of {}",
    ),
    LOCAL_ONLY: (
        "Federation brings nothing: {} is behind {} by {} of {}",
        "Federation brings a gain: {} is ahead of {} by {} of {}",
    ),
} | dict.fromkeys((SCIKIT_LEARN, PERSISTENCE, SEASONAL), PLAIN)


def contrast(compared: Compared, first: Group) -> str:
    """Return texts on the lead of ``first`` over each reference, such as pooled and local training, seed by seed."""
    sentences, headline = list[str](), Compared([first, *compared]).headline
    for name in OPENINGS:
        same = [group for group in compared if group.runs[0].method == name and group.label != first.label]
        rows = paired([*first.runs, *same[0].runs]) if len(same) == 1 else []
        sentences += [_sentence(name, first, seen_from(row, first.label), headline) for row in rows]
    return " ".join(sentences)


def _sentence(name: str, first: Group, row: Row, headline: Figure) -> str:
    gap, width = headline.gain(row["difference"], 0.0), row["half_width"]
    if gap == 0 and not width:
        equal = "are equally accurate" if headline == ACCURACY else f"have the same {headline.name}"
        return f"{first.label.shown} and {ABOUT[name]} {equal}."
    facts = (first.label.shown, ABOUT[name], headline.amount(figure(abs(gap), 3)), headline.name)
    if width is None:
        return f"{PLAIN[gap > 0].format(*facts)} with one common seed: only more seeds can exclude chance."
    ends = f"95 % interval {figure(abs(gap) - width, 3)} to {figure(abs(gap) + width, 3)}, {len(row['seeds'])} seeds"
    if abs(gap) <= width:
        return f"No significant difference: {PLAIN[gap > 0].format(*facts)} ({ends}); the interval contains 0."
    return f"{OPENINGS[name][gap > 0].format(*facts)} ({ends})."
