"""Numbers as they are read and as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def figure(value: float | None, digits: int = 4) -> str:
    """Write a number, or a dash for one that is missing.

    >>> figure(0.91234), figure(None)
    ('0.9123', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def decimals(values: Sequence[float]) -> int:
    """Return how many decimals show four digits or more of the largest of several numbers, four of one below 10.

    >>> decimals([0.5595]), decimals([22.2827]), decimals([20799.3, 1.0]), decimals([])
    (4, 2, 0, 4)
    """
    largest = max(map(abs, values), default=0.0)
    return 4 if largest < 10 else max(0, 3 - math.floor(math.log10(largest))) if math.isfinite(largest) else 0


def interval(value: float | None, half_width: float | None, digits: int = 4) -> str:
    """Write a mean with its half width, if it has one.

    >>> interval(0.9, 0.01), interval(0.9, None)
    ('0.9000 ± 0.0100', '0.9000')
    """
    return figure(value, digits) + ("" if half_width is None else f" ± {figure(half_width, digits)}")


def listed(parts: list[str]) -> str:
    """Join words as people do.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def percent(share: float) -> str:
    """Write a share in percent, whose sign stays on the line of its number.

    >>> percent(0.6), percent(0.003)
    ('60\\xa0%', '<1\\xa0%')
    """
    return "<1\u00a0%" if 0 < share < 0.005 else f"{100 * share:.0f}\u00a0%"
