"""Tennessee Eastman: 22 training and 22 test recordings, from made-up files and from the published ones."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedfloor.data import sources
from fedfloor.data.published import tep
from fedfloor.data.reading import Reading, TimeSplit, Window
from fedfloor.park.build import build
from fedfloor.park.normalise import mean_and_deviation
from fedfloor.park.partition import Iid
from refusals import refused


def value(file: int, rows: int) -> np.ndarray:
    """Return a recording: file number, row number, and their sum fifty times."""
    x = np.zeros((rows, 52))
    x[:, 0], x[:, 1] = file, np.arange(rows)
    x[:, 2:] = x[:, :1] + x[:, 1:2]
    return x


@cache
def recording(file: int, rows: int) -> bytes:
    """Return a recording as a packed text file."""
    x = value(file, rows)
    text = "\n".join(" ".join(f"{v:g}" for v in row) for row in (x.T if file == 0 else x)) + "\n"
    return gzip.compress(text.encode(), 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Made-up recordings of the published sizes; d00.dat transposed, as published, and one file unpacked."""
    place = tmp_path / "tep"
    place.mkdir()
    for number, name in enumerate(tep.FILES):
        rows = 960 if number >= 22 else 500 if number == 0 else 480
        packed = recording(number, rows)
        if number == 5:
            (place / name).write_bytes(gzip.decompress(packed))
        else:
            (place / f"{name}.gz").write_bytes(packed)
    return place


def test_rows_classes_and_parts(folder: Path) -> None:
    data = sources.load("tep", root=folder.parent)
    assert (len(data.y), len(data.y_test)) == (500 + 21 * 480, 22 * 960)
    assert data.shape == (52,)
    assert data.inputs.columns[41] == "XMV(1)"
    assert len(data.inputs.columns) == 52
    x = data.take(np.arange(len(data.y)), 0)
    test = data.take_test(np.arange(len(data.y_test)))
    assert np.array_equal(data.y, x[:, 0]), "a training recording's class is its file's fault"
    fault = test[:, 0] - 22
    row = test[:, 1]
    assert np.array_equal(data.y_test, np.where(row < 160, 0, fault))
    assert np.array_equal(x[:, 1], np.concatenate([np.arange(500), *[np.arange(480)] * 21]))
    assert np.array_equal(x[:, 7], x[:, 0] + x[:, 1])
    assert tep.samples(folder) == (len(data.y), len(data.y_test))


@pytest.mark.parametrize(("length", "step"), [(20, 20), (10, 3), (480, 7), (3, 50)])
def test_windows_by_closed_form(folder: Path, length: int, step: int) -> None:
    data = sources.load("tep", root=folder.parent, reading=Reading(window=Window(length, step)))

    def count(rows: int) -> int:
        return (rows - length) // step + 1

    assert len(data.y) == count(500) + 21 * count(480)
    assert len(data.y_test) == 22 * count(960)
    x = data.take(np.arange(len(data.y)), 0)
    assert x.shape == (len(data.y), 52, length)
    assert (x[:, 0] == x[:, 0, :1]).all(), "no window crosses recordings"
    assert (np.diff(x[:, 1]) == 1).all()
    test = data.take_test(np.arange(len(data.y_test)))
    assert np.array_equal(data.y_test, np.where(test[:, 1, -1] < 160, 0, test[:, 0, -1] - 22))


def test_a_park_of_it(folder: Path) -> None:
    park = build(sources.load("tep", root=folder.parent), devices=22, factories=4, partition=Iid())
    assert (park.devices, park.factories, int(park.sizes.sum())) == (22, 4, 10580)
    mean, std = mean_and_deviation(park, "auto")
    x = park.pooled()[0].astype(np.float64)
    assert mean == pytest.approx(x.mean(axis=0))
    assert std == pytest.approx(x.std(axis=0))


def short(text: str) -> str:
    return text[: text.rindex("\n", 0, -1) + 1]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (short, "published-file"),
        (lambda text: text.replace(" ", "", 1), "published-file"),
        (lambda text: text.replace(" ", " x", 1), "published-file"),
        (lambda text: "\n".join(line + " 1" for line in text.splitlines()), "published-file"),
        (lambda _: "", "published-file"),
        (lambda _: "\xff\xfe", "published-file"),
        (lambda text: text.replace("\n3 1 ", "\n3 nan ", 1), "published-file"),
    ],
)
def test_damaged_files_are_named(folder: Path, spoil: object, message: str) -> None:
    path = folder / "d03.dat.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    path.write_bytes(gzip.compress(spoil(text).encode("latin-1")))  # type: ignore[operator]
    with refused(message):
        sources.load("tep", root=folder.parent)


def test_what_is_missing_or_does_not_fit_is_said(folder: Path) -> None:
    with refused("data.split"):
        sources.load("tep", root=folder.parent, reading=Reading(split=TimeSplit()))
    with refused("short"):
        sources.load("tep", root=folder.parent, reading=Reading(window=Window(501)))
    (folder / "d21_te.dat.gz").unlink()
    with refused("published-file-missing"):
        sources.load("tep", root=folder.parent)
    row = sources.looked_in(["tep"], root=folder.parent)[0]
    assert row["found"] is False
    assert "d21_te.dat" in str(row["how"])


@pytest.mark.slow
def test_the_published_recordings(data_root: Path) -> None:
    data = sources.load("tep", root=data_root)
    assert (len(data.y), len(data.y_test)) == (10580, 21120)
    counts = np.bincount(data.y, minlength=22)
    assert counts.tolist() == [500, *[480] * 21]
    assert np.bincount(data.y_test).tolist() == [960 + 21 * 160, *[800] * 21]
    for name, take, first in (("d00.dat", data.take(np.arange(500), 0), 0), ("d07.dat", None, 500 + 6 * 480)):
        x = np.loadtxt(next((data_root / "tep").glob(f"{name}*")))
        x = x.T if len(x) == 52 else x
        got = take if take is not None else data.take(np.arange(first, first + 480), 0)
        assert np.array_equal(got, x.astype(np.float32))
    test = np.loadtxt(next((data_root / "tep").glob("d21_te.dat*")))
    assert np.array_equal(data.take_test(np.arange(21 * 960, 22 * 960)), test.astype(np.float32))
    windows = sources.load("tep", root=data_root, reading=Reading(window=Window(20, 5)))
    assert len(windows.y) == 97 + 21 * 93
    assert len(windows.y_test) == 22 * 189
