"""Arrays of one's own: every way in which an .npz file may be wrong, damaged or hostile."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedfloor.base.errors import SettingError
from fedfloor.data.files.own import load
from fedfloor.data.reading import Reading, TimeSplit, Window
from own_arrays import Arrays, N, read, rows, without


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


WRONG: dict[str, tuple[Arrays, str]] = {
    "no labels": (without(rows(), "y"), "no array 'y'. Available: x, device"),
    "a slip of the pen": (rows(devcie=np.zeros(N)), "unknown array 'devcie'. Did you mean 'device'?"),
    "too few labels": (rows(y=np.arange(N - 1)), "'y' has 19 values, but 'x' has the shape (20, 2)"),
    "too many devices": (rows(device=np.arange(N + 1)), "'device' has 21 values, but 'x' has the shape (20, 2)"),
    "one-hot": (rows(y=np.eye(N)), "'y': shape (20, 20), must be [N], a value per sample. If it is one-hot"),
    "half a split": (rows(x_test=np.zeros((2, 2))), "no array 'y_test', which 'x_test' needs"),
    "whose tests": (rows(x_test=np.zeros((2, 2)), y_test=np.arange(2)), "no array 'device_test'"),
    "tests of another shape": (
        rows(x_test=np.zeros((2, 3)), y_test=np.arange(2), device_test=np.arange(2)),
        "'x' is float64 (20, 2), but 'x_test' is float64 (2, 3)",
    ),
    "tests and times": (
        rows(x_test=np.zeros((2, 2)), y_test=np.arange(2), device_test=np.arange(2), time=np.arange(N)),
        "'time' is for a split by time, but 'x_test' holds test samples already",
    ),
    "labels of two kinds": (
        rows(x_test=np.zeros((2, 2)), y_test=np.array(["a", "b"]), device_test=np.array(["a", "b"])),
        "one of 'y' and 'y_test' has numbers",
    ),
    "factories alone": (without(rows(factory=np.zeros(N, int)), "device"), "no array 'device', which 'factory'"),
    "a device in two factories": (
        rows(factory=np.array(["n"] * (N - 1) + ["s"])),
        "own.npz, row 19, 'factory': device 'a' is in factory 's' here",
    ),
    "an unknown factory": (
        rows(
            factory=np.zeros(N, int), x_test=np.zeros((1, 2)), y_test=np.array([0]), device_test=np.array(["z"])
        ),
        "'device_test': 'z' is not in 'device'",
    ),
    "a negative label": (rows(y=np.arange(N) - 1), "row 0, array 'y': -1. Labels are 0 or more"),
    "a label too high": (
        rows(classes=np.array(["a", "b"]), y=np.arange(N) % 3),
        "row 2, array 'y': 2. Labels are 0 to 1, the indices of the 2 classes",
    ),
    "labels with fractions": (rows(y=np.arange(N) / 2), "array 'y': float64. Labels are whole numbers"),
    "labels as bytes": (rows(y=np.array([b"a", b"b"] * (N // 2))), "array 'y': |S1. Give whole numbers, or texts"),
    "an empty device": (rows(device=np.array(["a", ""] * (N // 2))), "row 1, array 'device': empty"),
    "one class": (rows(y=np.ones(N, int)), "own.npz, row 0, 'y': '1', as in all other rows: the data have a"),
    "classes twice": (rows(classes=np.array(["a", "a"])), "array 'classes': must be [F], unique names"),
    "objects": (rows(x=np.array([{}] * N)), "array 'x': Python objects, which are not read because they could execute"),
    "device objects": (rows(device=np.array([None] * N)), "array 'device': Python objects"),
    "infinite": (rows(x=np.array([[1.0, np.inf]] * N)), "array 'x': inf at [0, 1] is not a finite number"),
    "infinite halves": (rows(x=np.array([[1.0, -np.inf]] * N, np.float16)), "-inf at [0, 1] is not a finite number"),
    "too large": (rows(x=np.array([[1.0, 1e39]] * N)), "1e+39 at [0, 1] is not a finite number of 32 bits"),
    "no time": (rows(time=np.array([0, np.nan] * (N // 2))), "row 1, array 'time': nan is no time"),
    "not a time": (rows(time=np.array(["NaT"] * N, "datetime64[s]")), "row 0, array 'time': NaT is no time"),
    "times as texts": (rows(time=np.array(["noon"] * N)), "array 'time': <U4. Give numbers or datetime64"),
    "two at a time": (rows(time=np.arange(N) // 4), "row 3, 'time': device 'a' has this time in row 1 already"),
    "whole numbers": (rows(x=np.ones((N, 2), int)), "array 'x': int64. Sensors are floats: x.astype('float32')"),
    "images of 16 bits": (rows(x=np.ones((N, 4, 4), np.int16)), "int16. Images are uint8: scale them to 0..255"),
    "truths": (rows(x=np.ones((N, 2), bool)), "array 'x': bool. Sensors are floats"),
    "complex": (rows(x=np.ones((N, 2), complex)), "array 'x': complex128. Images are uint8, and sensors float32"),
    "images of floats": (rows(x=np.ones((N, 1, 4, 4))), "Images are uint8: (255 * x).round().astype('uint8')"),
    "bytes in rows": (rows(x=np.ones((N, 4), np.uint8)), "uint8 (20, 4). Images are [N, H, W], [N, C, H, W] or"),
    "two channels": (rows(x=np.ones((N, 2, 4, 4), np.uint8)), "with C = 1 (grey) or 3 (colour)"),
    "no sensors": (rows(x=np.ones((N, 0))), "array 'x': shape (20, 0), without samples"),
    "a number": (rows(x=np.float64(1)), "'y' has 20 values, but 'x' has the shape ()"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name: str, tmp_path: Path) -> None:
    arrays, message = WRONG[name]
    with pytest.raises(SettingError) as caught:
        read(tmp_path, arrays)
    assert message in str(caught.value)
    assert "own.npz" in str(caught.value)


SETTINGS: dict[str, tuple[Arrays, Reading, str]] = {
    "other classes": (rows(classes=np.array(["a", "b"])), Reading(classes=("b", "a")), "differs from [data] classes"),
    "an unknown label": (
        rows(y=np.array(["ok", "bda"] * (N // 2))), Reading(classes=("ok", "bad")),
        "own.npz, row 1, 'y': 'bda' is not one of [data] classes. Did you mean 'bad'?",
    ),
    "no times": (rows(), Reading(split=TimeSplit()), "split = time: the times of these samples are unknown"),
    "windows of windows": (rows(x=np.ones((N, 2, 3))), Reading(window=Window(2)), "[data] window has no effect on"),
    "windows of images": (rows(x=np.ones((N, 2, 3), np.uint8)), Reading(window=Window(2)), "whose x are images"),
    "a size": (rows(), Reading(size=(2, 2)), "[data] size has no effect on own.npz, whose x are rows"),
    "long windows": (rows(), Reading(window=Window(9)), "0 test windows of 9 rows (and 1 more device: b): too few"),
    "few samples": (
        rows(device=np.arange(N) % 10), Reading(), "own.npz, row 0: device '0' has 2 samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_do_not_fit(name: str, tmp_path: Path) -> None:
    arrays, reading, message = SETTINGS[name]
    with pytest.raises(SettingError) as caught:
        read(tmp_path, arrays, reading)
    assert message in str(caught.value)


# -- hostile and damaged files -----------------------------------------------------------------------------------------


def header(shape: str, kind: str = "<f8") -> bytes:
    """What an .npy file begins with that says it has this shape."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def members(path: Path, *pairs: tuple[str, bytes], kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in pairs:
            archive.writestr(name, data)


