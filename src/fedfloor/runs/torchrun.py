"""Being one rank of a ``torchrun`` job, on one machine or many.

``torchrun --max-restarts`` starts all ranks anew where one has died. A job that has begun a run leaves a mark in the
run's folder, and goes on from the last checkpoint where it is started anew and finds it. No other job does: the first
start of any job takes the mark away.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from fedfloor.engine.team import MOST_RANKS, Alone, Blob, PeerLostError, Shared, Team, shared_file
from fedfloor.errors import FedfloorError, RunError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import loop
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders, interrupts
from fedfloor.runs.parks import build_park, packet_bytes, warn_of_gaps
from fedfloor.runs.prepare import prepare
from fedfloor.runs.results import noted

log = logging.getLogger(__name__)

JOINING = timedelta(minutes=10)  # that a job waits for its last rank
MARK = ".torchrun"  # in a run's folder from when the job that works there has begun


if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Gloo:
    """Ranks on several hosts: byte strings through ``torch.distributed``.

    A rank that fails ends its process; gloo then fails the others, and ``torchrun`` ends the job or starts it anew.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Exchange lengths, then the bytes padded to the longest message.

        Raises:
            PeerLostError: a rank is gone.
        """
        parts = [memoryview(part).cast("B") for part in mine]
        try:
            return self._exchanged(parts)
        except RuntimeError as error:  # of gloo
            raise PeerLostError(
                f"a rank on this or another host died, or cannot be reached ({str(error).splitlines()[0]}). The last "
                "checkpoint is good: go on with --resume, or let torchrun do so with --max-restarts."
            ) from error

    def _exchanged(self, parts: list[memoryview]) -> list[list[memoryview]]:
        lengths: list[list[int]] = [[] for _ in range(self.size)]
        dist.all_gather_object(lengths, [len(part) for part in parts])
        longest = max(1, *(sum(one) for one in lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        view, at = padded.numpy().data, 0
        for part in parts:
            view[at : at + len(part)] = part
            at += len(part)
        everyone = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(everyone, padded)
        return [_split(got.numpy().data, sizes) for got, sizes in zip(everyone, lengths, strict=True)]

    def fail(self, error: BaseException) -> None:
        """Do nothing: the end of this process tells the others."""

    def close(self) -> None:
        """Do nothing: the process group is closed by :func:`join`."""


def _split(message: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    parts, at = [], 0
    for size in sizes:
        parts.append(message[at : at + size])
        at += size
    return parts


def join(experiment: Experiment, orders: Orders, report: Callable[[Line], None]) -> str:
    """Run an experiment as one rank of the job this process was started in.

    All hosts must see the run's folder: checkpoints and device memory are read from it by every rank.

    Raises:
        SettingError: the job's processes do not see one another, or the first rank refuses to start.
    """
    try:
        store, rank, size = next(rendezvous("env://", timeout=JOINING))
        name = _start_name(store, rank, size)
        store = dist.PrefixStore(name, store)  # type: ignore[attr-defined]  # public all the same
        long = timedelta(days=7)  # a rank may wait long for another one's branch
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=long)
    except (RuntimeError, ValueError) as error:
        raise SettingError(f"torchrun started this process, but its job cannot be joined: {error}") from error
    try:
        again = _started_again()
        if dist.get_rank():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop
            orders = replace(orders, resume=_heard())
            return _execute(experiment, orders, report, build_park(experiment), lambda: False)
        with ExitStack() as stack:
            with _said_to_all() as said:
                stack.enter_context(owned(orders.out))
                orders = _resuming(orders, again=again)
                park = build_park(experiment)
                warn_of_gaps(park)
                prepare(experiment, orders, park)
                (orders.out / MARK).touch()
                said.append(orders.resume)
            stack.enter_context(noted(orders.out))
            interrupted = stack.enter_context(interrupts())
            return _execute(experiment, orders, report, park, interrupted)
    finally:
        dist.destroy_process_group()


def _start_name(store: Store, rank: int, size: int) -> str:
    """Agree on a name that no other start of the job has: its store may still hold where the dead ranks were found.

    The first rank makes the name up and tells it to whoever asks, until all have it. Keys that are waited for hold what
    was made up just now, so that nothing an earlier start left can be taken for an answer.
    """
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"asks {rank}", mine)
        name: str = store.get(f"told {mine}").decode()
        store.set(f"heard {name} {rank}", "")
        return name
    began = time.monotonic()
    while not all(store.check([f"heard {mine} {other}"]) for other in range(1, size)):
        for other in range(1, size):
            if store.check([f"asks {other}"]):
                store.set(f"told {store.get(f'asks {other}').decode()}", mine)
        if time.monotonic() - began > JOINING.total_seconds():
            raise RuntimeError(f"not all of its {size} ranks have come within {JOINING}")
        time.sleep(0.01)
    return mine


def _started_again() -> bool:
    """Return whether ``torchrun`` started this job anew; it counts that only on the host where a rank died."""
    counts = [0] * dist.get_world_size()
    dist.all_gather_object(counts, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    return max(counts) > 0


def _resuming(orders: Orders, *, again: bool) -> Orders:
    """Return orders that go on where this job itself began the run; what another one left is not taken for that."""
    mark = orders.out / MARK
    if again and mark.exists() and not orders.resume:
        log.info("torchrun started this job again: it goes on from the last checkpoint.")
        return replace(orders, resume=True)
    mark.unlink(missing_ok=True)
    return orders


@contextmanager
def _said_to_all() -> Iterator[list[bool]]:
    """Tell the other ranks whether the run is resumed, which the body appends, or why the first one refuses it."""
    said: list[bool] = []
    refused: FedfloorError | None = None
    try:
        yield said
    except FedfloorError as error:
        refused = error
        raise
    except BaseException as error:
        refused = RunError(f"the first rank failed: {type(error).__name__}: {error}.")
        raise
    finally:
        dist.broadcast_object_list([refused, *(said or [False])], src=0)


def _heard() -> bool:
    """Wait until the first rank has made the folder ready; return whether the run is resumed."""
    said: list[object] = [None, False]
    dist.broadcast_object_list(said, src=0)
    if isinstance(said[0], FedfloorError):
        raise said[0]
    return bool(said[1])


def _execute(
    experiment: Experiment, orders: Orders, report: Callable[[Line], None], park: Park, interrupted: Callable[[], bool]
) -> str:
    team = _team(packet_bytes(experiment, park))
    try:
        return loop.execute(experiment, orders, team, park, report, interrupted)
    except BaseException as error:
        team.fail(error)
        raise
    finally:
        team.close()


def _host() -> str:
    """Name what ranks must share to share memory: a running system, and its namespace of shared memory."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/mnt")


def _team(packet_bytes: int) -> Team:
    """Return shared memory where all ranks are on one host, gloo otherwise."""
    size, rank = dist.get_world_size(), dist.get_rank()
    if size == 1:
        return Alone()
    hosts: list[str] = [""] * size
    dist.all_gather_object(hosts, _host())
    if len(set(hosts)) > 1 or size > MOST_RANKS:
        return Gloo()
    path: list[str] = [str(shared_file(size, packet_bytes)) if rank == 0 else ""]
    dist.broadcast_object_list(path, src=0)
    team = Shared(Path(path[0]), rank, size)
    dist.barrier()
    if rank == 0:
        Path(path[0]).unlink()
    return team
