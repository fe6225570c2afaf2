"""Devices attacked by what they tell before training: the label they have most of, and their mean features, guessed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedfloor import __version__
from fedfloor.base.chance import generator
from fedfloor.base.errors import require
from fedfloor.data import sources
from fedfloor.data.dataset import Dataset
from fedfloor.data.made import labels
from fedfloor.data.published.idx import DIGITS
from fedfloor.engine.questions import COUNT_BYTES, HASH_BYTES
from fedfloor.park.partition import Dominant
from fedfloor.parts.objectives.extractors import FeatureExtractor, Hog
from fedfloor.report.groups import half_width
from fedfloor.report.numbers import interval
from fedfloor.solvers.clustering import hash_functions, hash_vectors, kmeans, purity
from papers import documents
from papers.allocation import wanted

STRENGTHS = tuple(10.0**i for i in range(-4, 5))  # of ridge regression, to choose among
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def attacked(said: Floats, top: Integers, means: Floats) -> tuple[float, float, float]:
    """Return the share of right guesses of the second half's labels, and two relative errors of their mean features.

    Relative error: Σ‖v̂ − v‖² / Σ‖v − v̄‖², v̄ the mean of the first half: 0 knows all, 1 nothing. First that of ridge
    regression on what was told, then that of the mean of the nearest known devices.

    Args:
        said: what devices told [2K, …]; of the first K all is known.
        top: the label each has most of [2K].
        means: v [2K, D].
    """
    half = len(said) // 2
    near = nearest(said[:half], said[half:])
    right = float((guessed(near, top[:half]) == top[half:]).mean())
    if said.shape == means.shape and (said == means).all():
        return right, 0.0, 0.0  # it is told
    v = means[half:]
    centre = means[:half].mean(0)
    guesses = rebuilt(said[:half], means[:half], said[half:]), near @ means[:half] / near.sum(1, keepdims=True)
    ridge, alike = (float(((guess - v) ** 2).sum() / ((v - centre) ** 2).sum()) for guess in guesses)
    return right, ridge, alike


def nearest(known: Floats, said: Floats) -> Integers:
    """Return 1 for the known devices that told what is nearest, all that are equally near, else 0: [m, n].

    Args:
        known: what these told [n, …].
        said: what the others told [m, …].

    >>> nearest(np.array([[0.0], [0.0], [9.0]]), np.array([[1.0], [8.0]])).tolist()
    [[1, 1, 0], [0, 0, 1]]
    """
    from scipy.spatial.distance import cdist

    apart = cdist(said, known, "sqeuclidean")
    near: Integers = (apart == apart.min(1, keepdims=True)).astype(np.int64)
    return near


def guessed(near: Integers, kinds: Integers) -> Integers:
    """Return the kind that most of the nearest have [m]; of kinds as frequent the first.

    Args:
        near: of :func:`nearest` [m, n].
        kinds: what each known device is [n].

    >>> guessed(np.array([[1, 1, 1, 0], [0, 0, 0, 1]]), np.array([1, 2, 2, 3])).tolist()
    [2, 3]
    """
    votes: Integers = near @ (kinds[:, None] == np.arange(kinds.max() + 1)).astype(np.int64)
    most: Integers = votes.argmax(1)
    return most


def rebuilt(known: Floats, means: Floats, said: Floats) -> Floats:
    """Return mean features [m, D] by ridge regression on what was told, its strength by leaving one out.

    Args:
        known: what known devices told [n, …].
        means: their mean features [n, D].
        said: what the others told [m, …].
    """
    from sklearn.linear_model import RidgeCV

    spread = known.std(0)
    scale = np.where(spread > 0, spread, 1)
    centre = known.mean(0)
    found: Floats = RidgeCV(STRENGTHS).fit((known - centre) / scale, means).predict((said - centre) / scale)
    return found


PARKS = 20
GROUPS = 10
FEATURE_BYTES = 4
RENDERED = 100  # samples a device, where there is no MNIST
BLOCK = 1024  # pictures extracted at once
Row = dict[str, Any]
Scores = tuple[float, float, float, float]
SCORES = {
    "accuracy": "label guessed", "ridge": "features' error, ridge", "nearest": "features' error, nearest",
    "purity": "purity of groups",
}  # fmt: skip


@dataclass(frozen=True)
class Telling:
    """What every device tells.

    Args:
        what: nothing, the census, mean features, or hashes of them.
        hashes: h.
        width: r.
    """

    what: Literal["nothing", "census", "features", "hash"]
    hashes: int = 0
    width: float = 0.0

    @property
    def label(self) -> str:
        """Its name in the table."""
        words = {"nothing": "nothing", "census": "census", "features": "mean features"}
        return words.get(self.what) or f"{self.hashes} hash{'es' if self.hashes > 1 else ''}, r = {self.width:g}"

    def size(self, dimension: int, classes: int) -> int:
        """Return its bytes, as a network counts them.

        >>> Telling("hash", 5, 0.5).size(324, 10), Telling("census").size(324, 10), Telling("features").size(324, 10)
        (40, 40, 1296)
        """
        sizes = {"census": COUNT_BYTES * classes, "features": FEATURE_BYTES * dimension}
        return sizes.get(self.what, HASH_BYTES * self.hashes)


@dataclass(frozen=True)
class Point:
    """One of FLDG's cases, see :class:`~fedfloor.park.partition.Dominant`.

    Args:
        case: 1 to 4.
    """

    case: Literal[1, 2, 3, 4]

    @property
    def key(self) -> str:
        """Its name; ``--only`` looks in it."""
        return f"case{self.case}"


@dataclass(frozen=True)
class Disclosure:
    """An attack on what devices tell, from what as many others told of whom all is known.

    Args:
        name: as it is typed.
        title: what it shows.
        source: whose claim it is about.
        devices: how many tell, and how many are known.
        points: where.
        tellings: row by row.
        notes: how the attack is made.
    """

    name: str
    title: str
    source: str
    devices: int
    points: tuple[Point, ...]
    tellings: tuple[Telling, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """An attack as it was asked for.

    Args:
        of: which.
        points: those that were asked for.
        seeds: as they were typed.
        parks: their seeds.
        scale: share of 20 parks.
    """

    of: Disclosure
    points: tuple[Point, ...]
    seeds: tuple[int, ...]
    parks: tuple[int, ...]
    scale: float

    @property
    def work(self) -> int:
        """Attacks on all parks."""
        return len(self.points) * len(self.parks) * len(self.of.tellings)


def asked(of: Disclosure, only: str, scale: float, seeds: Sequence[int]) -> Asked:
    """Return what is to be done for an attack; arguments and errors as :func:`papers.groupings.asked`."""
    points = wanted(of.name, of.points, only, scale, seeds, "parks")
    many = max(1, round(scale * PARKS))
    return Asked(of, points, tuple(seeds), tuple(PARKS * s + i for s in seeds for i in range(many)), scale)


def rows(what: Asked, step: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Return an attack: a row of JSON scalars per point and telling.

    Args:
        what: the attack as it was asked for.
        step: called with the number of attacks done.

    Raises:
        SettingError: the data are damaged.
    """
    data = loaded(what.of)
    features = extracted(data, Hog())
    found = []
    done = 0
    for point in what.points:
        scores: dict[Telling, list[Scores]] = {telling: [] for telling in what.of.tellings}
        for seed in what.parks:
            counts, means = park(data, features, point, 2 * what.of.devices, seed)
            for telling, here in scores.items():
                here.append(_scores(told(telling, counts, means, seed), counts.argmax(1), means, seed))
                done += 1
                step(done)
        found += [_row(point, telling, here, data, features.shape[1]) for telling, here in scores.items()]
    return found


