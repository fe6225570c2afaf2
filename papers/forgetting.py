"""Figures about forgetting: accuracy on batches against the rounds since them, measured, tabulated, drawn."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfloor import __version__, models
from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError
from fedfloor.config import resolved
from fedfloor.data.dataset import Labels, Values
from fedfloor.engine.engine import Engine, Samples
from fedfloor.engine.evaluate import BLOCK, evaluate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.place import keep_memory
from fedfloor.engine.team import Alone
from fedfloor.experiment import Experiment
from fedfloor.park.park import Park
from fedfloor.park.stream import Altering
from fedfloor.report.groups import half_width
from fedfloor.report.numbers import interval
from fedfloor.runs.folder import write
from fedfloor.runs.parks import build_park
from fedfloor.runs.round import Position, step, training
from papers import work
from papers.cells import Cell, Table
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
        half = -(-rounds // 2)
        last = rounds - self.lags
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
    return f"{work.heading(what)}. {tasks}; batches of rounds {followed[0]}–{followed[-1]}"


def about(of: Forgetting, what: Reproduction) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    followed = of.followed(what.rounds)
    return {**work.about(what), "lags": of.lags, "first": followed[0], "last": followed[-1]}


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
    said = work.about(what)
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


MOST = 1000  # samples of a batch that are looked at


@dataclass(frozen=True)
class Done:
    """A round that was done.

    Args:
        number: counts from 1.
        tick: the park's clock at its start.
        devices: that were trained, ascending.
        visits: how often each of them had been trained before.
        model: the global one after it.
    """

    number: int
    tick: int
    devices: tuple[int, ...]
    visits: tuple[int, ...]
    model: Tensor


def left(what: Reproduction) -> list[tuple[Cell, int]]:
    """Return the cells and seeds, seed by seed, of which nothing is in the folder."""
    return [(cell, seed) for seed in what.seeds for cell in what.cells if not _path(what, cell, seed).exists()]


def courses(
    of: Forgetting, what: Reproduction, *, resume: bool = False, step: Callable[[int], None] = lambda _: None
) -> dict[tuple[str, int], Course]:
    """Return the course of each cell's key and seed, those that were written down before by ``resume`` as they are.

    Args:
        of: the figure.
        what: what was asked for; its folder gets a file as soon as a cell is done.
        resume: take what is in the folder.
        step: called with the number of rounds done.

    Raises:
        SettingError: what is in the folder was not asked to be taken, or is of other settings; or the data are missing.
        RunError: training failed, or the disk is full.
    """
    todo = left(what)
    found = {}
    places = [(cell, seed) for seed in what.seeds for cell in what.cells]
    if there := [_path(what, *place) for place in places if place not in todo]:
        if not resume:
            raise SettingError(f"{there[0]} is there already. Go on with --resume, or give another folder with --out.")
        found = {(c.key, s): _read(of, what, c, s) for c, s in places if (c, s) not in todo}
    for number, (cell, seed) in enumerate(todo):
        experiment = what.table.experiment(cell, what.rounds, seed)
        followed = of.followed(what.rounds)
        found[cell.key, seed] = one = course(
            experiment, followed, of.lags, partial(_further, step, number * what.rounds)
        )
        what.out.mkdir(parents=True, exist_ok=True)
        document = _made_by(of, what, cell, seed) | {"course": asdict(one)}
        write(_path(what, cell, seed), json.dumps(document, indent=2) + "\n")
    return found


def _further(step: Callable[[int], None], before: int, number: int) -> None:
    step(before + number)


def _path(what: Reproduction, cell: Cell, seed: int) -> Path:
    return what.out / f"{what.folder(cell, seed).name}.json"


def _made_by(of: Forgetting, what: Reproduction, cell: Cell, seed: int) -> dict[str, Any]:
    experiment = resolved(what.table.experiment(cell, what.rounds, seed))
    return {"experiment": experiment, "lags": of.lags, "fedfloor": __version__}


def _read(of: Forgetting, what: Reproduction, cell: Cell, seed: int) -> Course:
    path = _path(what, cell, seed)
    said = json.loads(path.read_text(encoding="utf-8"))
    other = [name for name, value in _made_by(of, what, cell, seed).items() if said.get(name) != value]
    if other:
        raise SettingError(
            f"--resume: {path} was made with another {other[0]}. Give another folder with --out, or delete the file."
        )
    batch, fresh, never = (tuple(said["course"][kind]) for kind in KINDS)
    return Course(batch, fresh, never, said["course"]["test"])


def course(experiment: Experiment, followed: range, lags: int, step: Callable[[int], None] = lambda _: None) -> Course:
    """Run an experiment; after each round, measure the model on the batches of the rounds before it.

    The batch of a round is what the devices that were trained in it held then, all of them or some 1,000 samples.

    Args:
        experiment: what is run; the park's clock moves its stream on.
        followed: the rounds whose batches are followed.
        lags: H, for so many rounds after their own.
        step: called with the number of each round that is done.

    Raises:
        SettingError: its data are missing.
        RunError: training failed.
    """
    table = np.zeros((len(KINDS), len(followed), lags + 1))
    with engine_of(experiment) as engine:
        open_: dict[int, list[Samples]] = {}
        for done in rounds(engine, experiment):
            if done.number in followed:
                open_[done.number] = batches(engine, experiment, done)
            for number, several in open_.items():
                at = followed.index(number), done.number - number
                table[:, at[0], at[1]] = [accuracy(engine, done.model, one) for one in several]
            open_.pop(done.number - lags, None)
            step(done.number)
        final = evaluate(engine, done.model).accuracy
    batch, fresh, never = (tuple(by_lag.tolist()) for by_lag in table.mean(axis=1))
    return Course(batch, fresh, never, final)


@contextmanager
def engine_of(experiment: Experiment) -> Iterator[Engine]:
    """Yield an engine of one thread and one rank for an experiment, whose devices' memory ends with it.

    Raises:
        SettingError: the experiment's data are missing.
    """
    torch.set_num_threads(1)
    keep_memory()
    park = build_park(experiment)
    model = experiment.model
    shape = park.dataset.shape
    classes = len(park.dataset.classes)
    network = models.build(model.name, shape, classes, experiment.seed, model.classifier, init=model.init)
    with TemporaryDirectory() as folder:
        memory = DeviceMemory(Path(folder))
        yield Engine(park, network, Alone(), memory, experiment.seed, normalise=experiment.data.normalise)


def rounds(engine: Engine, experiment: Experiment) -> Iterator[Done]:
    """Do the rounds of an experiment as a run does, without its files."""
    method = experiment.configured
    setup = training(method, engine, experiment.rounds)
    point = Position(state=method.init(setup.view(0), {}, generator(experiment.seed, "init")))
    for _ in range(experiment.rounds):
        before = point
        seen = Counter(engine.memory.visits)
        point, record = step(setup, before)
        engine.memory.sweep(set())  # else what devices kept in every round before stays
        devices = tuple(sorted({one.device for one in record.outcome.receipts if not one.lost}))
        yield Done(point.round, before.tick, devices, tuple(seen[k] for k in devices), point.state.packet["w"])


def batches(engine: Engine, experiment: Experiment, done: Done) -> list[Samples]:
    """Return a round's batch and its two controls, in the order of :data:`KINDS`.

    Args:
        engine: whose park it is.
        experiment: the fresh windows are those of ticks after its last round.
        done: the round.
    """
    park = engine.park
    later = experiment.rounds + done.tick
    several = [park.together(done.devices, tick, done.visits)[:2] for tick in (done.tick, later)]
    several.append(unseen(park, done.devices, later))
    found = []
    for x, y in several:
        rng = generator(experiment.seed, "passed", done.number)  # the same rows of both windows: as many per device
        rows = np.sort(rng.choice(len(y), min(MOST, len(y)), replace=False))
        found.append(engine.wrap(x[rows], y[rows]))
    return found


def unseen(park: Park, devices: Sequence[int], tick: int) -> tuple[Values, Labels]:
    """Return test samples of the owners of some devices, altered as the stream alters what these hold at a tick.

    Raises:
        SettingError: test samples have no owners, or none of these.
    """
    rows = np.flatnonzero(np.isin(park.test_devices, devices))
    if not len(rows):
        raise SettingError("test samples do not belong to devices: take a data set with owners, partition 'natural'.")
    x, y = park.test(rows)[0], park.dataset.y_test[rows]
    if isinstance(park.stream, Altering):
        x = x.copy()
        of = park.test_devices[rows]
        for device in np.unique(of).tolist():
            place = park.stream.position(tick, visits=0)  # no altering stream counts visits
            x[of == device] = park.stream.altered(x[of == device], park.seed, device, place)
    return x, y


def accuracy(engine: Engine, model: Tensor, samples: Samples) -> float:
    """Return the share of samples that a flat model [P] classifies rightly; the resident network becomes this model."""
    network = engine.network
    right = 0
    network.flat.copy_(model)
    network.module.eval()
    with torch.inference_mode():
        for first in range(0, len(samples), BLOCK):
            block = slice(first, first + BLOCK)
            right += int((network.module(samples.values(block)).argmax(1) == samples.y[block]).sum())
    return right / len(samples)
