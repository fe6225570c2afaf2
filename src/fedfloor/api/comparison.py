"""Comparisons and reports in Python: :func:`compare` and its :class:`Comparison`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Unpack

from fedfloor.api import tables
from fedfloor.api.methods import Methods, Seeds, with_methods
from fedfloor.api.progress import Bars, bars
from fedfloor.api.run import Run, Stop, announce, chosen_folder, processes
from fedfloor.api.source import Changes, Settings, Source, load
from fedfloor.api.wording import in_python, worded
from fedfloor.report import ledger as reading
from fedfloor.report import page
from fedfloor.report.groups import curve, display_name, groups
from fedfloor.report.numbers import between
from fedfloor.report.story import story
from fedfloor.report.table import natural_target, paired, summary
from fedfloor.runs import comparison_file, ledger
from fedfloor.runs.compare import PlannedRun, carry_out, check_folder
from fedfloor.runs.folder import flat
from fedfloor.runs.forecast import warn_of_unequal_passes
from fedfloor.runs.ledger import Follow, Line
from fedfloor.runs.orders import Limits
from fedfloor.runs.references import planned

Report = Callable[[str, int, Line], None]


@dataclass(frozen=True)
class Comparison:
    """Finished runs of several methods and seeds; in a notebook it shows their table.

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
        return story(groups(runs), natural_target(runs), hindsight=True)

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on data to check, such as a sensor in another unit on one device."""
        findings = dict.fromkeys(text for run in reading.collect(self.folders) for text in run.park.findings)
        return tuple(map(worded, findings))

    def _sentences(self) -> list[str]:
        return [*self.story, *(f"To check in the data: {finding}" for finding in self.findings)]

    def to_pandas(self) -> Any:
        """Return the ledgers of all runs as a pandas DataFrame: a row per method, seed and round."""
        runs = reading.collect(self.folders)
        label_of = {run.folder: str(group.label) for group in groups(runs) for run in group.runs}
        rows = [
            {"method": label_of[run.folder], "seed": run.seed, **flat(ledger.to_row(line))}
            for run in runs
            for line in ledger.read(run.folder / "ledger.jsonl")
        ]
        return tables.pandas("to_pandas").DataFrame(rows)

    def plot(self, ax: Any = None) -> Any:
        """Draw each method's headline against rounds, with its 95 % interval over seeds; return the Matplotlib axes."""
        from fedfloor.api.drawing import axes

        compared = groups(reading.collect(self.folders))
        ax = axes(ax, compared.headline.name)
        for i, group in enumerate(compared):
            line = curve(group, compared.headline.read)
            ax.plot(line.rounds, line.mean, marker=".", color=f"C{i}", label=display_name(group.label))
            if line.half_width is not None:
                low, high = zip(*((m - w, m + w) for m, w in zip(line.mean, line.half_width, strict=True)), strict=True)
                ax.fill_between(line.rounds, low, high, color=f"C{i}", alpha=0.15)
        ax.legend()
        return ax

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report and return its path: ``report.html`` in the comparison's folder, or ``out``."""
        return page.write(self.folders, Path(out) if out is not None else self.folder / "report.html")

    def _cells(self) -> list[tuple[str, ...]]:
        figure = groups(reading.collect(self.folders)).headline
        cells: list[tuple[str, ...]] = [("method", "seeds", "rounds", figure.name, "loss")]
        for row in self.rows:
            values = (
                between(row[figure.key], row["low"], row["high"]),
                between(row["loss"], row["loss_low"], row["loss_high"], 3),
            )
            cells.append((display_name(row["method"]), str(len(row["seeds"])), str(row["rounds"]), *values))
        return cells

    def __repr__(self) -> str:
        if not self.folders:
            return f"{self.folder}: {self.stopped}"
        table = tables.lines(self._cells())
        return "\n".join([f"{self.folder}: {self.stopped}", *table, *self._sentences()])

    def _repr_html_(self) -> str:
        return tables.html(self._cells(), self._sentences(), folder=self.folder)


