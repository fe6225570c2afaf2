"""Feature extractors by name: their contract and inputs, and the mean features of a device."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod, sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.chance import generator
from fedfloor.base.errors import RunError, SettingError, first_line, require
from fedfloor.base.machine import one_thread
from fedfloor.data.dataset import Values
from fedfloor.parts import named
from fedfloor.plan.nodes import Scalar

Floats = NDArray[np.float32]
Shape = tuple[int, ...]

BLOCK = 64  # samples per block, whatever a device holds: block boundaries affect the last digits
BLOCK_BYTES = 32 << 20  # numbers per block: blocks of large pictures are smaller, which bounds the memory
WITHOUT_WEIGHTS = "'hog', 'random-conv', 'raw' and 'penultimate' need no weights"


class FeatureExtractor(Protocol):
    """A map from a sample to D numbers, the same on every device: a frozen dataclass of its settings."""

    @property
    def needs_model(self) -> bool:
        """Whether the features are the classifier's input in the arrived model; the engine then computes them."""
        return False

    def dimension(self, shape: Shape) -> int:
        """Return D, the number of features of a sample.

        Args:
            shape: the shape of a sample: (C, H, W) for pictures, (C,) for rows, (C, L) for windows of sensors.

        Raises:
            SettingError: the extractor does not take such samples.
        """
        ...

    def features(self, x: Floats) -> Floats:
        """Return the features [n, D] of n samples, computed for each sample by itself and without randomness.

        Args:
            x: float32 [n, *shape], as :meth:`Scaling.values` returns them; must not be changed.

        Raises:
            SettingError: the extractor does not take such samples.
        """
        ...


@dataclass(frozen=True, eq=False)
class Scaling:
    """The scaling of stored samples to an extractor's input.

    Pictures: scale·x, from 0 to 1, whatever the normalisation of the network's inputs, as extractors are trained
    without it. Sensors: (scale·x − mean)/std per channel, and 0, the mean, for a missing number.

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
        """Return the scaled values of stored samples, uint8 or float32 [n, *shape], as float32 of the same shape."""
        if x.ndim == 4:
            return x.astype(np.float32) * np.float32(self.scale)
        side = (-1, *(1,) * (x.ndim - 2))
        # in double precision: 1000.1 and 1000.2 around 1000 would lose their difference
        centred = (self.scale * x.astype(np.float64) - self.mean.reshape(side)) / self.std.reshape(side)
        return np.nan_to_num(centred, nan=0.0).astype(np.float32)


def mean_features(extractor: FeatureExtractor, x: Values, scaling: Scaling) -> Floats:
    """Return a device's mean feature vector, (1/n) Σ_i f(x_i), float32 [D].

    Blocks have a size that depends on the samples' shape alone; sums are in double precision.

    ``x``: the device's stored samples, uint8 or float32 [n, *shape], n ≥ 1.

    Reference: the mean feature maps of FLDG, :mod:`fedfloor.methods.fldg`.
    """
    require(len(x) >= 1, "samples of a device", len(x), "at least 1")
    shape = x.shape[1:]
    dimension = extractor.dimension(shape)
    rows = block_rows(shape)
    total = np.zeros(dimension)
    for first in range(0, len(x), rows):
        values = scaling.values(x[first : first + rows])
        features = np.asarray(extractor.features(values))
        if features.shape != (len(values), dimension):
            raise RunError(
                f"extractor {type(extractor).__name__} returned features of {list(features.shape)} for {len(values)} "
                f"samples: its dimension is [{len(values)}, {dimension}].",
                key="own-extractor",
            )
        total += features.sum(axis=0, dtype=np.float64)
    mean: Floats = (total / len(x)).astype(np.float32)
    if not np.isfinite(mean).all():
        raise RunError(
            f"extractor {type(extractor).__name__} returned features that are not finite numbers.", key="own-extractor"
        )
    return mean


def block_rows(shape: Shape) -> int:
    """Return the number of samples of a shape in a block.

    >>> block_rows((1, 28, 28)), block_rows((3, 1024, 1024))
    (64, 2)
    """
    return max(1, min(BLOCK, BLOCK_BYTES // (4 * math.prod(shape))))


def picture(name: str, shape: Shape, channels: tuple[int, ...] = (), least: int = 1) -> tuple[int, int, int]:
    """Return (C, H, W) of pictures; SettingError: no pictures, other ``channels``, or a side below ``least`` pixels."""
    if len(shape) != 3:
        raise SettingError(
            f"extractor '{name}' got samples of shape {shape}: it needs pictures (channels, height, width). Choose "
            "'random-conv' or 'raw' for sensors."
        )
    if channels and shape[0] not in channels:
        raise SettingError(
            f"extractor '{name}' got pictures with {shape[0]} channels: it needs {' or '.join(map(str, channels))}. "
            "Choose 'random-conv', 'hog' or 'raw'."
        )
    if min(shape[1:]) < least:
        raise SettingError(
            f"extractor '{name}' got pictures of {shape[1]}×{shape[2]} pixels: it needs at least {least}×{least}. "
            "Choose 'random-conv' or 'raw'."
        )
    return shape[0], shape[1], shape[2]


SECTIONS = 16  # averages per filter of a picture: 4×4
STRETCHES = 4  # averages per filter of a window
CELLS = 2  # cells on each side of a HOG block


@dataclass(frozen=True)
class Raw(FeatureExtractor):
    """The numbers of a sample themselves: standardised columns of sensors, pixels from 0 to 1. D = Π shape."""

    def dimension(self, shape: Shape) -> int:
        return prod(shape)

    def features(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1)


@dataclass(frozen=True)
class RandomConv(FeatureExtractor):
    """Random convolutions, untrained: f = pool(max(0, w ∗ x)), w ~ N(0, 2/fan-in), drawn once for all devices.

    Pictures: m filters of s×s with mean 0, which do not respond to brightness, averaged over 4×4 parts of the picture.
    Windows: 4·m filters over s rows and all channels, averaged over the four quarters of the window. Rows: 16·m
    directions. D = 16·m in all cases. Filters are cut to smaller samples. There is no bias: f(a·x) = a·f(x) for a ≥ 0.
    Saxe et al., On Random Weights and Unsupervised Feature Learning, ICML 2011.

    Args:
        filters: m ≥ 1.
        size: s ≥ 1.
        seed: the seed of the filters.

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
            raise SettingError(f"extractor 'random-conv' got samples of shape {shape}: it needs 1 to 3 dimensions.")
        return SECTIONS * self.filters

    def features(self, x: Floats) -> Floats:
        import torch
        from torch.nn import functional

        self.dimension(x.shape[1:])
        # copies aligned by PyTorch: the alignment of NumPy's memory affects the last digits
        weights = torch.tensor(self.weights(x.shape[1:]))
        values = torch.tensor(x)
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
        """Return the filters for samples of a shape: [16·m, C] for rows, [4·m, C, s] for windows, else [m, C, s, s]."""
        form = (shape[0], *(min(self.size, side) for side in shape[1:]))
        count = self.dimension(shape) // {1: 1, 2: STRETCHES, 3: SECTIONS}[len(shape)]
        drawn = generator(self.seed, "random-conv", *form).standard_normal((count, *form))
        if len(shape) == 3:
            drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
        return (drawn * sqrt(2 / prod(form))).astype(np.float32)


