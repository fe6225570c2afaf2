"""HFedMS's Fig. 9a as its authors' code does it: the global model is trained on one batch, then rounds go on.

The code trains the global model for ten epochs on 49 test characters, and measures it on them in the rounds after.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfloor import __version__
from fedfloor.base.chance import generator
from fedfloor.engine.engine import Engine, Samples
from fedfloor.experiment import Experiment
from fedfloor.report.groups import half_width
from fedfloor.report.numbers import interval
from fedfloor.runs.round import Position, step, training
from papers import documents
from papers.allocation import wanted
from papers.cells import Cell, Table
from papers.forgetting import accuracy, engine_of

Row = dict[str, Any]
BEFORE = "before"
RIGHT_AFTER = "right after"
SOON = "rounds 1 to 10"
LATER = "rounds 11 to 20"
ENDS = (RIGHT_AFTER, "at the end")
HALF = 10


@dataclass(frozen=True)
class Tuned:
    """A figure about what becomes of one batch that the global model is trained on.

    Args:
        table: its cells are the variants; the figures of these are not read.
        before: rounds before it is trained on the batch.
        after: rounds in which it is measured on the batch.
        samples: of the batch, test samples.
        epochs: passes over the batch.
        batch_size, rate: of their steps.
    """

    table: Table
    before: int = 30
    after: int = 2 * HALF
    samples: int = 49
    epochs: int = 10
    batch_size: int = 5
    rate: float = 0.01

    @property
    def name(self) -> str:
        """As it is typed."""
        return self.table.name

    @property
    def title(self) -> str:
        """What it shows."""
        return self.table.title

    @property
    def source(self) -> str:
        """Paper and number of the figure."""
        return self.table.source


@dataclass(frozen=True)
class Course:
    """What a run came to, as shares.

    Args:
        batch: accuracy on the batch before it was trained on, right after, and after each of the next rounds.
        others: on all other test samples right after, and at the end.
    """

    batch: tuple[float, ...]
    others: tuple[float, float]

    def parts(self) -> dict[str, float]:
        """Return what stands in the table: accuracies on the batch, by when."""
        known = {BEFORE: self.batch[0], RIGHT_AFTER: self.batch[1]}
        later = self.batch[2:]
        return known | {SOON: statistics.fmean(later[:HALF]), LATER: statistics.fmean(later[HALF:])}


@dataclass(frozen=True)
class Asked:
    """A figure as it was asked for.

    Args:
        of: which.
        cells: those that were asked for.
        seeds: each cell is run with each of them.
    """

    of: Tuned
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]

    @property
    def work(self) -> int:
        """Rounds of all runs."""
        return len(self.cells) * len(self.seeds) * (self.of.before + self.of.after)


def asked(of: Tuned, only: str, scale: float, seeds: Sequence[int]) -> Asked:
    """Return what is to be done; arguments and errors as :func:`papers.groupings.asked`, the scale has no meaning."""
    return Asked(of, wanted(of.name, of.table.cells, only or "small/", scale, seeds, "rounds"), tuple(seeds))


def rows(what: Asked, step: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Return a figure's rows, one per cell, with the course of every seed.

    Args:
        what: the figure as it was asked for.
        step: called with the number of rounds done.

    Raises:
        SettingError: the data are missing.
        RunError: training failed.
    """
    of = what.of
    found = []
    done = 0

    def told(_: int) -> None:
        nonlocal done
        done += 1
        step(done)

    for cell in what.cells:
        runs = [course(of, of.table.experiment(cell, of.before + of.after, seed), told) for seed in what.seeds]
        row: Row = {"key": cell.key, "variant": cell.label, "seeds": list(what.seeds)}
        row["batch"] = [list(one.batch) for one in runs]
        row["others"] = [list(one.others) for one in runs]
        found.append(row)
    return found


