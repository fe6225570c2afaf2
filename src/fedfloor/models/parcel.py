"""What travels between two sites: a packet, and of its model the part that a scope names.

Receipts, prices, the wire and the exchange between ranks count and cut packets here and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Packet = Mapping[str, Tensor]
Arrays = Mapping[str, NDArray[Any]]
Wanted = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


def width(tensor: Tensor) -> int:
    """Return the bytes of one number of a tensor."""
    return tensor.element_size()


def pack(packet: Packet) -> dict[str, NDArray[Any]]:
    """Return a packet as arrays; those of tensors on a processor share their memory."""
    return {name: one.detach().cpu().contiguous().numpy() for name, one in packet.items()}


def unpack(arrays: Arrays) -> dict[str, Tensor]:
    """Return arrays as tensors that may be written to."""
    return {name: torch.from_numpy(np.array(one)) for name, one in arrays.items()}


@dataclass(frozen=True)
class Parcel:
    """What travels of packets whose model ``w`` is cut to ``part``; the other vectors of a packet travel whole.

    Args:
        part: the numbers of the model that travel.
        model: P, how many it has.

    >>> Parcel(slice(2, 4), 4).size({"w": torch.zeros(4), "c": torch.zeros(3)})
    20
    """

    part: slice
    model: int

    @property
    def whole(self) -> bool:
        """Whether all numbers of the model travel."""
        return self.part == slice(0, self.model)

    @property
    def numbers(self) -> int:
        """How many numbers of the model travel."""
        return int(self.part.stop - self.part.start)

    def size(self, packet: Packet) -> int:
        """Return the bytes of a packet that travel."""
        beside = sum(one.numel() * width(one) for name, one in packet.items() if name != "w")
        return beside + (self.numbers * width(packet["w"]) if "w" in packet else 0)

    def pack(self, packet: Packet) -> dict[str, NDArray[Any]]:
        """Return the arrays of a packet that travel."""
        arrays = pack(packet)
        return {**arrays, "w": arrays["w"][self.part]} if "w" in arrays else arrays

    def unpack(self, arrays: Arrays, around: Packet) -> dict[str, Tensor]:
        """Return the packet of arrays that came: the numbers that did not travel are those of ``around``."""
        packet = unpack(arrays)
        if not self.whole:
            model = around["w"].clone()
            model[self.part] = packet["w"]
            packet["w"] = model
        return packet

    def like(self, packet: Packet) -> Wanted:
        """Return the shapes and types of the arrays that come back for a packet."""
        wanted = {name: (tuple(one.shape), one.numpy().dtype) for name, one in packet.items()}
        return {**wanted, "w": ((self.numbers,), wanted["w"][1])}

    def rest(self, model: Tensor) -> str:
        """Return the digest of the numbers of a model that do not travel; "" where all do."""
        if self.whole:
            return ""
        digest = hashlib.sha256(model[: self.part.start].contiguous().numpy().data)
        digest.update(model[self.part.stop :].contiguous().numpy().data)
        return digest.hexdigest()
