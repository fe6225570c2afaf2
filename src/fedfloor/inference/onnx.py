"""Export of a trained model and its normalisation to ONNX, checked against PyTorch before the file is written."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedfloor.base.errors import SettingError, first_line
from fedfloor.base.strict import json_text
from fedfloor.base.version import __version__
from fedfloor.inference.normalisation import AtDevice
from fedfloor.inference.trained import Trained
from fedfloor.models.staying import TakesOwn
from fedfloor.park.normalise import scaled
from fedfloor.parts.decision import Decision
from fedfloor.runs.folder import write
from fedfloor.tasks.answer import Answer
from fedfloor.tasks.classification import CLASSIFICATION

if TYPE_CHECKING:
    import onnx

OPSET = 20  # ONNX 1.15 (2023): read by ONNX Runtime 1.17 and later
TOLERANCE = 1e-5
BATCHES = (1, 2, 7)
NEEDED = ("onnx", "onnxscript", "onnxruntime")
Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        opset: the version of ONNX's operators.
        differences: output → its largest difference from PyTorch, relative to
            :meth:`~fedfloor.tasks.answer.Answer.sizes`. Probabilities for extreme sensor values are not compared: with
            logits in the thousands they depend on rounding.
        samples: the number of samples compared.
    """

    file: Path
    size_bytes: int
    opset: int
    differences: dict[str, float]
    samples: int


def export(trained: Trained, out: Path) -> Exported:
    """Write a model as ONNX: ``x`` [n, *shape] as stored in files → the parts of its task's answer.

    The outputs are ``probabilities`` and ``logits`` [n, F] of a classification, ``value`` [n, T] of a regression or [n,
    S, H] of a forecast, with ``low`` and ``high`` for quantiles, all in the targets' unit. A model with a decision has
    the output ``decision`` int64 [n], too: the index of the class.

    ``x`` is uint8 for pictures, float32 for sensors. The file's metadata contain the task with its unit, the names of
    classes and columns, and the window. A model with ``normalise = "device"`` has the inputs ``mean`` and ``std`` [C],
    too: the statistics of the device on which it runs. A model with a part that stays on devices has the input ``own``
    [P]: the parameters of this part.

    Raises:
        SettingError: ONNX cannot express the network, or differs from PyTorch by more than :data:`TOLERANCE` (then no
            file is written), packages are missing, or ``out`` cannot be written.
    """
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise SettingError(f"export needs {', '.join(absent)}: pip install 'fedfloor[onnx]'")
    if out.is_dir() or not out.parent.is_dir():
        raise SettingError(
            f"--out {out}: {'this is a folder' if out.is_dir() else 'no such folder'}. Give the path of a file."
        )
    batches = samples(trained)
    given = [{"x": x} | _statistics(trained) | _own(trained) for x in batches]
    expected = [_torch(trained, inputs) for inputs in given]
    names = [*expected[0].parts(), *(() if trained.decision is None else ("decision",))]
    model = _translated(trained, given[1], names)
    _describe(model, trained)
    data = model.SerializeToString()
    differences = _compare(trained, data, given, expected)
    write(out, data)
    return Exported(out, len(data), OPSET, differences, sum(len(x) for x in batches))


def samples(trained: Trained) -> list[NDArray[Any]]:
    """Return samples for the comparison: random ones in batches of :data:`BATCHES`, with missing values if allowed.

    The last batch has extreme values: black and white pictures; sensors at 0 and at ±10 standard deviations.
    """
    rng = np.random.default_rng(0)
    shape = trained.shape
    if trained.sensors is None:
        drawn: list[NDArray[Any]] = [rng.integers(0, 256, (n, *shape), np.uint8) for n in BATCHES]
        return [*drawn, np.stack([np.full(shape, value, np.uint8) for value in (0, 255)])]
    factor, shift = (part.numpy()[0] for part in (trained.raw.factor, trained.raw.shift))
    spread = np.abs(1 / factor)
    mean = -shift / factor
    if own := _statistics(trained):
        mean, spread = (values.reshape(factor.shape) for values in own.values())
    drawn = [(mean + spread * rng.standard_normal((n, *shape))).astype(np.float32) for n in BATCHES]
    if trained.raw.holes:
        holes = drawn[2].copy()
        holes[rng.random(holes.shape) < 0.3] = np.nan
        drawn.append(np.concatenate([np.full((1, *shape), np.nan, np.float32), holes]))
    edges = [np.zeros(shape), *(np.broadcast_to(mean + k * spread, shape) for k in (-10, 10))]
    return [*drawn, np.stack(edges).astype(np.float32)]