def course(of: Tuned, experiment: Experiment, told: Callable[[int], None] = lambda _: None) -> Course:
    """Run an experiment; after some rounds, train its global model on a batch, and follow that.

    Args:
        of: the figure.
        experiment: what is run.
        told: called with the number of each round that is done.

    Raises:
        SettingError: its data are missing.
        RunError: training failed.
    """
    batch: list[float] = []
    others: list[float] = []
    with engine_of(experiment) as engine:
        method = experiment.configured
        setup = training(method, engine, experiment.rounds)
        point = Position(state=method.init(setup.view(0), {}, generator(experiment.seed, "init")))
        mine, rest = parts(of, engine)
        for number in range(1, experiment.rounds + 1):
            point, _ = step(setup, point)
            engine.memory.sweep(set())
            if number == of.before:
                before = point.state.packet["w"]
                batch.append(accuracy(engine, before, mine))
                point = carried(point, learnt(of, engine, before, mine))
            now = point.state.packet["w"]
            if number >= of.before:
                batch.append(accuracy(engine, now, mine))
            if number in (of.before, experiment.rounds):
                others.append(accuracy(engine, now, rest))
            told(number)
    return Course(tuple(batch), (others[0], others[1]))


def parts(of: Tuned, engine: Engine) -> tuple[Samples, Samples]:
    """Return the batch, and all other test samples."""
    park = engine.park
    total = len(park.dataset.y_test)
    chosen = generator(engine.seed, "tuned").choice(total, min(of.samples, total // 2), replace=False)
    inside = np.zeros(total, bool)
    inside[chosen] = True
    mine, rest = (engine.wrap(*park.test(np.flatnonzero(which))) for which in (inside, ~inside))
    return mine, rest


def carried(point: Position, model: Tensor) -> Position:
    """Return a run's position with another global model."""
    packet = {**point.state.packet, "w": model}
    return replace(point, state=replace(point.state, packet=packet))


def learnt(of: Tuned, engine: Engine, model: Tensor, samples: Samples) -> Tensor:
    """Return a flat model [P] after SGD on some samples; the resident network becomes this model."""
    network = engine.network
    network.flat.copy_(model)
    network.module.train()
    rng = generator(engine.seed, "tuned", 1)
    with torch.enable_grad():
        for _ in range(of.epochs):
            order = torch.from_numpy(rng.permutation(len(samples)))
            for rows_ in order.split(of.batch_size):
                found = torch.nn.functional.cross_entropy(network.module(samples.values(rows_)), samples.y[rows_])
                slopes = torch.autograd.grad(found, network.parameters)
                with torch.no_grad():
                    for one, slope in zip(network.parameters, slopes, strict=True):
                        one.sub_(of.rate * slope)
    return network.flat.detach().clone().cpu()


# -- for people --------------------------------------------------------------------------------------------------------


def heading(what: Asked) -> str:
    """Return what a figure is."""
    of = what.of
    return (
        f"{of.source}, as the authors' code does it: the global model is trained after round {of.before} on "
        f"{of.samples} test characters, {of.epochs} times over, and followed for {of.after} rounds"
    )


def about(what: Asked) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    return {
        "table": what.of.name, "source": what.of.source, "seeds": list(what.seeds), "notes": list(what.of.table.notes),
        "fedfloor": __version__,
    }  # fmt: skip


def shown(found: Sequence[Row]) -> list[dict[str, str]]:
    """Return the rows as people read them: a row per variant and when, accuracies on the batch by seed."""
    table = []
    for row in found:
        several = [
            Course(tuple(batch), tuple(others)) for batch, others in zip(row["batch"], row["others"], strict=True)
        ]
        figures = {name: [one.parts()[name] for one in several] for name in several[0].parts()}
        figures |= {f"other characters, {when}": [one.others[i] for one in several] for i, when in enumerate(ENDS)}
        for name, values in figures.items():
            each = ", ".join(f"{one:.4f}" for one in values)
            whole = interval(statistics.fmean(values), half_width(values), 4)
            table.append({"variant": row["variant"], "when": name, "accuracy": whole, "by seed": each})
    return table


def save(what: Asked, found: Sequence[Row], out: Path, command: str) -> None:
    """Write ``table.md`` and ``table.json`` into a folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    documents.save(out, about(what), found, shown(found), (f"{heading(what)}.", command))
