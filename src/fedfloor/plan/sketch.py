"""Every kind of node as a picture: a block with the place where the model comes in and the place where it goes out.

In chains and rings of devices the model enters at the first device and leaves from the last. A node that has no picture
of its own is a frame with its :func:`~fedfloor.plan.words.heading`, around what is below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from xml.sax.saxutils import escape

from fedfloor.names import NUMBERED, Names, count
from fedfloor.plan.nodes import CLOUD, Broadcast, Node, Parallel, Probe, Repeat, Select, Sequence, Site, Train, edge
from fedfloor.plan.shapes import (
    CHIP_H,
    CHIP_W,
    Block,
    Point,
    between,
    box,
    chip,
    moved,
    number,
    polyline,
    shortened,
    station,
    swing,
    wide,
    write,
)  # fmt: skip
from fedfloor.plan.walk import children, devices, with_children
from fedfloor.plan.words import heading, is_chain, mix_words, radio_words, times_words, work_words

RELAY = "passed on"  # the rule of a Parallel that the picture adds where an edge only relays
GAP = 20.0
NAMED = 40  # devices that the title of a box of dots names
GAP_X, STEP_Y = 28.0, 54.0  # between the devices of a chain
RING_MOST = 16  # more devices than this are drawn as a winding line that is closed


@dataclass(frozen=True)
class Pen:
    """What all pieces of one picture share.

    Args:
        limit: how many children of one node are drawn before the rest is only counted.
        tags: the letter for each work, by its words, where a plan has more than one.
        names: those of sites.
        chip: the width of a device, px.
    """

    limit: int
    tags: Mapping[str, str] = field(default_factory=dict)
    names: Names = NUMBERED
    chip: float = CHIP_W

    def station(self, site: Site, note: str, relay: bool = False) -> Block:
        """Draw the cloud or an edge; see :func:`fedfloor.plan.shapes.station`."""
        return station(site, note, relay, self.names.site(site.kind, site.index))


def draw(node: Node, pen: Pen, room: float, here: Site) -> Block:
    """Draw a node.

    Args:
        node: what is drawn.
        pen: what all pieces share.
        room: the width in pixels that the piece should not exceed by much.
        here: where the model is when it gets here.
    """
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
    """Return where the model is after a node, given where it was."""
    match node:
        case Train():
            return node.site
        case Parallel() | Select():
            return node.at
    for child in children(node):
        here = ends_at(child, here)
    return here


def starts_at(node: Node) -> Site | None:
    """Return the site that a node's own picture shows on top, if it shows one."""
    match node:
        case Train():
            return None if node.site.kind == "device" else node.site
        case Parallel() | Select() | Probe():
            return node.at
    below = children(node)
    return starts_at(below[0]) if below else None


def with_relays(node: Node, factory_of: Callable[[int], int]) -> Node:
    """Put the edge that each branch passes through between the cloud and the branches of one factory."""
    if not isinstance(node, Parallel):
        return with_children(node, [with_relays(child, factory_of) for child in children(node)])
    if node.at != CLOUD or any(starts_at(child) for child in node.children):
        return node
    factories = [{factory_of(k) for k in devices(child)} for child in node.children]
    if not node.children or any(len(found) != 1 for found in factories):
        return node
    groups: dict[int, list[Node]] = {}
    for child, found in zip(node.children, factories, strict=True):
        groups.setdefault(next(iter(found)), []).append(child)
    relays = (Parallel(tuple(group), edge(m), RELAY) for m, group in sorted(groups.items()))
    return replace(node, children=tuple(relays))


def under(top: Block, blocks: list[Block], room: float) -> Block:
    """Draw a site with blocks below it: the model goes out to each and comes back from each."""
    rows = _rows(blocks, room)
    return _swings(top, rows[0]) if len(rows) == 1 else _lanes(top, rows)


def _train(node: Train, pen: Pen) -> Block:
    if node.site.kind == "device":
        return _visit(node, pen)
    tag = pen.tags.get(work_words(node.work), "")
    return pen.station(node.site, f"trains here ({tag})" if tag else "trains here")


