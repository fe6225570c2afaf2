"""Augmented streams: random changes of brightness, crop and size of the local pictures at every tick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import SettingError, require
from fedfloor.data.dataset import Dataset, Images, Indices, Labels, Values

TRIES = 10  # crops drawn for a picture, which is not cropped if none of them fits
CHUNK = 1 << 16  # pixels processed at once, so that they fit into the processor's cache
Range = tuple[float, ...]


@dataclass(frozen=True)
class Augmented:
    """Windows of altered pictures: window number ⌊tick / ``every``⌋ has n = ``window`` samples of the local set.

    They are drawn by (seed, device, number) without replacement; a local set smaller than n is used several times, each
    time in another order, and partly for the remainder. Each picture is multiplied by a factor uniform in
    1 ± ``brightness`` and clipped to 0 … 255 (:func:`brightened`), then cropped to an area uniform in ``scale`` of the
    whole (:func:`crops`), and resized to its original size (:func:`resized`). Labels are unchanged. Without brightness
    and with a scale of (1, 1), the picture is unchanged to the bit.

    The streaming data of HFedMS: Zeng et al., "HFedMS: Heterogeneous Federated Learning with Memorable Data Semantics
    in Industrial Metaverse", IEEE Transactions on Cloud Computing 2023, arXiv 2211.03300. Its reference code differs
    from its text: it draws 49 samples, and new ones only when devices are regrouped, which is ``every`` = T.

    Args:
        window: n, samples held at a time, at least 1.
        brightness: the strength, from 0 (off) to 1.
        scale: the smallest and the largest area, above 0 and at most 1; (1, 1): no cropping.
        ratio: the smallest and the largest width : height of the crop, in units of the picture's own.
        every: ticks between two windows, at least 1.

    >>> stream = Augmented(window=3)
    >>> stream.held(np.zeros(5, int), seed=0, device=0, position=stream.position(tick=2, visits=0)).shape
    (1, 3)
    """

    window: int = 50
    brightness: float = 0.1
    scale: Range = (0.8, 1.0)
    ratio: Range = (0.8, 1.2)
    every: int = 1
    kind: Literal["augmented"] = "augmented"

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):  # JSON has lists instead of tuples
            object.__setattr__(self, name, tuple(getattr(self, name)))
        require(self.window >= 1, "data.stream.window", self.window, "a whole number of at least 1")
        require(self.every >= 1, "data.stream.every", self.every, "a whole number of at least 1")
        require(0 <= self.brightness <= 1, "data.stream.brightness", self.brightness, "from 0 to 1")
        two = "two numbers, the smaller one first"
        scaled = len(self.scale) == 2 and 0 < self.scale[0] <= self.scale[1] <= 1
        require(scaled, "data.stream.scale", list(self.scale), f"{two}, above 0 and at most 1")
        shaped = len(self.ratio) == 2 and 0 < self.ratio[0] <= self.ratio[1] < math.inf
        require(shaped, "data.stream.ratio", list(self.ratio), f"{two}, above 0")
        low, high = self.scale[0], 1 / self.scale[0]
        reaches = self.ratio[0] <= high and low <= self.ratio[1]
        allowed = f"two numbers that enclose some of {low:g} … {high:g}, as no other crops fit"
        require(reaches, "data.stream.ratio", list(self.ratio), allowed)

    def position(self, tick: int, visits: int) -> int:  # noqa: ARG002
        """Return ⌊tick / every⌋."""
        return tick // self.every

    def holds(self, size: int) -> int:  # noqa: ARG002
        """Return the window's size."""
        return self.window

    def held(self, labels: Labels, seed: int, device: int, position: int, least: int = 1) -> Indices:
        """Return ``least`` windows of a device from number ``position`` on, int64 [least, n]."""
        size = len(labels)
        windows = []
        for number in range(position, position + least):
            rng = generator(seed, "drawn", device, number)
            whole = [rng.permutation(size) for _ in range(-(-self.window // size))]
            windows.append(np.concatenate(whole)[: self.window])
        return np.array(windows)

    def altered(self, x: Values, seed: int, device: int, position: int) -> Images:
        """Return altered pictures, uint8 [n, C, H, W]; the draws of an alteration do not depend on the others."""
        rng = generator(seed, "augment", device, position)
        factors = rng.uniform(1 - self.brightness, 1 + self.brightness, len(x))
        images: Images = brightened(x, factors) if self.brightness else x.astype(np.uint8, copy=False)
        if self.scale == (1, 1):
            return images
        return resized(images, crops(len(x), x.shape[2], x.shape[3], self.scale, self.ratio, rng))


def pictures_only(dataset: Dataset) -> None:
    """Raise SettingError if the samples are not pictures."""
    if dataset.inputs.kind != "image" or len(dataset.shape) != 3:
        raise SettingError(
            f"[data] stream = 'augmented' changes the brightness of pictures and crops them; the samples of data set "
            f"'{dataset.name}' are not pictures. Use {{ kind = \"fifo\", window = … }}, whose windows also change "
            "with the clock."
        )


class Crops(NamedTuple):
    """The positions and sizes of crops of n pictures: int64 [n] each, in pixels."""

    top: Indices
    height: Indices
    left: Indices
    width: Indices


def brightened(x: Values, factors: NDArray[np.float64]) -> Images:
    """Return min(255, factor·x) in single precision, rounded to whole numbers, halves to even ones.

    Args:
        x: uint8 [n, C, H, W].
        factors: [n], not negative; one for all channels of a picture.

    >>> brightened(np.array([0, 5, 7, 250], np.uint8).reshape(1, 1, 1, 4), np.array([1.5])).ravel().tolist()
    [0, 8, 10, 255]
    """
    bright: NDArray[np.float32] = x * factors.astype(np.float32)[:, None, None, None]
    np.minimum(bright, 255, out=bright)
    return np.rint(bright, out=bright).astype(np.uint8)


def crops(count: int, height: int, width: int, scale: Range, ratio: Range, rng: np.random.Generator) -> Crops:
    """Return random crops of H × W pictures, of round(H√(s/r)) × round(W√(s·r)) pixels at a uniform position.

    The area s is uniform in ``scale``, ln r uniform between the logarithms of ``ratio``; of ten drawn pairs the first
    that fits is used, and the whole picture if none fits. This follows MXNet (``random_size_crop``), whose r is
    width : height itself, which is the same for squares.
    """
    area = rng.uniform(scale[0], scale[1], (TRIES, count))
    shape = np.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1]), (TRIES, count)))
    place = rng.random((2, count))
    tall = np.rint(height * np.sqrt(area / shape)).clip(1).astype(np.int64)
    wide = np.rint(width * np.sqrt(area * shape)).clip(1).astype(np.int64)
    fits = (tall <= height) & (wide <= width)
    first = fits.argmax(axis=0)
    each = np.arange(count)
    some = fits.any(axis=0)
    high = np.where(some, tall[first, each], height)
    broad = np.where(some, wide[first, each], width)
    top, left = (place * (height - high + 1, width - broad + 1)).astype(np.int64)
    return Crops(top, high, left, broad)


