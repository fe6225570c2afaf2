"""Who is best for a given budget: the accuracy of each run when so many rounds, seconds, bytes or joules are used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedfloor.errors import SettingError, require, unknown
from fedfloor.figures import ACCURACY, Figure
from fedfloor.report.groups import Group, groups, half_width, judged
from fedfloor.report.ledger import Round, Run, spent
from fedfloor.report.price import KINDS, UNITS, amount, unit
from fedfloor.report.table import Row, paired


@dataclass(frozen=True)
class Budget:
    """What a run may use up.

    Args:
        kind: ``"rounds"``, ``"seconds"``, ``"bytes"`` or ``"joules"``; all but rounds are those of the network.
        most: how much, above 0.
    """

    kind: str
    most: float

    def __post_init__(self) -> None:
        if self.kind not in ("rounds", *KINDS):
            raise unknown("budget (--at)", self.kind, ["rounds", *KINDS])
        require(0 < self.most < math.inf, f"{self.kind} (--at)", self.most, "a number above 0, such as 3600")
        whole = self.kind != "rounds" or self.most == int(self.most)
        require(whole, "rounds (--at)", self.most, "a whole number of at least 1")

    @property
    def words(self) -> str:
        """The budget as people say it, with all its digits.

        >>> Budget("seconds", 3600).words, Budget("seconds", 100).words, Budget("rounds", 5).words
        ('1 h on the network', '100 s on the network', '5 rounds')
        """
        exact = amount(self.kind, self.most)
        if self.kind in UNITS:
            size, symbol = unit(self.kind, self.most)
            base = next(name for one, name in UNITS[self.kind] if one == 1)
            short = float(f"{self.most / size:.3g}") == self.most / size
            exact = f"{self.most / size:g} {symbol}" if short else f"{self.most:g} {base}"
        return f"{exact} on the network" if self.kind == "seconds" else exact


def reached(run: Run, budget: Budget, figure: Figure = ACCURACY) -> Round | None:
    """Return the last evaluated round of a run that was complete within a budget.

    None if there is none, if the rounds have no price, or if training diverged while some of the budget was left: there
    is no model then. A run that ended before the budget was used counts with its last evaluated round.
    """
    use = spent(budget.kind)
    costs = [cost for line in run.rounds if (cost := use(line)) is not None]
    if not costs or len(costs) < len(run.rounds) or (run.diverged and costs[-1] < budget.most):
        return None
    within = [line for line, used in zip(run.rounds, costs, strict=True) if used <= budget.most]
    return next((line for line in reversed(within) if figure.read(line) is not None), None)


def at(runs: Iterable[Run], budget: Budget) -> list[Row]:
    """Return one row of JSON scalars per experiment: its headline when a budget is used.

    ``accuracy``, or the key of another headline, is the mean over the seeds, None unless each has one; ``in_rounds``
    the round it was measured in, seed by seed; ``ended`` the seeds whose runs ended before the budget was used.

    Args:
        runs: what :func:`fedfloor.report.ledger.collect` returned.
        budget: of each run.

    Raises:
        SettingError: no run has a price, and the budget is not one of rounds.
    """
    runs = list(runs)
    if budget.kind != "rounds" and not any(line.spent is not None for run in runs for line in run.rounds):
        raise SettingError(
            f"--at {budget.kind}: these runs have no price, because their experiments have no network. Run them with a "
            "[network], or give --at rounds=N."
        )
    return [_row(group, budget, judged(runs)) for group in groups(runs)]


def _row(group: Group, budget: Budget, figure: Figure) -> Row:
    lines = [reached(run, budget, figure) for run in group.runs]
    known = [value for line in lines if line is not None and (value := figure.read(line)) is not None]
    whole = len(known) == len(group.runs)
    return {
        "method": group.label,
        "seeds": [run.seed for run in group.runs],
        figure.key: sum(known) / len(known) if whole else None,
        "half_width": half_width(known) if whole else None,
        "in_rounds": [None if line is None else line.number for line in lines],
        "ended": [run.seed for run, line in zip(group.runs, lines, strict=True) if line and _early(run, budget)],
    }


def _early(run: Run, budget: Budget) -> bool:
    used = spent(budget.kind)(run.rounds[-1])
    return used is not None and used < budget.most


def paired_at(runs: Sequence[Run], budget: Budget) -> list[Row]:
    """Return :func:`~fedfloor.report.table.paired` differences between headlines when a budget is used.

    Args:
        runs: what :func:`fedfloor.report.ledger.collect` returned.
        budget: of each run.
    """

    figure = judged(runs)

    def difference(one: Run, other: Run) -> tuple[int, float] | None:
        a, b = reached(one, budget, figure), reached(other, budget, figure)
        return None if a is None or b is None else (0, (figure.read(a) or 0.0) - (figure.read(b) or 0.0))

    return [{name: value for name, value in row.items() if name != "rounds"} for row in paired(runs, difference)]
