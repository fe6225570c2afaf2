"""Random draws without global state, each by a generator keyed by its purpose.

The key is the tuple (seed, purpose, round, tick, device, visit, …); equal keys give equal draws on any rank, in any
order and in any process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

DRAWING = RLock()  # PyTorch's global generator, from which dropout and initial weights draw; see drawing


def key(seed: int, purpose: str, *place: int) -> int:
    """Return the 128-bit key of a draw.

    Args:
        seed: the experiment's seed.
        purpose: the purpose of the draw, such as ``"batches"`` or ``"lost"``.
        place: the numbers that identify the draw: round, tick, device, visit, ….

    >>> key(0, "batches", 1, 0, 3, 0) == key(0, "batches", 1, 0, 3, 0)
    True
    >>> key(0, "batches", 1) == key(0, "lost", 1)
    False
    """
    text = ":".join([str(seed), purpose, *map(str, place)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(seed: int, purpose: str, *place: int) -> np.random.Generator:
    """Return a NumPy generator (counter-based Philox) for a purpose and place.

    >>> bool(generator(0, "order", 1).random() == generator(0, "order", 1).random())
    True
    """
    return np.random.Generator(np.random.Philox(_Key(key(seed, purpose, *place))))  # type: ignore[arg-type]


def resampled(many: int) -> Iterator[NDArray[np.int64]]:
    """Yield draws of as many of ``many`` units with replacement, [many] each: the same for every model."""
    rng = generator(0, "resample", many)
    while True:
        yield rng.integers(many, size=many)


def secret() -> np.random.Generator:
    """Return a generator seeded by the operating system, with draws that can neither be repeated nor predicted."""
    return np.random.Generator(np.random.Philox())


class _Key(ISeedSequence):
    """Philox's key as a seed sequence, because ``Philox(key=…)`` would first draw entropy from the system."""

    def __init__(self, number: int) -> None:
        self.words: NDArray[np.uint64] = np.frombuffer(number.to_bytes(16, "little"), "<u8")

    def generate_state(self, n_words: int, dtype: DTypeLike = np.uint32) -> NDArray[np.uint64]:
        del n_words, dtype  # Philox requests two words of 64 bits
        return self.words


def torch_seed(seed: int, purpose: str, *place: int) -> int:
    """Return a 63-bit seed for a ``torch.Generator``, for dropout masks and initial weights."""
    return key(seed, purpose, *place) & ((1 << 63) - 1)


@contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """Reserve PyTorch's global generator on the CPU for this thread while the body runs, and restore it afterwards.

    Several devices may be threads of one process, and a user may train in threads: one that seeds the generator while
    another builds a network would change that network's initial weights. Training, which seeds the generator by each
    visit's key and does not restore it, holds :data:`DRAWING` alone.

    Args:
        seed: the seed with which the body begins; None leaves the generator's state.
    """
    import torch  # late, because commands that train nothing draw, too

    with DRAWING, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