def good(path: Path) -> bytes:
    np.savez(path, **rows())
    return path.read_bytes()


def flipped(path: Path) -> None:
    data = bytearray(good(path))
    data[300] ^= 255  # among the numbers of x
    path.write_bytes(data)


def locked(path: Path) -> None:
    data = bytearray(good(path))
    for sign, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(sign) + place] |= 1
    path.write_bytes(data)


def bomb(path: Path) -> None:
    """A gigabyte and more of zeros in a megabyte: written in pieces, so that the test stays small."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("x.npy", "w") as x:
        x.write(header("(5, 33554432)"))
        piece = bytes(1 << 24)
        for _ in range(80):
            x.write(piece)


def pair() -> list[tuple[str, bytes]]:
    """Two samples and their labels."""
    return [("x.npy", header("(2, 1)") + bytes(16)), ("y.npy", header("(2,)", "<i8") + struct.pack("<2q", 0, 1))]


def twice(path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    with pytest.warns(UserWarning, match=r"Duplicate name"):
        members(path, ("x.npy", buffer.getvalue()), ("x.npy", buffer.getvalue()))


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda path: path.write_text("hello"), "not a complete .npz file (File is not a zip file)"),
    "nothing": (lambda path: path.write_bytes(b""), "not a complete .npz file"),
    "cut short": (lambda path: path.write_bytes(good(path)[:-40]), "not a complete .npz file"),
    "a flipped bit": (flipped, "not a complete .npz file (Bad CRC-32 for file 'x.npy')"),
    "a password": (locked, "'x.npy' has a password"),
    "another file in it": (lambda path: members(path, ("../../x.npy", b"")), "unknown array '../../x'"),
    "a program": (lambda path: members(path, ("run.sh", b"")), "unknown array 'run.sh'"),
    "twice": (twice, "contains the array 'x' twice"),
    "not an array": (lambda path: members(path, ("x.npy", b"hello, world")), "not a complete .npz file"),
    "a shape beyond measure": (
        lambda path: members(path, ("x.npy", header("(1000000000000,)") + bytes(8))),
        "array 'x' (1000000000000,) needs 8,000,000,000,000 bytes, but there are 8",
    ),
    "a negative shape": (
        lambda path: members(path, ("x.npy", header("(-1, -1)") + bytes(8))),
        "not a complete .npz file",
    ),
    "more than its shape": (lambda path: members(path, ("x.npy", header("(1,)") + bytes(16))), "needs 8 bytes"),
    "texts of no length": (
        lambda path: members(path, ("classes.npy", header("(1000000000000,)", "<U0"))),
        "array 'classes' has elements of no length",
    ),
    "a header that no parser survives": (
        lambda path: members(path, ("x.npy", header("-" * 9000 + "1"))),
        "not a complete .npz file (a header that cannot be read: ",
    ),
    "a header that never ends": (lambda path: members(path, ("x.npy", header("[" * 3000))), "cannot be read: "),
    "half a character": (
        lambda path: members(path, *pair(), ("device.npy", header("(2,)", "<U1") + struct.pack("<2I", 65, 0xD800))),
        "array 'device': text that is not Unicode",
    ),
    "no character": (
        lambda path: members(path, *pair(), ("device.npy", header("(2,)", "<U1") + struct.pack("<2I", 65, 0xD800000))),
        "array 'device': text that is not Unicode",
    ),
    "a pickle": (
        lambda path: members(path, ("x.npy", header("(1,)", "|O") + b"cos\nsystem\n(S'x'\ntR.")),
        "Python objects, which are not read because they could execute",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path) -> None:
    make, message = HOSTILE[name]
    make(tmp_path / "own.npz")
    with pytest.raises(SettingError) as caught:
        load(tmp_path / "own.npz", Reading(), 0)
    assert message in str(caught.value)
    assert str(caught.value).startswith(("own.npz", str(tmp_path / "own.npz")))


@pytest.mark.slow
def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb(tmp_path / "own.npz")
    with pytest.raises(SettingError, match=r"unpack to 1,342,177,408 or more, over 100 times as many"):
        load(tmp_path / "own.npz", Reading(), 0)
