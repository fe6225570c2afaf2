"""Grid search for the best settings of methods on validation data, with the same number of trials for each method."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor import config
from fedfloor.base import regular
from fedfloor.base.chance import generator
from fedfloor.base.errors import MALFORMED, RunError, SettingError, require
from fedfloor.experiment import Experiment
from fedfloor.methods.chosen import EXCHANGED, kind_of
from fedfloor.methods.contract import Method
from fedfloor.parts.named import written as shown
from fedfloor.runs.compare import PlannedRun, each_once
from fedfloor.tasks.figures import Figure

PAIRS = {"]": "[", "}": "{"}
EXAMPLE = "write it as KEY=VALUE,VALUE,…, such as work.lr=0.1,0.01"


@dataclass(frozen=True)
class Axis:
    """A ``--grid`` option: the values of one setting."""

    key: str  # the key as typed
    method: str | None  # the only method it applies to; None: every method with this setting
    setting: tuple[str, ...]  # its path in the method's table, such as ``("work", "lr")``
    values: tuple[Any, ...]  # at least one, without duplicates


def axis(typed: str) -> Axis:
    """Return the axis of an option ``--grid KEY=VALUE,VALUE,…``.

    >>> axis("work.lr=0.1,0.01").values, axis("methods.fedsr.laps=1,5").setting
    ((0.1, 0.01), ('laps',))
    """
    key, equals, text = typed.partition("=")
    key = key.strip()
    if not equals or not key:
        raise SettingError(f"--grid {typed!r}: {EXAMPLE}.")
    values = tuple(map(config.value, split(text)))
    if "" in values:
        raise SettingError(f"--grid {typed!r}: a value is missing; {EXAMPLE}.")
    return axis_of(key, values)


def axis_of(key: str, values: Sequence[Any]) -> Axis:
    """Return the axis of a key and its values.

    Raises:
        SettingError: no setting of a method, no value, or one that is given twice.
    """
    method, setting = _place(key)
    if not values:
        raise SettingError(f"--grid {key}: no value is given; give at least one.")
    for i, value in enumerate(values):
        if value in values[:i]:
            raise SettingError(f"--grid {key}: {shown(value)} is given twice. Give each value only once.")
    return Axis(key, method, setting, tuple(values))


def several(key: str, values: Any) -> list[Any]:
    """Return the values of a key that are given in Python, as a list.

    Raises:
        SettingError: a text or another single value.
    """
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise SettingError(f"--grid {key} = {values!r:.40}: give a list of values, such as [0.1, 0.01].", key="--grid")
    return list(values)


def _place(key: str) -> tuple[str | None, tuple[str, ...]]:
    names = config.keys(key)
    if len(names) >= 2 and names[0] == "work":
        return None, tuple(names)
    if len(names) >= 2 and names[0] == "method":
        return None, tuple(names[1:])
    if len(names) >= 3 and names[0] == "methods":
        return names[1], tuple(names[2:])
    raise SettingError(
        f"--grid {key}: a sweep chooses settings of methods: work.KEY, methods.NAME.KEY, or method.KEY for every "
        "method that has it. Results with other data or another park, network or number of rounds are not comparable: "
        "change these in the experiment, in separate sweeps."
    )


def split(text: str) -> list[str]:
    """Return the parts of a text between commas outside brackets, braces and quotes.

    >>> split('{ kind = "cosine", start = 0.1 },0.01')
    ['{ kind = "cosine", start = 0.1 }', '0.01']
    """
    pieces = [""]
    inside = []
    quote = ""
    escaped = False
    for sign in text:
        if quote:
            closes = sign == quote and not escaped
            escaped = sign == "\\" and quote == '"' and not escaped
            quote = "" if closes else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            inside.append(sign)
        elif sign in PAIRS:
            if not inside or inside.pop() != PAIRS[sign]:
                raise SettingError(f"--grid values {text}: '{sign}' has no opening counterpart.")
        elif sign == "," and not inside:
            pieces.append("")
            continue
        pieces[-1] += sign
    if quote or inside:
        raise SettingError(f"--grid values {text}: '{quote or inside[-1]}' is not closed.")
    return [piece.strip() for piece in pieces]


@dataclass(frozen=True)
class Grid:
    """The grid of a method: all combinations of its settings' values, the last setting varying fastest.

    >>> grid = Grid({("laps",): (1, 5), ("work", "lr"): (0.1, 0.01)})
    >>> grid.size, grid.point(1)
    (4, {('laps',): 1, ('work', 'lr'): 0.01})
    """

    axes: Mapping[tuple[str, ...], tuple[Any, ...]]

    @property
    def size(self) -> int:
        """The number of grid points."""
        return math.prod(len(values) for values in self.axes.values())

    def point(self, number: int) -> dict[tuple[str, ...], Any]:
        """Return the values of point ``number``, counted from 0."""
        places = np.unravel_index(number, [len(values) for values in self.axes.values()])
        return {setting: values[i] for (setting, values), i in zip(self.axes.items(), places, strict=True)}


def grids(methods: Mapping[str, type[Method]], axes: Sequence[Axis]) -> dict[str, Grid]:
    """Return each method's grid; an axis of one method replaces a general one for the same setting."""
    if not axes:
        raise SettingError(f"a sweep needs at least one --grid: {EXAMPLE}.", key="--grid")
    for i, given in enumerate(axes):
        if any((given.method, given.setting) == (other.method, other.setting) for other in axes[:i]):
            raise SettingError(f"--grid {given.key} is given twice. Give all its values at once, separated by commas.")
        if given.method is not None and given.method not in methods:
            raise SettingError(f"--grid {given.key}: '{given.method}' is not among --methods {','.join(methods)}.")
        if given.method is None and not any(_has(kind, given.setting) for kind in methods.values()):
            raise SettingError(f"--grid {given.key}: none of {', '.join(methods)} has a setting '{given.setting[0]}'.")
    grid_of = {}
    for name, kind in methods.items():
        general = {axis.setting: axis.values for axis in axes if axis.method is None and _has(kind, axis.setting)}
        grid_of[name] = Grid(general | {axis.setting: axis.values for axis in axes if axis.method == name})
    return grid_of


