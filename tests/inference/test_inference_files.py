"""Pictures and arrays as samples: what is read, and what is refused before it does harm."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import Command
from fedfloor.inference.inputs import files, picture
from fedfloor.inference.samples import Sensors, fitting
from model_files import SENSORS, write_model
from refusals import refused

GREY = (1, 2, 3)
COLOUR = (3, 2, 3)
RED = np.zeros((2, 3, 3), np.uint8)
RED[..., 0] = 255


@pytest.fixture
def red(tmp_path: Path) -> Path:
    Image.fromarray(RED).save(tmp_path / "red.png")
    return tmp_path / "red.png"


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".png", ".bmp", ".tiff", ".ppm", ".webp"])
def test_pixels_come_as_they_are(tmp_path: Path, ending: str) -> None:
    pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    path = tmp_path / f"a{ending}"
    Image.fromarray(pixels).save(path, **({"lossless": True} if ending == ".webp" else {}))
    assert np.array_equal(picture(path, COLOUR), np.moveaxis(pixels, -1, 0))


def test_grey_colour_and_inverted(red: Path) -> None:
    assert picture(red, COLOUR).tolist() == np.moveaxis(RED, -1, 0).tolist()
    assert np.unique(picture(red, GREY)).tolist() == [76]  # ITU-R 601: 0.299 · 255
    assert np.unique(picture(red, GREY, invert=True)).tolist() == [255 - 76]
    Image.fromarray(np.full((2, 3), 9, np.uint8)).save(red)
    assert picture(red, COLOUR).tolist() == np.full(COLOUR, 9).tolist()


def test_palettes_opaque_alpha_and_black_and_white(red: Path) -> None:
    for kind in ("P", "RGBA"):
        Image.fromarray(RED).convert(kind).save(red)
        assert np.array_equal(picture(red, COLOUR), np.moveaxis(RED, -1, 0))
    Image.fromarray(np.array([[True, False, True]] * 2)).save(red)
    assert picture(red, GREY)[0, 0].tolist() == [255, 0, 255]


def test_a_camera_held_upright(tmp_path: Path) -> None:
    """EXIF says: turn by 90°. The file's rows are the picture's columns."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.arange(6, dtype=np.uint8).reshape(3, 2)
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert picture(tmp_path / "a.png", GREY)[0].tolist() == np.rot90(pixels, -1).tolist()
    with refused("size-of-picture"):
        picture(tmp_path / "a.png", (1, 3, 2))


def test_another_size(tmp_path: Path) -> None:
    pixels = np.tile(np.array([0, 200] * 12, np.uint8), (16, 1))  # a fence
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with refused("size-of-picture"):
        picture(tmp_path / "a.png", GREY)
    scaled = picture(tmp_path / "a.png", GREY, resize=True)
    np.testing.assert_allclose(scaled, np.full(GREY, 100), atol=10)  # grey from afar: nothing is skipped


