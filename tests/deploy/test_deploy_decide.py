"""Validation, thresholds and temperatures in runs on real machines: chosen at the cloud, applied by the model file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_deploy_data import DEVICES
from test_deploy_survey import written

from fedfloor import config
from fedfloor.data.dataset import Dataset
from fedfloor.deploy.settings import DataSource
from fedfloor.inference.trained import load_model
from fedfloor.park.build import of_tests
from fedfloor.parts.decision import measured
from fedfloor.runs.parks import load_data
from live_park import live, simulated

SHARE = 0.4
ASKED = f"""
evaluate = {{ on = "both", validation = {SHARE} }}
decide = {{ positive = "bad", by = {{ recall = 0.8 }}, calibrate = "temperature" }}
"""


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "evaluation.json").read_text())
    return found


def test_devices_that_read_the_experiments_data_have_the_simulations_decision(tmp_path: Path) -> None:
    what = written(tmp_path, "robust", ASKED)
    simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.run()
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "live" / name).read_bytes() == (tmp_path / "simulated" / name).read_bytes()
    assert told(tmp_path / "live")["decide"] == told(tmp_path / "simulated")["decide"]


def split(data: Dataset) -> tuple[Dataset, Dataset]:
    return of_tests(data, SHARE, 0, whole_devices=False)


@pytest.mark.parametrize("window", ["", "data.window = { length = 4, step = 2 }"])
@pytest.mark.parametrize("kind", ["robust", "regime"])
def test_devices_with_own_samples_leave_the_choice_to_a_part_of_the_clouds_test_samples(
    tmp_path: Path, kind: str, window: str
) -> None:
    what = written(tmp_path, kind, f"{ASKED}\n{window}")
    with live(tmp_path, what, data=lambda k: DataSource("folder", tmp_path / f"{k}.csv")) as park:
        park.run()
    data = load_data(config.read(what, []))
    remain, chosen = split(data)
    evaluation = told(tmp_path / "live")
    trained = load_model(tmp_path / "live")
    decision = trained.decision
    assert decision is not None
    assert evaluation["decide"]["validation"]["samples"] == len(chosen.y_test)
    assert len(chosen.y_test) + len(remain.y_test) <= len(data.y_test)  # windows that share rows with both are left out
    assert evaluation["best"]["round"] >= 1
    bad = trained.classes.index("bad")
    for part, key in ((chosen, "validation"), (remain, "decided")):
        x, y = part.take_test(np.arange(len(part.y_test))), part.y_test
        found = measured(decision.of(trained.predict(x)) == bad, y == bad)
        place = evaluation["decide"]["validation"] if key == "validation" else evaluation["decide"]["decided"]
        assert {name: place[name] for name in found} == found
    assert evaluation["decide"]["validation"]["recall"] >= 0.8


def test_no_row_both_chooses_and_tests(tmp_path: Path) -> None:
    what = written(tmp_path, "robust", "data.window = { length = 4, step = 1 }")
    data = load_data(config.read(what, []))
    remain, chosen = split(data)
    assert remain.first_test is not None
    assert chosen.first_test is not None
    rows = [{row + i for row in one.first_test.tolist() for i in range(4)} for one in (remain, chosen)]  # type: ignore[union-attr]
    assert not rows[0] & rows[1]
    assert remain.owner_test is not None
    assert len(np.unique(remain.owner_test)) == DEVICES  # a share of each
    apart, held = of_tests(data, SHARE, 0, whole_devices=True)
    assert apart.owner_test is not None
    assert held.owner_test is not None
    assert not set(apart.owner_test.tolist()) & set(held.owner_test.tolist())
