"""Statistics of all devices' rows by questions to each: every answer is a few numbers, and answers are added up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Values
from fedfloor.park.normalised import Step
from fedfloor.park.own_scale import first_rows
from fedfloor.park.statistics import SMALLEST

if TYPE_CHECKING:
    from fedfloor.park.park import Park

log = logging.getLogger(__name__)
Floats = NDArray[np.float64]
CHUNK = 1 << 16  # rows looked at together
NUMBER_BYTES = 8  # counts, sums and places travel in double precision
REVEALS = {
    "sums": "how many values of each sensor a device has, and their sum",
    "spread": "the sum of squared distances of each sensor's values from a given mean",
    "below": "how many of each sensor's values are at or below given values",
    "clusters": "how many rows are nearest to each of given centres, and the sums of their setting columns and squared "
                "distances",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of rows by the values of some columns: a row belongs to the nearest centre.

    Args:
        columns: int [d], places of these columns among the sensors.
        mean, deviation: [d], which bring them to one scale.
        centres: [k, d], on that scale.
    """

    columns: NDArray[np.int64]
    mean: Floats
    deviation: Floats
    centres: Floats

    def scaled(self, x: Values) -> NDArray[np.float32]:
        """Return the columns of rows [n, C, …] on one scale, [n, d, …]; a missing value is at the mean."""
        form = (1, -1, *(1,) * (x.ndim - 2))
        mean, deviation = (one.astype(np.float32).reshape(form) for one in (self.mean, self.deviation))
        s = (x[:, self.columns].astype(np.float32, copy=False) - mean) / deviation
        return np.where(np.isnan(s), np.float32(0), s)

    def nearest(self, x: Values) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the cluster of each row of [n, C, …], and its squared distance from that one's centre, [n, …]."""
        s, centres = self.scaled(x), self.centres.astype(np.float32)
        best = np.zeros((len(s), *s.shape[2:]), np.int64)
        least = np.full(best.shape, np.inf, np.float32)
        for number, centre in enumerate(centres):
            distance = np.zeros(best.shape, np.float32)
            for i, value in enumerate(centre):
                distance = distance + (s[:, i] - value) ** 2
            nearer = distance < least  # of equal ones the first
            best, least = np.where(nearer, number, best), np.where(nearer, distance, least)
        return best, least


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of every device about its rows [R, C].

    Args:
        kind: ``sums``: per channel the count and the sum of its numbers; ``spread``: Σ (x − mean)² around given means;
            ``below``: how many numbers are at most each of given values; ``clusters``: per cluster the number of rows,
            the sums of the scaled columns and of squared distances.
        about: means [k, C], or values [C, v].
        clusters: rows are answered cluster by cluster; None: all together (k = 1).
    """

    kind: Literal["sums", "spread", "below", "clusters"]
    about: Floats | None = None
    clusters: Clusters | None = None

    def shape(self, channels: int) -> tuple[int, ...]:
        """Return the shape of an answer about rows with so many channels."""
        k = 1 if self.clusters is None else len(self.clusters.centres)
        if self.kind == "clusters" and self.clusters is not None:
            return k, len(self.clusters.columns) + 2
        if self.kind == "below" and self.about is not None:
            return self.about.shape
        return (k, 2, channels) if self.kind == "sums" else (k, channels)

    def bounds(self, channels: int, values: int, most: float) -> tuple[Floats, Floats]:
        """Return the least and the greatest numbers of an answer about so many values of each channel.

        Args:
            channels: C.
            values: counts are at most so many.
            most: sums are at most that large.
        """
        low, high = np.zeros(self.shape(channels)), np.full(self.shape(channels), most)
        if self.kind == "below":
            high[:] = values
        elif self.kind == "sums":
            high[:, 0], low[:, 1] = values, -most
        elif self.kind == "clusters":
            high[:, 0], low[:, 1:-1] = values, -most
        return low, high

    def answer(self, rows: Values) -> Floats:
        """Return what a device answers of its rows [R, C]."""
        whole = np.zeros(self.shape(rows.shape[1]))
        for start in range(0, len(rows), CHUNK):
            whole += self._answer(rows[start : start + CHUNK])
        return whole

    def _answer(self, rows: Values) -> Floats:
        found = np.zeros(self.shape(rows.shape[1]))
        x = rows.astype(np.float64)
        if self.kind == "below" and self.about is not None:
            for c, values in enumerate(self.about):
                known = np.sort(x[~np.isnan(x[:, c]), c])
                found[c] = np.searchsorted(known, values, side="right")
            return found
        if self.clusters is None:
            cluster, distance = np.zeros(len(x), np.int64), np.zeros(len(x), np.float32)
        else:
            cluster, distance = self.clusters.nearest(rows)
        for k in range(len(found)):
            mine = cluster == k
            if self.kind == "clusters" and self.clusters is not None:
                s = self.clusters.scaled(rows[mine]).astype(np.float64)
                found[k] = [mine.sum(), *s.sum(axis=0), distance[mine].sum(dtype=np.float64)]
            elif self.kind == "sums":
                found[k] = (~np.isnan(x[mine])).sum(axis=0), np.nansum(x[mine], axis=0)
            elif self.about is not None:
                found[k] = np.nansum((x[mine] - self.about[k]) ** 2, axis=0)
        return found

    @property
    def arrays(self) -> list[Floats]:
        """What it holds numbers in."""
        c = self.clusters
        return [
            one for one in (self.about, *(() if c is None else (c.mean, c.deviation, c.centres))) if one is not None
        ]

    @property
    def numbers(self) -> int:
        """How many numbers the question holds."""
        return sum(one.size for one in self.arrays)

    def told(self) -> dict[str, Any]:
        """Return it as JSON."""
        c = self.clusters
        return {
            "kind": self.kind,
            "about": None if self.about is None else self.about.tolist(),
            "clusters": None if c is None else {
                "columns": c.columns.tolist(), "mean": c.mean.tolist(), "deviation": c.deviation.tolist(),
                "centres": c.centres.tolist(),
            },
        }  # fmt: skip

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Question:
        """Return a question as :meth:`told` has it.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        if told["kind"] not in ("sums", "spread", "below", "clusters"):
            raise ValueError("an unknown question")
        c = told["clusters"]
        if c is not None:
            c = Clusters(
                np.array(c["columns"], np.int64),
                *(np.array(c[name], np.float64) for name in ("mean", "deviation", "centres")),
            )
        about = None if told["about"] is None else np.array(told["about"], np.float64)
        question = cls(told["kind"], about, c)
        if not usable(*question.arrays):
            raise ValueError("numbers that are not finite")
        return question


