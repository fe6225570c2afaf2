"""How much each device may send to an edge: a bucket of tokens per sender, filled by time and by what it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

BURST = 256  # tokens of a full bucket: what a device on a bad line sends unasked stays far below
RATE_HZ = 4.0  # tokens per second
CHUNK = 1 << 20  # bytes; a message costs one token, and one more for each whole chunk


class Flow:
    """Token buckets, one per sender.

    A request adds what its answer costs, so that a device that only answers never runs out, however fast it is asked.

    Args:
        clock: seconds; only differences count.

    >>> flow = Flow(clock=lambda: 0.0)
    >>> sum(flow.admits("press-1", 100) for _ in range(1000))
    256
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[str, float] = {}
        self._filled: dict[str, float] = {}
        self._lock = Lock()

    def expect(self, sender: str, most: int) -> None:
        """Add what an answer of at most so many bytes costs.

        What is never answered cannot be saved up: beyond two bursts, no more than one answer is added.
        """
        cost = _cost(most)
        with self._lock:
            self._tokens[sender] = min(self._fill(sender) + cost, 2 * BURST + cost)

    def admits(self, sender: str, size: int) -> bool:
        """Return whether a message of so many bytes is admitted, and take its tokens; the last one may overdraw."""
        with self._lock:
            tokens = self._fill(sender)
            self._tokens[sender] = tokens if tokens <= 0 else tokens - _cost(size)
            return tokens > 0

    def _fill(self, sender: str) -> float:
        now = self._clock()
        tokens, before = self._tokens.get(sender, float(BURST)), self._filled.get(sender, now)
        self._filled[sender] = now
        return max(tokens, min(BURST, tokens + (now - before) * RATE_HZ))


def _cost(size: int) -> int:
    return 1 + size // CHUNK
