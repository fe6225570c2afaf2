"""What a federation costs and brings: a method beside references that are no federation."""

from __future__ import annotations

from collections.abc import Sequence

from fedfloor.figures import ACCURACY, Figure
from fedfloor.names import LOCAL_ONLY, PERSISTENCE, POOLED, SCIKIT_LEARN, SEASONAL
from fedfloor.report.groups import Group, judged
from fedfloor.report.numbers import figure
from fedfloor.report.table import Row, paired, seen_from

ABOUT = {
    POOLED: "pooled training (the same network, all data in one place)",
    LOCAL_ONLY: "local training only (the same network, each device by itself)",
    SCIKIT_LEARN: "gradient boosting (scikit-learn, on the pooled table)",
    PERSISTENCE: "persistence (the last value goes on)",
    SEASONAL: "the seasonal forecast (the value a season before)",
}
# where the method is behind, and where it is ahead: the method, the reference, by how much, of which figure
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
    SCIKIT_LEARN: PLAIN,
    PERSISTENCE: PLAIN,
    SEASONAL: PLAIN,
}


def contrast(found: Sequence[Group], first: Group) -> str:
    """Return what federation costs against pooled training and brings against local training, seed by seed.

    Args:
        found: all groups of a report.
        first: the method that is compared.
    """
    told, of = list[str](), judged([*first.runs, *(run for group in found for run in group.runs)])
    for name in OPENINGS:
        same = [group for group in found if group.runs[0].method == name and group.label != first.label]
        rows = paired([*first.runs, *same[0].runs]) if len(same) == 1 else []
        told += [_sentence(name, first, seen_from(row, first.label), of) for row in rows]
    return " ".join(told)


def _sentence(name: str, first: Group, row: Row, of: Figure) -> str:
    gap, width = of.gain(row["difference"], 0.0), row["half_width"]
    if gap == 0 and not width:
        equal = "are equally accurate" if of == ACCURACY else f"have the same {of.name}"
        return f"{first.label.shown} and {ABOUT[name]} {equal}."
    said = (first.label.shown, ABOUT[name], of.amount(figure(abs(gap), 3)), of.name)
    if width is None:
        return f"{PLAIN[gap > 0].format(*said)} with one common seed: whether that is chance, more seeds show."
    ends = f"95 % interval {figure(abs(gap) - width, 3)} to {figure(abs(gap) + width, 3)}, {len(row['seeds'])} seeds"
    if abs(gap) <= width:
        return f"No difference can be told: {PLAIN[gap > 0].format(*said)} ({ends}); the interval contains 0."
    return f"{OPENINGS[name][gap > 0].format(*said)} ({ends})."
