"""Questions that are answered by walking a plan, without training anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TypeVar, cast

from fedfloor.errors import SettingError
from fedfloor.plan import nodes
from fedfloor.plan.nodes import Broadcast, Node, Parallel, Probe, Repeat, Select, Site, Train

T = TypeVar("T")


def children(node: Node) -> tuple[Node, ...]:
    """Return a node's direct children in plan order."""
    if isinstance(node, (nodes.Sequence, Parallel)):
        return node.children
    if isinstance(node, Repeat):
        return (node.child,)
    return ()


def names(node: Node) -> list[tuple[str, str]]:
    """Return the parts that a node names, each with the field or setting that names it; not those of its children.

    >>> from fedfloor.plan.nodes import Train, Work, device
    >>> names(Train(device(0), Work("prox", epochs=1, settings={"mu": 0.1})))
    [('objective', 'prox')]
    """
    found = [("mix", node.mix)] if isinstance(node, (Parallel, Select)) else []
    found += [("objective", node.work.objective)] if isinstance(node, (Train, Select)) else []
    settings = [getattr(node, "settings", {}), node.work.settings if isinstance(node, (Train, Select)) else {}]
    return found + [(key, one) for some in settings for key, one in some.items() if isinstance(one, str)]


def fold(node: Node, combine: Callable[[Node, list[T]], T]) -> T:
    """Fold a plan from its leaves up: ``combine(node, results of its children)``.

    >>> from fedfloor.plan.nodes import Sequence, Train, Work, device
    >>> chain = Sequence((Train(device(0), Work(epochs=1)), Train(device(1), Work(epochs=1))))
    >>> fold(chain, lambda node, below: 1 + sum(below))
    3
    """
    return combine(node, [fold(child, combine) for child in children(node)])


def span(node: Node) -> int:
    """Return how many ticks of the park's clock the node takes.

    A ``Train`` or ``Select`` spans 0, a ``Sequence`` the sum, a ``Parallel`` the longest child, a ticking ``Repeat``
    times · max(1, child); a ``Repeat`` that does not tick spans times · child.
    """

    def ticks(at: Node, below: list[int]) -> int:
        if isinstance(at, Repeat):
            return at.times * (max(1, below[0]) if at.tick else below[0])
        return max(below, default=0) if isinstance(at, Parallel) else sum(below)

    return fold(node, ticks)


def visits(node: Node) -> Counter[int]:
    """Return how often each device is visited for training; a ``Select`` is not yet known and counts nothing."""

    def count(at: Node, below: list[Counter[int]]) -> Counter[int]:
        if isinstance(at, Train):
            return Counter({at.site.index: 1}) if at.site.kind == "device" else Counter()
        total: Counter[int] = Counter()
        for one in below:
            total.update(one)
        if isinstance(at, Repeat):
            total = Counter({device: times * at.times for device, times in total.items()})
        return total

    return fold(node, count)


def many(node: Node) -> int:
    """Return the number of visits of a plan, those included that a ``Select`` chooses.

    >>> from fedfloor.plan.nodes import Work, device
    >>> many(Repeat(10**12, Train(device(0), Work(epochs=1))))
    1000000000000
    """

    def count(at: Node, below: list[int]) -> int:
        own = at.how_many if isinstance(at, Select) else int(isinstance(at, Train))
        return own + sum(below) * (at.times if isinstance(at, Repeat) else 1)

    return fold(node, count)


def in_order(node: Node) -> list[Train]:
    """Return every visit for training in plan order, as often as it takes place; a ``Select`` must be resolved.

    Raises:
        SettingError: there is a ``Select``.
    """
    if isinstance(node, Select):
        raise SettingError("the plan has a Select: whom it visits is known only once it is resolved.")
    if isinstance(node, Train):
        return [node]
    found = [visit for child in children(node) for visit in in_order(child)]
    return found * node.times if isinstance(node, Repeat) else found