def _has(method: type[Method], setting: tuple[str, ...]) -> bool:
    return setting[0] in EXCHANGED or setting[0] in {field.name for field in fields(method)}  # type: ignore[arg-type]


Settings = Mapping[tuple[str, ...], Any]


@dataclass(frozen=True)
class Trial:
    """A method with the settings of one point of its grid."""

    method: str
    number: int
    settings: Settings
    experiment: Experiment

    @property
    def dotted(self) -> dict[str, Any]:
        """Dotted name → value of its settings."""
        return {".".join(setting): value for setting, value in self.settings.items()}


@dataclass(frozen=True)
class Sweep:
    """A planned sweep."""

    original: Experiment
    axes: tuple[Axis, ...]
    sizes: Mapping[str, int]
    budget: int
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]

    def planned_runs(self, out: Path) -> list[PlannedRun]:
        """Return the runs, seed by seed."""
        planned = []
        for seed in self.seeds:
            for trial in self.trials:
                label = f"{trial.method} trial {trial.number}/{self.budget} seed {seed}"
                planned.append(PlannedRun(label, replace(trial.experiment, seed=seed), self.folder(out, trial, seed)))
        return planned

    def folder(self, out: Path, trial: Trial, seed: int) -> Path:
        """Return the folder of a trial's run."""
        return out / f"{trial.method.replace(':', '.')}-trial{trial.number}-seed{seed}"


@dataclass(frozen=True)
class Result:
    """The result of a trial.

    Args:
        values: headline of the final model on validation data for each seed; None if training diverged.
    """

    trial: Trial
    values: tuple[float | None, ...]

    @property
    def score(self) -> float | None:
        """Mean headline over the seeds; None if any of them diverged."""
        known = [value for value in self.values if value is not None]
        return sum(known) / len(known) if len(known) == len(self.values) else None

    @property
    def gain(self) -> float:
        """The score, with a negative sign if lower is better; −∞ if training diverged."""
        return -math.inf if self.score is None else self.trial.experiment.evaluate.figure.gain(self.score, 0.0)


def plan(
    experiment: Experiment, methods: Sequence[str], axes: Sequence[Axis], seeds: Sequence[int], trials: int | None
) -> Sweep:
    """Return the sweep of an experiment.

    Args:
        experiment: the experiment with all other settings.
        methods: names of the methods, which all have the same number of trials.
        axes: the settings and their values.
        seeds: the seeds of each trial.
        trials: number of trials of each method; None: number of points of the smallest grid. From larger grids this
            number of points is drawn without replacement, by the experiment's seed.
    """
    each_once("methods", methods)
    each_once("seeds", seeds)
    grid_of = grids({name: kind_of(experiment, name) for name in methods}, axes)
    sizes = {name: grid.size for name, grid in grid_of.items()}
    budget = _budget(sizes, trials)
    for seed in seeds:
        replace(experiment, seed=seed)  # raises for a wrong seed before training
    every = []
    for name, grid in grid_of.items():
        for setting, values in grid.axes.items():
            for value in values:  # also points that are not drawn
                _tried(experiment, name, 0, {setting: value})
        points = np.arange(grid.size)
        if grid.size > budget:
            points = np.sort(generator(experiment.seed, f"sweep {name}").choice(grid.size, budget, replace=False))
        for number, point in enumerate(points.tolist(), start=1):
            settings = grid.point(point)
            every.append(Trial(name, number, settings, _tried(experiment, name, number, settings)))
    return Sweep(experiment, tuple(axes), sizes, budget, tuple(seeds), tuple(every))


