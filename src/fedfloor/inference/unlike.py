"""Comparison of a file's sensors with those of a model's training, in the values by which the model normalises."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.base.names import count
from fedfloor.data.files.categories import sources
from fedfloor.inference.normalisation import RegimeRawNetwork
from fedfloor.inference.samples import FileSamples
from fedfloor.inference.trained import Trained
from fedfloor.park.peers import LISTED, beside, explained, sentences
from fedfloor.park.statistics import first_rows
from fedfloor.park.summaries import OUTSIDE, PARTS, Summaries

BEYOND = (5.0, 10.0, 30.0)  # standard deviations from the means of training
LEAST = 50  # rows of a device whose sensors are compared by their relations and variation
FAR = 5.0  # deviations of the means of training's tenths, beyond which a mean has moved
TENTH = 0.1  # share of a device's values outside the range of training, above which a sensor is named
Values = NDArray[np.float32]


def odd_sensors(trained: Trained, samples: FileSamples) -> list[str]:
    """Return a warning for each sensor whose values in a file differ too much from those of training.

    By Chebyshev's inequality, at most 1/k² of the values of a training device are more than k of its standard
    deviations from its mean. A sensor is named if more of a file's values lie beyond that for every device of the
    training, for k = 5, 10 or 30. Values are those that the model normalises for all devices alike: normalised by
    regime or device where the model does that, otherwise as stored. Sensors are also named that are absent or constant,
    have the opposite sign or are exchanged, unlike on all devices of the training; and those with many values outside
    the range of their own device's training, see :func:`outside`.
    """
    if trained.sensors is None or not len(samples.x):
        return []
    stored = trained.training.sensors
    if stored is not None and stored.sensors != trained.sensors.columns:
        stored = None  # the run's folder has been changed
    normalised = _normalised(trained, stored)
    far = {} if normalised is None else _far(trained, samples, normalised)
    if stored is None:
        return [*far.values()]
    parts = _by_device(trained, samples)
    contradicting = _contradicting(trained, samples, stored, parts)
    return [*far.values(), *contradicting, *_moved(trained, samples, stored, parts, far)]


def _normalised(trained: Trained, stored: Summaries | None) -> Summaries | None:
    """Return the summaries of training in comparable values; None if they are unknown, or only the network scales."""
    if trained.own is not None:
        known = trained.own.known
        names = [] if stored is None else [name for name in stored.names if name in known]
        if stored is None or not names:
            return None
        places = [stored.names.index(name) for name in names]
        mean, deviation = (np.stack([known[name][i] for name in names]).astype(np.float64) for i in (0, 1))
        own = (stored.mean[places] - mean) / deviation, stored.deviation[places] / deviation
        return replace(stored, mean=own[0], deviation=own[1])
    if stored is not None or isinstance(trained.raw, RegimeRawNetwork):
        return stored
    factor, shift = (part.numpy().reshape(1, -1).astype(np.float64) for part in (trained.raw.factor, trained.raw.shift))
    if (factor == 1).all() and (shift == 0).all():
        return None
    one = np.ones(factor.shape)
    return Summaries(
        trained.sensors.columns if trained.sensors else (), ("training",), np.zeros(1, np.int64), one[:, 0], one,
        -shift / factor, 1 / factor,
    )  # fmt: skip


def _comparable(trained: Trained, x: Values) -> Values:
    """Return values in the form of the training's summaries."""
    if not isinstance(trained.raw, RegimeRawNetwork):
        return x
    with torch.inference_mode():
        return np.asarray(trained.raw.values(torch.from_numpy(np.ascontiguousarray(x))).numpy())


def beyond(x: Values, s: Summaries) -> dict[str, tuple[float, float]]:
    """Return sensor → k and the share of its values [n, C, …] more than k deviations beyond every device's mean.

    Only sensors with a share above 1/k² for k = 5, 10 or 30 are returned, each with the largest k.
    """
    bounds = {k: s.hull(k) for k in BEYOND}
    found = dict[str, tuple[float, float]]()
    for channel, name in enumerate(s.sensors):
        values = x[:, channel][~np.isnan(x[:, channel])].astype(np.float64)
        for k, (low, high) in bounds.items():
            share = float(((values < low[channel]) | (values > high[channel])).mean()) if values.size else 0.0
            if share > 1 / k**2:
                found[name] = (k, share)
    return found


def _far(trained: Trained, samples: FileSamples, s: Summaries) -> dict[str, str]:
    """Return sensor → warning for each one with too many values beyond those of every device in training."""
    x = _comparable(trained, samples.x)
    warnings = {}
    text_of = _categories(trained)
    for name, (k, share) in beyond(x, s).items():
        channel = s.sensors.index(name)
        if channel in trained.task.unread:
            continue
        values = x[:, channel][~np.isnan(x[:, channel])].astype(np.float64)
        if column := text_of[channel]:
            usual = float(np.nanmax(s.mean[:, channel]))
            warnings[name] = (
                f"{samples.file}, column '{column}': {values.mean():.1%} of the values are "
                f"'{name.removeprefix(f'{column}=')}', at most {usual:.1%} on any device in training."
            )
            continue
        why = explained(float(values.mean()), float(values.std()), s, channel)
        warnings[name] = (
            f"{samples.file}: sensor '{name}': {share:.1%} of its values lie more than {k:g} standard deviations from "
            f"the mean of training, where at most {1 / k**2:.1%} can be{why}. Another unit, or a failing sensor? Do "
            "not rely on these answers."
        )
    return warnings


def _categories(trained: Trained) -> list[str]:
    """Return for each sensor the column of texts of which it is one value, or ""."""
    names = trained.sensors.columns if trained.sensors else ()
    coding = trained.sensors.coding if trained.sensors else {}
    texts = sources(names, coding.get("categories") or ())
    return [text if text != name else "" for text, name in zip(texts, names, strict=True)]