def _parallel(node: Parallel, pen: Pen, room: float) -> Block:
    relay = node.mix == RELAY
    top = pen.station(node.at, "" if relay else mix_words(node), relay)
    shown = node.children[: pen.limit]
    share = min(room, max(190.0, room / max(1, len(shown)) - GAP))
    blocks = [draw(child, pen, share, node.at) for child in shown]
    if len(shown) < len(node.children):
        blocks.append(_more(len(node.children) - len(shown)))
    return under(top, blocks, room)


def _more(hidden: int) -> Block:
    words = f"… and {hidden} more"
    width = wide(words) + 12
    return Block(width, 26, (width / 2 - 7, 0), (width / 2 + 7, 0), write(width / 2, 17, words, "soft"))


def _repeat(node: Repeat, pen: Pen, room: float, here: Site) -> Block:
    if isinstance(node.child, Sequence) and is_chain(node.child) and node.times > 1:
        return _chain(node.child, pen, room, node.times, "ticks" if node.tick else "laps")
    return _framed(draw(node.child, pen, max(room - 28, 184.0), here), times_words(node))


def _framed(inner: Block, words: str) -> Block:
    width = max(inner.width + 28, wide(words, 6.0) + 24)
    left, top = (width - inner.width) / 2, 12.0
    height = inner.height + top + 30
    body = box(0.6, 0.6, width - 1.2, height - 1.2, "frame", 12) + moved(inner, left, top)
    body += write(width / 2, height - 11, words, "soft")
    into, out = (inner.into[0] + left, inner.into[1] + top), (inner.out[0] + left, inner.out[1] + top)
    return Block(width, height, into, out, body)


def _steps(steps: tuple[Node, ...], pen: Pen, room: float, here: Site) -> Block:
    """Draw steps that are not all visits side by side, joined at the top."""
    blocks, x, top = [], 0.0, 30.0
    shown = steps[: pen.limit]
    share = max(300.0, room / max(1, len(shown)) - 2 * GAP)
    for child in shown:
        blocks.append(draw(child, pen, share, here))
        here = ends_at(child, here)
    if len(shown) < len(steps):
        blocks.append(_more(len(steps) - len(shown)))
    if not blocks:
        return Block(60, 26, (23, 0), (37, 0), write(30, 17, "nothing", "soft"))
    body, starts = "", []
    for block in blocks:
        starts.append(x)
        body += moved(block, x, top)
        x += block.width + 2 * GAP
    for (a, x0), (b, x1) in pairwise(zip(blocks, starts, strict=True)):
        leave, arrive = x0 + a.out[0], x1 + b.into[0]
        track = ((leave, top + a.out[1]), (leave, 12), (arrive, 12), (arrive, top + b.into[1]))
        body += polyline(track, "hand") + write((leave + arrive) / 2, 8, "then", "soft")
    first, last = blocks[0], blocks[-1]
    out = (starts[-1] + last.out[0], top + last.out[1])
    height = top + max(block.height for block in blocks)
    return Block(x - 2 * GAP, height, (first.into[0], top + first.into[1]), out, body)


def _crowd(pen: Pen, top: Block, lines: list[str], devices: tuple[int, ...], edge: str, answer: str) -> Block:
    """Draw a site and a box of devices as dots: one arrow there and, where something comes back, one back."""
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
    panel = Block(width, height, (width / 2 - 8, 0), (width / 2 + 8, 0), body)
    return _swings(top, [panel], "out" if answer == "back" else "out dotted", answer)


def _rows(blocks: list[Block], room: float) -> list[list[Block]]:
    total = sum(block.width + _gap(block) for block in blocks)
    most = max(1, math.ceil(total / max(room, 1.0)))
    short, longer = divmod(len(blocks), most)
    sizes = [short + 1] * longer + [short] * (most - longer)
    ends = list(accumulate(size for size in sizes if size))
    return [blocks[a:b] for a, b in zip([0, *ends], ends, strict=False)] or [[]]


def _gap(block: Block) -> float:
    return 8.0 if block.width < 50 else GAP


def _row_width(row: list[Block]) -> float:
    return sum(block.width + _gap(block) for block in row) - (_gap(row[-1]) if row else 0)


