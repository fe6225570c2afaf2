"""CGAU: when the extractor is frozen, and that it then stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedfloor.base.errors import SettingError
from fedfloor.methods.cgau import CGAU
from fedfloor.methods.contract import State, View
from fedfloor.parts.objectives.layers import Gated
from fedfloor.parts.work import WorkSettings
from fedfloor.plan.nodes import Parallel, Probe, Work
from fedfloor.plan.nodes import Sequence as Chain
from fedfloor.plan.outcome import Outcome
from floor import bits, park, plan_of, start, visits, walk
from gates import FROZEN, WARM, gated
from refusals import refused
from rounds import Job, method


@pytest.mark.parametrize(("warm_up", "frozen"), [(None, [3, 4, 5]), (0, [1, 2, 3, 4, 5]), (4, [5]), (9, [])])
def test_the_extractor_is_frozen_after_the_warm_up(warm_up: int | None, frozen: list[int]) -> None:
    method = CGAU(warm_up=warm_up, work=WorkSettings(epochs=1))
    plans = [plan_of(method, park(), number=number, rounds=5) for number in range(1, 6)]
    found = {n for n, plan in enumerate(plans, 1) for one in plan.children if one.work.settings["frozen"]}  # type: ignore[union-attr]
    assert sorted(found) == frozen


def test_a_frozen_extractor_stays_where_models_meet(tmp_path: Path) -> None:
    # The mean of equal numbers rounds some of them; the method puts the frozen ones back.
    here = park()
    of = gated(here, tmp_path)
    method = CGAU(layers=1, units=4, warm_up=1, work=WorkSettings(epochs=1, batch_size=4))
    view = View(0, 3, here.sizes, here.factory_of, start(of), layout=of.network.layout)
    state = method.init(view, {}, np.random.default_rng(0))
    head = Gated(1, 4).trains(of.network).start
    end = of.network.trained
    assert state.notes["head"] == [head, end]
    models = []
    mixed = []
    for number in (1, 2, 3):
        outcome = walk(of, plan_of(method, here, number=number, rounds=3), state.packet, number)
        state = method.absorb(state, outcome)
        models.append(state.packet["w"])
        mixed.append(outcome.packet["w"])
    rest = [torch.cat([one[:head], one[end:]]) for one in (view.start["w"], *models, mixed[1])]
    assert bits(rest[0]) != bits(rest[1])  # the warm-up
    assert bits(rest[1]) == bits(rest[2]) == bits(rest[3])
    assert bits(rest[4]) != bits(rest[1])
    assert bits(models[1][head:end]) == bits(mixed[1][head:end]) != bits(models[0][head:end])


@pytest.mark.parametrize(
    ("work", "put_back"),
    [(FROZEN, True), (WARM, False), (Work(objective="prox", settings={"mu": 1.0}, epochs=1), False)],
    ids=["frozen", "warm-up", "another objective"],
)
def test_only_a_frozen_extractor_is_put_back(work: Work, put_back: bool) -> None:
    before, after = torch.zeros(4), torch.ones(4)
    round_ = Outcome({"w": after}, Chain((Probe((0,), "loss"), Parallel(visits((0, 1), work)))), (), {}, 1)
    got = CGAU().absorb(State({"w": before}, {"head": [1, 3]}), round_).packet["w"]
    assert got.tolist() == ([0, 1, 1, 0] if put_back else [1, 1, 1, 1])


def test_without_a_layout_the_extractor_stays_up_to_rounding(tmp_path: Path) -> None:
    of = gated(park(), tmp_path)
    before = start(of)["w"]
    head = Gated(1, 4).trains(of.network).start
    outcome = walk(of, Parallel(visits(range(5), FROZEN)), {"w": before})
    after = CGAU(layers=1, units=4).absorb(State({"w": before}), outcome).packet["w"]
    # a multiplication, three levels of the tree and a division: five roundings
    assert bool(((after - before)[:head].abs() <= 5 * 2**-24 * before[:head].abs()).all())


def test_the_methods_settings_are_checked() -> None:
    for wrong in ({"warm_up": -1}, {"layers": 0}, {"fraction": 0.0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            CGAU(**wrong)  # type: ignore[arg-type]


def test_its_own_objective_by_name_would_lose_the_warm_up() -> None:
    here = park()
    job = Job(method("cgau", {"objective": "gated"}), here)
    with refused("method.objective"):
        job.plan(job.begin(), 1)
    Job(method("cgau", {"objective": "gated"}, warm_up=0), here).plan(job.begin(), 1)  # there is none to lose
