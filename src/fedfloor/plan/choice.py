"""What a ``Select`` becomes once it has chosen, and a whole plan once the choices are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from fedfloor.plan import nodes, walk
from fedfloor.plan.nodes import Node, Parallel, Repeat, Select

MEETING = tuple(one.name for one in fields(Parallel))[1:]  # all but the branches; a Select has the same


def visits(node: Select, chosen: Sequence[int]) -> Parallel:
    """Return the visits to those that a ``Select`` has chosen.

    >>> from fedfloor.plan.nodes import Work, edge
    >>> visits(Select("uniform", (3, 5, 7), 2, Work(steps=1), edge(0)), (3, 7)).children[1].site
    Site(kind='device', index=7)
    """
    return Parallel(tuple(node.visit[k] for k in chosen), *(getattr(node, name) for name in MEETING))


def made(node: Select, visited: Node) -> Node:
    """Return what a ``Select`` became: the visits, after the question for the census where that is counted."""
    return visited if node.asked is None else nodes.Sequence((node.asked, visited))


def resolved(node: Node, choices: Iterator[Sequence[int]]) -> Node:
    """Return a plan with every ``Select`` replaced by whom it chose; the very same node where there is none.

    Args:
        node: the plan.
        choices: whom each Select chose, in the order of the walk.
    """
    if isinstance(node, Select):
        return made(node, visits(node, next(choices)))
    if isinstance(node, Parallel):
        below = tuple(resolved(child, choices) for child in node.children)
        same = all(a is b for a, b in zip(below, node.children, strict=True))
        return node if same else replace(node, children=below)
    if isinstance(node, (Repeat, nodes.Sequence)):
        turns = (node.child,) * node.times if isinstance(node, Repeat) else node.children
        return walk.rebuilt(node, [resolved(child, choices) for child in turns]) if turns else node
    return node
