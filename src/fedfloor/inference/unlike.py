"""What a model is asked that is unlike what it was trained on: sensors' values, and the mix of classes.

Nothing was recorded for this beside what a run's folder has anyway: each sensor's mean and deviation, which come from
sums over the devices, and the devices' class counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedfloor.inference.samples import Samples
from fedfloor.inference.trained import Trained

BEYOND = (5.0, 10.0, 30.0)  # deviations from the mean of training
APART = 0.2  # between two mixes of classes, beside what chance makes


def values(trained: Trained, samples: Samples) -> list[str]:
    """Return a warning for each sensor whose values in a file cannot be like those of training.

    By Chebyshev's inequality at most 1/k² of the training values lie more than k deviations from their mean; a sensor
    is pointed at where more of a file's values do, for k = 5, 10 or 30. Of devices that are normalised by their own
    rows these are the mean and the deviation of that device in training; one that was not there is not looked at.
    Pictures, and sensors that were not normalised, have neither.

    Args:
        trained: the model.
        samples: of one file, as they go into ``raw``.
    """
    if trained.sensors is None or not len(samples.x):
        return []
    factor, shift = trained.raw.factor.numpy().reshape(-1), trained.raw.shift.numpy().reshape(-1)
    if trained.own is None and (factor == 1).all() and (shift == 0).all():
        return []
    form = (1, -1, *(1,) * (samples.x.ndim - 2))
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.abs(samples.x * factor.reshape(form) + shift.reshape(form))
    found = []
    for channel, name in enumerate(trained.sensors.columns):
        one = away[:, channel][~np.isnan(away[:, channel])]
        shares = {k: float((one > k).mean()) if one.size else 0.0 for k in BEYOND}
        odd = max((k for k, share in shares.items() if share > 1 / k**2), default=None)
        if odd is not None:
            found.append(
                f"{samples.file}: sensor '{name}': {shares[odd]:.1%} of its values lie more than {odd:g} standard "
                f"deviations from the mean of training, where at most {1 / odd**2:.1%} can have. Another unit, or a "
                "sensor that fails? The answers are not to be relied on."
            )
    return found


def mix(trained: Trained, predicted: Mapping[str, int], folder: Path) -> str:
    """Return a warning where the predicted classes are mixed unlike those of training; nothing where that is unknown.

    It is given where half of Σ_c |p_c − q_c| is above 0.2 and half of √(F/n), which chance makes of n samples of F
    classes.

    Args:
        trained: the model.
        predicted: samples by class.
        folder: the run's; without its ``park.json`` nothing is known.
    """
    counts = _counts(folder / "park.json", trained.classes)
    many = sum(predicted.values())
    if counts is None or not many:
        return ""
    here = np.array([predicted.get(name, 0) for name in trained.classes]) / many
    apart = np.abs(here - counts / counts.sum())
    if apart.sum() / 2 <= APART + math.sqrt(len(here) / many) / 2:
        return ""
    worst = int(apart.argmax())
    return (
        f"the predicted classes are mixed unlike the training samples: {here[worst]:.1%} '{trained.classes[worst]}', "
        f"{counts[worst] / counts.sum():.1%} there. What the model was found to be worth holds for a mix like that of "
        "its test samples."
    )


def _counts(path: Path, classes: Sequence[str]) -> np.ndarray | None:
    """Return the devices' class counts of a run, added up; None where they are not known."""
    try:
        park = json.loads(path.read_text(encoding="utf-8"))
        if park["classes"] != list(classes):
            return None
        total = np.sum([one["counts"] for one in park["devices"]], axis=0, dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return total if total.shape == (len(classes),) and total.sum() > 0 else None
