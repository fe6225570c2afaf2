"""Predictions for the samples of files, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError
from fedfloor.inference.samples import UNKNOWN, Samples
from fedfloor.inference.trained import BLOCK, Trained

Row = dict[str, Any]


@dataclass(frozen=True)
class Prediction:
    """What a model says about one sample.

    Attributes:
        file: where it stood.
        place: (first, last) row of a table, (number, number) in an array; None for a picture.
        best: the likeliest classes with their probabilities, the likeliest first.
        label: what it is, where that is known.
        device: who took it, where a table says so.
    """

    file: Path
    place: tuple[int, int] | None
    best: tuple[tuple[str, float], ...]
    label: str | None
    device: str | None = None


def predict(
    trained: Trained, parts: Iterable[Samples], top: int = 1, follow: Callable[[int], None] | None = None,
    failed: dict[Path, str] | None = None,
) -> list[Prediction]:  # fmt: skip
    """Predict the class of every sample.

    Args:
        trained: the model.
        parts: its samples, file by file.
        top: how many classes to tell of each.
        follow: called with the number of files done, now and then.
        failed: gets the files whose numbers are too large for the model, and the others are answered.

    Raises:
        SettingError: a file that is no sample of this model; numbers too large for it, where ``failed`` is left out.
    """
    found: list[Prediction] = []
    for held in _gathered(parts, follow):
        probabilities, logits = (one.numpy() for one in trained.outputs(np.concatenate([part.x for part in held])))
        order = _order(trained, probabilities, logits)[:, :top]
        first = 0
        for part in held:
            mine = slice(first, first + len(part.x))
            first += len(part.x)
            if np.isfinite(probabilities[mine]).all():
                found += _told(part, probabilities[mine], order[mine], trained.classes)
                continue
            error = f"{part.file}: the model's answer is no number. Are its values far too large?"
            if failed is None:
                raise SettingError(error)
            failed[part.file] = error
    return found


def _order(
    trained: Trained, probabilities: NDArray[np.floating[Any]], logits: NDArray[np.floating[Any]]
) -> NDArray[np.int64]:
    """Return the classes of each sample [n, F]: that which is decided on, then the others, the likeliest first."""
    order = np.argsort(-logits, axis=1, kind="stable")  # of equal ones the first, like argmax
    if trained.decision is None or trained.decision.positive is None:
        return order
    decided = trained.decision.of(probabilities)[:, None]
    return np.concatenate([decided, order[order != decided].reshape(len(order), -1)], axis=1)


def _gathered(parts: Iterable[Samples], follow: Callable[[int], None] | None) -> Iterator[list[Samples]]:
    """Put small files together: a network is much faster on many samples at a time."""
    held: list[Samples] = []
    for number, part in enumerate(parts, start=1):
        held.append(part)
        if sum(len(one.x) for one in held) >= BLOCK:
            yield held
            held = []
            if follow is not None:
                follow(number)
    if held:
        yield held


def _told(
    part: Samples, probabilities: NDArray[np.floating[Any]], order: NDArray[np.int64], classes: Sequence[str]
) -> Iterator[Prediction]:
    for i, chosen in enumerate(order.tolist()):
        best = tuple((classes[c], float(probabilities[i, c])) for c in chosen)
        label = None if part.y[i] == UNKNOWN else classes[part.y[i]]
        place = None if part.places is None else part.places[i]
        device = None if part.devices is None else part.devices[i]
        yield Prediction(part.file, place, best, label, device)


def accuracy(found: Sequence[Prediction]) -> tuple[float | None, int]:
    """Return the share of right predictions among those whose label is known, and how many these are."""
    known = [one for one in found if one.label is not None]
    return (sum(one.label == one.best[0][0] for one in known) / len(known) if known else None), len(known)


def by(found: Sequence[Prediction], key: Callable[[Prediction], str | None], name: str) -> list[Row]:
    """Return a row per file or device: samples, the class predicted most with its share, the accuracy if labelled.

    Args:
        found: predictions.
        key: a prediction's file or device; those without one are left out.
        name: of the first column.
    """
    groups: dict[str, list[Prediction]] = {}
    for one in found:
        if (of := key(one)) is not None:
            groups.setdefault(of, []).append(one)
    rows = []
    for of, mine in groups.items():
        most = by_class(mine)[0]
        row = {name: of, "samples": len(mine), "mostly": most["class"], "share": most["share"]}
        rows.append(row | {"accuracy": accuracy(mine)[0]})
    return rows


def by_class(found: Sequence[Prediction]) -> list[Row]:
    """Return a row per predicted class: how many samples, their share, their mean probability."""
    told: dict[str, list[float]] = {}
    for one in found:
        told.setdefault(*one.best[0][:1], []).append(one.best[0][1])
    return [
        {"class": name, "samples": len(p), "share": len(p) / len(found), "mean_probability": sum(p) / len(p)}
        for name, p in sorted(told.items(), key=lambda item: -len(item[1]))
    ]


def rows(found: Sequence[Prediction]) -> list[Row]:
    """Return predictions as rows: file, place, class, probability, the next best, and the label."""
    return [
        {
            "file": str(one.file),
            "device": one.device,
            "rows": _place(one.place),
            "predicted": one.best[0][0],
            "probability": one.best[0][1],
            "next": ", ".join(f"{name} {p:.4f}" for name, p in one.best[1:]) or None,
            "label": one.label,
        }
        for one in found
    ]


def _place(place: tuple[int, int] | None) -> int | str | None:
    if place is None or place[0] == place[1]:
        return None if place is None else place[0]
    return f"{place[0]}–{place[1]}"


def documents(found: Sequence[Prediction]) -> list[Row]:
    """Return predictions as JSON: like :func:`rows`, with ``rows`` = [first, last] and all of ``top``."""
    return [
        {
            "file": str(one.file),
            "device": one.device,
            "rows": None if one.place is None else list(one.place),
            "predicted": one.best[0][0],
            "probability": one.best[0][1],
            "top": [{"class": name, "probability": p} for name, p in one.best],
            "label": one.label,
        }
        for one in found
    ]
