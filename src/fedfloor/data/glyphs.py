"""Characters of printed labels as distance maps, from the fonts that matplotlib brings.

A map holds the signed distance of each point to the outline, so one map serves every size, slant, weight and blur.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Those of matplotlib's fonts that have all 62 characters and draw them upright enough to read.
FONTS = (
    "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf", "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSansMono-Oblique.ttf", "DejaVuSansMono-BoldOblique.ttf",
    "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSerif-Italic.ttf", "DejaVuSerif-BoldItalic.ttf",
    "STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf", "STIXGeneralBolIta.ttf",
    "cmr10.ttf", "cmb10.ttf", "cmss10.ttf", "cmtt10.ttf", "cmti10.ttf",
)  # fmt: skip
CAPITAL = 17.0  # height of an H in pixels of the finished image
BASELINE = 7.5  # of the line the characters stand on, below the cell's centre, in the same pixels
DENSITY = 3  # map points per such pixel
CELL = 108  # map points per side: 36 pixels, so that the widest W keeps its margin
REACH = 3  # distances are cut off at this many pixels
STEPS = 40  # int8 steps per pixel of distance: ±3 pixels are ±120


def fingerprint() -> bytes:
    """Return a hash of the font files and of the libraries that draw them."""
    import PIL
    from PIL import features

    digest = hashlib.sha256(f"{PIL.__version__} {features.version('freetype2')}".encode())
    for font in FONTS:
        digest.update(_path(font).read_bytes())
    return digest.digest()


@cache
def distance_maps(font: str, characters: tuple[str, ...]) -> NDArray[np.int8]:
    """Return int8 [len(characters), 108, 108]: signed distances to the outline, positive in the ink.

    One pixel of the finished image is 3 points wide and 40 steps of distance long. All fonts are brought to one height
    of capitals; characters stand on one line and are centred sideways.

    >>> far_outside, in_the_stroke = distance_maps("DejaVuSans.ttf", ("I",))[0, 54, [0, 54]].tolist()
    >>> far_outside, in_the_stroke > 0
    (-120, True)
    """
    ink = _draw(font, characters)
    inside = _distance(~ink) - 0.5
    outside = _distance(ink) - 0.5
    signed = np.where(ink, inside, -outside) / DENSITY
    return np.rint(STEPS * np.clip(signed, -REACH, REACH)).astype(np.int8)


def _path(font: str) -> Path:
    return _fonts() / font


@cache
def _fonts() -> Path:
    """Return the folder of matplotlib's fonts, without importing it where they lie beside it: that takes 10 MB."""
    found = find_spec("matplotlib")
    beside = Path(found.origin or "").parent / "mpl-data" if found is not None else Path()
    if found is not None and beside.is_dir():
        return beside / "fonts" / "ttf"
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _draw(font: str, characters: tuple[str, ...]) -> NDArray[np.bool_]:
    from PIL import Image, ImageDraw, ImageFont

    top, bottom = ImageFont.truetype(_path(font), 200).getbbox("H", anchor="ls")[1::2]
    face = ImageFont.truetype(_path(font), 200 * CAPITAL * DENSITY / (bottom - top))
    cells = np.empty((len(characters), CELL, CELL), bool)
    for cell, character in zip(cells, characters, strict=True):
        left, _, right, _ = face.getbbox(character, anchor="ls")
        page = Image.new("L", (CELL, CELL))
        place = (CELL / 2 - (left + right) / 2, CELL / 2 + BASELINE * DENSITY)
        ImageDraw.Draw(page).text(place, character, fill=255, font=face, anchor="ls")
        cell[:] = np.asarray(page) >= 128
    return cells


def _distance(mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the distance in points to the nearest True point of the same cell, cut off beyond the reach."""
    reach = REACH * DENSITY + 1
    squared = np.where(mask, 0, 4 * reach * reach).astype(np.int32)
    for axis in (1, 2):
        squared = _lower_envelope(squared, reach, axis)
    return np.sqrt(squared, dtype=np.float32)


def _lower_envelope(squared: NDArray[np.int32], reach: int, axis: int) -> NDArray[np.int32]:
    """min over |s| ≤ reach of squared(x + s) + s² along one axis: one pass of the separable distance transform."""
    lowest = squared.copy()
    for shift in range(1, reach + 1):
        near = tuple(slice(None, -shift) if a == axis else slice(None) for a in range(3))
        far = tuple(slice(shift, None) if a == axis else slice(None) for a in range(3))
        np.minimum(lowest[near], squared[far] + shift * shift, out=lowest[near])
        np.minimum(lowest[far], squared[near] + shift * shift, out=lowest[far])
    return lowest
