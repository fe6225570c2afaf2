"""Texts on a method's lead over each reference."""

from __future__ import annotations

from collections.abc import Sequence

from fedfloor.base.names import LOCAL_ONLY, MEAN_ABS_Z, PERSISTENCE, POOLED, SCIKIT_LEARN, SEASONAL
from fedfloor.report.groups import Compared, Group
from fedfloor.report.numbers import distance
from fedfloor.report.table import Row, seen_from
from fedfloor.report.words import evidence, lacking, one_draw
from fedfloor.tasks.figures import ACCURACY, Figure

ABOUT = {
    POOLED: "pooled training (the same network, all data in one place)",
    LOCAL_ONLY: "local training only (each device by itself)",
    PERSISTENCE: "persistence (the last value repeated)",
    SEASONAL: "the seasonal forecast (the value one season before)",
    MEAN_ABS_Z: "the mean of |z| over a sample's values, without a model",
}
TESTS_ALONE = "the choice of test samples does not explain it, but more seeds are needed to exclude chance in training"
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
} | dict.fromkeys((SCIKIT_LEARN, PERSISTENCE, SEASONAL, MEAN_ABS_Z), PLAIN)


def about(name: str, first: Group) -> str:
    """Return the description of a reference for a group's data; "" for other methods."""
    if name != SCIKIT_LEARN:
        return ABOUT.get(name, "")
    windows = len(first.runs[0].park.shape) == 2
    rows = "windows of all devices, five statistics of each sensor" if windows else "rows of all devices"
    return f"gradient boosting (scikit-learn, on the {rows} in one table)"


def contrast(compared: Compared, first: Group, every: Sequence[Row]) -> str:
    """Return texts on the lead of ``first`` over each reference, such as pooled and local training, seed by seed.

    ``every`` are the paired differences of all groups.
    """
    sentences = list[str]()
    headline = compared.headline
    for name in OPENINGS:
        same = [group for group in compared if group.runs[0].method == name and group.label != first.label]
        labels = {first.label, same[0].label} if len(same) == 1 else set()
        rows = [row for row in every if {row["method"], row["against"]} == labels]
        sentences += [_sentence(name, first, seen_from(row, first.label), headline) for row in rows]
    return " ".join(sentences)


def _sentence(name: str, first: Group, row: Row, headline: Figure) -> str:
    gap = headline.gain(row["difference"], 0.0)
    other = about(name, first)
    if gap == 0 and row["low"] == row["high"] and row["half_width"] is None:
        equal = "are equally accurate" if headline == ACCURACY else f"have the same {headline.name}"
        return f"{first.label.shown} and {other} {equal}."
    facts = (first.label.shown, other, distance(headline, gap), headline.name)
    if row["low"] is None:
        seed = " with one common seed" if len(row["seeds"]) == 1 else ""
        return f"{PLAIN[gap > 0].format(*facts)}{seed}: {lacking(row)} needed to exclude chance."
    clear, text = evidence(row, headline)
    if not clear:
        return f"No significant difference: {PLAIN[gap > 0].format(*facts)} ({text})."
    if one_draw(row):
        return f"{PLAIN[gap > 0].format(*facts)} ({text}): {TESTS_ALONE}."
    return f"{OPENINGS[name][gap > 0].format(*facts)} ({text})."
