"""Chains and rings of devices as pictures: the model enters at the first device and leaves from the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from fedfloor.plan.nodes import Sequence, Site, Train
from fedfloor.plan.shapes import CHIP_H, CHIP_W, Block, Point, between, chip, polyline, station, wide, write
from fedfloor.plan.words import radio_words, site_words, work_words

STEP_X, STEP_Y = 66.0, 54.0
RING_MOST = 16  # more devices than this are drawn as a winding line that is closed


@dataclass(frozen=True)
class Pen:
    """What all pieces of one picture share.

    Args:
        limit: how many children of one node are drawn before the rest is only counted.
        tags: the letter for each work, by its words, where a plan has more than one.
        factories: their names, by number; empty where they have none.
    """

    limit: int
    tags: Mapping[str, str] = field(default_factory=dict)
    factories: tuple[str, ...] = ()

    def station(self, site: Site, note: str, relay: bool = False) -> Block:
        """Draw the cloud or an edge; see :func:`fedfloor.plan.shapes.station`."""
        named = site.kind == "edge" and site.index < len(self.factories)
        return station(site, note, relay, self.factories[site.index] if named else "")


def visit(node: Train, pen: Pen) -> Block:
    """Draw one device."""
    body = _chip(node, (CHIP_W / 2, CHIP_H / 2), pen)
    height = CHIP_H
    if node.radio:
        height += 14
        body += write(CHIP_W / 2, CHIP_H + 11, f"ch {node.radio.channel}", "soft")
    return Block(CHIP_W, height, (CHIP_W / 2 - 7, 0), (CHIP_W / 2 + 7, 0), body)


def _chip(node: Train, centre: Point, pen: Pen) -> str:
    radio = f", {radio_words(node.radio)}" if node.radio else ""
    title = f"{site_words(node.site)}: {work_words(node.work)}{radio}"
    return chip(centre, str(node.site.index), title, pen.tags.get(work_words(node.work), ""))


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
        return chip(centre, f"+{stop}", f"{stop} more devices")
    return _chip(stop, centre, pen)


def _ring(stops: list[Train | int], pen: Pen, times: int, unit: str) -> Block:
    """Draw a closed loop: down on the left, up on the right, so that it starts and ends at the top."""
    left, right = (len(stops) + 1) // 2, len(stops) // 2
    across = max(88.0, wide(unit) + CHIP_W + 26, wide(f"×{times}", 8) + CHIP_W + 26)
    high, low = CHIP_H / 2, CHIP_H / 2 + STEP_Y * (left - 1)
    far = CHIP_W / 2 + across
    places = [(CHIP_W / 2, high + STEP_Y * i) for i in range(left)]
    # the last device stands at the top, next to the first, however few there are on the right
    places += [(far, high + (low - high) * i / max(1, right - 1)) for i in reversed(range(right))]
    shift = 5.0 if len(stops) == 2 else 0.0
    arrows = "".join(between(places[i - 1], places[i], shift=-shift) for i in range(len(places)))
    chips = "".join(_stop(stop, place, pen) for stop, place in zip(stops, places, strict=True))
    if len(stops) == 2:
        words = write((CHIP_W + across) / 2, low + high + 14, f"×{times} {unit}", "soft")
    elif len(stops) == 3:
        words = write(far, low + 4, f"×{times} {unit}", "soft")
    else:
        words = write((CHIP_W + across) / 2, (low + high) / 2 - 2, f"×{times}", "name")
        words += write((CHIP_W + across) / 2, (low + high) / 2 + 12, unit, "soft")
    height = low + CHIP_H / 2 + (20 if left == 1 else 0)
    width = across + CHIP_W
    return Block(
        width, height, (CHIP_W / 2 - 7, 0), (places[-1][0] + 7, places[-1][1] - CHIP_H / 2), arrows + chips + words
    )


def _winding(stops: list[Train | int], pen: Pen, room: float, loop: str) -> Block:
    """Draw a line that winds down; it leaves by the right margin and, if it is a loop, closes by the left one."""
    narrow = len(stops) <= 12 and room < len(stops) * STEP_X
    most = 1 if narrow else max(2, min(12, int(room // STEP_X)))
    rows = -(-len(stops) // most)
    columns = -(-len(stops) // rows)
    margin = 22.0 if loop else 0.0
    places = []
    for i in range(len(stops)):
        row, column = divmod(i, columns)
        slot = column if row % 2 == 0 else columns - 1 - column
        places.append((margin + CHIP_W / 2 + slot * STEP_X, CHIP_H / 2 + row * STEP_Y))
    width = margin + CHIP_W + (columns - 1) * STEP_X + 16
    body = "".join(between(a, b) for a, b in pairwise(places))
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
            (first[0] - CHIP_W / 2 - 3, first[1]),
        )
        body += polyline(track, "hand") + write(width / 2, floor + 32, loop, "soft")
    return Block(width, height, (places[0][0] - 7, 0), (width - 2, 0), body)
