"""What an array of samples may be: images, rows of sensors, or windows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Values
from fedfloor.errors import SettingError

CHANNELS = (1, 3)
LARGEST = float(np.finfo(np.float32).max)
BLOCK = 1 << 22  # numbers looked at at once


def samples(file: str, name: str, x: NDArray[Any]) -> Values:
    """Return samples as they are kept.

    Images are uint8: [N, H, W], or [N, C, H, W] with C = 1 or 3; where the second axis is neither and the last one is,
    they are [N, H, W, C] and turned. Floats are sensors: rows [N, C], or ready-made windows [N, C, L].

    Args:
        file: its name, for messages.
        name: the array's.
        x: the array.

    Returns:
        uint8 [N, C, H, W], float32 [N, C] or float32 [N, C, L]; NaN where a value is missing.

    Raises:
        SettingError: another type or shape, or a value that is infinite.
    """
    where = f"{file}, array '{name}'"
    if x.ndim and not x.size:
        raise SettingError(f"{where}: shape {x.shape}, nothing in it.")
    if x.dtype == np.uint8:
        return _images(where, x)
    if x.dtype.kind != "f":
        raise SettingError(f"{where}: {x.dtype}. {_hint(x)}")
    if x.ndim not in (2, 3):
        more = " Images are uint8: (255 * x).round().astype('uint8') if x is in 0..1." if x.ndim == 4 else ""
        raise SettingError(f"{where}: {x.dtype} {x.shape}. Sensors are rows [N, C] or windows [N, C, L].{more}")
    many = max(1, BLOCK * len(x) // x.size)
    for start in range(0, len(x), many):
        wrong = np.argwhere(np.abs(x[start : start + many].astype(np.float64)) > LARGEST)
        if len(wrong):
            place = (int(wrong[0][0]) + start, *wrong[0][1:].tolist())
            raise SettingError(f"{where}: {x[place]} at {list(place)} is not a finite number of 32 bits.")
    return x.astype(np.float32, copy=False)


def _images(where: str, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in CHANNELS:
        return x
    if x.ndim == 4 and x.shape[3] in CHANNELS:
        return x.transpose(0, 3, 1, 2)
    raise SettingError(
        f"{where}: uint8 {x.shape}. Images are [N, H, W], [N, C, H, W] or [N, H, W, C], with C = 1 (grey) or 3 "
        "(colour); sensors are floats: x.astype('float32')."
    )


def _hint(x: NDArray[Any]) -> str:
    if x.dtype.kind in "iu" and x.ndim > 2:
        return "Images are uint8: scale them to 0..255 and use x.astype('uint8'). Windows are x.astype('float32')."
    if x.dtype.kind in "iub":
        return "Sensors are floats: x.astype('float32'). Images are uint8."
    return "Images are uint8, and sensors float32 or float64."
