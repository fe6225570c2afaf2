"""A drawing of a park's floor: the base station, the devices around it, their channels and powers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedfloor.base.templates import render
from fedfloor.report.charts import GREY, colour

WIDTH = 400
MARGIN = 22
TOP = 70
MIDDLE = WIDTH // 2  # of the floor, on both axes without TOP
# radius in px at the lowest and the highest power
SMALL = 5.5
LARGE = 10.0
STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Spot:
    """A device in the drawing.

    Args:
        x_m, y_m: position relative to the base station, m.
        channel, power_dbm, latency_s: None for a silent device.
    """

    name: str
    x_m: float
    y_m: float
    channel: int | None = None
    power_dbm: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True)
class Drawing:
    """The content of a drawing.

    Args:
        slowest: name of the device with the longest latency.
        powers_dbm: the lowest and the highest power.
    """

    title: str
    words: tuple[str, ...]
    spots: tuple[Spot, ...]
    slowest: str
    channels: int
    powers_dbm: Sequence[float]


def svg(drawing: Drawing) -> str:
    """Return a floor as SVG, nominally 400 px wide; colours follow the reader's light or dark scheme.

    A device is a circle of class ``device``, with colour and number for its channel and size for its power; an empty
    grey circle is a silent device.

    >>> svg(Drawing("p", (), (Spot("0", 3.0, 4.0, 0, 20.0, 1.0),), "0", 1, (0.0, 20.0))).count('class="on device"')
    1
    """
    far = max(math.hypot(spot.x_m, spot.y_m) for spot in drawing.spots)
    step = ring_step(far)
    rings = math.ceil(far / step - 1e-9)
    scale = (MIDDLE - MARGIN) / (rings * step)
    x, y = MIDDLE, TOP + MIDDLE - MARGIN + 14
    devices = [
        (spot, x + spot.x_m * scale, y - spot.y_m * scale, *_marker(spot, drawing.powers_dbm))
        for spot in sorted(drawing.spots, key=lambda spot: spot.channel is not None)  # silent ones cover no others
    ]
    channels = Counter(spot.channel for spot in drawing.spots if spot.channel is not None)
    ends = dict.fromkeys((drawing.powers_dbm[0], drawing.powers_dbm[-1]))
    return render(
        "fedfloor.report", "floor.svg", drawing=drawing, x=x, y=y, devices=devices, colour=colour, grey=GREY,
        rings=[(i * step, i * step * scale) for i in range(1, rings + 1)], channels=sorted(channels.items()),
        powers=[(power, radius(power, drawing.powers_dbm)) for power in ends], width=WIDTH, margin=MARGIN,
        bottom=TOP + 2 * (MIDDLE - MARGIN) + 46, silent=sum(spot.channel is None for spot in drawing.spots),
    )  # fmt: skip


def _marker(spot: Spot, powers_dbm: Sequence[float]) -> tuple[float, str]:
    """Return the radius in px and the title of a device."""
    place = f"device {spot.name}, {math.hypot(spot.x_m, spot.y_m):.1f} m: "
    if spot.channel is None or spot.power_dbm is None or spot.latency_s is None:
        return 4.0, f"{place}silent"
    power = f"channel {spot.channel}, {spot.power_dbm:g} dBm, {spot.latency_s:.3f} s"
    return radius(spot.power_dbm, powers_dbm), place + power


def ring_step(far: float) -> float:
    """Return the distance in m between rings, of which three to six cover ``far`` m.

    >>> ring_step(49.0), ring_step(9.0), ring_step(0.5)
    (10.0, 2.0, 0.1)
    """
    power = 10.0 ** math.floor(math.log10(far / 5))
    return next(power * step for step in STEPS if math.ceil(far / (power * step) - 1e-9) <= 5)


def radius(power_dbm: float, powers_dbm: Sequence[float]) -> float:
    """Return a device's radius in px; its area grows linearly from the lowest to the highest power.

    >>> radius(0.0, (0.0, 20.0)), radius(20.0, (0.0, 20.0)), radius(7.0, (7.0, 7.0))
    (5.5, 10.0, 10.0)
    """
    least, most = powers_dbm[0], powers_dbm[-1]
    share = 1.0 if most == least else (power_dbm - least) / (most - least)
    return math.sqrt(SMALL**2 + share * (LARGE**2 - SMALL**2))
