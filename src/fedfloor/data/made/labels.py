"""The built-in data set: printed factory labels, 62 characters, 28×28 grey, a printing and camera style per device.

Images are not stored: each is a pure function of (seed, sample number, class, device) and is rendered on demand.
The characters of matplotlib's fonts are kept as maps of the signed distance to the outline, which serve every size and
slant.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedfloor.base import regular
from fedfloor.base.chance import generator
from fedfloor.base.errors import require
from fedfloor.base.machine import require_memory
from fedfloor.data.dataset import LETTERS_AND_DIGITS, Dataset, Images, Indices, Labels, Owners

# matplotlib's fonts with all 62 characters in a legible upright shape
FONTS = (
    "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSans-Oblique.ttf", "DejaVuSans-BoldOblique.ttf",
    "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSansMono-Oblique.ttf", "DejaVuSansMono-BoldOblique.ttf",
    "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSerif-Italic.ttf", "DejaVuSerif-BoldItalic.ttf",
    "STIXGeneral.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf", "STIXGeneralBolIta.ttf",
    "cmr10.ttf", "cmb10.ttf", "cmss10.ttf", "cmtt10.ttf", "cmti10.ttf",
)  # fmt: skip
CAPITAL = 17.0  # height of an H in pixels of the finished image
BASELINE = 7.5  # of the characters' baseline below the cell's centre, in the same pixels
DENSITY = 3  # map points per pixel of the finished image
CELL = 108  # map points per side: 36 pixels, so that the widest W keeps its margin
REACH = 3  # pixels at which distances are clipped
STEPS = 40  # int8 steps per pixel of distance: ±3 pixels are ±120


def fingerprint() -> bytes:
    """Return a hash of the font files and of the libraries that render them."""
    import PIL
    from PIL import features

    digest = hashlib.sha256(f"{PIL.__version__} {features.version('freetype2')}".encode())
    for font in FONTS:
        digest.update(regular.read_bytes(_font_path(font)))
    return digest.digest()


@cache
def distance_maps(font: str, characters: tuple[str, ...]) -> NDArray[np.int8]:
    """Return int8 [len(characters), 108, 108]: signed distances to the outline, positive in the ink.

    A pixel of the finished image is 3 points wide and 40 distance steps. Fonts are scaled to the same height of
    capitals; characters share a baseline and are centred horizontally.

    >>> far_outside, in_the_stroke = distance_maps("DejaVuSans.ttf", ("I",))[0, 54, [0, 54]].tolist()
    >>> far_outside, in_the_stroke > 0
    (-120, True)
    """
    ink = _draw(font, characters)
    inside = _distance(~ink) - 0.5
    outside = _distance(ink) - 0.5
    signed = np.where(ink, inside, -outside) / DENSITY
    return np.rint(STEPS * np.clip(signed, -REACH, REACH)).astype(np.int8)


@cache
def _font_path(font: str) -> Path:
    """Return the path of one of matplotlib's fonts, without importing matplotlib (10 MB) if possible."""
    package = find_spec("matplotlib")
    beside = Path(package.origin or "").parent / "mpl-data" if package is not None else Path()
    if package is not None and beside.is_dir():
        return beside / "fonts" / "ttf" / font
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font


def _draw(font: str, characters: tuple[str, ...]) -> NDArray[np.bool_]:
    from PIL import Image, ImageDraw, ImageFont

    top, bottom = ImageFont.truetype(_font_path(font), 200).getbbox("H", anchor="ls")[1::2]
    face = ImageFont.truetype(_font_path(font), 200 * CAPITAL * DENSITY / (bottom - top))
    cells = np.empty((len(characters), CELL, CELL), bool)
    for cell, character in zip(cells, characters, strict=True):
        left, _, right, _ = face.getbbox(character, anchor="ls")
        page = Image.new("L", (CELL, CELL))
        place = (CELL / 2 - (left + right) / 2, CELL / 2 + BASELINE * DENSITY)
        ImageDraw.Draw(page).text(place, character, fill=255, font=face, anchor="ls")
        cell[:] = np.asarray(page) >= 128
    return cells


