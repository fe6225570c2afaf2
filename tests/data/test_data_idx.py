from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedfloor.base.errors import SettingError
from fedfloor.data.published import idx
from refusals import refused


def packed(*lengths: int, values: bytes, magic: int | None = None) -> bytes:
    magic = 0x0800 + len(lengths) if magic is None else magic
    return struct.pack(f">{1 + len(lengths)}I", magic, *lengths) + values


PIXELS = bytes(range(48))
GOOD = {
    "train-images-idx3-ubyte": packed(4, 3, 4, values=PIXELS),
    "train-labels-idx1-ubyte": packed(4, values=bytes([3, 0, 9, 1])),
    "t10k-images-idx3-ubyte": packed(2, 3, 4, values=PIXELS[:24]),
    "t10k-labels-idx1-ubyte": packed(2, values=bytes([5, 5])),
}


def write(folder: Path, *, plain: bool = False, **changed: bytes | None) -> Path:
    """Write the four files; ``train_images=…`` replaces one of them, None leaves it out."""
    for name, good in GOOD.items():
        data = changed.get("_".join(name.split("-")[:2]), good)
        if data is not None:
            path = folder / (name if plain else f"{name}.gz")
            path.write_bytes(data if plain else gzip.compress(data))
    return folder


@pytest.mark.parametrize("plain", [False, True])
def test_reads_packed_and_plain_alike(tmp_path: Path, plain: bool) -> None:
    data = idx.load("mnist", write(tmp_path, plain=plain), idx.DIGITS)
    assert data.shape == (1, 3, 4)
    assert data.y.tolist() == [3, 0, 9, 1]
    assert data.y.dtype == np.int64
    assert data.take(np.array([1]), 0).tobytes() == PIXELS[12:24]
    assert data.take_test(np.array([0, 1])).tobytes() == PIXELS[:24]
    assert idx.samples(tmp_path) == (4, 2)
    other = tmp_path / "other"
    other.mkdir()
    assert data.digest == idx.load("mnist", write(other, plain=not plain), idx.DIGITS).digest


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_images": None}, "published-file-missing"),
        ({"t10k_labels": None}, "published-file-missing"),
        ({"train_images": packed(4, 3, 4, values=PIXELS[:-1])}, "published-file"),
        ({"train_images": packed(4, 3, 4, values=PIXELS + b"x")}, "published-file"),
        ({"train_images": b"\0\0\x08\x03"}, "published-file"),
        ({"train_images": packed(4, 3, 4, values=PIXELS, magic=0x0D03)}, "published-file"),
        ({"train_labels": GOOD["train-images-idx3-ubyte"]}, "published-file"),
        ({"train_images": packed(2**32 - 1, 2**32 - 1, 2**32 - 1, values=PIXELS)}, "published-file"),
        ({"train_images": packed(0, 3, 4, values=b"")}, "published-file"),
        ({"train_labels": packed(3, values=bytes(3))}, "published-file"),
        ({"train_labels": packed(4, values=bytes([0, 1, 10, 2]))}, "published-file"),
        ({"t10k_images": packed(2, 4, 3, values=PIXELS[:24])}, "published-file"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, changed: dict[str, bytes | None], words: str) -> None:
    with refused(words) as caught:
        idx.load("mnist", write(tmp_path, **changed), idx.DIGITS)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.exit_code == 2


def test_truncated_packing(tmp_path: Path) -> None:
    path = write(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-10])
    with refused("published-file"):
        idx.load("mnist", tmp_path, idx.DIGITS)


def test_samples_of_a_damaged_header(tmp_path: Path) -> None:
    path = write(tmp_path) / "train-images-idx3-ubyte.gz"
    good = gzip.compress(bytes(range(256)))
    broken = good[:10] + b"\xff" * 50 + good[60:]  # a good beginning, and then what was never packed
    wrong = {
        "not a gzip": b"",
        "gzip file": b"no gzip",
        "header cannot be read": gzip.compress(b"\0"),
        "gzip data": broken,
    }
    for words, damaged in wrong.items():
        path.write_bytes(damaged)
        with pytest.raises(SettingError, match=words):
            idx.samples(tmp_path)


@pytest.mark.slow
def test_mnist_as_published(data_root: Path) -> None:
    data = idx.load("mnist", data_root / "mnist", idx.DIGITS)
    # class counts of the 60,000 + 10,000 digits, as on the authors' page and in every table since
    assert np.bincount(data.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    x = data.take(np.arange(60_000), 0)
    assert x.shape == (60_000, 1, 28, 28)
    assert x.mean() / 255 == pytest.approx(0.1307, abs=5e-5)  # the mean everybody normalises with
    assert x.std() / 255 == pytest.approx(0.3081, abs=5e-5)


@pytest.mark.slow
def test_fashion_mnist_as_published(data_root: Path) -> None:
    data = idx.load("fashion-mnist", data_root / "fashion-mnist", idx.CLOTHES)
    assert np.bincount(data.y).tolist() == [6000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert data.classes[9] == "Ankle boot"