@in_python
def compare(
    source: Source, methods: Methods = None, seeds: Seeds = (0,),
    out: Path | str | None = None, *, references: bool = False, ranks: int | None = None, resume: bool = False,
    limits: Stop | None = None, report: Report | None = None, progress: bool | None = None,
    changes: Changes | None = None, **settings: Unpack[Settings],
) -> Comparison:  # fmt: skip
    """Run an experiment with several methods and seeds under equal conditions.

    Args:
        source: an experiment, the path of its file, or a name, as for :func:`~fedfloor.load`; its own method and seed
            are ignored.
        methods: names of methods and, beside them, of references such as ``pooled``; objects such as
            ``FedProx(mu=0.1)`` or those of a class of your own, or
            ``MethodSettings`` with exchanged parts; or a dictionary of these by names of your choice.
        seeds: the seeds; with a seed, every method has the same park and the same initial model.
        out: the comparison's folder; by default ``runs/NAME-compare``, or ``runs/NAME-compare-2`` and so on if earlier
            ones are there.
        references: also train on each device alone, on pooled data, and with scikit-learn on pooled sensor data, for as
            many rounds as the first method; for forecasts, also repeat values. See :mod:`fedfloor.runs.references`.
        ranks: the number of processes of each run; by default the number of cores.
        resume: continue existing runs; without ``out``, those of the newest folder.
        limits: the conditions under which a run stops early.
        report: called with method and seed, and each new ledger line.
        progress: whether to show a bar; by default in a notebook and on a terminal.
        changes: key of the experiment file → value, as for :func:`~fedfloor.load`.
        settings: such as ``rounds=20`` and ``devices=100``; ``fraction`` is that of every method without its own.

    Raises:
        SettingError: the experiment, a method or a seed is wrong, or a run exists already in ``out``.
        RunError: a run failed; its last checkpoint is kept. A run that diverges does not end the comparison.
    """
    fraction = settings.pop("fraction", None)
    experiment = load(source, changes=changes, **settings)
    experiment, names = with_methods(experiment, methods, fraction)
    seeds = list(seeds)
    folder = chosen_folder(out, f"{experiment.name}-compare", resume=resume)
    work = planned(experiment, names, seeds, folder, limits or Limits(), every=references)
    check_folder(folder)
    if out is None and not resume:
        announce(folder, f"{experiment.name}-compare")
    size = min(processes(run.experiment, ranks) for run in work)
    show = bars(len(work), wanted=progress)
    ends, whole = carry_out(
        work, limits or Limits(), size, followed(report, show, limits or Limits()), resume=resume, tolerant=True,
        keep=True, begin=warn_of_unequal_passes,
    )  # fmt: skip
    comparison_file.keep(experiment, folder)
    gone = tuple(place for place, why in ends.items() if why == "diverged")
    return Comparison(folder, tuple(ends), "finished" if whole else "interrupted", gone)


@in_python
def load_comparison(folder: Path | str) -> Comparison:
    """Return the comparison in a folder, with all of its runs that have finished a round.

    Raises:
        SettingError: the folder holds no runs, or a file in it is damaged.
    """
    runs = reading.collect([Path(folder)])
    gone = tuple(run.folder for run in runs if run.diverged is not None)
    whole = all(run.finished or run.diverged is not None for run in runs)
    stopped = "finished" if whole else "interrupted"
    return Comparison(Path(folder), tuple(run.folder for run in runs), stopped, gone)


def followed(
    report: Report | None, show: Bars, limits: Limits
) -> Callable[[PlannedRun], AbstractContextManager[Follow]]:  # fmt: skip
    """Return the function that shows the progress of one of several runs, and passes its lines on."""

    @contextmanager
    def follow(run: PlannedRun) -> Iterator[Follow]:
        rounds = min(run.experiment.rounds, limits.stop_after or run.experiment.rounds)
        with show(run.label, rounds) as bar:

            def each(line: Line) -> None:
                bar(line)
                if report is not None:
                    report(run.experiment.method.name, run.experiment.seed, line)

            yield each

    return follow


Runs = Annotated[
    Run | Comparison | Path | str | Iterable[Run | Comparison | Path | str],
    "a run, a comparison, a folder, or a list of these",
]


@in_python
def write_report(runs: Runs, out: Path | str | None = None) -> Path:
    """Write the report of one or several runs as a self-contained page and return its path.

    Args:
        runs: a run, a comparison, a run's folder, a folder of runs' folders, or a sequence of these.
        out: the path of the page; by default ``report.html`` in the (first) folder.

    Raises:
        SettingError: a folder has no run, or a file in it is damaged.
    """
    folders = folders_of(runs)
    return page.write(folders, Path(out) if out is not None else folders[0] / "report.html")


def folders_of(runs: Runs) -> list[Path]:
    """Return the folders of runs, comparisons and paths."""
    several = [runs] if isinstance(runs, Run | Comparison | Path | str) else list(runs)
    return [item.folder if isinstance(item, Run | Comparison) else Path(item) for item in several]
