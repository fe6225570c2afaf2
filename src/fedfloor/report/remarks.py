"""Texts that put metrics in perspective: attackers, constant predictions, and losses that rise."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean, median

import numpy as np

from fedfloor.base.names import count
from fedfloor.report import recalibrated
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.groups import CLASSES, Compared, Group, contestants, values
from fedfloor.report.ledger import RecordedRound, RecordedRun
from fedfloor.report.numbers import listed, metric
from fedfloor.tasks.figures import ACCURACY, LOSS, Figure, Predictions
from fedfloor.tasks.rankings import Ranking

MOST = 4  # most methods named one by one
SMOOTH = 3  # evaluations in a median, as one bad round is not a trend
RISE = 1.1  # ratio to the lowest loss


def remarks(compared: Compared) -> list[str]:
    """Return texts on an undefined headline, a recalibration, attackers, the baseline, models of one class, training.

    The last are rising losses, too few rounds, and seeds.
    """
    classes = compared.task == CLASSES
    own = (baseline(compared), one_class(compared)) if classes else (mean_baseline(compared), unmarked(compared))
    last = (rising(compared), unconverged(compared), other_seeds(compared))
    every = (undefined(compared), recalibrated.words(compared), attacked(compared), *own, *last)
    return [text for text in every if text]


def undefined(compared: Compared) -> str:
    """Return a text on the methods whose headline is no finite number in a run's last round; "" without any."""
    headline = compared.recorded
    ends = {group.label.shown: [run.rounds[-1].figures or {} for run in group.runs if run.rounds] for group in compared}
    names = [name for name, each in ends.items() if any(row.get(headline.name, 0.0) is None for row in each)]
    if not names:
        return ""
    return (
        f"The {headline.name} is no finite number in the last round of {listed(names)}: it is undefined, or infinite."
    )


def attacked(compared: Compared) -> str:
    """Return a text on the attacking devices and their attack; "" without any."""
    attacks: dict[str, list[str]] = {}
    for group in compared:
        acting = group.runs[0].settings.faults.attackers
        if acting is not None:
            share = "" if acting.share is None else f"{100 * acting.share:g} % of the devices"
            many = share or ("" if acting.count is None else count(acting.count, "device"))
            which = many or f"device {listed([str(device) for device in acting.devices or ('?',)])}"
            attacks.setdefault(f"{which} by '{acting.kind}'", []).append(group.label.shown)
    everyone = [labels for labels in attacks.values() if len(labels) == len(compared)]
    parts = list(attacks) if everyone else [f"{how} in {listed(labels)}" for how, labels in attacks.items()]
    return f"Attackers: {'; '.join(parts)}." if parts else ""


def baseline(compared: Compared) -> str:
    """Return a text on the metrics of always predicting the most frequent class of the test samples."""
    runs = compared.runs
    finals = {tuple(map(sum, run.evaluation.confusion)): run.evaluation for run in runs if run.evaluation}
    if not finals or len({final.classes for final in finals.values()}) > 1:
        return ""
    parts = []
    for measure in dict.fromkeys((ACCURACY, compared.recorded)):
        reached = [value for final in finals.values() if (value := constant(final, measure)) is not None]
        if reached:
            low, high = (metric(measure, value) for value in (min(reached), max(reached)))
            parts.append(f"{measure.phrase} of {low if low == high else f'{low} to {high}'}")
    names = " or ".join(dict.fromkeys(f"'{majority(final)}'" for final in finals.values()))
    return f"Always predicting {names} would reach {' and '.join(parts)}." if parts else ""


