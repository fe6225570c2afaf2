"""Predicted numbers beside the true ones: what a run's folder holds of them, and what a report makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedfloor.engine.evaluate import describe_errors
from fedfloor.report.ledger import collect
from fedfloor.report.page import render
from fedfloor.tasks.figures import Errors
from refusals import refused
from run_folders import evaluate, make_run

LEVELS = (0.1, 0.5, 0.9)


def levels(true: np.ndarray, shift: float = 0.0) -> Errors:
    """Return predictions that are too high by ``shift``, between 2 below and 3 above."""
    found = true[:, :, None] + shift + np.array([-2.0, 0.0, 3.0])
    return Errors(true, found, cap=100.0, names=("life",), unit="cycles", levels=LEVELS, edges=(10.0, 50.0))


def test_errors_of_ranges_by_hand() -> None:
    true = np.array([[4.0], [8.0], [20.0], [120.0]])
    told = describe_errors(levels(true, 1.0), ["<10", "10-50", ">=50"], np.array([7, 7, 8, 9], np.int32))
    assert (told["unit"], told["cap"], told["samples"]) == ("cycles", 100.0, 4)
    (target,) = told["targets"]
    away = np.array([1, 1, 1, 21.0])  # the last one counts as 100
    assert target["rmse"] == pytest.approx(np.sqrt(np.mean(away**2)))
    assert (target["mae"], target["bias"]) == (away.mean(), away.mean())
    assert target["below"] == [0.25, 1.0, 1.0], "only the cap is not above the lowest level, 119"
    assert target["inside"] == 0.75
    assert [(one["name"], one["samples"], one["bias"]) for one in told["ranges"]] == [
        ("<10", 2, 1.0), ("10-50", 1, 1.0), (">=50", 1, 21.0)
    ]  # fmt: skip
    points = told["points"]
    assert (points["true"], points["device"]) == ([4.0, 8.0, 20.0, 100.0], [7, 7, 8, 9])
    assert (points["predicted"][-1], points["low"][-1], points["high"][-1]) == (121.0, 119.0, 124.0)


def test_many_samples_are_thinned_out_evenly_and_figures_are_of_all() -> None:
    true = np.arange(10_001.0)[::-1, None]
    told = describe_errors(Errors(true, true[:, :, None] + 1), ["all"], None)
    assert told["points"]["true"][:2] == [0.0, 5.0]
    assert (len(told["points"]["true"]), told["points"]["true"][-1]) == (2000, 10_000.0)
    assert told["targets"][0]["samples"] == 10_001
    assert "device" not in told["points"]
    assert "low" not in told["points"]


def test_targets_of_rows_ahead_have_names() -> None:
    true = np.zeros((2, 4))
    told = describe_errors(Errors(true, np.ones((2, 4, 1)), names=("a", "b")), ["all"], None)
    assert [one["name"] for one in told["targets"]] == ["a, 1 ahead", "a, 2 ahead", "b, 1 ahead", "b, 2 ahead"]


def folder(place: Path, seed: int = 0, shift: float = 1.0, **more: Any) -> Path:
    """Return a run's folder with predicted numbers."""
    run = evaluate(make_run(place, [0.5, 0.9], seed=seed))
    path = run / "evaluation.json"
    true = np.arange(0.0, 100.0, 2.0)[:, None]
    told = describe_errors(levels(true, shift), ["<10", "10-50", ">=50"], np.zeros(50, np.int32)) | more
    path.write_text(json.dumps(json.loads(path.read_text()) | {"errors": told}))
    return run


def test_the_page_shows_them(tmp_path: Path) -> None:
    page = render(collect([folder(tmp_path / "a"), folder(tmp_path / "b", seed=1, shift=3.0)]))
    assert '<section id="s-predicted"><h2>Predicted against true</h2>' in page
    assert "Errors in cycles: predicted − true; means over the seeds." in page
    assert '<td data-label="mean error">2.00</td>' in page, "the mean of 1 and 3"
    assert "True values above 100 count as 100." in page
    assert "Calibration of the levels" in page
    assert (
        "<script" not in render(collect([folder(tmp_path / "c", unit="<script>")])).split("<nav>")[1].split("s-plan")[0]
    )


def test_the_page_does_without_them(tmp_path: Path) -> None:
    assert "s-predicted" not in render(collect([evaluate(make_run(tmp_path / "a", [0.5]))]))


@pytest.mark.parametrize(
    "change",
    [{"levels": [0.5]}, {"points": {"true": [1.0], "predicted": []}}, {"targets": []}, {"samples": -1},
     {"points": {"true": [1.0], "predicted": [1.0], "low": [0.0]}}],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    with refused("damaged-model"):
        render(collect([folder(tmp_path / "a", **change)]))