def _distance(mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the distance in points to the nearest True point of the same cell."""
    from scipy.ndimage import distance_transform_edt

    return np.stack([distance_transform_edt(~cell) for cell in mask]).astype(np.float32)


RECIPE = "labels 1"  # changes with the images
SIDE = 28
CONCENTRATION = 0.5  # of the Dirichlet distribution of class mixes: about 21 of 62 classes are frequent on a device
TEST_STYLES = 100  # devices in the test set, at most
SAMPLE_BYTES = 40  # for a sample's label, its owner and its assignment to a device, at least
CHUNK = 256  # images rendered at once, so that temporaries stay in the processor's cache

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Style:
    """The printing and camera style of a device, with lengths in pixels and grey values in 0..1.

    Args:
        font: a file of :data:`~fedfloor.data.made.labels.FONTS`.
        size: scale of the characters; 1 means capitals of 17 pixels.
        stretch: ratio of width to height, relative to the font's.
        slant: horizontal shift per pixel of height.
        turn: rotation of the camera in radians.
        weight: the distance by which the outline grows.
        blur: width of the edge.
        paper: grey value of the background.
        ink: grey value of the character; above ``paper`` where labels are marked light on dark.
        light: change of brightness across the image, (horizontal, vertical).
        noise: standard deviation of the camera's noise.
        streak: (position, half width, paleness) of a line left by a worn print head; paleness 0 = none.
    """

    font: str
    size: float
    stretch: float
    slant: float
    turn: float
    weight: float
    blur: float
    paper: float
    ink: float
    light: tuple[float, float]
    noise: float
    streak: tuple[float, float, float]


def labels(devices: int, samples_per_device: int, seed: int, classes: int = len(LETTERS_AND_DIGITS)) -> Dataset:
    """Return the data set of rendered labels, in which sample i belongs to device ⌊i / samples_per_device⌋.

    A device's labels are drawn from its class mix, p ~ Dir(0.5), so that devices have label skew. The test set has a
    tenth as many samples per device (at least one), in the styles and mixes of the first 100 devices.

    Args:
        devices: K ≥ 1.
        samples_per_device: training samples of each device, at least 1.
        seed: the seed of all random draws.
        classes: F from 2 to 62: the first F of 0–9, A–Z, a–z.

    >>> data = labels(devices=3, samples_per_device=20, seed=0)
    >>> data.take(np.array([0, 59]), 2).shape, len(data.y_test)
    ((2, 1, 28, 28), 6)
    """
    require(devices >= 1, "[park] devices", devices, "a whole number of at least 1")
    require(samples_per_device >= 1, "[data] samples_per_device", samples_per_device, "a whole number of at least 1")
    require(2 <= classes <= len(LETTERS_AND_DIGITS), "[data] classes", classes, "a whole number from 2 to 62")
    sizes = f"[park] devices = {devices} with [data] samples_per_device = {samples_per_device}"
    fewer = "Use fewer devices, or fewer samples per device."
    require_memory(sizes, SAMPLE_BYTES * devices * samples_per_device, fewer)
    names = LETTERS_AND_DIGITS[:classes]
    tested = min(devices, TEST_STYLES)
    per_test = max(1, samples_per_device // 10)
    y, owner = _classes(seed, devices, samples_per_device, classes, 0)
    y_test, owner_test = _classes(seed, tested, per_test, classes, 1)

    def take(indices: Indices, device: int) -> Images:
        return _render(style(seed, device), names, y[indices], indices, seed, "label")

    @cache
    def tests() -> Images:  # at most a hundred styles, used in every evaluation: rendered once and kept
        shares = enumerate(np.arange(len(y_test)).reshape(tested, per_test))
        return np.concatenate([_render(style(seed, k), names, y_test[i], i, seed, "test label") for k, i in shares])

    text = f"{RECIPE} devices={devices} samples={samples_per_device} seed={seed} classes={classes} ".encode()
    digest = hashlib.sha256(text + fingerprint()).hexdigest()
    shape = (1, SIDE, SIDE)
    return Dataset(
        "labels", names, shape, y, y_test, owner, owner_test, digest, take, lambda i: tests()[i], rendered=True
    )


def style(seed: int, device: int) -> Style:
    """Return the printing and camera style of a device, drawn at random.

    >>> style(0, 3) == style(0, 3), style(0, 3) == style(0, 4)
    (True, False)
    """
    rng = generator(seed, "label style", device)
    paper = rng.uniform(0.62, 0.95)
    ink = rng.uniform(0.05, 0.3)
    if rng.random() < 0.15:  # marked by laser: light on dark
        paper = 1 - paper
        ink = 1 - ink
    worn = rng.random() < 0.3
    return Style(
        font=FONTS[rng.integers(len(FONTS))],
        size=rng.uniform(0.85, 1.1),
        stretch=rng.uniform(0.8, 1.05),
        slant=float(np.clip(rng.normal(0, 0.07), -0.15, 0.2)),
        turn=float(np.clip(rng.normal(0, 0.05), -0.12, 0.12)),
        weight=rng.uniform(0.0, 0.55),
        blur=rng.uniform(0.9, 2.4),
        paper=paper,
        ink=ink,
        light=(rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2)),
        noise=rng.uniform(0.015, 0.08),
        streak=(rng.uniform(-6, 6), rng.uniform(0.4, 0.9), rng.uniform(0.4, 0.9) if worn else 0.0),
    )


def _classes(seed: int, devices: int, count: int, classes: int, part: int) -> tuple[Labels, Owners]:
    """Return ``count`` labels per device, drawn from its class mix, and their owners; both parts share the mixes."""
    y = np.empty((devices, count), np.int64)
    for device, row in enumerate(y):
        mix = generator(seed, "label mix", device).dirichlet(np.full(classes, CONCENTRATION))
        row[:] = generator(seed, "label classes", device, part).choice(classes, size=count, p=mix)
    return y.reshape(-1), np.repeat(np.arange(devices, dtype=np.int32), count)


def _render(look: Style, names: tuple[str, ...], y: Labels, numbers: Indices, seed: int, purpose: str) -> Images:
    """Return images of the samples ``numbers`` with classes ``y`` in a device's style, uint8 [n, 1, 28, 28]."""
    images = np.empty((len(y), 1, SIDE, SIDE), np.uint8)
    maps = distance_maps(look.font, names)
    lower, right = (np.mgrid[:SIDE, :SIDE].reshape(2, -1) / (SIDE - 1) - 0.5).astype(np.float32)
    sideways, downwards = map(np.float32, look.light)  # the change of brightness across the image
    light: Floats = (sideways * right + downwards * lower) / np.float32(math.sqrt(2))
    for start in range(0, len(y), CHUNK):
        part = slice(start, start + CHUNK)
        # jitter [n, 7] (normal, clipped at ±2.5) and noise [n, 784] from a key per sample
        drawn = np.empty((len(y[part]), 7 + SIDE * SIDE), np.float32)
        for row, number in zip(drawn, numbers[part], strict=True):
            generator(seed, purpose, int(number)).standard_normal(dtype=np.float32, out=row)
        chance = np.clip(drawn[:, :7], -2.5, 2.5)
        noise = drawn[:, 7:]
        across, down = _places(look, chance)
        ink = _ink(look, maps, y[part], across, down)
        contrast = np.clip(1 - 0.12 * np.abs(chance[:, 5:6]), 0.6, 1)
        grey = look.paper + 0.06 * chance[:, 6:7] + light + (look.ink - look.paper) * contrast * ink
        grey += look.noise * noise
        images[part] = np.rint(255 * np.clip(grey, 0, 1)).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    return images


def _places(look: Style, chance: Floats) -> tuple[Floats, Floats]:
    """Return the position of each pixel on the upright character, in pixels from its centre: two arrays [n, 784]."""
    down, across = np.mgrid[:SIDE, :SIDE].astype(np.float32).reshape(2, 1, -1) - np.float32((SIDE - 1) / 2)
    across = across - chance[:, 0:1]
    down = down - 0.8 * chance[:, 1:2]
    turn = look.turn + 0.05 * chance[:, 2:3]
    slant = look.slant + 0.03 * chance[:, 3:4]
    size = look.size * (1 + 0.04 * chance[:, 4:5])
    cos, sin = np.cos(turn) / size, np.sin(turn) / size
    upright = cos * down - sin * across
    return (cos * across + sin * down + slant * upright) / np.float32(look.stretch), upright


def _ink(look: Style, maps: NDArray[np.int8], y: Labels, across: Floats, down: Floats) -> Floats:
    """Return the amount of ink on each pixel, 0..1: outlines shifted by the weight, with edges as wide as the blur."""
    column = np.clip(DENSITY * across + np.float32((CELL - 1) / 2), 0, CELL - 1.001)
    row = np.clip(DENSITY * down + np.float32((CELL - 1) / 2), 0, CELL - 1.001)
    left = column.astype(np.int32)
    top = row.astype(np.int32)
    # shares of the right and lower neighbours
    right = column - left
    low = row - top
    at = (y[:, None] * CELL + top) * CELL + left
    flat = maps.reshape(-1)
    upper = flat[at] * (1 - right) + flat[at + 1] * right
    lower = flat[at + CELL] * (1 - right) + flat[at + CELL + 1] * right
    distance = (upper + low * (lower - upper)) / np.float32(STEPS)
    edge = np.clip(0.5 + (distance + np.float32(look.weight)) / np.float32(look.blur), 0, 1)
    ink: Floats = edge * edge * (3 - 2 * edge)
    place, half_width, paleness = look.streak
    if paleness:
        ink *= 1 - np.float32(paleness) * np.clip(1.5 - np.abs(across - place) / np.float32(half_width), 0, 1)
    return ink
