"""What a published comparison of samplers is: who takes part, in which parks, and the figures of the paper."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfloor.solvers.selection.published import Start
from papers.study import wanted

SELECTIONS = 200
STATED = ("mean", "median", "std", "min", "max")  # of divergences


@dataclass(frozen=True)
class Printed:
    """A sampler's figures in the paper: divergences (Eq. 6) of its factories, and seconds of a selection."""

    mean: float
    median: float
    std: float
    min: float
    max: float
    seconds: float


@dataclass(frozen=True)
class Begun:
    """What the paper says of a start of GBP-CS, for one selection.

    Args:
        begins, ends: divergences before the first exchange and in the end, as the plot's data have them.
        swaps: exchanges.
        said: where it ends by the paper's text.
    """

    begins: float
    swaps: int
    ends: float
    said: float


@dataclass(frozen=True)
class Sampler:
    """A sampler that takes part.

    Args:
        label: its name in the table.
        solver: its name among the selection solvers.
        paper: its figures there.
        init: the start, of GBP-CS.
        begun: what the paper says of that start.
        share: of the selections that it makes; a slow one makes fewer.
        needs: a module that must be installed.
    """

    label: str
    solver: str
    paper: Printed | None = None
    init: Start | None = None
    begun: Begun | None = None
    share: float = 1.0
    needs: str = ""

    def lacking(self) -> str:
        """Return why it cannot take part here; empty if it can."""
        if not self.needs or importlib.util.find_spec(self.needs) is not None:
            return ""
        return f"skipped: needs {self.needs}: pip install 'fedfloor[samplers]'"


@dataclass(frozen=True)
class Point:
    """A park that samplers are compared in.

    Args:
        key: its name; ``--only`` looks in it.
        data, park: the tables of these names of its experiment. Devices hold windows of one size.
    """

    key: str
    data: Mapping[str, Any]
    park: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """A published comparison of samplers.

    Args:
        name: as it is typed.
        title: what it shows.
        source: paper and number of the figure.
        points: where they are compared.
        samplers: row by row; the one whose solver is ``exact`` is the optimum.
        notes: what the paper does not say and was chosen here.
    """

    name: str
    title: str
    source: str
    points: tuple[Point, ...]
    samplers: tuple[Sampler, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A comparison as it was asked for.

    Args:
        comparison: which.
        points: those that were asked for.
        seeds: of the parks, one of each.
        selections: in each park; a slow sampler makes the first of them.
        scale: share of 200 selections.
    """

    comparison: Comparison
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    selections: int
    scale: float

    def made(self, sampler: Sampler) -> int:
        """Return how many selections a sampler makes in each park."""
        return max(1, round(sampler.share * self.selections))

    @property
    def work(self) -> int:
        """Selections of all samplers in all parks."""
        there = [self.made(one) for one in self.comparison.samplers if not one.lacking()]
        return len(self.points) * len(self.seeds) * sum(there)


def asked(comparison: Comparison, only: str, scale: float, seeds: Sequence[int]) -> Asked:
    """Return what is to be done for a comparison.

    Args:
        comparison: which.
        only: a text that the keys of the wanted points hold; empty for all.
        scale: share of 200 selections in each park, in (0, 1].
        seeds: of the parks.

    Raises:
        SettingError: no point is meant, a seed is none or given twice, or the scale is out of range.
    """
    points = wanted(comparison.name, comparison.points, only, scale, seeds, "selections")
    return Asked(comparison, points, tuple(seeds), max(1, round(scale * SELECTIONS)), scale)
