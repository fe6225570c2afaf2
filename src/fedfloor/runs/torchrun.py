"""Being one rank of a ``torchrun`` job, on one machine or many."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fedfloor.engine.team import MOST_RANKS, Alone, Blob, Shared, Team, shared_file
from fedfloor.errors import FedfloorError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import launch, loop, processes
from fedfloor.runs.diverged import noted
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders
from fedfloor.runs.prepare import prepare


class Gloo:
    """Ranks on several hosts: byte strings through ``torch.distributed``.

    A rank that fails ends its process; gloo then fails the others, and ``torchrun`` ends the job.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def gather(self, mine: Sequence[Blob]) -> list[list[memoryview]]:
        """Exchange lengths, then the bytes padded to the longest message."""
        parts = [memoryview(part).cast("B") for part in mine]
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
        dist.init_process_group("gloo", timeout=timedelta(days=7))  # a rank may wait long for another one's branch
    except (RuntimeError, ValueError) as error:
        raise SettingError(f"torchrun started this process, but its job cannot be joined: {error}") from error
    try:
        if dist.get_rank():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop
            _hear()
            return _execute(experiment, orders, report, launch.build_park(experiment), lambda: False)
        with ExitStack() as stack:
            with _said_to_all():
                stack.enter_context(owned(orders.out))
                park = launch.build_park(experiment)
                prepare(experiment, orders, park)
            stack.enter_context(noted(orders.out))
            interrupted = stack.enter_context(processes.interrupts())
            return _execute(experiment, orders, report, park, interrupted)
    finally:
        dist.destroy_process_group()


@contextmanager
def _said_to_all() -> Iterator[None]:
    """Tell the other ranks whether the first one could make the run ready, and if not, why not."""
    refused: list[FedfloorError | None] = [None]
    try:
        yield
    except FedfloorError as error:
        refused = [error]
        raise
    finally:
        dist.broadcast_object_list(refused, src=0)


def _hear() -> None:
    """Wait until the first rank has made the folder ready."""
    refused: list[FedfloorError | None] = [None]
    dist.broadcast_object_list(refused, src=0)
    if refused[0] is not None:
        raise refused[0]


def _execute(
    experiment: Experiment,
    orders: Orders,
    report: Callable[[Line], None],
    park: Park,
    interrupted: Callable[[], bool],
) -> str:
    team = _team(launch.packet_bytes(experiment, park))
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
