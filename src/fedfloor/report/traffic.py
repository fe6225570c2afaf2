"""The bytes that training sends over a network, beside those of the devices' training data."""

from __future__ import annotations

from fedfloor.report.groups import Compared, common
from fedfloor.report.numbers import amount, listed
from fedfloor.report.table import cost

MOST = 4  # methods in a sentence


def times(sent: float, raw: float) -> str:
    """Return a number of bytes, and its ratio to the raw data's, as text.

    >>> times(5.3e9, 5e5), times(1e6, 2e6)
    ('5.3 GB, 10,600 times as many', '1 MB, 0.5 times as many')
    """
    ratio = sent / raw
    return f"{amount('bytes', sent)}, {f'{ratio:,.0f}' if ratio >= 10 else f'{ratio:.2g}'} times as many"


def traffic(compared: Compared) -> str:
    """Return a text on the bytes of all rounds beside those of the devices' training samples; "" without prices."""
    raw = common({run.park.raw_bytes for group in compared for run in group.runs}, None)
    parts = []
    for group in compared if raw else ():
        sent = [paid for run in group.runs if (paid := cost(run, "bytes"))]
        parts += [f"with {group.label.shown} {times(sum(sent) / len(sent), raw or 1)}"] if sent else []
    if not parts:
        return ""
    return f"The devices' training data are {amount('bytes', raw)}; training sent {listed(parts[:MOST])}."
