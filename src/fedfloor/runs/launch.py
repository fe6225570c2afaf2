"""Start and end of a run's processes on this machine, forked or spawned, under the lock of the folder."""

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
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedfloor.base.errors import DivergedError, FedfloorError, RunError, SettingError
from fedfloor.base.machine import VARIABLES, cores, kept_settings
from fedfloor.base.names import SPEC
from fedfloor.base.outside import blamed, only_here
from fedfloor.engine import place
from fedfloor.engine.team import MOST_RANKS, Alone, Shared, Team, shared_file
from fedfloor.experiment import EngineSettings, Experiment
from fedfloor.methods.chosen import texts
from fedfloor.park.park import Park
from fedfloor.runs import asking, checks, loop
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Follow, Line
from fedfloor.runs.orders import Orders, interrupts
from fedfloor.runs.parks import build_park as build_park
from fedfloor.runs.parks import packet_bytes, warn_of_gaps
from fedfloor.runs.prepare import prepare
from fedfloor.runs.results import noted

T = TypeVar("T")
GRACE_S = 1.0  # wait for the other ranks to report a failure, before they are killed


def single_threaded() -> bool:
    """Return whether this process has a single thread; False if unknown."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def copies(ranks: int, size: int, body: Callable[[Team], T]) -> T:
    """Run ``body`` in this process and ``ranks`` − 1 copies of it, as one team; return the first rank's result.

    A forked copy is ready at once and shares the memory of the data, but is safe only if no other thread runs.
    """
    parent = os.getpid()
    return team_of(ranks, size, body, lambda path, rank: _fork(lambda: be_child(path, rank, ranks, parent, body)))


def team_of(ranks: int, size: int, body: Callable[[Team], T], spawn: Callable[[Path, int], int]) -> T:
    """Form a team of this process (rank 0) and those started by ``spawn(path, rank)``; return the result of ``body``.

    Args:
        size: bytes of the largest frequent message.
    """
    path = shared_file(ranks, size)
    children: list[int] = []
    try:
        for rank in range(1, ranks):
            children.append(spawn(path, rank))
        team = Shared(path, 0, ranks)
        team.children = children
        return _as_rank(team, body, opened=lambda: path.unlink(missing_ok=True))
    except BaseException:
        until = time.monotonic() + GRACE_S
        for pid in children:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                while not os.waitpid(pid, os.WNOHANG)[0]:
                    if time.monotonic() > until:
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(0.01)
        raise
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
        own = blamed(error)
        if own is not None:
            raise own from error
        raise
    finally:
        team.close()


def be_child(path: Path, rank: int, ranks: int, parent: int, body: Callable[[Team], object]) -> int:
    """Run ``body`` as a rank other than the first, whose process is ``parent``; return the process's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first rank decides when to stop
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # the parent died before that took effect
        return 1
    try:
        _as_rank(Shared(path, rank, ranks, parent=parent), body)
    except FedfloorError:
        return 1  # the first rank prints the error
    return 0


def _fork(child: Callable[[], int]) -> int:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # none where it was closed before the process began
        stream.flush()
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


def _fresh(arguments: Sequence[object], standard_input: bytes) -> int:
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    environment = {**os.environ, **VARIABLES, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with _no_interrupts():
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    if process.stdin is not None:
        process.stdin.write(standard_input)
        process.stdin.close()
    return process.pid


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block SIGINT in the body, so that processes started there never receive Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def code_of_here(experiment: Experiment) -> list[str]:
    """Return the names of code in an experiment that only this process has, such as classes of a notebook's cells."""
    names = {experiment.method.name, *(text for _, text in texts(experiment))}
    return sorted(name for name in names if SPEC.fullmatch(name) and only_here(name))


def sendable(experiment: Experiment) -> bool:
    """Return whether other processes can carry the experiment out, too: not where they lack code of this one."""
    return single_threaded() or not code_of_here(experiment)


def _check_importable(experiment: Experiment) -> None:
    if here := code_of_here(experiment):
        raise SettingError(
            f"--ranks: {', '.join(here)} was defined in this notebook or script, and cannot be sent to other processes "
            "because threads run in this one. Use one rank, or move it into a file and import it from there."
        )


def default_ranks(engine: EngineSettings | None = None) -> int:
    """Return the default number of ranks: one per core, or per CUDA device."""
    if engine is not None and place.placed(engine.kind, engine.device).device == "cuda":
        return min(place.accelerators(), MOST_RANKS)
    return min(cores(), MOST_RANKS)


def under_torchrun() -> bool:
    """Return whether this process is a rank of a ``torchrun`` job."""
    return {"RANK", "WORLD_SIZE"} <= set(os.environ)


def is_first() -> bool:
    """Return whether this process is the first rank, the one that writes and prints."""
    return not under_torchrun() or os.environ["RANK"] == "0"


@kept_settings()
def start(
    experiment: Experiment, orders: Orders, ranks: int, report: Follow, park: Park | None = None,
    interrupted: Callable[[], bool] | None = None,
) -> str:  # fmt: skip
    """Run an experiment with ``ranks`` processes on this machine and return why it stopped.

    Under ``torchrun`` (detected by its environment variables) this process joins that job, regardless of ``ranks``.

    Args:
        report: called with each ledger line, in this process.
        park: the experiment's park, if it is built already.
        interrupted: returns whether the user wants to stop; default: after Ctrl-C.

    Raises:
        SettingError: a setting or an option is wrong; the message names it.
        RunError: the run failed; the last checkpoint is kept.
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise SettingError(f"--ranks {ranks}: must be 1 to {MOST_RANKS}.")
    checks.budgets_fit(orders.limits, priced=checks.is_priced(experiment))
    if under_torchrun():
        from fedfloor.runs import torchrun

        return torchrun.join(experiment, orders, report)
    keep = (DivergedError,) if orders.keep else ()
    with owned(orders.out, keep), nullcontext(interrupted) if interrupted else interrupts() as stop:
        if park is None:
            asking.before(experiment, resume=orders.resume)
            park = build_park(experiment)
            warn_of_gaps(park)
        prepare(experiment, orders, park)
        with noted(orders.out), _named(park):
            if ranks == 1:
                return loop.execute(experiment, orders, Alone(), park, report, stop)
            body = partial(_rank, experiment, orders, park=park, report=report, interrupted=stop)
            size = packet_bytes(experiment, park)
            if single_threaded():
                return copies(ranks, size, body)
            _check_importable(experiment)
            start = pickle.dumps((experiment, orders))
            return team_of(ranks, size, body, lambda path, rank: _fresh((path, rank, ranks, os.getpid()), start))


@contextmanager
def _named(park: Park) -> Iterator[None]:
    """Replace devices' numbers by their names in a run's errors."""
    try:
        yield
    except RunError as error:
        error.args = (park.display_names.insert(str(error)),)
        raise


def ignore(line: Line) -> None:
    """Ignore a ledger line."""


def _rank(
    experiment: Experiment, orders: Orders, team: Team, park: Park | None = None,
    report: Follow = ignore, interrupted: Callable[[], bool] = lambda: False,
) -> str:  # fmt: skip
    """Run one rank and return why it stopped; only the first rank reports and can be interrupted."""
    if team.rank:
        report, interrupted = ignore, lambda: False
    return loop.execute(experiment, orders, team, park or build_park(experiment), report, interrupted)


if __name__ == "__main__":
    body = partial(_rank, *pickle.loads(sys.stdin.buffer.read()))  # experiment and orders, from the parent process
    path, *numbers = sys.argv[1:]
    rank, ranks, parent = map(int, numbers)
    sys.exit(be_child(Path(path), rank, ranks, parent, body))
