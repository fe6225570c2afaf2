"""Data sets by name: where they are looked for, and how to get them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedfloor.data import cifar, idx, leaf, machines, tep
from fedfloor.data.dataset import LETTERS_AND_DIGITS, Dataset
from fedfloor.data.files import expanded
from fedfloor.data.labels import labels
from fedfloor.data.procedural import Procedural, procedural
from fedfloor.data.reading import Reading
from fedfloor.errors import SettingError, unknown


@dataclass(frozen=True)
class Source:
    """What a data set is and where it comes from.

    Args:
        kind: what the pictures show or the numbers tell, and whose they are.
        classes: number of classes.
        files: which files are needed in the folder of the data set's name; empty for what needs no download.
        authors: where they publish them.
    """

    kind: str
    classes: int
    files: tuple[str, ...]
    authors: str


CIFAR_AUTHORS = "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)"
CIFAR = {"cifar-10": cifar.TEN, "cifar-100": cifar.HUNDRED}
SOURCES = {
    "labels": Source("printed factory labels, drawn here, a style per device", len(LETTERS_AND_DIGITS), (), ""),
    "procedural": Source("patterns with noise, drawn when a device is visited", Procedural().classes, (), ""),
    "machines": Source(
        "a made plant: machines that wear, run to failure and have faults", len(machines.CLASSES), (), ""
    ),
    "mnist": Source(
        "handwritten digits (LeCun et al. 1998)",
        len(idx.DIGITS),
        tuple(f"{file}.gz" for file in idx.FILES),
        "http://yann.lecun.com/exdb/mnist/ (mirror: https://ossci-datasets.s3.amazonaws.com/mnist/)",
    ),
    "fashion-mnist": Source(
        "pictures of clothes (Xiao et al. 2017)",
        len(idx.CLOTHES),
        tuple(f"{file}.gz" for file in idx.FILES),
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "cifar-10": Source(
        "small colour pictures of 10 kinds of things (Krizhevsky 2009)",
        len(cifar.TEN.names),
        (f"{cifar.TEN.archive}.gz",),
        CIFAR_AUTHORS,
    ),
    "cifar-100": Source(
        "small colour pictures of 100 kinds of things (Krizhevsky 2009)",
        len(cifar.HUNDRED.names),
        (f"{cifar.HUNDRED.archive}.gz",),
        CIFAR_AUTHORS,
    ),
    "femnist": Source(
        "handwritten characters by writer (LEAF, Caldas et al. 2018)",
        len(LETTERS_AND_DIGITS),
        ("train/*.json[.gz]", "test/*.json[.gz]"),
        "https://github.com/TalwalkarLab/leaf (data/femnist, ./preprocess.sh -s niid -t sample)",
    ),
    "tep": Source(
        "Tennessee Eastman process, 52 sensors (Russell et al. 2000)",
        len(tep.CLASSES),
        ("d00.dat[.gz]", "…", "d21_te.dat[.gz]"),
        "https://github.com/camaramm/tennessee-eastman-profBraatz",
    ),
}
MADE_HERE = ("labels", "procedural", "machines")
SENSORS = ("tep", "machines")  # data sets of rows over time


def data_root() -> Path:
    """Return the folder data sets are looked for in: ``$FEDFLOOR_DATA``, or else the user's data folder."""
    chosen = os.environ.get("FEDFLOOR_DATA")
    if chosen:
        return expanded(chosen, "FEDFLOOR_DATA = ")
    import platformdirs

    return Path(platformdirs.user_data_dir("fedfloor", appauthor=False))


