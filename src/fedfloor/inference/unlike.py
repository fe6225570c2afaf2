"""Comparison of a file's sensors with those of a model's training, in the values by which the model normalises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedfloor.inference.normalisation import RegimeRawNetwork
from fedfloor.inference.samples import FileSamples
from fedfloor.inference.trained import Trained
from fedfloor.park.peers import beside, explained, sentences
from fedfloor.park.statistics import first_rows
from fedfloor.park.summaries import Summaries

BEYOND = (5.0, 10.0, 30.0)  # standard deviations from the means of training
LEAST = 50  # rows of a device whose sensors are compared by their relations and variation
Values = NDArray[np.float32]


def odd_sensors(trained: Trained, samples: FileSamples) -> list[str]:
    """Return a warning for each sensor whose values in a file differ too much from those of training.

    By Chebyshev's inequality, at most 1/k² of the values of a training device are more than k of its standard
    deviations from its mean. A sensor is named if more of a file's values lie beyond that for every device of the
    training, for k = 5, 10 or 30. Values are those that the model normalises for all devices alike: normalised by
    regime or device where the model does that, otherwise as stored. Sensors are also named that are absent or constant,
    have the opposite sign or are exchanged, unlike on all devices of the training.
    """
    if trained.sensors is None or not len(samples.x):
        return []
    stored = trained.training.sensors
    if stored is not None and stored.sensors != trained.sensors.columns:
        stored = None  # the run's folder has been changed
    normalised = _normalised(trained, stored)
    warnings = [] if normalised is None else _far(trained, samples, normalised)
    return warnings + ([] if stored is None else _contradicting(trained, samples, stored))


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


def _far(trained: Trained, samples: FileSamples, s: Summaries) -> list[str]:
    """Return a warning for each sensor with too many values beyond those of every device in training."""
    x = _comparable(trained, samples.x)
    warnings = []
    for name, (k, share) in beyond(x, s).items():
        channel = s.sensors.index(name)
        if channel in trained.task.unread:
            continue
        values = x[:, channel][~np.isnan(x[:, channel])].astype(np.float64)
        why = explained(float(values.mean()), float(values.std()), s, channel)
        warnings.append(
            f"{samples.file}: sensor '{name}': {share:.1%} of its values lie more than {k:g} standard deviations from "
            f"the mean of training, where at most {1 / k**2:.1%} can be{why}. Another unit, or a failing sensor? Do "
            "not rely on these answers."
        )
    return warnings


def _contradicting(trained: Trained, samples: FileSamples, s: Summaries) -> list[str]:
    """Return a warning for each sensor of a device that is absent, constant, turned or exchanged."""
    x = samples.x if samples.stored is None else samples.stored
    whose = np.array(samples.devices or [samples.file.name] * len(x))
    names = list[str]()
    rows = list[NDArray[Any]]()
    for name in dict.fromkeys(whose.tolist()):
        mine = np.flatnonzero(whose == name)
        first = None if samples.first is None else samples.first[mine]
        part = np.asarray(first_rows(_comparable(trained, x[mine]), first, None), np.float32)
        if len(part) >= LEAST:
            names.append(name)
            rows.append(part)
    if not names:
        return []
    new = Summaries.of_rows(s.sensors, names, [0] * len(names), rows)
    unread = {s.sensors[i] for i in trained.task.unread}
    found = [finding for finding in beside(new, s) if not unread & {*finding.sensors}]
    return [f"{samples.file}: {text}" for text in sentences(found, trained=True)]
