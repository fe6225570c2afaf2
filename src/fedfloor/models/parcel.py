"""Parcels between two sites: a packet, and of its model the part that a scope names.

Receipts, prices, the wire and the exchange between ranks count and cut packets here and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Packet = Mapping[str, Tensor]
Arrays = Mapping[str, NDArray[Any]]
Wanted = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


def pack(packet: Packet) -> dict[str, NDArray[Any]]:
    """Return a packet as arrays; those of tensors on a processor share their memory."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in packet.items()}


def unpack(arrays: Arrays) -> dict[str, Tensor]:
    """Return arrays as writable tensors."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def tensor_of(blob: memoryview | bytes, like: Tensor) -> Tensor:
    """Return the numbers of a byte string as a tensor of the type of another tensor, on its device."""
    return torch.from_numpy(np.frombuffer(blob, torch.empty(0, dtype=like.dtype).numpy().dtype)).to(like.device)


class Coded(Protocol):
    """The first numbers that travel, coded: :class:`fedfloor.parts.codecs.Coding`."""

    @property
    def numbers(self) -> int:
        """The number of coded values."""
        ...

    @property
    def bytes(self) -> int:
        """Bytes of their payload."""
        ...


@dataclass(frozen=True)
class Parcel:
    """The parcel of packets whose model ``w`` is cut to ``parts``; the other vectors of a packet travel whole.

    Args:
        coding: the code of the first tensors: ``w`` then travels as bytes. None: all travel unchanged.

    >>> Parcel((slice(0, 1), slice(2, 4)), 4).size({"w": torch.zeros(4), "c": torch.zeros(3)})
    24
    """

    parts: tuple[slice, ...]  # the numbers of the model that travel, in ascending pieces
    model: int  # P, how many it has
    coding: Coded | None = None

    @property
    def whole(self) -> bool:
        """Whether all numbers of the model travel."""
        return self.parts == (slice(0, self.model),)

    @property
    def numbers(self) -> int:
        """The number of the model's values that travel."""
        return sum(part.stop - part.start for part in self.parts)

    def among(self, first: int) -> int:
        """Return the number of travelling numbers among the model's first ones."""
        return sum(max(0, min(part.stop, first) - part.start) for part in self.parts)

    def cut(self, model: Tensor) -> Tensor:
        """Return the numbers of a model that travel, a view where they are one piece."""
        return model[self.parts[0]] if len(self.parts) == 1 else torch.cat([model[:0], *(model[p] for p in self.parts)])

    def put(self, numbers: Tensor, model: Tensor) -> Tensor:
        """Return a model with the numbers that travel replaced; the others are those of ``model``."""
        return self.set(numbers, model.clone())

    def set(self, numbers: Tensor, model: Tensor) -> Tensor:
        """Replace the numbers of a model that travel, in place, and return it."""
        at = 0
        for part in self.parts:
            width = part.stop - part.start
            model[part] = numbers[at : at + width]
            at += width
        return model

    def size(self, packet: Packet) -> int:
        """Return the bytes of a packet that travel."""
        beside = sum(tensor.nbytes for name, tensor in packet.items() if name != "w")
        return beside + (self.model_bytes(packet["w"].element_size()) if "w" in packet else 0)

    def model_bytes(self, number: int) -> int:
        """Return the bytes of the model that travel; ``number`` is the size of a number."""
        coded, size = (0, 0) if self.coding is None else (self.coding.numbers, self.coding.bytes)
        return size + (self.numbers - coded) * number

    def pack(self, packet: Packet) -> dict[str, NDArray[Any]]:
        """Return the arrays of a packet that travel; its model is already coded if it has codecs."""
        whole = "w" not in packet or self.coding is not None
        return pack(packet if whole else {**packet, "w": self.cut(packet["w"])})

    def unpack(self, arrays: Arrays, around: Packet) -> dict[str, Tensor]:
        """Return the packet of arrays that arrived: numbers that did not travel are taken from ``around``."""
        packet = unpack(arrays)
        return packet if self.whole or self.coding is not None else {**packet, "w": self.put(packet["w"], around["w"])}

    def like(self, packet: Packet) -> Wanted:
        """Return the shapes and types of the arrays that come back for a packet."""
        wanted = {name: (tuple(tensor.shape), tensor.numpy().dtype) for name, tensor in packet.items()}
        if self.coding is not None:
            return {**wanted, "w": ((self.model_bytes(packet["w"].element_size()),), np.dtype(np.uint8))}
        return {**wanted, "w": ((self.numbers,), wanted["w"][1])}

    def rest(self, model: Tensor) -> str:
        """Return the digest of the numbers of a model that do not travel; "" where all do."""
        if self.whole:
            return ""
        digest, at = hashlib.sha256(), 0
        for part in (*self.parts, slice(self.model, self.model)):
            digest.update(model[at : part.start].contiguous().numpy().data)
            at = part.stop
        return digest.hexdigest()
