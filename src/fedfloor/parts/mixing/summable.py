"""A check that a plan reveals no update of a device, only sums of updates."""

from __future__ import annotations

from collections.abc import Sequence

from fedfloor.base.errors import SettingError
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.protection.masking import LEAST
from fedfloor.parts.travel.chains import across, secure
from fedfloor.plan import walk
from fedfloor.plan.nodes import CLOUD, KEEP, Node, Parallel, Select, Train


def check(node: Node, factories: Sequence[Sequence[int]]) -> None:
    """Check that no update is revealed by itself in a round whose visits' codec is ``secure-sum``.

    Args:
        node: the round's plan, with its codecs.
        factories: the devices of each factory.

    Raises:
        SettingError: a visit of the plan would reveal its update.
    """
    if not any(secure(work.travel) for work in walk.works(node)):
        return
    _go(node, None)
    small = [m for m, devices in enumerate(factories) if 0 < len(devices) < LEAST]
    if any(across(work.travel) for work in walk.works(node)):
        _whole(node, sum(map(bool, factories)))
    elif small:
        raise _unfit(
            f"factory {small[0]} has {len(factories[small[0]])} devices that may take part, and in a sum of two each "
            "device knows the other's update",
            f"Have at least {LEAST} in each factory (park.devices, park.factories), or set across = true",
        )


def _whole(node: Node, factories: int) -> None:
    """Check that a round has a single sum at the cloud, from which no factory learns another factory's sum."""
    below = any(walk.meets(branch) for branch in walk.branches(node))
    if below or any(meeting.at != CLOUD for meeting in walk.mixes(node)):
        raise _unfit(
            "across = true is one sum at the cloud, but the method averages models at edges",
            "Choose a method that averages at the cloud alone, such as fedavg, leave across out",
        )
    if factories < LEAST:
        raise _unfit(
            f"across = true with {factories} factories, each of which would learn the other's sum",
            f"Have at least {LEAST} (park.factories), leave across out",
        )


def _go(node: Node, above: Node | None) -> None:
    if isinstance(node, Select):
        _visits(node, 0)
        if node.how_many < LEAST:
            raise _unfit(f"{node.how_many} devices are selected at a time", f"Select at least {LEAST}")
    elif isinstance(node, Train) and secure(node.work.travel):
        if not isinstance(above, Parallel) or above.mix == KEEP:
            raise _unfit(
                "a visit in a chain, a ring or a sequence passes on one device's model and no sum",
                "Choose a method whose devices train in parallel, such as fedavg or hierfavg",
            )
    elif isinstance(node, Parallel) and any(isinstance(child, Train) for child in node.children):
        _visits(node, len(node.children))
    for child in walk.children(node):
        _go(child, node)


def _visits(node: Parallel | Select, count: int) -> None:
    rule = mixing.rule(node.mix, node.settings)
    if not rule.additive:
        raise _unfit(
            f"mix '{node.mix}' reads each device's model",
            "Choose a mean: by_samples, equal, or private without a quantile",
        )
    if count and (
        len(walk.devices(node)) < count or not all(isinstance(child, Train) for child in walk.children(node))
    ):
        raise _unfit(
            "branches of an aggregation are more than one visit to a device each",
            "Choose a method whose devices train once, in parallel, such as fedavg or hierfavg",
        )
    works = walk.works(node)
    if any(work != works[0] for work in works):
        raise _unfit(
            "its devices train with different work, which could make all changes but one zero",
            "Give all devices of the sum the same work",
        )
    for work in works:
        beside = objectives.objective(work.objective, work.settings).travels
        if beside:
            raise _unfit(
                f"devices send '{min(beside)}' beside the model, which is not masked",
                "Choose an objective that sends the model alone, such as prox",
            )


def _unfit(reason: str, instead: str) -> SettingError:
    return SettingError(f"method.travel = 'secure-sum': {reason}. {instead}, or leave 'secure-sum' out.")