def mean_baseline(compared: Compared) -> str:
    """Return a text on the RMSE of always predicting the mean of the test values.

    For a single target it follows from the metrics of any model: R² = 1 − RMSE²/s², with s the RMSE of the mean. It
    does not follow from metrics averaged over several targets.
    """
    runs = compared.runs
    several = any(str(run.settings.data.get("path", "")).endswith(".npz") for run in runs)
    if compared.task != "regression" or compared.headline.kind.name != "RMSE" or several:
        return ""
    figures = [run.rounds[-1].figures or {} for run in runs if run.rounds]
    both = [(row.get("RMSE"), row.get("R2")) for row in figures]
    reached = [rmse / math.sqrt(1 - r2) for rmse, r2 in both if rmse is not None and r2 is not None and r2 < 1]
    if not reached:
        return ""
    low, high = (metric(compared.headline, value) for value in (min(reached), max(reached)))
    reach = low if low == high else f"{low} to {high}"
    return f"Always predicting the mean of the test values would reach an RMSE of {reach}."


def no_better(compared: Compared, group: Group, own: float | None) -> str:
    """Return a text on a method whose models are no better than an answer without input; "" for others.

    Args:
        own: the headline of the method.
    """
    headline = compared.headline
    if compared.task == CLASSES:
        known = [value for final in group.finals if (value := constant(final, headline)) is not None]
        worse = own is not None and len(known) > 0 and headline.gain(own, mean(known)) <= 0
        what = f"'{majority(group.finals[0])}'" if known else ""
    else:
        figures = [run.rounds[-1].figures or {} for run in group.runs if run.rounds]
        shares = [share for row in figures if (share := row.get("R2")) is not None]
        worse = compared.task == "regression" and len(shares) > 0 and mean(shares) <= 0
        what = "the mean of the test values"
    return f"The shared model is no better than always predicting {what}." if worse else ""


def unmarked(compared: Compared) -> str:
    """Return a text on alarms for test samples none of which is marked as an anomaly; "" if some are."""
    shares = {group.label.shown: [run.alarms for run in group.runs if run.alarms is not None] for group in compared}
    told = [f"{name} has an alarm at {100 * mean(each):.1f}\u00a0% of them" for name, each in shares.items() if each]
    if not told:
        return ""
    return (
        f"No test sample is marked as an anomaly: {listed(told)}. Which alarms are right, and which "
        "detector is better, only labels can tell."
    )


def majority(final: EvaluationRecord) -> str:
    """Return the most frequent class of the test samples, the first one in a tie."""
    return final.classes[int(np.argmax(np.sum(final.confusion, axis=1)))]


def constant(final: EvaluationRecord, headline: Figure) -> float | None:
    """Return a metric of the best model without input: the most frequent class, with class shares as probabilities.

    Its loss is the entropy of the mix, −Σ_c p(c)·ln p(c); its scores are all equal.

    >>> final = EvaluationRecord(1, ("ok", "fault"), ((80, 10), (5, 5)))
    >>> constant(final, ACCURACY), round(constant(final, LOSS), 4)
    (0.9, 0.3251)
    """
    counts = np.sum(final.confusion, axis=1)
    table = np.zeros((len(counts), len(counts)), np.int64)
    table[:, int(np.argmax(counts))] = counts
    mix = counts[counts > 0] / counts.sum()
    scored = headline.scored(final.classes)
    ranked = {c: Ranking(counts[[c]], (counts.sum() - counts[c])[None]) for c in scored}
    return headline.value(Predictions(table, float(-(mix * np.log(mix)).sum()), ranked), final.classes)


def one_class(compared: Compared) -> str:
    """Return a text on the final models that predict one class for every test sample."""
    parts = []
    for group in compared:
        same = [(run, name) for run in group.runs if run.evaluation and (name := only(run.evaluation)) is not None]
        if same:
            names = listed(list(dict.fromkeys(f"'{name}'" for _, name in same)))
            seeds = "" if len(same) == len(group.runs) else f" with seed {listed([str(run.seed) for run, _ in same])}"
            parts.append(f"that of {group.label.shown}{seeds} predicts {names} for every test sample")
    return f"A model that does not separate the classes: {'; '.join(parts)}." if parts else ""


def only(final: EvaluationRecord) -> str | None:
    """Return the only class that a model predicts; None if it predicts several or there is only one class."""
    table = np.array(final.confusion)
    taken = np.flatnonzero(table.sum(axis=0))
    return final.classes[int(taken[0])] if len(taken) == 1 and np.count_nonzero(table.sum(axis=1)) > 1 else None


