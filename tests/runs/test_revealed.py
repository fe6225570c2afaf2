"""What devices send without noise: the declared questions, their number in a run, and the methods that are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedfloor
from fedfloor import config
from fedfloor.base.errors import SettingError
from fedfloor.base.outside import load
from fedfloor.methods.catalog import METHODS, REFERENCES
from fedfloor.methods.contract import Method, Needs, State, View
from fedfloor.parts.travel.path import RECEIPT, SUM, UPDATE
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Node, Parallel, Probe, Select, Sequence, Train, Work, device
from fedfloor.plan.questions import FACTS, asked, covers, facts_of
from fedfloor.runs import privacy, revealed
from fedfloor.tasks.classification import CLASSIFICATION
from refusals import refused

WORK = Work(epochs=1)
PROTECTIONS: dict[str, dict[str, Any]] = {
    "method.travel": {"method": {"travel": "secure-sum"}},
    "method.mix": {
        "method": {"mix": {"kind": "private", "delta": 1e-2}, "selection": {"kind": "poisson", "share": 0.5}}
    },
    "work.sample_clip": {"work": {"sample_clip": 1.0, "sample_noise": 1.0}},
}


def experiment(name: str, **more: dict[str, Any]) -> fedfloor.Experiment:
    table: dict[str, Any] = {
        "name": "revealed", "rounds": 2, "data": {"name": "labels", "samples_per_device": 20},
        "park": {"devices": 6, "factories": 2}, "model": {"name": "logistic"}, "work": {"batch_size": 10},
        "method": {"name": name}, "methods": {"kcenter": {"centers": 2}, "fldg": {"groups": 2}},
    }  # fmt: skip
    for key, part in more.items():
        table[key] = {**table.get(key, {}), **part}
    return config.from_table(table)


def answers(folder: Path, what: fedfloor.Experiment, **more: Any) -> dict[str, int]:
    fedfloor.run(what, folder, ranks=1, **more)
    stated = json.loads((folder / "privacy.json").read_text())["answers"]
    assert all(answer["reveals"] for answer in stated.values())
    return {name: answer["times"] for name, answer in stated.items()}


@dataclass(frozen=True)
class Undeclared(Method):
    """It asks for losses before each round, in the set-up for class counts, and selects by the census."""

    questions: tuple[str, ...] = ()
    work: WorkSettings = WorkSettings(epochs=1)

    @property
    def needs(self) -> Needs:
        return Needs(questions=tuple(Probe((), what) for what in self.questions))

    def setup(self, view: View) -> Node:
        return Probe(tuple(view.devices), "classes")

    def plan(self, state: State, view: View, rng: np.random.Generator) -> Node:
        chosen = Select("gbp_cs", tuple(view.devices), 2, self.work.at(1, 1), share=tuple(np.full(62, 1 / 62)))
        return Sequence((Probe(tuple(view.devices), "loss"), chosen))


load("test_revealed:Undeclared", "method")


@pytest.mark.parametrize("left_out", ["classes", "loss", "census"])
def test_a_question_that_a_method_does_not_declare_is_refused(tmp_path: Path, left_out: str) -> None:
    every = ["classes", "loss", "census"]
    name = "test_revealed:Undeclared"
    declared = {name: {"questions": [what for what in every if what != left_out]}}
    with refused("method"):
        fedfloor.run(experiment(name, methods=declared), tmp_path / "run", ranks=1)


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("name", [*METHODS, *REFERENCES])
def test_no_protection_goes_with_questions_that_read_samples(name: str, protection: str) -> None:
    plain = experiment(name).configured
    reads = [question.what for question in plain.questions if facts_of(question.what).reads == "samples"]
    if name == "qffl" and protection == "method.mix":
        reads = []  # the rule replaces the one that asks
    if reads:
        with pytest.raises(SettingError, match=f"{protection}.*'{name}'"):
            _ = experiment(name, **PROTECTIONS[protection]).configured
        return
    with suppress(SettingError):  # of parts that do not fit the method for other reasons
        _ = experiment(name, **PROTECTIONS[protection]).configured


def test_a_settings_change_from_round_to_round_is_the_same_question() -> None:
    low, high = (Probe((), "profile", settings={"epochs": 1, "rate": rate}) for rate in (0.1, 0.2))
    assert covers(low, high)
    assert not covers(low, Probe((), "profile", settings={"epochs": 2, "rate": 0.1}))
    assert not covers(low, Probe((), "loss"))
    assert not covers(Probe((), "hash", settings={"hashes": 1}), Probe((), "hash", settings={"hashes": True}))
    assert all(facts.reveals for facts in FACTS.values())


def test_answers_are_counted_by_device_and_repetition() -> None:
    choice = Select("gbp_cs", (0, 1), 1, WORK)
    plan = Sequence((Probe((0, 2), "loss"), Parallel((Train(device(0), WORK), choice)), Probe((0,), "loss")))
    assert [(question.what, question.devices) for question in asked(plan)] == [
        ("loss", (0, 2)), ("census", (0, 1)), ("loss", (0,)),
    ]  # fmt: skip
    first = revealed.answered(plan)
    assert first == {"loss": {0: 2, 2: 1}, "census": {0: 1, 1: 1}}
    assert revealed.answered(plan, 3)["census"] == {0: 1, 1: 1, 2: 1}
    assert revealed.together(first, first) == {"loss": {0: 4, 2: 2}, "census": {0: 2, 1: 2}}


def test_a_run_lists_every_number_without_noise(tmp_path: Path) -> None:
    visits = {"holding": 1, "update": 2, "receipt": 2}
    assert answers(tmp_path / "fedavg", experiment("fedavg")) == visits
    assert answers(tmp_path / "qffl", experiment("qffl")) == visits | {"loss": 2}
    assert answers(tmp_path / "ifca", experiment("ifca")) == visits | {"losses": 2}
    assert answers(tmp_path / "fedl", experiment("fedl")) == visits | {"gradient": 1}
    assert answers(tmp_path / "fedper", experiment("fedper")) == visits | {"outputs": 2}
    summed = answers(tmp_path / "summed", experiment("fedavg", **PROTECTIONS["method.travel"]))
    assert summed == {"holding": 1, "sum": 2, "receipt": 2}
    noisy = experiment("fedavg", **PROTECTIONS["work.sample_clip"])
    assert answers(tmp_path / "noisy", noisy) == {"holding": 1}
    assert answers(tmp_path / "local", experiment("local-only")) == {"holding": 1, "receipt": 2, "outputs": 2}


def test_without_a_visit_to_a_device_it_sends_no_update() -> None:
    """Nothing was visited, or the cloud alone, which has the samples themselves."""
    what = experiment("fedavg")

    def sent(visits: dict[int, int]) -> dict[str, int]:
        stated = revealed.statement(what, what.configured, CLASSIFICATION, {}, visits, 1)
        return {name: entry["times"] for name, entry in stated.items()}

    assert sent({}) == {"holding": 1}
    assert sent({-1: 3}) == {"holding": 1, "samples": 1}
    assert sent({0: 3, 1: 2}) == {"holding": 1, "update": 3, "receipt": 3}


def test_a_resumed_run_counts_the_answers_of_all_its_rounds(tmp_path: Path) -> None:
    stopped = answers(tmp_path / "run", experiment("ifca"), limits=fedfloor.Limits(stop_after=1))
    assert stopped["losses"] == 1
    assert answers(tmp_path / "run", experiment("ifca"), resume=True)["losses"] == 2


def test_private_sgd_withholds_losses_and_refuses_rules_that_read_accuracy(tmp_path: Path) -> None:
    protection = PROTECTIONS["work.sample_clip"]
    done = fedfloor.run(experiment("fedavg", **protection), tmp_path / "run", ranks=1)
    assert all(line.train_loss is None and line.loss is not None for line in done.lines)
    with refused("combination"):
        _ = experiment("ida", methods={"ida": {"factors": "accuracy"}}, **protection).configured
    _ = experiment("ida", **protection).configured


def test_what_one_part_hides_no_other_part_reveals() -> None:
    summed = experiment("fedavg", method={"travel": "secure-sum"}, **PROTECTIONS["work.sample_clip"])
    assert privacy.revealed(summed.configured) == {UPDATE: "", RECEIPT: "", SUM: ""}


def test_a_rule_whose_leave_nobody_would_call_is_refused() -> None:
    halved = {"mix": "floor:Halved"}
    with refused("method.mix"):
        _ = experiment("fedavg", method=halved).configured
    _ = experiment("fedavg", method={**halved, "travel": "secure-sum"}).configured


def test_a_device_that_changes_factories_stays_in_no_crew(tmp_path: Path) -> None:
    crews = {"travel": {"kind": "secure-sum", "together": True}}
    moving = experiment("hierfavg", park={"mobility": {"every": 2}}, method=crews)
    with refused("combination"):
        fedfloor.run(moving, tmp_path / "run", ranks=1)
