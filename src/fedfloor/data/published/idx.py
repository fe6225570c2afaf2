"""MNIST and Fashion-MNIST, in the idx files of their authors (LeCun et al. 1998; Xiao et al. 2017)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, SamplePool, pooled
from fedfloor.data.files import damaged, head, needed, pieces

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


def load(name: str, folder: Path, classes: tuple[str, ...]) -> Dataset:
    """Read a data set of four idx files, packed (``.gz``) or not: uint8 [N, 1, H, W] and labels."""
    paths = [needed(folder, file) for file in FILES]
    entry = remember(f"idx 1, {len(classes)} classes", paths, lambda writer: _parse(paths, len(classes), writer))
    arrays = entry.arrays
    train = SamplePool(arrays["x"], arrays["y"])
    test = SamplePool(arrays["x_test"], arrays["y_test"])
    return pooled(name, classes, train, test, entry.facts["digest"])


def samples(folder: Path) -> tuple[int, int]:
    """Return the numbers of training and test images, from the first bytes of the files."""
    counts = []
    for file in (FILES[0], FILES[2]):
        path = needed(folder, file)
        try:
            magic, count = struct.unpack_from(">II", head(path, 8))
        except struct.error as error:
            raise damaged(path, f"its header cannot be read ({error})") from error
        _check_magic(path, magic, 3)
        counts.append(count)
    return counts[0], counts[1]


def _parse(paths: Sequence[Path], classes: int, writer: Writer) -> Mapping[str, Any]:
    digest = hashlib.sha256()
    size = _pair(paths[0], paths[1], classes, digest, writer, "")
    other = _pair(paths[2], paths[3], classes, digest, writer, "_test")
    if other != size:
        raise damaged(paths[2], f"images of {_pixels(other)}, but those of {paths[0].name} are {_pixels(size)}")
    return {"digest": digest.hexdigest()}


def _pixels(size: tuple[int, ...]) -> str:
    return f"{size[0]}×{size[1]} pixels"


def _check_magic(path: Path, magic: int, dimensions: int) -> None:
    expected = 0x0800 | dimensions
    if magic != expected:
        raise damaged(path, f"starts with 0x{magic:08x}; idx of bytes in {dimensions} dimensions has 0x{expected:08x}")


def _array(path: Path, dimensions: int, digest: hashlib._Hash) -> NDArray[np.uint8]:
    """Read one idx file: magic number, lengths (big-endian, 4 bytes each), then the bytes."""
    data = bytearray()
    for piece in pieces(path):  # unpacking the whole file at once would take twice its length
        data += piece
    header = 4 * (1 + dimensions)
    if len(data) < header:
        raise damaged(path, f"incomplete: {len(data)} bytes, but the header alone has {header}")
    magic, *lengths = struct.unpack(f">{1 + dimensions}I", data[:header])
    _check_magic(path, magic, dimensions)
    expected = header + int(np.prod(lengths, dtype=object))  # object: a damaged header must not overflow
    if len(data) != expected:
        short = "incomplete" if len(data) < expected else "too long"
        raise damaged(path, f"{short}: {len(data):,} bytes, but its header states {expected:,}")
    if 0 in lengths:
        raise damaged(path, f"has no content: its lengths are {' × '.join(map(str, lengths))}")
    digest.update(data)
    return np.frombuffer(data, np.uint8, offset=header).reshape(lengths)


def _pair(
    images: Path, labels: Path, classes: int, digest: hashlib._Hash, writer: Writer, part: str
) -> tuple[int, ...]:
    """Write the images and labels of one part; return the images' height and width."""
    x = _array(images, 3, digest)
    y = _array(labels, 1, digest)
    if len(x) != len(y):
        raise damaged(labels, f"{len(y):,} labels, but {images.name} holds {len(x):,} images")
    if int(y.max()) >= classes:
        raise damaged(labels, f"label {int(y.max())} at index {int(y.argmax()):,}: labels are 0 to {classes - 1}")
    writer.append(f"x{part}", x[:, None])
    writer.append(f"y{part}", y, np.int64)
    return x.shape[1:]
