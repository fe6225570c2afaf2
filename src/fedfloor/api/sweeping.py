"""Searches for the best settings of methods in Python: :func:`sweep` and its :class:`Swept`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from fedfloor.api import tables
from fedfloor.api.comparison import followed
from fedfloor.api.methods import Methods, Seeds, with_methods
from fedfloor.api.progress import bars
from fedfloor.api.run import Stop, announce, chosen_folder, processes
from fedfloor.api.source import Changes, Settings, Source, in_file, load
from fedfloor.api.wording import in_python
from fedfloor.base.checking import plain
from fedfloor.base.errors import DivergedError, SettingError
from fedfloor.experiment import Experiment
from fedfloor.parts.named import written
from fedfloor.report import ledger
from fedfloor.report.table import trials as told_apart
from fedfloor.report.words import CHANCE
from fedfloor.runs import sweep as sweeps
from fedfloor.runs.compare import PlannedRun, carry_out, check_folder
from fedfloor.runs.folder import write, write_json
from fedfloor.runs.ledger import Follow
from fedfloor.runs.orders import Limits
from fedfloor.runs.sweep import Result, Sweep
from fedfloor.tasks.figures import ACCURACY

Row = dict[str, Any]
Begin = Callable[[PlannedRun], AbstractContextManager[Follow]]  # entered when a run begins
NOTHING = {"low": None, "high": None, "over": None, "p_holm": None}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Swept:
    """The trials of a sweep and the best settings of each method; in a notebook they show their table.

    Attributes:
        folder: the folder with a run's folder for each trial and seed, ``sweep.json`` and ``best.toml``.
        stopped: ``"finished"``, or ``"interrupted"`` if runs are missing; there are no rows then.
        document: the content of ``sweep.json``: ``rows``, ``winner``, ``trials``, ``rounds``, ``grid``, ….
        methods: the names of the methods.
        lost: the methods whose trials all diverged.
        tuned: the experiment of :attr:`best`; None without one.
    """

    folder: Path
    stopped: str
    document: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    tuned: Experiment | None = None

    @property
    def rows(self) -> list[Row]:
        """A row per trial: ``settings``, metrics on validation data, and whether it is ``best`` or ``as_good``."""
        return list(self.document.get("rows", ()))

    @property
    def winner(self) -> str | None:
        """The method with the best trial; None without one."""
        name: str | None = self.document.get("winner")
        return name

    @property
    def best(self) -> Experiment:
        """The experiment with the best settings of each method, for ``compare(swept.best, swept.methods, seeds=…)``.

        Raises:
            DivergedError: every trial of a method diverged.
            SettingError: the sweep was interrupted.
        """
        if self.tuned is not None:
            return self.tuned
        if self.lost:
            raise lost(self.lost)
        raise SettingError(
            f"{self.folder}: the sweep was interrupted, so that no settings are the best. Continue it with "
            "resume=True.",
            key="sweep-interrupted",
        )

    def to_pandas(self) -> Any:
        """Return the trials as a pandas DataFrame, with a column per setting."""
        return tables.pandas("to_pandas").DataFrame(self._flat())

    def _flat(self) -> list[Row]:
        names = dict.fromkeys(name for row in self.rows for name in row["settings"])
        flat = []
        for row in self.rows:
            given = {name: row["settings"].get(name) for name in names}
            settings = {k: written(v) if isinstance(v, Mapping | list | tuple) else v for k, v in given.items()}
            flat.append({"method": row["method"], "trial": row["trial"], **settings} | _without(row, "settings"))
        return flat

    def _cells(self) -> list[tuple[str, ...]]:
        rows = [_without(row, "over", "as_good") for row in self._flat()]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return [tuple(names), *(tuple(tables.written(row.get(name)) for name in names) for row in rows)]

    def __repr__(self) -> str:
        table = tables.lines(self._cells()) if self.rows else []
        return "\n".join([f"{self.folder}: {self.stopped}", *table])

    def _repr_html_(self) -> str:
        return tables.html(self._cells(), folder=self.folder) if self.rows else f"<p>{self.folder}: {self.stopped}</p>"


def _without(row: Mapping[str, Any], *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}


@in_python
def sweep(
    source: Source, methods: Methods = None, grid: Mapping[str, Any] | None = None,
    seeds: Seeds = (0,), out: Path | str | None = None, *, trials: int | None = None,
    ranks: int | None = None, resume: bool = False, limits: Stop | None = None, progress: bool | None = None,
    changes: Changes | None = None, **settings: Unpack[Settings],
) -> Swept:  # fmt: skip
    """Search each method's best settings on validation data, with the same number of trials for each method.

    The test data are not used: ``compare(swept.best, swept.methods, seeds=range(3))`` is the fair test.

    Args:
        source: an experiment, the path of its file, or a name, as for :func:`~fedfloor.load`.
        methods: the methods, by names and as objects, as for :func:`~fedfloor.compare`; by default the experiment's.
        grid: key → the values to try, such as ``{"work.lr": [0.1, 0.01], "methods.fedprox.mu": [0.01, 0.1]}``. Keys
            are ``work.KEY``, ``method.KEY`` for every method with this setting, and ``methods.NAME.KEY`` for one.
        seeds: the seeds of each trial.
        out: the folder for the runs; by default ``runs/NAME-sweep``, or ``runs/NAME-sweep-2`` and so on.
        trials: the number of trials of each method; by default that of the smallest grid. Of larger grids this number
            of points is drawn.
        ranks, resume, limits, progress, changes, settings: as for :func:`~fedfloor.compare`.

    Raises:
        SettingError: a key, value, method or seed is wrong, or runs are already in ``out``.
        RunError: a run failed; its last checkpoint is kept. A run that diverges does not end the sweep.
    """
    fraction = settings.pop("fraction", None)
    experiment, names = with_methods(load(source, changes=changes, **settings), methods, fraction)
    if not grid:
        raise SettingError('grid: give the values of a setting, such as {"work.lr": [0.1, 0.01]}.', key="--grid")
    tried = {key: [plain(in_file(key, value)) for value in sweeps.several(key, values)] for key, values in grid.items()}
    axes = [sweeps.axis_of(key, values) for key, values in tried.items()]
    plan = sweeps.plan(experiment, names, axes, list(seeds), trials)
    folder = chosen_folder(out, f"{experiment.name}-sweep", resume=resume)
    check_folder(folder)
    if out is None and not resume:
        announce(folder, f"{experiment.name}-sweep")
    stop = limits or Limits()
    size = min(processes(trial.experiment, ranks) for trial in plan.trials)
    show = bars(len(plan.trials) * len(plan.seeds), wanted=progress)
    return swept(plan, folder, stop, size, followed(None, show, stop), resume=resume)


def swept(plan: Sweep, out: Path, stop: Limits, size: int, follow: Begin, *, resume: bool) -> Swept:
    """Carry out a sweep, and write its ``sweep.json`` and the best settings, ``best.toml``.

    Args:
        plan: the sweep.
        out: the folder for its runs.
        stop: the conditions for an early stop of each run.
        size: the number of processes.
        follow: entered when a run begins; see :func:`fedfloor.runs.compare.carry_out`.
        resume: whether to continue runs in the folder.

    Raises:
        SettingError: a run's folder exists already and ``resume`` is false.
        RunError: a run failed.
    """
    check_folder(out)
    _note(plan)
    work = plan.planned_runs(out)
    ends, whole = carry_out(work, stop, size, follow, resume=resume, tolerant=True)
    if not whole:
        done = sum(why != "interrupted" for why in ends.values())
        log.info("%s of %s runs done", done, len(work))
        return Swept(out, "interrupted", methods=tuple(plan.sizes))
    results = sweeps.results(plan, out, {folder for folder, why in ends.items() if why == "diverged"})
    best = sweeps.winners(results)
    rounds = min(plan.original.rounds, stop.stop_after or plan.original.rounds)
    document = _document(plan, results, best, rounds, out)
    out.mkdir(parents=True, exist_ok=True)  # a run that diverges in its first round removes its folder
    write_json(out / "sweep.json", document)
    gone = tuple(name for name in plan.sizes if name not in best)
    if gone:
        return Swept(out, "finished", document, tuple(plan.sizes), gone)
    write(out / "best.toml", sweeps.document(plan, best, rounds, out))
    return Swept(out, "finished", document, tuple(plan.sizes), tuned=sweeps.tuned(plan, best))


def lost(methods: Sequence[str]) -> DivergedError:
    """Return the error of methods whose trials all diverged."""
    return DivergedError(f"every trial of {', '.join(methods)} diverged: no best.toml. Try smaller learning rates.")


def _note(plan: Sweep) -> None:
    """Log the budget, and the methods whose grids exceed it."""
    seeds = f"{len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}"
    log.info("%s trials of each method, each with %s", plan.budget, seeds)
    for name, size in plan.sizes.items():
        if size > plan.budget:
            log.info(
                "%s of the %s points of %s's grid are drawn, so that every method has the same number of trials",
                plan.budget, size, name,
            )  # fmt: skip


def _document(plan: Sweep, results: Sequence[Result], best: Mapping[str, Result], rounds: int, out: Path) -> Row:
    """Return the content of ``sweep.json``."""
    rows = []
    for name in plan.sizes:
        own = [result for result in results if result.trial.method == name]
        rows += [_row(plan, result, more) for result, more in zip(own, _beside(plan, own, best, out), strict=True)]
    return {
        "experiment": plan.original.name,
        "rows": rows,
        "winner": sweeps.winner(best).trial.method if best else None,
        "trials": plan.budget,
        "points": dict(plan.sizes),
        "rounds": rounds,
        "validation": plan.original.evaluate.validation,
        "grid": {axis.key: list(axis.values) for axis in plan.axes},
    }


def _beside(plan: Sweep, results: Sequence[Result], best: Mapping[str, Result], out: Path) -> list[Row]:
    """Return the interval of each trial of a method, whether it is the best, and whether it differs from the best."""
    sound = [result for result in results if result.score is not None]
    runs = []
    for result in sound:
        places = [plan.folder(out, result.trial, seed) for seed in plan.seeds]
        values = [value for value in result.values if value is not None]
        runs.append([(ledger.read_run(place), value) for place, value in zip(places, values, strict=True)])
    first = [own for result, own in zip(sound, runs, strict=True) if best.get(result.trial.method) is result]
    more_of = told_apart(first[0], runs, plan.original.evaluate.figure) if first else []
    found = {result.trial.number: more for result, more in zip(sound, more_of, strict=True)}
    rows = []
    for result in results:
        more = found.get(result.trial.number, NOTHING)
        leads = best.get(result.trial.method) is result
        clear = more["p_holm"] is not None and more["p_holm"] < CHANCE
        rows.append({**more, "best": leads, "as_good": result.score is not None and not (leads or clear)})
    return rows


def _row(plan: Sweep, result: Result, beside: Mapping[str, Any]) -> Row:
    figure = plan.original.evaluate.figure
    return {
        "method": result.trial.method,
        "trial": result.trial.number,
        "settings": result.trial.dotted,
        "seeds": list(plan.seeds),
        "accuracies" if figure == ACCURACY else f"{figure.key}_by_seed": list(result.values),
        f"validation_{figure.key}": result.score,
        **beside,
    }
