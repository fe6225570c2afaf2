"""Orders on the execution of a run; none of them changes its results."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedfloor.errors import require
from fedfloor.figures import Figure, named


@dataclass(frozen=True)
class Limits:
    """Conditions to stop before the schedule's last round, whichever holds first; schedules do not change.

    A budget is used up by the first round with which all rounds so far cost that much or more: that round is done and
    counted. Budgets need a run with a price.

    Args:
        stop_after: number of the last round to do.
        accuracy: stop once an evaluation reaches it, in (0, 1].
        seconds: budget of time on the network, s.
        bytes: budget of bytes, over all links together.
        joules: budget of energy, J.
        figures: name of a figure → value at which to stop, such as ``{"recall of fault": 0.8}``; one of the ledger's.
        epsilon: budget of privacy, ε of the models of all rounds together: no round is begun that would exceed it.
    """

    stop_after: int | None = None
    accuracy: float | None = None
    seconds: float | None = None
    bytes: float | None = None
    joules: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    epsilon: float | None = None

    def __post_init__(self) -> None:
        last = self.stop_after
        require(last is None or last >= 1, "stop after (--stop-after)", last, "a whole number of at least 1")
        for name, target in self.targets.items():
            named(name, "--until").check_target(target, f"until {name} (--until)")
        given = {} if self.epsilon is None else {"epsilon": self.epsilon}
        for name, budget in {**self.budgets, **given}.items():
            require(0 < budget < math.inf, f"until {name} (--until)", budget, "a number above 0, such as 3600")

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that were given, by name."""
        given = {"seconds": self.seconds, "bytes": self.bytes, "joules": self.joules}
        return {name: budget for name, budget in given.items() if budget is not None}

    @property
    def targets(self) -> dict[str, float]:
        """The values of figures at which to stop, by name."""
        return ({} if self.accuracy is None else {"accuracy": self.accuracy}) | dict(self.figures)

    def target(self, figure: Figure) -> float | None:
        """Return the value of a figure at which to stop, if there is one."""
        return {named(name).name: value for name, value in self.targets.items()}.get(figure.name)

    def reached(self, line: object, total: Mapping[str, float] | None) -> bool:
        """Return whether a ledger line's figures, or the ``total`` of seconds, bytes and joules, reach a limit.

        >>> Limits(seconds=3600).reached(None, {"seconds": 3600.0, "bytes": 8e6, "joules": 0.0})
        True
        """
        for name, target in self.targets.items():
            value = named(name).read(line)
            if value is not None and named(name).reached(value, target):
                return True
        return total is not None and any(total[name] >= budget for name, budget in self.budgets.items())


@dataclass(frozen=True)
class Orders:
    """The folder of a run, whether it is resumed, and its stopping conditions."""

    out: Path  # the run's folder
    resume: bool = False  # go on from the last checkpoint
    force: bool = False  # resume in spite of a changed experiment, version or CPU
    limits: Limits = Limits()  # when to stop early
    keep: bool = False  # leave the folder also where training diverges in the first round


@contextlib.contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C request a stop after the round; the second one stops at once."""
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
