"""Parcels between two sites: packets with the part of the model that a scope selects.

Receipts, prices, the wire and the exchange between ranks count and cut packets only by this module.
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
    """Return a packet as arrays, which share the memory of tensors on the CPU."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in packet.items()}


def unpack(arrays: Arrays) -> dict[str, Tensor]:
    """Return arrays as writable tensors, by name."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def digest(packet: Packet) -> str:
    """Return the SHA-256 of a packet: of its tensors' names, types, shapes and numbers."""
    whole = hashlib.sha256()
    for name, array in sorted(pack(packet).items()):
        whole.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
        whole.update(array.data)
    return whole.hexdigest()


def tensor_of(blob: memoryview | bytes, like: Tensor) -> Tensor:
    """Return a byte string's numbers as a tensor with the type and device of another tensor."""
    return torch.from_numpy(np.frombuffer(blob, torch.empty(0, dtype=like.dtype).numpy().dtype)).to(like.device)


class Coded(Protocol):
    """The contract of an encoding of the first numbers that travel: :class:`fedfloor.parts.travel.chains.Coding`."""

    @property
    def numbers(self) -> int:
        """The number of coded values."""
        ...

    @property
    def bytes(self) -> int:
        """The size of the payload in bytes."""
        ...


@dataclass(frozen=True)
class Parcel:
    """A parcel: the model ``w`` of a packet is cut to ``parts``; the packet's other vectors travel whole.

    Args:
        coding: the encoding of the first numbers, with which ``w`` travels as bytes; None: numbers travel unchanged.

    >>> Parcel((slice(0, 1), slice(2, 4)), 4).size({"w": torch.zeros(4), "c": torch.zeros(3)})
    24
    """

    parts: tuple[slice, ...]  # the slices of the model that travel, ascending
    model: int  # P, the size of the model
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
        """Return the number of values that travel among the model's first ``first`` values."""
        return sum(max(0, min(part.stop, first) - part.start) for part in self.parts)

    def cut(self, model: Tensor) -> Tensor:
        """Return the numbers of a model that travel; a view if they are one slice."""
        return model[self.parts[0]] if len(self.parts) == 1 else torch.cat([model[:0], *(model[p] for p in self.parts)])

    def put(self, numbers: Tensor, model: Tensor) -> Tensor:
        """Return a copy of ``model`` in which ``numbers`` replace the numbers that travel."""
        return self.set(numbers, model.clone())

    def set(self, numbers: Tensor, model: Tensor) -> Tensor:
        """Replace the numbers of a model that travel in place; return the model."""
        at = 0
        for part in self.parts:
            width = part.stop - part.start
            model[part] = numbers[at : at + width]
            at += width
        return model

    def size(self, packet: Packet) -> int:
        """Return the number of bytes of a packet that travel."""
        beside = sum(tensor.nbytes for name, tensor in packet.items() if name != "w")
        return beside + (self.model_bytes(packet["w"].element_size()) if "w" in packet else 0)

    def model_bytes(self, number: int) -> int:
        """Return the number of bytes of the model that travel; ``number`` is the size of a number in bytes."""
        coded, size = (0, 0) if self.coding is None else (self.coding.numbers, self.coding.bytes)
        return size + (self.numbers - coded) * number

    def pack(self, packet: Packet) -> dict[str, NDArray[Any]]:
        """Return the arrays of a packet that travel; with codecs, its model must be encoded already."""
        whole = "w" not in packet or self.coding is not None
        return pack(packet if whole else {**packet, "w": self.cut(packet["w"])})

    def unpack(self, arrays: Arrays, around: Packet) -> dict[str, Tensor]:
        """Return the packet from arrived arrays; numbers that did not travel are those of ``around``."""
        packet = unpack(arrays)
        return packet if self.whole or self.coding is not None else {**packet, "w": self.put(packet["w"], around["w"])}

    def like(self, packet: Packet) -> Wanted:
        """Return the shapes and types of the arrays that must return for a packet."""
        wanted = {name: (tuple(tensor.shape), tensor.numpy().dtype) for name, tensor in packet.items()}
        if self.coding is not None:
            return {**wanted, "w": ((self.model_bytes(packet["w"].element_size()),), np.dtype(np.uint8))}
        return {**wanted, "w": ((self.numbers,), wanted["w"][1])}

    def rest(self, model: Tensor) -> str:
        """Return the digest of the numbers of a model that do not travel; "" if all travel."""
        if self.whole:
            return ""
        digest = hashlib.sha256()
        at = 0
        for part in (*self.parts, slice(self.model, self.model)):
            digest.update(model[at : part.start].contiguous().numpy().data)
            at = part.stop
        return digest.hexdigest()
