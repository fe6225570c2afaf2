"""Weighted sums of the packets of a node's branches, in an order that depends on the plan alone.

Sums go along a binary tree over branch indices: node (level, i) is the sum of branches i·2^level … (i+1)·2^level − 1.
The holder of both halves of a node adds them, left + right; so the bits of the sum do not depend on which rank walked
which branch, and a rank never holds more than log2 n sums.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedfloor.base.errors import SettingError
from fedfloor.engine.limit import Limit
from fedfloor.engine.travel import EdgePath
from fedfloor.models import parcel
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts.mixing import mix
from fedfloor.parts.mixing import registry as mixing
from fedfloor.plan import walk
from fedfloor.plan.nodes import Parallel, Scalar
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import NodeResult

Sums = dict[str, Tensor]
PAYLOAD = torch.zeros(0, dtype=torch.uint8)


def kept(packet: Packet, own: Tensor) -> dict[str, Tensor]:
    """Return a packet that a visit cannot overwrite: tensors that are the network's buffer ``own`` are copied."""
    return {name: value.clone() if value is own else value for name, value in packet.items()}


class TreeSum:
    """The weighted sum Σ weight_i·packet_i of the branches 0 … n − 1 of one node.

    >>> tree = TreeSum(3)
    >>> for i in (2, 0, 1): tree.add(i, {"w": torch.tensor([1.0, 2.0])}, weight=i)
    >>> tree.mean({"w": torch.zeros(2)})["w"]
    tensor([1., 2.])
    """

    def __init__(self, branches: int) -> None:
        self._branches = branches
        self._top = max(0, branches - 1).bit_length()
        self._nodes: dict[tuple[int, int], tuple[float, Sums | None]] = {}
        self._spare: list[Sums] = []

    def add(self, index: int, packet: Packet, weight: float) -> None:
        """Add a branch's packet; it is copied. Weight 0 leaves the branch out, whatever its packet holds."""
        if weight == 0:
            self._put((0, index), (0.0, None))
            return
        if self._branches == 1:
            weight = 1.0  # the mean of a single branch equals it to the bit: x·n/n would be rounded twice
        into = self._spare.pop() if self._spare else {name: torch.empty_like(value) for name, value in packet.items()}
        for name, value in packet.items():
            torch.mul(value, weight, out=into[name])
        self._put((0, index), (weight, into))

    def _put(self, place: tuple[int, int], node: tuple[float, Sums | None]) -> None:
        level, i = place
        while level < self._top:
            sibling = (level, i ^ 1)
            if (i ^ 1) << level >= self._branches:
                pass  # no second half: the node equals its parent
            elif sibling in self._nodes:
                other = self._nodes.pop(sibling)
                node = self._join(node, other) if i % 2 == 0 else self._join(other, node)
            else:
                break
            level = level + 1
            i = i // 2
        self._nodes[level, i] = node

    def _join(self, left: tuple[float, Sums | None], right: tuple[float, Sums | None]) -> tuple[float, Sums | None]:
        if left[1] is None or right[1] is None:
            return left[0] + right[0], right[1] if left[1] is None else left[1]
        for name, value in left[1].items():
            value.add_(right[1][name])
        self._spare.append(right[1])
        return left[0] + right[0], left[1]

    @classmethod
    def parts(cls, branches: int, indices: Sequence[int]) -> int:
        """Return the number of a rank's unfinished tree nodes after its branches.

        >>> TreeSum.parts(8, [0, 1, 2, 3]), TreeSum.parts(8, [0, 2, 4, 6])
        (1, 4)
        """
        tree = cls(branches)
        for index in indices:
            tree.add(index, {}, 0)
        return len(tree._nodes)

    def unfinished(self) -> list[bytes | memoryview]:
        """Return this rank's tree nodes as byte strings, the input of :meth:`take` on other ranks."""
        heads = []
        parts = []
        for (level, i), (weight, sums) in self._nodes.items():
            heads.append([level, i, weight, sorted(sums) if sums else None])
            parts += [array.data.cast("B") for _, array in sorted(parcel.pack(sums or {}).items())]
        return [json.dumps(heads).encode(), *parts]

    def take(self, parts: Sequence[memoryview], like: Packet) -> None:
        """Add another rank's tree nodes; ``like`` gives the types of the tensors."""
        blobs = iter(parts[1:])
        for level, i, weight, names in json.loads(bytes(parts[0])):
            sums = None if names is None else {name: parcel.tensor_of(next(blobs), like[name]) for name in names}
            self._put((level, i), (weight, sums))

    def mean(self, start: Packet) -> dict[str, Tensor]:
        """Return Σ weight_i·packet_i / Σ weight_i, or ``start`` where every branch was left out."""
        ((weight, sums),) = self._nodes.values()
        if sums is None:
            return dict(start)
        return {name: value.div_(weight) for name, value in sums.items()}


