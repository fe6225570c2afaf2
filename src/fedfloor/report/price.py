"""What rounds cost on the network, added up, and how people read such amounts."""

from __future__ import annotations

from dataclasses import dataclass

from fedfloor.report.records import PricedRecord

KINDS = ("seconds", "bytes", "joules")
NAMES = {"seconds": "time", "bytes": "bytes", "joules": "energy"}
UNITS = {
    "seconds": ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d")),
    "bytes": ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")),
    "joules": ((1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ")),
}


@dataclass(frozen=True)
class Price:
    """What rounds cost together.

    Args:
        seconds: on the network, s.
        bytes: over all links.
        joules: of all devices and stations, J.
    """

    seconds: float = 0.0
    bytes: float = 0.0
    joules: float = 0.0


def added(before: Price | None, priced: PricedRecord | None) -> Price | None:
    """Add a round's price, as the ledger has it, to that of the rounds before; None once a round has none.

    >>> added(Price(1.0, 5.0), PricedRecord(2.0, joules=0.5, bytes={"edge_cloud_up": 3, "edge_cloud_down": 4}))
    Price(seconds=3.0, bytes=12.0, joules=0.5)
    """
    if before is None or priced is None:
        return None
    return Price(
        before.seconds + (priced.seconds or 0.0),
        before.bytes + float(sum((priced.bytes or {}).values())),
        before.joules + (priced.joules or 0.0),
    )


def unit(kind: str, most: float) -> tuple[float, str]:
    """Return the unit that numbers up to ``most`` are read in: its size and its symbol.

    >>> unit("seconds", 7200.0), unit("bytes", 2.5e6)
    ((3600.0, 'h'), (1000000.0, 'MB'))
    """
    fitting = [one for one in UNITS[kind] if one[0] <= most]
    return fitting[-1] if fitting else UNITS[kind][0]


def amount(kind: str, value: float | None) -> str:
    """Write an amount with three digits and its unit, or a dash for one that is missing.

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
