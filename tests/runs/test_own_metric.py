"""A metric of one's own is a headline like any other: of runs, limits, reports without its code, predictions, gates."""

from __future__ import annotations

import csv
import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from commands import Command, lines
from fedfloor import Metric, TestedSamples, config
from fedfloor.base.outside import name_of
from fedfloor.experiment import EvaluateSettings
from fedfloor.parts.metrics import headline
from fedfloor.report.groups import groups
from fedfloor.report.ledger import read_run
from fedfloor.report.story import apart
from fedfloor.report.table import natural_target, summary
from fedfloor.report.words import markdown
from fedfloor.rollout.registry import metric_of
from fedfloor.tasks.figures import OWN, Errors, Kind, Predictions
from fedfloor.tasks.metric import Calculation, recorded, samples_of, stated
from refusals import refused

COSTS = """
from dataclasses import dataclass
import numpy as np
from fedfloor import Metric

@dataclass(frozen=True)
class WrongCost(Metric):
    each: float = 7.0
    better = "lower"
    unit = "EUR"
    def value(self, samples):
        assert samples.scores.shape == (len(samples.true), len(samples.classes))
        assert np.allclose(samples.scores.sum(1), 1, atol=1e-5)
        assert (samples.scores.argmax(1) == samples.predicted).all()
        return self.each * np.mean(samples.true != samples.predicted)

@dataclass(frozen=True)
class Worst(WrongCost):
    better = "worse"

@dataclass(frozen=True)
class Words(WrongCost):
    def value(self, samples):
        return "good"

@dataclass(frozen=True)
class Typo(WrongCost):
    def value(self, samples):
        return np.mean(samples.truth)

@dataclass(frozen=True)
class Few(WrongCost):
    better = "higher"
    def value(self, samples):
        if len(np.unique(samples.scores[:, 0])) < len(samples.scores):
            raise ValueError("a sample occurs twice")
        return 1.0

@dataclass(frozen=True)
class Nothing(WrongCost):
    def value(self, samples):
        return np.float64("nan")

@dataclass(frozen=True)
class Life(WrongCost):
    tasks = ("regression",)

@dataclass(frozen=True)
class Without(Metric):
    better = "lower"
    def value(self):
        return 0.0

class Plain(WrongCost):
    pass

@dataclass(frozen=True)
class Far(Metric):
    better = "lower"
    unit = "units of the target"
    def value(self, samples):
        assert len(set(samples.devices.tolist())) <= 2
        return np.max(samples.predicted - samples.true)

def function(samples):
    return 0.0
"""
STATE = 'label = "state", ignore = ["wear"] }'
WEAR = 'label = "wear", ignore = ["state"] }\ntask = "regression"'
OF_EACH = 'evaluate.headline={kind="costs:WrongCost", each=10.0}'
TABLE = """
name = "table"
rounds = 3
[data]
path = "t.csv"
columns = { device = "machine", LABEL
[model]
name = "linear"
[work]
lr = 0.05
batch_size = 8
"""


