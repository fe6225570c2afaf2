"""Classes predicted for the samples of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import require
from fedfloor.inference import unlike
from fedfloor.inference.predict import Found, Row, answered, shown
from fedfloor.inference.samples import UNKNOWN, Samples
from fedfloor.inference.trained import Trained
from fedfloor.names import count
from fedfloor.tasks.answer import Answer
from fedfloor.terminal import show


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
    return _predictions(trained, answered(trained, parts, follow, failed), top)


def _predictions(trained: Trained, answers: Iterable[tuple[Samples, Answer]], top: int) -> list[Prediction]:
    found: list[Prediction] = []
    for part, answer in answers:
        probabilities, logits = answer.parts().values()
        order = _order(trained, probabilities, logits)[:, :top]
        found += _told(part, probabilities, order, trained.classes)
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
            "rows": shown(one.place),
            "predicted": one.best[0][0],
            "probability": one.best[0][1],
            "next": ", ".join(f"{name} {p:.4f}" for name, p in one.best[1:]) or None,
            "label": one.label,
        }
        for one in found
    ]


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


def check(trained: Trained, top: int) -> None:
    """Refuse a number of classes to tell that the model does not have.

    Raises:
        SettingError: so it is.
    """
    require(1 <= top <= len(trained.classes), "--top", top, f"from 1 to {len(trained.classes)}")


@dataclass(frozen=True, eq=False)
class Classified(Found):
    """Classes of samples.

    Args:
        trained: the model.
        predictions: one for each.
    """

    trained: Trained
    predictions: list[Prediction]

    def __len__(self) -> int:
        return len(self.predictions)

    def rows(self, few: int) -> list[Row]:
        """Return the first samples as rows for people."""
        return rows(self.predictions[:few])

    def documents(self) -> list[Row]:
        """Return samples as JSON."""
        return documents(self.predictions)

    def table(self) -> list[Row]:
        """Return samples as rows of a CSV file."""
        return [_flat(one) for one in self.predictions]

    def summary(self) -> Row:
        """Return the accuracy, the classes that were predicted, and the threshold, if there is one."""
        right, known = accuracy(self.predictions)
        said: Row = {"accuracy": right, "labelled": known, "by_class": by_class(self.predictions)}
        if self.trained.threshold is not None:
            said["decide"] = dict(zip(("positive", "threshold"), self.trained.threshold, strict=True))
        return said

    def groups(self, *, people: bool) -> dict[str, list[Row]]:  # noqa: ARG002
        """Return a row per file and per device, for people or as JSON."""
        return {
            "by_file": by(self.predictions, lambda one: str(one.file), "file"),
            "by_device": by(self.predictions, lambda one: one.device, "device"),
        }

    def overview(self) -> None:
        """Print how often each class was predicted."""
        show(by_class(self.predictions), as_json=False, title=f"{len(self):,} samples")

    def closing(self) -> list[str]:
        """Return the threshold and the accuracy in words."""
        lines = []
        if self.trained.threshold is not None:
            name, least = self.trained.threshold
            lines = [f"decision: '{name}' where its probability is at least {least:.4g}, as validation data chose"]
        right, known = accuracy(self.predictions)
        return lines if right is None else [*lines, f"accuracy: {right:.4f} on {count(known, 'sample')} with a label"]

    def warnings(self, folder: Path) -> list[str]:
        """Return a warning where the classes are mixed unlike those of training."""
        told = unlike.mix(self.trained, {row["class"]: row["samples"] for row in by_class(self.predictions)}, folder)
        return [told] if told else []


def _flat(one: Prediction) -> Row:
    first, last = one.place or (None, None)
    row: Row = {"file": one.file, "device": one.device, "first": first, "last": last, "label": one.label}
    for k, (name, p) in enumerate(one.best, start=1):
        row |= {f"predicted_{k}" if k > 1 else "predicted": name, f"probability_{k}" if k > 1 else "probability": p}
    return row


def found(trained: Trained, answers: Iterable[tuple[Samples, Answer]], top: int) -> Classified:
    """Return the classes of all samples.

    Args:
        trained: the model.
        answers: each file's samples with their answer.
        top: how many classes to tell of each.
    """
    return Classified(trained, _predictions(trained, answers, top))
