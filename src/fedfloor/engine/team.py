"""Teams of ranks that work on one run: barriers, and the exchange of byte strings.

On one host a team communicates through shared memory (a barrier takes tens of microseconds), between hosts through
``torch.distributed`` with gloo. Both offer the same two calls, ``gather`` and ``fail``; a team of one rank needs
neither.

POSIX semaphores in the shared memory order the ranks' writes and reads: a rank posts after it has written, and waits
before it reads. POSIX lists ``sem_post``, ``sem_trywait`` and ``sem_timedwait`` among the functions that synchronise
memory between threads and processes (Base Definitions, Memory Synchronization). The order therefore also holds on
processors that reorder stores and loads, such as aarch64, where a counter written after the data would not suffice.
With gloo on one host rounds of the FedGS and HFedMS networks take 14 to 17 % longer (``fedfloor bench simulation``).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np

from fedfloor.base import regular
from fedfloor.base.errors import DivergedError, FedfloorError, RunError, SettingError
from fedfloor.base.outside import blamed

Blob = memoryview | bytes | bytearray
CONTROL_BYTES = 1 << 16
STRIDE = 64  # bytes between words or semaphores, so that two ranks never write the same cache line
WORD = 8  # bytes of an int64
# the entries of the control page, one per rank; two for TOTAL
ARRIVED = 0
FAILED = 1
TOTAL = 2
CLAIM = 4
LENGTH = 5
ERROR_AT = 1 << 15
POLLS = 200  # seconds before a rank sleeps: most waits are shorter
LOOK_S = 0.1  # interval at which a sleeping rank checks that the others are alive
RAISED = {kind.__name__: kind for kind in (SettingError, DivergedError)}  # other errors become RunError elsewhere
MOST_RANKS = 64  # the control page has room for 85 ranks


class Team(Protocol):
    """The ranks of one run."""

    rank: int
    size: int

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Exchange byte strings between all ranks; return them by rank. Every rank must call it at the same point."""
        ...

    def fail(self, error: BaseException) -> None:
        """Signal a failure of this rank; the next ``gather`` of the others raises the same error."""
        ...

    def close(self) -> None:
        """Leave the team."""
        ...


class Alone:
    """A team of one."""

    rank = 0
    size = 1

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        return [[memoryview(part).cast("B") for part in mine]]

    def fail(self, error: BaseException) -> None:
        pass

    def close(self) -> None:
        pass


class PeerLostError(RunError):
    """The death of another rank that left no error message."""

    key = "rank-lost"


