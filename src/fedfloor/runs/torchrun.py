"""Running as one rank of a ``torchrun`` job, on one machine or many.

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

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from fedfloor.engine.team import MOST_RANKS, Alone, Blob, PeerLostError, Shared, Team, shared_file, split
from fedfloor.errors import FedfloorError, RunError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import loop
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Follow
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
        """Exchange lengths, then the bytes padded to the longest message; PeerLostError: a rank has ended."""
        message = b"".join(mine)
        lengths: list[list[int]] = [[] for _ in range(self.size)]
        try:
            dist.all_gather_object(lengths, [memoryview(part).nbytes for part in mine])
            longest = max(1, *map(sum, lengths))
            padded = np.zeros(longest, np.uint8)
            padded[: len(message)] = np.frombuffer(message, np.uint8)
            messages = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(messages, torch.from_numpy(padded))
        except RuntimeError as error:  # of gloo
            raise PeerLostError(
                f"a rank on this or another host died, or cannot be reached ({str(error).splitlines()[0]}). The last "
                "checkpoint is good: go on with --resume, or let torchrun do so with --max-restarts."
            ) from error
        return [split(received.numpy().data, sizes) for received, sizes in zip(messages, lengths, strict=True)]

    def fail(self, error: BaseException) -> None:
        """Do nothing: the end of this process fails the others."""

    def close(self) -> None:
        """Do nothing: the process group is closed by :func:`join`."""


def join(experiment: Experiment, orders: Orders, report: Follow) -> str:
    """Run an experiment as one rank of the job in which this process was started.

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
        # torchrun counts restarts only on the host where a rank died
        restarts = [0] * size
        dist.all_gather_object(restarts, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
        if rank:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop
            orders = replace(orders, resume=_received())
            return _execute(experiment, orders, report, build_park(experiment), lambda: False)
        with ExitStack() as stack:
            with _sent_to_all() as decision:
                stack.enter_context(owned(orders.out))
                # only a run of this job is resumed; the mark of another one is removed
                mark = orders.out / MARK
                if max(restarts) and mark.exists() and not orders.resume:
                    log.info("torchrun started this job again: it goes on from the last checkpoint.")
                    orders = replace(orders, resume=True)
                else:
                    mark.unlink(missing_ok=True)
                park = build_park(experiment)
                warn_of_gaps(park)
                prepare(experiment, orders, park)
                mark.touch()
                decision.append(orders.resume)
            stack.enter_context(noted(orders.out))
            interrupted = stack.enter_context(interrupts())
            return _execute(experiment, orders, report, park, interrupted)
    finally:
        dist.destroy_process_group()


def _start_name(store: Store, rank: int, size: int) -> str:
    """Agree on a name unique to this start of the job, whose store may still contain the addresses of dead ranks.

    The first rank draws the name and answers each request for it, until all have it. Keys that are waited for hold
    random names of this start, so that nothing of an earlier start can be taken for an answer.
    """
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"request {rank}", mine)
        name: str = store.get(f"answer {mine}").decode()
        store.set(f"received {name} {rank}", "")
        return name
    began = time.monotonic()
    while not all(store.check([f"received {mine} {other}"]) for other in range(1, size)):
        for other in range(1, size):
            if store.check([f"request {other}"]):
                store.set(f"answer {store.get(f'request {other}').decode()}", mine)
        if time.monotonic() - began > JOINING.total_seconds():
            raise RuntimeError(f"not all of its {size} ranks have come within {JOINING}")
        time.sleep(0.01)
    return mine


@contextmanager
def _sent_to_all() -> Iterator[list[bool]]:
    """Send the other ranks whether the run is resumed, which the body appends, or the reason for a refusal."""
    resume: list[bool] = []
    refused: FedfloorError | None = None
    try:
        yield resume
    except FedfloorError as error:
        refused = error
        raise
    except BaseException as error:
        refused = RunError(f"the first rank failed: {type(error).__name__}: {error}.")
        raise
    finally:
        dist.broadcast_object_list([refused, *(resume or [False])], src=0)


def _received() -> bool:
    """Wait until the first rank has made the folder ready; return whether the run is resumed."""
    decision: list[object] = [None, False]
    dist.broadcast_object_list(decision, src=0)
    if isinstance(decision[0], FedfloorError):
        raise decision[0]
    return bool(decision[1])


def _execute(
    experiment: Experiment, orders: Orders, report: Follow, park: Park, interrupted: Callable[[], bool]
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
    """Identify the system and its namespace of shared memory, which ranks must have in common to share memory."""
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
