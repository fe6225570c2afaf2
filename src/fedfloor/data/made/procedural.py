"""Procedural data for very large parks: samples are computed on demand.

They serve to measure the cost of methods with many devices; :mod:`fedfloor.data.made.labels` serves to measure
accuracy.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator, key
from fedfloor.base.errors import require
from fedfloor.base.machine import require_memory
from fedfloor.data.dataset import Dataset, Images, Indices, Labels, Made

RECIPE = "procedural 1"  # changes with the data
MAX_CLASSES = 1000
DEVICE_BYTES = 36  # memory for a device in a park and its assignment to a factory, at least
NOISE_BYTES = 4  # of noise per number of a picture
COARSE = 4  # side of a prototype's patches of equal value, in pixels
GREY = 127.5
CONTRAST = 40.0
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Procedural:
    """The properties of procedural data.

    Device k prefers class c_k, drawn uniformly: its samples have class c with probability s·[c = c_k] + (1 − s)/F. The
    picture of a sample of class c is 127.5 + 40·(P_c + σ·U), rounded and clipped to 0..255, where P_c is the class's
    prototype, a pattern of patches with values ~ N(0, 1), and U is uniform noise on every pixel with standard deviation
    1.

    Args:
        classes: F, from 2 to 1,000.
        shape: (C, H, W) of a picture, in pixels.
        skew: s in [0, 1]; 0: every device has the same mix of classes, 1: each has a single class.
        noise: σ in [0, 100].
        test_samples: number of test pictures, with all classes in turn.
    """

    classes: int = 10
    shape: tuple[int, int, int] = (1, 28, 28)
    skew: float = 0.5
    noise: float = 1.0
    test_samples: int = 1000

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        ok = 2 <= self.classes <= MAX_CLASSES
        require(ok, "data.procedural.classes", self.classes, f"a whole number from 2 to {MAX_CLASSES:,}")
        ok = len(self.shape) == 3 and min(self.shape) >= 1
        require(ok, "data.procedural.shape", list(self.shape), "[channels, height, width], each at least 1")
        require(0 <= self.skew <= 1, "data.procedural.skew", self.skew, "from 0 to 1")
        require(0 <= self.noise <= 100, "data.procedural.noise", self.noise, "from 0 to 100")
        tests = self.test_samples
        require(tests >= 1, "data.procedural.test_samples", tests, "a whole number of at least 1")


def procedural(devices: int, samples_per_device: int, seed: int, like: Procedural | None = None) -> Dataset:
    """Return procedural data, in which sample i, a function of (seed, i), belongs to device ⌊i / samples_per_device⌋.

    Args:
        devices: K ≥ 1.
        samples_per_device: the number of training samples of each device, at least 1.
        seed: the seed of all random draws.
        like: the properties of the samples; None for the defaults.

    >>> data = procedural(devices=10**6, samples_per_device=20, seed=0)
    >>> data.labels(np.array([0, 19_999_999])).shape, data.take(np.array([19_999_999]), 999_999).shape
    ((2,), (1, 1, 28, 28))
    """
    require(devices >= 1, "[park] devices", devices, "a whole number of at least 1")
    require(samples_per_device >= 1, "[data] samples_per_device", samples_per_device, "a whole number of at least 1")
    like = like or Procedural()
    _check_memory(devices, samples_per_device, like)
    n = samples_per_device
    classes = like.classes
    y_test = np.arange(like.test_samples) % classes

    def take(indices: Indices, device: int) -> Images:  # noqa: ARG001  (samples do not depend on the device here)
        noise = np.empty((len(indices), *like.shape), np.uint8)
        owners = indices // n
        order = np.argsort(owners, kind="stable")
        ends = np.flatnonzero(np.diff(owners[order], append=-1)) + 1
        for mine in np.split(order, ends[:-1]):
            owner = int(owners[mine[0]]) if len(mine) else 0
            noise[mine] = _noise(n, like, seed, "procedural noise", owner)[indices[mine] - owner * n]
        return _pictures(like, seed, labels(seed, n, like, indices), noise)

    @cache
    def tests() -> Images:  # used in every evaluation: generated once and kept
        return _pictures(like, seed, y_test, _noise(len(y_test), like, seed, "procedural test noise"))

    digest = hashlib.sha256(f"{RECIPE} devices={devices} samples={n} seed={seed} {like}".encode()).hexdigest()
    made = Made(np.arange(devices + 1, dtype=np.int64) * n, lambda indices: labels(seed, n, like, indices))
    return Dataset(
        "procedural", tuple(map(str, range(classes))), like.shape, np.zeros(0, np.int64), y_test, None, None, digest,
        take, lambda i: tests()[i], made=made,
    )  # fmt: skip


def _check_memory(devices: int, samples_per_device: int, like: Procedural) -> None:
    """Refuse sizes that do not fit into memory: the devices, one device's pictures, and the prototypes and tests."""
    whole = f"[park] devices = {devices} with [data] samples_per_device = {samples_per_device}"
    require(devices * samples_per_device < 2**63, whole, devices * samples_per_device, "less than 2^63 samples")
    require_memory(f"[park] devices = {devices}", DEVICE_BYTES * devices, "Use fewer devices.")
    length = math.prod(like.shape)
    shape = f"data.procedural.shape = {list(like.shape)}"
    held = f"[data] samples_per_device = {samples_per_device} with {shape}"
    require_memory(held, samples_per_device * (8 + length), "Use fewer or smaller samples.")
    kept = f"data.procedural.test_samples = {like.test_samples} and classes = {like.classes} with {shape}"
    tests = like.test_samples * (8 + length + NOISE_BYTES * length)  # all test pictures are drawn together
    require_memory(kept, tests + 2 * like.classes * length, "Use fewer or smaller samples.")


