"""Decompression bombs: refused before or while they are read; honest data of any length are read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.data import kinds
from fedfloor.data.files import columnar, content, own, packed, rows, wide
from fedfloor.data.files.layout import looks_like_time
from fedfloor.data.files.packed import BombError, unpacked_bytes
from fedfloor.data.reading import Columns, Reading
from fedfloor.drafting import sensors
from refusals import refused

READING = Reading(columns=Columns(device="device"), task="classification")
ROWS = b"m,1.0,2.0,a\nm,1.5,2.0,b\n"
SCALE = 1 << 16  # bytes, in the place of the 64 MiB from which content counts as large


def zipped(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", data)


PACKERS: dict[str, Callable[[Path, bytes], Any]] = {
    ".gz": lambda path, data: path.write_bytes(gzip.compress(data)),
    ".bz2": lambda path, data: path.write_bytes(bz2.compress(data)),
    ".xz": lambda path, data: path.write_bytes(lzma.compress(data)),
    ".zip": zipped,
}


@pytest.fixture(autouse=True)
def scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "LARGE", SCALE)


def noise(many: int) -> bytes:
    """Rows of a table as sensors write them: packed 2 to 4 times."""
    values = np.random.default_rng(0).normal(size=(many, 2))
    return b"device,u,v,label\n" + "".join(f"m,{u:.6f},{v:.6f},{'ab'[int(u > 0)]}\n" for u, v in values).encode()


@pytest.mark.parametrize("ending", PACKERS)
def test_a_packed_bomb_is_refused_and_the_same_rows_unpacked_are_read(tmp_path: Path, ending: str) -> None:
    table = b"device,u,v,label\n" + ROWS * 20_000
    PACKERS[ending](tmp_path / f"t.csv{ending}", table)
    with refused("bomb", BombError):
        own.load(tmp_path / f"t.csv{ending}", READING, 0)
    (tmp_path / "t.csv").write_bytes(table)
    data = own.load(tmp_path / "t.csv", READING, 0)
    assert len(data.y) + len(data.y_test) == 40_000


@pytest.mark.parametrize("ending", PACKERS)
def test_measured_rows_are_read_however_many(tmp_path: Path, ending: str) -> None:
    table = noise(20_000)
    assert len(table) > 5 * SCALE
    PACKERS[ending](tmp_path / f"t.csv{ending}", table)
    data = own.load(tmp_path / f"t.csv{ending}", READING, 0)
    assert len(data.y) + len(data.y_test) == 20_000


def test_a_bomb_behind_measured_rows_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(noise(100) + ROWS * 1_000_000))
    count = 0
    with unpacked_bytes(path) as stream, refused("bomb", BombError):
        while piece := stream.read(1 << 12):
            count += len(piece)
    assert count < 100 * path.stat().st_size  # of 24 MB


def test_a_packed_file_of_a_published_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with refused("bomb", BombError):
        content(tmp_path / "a.gz")


def test_a_parquet_bomb_is_refused_by_its_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    many = 200_000
    table = pa.table(
        {"device": ["m"] * many, "u": np.arange(many) % 2.0, "v": np.zeros(many), "label": ["a", "b"] * (many // 2)}
    )
    parquet.write_table(table, tmp_path / "t.parquet", compression="zstd")
    read = parquet.ParquetFile.iter_batches
    batches: list[int] = []

    def counted(self: Any, size: int, **more: Any) -> Any:
        for batch in read(self, size, **more):
            batches.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    with refused("bomb", BombError):
        own.load(tmp_path / "t.parquet", READING, 0)
    assert not batches
    parquet.write_table(table, tmp_path / "plain.parquet", compression="none", use_dictionary=False)
    data = own.load(tmp_path / "plain.parquet", READING, 0)  # the way out that the message names
    assert len(data.y) + len(data.y_test) == many


def test_a_parquet_bomb_of_one_long_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(columnar, "MOST_TEXT", 1 << 20)
    text = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 1000, pa.int32()), pa.array(["a" * 1000, "b" * 1000]))
    table = pa.table({"device": ["m"] * 2000, "u": np.arange(2000.0), "label": text})
    parquet.write_table(table, tmp_path / "t.parquet")
    with refused("bomb", BombError):
        own.load(tmp_path / "t.parquet", READING, 0)
    parquet.write_table(table.slice(0, 1000), tmp_path / "t.parquet")
    data = own.load(tmp_path / "t.parquet", READING, 0)
    assert data.classes == ("a" * 1000, "b" * 1000)


def test_an_npz_bomb(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((100_000, 3), np.float32), "y": np.arange(100_000) % 2}
    np.savez_compressed(tmp_path / "t.npz", **arrays)
    with refused("bomb", BombError):
        own.load(tmp_path / "t.npz", Reading(task="classification"), 0)
    np.savez(tmp_path / "plain.npz", **arrays)
    data = own.load(tmp_path / "plain.npz", Reading(task="classification"), 0)
    assert len(data.y) + len(data.y_test) == 100_000


def written(kind: str, folder: Path, columns: int) -> Path:
    """A table of 24 rows of two devices with so many columns."""
    x = np.arange(24 * (columns - 2), dtype=np.float32).reshape(24, -1)
    device = ["m", "n"] * 12
    label = ["a", "a", "b", "b"] * 6
    path = folder / f"t.{kind}"
    if kind == "npz":
        np.savez(path, x=x, y=np.array(label), device=np.array(device))
    elif kind == "csv":
        names = ",".join(f"c{i}" for i in range(columns - 2))
        lines = [f"{device[i]},{','.join(map(str, row))},{label[i]}" for i, row in enumerate(x.tolist())]
        path.write_text("\n".join([f"device,{names},label", *lines]))
    else:
        pa = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        named = {f"c{i}": x[:, i] for i in range(columns - 2)}
        parquet.write_table(pa.table({"device": device, **named, "label": label}), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_columns_beyond_those_of_a_sheet(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_COLUMNS", 40)
    assert own.load(written(kind, tmp_path, 40), READING, 0).shape == (38,)
    with refused("many-columns"):
        own.load(written(kind, tmp_path, 43), READING, 0)


def test_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # takes no space on the disk
    with refused("long-line"):
        own.load(path, READING, 0)


@pytest.mark.parametrize("letter", ["(", " ", "a", "1", "a ", "1a", "[1] "])
def test_the_longest_cell_is_judged_in_time_linear_in_its_length(letter: str) -> None:
    """Each would otherwise take minutes, a hundred times for the name of a column."""
    name = (letter * 131_000)[:131_000] + "x"
    assert kinds.word_of(name)
    assert kinds.without_brackets(name) == name.rstrip()
    assert not kinds.LEGEND.findall(name)
    assert not looks_like_time(name)
    for pattern in (wide.NUMBERED, rows.FRACTION, sensors.UNIT):
        assert pattern.fullmatch(f"1{name}!") is None
