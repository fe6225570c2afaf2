"""A drawing of one round as SVG, with the model's path from the cloud on top over edges to devices at the bottom.

Every node is a block with one point at which the model enters and one at which it leaves. In chains and rings of
devices the model enters at the first device and leaves at the last. A node without a drawing of its own is a frame
with its :func:`~fedfloor.report.plan_text.heading` around its child nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import accumulate, pairwise
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from fedfloor.base.names import NUMBERED, Names, count
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Select, Sequence, Site, Train, edge
from fedfloor.plan.walk import children, devices, fold, with_children
from fedfloor.report.plan_text import heading, is_chain, mix_words, radio_words, times_words, work_words
from fedfloor.report.shapes import (
    CHIP_H,
    CHIP_W,
    Point,
    Shape,
    between,
    box,
    centred,
    chip,
    number,
    polyline,
    shortened,
    swing,
    wide,
    write,
)

# A page that embeds the SVG may set --plan-paper; other colours follow the reader's light or dark scheme.
STYLE = files("fedfloor.report").joinpath("plan.css").read_text(encoding="utf-8")


def cloud(note: str) -> Shape:
    """Return the block of the cloud: its outline, its name and a note below the name."""
    width, height = max(150.0, wide(note, 6.0) + 60), 66.0
    w = width
    right = width - 28
    arcs = [(20, 20, 20, 27), (25, 25, w * 0.3, 14), (w * 0.17, 23, w * 0.6, 8), (w * 0.14, 22, right, 25)]
    bumps = "".join(f"A{number(rx)} {number(ry)} 0 0 1 {number(x)} {number(y)}" for rx, ry, x, y in arcs)
    path = f"M24 {number(height)}{bumps}A20.5 20.5 0 0 1 {number(right + 6)} {number(height)}Z"
    lines = write(w / 2, 42 if note else 46, "cloud", "name") + (write(w / 2, 57, note, "soft") if note else "")
    return Shape(w, height, (w / 2 - 8, 4), (w / 2 + 8, 4), f'<path class="box" d="{path}"/>{lines}')


RELAY = "passed on"  # the rule of a Parallel that the drawing adds for an edge that only relays
GAP = 20.0
NAMED = 40  # most devices named in the title of a box of dots
# distance between the devices of a chain
GAP_X = 28.0
STEP_Y = 54.0
RING_MOST = 16  # rings of more devices are drawn as a closed winding line


@dataclass(frozen=True)
class Pen:
    """The common settings of a drawing's blocks.

    Args:
        limit: largest number of drawn children of a node; the rest are only counted.
        tags: description of a work → its letter; empty if the plan has only one.
        names: the names of sites.
        chip: the width of a device, px.
    """

    limit: int
    tags: Mapping[str, str] = field(default_factory=dict)
    names: Names = NUMBERED
    chip: float = CHIP_W

    def station(self, site: Site, note: str, relay: bool = False) -> Shape:
        """Return the block of a site: the cloud, or a box for an edge, dashed if it only relays."""
        if site.kind == "cloud":
            return cloud(note)
        name = self.names.site(site.kind, site.index)
        width = max(76.0, wide(name) + 30, wide(note, 5.8) + 20)
        height = 40.0 if note else 26.0
        body = box(0, 0, width, height, "box dashed" if relay else "box", 9)
        body += write(width / 2, 17, name, "name") + (write(width / 2, 32, note, "soft") if note else "")
        return centred(width, height, f"<g>{body}</g>")


def draw(node: Node, pen: Pen, room: float, here: Site) -> Shape:
    """Return the block of a node, not much wider than ``room`` px; ``here`` is the model's site before it."""
    match node:
        case Train():
            return _train(node, pen)
        case Sequence():
            return _chain(node, pen, room) if is_chain(node) else _steps(node.children, pen, room, here)
        case Parallel():
            return _parallel(node, pen, room)
        case Repeat():
            return _repeat(node, pen, room, here)
        case Select():
            by = f"{node.random} at random, {node.how_many - node.random} by" if node.random else "by"
            lines = [f"choose {node.how_many} of {len(node.candidates)}", f"{by} {node.policy}"]
            return _crowd(pen, pen.station(node.at, mix_words(node)), lines, node.candidates, "dashed", "back")
        case Broadcast():
            lines = [f"hand {node.scope!r} to", f"{count(len(node.devices), 'device')} to keep"]
            return _crowd(pen, pen.station(here, ""), lines, node.devices, "dotted", "")
        case Probe():
            lines = [f"ask {count(len(node.devices), 'device')}:", f"{node.what}?"]
            return _crowd(pen, pen.station(node.at, "answers unmixed"), lines, node.devices, "dotted", "back dotted")
        case _:
            return _framed(_steps(children(node), pen, max(room - 28, 184.0), here), heading(node, pen.names))