def labels(seed: int, samples_per_device: int, like: Procedural, indices: Indices) -> Labels:
    """Return the classes of samples, int64 [n], drawn by a hash of the samples' numbers.

    Args:
        seed: the seed of the draws.
        samples_per_device: the number of samples of each device, which maps samples to devices.
        like: the number of classes and the skew.
        indices: int64 [n], the numbers of the samples.
    """
    drawn = _hashed(indices, key(seed, "procedural classes"))
    own = _below(_hashed(indices // samples_per_device, key(seed, "procedural preference")), like.classes)
    prefers = (drawn >> np.uint64(32)).astype(np.float64) < like.skew * 2.0**32
    return np.where(prefers, own, _below(drawn << np.uint64(32), like.classes))


def _noise(count: int, like: Procedural, seed: int, purpose: str, *place: int) -> Images:
    """Return noise, one of 256 levels per pixel, [count, C, H, W]; bytes are drawn faster than normal noise."""
    return generator(seed, purpose, *place).integers(0, 256, (count, *like.shape), np.uint8)


def _pictures(like: Procedural, seed: int, y: Labels, noise: Images) -> Images:
    grey = _levels(like)[noise]
    grey += _prototypes(like, seed)[y]
    return grey.clip(0, 255, out=grey).astype(np.uint8)


@cache
def _levels(like: Procedural) -> NDArray[np.int16]:
    """Return int16 [256]: the change of a grey value by each level of noise."""
    level = (np.arange(256) + 0.5) / 256 - 0.5  # with standard deviation 1/√12
    return np.asarray(np.rint(CONTRAST * like.noise * np.sqrt(12) * level), np.int16)


@cache
def _prototypes(like: Procedural, seed: int) -> NDArray[np.int16]:
    """Return the prototypes of the classes as grey values, int16 [F, C, H, W]."""
    channels, height, width = like.shape
    rng = generator(seed, "procedural prototypes")
    coarse = rng.standard_normal((like.classes, channels, -(-height // COARSE), -(-width // COARSE)), np.float32)
    whole = coarse.repeat(COARSE, axis=2).repeat(COARSE, axis=3)
    return np.asarray(np.rint(GREY + CONTRAST * whole[:, :, :height, :width]), np.int16)


def _hashed(numbers: Indices, keyed: int) -> Words:
    """Return 64 random bits for each number, drawn by SplitMix64 with a key.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, doi:10.1145/2660193.2660195.
    """
    z = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(keyed & (2**64 - 1))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _below(words: Words, limit: int) -> Labels:
    """Return uniform random integers below ``limit``, made from the upper halves of 64 random bits."""
    return (((words >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
