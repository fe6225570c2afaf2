"""Options for the execution of a run, which do not change its results."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedfloor.base.checking import settle
from fedfloor.base.errors import require
from fedfloor.tasks.figures import ACCURACY, Figure, is_figure, named

if TYPE_CHECKING:
    from fedfloor.runs.replay import Recording


@dataclass(frozen=True)
class Limits:
    """Conditions to stop before the last scheduled round, whichever holds first; schedules do not change.

    A budget is used up by the first round at which the total cost reaches it; that round is still carried out. Budgets
    need a run with prices.

    Args:
        stop_after: number of the last round.
        accuracy: stop once an evaluation reaches it, in (0, 1].
        seconds: budget of time on the network, s.
        bytes: budget of bytes, summed over all links.
        joules: budget of energy, J.
        figures: name of a metric in the ledger → value at which to stop, such as ``{"recall of fault": 0.8}``.
        epsilon: privacy budget, ε of the models of all rounds together; a round that would exceed it is not started.
    """

    stop_after: int | None = None
    accuracy: float | None = None
    seconds: float | None = None
    bytes: float | None = None
    joules: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    epsilon: float | None = None

    def __post_init__(self) -> None:
        settle(self, "limits")
        last = self.stop_after
        require(last is None or last >= 1, "stop after (--stop-after)", last, "a whole number of at least 1")
        for name, target in self.targets.items():
            if is_figure(name):  # another name is that of the run's own metric, or refused before the first round
                named(name, "--until").check_target(target, f"until {name} (--until)")
        given = {} if self.epsilon is None else {"epsilon": self.epsilon}
        for name, budget in {**self.budgets, **given}.items():
            require(0 < budget < math.inf, f"until {name} (--until)", budget, "a number above 0, such as 3600")

    @property
    def budgets(self) -> dict[str, float]:
        """Name → value of the given budgets."""
        given = {"seconds": self.seconds, "bytes": self.bytes, "joules": self.joules}
        return {name: budget for name, budget in given.items() if budget is not None}

    @property
    def targets(self) -> dict[str, float]:
        """Name of a metric → value at which to stop."""
        return ({} if self.accuracy is None else {"accuracy": self.accuracy}) | dict(self.figures)

    def target(self, figure: Figure) -> float | None:
        """Return the value of a metric at which to stop; None if there is none."""
        return next((value for name, value in self.targets.items() if figure.called(name)), None)

    def reached(self, line: object, total: Mapping[str, float] | None, headline: Figure = ACCURACY) -> bool:
        """Return whether a ledger line's metrics, or the ``total`` of seconds, bytes and joules, reach a limit.

        Args:
            headline: the run's headline, which may be a metric of one's own.

        >>> Limits(seconds=3600).reached(None, {"seconds": 3600.0, "bytes": 8e6, "joules": 0.0})
        True
        """
        for name, target in self.targets.items():
            figure = headline if headline.called(name) else named(name)
            value = figure.read(line)
            if value is not None and figure.reached(value, target):
                return True
        return total is not None and any(total[name] >= budget for name, budget in self.budgets.items())


@dataclass(frozen=True)
class Orders:
    """The folder of a run, whether it is resumed, and its stopping conditions."""

    out: Path  # the run's folder
    resume: bool = False  # whether to continue from the last checkpoint
    force: bool = False  # whether to resume in spite of a changed experiment, version or CPU
    limits: Limits = Limits()  # conditions for an early stop
    keep: bool = False  # whether to keep the folder if training diverges in the first round
    replay: Recording | None = None  # a run on real machines whose rounds are carried out again


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Handle Ctrl-C in the body: the first one requests a stop after the round, the second one stops at once."""
    requested = threading.Event()

    def request(number: int, frame: object) -> None:  # noqa: ARG001
        if requested.is_set():
            os.write(2, b"stopped at once; go on from the last checkpoint with --resume\n")
            raise KeyboardInterrupt
        requested.set()
        os.write(2, b"stopping after this round; Ctrl-C again stops at once\n")

    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return
    before = signal.signal(signal.SIGINT, request)
    try:
        yield requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)
