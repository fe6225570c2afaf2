"""What a published figure about forgetting is, and its tables: accuracy on batches against the rounds since them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfloor.errors import SettingError
from fedfloor.report.groups import half_width
from fedfloor.report.numbers import interval
from fedfloor.runs.folder import write
from papers import written
from papers.cells import Table
from papers.work import Reproduction, plan

KINDS = ("batch", "fresh", "unseen")
LEADS = {"over_fresh": "fresh", "over_unseen": "unseen"}
Row = dict[str, Any]


@dataclass(frozen=True)
class Course:
    """What a run came to: shares in 0 … 1, means over the batches that were followed, one for each lag 0 … H.

    Args:
        batch: accuracy on a round's batch after that round, and after each of the H next ones.
        fresh: at the same time, on windows of the same devices that were never trained on.
        unseen: on samples of the same devices that are in nobody's windows.
        test: of the last model, on all test samples.
    """

    batch: tuple[float, ...]
    fresh: tuple[float, ...]
    unseen: tuple[float, ...]
    test: float

    def figure(self, name: str) -> tuple[float, ...]:
        """Return one of :data:`KINDS`, or by how much ``batch`` is above another one, of :data:`LEADS`."""
        if name not in LEADS:
            return tuple(getattr(self, name))
        return tuple(one - other for one, other in zip(self.batch, getattr(self, LEADS[name]), strict=True))


@dataclass(frozen=True)
class Forgetting:
    """A published figure about forgetting.

    Args:
        table: its cells are the variants; the figures of these are not read.
        period: T; batches of whole periods are followed.
        lags: H, rounds that a batch is followed.
        shown: those that stand in the table, ascending.
        usual: the cells' keys that are meant where ``--only`` is left out hold this.
    """

    table: Table
    period: int
    lags: int = 20
    shown: tuple[int, ...] = (0, 1, 2, 4, 9, 14, 19)
    usual: str = ""

    @property
    def name(self) -> str:
        """As it is typed."""
        return self.table.name

    def followed(self, rounds: int) -> range:
        """Return the rounds whose batches are followed: whole periods, in the second half of so many rounds.

        Raises:
            SettingError: there are none.
        """
        half, last = -(-rounds // 2), rounds - self.lags
        first = -(-half // self.period) * self.period
        found = range(first + 1, last // self.period * self.period + 1)
        if not found:
            raise SettingError(
                f"--scale: of {rounds} rounds none of the second half has {self.lags} after it: too few for "
                f"{self.name}. Take {2 * (self.lags + 2 * self.period)} or more, of {self.table.rounds} in full."
            )
        return found


def asked(of: Forgetting, only: str, scale: float, seeds: Sequence[int], out: Path) -> Reproduction:
    """Return what is to be done for a figure.

    Args:
        of: which.
        only: a text that the keys of the wanted cells hold; empty for the usual ones.
        scale: share of the paper's rounds, in (0, 1].
        seeds: each cell is run with each of them.
        out: holds a file per run.

    Raises:
        SettingError: no cell is meant, a seed is none or given twice, or the scale is out of range or too small.
    """
    what = plan(of.table, only or of.usual, scale, seeds, out)
    of.followed(what.rounds)
    return what


def rows(what: Reproduction, found: Mapping[tuple[str, int], Course]) -> list[Row]:
    """Return a figure's rows, one per cell: means over the seeds, a list by lag each, with 95 % half widths.

    Args:
        what: the figure as it was asked for.
        found: the course of each cell's key and seed.
    """
    table = []
    for cell in what.cells:
        several = [found[cell.key, seed] for seed in what.seeds]
        row: Row = {"key": cell.key, "task": cell.task, "variant": cell.label, "seeds": len(several)}
        for name in (*KINDS, *LEADS):
            by_lag = list(zip(*(one.figure(name) for one in several), strict=True))
            row |= {name: [statistics.fmean(values) for values in by_lag]}
            row |= {f"{name}_half_width": [half_width(values) for values in by_lag]}
        tests = [one.test for one in several]
        table.append(row | {"test": statistics.fmean(tests), "test_half_width": half_width(tests)})
    return table


# -- for people --------------------------------------------------------------------------------------------------------


def heading(of: Forgetting, what: Reproduction) -> str:
    """Return what a figure is, and which batches it follows."""
    followed = of.followed(what.rounds)
    tasks = " and ".join(dict.fromkeys(cell.task for cell in what.cells))
    return f"{written.heading(what)}. {tasks}; batches of rounds {followed[0]}–{followed[-1]}"


def about(of: Forgetting, what: Reproduction) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    followed = of.followed(what.rounds)
    return {**written.about(what), "lags": of.lags, "first": followed[0], "last": followed[-1]}


def shown(of: Forgetting, found: Sequence[Row]) -> list[dict[str, str]]:
    """Return accuracies on the batch as people read them, %: a column for each lag, and the test data at the end."""
    table = []
    for row in found:
        words = {**_named(row, found), **{_after(lag): _percent(row, "batch", lag) for lag in of.shown}}
        table.append(words | {"test": interval(*_hundred(row["test"], row["test_half_width"]), 1)})
    return table


def controls(of: Forgetting, found: Sequence[Row]) -> list[dict[str, str]]:
    """Return the controls, and by how much the batch is above them, at the first and the last of the shown lags."""
    names = {"fresh": "fresh", "unseen": "unseen", "over_fresh": "batch − fresh", "over_unseen": "batch − unseen"}
    ends = (of.shown[0], of.shown[-1])
    return [
        _named(row, found)
        | {f"{words}, {_after(lag)}": _percent(row, name, lag) for name, words in names.items() for lag in ends}
        for row in found
    ]


def _named(row: Row, found: Sequence[Row]) -> dict[str, str]:
    several = len({one["task"] for one in found}) > 1
    return {"variant": f"{row['variant']} ({row['task']})" if several else row["variant"]}


def _after(lag: int) -> str:
    return f"+{lag}"


def _percent(row: Row, name: str, lag: int) -> str:
    return interval(*_hundred(row[name][lag], row[f"{name}_half_width"][lag]), 1)


def _hundred(value: float, half: float | None) -> tuple[float, float | None]:
    return 100 * value, None if half is None else 100 * half


ON_BATCH = "Accuracy (%) on a round's batch, so many rounds after it; test: at the end, on all test samples"
BESIDE = "Accuracy (%) on the controls, and by how many points the batch is above them"


def markdown(of: Forgetting, what: Reproduction, found: Sequence[Row], command: str) -> str:
    """Return a figure as Markdown: the command that makes it, both tables, the picture, the choices that were made."""
    lines = [f"# {of.name}", "", f"{heading(of, what)}.", "", "```bash", command, "```", ""]
    for words, table in ((ON_BATCH, shown(of, found)), (BESIDE, controls(of, found))):
        lines += [f"{words}:", "", "| " + " | ".join(table[0]) + " |", "|" + "---|" * len(table[0])]
        lines += [*("| " + " | ".join(row.values()) + " |" for row in table), ""]
    lines += [f"![{of.table.title}, and how far above both controls]({of.name}.svg)", ""]
    said = written.about(what)
    lines += [f"Made by fedfloor {said['fedfloor']}, seeds {', '.join(map(str, what.seeds))}. Choices:", ""]
    return "\n".join([*lines, *(f"- {note}" for note in of.table.notes)]) + "\n"


def save(of: Forgetting, what: Reproduction, found: Sequence[Row], command: str) -> None:
    """Write ``table.md``, ``table.json`` and the picture into the figure's folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    from papers import pictures

    curves = {_named(row, found)["variant"]: row for row in found}
    write(what.out / f"{of.name}.svg", pictures.forgotten(curves))
    write(what.out / "table.md", markdown(of, what, found, command))
    document = {"rows": list(found), **about(of, what)}
    write(what.out / "table.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