def bomb(path: Path) -> None:
    """Write a PNG whose header speaks of 30,000 × 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">2I5B", 30_000, 30_000, 8, 0, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def cut_off(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 3, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:55])


def transparent(path: Path) -> None:
    Image.fromarray(np.zeros((2, 3, 4), np.uint8)).save(path)


def moving(path: Path) -> None:
    frames = [Image.fromarray(np.full((2, 3), value, np.uint8)) for value in (0, 200)]
    frames[0].save(path, save_all=True, append_images=frames[1:])


BAD = {
    "a bomb": (bomb, "a.png: more than 50,000,000 pixels."),
    "cut off": (cut_off, "a.png: cannot be read as a picture ("),
    "no picture": (lambda path: path.write_text("hello"), "a.png: cannot be read as a picture (of an unknown format)"),
    "empty": (lambda path: path.write_bytes(b""), "a.png: cannot be read as a picture (of an unknown format)"),
    "transparent": (transparent, "a.png: has transparent pixels without a background."),
    "fractions": (
        lambda path: Image.fromarray(np.zeros((2, 3), np.float32)).save(path, "TIFF"),
        "a.png: floating-point pixels, not 8 or 16 bits.",
    ),
    "moving": (moving, "a.png: 2 pictures in one file. Save each in a separate file."),
}


def test_sixteen_bits_become_eight_as_in_training(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 3), 257 * 90 + 100, np.uint16)).save(tmp_path / "a.png")
    assert np.unique(picture(tmp_path / "a.png", GREY)).tolist() == [90]


@pytest.mark.parametrize("resize", [False, True])
@pytest.mark.parametrize("case", BAD)
def test_bad_pictures(command: Command, case: str, resize: bool) -> None:
    make, message = BAD[case]
    write_model(command.folder / "run", shape=GREY)
    make(command.folder / "a.png")
    command.refused(command("predict", "run", "a.png", *["--resize"] * resize), message)


def test_a_model_whose_samples_are_no_pictures(command: Command, red: Path) -> None:
    write_model(command.folder / "run", shape=(4, 2, 3))
    command.refused(command("predict", "run", str(red)), "shape (4, 2, 3), which is not that of a picture. Give")
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    command.refused(
        command("predict", "run", str(red)), "this model takes the sensors temp, torque. Give .csv or .npz."
    )
    write_model(command.folder / "run", shape=GREY)
    (command.folder / "a.csv").write_text("temp\n1\n")
    command.refused(command("predict", "run", "a.csv"), "takes pictures of shape (1, 2, 3), not tables.")


# -- folders -----------------------------------------------------------------------------------------------------------


def test_folders_are_walked_in_order(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/10.png", "a/x.csv.gz", "a/.hidden.png", "a/readme.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "link.png").symlink_to(tmp_path / "b" / "2.PNG")
    single = tmp_path / "notes.md"
    found = [str(path.relative_to(tmp_path)) for path in files([single, tmp_path])]
    assert found == ["notes.md", "a/x.csv.gz", "b/10.png", "b/2.PNG"]


def test_a_folder_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.md").touch()
    with refused("no-samples"):
        files([tmp_path])


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_one_sample_or_many() -> None:
    for shape in ((1, 2, 3), (2, 3), (1, 1, 2, 3)):
        assert fitting(np.zeros(shape, np.uint8), GREY, None, "x").shape == (1, 1, 2, 3)
    for shape in ((5, 1, 2, 3), (5, 2, 3)):
        assert fitting(np.zeros(shape, np.int64), GREY, None, "x").dtype == np.uint8
    assert fitting(np.zeros((0, 2, 3), np.uint8), GREY, None, "x").shape == (0, 1, 2, 3)


@pytest.mark.filterwarnings("error")
def test_numbers_too_large_are_told_once() -> None:
    with refused("not-finite"):
        fitting(np.array([[1, 1e300]]), (2,), Sensors(("temp", "torque")), "x")


def test_rows_where_windows_are_wanted() -> None:
    with refused("shape-of-samples"):
        fitting(np.zeros((9, 2)), (2, 5), Sensors(("temp", "torque"), (5, 1)), "x")


def test_no_samples_at_all(command: Command) -> None:
    write_model(command.folder / "run", shape=GREY)
    np.savez(command.folder / "x.npz", x=np.zeros((0, 2, 3), np.uint8), y=np.zeros(0))
    said = command("predict", "run", "x.npz", "--json", "--csv", "all.csv")
    assert said.code == 0, said.err
    assert (said.document["samples"], said.document["rows"], said.document["accuracy"]) == (0, [], None)
    assert len((command.folder / "all.csv").read_text().splitlines()) == 1


ARRAYS = {
    "another shape": (
        {"x": np.zeros((5, 3, 2), np.uint8)}, "array x has shape (5, 3, 2): the model takes samples of shape (1, 2, 3)"
    ),
    "normalised": ({"x": np.full((1, 2, 3), 0.5)}, "np.rint(255 * x).astype(np.uint8)"),
    "centred": ({"x": np.full((1, 2, 3), -0.5)}, "x is float64 from -0.5 to -0.5: pictures are uint8 from 0 to 255."),
    "too bright": ({"x": np.full((1, 2, 3), 256)}, "x is int64 from 256 to 256"),
    "words": ({"x": np.full((1, 2, 3), "a")}, "x is <U1"),
    "objects": ({"x": np.array([{}], dtype=object)}, "x.npz, array 'x': Python objects, which are not read"),
    "pickled labels": (
        {"x": np.zeros((1, 2, 3), np.uint8), "y": np.array([{}], dtype=object)}, "x.npz, array 'y': Python objects"
    ),
    "two arrays": (
        {"a": np.zeros(1), "b": np.zeros(1)}, "x.npz has the arrays a, b: name the array of samples x."
    ),
    "no array": ({"y": np.zeros(1)}, "x.npz has the arrays y: name the array"),
    "labels missing": (
        {"x": np.zeros((2, 2, 3), np.uint8), "y": np.zeros(1, int)}, "array y has 1 labels for 2 samples."
    ),
    "labels too large": (
        {"x": np.zeros((1, 2, 3), np.uint8), "y": np.array([2])}, "y is int64 from 2 to 2: labels are whole"
    ),
}  # fmt: skip


def test_names_of_an_array_that_are_no_class_are_not_scored(command: Command) -> None:
    write_model(command.folder / "run", shape=GREY)
    np.savez(command.folder / "x.npz", x=np.zeros((2, 2, 3), np.uint8), y=np.array(["wornn", "ok"]))
    said = command("predict", "run", "x.npz")
    assert said.code == 0, said.err
    assert "on 1 sample with a known label" in said.out
    assert "1 of 2 samples has a label that is no class of the model, and counts in no score: 'wornn' (1)" in said.err


@pytest.mark.parametrize("case", ARRAYS)
def test_bad_arrays(command: Command, case: str) -> None:
    content, message = ARRAYS[case]
    write_model(command.folder / "run", shape=GREY)
    np.savez(command.folder / "x.npz", **content)
    command.refused(command("predict", "run", "x.npz"), message)


@pytest.mark.parametrize("shape", [(5, 2, 4, 3), (2, 4, 3)])
def test_channels_that_stand_last(shape: tuple[int, ...]) -> None:
    given = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    got = fitting(given, (3, 2, 4), None, "x")
    assert got.shape == (len(given) if len(shape) == 4 else 1, 3, 2, 4)
    assert (got[0, :, 1, 2] == given.reshape(-1, 2, 4, 3)[0, 1, 2]).all()


def test_an_array_that_says_it_unpacks_to_more_than_there_is(command: Command) -> None:
    write_model(command.folder / "run", shape=GREY)
    member = io.BytesIO()
    np.save(member, np.zeros((2, 2, 3), np.uint8))
    with zipfile.ZipFile(command.folder / "x.npz", "w") as archive:
        archive.writestr("arr_0.npy", member.getvalue().replace(b"(2, 2, 3)", b"(9, 2, 3)"))
    command.refused(command("predict", "run", "x.npz"), "array 'arr_0' (9, 2, 3) needs 54 bytes, but there are 12")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"\x80\x04}."])
def test_archives_that_are_none(command: Command, content: bytes) -> None:
    write_model(command.folder / "run", shape=GREY)
    (command.folder / "x.npz").write_bytes(content)
    command.refused(command("predict", "run", "x.npz"), "x.npz: not a complete .npz file")


def test_an_archive_that_is_cut_off(command: Command) -> None:
    write_model(command.folder / "run", shape=GREY)
    np.savez_compressed(command.folder / "x.npz", np.random.default_rng(0).integers(0, 256, (99, 2, 3), np.uint8))
    path = command.folder / "x.npz"
    path.write_bytes(path.read_bytes()[:300])
    command.refused(command("predict", "run", "x.npz"), "x.npz: not a complete .npz file")


def test_an_archive_with_a_broken_member(command: Command) -> None:
    write_model(command.folder / "run", shape=GREY)
    np.savez(command.folder / "x.npz", np.zeros((99, 2, 3), np.uint8))
    path = command.folder / "x.npz"
    data = bytearray(path.read_bytes())
    data[300] ^= 1  # a pixel: the checksum no longer fits
    path.write_bytes(bytes(data))
    command.refused(command("predict", "run", "x.npz"), "x.npz: not a complete .npz file (Bad CRC-32")


def test_sensors_in_arrays(command: Command) -> None:
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    cases = {
        "hole": (np.array([[1, 2], [np.nan, 3]]), "array x: sample 1, temp is nan: must be a finite number."),
        "infinite": (np.array([[1, np.inf]]), "sample 0, torque is inf"),
        "wide": (
            np.zeros((4, 3)),
            "has shape (4, 3): the model takes samples of shape (2,), as an array (n, 2) or a single sample.",
        ),
        "beyond 32 bits": (np.array([[1, 1e300]]), "sample 0, torque is 1e+300: must be a finite number"),
        "words": (np.array([["a", "b"]]), "sensors' values must be numbers, such as float32."),
    }
    for x, message in cases.values():
        np.savez(command.folder / "x.npz", x)
        said = command("predict", "run", "x.npz")
        assert message.replace("array x", "array arr_0") in said.err, said.err
        assert said.code == 2
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS | {"missing": "mean"})
    np.savez(command.folder / "x.npz", cases["hole"][0])
    assert command("predict", "run", "x.npz").code == 0
