"""CIFAR-10 and CIFAR-100 in their author's binary format (Krizhevsky 2009), packed or unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.base import regular
from fedfloor.base.errors import SettingError
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Images, Labels, SamplePool, pooled
from fedfloor.data.files import content, damaged, find, unpacking

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CHUNK = 1 << 20
NAMES_LIMIT = 1 << 16  # bytes; the published lists of names have 61 and about 1,000 bytes
SLACK = 1 << 24  # bytes that an archive may hold in addition to the pictures: headers, names, a readme


@dataclass(frozen=True)
class Layout:
    """The layout of a data set; a record is a byte per label, followed by the red, green and blue planes, row by row.

    Args:
        archive: the archive's name, without ``.gz``.
        folder: the folder in the archive.
        files: (name, records) of each file, the training files in their order, then the test file.
        values: the number of possible values of each label byte of a record; the last label is the class.
        names_file: the file with the names of the classes, one per line.
        names: F names, used if this file is missing.
    """

    archive: str
    folder: str
    files: tuple[tuple[str, int], ...]
    values: tuple[int, ...]
    names_file: str
    names: tuple[str, ...]

    @property
    def record(self) -> int:
        """The length of a record in bytes."""
        return len(self.values) + PIXELS

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of training and test samples."""
        return sum(records for _, records in self.files[:-1]), self.files[-1][1]