def ends_at(node: Node, here: Site) -> Site:
    """Return the model's site after a node, given its site before."""
    match node:
        case Train():
            return node.site
        case Parallel() | Select():
            return node.at
    for child in children(node):
        here = ends_at(child, here)
    return here


def starts_at(node: Node) -> Site | None:
    """Return the site at the top of a node's drawing; None if it has none."""
    match node:
        case Train():
            return None if node.site.kind == "device" else node.site
        case Parallel() | Select() | Probe():
            return node.at
    below = children(node)
    return starts_at(below[0]) if below else None


def with_relays(node: Node, factory_of: Callable[[int], int]) -> Node:
    """Return a node with the relaying edges inserted between the cloud and the branches of one factory."""
    if not isinstance(node, Parallel):
        return with_children(node, [with_relays(child, factory_of) for child in children(node)])
    if node.at != CLOUD or any(starts_at(child) for child in node.children):
        return node
    factories = [{factory_of(k) for k in devices(child)} for child in node.children]
    if not node.children or any(len(visited) != 1 for visited in factories):
        return node
    groups: dict[int, list[Node]] = {}
    for child, visited in zip(node.children, factories, strict=True):
        groups.setdefault(next(iter(visited)), []).append(child)
    relays = (Parallel(tuple(group), edge(m), RELAY) for m, group in sorted(groups.items()))
    return replace(node, children=tuple(relays))


def under(top: Shape, blocks: list[Shape], room: float) -> Shape:
    """Return the block of a site above blocks, with the model sent to each and returned by each."""
    rows = _rows(blocks, room)
    return _swings(top, rows[0]) if len(rows) == 1 else _lanes(top, rows)


def _train(node: Train, pen: Pen) -> Shape:
    if node.site.kind == "device":
        return _visit(node, pen)
    tag = pen.tags.get(work_words(node.work), "")
    return pen.station(node.site, f"trains here ({tag})" if tag else "trains here")


def _parallel(node: Parallel, pen: Pen, room: float) -> Shape:
    relay = node.mix == RELAY
    top = pen.station(node.at, "" if relay else mix_words(node), relay)
    shown = node.children[: pen.limit]
    share = min(room, max(190.0, room / max(1, len(shown)) - GAP))
    blocks = [draw(child, pen, share, node.at) for child in shown]
    if len(shown) < len(node.children):
        blocks.append(_more(len(node.children) - len(shown)))
    return under(top, blocks, room)


def _more(hidden: int) -> Shape:
    words = f"… and {hidden} more"
    width = wide(words) + 12
    return centred(width, 26, write(width / 2, 17, words, "soft"), 7)


def _repeat(node: Repeat, pen: Pen, room: float, here: Site) -> Shape:
    if isinstance(node.child, Sequence) and is_chain(node.child) and node.times > 1:
        return _chain(node.child, pen, room, node.times, "ticks" if node.tick else "laps")
    return _framed(draw(node.child, pen, max(room - 28, 184.0), here), times_words(node))


def _framed(inner: Shape, words: str) -> Shape:
    width = max(inner.width + 28, wide(words, 6.0) + 24)
    inner = inner.at((width - inner.width) / 2, 12.0)
    height = inner.height + 42
    body = box(0.6, 0.6, width - 1.2, height - 1.2, "frame", 12) + inner.body
    body += write(width / 2, height - 11, words, "soft")
    return Shape(width, height, inner.into, inner.out, body)


def _steps(steps: tuple[Node, ...], pen: Pen, room: float, here: Site) -> Shape:
    """Return the block of steps that are not all visits, side by side, joined at the top."""
    blocks = []
    shown = steps[: pen.limit]
    share = max(300.0, room / max(1, len(shown)) - 2 * GAP)
    for child in shown:
        blocks.append(draw(child, pen, share, here))
        here = ends_at(child, here)
    if len(shown) < len(steps):
        blocks.append(_more(len(steps) - len(shown)))
    if not blocks:
        return centred(60, 26, write(30, 17, "nothing", "soft"), 7)
    placed = _placed(blocks, 30.0, 2 * GAP)
    body = "".join(block.body for block in placed)
    for a, b in pairwise(placed):
        track = (a.out, (a.out[0], 12), (b.into[0], 12), b.into)
        body += polyline(track, "hand") + write((a.out[0] + b.into[0]) / 2, 8, "then", "soft")
    width = sum(block.width + 2 * GAP for block in blocks)
    height = max(block.height for block in blocks)
    return Shape(width - 2 * GAP, 30 + height, placed[0].into, placed[-1].out, body)