@dataclass(frozen=True)
class Hog(FeatureExtractor):
    """Histograms of oriented gradients of pictures, normalised in blocks of 2×2 cells (L2-Hys), by scikit-image.

    A cell is ⌊side/cells⌋ pixels wide: 7×7 in 28×28 and 8×8 in 32×32 pixels, both with D = 3·3·2·2·9 = 324. Each pixel
    takes the colour with the steepest gradient. Dalal and Triggs, CVPR 2005, doi:10.1109/CVPR.2005.177.

    Args:
        cells: the number of cells on each side of a picture, at least 2.
        orientations: the number of bins over the half circle, at least 1.

    >>> Hog().dimension((1, 28, 28)), Hog().dimension((3, 32, 32))
    (324, 324)
    """

    cells: int = 4
    orientations: int = 9

    def __post_init__(self) -> None:
        require(2 <= self.cells <= 64, "hog cells", self.cells, "a whole number from 2 to 64")
        require(1 <= self.orientations <= 360, "hog orientations", self.orientations, "a whole number from 1 to 360")

    def dimension(self, shape: Shape) -> int:
        """Return D = (cells down − 1)·(cells across − 1)·4·orientations; each side needs at least 2·cells pixels."""
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
            hog(picture, self.orientations, cell, (CELLS, CELLS), block_norm="L2-Hys", channel_axis=0) for picture in x
        ]).astype(np.float32)  # fmt: skip


@dataclass(frozen=True)
class Penultimate(FeatureExtractor):
    """The classifier's input in the federated model, which arrives with the question; the engine computes it."""

    needs_model = True

    def dimension(self, shape: Shape) -> int:
        raise RunError("extractor 'penultimate' has no features of its own: the engine extracts them with the model.")

    def features(self, x: Floats) -> Floats:
        raise RunError("extractor 'penultimate' has no features of its own: the engine extracts them with the model.")


