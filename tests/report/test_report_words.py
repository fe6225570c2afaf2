"""Captions of reports state only what the runs support."""

from __future__ import annotations

from typing import Any

import pytest

from fedfloor.report import words
from fedfloor.report.charts import control_figure
from fedfloor.report.evaluation_records import ChartRecord, ChartValuesRecord
from fedfloor.tasks.figures import ACCURACY, Figure, named

AUROC = named("AUROC")
RMSE = named("RMSE")
ROW: dict[str, Any] = {
    "method": "fedavg", "seeds": [0], "rounds": 4, "low": 0.1, "high": 0.9, "accuracy": 0.5, "best_accuracy": 0.5,
    "target": 0.5, "rounds_to_target": 4.0, "reached": 1, "wall_s": 1.0, "over": "12 test recordings", "diverged": [],
    "macro_f1": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("over", "figure", "value", "how"),
    [
        ("12 test recordings", ACCURACY, 0.5, "a bootstrap over test recordings"),
        ("12 test recordings", ACCURACY, 1.0, "a bootstrap over test recordings and with few errors at least Clopper"),
        ("90 test samples", ACCURACY, 0.5, "a bootstrap over test samples and with few errors at least Clopper"),
        ("90 test samples", RMSE, 0.5, "a bootstrap over test samples"),
        ("3 seeds and 5 test devices", AUROC, 0.5, "Student's t over seeds and a bootstrap over test devices"),
        ("3 seeds", ACCURACY, 0.5, "Student's t over seeds"),
        ("7 test stretches of time", RMSE, 0.5, "a bootstrap over test stretches of time"),
    ],
)  # fmt: skip
def test_intervals_are_named_by_what_was_drawn(over: str, figure: Figure, value: float, how: str) -> None:
    """An RMSE has no bounds of Clopper and Pearson; recordings are drawn, not samples, where these are the units."""
    caption = words.interval_caption([ROW | {"over": over, figure.key: value}], figure)
    assert over in caption
    assert how in caption
    assert ("Clopper" in caption) == ("Clopper" in how)


def test_a_reference_without_rounds_reaches_a_target_in_none() -> None:
    def rounds(name: str) -> list[str]:
        cells = words.summary_cells(ROW | {"method": name})
        return [cells[2], cells[-1]]

    assert rounds("fedavg") == rounds("pooled") == ["4", "4"]
    assert rounds("scikit-learn") == rounds("persistence") == ["–", "–"]


def test_a_target_of_the_methods_is_not_that_of_references() -> None:
    def caption(*names: str) -> str:
        return words.summary_caption([ROW | {"method": name} for name in names], "test", hindsight=True)

    assert "that all seeds of one method reached." in caption("fedavg", "fedsr")
    assert "that all seeds of one method (apart from references) reached." in caption("fedavg", "pooled")


def test_names_of_control_charts_stand_above_them_and_are_whole() -> None:
    """Beside a chart of 140 pixels a name of 30 letters was cut off."""
    names = ["S⁺ of Vorlauftemperatur [°C]", "S⁻ of <flow>"]
    values = tuple(ChartValuesRecord(name, (1.0, 2.0, 7.0), (-5.0, 0.0, 5.0)) for name in names)
    figure = control_figure(ChartRecord(0, (0, 0, 1), (0, 0, 1), values))
    assert [one.text for one in figure.layout.annotations] == [names[0], "S⁻ of &lt;flow&gt;"]
    for place, one in enumerate(figure.layout.annotations):
        low, high = figure.layout[f"yaxis{place + 1 if place else ''}"].domain
        assert low < high == one.y
        assert (one.x, one.yanchor) == (0, "bottom")
    assert figure.layout.yaxis.domain[0] > figure.layout.annotations[1].y
