"""Answers other than classes for the samples of files: numbers with intervals, paths, scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError
from fedfloor.figures import Figure, of_task
from fedfloor.inference.predict import Found, Row, shown
from fedfloor.inference.samples import Samples
from fedfloor.inference.trained import Trained
from fedfloor.names import count
from fedfloor.tasks.answer import Answer, flat

Mask = NDArray[np.bool_]


def check(trained: Trained, top: int) -> None:
    """Refuse to tell several classes of a sample where none are predicted.

    Raises:
        SettingError: so it is.
    """
    if top != 1:
        raise SettingError(f"--top {top}: how many classes to tell, but this model's task is {trained.task.kind}.")


@dataclass(frozen=True, eq=False)
class Answered(Found):
    """Answers of samples, file by file.

    Args:
        trained: the model.
        parts: each file's samples with their answer, made of arrays.
    """

    trained: Trained
    parts: list[tuple[Samples, Answer]]

    def __len__(self) -> int:
        return sum(len(part.x) for part, _ in self.parts)

    def rows(self, few: int) -> list[Row]:
        """Return the first samples as rows for people."""
        found = []
        for part, answer, i in self._each(few):
            true = [_short(one) for one in _true(part, answer, i).get("true", {}).values()]
            last = {"true": ", ".join(true) if {*true} - {"?"} else None}
            found.append({"file": str(part.file), **_whence(part, i, shown), **answer.cells(i), **last})
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
        """Return what is answered, and the figures, in words."""
        figures, known = self._figures(self._masks())
        phrase = self.parts[0][1].phrase if self.parts else ""
        lines = [f"answer: {phrase}"] if phrase else []
        if not figures:
            return lines
        said = ", ".join(f"{figure.name} {value:.4g}" for figure, value in figures.items())
        return [*lines, f"{said} on {count(known, 'sample')} whose truth is known"]

    def _each(self, few: int | None = None) -> Iterator[tuple[Samples, Answer, int]]:
        every = ((part, answer, i) for part, answer in self.parts for i in range(len(part.x)))
        return islice(every, few)

    def _masks(self, only: int | None = None) -> list[Mask]:
        """Return all samples of one file, or of all."""
        return [np.full(len(part.x), only is None or n == only) for n, (part, _) in enumerate(self.parts)]

    def _of_device(self, part: Samples, name: str) -> Mask:
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


def _whence(part: Samples, i: int, place: Callable[[tuple[int, int] | None], Any]) -> Row:
    return {
        "device": None if part.devices is None else part.devices[i],
        "rows": place(None if part.places is None else part.places[i]),
        "time": None if part.times is None else part.times[i],
    }


def _pair(place: tuple[int, int] | None) -> list[int] | None:
    return None if place is None else [*place]


def _true(part: Samples, answer: Answer, i: int) -> Row:
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


def found(trained: Trained, answers: Iterable[tuple[Samples, Answer]], top: int) -> Answered:  # noqa: ARG001
    """Return the answers for all samples.

    Args:
        trained: the model.
        answers: each file's samples with their answer.
        top: of no meaning here.
    """
    parts = list(answers)
    if not any(part.target is not None and np.isfinite(part.target).any() for part, _ in parts):
        parts = [(replace(part, target=None), answer) for part, answer in parts]
    return Answered(trained, parts)