Ask = Callable[[Question], Floats]  # to all devices; returns the sum of their answers


@dataclass(eq=False)
class Survey:
    """Asks all devices, and records what that takes.

    Args:
        everyone: asks every device and adds up the answers in the devices' order.
    """

    everyone: Ask
    steps: list[Step] = field(default_factory=list, init=False)

    def ask(self, question: Question) -> Floats:
        """Return the sum of the devices' answers."""
        found = self.everyone(question)
        self.steps.append(Step(question.kind, NUMBER_BYTES * question.numbers, NUMBER_BYTES * found.size))
        return found

    def ended(self, what: str, numbers: int) -> tuple[Step, ...]:
        """Log what was asked; return the steps, the last of which hands so many numbers of the result to each device.

        Args:
            what: the normalisation's name.
            numbers: of the result.
        """
        steps = (*self.steps, Step("result", NUMBER_BYTES * numbers, 0))
        down, up = sum(one.down for one in steps), sum(one.up for one in steps)
        log.info("normalise = '%s': %d questions to every device before round 1, %s bytes down and %s bytes up each; "
                 "answers are sums over a device's rows and carry no noise.",
                 what, len(self.steps), f"{down:,}", f"{up:,}")  # fmt: skip
        return steps

    def moments(self, clusters: Clusters | None = None) -> tuple[Floats, Floats, Floats]:
        """Return count, mean and deviation [k, C] by two questions; NaN where there is no number, 0 if constant."""
        count, total = np.moveaxis(self.ask(Question("sums", None, clusters)), 1, 0)
        mean = total / np.where(count > 0, count, np.nan)
        spread = self.ask(Question("spread", np.nan_to_num(mean), clusters))
        deviation = np.sqrt(spread / np.where(count > 0, count, np.nan))
        constant = deviation <= np.maximum(1e-14 * np.abs(mean), SMALLEST)
        return count, mean, np.where(constant, 0.0, deviation)


def usable(*values: Floats) -> bool:
    """Return whether numbers are finite in single precision, in which samples are normalised."""
    with np.errstate(over="ignore"):
        return all(bool(np.isfinite(one.astype(np.float32)).all()) for one in values)


def rows_of(park: Park, device: int) -> Values:
    """Return the rows [R, C] that a device's training samples are made of, each once."""
    mine, first = park.indices[device], park.dataset.first
    return first_rows(park.samples(device)[0], None if first is None else first[mine], None)


def added(answers: Iterable[Floats]) -> Floats:
    """Return the sum of answers, in the order that they come in: the same bits wherever the devices are."""
    return reduce(np.add, answers)


def simulated(park: Park) -> Survey:
    """Return a survey among the devices of a park whose samples are here."""

    held = [rows_of(park, device) for device in range(park.devices)]

    def everyone(question: Question) -> Floats:
        return added(question.answer(rows) for rows in held)

    return Survey(everyone)