def _statistics(trained: Trained) -> dict[str, NDArray[np.float32]]:
    """Return an example of a device's mean and standard deviation [C], if they are inputs of the model."""
    if trained.own is None:
        return {}
    rng = np.random.default_rng(1)
    channels = trained.shape[0]
    return {
        "mean": rng.uniform(-100, 100, channels).astype(np.float32),
        "std": rng.uniform(0.1, 10, channels).astype(np.float32),
    }


def _own(trained: Trained) -> Inputs:
    """Return changed parameters [P] of the part that stays on devices, if any, with positive variances."""
    if trained.staying is None:
        return {}
    return {"own": (trained.staying.parcel.cut(trained.staying.network.flat) / 2).numpy()}


def _torch(trained: Trained, given: Inputs) -> Answer:
    if trained.staying is not None:
        with trained.staying.held(torch.from_numpy(given["own"])):
            return _torch(replace(trained, staying=None), given)
    x = given["x"] if trained.own is None else scaled(given["x"], given["mean"], given["std"])
    try:
        answer = trained.answered(x)
    except Exception as error:  # the network may be the user's code
        raise SettingError(
            f"network '{trained.name}' does not take a batch of {len(x)} samples: {first_line(error)} "
            "An exported network must take any number of samples."
        ) from error
    return answer.changed(lambda _, part: part.numpy())


class Deciding(nn.Module):
    """A model that returns its decision, int64 [n], in addition to probabilities and logits."""

    mask: Tensor

    def __init__(self, raw: nn.Module, decision: Decision, classes: int) -> None:
        super().__init__()
        self.raw = raw
        self.positive = decision.positive
        self.threshold = decision.threshold
        mask = torch.zeros(classes)
        mask[[] if self.positive is None else self.positive] = 2.0
        self.register_buffer("mask", mask)

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return probabilities and logits [n, F], and decisions int64 [n]."""
        probabilities, logits = self.raw(*given)
        others = (probabilities - self.mask).argmax(1)
        if self.positive is None:
            return probabilities, logits, others
        alarm = probabilities[:, self.positive] >= self.threshold
        return probabilities, logits, torch.where(alarm, self.positive, others)


def _translated(trained: Trained, given: Inputs, names: list[str]) -> onnx.ModelProto:
    """Return the model in ONNX, for any number of samples at a time."""
    module: nn.Module = trained.raw if trained.own is None else AtDevice(trained.raw)
    shapes: tuple[Any, ...] = ({0: torch.export.Dim("n")}, *({} for _ in range(len(given) - 1)))
    if trained.staying is not None:
        module = TakesOwn(module, trained.staying)
    if trained.decision is not None:
        module = Deciding(module, trained.decision, len(trained.classes))
    if isinstance(module, TakesOwn | Deciding):  # their inputs are one tuple
        shapes = (shapes,)
    try:
        with _quiet():
            program = torch.onnx.export(
                module, tuple(map(torch.from_numpy, given.values())), dynamo=True, opset_version=OPSET, verbose=False,
                input_names=list(given), output_names=names, dynamic_shapes=shapes,
            )  # fmt: skip
    except Exception as error:  # the exporter's own errors are many
        raise SettingError(
            f"network '{trained.name}' cannot be exported: {_reason(error)} "
            "fedfloor predict still works, and its weights are in model.safetensors."
        ) from error
    if program is None:
        raise SettingError(f"network '{trained.name}' cannot be exported: PyTorch's exporter returned nothing.")
    return program.model_proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's notes and dumps, hundreds of lines long."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    silence = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """Return the cause of an exporter's failure: the operator missing in ONNX, or the innermost error."""
    chain = [error]
    while (inner := chain[-1].__cause__) is not None:
        chain.append(inner)
    text = "\n".join(map(str, chain))
    lacking = re.search(r"No ONNX function found for <OpOverload\(op='([\w.:]+)'", text)
    if lacking:
        return f"ONNX has no operator for '{lacking[1].replace('aten.', 'torch.', 1)}' ({lacking[1]}). Use another."
    if "data-dependent" in text or "DataDependent" in text:
        return f"its control flow depends on computed numbers ({first_line(chain[-1])}). Use torch.where instead of if."
    return f"{type(chain[-1]).__name__}: {first_line(chain[-1])}"


