"""A released model on a device: an ONNX file, which is checked before it is loaded, and its answers as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfloor.base.arrays import mapped
from fedfloor.base.errors import shown
from fedfloor.base.ranges import RefusedError, table, whole
from fedfloor.rollout import drift
from fedfloor.rollout.drift import Levels
from fedfloor.rollout.statement import MOST_BYTES, Statement

log = logging.getLogger(__name__)
FILE = re.compile(r"own-[0-9a-f]{32}\.npy", re.ASCII)  # a device's personal part
DEEPEST = 16  # levels of nested graphs
OWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")
# The parts of an ONNX file that may hold tensors or operators: message → {number of a field: its message}
PARTS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
TEXTS = ("fedfloor", "model", "missing")  # metadata that are plain texts; all others are JSON
TRAINING = 20
DOMAIN = 7
FUNCTION_DOMAIN = 10
EXTERNAL = 13
LOCATION = 14


def check_file(data: bytes) -> None:
    """Raise RefusedError for a file that refers to other files, or to operators other than ONNX's and its functions."""
    domains = set(OWN_DOMAINS)
    used = set()
    try:
        for part, number, value in _fields(memoryview(data), "model", 0):
            if part == "tensor" and (number == EXTERNAL or (number == LOCATION and value)):
                raise RefusedError("external", "its weights are in another file. Export it with the weights inside.")
            if part == "model" and number == TRAINING:
                raise RefusedError("form", "it holds a training graph.")
            if part == "function" and number == FUNCTION_DOMAIN and isinstance(value, memoryview):
                domains.add(bytes(value).decode())
            if part == "node" and number == DOMAIN and isinstance(value, memoryview):
                used.add(bytes(value).decode())
    except (IndexError, ValueError) as error:
        raise RefusedError("form", "it is not an ONNX file.") from error
    if foreign := used - domains:
        raise RefusedError("operator", f"it uses operators of {sorted(foreign)[0]!r:.80}.")


def _fields(view: memoryview, part: str, depth: int) -> Iterator[tuple[str, int, int | memoryview]]:
    """Yield (message, number, value) of each field of a protobuf message and of its nested messages."""
    if depth > 4 * DEEPEST:
        raise ValueError("nested too deeply")
    at = 0
    while at < len(view):
        key, at = _varint(view, at)
        number = key >> 3
        kind = key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield part, number, value
        elif kind == 2:
            size, at = _varint(view, at)
            inner = view[at : at + size]
            at = at + size
            if at > len(view):
                raise ValueError("cut short")
            yield part, number, inner
            if number in PARTS[part]:
                yield from _fields(inner, PARTS[part][number], depth + 1)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("an unknown kind of field")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = view[at]
        value = value | (byte & 0x7F) << shift
        at = at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number without end")


