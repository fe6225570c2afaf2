"""Class weights and focal loss: worked out by hand, identities to the bit, the census they come from, every path."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cohorts import both, same
from commands import Command
from fedfloor.methods.catalog import METHODS
from fedfloor.methods.contract import State, View
from fedfloor.parts.mixing.weighting import Focal, Weighted, from_counts, reweighted, settled
from fedfloor.parts.objectives import registry as objectives
from fedfloor.parts.objectives.objective import Objective, Plain, Visit
from fedfloor.parts.objectives.proximal import Prox
from fedfloor.parts.objectives.registry import objective
from fedfloor.plan import text
from fedfloor.plan import walk as plans
from fedfloor.plan.nodes import Parallel, Work
from fedfloor.runs import loop, results
from floor import bits, park, visits
from live_park import experiment, figures, live, simulated
from refusals import refused
from rounds import Job, after, method

GIVEN = {"kind": "weighted", "weights": [0.5, 2, 4.25]}


# -- equations ---------------------------------------------------------------------------------------------------------


def losses(goal: Objective, logits: list[list[float]], y: list[int]) -> float:
    given = torch.tensor(logits, dtype=torch.float64)
    return float(goal.loss(nn.Identity(), given, torch.tensor(y), Visit(None, {}))[0])


def test_weights_by_hand() -> None:
    # logits (0, 0) and (ln 3, 0): cross-entropies ln 2 of class 1 and ln 4/3 of class 0; (5·ln 2 + 0.5·ln 4/3)/2
    found = losses(Weighted("0.5 5"), [[0.0, 0.0], [math.log(3), 0.0]], [1, 0])
    assert found == pytest.approx((5 * math.log(2) + 0.5 * math.log(4 / 3)) / 2, rel=1e-12)


def test_focus_by_hand() -> None:
    # p = 1/2 and 3/4: (1/2)²·ln 2 and (1/4)²·ln 4/3, and with weights 5 times the first and half of the second
    first = 0.25 * math.log(2)
    second = 0.0625 * math.log(4 / 3)
    logits = [[0.0, 0.0], [math.log(3), 0.0]]
    y = [1, 0]
    assert losses(Focal(2.0), logits, y) == pytest.approx((first + second) / 2, rel=1e-12)
    assert losses(Focal(2.0, "0.5 5"), logits, y) == pytest.approx((5 * first + 0.5 * second) / 2, rel=1e-12)


@pytest.mark.parametrize("goal", [Weighted("0.3 2 7"), Focal(2.0), Focal(0.5, "0.3 2 7")], ids=str)
def test_gradients_are_those_of_finite_differences(goal: Objective) -> None:
    logits = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.tensor([0, 1, 2, 2, 1])
    assert torch.autograd.gradcheck(lambda z: goal.loss(nn.Identity(), z, y, Visit(None, {}))[0], logits)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
def test_a_sample_that_is_certain_has_a_finite_slope(gamma: float) -> None:
    logits = torch.tensor([[80.0, 0.0], [-80.0, 0.0]], requires_grad=True)
    loss, _ = Focal(gamma).loss(nn.Identity(), logits, torch.tensor([0, 0]), Visit(None, {}))
    (slope,) = torch.autograd.grad(loss, logits)
    assert bool(torch.isfinite(slope).all())
    assert slope[0].abs().max() < 1e-6 < slope[1].abs().max()


def test_the_census_weighs_by_hand() -> None:
    # n = 110, F = 2: 110/(2·100) and 110/(2·10); with one sample more of each class 112/(2·101) and 112/(2·11)
    assert from_counts([100, 10], 0.0, 100.0) == pytest.approx((0.55, 5.5), rel=1e-15)
    assert from_counts([100, 10], 1.0, 100.0) == pytest.approx((112 / 202, 112 / 22), rel=1e-15)
    assert from_counts([100, 10], 0.0, 3.0) == (0.55, 3.0)
    assert from_counts([100, -4], 0.0, 30.0) == (0.5, 30.0)  # noise: as if there were none
    assert from_counts([7, 7, 7], 0.0, 100.0) == (1.0, 1.0, 1.0)
    assert from_counts([0, 0], 0.0, 100.0) == (1.0, 1.0)
    assert sum(a * n for a, n in zip(from_counts([90, 7, 3], 0.0, 100.0), (90, 7, 3), strict=True)) == pytest.approx(
        100
    )


# -- identities --------------------------------------------------------------------------------------------------------


def model(name: str = "fedavg", goal: Any = None) -> bytes:
    return bits(after(method(name, {} if goal is None else {"objective": goal}), park()).packet["w"])


@pytest.mark.parametrize("name", ["fedavg", "fedsr", "fedgs"])
@pytest.mark.parametrize(
    "goal",
    [
        {"kind": "weighted", "weights": [1, 1, 1]},
        {"kind": "weighted", "weights": "1.0 1 1"},
        {"kind": "focal", "gamma": 0},
        {"kind": "focal", "gamma": 0.0, "weights": [1, 1, 1]},
    ],
    ids=str,
)
def test_equal_weights_and_no_focus_are_plain_training_to_the_bit(name: str, goal: dict[str, Any]) -> None:
    of = method(name, {"objective": goal})
    job, plain = (Job(one, park(), model="logistic") for one in (of, method(name)))
    job.engine.shortcuts = plain.engine.shortcuts = False  # which know plain cross-entropy alone
    assert bits(job.run().packet["w"]) == bits(plain.run().packet["w"])


def test_no_focus_with_weights_is_weighted_to_the_bit() -> None:
    assert model(goal={**GIVEN, "kind": "focal", "gamma": 0}) == model(goal=GIVEN) != model()


def test_weights_from_the_census_are_those_given() -> None:
    counts = park().counts().sum(0)
    same = {"kind": "weighted", "weights": " ".join(map(repr, from_counts(counts, 1.0, 100.0))), "smoothing": 1.0}
    assert model(goal="weighted") == model(goal=same) != model()


# -- beside a method's own objective ---------------------------------------------------------------------------------

COMPOSED = ["fedprox", "scaffold", "moon", "fedmmd", "fedfusion"]
REFUSED = ["fedl", "cgau"]


def trained(folder: Path, name: str, goal: Any = None) -> Any:
    parts = {} if goal is None else {"objective": goal}
    return Job(method(name, parts), park(), folder=folder / f"{name} {goal}").run()


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("goal", [{"kind": "weighted", "weights": [1, 1, 1]}, {"kind": "focal", "gamma": 0}], ids=str)
def test_a_method_with_equal_weights_is_itself_to_the_bit(tmp_path: Path, name: str, goal: dict[str, Any]) -> None:
    assert bits(trained(tmp_path, name, goal).packet["w"]) == bits(trained(tmp_path, name).packet["w"])


@pytest.mark.parametrize("name", COMPOSED)
def test_a_methods_own_terms_stay_beside_the_weights(tmp_path: Path, name: str) -> None:
    both = trained(tmp_path, name, GIVEN)
    own = trained(tmp_path, name)
    alone = trained(tmp_path, "fedavg", GIVEN)
    assert len({bits(one.packet["w"]) for one in (both, own, alone)}) == 3
    assert both.packet.keys() == own.packet.keys()


def test_the_pull_and_the_weighted_losses_by_hand() -> None:
    part = reweighted(Prox(0.5), Weighted("0.5 5"), "prox", "fedprox")
    again = objectives.objective(*objectives.to_spec(part))
    assert again == part
    y = torch.tensor([1, 0])
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]], dtype=torch.float64)
    visit = Visit(torch.tensor([1.0, 2.0]), {})
    found = float(again.loss(nn.Identity(), logits, y, visit)[0])
    assert found == pytest.approx((5 * math.log(2) + 0.5 * math.log(4 / 3)) / 2, rel=1e-12)
    term = again.penalty(torch.tensor([3.0, 2.0]), replace(visit, ready=again.begin(visit)))
    assert term is not None
    assert (float(term[0]), term[1].tolist()) == (1.0, [1.0, 0.0])  # (0.5/2)·2², 0.5·(2, 0)
    assert again.needs_start


def test_what_moon_keeps_and_costs_stays_with_weights() -> None:
    whole = method("moon", {"objective": GIVEN})
    assert objectives.to_spec(whole.objective)[0] == "reweighted"
    assert whole.objective.remembers
    assert whole.objective.passes(1.0) == method("moon").objective.passes(1.0) > Plain().passes(1.0)


@pytest.mark.parametrize("name", REFUSED)
def test_objectives_without_a_cross_entropy_to_replace_are_refused_by_name(name: str) -> None:
    with refused("method.objective"):
        method(name, {"objective": "weighted"})


def test_a_plan_whose_parts_do_not_combine_is_refused() -> None:
    for settings in ({"own": "gated", "samples": "weighted"}, {"own": "prox", "own.mu": 0.1, "samples": "plain"}):
        with refused("objective"):
            objective("reweighted", settings)
    with refused("objective"):
        objective("reweighted", {"samples": "focal"})


@pytest.mark.slow
def test_real_machines_train_fedprox_with_weights_as_simulations_do(tmp_path: Path) -> None:
    more = "method.objective = 'weighted'\nmethods.fedprox.mu = 0.1"
    what = experiment(tmp_path, "fedprox", devices=4, more=more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as there:
        got = there.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("live", "simulated")]
    assert files[0] == files[1]


# -- the census --------------------------------------------------------------------------------------------------------


def view(number: int = 0) -> View:
    here = park()
    return View(number, 3, here.holdings, here.factory_of, {}, census=np.ones((5, 3)))


@pytest.mark.parametrize(("name", "questions"), [("fedavg", ["classes"]), ("fedgs", ["classes"]), ("hfedms", None)])
def test_devices_are_asked_once(name: str, questions: list[str] | None) -> None:
    asked = method(name, {"objective": "weighted"}).setup(view())
    assert asked is not None
    found = [one.what for one in plans.probes(asked)]
    assert found.count("classes") == 1
    assert questions is None or found == questions
    assert method("fedavg", {"objective": GIVEN}).setup(view()) is None


def test_a_preview_needs_no_census() -> None:
    of = method("fedavg", {"objective": "weighted"})
    plan = of.plan(State({}), view(1), np.random.default_rng(0))
    assert isinstance(plan, Parallel)


def test_the_census_is_counted_by_privacy_and_weights_are_those_of_the_noisy_counts() -> None:
    noisy = replace(park(), census_epsilon=0.5)
    job = Job(method("fedavg", {"objective": "weighted"}), noisy)
    state = job.begin()
    reported = np.sum([noisy.classes(k) for k in range(5)], axis=0)
    assert not np.array_equal(reported, park().counts().sum(0))
    assert tuple(state.notes["class_weights"]) == from_counts(reported, 1.0, 100.0)
    from fedfloor import config

    told = config.from_table({"park": {"census_epsilon": 0.5}, "method": {"objective": "weighted"}})
    asked = told.configured.setup(view())
    assert asked is not None
    assert dict(results.reports(told, asked)) == dict.fromkeys(range(5), 1)


# -- every path --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", ["weighted", "focal"])
@pytest.mark.parametrize("fixed", [None, True])
@pytest.mark.parametrize("scope", ["all", "classifier"])
def test_a_cohort_does_the_same(goal: str, fixed: bool | None, scope: str) -> None:
    work = Work(goal, epochs=2, batch_size=4, rate=0.1, momentum=0.5, settings={"weights": "0.5 2 4"}, trains=scope)
    first, second = both(Parallel(visits(range(6), work)), fixed=fixed)
    same(first, second)
    plain, _ = both(Parallel(visits(range(6), replace(work, objective="plain", settings={}))))
    assert bits(plain.packet["w"]) != bits(first.packet["w"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in REFUSED])
def test_every_method_with_the_census_of_a_park(name: str, tmp_path: Path) -> None:
    job = Job(method(name, {"objective": "weighted"}), park((6, 10, 4, 9, 5, 8)), folder=tmp_path)
    state = job.run()
    assert len(state.notes["class_weights"]) == 3
    said = json.dumps([text.to_json(one.resolved) for one in job.outcomes])
    assert json.dumps(settled(Weighted(), state.notes["class_weights"]).weights) in said


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_was_stopped_goes_on_with_its_weights(
    command: Command, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_S", 0.0)
    words = ("run", "tiny.toml", "--set", "method.objective=weighted", "--set", "rounds=3", "--ranks", str(ranks))
    assert command(*words, "--out", "whole").code == 0
    assert command(*words, "--out", "cut", "--stop-after", "1").code == 0
    assert command(*words, "--out", "cut", "--resume").code == 0
    whole, cut = ((command.folder / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["weighted", "focal"])
def test_real_machines_do_the_same(tmp_path: Path, goal: str) -> None:
    what = experiment(tmp_path, "fedavg", devices=4, more=f"method.objective = '{goal}'")
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as there:
        got = there.run()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("live", "simulated")]
    assert files[0] == files[1]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("weighted", {"weights": "heavy"}, "objective"),
        ("weighted", {"weights": "0 0"}, "objective"),
        ("weighted", {"weights": "-1 1"}, "objective"),
        ("weighted", {"weights": "1 nan"}, "objective"),
        ("weighted", {"weights": ""}, "objective"),
        ("weighted", {"cap": 0.5}, "objective weighted: cap"),
        ("weighted", {"smoothing": -1.0}, "objective weighted: smoothing"),
        ("focal", {"gamma": -1.0}, "objective focal: gamma"),
        ("focal", {"weights": "x"}, "objective"),
    ],
)
def test_settings_that_cannot_be(name: str, settings: dict[str, Any], message: str) -> None:
    with refused(message):
        objective(name, settings)


def test_another_number_of_classes_is_refused_before_training() -> None:
    with refused("method.objective"):
        Job(method("fedavg", {"objective": {"kind": "weighted", "weights": [1, 2]}}), park())


def test_weights_that_nobody_worked_out_are_refused() -> None:
    with refused("weights"):
        losses(Weighted(), [[0.0, 0.0]], [0])
    assert type(Plain()) is Plain