def _swings(top: Block, row: list[Block], out: str = "out", back: str = "back") -> Block:
    """Draw one row below a site, joined to it by curves."""
    width = max(top.width, _row_width(row))
    left = (width - top.width) / 2
    y = top.height + 34 + min(50.0, _row_width(row) / 14)
    x = (width - _row_width(row)) / 2
    pitch = min(14.0, (top.width - 40) / max(1, len(row)))
    body = moved(top, left, 0)
    for i, block in enumerate(row):
        foot = width / 2 + (i - (len(row) - 1) / 2) * pitch
        slant = min(4.0, pitch / 3) if len(row) > 1 else 7.5
        body += swing((foot - slant, top.height + 1), (x + block.into[0], y + block.into[1] - 1), out)
        if back:
            body += swing((x + block.out[0], y + block.out[1] - 1), (foot + slant, top.height + 1), back)
        x += block.width + _gap(block)
    x = (width - _row_width(row)) / 2
    for block in row:
        body += moved(block, x, y)
        x += block.width + _gap(block)
    height = y + max((block.height for block in row), default=0)
    into, exit_ = (left + top.into[0], top.into[1]), (left + top.out[0], top.out[1])
    return Block(width, height, into, exit_, body)


def _lanes(top: Block, rows: list[list[Block]]) -> Block:
    """Draw several rows below a site: a lane above each row, out by the left margin and back by the right one."""
    inner = max(top.width, *(_row_width(row) for row in rows))
    margin, y = 20.0, top.height + 44
    width = inner + 2 * margin
    centre = width / 2
    body, lanes = "", []
    for row in rows:
        x = (width - _row_width(row)) / 2
        ins, outs = [], []
        for block in row:
            ins.append((x + block.into[0], y + block.into[1]))
            outs.append((x + block.out[0], y + block.out[1]))
            body += moved(block, x, y)
            x += block.width + _gap(block)
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
    left = (width - top.width) / 2
    into, out = (left + top.into[0], top.into[1]), (left + top.out[0], top.out[1])
    return Block(width, y - 46, into, out, moved(top, left, 0) + body)


# -- chains and rings -------------------------------------------------------------------------------------------------


def _visit(node: Train, pen: Pen) -> Block:
    """Draw one device."""
    body = _chip(node, (pen.chip / 2, CHIP_H / 2), pen)
    height = CHIP_H
    if node.radio:
        height += 14
        body += write(pen.chip / 2, CHIP_H + 11, f"ch {node.radio.channel}", "soft")
    return Block(pen.chip, height, (pen.chip / 2 - 7, 0), (pen.chip / 2 + 7, 0), body)


def _chip(node: Train, centre: Point, pen: Pen) -> str:
    radio = f", {radio_words(node.radio)}" if node.radio else ""
    title = f"{pen.names.site('device', node.site.index)}: {work_words(node.work)}{radio}"
    name = shortened(pen.names.short("device", node.site.index))
    return chip(centre, name, title, pen.tags.get(work_words(node.work), ""), pen.chip)


def _chain(node: Sequence, pen: Pen, room: float, times: int = 1, unit: str = "") -> Block:
    """Draw a chain of visits; with ``times`` above 1 a loop that is walked so many times."""
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


def _ring(stops: list[Train | int], pen: Pen, times: int, unit: str) -> Block:
    """Draw a closed loop: down on the left, up on the right, so that it starts and ends at the top."""
    left, right = (len(stops) + 1) // 2, len(stops) // 2
    chip_w = pen.chip
    across = max(50.0 + chip_w, wide(unit) + chip_w + 26, wide(f"×{times}", 8) + chip_w + 26)
    high, low = CHIP_H / 2, CHIP_H / 2 + STEP_Y * (left - 1)
    far = chip_w / 2 + across
    places = [(chip_w / 2, high + STEP_Y * i) for i in range(left)]
    # the last device stands at the top, next to the first, however few there are on the right
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
    return Block(
        width, height, (chip_w / 2 - 7, 0), (places[-1][0] + 7, places[-1][1] - CHIP_H / 2), arrows + chips + words
    )


def _winding(stops: list[Train | int], pen: Pen, room: float, loop: str) -> Block:
    """Draw a line that winds down; it leaves by the right margin and, if it is a loop, closes by the left one."""
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
        track = (
            (x - 6, floor),
            (x - 6, floor + 16),
            (6, floor + 16),
            (6, first[1]),
            (first[0] - pen.chip / 2 - 3, first[1]),
        )
        body += polyline(track, "hand") + write(width / 2, floor + 32, loop, "soft")
    return Block(width, height, (places[0][0] - 7, 0), (width - 2, 0), body)
