"""The same plan with parts of it exchanged: what is done in visits, and how models meet at the cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Parallel, Probe, Repeat, Scalar, Select, Sequence, Train, Work


def with_work(plan: Node, change: Callable[[Work], Work]) -> Node:
    """Return the plan with every visit's work changed.

    >>> from fedfloor.plan.nodes import device
    >>> with_work(Train(device(1), Work(epochs=1)), lambda work: replace(work, rate=0.5)).work.rate
    0.5
    """

    def change_one(node: Node, below: list[Node]) -> Node:
        if isinstance(node, (Train, Select)):
            return replace(node, work=change(node.work))
        return _with_children(node, below)

    return walk.fold(plan, change_one)


def with_mix(
    plan: Node, mix: str, settings: Mapping[str, Scalar], asks: str | None = None,
    asked: Callable[[str, Mapping[str, Scalar]], str | None] = lambda _rule, _settings: None, kind: str = "cloud",
) -> tuple[Node, list[int]]:  # fmt: skip
    """Return the plan with another rule where models meet at the cloud, or at edges, and how many do in each place.

    Args:
        plan: any plan; other meetings stay as they are.
        mix: the rule's name.
        settings: its numbers.
        asks: a question to be put to the devices before they set out, if the rule mixes by it.
        asked: says what a rule of the plan mixes by; what is asked for it right before is then asked no more.
        kind: where the models meet, ``cloud`` or ``edge``.
    """
    meeting: list[int] = []

    def idle(one: Node, after: Node | None) -> bool:
        if not isinstance(one, Probe) or not isinstance(after, (Parallel, Select)) or after.at.kind != kind:
            return False
        return one.what == asked(after.mix, after.settings)

    def change_one(node: Node, below: list[Node]) -> Node:
        if isinstance(node, Sequence):
            pairs = zip(below, node.children, (*node.children[1:], None), strict=True)
            return replace(node, children=tuple(new for new, one, after in pairs if not idle(one, after)))
        node = _with_children(node, below)
        if not isinstance(node, (Parallel, Select)) or node.at.kind != kind:
            return node
        meeting.append(walk.widest(node))
        changed = replace(node, mix=mix, settings=dict(settings))
        return changed if asks is None else Sequence((Probe(tuple(sorted(walk.devices(node))), asks), changed))

    return walk.fold(plan, change_one), meeting


def _with_children(node: Node, below: list[Node]) -> Node:
    if isinstance(node, (Sequence, Parallel)):
        return replace(node, children=tuple(below))
    return replace(node, child=below[0]) if isinstance(node, Repeat) else node
