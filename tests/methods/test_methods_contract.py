"""What every method owes: pure plans, a state that can be written down, any park, dead devices, any number of ranks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedfloor
from fedfloor import config
from fedfloor.engine.team import Team
from fedfloor.methods.catalog import METHODS, card
from fedfloor.park.park import Park
from fedfloor.plan import text
from floor import bits, everywhere, park
from refusals import refused
from rounds import NETWORKED, OWN, RADIO, Job, digest, method, untouched

SIZES = (6, 10, 4, 9, 5, 8)
FACTORIES = (0, 1, 0, 1, 2, 2)
EVERY = pytest.mark.parametrize("name", METHODS)


def floor_() -> Park:
    return park(SIZES, factory_of=FACTORIES)


@EVERY
def test_a_plan_is_pure(name: str, tmp_path: Path) -> None:
    job = Job(method(name), floor_(), folder=tmp_path)
    state = job.begin()
    for number in range(1, 4):
        before = untouched(state)
        first = job.plan(state, number)
        second = job.plan(state, number)
        assert first == second
        assert text.from_json(json.loads(json.dumps(text.to_json(first)))) == first
        assert digest(state, []) == digest(before, [])
        job_outcome = job.round(state, number)
        assert digest(state, []) == digest(before, [])  # absorb leaves what it was given
        state = job_outcome


@EVERY
def test_a_round_trains_and_keeps_the_model_finite(name: str, tmp_path: Path) -> None:
    job = Job(method(name), floor_(), folder=tmp_path)
    state = job.run()
    assert bits(state.packet["w"]) != bits(job.start["w"])
    assert all(bool(torch.isfinite(one).all()) for one in {**state.packet, **state.tensors}.values())
    assert len(state.packet["w"]) == len(job.engine.network.flat)


@EVERY
@pytest.mark.parametrize("loss", [0.0, 0.4], ids=["all arrive", "some are lost"])
def test_one_rank_or_two_is_the_same(name: str, loss: float, tmp_path: Path) -> None:
    def body(team: Team) -> object:
        job = Job(method(name), floor_(), team=team, folder=tmp_path / str(team.size), loss=loss)
        return digest(job.run(), job.outcomes)

    (alone,) = everywhere(1, body)
    assert everywhere(2, body) == [alone, alone]


GROUPS = {name: OWN[name] for name in ("fldg", "fldgl", "kcenter")}  # more of them than devices are refused
ALONE = {"fldg": {"groups": 1}, "fldgl": {"groups": 1}, "kcenter": {"centers": 1}}


@EVERY
def test_one_device_is_a_park(name: str, tmp_path: Path) -> None:
    state = Job(method(name, **ALONE.get(name, {})), park((9,)), folder=tmp_path).run()
    assert bool(torch.isfinite(state.packet["w"]).all())


@EVERY
def test_one_class_per_device_is_a_park(name: str, tmp_path: Path) -> None:
    here = floor_()
    y = here.dataset.y.copy()
    for k, indices in enumerate(here.indices):
        y[indices] = k % 3
    one_each = replace(here, dataset=replace(here.dataset, y=y))
    assert (np.count_nonzero(one_each.counts(), axis=1) == 1).all()
    state = Job(method(name), one_each, folder=tmp_path).run()
    assert bool(torch.isfinite(state.packet["w"]).all())


@EVERY
def test_a_dead_device_costs_its_own_visits_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfloor.plan.schedule.is_lost", lambda key, chance: key.device == 2)
    job = Job(method(name), floor_(), folder=tmp_path)
    state = job.run()
    told = [one for outcome in job.outcomes for one in outcome.receipts if one.device >= 0]
    assert all(one.lost == (one.device == 2) for one in told)
    assert any(one.lost for one in told) or name == "centralized"
    assert 2 not in job.engine.memory.held
    assert bits(state.packet["w"]) != bits(job.start["w"])
    assert all(bool(torch.isfinite(one).all()) for one in {**state.packet, **state.tensors}.values())


@EVERY
def test_where_every_device_is_dead_nothing_moves(name: str, tmp_path: Path) -> None:
    job = Job(method(name), floor_(), folder=tmp_path, loss=1 - 1e-9)
    state = job.begin()
    after = job.round(state, 1)
    if all(one.device < 0 for one in job.outcomes[0].receipts):
        pytest.skip("trains at the cloud, which is never lost")
    assert all(one.lost for one in job.outcomes[0].receipts)
    assert digest(after, [])[0] == digest(state, [])[0]  # HFedMS notes whom it asked
    assert not job.engine.memory.held


SMALL = {"boosting": {"depth": 2, "bins": 4}}  # its sums are of 784 features and 62 classes


@EVERY
def test_a_run_killed_and_resumed_on_two_ranks_is_the_same_run(name: str, tmp_path: Path) -> None:
    table = {
        "name": "contract", "rounds": 4,
        "data": {"name": "labels", "samples_per_device": 12}, "park": {"devices": 4, "factories": 2},
        "method": {"name": name}, "work": {"epochs": 1, "batch_size": 6}, "faults": {"visit": 0.2},
        "network": RADIO if name in NETWORKED else {"profile": "lte-cat-m2"},
        "methods": {name: {**GROUPS, **SMALL}[name]} if name in {**GROUPS, **SMALL} else {},
    }  # fmt: skip
    experiment = config.from_table(table)
    fedfloor.run(experiment, out=tmp_path / "whole", ranks=1)
    fedfloor.run(experiment, out=tmp_path / "cut", ranks=1, limits=fedfloor.Limits(stop_after=2))
    fedfloor.run(experiment, out=tmp_path / "cut", ranks=2, resume=True)
    said = [(tmp_path / one / "ledger.jsonl").read_text().splitlines() for one in ("whole", "cut")]
    first, second = ([{**json.loads(line), "wall_s": 0} for line in one] for one in said)
    assert len(first) == 4
    assert first == second
    for file in (
        "model.safetensors",
        "checkpoint/round-00000004/state.safetensors",
    ):  # the server's moments, control variates
        assert len({(tmp_path / one / file).read_bytes() for one in ("whole", "cut")}) == 1


@EVERY
def test_a_card_says_all_of_a_method(name: str) -> None:
    said, settings = card(name)
    first = said.split("\n")[0]
    assert first.endswith(".")
    assert "::" in said, "five lines of pseudo-code"
    assert "Args:" in said or not settings
    assert re.search(r"\b(is|are|makes?|becomes?|comes to)\b[^.]*\b(Fed|SGD|mini-batch|HierFAVG|ring|plain)", said), (
        "the law"
    )
    assert "Travels:" in said
    assert re.search(r"arXiv \d{4}\.\d{4,5}|\"[A-Z]|\b(19|20)\d\d\b", said), "where it comes from"
    for row in settings:
        assert f"    {str(row['setting']).partition('.')[0]}: " in said, row


# -- a checkpoint of another method ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedfusion", "checkpoint"),
        ("moon", "checkpoint"),
        ("cgau", "checkpoint"),
        ("scaffold", "checkpoint"),
        ("fedl", "checkpoint"),
    ],
)
def test_a_checkpoint_without_what_a_method_adds_is_refused(name: str, said: str, tmp_path: Path) -> None:
    table = {
        "rounds": 2, "data": {"samples_per_device": 12}, "park": {"devices": 2}, "work": {"batch_size": 6},
    }  # fmt: skip
    fedfloor.run(config.from_table(table), out=tmp_path, ranks=1, limits=fedfloor.Limits(stop_after=1))
    before = (tmp_path / "ledger.jsonl").read_bytes()
    other = config.from_table({**table, "method": {"name": name}})
    with refused(said):
        fedfloor.run(other, out=tmp_path, ranks=1, resume=True, force=True)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