def _crowd(pen: Pen, top: Shape, lines: list[str], devices: tuple[int, ...], edge: str, answer: str) -> Shape:
    """Return the block of a site above a box of devices as dots, with an arrow to it and, with ``answer``, one back."""
    shown = min(len(devices), 100)
    columns = min(20, max(10, math.ceil(math.sqrt(2 * shown))))
    dots = "".join(
        f'<circle class="dot" cx="{number(i % columns * 13 + 6)}" cy="{number(i // columns * 13 + 6)}" r="4.2"/>'
        for i in range(shown)
    )
    width = max(columns * 13 + 24.0, max(wide(line) for line in lines) + 24)
    rows = math.ceil(shown / columns)
    height = 20.0 + 15 * len(lines) + 13 * rows + (14 if shown < len(devices) else 0)
    body = box(0, 0, width, height, f"frame {edge}", 12)
    for i, line in enumerate(lines):
        body += write(width / 2, 19 + 15 * i, line, "name" if i == 0 else "soft")
    body += (
        f'<g transform="translate({number((width - min(columns, shown) * 13) / 2)} {12 + 15 * len(lines)})">{dots}</g>'
    )
    if shown < len(devices):
        body += write(width / 2, height - 7, f"… and {len(devices) - shown} more", "soft")
    body = f"<g><title>devices {escape(pen.names.many(devices, NAMED))}</title>{body}</g>"
    return _swings(top, [centred(width, height, body)], "out" if answer == "back" else "out dotted", answer)


def _rows(blocks: list[Shape], room: float) -> list[list[Shape]]:
    total = sum(block.width + _gap(block) for block in blocks)
    most = max(1, math.ceil(total / max(room, 1.0)))
    parts = np.array_split(range(len(blocks)), min(most, max(1, len(blocks))))
    return [[blocks[i] for i in part] for part in parts]


def _gap(block: Shape) -> float:
    return 8.0 if block.width < 50 else GAP


def _row_width(row: list[Shape]) -> float:
    return sum(block.width + _gap(block) for block in row) - (_gap(row[-1]) if row else 0)


def _placed(row: list[Shape], y: float, gap: float | None = None, x: float = 0.0) -> list[Shape]:
    """Return blocks side by side from (x, y) on, by default with their own gaps."""
    starts = accumulate((block.width + (_gap(block) if gap is None else gap) for block in row), initial=x)
    return [block.at(start, y) for block, start in zip(row, starts, strict=False)]


def _swings(top: Shape, row: list[Shape], out: str = "out", back: str = "back") -> Shape:
    """Return the block of a site above one row, joined by curves."""
    width = max(top.width, _row_width(row))
    top = top.at((width - top.width) / 2, 0)
    y = top.height + 34 + min(50.0, _row_width(row) / 14)
    pitch = min(14.0, (top.width - 40) / max(1, len(row)))
    slant = min(4.0, pitch / 3) if len(row) > 1 else 7.5
    body = top.body
    placed = _placed(row, y, x=(width - _row_width(row)) / 2)
    for i, block in enumerate(placed):
        foot = width / 2 + (i - (len(row) - 1) / 2) * pitch
        body += swing((foot - slant, top.height + 1), (block.into[0], block.into[1] - 1), out)
        if back:
            body += swing((block.out[0], block.out[1] - 1), (foot + slant, top.height + 1), back)
    body += "".join(block.body for block in placed)
    return Shape(width, y + max((block.height for block in row), default=0), top.into, top.out, body)


def _lanes(top: Shape, rows: list[list[Shape]]) -> Shape:
    """Return the block of a site above several rows, with lanes outwards at the left and back at the right margin."""
    width = max(top.width, *(_row_width(row) for row in rows)) + 40
    top = top.at((width - top.width) / 2, 0)
    centre = width / 2
    y = top.height + 44
    body = top.body
    lanes = []
    for row in rows:
        placed = _placed(row, y, x=(width - _row_width(row)) / 2)
        ins = [block.into for block in placed]
        outs = [block.out for block in placed]
        body += "".join(block.body for block in placed)
        lanes.append(y)
        body += "".join(polyline(((x, y - 28), (x, end - 1)), "out") for x, end in ins)
        body += "".join(polyline(((x, start - 1), (x, y - 19)), "back", tipped=False) for x, start in outs)
        body += polyline(((6, y - 28), (ins[-1][0], y - 28)), "out", tipped=False)
        body += polyline(((outs[0][0], y - 19), (width - 6, y - 19)), "back", tipped=False)
        y += max(block.height for block in row) + 46
    body += polyline(((6, lanes[0] - 28), (6, lanes[-1] - 28)), "out", tipped=False)
    body += polyline(((centre - 8, top.height), (centre - 8, lanes[0] - 28)), "out", tipped=False)
    body += polyline(((width - 6, lanes[-1] - 19), (width - 6, lanes[0] - 19)), "back", tipped=False)
    body += polyline(((centre + 8, lanes[0] - 19), (centre + 8, top.height + 1)), "back")
    return Shape(width, y - 46, top.into, top.out, body)