def _scores(said: Floats, top: Integers, means: Floats, seed: int) -> Scores:
    half = len(said) // 2
    groups = kmeans(said[half:], min(GROUPS, half), seed).labels
    return (*attacked(said, top, means), purity(groups, top[half:]))


def _row(point: Point, telling: Telling, here: list[Scores], data: Dataset, dimension: int) -> Row:
    row: Row = {"data": data.name, "case": point.case, "told": telling.label, "parks": len(here)}
    row["bytes"] = telling.size(dimension, len(data.classes))
    for name, values in zip(SCORES, zip(*here, strict=True), strict=True):
        row |= {name: statistics.fmean(values), f"{name}_half_width": half_width(values)}
    return row


# -- the devices -------------------------------------------------------------------------------------------------------


def loaded(of: Disclosure) -> Dataset:
    """Return MNIST; where it is not there, rendered digits."""
    if sources.looked_in(["mnist"])[0]["found"]:
        return sources.load("mnist")
    return labels.labels(2 * of.devices, RENDERED, 0, len(DIGITS))


def extracted(data: Dataset, extractor: FeatureExtractor) -> NDArray[np.float32]:
    """Return the features of all training samples [N, D]; rendered ones in one style."""
    at = range(0, len(data.y), BLOCK)
    parts = (np.arange(first, min(first + BLOCK, len(data.y))) for first in at)
    scale = np.float32(data.scale)
    return np.concatenate([extractor.features(data.take(i, 0).astype(np.float32) * scale) for i in parts])


