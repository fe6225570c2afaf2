"""What is drawn where test samples are drawn anew: the units that were held out together, and metrics on them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedfloor
from fedfloor import config
from fedfloor.data.dataset import Dataset, SamplePool, pooled
from fedfloor.engine.resample import DRAWS, LEAST, STRETCHES, Units, resampled, units
from fedfloor.runs.parks import load_data

TABLE = """
rounds = 1
data = { path = "table.csv", normalise = "standard", columns = { time = "t" } }
model = { name = "logistic" }
work = { batch_size = 16, lr = 0.1 }
"""


def data(tests: int, **more: object) -> Dataset:
    train = SamplePool(np.zeros((8, 1), np.float32), np.zeros(8, np.int64), np.repeat([0, 1], 4).astype(np.int32))
    test = SamplePool(np.zeros((tests, 1), np.float32), np.zeros(tests, np.int64))
    return replace(pooled("made", ("a", "b"), train, test, ""), **more)  # type: ignore[arg-type]


def test_devices_that_never_train_are_the_units() -> None:
    owner = np.repeat([5, 6, 7], [2, 3, 1]).astype(np.int32)
    found = units(data(6, owner_test=owner, split="device"))
    assert (found.noun, found.many, found.of.tolist()) == ("device", 3, [0, 0, 1, 1, 1, 2])
    known = units(data(6, owner_test=owner % 2, split="random"))  # devices 0 and 1 train
    assert (known.noun, known.many) == ("sample", 6)


def test_recordings_held_out_as_a_whole_are_the_units() -> None:
    recording = np.repeat([9, 4], 3).astype(np.int32)
    found = units(data(6, owner_test=np.zeros(6, np.int32), recording_test=recording, split="run"))
    assert (found.noun, found.of.tolist()) == ("recording", [1, 1, 1, 0, 0, 0])


def test_pieces_of_a_recording_between_gaps_are_one_unit() -> None:
    pieces = np.repeat([0, 1, 2, 3], 2).astype(np.int32)
    of = np.array([7, 7, 3, 3], np.int32)
    found = units(data(8, recording_test=pieces, recording_of=of, split="run"))
    assert (found.noun, found.of.tolist()) == ("recording", [1, 1, 1, 1, 0, 0, 0, 0])


def test_a_gap_in_a_table_makes_no_further_unit(tmp_path: Path) -> None:
    rows = ["device,run,t,x,label"]
    for run in range(12):
        times = [*range(20), *range(500, 520)]  # a gap in the middle of each
        rows += [f"m{run % 2},{run},{t},{(t * 7 + run) % 5},{'ab'[run % 2]}" for t in times]
    (tmp_path / "gaps.csv").write_text("\n".join(rows) + "\n")
    columns = {"device": "device", "run": "run", "time": "t", "label": "label"}
    reading = {"path": str(tmp_path / "gaps.csv"), "columns": columns, "window": {"length": 10}, "gap_s": 5.0}
    what = config.from_table({"data": {**reading, "split": {"kind": "run", "test": 0.5}}})
    found = units(load_data(what))
    assert (found.noun, found.many) == ("recording", 6)


def test_what_follows_in_time_is_cut_into_stretches_of_equal_number_per_recording() -> None:
    recording = np.repeat([0, 1, 2], 100).astype(np.int32)
    found = units(data(300, recording_test=recording, split="time"))
    assert (found.noun, found.many) == ("stretch of time", 21)  # seven of each of three
    assert (np.diff(found.of) >= 0).all()
    assert all(len(set(recording[found.of == unit].tolist())) == 1 for unit in range(found.many))
    many = np.arange(2 * STRETCHES).repeat(3).astype(np.int32)
    assert units(data(len(many), recording_test=many, split="time")).noun == "recording"
    assert units(data(30, split="time")).many == STRETCHES
    assert units(data(4, split="time")).many == 4


def test_overlapping_windows_are_no_units() -> None:
    assert units(data(100, split="random", first_test=np.arange(100))).noun == "stretch of time"


def test_draws_depend_on_the_number_of_units_alone_and_take_whole_units() -> None:
    of = np.array([0, 1, 1, 2, 3, 3, 3, 4])
    sizes = np.bincount(of)
    for rows in Units("device", of).draws(50):
        times = np.bincount(of[rows], minlength=5) / sizes
        assert times.sum() == 5
        assert (times == times.round()).all()
    first = [np.bincount(of[rows], minlength=5) / sizes for rows in Units("device", of).draws(9)]
    other = [np.bincount(rows, minlength=5) for rows in Units("sample", np.arange(5)).draws(9)]
    assert np.array_equal(first, other)


def test_the_mean_of_the_draws_has_the_moments_of_the_bootstrap() -> None:
    values = np.random.default_rng(0).normal(0, 1, 50)
    found = resampled(Units("sample", np.arange(50)), {"mean": (lambda rows: float(values[rows].mean()), 1)})
    drawn = np.array(found["figures"]["mean"])
    error = values.std() / np.sqrt(50)  # the bootstrap's standard error of a mean, exactly
    assert drawn.mean() == pytest.approx(values.mean(), abs=4 * error / np.sqrt(DRAWS))
    assert drawn.std() == pytest.approx(error, rel=0.1)


def test_too_few_units_have_no_draws_and_undefined_values_are_null() -> None:
    few = resampled(Units("device", np.arange(LEAST - 1)), {"mean": (lambda rows: 1.0, 1)})
    assert few == {"unit": "device", "units": LEAST - 1, "figures": {}}
    none = resampled(Units("device", np.arange(LEAST)), {"AUROC": (lambda rows: None, 1)})
    assert set(none["figures"]["AUROC"]) == {None}


def table(folder: Path, devices: int = 8, rows: int = 40) -> None:
    rng = np.random.default_rng(1)
    lines = ["device,t,a,b,label"]
    for device in range(devices):
        for t in range(rows):
            a, b = rng.normal(0, 1, 2)
            lines.append(f"m{device},{t},{a:.3f},{b:.3f},{'ok' if a + 0.3 * rng.normal() > 0 else 'bad'}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "table.toml").write_text(TABLE)


def evaluation(folder: Path, *changes: str) -> dict[str, object]:
    experiment = config.read(folder / "table.toml", list(changes))
    out = folder / f"run{len(list(folder.iterdir()))}"
    fedfloor.run(experiment, out, ranks=1)
    body: dict[str, object] = json.loads((out / "evaluation.json").read_text())
    return body


@pytest.mark.parametrize("headline", ["accuracy", "F1 of bad", "AUROC of bad"])
def test_a_run_keeps_draws_around_its_headline(tmp_path: Path, headline: str) -> None:
    table(tmp_path)
    body = evaluation(tmp_path, f'evaluate.headline="{headline}"', 'data.split={ kind = "time", test = 0.5 }')
    kept = body["resampled"]
    assert (kept["unit"], kept["units"]) == ("stretch of time", 24)  # type: ignore[index]
    drawn = np.array(kept["figures"][headline])  # type: ignore[index]
    value = body["accuracy"] if headline == "accuracy" else body["figures"][headline]  # type: ignore[index]
    assert len(drawn) == DRAWS
    assert drawn.std() > 0
    assert abs(drawn.mean() - value) < 0.2 * drawn.std()
    assert body["seeded"] is True


def test_a_method_that_draws_nothing_says_so_unless_its_samples_are_drawn(tmp_path: Path) -> None:
    table(tmp_path)
    trees = ("method.name=boosting", "rounds=6", "methods.boosting.trees=1")
    assert evaluation(tmp_path, *trees)["seeded"] is False
    assert evaluation(tmp_path, *trees, 'data.split={ kind = "random" }')["seeded"] is True
    assert evaluation(tmp_path, *trees, "methods.boosting.rows=0.5")["seeded"] is True


def test_devices_held_out_are_drawn_as_a_whole_of_predicted_numbers_too(tmp_path: Path) -> None:
    table(tmp_path, devices=12)
    text = (tmp_path / "table.csv").read_text().replace(",ok", ",1.5").replace(",bad", ",0.5")
    (tmp_path / "table.csv").write_text(text)
    task = ('data.task={ kind = "regression" }', 'data.split={ kind = "device", test = 0.5 }')
    body = evaluation(tmp_path, *task, "model.name=mlp-sensor")
    kept = body["resampled"]
    assert (kept["unit"], kept["units"], list(kept["figures"])) == ("device", 6, ["loss", "RMSE"])  # type: ignore[index]
    assert min(kept["figures"]["RMSE"]) <= body["figures"]["RMSE"] <= max(kept["figures"]["RMSE"])  # type: ignore[index]
