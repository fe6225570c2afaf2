"""The first screen where a class is rare: what decides is what is found of it, and not the accuracy."""

from __future__ import annotations

import html
import json
from pathlib import Path

from fedfloor.report.front import front
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from run_folders import make_run

CLASSES = ["ok", "fault", "idle"]  # the last one has no test sample
TABLE = [[960, 4, 0], [24, 12, 0], [0, 0, 0]]  # 12 of 36 faults found, with 4 false alarms


def page(folder: Path, confusion: list[list[int]], classes: list[str], decide: dict[str, object] | None = None) -> str:
    made = make_run(folder / "run", [0.9, 0.972], devices=2)
    park = json.loads((made / "park.json").read_text())
    (made / "park.json").write_text(json.dumps(park | {"classes": classes, "test_samples": 1000}))
    body = {"round": 2, "classes": classes, "confusion": confusion, **({"decide": decide} if decide else {})}
    (made / "evaluation.json").write_text(json.dumps(body))
    return html.unescape(str(front(groups(collect([folder])))))


def test_a_rare_class_is_found_or_not_and_the_accuracy_is_beside_the_constant_answer(tmp_path: Path) -> None:
    shown = page(tmp_path, TABLE, CLASSES)
    assert '<p class="big">12 of 36 found</p>' in shown
    assert "of 'fault' with 4 false alarms" in shown
    assert "97.2" in shown
    assert "Always predicting 'ok' would reach an accuracy of 96.4" in shown
    assert "--set decide.positive=fault --set decide.by=f1 --set evaluate.on=both --out runs/decided" in shown


def test_a_threshold_decides_for_a_rare_class(tmp_path: Path) -> None:
    made = {"found": 30, "missed": 6, "false_alarms": 50, "recall": 0.8, "precision": 0.4, "f1": 0.5}
    held = {"samples": 100, "positives": 10, "by": "F1"}
    decide = {"positive": 1, "threshold": 0.2, "validation": held, "decided": made, "likeliest": made}
    shown = page(tmp_path, TABLE, CLASSES, decide)
    assert '<p class="big">30 of 36 found</p>' in shown
    assert "of 'fault' with 50 false alarms, by the threshold" in shown
    assert "decide.positive" not in shown


def test_several_rare_classes_have_the_balanced_accuracy(tmp_path: Path) -> None:
    """The recalls are 950/950, 10/25 and 5/25, whose mean is 0.533."""
    shown = page(tmp_path, [[950, 0, 0], [15, 10, 0], [20, 0, 5]], ["ok", "worn", "torn"])
    assert '<p class="big">53.3' in shown
    assert "balanced accuracy of" in shown
    assert "decide.positive" not in shown
