"""A run in Python: :func:`run`, :func:`load_run`, and its :class:`Run`, which shows itself in a notebook."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from fedfloor import config
from fedfloor.api.drawing import PlanDrawing
from fedfloor.api.model import TrainedModel
from fedfloor.api.progress import bars
from fedfloor.api.source import Changes, Settings, Source, load
from fedfloor.api.tables import pandas
from fedfloor.api.wording import in_python, worded
from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.base.names import LOCAL_ONLY, POOLED, REFERENCES_FOLDER
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import EXACT, METHODS
from fedfloor.runs import launch, ledger
from fedfloor.runs.compare import carry_out, check_own_folder
from fedfloor.runs.folder import flat
from fedfloor.runs.ledger import Follow, Line
from fedfloor.runs.orders import Limits, Orders
from fedfloor.runs.references import accompanied, of_run
from fedfloor.runs.terminal import both
from fedfloor.tasks.figures import ACCURACY, LOSS, Figure, is_figure, named

if TYPE_CHECKING:
    from fedfloor.report.ledger import RecordedRun
    from fedfloor.runs.replay import Recording

log = logging.getLogger(__name__)

Stop = Annotated[Limits, "conditions for an early stop, such as fedfloor.Limits(stop_after=5)"]
WIDTH, HEIGHT = 460, 210
# margins of the curve
LEFT = 46
RIGHT = 14
TOP = 12
BOTTOM = 40
CURVE = "#2b7bd1"  # visible on white and on near-black
FEDERATED = "federated"
WORDS = {LOCAL_ONLY: "each device alone", POOLED: "all data in one place"}


@dataclass(frozen=True)
class Run:
    """A run that has ended; in a notebook it shows its metrics, its curve and its references.

    Attributes:
        folder: the folder of its ledger, model and checkpoints.
        stopped: the reason of the end: ``"finished"``, ``"stopped"`` (a limit), ``"interrupted"`` or ``"diverged"``.
        lines: its ledger; empty on ranks of a ``torchrun`` job other than the first.
        own: whether the user's code that its model names may be imported.
        notes: sentences on the data and settings that were assumed.
    """

    folder: Path
    stopped: str
    lines: tuple[Line, ...]
    own: bool = False
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the global model at the last evaluation; None without an evaluation."""
        values = [line.accuracy for line in self.lines if line.accuracy is not None]
        return values[-1] if values else None

    @property
    def headline(self) -> tuple[str, float | None]:
        """Name of the headline metric, ``[evaluate] headline``, and its value at the last evaluation."""
        values = [line.headline for line in self.lines if line.headline[1] is not None]
        return values[-1] if values else ("accuracy", None)

    @property
    def curve(self) -> dict[int, float]:
        """Round → headline metric, for the rounds with an evaluation."""
        return {line.round: value for line in self.lines if (value := line.headline[1]) is not None}

    @property
    def figures(self) -> dict[str, float]:
        """Name → value of the metrics at the last evaluation, the headline first."""
        last = next((line for line in reversed(self.lines) if line.headline[1] is not None), None)
        if last is None:
            return {}
        values = dict([last.headline, *(last.figures or {}).items(), ("accuracy", last.accuracy)])
        values |= {"macro-F1": last.macro_f1, "loss": last.loss}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluation of the final model, ``evaluation.json``, with the confusion matrix, devices and factories.

        Devices that only train have a ``role`` and no accuracy.
        """
        body: dict[str, Any] = json.loads(regular.read_text(self.folder / "evaluation.json"))
        return body

    @cached_property
    def _recorded(self) -> RecordedRun:
        from fedfloor.report.ledger import read_run  # with pydantic, which a machine that only trains may lack

        return read_run(self.folder)

    @property
    def findings(self) -> tuple[str, ...]:
        """Sentences on data to check, such as a sensor in another unit on one device."""
        return tuple(map(worded, self._recorded.park.findings))

    @property
    def devices(self) -> list[dict[str, Any]]:
        """A row per device that was evaluated, the worst first: its headline, also if it trains alone."""
        figure = self._recorded.headline
        alone = self.references.get(LOCAL_ONLY)
        other = {} if alone is None else {row["device"]: row[figure.name] for row in alone.devices}
        names = self._recorded.park.names
        final = self._recorded.evaluation
        known = [(place, place.value(figure)) for place in (final and final.devices) or ()]
        ranked = sorted(
            ((figure.gain(value, 0.0), place, value) for place, value in known if value is not None),
            key=lambda entry: entry[0],
        )
        rows = []
        for _, place, value in ranked:
            name = names.site("device", place.number)
            factory = {} if place.factory is None else {"factory": names.site("factory", place.factory)}
            factory = factory if self._recorded.park.factories > 1 else {}
            rows.append({"device": name, **factory, figure.name: value} | ({"alone": other.get(name)} if other else {}))
        return rows

    @cached_property
    def references(self) -> dict[str, Run]:
        """Name → run of each reference: ``local-only`` (each device alone), ``pooled`` (all data in one place), …."""
        folder = self.folder / REFERENCES_FOLDER
        runs = [load_run(path.parent) for path in sorted(folder.glob("*/experiment.toml"))]
        return {run._recorded.method: run for run in runs if run.lines}

    @property
    def story(self) -> str:
        """The lead over each reference in sentences; "" without references."""
        from fedfloor.report import ledger as reading
        from fedfloor.report.contrast import contrast
        from fedfloor.report.groups import groups
        from fedfloor.report.table import paired

        compared = groups(reading.collect(reading.with_references([self.folder])))
        return contrast(compared, compared[0], paired(compared.runs)) if len(compared) > 1 else ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per way of training: each device alone, federated, all data in one place, further references."""
        from fedfloor.report.groups import display_name, groups

        name, value = self.headline
        values: dict[str, float | None] = {key: run.headline[1] for key, run in self.references.items()}
        if values and POOLED not in values and self._is_pooled:
            values[POOLED] = value
        values[FEDERATED] = value
        method = display_name(groups([self._recorded])[0].label)
        words = {FEDERATED: f"federated ({method})", **WORDS}
        order = [key for key in (LOCAL_ONLY, FEDERATED, POOLED) if key in values]
        return [{"training": words.get(key, key), name: values[key]} for key in dict.fromkeys([*order, *values])]

    @property
    def _is_pooled(self) -> bool:
        """Whether the method makes the model of pooled data, for which there is no separate reference."""
        named = self._recorded.settings.methods.get(self._recorded.method)
        kind = {**METHODS, **EXACT}.get((named and named.method) or self._recorded.method)
        return kind is not None and kind().needs.pooled

    @cached_property
    def model(self) -> TrainedModel:
        """The trained model.

        Raises:
            SettingError: there is none, or it names the user's code and ``own`` is false.
        """
        return TrainedModel.of(self.folder, own=self.own)

    @property
    def model_file(self) -> Path:
        """The path of the trained model, a safetensors file."""
        return self.folder / "model.safetensors"

    def to_pandas(self) -> Any:
        """Return the ledger as a pandas DataFrame, a row per round; nested values have dotted names."""
        rows = [flat(ledger.to_row(line)) for line in self.lines]
        return pandas("to_pandas").DataFrame(rows).set_index("round") if rows else pandas("to_pandas").DataFrame()

    def draw(self) -> PlanDrawing:
        """Return the plan of the first round, as text or, in a notebook, as a drawing.

        Raises:
            SettingError: the folder has no plan that can be read.
        """
        from fedfloor.report.plan_text import tree
        from fedfloor.report.sections import drawn_round

        run = self._recorded
        if run.plan is None:
            raise SettingError(
                f"{self.folder}: it has no plan.json that can be read. Run the experiment again.", key="folder-of-run"
            )
        return PlanDrawing(tree(run.plan, names=run.park.names), drawn_round(run))

    def plot(self, ax: Any = None) -> Any:
        """Draw the headline against rounds, with references as dotted lines, and return the Matplotlib axes."""
        from fedfloor.api.drawing import axes

        name, _ = self.headline
        ax = axes(ax, name)
        ax.plot(list(self.curve), list(self.curve.values()), marker=".", color=CURVE, label=FEDERATED)
        for i, (key, reference) in enumerate(self.references.items(), start=1):
            if reference.headline[1] is not None:
                ax.axhline(reference.headline[1], linestyle=":", color=f"C{i}", label=WORDS.get(key, key))
        ax.legend()
        return ax

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report and return its path: ``report.html`` in the run's folder, or ``out``."""
        from fedfloor.report import page
        from fedfloor.report.ledger import with_references

        folders = with_references([self.folder])
        return page.write(folders, Path(out) if out is not None else self.folder / "report.html")

    def __repr__(self) -> str:
        lines = [f"{self.folder}: {self.stopped}" + (f" after round {self.lines[-1].round}" if self.lines else "")]
        if self.lines and self.folder.is_dir():
            name, _ = self.headline
            width = max(len(row["training"]) for row in self.rows)
            lines += [f"  {row['training']:<{width}}  {name} {_written(row[name])}" for row in self.rows]
            lines += [f"  {sentence}" for sentence in self._closing()]
        return "\n".join(lines)

    def _closing(self) -> Iterator[str]:
        if self.story:
            yield self.story
        if self.devices:
            name = self._recorded.headline.name
            worst = self.devices[0]
            alone = f", {_written(worst['alone'])} alone" if worst.get("alone") is not None else ""
            yield f"worst device: {worst['device']} with {name} {_written(worst[name])}{alone}"
        yield from (f"To check in the data: {finding}" for finding in self.findings)

    def _repr_html_(self) -> str:
        rows = self.rows if self.references else []
        headline = self._recorded.headline if self.lines and self.folder.is_dir() else None
        return html(self.folder, self.stopped, self.lines, rows, list(self._closing()) if self.lines else [], headline)


