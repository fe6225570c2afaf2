"""The file with the experiment of a whole comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedfloor import config
from fedfloor.base.names import COMPARISON_FILE
from fedfloor.experiment import Experiment
from fedfloor.runs import comparison_file


def test_a_comparison_that_goes_on_with_fewer_methods_keeps_the_entries_of_all(tmp_path: Path) -> None:
    first = replace(Experiment(name="x"), methods={"fedsr": {"laps": 3}, "a": {"method": "fedavg", "fraction": 0.5}})
    comparison_file.keep(first, tmp_path)
    comparison_file.keep(replace(first, methods={"a": {"method": "fedavg", "fraction": 0.25}}), tmp_path)
    file = tmp_path / COMPARISON_FILE
    assert config.read(file).methods == {"fedsr": {"laps": 3}, "a": {"method": "fedavg", "fraction": 0.25}}
    file.write_text("[[", "utf-8")
    comparison_file.keep(first, tmp_path)
    assert config.read(file).methods == first.methods
