"""Ranks that work on one run: how they wait for each other and show each other bytes.

On one host a team talks through shared memory (a barrier takes tens of microseconds); between hosts it talks through
``torch.distributed`` with gloo. Both offer the same two calls, ``gather`` and ``fail``, and a team of one needs
neither.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from fedfloor.errors import DivergedError, FedfloorError, RunError, SettingError

Blob = memoryview | bytes | bytearray
CONTROL_BYTES = 1 << 16
WORD = 8  # int64 words, 64 bytes apart so that two ranks never write the same cache line
STRIDE = 64
ERROR_AT = 1 << 15
TOLD = {kind.__name__: kind for kind in (SettingError, DivergedError)}  # any other error arrives as a RunError
MOST_RANKS = 64  # as many as the control page has words for, twice over


class Team(Protocol):
    """The ranks of one run."""

    rank: int
    size: int

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Show everyone my byte strings; return everyone's, by rank. All ranks must call it at the same point."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one cannot go on; their next ``gather`` raises the same error."""
        ...

    def close(self) -> None:
        """Leave the team."""
        ...


class Alone:
    """A team of one."""

    rank = 0
    size = 1

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Return what was given."""
        return [[memoryview(part).cast("B") for part in mine]]

    def fail(self, error: BaseException) -> None:
        """Do nothing: there is nobody to tell."""

    def close(self) -> None:
        """Do nothing."""


class PeerLostError(RunError):
    """Another rank died without saying why."""


class Shared:
    """Ranks on one host: a control page and two mailboxes per rank in one shared file, used in turn.

    With two mailboxes one barrier per exchange is enough: a rank that fills a mailbox for the second time has passed
    the barrier between, which nobody reaches before it has read the first filling.

    Args:
        path: the shared file, made by :func:`shared_file`.
        rank: this process's number.
        size: number of ranks.
        parent: process id whose death ends this rank; 0 to watch nobody.
    """

    def __init__(self, path: Path, rank: int, size: int, *, parent: int = 0) -> None:
        self.rank, self.size = rank, size
        self._parent = parent
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._bytes = memoryview(self._map)
        self._room = (len(self._bytes) - CONTROL_BYTES) // (2 * size)
        self._words = np.frombuffer(self._bytes[:ERROR_AT], dtype=np.int64)
        self._fence = threading.Lock()
        self._turn = 0
        self.children: list[int] = []

    def _word(self, kind: int, rank: int) -> int:
        return ((kind * self.size + rank) * STRIDE) // WORD

    def _mailbox(self, rank: int, turn: int) -> memoryview:
        start = CONTROL_BYTES + (2 * rank + turn % 2) * self._room
        return self._bytes[start : start + self._room]

    def barrier(self) -> None:
        """Wait until every rank is here; raise what a rank that failed has said."""
        self._order()
        self._turn += 1
        self._words[self._word(0, self.rank)] = self._turn
        polls, began = 0, time.monotonic()
        checked = began
        while not self._all_here():
            polls += 1
            if polls < 200:
                os.sched_yield()
                continue
            now = time.monotonic()
            time.sleep(min(5e-3, max(20e-6, (now - began) / 50)))  # late by at most a fiftieth of the wait
            if now - checked > 0.1:
                checked = now
                self._check_alive()
            self._raise_failure()
        self._order()
        self._raise_failure()

    def _all_here(self) -> bool:
        counts = self._words[: self.size * STRIDE // WORD : STRIDE // WORD]
        return int(counts.min()) >= self._turn

    def _order(self) -> None:
        """Let no store or load cross this point: a lock's release and the next acquire are ordered on every CPU."""
        for _ in range(2):
            with self._fence:
                pass

    def _raise_failure(self) -> None:
        if not self._words[self._word(1, 0)]:
            return
        length = int(self._words[self._word(1, 1)]) if self.size > 1 else 0
        kind, _, text = bytes(self._bytes[ERROR_AT : ERROR_AT + length]).decode(errors="ignore").partition(":")
        raise TOLD.get(kind, RunError)(text)

    def _check_alive(self) -> None:
        if self._parent and os.getppid() != self._parent:
            os._exit(1)
        for pid in self.children:
            if _dead(pid):
                self._raise_failure()  # it may have said why since the last look
                if self._all_here():
                    return  # it was the last one, and its work is done
                lost = PeerLostError(
                    f"a rank (process {pid}) died while the others were working. "
                    "The last checkpoint is good: go on with --resume."
                )
                self.fail(lost)
                raise lost

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Exchange through the mailboxes, in as many turns as the longest message needs."""
        parts = [memoryview(part).cast("B") for part in mine]
        head = np.array([len(parts), *(len(p) for p in parts)], dtype=np.int64)
        outgoing = [head.data.cast("B"), *parts]
        total = sum(len(part) for part in outgoing)
        incoming: list[bytearray] = [bytearray() for _ in range(self.size)]
        totals = [0] * self.size
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = 0
        while sent == 0 or sent < max(totals):
            turn = self._turn
            self._words[self._word(2 + turn % 2, self.rank)] = total
            _write(outgoing, sent, self._mailbox(self.rank, turn))
            self.barrier()
            if sent == 0:
                totals = [int(self._words[self._word(2 + turn % 2, rank)]) for rank in range(self.size)]
                incoming = [bytearray(0 if rank == self.rank else totals[rank]) for rank in range(self.size)]
            for rank in others:
                take = max(0, min(self._room, totals[rank] - sent))
                incoming[rank][sent : sent + take] = self._mailbox(rank, turn)[:take]
            sent += self._room
        return [parts if rank == self.rank else _unpack(memoryview(incoming[rank])) for rank in range(self.size)]

    def fail(self, error: BaseException) -> None:
        """Leave the error where the others look while they wait."""
        if self._words[self._word(1, 0)]:
            return
        kind = next((name for name, one in TOLD.items() if isinstance(error, one)), "RunError")
        text = str(error) if isinstance(error, FedfloorError) else f"{type(error).__name__}: {error}"
        said = f"{kind}:{text}".encode()[: CONTROL_BYTES - ERROR_AT]
        self._bytes[ERROR_AT : ERROR_AT + len(said)] = said
        self._words[self._word(1, 1)] = len(said)
        self._order()
        self._words[self._word(1, 0)] = 1

    def close(self) -> None:
        """Unmap the shared file."""
        del self._words
        self._bytes.release()
        with contextlib.suppress(BufferError):  # a failure's traceback holds views: unmapped with the last one
            self._map.close()


def _dead(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # something else in this process has reaped it
        return True


def _write(parts: Sequence[memoryview], skip: int, into: memoryview) -> None:
    """Copy the bytes [skip, skip + len(into)) of the concatenated parts."""
    start, at = 0, 0
    for part in parts:
        low, high = max(0, skip - start), min(len(part), skip + len(into) - start)
        if low < high:
            into[at : at + high - low] = part[low:high]
            at += high - low
        start += len(part)


def _unpack(message: memoryview) -> list[memoryview]:
    count = int(np.frombuffer(message[:WORD], np.int64)[0])
    lengths = np.frombuffer(message[WORD : WORD * (1 + count)], np.int64)
    parts, at = [], WORD * (1 + count)
    for length in lengths.tolist():
        parts.append(message[at : at + length])
        at += length
    return parts


def shared_file(ranks: int, packet_bytes: int) -> Path:
    """Make the file a team on one host shares; in memory where there is room, else in the temporary folder.

    Args:
        ranks: number of ranks.
        packet_bytes: size of what is exchanged most, one packet; a mailbox holds four, between 1 and 64 MiB.

    Returns:
        Its path; unlink it once every rank has opened it.

    Raises:
        RunError: there is room for it nowhere.
    """
    import tempfile

    room = min(64 << 20, max(1 << 20, 4 * packet_bytes + (1 << 16)))
    size = CONTROL_BYTES + 2 * ranks * room
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if not Path(folder).is_dir():
            continue
        handle, name = tempfile.mkstemp(prefix="fedfloor-", dir=folder)
        try:
            os.posix_fallocate(handle, 0, size)  # reserve now: a full tmpfs would kill a rank with SIGBUS later
            return Path(name)
        except OSError:
            Path(name).unlink()
        finally:
            os.close(handle)
    raise RunError(
        f"no room for {size / 2**20:.0f} MiB that {ranks} ranks share, neither in /dev/shm nor in the temporary folder."
    )
