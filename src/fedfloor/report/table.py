"""The metrics of a comparison as rows, at the end or at a budget, for the page and for the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from fedfloor.base.errors import SettingError, require, unknown
from fedfloor.report.groups import (
    CLASSES,
    Compared,
    Group,
    check_same_test,
    contestants,
    groups,
    half_width,
    values,
)  # fmt: skip
from fedfloor.report.intervals import LEVEL, Draws, Estimate, draws, holm
from fedfloor.report.ledger import RecordedRound, RecordedRun, spent
from fedfloor.report.numbers import COSTS, UNITS, amount, unit
from fedfloor.tasks.figures import ACCURACY, LOSS, RECONSTRUCTION_ERROR, Figure, of_task

Row = dict[str, Any]
Difference = Callable[[RecordedRun, RecordedRun], tuple[int, int, float] | None]
MANY = 6  # with more methods, only pairs with the leading method are shown


def summary(runs: Iterable[RecordedRun], target: float | None = None) -> list[Row]:
    """Return one row of JSON scalars per experiment, its seeds taken together.

    For tasks other than classification, the task's metrics replace accuracy and macro-F1.

    The headline (key ``accuracy``, unless the experiments set another) and ``loss`` are those of the last round that
    every seed evaluated; ``low`` and ``high`` are the ends of the headline's 95 % interval over the seeds and test
    units in ``over``, ``half_width`` that over the seeds alone, None without a spread; ``loss_low`` and ``loss_high``
    are the ends of the loss's interval. ``best_accuracy`` is the mean of the seeds' best headline, ``macro_f1`` that of
    their final models if all have one, ``backdoor`` the success of a backdoor if there is one, ``rounds`` the number of
    rounds that every seed finished, ``wall_s`` the mean of the seeds' seconds. ``rounds_to_target`` is the mean over
    seeds, None unless all of them (``reached``) attained the target, as are ``seconds_to_target``, ``bytes_to_target``
    and ``joules_to_target``, the cost on the network of all rounds up to that one; ``seconds``, ``bytes`` and
    ``joules`` are the cost of all rounds. ``diverged`` has the seed and the round of every diverged run; with one,
    headline, best headline, macro-F1 and loss are None, as a mean over the other seeds would be biased.
    """
    compared = groups(runs)
    return [_row(group, target, compared.headline) for group in compared]


def _row(group: Group, target: float | None, figure: Figure) -> Row:
    known = len(group.whole) == len(group.runs)
    last = _last(group, figure)
    best = [figure.best(by_round.values()) for run in group.runs if (by_round := values(run, figure.read))]
    finals = [run.evaluation.macro_f1 if run.evaluation else None for run in group.runs]
    reached = [rounds_to(run, target, figure) for run in group.runs]
    row = {
        "method": group.label,
        "seeds": [run.seed for run in group.runs],
        "rounds": min(run.last for run in group.runs),
        figure.key: _mean(last) if known else None,
        "half_width": (half_width(last) or None) if known else None,
        **_cut(_estimate(group, figure, known=known).describe(), figure),
        f"best_{figure.key}": _mean(best) if known else None,
    }
    task = Compared([group]).task
    beside = (ACCURACY,) if task == CLASSES else of_task(task)
    others = {other.key: _mean(_last(group, other)) if known else None for other in beside if other.key != figure.key}
    others |= {"macro_f1": _whole_mean(finals)} if task == CLASSES else {}
    others |= {"loss": _mean(_last(group, LOSS)) if known else None}
    if any(run.alarms is not None for run in group.runs):
        others.pop("false_alarms", None)  # without labels no alarm is known to be false
    row |= {key: value for key, value in others.items() if key not in row}
    row |= {f"loss_{end}": bound for end, bound in _loss_ends(group, known=known).items()}
    marked = [line.backdoor for line in group.last_lines(lambda line: line.backdoor) if line.backdoor is not None]
    row |= {"backdoor": _mean(marked)} if marked else {}
    return row | {
        "target": target,
        "reached": len(reached) - reached.count(None),
        "rounds_to_target": _whole_mean(reached),
        **{
            f"{kind}_to_target": _whole_mean([cost_to(run, target, kind, figure) for run in group.runs])
            for kind in COSTS
        },
        **{kind: _whole_mean([cost(run, kind) for run in group.runs]) for kind in COSTS},
        "wall_s": _mean([sum(line.wall_s or 0.0 for line in run.rounds) for run in group.runs]),
        "diverged": [{"seed": run.seed, "round": run.diverged} for run in group.runs if run.diverged is not None],
    }


def _loss_ends(group: Group, *, known: bool) -> Row:
    """Return the ends of the interval of a group's loss, which is at least 0."""
    bounds = _estimate(group, LOSS, known=known).bounds()
    return {"low": bounds and max(0.0, bounds[0]), "high": bounds and bounds[1]}


