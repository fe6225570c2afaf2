"""A kept model on real machines: devices with rows of their own find its thresholds again, as the simulation does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_deploy_tasks import DEVICES, folder_of, plant

from fedfloor.models.saved import content
from live_park import experiment, live, simulated
from refusals import refused

LIFE = "data.task = { kind = 'regression', cap = 40, unit = 'rows', coverage = 0.6 }"
KEYS = "data.columns = { time = 'row', label = 'life' }\ndata.window = { length = 6, step = 2 }\n"


def asked(folder: Path, root: Path, more: str = "", rounds: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    text = f"data.path = '{root}'\n{KEYS}{LIFE}\nevaluate.validation = 0.4\n{more}"
    return experiment(folder, "fedavg", rounds, devices=DEVICES, model="mlp-sensor", more=text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder of a plant that has new rows since the model in ``first`` was trained."""
    made = plant(tmp_path)
    simulated(asked(tmp_path / "a", made, rounds=2), tmp_path / "first")
    for path in made.rglob("*.csv"):  # its oil runs warmer, and it wears faster
        head, *rows = path.read_text().splitlines()
        at = head.split(",").index("oil")
        cells = [row.split(",") for row in rows]
        moved = [[*row[:at], str(float(row[at]) + 1), *row[at + 1 :]] for row in cells]
        path.write_text("\n".join([head, *map(",".join, moved)]) + "\n")
    return made


def test_devices_find_the_margins_of_a_kept_model_again(tmp_path: Path, root: Path) -> None:
    keep = f"model.init_from = '{tmp_path / 'first'}'\nmodel.keep = true"
    again = asked(tmp_path / "b", root, keep)
    simulated(again, tmp_path / "simulated")
    with live(
        tmp_path, asked(tmp_path / "c", root), data=folder_of(root)
    ) as park:  # of the devices: they know no model
        replace(park, what=again).run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    (old, first), (new, kept) = (content(tmp_path / name / "model.safetensors") for name in ("first", "live"))
    assert all(torch.equal(first[name], kept[name]) for name in first)
    assert new["normalise"] == old["normalise"]
    assert {name for name in old["task"] if old["task"][name] != new["task"][name]} == {"margins"}
    told, wanted = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("live", "simulated"))
    assert told["recalibrated"]["before"]["measured"] == wanted["recalibrated"]["before"]["measured"]
    assert told["recalibrated"]["after"]["measured"] == wanted["recalibrated"]["after"]["measured"]


def test_statistics_that_devices_measure_anew_are_refused(tmp_path: Path, root: Path) -> None:
    more = "data.normalise = 'robust'"
    simulated(asked(tmp_path / "a", root, more), tmp_path / "robust")
    again = asked(tmp_path / "b", root, f"{more}\nmodel.init_from = '{tmp_path / 'robust'}'\nmodel.keep = true")
    with live(tmp_path, asked(tmp_path / "c", root, more), data=folder_of(root)) as park, refused("model.keep"):
        replace(park, what=again).run()
