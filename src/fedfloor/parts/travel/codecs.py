r"""Codecs: lossy encodings of a model, or of its change by a visit, that save bytes on the network.

Codecs form a chain: each passes numbers on to the next codec and adds side information (places, scales); the numbers of
the last codec are packed. The length of a payload depends only on the layout of the numbers, so it is known before
training. Codecs with a biased error (``top-k``, ``random-k``, ``low-rank``, ``sign``) encode changes, with error
feedback: a device keeps the residual e and encodes u + e,

.. math:: e ← u + e − decode(encode(u + e)), \qquad Σ_t decoded_t + e = Σ_t u_t.

A codec with another memory overrides :meth:`Codec.correct` and :meth:`Codec.keep`.

Sender and receiver draw from the same key, so that random places need not be sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.errors import SettingError, require
from fedfloor.base.ranges import RefusedError
from fedfloor.parts import fitting
from fedfloor.parts.protection.masking import FIGURES, exchanges
from fedfloor.parts.travel import packing
from fedfloor.parts.travel.codec import Codec
from fedfloor.parts.travel.packing import Bytes, Form, NumberLayout, Numbers
from fedfloor.parts.travel.path import NONE, RECEIPT, SUM, UPDATE, PathPart

SHARED = 0.6  # least share of the holders of a device's secrets, of whom those of its crew's others lack a few
AT_ONCE = 1 << 16  # numbers to round at a time
BOUND = 8.0  # of a secure sum: the greatest change of a number, however many steps a visit has
PRECISION = 52  # bits after the point of a double near 1
COARSEST = 9  # least bits after the point of a number of a model that is sums: some three digits of one near 1


@dataclass(frozen=True)
class Identity(Codec):
    """No encoding."""

    whole: ClassVar[bool] = True
    digits: ClassVar[float] = math.inf  # bits of precision of bfloat16

    @property
    def error(self) -> float:
        return float(2.0**-self.digits)

    leave = PathPart.leave
    arrive = PathPart.arrive

    def after(self, layout: NumberLayout) -> NumberLayout:
        return layout


@dataclass(frozen=True)
class Float16(Identity):
    """Half precision, rounded to the nearest; larger numbers are clipped to ±65504."""

    whole: ClassVar[bool] = False
    form: ClassVar[Form] = "float16"
    digits: ClassVar[float] = 11

    def after(self, layout: NumberLayout) -> NumberLayout:
        return replace(_raw(layout, self.form), form=self.form, bits=16)


@dataclass(frozen=True)
class Bfloat16(Float16):
    """The upper half of single precision: the same range with 8 bits of precision, rounded to the nearest."""

    form: ClassVar[Form] = "bfloat16"
    digits: ClassVar[float] = 8


@dataclass(frozen=True)
class Zeros(Codec):
    """Numbers that are all 0, of which none is sent."""

    def after(self, layout: NumberLayout) -> NumberLayout:
        return layout.flat(0)

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        if x.any():
            raise SettingError("travel_down: 'zeros' is the codec of numbers that are all 0, and some are not.")
        return NONE, x[:0]

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        return np.zeros(layout.numbers, np.float32)


@dataclass(frozen=True)
class Quantise(Codec):
    r"""Unbiased stochastic rounding to levels between 0 and each bucket's largest number (QSGD; Alistarh et al. 2017).

    x → s·ξ(x/s) with s = max|x| / (2^(bits − 1) − 1) over a bucket, where ξ rounds up or down so that E[ξ(y)] = y.

    Args:
        bits: the bits of a level: 8, 4, or 2 (levels −1, 0 and 1).
        bucket: the number of consecutive numbers with a common scale of 4 bytes.
    """

    bits: int = 8
    bucket: int = 512

    def __post_init__(self) -> None:
        require(self.bits in (8, 4, 2), "travel.quantise.bits", self.bits, "8, 4 or 2")
        require(self.bucket >= 1, "travel.quantise.bucket", self.bucket, "a whole number of at least 1")

    @property
    def error(self) -> float:
        """√bucket / levels: a number's error is at most one step, a fraction of the bucket's largest number."""
        return math.sqrt(self.bucket) / self._levels

    def after(self, layout: NumberLayout) -> NumberLayout:
        return replace(_raw(layout, f"int{self.bits}"), form="level", bits=self.bits)

    def side(self, layout: NumberLayout) -> int:
        return 4 * -(-layout.numbers // self.bucket)

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        most = np.float32(self._levels)
        levels = np.empty(x.size, np.int8)
        scales = np.empty(-(-x.size // self.bucket), "<f4")
        rows = max(1, AT_ONCE // self.bucket)
        for row in range(0, len(scales), rows):  # blocks that fit into a processor's cache
            part = x[row * self.bucket : (row + rows) * self.bucket]
            bucketed = np.zeros((-(-part.size // self.bucket), self.bucket), np.float32)
            bucketed.reshape(-1)[: part.size] = part
            scale = np.maximum(bucketed.max(1), -bucketed.min(1)) / most
            scales[row : row + len(scale)] = scale
            bucketed *= np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)[:, None]
            bucketed += rng.random(bucketed.shape, np.float32)
            np.clip(np.floor(bucketed, out=bucketed), -most, most, out=bucketed)
            levels[row * self.bucket :][: part.size] = bucketed.reshape(-1)[: part.size]
        return scales.view(np.uint8), levels

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        scales = _scales(side)
        full = numbers.size // self.bucket * self.bucket
        x = np.empty(numbers.size, np.float32)
        shape = (-1, self.bucket)
        whole = scales[: full // self.bucket, None]
        np.multiply(numbers[:full].reshape(shape), whole, out=x[:full].reshape(shape), dtype=np.float32)
        np.multiply(numbers[full:], scales[-1], out=x[full:], dtype=np.float32)
        return x

    @property
    def _levels(self) -> int:
        return int(2 ** (self.bits - 1)) - 1


@dataclass(frozen=True)
class Sign(Codec):
    """One bit per number and each tensor's mean magnitude (signSGD; Bernstein et al. 2018), with error feedback."""

    changes: ClassVar[bool] = True
    feedback: ClassVar[bool] = True

    def after(self, layout: NumberLayout) -> NumberLayout:
        return replace(_raw(layout, "sign"), form="level", bits=1)

    def side(self, layout: NumberLayout) -> int:
        return 4 * len(layout.shapes)

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        scales = np.array([np.abs(part).mean() for part in _split(x, layout)], "<f4")
        return scales.view(np.uint8), np.where(x < 0, -1, 1).astype(np.int8)

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        each = np.repeat(_scales(side), [rows * columns for rows, columns in layout.shapes])
        x: Numbers = np.multiply(numbers, each, dtype=np.float32)
        return x