def beside(node: Parallel) -> list[list[tuple[Train, ...]]]:
    """Return for each branch, for each of its visits in order: the visits at the same place of the other branches.

    >>> from fedfloor.plan.nodes import Sequence, Work, device
    >>> one, two, three = (Train(device(k), Work(epochs=1)) for k in range(3))
    >>> beside(Parallel((Sequence((one, two)), three))) == [[(three,), ()], [(one,)]]
    True
    """
    lines = [in_order(child) for child in node.children]
    return [
        [tuple(o[i] for other, o in enumerate(lines) if other != branch and i < len(o)) for i in range(len(line))]
        for branch, line in enumerate(lines)
    ]


def batches(node: Node, size: Callable[[int], int]) -> int:
    """Return the number of mini-batches the node takes; a ``Select`` counts its candidates' mean.

    Args:
        node: the plan.
        size: the number of samples of a device; −1 is the cloud.
    """

    def count(at: Node, below: list[int]) -> int:
        if isinstance(at, Train):
            return at.work.batches(size(at.site.index if at.site.kind == "device" else -1))
        if isinstance(at, Select):
            mean = sum(at.work.batches(size(k)) for k in at.candidates) / len(at.candidates)
            return round(at.how_many * mean)
        return sum(below) * (at.times if isinstance(at, Repeat) else 1)

    return fold(node, count)


def meets(node: Node) -> bool:
    """Return whether models meet anywhere below: whether there is a ``Parallel`` or a ``Select``."""
    return fold(node, lambda at, below: isinstance(at, (Parallel, Select)) or any(below))


def branches(node: Node) -> tuple[Node, ...]:
    """Return the branches of every ``Parallel`` that is met on the way, in plan order; not those within branches."""
    if isinstance(node, Parallel):
        return node.children
    return tuple(branch for child in children(node) for branch in branches(child))


def asks(node: Node) -> bool:
    """Return whether anything is asked below: whether there is a ``Probe``."""
    return fold(node, lambda at, below: isinstance(at, Probe) or any(below))


def widest(node: Node) -> int:
    """Return how many branches the team can work on at a time: the most of any ``Parallel`` or ``Select`` it meets."""
    if isinstance(node, Select):
        return node.how_many
    if isinstance(node, Parallel):
        return len(node.children)
    return max((widest(child) for child in children(node)), default=1)


def check(node: Node, park_devices: int) -> None:
    """Check that a park with so many devices has all that the plan names.

    Raises:
        SettingError: it names a device that does not exist, or trains where nobody has data.
    """
    for site in sites(node):
        if site.kind not in ("device", "cloud"):
            raise SettingError(f"the plan trains at {site}: a visit is to a device or to the cloud.")
    strange = [k for k in devices(node) if not 0 <= k < park_devices]
    if strange:
        raise SettingError(f"the plan names device {min(strange)}: the park has devices 0 to {park_devices - 1}.")


def batch_sizes(node: Node) -> set[int]:
    """Return the sizes of mini-batches that devices train with."""

    def sizes(at: Node, below: list[set[int]]) -> set[int]:
        own: set[int] = set()
        if isinstance(at, Select) or (isinstance(at, Train) and at.site.kind == "device"):
            own = {at.work.batch_size}
        return own.union(*below)

    return fold(node, sizes)


def rates(node: Node) -> set[float]:
    """Return the learning rates that devices train with."""

    def found(at: Node, below: list[set[float]]) -> set[float]:
        own = {at.work.rate} if isinstance(at, (Select, Train)) else set[float]()
        return own.union(*below)

    return fold(node, found)


def scopes(node: Node) -> set[str]:
    """Return the parts of the model that visits train."""

    def found(at: Node, below: list[set[str]]) -> set[str]:
        own = {at.work.scope} if isinstance(at, (Select, Train)) else set[str]()
        own = own.union(*below)
        if isinstance(at, Parallel) and len(own) > 1:
            raise SettingError(
                f"the plan has a Parallel at {at.at} whose visits train different parts of the model (work.scope "
                f"{', '.join(map(repr, sorted(own)))}): their models cannot meet. Give all its visits one scope, or "
                "put a Parallel for each scope into a Sequence."
            )
        return own

    return fold(node, found)


