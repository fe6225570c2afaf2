"""Starting a run: here with as many ranks as wanted, or as one rank of a ``torchrun`` job. It is the same program."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedfloor.engine.team import Alone, Shared, Team, shared_file
from fedfloor.errors import FedfloorError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.park import park as parks
from fedfloor.park.park import Park
from fedfloor.runs import loop
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders

MOST_RANKS = 64
T = TypeVar("T")


def build_park(experiment: Experiment) -> Park:
    """Return the park an experiment describes."""
    data, park = experiment.data, experiment.park
    return parks.build(
        data.name,
        root=Path(data.root) if data.root else None,
        devices=park.devices,
        factories=park.factories,
        assignment=park.assignment,
        partition=data.partition,
        stream=data.stream,
        samples_per_device=data.samples_per_device,
        seed=experiment.seed,
    )


def start(
    experiment: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park | None = None
) -> str:
    """Run an experiment with ``ranks`` processes on this machine and return why it stopped.

    Under ``torchrun`` (its environment variables are there) this process joins that job instead, whatever ``ranks``
    says.

    Args:
        experiment: what to run.
        orders: where, and when to stop.
        ranks: number of processes, at least 1.
        report: called with each ledger line, in this process.
        park: the experiment's park, if it is there already.

    Raises:
        SettingError: something typed or written is wrong.
        RunError: the run failed; the last checkpoint stays.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise SettingError(f"--ranks {ranks}: must be 1 to {MOST_RANKS}.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from fedfloor.runs import torchrun

        return torchrun.join(experiment, orders, report)
    with owned(orders.out), interrupts() as interrupted:
        park = park or build_park(experiment)
        loop.prepare(experiment, orders, park)
        if ranks == 1:
            return loop.execute(experiment, orders, Alone(), park, report, interrupted)
        return _together(_Start(experiment, orders, ranks), park, report, interrupted)


@dataclass(frozen=True)
class _Start:
    """What a rank in a fresh interpreter needs to begin."""

    experiment: Experiment
    orders: Orders
    ranks: int

    def rank(self, team: Team, park: Park | None = None) -> str:
        """Be a rank other than the first."""
        return loop.execute(self.experiment, self.orders, team, park or build_park(self.experiment), _ignore, _never)


def _together(what: _Start, park: Park, report: Callable[[Line], None], interrupted: Callable[[], bool]) -> str:
    def body(team: Team) -> str:
        if team.rank:
            return what.rank(team, park)
        return loop.execute(what.experiment, what.orders, team, park, report, interrupted)

    size = packet_bytes(what.experiment, park)
    if single_threaded():
        return copies(what.ranks, size, body)
    return _team_of(what.ranks, size, body, lambda path, rank: _fresh(what, path, rank))


def copies(ranks: int, size: int, body: Callable[[Team], T]) -> T:
    """Run ``body`` in this process and ``ranks`` − 1 copies of it, as one team; return the first rank's result.

    A copy is ready at once and shares the memory of the data, but it is safe only where no other thread runs.

    Args:
        ranks: processes of the team.
        size: bytes of what the team exchanges most.
        body: called with the team on every rank.
    """
    return _team_of(ranks, size, body, lambda path, rank: _fork(path, rank, ranks, body))


def _team_of(ranks: int, size: int, body: Callable[[Team], T], spawn: Callable[[Path, int], int]) -> T:
    path = shared_file(ranks, size)
    children: list[int] = []
    try:
        children += [spawn(path, rank) for rank in range(1, ranks)]
        team = Shared(path, 0, ranks)
        team.children = children
        return _as_rank(team, body, opened=lambda: path.unlink(missing_ok=True))
    finally:
        path.unlink(missing_ok=True)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _as_rank(team: Team, body: Callable[[Team], T], opened: Callable[[], object] = lambda: None) -> T:
    try:
        team.gather([])
        opened()
        return body(team)
    except BaseException as error:
        team.fail(error)
        raise
    finally:
        team.close()


def _child(path: Path, rank: int, ranks: int, body: Callable[[Team], object]) -> int:
    """Be a rank other than the first; return the process's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: never outlive the first rank
    try:
        _as_rank(Shared(path, rank, ranks, parent=os.getppid()), body)
    except FedfloorError:
        return 1  # the first rank says it
    return 0


def _fork(path: Path, rank: int, ranks: int, body: Callable[[Team], object]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = _child(path, rank, ranks, body)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _fresh(what: _Start, path: Path, rank: int) -> int:
    """Start an interpreter for a rank; it builds the park itself."""
    environment = {**os.environ, **THREADS, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "fedfloor.runs.launch", str(path), str(rank)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    stream = process.stdin
    if stream is not None:
        stream.write(pickle.dumps(what))
        stream.close()
    return process.pid


def _ignore(line: Line) -> None:
    """Report nothing: the first rank does."""


def _never() -> bool:
    return False


THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def single_threaded() -> bool:
    """Return whether this process has one thread, as far as can be told."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def packet_bytes(experiment: Experiment, park: Park) -> int:
    """Return the size of a model, without a tensor operation (a process that has done none can be copied)."""
    from fedfloor import models

    return 4 * models.count(experiment.model.name, park.dataset.shape, len(park.dataset.classes))


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C ask for a stop after the round; the second one stops at once."""
    asked = threading.Event()

    def ask(number: int, frame: object) -> None:  # noqa: ARG001
        if asked.is_set():
            print("stopped at once; go on from the last checkpoint with --resume", file=sys.stderr)
            raise KeyboardInterrupt
        asked.set()
        print("stopping after this round; Ctrl-C again stops at once", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _main() -> int:
    what = pickle.loads(sys.stdin.buffer.read())  # from our own parent process
    return _child(Path(sys.argv[1]), int(sys.argv[2]), what.ranks, what.rank)


if __name__ == "__main__":
    sys.exit(_main())