@dataclass(frozen=True)
class TopK(Codec):
    """The largest numbers of a change with their places (sparsified SGD with memory; Stich et al. 2018).

    Args:
        share: the share of numbers to send, above 0 and at most 1; their number is rounded up.
    """

    share: float = 0.01

    changes: ClassVar[bool] = True
    feedback: ClassVar[bool] = True
    label: ClassVar[str] = "top-k"

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, f"travel.{self.label}.share", self.share, "above 0 and at most 1")

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return self.share == 1

    def after(self, layout: NumberLayout) -> NumberLayout:
        return layout.flat(self._kept(layout))

    def side(self, layout: NumberLayout) -> int:
        return packing.places_bytes(self._kept(layout), layout.numbers)

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        kept = self._kept(layout)
        sizes = np.abs(x)
        least = np.partition(sizes, x.size - kept)[x.size - kept]
        chosen = sizes > least  # of equal numbers the first
        chosen[np.flatnonzero(sizes == least)[: kept - np.count_nonzero(chosen)]] = True
        places = np.flatnonzero(chosen)
        return packing.pack_places(places, x.size), x[places]

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        x = np.zeros(layout.numbers, numbers.dtype)
        x[packing.unpack_places(side, numbers.size, layout.numbers)] = numbers
        return x

    def _kept(self, layout: NumberLayout) -> int:
        return min(layout.numbers, math.ceil(self.share * layout.numbers))