@pytest.fixture(autouse=True)
def costs(command: Command) -> Iterator[None]:
    (command.folder / "costs.py").write_text(COSTS)
    rng = np.random.default_rng(0)
    load = rng.random(300)
    columns = (rng.choice(["a", "b"], 300), load, np.where(load > 0.6, "worn", "good"), load * 9 + rng.normal(size=300))
    rows = ["machine,load,state,wear", *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
    (command.folder / "t.csv").write_text("\n".join(rows) + "\n")
    (command.folder / "table.toml").write_text(TABLE.replace("LABEL", STATE))
    yield
    sys.modules.pop("costs", None)


@dataclass(frozen=True)
class LateShare(Metric):
    """The share of numbers that are too high."""

    by: float = 0.0
    better: Literal["higher", "lower"] = "lower"
    unit: str = "share"
    name: str = ""

    def value(self, samples: TestedSamples) -> float:
        return float(np.mean(samples.predicted - samples.true > self.by))


def test_it_is_the_headline_of_a_run_with_intervals_devices_and_an_end(command: Command) -> None:
    done = command("run", "table.toml", "--set", OF_EACH, "--out", "run", "--json")
    (row,) = done.document["rows"]
    assert row["wrong_cost"] == pytest.approx(10 * (1 - row["accuracy"]))
    assert row["low"] < row["wrong_cost"] < row["high"]
    said = lines(command.folder / "run")
    assert [line["figures"]["wrong cost"] for line in said] == pytest.approx(
        [10 * (1 - line["accuracy"]) for line in said]
    )
    final = json.loads((command.folder / "run" / "evaluation.json").read_text())
    drawn = final["resampled"]["figures"]
    assert drawn["wrong cost"] == pytest.approx([10 * (1 - share) for share in drawn["accuracy"]], abs=1e-4)
    before = said[1]["figures"]["wrong cost"]
    until = command("run", "table.toml", "--set", OF_EACH, "--out", "cut", "--until", f"Wrong_Cost={before + 1e-9}")
    assert until.code == 0
    assert len(lines(command.folder / "cut")) == 2
    assert command("run", "table.toml", "--set", OF_EACH, "--out", "cut", "--resume", "--ranks", "2").code == 0
    assert [one["figures"] for one in lines(command.folder / "cut")] == [one["figures"] for one in said]


def test_a_folder_states_it_so_that_nothing_is_imported_to_report(command: Command) -> None:
    command("run", "table.toml", "--set", OF_EACH, "--out", "run")
    written = tomllib.loads((command.folder / "run" / "experiment.toml").read_text())["evaluate"]["headline"]
    assert written == {"kind": "costs:WrongCost", "each": 10.0, "name": "wrong cost", "better": "lower", "unit": "EUR"}
    again = config.read(command.folder / "run" / "experiment.toml", [])
    assert again.evaluate.figure == headline({"kind": "costs:WrongCost", "each": 10.0})
    (command.folder / "costs.py").unlink()
    sys.modules.pop("costs", None)
    run = read_run(command.folder / "run")
    assert (run.headline.axis, run.headline.kind.better, run.headline.own) == ("wrong cost (EUR)", "lower", "EUR")
    (row,) = summary((run,), 9.0)
    assert row["wrong_cost"] == run.headline.read(run.rounds[-1])
    assert natural_target((run,)) is not None
    assert groups((run,)).headline == run.headline
    assert command("report", "run").code == 0
    assert "wrong cost" in (command.folder / "run" / "report.html").read_text()
    assert metric_of({"headline": ["wrong cost", 1.0], "metric": written}) == run.headline
    assert "costs" not in sys.modules


def test_other_settings_are_another_headline(command: Command) -> None:
    command("run", "table.toml", "--set", OF_EACH, "--out", "a")
    command("run", "table.toml", "--set", "evaluate.headline=costs:WrongCost", "--set", "seed=1", "--out", "b")
    runs = (read_run(command.folder / "a"), read_run(command.folder / "b"))
    assert groups(runs).headline.name == "accuracy"
    said = apart(groups(runs))  # both are called "wrong cost"
    assert "with each = 10.0 in EUR, lower is better and wrong cost of costs:WrongCost in EUR" in said
    assert "| method | wrong cost (EUR) | minus" in markdown(runs[:1])
    written = (command.folder / "a" / "experiment.toml").read_text()
    (command.folder / "e.toml").write_text(written.replace('better = "lower"', 'better = "higher"'))
    with refused("own-metric"):
        config.read(command.folder / "e.toml", [])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("costs:Worst", "own-metric"),
        ("costs:Plain", "metric"),
        ("costs:function", "own-part"),
        ("costs:Without", "own-part"),
        ("costs:Missing", "own-code"),
        ('{kind="costs:WrongCost", eech=1.0}', "unknown setting of metric 'costs:WrongCost'"),
        ('{kind="costs:WrongCost", each="much"}', "part-settings"),
        ("{each=1.0}", "evaluate.headline"),
        ("costs:WrongCost\nevaluate.headline.each=3", "--set"),
    ],
)
def test_what_is_no_metric_is_refused_before_training(command: Command, name: str, key: str) -> None:
    with refused(key):
        config.read(command.folder / "table.toml", f"evaluate.headline={name}".split("\n"))


def test_a_wrong_result_is_named_and_another_task_refused(command: Command) -> None:
    said = command("run", "table.toml", "--set", "evaluate.headline=costs:Words")
    assert (said.code, "metric 'costs:Words' returned 'good'" in said.err) == (2, True)
    said = command("run", "table.toml", "--set", "evaluate.headline=costs:Typo")
    assert (said.code, "in value: AttributeError" in said.err) == (1, True)
    said = command("run", "table.toml", "--set", "evaluate.headline=costs:Life")
    assert (said.code, "applies to tasks of the kind regression" in said.err) == (2, True)
    said = command("run", "table.toml", "--until", "wrong cost=3")
    assert (said.code, "--until 'wrong cost'" in said.err) == (2, True)


