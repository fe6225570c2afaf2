"""Starting a run: here with as many ranks as wanted, or as one rank of a ``torchrun`` job. It is the same program."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fedfloor.engine.team import MOST_RANKS, Alone, Team
from fedfloor.errors import DivergedError, RunError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.runs import checks, loop, processes
from fedfloor.runs.diverged import noted
from fedfloor.runs.folder import owned
from fedfloor.runs.ledger import Line
from fedfloor.runs.orders import Orders
from fedfloor.runs.parks import build_park as build_park
from fedfloor.runs.parks import packet_bytes, warn_of_gaps
from fedfloor.runs.prepare import prepare


def under_torchrun() -> bool:
    """Return whether this process is a rank of a ``torchrun`` job."""
    return {"RANK", "WORLD_SIZE"} <= set(os.environ)


def is_first() -> bool:
    """Return whether this process is the first rank, the one that writes and speaks."""
    return not under_torchrun() or os.environ["RANK"] == "0"


def start(
    experiment: Experiment,
    orders: Orders,
    ranks: int,
    report: Callable[[Line], None],
    park: Park | None = None,
    interrupted: Callable[[], bool] | None = None,
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
    with owned(orders.out, keep), nullcontext(interrupted) if interrupted else processes.interrupts() as asked:
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
        error.args = (park.called.told(str(error)),)
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
    if processes.single_threaded():
        return processes.copies(ranks, size, body)
    return processes.interpreters(ranks, size, body, __name__, pickle.dumps(what))


def ignore(line: Line) -> None:
    """Report nothing."""


def _main() -> int:
    what: _Start = pickle.loads(sys.stdin.buffer.read())  # from our own parent process
    path, rank, ranks, parent = sys.argv[1:]
    return processes.be_child(Path(path), int(rank), int(ranks), int(parent), what.rank)


if __name__ == "__main__":
    sys.exit(_main())