def _by_device(trained: Trained, samples: FileSamples) -> dict[str, Values]:
    """Return device → its rows in a file [R, C], in comparable values, of those with enough rows."""
    x = samples.x if samples.stored is None else samples.stored
    whose = np.array(samples.devices or [samples.file.name] * len(x))
    parts = {}
    for name in dict.fromkeys(whose.tolist()):
        mine = np.flatnonzero(whose == name)
        first = None if samples.first is None else samples.first[mine]
        part = np.asarray(first_rows(_comparable(trained, x[mine]), first, None), np.float32)
        if len(part) >= LEAST:
            parts[name] = part
    return parts


def _contradicting(trained: Trained, samples: FileSamples, s: Summaries, parts: Mapping[str, Values]) -> list[str]:
    """Return a warning for each sensor of a device that is absent, constant, turned or exchanged."""
    if not parts:
        return []
    new = Summaries.of_rows(s.sensors, [*parts], [0] * len(parts), parts.values())
    unread = {s.sensors[i] for i in trained.task.unread}
    found = [finding for finding in beside(new, s) if not unread & {*finding.sensors}]
    return [f"{samples.file}: {text}" for text in sentences(found, trained=True)]


@dataclass(frozen=True)
class Outside:
    """The values of a device's sensor that are outside the range of training.

    Args:
        sensor: its channel.
        share: of the values.
        bound: that of training which they are above or below.
        above: whether they are above it.
        ever: whether no value of training is beyond the bound; otherwise at most :data:`~.summaries.OUTSIDE` are.
    """

    sensor: int
    share: float
    bound: float
    above: bool
    ever: bool


def outside(x: Values, s: Summaries, device: int | None) -> list[Outside]:
    """Return the sensors of a device [R, C] with more than a tenth of their values on one side of those of training.

    The range is that of this device's training, or that of all devices for a new one (None): either of all values, or
    of all but 0.5 % on each side. Of N rows of training, 0.005·N are beyond the latter, so that a stretch of R rows may
    have a share of 0.005·N/R there: only a larger one is returned. Levels wander: the mean must be further from that of
    training than five deviations of the means of training's tenths (of stretches as short as R, if that is less).
    """
    if s.least is None or s.low is None or s.high is None or s.most is None or s.wander is None:
        return []
    of = slice(None) if device is None else [device]
    rows = float(np.max((s.rows if s.trained is None else s.trained)[of]))
    found = []
    for c, column in enumerate(x.T):
        values = column[~np.isnan(column)].astype(np.float64)
        if len(values) < LEAST or np.isnan(s.wander[of, c]).all():
            continue
        least = float(np.nanmin(s.least[of, c]))
        low = float(np.nanmin(s.low[of, c]))
        high = float(np.nanmax(s.high[of, c]))
        most = float(np.nanmax(s.most[of, c]))
        wander = FAR * float(np.nanmax(s.wander[of, c])) * max(1.0, rows / PARTS / len(values)) ** 0.5
        above = bool(values.mean() - np.nanmax(s.mean[of, c]) > wander)
        if not above and float(np.nanmin(s.mean[of, c])) - values.mean() <= wander:
            continue
        rounding = 1e-5 * (most - least) + 1e-6 * max(abs(least), abs(most))
        usual = max(TENTH, OUTSIDE * rows / len(values))
        extreme, common = (most, high) if above else (least, low)
        for bound, limit, ever in ((extreme, TENTH, True), (common, usual, False)):
            share = float(((values - bound if above else bound - values) > rounding).mean())
            if share > limit:
                found.append(Outside(c, share, bound, above, ever))
                break
    return found


def _moved(
    trained: Trained, samples: FileSamples, s: Summaries, parts: Mapping[str, Values], told: Collection[str]
) -> list[str]:
    """Return a note for each sensor with many values outside those of training, about the device with the most."""
    text_of = _categories(trained)
    most: dict[int, tuple[Outside, str]] = {}
    where: dict[int, set[str]] = {}
    for name, x in parts.items():
        known = s.names.index(name) if name in s.names else None
        if known is None and trained.own is not None:
            continue  # normalised by its own rows, whatever its level
        for one in outside(x, s, known):
            if one.sensor in trained.task.unread or s.sensors[one.sensor] in told or text_of[one.sensor]:
                continue
            where.setdefault(one.sensor, set()).add(name)
            before = most.get(one.sensor)
            if before is None or (one.share, one.ever) > (before[0].share, before[0].ever):
                most[one.sensor] = one, name
    lines = []
    for c, (one, name) in sorted(most.items(), key=lambda item: -item[1][0].share)[:LISTED]:
        own = [s.names.index(name)] if name in s.names else [*range(len(s.names))]
        usual = replace(s, mean=s.mean[own], deviation=s.deviation[own])
        level = parts[name][:, c].astype(np.float64)
        why = explained(float(np.nanmean(level)), float(np.nanstd(level)), usual, c)
        why = why.replace("the others have", "training has").replace("the others'", "those of training")
        side = "above" if one.above else "below"
        ever = "which no value of training is" if one.ever else f"as at most {OUTSIDE:.1%} of training are"
        more = f", and so at {count(len(where[c]) - 1, 'other device')}" if len(where[c]) > 1 else ""
        lines.append(
            f"{samples.file}: '{name}', sensor '{s.sensors[c]}': {one.share:.0%} of its values are {side} "
            f"{one.bound:.5g}, {ever}{why}{more}. Has it shifted, or is this a new operating point? The model was not "
            "trained on such values."
        )
    if (rest := len(most) - len(lines)) > 0:
        lines.append(f"{samples.file}: {count(rest, 'more sensor')} with such values.")
    return lines
