"""Where branches meet whose devices reveal no more than the sum of a factory's updates: see parts/masking.py.

The sum is one of whole numbers, so it does not depend on an order, and masked or not it has the same bits: simulations
leave masks out. A factory of which too few devices are left has no sum, and the visits to it are lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch

from fedfloor.engine import travel
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.engine import Engine
from fedfloor.engine.visit import mixed_part
from fedfloor.models.parcel import Packet
from fedfloor.parts import mix
from fedfloor.parts.codecs import SecureSum
from fedfloor.parts.masking import Bytes, FixedPoint, threshold
from fedfloor.plan import walk
from fedfloor.plan.nodes import Parallel
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import NodeResult


def aggregation_of(engine: Engine, node: Parallel, start: Packet) -> Aggregation:
    """Return where the branches of a node meet."""
    works = [visit.work for child in node.children for visit, _ in walk.visited(child) if walk.is_visit(child)]
    codec = travel.summed(travel.up(engine.network, works[0])) if works else None
    part = mixed_part(engine.network, node)
    return Aggregation(node, start, part) if codec is None else SecureAggregation(engine, node, start, codec)


@dataclass
class FactorySum:
    """The sum of a factory.

    Attributes:
        planned: the branches of its devices.
        members: those whose vectors are in the sum.
        total: of them; None before the first.
        lost: why it is lost; "" where it is not.
    """

    planned: list[int] = field(default_factory=list)
    members: set[int] = field(default_factory=set)
    total: Bytes | None = None
    lost: str = ""


class SecureAggregation(Aggregation):
    """The branches of one ``Parallel``, each a visit to a device, whose changes are added up by factory.

    Args:
        codec: the visits' codec.
    """

    def __init__(self, engine: Engine, node: Parallel, start: Packet, codec: SecureSum) -> None:
        super().__init__(node, start, mixed_part(engine.network, node))
        self.devices = [walk.first_device(child) for child in node.children]
        self.codec, self.cut = codec, travel.up(engine.network, walk.works(node)[0])
        self.weights = [mix.weigh(self._rule, int(engine.park.holdings[k])) for k in self.devices]
        self.rule = mix.to_spec(self._rule)
        most = max(sum(self.weights), 1.0)
        self.fixed = FixedPoint.sized(self.cut.numbers, codec.bits, codec.bound, most, len(self.devices))
        self.trained = self.cut.among(engine.network.trained)
        self.sums: dict[int, FactorySum] = {}
        for index, device in enumerate(self.devices):
            self.sums.setdefault(int(engine.park.factory_of[device]), FactorySum()).planned.append(index)

    def add(self, index: int, packet: Packet, samples: int, receipts: Sequence[Receipt] = ()) -> None:
        """Add a branch's change, or the masked vector that its device made of it."""
        if not samples:
            return
        factory, sent = self._of(index), packet["w"].cpu()
        if sent.dtype == torch.uint8:
            vector = sent.numpy()
        else:
            (receipt,) = receipts
            figures = (receipt.loss_first, receipt.loss_last, receipt.accuracy)
            change = self._rule.summand(sent, self.trained)
            vector = self.fixed.encoded(change.numpy(), self.weights[index], figures)
        factory.total = self.fixed.ring.zeros() if factory.total is None else factory.total
        self.fixed.ring.add(factory.total, vector)
        factory.members.add(index)

    def _of(self, index: int) -> FactorySum:
        return next(factory for factory in self.sums.values() if index in factory.planned)

    def settle(self, branches: Sequence[NodeResult], places: Sequence[int]) -> list[NodeResult]:
        """Return the results of branches: figures of receipts are their sum's mean, those of a lost sum are lost."""
        for factory in self.sums.values():
            needed = threshold(self.codec.threshold, len(factory.planned))
            if not factory.lost and set(factory.planned) & set(places) and len(factory.members) < needed:
                left = f"{len(factory.members)} of {len(factory.planned)} devices of its factory are left"
                factory.lost = f"{left}; a secure sum is unmasked for {needed}."
        return [self._settled(self._of(index), result) for index, result in zip(places, branches, strict=True)]

    def _settled(self, factory: FactorySum, result: NodeResult) -> NodeResult:
        (receipt,) = result.receipts
        if receipt.lost:
            return result
        if factory.lost:
            return replace(result, receipts=[receipt.without(factory.lost)], trained=frozenset())
        _, _, (first, last, accuracy) = self.fixed.decoded(cast(Bytes, factory.total))
        return replace(result, receipts=[replace(receipt, loss_first=first, loss_last=last, accuracy=accuracy)])

    def unfinished(self) -> list[bytes | memoryview]:
        """Return the factories' sums that are held here as byte strings."""
        known = {m: factory for m, factory in self.sums.items() if factory.total is not None and not factory.lost}
        heads = {str(m): sorted(factory.members) for m, factory in known.items()}
        size = self.fixed.ring.bytes
        padded = [np.pad(cast(Bytes, factory.total), (0, -size % 8)) for factory in known.values()]  # of 64 bits
        return [json.dumps(heads).encode(), *(total.data for total in padded)]

    def take(self, parts: Sequence[memoryview]) -> None:
        """Add the sums of another rank, or of an edge."""
        for (number, members), part in zip(json.loads(bytes(parts[0])).items(), parts[1:], strict=True):
            factory = self.sums[int(number)]
            factory.total = self.fixed.ring.zeros() if factory.total is None else factory.total
            self.fixed.ring.add(factory.total, np.frombuffer(part, np.uint8)[: self.fixed.ring.bytes])
            factory.members.update(members)

    def mixed(self, known: Sequence[mix.Branch | None], classes: int, trained: int, rng: np.random.Generator) -> Packet:
        """Return the aggregated packet: by the rule from the sum of all factories' sums."""
        total, left = self.fixed.ring.zeros(), False
        for factory in self.sums.values():
            if factory.total is not None and not factory.lost:
                self.fixed.ring.add(total, factory.total)
                left = True
        if not left:
            return dict(self.start)
        change, weight, _ = self.fixed.decoded(total)
        start = self.cut.cut(self.start["w"]).cpu()
        model = self._rule.of_sum(start, torch.from_numpy(change), weight, self.trained, rng)
        return {**self.start, "w": self.cut.put(model.to(self.start["w"].device), self.start["w"])}
