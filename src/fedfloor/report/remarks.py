"""What a figure by itself does not show: what always the same answer would reach, and a loss that rises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from fedfloor.figures import ACCURACY, LOSS, Figure, Predictions, Ranking
from fedfloor.report.evaluation import Evaluation
from fedfloor.report.groups import CLASSES, Group, judged, spoken, task, values
from fedfloor.report.ledger import Run
from fedfloor.report.numbers import figure, listed

SMOOTH = 3  # evaluations whose median is looked at: one bad round is no trend
RISE = 1.1  # times the lowest


def remarks(found: Sequence[Group]) -> list[str]:
    """Return the baseline, the models that predict one class only, and the losses that rise."""
    classes = task(run for group in found for run in group.runs) == CLASSES
    own = (baseline(found), one_class(found)) if classes else (mean_baseline(found),)
    return [text for text in (*own, rising(found)) if text]


def baseline(found: Sequence[Group]) -> str:
    """Return what always answering the most frequent class of the test samples would reach, in words."""
    runs = [run for group in found for run in group.runs]
    finals = {tuple(map(sum, run.evaluation.confusion)): run.evaluation for run in runs if run.evaluation}
    if not finals or len({one.classes for one in finals.values()}) > 1:
        return ""
    of = judged(runs)
    told = []
    for one in (ACCURACY, of) if of != ACCURACY else (ACCURACY,):
        reached = [value for final in finals.values() if (value := constant(final, one)) is not None]
        if reached:
            low, high = (figure(value, _digits(value)) for value in (min(reached), max(reached)))
            told.append(f"{one.phrase} of {low if low == high else f'{low} to {high}'}")
    names = " or ".join(dict.fromkeys(f"'{majority(final)}'" for final in finals.values()))
    return f"Always predicting {names} would reach {' and '.join(told)}." if told else ""


def mean_baseline(found: Sequence[Group]) -> str:
    """Return what always predicting the mean of the test values would reach, in words.

    It follows from the figures of any model of one target: R² = 1 − RMSE²/s², with s the RMSE of the mean. Arrays may
    have several targets, whose mean figures do not tell it.
    """
    runs = [run for group in found for run in group.runs]
    several = any(str(run.settings.data.get("path", "")).endswith(".npz") for run in runs)
    if task(runs) != "regression" or judged(runs).kind.name != "RMSE" or several:
        return ""
    figures = [run.rounds[-1].figures or {} for run in runs if run.rounds]
    both = [(one.get("RMSE"), one.get("R2")) for one in figures]
    reached = [rmse / math.sqrt(1 - r2) for rmse, r2 in both if rmse is not None and r2 is not None and r2 < 1]
    if not reached:
        return ""
    low, high = (figure(value, 2) for value in (min(reached), max(reached)))
    amount = judged(runs).amount(low if low == high else f"{low} to {high}")
    return f"Always predicting the mean of the test values would reach an RMSE of {amount}."


def _digits(value: float) -> int:
    """Return the decimals that tell a share from 0 and from 1."""
    return 3 if 0 < value < 0.01 or 0.985 < value < 1 else 2


def majority(final: Evaluation) -> str:
    """Return the most frequent class of the test samples, the first of equals."""
    return final.classes[int(np.argmax(np.sum(final.confusion, axis=1)))]


def constant(final: Evaluation, of: Figure) -> float | None:
    """Return a figure of the best model that looks at no sample: always the most frequent class, the class mix as odds.

    Its loss is the entropy of the mix, −Σ_c p(c)·ln p(c); its scores are all equal.

    >>> final = Evaluation(1, "test", None, ("ok", "fault"), ((80, 10), (5, 5)), (), ())
    >>> constant(final, ACCURACY), round(constant(final, LOSS), 4)
    (0.9, 0.3251)
    """
    counts = np.sum(final.confusion, axis=1)
    table = np.zeros((len(counts), len(counts)), np.int64)
    table[:, int(np.argmax(counts))] = counts
    mix = counts[counts > 0] / counts.sum()
    asked = of.scored(final.classes)
    ranked = {c: Ranking(counts[[c]], (counts.sum() - counts[c])[None]) for c in asked}
    return of.value(Predictions(table, float(-(mix * np.log(mix)).sum()), ranked), final.classes)


def one_class(found: Sequence[Group]) -> str:
    """Return which final models predict one class for every test sample, in words."""
    told = []
    for group in found:
        known = [(run, run.evaluation) for run in group.runs if run.evaluation]
        same = [(run, name) for run, one in known if (name := only(one)) is not None]
        if same:
            names = listed(list(dict.fromkeys(f"'{name}'" for _, name in same)))
            seeds = "" if len(same) == len(group.runs) else f" with seed {listed([str(run.seed) for run, _ in same])}"
            told.append(f"that of {spoken(group.label)}{seeds} predicts {names} for every test sample")
    return f"A model that has not learnt to tell the classes apart: {'; '.join(told)}." if told else ""


def only(final: Evaluation) -> str | None:
    """Return the class that a model predicts for every sample, of several classes; None where it predicts several."""
    table = np.array(final.confusion)
    taken = np.flatnonzero(table.sum(axis=0))
    return final.classes[int(taken[0])] if len(taken) == 1 and np.count_nonzero(table.sum(axis=1)) > 1 else None


def rising(found: Sequence[Group]) -> str:
    """Return where the loss on the test data rises while training goes on, in words."""
    told = []
    for group in found:
        risen = [(run, *ends) for run in group.runs if (ends := risen_from(run)) is not None]
        if risen:
            run, best, low, high = risen[0]
            seeds = "" if len(group.runs) == 1 else f" (seed {run.seed}; {len(risen)} of {len(group.runs)} seeds)"
            told.append(f"{spoken(group.label)} from {low:.3g} in round {best} to {high:.3g} in the last{seeds}")
    if not told:
        return ""
    more = (
        "The model grows too sure of its mistakes, and its probabilities are less to be trusted than before: fewer "
        "rounds, a smaller learning rate or calibrated confidence help."
    )
    if task(run for group in found for run in group.runs) != CLASSES:
        more = "The model fits its training samples ever closer, and others no longer: fewer rounds, or a smaller rate."
    return f"The test loss rises: {'; '.join(told)}. {more}"


def risen_from(run: Run) -> tuple[int, float, float] | None:
    """Return (round, lowest, last) of a test loss that is a tenth above its lowest by the end; None where it is not.

    Both are medians of three evaluations.
    """
    found = values(run, LOSS.read)
    rounds, losses = list(found), list(found.values())
    smooth = [median(losses[i - SMOOTH : i]) for i in range(SMOOTH, len(losses) + 1)]
    if len(smooth) < SMOOTH + 1:
        return None
    low = min(smooth)
    best = smooth.index(low)
    return (rounds[best + SMOOTH // 2], low, smooth[-1]) if smooth[-1] > RISE * low else None
