"""A run that ends when held-out samples show no improvement: its last model is that of the best round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from commands import Command
from fedfloor import config
from fedfloor.engine.evaluate import Score
from fedfloor.report.groups import groups
from fedfloor.report.ledger import collect
from fedfloor.report.story import story
from fedfloor.report.table import summary
from fedfloor.runs import checkpoint
from fedfloor.runs.compare import planned_runs
from refusals import refused

WAITS = ("evaluate.on=both", "evaluate.patience=2", "rounds=9")
# better headline, better headline, smaller loss, neither, neither
SERIES = [(0.5, 1.0), (0.7, 0.9), (0.6, 0.8), (0.6, 0.85), (0.7, 0.95), (0.9, 0.1), (0.9, 0.1), (0.9, 0.1), (0.9, 0.1)]


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command whose models have the accuracies and losses of ``SERIES`` on held-out samples, by round."""
    true = checkpoint.better

    def better(before: Any, number: int, model: Any, score: Score, *rest: Any) -> Any:
        accuracy, loss = SERIES[number - 1]
        monkeypatch.setattr(checkpoint, "evaluate", lambda *_: replace(score, accuracy=accuracy, loss=loss))
        return true(before, number, model, score, *rest)

    monkeypatch.setattr(checkpoint, "better", better)
    return command


def ledger(command: Command, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (command.folder / name / "ledger.jsonl").read_text().splitlines()]


def evaluation(command: Command, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((command.folder / name / "evaluation.json").read_text())
    return found


def same_model(command: Command, first: str, second: str) -> bool:
    a, b = (load_file(command.folder / name / "model.safetensors") for name in (first, second))
    return all(a[key].equal(b[key]) for key in a)


def begun(command: Command, name: str, changes: Sequence[str], *words: str) -> int:
    set_ = [word for change in changes for word in ("--set", change)]
    said = command("run", "tiny.toml", "--ranks", "1", "--out", name, *set_, *words)
    print(said.err)
    return said.code


def test_a_run_ends_after_so_many_evaluations_with_the_best_rounds_model(run: Command) -> None:
    assert begun(run, "waits", WAITS) == 0
    assert begun(run, "two", WAITS, "--stop-after", "2") == 0
    lines = ledger(run, "waits")
    last = evaluation(run, "waits")
    assert len(lines) == 5
    assert last["returned"] == 2
    assert "returned" not in evaluation(run, "two")
    assert same_model(run, "waits", "two")
    assert [line["accuracy"] for line in lines[:2]] == [line["accuracy"] for line in ledger(run, "two")]
    assert lines[-1]["loss"] == lines[1]["loss"] == last["loss"]  # of the model that the run keeps


def test_a_run_that_is_resumed_ends_where_it_would_have(run: Command) -> None:
    assert begun(run, "whole", WAITS) == 0
    assert begun(run, "cut", WAITS, "--stop-after", "4") == 0
    assert begun(run, "cut", WAITS, "--resume") == 0
    for _ in range(2):  # and once it has ended, it goes no further
        assert (run.folder / "cut/evaluation.json").read_bytes() == (run.folder / "whole/evaluation.json").read_bytes()
        assert len(ledger(run, "cut")) == 5
        assert begun(run, "cut", WAITS, "--resume") == 0


def test_evaluations_are_counted_and_not_rounds(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SERIES", [(0.5, 1.0)] * 9)
    assert begun(run, "waits", (*WAITS, "evaluate.every=2")) == 0
    assert len(ledger(run, "waits")) == 2 + 2 * 2
    assert evaluation(run, "waits")["returned"] == 2


def test_the_last_scheduled_round_returns_to_the_best_as_well(run: Command) -> None:
    assert begun(run, "all", ("evaluate.on=both", "evaluate.patience=8", "rounds=5")) == 0
    assert begun(run, "two", WAITS, "--stop-after", "2") == 0
    assert evaluation(run, "all")["returned"] == 2
    assert same_model(run, "all", "two")


def test_a_report_takes_each_seeds_own_end(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun(run, "a", WAITS) == 0
    monkeypatch.setitem(globals(), "SERIES", [(0.5, 1.0)] * 9)
    assert begun(run, "b", (*WAITS, "seed=1")) == 0
    assert begun(run, "c", ("evaluate.on=both", "method.name=fedsr", "rounds=9")) == 0
    runs = collect(run.folder / name for name in "abc")
    mine, other = summary(runs)
    ends = [evaluation(run, name)["accuracy"] for name in "ab"]
    assert mine["accuracy"] == pytest.approx(sum(ends) / 2)
    assert other["accuracy"] == evaluation(run, "c")["accuracy"]
    text = " ".join(story(groups(runs), None))
    assert "(seed 0) of round 2, after 5 rounds" in text
    assert "(seed 1) of round 1, after 3 rounds" in text
    assert "Schedule not finished" not in text


def test_devices_alone_are_beside_a_run_that_never_ended_before_its_last_round(run: Command) -> None:
    assert begun(run, "shared", ("evaluate.on=both", "evaluate.patience=8", "rounds=2"), "--references") == 0
    assert ledger(run, "shared/references/local-only-seed0")[-1]["round"] == 2


def test_a_comparison_trains_each_device_alone_without_patience() -> None:
    experiment = config.from_table({"data": {"name": "tiny"}, "evaluate": {"on": "both", "patience": 5}})
    runs = planned_runs(experiment, ["fedavg", "local-only"], [0], Path("x"))
    assert [run.experiment.evaluate.patience for run in runs] == [5, None]


def test_patience_needs_held_out_samples_and_a_single_model(run: Command) -> None:
    with refused("evaluate.patience"):
        config.from_table({"evaluate": {"patience": 2}})
    with refused("evaluate.patience"):
        config.from_table({"evaluate": {"patience": 0, "on": "both"}})
    assert begun(run, "own", (*WAITS, "method.name=fedper")) == 2
