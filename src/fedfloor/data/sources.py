"""Data sets by name: what they are, where they are published, and where they are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedfloor.data.dataset import LETTERS_AND_DIGITS, Dataset
from fedfloor.data.files import expanded
from fedfloor.data.made import machines
from fedfloor.data.made.labels import labels
from fedfloor.data.made.procedural import Procedural, procedural
from fedfloor.data.published import cifar, cmapss, idx, leaf, skab, tep
from fedfloor.data.reading import Reading
from fedfloor.errors import SettingError, unknown
from fedfloor.tasks import reconstruction
from fedfloor.tasks.task import Task


@dataclass(frozen=True)
class File:
    """A published file.

    Args:
        name: of the file, on the server and in the data set's folder.
        size: its length in bytes.
        checksum: ``"algorithm:hexadecimal digits"``.
    """

    name: str
    size: int
    checksum: str


@dataclass(frozen=True)
class Published:
    """Where a data set can be had.

    Args:
        files: what is published; empty where it is no files.
        places: addresses that end in ``/`` and hold all files, tried in this order.
        page: the authors' page, for people.
        by_hand: what to do where there are no files to download.
    """

    files: tuple[File, ...]
    places: tuple[str, ...]
    page: str
    by_hand: str = ""


CIFAR_PLACES = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def _files(name: str) -> tuple[File, ...]:
    """Return the published files of a data set, as ``published/checksums.txt`` lists them."""
    lines = files("fedfloor.data.published").joinpath("checksums.txt").read_text("utf-8").splitlines()
    rows = [line.split() for line in lines if line.startswith(f"{name} ")]
    return tuple(File(file, int(size), checksum) for _, file, size, checksum in rows)


LEAF = """LEAF publishes no files but a script that makes them from NIST's, which takes long:
  git clone https://github.com/TalwalkarLab/leaf
  cd leaf/data/femnist
  pip install numpy pillow
  ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample
Then put the *.json of its data/train into {folder}/train and those of data/test into {folder}/test."""

NASA = """NASA publishes one archive of all its data of this kind:
  https://phm-datasets.s3.amazonaws.com/NASA/6.+Turbofan+Engine+Degradation+Simulation+Data+Set.zip
It holds CMAPSSData.zip. Put train_FD001.txt, test_FD001.txt and RUL_FD001.txt of that, and those of FD002 to FD004,
into {folder}."""

SKAB = """Its authors publish no archive but a repository:
  git clone --depth 1 https://github.com/waico/SKAB