@dataclass
class OwnPart:
    """The personal part of a run's model on a device, as written by its training: an input of released models.

    Args:
        path: file of the part, which training replaces after each visit.
        numbers: number of its values P.
        run: name of the run.
    """

    path: Path
    numbers: int
    run: str
    _stamp: tuple[int, ...] = ()  # time of the last change of the file that was read
    _values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    @classmethod
    def of(cls, about: object, folder: Path) -> OwnPart:
        """Return the part named in a model's metadata, from a device's folder; raise RefusedError if none is named."""
        known = table(about, 3, "own")
        numbers = whole(known.get("numbers"), 1, MOST_BYTES // 4, "own.numbers")
        file = known.get("file")
        run = known.get("run")
        if not isinstance(file, str) or not FILE.fullmatch(file) or not isinstance(run, str):
            raise RefusedError("form", "'own' does not name a run and the file of a personal part.")
        return cls(folder / file, numbers, shown(run))

    def now(self) -> NDArray[np.float32]:
        """Return the current values [P] of the file; if it is missing or damaged, the last values read.

        Raises:
            RefusedError: the file was never readable.
        """
        stamp = (0, 0, 0)
        with contextlib.suppress(OSError):
            status = self.path.stat()
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._values = self._read()
            except RefusedError as error:
                if not self._values.size:
                    raise
                log.error("%s The values read before remain in use.", error)
        return self._values

    def _read(self) -> NDArray[np.float32]:
        try:
            stored = mapped(self.path)
        except FileNotFoundError:
            raise RefusedError(
                "own", f"this device has no personal part: it has not trained in run {self.run} ({self.path})."
            ) from None
        except (OSError, ValueError, EOFError, OverflowError) as error:
            raise RefusedError("own", f"{self.path} is damaged ({error}).") from error
        if stored.dtype != np.dtype("<f4") or stored.shape != (self.numbers,):
            held = f"{stored.dtype} {list(stored.shape)}"
            raise RefusedError("own", f"{self.path} holds {held}; the model requires float32 [{self.numbers}].")
        values = np.array(stored)
        if not np.isfinite(values).all():
            raise RefusedError("own", f"{self.path} holds infinite or undefined numbers.")
        return values


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model for predictions.

    Args:
        session: the session of ONNX Runtime.
        about: the file's metadata: ``classes`` or ``task``, ``columns``, ``window``, ``decide``.
        scale: the additional inputs ``mean`` and ``std``; empty if the model has none.
        own: the device's personal part, the input ``own``; None if the model has none.
    """

    statement: Statement
    session: Any
    shape: tuple[int, ...]
    about: dict[str, Any]
    scale: dict[str, NDArray[np.float32]]
    own: OwnPart | None = None

    @property
    def kind(self) -> type[np.generic]:
        """The type of a sample's values: float32 for sensors, uint8 for pictures."""
        return np.float32 if "columns" in self.about else np.uint8

    @property
    def levels(self) -> Levels | None:
        """Mean and deviation [C] of each sensor in training, of all devices or of this one; None if unknown."""
        pair = self.statement.scale or self.about.get("normalise", {}).get("levels")
        return None if pair is None else (tuple(map(float, pair[0])), tuple(map(float, pair[1])))

    def outputs(self, x: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the model's output arrays for samples [n, *shape], by name."""
        names = [one.name for one in self.session.get_outputs()]
        given = {"x": np.ascontiguousarray(x, self.kind)} | self.scale
        if self.own is not None:
            given["own"] = self.own.now()
        return dict(zip(names, self.session.run(None, given), strict=True))

    def answers(self, x: NDArray[Any]) -> list[dict[str, Any]]:
        """Return the answer for each sample as JSON, with ``alarm`` if the model decides on alarms."""
        parts = self.outputs(x)
        kinds = {"probabilities": self._class, "score": self._score, "chance": self._life}
        read = next((kinds[name] for name in parts if name in kinds), self._numbers)
        return [read(parts, i) for i in range(len(x))]

    def _class(self, parts: dict[str, NDArray[Any]], i: int) -> dict[str, Any]:
        best = int(parts["decision"][i] if "decision" in parts else parts["logits"][i].argmax())
        name = self.about["classes"][best]
        answer = {"class": name, "probability": float(parts["probabilities"][i, best])}
        decide = self.about.get("decide")
        return answer if decide is None else answer | {"alarm": name == decide["positive"]}

    def _score(self, parts: dict[str, NDArray[Any]], i: int) -> dict[str, Any]:
        score = float(parts["score"][i])
        alarm = not score <= 1 and self.about["task"].get("threshold") is not None  # NaN raises an alarm
        return {"score": score if np.isfinite(score) else None, "alarm": alarm}

    def _life(self, parts: dict[str, NDArray[Any]], i: int) -> dict[str, Any]:
        values = {name: float(part[i]) for name, part in parts.items()}
        return {name: value if np.isfinite(value) else None for name, value in values.items()}

    def _numbers(self, parts: dict[str, NDArray[Any]], i: int) -> dict[str, Any]:
        names = self.about["task"]["names"]
        return {("predicted" if key == "value" else key): dict(zip(names, part[i].tolist(), strict=True))
                for key, part in parts.items()}  # fmt: skip


def load(data: bytes, statement: Statement, folder: Path = Path()) -> Model:
    """Return the model of an ONNX file with a verified hash, after a trial run; raise RefusedError if it is unusable.

    Args:
        folder: folder of the device's personal part, for a model that needs it.
    """
    check_file(data)
    try:
        import onnxruntime
    except ImportError as error:
        raise RefusedError("packages", "onnxruntime is not installed here: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # the arena would keep the memory of the largest batch
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        texts = session.get_modelmeta().custom_metadata_map
        about = {key: text if key in TEXTS else json.loads(text) for key, text in texts.items()}
        shape = tuple(int(size) for size in about["shape"])
        pair = () if statement.scale is None else np.array(statement.scale, np.float32)
        own = None if "own" not in about else OwnPart.of(about["own"], folder)
        made = Model(statement, session, shape, about, dict(zip(("mean", "std"), pair, strict=False)), own)
        made.answers(np.zeros((1, *shape), made.kind))
        drift.reference(made.levels, shape[0])
    except RefusedError:
        raise
    except Exception as error:  # ONNX Runtime's errors have no common base
        raise RefusedError("model", f"it does not run here: {str(error)[:300]}") from error
    if texts.get("model") != statement.network:
        raise RefusedError("network", f"the file's network is {texts.get('model')!r:.80}, not '{statement.network}'.")
    return made
