"""The order of a plan's visits and choices, by its nodes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fedfloor.base.errors import SettingError
from fedfloor.plan import nodes, walk
from fedfloor.plan.nodes import Node, Parallel, Repeat, Select, Train


def turns(node: Node) -> list[tuple[Node, int]]:
    """Return the turns of a ``Sequence`` or a ``Repeat``, each with its number of ticks.

    The branches of a ``Parallel`` with mix = "keep" are turns that start at the same tick.

    >>> from fedfloor.plan.nodes import Work, device
    >>> [ticks for _, ticks in turns(Repeat(3, Train(device(0), Work(epochs=1))))]
    [1, 1, 1]
    """
    if isinstance(node, Repeat):
        # a turn that counts as a tick takes one even if nothing trains in it
        ticks = walk.span(node.child)
        return [(node.child, max(1, ticks) if node.tick else ticks)] * node.times
    return [(child, 0 if isinstance(node, Parallel) else walk.span(child)) for child in walk.children(node)]


def in_order(node: Node) -> list[Train]:
    """Return every training visit in plan order, as often as it takes place; SettingError: there is a ``Select``."""
    if isinstance(node, Select):
        raise unresolved()
    if isinstance(node, Train):
        return [node]
    below = [visit for child in walk.children(node) for visit in in_order(child)]
    return below * node.times if isinstance(node, Repeat) else below


def concurrent(node: Parallel) -> list[list[tuple[Train, ...]]]:
    """Return, for each visit of each branch in order, the simultaneous visits of the other branches.

    >>> from fedfloor.plan.nodes import Work, device
    >>> one, two, three = (Train(device(k), Work(epochs=1)) for k in range(3))
    >>> concurrent(Parallel((nodes.Sequence((one, two)), three))) == [[(three,), ()], [(one,)]]
    True
    """
    lines = [in_order(child) for child in node.children]
    return [
        [tuple(o[i] for other, o in enumerate(lines) if other != branch and i < len(o)) for i in range(len(line))]
        for branch, line in enumerate(lines)
    ]


def selects(node: Node) -> Iterator[Select]:
    """Yield every ``Select`` in the order of the walk, as often as it takes place."""
    if isinstance(node, Select):
        yield node
    for child in walk.children(node):
        for _ in range(node.times if isinstance(node, Repeat) else 1):
            yield from selects(child)


def count_selects(node: Node) -> int:
    """Return how often a node selects devices: the number of choices in its walk."""
    return sum(times for at, times in walk.every(node) if isinstance(at, Select))


def unresolved() -> SettingError:
    """Return the error for a plan with a ``Select``, where visits must be known."""
    return SettingError("the plan has a Select: its visits are known only once it is resolved.", key="unresolved-plan")


def rebuilt(node: Node, resolved: list[Node]) -> Node:
    """Return a ``Sequence`` or ``Repeat`` with its turns resolved; the same object if nothing changed.

    A ``Repeat`` with different turns becomes a ``Sequence``.
    """
    before = walk.children(node)  # all turns of a Repeat have the same child
    if all(a is before[i % len(before)] for i, a in enumerate(resolved)):
        return node
    if not isinstance(node, Repeat):
        return walk.with_children(node, resolved)
    if all(turn == resolved[0] for turn in resolved):
        return replace(node, child=resolved[0])
    return nodes.Sequence(tuple(replace(node, times=1, child=turn) if node.tick else turn for turn in resolved))
