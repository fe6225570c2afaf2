"""Several models at once: identities, bits on ranks and after a kill, what travels, who is evaluated with which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedfloor
from fedfloor import config
from fedfloor.engine import separate
from fedfloor.engine.evaluate import evaluate
from fedfloor.inference.trained import load_model
from fedfloor.methods.cohorts import FLHC
from fedfloor.plan import text
from fedfloor.plan.nodes import KEEP, LEAST_LOSS, Parallel, Probe, Select, Sequence, Work, model_name
from floor import engine, park, start, visits, walk
from refusals import refused

Table = dict[str, Any]
SIZES = (6, 10, 4, 9)
Ran = tuple[list[Table], dict[str, torch.Tensor]]
SEVERAL = {
    "ifca": {"cohorts": 3, "fraction": 0.5},
    "flhc": {"after": 1, "cohorts": 2},
    "fldg": {"groups": 2, "cohorts": True},
}


def ran(
    place: Path, method: str, settings: Table, ranks: int = 1, *, rounds: int = 3, more: Table | None = None,
    resume: bool = False,
) -> Ran:  # fmt: skip
    data = {"name": "labels", "samples_per_device": 30, "partition": {"kind": "dirichlet", "alpha": 0.3}}
    about = {"name": "own", "rounds": 3, "park": {"devices": 6, "factories": 2}, "model": {"name": "mlp-2nn"}}
    work = {"epochs": 1, "batch_size": 10, "short_batches": True, "lr": 0.05}
    table = {**about, "data": data, "work": work, "method": {"name": method}, "methods": {method: settings}}
    limits = fedfloor.Limits(stop_after=rounds)
    fedfloor.run(config.from_table(table | (more or {})), place, ranks=ranks, resume=resume, limits=limits)
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    (last,) = sorted((place / "checkpoint").glob("round-*"))[-1:]
    return [{**line, "wall_s": 0} for line in lines], load_file(last / "state.safetensors")


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("ifca", {"cohorts": 1}), ("flhc", {"after": 1, "distance": 2.0}), ("fldg", {"groups": 1, "cohorts": True})],
)
def test_one_cohort_is_fedavg_to_the_bit(method: str, settings: Table, tmp_path: Path) -> None:
    work = {"work": {"epochs": 1, "batch_size": 10, "lr": 0.05, "short_batches": True}}
    mine = ran(tmp_path / "m", method, settings | work)
    plain = ran(tmp_path / "a", "fedavg", work)
    keys = ("accuracy", "loss", "train_loss", "by_device", "participants")
    assert [[line[key] for key in keys] for line in mine[0]] == [[line[key] for key in keys] for line in plain[0]]
    assert same(mine[1], plain[1])


@pytest.mark.parametrize("method", SEVERAL)
def test_ranks_and_resumed_runs_are_one_rank_to_the_bit(method: str, tmp_path: Path) -> None:
    one = ran(tmp_path / "one", method, SEVERAL[method])
    two = ran(tmp_path / "two", method, SEVERAL[method], 2)
    ran(tmp_path / "cut", method, SEVERAL[method], rounds=2)
    cut = ran(tmp_path / "cut", method, SEVERAL[method], resume=True)
    assert "packet.w/1" in one[1]
    assert one[0] == two[0] == cut[0]
    assert same(one[1], two[1])
    assert same(one[1], cut[1])


def test_a_device_that_chooses_pays_for_all_models_and_sends_one(tmp_path: Path) -> None:
    network = {"network": {"profile": "lte-cat-m2"}}
    lines, state = ran(tmp_path / "i", "ifca", {"cohorts": 3}, rounds=1, more=network)
    plain, _ = ran(tmp_path / "a", "fedavg", {}, rounds=1, more=network)
    mine = lines[0]["priced"]["bytes"]
    whole = plain[0]["priced"]["bytes"]
    size = 4 * state["packet.w"].numel()
    assert whole["device_edge_down"] == 6 * size
    assert mine["device_edge_down"] == 3 * 6 * size
    assert mine["device_edge_up"] - whole["device_edge_up"] == 6 * 3 * 4  # three losses of four bytes each
    assert sum(lines[0]["info"]["cohort_sizes"]) == 6


def test_cohorts_meet_apart_at_the_same_time() -> None:
    here = park(SIZES)
    of = engine(here)
    packet = start(of)
    packet = {**packet, "w/1": packet["w"] + 0.01}
    both = Parallel((Parallel(visits((0, 1))), Parallel(visits((2, 3)), model="w/1")), mix=KEEP)
    got = walk(of, both, packet)
    first = walk(engine(here), Parallel(visits((0, 1))), {"w": packet["w"]})
    other = walk(engine(here), Parallel(visits((2, 3))), {"w": packet["w/1"]})
    assert torch.equal(got.packet["w"], first.packet["w"])
    assert torch.equal(got.packet["w/1"], other.packet["w"])
    assert got.resolved is both
    assert [one.bytes for one in got.receipts] == [4 * packet["w"].numel()] * 4
    assert text.from_json(text.to_json(both)) == both
    assert "model" not in text.to_json(both)["children"][0]
    with refused("plan"):
        walk(of, Parallel(visits((0,)), model="w/2"), packet)


def test_devices_train_the_model_that_fits_and_a_model_that_nobody_chose_stays() -> None:
    of = engine(park(SIZES))
    packet = start(of)
    packet = {**packet, "w/1": packet["w"] * 50, "w/2": packet["w"] * 60}  # far worse
    select = [Select(LEAST_LOSS, (0, 1, 2, 3), 4, Work(steps=2), model=name) for name in ("w", "w/1", "w/2")]
    plan = Sequence((Probe((0, 1, 2, 3), "losses", settings={"models": 3}), Parallel(tuple(select), mix=KEEP)))
    got = walk(of, plan, packet)
    assert [one.device for one in got.receipts] == [0, 1, 2, 3]
    assert not torch.equal(got.packet["w"], packet["w"])
    assert torch.equal(got.packet["w/1"], packet["w/1"])
    alone = {k: walk(engine(park(SIZES)), Probe((k,), "loss"), {"w": packet["w/1"]}).answers for k in (0, 3)}
    assert all(got.answers[k]["losses"][1] == alone[k][k]["loss"] for k in alone)


def test_everybody_is_evaluated_with_the_model_of_the_cohort() -> None:
    of = engine(park(SIZES))
    packet = start(of)
    packet = {"w": packet["w"], "w/1": packet["w"].flip(0)}
    single = [evaluate(of, packet[name]) for name in ("w", "w/1")]
    both = separate.evaluate(of, packet, cohorts={0: 0, 1: 1, 2: 0, 3: 0})
    mean = 0.75 * single[0].loss + 0.25 * single[1].loss
    assert both.loss == pytest.approx(mean, rel=1e-6)  # another order of additions
    one = separate.evaluate(of, packet, cohorts=dict.fromkeys(range(4), 1))
    assert one.loss == pytest.approx(single[1].loss, rel=1e-6)
    heard = walk(of, Probe((3,), "losses", settings={"models": 2}), packet).answers[3]["losses"]
    assert separate.cohorts_of(of, packet, {0: 1, 1: 1, 2: 1})[3] == int(np.argmin(heard))


def test_several_models_are_refused_where_they_make_no_sense(tmp_path: Path) -> None:
    for more in ({"server": "adam"}, {"mix": "q_fair"}, {"objective": "variates"}):
        with refused("combination"):
            ran(tmp_path / "run", "ifca", {"cohorts": 2}, more={"method": {"name": "ifca", **more}})
    with refused("methods.fldg.refresh"):
        ran(tmp_path / "run", "fldg", {"cohorts": True, "refresh": 0.5})
    with refused("methods.flhc.distance"):
        FLHC(distance=3)


def test_a_run_leaves_the_model_of_every_cohort_and_devices_take_theirs(tmp_path: Path) -> None:
    _, state = ran(tmp_path, "ifca", {"cohorts": 2, "fraction": 0.5})
    files = {name: one["file"] for name, one in json.loads((tmp_path / "devices.json").read_text()).items()}
    told = {name: int(file.rpartition("-")[2].split(".")[0]) if "-" in file else 0 for name, file in files.items()}
    assert json.loads((tmp_path / "evaluation.json").read_text())["cohorts"] == list(told.values())
    assert len(told) == 6  # those that were never drawn, too
    picture = np.random.default_rng(0).integers(0, 256, (1, 1, 28, 28), dtype=np.uint8)
    for device, cohort in told.items():
        trained = load_model(tmp_path, device=device)
        last = list(trained.raw.state_dict().values())[-1]
        assert torch.equal(last, state[f"packet.{model_name(cohort)}"][-len(last) :])
        assert trained.predict(picture).shape == (1, 62)
    with refused("choice-of-cohort"):
        load_model(tmp_path)
    with refused("unknown device"):
        load_model(tmp_path, device="9")
    (tmp_path / "devices.json").write_text("[")
    with refused("damaged-model"):
        load_model(tmp_path, device="0")
