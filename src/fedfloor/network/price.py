"""The price of a plan: seconds, bytes per link and direction, joules, and the branch that everybody waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedfloor.errors import SettingError
from fedfloor.network.account import Move
from fedfloor.network.air import Air
from fedfloor.network.payload import Payload
from fedfloor.network.sites import Sites
from fedfloor.network.walk import PriceWalk
from fedfloor.plan.nodes import Node


@dataclass(frozen=True)
class Critical:
    """The way that decided when the plan ended.

    Attributes:
        visits: the devices on it, in order; −1 is the cloud.
        compute_s, transfer_s, wait_s: what its seconds went into: training, being sent, waiting for a link.
    """

    visits: tuple[int, ...] = ()
    compute_s: float = 0.0
    transfer_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True)
class Price:
    """What a plan costs.

    Attributes:
        seconds: from when the packet leaves the cloud until it is back.
        joules: of the devices that the plan names, over these seconds.
        bytes: link class and direction → bytes, repeated transmissions included.
        joules_by_device: device → joules.
        visits: seconds of each visit in plan order, from when the model set out until its result was where it went on.
        critical: the way that ended last.
        moves: every transfer, where asked for.
        holders: the devices that hold the model's frozen part, all but its classifier, as it is at the end.
    """

    seconds: float
    joules: float
    bytes: Mapping[str, int]
    joules_by_device: Mapping[int, float]
    visits: tuple[float, ...]
    critical: Critical
    moves: tuple[Move, ...] = ()
    holders: frozenset[int] = frozenset()


def price(
    plan: Node,
    sites: Sites,
    payload: Payload,
    *,
    air: Air | None = None,
    round_number: int = 1,
    tick: int = 0,
    numbered: Sequence[int] | None = None,
    holders: frozenset[int] = frozenset(),
    trace: bool = False,
) -> Price:
    r"""Price a resolved plan.

    The packet starts and ends at the cloud, and every change of site is a transfer over each link of the route. At a
    ``Parallel`` it first goes to where the copies will meet; they leave together and the node ends with the latest.
    Links that take turns serve first come first served, ties by device. A device that has just been asked with the
    model, or was handed it, holds it and is not sent it again. A result that is lost costs what it would have cost.

    A visit that trains a part of the model is sent that part. A device that does not hold the rest as it is now (see
    ``walk.pulled``) pulls it from the cloud over its route, once the part is there and before it trains.

    Joules of a device: training (α/2)·cycles·f², or measured; sending, receiving, and idle power for the rest of the
    plan's seconds.

    Args:
        plan: without ``Select`` nodes.
        sites: the devices and their network.
        payload: sizes.
        air: who is heard among those that interfere; where the uplink is no radio, None.
        round_number, tick: they key the air's chance.
        numbered: each visit's number among its device's, in plan order, where it is known from receipts.
        holders: the devices that hold the model's frozen part as it is: ``holders`` of the price of the plan before.
        trace: keep every transfer.

    Raises:
        SettingError: the plan has a ``Select``, or asks or carries what the payload does not know; or the uplink is a
            radio, and no air is given.
    """
    _check(sites, air)
    job = PriceWalk(plan, sites, payload, air, (round_number, tick, numbered), holders, trace=trace)
    end, spent, root = job.run(), job.spent, job.root
    idle, busy = sites.lists.idle_w, spent.busy
    joules = {k: spent.joules[k] + idle[k] * max(0.0, end - busy[k]) for k in sorted(job.named)}
    return Price(
        seconds=end, joules=sum(joules.values()), bytes=dict(sorted(spent.bytes.items())), joules_by_device=joules,
        visits=tuple(job.visit_s),
        critical=Critical(tuple(root.path), root.compute_s, root.transfer_s, root.wait_s),
        moves=tuple(spent.moves), holders=job.holders,
    )  # fmt: skip


def _check(sites: Sites, air: Air | None) -> None:
    if air is None and sites.network.uplink.sharing == "sinr":
        raise SettingError("the devices' uplink is a radio (sinr): price the plan with air=air.over(sites, seed).")