# -- chains and rings -------------------------------------------------------------------------------------------------


def _visit(node: Train, pen: Pen) -> Shape:
    """Return the block of one device."""
    body = _chip(node, (pen.chip / 2, CHIP_H / 2), pen)
    height = CHIP_H
    if node.radio:
        height += 14
        body += write(pen.chip / 2, CHIP_H + 11, f"ch {node.radio.channel}", "soft")
    return centred(pen.chip, height, body, 7)


def _chip(node: Train, centre: Point, pen: Pen) -> str:
    radio = f", {radio_words(node.radio)}" if node.radio else ""
    title = f"{pen.names.site('device', node.site.index)}: {work_words(node.work)}{radio}"
    name = shortened(pen.names.short("device", node.site.index))
    return chip(centre, name, title, pen.tags.get(work_words(node.work), ""), pen.chip)


def _chain(node: Sequence, pen: Pen, room: float, times: int = 1, unit: str = "") -> Shape:
    """Return the block of a chain of visits, or of a loop that is repeated ``times``."""
    visits = [child for child in node.children if isinstance(child, Train)]
    stops: list[Train | int] = list(visits)
    if len(stops) > pen.limit:
        head = max(1, pen.limit - 1)
        stops = [*visits[:head], len(visits) - head - 1, visits[-1]]
    if times > 1 and len(stops) <= RING_MOST:
        return _ring(stops, pen, times, unit)
    return _winding(stops, pen, room, f"×{times} {unit}" if times > 1 else "")


def _stop(stop: Train | int, centre: Point, pen: Pen) -> str:
    if isinstance(stop, int):
        return chip(centre, f"+{stop}", f"{stop} more devices", width=pen.chip)
    return _chip(stop, centre, pen)


def _ring(stops: list[Train | int], pen: Pen, times: int, unit: str) -> Shape:
    """Return the block of a closed loop: down on the left, up on the right, with begin and end at the top."""
    left, right = (len(stops) + 1) // 2, len(stops) // 2
    chip_w = pen.chip
    across = max(50.0 + chip_w, wide(unit) + chip_w + 26, wide(f"×{times}", 8) + chip_w + 26)
    high, low = CHIP_H / 2, CHIP_H / 2 + STEP_Y * (left - 1)
    far = chip_w / 2 + across
    places = [(chip_w / 2, high + STEP_Y * i) for i in range(left)]
    # the last device is always at the top, next to the first
    places += [(far, high + (low - high) * i / max(1, right - 1)) for i in reversed(range(right))]
    shift = 5.0 if len(stops) == 2 else 0.0
    arrows = "".join(between(places[i - 1], places[i], shift=-shift, width=chip_w) for i in range(len(places)))
    chips = "".join(_stop(stop, place, pen) for stop, place in zip(stops, places, strict=True))
    if len(stops) == 2:
        words = write((chip_w + across) / 2, low + high + 14, f"×{times} {unit}", "soft")
    elif len(stops) == 3:
        words = write(far, low + 4, f"×{times} {unit}", "soft")
    else:
        words = write((chip_w + across) / 2, (low + high) / 2 - 2, f"×{times}", "name")
        words += write((chip_w + across) / 2, (low + high) / 2 + 12, unit, "soft")
    height = low + CHIP_H / 2 + (20 if left == 1 else 0)
    width = across + chip_w
    return Shape(
        width, height, (chip_w / 2 - 7, 0), (places[-1][0] + 7, places[-1][1] - CHIP_H / 2), arrows + chips + words
    )