def _describe(model: onnx.ModelProto, trained: Trained) -> None:
    """Replace the exporter's metadata by descriptions for users of the file."""
    model.doc_string = ""
    inner = [node for function in model.functions for node in function.node]
    for part in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info,
                 *model.graph.initializer, *model.functions, *inner, model.graph):  # fmt: skip
        del part.metadata_props[:]
        part.doc_string = ""
    del model.metadata_props[:]
    model.producer_name = "fedfloor"
    model.producer_version = __version__
    about: dict[str, Any] = {"classes": list(trained.classes), "shape": list(trained.shape)}
    if trained.task != CLASSIFICATION:
        names = {"names": list(trained.task.called())}
        about = {"task": trained.task.describe() | names, "shape": list(trained.shape)}
    about |= {"model": trained.name, "round": trained.round}
    if trained.threshold is not None:
        about["decide"] = dict(zip(("positive", "threshold"), trained.threshold, strict=True))
    if trained.sensors is not None:
        window = trained.sensors.window
        about |= {"columns": list(trained.sensors.columns), "missing": trained.sensors.missing}
        if trained.sensors.coding:
            about["coding"] = dict(trained.sensors.coding)
        about["normalise"] = {"kind": "inside"} | ({} if trained.levels is None else {"levels": trained.levels})
        if trained.own is not None:
            about["normalise"] = {"kind": "device", "rows": trained.own.rows}
        about["window"] = None if window is None else {"length": window[0], "step": window[1]}
    if (staying := trained.staying) is not None:
        about["own"] = {"numbers": staying.parcel.numbers, "file": staying.file, "run": staying.run}
    for key, value in {"fedfloor": __version__, **about}.items():
        entry = model.metadata_props.add()
        entry.key = key
        entry.value = value if isinstance(value, str) else json_text(value)


def _compare(trained: Trained, data: bytes, batches: list[Inputs], expected: list[Answer]) -> dict[str, float]:
    """Return the differences between ONNX Runtime and PyTorch, as in :class:`Exported`.

    Raises:
        SettingError: a difference exceeds :data:`TOLERANCE`, or ONNX Runtime cannot run the model.
    """
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are reported below
    try:
        onnx.checker.check_model(data, full_check=True)
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        got = [session.run(None, given) for given in batches]
    except Exception as error:  # their errors have no common base
        raise SettingError(
            f"network '{trained.name}' was exported, but ONNX Runtime cannot run it: {first_line(error)} No file was "
            "written. A network with torch.autocast needs enabled=self.training there, so that it predicts in float32."
        ) from error
    decision = trained.decision
    if decision is not None and any((decided != decision.of(p)).any() for p, _, decided in got):
        raise SettingError(f"network '{trained.name}' decides differently in ONNX Runtime. No file was written.")
    worst = dict.fromkeys(expected[0].parts(), 0.0)
    for number, (outputs, answer) in enumerate(zip(got, expected, strict=True)):
        edge = trained.sensors is not None and number == len(got) - 1
        sizes = answer.sizes()
        for (name, part), output in zip(answer.parts().items(), outputs, strict=False):
            with np.errstate(invalid="ignore"):
                gap = np.abs(output.astype(np.float64) - part) / sizes[name] * (not (edge and name == "probabilities"))
            gap = np.where(np.isposinf(part) & np.isposinf(output), 0.0, gap)  # a life beyond all that is known
            worst[name] = float(np.max([worst[name], gap.max()]))  # nan stays nan
    if not np.max([*worst.values()]) <= TOLERANCE:
        gaps = ", ".join(f"{gap:.1e} in {name}" for name, gap in worst.items())
        raise SettingError(
            f"network '{trained.name}' differs in ONNX Runtime by {gaps}; {TOLERANCE:.0e} is allowed. No file was "
            "written. Check the network for random numbers and very large sums."
        )
    return worst