def _estimate(group: Group, figure: Figure, *, known: bool) -> Estimate:
    """Return a metric of a group's last models, with the draws of their test units."""
    lines = group.last_lines(figure.read) if known else ()
    tests = [draws(run, figure, line.round) for run, line in zip(group.whole, lines, strict=False)]
    return _of_runs(group.whole, _last(group, figure) if known else (), tests)


def _cut(interval: Row, figure: Figure) -> Row:
    """Return an interval, for a share within 0 and 1."""
    if not figure.share or interval["low"] is None:
        return interval
    return interval | {"low": max(0.0, interval["low"]), "high": min(1.0, interval["high"])}


def _of_runs(
    runs: Sequence[RecordedRun], values: Sequence[float], tests: Sequence[Draws | None], *, paired: bool = False
) -> Estimate:
    """Return the estimate of one value, or ``paired`` difference, per run; draws count if those of all are known."""
    known = tuple(one for one in tests if one is not None)
    digests = {run.park.test_sha256 for run in runs}
    same = len(digests) == 1 and None not in digests
    return Estimate(tuple(values), known if len(known) == len(values) else (), same, paired)


def _last(group: Group, figure: Figure) -> list[float]:
    """Return a metric in the last round that every seed evaluated, one value per run that did not diverge."""
    return [value for line in group.last_lines(figure.read) if (value := figure.read(line)) is not None]


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _whole_mean(numbers: Sequence[float | None]) -> float | None:
    """Return the mean, or None unless every seed has a number."""
    known = [number for number in numbers if number is not None]
    return _mean(known) if len(known) == len(numbers) else None


def rounds_to(run: RecordedRun, target: float | None, figure: Figure = ACCURACY) -> int | None:
    """Return the first evaluated round in which a metric of a run attains the target; None if there is none."""
    if target is None:
        return None
    return next((number for number, value in values(run, figure.read).items() if figure.reached(value, target)), None)


def cost_to(run: RecordedRun, target: float | None, kind: str, figure: Figure = ACCURACY) -> float | None:
    """Return the seconds, bytes or joules of a run's rounds up to that of :func:`rounds_to`."""
    number = rounds_to(run, target, figure)
    return None if number is None else next(spent(kind)(line) for line in run.rounds if line.round == number)


def cost(run: RecordedRun, kind: str) -> float | None:
    """Return the seconds, bytes or joules of all rounds of a run; None if they have no price."""
    return spent(kind)(run.rounds[-1]) if run.rounds else None


def natural_target(runs: Iterable[RecordedRun]) -> float | None:
    """Return the best rounded value that the headline of all seeds of at least one method reached.

    For a share it is one of 0.05, 0.10, …, 0.95, 0.96, …, 0.99; for a loss one of …, 1, 0.5, 0.2, 0.1, ….
    Without methods, the references are used.
    """
    compared = groups(runs)
    figure = compared.headline
    by_method = [[list(values(run, figure.read).values()) for run in group.runs] for group in contestants(compared)]
    return figure.round_target(figure.worst(map(figure.best, seeds)) for seeds in by_method if all(seeds))


def last_difference(
    first: RecordedRun, second: RecordedRun, figure: Figure = ACCURACY
) -> tuple[int, int, float] | None:  # fmt: skip
    """Return the round of each run, the last that both evaluated, and the difference of a metric, first minus second.

    If one of two finished runs ended by itself, both are compared at their own ends. Return None if
    there is no common round, or if a run diverged, as its last good value is not a final result.
    """
    a, b = values(first, figure.read), values(second, figure.read)
    common = a.keys() & b.keys()
    if (first.diverged, second.diverged) != (None, None):
        return None
    if a and b and (first.ended or second.ended) and first.finished and second.finished:
        return max(a), max(b), a[max(a)] - b[max(b)]
    if not common:
        return None
    return max(common), max(common), a[max(common)] - b[max(common)]


