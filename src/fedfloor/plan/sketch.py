"""Every kind of node as a picture: a block with the place where the model comes in and the place where it goes out."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from xml.sax.saxutils import escape

from fedfloor.names import count
from fedfloor.plan import chains
from fedfloor.plan.chains import Pen
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Repeat, Select, Sequence, Site, Train
from fedfloor.plan.shapes import Block, box, moved, number, polyline, swing, wide, write
from fedfloor.plan.words import is_chain, mix_words, times_words, work_words

RELAY = "passed on"  # the rule of a Parallel that the picture adds where an edge only relays
GAP = 20.0
NAMED = 40  # devices that the title of a box of dots names


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
            return chains.chain(node, pen, room) if is_chain(node) else _steps(node, pen, room, here)
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


def ends_at(node: Node, here: Site) -> Site:
    """Return where the model is after a node, given where it was."""
    match node:
        case Train():
            return node.site
        case Parallel() | Select():
            return node.at
        case Repeat():
            return ends_at(node.child, here)
        case Sequence():
            for child in node.children:
                here = ends_at(child, here)
    return here


def starts_at(node: Node) -> Site | None:
    """Return the site that a node's own picture shows on top, if it shows one."""
    match node:
        case Train():
            return None if node.site.kind == "device" else node.site
        case Parallel() | Select() | Probe():
            return node.at
        case Repeat():
            return starts_at(node.child)
        case Sequence():
            return starts_at(node.children[0]) if node.children else None
    return None


def under(top: Block, blocks: list[Block], room: float) -> Block:
    """Draw a site with blocks below it: the model goes out to each and comes back from each."""
    rows = _rows(blocks, room)
    return _swings(top, rows[0]) if len(rows) == 1 else _lanes(top, rows)


def _train(node: Train, pen: Pen) -> Block:
    if node.site.kind == "device":
        return chains.visit(node, pen)
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
        return chains.chain(node.child, pen, room, node.times, "ticks" if node.tick else "laps")
    return _framed(draw(node.child, pen, max(room - 28, 184.0), here), times_words(node))


def _framed(inner: Block, words: str) -> Block:
    width = max(inner.width + 28, wide(words, 6.0) + 24)
    left, top = (width - inner.width) / 2, 12.0
    height = inner.height + top + 30
    body = box(0.6, 0.6, width - 1.2, height - 1.2, "frame", 12) + moved(inner, left, top)
    body += write(width / 2, height - 11, words, "soft")
    into, out = (inner.into[0] + left, inner.into[1] + top), (inner.out[0] + left, inner.out[1] + top)
    return Block(width, height, into, out, body)


def _steps(node: Sequence, pen: Pen, room: float, here: Site) -> Block:
    """Draw steps that are not all visits side by side, joined at the top."""
    blocks, x, top = [], 0.0, 30.0
    shown = node.children[: pen.limit]
    share = max(300.0, room / max(1, len(shown)) - 2 * GAP)
    for child in shown:
        blocks.append(draw(child, pen, share, here))
        here = ends_at(child, here)
    if len(shown) < len(node.children):
        blocks.append(_more(len(node.children) - len(shown)))
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