TEN = Layout(
    "cifar-10-binary.tar",
    "cifar-10-batches-bin",
    (*((f"data_batch_{i}.bin", 10_000) for i in range(1, 6)), ("test_batch.bin", 10_000)),
    (10,),
    "batches.meta.txt",
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
HUNDRED = Layout(
    "cifar-100-binary.tar",
    "cifar-100-binary",
    (("train.bin", 50_000), ("test.bin", 10_000)),
    (20, 100),
    "fine_label_names.txt",
    tuple(map(str, range(100))),
)


def load(name: str, folder: Path, layout: Layout) -> Dataset:
    """Read a data set of :data:`TEN`'s or :data:`HUNDRED`'s layout: uint8 [N, 3, 32, 32] and the (fine) labels.

    The archive is read as a stream and none of its members is written to disk. Krizhevsky 2009, Learning Multiple
    Layers of Features from Tiny Images.

    Raises:
        SettingError: a file is missing, incomplete, damaged, or not as published.
    """
    source = _source(folder, layout)
    files = [source] if source.is_file() else [source / file for file in _wanted(layout) if (source / file).is_file()]
    entry = remember(f"cifar 1, {layout.archive}", files, lambda writer: _parse(name, source, layout, writer))
    arrays = entry.arrays
    train = layout.sizes[0]
    parts = [
        SamplePool(arrays["x"], arrays["y"][part], rows=arrays["rows"][part])
        for part in (slice(train), slice(train, None))
    ]
    return pooled(name, tuple(entry.facts["classes"]), parts[0], parts[1], entry.facts["digest"])


def samples(folder: Path, layout: Layout) -> tuple[int, int]:
    """Return the published numbers of training and test images, if the files begin as expected."""
    source = _source(folder, layout)
    if source.is_file():
        try:
            with _opened(source) as stream:
                tarfile.TarInfo.frombuf(stream.read(tarfile.BLOCKSIZE), tarfile.ENCODING, "replace")
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise damaged(source, f"its beginning cannot be read ({error})") from error
        return layout.sizes
    for file, _ in layout.files:
        path = source / file
        if not path.is_file():
            raise damaged(source, f"holds no {file}")
        _check_length(path, path.stat().st_size, layout)
    return layout.sizes


def _source(folder: Path, layout: Layout) -> Path:
    """Return the archive, or the folder with the unpacked files."""
    archive = find(folder, layout.archive)
    if archive is not None:
        return archive
    for place in (folder / layout.folder, folder):
        if any((place / file).is_file() for file, _ in layout.files):
            return place
    raise SettingError(
        f"{folder / layout.archive}.gz is missing (or {layout.folder}, unpacked). Put the authors' binary version "
        "there, or set FEDFLOOR_DATA.",
        key="published-file-missing",
    )


def _wanted(layout: Layout) -> tuple[str, ...]:
    return (*dict(layout.files), layout.names_file)


def _parse(name: str, source: Path, layout: Layout, writer: Writer) -> Mapping[str, Any]:
    places = dict[str, tuple[int, Labels]]()
    classes = layout.names
    digests = dict[str, bytes]()
    for path, data in _unpacked(source, layout) if source.is_file() else _loose(source, layout):
        if path.name in digests:
            raise damaged(source, f"holds {path.name} twice")
        digests[path.name] = hashlib.sha256(data).digest()
        if path.name == layout.names_file:
            try:
                classes = tuple(line.strip() for line in data.decode().splitlines() if line.strip())
            except UnicodeDecodeError as error:
                raise damaged(path, "not a list of names") from error
            if len(classes) != len(layout.names):
                raise damaged(path, f"{len(classes)} names for {len(layout.names)} classes")
        else:
            x, y = _records(path, data, layout)
            places[path.name] = writer.length("x"), y
            writer.append("x", x)
    missing = [file for file, _ in layout.files if file not in digests]
    if missing:
        raise damaged(source, f"holds no regular file {missing[0]}, which is part of the binary version of {name}")
    for file, records in layout.files:  # archives may hold files in any order
        start, y = places[file]
        writer.append("y", y)
        writer.append("rows", np.arange(start, start + records))
    digest = hashlib.sha256(b"".join(digests[file] for file, _ in layout.files)).hexdigest()
    return {"classes": classes, "digest": digest}


def _loose(place: Path, layout: Layout) -> Iterator[tuple[Path, bytes]]:
    """Yield the existing unpacked files: (path, content)."""
    for file in _wanted(layout):
        path = place / file
        if path.is_file():
            _check_length(path, path.stat().st_size, layout)
            yield path, content(path)


class _Bounded(io.BufferedIOBase):
    """A stream that raises an error if an archive unpacks to more bytes than published."""

    def __init__(self, path: Path, stream: io.BufferedIOBase, limit: int) -> None:
        self._path = path
        self._stream = stream
        self._limit = limit
        self._left = limit

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise damaged(self._path, f"unpacks to more than {self._limit:,} bytes, far more than published")
        return data


def _unpacked(archive: Path, layout: Layout) -> Iterator[tuple[Path, bytes]]:
    """Yield the requested members of an archive in its order: (archive/member, content)."""
    wanted = set(_wanted(layout))
    try:
        with unpacking(archive), _opened(archive) as raw:
            stream = _Bounded(archive, raw, sum(layout.sizes) * layout.record + SLACK)
            with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as tar:
                for member in tar:
                    path = archive / member.name.rsplit("/", 1)[-1]
                    # links, devices, holes, "/…" and ".." are ignored: no published archive has them
                    inside = not member.name.startswith("/") and ".." not in member.name.split("/")
                    if path.name in wanted and member.isreg() and not member.issparse() and inside:
                        _check_length(path, member.size, layout)
                        opened = tar.extractfile(member)
                        yield path, opened.read() if opened is not None else b""
            while stream.read(CHUNK):  # gzip verifies its checksum only at the end
                pass
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:  # caused by damaged headers
        raise damaged(archive, f"not a complete tar archive ({error})") from error


def _opened(archive: Path) -> io.BufferedIOBase:
    """Open an archive, with gzip if its first bytes (not its name) show that it is packed."""
    with regular.opened(archive) as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.GzipFile(archive, "rb") if packed else regular.opened(archive)


def _check_length(path: Path, size: int, layout: Layout) -> None:
    """Refuse a file with another length than published, before it is read."""
    if path.name == layout.names_file:
        if size > NAMES_LIMIT:
            raise damaged(path, f"{size:,} bytes are too many for a list of {len(layout.names)} names")
        return
    expected = dict(layout.files)[path.name]
    if size % layout.record:
        raise damaged(path, f"incomplete or damaged: {size:,} bytes are no multiple of a record's {layout.record:,}")
    if size != expected * layout.record:
        raise damaged(path, f"holds {size // layout.record:,} records instead of {expected:,}")


def _records(path: Path, data: bytes, layout: Layout) -> tuple[Images, Labels]:
    """Return the pictures and (fine) labels of a file."""
    _check_length(path, len(data), layout)
    labels = len(layout.values)
    rows = np.frombuffer(data, np.uint8).reshape(-1, layout.record)
    for column, values in enumerate(layout.values):
        worst = int(rows[:, column].argmax())
        if rows[worst, column] >= values:
            byte = f" (byte {column} of it)" if labels > 1 else ""
            raise damaged(path, f"label {rows[worst, column]} in record {worst:,}{byte}: labels are 0 to {values - 1}")
    return rows[:, labels:].reshape(-1, *SHAPE), rows[:, labels - 1].astype(np.int64)
