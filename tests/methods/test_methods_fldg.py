"""FLDG, FLDG-L and K-Center: what they ask, whom they visit, and which method they are where."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfloor.engine import ranks
from fedfloor.methods.contract import State, View
from fedfloor.methods.fldg import FLDG, FLDGL
from fedfloor.methods.kcenter import KCenter
from fedfloor.park.park import Park
from fedfloor.plan import walk
from fedfloor.plan.nodes import Node, Probe, Sequence
from fedfloor.plan.outcome import Outcome
from floor import bits, park
from refusals import refused
from rounds import Job, method

N = 12


def floor_(sizes: tuple[int, ...] = (6,) * N) -> Park:
    return park(sizes)


def view(number: int = 1, devices: int = N, **more: Any) -> View:
    sizes = np.full(devices, 6)
    return View(number, 100, sizes, np.zeros(devices, np.int32), {}, **more)


def visited(node: Node) -> set[int]:
    return set(walk.visits(node))


def said(what: str, vectors: list[Any]) -> dict[int, dict[str, Any]]:
    return {k: {what: one} for k, one in enumerate(vectors)}


THREE = [torch.tensor([float(10 * (k % 3)), 0.01 * k]) for k in range(N)]  # device k is of kind k mod 3


# -- groups ------------------------------------------------------------------------------------------------------------


def test_devices_that_are_alike_share_a_group_and_one_of_each_is_drawn() -> None:
    of = FLDG(groups=3)
    state = of.init(view(), said("features", THREE), np.random.default_rng(0))
    assert state.notes["groups"] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    drawn = [visited(of.plan(state, view(r), np.random.default_rng(r))) for r in range(60)]
    assert all(sorted(k % 3 for k in one) == [0, 1, 2] for one in drawn)
    assert set().union(*drawn) == set(range(N))


def test_devices_with_the_same_hashes_share_a_group() -> None:
    of = FLDGL(groups=3)
    state = of.init(view(), said("hash", [[k % 3, 7 * (k % 3)] for k in range(N)]), np.random.default_rng(0))
    assert state.notes["groups"] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_constant_features_are_one_group_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        state = FLDG(groups=3).init(view(), said("features", [torch.ones(4)] * N), np.random.default_rng(0))
    assert state.notes["groups"] == [list(range(N))]
    assert "1 of 3 groups formed: all vectors are equal" in caplog.text


def test_who_may_not_take_part_is_not_drawn_and_a_group_without_anybody_rests() -> None:
    of = FLDG(groups=3)
    state = of.init(view(), said("features", THREE), np.random.default_rng(0))
    here = view(invited=(0, 3, 4))
    assert all(len(visited(of.plan(state, here, np.random.default_rng(r))) & {0, 3}) == 1 for r in range(20))
    assert all(4 in visited(of.plan(state, here, np.random.default_rng(r))) for r in range(20))


@pytest.mark.parametrize("name", ["fldg", "fldgl"])
def test_with_as_many_groups_as_devices_it_is_fedavg(name: str, tmp_path: Path) -> None:
    here = floor_((6, 9, 5, 8, 7))
    own: dict[str, Any] = {"groups": 5, "extractor": "raw"} | ({"hashes": 8, "width": 0.01} if name == "fldgl" else {})
    model = [
        bits(Job(method(one, **settings), here, folder=tmp_path).run().packet["w"])
        for one, settings in ((name, own), ("fedavg", {}))
    ]
    assert model[0] == model[1]


def test_with_as_many_centers_as_devices_it_is_fedavg(tmp_path: Path) -> None:
    here = floor_((6, 9, 5, 8, 7))
    one, other = (
        Job(method(name, **own), here, folder=tmp_path).run().packet["w"]
        for name, own in (("kcenter", {"centers": 5}), ("fedavg", {}))
    )
    assert torch.allclose(one, other, rtol=0, atol=1e-6)  # visits stand in another order, and sums are rounded


# -- what devices answer -----------------------------------------------------------------------------------------------


def answers(of: Any, here: Park, **own: Any) -> dict[int, dict[str, Any]]:
    job = Job(method(of, **own), here)
    plan = job.method.setup(job.view(0))
    assert plan is not None
    return dict(ranks.run(job.engine, plan, job.start, round_number=0, tick=0).answers)


def test_features_are_the_mean_of_all_that_a_device_has() -> None:
    here = floor_((6, 9))
    told = answers("fldg", here, groups=2, extractor="raw")
    for k in range(2):
        x = here.samples(k)[0].reshape(len(here.samples(k)[0]), -1).astype(np.float64) * here.dataset.scale
        assert np.allclose(told[k]["features"], x.mean(0), atol=1e-6)


def test_penultimate_features_are_those_of_the_arriving_model() -> None:
    here = floor_((6, 9))
    job = Job(method("fldg", groups=2, extractor="penultimate"), here)
    told = answers("fldg", here, groups=2, extractor="penultimate")
    net = job.engine.network
    body = torch.nn.Sequential(*list(net.module.children())[:-1]).eval()
    with torch.no_grad():
        expected = body(job.engine.samples(1).values(slice(None))).mean(0)
    assert torch.allclose(told[1]["features"], expected, atol=1e-6)


def test_equal_devices_tell_equal_hashes() -> None:
    here = floor_((6, 6, 9))
    twins = replace(here, indices=(here.indices[0], here.indices[0], here.indices[2]))
    told = answers("fldgl", twins, groups=2, hashes=6, width=0.01, extractor="raw")
    assert told[0]["hash"] == told[1]["hash"] != told[2]["hash"]
    assert len(told[0]["hash"]) == 6


def test_a_profile_is_the_model_after_a_visit_and_leaves_nothing_behind() -> None:
    here = floor_((6, 9))
    job = Job(method("kcenter", centers=2), here)
    plan = job.method.setup(job.view(0))
    assert isinstance(plan, Probe)
    told = ranks.run(job.engine, plan, job.start, round_number=0, tick=0)
    assert bits(told.packet["w"]) == bits(job.start["w"])
    assert not +job.engine.memory.visits
    models = [told.answers[k]["profile"] for k in range(2)]
    assert all(one.shape == job.start["w"].shape and not one.equal(job.start["w"]) for one in models)
    assert not models[0].equal(models[1])


# -- K-Center ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("devices", "centers"), [(12, 3), (12, 5), (10, 10)])
def test_the_pool_is_empty_after_so_many_rounds(devices: int, centers: int) -> None:
    of = KCenter(centers=centers)
    told = said("profile", list(torch.randn(devices, 5, generator=torch.Generator().manual_seed(0))))
    state = of.init(view(devices=devices), told, np.random.default_rng(0))
    for _ in range(2):
        seen: list[int] = []
        for r in range(devices // centers):
            plan = of.plan(state, view(r + 1, devices), np.random.default_rng(r))
            state = of.absorb(state, Outcome({}, plan))
            seen += visited(plan)
        assert len(seen) == len(set(seen)) == devices // centers * centers


def test_those_who_lie_far_apart_train_together() -> None:
    # three kinds on a line, 10 apart: whoever is first, the next two are of the other kinds
    of = KCenter(centers=3)
    state = of.init(view(), said("profile", THREE), np.random.default_rng(0))
    for r in range(10):
        assert sorted(k % 3 for k in visited(of.plan(state, view(), np.random.default_rng(r)))) == [0, 1, 2]


# -- groups formed anew ------------------------------------------------------------------------------------------------


def test_groups_are_formed_anew_where_the_census_has_drifted() -> None:
    of = FLDG(groups=2, refresh=0.3)
    state = of.init(view(), said("features", THREE), np.random.default_rng(0))
    counts = np.tile([4, 0], (N, 1))

    def turn(state: State, census: np.ndarray) -> tuple[Node, State]:
        plan = of.plan(state, view(census=census), np.random.default_rng(1))
        told = {k: {"census": census[k].tolist()} for k in range(N)}
        if any(isinstance(one, Probe) and one.what == "features" for one in walk.children(plan)):
            told = {k: one | {"features": torch.tensor([float(k < 3), 0.0])} for k, one in told.items()}
        return plan, of.absorb(state, Outcome({}, plan, answers=told))

    plan, state = turn(state, counts)
    assert isinstance(plan, Sequence)
    assert [one.what for one in walk.children(plan) if isinstance(one, Probe)] == ["census"]
    plan, state = turn(state, np.tile([3, 1], (N, 1)))  # a quarter has moved
    assert [one.what for one in walk.children(plan) if isinstance(one, Probe)] == ["census"]
    plan, state = turn(state, np.tile([2, 2], (N, 1)))  # a half
    assert [one.what for one in walk.children(plan) if isinstance(one, Probe)] == ["census", "features"]
    assert state.notes["groups"] == [[0, 1, 2], list(range(3, N))]
    assert state.notes["info"] == {"regrouped": 1}
    plan, _ = turn(state, np.tile([2, 2], (N, 1)))  # measured from where groups were formed
    assert [one.what for one in walk.children(plan) if isinstance(one, Probe)] == ["census"]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: FLDG(groups=0), "methods.fldg.groups"),
        (lambda: FLDGL(groups=0), "methods.fldgl.groups"),
        (lambda: FLDG(refresh=0.0), "methods.fldg.refresh"),
        (lambda: FLDGL(hashes=0), "methods.fldgl.hashes"),
        (lambda: FLDGL(width=0.0), "methods.fldgl.width"),
        (lambda: KCenter(centers=0), "methods.kcenter.centers"),
    ],
)
def test_settings_out_of_range_are_refused(made: Any, match: str) -> None:
    with refused(match):
        made()


def test_more_groups_than_devices_are_refused() -> None:
    with refused("groups"):
        FLDG(groups=13).init(view(), said("features", THREE), np.random.default_rng(0))
    with refused("methods.kcenter.centers"):
        KCenter(centers=13).init(view(), said("profile", THREE), np.random.default_rng(0))


def test_few_hashes_are_warned_of_with_the_bound(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        FLDGL(groups=10, hashes=3, width=3.0).setup(view())
        assert not caplog.text
        FLDGL(groups=10, hashes=2, width=3.0).setup(view())
    assert "hashes = 2 is below ⌈log_r K⌉ = 3 for 10 groups and width 3" in caplog.text


def test_an_unknown_extractor_or_one_without_weights_is_named() -> None:
    with refused("unknown extractor"):
        answers("fldg", floor_((6, 9)), groups=2, extractor="hogg")
    with refused("extractor"):
        answers("fldg", floor_((6, 9)), groups=2, extractor="mobilenet", weights="nowhere")
