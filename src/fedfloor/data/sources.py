"""Data sets by name: what they are, where they are published, and where they are looked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


# MNIST's and Fashion-MNIST's sums: torchvision/datasets/mnist.py, and the README of zalandoresearch/fashion-mnist
MNIST = (
    File("train-images-idx3-ubyte.gz", 9_912_422, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    File("train-labels-idx1-ubyte.gz", 28_881, "md5:d53e105ee54ea40749a09fcbcd1e9432"),
    File("t10k-images-idx3-ubyte.gz", 1_648_877, "md5:9fb629c4189551a2d022fa330f9573f3"),
    File("t10k-labels-idx1-ubyte.gz", 4_542, "md5:ec29112dd5afa0611ce80d1b7f02629c"),
)
FASHION_MNIST = (
    File("train-images-idx3-ubyte.gz", 26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    File("train-labels-idx1-ubyte.gz", 29_515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
    File("t10k-images-idx3-ubyte.gz", 4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79"),
    File("t10k-labels-idx1-ubyte.gz", 5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
)
# CIFAR's sums stand on the authors' page (column md5sum, binary version)
CIFAR_10 = (File("cifar-10-binary.tar.gz", 170_052_171, "md5:c32a1d4ab5d03f1284b67883e8d87530"),)
CIFAR_100 = (File("cifar-100-binary.tar.gz", 168_513_733, "md5:03b5dce01913d631647c71ecec9e9cb8"),)
CIFAR_PLACES = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

# The authors publish no sums for these: they were computed from a copy of the files. Half of them were compared with
# what others have recorded of the same repository, and agree.
TEP = (
    File("d00.dat", 416_049, "sha256:4c3c0b11eefacf93e5d2529e2866d7a625e37aa9153d0f95fae17a6c9e560deb"),
    File("d00_te.dat", 799_680, "sha256:57d56da4199e3d73582855d810be1d13d931386fd728bf1694798c7b0a03678c"),
    File("d01.dat", 399_840, "sha256:b0da22ac7561d82b0ba0b48bf87d2b3a8655cb23a3dc37330dd03cdd126c387c"),
    File("d01_te.dat", 799_680, "sha256:e7e6992fb39664e739fccbc001a1c5d5f7cb21829544f734ca3f282c26f680e5"),
    File("d02.dat", 399_840, "sha256:af1a46ba3a5482be3e7b143606f22ae509138544af2a2d0eb7389459257f8179"),
    File("d02_te.dat", 799_680, "sha256:a34bd9c3693fa96bd3ee533fb7fbe29a9d226a4e3250b585ef1308e1136dbfb0"),
    File("d03.dat", 399_840, "sha256:df39c57bdac7ea476ee236c289e0f59b0cbf868adfbbbaf213f692d8cd96e52a"),
    File("d03_te.dat", 799_680, "sha256:b7bf6f2ed7cff0a5577898b009edd252b9bdf6ee9ff7dbeacf9af9aa4c6abace"),
    File("d04.dat", 399_840, "sha256:346702fce33d9707f0b4ec5b8f533ccb08be60313607d5156d7e237b80a87b3f"),
    File("d04_te.dat", 799_680, "sha256:1ccb488dd5feac11aad54623451168abef066229e685872597897800363916f9"),
    File("d05.dat", 399_840, "sha256:3a47bfce4010ce0c634ae828409cce657ecd03bf0c4d59f8dd4a3d4f792f493f"),
    File("d05_te.dat", 799_680, "sha256:1def7258a2865aeead699d52c8cf926fbf34c1467aaf298121987ab858fd0888"),
    File("d06.dat", 399_840, "sha256:ff0882a44bb74f5d2d1a864425ac7e5ae82420391c7060232cefc08ad5bf7331"),
    File("d06_te.dat", 799_680, "sha256:8a3adc7121eaa9b9300c27f9c57a8ab356315401cb964310a4a8244dd34bf79d"),
    File("d07.dat", 399_840, "sha256:e3fd272ed53f899ab0c8278c7eede55418b01a2339b5fcff14a87fefaa3d181d"),
    File("d07_te.dat", 799_680, "sha256:e01b7c81daf9fccc4495cbde5658296918276b3c078044893f6e945dd91d3446"),
    File("d08.dat", 399_840, "sha256:4817735e339449bec909d1cbe77e421acc79c7357b8c6b5bb82c6e5788b72449"),
    File("d08_te.dat", 799_680, "sha256:c0637f02f23b79890b43cfee9604818ad6d7f81532223d76acf1da0d6e2a2cc1"),
    File("d09.dat", 399_840, "sha256:cb9146da760cdd52cad575d745413a5cfb4b447af2db9fb6a424cf6881ff0fcd"),
    File("d09_te.dat", 799_680, "sha256:513df6c3a4fd48e0eaddb0002cd8cdab3a78a5c83c47883bb52d2dc6c2472428"),
    File("d10.dat", 399_840, "sha256:e08697b5d074aea2345434bc4d26296f5dbdbb7efbf37a1bbee292b2ce765e8f"),
    File("d10_te.dat", 799_680, "sha256:3a278be79d8d111fc60be3cfb4f961c28e2dc632f17eb519886aa0f95864ffc6"),
    File("d11.dat", 399_840, "sha256:8294734d6f6e8f6b8643b9dc72f38ce40afd868d30dee9368a0d26b963a0af9f"),
    File("d11_te.dat", 799_680, "sha256:6d60a4c932d918e1ab26ae5d16320936a665f3aad3f05482d23f5c4550b9f29a"),
    File("d12.dat", 399_840, "sha256:62fcb3c71c0eda8eaaaf707f35296e60b17baaf9a9aef588687532cf4c560d38"),
    File("d12_te.dat", 799_680, "sha256:2180fcecb01d1b110b429ba2969d6b18dcc625599e3640e54f69afa32dccbe50"),
    File("d13.dat", 399_840, "sha256:f755d4ab6dc1d30e36c2e4604eeb0baff4b91032f487398b97fb1220eda861dd"),
    File("d13_te.dat", 799_680, "sha256:2e34e0c427d6e41d77d6cae76550b7e95004f9f13bc093278ecf5c282a1c9f03"),
    File("d14.dat", 399_840, "sha256:29fda7d5cae58cb7240e569e2d2d436371d077d282187d9205c7dc01df8755af"),
    File("d14_te.dat", 799_680, "sha256:e8976d056c0769cebbcec3bcba89d2468040ccae7acbea55ebc3b2e56b217396"),
    File("d15.dat", 399_840, "sha256:4c82fe0864cce2521e91a2c3e59d8630627c5e633cffe83f5e34ebc9901b5bca"),
    File("d15_te.dat", 799_680, "sha256:a7242b956837bec8ca7f224d01805247f2aea6ea868eaa064e068b5c0761b1e5"),
    File("d16.dat", 399_840, "sha256:ca1dfc5e31292052e83dcf6b4f60a73da197eb8a47e65d908ed7ac3cbcccb007"),
    File("d16_te.dat", 799_680, "sha256:8381d7371aac49b498e7bf93149b77a0a6bbeffe73520881dcbe8ae96277244d"),
    File("d17.dat", 399_840, "sha256:596aad6421a64d257bfa098cd5c4664d46dc49d88d1bad86cbc9518e6cd69e42"),
    File("d17_te.dat", 799_680, "sha256:27d2d72052064e3cbb7a45df8073f15bb83b77403f532616e73c8869b043e7c9"),
    File("d18.dat", 399_840, "sha256:b4d182c070036104cf150bc33f7aa879805f19943eb298bc05bdc8647dc70291"),
    File("d18_te.dat", 799_680, "sha256:1db5b93a7daa58ed1b641845b58ad818546ced7f3de866c086da18a7ebef5041"),
    File("d19.dat", 399_840, "sha256:ee3d2a50285cb3ba5e52ec05ea7cb39dc2b574bec592af9d44c192be132aeea6"),
    File("d19_te.dat", 799_680, "sha256:c24dd77f787f89347273addc8a453d79f0b99edd64d43be11a5e0907bd515c5f"),
    File("d20.dat", 399_840, "sha256:acdfe6c256fa6de74a811d6c7df1b710a9f0ed60f48242be92f3fa30db3df6b3"),
    File("d20_te.dat", 799_680, "sha256:e54035eda95311f13dd095f87607d97a89b7541afa2a3f68af098f33a5e2e6e5"),
    File("d21.dat", 399_840, "sha256:f34a9fefffef04ef1f49b3fb74e3def0010cda27a8577d814dd50604e2f8dc09"),
    File("d21_te.dat", 799_680, "sha256:b6823aa09638cd59cb168bc24f991b6d4d557d8aea62b0b2a87ee67c21ba5a83"),
)

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
        MNIST,
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "fashion-mnist": Published(
        FASHION_MNIST,
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "cifar-10": Published(CIFAR_10, CIFAR_PLACES, CIFAR_PAGE),
    "cifar-100": Published(CIFAR_100, CIFAR_PLACES, CIFAR_PAGE),
    "femnist": Published((), (), "https://github.com/TalwalkarLab/leaf", LEAF),
    "cmapss": Published(
        (),
        (),
        "https://www.nasa.gov/intelligent-systems-division/discovery-and-systems-health/pcoe/pcoe-data-set-repository/",
        NASA,
    ),
    "skab": Published((), (), "https://github.com/waico/SKAB", SKAB),
    "tep": Published(
        TEP,
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
            raise SettingError(f"[park] devices is not set: data set '{name}' is made for as many devices as you say.")
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
