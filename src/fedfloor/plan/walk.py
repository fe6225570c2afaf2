"""Properties of a plan, and plans with exchanged parts.

Most functions are one expression over :func:`every`. They read the fields of a node: ``child`` or ``children`` below
it, ``times`` of its repetition, ``work`` of its visits, ``at``, ``mix`` and ``settings`` of its aggregation, and its
``devices`` or ``candidates``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar, cast

from fedfloor.base.errors import SettingError
from fedfloor.plan import nodes
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Repeat, Scalar, Select, Train, Work

T = TypeVar("T")
MOST_TURNS = 10**7  # visits and other turns of a round, of which lists are made


def children(node: Node) -> tuple[Node, ...]:
    """Return a node's direct children in plan order."""
    return (node.child,) if hasattr(node, "child") else getattr(node, "children", ())


def every(node: Node, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Yield a node and all nodes below it in plan order, each with the number of its repetitions.

    >>> from fedfloor.plan.nodes import device
    >>> [times for _, times in every(Repeat(3, Train(device(0), Work(epochs=1))))]
    [1, 3]
    """
    yield node, times
    for child in children(node):
        yield from every(child, times * getattr(node, "times", 1))


def fold(node: Node, combine: Callable[[Node, list[T]], T]) -> T:
    """Return the fold of a plan from its leaves: ``combine(node, results of its children)``.

    >>> from fedfloor.plan.nodes import Sequence, device
    >>> chain = Sequence((Train(device(0), Work(epochs=1)), Train(device(1), Work(epochs=1))))
    >>> fold(chain, lambda node, below: 1 + sum(below))
    3
    """
    return combine(node, [fold(child, combine) for child in children(node)])


def span(node: Node) -> int:
    """Return the number of ticks by which a node advances the park's clock.

    A ``Train`` or ``Select`` spans 0 ticks, a ``Sequence`` the sum over its children, a ``Parallel`` the longest child,
    a ``Repeat`` times · max(1, child), or times · child with ``tick = False``.
    """
    if isinstance(node, Repeat):
        return node.times * (max(1, span(node.child)) if node.tick else span(node.child))
    below = [span(child) for child in children(node)]
    return max(below, default=0) if isinstance(node, Parallel) else sum(below)


def visited(node: Node) -> Iterator[tuple[Train, int]]:
    """Yield every visit in plan order with the number of its repetitions, without visits of a ``Select``."""
    return ((at, times) for at, times in every(node) if isinstance(at, Train))


def number(visit: Train) -> int:
    """Return the device of a visit; −1 is the cloud."""
    return visit.site.index if visit.site.kind == "device" else -1


def visits(node: Node, *, cloud: bool = False) -> Counter[int]:
    """Return the number of training visits of each device, without the unknown visits of a ``Select``.

    With ``cloud``, visits to the cloud count, too, as those of device −1.
    """
    total: Counter[int] = Counter()
    for visit, times in visited(node):
        if cloud or visit.site.kind == "device":
            total[number(visit)] += times
    return total


def count_visits(node: Node) -> int:
    """Return the number of visits in a plan, including those of a ``Select``.

    >>> from fedfloor.plan.nodes import device
    >>> count_visits(Repeat(10**12, Train(device(0), Work(epochs=1))))
    1000000000000
    """
    return sum(times * getattr(at, "how_many", 1) for at, times in every(node) if hasattr(at, "work"))


def batches(node: Node, size: Callable[[int], int]) -> int:
    """Return a node's number of mini-batches, given the samples of devices (−1: the cloud); for ``Select`` a mean."""
    total = 0
    for at, times in every(node):
        if isinstance(at, Train):
            total += times * at.work.batches(size(number(at)))
        elif isinstance(at, Select):
            mean = sum(at.work.batches(size(k)) for k in at.candidates) / len(at.candidates)
            total += times * round(at.how_many * mean)
    return total


def works(node: Node, *, cloud: bool = True) -> list[Work]:
    """Return the work of all visits, with or without visits to the cloud."""
    working = (at for at, _ in every(node) if hasattr(at, "work"))
    return [at.work for at in working if cloud or not isinstance(at, Train) or at.site.kind == "device"]


def batch_sizes(node: Node) -> set[int]:
    """Return the mini-batch sizes with which devices train."""
    return {work.batch_size for work in works(node, cloud=False)}


def rates(node: Node) -> set[float]:
    """Return the learning rates with which devices train."""
    return {work.rate for work in works(node) if work.counts}


def scopes(node: Node) -> set[str]:
    """Return the parts of the model that travel to visits and back; SettingError: an aggregation mixes several."""
    travelling = {work.travels for work in works(node)}
    for at in (at for at, _ in every(node) if isinstance(at, Parallel)) if len(travelling) > 1 else ():
        own = {work.travels for work in works(at)}
        if len(own) > 1:
            raise SettingError(
                f"the plan has a Parallel at {at.at} whose visits train different parts of the model (work.trains "
                f"{', '.join(map(repr, sorted(own)))}): their models cannot be aggregated. Let all its visits "
                "train one part, or put a Parallel for each part into a Sequence.",
                key="plan",
            )
    return travelling


def named(node: Node) -> tuple[int, ...]:
    """Return the devices of a node itself, without those of the nodes below it."""
    if isinstance(node, Train):
        return (node.site.index,) if node.site.kind == "device" else ()
    return cast("tuple[int, ...]", getattr(node, "devices", getattr(node, "candidates", ())))


def devices(node: Node) -> set[int]:
    """Return every device in a plan, trained or not."""
    return {k for at, _ in every(node) for k in named(at)}


def first_device(node: Node) -> int:
    """Return the first device to which a plan sends a visit or question; SettingError: centralised training."""
    for at, _ in every(node):
        if named(at):
            return named(at)[0]
        if isinstance(at, Train):
            break
    raise SettingError("the plan trains at the cloud, which has no data of its own on real machines.")


def check(node: Node, park_devices: int) -> None:
    """Check a plan's devices, its length, and that it does not train at an edge, which has no data.

    Raises:
        SettingError: it has devices that are not in the park, visits to edges, or more than :data:`MOST_TURNS` turns.
    """
    turns = 0
    for at, times in every(node):
        turns += times
        if isinstance(at, Train) and at.site.kind not in ("device", "cloud"):
            raise SettingError(
                f"the plan trains at {at.site}: a visit must be to a device or to the cloud.", key="plan"
            )
    if turns > MOST_TURNS:
        raise SettingError(
            f"a round of the plan has too many visits and other turns; at most {MOST_TURNS:,} are allowed.",
            key="plan",
        )
    strange = [k for k in devices(node) if not 0 <= k < park_devices]
    if strange:
        raise SettingError(
            f"the plan names device {min(strange)}: the park has devices 0 to {park_devices - 1}.", key="plan"
        )


def meets(node: Node) -> bool:
    """Return whether a node is or contains a ``Parallel`` or a ``Select``."""
    return any(hasattr(at, "mix") for at, _ in every(node))


def mixes(node: Node) -> list[Parallel | Select]:
    """Return the nodes that aggregate models."""
    return [at for at, _ in every(node) if getattr(at, "mix", nodes.KEEP) != nodes.KEEP]


def branches(node: Node) -> tuple[Node, ...]:
    """Return the branches of every outermost ``Parallel`` in plan order."""
    if isinstance(node, Parallel):
        return node.children
    return tuple(branch for child in children(node) for branch in branches(child))


def widest(node: Node) -> int:
    """Return the greatest number of simultaneous branches in any outermost ``Parallel`` or ``Select``."""
    if getattr(node, "mix", nodes.KEEP) != nodes.KEEP:
        return getattr(node, "how_many", len(children(node)))
    return max((widest(child) for child in children(node)), default=1)


def probes(node: Node) -> list[Probe]:
    """Return every question of a plan, without the census questions of ``Select`` nodes."""
    return [at for at, _ in every(node) if isinstance(at, Probe)]


def handed(node: Node) -> set[str]:
    """Return the parts of the model that ``Broadcast`` nodes send to devices."""
    return {at.scope for at, _ in every(node) if isinstance(at, Broadcast)}


def names(node: Node) -> list[tuple[str, str]]:
    """Return (field or setting, name) of the parts that a node itself names, without those of its children.

    >>> from fedfloor.plan.nodes import device
    >>> names(Train(device(0), Work("prox", epochs=1, settings={"mu": 0.1})))
    [('objective', 'prox')]
    """
    work = getattr(node, "work", None)
    mix = getattr(node, "mix", None)
    parts = [("mix", mix)] if mix is not None else []
    parts += [("objective", work.objective)] if work is not None else []
    settings = [getattr(node, "settings", {}), work.settings if work is not None else {}]
    return parts + [(key, value) for table in settings for key, value in table.items() if isinstance(value, str)]


def edge_of(node: Node) -> nodes.Site | None:
    """Return the edge at which a packet enters and leaves a node; None for other sites, or several edges."""
    if isinstance(node, (nodes.Parallel, nodes.Select)):
        return node.at if node.at.kind == "edge" else None
    places = {edge_of(child) for child in children(node)}
    return places.pop() if len(places) == 1 else None


def codings(node: Node) -> set[tuple[str, str]]:
    """Return (part, text of the codecs) for every part of the model that travels with codecs."""
    ways = {(work.travels, text) for work in works(node) for text in coded(work)}
    meetings = [at for at, _ in every(node) if isinstance(at, nodes.Parallel)]
    return ways | {("all", text) for at in meetings for text in coded(at)}


def coded(at: Work | Parallel) -> list[str]:
    """Return the texts of the codecs, up and down, of a visit's work or of a node's branches."""
    return [text for text in (at.travel, at.travel_down) if text]


def with_children(node: Node, below: list[Node]) -> Node:
    """Return a node with its children replaced."""
    if hasattr(node, "child"):
        return replace(cast(Repeat, node), child=below[0])
    return replace(cast(nodes.Sequence, node), children=tuple(below)) if hasattr(node, "children") else node


def last_meeting(plan: Node) -> Parallel | None:
    """Return a plan's last node, or the plan itself, if it is single visits to devices that meet at the cloud."""
    last = plan if isinstance(plan, Parallel) or not children(plan) else children(plan)[-1]
    if not isinstance(last, Parallel) or last.at.kind != "cloud" or not last.children:
        return None
    single = all(isinstance(child, Train) and child.site.kind == "device" for child in last.children)
    return last if single else None


def changed(plan: Node, change: Callable[[Node], Node]) -> Node:
    """Return the plan with every node changed, from the leaves upwards."""
    return fold(plan, lambda node, below: change(with_children(node, below)))


def with_work(plan: Node, change: Callable[[Work], Work]) -> Node:
    """Return the plan with every visit's work changed.

    >>> from fedfloor.plan.nodes import device
    >>> with_work(Train(device(1), Work(epochs=1)), lambda work: replace(work, rate=0.5)).work.rate
    0.5
    """
    return changed(plan, lambda at: replace(at, work=change(at.work)) if isinstance(at, (Train, Select)) else at)


def with_mix(
    plan: Node, mix: str, settings: Mapping[str, Scalar], asks: str | None = None,
    asked: Callable[[str, Mapping[str, Scalar]], str | None] = lambda _rule, _settings: None, kind: str = "cloud",
) -> tuple[Node, list[int]]:  # fmt: skip
    """Return the plan with another mixing rule at the cloud or at edges, and each changed node's number of models.

    Args:
        plan: any plan; other aggregations do not change.
        asks: the question whose answers the new rule reads; it is put immediately before.
        asked: (rule, settings) → the question whose answers a rule of the plan reads; it is then omitted.
        kind: the site of the aggregation, ``cloud`` or ``edge``.
    """
    counts: list[int] = []

    def mixes_at(node: Node) -> TypeGuard[Parallel | Select]:
        return isinstance(node, (Parallel, Select)) and node.at.kind == kind and node.mix != nodes.KEEP

    def idle(child: Node, after: Node | None) -> bool:
        if not isinstance(child, Probe) or after is None or not mixes_at(after):
            return False
        return child.what == asked(after.mix, after.settings)

    def change_one(node: Node, below: list[Node]) -> Node:
        if isinstance(node, nodes.Sequence):
            pairs = zip(below, node.children, (*node.children[1:], None), strict=True)
            return replace(node, children=tuple(new for new, child, after in pairs if not idle(child, after)))
        node = with_children(node, below)
        if not mixes_at(node):
            return node
        counts.append(widest(node))
        changed = replace(node, mix=mix, settings=dict(settings))
        return changed if asks is None else nodes.Sequence((Probe(tuple(sorted(devices(node))), asks), changed))

    return fold(plan, change_one), counts
