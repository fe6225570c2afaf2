"""A model's answers file by file, and warnings where values or classes are unlike those of training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.errors import SettingError
from fedfloor.inference.samples import FileSamples
from fedfloor.inference.trained import BLOCK, Trained
from fedfloor.tasks.answer import Answer

Row = dict[str, Any]


def answers_of(
    trained: Trained, parts: Iterable[FileSamples], follow: Callable[[int], None] | None = None,
    failed: dict[Path, str] | None = None,
) -> Iterator[tuple[FileSamples, Answer]]:  # fmt: skip
    """Yield each file's samples with the model's answer, made of arrays.

    Raises:
        SettingError: a file that is no sample of this model; numbers too large for it, where ``failed`` is left out.
    """
    for batch in _batches(parts, follow):
        whole = trained.answered(np.concatenate([part.x for part in batch])).changed(lambda _, values: values.numpy())
        first = 0
        for part in batch:
            mine = slice(first, first + len(part.x))
            first += len(part.x)
            answer = whole.changed(lambda _, values: values[mine])  # noqa: B023
            if np.isfinite(next(iter(answer.parts().values()))).all():
                yield part, answer
                continue
            error = f"{part.file}: the model's answer is not a finite number. Are its values far too large?"
            if failed is None:
                raise SettingError(error)
            failed[part.file] = error


def _batches(parts: Iterable[FileSamples], follow: Callable[[int], None] | None) -> Iterator[list[FileSamples]]:
    """Combine small files: a network is much faster on many samples at a time."""
    batch: list[FileSamples] = []
    for number, part in enumerate(parts, start=1):
        batch.append(part)
        if sum(len(each.x) for each in batch) >= BLOCK:
            yield batch
            batch = []
            if follow is not None:
                follow(number)
    if batch:
        yield batch


BEYOND = (5.0, 10.0, 30.0)  # deviations from the mean of training
APART = 0.2  # between two mixes of classes, beyond chance


def odd_sensors(trained: Trained, samples: FileSamples) -> list[str]:
    """Return a warning for each sensor whose values in a file cannot be like those of training.

    By Chebyshev's inequality at most 1/k² of the training values lie more than k deviations from their mean; a sensor
    is named where more of a file's values do, for k = 5, 10 or 30. Of devices that are normalised by their own
    rows these are the mean and the deviation of that device in training; one that was not there is not looked at.
    Pictures, and sensors that were not normalised, have neither.

    Args:
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
    warnings = []
    for channel, name in enumerate(trained.sensors.columns):
        values = away[:, channel][~np.isnan(away[:, channel])]
        shares = {k: float((values > k).mean()) if values.size else 0.0 for k in BEYOND}
        odd = max((k for k, share in shares.items() if share > 1 / k**2), default=None)
        if odd is not None:
            warnings.append(
                f"{samples.file}: sensor '{name}': {shares[odd]:.1%} of its values lie more than {odd:g} standard "
                f"deviations from the mean of training, where at most {1 / odd**2:.1%} can have. Another unit, or a "
                "failing sensor? Do not rely on these answers."
            )
    return warnings


def odd_mix(trained: Trained, predicted: Mapping[str, int], folder: Path) -> str:
    """Return a warning where ½ Σ_c |p_c − q_c| between predicted and training classes exceeds 0.2 + ½ √(F/n).

    The last term is the distance by chance for n samples of F classes. Without the run's ``park.json`` q is not known.
    """
    counts = _counts(folder / "park.json", trained.classes)
    total = sum(predicted.values())
    if counts is None or not total:
        return ""
    here = np.array([predicted.get(name, 0) for name in trained.classes]) / total
    apart = np.abs(here - counts / counts.sum())
    if apart.sum() / 2 <= APART + math.sqrt(len(here) / total) / 2:
        return ""
    worst = int(apart.argmax())
    return (
        f"the predicted classes are mixed unlike the training samples: {here[worst]:.1%} '{trained.classes[worst]}', "
        f"{counts[worst] / counts.sum():.1%} in training. The model's measured quality holds for a mix like that of "
        "its test samples."
    )


def _counts(path: Path, classes: Sequence[str]) -> np.ndarray | None:
    """Return the sum of the devices' class counts of a run; None where they are not known."""
    try:
        park = json.loads(path.read_text(encoding="utf-8"))
        if park["classes"] != list(classes):
            return None
        total = np.sum([device["counts"] for device in park["devices"]], axis=0, dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return total if total.shape == (len(classes),) and total.sum() > 0 else None