def _winding(stops: list[Train | int], pen: Pen, room: float, loop: str) -> Shape:
    """Return the block of a winding line, which leaves at the right margin and, as a loop, closes at the left one."""
    step_x = pen.chip + GAP_X
    narrow = len(stops) <= 12 and room < len(stops) * step_x
    most = 1 if narrow else max(2, min(12, int(room // step_x)))
    rows = -(-len(stops) // most)
    columns = -(-len(stops) // rows)
    margin = 22.0 if loop else 0.0
    places = []
    for i in range(len(stops)):
        row, column = divmod(i, columns)
        slot = column if row % 2 == 0 else columns - 1 - column
        places.append((margin + pen.chip / 2 + slot * step_x, CHIP_H / 2 + row * STEP_Y))
    width = margin + pen.chip + (columns - 1) * step_x + 16
    body = "".join(between(a, b, width=pen.chip) for a, b in pairwise(places))
    body += "".join(_stop(stop, place, pen) for stop, place in zip(stops, places, strict=True))
    x, y = places[-1]
    floor = y + CHIP_H / 2
    height = floor + (34 if loop else 14)
    body += polyline(
        ((x + 6, floor), (x + 6, floor + 10), (width - 2, floor + 10), (width - 2, 0)), "back", tipped=False
    )
    if loop:
        first = places[0]
        down = ((x - 6, floor), (x - 6, floor + 16), (6, floor + 16))
        track = (*down, (6, first[1]), (first[0] - pen.chip / 2 - 3, first[1]))
        body += polyline(track, "hand") + write(width / 2, floor + 32, loop, "soft")
    return Shape(width, height, (places[0][0] - 7, 0), (width - 2, 0), body)


MOST_LEAVES = 100
ROOM = 1160.0


def svg(node: Node, factory_of: Callable[[int], int] | None = None, names: Names = NUMBERED) -> str:
    """Return a drawing of one round as SVG: cloud on top, edges, devices at the bottom, arrows for the model's path.

    Colours follow the reader's light or dark scheme; a page may set ``--plan-paper`` for the background.

    Args:
        factory_of: the factory of a device; if given, edges that only relay are also drawn.

    >>> from fedfloor.plan.nodes import Train, Work, device
    >>> svg(Train(device(3), Work(epochs=1))).startswith("<svg xmlns=")
    True
    """
    works = list(dict.fromkeys(_works(node)))
    tags = {words: chr(ord("a") + i % 26) for i, words in enumerate(works)} if len(works) > 1 else {}
    shown = node if factory_of is None else with_relays(node, factory_of)
    longest = max((wide(shortened(names.short("device", k))) for k in devices(node)), default=0.0)
    pen = Pen(_limit(shown), tags, names, max(CHIP_W, longest + (24 if tags else 14)))
    block = draw(shown, pen, ROOM, CLOUD)
    if starts_at(shown) != CLOUD:
        block = under(cloud(""), [block], ROOM)
    return _sheet(block, f"One round as a plan: {heading(node, names)}", works, tags)


def _sheet(block: Shape, title: str, works: list[str], tags: dict[str, str]) -> str:
    notes = [f"{tags[words]}: {words}" if tags else f"each visit: {words}" for words in works[:6]]
    if len(works) > 6:
        notes.append(f"… and {len(works) - 6} more settings")
    if 'class="box dashed"' in block.body:
        notes.append("a dashed edge only passes the model on")
    kinds = {"out": "goes out", "hand": "is handed on", "back": "comes back"}
    arrows = [(kind, words) for kind, words in kinds.items() if f'<path class="{kind}' in block.body]
    width = max(block.width, 130.0 * len(arrows), *(wide(note, 6.0) for note in notes), 200.0) + 32
    y = 16 + block.height + 34
    legend = ""
    x = width / 2 - sum(50 + wide(words, 6.0) for _, words in arrows) / 2 + 6
    for kind, words in arrows:
        legend += polyline(((x, y - 4), (x + 30, y - 4)), kind) + write(x + 38, y, words, "soft", "start")
        x += 50 + wide(words, 6.0)
    for note in notes:
        y += 18
        legend += write(width / 2, y, note, "soft")
    height = y + 14
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ff-plan" role="img" aria-label={quoteattr(title)} {size}>'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect class="paper" width="100%" height="100%" rx="10"/>'
        f"{block.at((width - block.width) / 2, 16).body}{legend}</svg>"
    )


def _works(node: Node) -> Iterator[str]:
    if hasattr(node, "work"):
        yield work_words(node.work)
    for child in children(node):
        yield from _works(child)


def _limit(node: Node) -> int:
    """Return the limit on drawn children per node at which a drawing has at most about a hundred devices."""

    def leaves(limit: int) -> int:
        return fold(node, lambda at, below: sum(below[:limit]) if children(at) else 1 if isinstance(at, Train) else 4)

    sizes = (10**9, 24, 12, 8, 6, 4, 3)
    return next((limit for limit in sizes if leaves(limit) <= MOST_LEAVES), 2)