@dataclass(frozen=True)
class RandomK(TopK):
    """The numbers of a change at random places, which both sides draw from the same key (Stich et al. 2018).

    Args:
        share: the share of numbers to send, above 0 and at most 1; their number is rounded up.
    """

    label: ClassVar[str] = "random-k"

    def side(self, layout: NumberLayout) -> int:
        return 0

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        return NONE, x[self._places(layout, rng)]

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        x = np.zeros(layout.numbers, numbers.dtype)
        x[self._places(layout, rng)] = numbers
        return x

    def _places(self, layout: NumberLayout, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.sort(rng.choice(layout.numbers, self._kept(layout), replace=False, shuffle=False))


@dataclass(frozen=True)
class LowRank(Codec):
    """Matrices as P·Qᵀ, by power iteration from a random start (PowerSGD; Vogels et al. 2019); vectors unchanged.

    Rows are a layer's first dimension. A matrix is sent unchanged where the factors would not be smaller.

    Args:
        rank: the number of columns of P and Q, at least 1.
        iterations: the number of iterations of the power method, at least 1.
    """

    rank: int = 4
    iterations: int = 2

    changes: ClassVar[bool] = True
    feedback: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.rank >= 1, "travel.low-rank.rank", self.rank, "a whole number of at least 1")
        require(self.iterations >= 1, "travel.low-rank.iterations", self.iterations, "a whole number of at least 1")

    def after(self, layout: NumberLayout) -> NumberLayout:
        shapes: list[tuple[int, int]] = []
        for rows, columns in _raw(layout, "low-rank").shapes:
            smaller = self._smaller((rows, columns))
            shapes += [(rows, self.rank), (columns, self.rank)] if smaller else [(rows, columns)]
        return replace(layout, shapes=tuple(shapes))

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        parts: list[Numbers] = []
        for part, shape in zip(_split(x, layout), layout.shapes, strict=True):
            if not self._smaller(shape):
                parts.append(part)
                continue
            matrix = part.reshape(shape)
            right = rng.standard_normal((shape[1], self.rank)).astype(x.dtype)
            for _ in range(self.iterations):
                left, _ = np.linalg.qr(matrix @ right)
                right = matrix.T @ left
            parts += [left.reshape(-1), right.reshape(-1)]
        return NONE, np.concatenate(parts)

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        factors = iter(_split(numbers, self.after(layout)))
        parts = []
        for shape in layout.shapes:
            if self._smaller(shape):
                left = next(factors).reshape(-1, self.rank)
                right = next(factors).reshape(-1, self.rank)
                parts.append((left @ right.T).reshape(-1))
            else:
                parts.append(next(factors))
        return np.concatenate(parts)

    def _smaller(self, shape: tuple[int, int]) -> bool:
        rows, columns = shape
        return self.rank < min(rows, columns) and self.rank * (rows + columns) < rows * columns


