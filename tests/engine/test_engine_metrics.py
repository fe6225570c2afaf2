"""Confusion, F1 and accuracies, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from fedfloor import write_report
from fedfloor.data.dataset import Owned, SamplePool, pooled
from fedfloor.data.files import own
from fedfloor.data.reading import DeviceSplit, Reading
from fedfloor.deploy import facts
from fedfloor.engine import evaluate
from fedfloor.experiment import DataSettings, EvaluateSettings, Experiment, ModelSettings, ParkSettings
from fedfloor.park.build import build
from fedfloor.park.described import device_accuracy
from fedfloor.park.park import Park
from fedfloor.park.partition import Iid, Natural
from fedfloor.tasks.figures import macro_f1, recalls

TABLE = np.array([[3, 1, 0], [2, 2, 0], [0, 0, 0]])  # nothing of the third class, and nothing taken for it


def test_rows_are_true_classes_and_columns_predicted_ones() -> None:
    y = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    said = np.array([0, 0, 0, 1, 0, 0, 1, 1])
    assert evaluate.confusion(y, said, 3).tolist() == TABLE.tolist()


def test_macro_f1_by_hand() -> None:
    # class 0: TP 3, FP 2, FN 1 → 6/9; class 1: TP 2, FP 1, FN 2 → 4/7; the third neither occurs nor is predicted
    assert macro_f1(TABLE) == pytest.approx((6 / 9 + 4 / 7) / 2, abs=1e-15)
    assert macro_f1(np.diag([5, 1, 2])) == 1


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    # class 0: TP 1, FN 1 → 2/3; class 1: FP 1 → 0
    assert macro_f1(np.array([[1, 1], [0, 0]])) == pytest.approx(1 / 3)


def test_accuracy_by_class_leaves_out_what_has_no_samples() -> None:
    share = recalls(TABLE)
    assert share[:2].tolist() == [0.75, 0.5]
    assert math.isnan(share[2])


def owned_park() -> Park:
    """Devices 0, 1 in factory 1 and device 2 in factory 0, with 2, 1 and 1 test samples of their own."""
    train = SamplePool(
        np.zeros((6, 1, 2, 2), np.uint8), np.array([0, 1, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 2, 2], np.int32)
    )
    test = SamplePool(np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 2], np.int32))
    owned = Owned(("a", "b", "c"), np.array([1, 1, 0], np.int32), ("north", "south"))
    data = pooled("tiny", ("x", "y"), train, test, "", owned)
    parts = tuple(np.flatnonzero(train.owner == k) for k in range(3))
    return Park(data, parts, np.array([1, 1, 0], np.int32), factory_names=owned.factories)


def test_a_factory_is_weighed_by_its_devices_test_samples() -> None:
    park = owned_park()
    right = np.array([True, False, True, False])
    devices = device_accuracy(park, right, np.array([1.0, 0.0]))
    assert devices.tolist() == [0.5, 1.0, 0.0]
    assert evaluate.factory_accuracy(park.roster, devices) == [0.0, 2 / 3]  # (2·0.5 + 1·1) / 3
    told = evaluate.describe(park, evaluate.confusion(park.dataset.y_test, np.array([0, 0, 0, 0]), 2), devices)
    assert told["devices"][1] == {"device": 1, "name": "b", "factory": 1, "accuracy": 1.0, "samples": 1, "rarest": 1}
    assert told["factories"][0] == {"factory": 0, "name": "north", "accuracy": 0.0}
    assert json.loads(json.dumps(told)) == told


def test_without_own_test_samples_devices_weigh_as_much_as_they_hold() -> None:
    park = owned_park()
    park = replace(park, dataset=replace(park.dataset, owner_test=None))
    devices = device_accuracy(park, np.array([True, False, True, False]), np.array([1.0, 0.0]))
    assert devices.tolist() == [0.5, 1.0, 0.0]  # their class mixes: half x, all x, all y
    assert evaluate.factory_accuracy(park.roster, devices) == [0.0, 0.75]  # (2·0.5 + 2·1) / 4


def test_a_factory_of_which_nothing_is_known_is_none() -> None:
    assert evaluate.factory_accuracy(owned_park().roster, np.array([np.nan, np.nan, 0.5])) == [0.5, None]


def split_by_device(folder: Path, *, owned: bool = True) -> Path:
    """Training devices that hold four of five 'ok', and test devices of whose samples half are 'bad' and look 'ok'."""
    y = np.array([0, 0, 0, 0, 1] * 16)
    device = np.repeat(["press", "saw"], 40)
    y_test = np.array([0, 1] * 10)
    device_test = np.repeat(["drill", "lathe"], 10)
    x = np.stack([y, 1 - y], 1).astype(np.float32)
    x_test = np.tile(np.array([0, 1], np.float32), (20, 1))  # all look like 'ok'
    tested = {"x_test": x_test, "y_test": y_test} | ({"device_test": device_test} if owned else {})
    owners = {"device": device} if owned else {}
    np.savez(folder / "floor.npz", x=x, y=y, classes=np.array(["ok", "bad"]), **owners, **tested)
    return folder / "floor.npz"


def trained(folder: Path, *, owned: bool = True, **more: Any) -> fedfloor.Run:
    what = Experiment(
        rounds=3, data=DataSettings(path=str(split_by_device(folder, owned=owned)), **more),
        park=ParkSettings(devices=2, factories=1), model=ModelSettings("logistic"),
    )  # fmt: skip
    return fedfloor.run(what, folder / "out", ranks=1)


def test_devices_that_never_train_have_the_figures_and_those_that_only_train_have_none(tmp_path: Path) -> None:
    run = trained(tmp_path)
    written = json.loads((run.folder / "evaluation.json").read_text())
    assert written["device_accuracy"] == "measured"
    assert written["devices"] == [
        {
            "device": 0,
            "name": "press",
            "factory": 0,
            "accuracy": None,
            "samples": 0,
            "rarest": 0,
            "role": "trains only",
        },
        {"device": 1, "name": "saw", "factory": 0, "accuracy": None, "samples": 0, "rarest": 0, "role": "trains only"},
        {
            "device": 2,
            "name": "drill",
            "factory": None,
            "accuracy": 0.5,
            "samples": 10,
            "rarest": 5,
            "role": "tests only",
        },
        {
            "device": 3,
            "name": "lathe",
            "factory": None,
            "accuracy": 0.5,
            "samples": 10,
            "rarest": 5,
            "role": "tests only",
        },
    ]
    assert written["factories"] == [{"factory": 0, "name": None, "accuracy": None}]
    assert run.lines[-1].by_device == {"p10": 0.5, "p50": 0.5, "p90": 0.5}  # by the classes they hold it would be 0.8
    page = write_report([run.folder], tmp_path / "page.html").read_text()
    assert "On each of 2 tested devices, the model of FedAvg has an accuracy of 50.0\xa0%." in page
    assert page.count("(trains only)</th>") == 2
    assert "drill (tests only)" in page
    assert "Accuracy per factory" not in page


def test_a_split_by_device_measures_on_the_devices_held_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((60, 2)), "y": np.arange(60) % 2, "device": np.repeat([*"abcdef"], 10)}
    np.savez(tmp_path / "floor.npz", factory=np.repeat([*"nnnsss"], 10), **arrays)
    data = own.load(tmp_path / "floor.npz", Reading(split=DeviceSplit(test=0.34)), 0)
    park = build(data, partition=Natural())
    assert park.roster.figures == "measured"
    tested = [name for name, weight in zip(park.roster.names, park.roster.weights, strict=True) if weight]
    assert sorted(tested) == sorted({*"abcdef"} - set(park.names))
    halls = [park.roster.factories[m] for m in park.roster.factory_of]
    assert halls == ["n" if name in "abc" else "s" for name in park.roster.names]
    right = np.arange(len(data.y_test)) < 7  # 7 and 0 of 10
    assert device_accuracy(park, right, np.array([1.0, 0.0]))[-2:].tolist() == [0.7, 0.0]


def test_figures_are_of_the_owners_that_test_also_where_a_partition_mixes_those_that_train(tmp_path: Path) -> None:
    run = trained(tmp_path, partition=Iid())
    written = json.loads((run.folder / "evaluation.json").read_text())
    assert written["device_accuracy"] == "measured"
    assert [(one["name"], one["accuracy"], one["role"]) for one in written["devices"]] == [
        (None, None, "trains only"), (None, None, "trains only"),
        ("drill", 0.5, "tests only"), ("lathe", 0.5, "tests only"),
    ]  # fmt: skip
    assert run.lines[-1].by_device == {"p10": 0.5, "p50": 0.5, "p90": 0.5}  # by class mixes some 0.8: 0.3 too much


def test_of_owners_that_test_and_train_a_mixed_partition_knows_no_figures() -> None:
    park = owned_park()
    mixed = replace(park, indices=(np.array([0, 2]), np.array([1, 3]), np.array([4, 5])))
    assert (park.roster.figures, mixed.roster.figures) == ("measured", "expected")


def test_a_park_of_real_devices_measures_on_the_owners_of_its_test_data(tmp_path: Path) -> None:
    here = own.load(split_by_device(tmp_path), Reading(), 0)
    held = [facts.Holding(40, (32, 8), ((40.0, 40.0), (8.0, 32.0), (6.4, 6.4)), "0" * 64)] * 2
    roster = facts.park(Experiment(), facts.of(Experiment(), here), [0, 0], held, here).roster
    assert (roster.figures, roster.names) == ("measured", (None, None, "drill", "lathe"))
    assert (roster.numbers.tolist(), roster.weights.tolist()) == ([0, 1, 2, 3], [0, 0, 10, 10])
    press = here.owned.names.index("press")  # it trains, and which of the real devices it is, is not known
    both = replace(here, owner_test=np.full(20, press, np.int32))
    assert facts.park(Experiment(), facts.of(Experiment(), both), [0, 0], held, both).roster.figures == "expected"


def test_an_expectation_is_called_one(tmp_path: Path) -> None:
    run = trained(tmp_path, owned=False, partition=Iid())
    written = json.loads((run.folder / "evaluation.json").read_text())
    assert written["device_accuracy"] == "expected"
    assert 0.7 < run.lines[-1].by_device["p50"] < 0.9
    page = write_report([run.folder], tmp_path / "page.html").read_text()
    for words in (
        "Expected accuracy per device",
        "can expect the least of the model",
    ):  # of one factory there is no chart
        assert words in page
    assert "of each device that the final model" not in page


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
