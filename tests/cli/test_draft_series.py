"""Whether rows follow each other, and whether labels wear on: what drafts take from the order of a table's rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedfloor.data.dataset import Dataset
from fedfloor.data.files.own import load
from fedfloor.data.reading import Columns, Reading, TimeSplit
from fedfloor.drafting.findings import neighbours_alike
from fedfloor.drafting.splits import wears


def read(folder: Path, rows: list[str], columns: str = "device,time,load,state") -> Dataset:
    path = folder / "plant.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    return load(path, Reading(columns=Columns(label="state"), split=TimeSplit(0.25)), 0)


@pytest.mark.parametrize(
    ("states", "worn"),
    [("nnnnwwww", True), ("nnwwnnww", False), ("nnnnnwnw", False)],  # the last quarter is for testing
)
def test_a_label_wears_where_none_returns(tmp_path: Path, states: str, worn: bool) -> None:
    rows = [f"a,{t},{t % 3},{state}" for t, state in enumerate(states)]
    rows += [f"b,{t},{t % 3},{state}" for t, state in enumerate(states)]
    assert wears(read(tmp_path, rows)) is worn


@pytest.mark.parametrize("walks", [True, False])
def test_rows_of_a_single_sensor_are_alike_where_it_moves_slowly(tmp_path: Path, walks: bool) -> None:
    """A random walk of 800 steps differs from row to row far less than over all; independent rows do not."""
    drawn = np.random.default_rng(0).normal(size=800)
    values = np.cumsum(drawn) if walks else drawn
    rows = [f"a,{t},{value:.6f},{'nw'[t >= 400]}" for t, value in enumerate(values)]
    assert neighbours_alike(read(tmp_path, rows)) is walks