def _budget(sizes: Mapping[str, int], trials: int | None) -> int:
    smallest = min(sizes.values())
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    require(trials is None or trials >= 1, "--trials", trials, "a whole number of at least 1")
    if trials is None and smallest == 1 < max(sizes.values()):
        name = min(sizes, key=lambda name: sizes[name])
        raise SettingError(
            f"all methods have the same number of trials, but '{name}' has only one point (points: "
            f"{listed}). Give it a --grid methods.{name}.KEY=…, leave it out, or set --trials 1.",
            key="--trials",
        )
    if trials is not None and trials > smallest:
        raise SettingError(
            f"--trials {trials}: all methods have the same number of trials, but the grids have {listed} points. "
            f"Give more values with --grid, or --trials of at most {smallest}."
        )
    return trials or smallest


def _tried(experiment: Experiment, method: str, number: int, settings: Settings) -> Experiment:
    trial = replace(
        experiment, name=f"{experiment.name}-trial{number}", method=replace(experiment.method, name=method),
        methods=_with(experiment, method, settings), evaluate=replace(experiment.evaluate, on="validation"),
    )  # fmt: skip
    _ = trial.configured  # refuses wrong settings
    return trial


def _with(experiment: Experiment, method: str, settings: Settings) -> dict[str, Mapping[str, Any]]:
    """Return the experiment's method tables with one method's settings replaced."""
    table = copy.deepcopy(dict(experiment.methods.get(method, {})))
    for setting, value in settings.items():
        if setting in (("work", "epochs"), ("work", "steps")):
            for name in ("epochs", "steps"):  # epochs and steps exclude each other
                if ("work", name) not in settings:
                    table.get("work", {}).pop(name, None)
        config.put(table, setting, value, f"--grid {'.'.join(setting)}")
    return {**experiment.methods, method: table}


def results(sweep: Sweep, out: Path, diverged: set[Path]) -> list[Result]:
    """Return the trials' results; ``diverged`` are folders of runs."""
    rows = []
    figure = sweep.original.evaluate.figure
    for trial in sweep.trials:
        folders = [sweep.folder(out, trial, seed) for seed in sweep.seeds]
        rows.append(Result(trial, tuple(None if path in diverged else _value(path, figure) for path in folders)))
    return rows


def _value(folder: Path, figure: Figure) -> float:
    """Return the metric of the final model, as the ledger's last value may be of an earlier round."""
    path = folder / "evaluation.json"
    value = None
    why = "it is missing"
    try:
        value = figure.read(json.loads(regular.read_text(path)))
    except (OSError, *MALFORMED) as error:
        why = repr(error)
    if value is None:
        raise RunError(
            f"{path} holds no {figure.name} ({why}). Delete that trial's folder and resume.", key="trial-lacks"
        )
    return value


def winners(results: Sequence[Result]) -> dict[str, Result]:
    """Return method → best trial, the earlier one in a tie; a method whose trials all diverged is left out."""
    best: dict[str, Result] = {}
    for result in results:
        method = result.trial.method
        if result.score is not None and (method not in best or result.gain > best[method].gain):
            best[method] = result
    return best


def winner(best: Mapping[str, Result]) -> Result:
    """Return the best of the methods' best trials, the earlier one in a tie."""
    return max(best.values(), key=lambda result: result.gain)


def tuned(sweep: Sweep, best: Mapping[str, Result]) -> Experiment:
    """Return the experiment with the best settings of every method and with the best method."""
    tuned = replace(sweep.original, name=f"{sweep.original.name}-best")
    for name, result in best.items():
        tuned = replace(tuned, methods=_with(tuned, name, result.trial.settings))
    return replace(tuned, method=replace(tuned.method, name=winner(best).trial.method))


def document(sweep: Sweep, best: Mapping[str, Result], rounds: int, out: Path) -> str:
    """Return :func:`tuned` as an experiment file whose comments describe the sweep."""
    seeds = ",".join(map(str, sweep.seeds))
    evaluate = sweep.original.evaluate
    lines = [
        f"The best settings of a sweep: {sweep.budget} trials of every method, {rounds} rounds each, seeds {seeds}.",
        f"Compared by the final model's {evaluate.figure.name} on validation data, {evaluate.validation:.3g} of",
        "every device's training samples, held out. The test data were not used.",
        *(f"  --grid {axis.key}={','.join(map(shown, axis.values))}" for axis in sweep.axes),
        *(f"  {name}: {score_text(result)} with {chosen(result)}" for name, result in best.items()),
        "A fair test on the test data:",
        f"  fedfloor compare best.toml --methods {','.join(best)} --seeds {seeds}",
    ]
    return "".join(f"# {line}\n" for line in lines) + config.brief(config.placed(tuned(sweep, best), out))


def score_text(result: Result) -> str:
    """Return a trial's mean headline as text."""
    return "diverged" if result.score is None else f"{result.score:.4f}"


def chosen(result: Result) -> str:
    """Return a trial's settings as text."""
    settings = result.trial.dotted.items()
    return ", ".join(f"{name} = {shown(value)}" for name, value in settings) or "the experiment's own settings"