def load(
    name: str,
    *,
    root: Path | str | None = None,
    devices: int | None = None,
    samples_per_device: int = 100,
    seed: int = 0,
    reading: Reading | None = None,
    like: Procedural | None = None,
    plant: machines.Machines | None = None,
) -> Dataset:
    """Load a data set, or make it.

    Args:
        name: one of :data:`SOURCES`.
        root: the folder that holds the data sets' folders; :func:`data_root` if None.
        devices: how many devices ``labels``, ``procedural`` or ``machines`` is made for; the others do not look at it.
        samples_per_device: training samples of each of these devices.
        seed: of what is made.
        reading: windows, for sensors.
        like: what ``procedural`` is like; the others do not look at it.
        plant: what ``machines`` are like; the others do not look at it.

    Raises:
        SettingError: an unknown name, missing or damaged files, ``labels`` without a number of devices, or windows of
            pictures.

    >>> load("labels", devices=2, samples_per_device=30).y.shape
    (60,)
    """
    if name not in SOURCES:
        raise SettingError(f"data.name: {unknown('data set', name, SOURCES)}")
    reading = reading or Reading()
    if reading.window is not None and name not in SENSORS:
        raise SettingError(f"[data] window: '{name}' holds pictures. Windows are for sensors over time, such as 'tep'.")
    if name in MADE_HERE:
        if devices is None:
            raise SettingError(f"[park] devices is not set: data set '{name}' is made for as many devices as you say.")
        if name == "procedural":
            return procedural(devices, samples_per_device, seed, like)
        if name == "machines":
            return machines.load(devices, seed, reading, plant)
        return labels(devices, samples_per_device, seed)
    folder = _folder(name, root)
    if not folder.is_dir():
        raise SettingError(
            f"data set '{name}': looked in {folder}, which does not exist. {_how(name, folder)}, or set FEDFLOOR_DATA "
            "to the folder that holds it. The data set 'labels' needs no download."
        )
    if name == "femnist":
        return leaf.load(name, folder)
    if name == "tep":
        return tep.load(name, folder, reading)
    if name in CIFAR:
        return cifar.load(name, folder, CIFAR[name])
    return idx.load(name, folder, idx.DIGITS if name == "mnist" else idx.CLOTHES)


def looked_in(
    names: Sequence[str] = tuple(SOURCES), root: Path | str | None = None
) -> list[dict[str, str | int | bool | None]]:
    """Return a row per data set: what it is, whether its files are there, and where to get them.

    Args:
        names: which data sets.
        root: as for :func:`load`.

    Returns:
        Rows with the columns name, kind, classes, samples and test_samples (None where unknown before loading), found,
        where (the folder) and how (what to do; empty if nothing).

    Raises:
        SettingError: an unknown name.

    >>> looked_in(["labels"])[0]["how"]
    'needs no download: set [park] devices and [data] samples_per_device'
    """
    return [_row(name, root) for name in names]


def _row(name: str, root: Path | str | None) -> dict[str, str | int | bool | None]:
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source, folder = SOURCES[name], _folder(name, root)
    found, where, how = True, str(folder), ""
    counts: tuple[int, int] | None = None
    if name in MADE_HERE:
        where, how = "made here", "needs no download: set [park] devices and [data] samples_per_device"
    elif not folder.is_dir():
        found, how = False, _how(name, folder)
    else:
        try:
            counts = _samples(name, folder)
        except SettingError as error:
            found, how = False, f"{error} Or: {_how(name, folder)}"
    train, test = counts or (None, None)
    return {
        "name": name, "kind": source.kind, "classes": source.classes, "samples": train, "test_samples": test,
        "found": found, "where": where, "how": how,
    }  # fmt: skip


def _samples(name: str, folder: Path) -> tuple[int, int] | None:
    if name == "femnist":
        return leaf.samples(folder)
    if name == "tep":
        return tep.samples(folder)
    return cifar.samples(folder, CIFAR[name]) if name in CIFAR else idx.samples(folder)


def _folder(name: str, root: Path | str | None) -> Path:
    return (expanded(root) if root is not None else data_root()) / name


def _how(name: str, folder: Path) -> str:
    source = SOURCES[name]
    how = "says how it is made" if name == "femnist" else "downloads it"
    by_hand = f"get {', '.join(source.files)} from {source.authors} and put them into {folder}"
    return f"`fedfloor datasets get {name}` {how}. By hand: {by_hand}"
