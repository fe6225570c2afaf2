"""The packing of numbers and their places as bytes, and the layout of the numbers that codecs process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.ranges import RefusedError

Numbers = NDArray[Any]
Bytes = NDArray[np.uint8]
Form = Literal["raw", "float16", "bfloat16", "level"]


@dataclass(frozen=True)
class NumberLayout:
    """The layout of the numbers that enter or leave a codec.

    Args:
        shapes: rows and columns of the matrices that the numbers form, in order; a single row for any other tensor.
        form: the packing of the numbers: ``level``, whole numbers of ``bits`` each; ``raw``, unchanged.
        bits: the bits of each number.
    """

    shapes: tuple[tuple[int, int], ...]
    form: Form = "raw"
    bits: int = 32

    @cached_property
    def numbers(self) -> int:
        """The number of values."""
        return sum(rows * columns for rows, columns in self.shapes)

    @property
    def bytes(self) -> int:
        """The size of the packed numbers in bytes."""
        return -(-self.numbers * self.bits // 8)

    def flat(self, numbers: int) -> NumberLayout:
        """Return the layout of a vector of ``numbers`` numbers, with the same form and bits."""
        return replace(self, shapes=((1, numbers),))


def places_bytes(kept: int, numbers: int) -> int:
    """Return the size in bytes of ``kept`` places: ⌈log₂ n⌉ bits per place, or one bit per number if that is less.

    >>> places_bytes(10, 1000), places_bytes(500, 1000)
    (13, 125)
    """
    return -(-min(kept * _width(numbers), numbers) // 8)


def _width(numbers: int) -> int:
    return max(1, (numbers - 1).bit_length())


def pack_places(places: NDArray[np.int64], numbers: int) -> Bytes:
    """Return ascending places as bytes, in the form of :func:`places_bytes`.

    >>> unpack_places(pack_places(np.array([3, 700]), 1000), 2, 1000)
    array([  3, 700])
    """
    width = _width(numbers)
    if places.size * width >= numbers:
        mask = np.zeros(numbers, np.uint8)
        mask[places] = 1
        return np.packbits(mask)
    bits = np.unpackbits(places.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    return np.packbits(bits[:, 64 - width :])


def unpack_places(packed: Bytes, kept: int, numbers: int) -> NDArray[np.int64]:
    """Return the places packed by :func:`pack_places`.

    Raises:
        RefusedError: the number of places is wrong, or they are not ascending places of a vector of this length.
    """
    width = _width(numbers)
    if kept * width >= numbers:
        places = np.flatnonzero(np.unpackbits(packed, count=numbers))
    else:
        bits = np.zeros((kept, 64), np.uint8)
        bits[:, 64 - width :] = np.unpackbits(packed, count=kept * width).reshape(kept, width)
        places = np.packbits(bits, axis=1).view(">u8").astype(np.int64).reshape(-1)
    if places.size != kept or (kept and (int(places[-1]) >= numbers or bool((np.diff(places) <= 0).any()))):
        raise RefusedError("payload", f"it does not contain {kept} ascending places below {numbers}.")
    return places


def pack_numbers(x: Numbers, layout: NumberLayout) -> Bytes:
    """Return numbers as bytes, in the form of their layout."""
    if layout.form == "raw":
        return np.ascontiguousarray(x, _kind(layout)).view(np.uint8)
    if layout.form == "float16":
        return np.clip(x, -65504, 65504).astype("<f2").view(np.uint8)
    if layout.form == "bfloat16":
        words = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)
    if layout.bits == 8:
        return x.astype(np.int8).view(np.uint8)
    if layout.bits == 1:
        return np.packbits(x > 0)
    # levels per byte, the first in the lowest bits
    each = 8 // layout.bits
    packed = np.zeros(layout.bytes, np.uint8)
    levels = np.add(x, 2 ** (layout.bits - 1), dtype=np.int8).view(np.uint8)
    for place in range(each):
        some = levels[place::each]
        packed[: some.size] |= some << (place * layout.bits)
    return packed


def unpack_numbers(packed: Bytes, layout: NumberLayout) -> Numbers:
    """Return the numbers packed by :func:`pack_numbers`."""
    if layout.form == "raw":
        return packed.view(_kind(layout)).copy()
    if layout.form == "float16":
        return packed.view("<f2").astype(np.float32)
    if layout.form == "bfloat16":
        return (packed.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if layout.bits == 8:
        return packed.view(np.int8)
    if layout.bits == 1:
        return np.unpackbits(packed, count=layout.numbers).astype(np.int8) * 2 - 1
    each = 8 // layout.bits
    most = 2**layout.bits - 1
    levels = np.empty(layout.numbers, np.int8)
    for place in range(each):
        some = levels[place::each]
        some[:] = (packed[: some.size] >> (place * layout.bits)) & most
    levels -= 2 ** (layout.bits - 1)
    return levels


def _kind(layout: NumberLayout) -> str:
    return "<f4" if layout.bits == 32 else "<f8"