def paired(
    runs: Iterable[RecordedRun], difference: Difference | None = None, against: str | None = None
) -> list[Row]:  # fmt: skip
    """Return a row per pair of methods: the headline of the first minus that of the second over their common seeds.

    Each seed has one difference, for the last round that both evaluated (``rounds``; none if each has its own). ``low``
    and ``high`` are the ends of the 95 % interval of their mean over the seeds and test units in ``over``, ``p`` is the
    p-value of no difference, and ``p_holm`` the same, corrected by Holm's method for all pairs, but for those of two
    references, which have none; the interval is corrected alike, at the level 1 − 0.05·p/p_holm, so that it excludes 0
    exactly if p_holm < 0.05. All are None if neither seeds nor test units show how the difference varies.
    ``half_width`` is the interval over the seeds alone. A common seed without a difference, because a run diverged, is
    in ``left_out``. Methods without any difference give no row.

    Args:
        difference: the rounds and the difference of two runs with one seed; :func:`last_difference` by default.
        against: the label of a method; only its pairs are returned, and corrected for.

    Raises:
        SettingError: runs were measured on different data, or no method has the label ``against``.
    """
    runs = list(runs)
    pairs = list[tuple[Row, Estimate]]()
    check_same_test(runs)
    compared = groups(runs)
    base = _named(compared, against)
    figure = compared.headline
    difference = difference or partial(last_difference, figure=figure)
    for first, second in combinations(compared, 2):
        if base in (None, first.label, second.label):
            pairs += _pair(*((second, first) if first.label == base else (first, second)), difference, figure)
    references = {group.label for group in compared} - {group.label for group in contestants(compared)}
    asked = [None if {row["method"], row["against"]} <= references else row["p"] for row, _ in pairs]
    corrected = zip(pairs, holm(asked), strict=True)
    return [_corrected(row, estimate, chance, share=figure.share) for (row, estimate), chance in corrected]


def _corrected(row: Row, estimate: Estimate, chance: float | None, *, share: bool) -> Row:
    """Return a paired difference with its corrected p-value, and the interval that excludes 0 exactly if p < 0.05.

    That of a difference of shares ends at −1 and 1.
    """
    low, high = (row["low"], row["high"])
    if chance:
        low, high = estimate.bounds(1 - (1 - LEVEL) * row["p"] / chance) or (None, None)
    if share and low is not None and high is not None:
        low, high = max(-1.0, low), min(1.0, high)
    return row | {"low": low, "high": high, "p_holm": chance}


def _named(compared: Compared, against: str | None) -> str | None:
    """Return the label of a method to compare with; None without one."""
    if against is None or against in {group.label for group in compared}:
        return against
    same = [group.label for group in compared if against in (group.runs[0].method, group.label.shown)]
    if len(same) != 1:
        raise unknown("method (--against)", against, [group.label for group in compared])
    return same[0]


def _pair(first: Group, second: Group, difference: Difference, figure: Figure) -> list[tuple[Row, Estimate]]:
    """Return the row of two methods, and the estimate of their difference; [] if no seed has a difference.

    Reconstruction errors of two detectors that have no common scale are not subtracted.
    """
    if figure.name == RECONSTRUCTION_ERROR and first.runs[0].scale != second.runs[0].scale:
        return []
    by_seed = {run.seed: run for run in second.runs}
    both = {run.seed: (run, by_seed[run.seed]) for run in first.runs if run.seed in by_seed}
    apart = {seed: difference(*pair) for seed, pair in both.items()}
    known = {seed: found for seed, found in apart.items() if found is not None}
    if not known:
        return []
    tests = []
    for seed, (own, other, _) in known.items():
        drawn = draws(both[seed][0], figure, own)
        tests.append(drawn and drawn.minus(draws(both[seed][1], figure, other)))
    values = [value for _, _, value in known.values()]
    estimate = _of_runs([both[seed][0] for seed in known], values, tests, paired=True)
    row = {
        "method": first.label, "against": second.label, "seeds": list(known),
        "rounds": sorted({own for own, other, _ in known.values() if own == other}), "difference": estimate.mean,
        "half_width": half_width(values) or None, **estimate.describe(), "p": estimate.chance,
        "seeded": any(run.seeded for seed in known for run in both[seed]),
        "left_out": [seed for seed in apart if seed not in known],
    }  # fmt: skip
    return [(row, estimate)]


