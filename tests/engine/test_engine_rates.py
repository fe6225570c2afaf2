"""Rates by part of the model: PyTorch's parameter groups, the same wherever a visit takes place, and what refuses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_optimisers import ADAMS, KINDS
from test_engine_visit import batches, big, visit
from torch import Tensor, nn

from commands import Command, lines
from fedfloor import config
from fedfloor.engine import union
from fedfloor.engine.engine import Engine
from fedfloor.engine.local_update import extracts_once
from fedfloor.engine.steps import large_layers
from fedfloor.engine.summand import farthest
from fedfloor.engine.visit import is_linear_visit
from fedfloor.parts.objectives.objective import Plain
from fedfloor.parts.work import WorkSettings
from fedfloor.plan import text
from fedfloor.plan.nodes import Parallel, Train, Work, device, edge, factors_of, factors_text
from floor import bits, engine, park, visits, walk
from refusals import refused
from rounds import Job, method

FACTORS = {"1": 0.25, "5": 2.0}  # of the layers of mlp-2nn; the layer between them has 1
WORK = Work(epochs=2, batch_size=32, rate=0.05, factors="1.* 0.25; 5.* 2.0")


def by_torch(of: Engine, work: Work) -> Tensor:
    """Train a copy of the network by an optimiser with a group, and a rate, for every parameter."""
    module = copy.deepcopy(of.network.module)
    groups = [
        {"params": [value], "lr": work.rate * FACTORS.get(name.partition(".")[0], 1.0)}
        for name, value in module.named_parameters()
    ]
    if work.optimizer == "sgd":
        steps: Any = torch.optim.SGD(groups, momentum=work.momentum, weight_decay=work.weight_decay)
    else:
        betas = (work.beta1, work.beta2)
        steps = ADAMS[work.optimizer](groups, betas=betas, eps=work.eps, weight_decay=work.weight_decay)
    for x, y in batches(of.samples(0), work):
        steps.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        if work.clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), work.clip_norm)
        steps.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


@pytest.mark.parametrize(
    "kind",
    [{}, {"momentum": 0.5}, {"momentum": 0.5, "weight_decay": 0.05}, {"clip_norm": 0.05}, *KINDS],
    ids=str,
)
def test_each_part_has_the_rate_of_its_parameter_group(kind: dict[str, Any]) -> None:
    # Here w + f·(w' − w), there a step of f·η: weights below 1/2 round by 2^-25 in each of 6 steps. Where a gradient is
    # about as small as ε Adam divides rounding by ε, and moves by some 1e-6; a wrong factor is off by more than 1e-2.
    of = big()
    work = replace(WORK, **kind)
    expected = by_torch(of, work)
    visit(of, work)
    torch.testing.assert_close(of.network.flat, expected, rtol=0, atol=1e-5 if "optimizer" in kind else 2e-7)


def test_one_step_by_hand() -> None:
    """A part with the factor 0 does not move, one with 1 moves as ever, to the bit, and one with 3 thrice as far."""
    even = big()
    start = even.network.flat.clone()
    scaled = copy.deepcopy(even)
    visit(even, Work(steps=1, rate=0.1))
    visit(scaled, Work(steps=1, rate=0.1, factors="1.* 0.0; 5.* 3.0"))
    still, same, far = (even.network.numbers(name)[0] for name in ("1.*", "3.*", "5.*"))
    assert bits(scaled.network.flat[still]) == bits(start[still])
    assert bits(scaled.network.flat[same]) == bits(even.network.flat[same])
    went = (even.network.flat - start)[far]
    torch.testing.assert_close((scaled.network.flat - start)[far], 3 * went, rtol=0, atol=1e-7)
    assert float(went.abs().max()) > 1e-3


def test_factors_of_a_part_that_alone_is_trained() -> None:
    """Names are those of the whole model, wherever the trained part begins in it."""
    even = big()
    halved = copy.deepcopy(even)
    start = even.network.flat.clone()
    visit(even, Work(steps=1, rate=0.1, trains="head"))
    visit(halved, Work(steps=1, rate=0.1, trains="head", factors="5.weight 0.5; 1.* 9.0"))
    (weight,) = even.network.numbers("5.weight")
    went = (even.network.flat - start)[weight]
    torch.testing.assert_close((halved.network.flat - start)[weight], went / 2, rtol=0, atol=1e-7)
    assert bits(halved.network.flat[: weight.start]) == bits(start[: weight.start])


# -- shortcuts step aside ----------------------------------------------------------------------------------------------


def test_no_shortcut_takes_work_with_factors() -> None:
    here = park((8, 8, 8))
    fast = engine(here)
    slow = replace(engine(here), shortcuts=False)
    even = Work(steps=1, batch_size=4, rate=0.1)
    work = replace(even, factors="head 0.5")
    packet = {"w": fast.network.flat}
    head = fast.network.module[-1]  # type: ignore[index]
    assert union.fits(fast, Parallel(visits((0, 1, 2), even), at=edge(0)), packet)
    assert not union.fits(fast, Parallel(visits((0, 1, 2), work), at=edge(0)), packet)
    assert extracts_once(fast, replace(even, trains="classifier"))
    assert not extracts_once(fast, replace(work, trains="classifier"))
    assert is_linear_visit(head, even, Plain())
    assert not is_linear_visit(head, work, Plain())
    for node in (Parallel(visits((0, 1, 2), work), at=edge(0)), Train(device(0), replace(work, trains="classifier"))):
        assert bits(walk(fast, node).packet["w"]) == bits(walk(slow, node).packet["w"])


def test_a_large_layer_takes_its_step_after_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfloor.engine.steps.LARGE", 1)
    of = big()
    assert large_layers(of.network, replace(WORK, factors=""), Plain())
    assert not large_layers(of.network, WORK, Plain())


@pytest.mark.parametrize(
    ("name", "parts"), [("scaffold", {}), ("qffl", {}), ("apfl", {}), ("fedavg", {"mix": "q_fair"})]
)
def test_what_reads_gradients_off_the_way_is_refused(name: str, parts: dict[str, Any], tmp_path: Path) -> None:
    with refused("method"):
        Job(method(name, parts, work={"lr_factors": {"head": 0.5}}), park(), folder=tmp_path).run()


def test_the_fastest_part_bounds_how_far_a_visit_goes() -> None:
    """A device clips what it adds to a secure sum to this: 5 steps of rate 0.1, their gradients up to 10, β = 0.5."""
    work = Work(steps=5, rate=0.1, momentum=0.5)
    assert farthest(work, 24, 100) == pytest.approx(10.0)
    assert farthest(replace(work, factors="body 0.1; head 4.0"), 24, 100) == pytest.approx(40.0)
    assert farthest(replace(work, factors="body 0.1"), 24, 100) == pytest.approx(10.0)  # the head has the rate itself


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_become_work_and_a_plan() -> None:
    given = {"lr": 0.1, "lr_factors": {"body": 0.5, "5.*": 2}}
    work = method("fedavg", work=given).method.work.at(1, 3)  # type: ignore[attr-defined]
    assert (work.rate, factors_of(work.factors)) == (0.1, {"body": 0.5, "5.*": 2.0})
    plan = Train(device(0), work)
    assert text.from_json(json.loads(json.dumps(text.to_json(plan)))) == plan
    assert "factors" not in text.to_json(Train(device(0), Work(epochs=1)))["work"]


def test_a_methods_own_table_replaces_the_factors() -> None:
    below = WorkSettings(lr_factors={"head": 0.5})
    assert WorkSettings(lr=0.1).over(below).at(1, 1).factors == factors_text({"head": 0.5})
    assert WorkSettings(lr_factors={"body": 2.0}).over(below).at(1, 1).factors == "body 2.0"
    assert WorkSettings(lr_factors={}).over(below).at(1, 1).factors == ""


@pytest.mark.parametrize(
    ("factors", "key"),
    [
        ({"head": -0.5}, "work.lr_factors.head"),
        ({"head": float("inf")}, "work.lr_factors.head"),
        ({"head": "fast"}, "work.lr_factors.head"),
        ({"a; b": 1.0}, "work.lr_factors"),
        ({"": 1.0}, "work.lr_factors"),
        (0.5, "work.lr_factors"),
    ],
)
def test_refused_settings(factors: Any, key: str) -> None:
    with refused(key):
        _ = config.from_table({"work": {"lr_factors": factors}}).configured


@pytest.mark.parametrize(
    "word", ["head", "head x", "head -1", "head nan", " 1", "head 1;body 2", "head 1; ", "head 1; head 2"]
)
def test_another_text_is_refused(word: str) -> None:
    with refused("factors"):
        factors_of(word)


@pytest.mark.parametrize("factors", ["{'conv*' = 0.1}", "{head = 0.1, '5.*' = 2.0}"])
def test_parts_that_a_model_has_not_and_parts_that_overlap_are_refused_before_the_first_round(
    command: Command, factors: str
) -> None:
    done = command("run", "tiny.toml", "--set", f"work.lr_factors={factors}")
    assert done.code == 2
    assert "work.lr_factors: '" in done.err
    assert not (command.folder / "runs/tiny/ledger.jsonl").exists()


def test_a_round_has_its_price_and_the_run_other_results(command: Command) -> None:
    words = ("run", "tiny.toml", "--set", "network.profile=5g-edge", "--set", "rounds=2")
    assert command(*words, "--out", "even").code == 0
    assert command(*words, "--out", "scaled", "--set", "work.lr_factors={head=0.5}").code == 0
    even = lines(command.folder / "even")
    scaled = lines(command.folder / "scaled")
    assert [one["priced"] for one in even] == [one["priced"] for one in scaled]
    assert [one["loss"] for one in even] != [one["loss"] for one in scaled]