class Shared:
    """The team of ranks on one host: a shared file with a control page, and two mailboxes per rank for use in turn.

    With two mailboxes one barrier per exchange is enough: before a rank fills a mailbox for the second time, it passes
    the barrier in between, which every rank reaches only after it has read the first message.

    At a barrier a rank posts to the semaphores of the n − 1 others, and waits n − 1 times on its own semaphore. The
    first rank to pass barrier t has a post from each of the others, as none of them can have posted for t + 1. So no
    rank passes before all have arrived, whatever the order of the posts.

    Args:
        parent: id of the process whose death ends this rank; 0: none.
    """

    def __init__(self, path: Path, rank: int, size: int, *, parent: int = 0) -> None:
        self.rank = rank
        self.size = size
        self._parent = parent
        with regular.opened(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._bytes = memoryview(self._map)
        self._room = (len(self._bytes) - CONTROL_BYTES) // (2 * size)
        self._words = np.frombuffer(self._bytes[:ERROR_AT], dtype=np.int64)
        self._base = int(self._words.ctypes.data)
        self._turn = 0
        self._failed = False
        self.children: list[int] = []

    def _word(self, kind: int, rank: int) -> int:
        return ((kind * self.size + rank) * STRIDE) // WORD

    def _mailbox(self, rank: int, turn: int) -> memoryview:
        start = CONTROL_BYTES + (2 * rank + turn % 2) * self._room
        return self._bytes[start : start + self._room]

    def _semaphore(self, kind: int, rank: int) -> int:
        return self._base + (kind * self.size + rank) * STRIDE

    def barrier(self) -> None:
        """Wait until every rank has arrived; raise the error of a rank that failed."""
        if self._failed:
            self._raise_failure()
        c = _c()
        own = self._semaphore(ARRIVED, self.rank)
        self._turn += 1
        self._post(ARRIVED)
        missing = self.size - 1
        polls = 0
        while missing:
            if c.sem_trywait(own) == 0:
                missing -= 1
            elif polls < POLLS:
                polls += 1
                os.sched_yield()
            elif c.sem_timedwait(own, _until(LOOK_S)) == 0:
                missing -= 1
            else:
                missing = self._check_alive(missing)
        self._raise_failure()

    def _post(self, kind: int) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                _c().sem_post(self._semaphore(kind, rank))

    def _raise_failure(self) -> None:
        if not self._failed and _c().sem_trywait(self._semaphore(FAILED, self.rank)):
            return
        self._failed = True
        length = int(self._words[self._word(LENGTH, 0)])
        kind, key, text = bytes(self._bytes[ERROR_AT : ERROR_AT + length]).decode(errors="ignore").split("\0", 2)
        raise RAISED.get(kind, RunError)(text, key=key)

    def _check_alive(self, missing: int) -> int:
        """Raise another rank's failure; return the number of ranks still missing."""
        if self._parent and os.getppid() != self._parent:
            os._exit(1)
        dead = [pid for pid in self.children if _dead(pid)]
        self._raise_failure()  # a dead rank may have left its error since the last check
        if dead:
            while missing and _c().sem_trywait(self._semaphore(ARRIVED, self.rank)) == 0:
                missing -= 1
            if missing:  # otherwise it was the last barrier, and its work is done
                pid = dead[0]
                lost = PeerLostError(
                    f"a rank (process {pid}) died while the others were working. "
                    "The last checkpoint is intact: continue with --resume."
                )
                self.fail(lost)
                raise lost
        return missing

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Exchange byte strings through the mailboxes, in the turns that the longest needs; return them by rank."""
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
            self._words[self._word(TOTAL + turn % 2, self.rank)] = total
            _write(outgoing, sent, self._mailbox(self.rank, turn))
            self.barrier()
            if sent == 0:
                totals = [int(self._words[self._word(TOTAL + turn % 2, rank)]) for rank in range(self.size)]
                incoming = [bytearray(0 if rank == self.rank else totals[rank]) for rank in range(self.size)]
            for rank in others:
                take = max(0, min(self._room, totals[rank] - sent))
                incoming[rank][sent : sent + take] = self._mailbox(rank, turn)[:take]
            sent += self._room
        return [parts if rank == self.rank else _unpack(memoryview(incoming[rank])) for rank in range(self.size)]

    def fail(self, error: BaseException) -> None:
        """Leave the error for the other ranks, with file and line if a user's code raised it."""
        if self._failed or _c().sem_trywait(self._semaphore(CLAIM, 0)):  # another rank has left its error
            return
        error = blamed(error) or error
        kind = next((name for name, kind in RAISED.items() if isinstance(error, kind)), "RunError")
        text = str(error) if isinstance(error, FedfloorError) else f"{type(error).__name__}: {error}"
        key = error.key if isinstance(error, FedfloorError) else ""
        message = f"{kind}\0{key}\0{text}".encode()[: CONTROL_BYTES - ERROR_AT]
        self._bytes[ERROR_AT : ERROR_AT + len(message)] = message
        self._words[self._word(LENGTH, 0)] = len(message)
        self._failed = True
        self._post(FAILED)
        self._post(ARRIVED)  # wakes the waiting ranks, which then check

    def close(self) -> None:
        del self._words
        self._bytes.release()
        with contextlib.suppress(BufferError):  # a traceback holds views of the memory: the last one unmaps it
            self._map.close()


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


@cache
def _c() -> ctypes.CDLL:
    """Return the C library, as its semaphores can be in given memory; Python's own semaphores are named objects."""
    library = ctypes.CDLL(None)
    library.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
    library.sem_post.argtypes = library.sem_trywait.argtypes = (ctypes.c_void_p,)
    library.sem_timedwait.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Time))
    return library


