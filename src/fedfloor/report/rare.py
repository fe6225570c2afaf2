"""Rare classes, on which the accuracy hardly depends: what models find of them, and settings to decide for one."""

from __future__ import annotations

from statistics import mean

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.names import count, typed
from fedfloor.report.decisions import decided
from fedfloor.report.groups import CLASSES, Compared, Group
from fedfloor.report.ledger import summed
from fedfloor.report.numbers import listed, metric
from fedfloor.tasks.figures import ACCURACY, recalls

RARE = 0.1  # share of the test samples below which a class hardly affects the accuracy, if classes are few
MOST = 4  # most methods named one by one


def rare_classes(compared: Compared) -> list[int]:
    """Return the rare classes of the test samples of models that are judged by their accuracy."""
    known = [group for group in compared if group.finals][:MOST]
    finals = [final for group in known for final in group.finals]
    if compared.task != CLASSES or compared.headline != ACCURACY or len({final.classes for final in finals}) != 1:
        return []
    tested = np.array(finals[0].confusion).sum(axis=1)
    if tested.sum() > known[0].runs[0].park.test_samples:  # by several devices' models
        return []
    rare = (tested > 0) & (tested < min(RARE, 0.5 / len(tested)) * tested.sum())
    return [int(c) for c in np.flatnonzero(rare)]


def rarest(compared: Compared) -> str:
    """Return a text on the rare classes that models judged by their accuracy find; "" without a rare class."""
    if not (rare := rare_classes(compared)):
        return ""
    known = [group for group in compared if group.finals][:MOST]
    tables = {group.label.shown: np.array(summed(group.finals)) for group in known}
    if len(rare) > 1:
        means = [f"{metric(ACCURACY, _balanced(table))} with {name}" for name, table in tables.items()]
        return (
            f"{len(rare)} classes are rare in the test samples, and the accuracy hardly depends on them: the mean of "
            f"all classes' recalls (balanced accuracy) is {listed(means)}."
        )
    (c,) = rare
    parts = [f"{name}: {_found(table, c)}, with {_alarms(table, c)}" for name, table in tables.items()]
    seeds = "; sums over seeds" if any(len(group.finals) > 1 for group in known) else ""
    final = known[0].finals[0]
    tested = np.array(final.confusion).sum(axis=1)
    return (
        f"'{final.classes[c]}' is rare ({100 * tested[c] / tested.sum():.2g} % of the test samples{seeds}), and the "
        f"accuracy hardly depends on it: {'; '.join(parts)}."
    )


def rare_figures(compared: Compared, group: Group) -> tuple[str, str] | None:
    """Return what a method's models find of the rare classes, and a note on it; None without a rare class.

    Of a single rare class these are the samples found and the false alarms, by its threshold if the runs have one; of
    several the balanced accuracy.
    """
    rare = rare_classes(compared)
    if not rare or not group.finals:
        return None
    table = np.array(summed(group.finals))
    names = group.finals[0].classes
    seeds = f", sums over {len(group.finals)} seeds" if len(group.finals) > 1 else ""
    if len(rare) > 1:
        few = f"{len(rare)} classes are rare"
        return metric(ACCURACY, mean(_balanced(np.array(final.confusion)) for final in group.finals)), (
            f"balanced accuracy of {group.label.shown} ({few})"
        )
    (c,) = rare
    made = [known[1].decided for run in group.runs if (known := decided(run)) and known[0] == names[c]]
    if made and len(made) == len(group.finals):
        found, missed, alarms = (
            sum(getattr(each, key) for each in made) for key in ("found", "missed", "false_alarms")
        )
        how = f"of '{names[c]}' with {count(alarms, 'false alarm')}, by the threshold of {group.label.shown}{seeds}"
        return f"{found:,} of {found + missed:,} found", how
    return _found(table, c), f"of '{names[c]}' with {_alarms(table, c)}, by {group.label.shown}{seeds}"


def decision_settings(compared: Compared, group: Group) -> tuple[str, str] | None:
    """Return the rare class for which no threshold decides yet, and the options that choose one; None otherwise."""
    rare = rare_classes(compared)
    if len(rare) != 1 or not group.finals or any(decided(run) for run in group.runs):
        return None
    name = group.finals[0].classes[rare[0]]
    return name, f"{typed('decide.positive', name)} --set decide.by=f1 --set evaluate.on=both"


def _found(table: NDArray[np.int64], c: int) -> str:
    return f"{table[c, c]:,} of {table[c].sum():,} found"


def _alarms(table: NDArray[np.int64], c: int) -> str:
    return count(int(table[:, c].sum() - table[c, c]), "false alarm")


def _balanced(table: NDArray[np.int64]) -> float:
    return float(np.nanmean(recalls(table)))
