"""Chains and rings of devices as pictures: the model enters at the first device and leaves from the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from fedfloor.names import NUMBERED, Names
from fedfloor.plan.nodes import Sequence, Site, Train
from fedfloor.plan.shapes import CHIP_H, CHIP_W, Block, Point, between, chip, polyline, shortened, station, wide, write
from fedfloor.plan.words import radio_words, work_words

GAP_X, STEP_Y = 28.0, 54.0
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


def visit(node: Train, pen: Pen) -> Block:
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


def chain(node: Sequence, pen: Pen, room: float, times: int = 1, unit: str = "") -> Block:
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
