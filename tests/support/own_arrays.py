"""Made-up arrays of one's own in an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedfloor.data.dataset import Dataset
from fedfloor.data.files.own import load
from fedfloor.data.reading import Reading

N = 20
Arrays = dict[str, Any]


def rows(**more: Any) -> Arrays:
    """x[i] = (i, i / 2), y[i] = i mod 2, devices b and a in turns."""
    x = np.stack([np.arange(N), np.arange(N) / 2], axis=1)
    return {"x": x, "y": np.arange(N) % 2, "device": np.array(["b", "a"] * (N // 2)), **more}


def without(arrays: Arrays, *names: str) -> Arrays:
    return {name: array for name, array in arrays.items() if name not in names}


def read(folder: Path, arrays: Arrays, reading: Reading | None = None, seed: int = 0) -> Dataset:
    np.savez(folder / "own.npz", **arrays)
    return load(folder / "own.npz", reading or Reading(), seed)


def taken(data: Dataset) -> list[float]:
    """The first number of each training sample, in ascending order."""
    return sorted(data.take(np.arange(len(data.y)), 0).reshape(len(data.y), -1)[:, 0].tolist())