@dataclass(frozen=True)
class SecureSum(Codec):
    """Weighted changes as masked whole numbers, of which only the sum over a group of devices is unmasked.

    See :mod:`fedfloor.parts.protection.masking`. A group is a factory, or all of them. No other codec can be beside it.

    Args:
        bits: the bits of a number; the sum is modulo 2^bits, with as many fractional bits as the number of devices
            allows.
        bound: the greatest change of a number; larger changes are clipped to it. 0: as far as the visit's rate and
            steps lead, at most 8. A model that is sums refuses larger ones instead: see :attr:`widest`.
        threshold: the share of a group's devices, in (1/2, 1], that unmasking needs; at least three devices.
        across: whether there is one sum over the devices of all factories, of which at least three must deliver; no
            edge and no cloud then sees a single factory's sum.
        together: whether each device is in a sum only with the two to four others of its crew, in every round and run,
            so that no two sums differ by fewer than three devices. A device that is missing costs its crew the round.
    """

    bits: int = 32
    bound: float = 0.0
    threshold: float = 0.6
    across: bool = False
    together: bool = False

    changes: ClassVar[bool] = True
    summed: ClassVar[bool] = True

    @property
    def traits(self) -> Mapping[str, str]:
        return {fitting.PROTECTED: ""}

    @property
    def excludes(self) -> Mapping[str, str]:
        why = "a sum over a cohort's few devices reveals more than a sum over all. Choose a method with one model."
        each = "with travel.secure-sum.together all devices are in each sum, without noise of theirs. Leave one out."
        alone = (
            "the sums of two rounds or runs, the second without a device, would give those of that device alone. Set "
            'method.travel = { kind = "secure-sum", together = true }: devices are then in sums by crews of three or '
            "more."
        )
        crews = {fitting.RECURS: alone}
        if self.together:
            crews = dict.fromkeys((fitting.DRAWS, fitting.NOISED), each)
            crews[fitting.MOVES] = "with travel.secure-sum.together a device stays with its crew. Leave one out."
        return {**super().excludes, **fitting.PROTECTING, fitting.COHORTS: why, **crews}

    @property
    def reveals(self) -> Mapping[str, str]:
        differing = "two differ by the updates of three devices or more, as crews are in each sum whole or not at all"
        if not self.together:
            differing = "two of different rounds with a device fewer differ by about its update (together = true: not)"
        receipt = "the mean loss and training accuracy of all devices of a sum"
        return {UPDATE: "", SUM: f"the sum of devices' updates; {differing}", RECEIPT: receipt}

    def __post_init__(self) -> None:
        require(self.bits in (16, 32, 64), "travel.secure-sum.bits", self.bits, "16, 32 or 64")
        require(0 <= self.bound < math.inf, "travel.secure-sum.bound", self.bound, "a finite number of at least 0")
        require(0.5 < self.threshold <= 1, "travel.secure-sum.threshold", self.threshold, "above 0.5 and at most 1")
        if self.together:
            require(
                self.threshold >= SHARED,
                "travel.secure-sum.threshold",
                self.threshold,
                f"{SHARED:g} to 1 with together",
            )

    @property
    def widest(self) -> float:
        r"""The greatest number per sample of a model that is sums, B; beyond it a device withdraws.

        The sum over K devices with N samples has steps of at most :math:`2BN/2^{b-1}`, so that it fits b bits, whatever
        numbers up to B per sample the devices have. Each rounds by at most half a step, and a mean is off by at most
        :math:`KB\,2^{1-b}`. B = 2^(b − 1 − 52), the default, makes that K·2^−52: the precision of double for a number
        near 1, in which devices add up anyway, and no finer; all other bits are room. With 64 bits it is 2,048. Of
        normalised sensors the squares over all N samples add up to N: those of a device with n samples are at most N/n
        per sample, so that only one with less than a 2,048th of the samples could exceed it. With 32 or 16 bits there
        is no such room, and it is 8.

        >>> SecureSum(bits=64).widest, SecureSum().widest, SecureSum(bits=64, bound=1e6).widest
        (2048.0, 8.0, 1000000.0)
        """
        return self.bound or max(BOUND, 2.0 ** (self.bits - 1 - PRECISION))

    @property
    def most(self) -> float:
        """The greatest :attr:`bound` of a model that is sums: with a greater one, its smaller numbers would be lost.

        A device then rounds a number per sample to multiples of 2^−9, some three digits of one near 1.

        >>> SecureSum().most, SecureSum(bits=64).most, SecureSum(bits=16).most
        (4194304.0, 1.8014398509481984e+16, 64.0)
        """
        return 2.0 ** (self.bits - 1 - COARSEST)

    def after(self, layout: NumberLayout) -> NumberLayout:
        return replace(_raw(layout, "secure-sum"), bits=self.bits)

    def side(self, layout: NumberLayout) -> int:
        return 8 * FIGURES

    @property
    def crosses(self) -> bool:
        return self.across

    def stages(self, devices: int) -> Sequence[tuple[int, int]]:
        return exchanges(devices)

    def leave(self, x: Numbers, layout: NumberLayout, rng: np.random.Generator) -> tuple[Bytes, Numbers]:
        raise SettingError("travel: the payload of one device cannot be read with 'secure-sum'.")

    def arrive(self, side: Bytes, numbers: Numbers, layout: NumberLayout, rng: np.random.Generator) -> Numbers:
        raise RefusedError("payload", "a masked payload cannot be read alone.")


def _raw(layout: NumberLayout, name: str) -> NumberLayout:
    """Return the layout of numbers that are not rounded yet.

    Raises:
        SettingError: an earlier codec of the chain has rounded them.
    """
    if layout.form != "raw":
        raise SettingError(
            f"travel: '{name}' comes after a codec that has rounded the numbers already. Leave one of the two out, or "
            'put those that choose numbers first: ["top-k", "int8"].'
        )
    return layout


def _scales(side: Bytes) -> NDArray[np.float32]:
    scales: NDArray[np.float32] = side.view("<f4")
    if not bool((np.isfinite(scales) & (scales >= 0)).all()):
        raise RefusedError("payload", "a scale is not a finite number of at least 0.")
    return scales


def _split(x: Numbers, layout: NumberLayout) -> list[Numbers]:
    return np.split(x, np.cumsum([rows * columns for rows, columns in layout.shapes])[:-1])


CODECS: dict[str, Callable[..., Codec]] = {
    "identity": Identity, "float16": Float16, "bfloat16": Bfloat16, "quantise": Quantise, "top-k": TopK,
    "random-k": RandomK, "low-rank": LowRank, "sign": Sign, "secure-sum": SecureSum,
}  # fmt: skip
OWN: dict[str, Callable[..., Codec]] = {"zeros": Zeros}  # for works of methods, not for experiments
