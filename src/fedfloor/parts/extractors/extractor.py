"""Feature extractors: the contract, what they are shown, and the mean feature vector of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedfloor.data.dataset import Values
from fedfloor.errors import RunError, SettingError, require

Floats = NDArray[np.float32]
Shape = tuple[int, ...]

BLOCK = 64  # samples extracted at a time, whatever a device holds: boundaries decide over the last digits
BLOCK_BYTES = 32 << 20  # fewer of large pictures, so that memory stays bounded
WITHOUT_WEIGHTS = "'hog', 'random-conv', 'raw' and 'penultimate' need no weights"


class FeatureExtractor(Protocol):
    """A map from one sample to D numbers, the same on every device: a frozen dataclass of its settings."""

    @property
    def needs_model(self) -> bool:
        """Whether features are what goes into the classifier of the model that arrives; the engine extracts them."""
        return False

    def dimension(self, shape: Shape) -> int:
        """Return D, the number of features of a sample.

        Args:
            shape: of one sample: (C, H, W) of pictures, (C,) of rows, (C, L) of windows of sensors.

        Raises:
            SettingError: it does not take such samples.
        """
        ...

    def features(self, x: Floats) -> Floats:
        """Return the features [n, D] of n samples, each by itself and without chance.

        Args:
            x: float32 [n, *shape], as :meth:`Scaling.values` makes them. Not to be changed.

        Raises:
            SettingError: it does not take such samples.
        """
        ...


@dataclass(frozen=True, eq=False)
class Scaling:
    """How stored samples become what an extractor is shown.

    Pictures: scale·x, from 0 to 1, however the network's inputs are normalised: what was trained elsewhere knows
    nothing of that. Sensors: (scale·x − mean)/std per channel, and 0, the mean, where a number is missing.

    Args:
        scale: factor that turns a stored number into its value.
        mean, std: float64 [C], of :func:`~fedfloor.park.normalise.mean_and_deviation`.

    >>> two = Scaling(1.0, np.array([10.0, 0.0]), np.array([2.0, 1.0]))
    >>> two.values(np.array([[12.0, np.nan]], np.float32))
    array([[1., 0.]], dtype=float32)
    """

    scale: float
    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    def values(self, x: Values) -> Floats:
        """Return stored samples, uint8 or float32 [n, *shape], as float32 values of the same shape."""
        if x.ndim == 4:
            return x.astype(np.float32) * np.float32(self.scale)
        side = (-1, *(1,) * (x.ndim - 2))
        # in double precision: 1000.1 and 1000.2 around 1000 would lose their difference
        centred = (self.scale * x.astype(np.float64) - self.mean.reshape(side)) / self.std.reshape(side)
        return np.nan_to_num(centred, nan=0.0).astype(np.float32)


def mean_features(extractor: FeatureExtractor, x: Values, scaling: Scaling) -> Floats:
    """Return a device's mean feature vector, (1/n) Σ_i f(x_i), float32 [D].

    Extracted in blocks of a size that the samples' shape alone decides, added up in double precision.

    ``x``: the device's samples as they are stored, uint8 or float32 [n, *shape], n ≥ 1.

    Reference: the mean feature maps of FLDG; see the method.
    """
    require(len(x) >= 1, "samples of a device", len(x), "at least 1")
    shape = x.shape[1:]
    dimension, rows = extractor.dimension(shape), block_rows(shape)
    total = np.zeros(dimension)
    for first in range(0, len(x), rows):
        values = scaling.values(x[first : first + rows])
        features = np.asarray(extractor.features(values))
        if features.shape != (len(values), dimension):
            raise RunError(
                f"extractor {type(extractor).__name__} made features of shape {list(features.shape)} of {len(values)} "
                f"samples: its dimension is [{len(values)}, {dimension}]."
            )
        total += features.sum(axis=0, dtype=np.float64)
    mean: Floats = (total / len(x)).astype(np.float32)
    if not np.isfinite(mean).all():
        raise RunError(f"extractor {type(extractor).__name__} made features that are no finite numbers.")
    return mean


def block_rows(shape: Shape) -> int:
    """Return how many samples of a shape are extracted at a time.

    >>> block_rows((1, 28, 28)), block_rows((3, 1024, 1024))
    (64, 2)
    """
    return max(1, min(BLOCK, BLOCK_BYTES // (4 * math.prod(shape))))


def picture(name: str, shape: Shape, channels: tuple[int, ...] = (), least: int = 1) -> tuple[int, int, int]:
    """Return (C, H, W) of pictures, once they have so many channels and the least side in pixels that is taken."""
    if len(shape) != 3:
        raise SettingError(
            f"extractor '{name}' got samples of shape {shape}: it needs pictures (channels, height, width). Choose "
            "'random-conv' or 'raw' for sensors."
        )
    if channels and shape[0] not in channels:
        raise SettingError(
            f"extractor '{name}' got pictures of {shape[0]} channels: it takes {' or '.join(map(str, channels))}. "
            "Choose 'random-conv', 'hog' or 'raw'."
        )
    if min(shape[1:]) < least:
        raise SettingError(
            f"extractor '{name}' got pictures of {shape[1]}×{shape[2]} pixels: it needs at least {least}×{least}. "
            "Choose 'random-conv' or 'raw'."
        )
    return shape[0], shape[1], shape[2]
