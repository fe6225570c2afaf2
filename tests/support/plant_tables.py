"""A made plant whose machines differ in the level and the range of their sensors more than a fault changes these."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import fedfloor
from fedfloor.data.reading import DeviceSplit, TimeSplit, Window
from fedfloor.experiment import DataSettings, EngineSettings, ModelSettings
from fedfloor.park.normalise import Normalise
from fedfloor.parts.work import WorkSettings

ROWS = 120  # of each machine


def plant(path: Path, machines: int = 5, holes: bool = False) -> Path:
    """Write a table: machine k's temperature lies around 100·k, its torque is k + 1 times another's."""
    rng = np.random.default_rng(0)
    text = ["device,time,temp,torque,label"]
    for k in range(machines):
        for time in range(ROWS):
            worn = (time // 15 + k) % 2
            temp = "" if holes and rng.random() < 0.05 else f"{100 * k + 3 * worn + rng.normal():.3f}"
            text.append(f"m{k},{time},{temp},{(k + 1) * rng.normal(5):.3f},{('good', 'worn')[worn]}")
    path.write_text("\n".join(text) + "\n")
    return path


def experiment(
    table: Path, normalise: Normalise, split: TimeSplit | DeviceSplit | None = None, window: Window | None = None,
    missing: str = "refuse", **tables: object,
) -> fedfloor.Experiment:  # fmt: skip
    data = DataSettings(path=str(table), normalise=normalise, split=split, window=window, missing=missing)  # type: ignore[arg-type]
    work = WorkSettings(batch_size=8, lr=0.05)
    more = {"engine": EngineSettings(), "rounds": 3} | tables
    return fedfloor.Experiment(data=data, model=ModelSettings("logistic"), work=work, **more)  # type: ignore[arg-type]
