"""The library's comparisons and reports: ``fedfloor.compare(experiment, methods, seeds) -> Comparison``."""

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
        folder: holds one run's folder for each pair.
        folders: the finished runs, in the order of execution.
        diverged: the finished runs whose training diverged; they contain the rounds until then.
        stopped: ``"finished"``, or ``"interrupted"``: some are missing or not whole.
    """

    folder: Path
    folders: tuple[Path, ...]
    stopped: str
    diverged: tuple[Path, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per method, its seeds taken together; see :func:`fedfloor.report.table.summary`."""
        return summary(reading.collect(self.folders))

    @property
    def differences(self) -> list[dict[str, Any]]:
        """The methods' paired differences in the headline; see :func:`fedfloor.report.table.paired`."""
        return paired(reading.collect(self.folders))

    @property
    def story(self) -> list[str]:
        """The result in words."""
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
    """Run an experiment with several methods and seeds on equal terms.

    Args:
        experiment: the experiment; its own method and seed do not count.
        methods: names of methods.
        seeds: each gives every method the same park and the same first model.
        out: the comparison's folder; ``runs/NAME-compare`` where it is left out.
        ranks: processes of each run; as many as there are cores where it is left out.
        resume: continue existing runs.
        limits: when each run stops early.
        report: called with each new ledger line, behind its method and seed.
        references: also train locally only, on pooled data, and with scikit-learn on the pooled table (of sensors), as
            far as the first method trains; and forecast by values that repeat, where the task is forecasting. See
            :mod:`fedfloor.runs.references`.

    Raises:
        SettingError: something in the experiment, a method or a seed is wrong, or a run exists already.
        RunError: a run failed; its last checkpoint stays. One whose training diverges does not end the comparison.
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
    """Write the report of one run or of several as one self-contained page and return its path.

    Args:
        runs: a result of :func:`fedfloor.run`, a run's folder, a folder of such folders, or several of these.
        out: the page; ``report.html`` in the (first) folder where it is left out.

    Raises:
        SettingError: a folder holds no run, or a file in it is damaged.
    """
    several = [runs] if isinstance(runs, (Run, Path, str)) else list(runs)
    folders = [item.folder if isinstance(item, Run) else Path(item) for item in several]
    return page.write(folders, Path(out) if out is not None else folders[0] / "report.html")
