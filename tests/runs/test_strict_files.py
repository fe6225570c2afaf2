"""The program reads what it writes, and its files are JSON for every other reader."""

from __future__ import annotations

import ast
import json
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfloor
from fedfloor.base.strict import json_text
from fedfloor.data.dataset import SamplePool, pooled
from fedfloor.engine.engine import Engine
from fedfloor.engine.evaluate import BEYOND, Score, describe_errors, score_one, spread
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import State
from fedfloor.park.park import Park
from fedfloor.report.evaluation_records import EvaluationRecord
from fedfloor.report.ledger import read_ledger
from fedfloor.report.records import record
from fedfloor.runs import ledger
from fedfloor.runs.results import write_evaluation
from fedfloor.tasks.classification import CLASSIFICATION
from fedfloor.tasks.figures import Errors, Predictions, named, r_squared
from refusals import refused

CLASSES = 7


def strict(text: str) -> Any:
    """Parse JSON as other readers do, which know no NaN and no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def dealt(counts: list[list[int]], tests: np.ndarray[Any, Any]) -> Park:
    """Return a park whose devices hold the counts of classes, and whose test samples are of no device."""
    y = np.concatenate([np.repeat(np.arange(CLASSES), row) for row in counts])
    owners = np.repeat(np.arange(len(counts)), [sum(row) for row in counts]).astype(np.int32)
    train, test = (SamplePool(np.zeros((len(of), 1, 2, 2), np.uint8), of, None) for of in (y, tests))
    data = pooled("tiny", tuple("abcdefg"), train, test, "", None)
    parts = tuple(np.flatnonzero(owners == k) for k in range(len(counts)))
    return Park(data, parts, (np.arange(len(counts)) % 2).astype(np.int32))


def judged(park: Park, predicted: np.ndarray[Any, Any], headline: str) -> Score:
    engine = cast(Engine, SimpleNamespace(park=park, task=CLASSIFICATION))
    return score_one(engine, 0.0, predicted, np.zeros((len(predicted), CLASSES)), named(headline))


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=CLASSES, max_size=CLASSES).filter(any), min_size=2, max_size=12),
    st.sampled_from(["accuracy", "macro-F1", "balanced accuracy", "recall of b", "F1 of c"]),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.0, 0.02, 0.5]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_of_any_park_is_read(counts: list[list[int]], headline: str, rng: Any, wrong: float) -> None:
    tests = np.arange(5 * CLASSES) % CLASSES
    predicted = np.array([rng.randrange(CLASSES) if rng.random() < wrong else label for label in tests.tolist()])
    score = judged(dealt(counts, tests), predicted, headline)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_evaluation(folder, Experiment(), 1, score)
        ledger.append(folder / "ledger.jsonl", ledger.line(1, score, (), "x", 0.0, {}))
        evaluation = record(EvaluationRecord, folder / "evaluation.json", "an evaluation")
        line = read_ledger(folder / "ledger.jsonl", CLASSES)[0]
        assert strict((folder / "evaluation.json").read_text())["devices"]
        assert ledger.read(folder / "ledger.jsonl")[0].accuracy == line.accuracy == score.accuracy
    shares = [place.accuracy for place in (*(evaluation.devices or ()), *(evaluation.factories or ()))]
    shares += [place.value(named(headline)) for place in (*(evaluation.devices or ()), *(evaluation.factories or ()))]
    shares += [*score.by_device.values(), *score.by_class, score.macro_f1]
    assert all(share is None or 0 <= share <= 1 for share in shares)
    if (predicted == tests).all():
        assert all(share is None or share > 1 - 1e-15 for share in shares)  # rounded shares may add up to less than 1


def test_shares_of_classes_that_add_up_to_more_than_one_give_an_accuracy_of_one() -> None:
    counts = np.random.default_rng(0).integers(0, 30, (200, CLASSES)).tolist()
    mix = np.array(counts) / np.sum(counts, axis=1, keepdims=True)
    tests = np.arange(CLASSES)
    every = [judged(dealt([row, row], tests), tests, "accuracy") for row in counts]
    assert (mix.sum(axis=1) > 1).any()
    assert max(place["accuracy"] for score in every for place in score.details["devices"]) == 1.0


def test_r2_of_a_constant_target_is_undefined() -> None:
    wanted = np.array([[5.0, 0.1], [7.0, 0.1], [9.0, 0.1]])
    away = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0]])
    assert r_squared(Errors(wanted, (wanted + away)[:, :, None])) == pytest.approx(1 - 1 / 8)  # of the first alone
    constant = Errors(wanted[:, 1:], (wanted + away)[:, 1:, None])
    assert r_squared(constant) is None
    assert named("R2").value(Predictions(np.zeros((1, 1), np.int64), 0.0, errors=constant), ["all"]) is None


def test_a_number_that_is_not_finite_is_null_in_the_ledger_and_undefined_in_the_report(tmp_path: Path) -> None:
    park = dealt([[1] * CLASSES] * 2, np.arange(CLASSES))
    score = judged(park, np.arange(CLASSES), "accuracy")
    figures = {"NASA score": math.inf, "RMSE": 2.5}
    tested = Score(1.0, math.nan, 1.0, score.by_class, {}, score.describe, figures,
                   {"NASA score": spread([1.0, math.inf, math.inf]), "RMSE": spread([1.0, 4.0])})  # fmt: skip
    ledger.append(tmp_path / "ledger.jsonl", ledger.line(1, tested, (), "x", 0.0, {"step": -math.inf}))
    row = strict((tmp_path / "ledger.jsonl").read_text())
    assert (row["figures"], row["loss"], row["info"]) == ({"NASA score": None, "RMSE": 2.5}, None, {"step": None})
    line = read_ledger(tmp_path / "ledger.jsonl", CLASSES)[0]
    assert line.spread(named("NASA score")) is None
    median = line.spread(named("RMSE"))
    assert median is not None
    assert median.p50 == 2.5
    assert ledger.read(tmp_path / "ledger.jsonl")[0].headline == ("NASA score", None)


def test_a_state_that_json_cannot_hold_is_refused_before_it_is_written() -> None:
    with refused("state-of-method"):
        State({}, {"best": math.inf})


@pytest.mark.parametrize("number", [math.inf, math.nan, 2 * BEYOND])
def test_an_evaluation_with_predictions_beyond_all_numbers_is_read(number: float, tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(
        json_text({"round": 1, "classes": ["a"], "confusion": [[1]], "loss": number})
    )
    assert record(EvaluationRecord, tmp_path / "evaluation.json", "an evaluation").errors is None
    known = describe_errors(Errors(np.ones((2, 1)), np.ones((2, 1, 1))), ["all"], None)
    assert strict(json_text(known))["targets"][0]["rmse"] == 0


# Files whose JSON stays in this process or goes to another process of the same program, beside the one writer.
NO_FILES = {
    "base/checking.py", "api/conformance.py", "drafting/columns.py", "base/strict.py", "data/cache.py",
    "drafting/guess.py", "drafting/sensors.py",
    "data/files/buffer.py",
    "data/files/layout.py", "data/files/recipes.py", "data/reading.py", "deploy/answered.py", "deploy/checks.py",
    "deploy/facts.py",
    "deploy/machines.py", "deploy/message.py", "deploy/subtasks.py", "deploy/device_sum.py", "deploy/sum_messages.py",
    "deploy/revealed_sums.py",
    "engine/aggregation.py",
    "engine/executor.py", "engine/ranks.py", "engine/summing.py", "inference/trained.py", "methods/contract.py",
    "parts/named.py", "report/ledger.py", "report/records.py", "runs/checks.py", "runs/loop.py", "runs/resolving.py",
    "tasks/kinds.py",
}  # fmt: skip


def test_every_file_is_written_by_the_strict_writer() -> None:
    root = Path(fedfloor.__file__).parent
    callers = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called) in ("json.dumps", "json.dump"):
                callers.add(path.relative_to(root).as_posix())
    assert callers == NO_FILES