Then put the folders of its data (valve1, valve2, other, anomaly-free) into {folder}."""

PUBLISHED = {
    **dict.fromkeys(
        ("labels", "procedural", "machines"),
        Published((), (), "", "It is made here: set [park] devices and [data] samples_per_device."),
    ),
    "mnist": Published(
        _files("mnist"),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "fashion-mnist": Published(
        _files("fashion-mnist"),
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "cifar-10": Published(_files("cifar-10"), CIFAR_PLACES, CIFAR_PAGE),
    "cifar-100": Published(_files("cifar-100"), CIFAR_PLACES, CIFAR_PAGE),
    "femnist": Published((), (), "https://github.com/TalwalkarLab/leaf", LEAF),
    "cmapss": Published(
        (),
        (),
        "https://www.nasa.gov/intelligent-systems-division/discovery-and-systems-health/pcoe/pcoe-data-set-repository/",
        NASA,
    ),
    "skab": Published((), (), "https://github.com/waico/SKAB", SKAB),
    "tep": Published(
        _files("tep"),
        ("https://raw.githubusercontent.com/camaramm/tennessee-eastman-profBraatz/master/",),
        "https://github.com/camaramm/tennessee-eastman-profBraatz",
    ),
}


@dataclass(frozen=True)
class LoadRequest:
    """What is asked of a data set.

    Args:
        name: of it.
        folder: where its files lie.
        devices: how many it is made for, where it is made here.
        samples_per_device: training samples of each of these devices.
        seed: of what is made.
        reading: task, windows, missing values.
        like: settings of its own; None for their defaults.
    """

    name: str
    folder: Path
    devices: int
    samples_per_device: int
    seed: int
    reading: Reading
    like: Any


@dataclass(frozen=True)
class Source:
    """What a data set is, where it comes from, and how it is read.

    Args:
        kind: what the pictures show or the numbers tell, and whose they are.
        classes: number of classes; 0 where labels are numbers.
        files: which files are needed in the folder of the data set's name; empty for what needs no download.
        authors: where they publish them.
        load: reads or makes it.
        counted: folder → published numbers of training and test samples, if all files are there; None where these
            depend on settings. Raises a SettingError where a file is missing.
        sensors: whether it holds rows over time, which windows are cut of.
        natural: whether its devices are natural owners, unless a partition is set.
        task: what a model is asked for, where the experiment names neither a task nor ``bins``; None: classification.
        get: what ``fedfloor datasets get`` does.
    """

    kind: str
    classes: int
    files: tuple[str, ...]
    authors: str
    load: Callable[[LoadRequest], Dataset]
    counted: Callable[[Path], tuple[int, int] | None] = lambda _: None
    sensors: bool = False
    natural: bool = False
    task: Task | None = None
    get: str = "downloads it"


CIFAR_AUTHORS = "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)"
SOURCES = {
    "labels": Source(
        "printed factory labels, drawn here, a style per device",
        len(LETTERS_AND_DIGITS),
        (),
        "",
        lambda wanted: labels(wanted.devices, wanted.samples_per_device, wanted.seed),
    ),
    "procedural": Source(
        "patterns with noise, drawn when a device is visited",
        Procedural().classes,
        (),
        "",
        lambda wanted: procedural(wanted.devices, wanted.samples_per_device, wanted.seed, wanted.like),
        natural=True,
    ),
    "machines": Source(
        "a made plant: machines that wear, run to failure and have faults",
        len(machines.CLASSES),
        (),
        "",
        lambda wanted: machines.load(wanted.devices, wanted.seed, wanted.reading, wanted.like),
        sensors=True,
        natural=True,
    ),
    "mnist": Source(
        "handwritten digits (LeCun et al. 1998)",
        len(idx.DIGITS),
        tuple(f"{file}.gz" for file in idx.FILES),
        "http://yann.lecun.com/exdb/mnist/ (mirror: https://ossci-datasets.s3.amazonaws.com/mnist/)",
        lambda wanted: idx.load(wanted.name, wanted.folder, idx.DIGITS),
        idx.samples,
    ),
    "fashion-mnist": Source(
        "pictures of clothes (Xiao et al. 2017)",
        len(idx.CLOTHES),
        tuple(f"{file}.gz" for file in idx.FILES),
        "https://github.com/zalandoresearch/fashion-mnist",
        lambda wanted: idx.load(wanted.name, wanted.folder, idx.CLOTHES),
        idx.samples,
    ),
    "cifar-10": Source(
        "small colour pictures of 10 kinds of things (Krizhevsky 2009)",
        len(cifar.TEN.names),
        (f"{cifar.TEN.archive}.gz",),
        CIFAR_AUTHORS,
        lambda wanted: cifar.load(wanted.name, wanted.folder, cifar.TEN),
        lambda folder: cifar.samples(folder, cifar.TEN),
    ),
    "cifar-100": Source(
        "small colour pictures of 100 kinds of things (Krizhevsky 2009)",
        len(cifar.HUNDRED.names),
        (f"{cifar.HUNDRED.archive}.gz",),
        CIFAR_AUTHORS,
        lambda wanted: cifar.load(wanted.name, wanted.folder, cifar.HUNDRED),
        lambda folder: cifar.samples(folder, cifar.HUNDRED),
    ),
    "femnist": Source(
        "handwritten characters by writer (LEAF, Caldas et al. 2018)",
        len(LETTERS_AND_DIGITS),
        ("train/*.json[.gz]", "test/*.json[.gz]"),
        "https://github.com/TalwalkarLab/leaf (data/femnist, ./preprocess.sh -s niid -t sample)",
        lambda wanted: leaf.load(wanted.name, wanted.folder),
        leaf.samples,
        get="says how it is made",
    ),
    "tep": Source(
        "Tennessee Eastman process, 52 sensors (Russell et al. 2000)",
        len(tep.CLASSES),
        ("d00.dat[.gz]", "…", "d21_te.dat[.gz]"),
        "https://github.com/camaramm/tennessee-eastman-profBraatz",
        lambda wanted: tep.load(wanted.name, wanted.folder, wanted.reading),
        tep.samples,
        sensors=True,
    ),
    "cmapss": Source(
        "turbofan engines that run to failure, 24 sensors and settings (Saxena et al. 2008)",
        0,
        ("train_FD001.txt[.gz]", "test_FD001.txt[.gz]", "RUL_FD001.txt[.gz]", "… of each subset"),
        PUBLISHED["cmapss"].page,
        lambda wanted: cmapss.load(wanted.name, wanted.folder, wanted.reading, wanted.like),
        cmapss.counted,
        sensors=True,
        natural=True,
        task=cmapss.TASK,
        get="names NASA's archive",
    ),
    "skab": Source(
        "a pump's test bench, 8 sensors, an anomaly in each recording (Katser and Kozitsin 2020)",
        len(reconstruction.CLASSES),
        ("valve1/*.csv[.gz]", "… of each subset"),
        PUBLISHED["skab"].page,
        lambda wanted: skab.load(wanted.name, wanted.folder, wanted.reading, wanted.like),
        skab.counted,
        sensors=True,
        natural=True,
        task=skab.TASK,
        get="says how it is copied",
    ),
}
MADE_HERE = tuple(name for name, source in SOURCES.items() if not source.files)


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
    like: object | None = None,
) -> Dataset:
    """Load a data set, or make it.

    Args:
        name: one of :data:`SOURCES`.
        root: the folder that holds the data sets' folders; :func:`data_root` if None.
        devices: how many devices what is made here is made for; the others do not look at it.
        samples_per_device: training samples of each of these devices.
        seed: of what is made.
        reading: task and windows, for sensors.
        like: settings of its own: what ``procedural`` or ``machines`` are like, which engines of ``cmapss``,
            which recordings of ``skab``.

    Raises:
        SettingError: an unknown name, missing or damaged files, ``labels`` without a number of devices, or windows of
            pictures.

    >>> load("labels", devices=2, samples_per_device=30).y.shape
    (60,)
    """
    if name not in SOURCES:
        raise SettingError(f"data.name: {unknown('data set', name, SOURCES)}")
    source, reading, folder = SOURCES[name], reading or Reading(), _folder(name, root)
    if reading.window is not None and not source.sensors:
        raise SettingError(f"[data] window: '{name}' holds pictures. Windows are for sensors over time, such as 'tep'.")
    if name in MADE_HERE:
        if devices is None:
            raise SettingError(f"[park] devices is not set: data set '{name}' is made for any number of them.")
    elif not folder.is_dir():
        raise SettingError(
            f"data set '{name}': looked in {folder}, which does not exist. {_how(name, folder)}, or set FEDFLOOR_DATA "
            "to the folder that holds it. The data set 'labels' needs no download."
        )
    return source.load(LoadRequest(name, folder, devices or 0, samples_per_device, seed, reading, like))


def looked_in(
    names: Sequence[str] = tuple(SOURCES), root: Path | str | None = None
) -> list[dict[str, str | int | bool | None]]:
    """Return a row per data set: what it is, whether its files are there, and where to get them.

    Args:
        names: which data sets.
        root: as for :func:`load`.

    Returns:
        Rows with the columns name, kind, classes (None where labels are numbers), samples and test_samples (None where
        unknown before loading), found, where (the folder) and how (what to do; empty if nothing).

    >>> looked_in(["labels"])[0]["how"]
    'needs no download: set [park] devices and [data] samples_per_device'
    """
    return [_row(name, root) for name in names]


def _row(name: str, root: Path | str | None) -> dict[str, str | int | bool | None]:
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source, folder = SOURCES[name], _folder(name, root)
    available, where, how = True, str(folder), ""
    counts: tuple[int, int] | None = None
    if name in MADE_HERE:
        where, how = "made here", "needs no download: set [park] devices and [data] samples_per_device"
    elif not folder.is_dir():
        available, how = False, _how(name, folder)
    else:
        try:
            counts = source.counted(folder)
        except SettingError as error:
            available, how = False, f"{error} Or: {_how(name, folder)}"
    train, test = counts or (None, None)
    return {
        "name": name, "kind": source.kind, "classes": source.classes or None, "samples": train, "test_samples": test,
        "found": available, "where": where, "how": how,
    }  # fmt: skip


def _folder(name: str, root: Path | str | None) -> Path:
    return (expanded(root) if root is not None else data_root()) / name


def _how(name: str, folder: Path) -> str:
    source = SOURCES[name]
    by_hand = f"get {', '.join(source.files)} from {source.authors} and put them into {folder}"
    return f"`fedfloor datasets get {name}` {source.get}. By hand: {by_hand}"
