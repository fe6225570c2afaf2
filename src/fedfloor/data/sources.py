"""Data sets by name: their contents, their sources, and the folders in which they are searched."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fedfloor.base.errors import SettingError, unknown
from fedfloor.data.dataset import LETTERS_AND_DIGITS, Dataset
from fedfloor.data.files import expanded
from fedfloor.data.made import machines
from fedfloor.data.made.labels import labels
from fedfloor.data.made.procedural import Procedural, procedural
from fedfloor.data.published import cifar, cmapss, idx, leaf, skab, tep, tless
from fedfloor.data.reading import Reading
from fedfloor.tasks import reconstruction
from fedfloor.tasks.task import Task


@dataclass(frozen=True)
class File:
    """A published file.

    Args:
        name: the name of the file, on the server and in the data set's folder.
        size: its length in bytes.
        checksum: ``"algorithm:hexadecimal digits"``.
    """

    name: str
    size: int
    checksum: str


@dataclass(frozen=True)
class Published:
    """The published source of a data set.

    Args:
        files: the published files; empty where there are none.
        places: addresses that end in ``/`` and hold all files, in the order of attempts.
        page: the authors' web page.
        by_hand: instructions for a download by hand, if no files can be downloaded.
    """

    files: tuple[File, ...]
    places: tuple[str, ...]
    page: str
    by_hand: str = ""


HERE = files("fedfloor.data.published")
CATALOG = tomllib.loads(HERE.joinpath("catalog.toml").read_text("utf-8"))  # its header describes the keys
MADE_HERE = tuple(name for name, about in CATALOG.items() if "files" not in about)


def _published(name: str) -> Published:
    """Return the source of a data set; ``published/checksums.txt`` lists the files."""
    if name in MADE_HERE:
        return Published((), (), "", "It is generated: set [park] devices and [data] samples_per_device.")
    rows = map(str.split, HERE.joinpath("checksums.txt").read_text("utf-8").splitlines())
    listed = tuple(File(file, int(size), checksum) for first, file, size, checksum, *_ in rows if first == name)
    about = CATALOG[name]
    page = about.get("page", about["authors"])
    return Published(listed, tuple(about.get("places", ())), page, about.get("by_hand", "").strip())


PUBLISHED = {name: _published(name) for name in CATALOG}


@dataclass(frozen=True)
class Source:
    """A data set's contents, its source, and the function that loads it.

    Args:
        classes: number of classes; 0 where labels are numbers.
        load: reads or generates the data set; its keyword arguments are those of :func:`load`, and ``folder``.
        counted: folder → published numbers of training and test samples, if all files are present; None where they
            depend on settings. Raises a SettingError if a file is missing.
        sensors: whether it holds rows over time, from which windows are cut.
        natural: whether its devices are natural owners by default.
        task: the default task of a model, if the experiment sets neither a task nor ``bins``; None: classification.
    """

    classes: int
    load: Callable[..., Dataset]
    counted: Callable[[Path], tuple[int, int] | None] = lambda _: None
    sensors: bool = False
    natural: bool = False
    task: Task | None = None


def _idx(classes: tuple[str, ...]) -> Source:
    return Source(len(classes), lambda name, folder, **_: idx.load(name, folder, classes), idx.samples)


def _cifar(layout: cifar.Layout) -> Source:
    return Source(
        len(layout.names),
        lambda name, folder, **_: cifar.load(name, folder, layout),
        lambda folder: cifar.samples(folder, layout),
    )


SOURCES = {
    "labels": Source(
        len(LETTERS_AND_DIGITS),
        lambda devices, samples_per_device, seed, **_: labels(devices, samples_per_device, seed),
    ),
    "procedural": Source(
        Procedural().classes,
        lambda devices, samples_per_device, seed, like, **_: procedural(devices, samples_per_device, seed, like),
        natural=True,
    ),
    "machines": Source(
        len(machines.CLASSES),
        lambda devices, seed, reading, like, **_: machines.load(devices, seed, reading, like),
        sensors=True,
        natural=True,
    ),
    "mnist": _idx(idx.DIGITS),
    "fashion-mnist": _idx(idx.CLOTHES),
    "cifar-10": _cifar(cifar.TEN),
    "cifar-100": _cifar(cifar.HUNDRED),
    "femnist": Source(len(LETTERS_AND_DIGITS), lambda name, folder, **_: leaf.load(name, folder), leaf.samples),
    "tless": Source(
        tless.OBJECTS,
        lambda name, folder, like, **_: tless.load(name, folder, like),
        tless.counted,
        natural=True,
    ),
    "tep": Source(
        len(tep.CLASSES), lambda name, folder, reading, **_: tep.load(name, folder, reading), tep.samples, sensors=True
    ),
    "cmapss": Source(
        0,
        lambda name, folder, reading, like, **_: cmapss.load(name, folder, reading, like),
        cmapss.counted,
        sensors=True,
        natural=True,
        task=cmapss.TASK,
    ),
    "skab": Source(
        len(reconstruction.CLASSES),
        lambda name, folder, reading, like, **_: skab.load(name, folder, reading, like),
        skab.counted,
        sensors=True,
        natural=True,
        task=skab.TASK,
    ),
}


def data_root() -> Path:
    """Return the folder in which data sets are searched: ``$FEDFLOOR_DATA``, by default the user's data folder."""
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
    """Load a published data set, or generate one.

    Args:
        name: one of :data:`SOURCES`.
        root: the folder that holds the data sets' folders; :func:`data_root` if None.
        devices: the number of devices of a generated data set; published ones ignore it.
        samples_per_device: training samples of each of these devices.
        seed: the seed of a generated data set.
        reading: the settings of task and windows, for sensors.
        like: settings specific to the data set: properties of ``procedural`` or ``machines``, the engines of
            ``cmapss``, the recordings of ``skab``, the parts of ``tless``.

    Raises:
        SettingError: an unknown name, missing or damaged files, ``labels`` without a number of devices, or windows of
            pictures.

    >>> load("labels", devices=2, samples_per_device=30).y.shape
    (60,)
    """
    if name not in SOURCES:
        own = " It is a path, which is given as [data] path." if Path(name).exists() else ""
        raise SettingError(f"data.name: {unknown('data set', name, SOURCES)}{own}", key="data-name")
    source = SOURCES[name]
    reading = reading or Reading()
    folder = _folder(name, root)
    if reading.window is not None and not source.sensors:
        raise SettingError(f"[data] window: '{name}' holds pictures. Windows are for sensors over time, such as 'tep'.")
    if name in MADE_HERE:
        if devices is None:
            raise SettingError(
                f"[park] devices is not set: data set '{name}' is generated for any number of devices. Set it."
            )
    elif not folder.is_dir():
        raise SettingError(
            f"data set '{name}': looked in {folder}, which does not exist. {_how(name, folder)}, or set FEDFLOOR_DATA "
            "to the folder that holds it. The data set 'labels' needs no download.",
            key="published-file-missing",
        )
    return source.load(
        name=name, folder=folder, devices=devices, samples_per_device=samples_per_device, seed=seed, reading=reading,
        like=like,
    )  # fmt: skip


