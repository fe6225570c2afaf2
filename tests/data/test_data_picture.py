"""One picture: what becomes of its mode, and files that are none."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedfloor.base.errors import SettingError
from fedfloor.data.files.own import load
from fedfloor.data.files.pictures import read_picture
from fedfloor.data.reading import Reading
from own_data import park_of, picture
from refusals import refused


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLOOR_CACHE", str(tmp_path / "cache"))


def sixteen(path: Path, value: int) -> Path:
    Image.fromarray(np.full((2, 2), value, np.uint16)).save(path)
    return path


def mode(path: Path, name: str, colour: object) -> Path:
    Image.new(name, (2, 2), colour).save(path)
    return path


MODES: dict[str, tuple[Callable[[Path], Path], list[int]]] = {
    "grey": (lambda f: mode(f / "a.png", "L", 7), [7]),
    "colour": (lambda f: mode(f / "a.bmp", "RGB", (1, 2, 3)), [1, 2, 3]),
    "black and white": (lambda f: mode(f / "a.png", "1", 1), [255]),
    "16 bits": (lambda f: sixteen(f / "a.png", 257 * 200 + 100), [200]),
    "16 bits, TIFF": (lambda f: sixteen(f / "a.tif", 65535), [255]),
    "opaque": (lambda f: mode(f / "a.png", "RGBA", (1, 2, 3, 255)), [1, 2, 3]),
    "opaque grey": (lambda f: mode(f / "a.png", "LA", (9, 255)), [9]),
    "cmyk": (lambda f: mode(f / "a.tif", "CMYK", (0, 0, 0, 255)), [0, 0, 0]),
    "webp": (lambda f: mode(f / "a.webp", "RGB", (0, 0, 0)), [0, 0, 0]),
}


@pytest.mark.parametrize("name", MODES)
def test_a_picture_becomes_bytes(name: str, tmp_path: Path) -> None:
    make, pixel = MODES[name]
    x = read_picture(make(tmp_path), "a")
    assert (x.dtype, x.shape, x[:, 0, 0].tolist()) == (np.uint8, (len(pixel), 2, 2), pixel)


def test_a_palette_is_colour(tmp_path: Path) -> None:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png")
    assert read_picture(tmp_path / "a.png", "a")[:, 0, 0].tolist() == [10, 20, 30]


def test_a_picture_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90°
    picture(tmp_path / "a.jpg", 3, (4, 6), exif=exif)
    assert read_picture(tmp_path / "a.jpg", "a").shape == (1, 6, 4)


def bomb(path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">2I5B", 8000, 8000, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


def frames(path: Path) -> None:
    Image.new("L", (2, 2)).save(path, format="TIFF", save_all=True, append_images=[Image.new("L", (2, 2), 9)])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda f: f.write_text("hello"), "of an unknown format"),
    "nothing": (lambda f: f.write_bytes(b""), "of an unknown format"),
    "postscript, which would be executed": (
        lambda f: f.write_text("%!PS-Adobe-3.0 EPSF-3.0\n"),
        "of an unknown format",
    ),
    "truncated": (lambda f: f.write_bytes(picture(f, 3, (64, 64)).read_bytes()[:-30]), "cannot be read as a picture"),
    "a bomb": (bomb, "8000 × 8000 pixels, more than 50,000,000"),
    "transparent": (lambda f: mode(f, "RGBA", (1, 2, 3, 9)), "has transparent pixels"),
    "several": (frames, "2 pictures in one file"),
    "fractions": (lambda f: Image.new("F", (2, 2)).save(f, format="TIFF"), "floating-point pixels"),
    "32 bits": (lambda f: Image.new("I", (2, 2), 70000).save(f, format="TIFF"), "32 bits per pixel"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_picture_is_named(name: str, tmp_path: Path) -> None:
    make, message = BROKEN[name]
    make(park_of(tmp_path / "data") / "press 2" / "ok" / "3.png")
    with pytest.raises(SettingError, match=r"^press 2/ok/3.png: ") as caught:
        load(tmp_path / "data", Reading(), 0)
    assert message in str(caught.value)


def test_sixteen_bits_that_are_not_used(tmp_path: Path) -> None:
    for i in range(10):
        (tmp_path / "data" / "a" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        sixteen(tmp_path / "data" / "a" / f"c{i % 2}" / f"{i}.png", 4000 + i)  # a camera of twelve bits
    with refused("pixels"):
        load(tmp_path / "data", Reading(layout="device/label/file"), 0)