def resized(x: Images, cuts: Crops) -> Images:
    """Return crops of pictures resized to the full size by bilinear interpolation between pixels' centres.

    Pixel i of W has the value at (i + ½)·w/W − ½ in a crop of width w, limited to the centres of its outermost pixels.
    Weights are multiples of 1/(2W) and 1/(2H), so that sums are exact integers in units of 1/(4WH); the quotient is
    rounded to an integer, halves to even. All processes agree to the bit.

    >>> row = np.array([0, 40, 80, 120], np.uint8).reshape(1, 1, 1, 4)
    >>> resized(row, Crops(*(np.array([value]) for value in (0, 1, 1, 2)))).ravel().tolist()
    [40, 50, 70, 80]
    """
    _, _, height, width = x.shape
    parts = 4 * height * width
    exact = np.float32 if 255 * parts <= 1 << 24 else np.float64  # exact for integers up to 2²⁴, or 2⁵³
    result = np.empty_like(x, order="C")
    step = max(1, CHUNK // math.prod(x.shape[1:]))
    for begin in range(0, len(x), step):
        piece = slice(begin, begin + step)
        down = _between(x[piece].astype(exact), cuts.top[piece], cuts.height[piece])
        across = _between(down.swapaxes(2, 3), cuts.left[piece], cuts.width[piece])
        across /= parts
        result[piece] = np.rint(across, out=across).swapaxes(2, 3)
    return result


def _between(x: NDArray[Any], start: Indices, length: Indices) -> NDArray[Any]:
    """Return [n, C, H, W] interpolated along H, times 2H, by fast copies of whole rows."""
    count, channels, whole, across = x.shape
    twice = 2 * whole
    place = ((2 * np.arange(whole) + 1) * length[:, None] - whole).clip(0, twice * (length[:, None] - 1))
    upper, part = np.divmod(place, twice)  # in units of 1/2H
    upper += start[:, None]
    lower = upper + (part > 0)
    rows = np.ascontiguousarray(x).reshape(-1, across)
    picture = whole * np.arange(count * channels).reshape(count, channels, 1)
    weight = part.astype(x.dtype)[:, None, :, None]
    result: NDArray[Any] = rows.take(picture + upper[:, None], axis=0)
    result *= twice - weight
    second = rows.take(picture + lower[:, None], axis=0)
    second *= weight
    result += second
    return result
