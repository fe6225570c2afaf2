"""The made plant: what its knobs do, and that its causes are those of its sensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedfloor.base.checking import checked
from fedfloor.data.made.machines import CLASSES, SENSORS, SETTINGS, Machines, columns, recordings
from fedfloor.experiment import Experiment
from fedfloor.runs.parks import build_park
from refusals import refused

CALM = Machines(fault=0.0, wear=0.0, calibration=0.0)


def test_a_machine_is_the_same_whatever_the_others() -> None:
    few = recordings(2, 2, seed=3)
    many = recordings(6, 2, seed=3)
    assert np.array_equal(few.x, many.x[: len(few.x)])
    assert not np.array_equal(few.x[:50], recordings(2, 2, seed=4).x[:50])


def test_life_and_wear_end_at_the_failure() -> None:
    made = recordings(3, 1, seed=0)
    ends = np.flatnonzero(np.diff(made.run, append=-1))
    assert (made.left[ends] == 0).all()
    assert np.allclose(made.wear[ends], 1)
    lengths = np.bincount(made.run)
    assert len(lengths) == 12
    assert np.array_equal(made.left[made.row == 0] + 1, lengths)


def test_without_any_cause_only_noise_is_left() -> None:
    made = recordings(40, 1, seed=0, like=CALM)
    assert made.x.std(axis=0) == pytest.approx(np.ones(8), abs=0.02)
    assert not made.fault.any()


@pytest.mark.parametrize(("knob", "cause"), [("calibration", 3.0), ("regimes", 4), ("wear", 9.0), ("drift", 5.0)])
def test_every_knob_moves_the_sensors(knob: str, cause: float) -> None:
    calm, moved = (recordings(8, 2, seed=0, like=one).x for one in (CALM, replace(CALM, **{knob: cause})))
    assert moved.std(axis=0).max() > 1.3 * calm.std(axis=0).max()


def test_faults_show_in_their_sensors_by_their_strength() -> None:
    made = recordings(30, 1, seed=0, like=replace(CALM, fault=0.02, strength=5.0))
    for fault in range(1, len(CLASSES)):
        away = made.x[made.fault == fault].mean(axis=0) - made.x[made.fault == 0].mean(axis=0)
        assert np.sort(np.abs(away))[-2:] == pytest.approx([5, 5], abs=0.3)
        assert np.abs(away).max() > 10 * np.sort(np.abs(away))[-3]


def test_settings_tell_the_regimes_apart_and_leave_the_sensors_as_they_were() -> None:
    calm = replace(CALM, regimes=3)
    made = recordings(6, 2, seed=0, like=calm)
    wide = recordings(6, 2, seed=0, like=replace(calm, shift=60.0))
    settings = made.x[:, len(SENSORS) :]
    assert settings.shape[1] == len(SETTINGS)
    within = [settings[made.regime == one].std(axis=0) for one in range(3)]
    assert np.stack(within) == pytest.approx(0.02, rel=0.2)  # JITTER
    levels = [[one.x[made.regime == regime].mean(axis=0) for regime in range(3)] for one in (made, wide)]
    near, far = (np.std(one, axis=0) for one in levels)
    assert far[: len(SENSORS)] == pytest.approx(10 * near[: len(SENSORS)], rel=0.1)  # shift 60 for 6
    assert np.array_equal(settings, wide.x[:, len(SENSORS) :])


def test_skew_gives_machines_faults_of_their_own() -> None:
    def kinds(skew: float) -> float:
        made = recordings(20, 1, seed=0, like=replace(CALM, fault=0.03, skew=skew))
        return float(np.mean([len(np.unique(made.fault[made.machine == k])) - 1 for k in range(20)]))

    assert kinds(1.0) == 1
    assert kinds(0.0) > 3.5


def experiment(**data: object) -> Experiment:
    plant = {"factories": 2, **data.pop("machines", {})}  # type: ignore[dict-item]
    table = {"name": "machines", "machines": plant, **data}
    return checked(Experiment, {"data": table, "park": {"devices": 6}}, "")


def test_a_park_of_machines_tests_on_their_last_recordings() -> None:
    park = build_park(experiment(window={"length": 10, "step": 5}))
    assert (park.devices, park.factories, park.dataset.shape) == (6, 2, (8, 10))
    assert park.factory_names == ("hall 1", "hall 2")
    assert park.roster.figures == "measured"
    assert park.dataset.inputs.columns == SENSORS
    life = build_park(experiment(task={"kind": "regression", "cap": 80}))
    assert life.dataset.target_test is not None
    assert life.dataset.target_test.min() == 0
    assert life.dataset.task.headline == "RMSE"


def test_missing_values_are_a_decision() -> None:
    with refused("data.machines.missing"):
        build_park(experiment(machines={"missing": 0.05}))
    park = build_park(experiment(machines={"missing": 0.05}, missing="previous"))
    mean = build_park(experiment(machines={"missing": 0.05}, missing="mean"))
    carried, holes = (np.isnan(each.samples(0)[0]) for each in (park, mean))
    assert carried.sum() < holes.sum() / 20  # only the first rows of a recording have no value before them
    assert not (carried & ~holes).any()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"runs": 1}, "data.machines.runs"), ({"regimes": 7}, "data.machines.regimes"), ({"ruins": 3}, "unknown-key")],
)
def test_knobs_out_of_range_are_refused(settings: dict[str, object], said: str) -> None:
    with refused(said):
        build_park(experiment(machines=settings))


def test_the_table_has_sensors_and_causes() -> None:
    made = recordings(2, 1, seed=0)
    table = columns(made, 1)
    assert [*table][-4:] == ["fault", "life", "regime", "wear"]
    assert {len(column) for column in table.values()} == {len(made.x)}
    assert {*SETTINGS} <= {*columns(recordings(2, 1, seed=0, like=Machines(regimes=2)), 1)}
