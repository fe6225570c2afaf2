"""The aggregation of branches whose models edges send to the cloud as coded changes: see engine/travel.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedfloor.engine import travel
from fedfloor.engine.aggregation import Aggregation
from fedfloor.models.network import Network
from fedfloor.models.parcel import Packet
from fedfloor.parts import mix
from fedfloor.plan.nodes import Parallel
from fedfloor.plan.outcome import Receipt
from fedfloor.plan.schedule import Key
from fedfloor.ranges import RefusedError

NONE = torch.zeros(0, dtype=torch.uint8)  # payload of a branch in which every visit was lost


class CodedAggregation(Aggregation):
    """The aggregation of a ``Parallel`` at the cloud; each branch's change stays a coded payload until all are there.

    Args:
        place: the round and tick of the node, the key of the codecs' random draws.

    Attributes:
        samples: branch → number of samples of the distinct devices that trained in it.
    """

    wire: ClassVar[np.dtype[np.uint8] | None] = np.dtype(np.uint8)

    def __init__(self, network: Network, node: Parallel, start: Packet, place: Key) -> None:
        super().__init__(node, start)
        self._network, self._place = network, place
        self.samples: dict[int, int] = {}
        self._payloads: dict[int, Tensor] = {}

    def add(self, index: int, packet: Packet, samples: int, receipts: Sequence[Receipt] = ()) -> None:
        """Encode and keep a branch's change from the model that its edge received."""
        self.samples[index], self._payloads[index] = samples, NONE
        if samples:
            back = travel.from_edge(self._network, self._node, packet["w"], self.given["w"], self._place, index)
            self._payloads[index] = back

    def model(self, index: int) -> Tensor:
        """Return a branch's model: its decoded change added to the model that the cloud sent.

        Raises:
            RefusedError: the payload does not fit the node's codecs.
        """
        payload = self._payloads[index]
        return travel.back_at(self._network, self._node, payload, self.start["w"], self._place, index)

    def unfinished(self) -> list[bytes | memoryview]:
        """Return this rank's payloads as byte strings, the input of :meth:`take` on other ranks."""
        known = [payload.numpy().data for index, payload in self._payloads.items() if self.samples[index]]
        return [json.dumps({str(index): samples for index, samples in self.samples.items()}).encode(), *known]

    def take(self, parts: Sequence[memoryview]) -> None:
        """Keep the payloads of another rank, or of an edge.

        Raises:
            RefusedError: the number of payloads is not that of the trained branches.
        """
        heads = {int(index): samples for index, samples in json.loads(bytes(parts[0])).items()}
        trained = [index for index, samples in heads.items() if samples]
        if len(trained) != len(parts) - 1:
            raise RefusedError("shape", f"{len(parts) - 1} payloads arrived for {len(trained)} branches.")
        self.samples |= heads
        self._payloads |= dict.fromkeys(heads, NONE)
        for index, part in zip(trained, parts[1:], strict=True):
            self._payloads[index] = torch.from_numpy(np.frombuffer(part, np.uint8).copy())

    def mixed(self, known: Sequence[mix.Branch | None], classes: int, trained: int, rng: np.random.Generator) -> Packet:
        """Return the aggregated packet: the mixing rule applied to the decoded models."""
        for index, samples in self.samples.items():
            model = self.model(index) if samples else self.start["w"]
            super().add(index, {**self.start, "w": model}, samples)
        return super().mixed(known, classes, trained, rng)