class Aggregation:
    """The aggregation of the branches of one ``Parallel``, some of which this rank walks.

    Packet entries beside ``w`` are always averaged: by the rule's weights where it is a mean, else equally. Only
    ``part`` of the model is mixed (None: all of it). The rest, or all if too few models arrive, keeps the start values.
    Where the codecs of ``path`` code the branches' changes, each stays a payload until all are there.

    Attributes:
        given: the packet that branches start from: ``start`` after the codecs of the way to edges.
        wire: the number type of unfinished sums in messages; None: the model's type.
    """

    def __init__(
        self, node: Parallel, start: Packet, part: Parcel | None = None, path: EdgePath | None = None
    ) -> None:  # fmt: skip
        if not node.children:
            raise SettingError(
                f"the plan has a Parallel at {node.at} with no branches: leave it out, or add a visit.",
                key="no-branches",
            )
        self._node = node
        self.start = start
        self.part = part
        self.path = path if node.travel else None
        self.wire: np.dtype[Any] | None = None if self.path is None else np.dtype(np.uint8)
        self.given = path.receive(path.send(start)) if path is not None and node.travel_down else start
        self._rule = mixing.rule(node.mix, node.settings)
        mixing.check(self._rule, node.mix, len(node.children))
        self._sums = TreeSum(len(node.children))
        self._models: dict[int, Tensor] = {}
        self.settings: dict[str, Scalar] = {}  # settings of the rule for its next round, where it changes them

    def add(self, index: int, packet: Packet, samples: int, receipts: Sequence[Receipt] = ()) -> None:
        """Add a copy of a branch's packet; ``samples`` counts those of its distinct trained devices; 0: left out."""
        if self.path is not None:
            if samples:
                self._models[index] = self.path.leave(packet["w"], self.given["w"], index)
            return
        if self.part is not None:
            packet = {**packet, "w": self.part.cut(packet["w"])}
        if self._rule.whole:
            if samples:
                self._models[index] = packet["w"].clone()
            packet = {name: value for name, value in packet.items() if name != "w"}
        self._sums.add(index, packet, mix.weigh(self._rule, samples))

    def settle(
        self, branches: Sequence[NodeResult], places: Sequence[int], limit: Limit | None = None
    ) -> list[NodeResult]:
        """Return the final results of the branches with the indices ``places``, once all of them are walked.

        Args:
            limit: the limit on the length of sums, whose updates are not limited one by one; None: no limit.
        """
        return list(branches)

    def unfinished(self) -> list[bytes | memoryview]:
        """Return this rank's sums and models as byte strings, the input of :meth:`take` on other ranks."""
        models = [self._models[index].cpu().numpy().data.cast("B") for index in self._models]
        return [json.dumps(list(self._models)).encode(), *models, *self._sums.unfinished()]

    def take(self, parts: Sequence[memoryview]) -> None:
        """Add the sums and models of another rank."""
        indices = json.loads(bytes(parts[0]))
        for index, part in zip(indices, parts[1:], strict=False):
            self._models[index] = parcel.tensor_of(part, self.start["w"] if self.path is None else PAYLOAD)
        self._sums.take(parts[1 + len(indices) :], self.start)

    def mixed(self, known: Sequence[mix.Branch | None], classes: int, trained: int, rng: np.random.Generator) -> Packet:
        """Return the aggregated packet, given the statistics of each branch (None where every visit was lost)."""
        if self.path is not None:
            plain = Aggregation(self._node, self.start)
            for index, branch in enumerate(known):
                model = self.start["w"] if branch is None else self.model(index)
                plain.add(index, {**self.start, "w": model}, 0 if branch is None else branch.samples)
            packet = plain.mixed(known, classes, trained, rng)
            self.settings = plain.settings
            return packet
        start = self.start["w"] if self.part is None else self.part.cut(self.start["w"])
        packet = self._sums.mean({**self.start, "w": start})
        if self._rule.whole:
            order = sorted(self._models)
            if len(order) < self._rule.least:
                return dict(self.start)
            models = [self._models[index].cpu() for index in order]
            branches = [branch for branch in known if branch is not None]
            trained = trained if self.part is None else self.part.among(trained)
            met = mix.Meeting(start.cpu(), models, branches, self._rate(), classes, trained, rng)
            packet["w"] = self._checked(self._rule.mixed(met), start).to(start.device)
            self.settings = met.settings
        if self.part is None:
            return packet
        if packet["w"] is start:  # every visit was lost
            return dict(self.start)
        return {**packet, "w": self.part.put(packet["w"], self.start["w"])}

    def model(self, index: int) -> Tensor:
        """Return the model of a branch: its decoded change added to the model that the cloud sent.

        Raises:
            RefusedError: the payload does not fit the node's codecs.
        """
        return cast(EdgePath, self.path).arrive(self._models[index], self.start["w"], index)

    def check_asked(self, known: Sequence[mix.Branch | None], *, away: bool) -> None:
        """Raise SettingError where the rule needs every device's loss and the plan has no question for it."""
        asked = self._rule.asks == "loss" and not away
        if asked and any(branch is not None and branch.loss is None for branch in known):
            raise SettingError(
                "the mixing rule needs every device's loss: put Probe(devices, 'loss') before the visits.",
                key="needs-probe",
            )

    def _checked(self, model: object, start: Tensor) -> Tensor:
        """Return a rule's model; SettingError where a user's own rule returned another type or shape."""
        if not isinstance(model, Tensor) or (model.shape, model.dtype) != (start.shape, start.dtype):
            kind = f"{model.dtype} {list(model.shape)}" if isinstance(model, Tensor) else type(model).__name__
            raise SettingError(
                f"mix '{self._node.mix}': mixed returned {kind}. Return a tensor like Meeting.start: {start.dtype} "
                f"{list(start.shape)}."
            )
        return model

    def _rate(self) -> float:
        rates = walk.rates(self._node)
        if self._rule.asks == "loss" and len(rates) > 1:
            raise SettingError(f"mix '{self._node.mix}' needs one learning rate for all branches, not {sorted(rates)}.")
        return max(rates, default=0.0)


def branch_statistics(
    receipts: Sequence[Receipt], sizes: Mapping[int, int], answers: Mapping[int, Mapping[str, Any]]
) -> mix.Branch | None:
    """Return a branch's statistics from receipts and numbers of samples by device (−1: the cloud); None: all lost."""
    last = {receipt.device: receipt for receipt in receipts if not receipt.lost}
    if not last:
        return None
    total = sum(sizes[k] for k in last)
    accuracy = sum(sizes[k] * receipt.figures[2] for k, receipt in last.items()) / total
    losses = {k: answers[k]["loss"] for k in last if "loss" in answers.get(k, {})}
    loss = sum(sizes[k] * value for k, value in losses.items()) / total
    return mix.Branch(total, accuracy, loss if len(losses) == len(last) else None)