def _written(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def html(
    folder: Path, stopped: str, lines: Sequence[Line], rows: Sequence[Mapping[str, Any]] = (),
    sentences: Sequence[str] = (), headline: Figure | None = None,
) -> str:  # fmt: skip
    """Return a run as HTML: its last metrics, its headline against rounds, its references, and its folder.

    >>> print(html(Path("a"), "finished", []), end="")
    <div><p><b>a</b>: finished</p>
    <p>folder: <code>a</code></p></div>
    """
    from fedfloor.base.templates import render

    about: dict[str, Any] = {"folder": folder, "stopped": stopped, "lines": lines, "points": []}
    about |= {"rows": [list(row.values()) for row in rows], "sentences": sentences}
    name = lines[-1].headline[0] if lines else ACCURACY.name
    figure = headline or (named(name) if is_figure(name) else ACCURACY)
    read = [(line, figure.read(line)) for line in lines]
    scored = [(line, value) for line, value in read if value is not None and math.isfinite(value)]
    if scored:
        (last, value) = scored[-1]
        (best, top) = max(scored, key=lambda entry: figure.gain(entry[1], 0.0))
        about |= {"name": figure.name, "last": value, "best": best.round, "top": top, "colour": CURVE}
        about |= {"loss": None if figure == LOSS else last.loss, **_curve(scored, share=figure.share)}
    return render("fedfloor.api", "run.html", **about)


def _curve(scored: Sequence[tuple[Line, float]], *, share: bool) -> dict[str, Any]:
    """Return the coordinates of a metric against rounds in px, for the template."""
    rounds = [line.round for line, _ in scored]
    least = min(0.0, *(value for _, value in scored))
    most = 1.0 if share else max(0.0, *(value for _, value in scored))
    span = most - least or 1.0
    right = WIDTH - RIGHT
    floor = HEIGHT - BOTTOM

    def x(number: int) -> float:
        return LEFT + (number - rounds[0]) / max(rounds[-1] - rounds[0], 1) * (right - LEFT)

    def y(value: float) -> float:
        return floor - (value - least) / span * (floor - TOP)

    return {
        "points": [(x(line.round), y(value)) for line, value in scored],
        "grid": [(y(least + part * span), least + part * span) for part in (0, 0.25, 0.5, 0.75, 1)],
        "ticks": [(x(n), n) for n in dict.fromkeys((rounds[0], rounds[len(rounds) // 2], rounds[-1]))],
        "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": right, "ceiling": TOP, "floor": floor,
    }  # fmt: skip


def carried_out(
    experiment: Experiment, folder: Path, *, ranks: int | None = None, resume: bool = False, force: bool = False,
    limits: Limits | None = None, report: Follow | None = None, replay: Recording | None = None,
) -> Run:  # fmt: skip
    """Run an experiment in a folder and return its run; see :func:`run`."""
    orders = Orders(folder, resume, force, limits or Limits(), replay=replay)
    check_own_folder(folder)
    config.check_methods(experiment)
    stopped = launch.start(experiment, orders, processes(experiment, ranks), report or launch.ignore)
    lines = ledger.read(folder / "ledger.jsonl") if launch.is_first() else []
    return Run(folder, stopped, tuple(lines), own=True)


def processes(experiment: Experiment, ranks: int | None) -> int:
    """Return the number of processes of a run: one by default if it uses code that only this process has."""
    if ranks is not None:
        return ranks
    if here := launch.code_of_here(experiment):
        log.info("%s: defined in this notebook or script, therefore one process trains.", ", ".join(here))
        return 1
    return launch.default_ranks(experiment.engine)


@in_python
def run(
    source: Source, out: Path | str | None = None, *, references: bool = False,
    ranks: int | None = None, resume: bool = False, force: bool = False, limits: Stop | None = None,
    report: Follow | None = None, progress: bool | None = None, changes: Changes | None = None,
    **settings: Unpack[Settings],
) -> Run:  # fmt: skip
    """Run an experiment and return its run.

    Args:
        source: an experiment, the path of its file, or a name, as for :func:`load`.
        out: the run's folder; by default ``runs/NAME``, or ``runs/NAME-2`` and so on if earlier runs are there.
        references: also train each device alone, all data in one place, and scikit-learn on all sensor data.
        ranks: the number of processes; by default the number of cores, or 1 with a class of a notebook's cell.
        resume: whether to continue from the folder's last checkpoint; without ``out``, that of the newest folder.
        force: whether to resume in spite of a changed experiment, version or CPU.
        limits: the conditions for an early stop.
        report: called with each ledger line.
        progress: whether to show a bar; by default in a notebook and on a terminal.
        changes: key of the experiment file → value, as for :func:`load`.
        settings: such as ``rounds=20``; see :class:`Settings`.

    Raises:
        SettingError: a setting of the experiment is wrong; the message names it.
        RunError: the run failed; its last checkpoint is kept.
    """
    experiment = load(source, changes=changes, **settings)
    folder = chosen_folder(out, experiment.name, resume=resume)
    if out is None and not resume:
        announce(folder, experiment.name)
    beside = references or accompanied(experiment)
    bare = not references
    work = of_run(experiment, folder, only_plain=bare) if beside else []
    show = bars(1 + len(work), wanted=progress)
    rounds = min(experiment.rounds, (limits or Limits()).stop_after or experiment.rounds)
    with show(folder.name, rounds) as follow:
        done = carried_out(
            experiment, folder, ranks=ranks, resume=resume, force=force, limits=limits,
            report=both(follow, report or launch.ignore),
        )  # fmt: skip
    if beside and done.stopped != "interrupted" and done.lines:
        last = done.lines[-1].round
        carry_out(
            of_run(experiment, folder, last, only_plain=bare), Limits(stop_after=last), processes(experiment, ranks),
            lambda run: show(run.label, run.experiment.rounds), resume=True, tolerant=True, keep=True,
        )  # fmt: skip
    return done


def chosen_folder(out: Path | str | None, name: str, *, resume: bool) -> Path:
    """Return a run's folder: ``out``, or ``runs/NAME``, numbered so that no earlier run is there.

    To resume, it is the one with the highest number. Under ``torchrun``, whose processes must agree, none is numbered.
    """
    first = Path("runs") / name
    if out is not None or launch.under_torchrun():
        return first if out is None else Path(out)
    last = first
    number = 2
    while any((first.with_name(f"{name}-{number}")).glob("*")):
        last = first.with_name(f"{name}-{number}")
        number = number + 1
    if resume or not any(first.glob("*")):
        return last if resume else first
    return first.with_name(f"{name}-{number}")


def announce(folder: Path, name: str) -> None:
    """Warn that a run is written to a numbered folder, chosen for its name because of earlier runs."""
    if folder.name != name:
        log.warning(
            "Earlier runs are in %s; this one is in %s. To continue the newest: resume=True.",
            folder.with_name(name), folder,
        )  # fmt: skip


@in_python
def load_run(folder: Path | str, own: bool = False) -> Run:
    """Return the run in a folder.

    Args:
        folder: the folder, such as ``runs/plant``.
        own: whether code that its model names (``module:Name``) may be imported; only for trusted folders.

    Raises:
        SettingError: the folder holds no run, or a file in it is damaged.
    """
    from fedfloor.report.ledger import read_run

    folder = Path(folder)
    recorded = read_run(folder)
    stopped = "finished" if recorded.finished else "stopped"
    if recorded.diverged is not None:
        stopped = "diverged"
    path = folder / "ledger.jsonl"
    lines = ledger.read(path) if path.exists() else []
    if not lines and stopped != "diverged":
        raise SettingError(f"{folder} holds no round of a run.")
    return Run(folder, stopped, tuple(lines), own)
