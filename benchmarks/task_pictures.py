"""The pictures of docs/tasks.md, from the runs of the demonstrations.

    fedfloor demo --task life --out RUNS/life        # and forecast, faults, anomaly
    python benchmarks/task_pictures.py RUNS [--out docs]

Each shows the model of FedAvg, in its last round, on a recording of a machine that it did not train on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from fedfloor import config
from fedfloor.inference.trained import load_model
from fedfloor.park.park import Park
from fedfloor.runs.parks import build_park

mpl.use("svg")
mpl.rcParams.update({"svg.hashsalt": "fedfloor", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})

from matplotlib import pyplot as plt

RUN = "fedavg-seed0"
BLUE = "#1f6fb4"
ORANGE = "#d9731a"
GREY = "#777777"
Values = NDArray[Any]


def read(folder: Path) -> tuple[Park, Any]:
    """Return a run's park, and what its model answers for the test samples."""
    park = build_park(config.read(folder / RUN / "experiment.toml"))
    return park, load_model(folder / RUN).answer(park.test()[0])


def recording(park: Park) -> Values:
    """Return the test samples of the machine that has most."""
    owner = park.dataset.owner_test
    return np.flatnonzero(owner == np.bincount(owner).argmax())


def life(folder: Path, axes: Any) -> None:
    """Draw true and predicted remaining life."""
    park, found = read(folder)
    rows = recording(park)
    true = park.dataset.target_test[rows, 0]
    predicted = np.asarray(found.value)[rows].reshape(len(rows), -1)[:, 0]
    at = np.arange(len(rows)) * stride(park.test()[0][rows][:, 0])
    axes.plot(at, np.minimum(true, park.dataset.task.cap), color=GREY, label="true, up to the cap")
    axes.plot(at, predicted, color=BLUE, label="predicted")
    axes.set(xlabel="row", ylabel="rows until failure")


def forecast(folder: Path, axes: Any) -> None:
    """Draw a sensor, and its forecasts from every tenth window."""
    park, found = read(folder)
    rows = recording(park)
    task = park.dataset.task
    sensor = task.sensors[0]
    h = np.arange(1, task.horizon + 1)
    value = np.asarray(found.value)[rows].reshape(len(rows), len(task.sensors), -1)[:, 0]
    x = park.test()[0][rows][:, park.dataset.inputs.columns.index(sensor)]
    step = stride(x)
    axes.plot(np.arange(len(rows)) * step, x[:, -1], color=GREY, label="measured")
    for i in range(0, len(rows), 4):
        axes.plot(i * step + h, value[i], color=BLUE, label="forecasts, 5 rows ahead" if i == 0 else None)
    axes.set(xlabel="row", ylabel=sensor)


def stride(x: Values) -> int:
    """Return how many rows lie between a recording's windows."""
    length = x.shape[1]
    return next(step for step in range(1, length) if np.array_equal(x[0, step:], x[1, : length - step]))


def faults(folder: Path, axes: Any) -> None:
    """Draw the probability of a fault, and where there is one."""
    park, found = read(folder)
    rows = recording(park)
    y = park.dataset.y_test[rows]
    normal = park.dataset.classes.index("normal")
    chance = 1 - np.asarray(found.probabilities)[rows, normal]
    at = np.arange(len(rows)) * stride(park.test()[0][rows][:, 0])
    axes.fill_between(at, 0, y != normal, step="mid", color=ORANGE, alpha=0.3, label="a fault")
    axes.plot(at, chance, color=BLUE, label="probability of any fault")
    axes.set(xlabel="row", ylabel="probability")


def anomaly(folder: Path, axes: Any) -> None:
    """Draw scores as multiples of the threshold, and where there is an anomaly."""
    park, found = read(folder)
    rows = recording(park)
    at = np.arange(len(rows)) * stride(park.test()[0][rows][:, 0])
    score = np.asarray(found.score)[rows]
    axes.fill_between(at, 0, score.max() * (park.dataset.y_test[rows] > 0), step="mid", color=ORANGE, alpha=0.3,
                      label="an anomaly")  # fmt: skip
    axes.plot(at, score, color=BLUE, label="score")
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle="--", label="threshold")
    axes.set(xlabel="row", ylabel="score / threshold")


def main() -> None:
    """Draw all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of the demonstrations' folders")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    given = parser.parse_args()
    for draw in (life, forecast, faults, anomaly):
        figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
        draw(given.runs / draw.__name__, axes)
        figure.legend(frameon=False, loc="outside upper right", ncols=3)
        figure.savefig(given.out / f"task-{draw.__name__}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