Final = tuple[RecordedRun, float]  # a run and the metric of its final model


def trials(best: Sequence[Final], every: Sequence[Sequence[Final]], figure: Figure) -> list[Row]:
    """Return the intervals of a sweep's trials of one method, and whether they can be told apart from the best trial.

    Args:
        best: the runs of the best trial, one per seed, with the metric of their final models.
        every: the same of each trial, the best included.

    Returns:
        For each trial ``low``, ``high`` and ``over``, as :func:`summary`, and ``p_holm``: the p-value of no difference
        to the best trial, corrected for the number of trials; None for the best itself, or if nothing shows it.
    """
    first = [_final_draws(run, figure) for run, _ in best]
    rows = []
    chances = list[float | None]()
    for trial in every:
        runs = [run for run, _ in trial]
        values = [value for _, value in trial]
        own = [_final_draws(run, figure) for run in runs]
        rows.append(_cut(_of_runs(runs, values, own).describe(), figure))
        apart = [value - other for value, (_, other) in zip(values, best, strict=True)]
        drawn = [mine and mine.minus(other) for mine, other in zip(own, first, strict=True)]
        chances.append(None if trial is best else _of_runs(runs, apart, drawn, paired=True).chance)
    return [row | {"p_holm": chance} for row, chance in zip(rows, holm(chances), strict=True)]


def _final_draws(run: RecordedRun, figure: Figure) -> Draws | None:
    return draws(run, figure, run.evaluation.round) if run.evaluation else None


def seen_from(row: Row, label: str) -> Row:
    """Return a paired difference with the method ``label`` first."""
    if row["method"] == label:
        return row
    ends = {"low": None, "high": None} if row["low"] is None else {"low": -row["high"], "high": -row["low"]}
    return row | {"method": label, "against": row["method"], "difference": -row["difference"], **ends}


def leader(compared: Compared, pairs: Sequence[Row]) -> str:
    """Return the label, among those without diverged runs, that leads most others, in a tie by the largest margins."""
    sound = [group for group in compared if len(group.whole) == len(group.runs)] or compared

    def ahead(group: Group) -> tuple[int, float]:
        rows = [seen_from(row, group.label) for row in pairs if group.label in (row["method"], row["against"])]
        gains = [compared.headline.gain(row["difference"], 0.0) for row in rows]
        return sum(gain >= 0 for gain in gains), sum(gains)

    return max(sound, key=ahead).label


def shown(runs: Iterable[RecordedRun], pairs: Sequence[Row]) -> list[Row]:
    """Return the pairs to print: all of up to six methods, otherwise those of the leading label, nearest first.

    Pairs of two references are not tested, and not printed beside pairs that are.
    """
    compared = groups(runs)
    untested = [row for row in pairs if row["p"] is not None and row["p_holm"] is None]
    pairs = [row for row in pairs if row not in untested] or pairs
    if len(compared) <= MANY or not pairs or len({row["against"] for row in pairs}) == 1:
        return list(pairs)
    best = leader(contestants(compared), pairs)
    rows = [seen_from(row, best) for row in pairs if best in (row["method"], row["against"])]
    return sorted(rows, key=lambda row: compared.headline.gain(row["difference"], 0.0))


