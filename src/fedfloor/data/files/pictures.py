"""Pictures in ``[FACTORY/]DEVICE/LABEL/``, read as 8 bits per channel, grey or colour."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfloor.base import regular
from fedfloor.base.errors import SettingError, require
from fedfloor.data.cache import Writer, remember
from fedfloor.data.dataset import Dataset, Images, Inputs
from fedfloor.data.files.encode import classes_of, codes, natural_order, qualified
from fedfloor.data.files.spellings import respelt
from fedfloor.data.files.table import of_entry
from fedfloor.data.files.tree import DataFile
from fedfloor.data.reading import Reading

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM")  # recognised by content; Pillow's other readers are not used
MOST_PIXELS = 50_000_000
COLOUR = {1: "grey", 3: "colour"}
DARK = 64  # of 256; a 16-bit picture darker than this everywhere has too few grey levels in 8 bits


def read_picture(path: Path, name: str, size: tuple[int, int] | None = None) -> Images:
    """Return a picture as bytes [C, H, W], C = 1 (grey) or 3 (red, green, blue).

    It is rotated according to its EXIF data. Pictures with a palette count as colour; black and white become 0 and 255;
    16-bit grey is converted by v ↦ round(v/257); CMYK and similar modes become red, green, blue.

    Raises:
        SettingError: the file is no picture, is damaged or too large, or has several pictures, transparent pixels or
            32 bits per pixel.
    """
    return decode(path, name, size)[0]


def decode(path: Path, name: str, size: tuple[int, int] | None = None) -> tuple[Images, bool]:
    """Return a picture as :func:`read_picture` does, and whether its file has 16 bits of grey."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(regular.check(path), formats=FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise SettingError(
                        f"{name}: {opened.width} × {opened.height} pixels, more than {MOST_PIXELS:,}. Make it smaller, "
                        "or remove it.",
                        key="size-of-picture",
                    )
                frames = getattr(opened, "n_frames", 1)
                if frames > 1:
                    raise SettingError(
                        f"{name}: {frames} pictures in one file. Save each in a separate file.", key="several-pictures"
                    )
                wide = opened.mode.startswith("I")
                image = _eight_bits(ImageOps.exif_transpose(opened), name)
    except SettingError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SettingError(f"{name}: more than {MOST_PIXELS:,} pixels. Make it smaller, or remove it.") from error
    except Exception as error:  # decoders raise any error for damaged bytes
        reason = "of an unknown format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise SettingError(
            f"{name}: cannot be read as a picture ({reason or type(error).__name__}). Save it again as PNG or JPEG, or "
            "remove it.",
            key="damaged-picture",
        ) from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    x = np.array(image, np.uint8)
    return (x[None] if x.ndim == 2 else np.ascontiguousarray(x.transpose(2, 0, 1))), wide


