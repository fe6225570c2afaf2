"""Names of devices, factories and classes become numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError, nearest

MOST_NUMBERS = 100  # classes that are numbers, where they are not listed
ONE_CLASS = (
    "Training a classifier needs labelled samples of two classes or more, such as normal operation and a fault; add "
    "samples with another label. Or learn from normal operation alone: [data] task = 'reconstruction' (anomalies)."
)


def natural_order(names: Sequence[str]) -> list[str]:
    """Return names sorted as people count.

    >>> natural_order(["press 10", "press 2", "3"])
    ['3', 'press 2', 'press 10']
    """

    def part(text: str) -> tuple[int, int, str]:
        digits = text.lstrip("0")
        return (0, len(digits), digits) if text.isdecimal() else (1, 0, text)  # the longer number is the larger

    def key(name: str) -> list[tuple[int, int, str]]:
        return [part(text) for text in re.split(r"(\d+)", name) if text]

    return sorted(set(names), key=lambda name: (key(name), name))


def classes_of(
    labels: Sequence[str], wanted: Sequence[str], place: Callable[[int], str], least: int = 2
) -> tuple[str, ...]:
    """Return the class names: those that are wanted, or else those that occur.

    Args:
        labels: of the samples.
        wanted: the only ones allowed; empty for any.
        place: sample number → where it stands, in words.
        least: how many classes must occur.

    Raises:
        SettingError: a label that is not wanted, or the same for all samples; the message names where.
    """
    allowed = set(wanted)
    odd = next((i for i, label in enumerate(labels) if wanted and label not in allowed), None)
    if odd is not None:
        near = nearest(labels[odd], wanted)
        known = ", ".join(wanted)
        raise SettingError(f"{place(odd)}: '{labels[odd]}' is not one of [data] classes.{near} Known: {known}.")
    occur = natural_order(labels)
    if len(occur) < least:
        raise SettingError(f"{place(0)}: '{occur[0]}', and so everywhere else: there is one class only. {ONE_CLASS}")
    return tuple(wanted) or tuple(occur)


class MeasureError(SettingError):
    """Labels are the values of a measure, and classes are asked for."""


def check_no_measure(labels: Sequence[str], where: str) -> None:
    """Refuse labels that are the values of a measure rather than classes: fractions, or very many numbers.

    Args:
        labels: of the samples, as they stand in a column.
        where: the file and the column, in words.

    Raises:
        MeasureError: they are numbers, and one has a fraction or there are more than :data:`MOST_NUMBERS`.
    """
    values = natural_order(labels)
    try:
        numbers = [float(value.replace(",", ".", 1)) for value in values]
    except ValueError:
        return
    fraction = next((value for value, number in zip(values, numbers, strict=True) if number % 1), None)
    if fraction is None and len(values) <= MOST_NUMBERS:
        return
    edges = ", ".join(f"{edge:.3g}" for edge in np.quantile(sorted(numbers), (1 / 3, 2 / 3)))
    which = f"such as {values[0]}" if fraction is None else f"with fractions such as {fraction}"
    raise MeasureError(
        f"{where}: {len(values)} different numbers, {which}: a measure, no classes. To predict the number itself: "
        f"--set data.task=regression. To make classes of ranges of it: --set 'data.bins=[{edges}]'. Or name the column "
        "that holds classes (--set data.columns.label=NAME); if each number is a class, list them all: [data] classes."
    )


def codes(values: Sequence[str], names: Sequence[str]) -> NDArray[np.int32]:
    """Return int32 [N], the number of each value among the names."""
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[value] for value in values], np.int32)


def qualified(device: Sequence[str], factory: Sequence[str] | None) -> list[str]:
    """Return the devices' names; where two factories have a device of the same name, each with its factory's.

    Args:
        device: of each sample or file.
        factory: of each of them; None where there are none.

    >>> qualified(["press", "press", "mill"], ["north", "south", "north"])
    ['north/press', 'south/press', 'north/mill']
    """
    if factory is None or len(set(zip(device, factory, strict=True))) == len(set(device)):
        return list(device)
    return [f"{hall}/{name}" for name, hall in zip(device, factory, strict=True)]