def sends(node: Node) -> bool:
    """Return whether all visits send what they trained."""
    return fold(node, lambda at, below: all(below) and (not isinstance(at, (Select, Train)) or at.work.sends))


def handed(node: Node) -> set[str]:
    """Return the parts of the model that are handed to devices to keep."""
    return fold(node, lambda at, below: {at.scope} if isinstance(at, Broadcast) else set[str]().union(*below))


def devices(node: Node) -> set[int]:
    """Return every device the plan names, trained or not."""

    def names(at: Node, below: list[set[int]]) -> set[int]:
        own: set[int] = set()
        if isinstance(at, Train) and at.site.kind == "device":
            own = {at.site.index}
        elif isinstance(at, (Broadcast, Probe)):
            own = set(at.devices)
        elif isinstance(at, Select):
            own = set(at.candidates)
        return own.union(*below)

    return fold(node, names)


def sites(node: Node) -> set[Site]:
    """Return every site the plan trains at; a ``Select`` is not yet known and counts nothing."""
    return fold(node, lambda at, below: {at.site} if isinstance(at, Train) else set[Site]().union(*below))


def selects(node: Node) -> Iterator[Select]:
    """Yield every ``Select`` in the order of the walk, as often as it is met."""
    if isinstance(node, Select):
        yield node
    for child in children(node):
        for _ in range(node.times if isinstance(node, Repeat) else 1):
            yield from selects(child)


def probes(node: Node) -> list[Probe]:
    """Return every question of a plan; that of a ``Select`` for the census is not among them."""
    return [node] if isinstance(node, Probe) else [one for child in children(node) for one in probes(child)]


def mixes(node: Node) -> list[Parallel | Select]:
    """Return the nodes at which models meet."""

    def found(at: Node, below: list[list[Parallel | Select]]) -> list[Parallel | Select]:
        return [*([at] if isinstance(at, (Parallel, Select)) else []), *chain.from_iterable(below)]

    return fold(node, found)


def first_device(node: Node) -> int:
    """Return the device that a plan visits or asks first.

    Raises:
        SettingError: there is none, as in centralised training.
    """
    if isinstance(node, Train) and node.site.kind == "device":
        return node.site.index
    if isinstance(node, (Select, Probe, Broadcast)):
        return (node.candidates if isinstance(node, Select) else node.devices)[0]
    for child in children(node):
        return first_device(child)
    raise SettingError("the plan trains at the cloud, which has no data of its own on real machines.")


def cloud_visits(node: Node) -> int:
    """Return how often the cloud trains.

    >>> from fedfloor.plan.nodes import Repeat, Train, Work, CLOUD
    >>> cloud_visits(Repeat(3, Train(CLOUD, Work(epochs=1))))
    3
    """

    def count(at: Node, below: list[int]) -> int:
        if isinstance(at, Train):
            return int(at.site == nodes.CLOUD)
        return sum(below) * (at.times if isinstance(at, Repeat) else 1)

    return fold(node, count)


def rebuilt(node: Node, resolved: list[Node]) -> Node:
    """Put resolved children back: a ``Repeat`` whose turns came out alike stays one, else it becomes a ``Sequence``.

    Args:
        node: a ``Sequence`` or a ``Repeat``.
        resolved: what became of each child of a ``Sequence``, or in each turn of the child of a ``Repeat``.

    Returns:
        The very same node where nothing changed.
    """
    before = children(node)
    if all(a is before[i % len(before)] for i, a in enumerate(resolved)):
        return node
    if not isinstance(node, Repeat):
        return replace(cast(nodes.Sequence, node), children=tuple(resolved))
    if all(one == resolved[0] for one in resolved):
        return replace(node, child=resolved[0])
    return nodes.Sequence(tuple(replace(node, times=1, child=one) if node.tick else one for one in resolved))
