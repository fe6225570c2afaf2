"""A picture from a file as the bytes a model takes: read as training reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Images
from fedfloor.data.files.pictures import read_picture
from fedfloor.errors import SettingError

MODES = {1: "L", 3: "RGB"}  # channels → what Pillow calls them


def picture(path: Path, shape: tuple[int, ...], *, resize: bool = False, invert: bool = False) -> NDArray[np.uint8]:
    """Read a picture, in grey or colour as the model has one channel or three: uint8 [C, H, W].

    Args:
        path: a file that :func:`~fedfloor.data.files.pictures.read_picture` reads.
        shape: (C, H, W) of the model's samples.
        resize: scale a picture of another size, rather than refuse it.
        invert: exchange light and dark.

    Raises:
        SettingError: no picture, a damaged one, or one of another size.
    """
    if len(shape) != 3 or shape[0] not in MODES:
        raise SettingError(f"{path}: the model takes samples of shape {shape}, and no picture has that. Give an .npz.")
    data = read_picture(path, str(path), (shape[1], shape[2]) if resize else None)
    if data.shape[1:] != shape[1:]:
        raise SettingError(
            f"{path} has {data.shape[1]}×{data.shape[2]} pixels (height × width): the model takes "
            f"{shape[1]}×{shape[2]}. Cut it to that size, or have it scaled with --resize."
        )
    if len(data) != shape[0]:
        data = _recoloured(data, shape[0])
    return np.uint8(255) - data if invert else data


def _recoloured(data: Images, channels: int) -> Images:
    """Make grey of colour (by brightness, 0.299·R + 0.587·G + 0.114·B), or colour of grey (thrice the same)."""
    from PIL import Image

    if channels == 3:
        return np.repeat(data, 3, axis=0)
    return np.array(Image.fromarray(np.ascontiguousarray(data.transpose(1, 2, 0))).convert(MODES[1]), np.uint8)[None]
