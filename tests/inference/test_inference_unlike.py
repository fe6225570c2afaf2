"""What predictions are warned of: values and class mixes unlike training, and rows that have no answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from fedfloor.inference.samples import FileSamples
from fedfloor.inference.trained import load_model
from fedfloor.inference.training import Training
from fedfloor.inference.unlike import odd_sensors, outside
from fedfloor.park.summaries import Summaries
from model_files import SENSORS, WINDOWS, write_model

# of write_model: temp 0.25 ± 0.5, torque 1.25 ± 1.5
MEAN, STD = np.array([0.25, 1.25]), np.array([0.5, 1.5])


def warned(folder: Path, z: np.ndarray) -> list[str]:
    """Warnings of values that lie so many deviations from the means."""
    trained = load_model(write_model(folder, shape=(2,), inputs=SENSORS))
    x = (MEAN + STD * z).astype(np.float32)
    return odd_sensors(trained, FileSamples(Path("a.csv"), x, None, np.full(len(x), -1)))


def test_values_by_chebyshevs_inequality(tmp_path: Path) -> None:
    # k = 5: at most 4 of 100; k = 10: at most 1; k = 30: at most 0.1, so one is too many
    z = np.zeros((100, 2))
    for count, size, expected in ((4, 6.0, 0), (5, 6.0, 1), (1, 12.0, 0), (2, 12.0, 1), (1, 31.0, 1), (100, 4.9, 0)):
        z[:] = 0
        z[:count, 1] = -size
        found = warned(tmp_path, z)
        assert len(found) == expected
        assert all("a.csv: sensor 'torque'" in text for text in found)


def test_no_training_table_is_pointed_at(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for values in (rng.standard_t(2.1, (1000, 2)), rng.exponential(size=(1000, 2)), rng.random((1000, 2)) < 0.001):
        z = (values - values.mean(0)) / values.std(0)  # whatever its form: it is its own training table
        assert warned(tmp_path, z) == []


def test_pictures_and_sensors_without_a_normalisation_are_not_looked_at(tmp_path: Path) -> None:
    flat = {"scale": 1.0, "mean": [0.0, 0.0], "std": [1.0, 1.0]}
    trained = load_model(write_model(tmp_path / "a", shape=(2,), inputs=SENSORS, normalise=flat))
    samples = FileSamples(Path("a.csv"), np.full((9, 2), 1e9, np.float32), None, np.full(9, -1))
    assert odd_sensors(trained, samples) == []
    picture = FileSamples(Path("a.png"), np.zeros((9, 1, 28, 28), np.uint8), None, np.full(9, -1))
    assert odd_sensors(load_model(write_model(tmp_path / "b")), picture) == []


def month(seed: int, machines: int, rows: int = 700, slow: float = 0.0) -> dict[str, np.ndarray]:
    """Return rows of machines with 12 sensors, normal with levels of their own; ``slow`` correlates adjacent rows."""
    levels = np.random.default_rng(7).normal(50, 5, (machines, 12))
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, (1 - slow**2) ** 0.5, (machines, rows, 12))
    noise[:, 0] = rng.normal(0, 1, (machines, 12))
    for row in range(1, rows):
        noise[:, row] += slow * noise[:, row - 1]
    return {f"m{k}": (levels[k] + noise[k]).astype(np.float32) for k in range(machines)}


@pytest.mark.parametrize(("slow", "most"), [(0.0, 0), (0.9, 0), (0.98, 2)])
def test_clean_months_are_hardly_ever_named(slow: float, most: int) -> None:
    """With a correlation of 0.98 a month of 700 rows is as good as 7 independent ones, and its mean wanders."""
    training = month(0, 8, 2800, slow)
    s = Summaries.of_rows([f"s{i}" for i in range(12)], [*training], [0] * 8, training.values())
    assert all(outside(x, s, k) == [] for k, x in enumerate(training.values()))
    found = [[outside(x, s, k) for k, x in enumerate(month(1 + n, 8, 700, slow).values())] for n in range(20)]
    assert sum(any(device) for device in found) <= most  # of 20 months of 96 sensors


def test_a_sensor_that_moved_by_two_deviations_is_named_with_its_share() -> None:
    training = month(0, 8, 2800)
    s = Summaries.of_rows([f"s{i}" for i in range(12)], [*training], [0] * 8, training.values())
    x = month(1, 8)["m3"]
    x[:, 5] += 2
    x[:, 6] *= 1000  # a unit that another device may have
    moved, unit = outside(x, s, 3)
    assert (moved.sensor, moved.above, moved.ever) == (5, True, False)
    assert 0.2 < moved.share < 0.4  # P(z > 2.58 − 2) = 0.28
    assert (unit.sensor, unit.share, unit.ever) == (6, 1, True)
    assert outside(x[:49], s, 3) == []  # so few say nothing
    assert outside(month(1, 8)["m3"], s, None) == []
    short = replace(s, trained=np.full(8, 1e6))  # a stretch of 700 of a million rows may well be like this
    assert [one.sensor for one in outside(x, short, 3)] == [6]


def test_a_text_that_is_frequent_now_is_no_unit(tmp_path: Path) -> None:
    inputs = {
        **SENSORS,
        "columns": ["temp", "grade=b"],
        "coding": {"categories": {"grade": {"kind": "one-hot", "values": ["b"]}}},
    }
    one = {"scale": 1.0, "mean": [0.0, 0.02], "std": [1.0, 0.14]}
    trained = load_model(write_model(tmp_path, shape=(2,), inputs=inputs, normalise=one))
    x = np.zeros((100, 2), np.float32)
    x[:25, 1] = 1
    (text,) = odd_sensors(trained, FileSamples(Path("a.csv"), x, None, np.full(100, -1)))
    assert text == "a.csv, column 'grade': 25.0% of the values are 'b', at most 2.0% on any device in training."


def park(folder: Path, *counts: list[int], classes: tuple[str, ...] = ("ok", "worn")) -> None:
    devices = [{"factory": 0, "samples": sum(one), "counts": one} for one in counts]
    (folder / "park.json").write_text(json.dumps({"classes": classes, "devices": devices}))


def test_another_mix_of_classes(tmp_path: Path) -> None:
    classes = ("ok", "worn")

    def odd(ok: int, worn: int, **more: bool) -> list[str]:
        return Training(tmp_path).odd_mix(np.array([ok, worn]), classes, **more)

    assert odd(100, 0) == []  # no park.json
    park(tmp_path, [40, 20], [40, 0])  # 80 % and 20 %
    # of 200 samples chance makes √(2/200)/2 = 0.05: above 0.25 from the 80 % is below 55 %
    assert odd(112, 88) == []
    assert "54.0% 'ok', 80.0% in training; 46.0% 'worn', 20.0% in training" in odd(108, 92)[0]
    assert odd(2, 0) == []  # so few say nothing
    assert len(odd(0, 200)) == 1
    park(tmp_path, [40, 20], classes=("a", "b"))
    assert odd(0, 200) == []  # another park's file


def test_predicted_numbers_may_lie_in_the_middle_but_not_at_an_end(tmp_path: Path) -> None:
    ranges = ("<1", "1-2", ">=2")
    park(tmp_path, [40, 20, 40], classes=ranges)
    training = Training(tmp_path)
    assert training.odd_mix(np.array([0, 1000, 0]), ranges, ends=True) == []
    assert len(training.odd_mix(np.array([0, 1000, 0]), ranges)) == 1
    (text,) = training.odd_mix(np.array([0, 0, 1000]), ranges, ends=True)
    assert "100.0% '>=2', 40.0% in training" in text
    assert "<1" not in text


def test_good_rows_are_answered_and_the_others_named(command: Command) -> None:
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    (command.folder / "a.csv").write_text("device,temp,torque\n" + "p1,0.2,1\n" * 3 + "p1,,1\np2,0.1,2\n")
    (command.folder / "b.csv").write_text("device,temp,torque\np2,80,1\np2,90,1\n")
    said = command("predict", "run", "a.csv", "b.csv", "--json")
    assert said.code == 1
    assert "a.csv, row 5, column 'temp': no value" in said.err
    document = said.document
    assert document["samples"] == 6
    assert [row["rows"] for row in document["rows"]] == [[2, 2], [3, 3], [4, 4], [6, 6], [2, 2], [3, 3]]
    assert [(row["file"], row["samples"]) for row in document["by_file"]] == [("a.csv", 4), ("b.csv", 2)]
    assert [(row["device"], row["samples"]) for row in document["by_device"]] == [("p1", 3), ("p2", 3)]
    assert document["failed"] == []
    assert len(document["left_out"]) == 1
    assert ["b.csv: sensor 'temp'" in text for text in document["warnings"]] == [True]
    assert "b.csv: sensor 'temp': 100.0% of its values" in said.err
    assert command("predict", "run", "b.csv").code == 0  # a warning is not a failure


def test_a_window_with_a_hole_has_no_answer(command: Command) -> None:
    write_model(command.folder / "run", shape=(2, 4), inputs=WINDOWS)
    rows = [f"p1,{i},{'' if i == 2 else 1}" for i in range(10)] + ["p2,1,1"]
    (command.folder / "a.csv").write_text("\n".join(["device,temp,torque", *rows]) + "\n")
    said = command("predict", "run", "a.csv", "--json")
    assert said.code == 1
    assert [row["rows"] for row in said.document["rows"]] == [[6, 9], [8, 11]]
    assert "row 4, column 'torque': no value" in said.err
    assert "a.csv, row 12: device 'p2' has 1 rows from this row on; the model takes windows of 4." in said.err


@pytest.mark.parametrize("many", [7, 12])
def test_many_holes_are_counted(command: Command, many: int) -> None:
    write_model(command.folder / "run", shape=(2,), inputs=SENSORS)
    (command.folder / "a.csv").write_text("temp,torque\n1,1\n" + ",1\n" * many)
    said = command("predict", "run", "a.csv")
    assert said.code == 1
    assert said.err.count("no value") == 5
    assert f"a.csv: {many - 5} more cells without a value." in said.err
