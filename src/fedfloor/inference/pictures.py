"""A picture from a file as the bytes a model takes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedfloor.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".pgm", ".ppm", ".pnm")
MODES = {1: "L", 3: "RGB"}  # channels → what Pillow calls them
EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def picture(path: Path, shape: tuple[int, ...], *, resize: bool = False, invert: bool = False) -> NDArray[np.uint8]:
    """Read a picture, in grey or colour as the model has one channel or three: uint8 [C, H, W].

    Args:
        path: a file in any format that Pillow reads.
        shape: (C, H, W) of the model's samples.
        resize: scale a picture of another size, rather than refuse it.
        invert: exchange light and dark.

    Raises:
        SettingError: no picture, damaged, of another size, too large, transparent, animated or of 16 bits.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(shape) != 3 or shape[0] not in MODES:
        raise SettingError(f"{path}: the model takes samples of shape {shape}, and no picture has that. Give an .npz.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as found:
                _check(path, found)
                if not resize and sorted(found.size) != sorted(shape[1:]):  # before anything is unpacked
                    raise _other_size(path, found.size, shape)
                data = _pixels(path, ImageOps.exif_transpose(found), shape, resize=resize)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SettingError(
            f"{path} has too many pixels to be unpacked safely ({error}). Scale it down first."
        ) from error
    except UnidentifiedImageError as error:
        known = ", ".join(one.removeprefix(".") for one in (*ENDINGS, ".npz", ".csv"))
        raise SettingError(f"{path} is no picture that can be read. Known: {known}.") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise SettingError(f"{path} cannot be read: {error}.") from error
    return np.uint8(255) - data if invert else data


def _check(path: Path, found: Image) -> None:
    if found.mode not in EIGHT_BITS:
        raise SettingError(f"{path} has pixels of type {found.mode}: 8 bits per channel are read. Convert it first.")
    frames = getattr(found, "n_frames", 1)
    if frames > 1:
        raise SettingError(f"{path} holds {frames} pictures: give each in a file of its own.")


def _other_size(path: Path, size: tuple[int, int], shape: tuple[int, ...]) -> SettingError:
    return SettingError(
        f"{path} has {size[1]}×{size[0]} pixels (height × width): the model takes {shape[1]}×{shape[2]}. "
        "Cut it to that size, or have it scaled with --resize."
    )


def _pixels(path: Path, found: Image, shape: tuple[int, ...], *, resize: bool) -> NDArray[np.uint8]:
    from PIL.Image import Resampling

    if found.has_transparency_data:
        alpha = np.asarray(found.convert("RGBA"))[..., 3]
        if alpha.min() < 255:
            raise SettingError(f"{path} is transparent in places: put it on a background first.")
        found = found.convert("RGBA")
    flat = found.convert(MODES[shape[0]])
    size = (shape[2], shape[1])  # Pillow says width first
    if flat.size != size:
        if not resize:
            raise _other_size(path, flat.size, shape)
        flat = flat.resize(size, Resampling.BILINEAR)
    data = np.array(flat, np.uint8)
    return data[None] if data.ndim == 2 else np.ascontiguousarray(np.moveaxis(data, -1, 0))