PIXELS = 16 * 96**2  # pictures per pass of MobileNetV2: with channels last 2.8 times as fast as 64 pictures of 96×96
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
INSTEAD = (
    "Set weights to a folder that MobileNetV2Model.save_pretrained wrote, or to a name at the Hugging Face hub where "
    f"it can be reached; {WITHOUT_WEIGHTS}."
)


@dataclass(frozen=True)
class MobileNet(FeatureExtractor):
    """MobileNetV2 without its classifier, averaged over the picture: D = 1280 (FLDG's features, with ImageNet weights).

    FLDG does not define the input of small pictures. Here grey pictures become three equal channels, and all pictures
    are scaled bilinearly to side×side pixels, with values from −1 to 1 as in training. 96 is the smallest side with
    ImageNet weights in Keras; at 32, the smallest possible side, the average is over a single pixel. FLDG takes Keras's
    port of the network, this is Hugging Face's, with other padding and weights: features differ. Sandler et al., CVPR
    2018, arXiv 1801.04381.

    Args:
        weights: a folder written by ``MobileNetV2Model.save_pretrained``, or a name at the Hugging Face hub, which is
            downloaded once.
        side: the side of the picture, from 32 to 1024 pixels.
    """

    weights: str = "google/mobilenet_v2_1.0_224"
    side: int = 96

    def __post_init__(self) -> None:
        require(32 <= self.side <= 1024, "mobilenet side", self.side, "a whole number from 32 to 1,024")

    def dimension(self, shape: Shape) -> int:
        picture("mobilenet", shape, channels=(1, 3))
        channels: int = _mobilenet(self.weights).conv_1x1.convolution.out_channels
        return channels

    def features(self, x: Floats) -> Floats:
        import torch

        picture("mobilenet", x.shape[1:], channels=(1, 3))
        network = _mobilenet(self.weights)
        with one_thread(), torch.no_grad():
            seen = torch.from_numpy(_fitted(x, 3, self.side, self.side)).mul(2).sub_(1)
            parts = seen.contiguous(memory_format=torch.channels_last).split(max(1, PIXELS // self.side**2))
            features: Floats = torch.cat([network(pixel_values=part).pooler_output for part in parts]).numpy()
        return features


@dataclass(frozen=True)
class Onnx(FeatureExtractor):
    """The user's own network as an ONNX file, run by ONNX Runtime: [n, *shape] → [n, D] or [n, D, 1, 1].

    Its inputs are pictures with values from 0 to 1, or standardised sensors: the file must contain any further step. If
    it needs three channels, grey pictures become three equal ones; if it has a fixed size, pictures are scaled to it.

    Args:
        weights: the path of the file.
        output: the output to read; may be left out if the model has only one.
    """

    weights: str
    output: str | None = None

    def dimension(self, shape: Shape) -> int:
        return len(self.features(np.zeros((1, *shape), np.float32))[0])

    def features(self, x: Floats) -> Floats:
        label = f"extractor 'onnx': {self.weights}"
        session = _session(self.weights)
        name, dims = _input(label, session, x.shape)
        outputs = [output.name for output in session.get_outputs()]
        output = outputs[0] if self.output is None else self.output
        if output not in outputs or (self.output is None and len(outputs) > 1):
            raise SettingError(
                f'{label} has the outputs {", ".join(outputs)}: name one of them with output = "…".', key="extractor"
            )
        values = _fitted(x, *dims[1:]) if x.ndim == 4 else x
        rows = 1 if dims[0] == 1 else len(x)
        try:
            parts = [session.run([output], {name: values[i : i + rows]})[0] for i in range(0, len(x), rows)]
        except Exception as error:  # its errors have no common base
            raise SettingError(
                f"{label} does not take samples of shape {x.shape[1:]}: {first_line(error)}", key="extractor"
            ) from error
        sizes = {np.asarray(part).shape[1:] for part in parts}
        made = sum(len(part) if np.ndim(part) > 1 else 0 for part in parts)
        if made != len(x) or len(sizes) != 1 or set(next(iter(sizes))[1:]) - {1}:
            raise SettingError(
                f"{label} makes {list(np.shape(parts[0]))} of {rows} samples: it must be [n, D] or [n, D, 1, 1]. Put "
                "an average over the picture at its end.",
                key="extractor",
            )
        answer: Floats = np.concatenate(parts).reshape(len(x), -1).astype(np.float32)
        return answer


def _fitted(x: Floats, channels: int | None, height: int | None, width: int | None) -> Floats:
    """Return pictures [n, C, H, W] with these channels (grey pictures are copied) and this size; None: unchanged."""
    import torch

    if channels == 3 and x.shape[1] == 1:
        x = np.repeat(x, 3, axis=1)
    size = (height or x.shape[2], width or x.shape[3])
    if size == x.shape[2:]:
        return x
    with one_thread():
        scaled = torch.nn.functional.interpolate(torch.from_numpy(x), size, mode="bilinear", antialias=True)
    answer: Floats = scaled.numpy()
    return answer


@lru_cache(maxsize=2)  # asked for every block
def _mobilenet(weights: str) -> Any:
    if not Path(weights).is_dir() and not HUB_NAME.fullmatch(weights):
        raise SettingError(f"extractor 'mobilenet': weights = '{weights}': no such folder. {INSTEAD}")
    try:
        transformers = importlib.import_module("transformers")  # a type checker would need minutes for its types
    except ImportError as absent:
        raise SettingError(
            f"extractor 'mobilenet' needs transformers: pip install 'fedfloor[features]'. {WITHOUT_WEIGHTS}."
        ) from absent
    talk = transformers.utils.logging
    before = talk.get_verbosity()
    bars = talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        network, loading = transformers.MobileNetV2Model.from_pretrained(
            weights, local_files_only=Path(weights).is_dir(), output_loading_info=True
        )
    except Exception as error:  # missing or broken file, no network, other architecture: no common base
        raise SettingError(
            f"extractor 'mobilenet': no weights in '{weights}': {first_line(error)} {INSTEAD}"
        ) from error
    finally:
        talk.set_verbosity(before)
        if bars:
            talk.enable_progress_bar()
    if loading["missing_keys"] or loading["mismatched_keys"]:
        missing = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
        raise SettingError(
            f"extractor 'mobilenet': '{weights}' is not a MobileNetV2: {len(missing)} of its tensors are missing or of "
            f"another shape, such as {missing[0]}. {INSTEAD}"
        )
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = tensor.data.clone()  # the alignment of a file's bytes would affect the last digits
    import torch

    return network.to(memory_format=torch.channels_last).eval()


@lru_cache(maxsize=2)  # asked for every block
def _session(weights: str) -> Any:
    if not Path(weights).is_file():
        raise SettingError(f"extractor 'onnx': weights = '{weights}': no such file. {WITHOUT_WEIGHTS}.")
    try:
        import onnxruntime
    except ImportError as absent:
        raise SettingError("extractor 'onnx' needs onnxruntime: pip install 'fedfloor[onnx]'") from absent
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are reported below
    try:
        return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base
        raise SettingError(f"extractor 'onnx': {weights} cannot be run by ONNX Runtime: {first_line(error)}") from error


def _input(label: str, session: Any, shape: Shape) -> tuple[str, list[int | None]]:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise SettingError(
            f"{label} has the inputs {', '.join(entry.name for entry in inputs)}: it must have one.", key="extractor"
        )
    given = inputs[0].shape
    kind = inputs[0].type
    if kind != "tensor(float)":
        raise SettingError(f"{label} takes {kind}: it must take float32, tensor(float).", key="extractor")
    dims = [side if isinstance(side, int) else None for side in given]
    if len(dims) != len(shape):
        raise SettingError(
            f"{label} takes {given}: samples come as [n, {', '.join(map(str, shape[1:]))}].", key="extractor"
        )
    if dims[0] not in (None, 1):
        raise SettingError(
            f"{label} takes {dims[0]} samples at a time: export it for any number, or for one.", key="extractor"
        )
    free = range(2, 4) if len(shape) == 4 else ()  # the size of pictures can be changed
    for axis in range(1, len(shape)):
        grey = len(shape) == 4 and axis == 1 and dims[1] == 3 and shape[1] == 1
        if axis not in free and not grey and dims[axis] not in (None, shape[axis]):
            raise SettingError(
                f"{label} takes {given}: samples come as [n, {', '.join(map(str, shape[1:]))}], channels first.",
                key="extractor",
            )
    return inputs[0].name, dims


EXTRACTORS: dict[str, Callable[..., FeatureExtractor]] = {
    "mobilenet": MobileNet,
    "onnx": Onnx,
    "hog": Hog,
    "random-conv": RandomConv,
    "raw": Raw,
    "penultimate": Penultimate,
}


def extractor(name: str, settings: Mapping[str, Scalar]) -> FeatureExtractor:
    """Return a feature extractor by name, or the user's ``module:Name``, with its settings.

    >>> extractor("hog", {"cells": 8})
    Hog(cells=8, orientations=9)
    """
    writes = ("dimension", "features")
    return named.make("extractor", name, settings, EXTRACTORS, FeatureExtractor, writes)  # type: ignore[no-any-return]
