"""The made table of rare faults: what its page claims, for one seed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/rare_faults.py"


@pytest.mark.slow
def test_a_threshold_finds_the_faults_that_the_likeliest_class_misses(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("rare_faults", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    said = script.figures(0, "plain", {"recall": 0.9}, tmp_path)
    assert said["likeliest"]["recall"] < 0.55
    assert said["decided"]["recall"] >= 0.8
    assert said["validation"]["recall"] >= 0.9
