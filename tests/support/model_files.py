"""Models as a run leaves them, made by hand: any network, any samples, weights from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from fedfloor.base.checking import parsed
from fedfloor.inference.samples import Sensors
from fedfloor.inference.trained import InputsHeader
from networks import build

SENSORS = {"kind": "table", "columns": ["temp", "torque"], "window": None, "missing": "refuse"}
WINDOWS = SENSORS | {"window": {"length": 4, "step": 2}}


def write_model(
    folder: Path,
    name: str = "logistic",
    shape: tuple[int, ...] = (1, 28, 28),
    classes: tuple[str, ...] = ("ok", "worn"),
    **other: Any,
) -> Path:
    """Write ``model.safetensors`` with the weights a run would begin with; ``other`` replaces keys of its header."""
    network = build(name, shape, len(classes), seed=0)
    image = len(shape) == 3
    about = {
        "format": "fedfloor 1", "model": name, "round": 3, "shape": list(shape), "classes": list(classes),
        "inputs": {"kind": "image"} if image else SENSORS if len(shape) == 1 else WINDOWS,
        "normalise": {
            "scale": 1 / 255 if image else 1.0,
            "mean": [0.25 + i for i in range(shape[0])],
            "std": [0.5 + i for i in range(shape[0])],
        },
    }  # fmt: skip
    header = {key: value for key, value in (about | other).items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    path.write_bytes(save(network.state(network.flat), metadata={"fedfloor": json.dumps(header)}))
    return folder


def sensors_of(inputs: dict[str, Any]) -> Sensors | None:
    """Return the sensors of a model with these ``inputs`` in its header."""
    return parsed(InputsHeader, json.dumps(inputs), "model", "the inputs of a model", "").sensors()
