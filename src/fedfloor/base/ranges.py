"""Checks of values from other machines: their type and range."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT = 1 << 53  # the largest whole number, exact in float64
DEVICES = 1 << 20  # devices of a park, at most
# Limit of a loss. Cross-entropy is ln F for a model with equal probabilities of F classes; a million means outputs that
# differ by a million, from which training does not recover.
LOSS = 1e6
SECONDS = 1e8  # three years
METRES = 1e9
NOISE = 100  # in 1/ε: the probability of a larger noise on a count is at most e^-100
RATIO = 1e9  # limit of a vector's root mean square, far above those of features, gradients and weights


class RefusedError(Exception):
    """An error: a message is refused; ``reason`` is the short name under which it is counted."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text


@contextmanager
def of(reason: str) -> Iterator[None]:
    """Set the reason of errors in the body, so that they are counted for a kind of message."""
    try:
        yield
    except RefusedError as error:
        raise RefusedError(reason if error.reason == "range" else error.reason, error.text) from error


def whole(value: object, low: int, high: int, noun: str) -> int:
    """Return a whole number from ``low`` to ``high``.

    Raises:
        RefusedError: another value.
    """
    if type(value) is int and low <= value <= high:
        return value
    raise RefusedError("range", f"{noun} is not a whole number from {low} to {high}.")


def number(value: object, low: float, high: float, noun: str) -> float:
    """Return a number from ``low`` to ``high``.

    Raises:
        RefusedError: another value.
    """
    if type(value) in (int, float) and low <= value <= high:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise RefusedError("range", f"{noun} is not a number from {low:g} to {high:g}.")


def rows(value: object, length: int | None, noun: str) -> list[Any]:
    """Return a list of a given length, by default of up to :data:`DEVICES` entries.

    Raises:
        RefusedError: another value.
    """
    if isinstance(value, list) and (len(value) <= DEVICES if length is None else len(value) == length):
        return value
    raise RefusedError("range", f"{noun} is not a list of {DEVICES if length is None else length}.")


def table(value: object, most: int, noun: str) -> dict[str, Any]:
    """Return a table of at most ``most`` entries.

    Raises:
        RefusedError: another value.
    """
    if isinstance(value, dict) and len(value) <= most:
        return value
    raise RefusedError("range", f"{noun} is not a table of at most {most}.")


def matching(value: object, pattern: re.Pattern[str], problem: str) -> str:
    """Return a text that matches a pattern.

    Raises:
        RefusedError: another value; with ``problem`` as its text.
    """
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    raise RefusedError("range", problem)


def vector(values: NDArray[Any], noun: str) -> None:
    """Raise a RefusedError for numbers that are not finite or far too large."""
    size = math.sqrt(float(np.square(values, dtype=np.float64).mean())) if values.size else 0.0
    if not size <= RATIO:
        raise RefusedError("range", f"the root mean square of {noun} is {size:.3g}, above {RATIO:g}.")


def counts(value: object, bins: int, held: int, noise: int = 0, least: int = 0, noun: str = "census") -> list[int]:
    """Return a device's counts of samples by bin, such as its census.

    Raises:
        RefusedError: another value.
    """
    numbers = [whole(item, least, held + noise, f"a count of its {noun}") for item in rows(value, bins, f"its {noun}")]
    if sum(numbers) > held + bins * noise:
        raise RefusedError("range", f"its {noun} counts {sum(numbers)} samples, but the device holds {held} at most.")
    return numbers


def noise(epsilon: float | None) -> int:
    """Return the largest accepted change of a count by the noise of a census with ε."""
    return 0 if epsilon is None else min(COUNT, math.ceil(NOISE / epsilon))
