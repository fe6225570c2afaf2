"""Answers for the samples of files, and what is printed of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.errors import SettingError
from fedfloor.inference.samples import Samples
from fedfloor.inference.trained import BLOCK, Trained
from fedfloor.tasks.answer import Answer

Row = dict[str, Any]


class Found(ABC):
    """A model's answers for samples, as they are shown."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many samples there are."""

    @abstractmethod
    def rows(self, few: int) -> list[Row]:
        """Return the first samples as rows for people."""

    @abstractmethod
    def documents(self) -> list[Row]:
        """Return samples as JSON."""

    @abstractmethod
    def table(self) -> list[Row]:
        """Return samples as rows of a CSV file."""

    @abstractmethod
    def summary(self) -> Row:
        """Return what is known about all samples, as keys of JSON."""

    @abstractmethod
    def groups(self, *, people: bool) -> dict[str, list[Row]]:
        """Return a row per file and per device, for people or as JSON."""

    def overview(self) -> None:
        """Print a summary of many samples."""
        return

    @abstractmethod
    def closing(self) -> list[str]:
        """Return the last lines."""

    def warnings(self, folder: Path) -> list[str]:
        """Return what is odd about the answers, given the run's folder."""
        del folder
        return []


def answered(
    trained: Trained, parts: Iterable[Samples], follow: Callable[[int], None] | None = None,
    failed: dict[Path, str] | None = None,
) -> Iterator[tuple[Samples, Answer]]:  # fmt: skip
    """Yield each file's samples with the model's answer, made of arrays.

    Args:
        trained: the model.
        parts: its samples, file by file.
        follow: called with the number of files done, now and then.
        failed: gets the files whose numbers are too large for the model, and the others are answered.

    Raises:
        SettingError: a file that is no sample of this model; numbers too large for it, where ``failed`` is left out.
    """
    for held in _gathered(parts, follow):
        whole = trained.answered(np.concatenate([part.x for part in held])).changed(lambda _, one: one.numpy())
        first = 0
        for part in held:
            mine = slice(first, first + len(part.x))
            first += len(part.x)
            answer = whole.changed(lambda _, one: one[mine])  # noqa: B023
            if np.isfinite(next(iter(answer.parts().values()))).all():
                yield part, answer
                continue
            error = f"{part.file}: the model's answer is no number. Are its values far too large?"
            if failed is None:
                raise SettingError(error)
            failed[part.file] = error


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


def shown(place: tuple[int, int] | None) -> int | str | None:
    """Return the rows of a sample in words."""
    if place is None or place[0] == place[1]:
        return None if place is None else place[0]
    return f"{place[0]}–{place[1]}"
