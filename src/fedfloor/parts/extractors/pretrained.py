"""Extractors with weights from a file: MobileNetV2, as FLDG has it, and any network as ONNX."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.errors import SettingError, require
from fedfloor.machine import one_thread
from fedfloor.parts.extractors.extractor import WITHOUT_WEIGHTS, FeatureExtractor, Floats, Shape, picture

PIXELS = 16 * 96**2  # in one pass of MobileNetV2: with channels last 2.8 times as fast as 64 pictures of 96×96 at once
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
INSTEAD = (
    "Set weights to a folder that MobileNetV2Model.save_pretrained wrote, or to a name at the Hugging Face hub where "
    f"it can be reached; {WITHOUT_WEIGHTS}."
)


@dataclass(frozen=True)
class MobileNet(FeatureExtractor):
    """MobileNetV2 without its classifier, averaged over the picture: D = 1280 (FLDG's features, with ImageNet weights).

    FLDG leaves open how small pictures go in. Here: grey ones as three equal channels, all scaled bilinearly to
    side×side pixels, values from −1 to 1 as in training. 96 is the smallest side that Keras has ImageNet weights for;
    at 32, the smallest it runs on, one pixel is left to average. Sandler et al., CVPR 2018, arXiv 1801.04381.

    Args:
        weights: a folder that ``MobileNetV2Model.save_pretrained`` wrote, or a name at the Hugging Face hub, which is
            downloaded once.
        side: from 32 to 1024 pixels.
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
    """A network of your own as an ONNX file, run by ONNX Runtime: [n, *shape] → [n, D] or [n, D, 1, 1].

    It gets pictures as values from 0 to 1, and sensors standardised: what else it wants done belongs into the file.
    Where it takes three channels grey pictures become three equal ones; where it takes one size they are scaled to it.

    Args:
        weights: the file.
        output: the output to read; may be left out where there is only one.
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
            raise SettingError(f'{label} has the outputs {", ".join(outputs)}: name one of them with output = "…".')
        values = _fitted(x, *dims[1:]) if x.ndim == 4 else x
        rows = 1 if dims[0] == 1 else len(x)
        try:
            parts = [session.run([output], {name: values[i : i + rows]})[0] for i in range(0, len(x), rows)]
        except Exception as error:  # its errors have no common base
            raise SettingError(f"{label} does not take samples of shape {x.shape[1:]}: {_first(error)}") from error
        sizes = {np.asarray(part).shape[1:] for part in parts}
        made = sum(len(part) if np.ndim(part) > 1 else 0 for part in parts)
        if made != len(x) or len(sizes) != 1 or set(next(iter(sizes))[1:]) - {1}:
            raise SettingError(
                f"{label} makes {list(np.shape(parts[0]))} of {rows} samples: it must be [n, D] or [n, D, 1, 1]. Put "
                "an average over the picture at its end."
            )
        answer: Floats = np.concatenate(parts).reshape(len(x), -1).astype(np.float32)
        return answer


def _fitted(x: Floats, channels: int | None, height: int | None, width: int | None) -> Floats:
    """Return pictures [n, C, H, W] with that many channels (grey ones copied) and of that size; None: as they are."""
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
        transformers = importlib.import_module("transformers")  # its types would take a checker minutes
    except ImportError as absent:
        raise SettingError(
            f"extractor 'mobilenet' needs transformers: pip install 'fedfloor[features]'. {WITHOUT_WEIGHTS}."
        ) from absent
    talk = transformers.utils.logging
    before, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        network, loading = transformers.MobileNetV2Model.from_pretrained(
            weights, local_files_only=Path(weights).is_dir(), output_loading_info=True
        )
    except Exception as error:  # a missing file, a broken one, no network, another architecture: no common base
        raise SettingError(f"extractor 'mobilenet': no weights in '{weights}': {_first(error)} {INSTEAD}") from error
    finally:
        talk.set_verbosity(before)
        if bars:
            talk.enable_progress_bar()
    if loading["missing_keys"] or loading["mismatched_keys"]:
        missing = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
        raise SettingError(
            f"extractor 'mobilenet': '{weights}' is no MobileNetV2: {len(missing)} of its tensors are missing or of "
            f"another shape, such as {missing[0]}. {INSTEAD}"
        )
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.data = tensor.data.clone()  # where a file's bytes happen to lie would decide over the last digits
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
        raise SettingError(f"extractor 'onnx': {weights} is no ONNX file that runs: {_first(error)}") from error


def _input(label: str, session: Any, shape: Shape) -> tuple[str, list[int | None]]:
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise SettingError(f"{label} has the inputs {', '.join(entry.name for entry in inputs)}: it must have one.")
    given, kind = inputs[0].shape, inputs[0].type
    if kind != "tensor(float)":
        raise SettingError(f"{label} takes {kind}: it must take float32, tensor(float).")
    dims = [side if isinstance(side, int) else None for side in given]
    if len(dims) != len(shape):
        raise SettingError(f"{label} takes {given}: samples come as [n, {', '.join(map(str, shape[1:]))}].")
    if dims[0] not in (None, 1):
        raise SettingError(f"{label} takes {dims[0]} samples at a time: export it for any number of them, or for one.")
    free = range(2, 4) if len(shape) == 4 else ()  # the size of pictures can be changed
    for axis in range(1, len(shape)):
        grey = len(shape) == 4 and axis == 1 and dims[1] == 3 and shape[1] == 1
        if axis not in free and not grey and dims[axis] not in (None, shape[axis]):
            raise SettingError(
                f"{label} takes {given}: samples come as [n, {', '.join(map(str, shape[1:]))}], channels first."
            )
    return inputs[0].name, dims


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300].rstrip(".") + "."
