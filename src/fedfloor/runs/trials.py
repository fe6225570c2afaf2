"""Trials of settings of the data, for drafts: simple models of training samples, of which a part is held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Indices
from fedfloor.park.normalise import DeviceNormaliser, prepared
from fedfloor.park.park import Park
from fedfloor.runs.references import columns

MOST = 4000  # samples of a trial, evenly spread over each device's
LEAST_OF_LONG = 400  # of long samples, at least
NUMBERS = 4_000_000  # in all of its samples, at most
FOLDS = 4  # parts that are held out in turn
# of a forest, and samples of a leaf
TREES = 50
LEAST = 3
DISTINCT = 0.2  # share of a sensor's variance between devices from which these have levels of their own
GAIN = 0.02  # of the explained variance, at least
SURE = 0.75  # one-sided confidence, as errors would cost little
BLOCKS = 40  # of neighbours among dealt samples, at most
APART = 10  # windows of which each consists at least
# devices or recordings of a trial, at least, and devices at most
FEW = 3
MANY = 100
FIRST = (5 / 6, 1 / 2, 1 / 3, 1 / 4, 1 / 8)  # of the shortest device's rows: the first that may normalise a new one
ROWS = (20, 1000)  # of these first rows, the least and the most
BOOSTED = 100  # boosted trees, at most
SUMS = 1_000_000  # samples times features times outputs of a trial of boosted trees, at most

Numbers = NDArray[np.float64]
Groups = NDArray[np.int64]


def best(rows: Park, windowed: Park | None, *, own: bool) -> tuple[bool, dict[str, Any], str] | None:
    """Return whether windows are used, a normalisation by each device's own rows or {}, and evidence of their gain.

    None unless held-out samples gain. Trials are made of single rows and windows, each with one scale for all devices
    and, if a sensor has a share of :data:`DISTINCT` of its variance between devices, with each device's own: that of
    all its training rows, if tested devices train, and of first rows, :data:`FIRST` of the shortest device's. Of those
    that explain as much the longest counts, as the mean of few rows is that of what a device did in them: with a slow
    load it is still off after half a recording.

    Args:
        rows: the park whose samples are not normalised.
        windowed: the same with windows; None if these are not to be tried.
        own: whether a normalisation by device is to be tried.
    """
    alike = HeldOut(rows)
    if not alike.possible:
        return None
    kinds = [alike, *_normalised(alike)] if own and alike.distinct else [alike]
    scales = [kind.own for kind in kinds]
    if windowed is not None and (wide := HeldOut(windowed)).possible and len(wide.errors) == len(alike.errors):
        kinds += [wide if scale is None else HeldOut(windowed, scale) for scale in scales]
    chosen = _nearly_best(kinds)
    before = " and ".join(
        ["single rows"] * (chosen.park is windowed) + ["one scale for all"] * (chosen.own is not None)
    )
    if chosen is alike or not (evidence := chosen.better(alike, f"with {before}")):
        return None
    scale = {"kind": "device"} | ({"rows": chosen.own.rows} if chosen.own and chosen.own.rows else {})
    return chosen.park is windowed, scale if chosen.own else {}, evidence


def _normalised(alike: HeldOut) -> list[HeldOut]:
    """Return the best trial of a normalisation by device; an empty list if it is impossible."""
    park = alike.park
    if park.natural_owners is None or park.dataset.owner_test is None:
        return []
    shortest = min(_rows(park, device) for device in alike.chosen)
    numbers = [_rounded(min(max(share * shortest, ROWS[0]), ROWS[1])) for share in FIRST]
    settings = [] if alike.strangers else [DeviceNormaliser()]
    settings += [DeviceNormaliser(rows=rows) for rows in dict.fromkeys(numbers)]
    return [_nearly_best([HeldOut(park, setting) for setting in settings])]


def _nearly_best(trials: Sequence[HeldOut]) -> HeldOut:
    """Return the first trial that explains as much as the best one, up to half of :data:`GAIN`."""
    top = max(trial.explained for trial in trials)
    return next(trial for trial in trials if trial.explained >= top - GAIN / 2)


def trees(park: Park, own: DeviceNormaliser | None, share: float, *, scattered: bool = False) -> int:
    """Return the number of boosted trees after which further ones make predictions of held-out samples worse.

    :data:`BOOSTED`, unless the last of these trees lose half of :data:`GAIN` of the explained variance. Of classes also
    those that decide better count, though their probabilities become too certain, which costs explained variance. Where
    not all samples can be tried, a model ends by samples that are held out of training instead.

    Args:
        park: a park whose samples are not normalised.
        own: the normalisation by devices, if any.
        share: the share of the features that a tree may use.
        scattered: whether tested rows are drawn at random, so that the rows beside them train.
    """
    trial = HeldOut(park, own, scattered)
    if not trial.supervised or not trial.possible or trial.partial:
        return BOOSTED
    stages = trial.boosted(share)
    explained = np.array([trial.share_of(each) for each in stages])
    top = explained.max(initial=0.0)
    if not len(explained) or top <= 0 or explained[-1] > top - GAIN / 2:
        return BOOSTED
    many = int(np.flatnonzero(explained >= top - GAIN / 4)[-1]) + 1
    if park.dataset.target is not None:
        return many
    decided = np.array([trial.decided(each) for each in stages])
    return max(many, int(np.flatnonzero(decided >= decided.max() - GAIN / 2)[0]) + 1)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A model fitted to a part of a park's training samples, and its errors on the others.

    Held out in turn are :data:`FOLDS` parts: of recordings if recordings are held out for testing, of devices if tested
    devices do not train, of blocks of neighbours if samples are dealt, otherwise of each device's samples in order.
    Classes and numbers are predicted by a random forest. Where only sensors are to be reproduced, each is predicted by
    its mean: of all samples that are not held out, or with ``own`` of its device's.

    Args:
        park: a park whose samples are not normalised.
        own: a normalisation by devices.
        scattered: whether single samples are held out instead, as rows that are drawn at random for testing.
    """

    park: Park
    own: DeviceNormaliser | None = None
    scattered: bool = False

    @cached_property
    def strangers(self) -> bool:
        """Whether devices are tested that do not train."""
        return not self._dealt and bool((self.park.test_devices < 0).any())

    @property
    def possible(self) -> bool:
        """Whether the samples are of sensors, and of enough devices or recordings, with a variance to be explained."""
        data = self.park.dataset
        sensors = data.inputs.kind == "table" and data.made is None
        return sensors and len(np.unique(self._unit)) >= FEW and self._variance > 0

    @cached_property
    def distinct(self) -> bool:
        """Whether a sensor has a share of :data:`DISTINCT` of its variance between devices."""
        x = self._last
        between = sum((self._device == k).mean() * x[self._device == k].mean(axis=0) ** 2 for k in self.chosen)
        share = np.divide(between, x.var(axis=0), out=np.zeros(x.shape[1]), where=x.var(axis=0) > 0)
        return bool((share >= DISTINCT).any())

    @property
    def _variance(self) -> float:
        return float(self._targets.var(axis=0).sum())

    @property
    def partial(self) -> bool:
        """Whether some training samples are not examined."""
        return len(self._every) < sum(map(len, self.park.indices))

    @cached_property
    def errors(self) -> Numbers:
        """The mean squared error of each held-out device or recording, in units of the variance."""
        return self._missed(self._predicted)

    def _missed(self, predicted: Numbers) -> Numbers:
        error = ((predicted - self._targets) ** 2).sum(axis=1) / self._variance
        return np.bincount(self._unit, error) / np.bincount(self._unit)

    @cached_property
    def explained(self) -> float:
        """The share of the variance that predictions explain, with the same weight for each device or recording."""
        return float(1 - self.errors.mean())

    def share_of(self, predicted: Numbers) -> float:
        """Return the same of given predictions [n, outputs]."""
        return float(1 - self._missed(predicted).mean())

    def decided(self, predicted: Numbers) -> float:
        """Return the macro-F1 of the most probable classes: the mean over the true of 2·right/(true + chosen)."""
        chosen = np.eye(predicted.shape[1])[predicted.argmax(axis=1)]
        true = self._targets.sum(axis=0)
        right = (chosen * self._targets).sum(axis=0)
        return float((2 * right / np.maximum(true + chosen.sum(axis=0), 1))[true > 0].mean())

    def better(self, other: HeldOut, words: str) -> str:
        """Return a clause on the gain over another trial; "" unless it is large, and likely by Student's t-test."""
        from scipy.stats import t

        gain = other.errors - self.errors
        least = t.ppf(SURE, len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain))
        if gain.mean() < max(GAIN, least) or self.explained <= 0:
            return ""
        noun = "recordings" if self._recorded else "parts" if self._dealt else "devices"
        held = f"{noun} not in training" if self._recorded or self.strangers else "rows not in training"
        wins = f"better on {(gain > 0).sum()} of {len(gain)} {noun}"
        if self.classes:
            samples = held if held.startswith("rows") else f"samples of {held}"
            return (
                f"a random forest predicts the class of {100 * self.right:.0f} % of {samples}, "
                f"{100 * other.right:.0f} % {words}; its probabilities are {wins}"
            )
        model = "a random forest explains" if self.supervised else "levels explain"
        shares = f"{100 * self.explained:.0f} % of the variance of {held}, {100 * other.explained:.0f} % {words}"
        return f"{model} {shares}; {wins}"

    @property
    def supervised(self) -> bool:
        """Whether classes or numbers are predicted."""
        return self.park.dataset.task.labelled or self.park.dataset.target is not None

    @property
    def classes(self) -> bool:
        """Whether classes are predicted."""
        return self.supervised and self.park.dataset.target is None

    @cached_property
    def right(self) -> float:
        """The share of samples whose class has the largest prediction, with the same weight for each unit."""
        right = self._predicted.argmax(axis=1) == self._targets.argmax(axis=1)
        return float((np.bincount(self._unit, right) / np.bincount(self._unit)).mean())

    @property
    def _dealt(self) -> bool:
        return self.park.natural_owners is None

    @property
    def _recorded(self) -> bool:
        return self.park.dataset.run is not None

    @cached_property
    def chosen(self) -> dict[int, Indices]:
        """Device, or block of dealt samples → its samples that are examined, evenly spread."""
        if self._dealt:
            every = np.sort(np.concatenate([*self.park.indices]))
            rows = self.park.dataset.shape[1] if len(self.park.dataset.shape) > 1 else 1
            many = max(min(BLOCKS, len(every) // (APART * rows)), min(FOLDS, len(every)))
            parts = dict(enumerate(np.array_split(every, many)))
        else:
            many = min(self.park.devices, MANY)
            parts = {k: np.sort(self.park.indices[k]) for k in (np.arange(many) * self.park.devices // many).tolist()}
        most = min(MOST, max(LEAST_OF_LONG, NUMBERS // math.prod(self.park.dataset.shape)))
        share = min(1.0, most / sum(map(len, parts.values())))
        sizes = {k: max(1, round(share * len(part))) for k, part in parts.items()}
        return {k: part[np.arange(sizes[k]) * len(part) // sizes[k]] for k, part in parts.items()}

    @cached_property
    def _every(self) -> Indices:
        return np.concatenate([*self.chosen.values()])

    @cached_property
    def _device(self) -> Groups:
        return np.repeat([*self.chosen], [len(part) for part in self.chosen.values()])

    @cached_property
    def _unit(self) -> Groups:
        """The device or the recording of each sample."""
        run = self.park.dataset.run
        return np.unique(self._device if run is None else run[self._every], return_inverse=True)[1].ravel()

    @cached_property
    def _fold(self) -> Groups:
        """The fold in which each sample is held out, [n]."""
        if self.scattered:
            return np.arange(len(self._every)) % FOLDS
        if self._recorded or self.strangers or self._dealt:
            return self._unit % FOLDS
        return np.concatenate([np.arange(len(part)) * FOLDS // len(part) for part in self.chosen.values()])

    @cached_property
    def _x(self) -> Numbers:
        park = self.park if self.own is None or not self.supervised else prepared(self.park, self.own)
        parts = [park.dataset.take(part, -1 if self._dealt else k) for k, part in self.chosen.items()]
        return np.concatenate(parts).astype(np.float64)

    @cached_property
    def _last(self) -> Numbers:
        """The last rows, with mean 0 and deviation 1, and 0 for missing values."""
        x = self._x if self._x.ndim == 2 else self._x[:, :, -1]
        x = np.nan_to_num(x - np.nanmean(x, axis=0))
        scaled: Numbers = x / np.where(x.std(axis=0) > 0, x.std(axis=0), 1.0)
        return scaled

    @cached_property
    def _targets(self) -> Numbers:
        data = self.park.dataset
        if not self.supervised:
            return self._last
        if data.target is None:
            return np.eye(len(data.classes))[data.y[self._every]]
        cap = getattr(data.task, "cap", None)  # lives above it are not to be told apart
        return np.minimum(data.target[self._every], math.inf if cap is None else cap).astype(np.float64)

    @cached_property
    def _predicted(self) -> Numbers:
        predicted = np.zeros_like(self._targets)
        for fold in range(self._fold.max() + 1):
            held = self._fold == fold
            predict = self._forest if self.supervised else self._levels
            predicted[held] = predict(held)
        return predicted

    def _forest(self, held: NDArray[np.bool_]) -> Numbers:
        from sklearn.ensemble import RandomForestRegressor

        x, y = columns(self._x), self._targets
        forest = RandomForestRegressor(TREES, min_samples_leaf=LEAST, max_features="sqrt", random_state=0, n_jobs=1)
        predicted: Numbers = forest.fit(x[~held], y[~held].squeeze()).predict(x[held])
        return predicted.reshape(-1, y.shape[1])

    def boosted(self, share: float) -> Numbers:
        """Return the predictions of held-out samples after each of :data:`BOOSTED` trees, of scikit-learn's boosting.

        Args:
            share: the share of the features that a split may use.

        Returns:
            [BOOSTED, n, outputs]; [0, n, outputs] where this would take long, or a class is absent without the held-out
            samples.
        """
        x, y = columns(self._x), self._targets
        folds = [self._fold == fold for fold in range(self._fold.max() + 1)]
        whole = self.park.dataset.target is not None or all((y[~held].sum(axis=0) > 0).all() for held in folds)
        if x.size * y.shape[1] > SUMS or not whole:
            return np.zeros((0, *y.shape))
        predicted = np.zeros((BOOSTED, *y.shape))
        for held in folds:
            predicted[:, held] = self._stages(x[~held], y[~held], x[held], share)
        return predicted

    def _stages(self, x: Numbers, y: Numbers, new: Numbers, share: float) -> Numbers:
        """Return the predictions for new samples after each tree, [BOOSTED, n, outputs]."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        settings = {"max_iter": BOOSTED, "early_stopping": False, "max_features": share, "random_state": 0}
        known = ~np.isnan(x).all(axis=0)  # scikit-learn has no bins for a feature without any value
        x = x[:, known]
        new = new[:, known]
        if self.park.dataset.target is None:
            classes = HistGradientBoostingClassifier(**settings).fit(x, y.argmax(axis=1))
            return np.array([*classes.staged_predict_proba(new)])
        numbers = (HistGradientBoostingRegressor(**settings).fit(x, column) for column in y.T)
        return np.stack([np.array([*model.staged_predict(new)]) for model in numbers], axis=2)

    def _levels(self, held: NDArray[np.bool_]) -> Numbers:
        x = self._last
        if self.own is None:
            return np.broadcast_to(x[~held].mean(axis=0), x[held].shape)
        level = np.zeros_like(x)
        for device in self.chosen:
            mine = np.flatnonzero(self._device == device)
            rows = None if self.own.rows is None else self.own.rows * len(mine) // _rows(self.park, device)
            first = mine[~held[mine]] if rows is None else mine[: max(1, rows)]
            level[mine] = x[first].mean(axis=0) if len(first) else x[~held].mean(axis=0)
        return level[held]


def _rows(park: Park, device: int) -> int:
    """Return the number of rows of a device's training samples, of windows those that they cover."""
    part = park.indices[device]
    first = park.dataset.first
    if first is None:
        return len(part)
    length = park.dataset.shape[-1]
    return int(np.minimum(np.diff(np.sort(first[part])), length).sum()) + length


def _rounded(rows: float) -> int:
    """Return a number of rows, rounded to two digits.

    >>> _rounded(358.3), _rounded(20), _rounded(1000)
    (360, 20, 1000)
    """
    unit = 10 ** max(math.floor(math.log10(rows)) - 1, 0)
    return int(round(rows / unit) * unit)
