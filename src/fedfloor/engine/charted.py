"""Control charts of test recordings, for the report: a network that draws them says what it compares with which limits.

Such a network has ``charted(x, sensors)``, which returns the names of its values [J], the values [n, J] of samples, and
their lower limits, centre lines and upper limits [3, J], all in the units of its inputs; and for each name the sensor
in whose unit the value is, with 1 for a place and 0 for a deviation, or None.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfloor.engine.calibrate import calibrated
from fedfloor.engine.engine import Engine

MOST_VALUES = 4  # drawn of each recording: those that leave their limits farthest
MOST_ROWS = 600  # of a recording, its last ones
DIGITS = 6


def charted(engine: Engine, model: Tensor) -> list[dict[str, Any]]:
    """Return the charts of the recordings with the most abnormal and the most normal samples, as JSON.

    Empty for other networks, and where samples have no order.
    """
    data = engine.park.dataset
    draw = getattr(engine.network.module, "charted", None)
    if draw is None or data.recording_test is None:
        return []
    engine.network.flat.copy_(model)
    engine.network.module.eval()
    task: Any = calibrated(engine)
    recording = np.asarray(data.recording_test)
    odd = np.asarray(data.y_test) > 0
    order = sorted(set(recording.tolist()), key=lambda one: (-int(odd[recording == one].sum()), one))
    chosen = [order[0], *order[-1:]] if len(order) > 1 else order
    made = [_chart(engine, draw, task, np.flatnonzero(recording == one)[-MOST_ROWS:]) for one in chosen]
    return [chart for chart in made if chart is not None]


def _chart(engine: Engine, draw: Any, task: Any, rows: NDArray[np.int64]) -> dict[str, Any] | None:
    data = engine.park.dataset
    with torch.inference_mode():
        x = engine.wrap(*engine.park.test(rows)).values(slice(None))
        drawn = draw(x, data.inputs.columns)
        if drawn is None:
            return None
        named, values, lines = drawn
        alarm = task.predicted(engine.network.module(x)).cpu().numpy() > 0
    low, center, high = lines.double().cpu().numpy()
    value = values.double().cpu().numpy()
    room = np.where(value < center, center - low, high - center)
    beyond = np.where(room > 0, np.abs(value - center) / np.where(room > 0, room, 1.0), 0.0).max(0)
    kept = sorted(np.argsort(-beyond, kind="stable")[:MOST_VALUES].tolist())
    mean, unit = (values.cpu().numpy() for values in (engine.mean, engine.std))

    def shown(numbers: Any, place: tuple[int, int] | None) -> Any:
        plain = numbers if place is None else numbers * unit[place[0]] + mean[place[0]] * place[1]
        return [float(f"{number:.{DIGITS}g}") for number in np.atleast_1d(plain)]

    device = int(engine.park.test_devices[rows[0]])
    return {
        "device": device,
        "alarm": alarm.astype(int).tolist(),
        "abnormal": (np.asarray(data.y_test)[rows] > 0).astype(int).tolist(),
        "values": [
            {"name": named[j][0], "value": shown(value[:, j], named[j][1]),
             "limits": shown(np.array([low[j], center[j], high[j]]), named[j][1])}
            for j in kept
        ],
    }  # fmt: skip
