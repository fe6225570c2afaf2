"""Answers of a model for the samples of files: classes, numbers with intervals, paths, scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError, require
from fedfloor.figures import Figure, of_task
from fedfloor.inference.results import Results, Row, odd_mix, place_words
from fedfloor.inference.samples import UNKNOWN, FileSamples
from fedfloor.inference.trained import Trained
from fedfloor.names import count
from fedfloor.tasks.answer import Answer, flat
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.terminal import show


@dataclass(frozen=True)
class Prediction:
    """The predicted classes of one sample.

    Attributes:
        file: where it stood.
        place: (first, last) row of a table, (number, number) in an array; None for a picture.
        best: the likeliest classes with their probabilities, the likeliest first.
        label: the true class, where it is known.
        device: its device, where a table names it.
    """

    file: Path
    place: tuple[int, int] | None
    best: tuple[tuple[str, float], ...]
    label: str | None
    device: str | None = None


def _predictions(trained: Trained, answers: Iterable[tuple[FileSamples, Answer]], top: int) -> list[Prediction]:
    predictions: list[Prediction] = []
    for part, answer in answers:
        probabilities, logits = answer.parts().values()
        order = _order(trained, probabilities, logits)[:, :top]
        predictions += _predicted(part, probabilities, order, trained.classes)
    return predictions


def _order(
    trained: Trained, probabilities: NDArray[np.floating[Any]], logits: NDArray[np.floating[Any]]
) -> NDArray[np.int64]:
    """Return the classes of each sample [n, F]: that which is decided on, then the others, the likeliest first."""
    order = np.argsort(-logits, axis=1, kind="stable")  # of equal ones the first, like argmax
    if trained.decision is None or trained.decision.positive is None:
        return order
    decided = trained.decision.of(probabilities)[:, None]
    return np.concatenate([decided, order[order != decided].reshape(len(order), -1)], axis=1)


def _predicted(
    part: FileSamples, probabilities: NDArray[np.floating[Any]], order: NDArray[np.int64], classes: Sequence[str]
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
            "rows": place_words(one.place),
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


@dataclass(frozen=True, eq=False)
class Classified(Results):
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
        told = odd_mix(self.trained, {row["class"]: row["samples"] for row in by_class(self.predictions)}, folder)
        return [told] if told else []


def _flat(one: Prediction) -> Row:
    first, last = one.place or (None, None)
    row: Row = {"file": one.file, "device": one.device, "first": first, "last": last, "label": one.label}
    for k, (name, p) in enumerate(one.best, start=1):
        row |= {f"predicted_{k}" if k > 1 else "predicted": name, f"probability_{k}" if k > 1 else "probability": p}
    return row


Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Answered(Results):
    """Answers of samples, file by file.

    Args:
        trained: the model.
        parts: each file's samples with their answer, made of arrays.
    """

    trained: Trained
    parts: list[tuple[FileSamples, Answer]]

    def __len__(self) -> int:
        return sum(len(part.x) for part, _ in self.parts)

    def rows(self, few: int) -> list[Row]:
        """Return the first samples as rows for people."""
        found = []
        for part, answer, i in self._each(few):
            true = [_short(one) for one in _true(part, answer, i).get("true", {}).values()]
            last = {"true": ", ".join(true) if {*true} - {"?"} else None}
            found.append({"file": str(part.file), **_whence(part, i, place_words), **answer.cells(i), **last})
        return found

    def documents(self) -> list[Row]:
        """Return samples as JSON."""
        return [
            {"file": str(part.file), **_whence(part, i, _pair), **answer.document(i), **_true(part, answer, i)}
            for part, answer, i in self._each()
        ]

    def table(self) -> list[Row]:
        """Return samples as rows of a CSV file."""
        found = []
        for part, answer, i in self._each():
            whence = _whence(part, i, _pair)
            first, last = whence.pop("rows") or (None, None)
            said = flat(answer.document(i) | _true(part, answer, i))
            found.append({"file": part.file, **whence, "first": first, "last": last, **said})
        return found

    def summary(self) -> Row:
        """Return the task, and its figures where the truth is known."""
        figures, known = self._figures(self._masks())
        return {
            "task": self.trained.task.describe(), "known": known,
            "figures": {figure.name: value for figure, value in figures.items()},
        }  # fmt: skip

    def groups(self, *, people: bool) -> dict[str, list[Row]]:
        """Return a row per file and per device: samples, the last answer, the headline where the truth is known."""
        by_file = [(str(part.file), self._masks(n)) for n, (part, _) in enumerate(self.parts)]
        names = {name: None for part, _ in self.parts for name in part.devices or ()}
        by_device = [(name, [self._of_device(part, name) for part, _ in self.parts]) for name in names]
        return {
            "by_file": [self._group("file", name, masks, people=people) for name, masks in by_file],
            "by_device": [self._group("device", name, masks, people=people) for name, masks in by_device],
        }

    def closing(self) -> list[str]:
        """Return the kind of answer and the figures, in words."""
        figures, known = self._figures(self._masks())
        phrase = self.parts[0][1].phrase if self.parts else ""
        lines = [f"answer: {phrase}"] if phrase else []
        if not figures:
            return lines
        said = ", ".join(f"{figure.name} {value:.4g}" for figure, value in figures.items())
        return [*lines, f"{said} on {count(known, 'sample')} whose truth is known"]

    def _each(self, few: int | None = None) -> Iterator[tuple[FileSamples, Answer, int]]:
        every = ((part, answer, i) for part, answer in self.parts for i in range(len(part.x)))
        return islice(every, few)

    def _masks(self, only: int | None = None) -> list[Mask]:
        """Return all samples of one file, or of all."""
        return [np.full(len(part.x), only is None or n == only) for n, (part, _) in enumerate(self.parts)]

    def _of_device(self, part: FileSamples, name: str) -> Mask:
        return np.zeros(len(part.x), np.bool_) if part.devices is None else np.array(part.devices) == name

    def _group(self, name: str, of: str, masks: list[Mask], *, people: bool) -> Row:
        figures, _ = self._figures(masks)
        n = max(n for n, mask in enumerate(masks) if mask.any())
        i, answer = int(np.flatnonzero(masks[n])[-1]), self.parts[n][1]
        cells = {f"last {key}": cell for key, cell in answer.cells(i).items()}
        last = cells if people else {"last": answer.document(i)}
        return {name: of, "samples": int(sum(mask.sum() for mask in masks)), **last,
                **{figure.name: value for figure, value in [*figures.items()][:1]}}  # fmt: skip

    def _figures(self, masks: list[Mask]) -> tuple[dict[Figure, float], int]:
        """Return the task's figures of some samples of each file, and on how many the truth is known."""
        answers, targets = [], []
        for (part, answer), mask in zip(self.parts, masks, strict=True):
            if part.target is not None:
                known = mask & np.isfinite(part.target).all(axis=1)
                answers.append(answer.changed(lambda _, one: one[known]))  # noqa: B023
                targets.append(part.target[known])
        if not sum(map(len, targets)):
            return {}, 0
        several = [one.parts() for one in answers]
        whole = answers[0].changed(lambda name, _: np.concatenate([one[name] for one in several]))
        tested = self.trained.task.judge(whole, np.concatenate(targets))
        figures = of_task(self.trained.task.kind) if tested is not None else ()
        found = {figure: figure.value(tested, ()) for figure in figures}  # type: ignore[arg-type]
        return {figure: value for figure, value in found.items() if value is not None}, sum(map(len, targets))


