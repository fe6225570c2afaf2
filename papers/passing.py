"""How well a global model still knows the data of rounds that are over, beside data that it never saw."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfloor import __version__, models
from fedfloor.chance import generator
from fedfloor.config import combined, resolved
from fedfloor.data.dataset import Labels, Values
from fedfloor.engine import ranks
from fedfloor.engine.allocator import keep_memory
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import BLOCK, evaluate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.samples import Samples
from fedfloor.engine.team import Alone
from fedfloor.errors import SettingError
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import View
from fedfloor.park.park import Park
from fedfloor.park.stream import Altering
from fedfloor.plan.outcome import Receipt
from fedfloor.runs.folder import write
from fedfloor.runs.parks import build_park
from papers.cells import Cell
from papers.forgetting import KINDS, Course, Forgetting
from papers.work import Reproduction

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
    todo, found = left(what), {}
    places = [(cell, seed) for seed in what.seeds for cell in what.cells]
    if there := [_path(what, *place) for place in places if place not in todo]:
        if not resume:
            raise SettingError(f"{there[0]} is there already. Go on with --resume, or give another folder with --out.")
        found = {(c.key, s): _read(of, what, c, s) for c, s in places if (c, s) not in todo}
    for number, (cell, seed) in enumerate(todo):
        experiment, followed = what.table.experiment(cell, what.rounds, seed), of.followed(what.rounds)
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
    torch.set_num_threads(1)
    keep_memory()
    park, model = build_park(experiment), experiment.model
    shape, classes = park.dataset.shape, len(park.dataset.classes)
    network = models.build(model.name, shape, classes, experiment.seed, model.classifier, init=model.init)
    table = np.zeros((len(KINDS), len(followed), lags + 1))
    with TemporaryDirectory() as folder:
        memory = DeviceMemory(Path(folder))
        engine = Engine(park, network, Alone(), memory, experiment.seed, normalise=experiment.data.normalise)
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


def rounds(engine: Engine, experiment: Experiment) -> Iterator[Done]:
    """Do the rounds of an experiment as a run does, without its files."""
    park, method, seed, tick = engine.park, combined(experiment), experiment.seed, 0
    start, every = {"w": engine.network.flat.clone()}, range(engine.park.devices)
    receipts: tuple[Receipt, ...] = ()

    def view(number: int) -> View:
        seen = engine.memory.visits
        census = park.census(every, tick, [seen[k] for k in every]) if method.needs.census_now(number) else None
        return View(
            number, experiment.rounds, park.sizes, park.factory_at(tick), start, receipts, engine.network.trained,
            engine.network.layout, census=census, held=park.holdings,
        )  # fmt: skip

    state = method.init(view(0), {}, generator(seed, "init"))
    for number in range(1, experiment.rounds + 1):
        seen = Counter(engine.memory.visits)
        plan = method.plan(state, view(number), generator(seed, "plan", number))
        outcome = ranks.run(engine, plan, state.packet, round_number=number, tick=tick)
        state, receipts = method.absorb(state, outcome), outcome.receipts
        engine.memory.sweep(set())  # else what devices kept in every round before stays
        devices = tuple(sorted({one.device for one in receipts if not one.lost}))
        yield Done(number, tick, devices, tuple(seen[k] for k in devices), state.packet["w"])
        tick += outcome.ticks


def batches(engine: Engine, experiment: Experiment, done: Done) -> list[Samples]:
    """Return a round's batch and its two controls, in the order of :data:`KINDS`.

    Args:
        engine: whose park it is.
        experiment: the fresh windows are those of ticks after its last round.
        done: the round.
    """
    park, later = engine.park, experiment.rounds + done.tick
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
        x, of = x.copy(), park.test_devices[rows]
        for device in np.unique(of).tolist():
            place = park.stream.position(tick, visits=0)  # no altering stream counts visits
            x[of == device] = park.stream.shown(x[of == device], park.seed, device, place)
    return x, y


def accuracy(engine: Engine, model: Tensor, samples: Samples) -> float:
    """Return the share of samples that a flat model [P] classifies rightly; the resident network becomes this model."""
    network, right = engine.network, 0
    network.flat.copy_(model)
    network.module.eval()
    with torch.inference_mode():
        for first in range(0, len(samples), BLOCK):
            block = slice(first, first + BLOCK)
            right += int((network.module(samples.values(block)).argmax(1) == samples.y[block]).sum())
    return right / len(samples)
