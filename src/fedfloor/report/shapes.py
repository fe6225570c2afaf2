"""Shapes of SVG drawings of plans: blocks, boxes, arrows, and the chips that stand for devices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

CHIP_W = 38.0
CHIP_H = 26.0
NAME_MOST = 16  # letters of a name that fit into a device's box; the title has the whole name
Point = tuple[float, float]


@dataclass(frozen=True)
class Shape:
    """A drawn block: its size, the points at which the model enters and leaves, and its SVG from the top left."""

    width: float
    height: float
    into: Point
    out: Point
    body: str

    def at(self, x: float, y: float) -> Shape:
        """Return the block shifted by (x, y), with its size unchanged."""
        into, out = ((a + x, b + y) for a, b in (self.into, self.out))
        body = f'<g transform="translate({number(x)} {number(y)})">{self.body}</g>'
        return Shape(self.width, self.height, into, out, body)


def centred(width: float, height: float, body: str, apart: float = 8) -> Shape:
    """Return a block that the model enters and leaves at its top, ``apart`` px to each side of the middle."""
    return Shape(width, height, (width / 2 - apart, 0), (width / 2 + apart, 0), body)


def number(value: float) -> str:
    """Return a coordinate as text with at most one decimal.

    >>> number(12.0), number(0.25)
    ('12', '0.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def write(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text as SVG, whose baseline starts, or is centred, at (x, y)."""
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def wide(words: str, size: float = 6.4) -> float:
    """Return the estimated width of a text in px, as SVG cannot measure it."""
    return size * len(words)


def box(x: float, y: float, width: float, height: float, kind: str, radius: float = 7) -> str:
    """Return a rounded rectangle as SVG."""
    size = f'width="{number(width)}" height="{number(height)}" rx="{number(radius)}"'
    return f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" {size}/>'


def tip(end: Point, angle: float, kind: str) -> str:
    """Return an arrow's tip at a point as SVG, along an angle in degrees (90 is down)."""
    place = f"translate({number(end[0])} {number(end[1])}) rotate({number(angle)})"
    return f'<path class="tip {kind}" d="M1 0L-7 3.6L-7-3.6Z" transform="{place}"/>'


def polyline(points: Iterable[Point], kind: str, tipped: bool = True) -> str:
    """Return a line through points as SVG, with a tip at its end if ``tipped``."""
    track = list(points)
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in track)
    line = f'<path class="{kind}" d="{path}"/>'
    (x0, y0) = track[-2]
    (x1, y1) = track[-1]
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    return line + (tip(track[-1], angle, kind.split()[0]) if tipped else "")


def swing(start: Point, end: Point, kind: str) -> str:
    """Return an S-shaped arrow with vertical ends as SVG."""
    (x0, y0) = start
    (x1, y1) = end
    bend = (y0 + y1) / 2
    path = (
        f"M{number(x0)} {number(y0)}C{number(x0)} {number(bend)} {number(x1)} {number(bend)} {number(x1)} {number(y1)}"
    )
    return f'<path class="{kind}" d="{path}"/>' + tip(end, 90 if y1 > y0 else -90, kind.split()[0])


def between(start: Point, end: Point, shift: float = 0.0, width: float = CHIP_W) -> str:
    """Return an arrow from one chip's border to another's, given their centres; ``shift`` moves it sideways."""
    (x0, y0) = start
    (x1, y1) = end
    dx, dy = x1 - x0, y1 - y0
    # the relative position at which the line leaves the first chip's rectangle
    across = width / 2 / abs(dx) if dx else math.inf
    along = CHIP_H / 2 / abs(dy) if dy else math.inf
    part = min(across, along)
    length = math.hypot(dx, dy)
    sx = -dy / length * shift
    sy = dx / length * shift
    gap = 3 / length
    first = (x0 + dx * (part + gap / 2) + sx, y0 + dy * (part + gap / 2) + sy)
    last = (x1 - dx * (part + gap) + sx, y1 - dy * (part + gap) + sy)
    return polyline((first, last), "hand")


def shortened(name: str) -> str:
    """Return a name that fits into a device's box; a long name is reduced to its two ends.

    >>> shortened("pump-7"), shortened("press line 4, hall north")
    ('pump-7', 'press li…l north')
    """
    half = NAME_MOST // 2
    return name if len(name) <= NAME_MOST else f"{name[:half].rstrip()}…{name[1 - half :].lstrip()}"


def chip(centre: Point, name: str, title: str, tag: str = "", width: float = CHIP_W) -> str:
    """Return a device as SVG: a rounded box with its name, and ``tag``, the letter for its work."""
    x, y = centre
    body = box(x - width / 2, y - CHIP_H / 2, width, CHIP_H, "box")
    body += write(x - (4 if tag else 0), y + 4, name)
    if tag:
        body += write(x + width / 2 - 6, y - 2, tag, "tiny")
    return f"<g><title>{escape(title)}</title>{body}</g>"
