"""Extractors that need no weights: raw values, random convolutions, gradients' histograms, the federated model."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod, sqrt

import numpy as np

from fedfloor.chance import generator
from fedfloor.errors import RunError, SettingError, require
from fedfloor.machine import one_thread
from fedfloor.parts.extractors.extractor import FeatureExtractor, Floats, Shape, picture

SECTIONS = 16  # averages per filter of a picture, 4×4 of them
STRETCHES = 4  # averages per filter of a window
CELLS = 2  # cells per side of a block of HOG


@dataclass(frozen=True)
class Raw(FeatureExtractor):
    """Every number of a sample as it is: standardised columns of sensors, pixels from 0 to 1. D = Π shape."""

    def dimension(self, shape: Shape) -> int:
        return prod(shape)

    def features(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1)


@dataclass(frozen=True)
class RandomConv(FeatureExtractor):
    """Random convolutions, untrained: f = pool(max(0, w ∗ x)), w ~ N(0, 2/fan-in), drawn once for all devices.

    Pictures: m filters of s×s, each with mean 0, so that brightness has no response; averaged over 4×4 parts of the
    picture. Windows: 4·m filters over s rows and all channels, averaged over the four quarters of time. Rows: 16·m
    directions. D = 16·m for all. Filters are cut to samples that are smaller. Nothing is added: f(a·x) = a·f(x) for
    a ≥ 0. Saxe et al., On Random Weights and Unsupervised Feature Learning, ICML 2011.

    Args:
        filters: m ≥ 1.
        size: s ≥ 1.
        seed: of the filters.

    >>> RandomConv().dimension((1, 28, 28)), RandomConv(filters=10).dimension((52,))
    (512, 160)
    """

    filters: int = 32
    size: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.filters <= 16384, "random-conv filters", self.filters, "a whole number from 1 to 16,384")
        require(1 <= self.size <= 1024, "random-conv size", self.size, "a whole number from 1 to 1,024")

    def dimension(self, shape: Shape) -> int:
        if not 1 <= len(shape) <= 3:
            raise SettingError(f"extractor 'random-conv' got samples of shape {shape}: it takes 1 to 3 dimensions.")
        return SECTIONS * self.filters

    def features(self, x: Floats) -> Floats:
        import torch
        from torch.nn import functional

        self.dimension(x.shape[1:])
        # copies, as PyTorch lays them out: where NumPy's happen to lie would decide over the last digits
        weights, values = torch.tensor(self.weights(x.shape[1:])), torch.tensor(x)
        with one_thread(), torch.no_grad():
            if x.ndim == 2:
                pooled = functional.linear(values, weights).relu_()
            elif x.ndim == 3:
                pooled = functional.adaptive_avg_pool1d(functional.conv1d(values, weights).relu_(), STRETCHES)
            else:
                pooled = functional.adaptive_avg_pool2d(functional.conv2d(values, weights).relu_(), isqrt(SECTIONS))
            features: Floats = pooled.flatten(1).numpy()
        return features

    def weights(self, shape: Shape) -> Floats:
        """Return the filters for samples of a shape: [16·m, C] for rows, [4·m, C, s] for windows, [m, C, s, s]."""
        form = (shape[0], *(min(self.size, side) for side in shape[1:]))
        count = self.dimension(shape) // {1: 1, 2: STRETCHES, 3: SECTIONS}[len(shape)]
        drawn = generator(self.seed, "random-conv", *form).standard_normal((count, *form))
        if len(shape) == 3:
            drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
        return (drawn * sqrt(2 / prod(form))).astype(np.float32)


@dataclass(frozen=True)
class Hog(FeatureExtractor):
    """Histograms of oriented gradients of pictures, normalised in blocks of 2×2 cells (L2-Hys), by scikit-image.

    A cell is ⌊side/cells⌋ pixels wide: 7×7 of 28×28, 8×8 of 32×32; either way D = 3·3·2·2·9 = 324. Of colours, each
    pixel takes the one with the steepest gradient. Dalal and Triggs, CVPR 2005, doi:10.1109/CVPR.2005.177.

    Args:
        cells: from 2, on each side of a picture.
        orientations: from 1, bins of the half circle.

    >>> Hog().dimension((1, 28, 28)), Hog().dimension((3, 32, 32))
    (324, 324)
    """

    cells: int = 4
    orientations: int = 9

    def __post_init__(self) -> None:
        require(2 <= self.cells <= 64, "hog cells", self.cells, "a whole number from 2 to 64")
        require(1 <= self.orientations <= 360, "hog orientations", self.orientations, "a whole number from 1 to 360")

    def dimension(self, shape: Shape) -> int:
        """Return D = (cells down − 1)·(cells across − 1)·4·orientations; pictures have at least 2·cells pixels."""
        _, height, width = picture("hog", shape, least=2 * self.cells)
        blocks = [side // (side // self.cells) - CELLS + 1 for side in (height, width)]
        return blocks[0] * blocks[1] * CELLS**2 * self.orientations

    def features(self, x: Floats) -> Floats:
        self.dimension(x.shape[1:])
        try:
            from skimage.feature import hog
        except ImportError as absent:
            raise SettingError("extractor 'hog' needs scikit-image: pip install 'fedfloor[features]'") from absent
        cell = (x.shape[2] // self.cells, x.shape[3] // self.cells)
        return np.stack([
            hog(one, self.orientations, cell, (CELLS, CELLS), block_norm="L2-Hys", channel_axis=0) for one in x
        ]).astype(np.float32)  # fmt: skip


@dataclass(frozen=True)
class Penultimate(FeatureExtractor):
    """What goes into the classifier of the federated model that arrives with the question; the engine extracts it."""

    needs_model = True

    def dimension(self, shape: Shape) -> int:
        raise RunError("extractor 'penultimate' has no features of its own: the engine extracts them with the model.")

    def features(self, x: Floats) -> Floats:
        raise RunError("extractor 'penultimate' has no features of its own: the engine extracts them with the model.")
