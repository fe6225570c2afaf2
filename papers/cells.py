"""What a published table is: cells, each with the run it takes and the figures that are read off that run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedfloor import config
from fedfloor.base.errors import require
from fedfloor.experiment import Experiment

Settings = Mapping[str, Any]
FEWEST_ROUNDS = 2  # a schedule with one round has no end to run to


@dataclass(frozen=True)
class Accuracy:
    """The global model's accuracy on the test data.

    Args:
        paper: the printed figure as a share, None where none is printed.
        share: of the schedule's rounds, after which it is read, in (0, 1].
        last: the mean of so many rounds up to that one is taken, at least 1: with few classes on a device, accuracy
            swings from round to round.
    """

    paper: float | None
    share: float = 1.0
    last: int = 1

    def round(self, rounds: int) -> int:
        """Return the round it is read in.

        >>> Accuracy(None, share=0.5).round(500), Accuracy(None).round(2)
        (250, 2)
        """
        return max(1, round(self.share * rounds))

    def label(self, rounds: int) -> str:
        """Return its name in a table.

        >>> Accuracy(None, share=0.5).label(500), Accuracy(None, last=10).label(500)
        ('accuracy at round 250', 'accuracy, mean of 10 rounds')
        """
        at = "accuracy" if self.share == 1 else f"accuracy at round {self.round(rounds)}"
        return at if self.last == 1 else f"{at}, mean of {self.last} rounds"


@dataclass(frozen=True)
class Loss(Accuracy):
    """The global model's mean loss on the test data, read as :class:`Accuracy`; ``paper`` is the printed loss."""

    def label(self, rounds: int) -> str:
        """Return its name in a table."""
        return super().label(rounds).replace("accuracy", "loss")


@dataclass(frozen=True)
class Divergence:
    """How far the classes of super nodes are from everybody's, ‖Σ counts/Σ total − P‖₂ (FedGS, Eq. 6): the mean over
    all choices of the first round, by the devices' true counts.

    Args:
        paper: the printed figure, None where there is none.
    """

    paper: float | None = None

    def label(self, rounds: int) -> str:  # noqa: ARG002
        """Return its name in a table."""
        return "divergence"


@dataclass(frozen=True)
class Epsilon:
    """What a run's censuses come to: ε of all reports of a device together; see :mod:`fedfloor.park.privacy`.

    Args:
        delta: by advanced composition, with δ = 1e-5.
        paper: none.
    """

    delta: bool = False
    paper: float | None = None

    def label(self, rounds: int) -> str:  # noqa: ARG002
        """Return its name in a table."""
        return "composed ε, δ = 1e-5" if self.delta else "composed ε"


@dataclass(frozen=True)
class Rounds:
    """The first round in which the global model has a target accuracy.

    Args:
        paper: the paper's figure, None where it was not reached.
        target: accuracy, in (0, 1].
    """

    paper: float | None
    target: float

    def label(self, rounds: int) -> str:  # noqa: ARG002
        """Return its name in a table."""
        return f"rounds to {self.target:.0%}"


@dataclass(frozen=True)
class Traffic:
    """What was sent up to and with that round, in sizes of the model.

    Args:
        paper: the printed figure, None where the target was not reached.
        target: accuracy, in (0, 1].
        rule: how the paper counts; see :func:`papers.count.count`.
    """

    paper: float | None
    target: float
    rule: str

    def label(self, rounds: int) -> str:  # noqa: ARG002
        """Return its name in a table."""
        return f"models sent to {self.target:.0%}"


@dataclass(frozen=True)
class Spent:
    """What all rounds up to and with that one cost on the network.

    Args:
        paper: the printed figure, None where the target was not reached.
        target: accuracy, in (0, 1].
        kind: ``seconds``, told in hours, or ``bytes`` that devices send and receive, told in TB of 2⁴⁰.
    """

    paper: float | None
    target: float
    kind: Literal["seconds", "bytes"]

    @property
    def unit(self) -> float:
        """An hour in seconds, or a TB in bytes."""
        return 3600.0 if self.kind == "seconds" else 2.0**40

    def label(self, rounds: int) -> str:  # noqa: ARG002
        """Return its name in a table."""
        return f"{'hours' if self.kind == 'seconds' else 'TB'} to {self.target:.0%}"


Figure = Accuracy | Divergence | Epsilon | Rounds | Spent | Traffic


@dataclass(frozen=True)
class Cell:
    """One cell of a published table.

    Args:
        key: its name, such as ``mnist/xi2/fedsr``; ``--only`` looks in it.
        task, setting, label: what the table calls its data, its setting and its method.
        method: the method's name here.
        run: names the run's folder; cells that share a run have the same.
        settings: what its experiment says beyond the table's base; ``method.name`` is put in.
        figures: what is read off the run.
    """

    key: str
    task: str
    setting: str
    label: str
    method: str
    run: str
    settings: Settings
    figures: tuple[Figure, ...]

    @property
    def data(self) -> str:
        """The data set's name."""
        return str(self.settings["data"]["name"])

    @property
    def target(self) -> float | None:
        """The accuracy its run stops at; None where it does all rounds, as figures of the last one are read, too."""
        targets = [one.target for one in self.figures if isinstance(one, (Rounds, Spent, Traffic))]
        return targets[0] if len(targets) == len(self.figures) else None


@dataclass(frozen=True)
class Table:
    """A published table.

    Args:
        name: as it is typed.
        title: what it shows.
        source: paper and number of the table.
        rounds: of the paper's schedule.
        base: what all its experiments say.
        cells: row by row.
        notes: what the paper does not say and was chosen here.
    """

    name: str
    title: str
    source: str
    rounds: int
    base: Settings
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    def scaled(self, scale: float) -> int:
        """Return the rounds of a scaled schedule, max(2, scale · rounds); its learning rates run to their end in them.

        Args:
            scale: share of the paper's rounds, in (0, 1].

        Raises:
            SettingError: the scale is none.
        """
        require(0 < scale <= 1, "--scale", scale, "a share of the paper's rounds, above 0 and at most 1, such as 0.1")
        return max(FEWEST_ROUNDS, round(scale * self.rounds))

    def experiment(self, cell: Cell, rounds: int, seed: int = 0) -> Experiment:
        """Return the experiment of a cell.

        Args:
            cell: one of this table's, with a method that there is.
            rounds: of its schedule.
            seed: of all its draws.

        Raises:
            SettingError: the seed is none, or the method is not there.
        """
        own = {"name": f"{self.name}-{cell.run}", "seed": seed, "rounds": rounds, "method": {"name": cell.method}}
        return config.from_table(merged(merged(self.base, cell.settings), own))


def merged(below: Settings, above: Settings) -> dict[str, Any]:
    """Return two tables of tables as one; where both have a value, that of ``above``.

    >>> merged({"work": {"lr": 0.1}, "seed": 1}, {"work": {"epochs": 5}, "seed": 2})
    {'work': {'lr': 0.1, 'epochs': 5}, 'seed': 2}
    """
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


def holds(only: str, *names: str) -> bool:
    """Return whether ``--only`` means one of these names: a name holds the text, in which * stands for anything.

    >>> holds("xi2", "mnist/xi2/fedsr"), holds("mnist/*/fedsr", "mnist/xi2/fedsr"), holds("mnist/*/moon", "xi2/moon")
    (True, True, False)
    """
    wanted = ".*".join(map(re.escape, only.split("*")))
    return any(re.search(wanted, name) for name in names)