def test_parts_of_the_samples_for_which_it_fails_are_undefined(command: Command) -> None:
    assert command("run", "table.toml", "--set", "evaluate.headline=costs:Few", "--out", "run").code == 0
    final = json.loads((command.folder / "run" / "evaluation.json").read_text())
    assert final["figures"] == {"few": 1.0}
    assert None in final["resampled"]["figures"]["few"]
    said = command("run", "table.toml", "--set", "evaluate.headline=costs:Nothing", "--out", "none", "--json")
    assert "The nothing is no finite number in the last round of FedAvg" in said.document["remarks"][0]


@pytest.mark.parametrize(
    ("label", "code"),
    [(STATE, "costs:WrongCost"), (WEAR, "costs:Far")],
)
def test_labelled_rows_are_judged_by_it_where_its_code_is_trusted(command: Command, label: str, code: str) -> None:
    (command.folder / "table.toml").write_text(TABLE.replace("LABEL", label))
    assert command("run", "table.toml", "--set", f"evaluate.headline={code}", "--out", "run").code == 0
    sys.modules.pop("costs")
    said = command("predict", "run", "t.csv", "--json")
    assert [text for text in said.document["warnings"] if "--own-code" in text]
    assert "costs" not in sys.modules
    command("predict", "run", "t.csv", "--own-code", "--csv", "t-predicted.csv")
    said = command("predict", "run", "t.csv", "--own-code", "--json")
    assert not [text for text in said.document["warnings"] if "--own-code" in text]
    (value,) = (value for name, value in said.document["figures"].items() if name in ("wrong cost", "far"))
    with (command.folder / "t-predicted.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 300
    if label == STATE:
        assert value == pytest.approx(7 * np.mean([row["predicted"] != row["label"] for row in found]))
    else:
        away = [float(row["predicted wear"]) - float(row["true wear"]) for row in found]
        assert value == pytest.approx(max(away), abs=1e-4)


def test_single_samples_are_those_of_the_task() -> None:
    errors = Errors(np.array([[9.0], [150.0]]), np.array([[[1.0], [8.0]]]).reshape(2, 1, 1), cap=125.0)
    tested = Predictions(np.zeros((1, 1), np.int64), 0.0, errors=errors)
    seen = samples_of(tested, np.zeros(2, np.int64), np.zeros(2), np.zeros((2, 0)), ["all"])
    assert seen.true.tolist() == [[9.0], [125.0]]
    assert seen.predicted.tolist() == [[1.0], [8.0]]


def test_a_metric_given_as_an_object_is_that_of_its_table() -> None:
    given = EvaluateSettings(headline=LateShare(by=2.0))  # type: ignore[arg-type]
    assert given.headline == {"kind": f"{__name__}:LateShare", "by": 2.0}
    figure = given.figure
    assert figure == figure_of(by=2.0)
    assert recorded(stated(figure)) == figure


def figure_of(**settings: Any) -> Any:
    return headline({"kind": name_of(LateShare), **settings})


def test_targets_of_ones_own_may_be_negative() -> None:
    figure = figure_of(unit="EUR", name="F2")
    assert (figure.phrase, figure.unit, figure.amount("3")) == ("an F2", "EUR", "3 EUR")
    figure.check_target(-40.0, "--until")
    assert figure.round_target([-2.33, 1.0]) == -2.0
    assert figure.round_target([2.33]) == 2.5
    assert figure_of(unit="EUR", better="higher").round_target([-2.33, -7.0]) == -2.5
    with refused("own-metric"):
        figure_of(unit="<b>")
    with refused("evaluate.headline"):  # in the folder of a stranger
        recorded({"kind": "costs:Cost", "each": [1], "name": "cost", "better": "lower", "unit": "EUR"})
    with refused("own-metric"):
        figure_of(name="recall")
    with refused("own-metric"):
        figure_of(name="a, b")
    assert headline({"kind": f"{__name__}:LateShare", "unit": OWN}).within("rows").unit == "rows"
    assert isinstance(figure.kind, Kind)
    assert isinstance(figure.kind.value, Calculation)
