"""Reading one picture: 8 bits, grey or colour, whatever the file holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedfloor.data.dataset import Images
from fedfloor.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP", "PPM")  # told by content; Pillow's other readers stay shut
MOST_PIXELS = 50_000_000
COLOUR = {1: "grey", 3: "colour"}
DARK = 64  # of 256: where all of 16 bits is darker than this, hardly a step of grey is left in 8


def read_picture(path: Path, name: str, size: tuple[int, int] | None = None) -> Images:
    """Return a picture as bytes [C, H, W], C = 1 (grey) or 3 (red, green, blue).

    It is turned as its EXIF data say. Pictures of a palette count as colour; black and white become 0 and 255; 16 bits
    of grey become 8, v ↦ round(v/257); CMYK and the like become red, green, blue.

    Args:
        path: its file: PNG, JPEG, BMP, TIFF, WebP, PGM or PPM, as its content says, whatever its name.
        name: what messages call it.
        size: (height, width) it is scaled to, bilinear and antialiased, as ``predict`` does.

    Raises:
        SettingError: no picture, a damaged one, one of too many pixels, several in one file, transparent pixels, or
            numbers of 32 bits.
    """
    return decode(path, name, size)[0]


def decode(path: Path, name: str, size: tuple[int, int] | None = None) -> tuple[Images, bool]:
    """Return a picture as :func:`read_picture` does, and whether its file has 16 bits of grey."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as opened:
                _check(opened, name)
                wide = opened.mode.startswith("I")
                image = _eight_bits(ImageOps.exif_transpose(opened), name)
    except SettingError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SettingError(f"{name}: more than {MOST_PIXELS:,} pixels. Make it smaller, or remove it.") from error
    except Exception as error:  # what a decoder raises on damaged bytes is anybody's guess
        reason = "of no known format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise SettingError(
            f"{name}: cannot be read as a picture ({reason or type(error).__name__}). Save it again as PNG or JPEG, or "
            "remove it."
        ) from error
    if size is not None and image.size != size[::-1]:
        image = image.resize(size[::-1], Image.Resampling.BILINEAR)
    x = np.array(image, np.uint8)
    return (x[None] if x.ndim == 2 else np.ascontiguousarray(x.transpose(2, 0, 1))), wide


def _check(image: Image, name: str) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise SettingError(
            f"{name}: {image.width} × {image.height} pixels, more than {MOST_PIXELS:,}. Make it smaller, or remove it."
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        raise SettingError(f"{name}: {frames} pictures in one file. Save each in a file of its own.")


def _eight_bits(image: Image, name: str) -> Image:
    """Return the picture in mode L or RGB."""
    if image.mode.startswith("I"):
        return _from_sixteen(image, name)
    if image.mode == "F":
        raise SettingError(f"{name}: numbers with fractions, not 8 or 16 bits. Use .npz for such data.")
    if image.has_transparency_data:
        image = image.convert("RGBA" if image.mode in ("P", "PA", "RGB", "RGBA", "RGBa") else "LA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise SettingError(f"{name}: has transparent pixels, and what is behind them is unknown. Fill them first.")
    if image.mode in ("1", "L", "LA"):
        return image.convert("L")
    return image.convert("RGB")


def _from_sixteen(image: Image, name: str) -> Image:
    from PIL.Image import fromarray

    values = np.array(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise SettingError(f"{name}: 32 bits per pixel. Save it with 8 or 16 bits.")
    return fromarray(((values + 128) // 257).astype(np.uint8))
