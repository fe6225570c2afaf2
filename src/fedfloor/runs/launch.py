"""Starting a run's processes on this machine: copies or fresh ranks, how they end, and who owns the folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedfloor.engine.team import MOST_RANKS, Alone, Shared, Team, shared_file
from fedfloor.errors import DivergedError, FedfloorError, RunError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.machine import VARIABLES
from fedfloor.outside import blamed
from fedfloor.park.park import Park
from fedfloor.runs import checks, loop
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders, interrupts
from fedfloor.runs.parks import build_park as build_park
from fedfloor.runs.parks import packet_bytes, warn_of_gaps
from fedfloor.runs.prepare import prepare
from fedfloor.runs.results import noted

T = TypeVar("T")
Spawn = Callable[[Path, int], int]
GRACE_S = 1.0  # what the other ranks have to hear of a failure


def single_threaded() -> bool:
    """Return whether this process has one thread, as far as can be told."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def copies(ranks: int, size: int, body: Callable[[Team], T]) -> T:
    """Run ``body`` in this process and ``ranks`` − 1 copies of it, as one team; return the first rank's result.

    A copy is ready at once and shares the memory of the data, but it is safe only where no other thread runs.

    Args:
        ranks: processes of the team.
        size: bytes of what the team exchanges most.
        body: called with the team on every rank.
    """
    parent = os.getpid()
    return team_of(ranks, size, body, lambda path, rank: _fork(lambda: be_child(path, rank, ranks, parent, body)))


def interpreters(ranks: int, size: int, body: Callable[[Team], T], module: str, said: bytes) -> T:
    """Run ``body`` in this process, and ``ranks`` − 1 fresh interpreters beside it, as one team.

    Args:
        ranks: processes of the team.
        size: bytes of what the team exchanges most.
        body: called with the team on the first rank.
        module: run by the others as ``python -m module PATH RANK RANKS PARENT``; it must call :func:`be_child`.
        said: what they find on standard input.
    """

    def spawn(path: Path, rank: int) -> int:
        return _fresh([module, str(path), str(rank), str(ranks), str(os.getpid())], said)

    return team_of(ranks, size, body, spawn)


def team_of(ranks: int, size: int, body: Callable[[Team], T], spawn: Spawn) -> T:
    """Make a team of this process, as the first rank, and those that ``spawn`` starts; run ``body`` in it."""
    path = shared_file(ranks, size)
    children: list[int] = []
    try:
        for rank in range(1, ranks):
            children.append(spawn(path, rank))
        team = Shared(path, 0, ranks)
        team.children = children
        return _as_rank(team, body, opened=lambda: path.unlink(missing_ok=True))
    except BaseException:
        _dismiss(children)
        raise
    finally:
        path.unlink(missing_ok=True)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _dismiss(children: Sequence[int]) -> None:
    """Let the other ranks hear of the failure; what they are still in the middle of after that is of no use."""
    until = time.monotonic() + GRACE_S
    for pid in children:
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)


def _as_rank(team: Team, body: Callable[[Team], T], opened: Callable[[], object] = lambda: None) -> T:
    try:
        team.gather([])
        opened()
        return body(team)
    except BaseException as error:
        team.fail(error)
        own = blamed(error)
        if own is not None:
            raise own from error
        raise
    finally:
        team.close()


def be_child(path: Path, rank: int, ranks: int, parent: int, body: Callable[[Team], object]) -> int:
    """Be a rank other than the first; return the process's exit code.

    Args:
        path: the team's shared file.
        rank, ranks: this process's number, and how many there are.
        parent: process id of the first rank, which this one never outlives.
        body: called with the team.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before that took effect
        return 1
    try:
        _as_rank(Shared(path, rank, ranks, parent=parent), body)
    except FedfloorError:
        return 1  # the first rank says it
    return 0


def _fork(child: Callable[[], int]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with _no_interrupts():
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            code = child()
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)


def _fresh(arguments: Sequence[str], said: bytes) -> int:
    environment = {**os.environ, **VARIABLES, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with _no_interrupts():
        process = subprocess.Popen([sys.executable, "-m", *arguments], stdin=subprocess.PIPE, env=environment)
    if process.stdin is not None:
        process.stdin.write(said)
        process.stdin.close()
    return process.pid


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold SIGINT back: a process started meanwhile never sees it, so that Ctrl-C reaches the first rank only."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def under_torchrun() -> bool:
    """Return whether this process is a rank of a ``torchrun`` job."""
    return {"RANK", "WORLD_SIZE"} <= set(os.environ)


def is_first() -> bool:
    """Return whether this process is the first rank, the one that writes and speaks."""
    return not under_torchrun() or os.environ["RANK"] == "0"


def start(
    experiment: Experiment, orders: Orders, ranks: int, report: Callable[[Line], None], park: Park | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> str:  # fmt: skip
    """Run an experiment with ``ranks`` processes on this machine and return why it stopped.

    Under ``torchrun`` (its environment variables are there) this process joins that job instead, whatever ``ranks``
    says.

    Args:
        experiment: what to run.
        orders: where, and when to stop.
        ranks: number of processes, at least 1.
        report: called with each ledger line, in this process.
        park: the experiment's park, if it is there already.
        interrupted: says whether the user wants to stop; Ctrl-C does where it is left out.

    Raises:
        SettingError: something typed or written is wrong.
        RunError: the run failed; the last checkpoint stays.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise SettingError(f"--ranks {ranks}: must be 1 to {MOST_RANKS}.")
    checks.budgets_fit(orders.limits, priced=checks.is_priced(experiment))
    if under_torchrun():
        from fedfloor.runs import torchrun

        return torchrun.join(experiment, orders, report)
    keep = (DivergedError,) if orders.keep else ()
    with owned(orders.out, keep), nullcontext(interrupted) if interrupted else interrupts() as asked:
        if park is None:
            park = build_park(experiment)
            warn_of_gaps(park)
        prepare(experiment, orders, park)
        with noted(orders.out), _named(park):
            if ranks == 1:
                return loop.execute(experiment, orders, Alone(), park, report, asked)
            return _together(_Start(experiment, orders), ranks, park, report, asked)


@contextmanager
def _named(park: Park) -> Iterator[None]:
    """Let errors of a run name the devices that the engine numbers."""
    try:
        yield
    except RunError as error:
        error.args = (park.display_names.told(str(error)),)
        raise


@dataclass(frozen=True)
class _Start:
    """What a rank in a fresh interpreter needs to begin."""

    experiment: Experiment
    orders: Orders

    def rank(self, team: Team, park: Park | None = None) -> str:
        """Be a rank other than the first."""
        park = park or build_park(self.experiment)
        return loop.execute(self.experiment, self.orders, team, park, ignore, lambda: False)


def _together(
    what: _Start, ranks: int, park: Park, report: Callable[[Line], None], interrupted: Callable[[], bool]
) -> str:
    def body(team: Team) -> str:
        if team.rank:
            return what.rank(team, park)
        return loop.execute(what.experiment, what.orders, team, park, report, interrupted)

    size = packet_bytes(what.experiment, park)
    if single_threaded():
        return copies(ranks, size, body)
    return interpreters(ranks, size, body, __name__, pickle.dumps(what))


def ignore(line: Line) -> None:
    """Report nothing."""


def _main() -> int:
    what: _Start = pickle.loads(sys.stdin.buffer.read())  # from our own parent process
    path, rank, ranks, parent = sys.argv[1:]
    return be_child(Path(path), int(rank), int(ranks), int(parent), what.rank)


if __name__ == "__main__":
    sys.exit(_main())
