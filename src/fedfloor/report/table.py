"""The figures of a comparison as rows: for the page and for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from fedfloor.report.groups import Group, accuracy, groups, half_width, last_lines, loss, values
from fedfloor.report.ledger import Run

Row = dict[str, Any]


def summary(runs: Iterable[Run], target: float | None = None) -> list[Row]:
    """Return one row of JSON scalars per experiment, its seeds taken together.

    ``accuracy`` and ``loss`` belong to the last round that every seed evaluated, ``best_accuracy`` is the mean of the
    seeds' best, ``macro_f1`` that of their final models where all have one, ``rounds`` is what every seed finished,
    ``wall_s`` the mean of the seeds' seconds. ``rounds_to_target`` is the mean over seeds, and None unless all of them
    (``reached``) got there.

    Args:
        runs: what :func:`fedfloor.report.ledger.collect` returned.
        target: an accuracy, such as 0.8.
    """
    return [_row(group, target) for group in groups(runs)]


def _row(group: Group, target: float | None) -> Row:
    last = [line.accuracy for line in last_lines(group, accuracy) if line.accuracy is not None]
    last_loss = [line.loss for line in last_lines(group, loss) if line.loss is not None]
    best = [max(found.values()) for run in group.runs if (found := values(run, accuracy))]
    finals = [run.evaluation.macro_f1 if run.evaluation else None for run in group.runs]
    f1 = [value for value in finals if value is not None]
    reached = [number for run in group.runs if (number := rounds_to(run, target)) is not None]
    return {
        "method": group.label,
        "seeds": [run.seed for run in group.runs],
        "rounds": min(run.rounds[-1].number for run in group.runs),
        "accuracy": _mean(last),
        "half_width": half_width(last),
        "best_accuracy": _mean(best),
        "macro_f1": _mean(f1) if len(f1) == len(group.runs) else None,
        "loss": _mean(last_loss),
        "target": target,
        "reached": len(reached),
        "rounds_to_target": _mean(reached) if len(reached) == len(group.runs) else None,
        "wall_s": _mean([sum(line.wall_s for line in run.rounds) for run in group.runs]),
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def rounds_to(run: Run, target: float | None) -> int | None:
    """Return the first evaluated round in which a run has the target accuracy."""
    if target is None:
        return None
    return next((number for number, value in values(run, accuracy).items() if value >= target), None)


def natural_target(runs: Iterable[Run]) -> float | None:
    """Return the highest of 0.05, 0.10, …, 0.95, 0.96, …, 0.99 that all seeds of at least one method reached."""
    reach = [min(max(values(run, accuracy).values(), default=0.0) for run in group.runs) for group in groups(runs)]
    steps = [step / 100 for step in (*range(5, 95, 5), *range(95, 100))]
    return max((step for step in steps if step <= max(reach, default=0.0)), default=None)


def paired(runs: Iterable[Run]) -> list[Row]:
    """Return, for every two methods, how much the first is more accurate than the second over their common seeds.

    Each seed gives one difference, taken in the last round that both evaluated (``rounds``); ``half_width`` is the
    95 % Student-t interval of their mean, None with one common seed. Methods without a common seed give no row.
    """
    rows = []
    for one, other in combinations(groups(runs), 2):
        by_seed = {run.seed: run for run in other.runs}
        found = {run.seed: _difference(run, by_seed[run.seed]) for run in one.runs if run.seed in by_seed}
        differences = {seed: value for seed, value in found.items() if value is not None}
        if differences:
            rounds = sorted({number for number, _ in differences.values()})
            numbers = [value for _, value in differences.values()]
            row = {"method": one.label, "against": other.label, "seeds": list(differences), "rounds": rounds}
            rows.append(row | {"difference": _mean(numbers), "half_width": half_width(numbers)})
    return rows


def _difference(one: Run, other: Run) -> tuple[int, float] | None:
    """Return the last round that both evaluated, and how much more accurate the first is in it."""
    a, b = values(one, accuracy), values(other, accuracy)
    common = a.keys() & b.keys()
    return (max(common), a[max(common)] - b[max(common)]) if common else None
