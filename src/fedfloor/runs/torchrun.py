"""Runs as a rank of a ``torchrun`` job, on one machine or many.

``torchrun --max-restarts`` restarts all ranks when one has died. A job that has begun a run leaves a mark in the run's
folder, and a restart of the same job that finds its mark resumes from the last checkpoint. The first start of any job
removes the mark of an earlier job.
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

from fedfloor.base.errors import FedfloorError, RunError, SettingError
from fedfloor.engine.team import MOST_RANKS, Alone, Blob, PeerLostError, Shared, Team, shared_file, split
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import asking, loop
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Follow
from fedfloor.runs.orders import Orders, interrupts
from fedfloor.runs.parks import build_park, packet_bytes, warn_of_gaps
from fedfloor.runs.prepare import prepare
from fedfloor.runs.results import noted

log = logging.getLogger(__name__)

JOINING = timedelta(minutes=10)  # longest wait of a job for its last rank
MARK = ".torchrun"  # mark of the current job in a run's folder


if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


class Gloo:
    """A team of ranks on several hosts, which exchange byte strings through ``torch.distributed``.

    A rank that fails ends its process; gloo then fails the others, and ``torchrun`` ends or restarts the job.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Return all ranks' blobs, exchanged with padding to the longest one; raise PeerLostError if a rank ended."""
        message = b"".join(mine)
        lengths: list[list[int]] = [[] for _ in range(self.size)]
        try:
            dist.all_gather_object(lengths, [memoryview(part).nbytes for part in mine])
            longest = max(1, *map(sum, lengths))
            padded = np.zeros(longest, np.uint8)
            padded[: len(message)] = np.frombuffer(message, np.uint8)
            messages = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(messages, torch.from_numpy(padded))
        except RuntimeError as error:  # errors of gloo
            raise PeerLostError(
                f"a rank on this or another host died or is not reachable ({str(error).splitlines()[0]}). Continue "
                "from the last checkpoint with --resume, or use torchrun --max-restarts."
            ) from error
        return [split(received.numpy().data, sizes) for received, sizes in zip(messages, lengths, strict=True)]

    def fail(self, error: BaseException) -> None:
        """Do nothing, as the end of this process makes the others fail."""

    def close(self) -> None:
        """Do nothing, as :func:`join` closes the process group."""


def join(experiment: Experiment, orders: Orders, report: Follow) -> str:
    """Run an experiment as one rank of the job in which this process was started; return why it stopped.

    All hosts need access to the run's folder, from which every rank reads checkpoints and device memory.

    Raises:
        SettingError: the job's processes cannot connect, or the first rank refuses to start.
    """
    try:
        store, rank, size = next(rendezvous("env://", timeout=JOINING))
        name = _start_name(store, rank, size)
        store = dist.PrefixStore(name, store)  # type: ignore[attr-defined]  # public all the same
        long = timedelta(days=7)  # a rank may wait long for another rank's branch
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
                # only a run of this job is resumed; the mark of another job is removed
                mark = orders.out / MARK
                if max(restarts) and mark.exists() and not orders.resume:
                    log.info("torchrun restarted this job: it resumes from the last checkpoint.")
                    orders = replace(orders, resume=True)
                else:
                    mark.unlink(missing_ok=True)
                asking.before(experiment, resume=orders.resume)
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
    """Return a name unique to this start of the job, as its store may contain addresses of dead ranks.

    The first rank draws the name and answers each request for it, until all have it. Awaited keys contain random
    names of this start, so that entries of an earlier start cannot be mistaken for answers.
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
            raise RuntimeError(f"not all of its {size} ranks have joined within {JOINING}")
        time.sleep(0.01)
    return mine


@contextmanager
def _sent_to_all() -> Iterator[list[bool]]:
    """Send the other ranks whether the run is resumed (a value appended by the body), or the reason of a refusal."""
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
    """Wait until the first rank has prepared the folder; return whether the run is resumed."""
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
    """Return an identifier of the system and its namespace of shared memory, equal for ranks that can share memory."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/mnt")


def _team(packet_bytes: int) -> Team:
    """Return a team with shared memory if all ranks are on one host, otherwise with gloo."""
    size = dist.get_world_size()
    rank = dist.get_rank()
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
