"""Secure aggregation: branches whose devices reveal only the sum of a group's updates; see parts/protection/masking.py.

A group is a factory, or all factories (``across``). Sums are of whole numbers, so they do not depend on the order, and
are the same to the bit with and without masks: simulations omit the masks. If too few devices of a group deliver, the
group has no sum, and the visits to its devices are lost.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine
from fedfloor.engine.limit import Limit
from fedfloor.engine.summand import bound, device_noise, farthest, sum_noise, summand
from fedfloor.engine.travel import EdgePath, VisitPath
from fedfloor.engine.visit import mixed_part
from fedfloor.models.parcel import Packet
from fedfloor.parts.mixing import mix
from fedfloor.parts.mixing import registry as mixing
from fedfloor.parts.protection.discrete import TAIL, discrete_gaussian
from fedfloor.parts.protection.masking import FIGURE_BITS, FIGURE_MOST, LEAST, Bytes, FixedPoint, crews, threshold
from fedfloor.parts.travel.codecs import SecureSum
from fedfloor.plan import walk
from fedfloor.plan.nodes import Parallel, Train
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key, NodeResult

log = logging.getLogger(__name__)

ROUNDING = 1e-3  # of a mean training accuracy, in fixed point


def aggregation_of(engine: Engine, node: Parallel, start: Packet, place: Key) -> Aggregation:
    """Return the aggregation that fits a node: of models, of coded changes, or secure.

    Args:
        place: the round and tick of the node, the key of random draws.
    """
    works = [child.work for child in node.children if isinstance(child, Train)]
    codec = VisitPath(engine.network, works[0]).summed if works and not node.travel else None
    path = EdgePath(engine.network, node, place) if walk.coded(node) else None
    if codec is not None:
        return SecureAggregation(engine, node, start, codec, path)
    return Aggregation(node, start, None if node.travel else mixed_part(engine.network, node), path)


@dataclass
class GroupSum:
    """The sum of a group of devices that mask their updates against each other.

    Attributes:
        planned: the indices of the branches of the group's devices.
        crews: the branches of the devices that are in the sum together or not at all; none: each may be in it alone.
        apart: the branches whose devices were not asked to train, as others of their crews were missing.
        members: the indices of the branches in the sum.
        waiting: crew → the branches whose vectors have arrived, and their sum, until it is whole.
        total: the sum of the members' vectors; None without members.
        lengths: the lengths of the parts of the members' mean update, if they are limited.
        lost: the reason why the sum is lost, or "".
    """

    planned: list[int] = field(default_factory=list)
    crews: list[frozenset[int]] = field(default_factory=list)
    apart: set[int] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    waiting: dict[frozenset[int], tuple[set[int], Bytes]] = field(default_factory=dict)
    total: Bytes | None = None
    lengths: tuple[float, ...] = ()
    lost: str = ""


class SecureAggregation(Aggregation):
    """The aggregation of a ``Parallel`` whose branches are visits to one device each; changes are summed by group.

    Args:
        codec: the visits' codec.
    """

    def __init__(
        self, engine: Engine, node: Parallel, start: Packet, codec: SecureSum, path: EdgePath | None = None
    ) -> None:  # fmt: skip
        super().__init__(node, start, mixed_part(engine.network, node), path)
        self.wire = np.dtype(np.int64)  # whole numbers, masked or not
        self.devices = [walk.first_device(child) for child in node.children]
        # all visits of a sum have the same work
        self.network = engine.network
        self.work = walk.works(node)[0]
        self.codec = codec
        self.cut = VisitPath(engine.network, self.work).up
        self.samples = [int(engine.park.holdings[k]) for k in self.devices]
        self.weights = [mix.weigh(self._rule, samples) for samples in self.samples]
        self.bounds = [bound(codec, self.work, samples) for samples in self.samples]
        self.rule = mixing.to_spec(self._rule)
        most = max(sum(self.weights), 1.0)
        self.trained = self.cut.among(engine.network.trained)
        self.sums: dict[int, GroupSum] = {}
        self.factory_of = {device: int(engine.park.factory_of[device]) for device in self.devices}
        for index, device in enumerate(self.devices):
            number = 0 if codec.across else self.factory_of[device]
            self.sums.setdefault(number, GroupSum()).planned.append(index)
        if codec.together:
            self._join_crews(engine.park.factory_of.tolist())
        shares = sum(len(group.planned) / self.needed(group) for group in self.sums.values())
        noise = TAIL * sum_noise(self._rule) * math.sqrt(shares)
        self.fixed = FixedPoint.sized(self.cut.numbers, codec.bits, max(self.bounds), most, len(self.devices), noise)
        self.seed = engine.seed
        self.unchanged = engine.unchanged
        for group in self.sums.values():  # an unusable noise is an error before any training
            self.noise(group)

    def add(self, index: int, packet: Packet, samples: int, receipts: Sequence[Receipt] = ()) -> None:
        """Add a branch's change, or the masked vector that its device sent in its place."""
        if not samples:
            return
        group = self._of(index)
        sent = packet["w"].cpu()
        if sent.dtype == torch.uint8:
            vector = sent.numpy()
        else:
            (receipt,) = receipts
            figures = receipt.figures
            change = summand(self._rule, sent.numpy(), self.trained, self.seed, receipt)
            rng = generator(self.seed, "device noise", receipt.tick, receipt.device, receipt.visit)
            noise = discrete_gaussian(self.noise(group), self.cut.numbers, rng)
            fixed = replace(self.fixed, bound=self.bounds[index])
            self.unchanged.note_cut(fixed.excess(change))
            vector = fixed.encoded(change, self.weights[index], figures, noise)
        self._put(group, {index}, vector)

    def _join_crews(self, factory_of: Sequence[int]) -> None:
        """Divide each group's devices into crews.

        Raises:
            SettingError: the node leaves out devices of a factory.
        """
        whole = Counter(map(int, factory_of))
        for factory, count in Counter(self.factory_of.values()).items():
            if count < whole[factory]:
                raise SettingError(
                    f"travel.secure-sum.together: {count} of {whole[factory]} devices of factory {factory} are in a "
                    "sum; all must be in each. Leave it out, or choose a method that trains all, such as fedavg."
                )
        for group in self.sums.values():
            order = sorted(group.planned, key=self.devices.__getitem__)  # plans may have another one in each round
            homes = [self.factory_of[self.devices[index]] for index in order]
            group.crews = [frozenset(crew) for crew in crews(order, homes)]

    def _put(self, group: GroupSum, members: Set[int], vector: Bytes) -> None:
        """Add the vector of branches to their group's sum, or let it wait for the others of their crew."""
        crew = next((crew for crew in group.crews if members < crew), None)
        if crew is not None:
            there, waiting = group.waiting.setdefault(crew, (set(), self.fixed.ring.zeros()))
            self.fixed.ring.add(waiting, vector)
            there |= members
            if there != crew:
                return
            del group.waiting[crew]
            members = crew
            vector = waiting
        group.total = self.fixed.ring.zeros() if group.total is None else group.total
        self.fixed.ring.add(group.total, vector)
        group.members.update(members)

    def _of(self, index: int) -> GroupSum:
        return next(group for group in self.sums.values() if index in group.planned)

    def needed(self, group: GroupSum) -> int:
        """Return the least number of a group's devices in its sum."""
        return threshold(self.codec.threshold, len(group.planned))

    def noise(self, group: GroupSum) -> float:
        """Return the standard deviation of the noise that each device of a group adds, in steps; 0: no noise."""
        return device_noise(self._rule, self.fixed, self.needed(group))

    def shortfall(self, group: GroupSum, devices: Collection[int]) -> str:
        """Return the reason why a group's sum with these devices is not unmasked, or ""."""
        needed = self.needed(group)
        whose = "of all factories" if self.codec.across else "of its factory"
        if len(devices) < needed:
            left = f"{len(devices)} of {len(group.planned)} devices {whose} delivered"
            return f"{left}; a secure sum needs {needed}."
        factories = len({self.factory_of[device] for device in devices})
        if self.codec.across and factories < LEAST:
            return f"devices of only {factories} factories delivered; a secure sum across factories needs {LEAST}."
        return ""

    def flaw(self, group: GroupSum) -> str:
        """Return the reason why an unmasked sum cannot be that of its members, or ""."""
        total, weight, means = self.fixed.decoded(cast(Bytes, group.total))
        due = sum(self.weights[index] for index in group.members)
        if abs(weight - due) > len(group.members) * 2.0**-FIGURE_BITS:  # a mask is left, or a weight is false
            return f"its sum has the weight {weight:g}, its devices have {due:g} together"
        if max(map(abs, means)) > FIGURE_MOST or not -ROUNDING <= means[-1] <= 1 + ROUNDING:
            return "the mean of its devices' losses or training accuracies is out of range"
        steps = len(group.members) + TAIL * self.noise(group) * math.sqrt(len(group.members))
        most = (
            sum(self.weights[index] * self.bounds[index] for index in group.members) + steps * 2.0**-self.fixed.fraction
        )
        if total.size and np.abs(total).max() > most:
            return "a number in its sum is larger than its devices can have added"
        return ""

    def excess(self, group: GroupSum, limit: Limit) -> str:
        """Record the lengths of a group's mean update; return the reason why it is too long, or ""."""
        change, weight, _ = self.fixed.decoded(cast(Bytes, group.total))
        start = self.cut.cut(self.start["w"]).cpu()
        mean = self.cut.put(start + torch.from_numpy(change / weight).to(start.dtype), self.start["w"].cpu())
        changed = limit.parts(self.network, self.work.travels, self.start, {**self.start, "w": mean})
        largest = max(self.samples[index] for index in group.members)
        group.lengths = tuple(part.length for part in changed)
        deviation = self.noise(group) * math.sqrt(len(group.members)) * 2.0**-self.fixed.fraction / weight
        for part in changed:
            numbers = part.start.numel()
            noise = deviation * (math.sqrt(numbers) + TAIL)  # the length of noise is at most this long
            most = max(farthest(self.work, largest, numbers), part.harmless) + noise
            if part.weights and not part.length <= most:
                return (
                    f"the mean update of {len(group.members)} devices has the length {part.length:.3g}; their rate and "
                    f"steps lead {most:.3g} far. If no device is false, set work.clip_norm, or deploy.norm_limit = "
                    "false."
                )
        return limit.reason(self.work.travels, (self.work.reach(largest), *group.lengths), changed)

    def settle(
        self, branches: Sequence[NodeResult], places: Sequence[int], limit: Limit | None = None
    ) -> list[NodeResult]:
        """Return the branches' results: receipts carry the means of their group's sum; those of a lost sum are lost.

        A group with branches on several ranks is settled where all of its branches are known, and so are crews.
        """
        whole = [group for group in self.sums.values() if set(group.planned) <= set(places)]
        for group in whole:
            group.lost = group.lost or self.shortfall(group, [self.devices[index] for index in group.members])
            if limit is not None and not group.lost and (why := self.excess(group, limit)):
                group.lost = why
                log.warning("a secure sum is refused: %s", why)
        broken = {index: group for group in self.sums.values() for index in self._broken(group, set(places))}
        settled = {index: group for group in whole for index in group.planned} | broken
        return [
            self._settled(settled[index], index, result) if index in settled else result
            for index, result in zip(places, branches, strict=True)
        ]

    def _broken(self, group: GroupSum, places: Set[int]) -> set[int]:
        """Forget the vectors of crews that stay incomplete, of which all branches are known; return these branches."""
        gone = [crew for crew in group.crews if crew <= places and not crew <= group.members]
        for crew in gone:
            group.waiting.pop(crew, None)
        return {index for crew in gone for index in crew}

    def _settled(self, group: GroupSum, index: int, result: NodeResult) -> NodeResult:
        (receipt,) = result.receipts
        crew = next((crew for crew in group.crews if index in crew), frozenset[int]())
        if not crew <= group.members and (not receipt.lost or index in group.apart):
            names = ", ".join(str(self.devices[mate]) for mate in sorted(crew))
            why = f"a device of its crew ({names}) did not deliver; a crew is in a sum whole or not at all."
            return replace(result, receipts=[replace(receipt, update=()).without(why)], trained=frozenset())
        if not crew and index in group.apart:
            why = f"it has no crew: the others of its earlier one, or {LEAST} devices without one, must be there."
            return replace(result, receipts=[receipt.without(why)], trained=frozenset())
        if receipt.lost:
            return result
        if group.lost:
            lost = replace(receipt, update=()).without(group.lost)  # refused lengths are no measure of later ones
            return replace(result, receipts=[lost], trained=frozenset())
        first = None
        last = None
        accuracy = None
        if receipt.loss_last is not None and not self.noise(group):
            _, _, (first, last, accuracy) = self.fixed.decoded(cast(Bytes, group.total))
        update = (self.work.reach(self.samples[index]), *group.lengths) if group.lengths else ()
        shown = replace(receipt, loss_first=first, loss_last=last, accuracy=accuracy, update=update)
        return replace(result, receipts=[shown])

    def unfinished(self) -> list[bytes | memoryview]:
        """Return this rank's sums of groups, and of crews that are not whole, the input of :meth:`take` elsewhere."""
        known = {m: group for m, group in self.sums.items() if not group.lost}
        sums = [(m, group.members, group.total) for m, group in known.items() if group.total is not None]
        sums += [(m, there, total) for m, group in known.items() for there, total in group.waiting.values()]
        heads = [(m, sorted(members)) for m, members, _ in sums]
        size = self.fixed.ring.bytes
        padded = [np.pad(total, (0, -size % 8)) for _, _, total in sums]  # to 64-bit words
        return [json.dumps(heads).encode(), *(total.data for total in padded)]

    def parts(self, parts: Sequence[memoryview]) -> list[tuple[GroupSum, set[int], Bytes]]:
        """Return (group, branches, sum) of each sum of :meth:`unfinished`."""
        size = self.fixed.ring.bytes
        return [
            (self.sums[int(number)], set(members), np.frombuffer(part, np.uint8)[:size])
            for (number, members), part in zip(json.loads(bytes(parts[0])), parts[1:], strict=True)
        ]

    def take(self, parts: Sequence[memoryview]) -> None:
        """Add the sums of another rank, or of an edge."""
        for group, members, vector in self.parts(parts):
            self._put(group, members, vector)

    def mixed(self, known: Sequence[mix.Branch | None], classes: int, trained: int, rng: np.random.Generator) -> Packet:
        """Return the aggregated packet: the mixing rule applied to the sum over all groups."""
        total = self.fixed.ring.zeros()
        left = False
        for group in self.sums.values():
            if group.total is not None and not group.lost:
                self.fixed.ring.add(total, group.total)
                left = True
        if not left:
            return dict(self.start)
        change, weight, _ = self.fixed.decoded(total)
        start = self.cut.cut(self.start["w"]).cpu()
        model = self._rule.of_sum(start, torch.from_numpy(change), weight, self.trained, rng)
        return {**self.start, "w": self.cut.put(model.to(self.start["w"].device), self.start["w"])}