@dataclass(frozen=True)
class Budget:
    """A budget for the cost of a run.

    Args:
        kind: ``"rounds"``, ``"seconds"``, ``"bytes"`` or ``"joules"``, the last three on the network.
        most: the amount, above 0.
    """

    kind: str
    most: float

    def __post_init__(self) -> None:
        if self.kind not in ("rounds", *COSTS):
            raise unknown("budget (--at)", self.kind, ["rounds", *COSTS])
        require(0 < self.most < math.inf, f"{self.kind} (--at)", self.most, "a number above 0, such as 3600")
        whole = self.kind != "rounds" or self.most == int(self.most)
        require(whole, "rounds (--at)", self.most, "a whole number of at least 1")

    @property
    def words(self) -> str:
        """The budget as text, with all its digits.

        >>> Budget("seconds", 3600).words, Budget("seconds", 100).words, Budget("rounds", 5).words
        ('1 h on the network', '100 s on the network', '5 rounds')
        """
        exact = amount(self.kind, self.most)
        if self.kind in UNITS:
            size, symbol = unit(self.kind, self.most)
            base = next(name for size, name in UNITS[self.kind] if size == 1)
            short = float(f"{self.most / size:.3g}") == self.most / size
            exact = f"{self.most / size:g} {symbol}" if short else f"{self.most:g} {base}"
        return f"{exact} on the network" if self.kind == "seconds" else exact


def reached(run: RecordedRun, budget: Budget, figure: Figure = ACCURACY) -> RecordedRound | None:
    """Return the last evaluated round of a run that was complete within a budget.

    Return None if there is none, if the rounds have no price, or if training diverged before the end of the budget, as
    there is no model then. A run that ended before the budget was used counts with its last evaluated round.
    """
    use = spent(budget.kind)
    costs = [cost for line in run.rounds if (cost := use(line)) is not None]
    if not costs or len(costs) < len(run.rounds) or (run.diverged and costs[-1] < budget.most):
        return None
    within = [line for line, used in zip(run.rounds, costs, strict=True) if used <= budget.most]
    return next((line for line in reversed(within) if figure.read(line) is not None), None)


def at(runs: Iterable[RecordedRun], budget: Budget) -> list[Row]:
    """Return one row of JSON scalars per experiment: its headline at the end of a budget.

    ``accuracy``, or the key of another headline, is the mean over the seeds, None unless each has one; ``in_rounds``
    the round of its evaluation, seed by seed; ``ended`` the seeds whose runs ended before the budget was used.

    Raises:
        SettingError: no run has a price, and the budget is not a number of rounds.
    """
    runs = list(runs)
    if budget.kind != "rounds" and not any(line.spent is not None for run in runs for line in run.rounds):
        raise SettingError(
            f"--at {budget.kind}: these runs have no price, because their experiments have no network. Run them with a "
            "[network], or give --at rounds=N."
        )
    compared = groups(runs)
    return [_budget_row(group, budget, compared.headline) for group in compared]


def _budget_row(group: Group, budget: Budget, figure: Figure) -> Row:
    lines = [reached(run, budget, figure) for run in group.runs]
    known = [value for line in lines if line is not None and (value := figure.read(line)) is not None]
    whole = len(known) == len(group.runs)
    tests = [
        None if line is None else draws(run, figure, line.round) for run, line in zip(group.runs, lines, strict=True)
    ]
    used = {run.seed: cost(run, budget.kind) for run, line in zip(group.runs, lines, strict=True) if line}
    return {
        "method": group.label,
        "seeds": [run.seed for run in group.runs],
        figure.key: sum(known) / len(known) if whole else None,
        "half_width": (half_width(known) or None) if whole else None,
        **_cut(_of_runs(group.runs, known if whole else (), tests).describe(), figure),
        "in_rounds": [None if line is None else line.round for line in lines],
        "ended": [seed for seed, amount in used.items() if amount is not None and amount < budget.most],
    }


def paired_at(runs: Sequence[RecordedRun], budget: Budget, against: str | None = None) -> list[Row]:
    """Return :func:`paired` differences between headlines at the end of a budget."""
    figure = groups(runs).headline

    def difference(first: RecordedRun, second: RecordedRun) -> tuple[int, int, float] | None:
        a, b = reached(first, budget, figure), reached(second, budget, figure)
        if a is None or b is None:
            return None
        return a.round, b.round, (figure.read(a) or 0.0) - (figure.read(b) or 0.0)

    return [
        {name: value for name, value in row.items() if name != "rounds"} for row in paired(runs, difference, against)
    ]