def _until(seconds: float) -> _Time:
    """Return the time of day ``seconds`` from now, as ``sem_timedwait`` takes it."""
    then = time.time() + seconds
    return _Time(int(then), int(then % 1 * 1e9))


def _dead(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # other code in this process has reaped it
        return True


def _write(parts: Sequence[memoryview], skip: int, into: memoryview) -> None:
    """Copy the bytes [skip, skip + len(into)) of the concatenated parts to ``into``."""
    start = 0
    at = 0
    for part in parts:
        low = max(0, skip - start)
        high = min(len(part), skip + len(into) - start)
        if low < high:
            into[at : at + high - low] = part[low:high]
            at += high - low
        start += len(part)


def _unpack(message: memoryview) -> list[memoryview]:
    first = WORD * (1 + int(np.frombuffer(message[:WORD], np.int64)[0]))
    return split(message[first:], np.frombuffer(message[WORD:first], np.int64).tolist())


def split(message: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Split a message into parts of the given sizes in bytes, without copying."""
    stops = list(accumulate(sizes))
    return [message[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]


def shared_file(ranks: int, packet_bytes: int) -> Path:
    """Create the shared file of a team on one host, in memory if there is room, else in the temporary folder.

    A mailbox holds four packets, at least 1 and at most 64 MiB. Unlink the file once every rank has opened it.
    """
    import tempfile

    room = min(64 << 20, max(1 << 20, 4 * packet_bytes + (1 << 16)))
    size = CONTROL_BYTES + 2 * ranks * room
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if not Path(folder).is_dir():
            continue
        handle, name = tempfile.mkstemp(prefix="fedfloor-", dir=folder)
        try:
            os.posix_fallocate(handle, 0, size)  # reserved, as a full tmpfs would kill a rank with SIGBUS later
            _prepare(handle, ranks)
            return Path(name)
        except OSError:
            Path(name).unlink()
        finally:
            os.close(handle)
    raise RunError(
        f"no room for the {size / 2**20:.0f} MiB that {ranks} ranks share: free it in /dev/shm or the temporary folder."
    )


def _prepare(handle: int, ranks: int) -> None:
    """Initialise the semaphores of a shared file: no rank has arrived or failed, and one rank may write its error."""
    with mmap.mmap(handle, CONTROL_BYTES) as page:
        base = int(np.frombuffer(page, np.uint8).ctypes.data)
        for kind, value in ((ARRIVED, 0), (FAILED, 0), (CLAIM, 1)):
            for rank in range(ranks):
                _c().sem_init(base + (kind * ranks + rank) * STRIDE, 1, value)


def deal(costs: Sequence[int], ranks: int) -> list[range]:
    """Deal branches to ranks in contiguous runs with the smallest possible greatest cost of a rank.

    >>> deal([1, 1, 1, 1, 1], 2)
    [range(0, 3), range(3, 5)]
    >>> deal([5, 1, 1, 1], 3)
    [range(0, 1), range(1, 4), range(4, 4)]
    """
    low, high = max(costs, default=0), sum(costs)
    while low < high:  # the smallest load for which first-fit needs no more runs than there are ranks
        middle = (low + high) // 2
        low, high = (low, middle) if len(_runs(costs, middle)) <= ranks else (middle + 1, high)
    runs = _runs(costs, low)
    return runs + [range(len(costs), len(costs))] * (ranks - len(runs))


def _runs(costs: Sequence[int], load: int) -> list[range]:
    runs = []
    start = 0
    total = 0
    for i, cost in enumerate(costs):
        if i > start and total + cost > load:
            runs.append(range(start, i))
            start = i
            total = 0
        total += cost
    return [*runs, range(start, len(costs))]
