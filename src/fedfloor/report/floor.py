"""A drawing of a park's floor: the base station, the devices around it, their channels and powers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from fedfloor.report.charts import COLOURS, GREY

WIDTH, MARGIN, TOP = 400.0, 22.0, 70.0
CENTRE = WIDTH / 2
SMALL, LARGE = 5.5, 10.0  # radius in px at the lowest and the highest power
STEPS = (1, 2, 2.5, 5, 10)
COLUMNS = 2
STYLE = """
.ff-floor{--ff-ink:#1d2733;--ff-soft:#55606d;--ff-paper:#fff;--ff-line:#c3ccd6;color:var(--ff-ink);
font:13px system-ui,sans-serif;width:100%;max-width:640px;height:auto}
@media (prefers-color-scheme:dark){.ff-floor{--ff-ink:#e6edf3;--ff-soft:#a9b5c1;--ff-paper:#12171e;--ff-line:#3c4856}}
.ff-floor .paper{fill:var(--ff-paper)}.ff-floor text{fill:currentColor}
.ff-floor .title{font-weight:600;font-size:15px}.ff-floor .soft{fill:var(--ff-soft);font-size:11px}
.ff-floor .number{fill:#fff;font-size:9px;font-weight:700}
.ff-floor .ring{fill:none;stroke:var(--ff-line);stroke-width:1}
.ff-floor .base{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linecap:round}
.ff-floor .silent{fill:none;stroke:SILENT;stroke-width:1.5}
.ff-floor .last{fill:none;stroke:currentColor;stroke-width:2}
.ff-floor .on{stroke:var(--ff-paper);stroke-width:1}
""".replace("SILENT", GREY)


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
    scale = (CENTRE - MARGIN) / (math.ceil(far / step - 1e-9) * step)
    middle = TOP + CENTRE - MARGIN + 14
    body = "".join([*_rings(far, step, scale, middle), *_base(middle), *_devices(drawing, scale, middle)])
    key, height = _legend(drawing, TOP + 2 * (CENTRE - MARGIN) + 46)
    head = "".join(_write(MARGIN, 46 + 16 * i, words, "soft") for i, words in enumerate(drawing.words))
    label = f"The floor of {drawing.title}: {'; '.join(drawing.words)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ff-floor" role="img" aria-label={quoteattr(label)} '
        f'viewBox="0 0 {WIDTH:g} {height:g}"><title>{escape(label)}</title><style>{STYLE}</style>'
        f'<rect class="paper" width="100%" height="100%" rx="10"/>'
        f"{_write(MARGIN, 28, drawing.title, 'title')}{head}{body}{key}</svg>\n"
    )


def ring_step(far: float) -> float:
    """Return the distance in m between rings, of which three to six cover ``far`` m.

    >>> ring_step(49.0), ring_step(9.0), ring_step(0.5)
    (10.0, 2.0, 0.1)
    """
    power = 10.0 ** math.floor(math.log10(far / 5))
    return next(power * step for step in STEPS if math.ceil(far / (power * step) - 1e-9) <= 5)


def _rings(far: float, step: float, scale: float, middle: float) -> Iterator[str]:
    for i in range(1, math.ceil(far / step - 1e-9) + 1):
        r = i * step * scale
        yield f'<ellipse class="ring" cx="{CENTRE:g}" cy="{middle:g}" rx="{r:.1f}" ry="{r:.1f}"/>'
        yield _write(CENTRE, middle - r - 3, f"{i * step:g} m", "soft", "middle")


def _base(middle: float) -> Iterator[str]:
    x, y = CENTRE, middle
    mast = f"M{x - 5:g} {y + 8:g}L{x:g} {y - 4:g}L{x + 5:g} {y + 8:g}M{x - 3:g} {y + 4:g}H{x + 3:g}"
    waves = f"M{x - 4:g} {y - 8:g}a5 5 0 0 0 0 7M{x + 4:g} {y - 8:g}a5 5 0 0 1 0 7"
    yield f'<path class="base" d="{mast}{waves}"><title>base station</title></path>'


def _devices(drawing: Drawing, scale: float, middle: float) -> Iterator[str]:
    """Yield the circles, silent devices first, so that they do not cover sending devices."""
    for spot in sorted(drawing.spots, key=lambda spot: spot.channel is not None):
        x, y = CENTRE + spot.x_m * scale, middle - spot.y_m * scale
        words = f"device {spot.name}, {math.hypot(spot.x_m, spot.y_m):.1f} m: "
        if spot.channel is None or spot.power_dbm is None or spot.latency_s is None:
            yield _circle(x, y, 4.0, "silent device", words + "silent")
            continue
        r = radius(spot.power_dbm, drawing.powers_dbm)
        words += f"channel {spot.channel}, {spot.power_dbm:g} dBm, {spot.latency_s:.3f} s"
        yield _circle(x, y, r, "on device", words, colour(spot.channel))
        yield _write(x, y + 3.2, str(spot.channel), "number", "middle")
        if spot.name == drawing.slowest:
            yield f'<ellipse class="last" cx="{x:.1f}" cy="{y:.1f}" rx="{r + 4:.1f}" ry="{r + 4:.1f}"/>'


def radius(power_dbm: float, powers_dbm: Sequence[float]) -> float:
    """Return a device's radius in px; its area grows linearly from the lowest to the highest power.

    >>> radius(0.0, (0.0, 20.0)), radius(20.0, (0.0, 20.0)), radius(7.0, (7.0, 7.0))
    (5.5, 10.0, 10.0)
    """
    least, most = powers_dbm[0], powers_dbm[-1]
    share = 1.0 if most == least else (power_dbm - least) / (most - least)
    return math.sqrt(SMALL**2 + share * (LARGE**2 - SMALL**2))


def colour(channel: int) -> str:
    """Return a channel's colour, which repeats after eight channels."""
    return COLOURS[channel % len(COLOURS)]


def _legend(drawing: Drawing, y: float) -> tuple[str, float]:
    """Return the legend as SVG and the y coordinate of its end."""
    used = sorted({spot.channel for spot in drawing.spots if spot.channel is not None})
    each = (WIDTH - 2 * MARGIN) / COLUMNS
    parts = []
    for i, channel in enumerate(used):
        x, below = MARGIN + 8 + each * (i % COLUMNS), y + 22 * (i // COLUMNS)
        count = sum(spot.channel == channel for spot in drawing.spots)
        parts.append(f'<ellipse cx="{x:.1f}" cy="{below - 3:.1f}" rx="8" ry="8" fill="{colour(channel)}"/>')
        parts.append(_write(x, below + 0.2, str(channel), "number", "middle"))
        parts.append(_write(x + 13, below + 1, f"channel {channel}: {count} device{'s' * (count > 1)}", "soft"))
    y += 22 * math.ceil(len(used) / COLUMNS) + 2
    x = MARGIN
    for power in dict.fromkeys((drawing.powers_dbm[0], drawing.powers_dbm[-1])):
        r = radius(power, drawing.powers_dbm)
        parts.append(f'<ellipse cx="{x + r:.1f}" cy="{y - 4:.1f}" rx="{r:.1f}" ry="{r:.1f}" fill="{GREY}"/>')
        parts.append(_write(x + 2 * r + 5, y, f"{power:g} dBm", "soft"))
        x += 2 * r + 60
    parts.append(f'<ellipse class="silent" cx="{x + 4:.1f}" cy="{y - 4:.1f}" rx="4" ry="4"/>')
    silent = sum(spot.channel is None for spot in drawing.spots)
    parts.append(_write(x + 14, y, f"silent: {silent}", "soft"))
    y += 24
    parts.append(f'<ellipse class="last" cx="{MARGIN + 8:.1f}" cy="{y - 4:.1f}" rx="7" ry="7"/>')
    parts.append(_write(MARGIN + 21, y, f"last: device {drawing.slowest}", "soft"))
    return "".join(parts), y + 18


def _circle(x: float, y: float, r: float, kind: str, words: str, fill: str = "") -> str:
    paint = f' fill="{fill}"' if fill else ""
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"{paint}><title>{escape(words)}</title></circle>'
    )


def _write(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'
