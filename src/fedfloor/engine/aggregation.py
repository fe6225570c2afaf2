"""Where models meet: summed as they come where the rule is a mean, kept whole where it has to look at each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfloor.engine.tree import TreeSum
from fedfloor.errors import SettingError
from fedfloor.models.parcel import Packet, Parcel
from fedfloor.parts import mix
from fedfloor.plan import walk
from fedfloor.plan.nodes import Parallel
from fedfloor.plan.outcome import Receipt


class Aggregation:
    """The branches of one ``Parallel``, of which this rank walks some.

    Packet entries beside ``w`` are always averaged: by the rule's weights where it is a mean, else equally.

    Args:
        node: where they meet.
        start: the packet that goes out; it comes back where too little arrives.
        part: the part of the model that was trained, alone mixed; the rest is the start's. None: the whole model.

    Raises:
        SettingError: an unknown rule, too few branches for it, or none.
    """

    def __init__(self, node: Parallel, start: Packet, part: Parcel | None = None) -> None:
        if not node.children:
            raise SettingError(f"the plan has a Parallel at {node.at} with no branches: leave it out, or add a visit.")
        self._node, self.start, self.part = node, start, part
        self._rule = mix.rule(node.mix, node.settings)
        mix.check(self._rule, node.mix, len(node.children))
        self._sums = TreeSum(len(node.children))
        self._models: dict[int, Tensor] = {}

    def add(self, index: int, packet: Packet, samples: int) -> None:
        """Add what came out of a branch; it is copied.

        Args:
            index: the branch's place in the plan.
            packet: named flat tensors.
            samples: samples of the distinct devices that trained in it; 0 leaves it out.
        """
        if self.part is not None:
            packet = {**packet, "w": self.part.cut(packet["w"])}
        if self._rule.whole:
            if samples:
                self._models[index] = packet["w"].clone()
            packet = {name: value for name, value in packet.items() if name != "w"}
        self._sums.add(index, packet, mix.weigh(self._rule, samples))

    def unfinished(self) -> list[bytes | memoryview]:
        """Return what is held here as byte strings, for the other ranks' :meth:`take`."""
        models = [self._models[index].cpu().numpy().data.cast("B") for index in self._models]
        return [json.dumps(list(self._models)).encode(), *models, *self._sums.unfinished()]

    def take(self, parts: Sequence[memoryview]) -> None:
        """Take over what another rank held."""
        indices = json.loads(bytes(parts[0]))
        kind = torch.empty(0, dtype=self.start["w"].dtype).numpy().dtype
        for index, part in zip(indices, parts[1:], strict=False):
            self._models[index] = torch.from_numpy(np.frombuffer(part, kind)).to(self.start["w"].device)
        self._sums.take(parts[1 + len(indices) :], self.start)

    def mixed(self, known: Sequence[mix.Branch | None], classes: int, trained: int, rng: np.random.Generator) -> Packet:
        """Return the one packet the branches' become.

        Args:
            known: what is known of each branch; None where every visit was lost.
            classes: number of classes.
            trained: how many numbers at the front of the model are trained.
            rng: for rules that draw.
        """
        start = self.start["w"] if self.part is None else self.part.cut(self.start["w"])
        packet = self._sums.mean({**self.start, "w": start})
        if self._rule.whole:
            order = sorted(self._models)
            if len(order) < self._rule.least:
                return dict(self.start)
            models, branches = [self._models[index] for index in order], [one for one in known if one is not None]
            trained = trained if self.part is None else self.part.among(trained)
            models = [one.cpu() for one in models]
            met = mix.Meeting(start.cpu(), models, branches, self._rate(), classes, trained, rng)
            packet["w"] = self._checked(self._rule.mixed(met), start).to(start.device)
        if self.part is None:
            return packet
        if packet["w"] is start:  # all were lost
            return dict(self.start)
        return {**packet, "w": self.part.put(packet["w"], self.start["w"])}

    def check_asked(self, known: Sequence[mix.Branch | None], *, away: bool) -> None:
        """Refuse a plan that did not ask everybody what the rule wants to know.

        Args:
            known: what is known of each branch.
            away: whether devices may have been away when they were asked, as real machines may.

        Raises:
            SettingError: nobody asked in a branch.
        """
        if self._rule.asks == "loss" and not away and any(one is not None and one.loss is None for one in known):
            raise SettingError(
                "the mixing rule needs every device's loss: put Probe(devices, 'loss') before the visits."
            )

    def _checked(self, model: object, start: Tensor) -> Tensor:
        """Return what a rule mixed; one of the user's own may return anything."""
        if not isinstance(model, Tensor) or (model.shape, model.dtype) != (start.shape, start.dtype):
            got = f"{model.dtype} {list(model.shape)}" if isinstance(model, Tensor) else type(model).__name__
            raise SettingError(
                f"mix '{self._node.mix}': mixed returned {got}: must be a tensor like Meeting.start, {start.dtype} "
                f"{list(start.shape)}."
            )
        return model

    def _rate(self) -> float:
        rates = walk.rates(self._node)
        if self._rule.asks == "loss" and len(rates) > 1:
            raise SettingError(f"mix '{self._node.mix}' needs one learning rate for all branches, not {sorted(rates)}.")
        return max(rates, default=0.0)


def branch_statistics(
    receipts: Sequence[Receipt], sizes: Mapping[int, int], heard: Mapping[int, Mapping[str, Any]]
) -> mix.Branch | None:
    """Return what is known of a branch by its receipts; None where every visit in it was lost.

    Args:
        receipts: of its visits, in plan order.
        sizes: samples of each device; −1 is the cloud.
        heard: device → question → answer, so far in the round.
    """
    last = {one.device: one for one in receipts if not one.lost}
    if not last:
        return None
    total = sum(sizes[k] for k in last)
    accuracy = sum(sizes[k] * one.accuracy for k, one in last.items()) / total
    losses = {k: heard[k]["loss"] for k in last if "loss" in heard.get(k, {})}
    loss = sum(sizes[k] * value for k, value in losses.items()) / total
    return mix.Branch(total, accuracy, loss if len(losses) == len(last) else None)