def _whence(part: FileSamples, i: int, place: Callable[[tuple[int, int] | None], Any]) -> Row:
    return {
        "device": None if part.devices is None else part.devices[i],
        "rows": place(None if part.places is None else part.places[i]),
        "time": None if part.times is None else part.times[i],
    }


def _pair(place: tuple[int, int] | None) -> list[int] | None:
    return None if place is None else [*place]


def _true(part: FileSamples, answer: Answer, i: int) -> Row:
    """Return the true numbers of a sample; None for one that is not known, nothing where none is of any."""
    return {} if part.target is None else _plain(answer.truth(part.target[i].tolist()))


def _plain(one: Any) -> Any:
    if isinstance(one, dict):
        return {key: _plain(value) for key, value in one.items()}
    if isinstance(one, list):
        return [_plain(value) for value in one]
    return None if np.isnan(one) else one


def _short(one: Any) -> str:
    if isinstance(one, list):
        ends = one if len(one) == 1 else [one[0], one[-1]]
        return "?" if set(ends) == {None} else " → ".join(map(_short, ends))
    return "?" if one is None else f"{one:.4g}"


def check_top(trained: Trained, top: int) -> None:
    """Check how many classes are to be listed for each sample.

    Raises:
        SettingError: the model has fewer, or its task predicts none.
    """
    if trained.task == CLASSIFICATION:
        require(1 <= top <= len(trained.classes), "--top", top, f"from 1 to {len(trained.classes)}")
    elif top != 1:
        raise SettingError(f"--top {top}: lists several classes, but this model's task is {trained.task.kind}.")


def results(trained: Trained, answers: Iterable[tuple[FileSamples, Answer]], top: int = 1) -> Results:
    """Return the answers of all files, as the model's task has them printed; ``top`` classes for each sample."""
    if trained.task == CLASSIFICATION:
        return Classified(trained, _predictions(trained, answers, top))
    parts = list(answers)
    if not any(part.target is not None and np.isfinite(part.target).any() for part, _ in parts):
        parts = [(replace(part, target=None), answer) for part, answer in parts]
    return Answered(trained, parts)
