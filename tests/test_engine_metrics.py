"""Confusion, F1 and accuracies, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedfloor
from fedfloor.data.dataset import Owned, Pool, pooled
from fedfloor.engine import metrics
from fedfloor.experiment import DataSettings, EvaluateSettings, Experiment, ModelSettings, ParkSettings
from fedfloor.park.described import device_accuracy
from fedfloor.park.park import Park

TABLE = np.array([[3, 1, 0], [2, 2, 0], [0, 0, 0]])  # nothing of the third class, and nothing taken for it


def test_rows_are_true_classes_and_columns_predicted_ones() -> None:
    y, said = np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 1, 0, 0, 1, 1])
    assert metrics.confusion(y, said, 3).tolist() == TABLE.tolist()


def test_macro_f1_by_hand() -> None:
    # class 0: TP 3, FP 2, FN 1 → 6/9; class 1: TP 2, FP 1, FN 2 → 4/7; the third neither occurs nor is predicted
    assert metrics.macro_f1(TABLE) == pytest.approx((6 / 9 + 4 / 7) / 2, abs=1e-15)
    assert metrics.macro_f1(np.diag([5, 1, 2])) == 1


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    # class 0: TP 1, FN 1 → 2/3; class 1: FP 1 → 0
    assert metrics.macro_f1(np.array([[1, 1], [0, 0]])) == pytest.approx(1 / 3)


def test_accuracy_by_class_leaves_out_what_has_no_samples() -> None:
    share = metrics.class_accuracy(TABLE)
    assert share[:2].tolist() == [0.75, 0.5]
    assert math.isnan(share[2])


def owned_park() -> Park:
    """Devices 0, 1 in factory 1 and device 2 in factory 0, with 2, 1 and 1 test samples of their own."""
    train = Pool(np.zeros((6, 1, 2, 2), np.uint8), np.array([0, 1, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 2, 2], np.int32))
    test = Pool(np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 2], np.int32))
    owned = Owned(("a", "b", "c"), np.array([1, 1, 0], np.int32), ("north", "south"))
    data = pooled("tiny", ("x", "y"), train, test, "", owned)
    parts = tuple(np.flatnonzero(train.owner == k) for k in range(3))
    return Park(data, parts, np.array([1, 1, 0], np.int32), factory_names=owned.factories)


def test_a_factory_is_weighed_by_its_devices_test_samples() -> None:
    park = owned_park()
    right = np.array([True, False, True, False])
    devices = device_accuracy(park, right, np.array([1.0, 0.0]))
    assert devices.tolist() == [0.5, 1.0, 0.0]
    assert metrics.factory_accuracy(park, devices) == [0.0, 2 / 3]  # (2·0.5 + 1·1) / 3
    told = metrics.describe(park, metrics.confusion(park.dataset.y_test, np.array([0, 0, 0, 0]), 2), devices)
    assert told["devices"][1] == {"device": 1, "name": "b", "factory": 1, "accuracy": 1.0}
    assert told["factories"][0] == {"factory": 0, "name": "north", "accuracy": 0.0}
    assert json.loads(json.dumps(told)) == told


def test_without_own_test_samples_devices_weigh_as_much_as_they_hold() -> None:
    park = owned_park()
    park = replace(park, dataset=replace(park.dataset, owner_test=None))
    devices = device_accuracy(park, np.array([True, False, True, False]), np.array([1.0, 0.0]))
    assert devices.tolist() == [0.5, 1.0, 0.0]  # their class mixes: half x, all x, all y
    assert metrics.factory_accuracy(park, devices) == [0.0, 0.75]  # (2·0.5 + 2·1) / 4


def test_a_factory_of_which_nothing_is_known_is_none() -> None:
    assert metrics.factory_accuracy(owned_park(), np.array([np.nan, np.nan, 0.5])) == [0.5, None]


def test_a_run_writes_its_evaluation_also_when_its_last_round_had_none(tmp_path: Path) -> None:
    what = Experiment(
        rounds=3, data=DataSettings(samples_per_device=32), park=ParkSettings(devices=2),
        model=ModelSettings("logistic"), evaluate=EvaluateSettings(every=2),
    )  # fmt: skip
    whole = fedfloor.run(what, tmp_path / "whole", ranks=1)
    told = json.loads((whole.folder / "evaluation.json").read_text())
    assert (told["round"], told["accuracy"]) == (3, whole.lines[-1].accuracy)
    assert told["macro_f1"] == whole.lines[-1].macro_f1
    assert np.trace(told["confusion"]) / np.sum(told["confusion"]) == pytest.approx(told["accuracy"])
    part = fedfloor.run(what, tmp_path / "part", ranks=1, limits=fedfloor.Limits(1))
    assert part.lines[-1].accuracy is None  # round 1 is not evaluated
    assert json.loads((part.folder / "evaluation.json").read_text())["round"] == 1
