"""The limit on the messages of each sender, so that none floods a channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from fedfloor.deploy import mqtt

BURST = 256  # tokens of a full bucket, far more than a device on a poor connection needs for unrequested messages
RATE_HZ = 4.0  # tokens per second
CHUNK = mqtt.PACKET_BYTES  # bytes per further token: a message costs one token, and one more for each CHUNK
RESTART = 8  # tokens of a restart, more than a restarted device is expected to answer: one in 2 s is admitted for ever


class Flow:
    """A rate limit: one token bucket per sender.

    A request adds the cost of its answer, so that a device that only answers requests never runs out of tokens.

    Args:
        clock: returns the time in s; only differences are used.
        burst: tokens of a full bucket.
        rate_hz: tokens per second.

    >>> flow = Flow(clock=lambda: 0.0)
    >>> sum(flow.admits("press-1", 100) for _ in range(1000))
    256
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, burst: int = BURST, rate_hz: float = RATE_HZ
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._rate_hz = rate_hz
        self._tokens: dict[str, float] = {}
        self._filled: dict[str, float] = {}
        self._lock = Lock()

    def expect(self, sender: str, most: int) -> None:
        """Add a sender's tokens for an expected answer of at most ``most`` bytes.

        Tokens of missing answers do not accumulate: above two bursts, only one answer is added.
        """
        added = cost(most)
        with self._lock:
            self._tokens[sender] = min(self.refill(sender) + added, 2 * self._burst + added)

    def admits(self, sender: str, size: int) -> bool:
        """Return whether a message of ``size`` bytes is admitted, and take its tokens, if need be below zero."""
        with self._lock:
            tokens = self.refill(sender)
            self._tokens[sender] = tokens if tokens <= 0 else tokens - cost(size)
            return tokens > 0

    def spend(self, sender: str, tokens: int) -> None:
        """Take further tokens for a message that causes work beyond its size."""
        with self._lock:
            self._tokens[sender] = self.refill(sender) - tokens

    def refill(self, sender: str) -> float:
        """Return a sender's tokens, refilled for the time since the last call; the caller holds the lock."""
        now = self._clock()
        tokens = self._tokens.get(sender, float(self._burst))
        before = self._filled.get(sender, now)
        self._filled[sender] = now
        return max(tokens, min(self._burst, tokens + (now - before) * self._rate_hz))


def cost(size: int) -> int:
    """Return the tokens that a message of ``size`` bytes costs."""
    return 1 + size // CHUNK
