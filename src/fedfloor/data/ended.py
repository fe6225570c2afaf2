"""Which recordings and lives are over, by the labels of ``[data] ended``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MISSING = {"", "na", "n/a", "nan", "null", "none", "-", "?"}
ANY = "*"  # as the label of lives that are over: any but an empty cell

Ended = str | Sequence[str]


def over(labels: Sequence[str], ended: Ended) -> NDArray[np.bool_]:
    """Return which of some labels are of lives, or recordings, that are over.

    >>> over(["worn", "", "running"], ["worn", "torn"]).tolist(), over(["worn", ""], "*").tolist()
    ([True, False, False], [True, False])
    """
    known = {ended} if isinstance(ended, str) else {*ended}
    every = ANY in known
    return np.array([label in known or (every and label.strip().casefold() not in MISSING) for label in labels], bool)


def several(ended: Ended | None) -> bool:
    """Return whether lives are over by several labels, or any, so that those with an empty one still run."""
    return ended == ANY or (ended is not None and not isinstance(ended, str))


def told(ended: Ended) -> str:
    """Return the labels for messages.

    >>> told("failed"), told(["worn", "torn"]), told("*")
    ("'failed'", "'worn' or 'torn'", 'any text')
    """
    many = [ended] if isinstance(ended, str) else ended
    return " or ".join("any text" if label == ANY else f"'{label}'" for label in many)