def rising(compared: Compared) -> str:
    """Return a text on the groups whose loss on the test data rises during training."""
    parts = []
    for group in compared:
        risen = [(run, *ends) for run in group.runs if (ends := risen_from(run)) is not None]
        if risen:
            run, best, low, high = risen[0]
            seeds = "" if len(group.runs) == 1 else f" (seed {run.seed}; {len(risen)} of {len(group.runs)} seeds)"
            parts.append(f"{group.label.shown} from {low:.3g} in round {best} to {high:.3g} in the last{seeds}")
    if not parts:
        return ""
    every = [run for group in compared for run in group.runs if risen_from(run) is not None]
    right = all(_held(run, ACCURACY.read, least=True) for run in every)
    learnt = all(_held(run, lambda line: line.train_loss, least=False) for run in every)
    if compared.task == CLASSES and right:
        advice = (
            "The accuracy does not fall, so the model becomes overconfident, and its probabilities are less reliable "
            "than before: fewer rounds, a smaller learning rate or calibrated confidence may help."
        )
    elif learnt:
        advice = "The loss on training samples does not rise, so the model may overfit: try fewer rounds."
    else:
        advice = "Fewer rounds or a smaller learning rate may help."
    return f"The test loss rises: {'; '.join(parts)}. {advice}"


def unconverged(compared: Compared) -> str:
    """Return a text on models of the exact shelf whose rounds ended before the model was final."""
    parts = []
    for group in compared:
        left = [(final.gradient_norm, final.round) for final in group.finals if final.gradient_norm is not None]
        if left:
            norm, rounds = max(left)
            slope = f" (gradient norm {norm:.3g})" if norm else ""
            parts.append(f"{group.label.shown} after {count(rounds, 'round')}{slope}")
    if not parts:
        return ""
    return (
        f"Not converged: {listed(parts)}. This model is not yet that of all rows in one place: set rounds = 100, of "
        "which no more are taken than needed."
    )


def _held(run: RecordedRun, read: Callable[[RecordedRound], float | None], *, least: bool) -> bool:
    """Return whether the last values of a metric are no lower (``least``), or no higher, than where loss was lowest.

    Both values are medians of three evaluations; False if they are not recorded.
    """
    by_round = values(run, read)
    risen = risen_from(run)
    near = [value for number, value in by_round.items() if risen and abs(number - risen[0]) <= SMOOTH // 2]
    last = list(by_round.values())[-SMOOTH:]
    if not near or not last:
        return False
    return median(last) >= median(near) if least else median(last) <= median(near)


def risen_from(run: RecordedRun) -> tuple[int, float, float] | None:
    """Return (round, lowest, last) of a test loss that ends a tenth or more above its lowest value; None otherwise.

    Both values are medians of three evaluations.
    """
    by_round = values(run, LOSS.read)
    rounds = list(by_round)
    losses = list(by_round.values())
    smooth = [median(losses[i - SMOOTH : i]) for i in range(SMOOTH, len(losses) + 1)]
    if len(smooth) < SMOOTH + 1:
        return None
    low = min(smooth)
    best = smooth.index(low)
    return (rounds[best + SMOOTH // 2], low, smooth[-1]) if smooth[-1] > RISE * low else None


def other_seeds(compared: Compared) -> str:
    """Return a text on methods with different seeds, whose means are over different parks and first models."""
    seeds: dict[tuple[int, ...], list[str]] = {}
    for group in contestants(compared):
        seeds.setdefault(tuple(run.seed for run in group.runs), []).append(group.label.shown)
    if len(seeds) < 2:
        return ""
    parts = [f"{listed(names)} {', '.join(map(str, own))}" for own, names in list(seeds.items())[:MOST]]
    return (
        f"Not all methods have the same seeds ({'; '.join(parts)}): their means are over different parks and first "
        "models, and do not rank them. Differences seed by seed are over common seeds alone."
    )
