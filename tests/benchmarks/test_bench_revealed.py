"""The table of what devices reveal beside ε: every method with every protection, and the program's cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import revealed
from fedfloor.methods.catalog import METHODS

ROWS = json.loads((Path(revealed.__file__).parents[1] / revealed.OUT).read_text(encoding="utf-8"))
NOISY = ("`private`, `distributed`", "`sample_noise`")  # noise that devices add themselves
EXACT = {"loss", "losses", "gradient", "features", "hash", "profile", "moments", "receipt", "update"}


def test_the_table_has_every_method_with_every_protection() -> None:
    assert set(METHODS) <= set(ROWS) == set(revealed.CASES)
    for cells in ROWS.values():
        assert cells.keys() == revealed.SETTINGS.keys()
        for cell in cells.values():
            assert cell["status"] in ("counted", "listed", "refused")
            assert (cell["status"] == "refused") == ("reason" in cell)
            assert (cell["status"] == "counted") == bool(cell.get("epsilon"))


@pytest.mark.parametrize("setting", NOISY)
def test_beside_noise_of_devices_no_exact_number_on_trained_samples_is_accepted(setting: str) -> None:
    accepted = [cells[setting] for cells in ROWS.values() if cells[setting]["status"] != "refused"]
    assert len(accepted) > 5
    assert all(cell["status"] == "counted" and not EXACT & set(cell["answers"]) for cell in accepted)


@pytest.mark.parametrize("setting", revealed.SETTINGS)
@pytest.mark.parametrize(
    "case",
    [case if case in ("fedavg", "qffl") else pytest.param(case, marks=pytest.mark.slow) for case in revealed.CASES],
)
def test_a_cell_of_the_table_is_the_programs(case: str, setting: str) -> None:
    assert revealed.cell(case, setting) == ROWS[case][setting]
