"""Validation by whole devices, where whole devices are for testing: what chooses neither trains nor tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedfloor
from commands import lines
from fedfloor.data.files import own
from fedfloor.data.reading import DeviceSplit, Reading, TimeSplit, Window
from fedfloor.experiment import EvaluateSettings, Experiment
from fedfloor.park.build import build
from fedfloor.park.normalise import DeviceNormaliser
from fedfloor.park.partition import Iid
from fedfloor.parts.decision import DecideSettings
from fedfloor.runs.parks import build_park
from plant_tables import experiment, plant
from refusals import refused

MACHINES = 10


def floor(folder: Path) -> Path:
    return plant(folder / "floor.csv", machines=MACHINES)


def halls(path: Path) -> Path:
    """Put machines into halls of two."""
    head, *rows = path.read_text().splitlines()
    text = [f"hall,{head.replace('device', 'device')}", *(f"h{int(row[1]) // 2},{row}" for row in rows)]
    path.write_text("\n".join(text).replace("hall,", "factory,", 1) + "\n")
    return path


def owners(data: own.Dataset, numbers: np.ndarray) -> set[str]:
    return {data.owned.names[k] for k in np.unique(numbers).tolist()}


@pytest.mark.parametrize("window", [None, Window(6, 2)])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.99])
def test_no_device_trains_chooses_and_tests(tmp_path: Path, window: Window | None, share: float) -> None:
    data = own.load(floor(tmp_path), Reading(split=DeviceSplit(test=0.2), window=window), 0)
    whole = build(data)
    park = build(data, validation=share, whole_devices=True)
    assert data.owner_test is not None
    assert park.dataset.owner_test is not None
    tests = owners(data, data.owner_test)
    chooses = owners(data, park.dataset.owner_test)
    trains = set(park.names)
    assert not tests & chooses | chooses & trains | trains & tests
    assert len(tests | chooses | trains) == MACHINES
    assert len(chooses) == min(whole.devices - 1, max(1, round(share * whole.devices)))
    assert park.test_samples + sum(park.sizes) == sum(whole.sizes)  # whole devices: no sample is lost
    x, y = park.test()
    kept = [whole.samples(k) for k, name in enumerate(whole.names) if name in chooses]
    assert np.array_equal(x, np.concatenate([one[0] for one in kept]))
    assert np.array_equal(y, np.concatenate([one[1] for one in kept]))
    for k, name in enumerate(park.names):
        assert np.array_equal(park.samples(k)[0], whole.samples(whole.names.index(name))[0])


def test_the_seed_draws_and_the_test_devices_stay(tmp_path: Path) -> None:
    data = own.load(floor(tmp_path), Reading(split=DeviceSplit(test=0.2)), 0)
    drawn = {tuple(build(data, validation=0.3, seed=seed, whole_devices=True).names) for seed in range(6)}
    assert len(drawn) > 1
    assert (
        build(data, validation=0.3, seed=3, whole_devices=True).names
        == build(data, validation=0.3, seed=3, whole_devices=True).names
    )


def test_factories_that_lose_all_their_devices_are_left_out(tmp_path: Path) -> None:
    data = own.load(halls(floor(tmp_path)), Reading(split=DeviceSplit(test=0.2)), 0)
    for seed in range(8):
        park = build(data, validation=0.5, seed=seed, whole_devices=True)
        assert set(park.factory_of.tolist()) == set(range(park.factories))
        for name, m in zip(park.names, park.factory_of.tolist(), strict=True):
            assert park.factory_names[m] == f"h{int(name[1]) // 2}"


def test_other_splits_hold_out_of_every_device_as_before(tmp_path: Path) -> None:
    timed = experiment(floor(tmp_path), "standard", TimeSplit(), evaluate=EvaluateSettings(on="validation"))
    assert build_park(timed).devices == MACHINES
    split = own.load(tmp_path / "floor.csv", Reading(split=DeviceSplit(test=0.2)), 0)
    mixed = build(
        split, validation=0.2, devices=5, partition=Iid(), whole_devices=True
    )  # devices are not machines there
    assert mixed.devices == 5


def what(folder: Path, on: str, **more: object) -> Experiment:
    evaluate = EvaluateSettings(on=on, validation=0.25)  # type: ignore[arg-type]
    return experiment(floor(folder), DeviceNormaliser(rows=30), DeviceSplit(test=0.2), evaluate=evaluate, **more)


def test_a_threshold_is_chosen_on_machines_that_neither_train_nor_test(tmp_path: Path) -> None:
    one = what(tmp_path, "both", decide=DecideSettings(positive="worn", by={"recall": 0.9}))  # type: ignore[arg-type]
    park = build_park(one)
    assert park.devices == MACHINES - 2 - 2
    assert park.validating is not None
    assert park.validating.test_samples == 2 * 120
    run = fedfloor.run(one, tmp_path / "run", ranks=1)
    told = json.loads((run.folder / "evaluation.json").read_text())
    assert told["decide"]["validation"]["samples"] == 2 * 120
    assert told["best"]["round"] >= 1
    known = {row["name"] for row in told["devices"] if row["accuracy"] is not None}
    assert len(known) == 2  # of the machines that test


def test_figures_per_device_on_validation_data_are_of_the_held_out_ones(tmp_path: Path) -> None:
    one = what(tmp_path, "validation")
    run = fedfloor.run(one, tmp_path / "run", ranks=1)
    told = json.loads((run.folder / "evaluation.json").read_text())
    park = build_park(one)
    tested = {row["name"] for row in told["devices"] if row.get("role") == "tests only"}
    assert len(tested) == 2
    assert not tested & set(park.names)
    assert lines(run.folder)[-1]["by_device"]


def test_a_share_out_of_range_is_refused(tmp_path: Path) -> None:
    data = own.load(floor(tmp_path), Reading(split=DeviceSplit(test=0.2)), 0)
    with refused("evaluate.validation"):
        build(data, validation=1.0, whole_devices=True)
