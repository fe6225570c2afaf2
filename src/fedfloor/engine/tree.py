"""Sums over branches in an order that depends on the plan alone: a binary tree over branch indices.

Node (level, i) is the sum of branches i·2^level … (i+1)·2^level − 1. Whoever holds both halves of a node adds them,
left + right; so the bits of the sum do not depend on who worked on which branch, and a rank never holds more than log2
n sums.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedfloor.models import parcel
from fedfloor.models.parcel import Packet

Sums = dict[str, Tensor]


def kept(packet: Packet, own: Tensor) -> dict[str, Tensor]:
    """Return a packet that no visit changes: the resident network's own buffer ``own`` is copied."""
    return {name: value.clone() if value is own else value for name, value in packet.items()}


class TreeSum:
    """The weighted sum Σ weight_i·packet_i of the branches 0 … n − 1 of one node.

    Args:
        branches: n, at least 1.

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
            weight = 1.0  # the mean of one branch is that branch to the bit: x·n/n would be rounded twice
        into = self._spare.pop() if self._spare else {name: torch.empty_like(value) for name, value in packet.items()}
        for name, value in packet.items():
            torch.mul(value, weight, out=into[name])
        self._put((0, index), (weight, into))

    def _put(self, place: tuple[int, int], node: tuple[float, Sums | None]) -> None:
        level, i = place
        while level < self._top:
            sibling = (level, i ^ 1)
            if (i ^ 1) << level >= self._branches:
                pass  # no branches there: the node is its parent
            elif sibling in self._nodes:
                other = self._nodes.pop(sibling)
                node = self._join(node, other) if i % 2 == 0 else self._join(other, node)
            else:
                break
            level, i = level + 1, i // 2
        self._nodes[level, i] = node

    def _join(self, left: tuple[float, Sums | None], right: tuple[float, Sums | None]) -> tuple[float, Sums | None]:
        if left[1] is None or right[1] is None:
            return left[0] + right[0], right[1] if left[1] is None else left[1]
        for name, value in left[1].items():
            value.add_(right[1][name])
        self._spare.append(right[1])
        return left[0] + right[0], left[1]

    def unfinished(self) -> list[bytes | memoryview]:
        """Return the nodes held here as byte strings, for the other ranks' :meth:`take`."""
        heads, parts = [], []
        for (level, i), (weight, sums) in self._nodes.items():
            heads.append([level, i, weight, sorted(sums) if sums else None])
            parts += [one.data.cast("B") for _, one in sorted(parcel.pack(sums or {}).items())]
        return [json.dumps(heads).encode(), *parts]

    def take(self, parts: Sequence[memoryview], like: Packet) -> None:
        """Add the nodes another rank held; ``like`` says the type of each name's numbers."""
        at = 1
        for level, i, weight, names in json.loads(bytes(parts[0])):
            sums: Sums | None = None
            if names is not None:
                kinds = [torch.empty(0, dtype=like[name].dtype).numpy().dtype for name in names]
                arrays = [np.frombuffer(p, k) for p, k in zip(parts[at : at + len(names)], kinds, strict=True)]
                sums = {
                    name: torch.from_numpy(array).to(like[name].device)
                    for name, array in zip(names, arrays, strict=True)
                }
                at += len(names)
            self._put((level, i), (weight, sums))

    def mean(self, start: Packet) -> dict[str, Tensor]:
        """Return Σ weight_i·packet_i / Σ weight_i, or ``start`` where every branch was left out."""
        ((weight, sums),) = self._nodes.values()
        if sums is None:
            return dict(start)
        return {name: value.div_(weight) for name, value in sums.items()}
