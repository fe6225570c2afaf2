"""Comparisons and reports from Python: ``fedfloor.compare(experiment, methods, seeds) -> Comparison``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedfloor.experiment import Experiment
from fedfloor.report import ledger as reading
from fedfloor.report import page
from fedfloor.report.groups import display_name, groups
from fedfloor.report.numbers import interval
from fedfloor.report.story import story
from fedfloor.report.table import natural_target, paired, summary
from fedfloor.runs.api import Run, default_ranks
from fedfloor.runs.compare import PlannedRun, carry_out, planned_runs
from fedfloor.runs.forecast import warn_of_unequal_passes
from fedfloor.runs.ledger import Follow, Line
from fedfloor.runs.orders import Limits
from fedfloor.runs.references import beside

Report = Callable[[str, int, Line], None]


@dataclass(frozen=True)
class Comparison:
    """Finished runs of several methods and seeds.

    Attributes:
        folder: the folder with a run's folder for each pair.
        folders: the finished runs, in the order of execution.
        diverged: the runs whose training diverged, with the rounds before.
        stopped: ``"finished"``, or ``"interrupted"`` if runs are missing or incomplete.
    """

    folder: Path
    folders: tuple[Path, ...]
    stopped: str
    diverged: tuple[Path, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per method, with its seeds combined; see :func:`fedfloor.report.table.summary`."""
        return summary(reading.collect(self.folders))

    @property
    def differences(self) -> list[dict[str, Any]]:
        """The methods' paired differences in the headline metric; see :func:`fedfloor.report.table.paired`."""
        return paired(reading.collect(self.folders))

    @property
    def story(self) -> list[str]:
        """The result in sentences."""
        runs = reading.collect(self.folders)
        return story(groups(runs), natural_target(runs))

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report and return its path: ``report.html`` in the comparison's folder, or ``out``."""
        return page.write(self.folders, Path(out) if out is not None else self.folder / "report.html")

    def _repr_html_(self) -> str:
        figure = groups(reading.collect(self.folders)).headline
        cells = [
            (display_name(row["method"]), str(len(row["seeds"])), str(row["rounds"]),
             interval(row[figure.key], row["half_width"]), interval(row["loss"], None, 3))
            for row in self.rows
        ]  # fmt: skip
        head = "".join(f"<th>{escape(name)}</th>" for name in ("method", "seeds", "rounds", figure.name, "loss"))
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.story)
        where = f"<p>folder: <code>{escape(str(self.folder))}</code></p>"
        return f"<div>{paragraphs}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{where}</div>"


def compare(
    experiment: Experiment, methods: Sequence[str], seeds: Sequence[int] = (0,), out: Path | str | None = None, *,
    ranks: int | None = None, resume: bool = False, limits: Limits | None = None, report: Report | None = None,
    references: bool = False,
) -> Comparison:  # fmt: skip
    """Run an experiment with several methods and seeds under equal conditions.

    Args:
        experiment: the experiment; its own method and seed are ignored.
        methods: names of methods.
        seeds: the seeds; with a seed, every method has the same park and the same initial model.
        out: the comparison's folder; by default ``runs/NAME-compare``.
        ranks: the number of processes of each run; by default the number of cores.
        resume: continue existing runs.
        limits: the conditions under which a run stops early.
        report: called with method and seed, and each new ledger line.
        references: also train on each device alone, on pooled data, and with scikit-learn on pooled sensor data, for as
            many rounds as the first method; for forecasts, also repeat values. See :mod:`fedfloor.runs.references`.

    Raises:
        SettingError: the experiment, a method or a seed is wrong, or a run exists already.
        RunError: a run failed; its last checkpoint is kept. A run that diverges does not end the comparison.
    """
    folder = Path(out) if out is not None else Path("runs") / f"{experiment.name}-compare"
    work = planned_runs(experiment, methods, seeds, folder)
    if references:
        work = beside(work, experiment, methods, seeds, folder, limits or Limits())
    size = default_ranks(experiment.engine) if ranks is None else ranks
    ends, whole = carry_out(
        work, limits or Limits(), size, _follow(report), resume=resume, tolerant=True, keep=True,
        begin=warn_of_unequal_passes,
    )  # fmt: skip
    gone = tuple(place for place, why in ends.items() if why == "diverged")
    return Comparison(folder, tuple(ends), "finished" if whole else "interrupted", gone)


def _follow(report: Report | None) -> Callable[[PlannedRun], AbstractContextManager[Follow]]:
    def follow(run: PlannedRun) -> AbstractContextManager[Follow]:
        def each(line: Line) -> None:
            if report is not None:
                report(run.experiment.method.name, run.experiment.seed, line)

        return nullcontext(each)

    return follow


def write_report(runs: Run | Path | str | Iterable[Run | Path | str], out: Path | str | None = None) -> Path:
    """Write the report of one or several runs as a self-contained page and return its path.

    Args:
        runs: a result of :func:`fedfloor.run`, a run's folder, a folder of runs' folders, or a sequence of these.
        out: the path of the page; by default ``report.html`` in the (first) folder.

    Raises:
        SettingError: a folder has no run, or a file in it is damaged.
    """
    several = [runs] if isinstance(runs, (Run, Path, str)) else list(runs)
    folders = [item.folder if isinstance(item, Run) else Path(item) for item in several]
    return page.write(folders, Path(out) if out is not None else folders[0] / "report.html")