def looked_in(
    names: Sequence[str] = tuple(SOURCES), root: Path | str | None = None
) -> list[dict[str, str | int | bool | None]]:
    """Return a row per data set with its contents, the presence of its files, and their source.

    Args:
        names: the data sets.
        root: as for :func:`load`.

    Returns:
        Rows with the columns name, kind, classes (None where labels are numbers), samples and test_samples (None where
        unknown before loading), found, where (the folder) and how (the next step; empty if none).

    >>> looked_in(["labels"])[0]["how"]
    'needs no download: set [park] devices and [data] samples_per_device'
    """
    return [_row(name, root) for name in names]


def _row(name: str, root: Path | str | None) -> dict[str, str | int | bool | None]:
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source = SOURCES[name]
    folder = _folder(name, root)
    available = True
    where = str(folder)
    how = ""
    counts: tuple[int, int] | None = None
    if name in MADE_HERE:
        where = "made here"
        how = "needs no download: set [park] devices and [data] samples_per_device"
    elif not folder.is_dir():
        available = False
        how = _how(name, folder)
    else:
        try:
            counts = source.counted(folder)
        except SettingError as error:
            available = False
            how = f"{error} Or: {_how(name, folder)}"
    train, test = counts or (None, None)
    return {
        "name": name, "kind": CATALOG[name]["kind"], "classes": source.classes or None, "samples": train,
        "test_samples": test, "found": available, "where": where, "how": how,
    }  # fmt: skip


def _folder(name: str, root: Path | str | None) -> Path:
    return (expanded(root) if root is not None else data_root()) / name


def _how(name: str, folder: Path) -> str:
    about = CATALOG[name]
    by_hand = f"get {', '.join(about['files'])} from {about['authors']} and put them into {folder}"
    return f"`fedfloor datasets get {name}` {about.get('get', 'downloads it')}. By hand: {by_hand}"
