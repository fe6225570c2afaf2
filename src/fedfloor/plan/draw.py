"""One round as a picture: a tree for the terminal and an SVG that shows which way the model travels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from xml.sax.saxutils import escape, quoteattr

from fedfloor.names import NUMBERED, Names
from fedfloor.plan.nodes import CLOUD, Node
from fedfloor.plan.shapes import CHIP_W, STYLE, Block, moved, number, polyline, shortened, station, wide, write
from fedfloor.plan.sketch import Pen, draw, starts_at, under, with_relays
from fedfloor.plan.walk import children, devices, fold, is_visit
from fedfloor.plan.words import heading, shape, work_words

MOST_LEAVES = 100
ROOM = 1160.0


def tree(node: Node, limit: int = 4, names: Names = NUMBERED) -> str:
    """Draw a plan as a tree of lines; of more than ``limit`` neighbours that look alike only the first two are drawn.

    ``names`` are those of sites.

    >>> from fedfloor.plan.nodes import Parallel, Repeat, Sequence, Train, Work, device
    >>> work = Work(epochs=1, rate=0.01)
    >>> ring = Repeat(5, Sequence(tuple(Train(device(k), work) for k in range(8))), tick=False)
    >>> print(tree(Parallel((ring, Train(device(9), work)))))
    in parallel: 2 branches, meets at the cloud (mean by samples)
    ├─ 5 laps
    │  └─ one after another: 8
    │     ├─ device 0: 1 epoch, b 32, η 0.01
    │     ├─ device 1: 1 epoch, b 32, η 0.01
    │     └─ … 6 more like this (devices 2–7)
    └─ device 9: 1 epoch, b 32, η 0.01
    """
    return "\n".join([heading(node, names), *_below(node, "", limit, names)])


def _below(node: Node, indent: str, limit: int, names: Names) -> Iterator[str]:
    entries = list(_entries(children(node), limit, names))
    for i, entry in enumerate(entries):
        last = i == len(entries) - 1
        branch, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(entry, str):
            yield indent + branch + entry
        else:
            yield indent + branch + heading(entry, names)
            yield from _below(entry, indent + deeper, limit, names)


def _entries(siblings: tuple[Node, ...], limit: int, names: Names) -> Iterator[Node | str]:
    for _, run in groupby(siblings, key=shape):
        alike = list(run)
        if len(alike) <= limit:
            yield from alike
            continue
        yield from alike[:2]
        hidden = set().union(*(devices(one) for one in alike[2:]))
        who = f" (devices {names.many(hidden)})" if hidden else ""
        yield f"… {len(alike) - 2} more like this{who}"


def svg(node: Node, factory_of: Callable[[int], int] | None = None, names: Names = NUMBERED) -> str:
    """Draw one round: the cloud on top, edges below it, devices at the bottom, arrows for the model's way.

    Colours follow the reader's light or dark scheme; a page may set ``--plan-paper`` for the background.

    Args:
        node: the plan of a round.
        factory_of: the factory of a device; if given, edges that only relay are drawn too.
        names: those of sites.

    >>> from fedfloor.plan.nodes import Train, Work, device
    >>> svg(Train(device(3), Work(epochs=1))).startswith("<svg xmlns=")
    True
    """
    works = list(dict.fromkeys(_works(node)))
    tags = {words: _letter(i) for i, words in enumerate(works)} if len(works) > 1 else {}
    shown = node if factory_of is None else with_relays(node, factory_of)
    longest = max((wide(shortened(names.short("device", k))) for k in devices(node)), default=0.0)
    pen = Pen(_limit(shown), tags, names, max(CHIP_W, longest + (24 if tags else 14)))
    block = draw(shown, pen, ROOM, CLOUD)
    if starts_at(shown) != CLOUD:
        block = under(station(CLOUD, "", False, ""), [block], ROOM)
    return _sheet(block, f"One round as a plan: {heading(node, names)}", works, tags)


def _sheet(block: Block, title: str, works: list[str], tags: dict[str, str]) -> str:
    notes = [f"{tags[words]}: {words}" if tags else f"each visit: {words}" for words in works[:6]]
    if len(works) > 6:
        notes.append(f"… and {len(works) - 6} more settings")
    if 'class="box dashed"' in block.body:
        notes.append("a dashed edge only passes the model on")
    arrows = [
        words
        for words in (("out", "goes out"), ("hand", "is handed on"), ("back", "comes back"))
        if _has(block, words[0])
    ]
    width = max(block.width, 130.0 * len(arrows), *(wide(note, 6.0) for note in notes), 200.0) + 32
    y = 16 + block.height + 34
    legend, x = "", width / 2 - sum(50 + wide(words, 6.0) for _, words in arrows) / 2 + 6
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
        f"{moved(block, (width - block.width) / 2, 16)}{legend}</svg>"
    )


def _has(block: Block, kind: str) -> bool:
    return f'<path class="{kind}' in block.body


def _letter(i: int) -> str:
    return chr(ord("a") + i % 26)


def _works(node: Node) -> Iterator[str]:
    if hasattr(node, "work"):
        yield work_words(node.work)
    for child in children(node):
        yield from _works(child)


def _limit(node: Node) -> int:
    """Return how many children of a node to draw so that the picture has about a hundred devices at most."""

    def leaves(limit: int) -> int:
        return fold(node, lambda at, below: sum(below[:limit]) if children(at) else 1 if is_visit(at) else 4)

    sizes = (10**9, 24, 12, 8, 6, 4, 3)
    return next((limit for limit in sizes if leaves(limit) <= MOST_LEAVES), 2)
