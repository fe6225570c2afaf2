"""Samples of one file, with what is known about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError, nearest

UNKNOWN = -1  # the label of a sample that has none


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of one file.

    Args:
        file: its path.
        x: uint8 or float32 [n, *shape].
        places: of each, (first, last) row in a table, (number, number) in an array; None for a picture.
        y: int64 [n], classes as far as they are known, else :data:`UNKNOWN`.
        devices: who took each, where a table says so.
        first: int64 [n], the first row of each, where samples may share rows.
        left_out: what of the file has no answer, and why; each a sentence that names the place.
        target: float32 [n, T], the numbers that are asked for, NaN where they are not known; None where classes are.
        times: when each was taken, as a table has it.
    """

    file: Path
    x: NDArray[Any]
    places: Sequence[tuple[int, int]] | None
    y: NDArray[np.int64]
    devices: Sequence[str] | None = None
    first: NDArray[np.int64] | None = None
    left_out: tuple[str, ...] = ()
    target: NDArray[np.float32] | None = None
    times: Sequence[str] | None = None


def within(path: Path) -> str:
    """Return a file's name with its folder's, for messages.

    >>> within(Path("runs/north/lathe-1/june.csv"))
    'lathe-1/june.csv'
    """
    return "/".join(path.parts[-2:])


def named(labels: Sequence[str], classes: Sequence[str], place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return the numbers of class names; an empty one is :data:`UNKNOWN`.

    Args:
        labels: what was written.
        classes: F names.
        place: number of a label → where it stands, in words.

    Raises:
        SettingError: the model does not know a name.

    >>> named(["b", "", "a"], ("a", "b"), str)
    array([ 1, -1,  0])
    """
    number = {name: i for i, name in enumerate(classes)} | {"": UNKNOWN}
    odd = next((i for i, label in enumerate(labels) if label not in number), None)
    if odd is not None:
        listed = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
        raise SettingError(
            f"{place(odd)}: '{labels[odd]}' is none of the model's classes.{nearest(labels[odd], classes)} They are "
            f"{listed}. A label that is not known is left empty."
        )
    return np.array([number[label] for label in labels], np.int64)