def park(
    data: Dataset, features: NDArray[np.float32], point: Point, devices: int, seed: int
) -> tuple[Integers, Floats]:
    """Return class counts [K, F] and mean features [K, D] of devices that share no sample and are as large as can be.

    Args:
        data: of F classes.
        features: of its samples [N, D].
        point: the case.
        devices: K, a multiple of F.
        seed: of who holds what.

    Raises:
        SettingError: K is not a multiple of F.
    """
    classes = len(data.classes)
    require(devices % classes == 0, "devices", devices, f"a multiple of {classes}, the number of classes")
    samples = int(np.bincount(data.y, minlength=classes).min()) * classes // devices  # F devices take n of each class
    split = Dominant(case=point.case, samples=samples)
    parts = split.split(data.y, None, classes, devices, generator(seed, "disclosure", point.case))
    counts = np.stack([np.bincount(data.y[part], minlength=classes) for part in parts])
    means = np.stack([features[part].mean(0, dtype=np.float64) for part in parts])
    return counts, means.astype(np.float32).astype(np.float64)  # as devices answer them


def told(telling: Telling, counts: Integers, means: Floats, seed: int) -> Floats:
    """Return what each device tells, [K, …].

    Args:
        telling: what.
        counts: class counts [K, F].
        means: mean features [K, D].
        seed: of the hash functions, the same on all devices.
    """
    if telling.what == "hash":
        return hash_vectors(hash_functions(means.shape[1], telling.hashes, telling.width, seed), means).astype(
            np.float64
        )
    return {"nothing": np.zeros((len(means), 1)), "census": counts.astype(np.float64), "features": means}[telling.what]


# -- for people --------------------------------------------------------------------------------------------------------


def heading(what: Asked) -> str:
    """Return what an attack is, and of how much it was made."""
    full = "" if what.scale == 1 else f" (scale {what.scale:g}; in full {PARKS} a seed)"
    return f"{what.of.source}: {what.of.title}, {len(what.parks)} parks of {what.of.devices} devices{full}"


def about(what: Asked) -> dict[str, Any]:
    """Return what a document says beside the rows."""
    return {
        "table": what.of.name, "source": what.of.source, "scale": what.scale, "seeds": list(what.seeds),
        "notes": list(what.of.notes), "fedfloor": __version__,
    }  # fmt: skip


def shown(found: Sequence[Row]) -> list[dict[str, str]]:
    """Return the rows as people read them."""
    table = []
    for row in found:
        words = {"data": row["data"], "case": str(row["case"]), "told": row["told"], "bytes": str(row["bytes"])}
        for name, said in SCORES.items():
            words[said] = interval(row[name], row[f"{name}_half_width"], 3)
        table.append(words)
    return table


def save(what: Asked, found: Sequence[Row], out: Path, command: str) -> None:
    """Write ``table.md`` and ``table.json`` into a folder, each whole or not at all.

    Raises:
        RunError: they cannot be written.
    """
    documents.save(out, about(what), found, shown(found), (f"{heading(what)}.", command))
