"""Parts of the model: which numbers a visit trains and sends, and which are mixed where models meet."""

from __future__ import annotations

from fedfloor.errors import SettingError
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts.objective import Objective
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Work


def check(network: Network, plan: Node, packet: Packet) -> None:
    """Check that the network has the parts a plan names, and that they can travel.

    Args:
        network: the model.
        plan: what to do.
        packet: what goes in.

    Raises:
        SettingError: a part that the network does not have, a ``Parallel`` whose visits train different parts, or a
            visit of a part while something travels beside the model.
    """
    trained = walk.scopes(plan)
    for scope in sorted(trained | walk.handed(plan)):
        network.parcel(scope)
    beside, parts = sorted(set(packet) - {"w"}), sorted(trained - {"all"})
    if beside and parts:
        raise SettingError(
            f"work.trains = '{parts[0]}': '{beside[0]}' travels beside the model, and what a visit that trains a part "
            "makes of it is not defined. Train 'all', or use a method and an objective that send the model alone."
        )


def trained(network: Network, objective: Objective, work: Work) -> slice:
    """Return the part of the flat model that a visit trains: of what its objective trains, that in the work's part.

    Raises:
        SettingError: that is nothing, the objective is for visits of the classifier alone, or it puts numbers of the
            device's own into the model.
    """
    wanted = objective.trains(network)
    if objective.on_features and work.trains != "classifier":
        raise SettingError(
            f"objective '{work.objective}' with work.trains = '{work.trains}': it trains the classifier alone, on "
            "features, in rounds of a method that are made for it, such as hfedms. Use another objective."
        )
    if work.trains == "all":
        return wanted
    if objective.personal:
        raise SettingError(
            f"work.trains = '{work.trains}' with objective '{work.objective}': it puts numbers of the device's own "
            "into the model, and what lies outside of that part would not stay. Train 'all', or use another objective."
        )
    part = network.part(work.trains)
    both = slice(max(wanted.start, part.start), min(wanted.stop, part.stop))
    if both.start >= both.stop:
        raise SettingError(
            f"work.trains = '{work.trains}' with objective '{work.objective}': the objective trains the numbers "
            f"{wanted.start} to {wanted.stop} of the model, that part are {part.start} to {part.stop}: nothing is left "
            "to train. Train 'all', or use another objective."
        )
    return both


def still(network: Network, work: Work) -> Parcel:
    """Return the statistics that a visit leaves as they are: all but those of the part that it trains."""
    trained = () if work.trains == "all" else network.numbers(f"all but {work.trains}")
    behind = (slice(max(one.start, network.trained), one.stop) for one in trained if one.stop > network.trained)
    return Parcel(tuple(behind), network.flat.numel())


def met(network: Network, node: Node) -> Parcel | None:
    """Return the part of the flat model that is mixed where a node's branches meet; None for the whole model."""
    found = set[str]().union(*map(walk.scopes, walk.children(node)))
    return network.parcel(found.pop()) if len(found) == 1 and "all" not in found else None
