"""Formatting of numbers, costs and shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedfloor.report.records import NetworkCost, PricedRecord
from fedfloor.tasks.figures import Figure

DIGITS = 3  # significant digits of a metric in a sentence, at most three decimals


def figure(value: float | None, digits: int = 4) -> str:
    """Return a number as text with ``digits`` decimals, or a dash for None.

    >>> figure(0.91234), figure(None), figure(-0.00001)
    ('0.9123', '–', '0.0000')
    """
    return "–" if value is None else f"{value:z.{digits}f}".replace("-", "−")


def decimals(values: Sequence[float]) -> int:
    """Return the number of decimals at which the largest of several numbers has at least four digits, at most four.

    >>> decimals([0.5595]), decimals([22.2827]), decimals([20799.3, 1.0]), decimals([])
    (4, 2, 0, 4)
    """
    largest = max(map(abs, values), default=0.0)
    return 4 if largest < 10 else max(0, 3 - math.floor(math.log10(largest))) if math.isfinite(largest) else 0


def interval(value: float | None, half_width: float | None, digits: int = 4) -> str:
    """Return a mean as text, with its half width if that is not None.

    >>> interval(0.9, 0.01), interval(0.9, None)
    ('0.9000 ± 0.0100', '0.9000')
    """
    return figure(value, digits) + ("" if half_width is None else f" ± {figure(half_width, digits)}")


def between(value: float | None, low: float | None, high: float | None, digits: int = 4) -> str:
    """Return a metric as text, with its interval in brackets if there is one.

    >>> between(0.9, 0.85, 0.93, 2), between(0.9, None, None)
    ('0.90 (0.85 to 0.93)', '0.9000')
    """
    ends = "" if low is None or high is None else f" ({figure(low, digits)} to {figure(high, digits)})"
    return figure(value, digits) + ends


def metric(headline: Figure, value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a metric as text with its unit, a share in per cent, with its interval in brackets if there is one.

    >>> from fedfloor.tasks.figures import ACCURACY, named
    >>> metric(ACCURACY, 0.8342, 0.8, 0.9), metric(named("RMSE").within("rows"), 16.91), metric(ACCURACY, None)
    ('83.4\xa0% (80.0 to 90.0)', '16.9 rows', '–')
    """
    if value is None:
        return "–"
    ends = "" if low is None or high is None else f" ({plain(headline, low)} to {plain(headline, high)})"
    unit = "\u00a0%" if headline.share else f" {headline.own}" if headline.own else ""
    return f"{plain(headline, value)}{unit}{ends}"


def plain(headline: Figure, value: float, like: float | None = None) -> str:
    """Return a metric as text without its unit: a share in per cent with one decimal, another with three digits.

    Args:
        like: a value whose decimals it gets; default: its own.

    >>> from fedfloor.tasks.figures import ACCURACY, named
    >>> plain(ACCURACY, 0.8342), plain(named("RMSE"), 0.45678), plain(named("NASA score"), 2396.0)
    ('83.4', '0.457', '2,396')
    >>> plain(ACCURACY, 0.9997), plain(ACCURACY, 1.0)  # not all
    ('99.97', '100.0')
    """
    if headline.share:
        digits = next((n for n in (1, 2) if (round(100 * value, n) in (0.0, 100.0)) == (value in (0.0, 1.0))), 3)
        return figure(100 * value, digits)
    of = like or value
    size = math.floor(math.log10(abs(of))) if of else 0
    return f"{value:z,.{min(DIGITS, max(0, DIGITS - 1 - size))}f}".replace("-", "−")


def distance(headline: Figure, difference: float, like: float | None = None) -> str:
    """Return the size of a difference as text, with the decimals of ``like``: of shares in percentage points.

    >>> from fedfloor.tasks.figures import ACCURACY
    >>> distance(ACCURACY, -0.042)
    '4.2 percentage points'
    """
    size = plain(headline, abs(difference), like)
    return f"{size} percentage points" if headline.share else headline.amount(size)


def listed(parts: list[str]) -> str:
    """Return words joined by commas and "and".

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def percent(share: float) -> str:
    """Return a share as text in percent, with a non-breaking space before the sign.

    >>> percent(0.6), percent(0.003), percent(0.998)
    ('60\\xa0%', '<1\\xa0%', '>99\\xa0%')
    """
    mark = "<1" if 0 < share < 0.005 else ">99" if 0.995 <= share < 1 else f"{100 * share:.0f}"
    return f"{mark}\u00a0%"


COSTS = ("seconds", "bytes", "joules")
NAMES = {"seconds": "time", "bytes": "bytes", "joules": "energy"}
UNITS = {
    "seconds": ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d")),
    "bytes": ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")),
    "joules": ((1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ")),
}


def with_round(before: NetworkCost | None, priced: PricedRecord | None) -> NetworkCost | None:
    """Return the sum of the earlier rounds' cost and a round's price; None if either is None.

    >>> priced = PricedRecord(2.0, joules=0.5, bytes={"edge_cloud_up": 3, "edge_cloud_down": 4})
    >>> with_round(NetworkCost(1.0, 5.0), priced)
    NetworkCost(seconds=3.0, bytes=12.0, joules=0.5)
    """
    if before is None or priced is None:
        return None
    return NetworkCost(
        before.seconds + (priced.seconds or 0.0),
        before.bytes + float(sum((priced.bytes or {}).values())),
        before.joules + (priced.joules or 0.0),
    )


def unit(kind: str, most: float) -> tuple[float, str]:
    """Return size and symbol of the unit for a kind of cost and numbers up to ``most``.

    >>> unit("seconds", 7200.0), unit("bytes", 2.5e6)
    ((3600.0, 'h'), (1000000.0, 'MB'))
    """
    fitting = [entry for entry in UNITS[kind] if entry[0] <= most]
    return fitting[-1] if fitting else UNITS[kind][0]


def amount(kind: str, value: float | None) -> str:
    """Return an amount as text with three digits and its unit, or a dash for None.

    >>> amount("seconds", 5400), amount("bytes", 1.5e9), amount("joules", None), amount("rounds", 2.5)
    ('1.5 h', '1.5 GB', '–', '2.5 rounds')
    """
    if value is None:
        return "–"
    if kind == "rounds":
        return f"{value:.1f}".removesuffix(".0") + (" round" if value == 1 else " rounds")
    size, symbol = unit(kind, value)
    number = value / size
    return f"{number:.0f} {symbol}" if number >= 100 else f"{number:.3g} {symbol}"