def _eight_bits(image: Image, name: str) -> Image:
    """Return the picture in mode L or RGB."""
    from PIL.Image import fromarray

    if image.mode.startswith("I"):
        values = np.array(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise SettingError(f"{name}: 32 bits per pixel. Save it with 8 or 16 bits.", key="pixels")
        return fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode == "F":
        raise SettingError(f"{name}: floating-point pixels, not 8 or 16 bits. Use .npz for these data.", key="pixels")
    if image.has_transparency_data:
        image = image.convert("RGBA" if image.mode in ("P", "PA", "RGB", "RGBA", "RGBa") else "LA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise SettingError(f"{name}: has transparent pixels without a background. Fill them first.", key="pixels")
    if image.mode in ("1", "L", "LA"):
        return image.convert("L")
    return image.convert("RGB")


RECIPE = "pictures 2"
MEANT = ("classes", "spellings", "split", "small", "size", "layout", "test", "task")


def load(root: Path, files: Sequence[DataFile], reading: Reading, seed: int, ask: Callable[[], None]) -> Dataset:
    """Read pictures, whose devices are the natural owners in the order of their names."""
    reading.only(MEANT, "pictures")
    kind = reading.asked.kind
    known = kind in ("classification", "reconstruction") and reading.number is None and not reading.lasting
    require(known, "data.task", kind, "'classification' or 'reconstruction', as pictures in folders have labels")
    fits = reading.size is None or math.prod(reading.size) <= MOST_PIXELS
    require(fits, "data.size", reading.size, f"[height, width] of at most {MOST_PIXELS:,} pixels")
    if reading.split is not None and reading.split.kind in ("time", "run", "last") and files[0].part is None:
        lacking = "recordings" if reading.split.kind == "run" else "times"
        raise SettingError(
            f"[data] split = {reading.split.kind}: pictures have no {lacking}. Use "
            '{ kind = "random" }, { kind = "stratified" } or { kind = "device" }, or put the '
            "pictures into the folders train and test."
        )

    def parse(writer: Writer) -> Mapping[str, Any]:
        ask()
        return _parse(files, reading, writer)

    entry = remember(f"{RECIPE} {reading.recipe()}", [file.path for file in files], parse, root)
    inputs = Inputs("image", scaled=reading.size is not None)
    return of_entry(root.name or root.resolve().name, entry, reading, seed, inputs, noun="pictures", ordered=False)


def _parse(files: Sequence[DataFile], reading: Reading, writer: Writer) -> Mapping[str, Any]:
    factory = [file.folders[0] for file in files] if len(files[0].folders) == 3 else None
    pooled = len(files[0].folders) == 1  # label/file: pictures without a device
    device = qualified([files[0].name if pooled else file.folders[-2] for file in files], factory)
    label = respelt([file.folders[-1] for file in files], reading.spellings)
    least = 1 if reading.whole or not reading.asked.labelled else 2
    classes = classes_of(label, reading.classes, lambda i: files[i].name, least)
    devices = natural_order(device)
    owner = codes(device, devices)
    order = np.argsort(owner, kind="stable")
    digest = _write_pixels([files[i] for i in order], reading, writer)
    digest.update("\0".join([*classes, *(file.name for file in files)]).encode())
    writer.append("y", codes(label, classes)[order].astype(np.int64))
    for name in ("segment", "file") if pooled else ("owner", "segment", "file"):
        writer.append(name, owner[order])
    if files[0].part is not None:
        writer.append("part", np.array([file.part for file in files], np.int8)[order])
    _, first = np.unique(owner, return_index=True)
    factories = [] if factory is None else natural_order(factory)
    return {
        "columns": [], "classes": classes, "devices": [] if pooled else devices, "factories": factories,
        "factory": None if factory is None else codes([factory[i] for i in first], factories).tolist(),
        "files": ["/".join(files[i].folders[:-1]) for i in first], "missing": 0, "digest": digest.hexdigest(),
    }  # fmt: skip


def _write_pixels(files: Sequence[DataFile], reading: Reading, writer: Writer) -> hashlib._Hash:
    """Write the array x, a picture at a time, and return the hash of the pixels."""
    digest = hashlib.sha256()
    first = None
    wide = ""
    brightest = 0
    for file in files:
        x, is_wide = decode(file.path, file.name, reading.size)
        if first is None:
            first = file.name, x.shape
            digest.update(repr(x.shape).encode())
        other, shape = first
        if x.shape[0] != shape[0]:
            raise SettingError(
                f"{file.name} is {COLOUR[x.shape[0]]}, but {other} is {COLOUR[shape[0]]}. Make all pictures grey, or "
                "all colour.",
                key="pictures-differ",
            )
        if x.shape != shape:
            raise SettingError(
                f"{file.name} has {x.shape[1]} × {x.shape[2]} pixels (height × width), but {other} has {shape[1]} × "
                f"{shape[2]}. Scale them all with [data] size = [height, width], such as "
                f"--set 'data.size=[{shape[1]},{shape[2]}]'.",
                key="pictures-differ",
            )
        if is_wide:
            wide = wide or file.name
            brightest = max(brightest, int(x.max()))
        writer.append("x", x[None])
        digest.update(x.data)
    if wide and brightest < DARK:
        raise SettingError(
            f"{wide}: 16 bits per pixel, and the largest value in all 16-bit pictures is about {257 * brightest:,} of "
            "65,535. Too few grey levels would be left in 8 bits: scale the pictures to your camera's range, and save "
            "8 bits.",
            key="pixels",
        )
    return digest
