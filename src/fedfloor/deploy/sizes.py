"""The largest message of an experiment's rounds, compared with the brokers' limit before a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedfloor.base.errors import SettingError
from fedfloor.deploy.channel import ENVELOPE
from fedfloor.deploy.park_file import MOST_MB, QUEUED_MESSAGES
from fedfloor.engine.aggregation import TreeSum
from fedfloor.engine.travel import VisitPath
from fedfloor.experiment import Experiment
from fedfloor.models.parcel import Packet
from fedfloor.park.park import Park
from fedfloor.parts.mixing import registry as mixing
from fedfloor.plan import walk
from fedfloor.plan.nodes import CLOUD, KEEP, Parallel
from fedfloor.runs import forecast
from fedfloor.runs.parks import network_of

MB = 1_000_000


def check(experiment: Experiment, park: Park, message_mb: int) -> None:
    """Compare the largest message of an experiment's rounds with the limit of a park's brokers.

    Raises:
        SettingError: it is larger; names the required ``message_mb``.
    """
    needed = -(-largest(experiment, park) // MB)
    if needed <= message_mb:
        return
    smaller = "a smaller network, or a method that sends less"
    remedy = f"set message_mb = {needed} in the park file, provision again and restart the brokers, or choose {smaller}"
    raise SettingError(
        f"the model of network '{experiment.model.name}' with all that method '{experiment.method.name}' sends needs "
        f"message_mb = {needed}, and the park's brokers have memory for message_mb = {message_mb}: "
        f"{remedy if needed <= MOST_MB else f'at most {MOST_MB} are allowed, so choose {smaller}'}.",
        key="message_mb",
    )


def largest(experiment: Experiment, park: Park) -> int:
    """Return the bytes of the largest message that brokers must hold in the first round of an experiment.

    A device receives whole packets, as it may lack parts of the model, and returns an encoded one. An edge returns a
    packet for each sum of branches that other factories' branches must complete, of which a broker queues
    :data:`QUEUED_MESSAGES` times its limit.

    Args:
        park: a park with the experiment's samples and factories, which may lie elsewhere.
    """
    method = experiment.configured
    network = network_of(experiment, method, park)
    packet: Packet = {"w": torch.zeros_like(network.flat)}
    try:
        plan, beside = forecast.opening(experiment, park)
    except SettingError:  # its first round cannot be planned without the devices: at least the model travels
        return ENVELOPE + network.parcel("all").size(packet)
    packet = {**beside, **packet}
    whole = network.parcel("all").size(packet)
    device = max([whole, *(VisitPath(network, work).up.size(packet) for work in walk.works(plan))])
    met = [node for node, _ in walk.every(plan) if isinstance(node, Parallel) and node.at == CLOUD]
    parts = max((unfinished(node, park.factory_of.tolist()) for node in met if not node.travel), default=0)
    return ENVELOPE + max(device, -(-parts * whole // QUEUED_MESSAGES))


def unfinished(node: Parallel, factory_of: Sequence[int]) -> int:
    """Return the most packets that the edge of a factory returns for its branches of a node.

    Args:
        factory_of: the factory of each device.
    """
    branches_of: dict[int, list[int]] = {}
    for index, child in enumerate(node.children):
        branches_of.setdefault(factory_of[walk.first_device(child)], []).append(index)
    if node.mix != KEEP and mixing.rule(node.mix, node.settings).whole:
        return max(map(len, branches_of.values()))
    return max(TreeSum.parts(len(node.children), indices) for indices in branches_of.values())
