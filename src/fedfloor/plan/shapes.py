"""The strokes a plan's picture is made of: chips, sites, lines and their tips, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

from fedfloor.plan.nodes import Site

CHIP_W, CHIP_H = 38.0, 26.0
NAME_MOST = 16  # letters of a name that fit a device; the whole name is in its title
Point = tuple[float, float]

# A page that embeds the picture may set --plan-paper; all else follows the reader's light or dark scheme.
STYLE = """
.ff-plan{--ff-ink:#1d2733;--ff-soft:#5b6673;--ff-paper:#fff;--ff-card:#eaf1fb;--ff-line:#9aabc0;
--ff-out:#2563eb;--ff-back:#c2410c;--ff-hand:#15803d;color:var(--ff-ink);font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.ff-plan{--ff-ink:#e6edf3;--ff-soft:#a3b0bd;--ff-paper:#12171e;--ff-card:#1f2b3a;
--ff-line:#5a6b80;--ff-out:#6ea8fe;--ff-back:#fb923c;--ff-hand:#4ade80}}
.ff-plan .paper{fill:var(--plan-paper,var(--ff-paper))}
.ff-plan text{fill:currentColor}.ff-plan .soft{fill:var(--ff-soft);font-size:11px}.ff-plan .tiny{font-size:8.5px}
.ff-plan .name{font-weight:600}.ff-plan .box{fill:var(--ff-card);stroke:var(--ff-line);stroke-width:1.2}
.ff-plan .frame{fill:none;stroke:var(--ff-line);stroke-width:1.2}.ff-plan .dashed{stroke-dasharray:6 4}
.ff-plan .dotted{stroke-dasharray:1.5 4;stroke-linecap:round}.ff-plan .dot{fill:var(--ff-card);stroke:var(--ff-line)}
.ff-plan path.out,.ff-plan path.back,.ff-plan path.hand{fill:none;stroke-width:1.5;stroke-linejoin:round}
.ff-plan .out{stroke:var(--ff-out)}.ff-plan .back{stroke:var(--ff-back)}.ff-plan .hand{stroke:var(--ff-hand)}
.ff-plan path.tip{stroke:none}.ff-plan .tip.out{fill:var(--ff-out)}
.ff-plan .tip.back{fill:var(--ff-back)}.ff-plan .tip.hand{fill:var(--ff-hand)}
"""


@dataclass(frozen=True)
class Block:
    """A drawn piece: its size, where the model comes in and goes out, and its SVG with the origin at its top left."""

    width: float
    height: float
    into: Point
    out: Point
    body: str


def number(value: float) -> str:
    """Write a coordinate with at most one decimal.

    >>> number(12.0), number(0.25)
    ('12', '0.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def moved(block: Block, x: float, y: float) -> str:
    """Return the block's SVG, shifted."""
    return f'<g transform="translate({number(x)} {number(y)})">{block.body}</g>'


def write(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text whose baseline starts, or is centred, at (x, y)."""
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def wide(words: str, size: float = 6.4) -> float:
    """Estimate the width of a text in pixels: an SVG cannot measure it."""
    return size * len(words)


def box(x: float, y: float, width: float, height: float, kind: str, radius: float = 7) -> str:
    """Return a rounded rectangle."""
    size = f'width="{number(width)}" height="{number(height)}" rx="{number(radius)}"'
    return f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" {size}/>'


def tip(end: Point, angle: float, kind: str) -> str:
    """Return an arrow's tip at a point, pointing along an angle in degrees (90 is down)."""
    place = f"translate({number(end[0])} {number(end[1])}) rotate({number(angle)})"
    return f'<path class="tip {kind}" d="M1 0L-7 3.6L-7-3.6Z" transform="{place}"/>'


def polyline(points: Iterable[Point], kind: str, tipped: bool = True) -> str:
    """Return a line through points, with a tip at its end."""
    track = list(points)
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in track)
    line = f'<path class="{kind}" d="{path}"/>'
    (x0, y0), (x1, y1) = track[-2], track[-1]
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    return line + (tip(track[-1], angle, kind.split()[0]) if tipped else "")


def swing(start: Point, end: Point, kind: str) -> str:
    """Return an S-shaped arrow that leaves and arrives upright."""
    (x0, y0), (x1, y1) = start, end
    bend = (y0 + y1) / 2
    path = (
        f"M{number(x0)} {number(y0)}C{number(x0)} {number(bend)} {number(x1)} {number(bend)} {number(x1)} {number(y1)}"
    )
    return f'<path class="{kind}" d="{path}"/>' + tip(end, 90 if y1 > y0 else -90, kind.split()[0])


def between(start: Point, end: Point, kind: str = "hand", shift: float = 0.0, width: float = CHIP_W) -> str:
    """Return an arrow from one chip's border to another's, given their centres; ``shift`` moves it sideways."""
    (x0, y0), (x1, y1) = start, end
    dx, dy = x1 - x0, y1 - y0
    # the share of the way at which the line leaves the first chip's rectangle
    across = width / 2 / abs(dx) if dx else math.inf
    along = CHIP_H / 2 / abs(dy) if dy else math.inf
    part = min(across, along)
    length = math.hypot(dx, dy)
    sx, sy = -dy / length * shift, dx / length * shift
    gap = 3 / length
    first = (x0 + dx * (part + gap / 2) + sx, y0 + dy * (part + gap / 2) + sy)
    last = (x1 - dx * (part + gap) + sx, y1 - dy * (part + gap) + sy)
    return polyline((first, last), kind)


def shortened(name: str) -> str:
    """Return a name that fits a device: of a long one its two ends.

    >>> shortened("pump-7"), shortened("press line 4, hall north")
    ('pump-7', 'press li…l north')
    """
    half = NAME_MOST // 2
    return name if len(name) <= NAME_MOST else f"{name[:half].rstrip()}…{name[1 - half :].lstrip()}"


def chip(centre: Point, name: str, title: str, tag: str = "", width: float = CHIP_W) -> str:
    """Return a device: a rounded box with its name, and a letter for its work where works differ."""
    x, y = centre
    body = box(x - width / 2, y - CHIP_H / 2, width, CHIP_H, "box")
    body += write(x - (4 if tag else 0), y + 4, name)
    if tag:
        body += write(x + width / 2 - 6, y - 2, tag, "tiny")
    return f"<g><title>{escape(title)}</title>{body}</g>"


def cloud(note: str) -> Block:
    """Return the cloud: its outline, its name and a note below the name."""
    width, height = max(150.0, wide(note, 6.0) + 60), 66.0
    w, right = width, width - 28
    arcs = [(20, 20, 20, 27), (25, 25, w * 0.3, 14), (w * 0.17, 23, w * 0.6, 8), (w * 0.14, 22, right, 25)]
    bumps = "".join(f"A{number(rx)} {number(ry)} 0 0 1 {number(x)} {number(y)}" for rx, ry, x, y in arcs)
    path = f"M24 {number(height)}{bumps}A20.5 20.5 0 0 1 {number(right + 6)} {number(height)}Z"
    lines = write(w / 2, 42 if note else 46, "cloud", "name") + (write(w / 2, 57, note, "soft") if note else "")
    return Block(w, height, (w / 2 - 8, 4), (w / 2 + 8, 4), f'<path class="box" d="{path}"/>{lines}')


def station(site: Site, note: str, relay: bool, name: str) -> Block:
    """Return a site: the cloud, or a box for an edge, named by its factory; an edge that only relays is dashed."""
    if site.kind == "cloud":
        return cloud(note)
    width = max(76.0, wide(name) + 30, wide(note, 5.8) + 20)
    height = 40.0 if note else 26.0
    body = box(0, 0, width, height, "box dashed" if relay else "box", 9)
    body += write(width / 2, 17, name, "name") + (write(width / 2, 32, note, "soft") if note else "")
    return Block(width, height, (width / 2 - 8, 0), (width / 2 + 8, 0), f"<g>{body}</g>")
