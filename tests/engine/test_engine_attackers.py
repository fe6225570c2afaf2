"""Attackers in a run: the same bits however it is carried out, honest devices untouched, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedfloor
import fedfloor.runs.ledger
from fedfloor import config
from fedfloor.engine.executor import AttackingExecutor, triggered
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import METHODS
from fedfloor.parts.attacks import ATTACKS, Attackers
from floor import bits, park
from refusals import refused
from rounds import Job, method

SIZES = (6, 10, 4, 9, 5, 8)
FACTORIES = (0, 1, 0, 1, 2, 2)
SETTINGS: dict[str, dict[str, Any]] = {"free-rider": {"stale": True}, "backdoor": {"target": 1, "strength": 2.0}}


def experiment(kind: str = "sign-flip", name: str = "fedavg", **more: Any) -> Experiment:
    attackers = {"count": 2, "kind": kind, **SETTINGS.get(kind, {})}
    return config.from_table({
        "rounds": 3, "data": {"samples_per_device": 20}, "park": {"devices": 6, "factories": 2},
        "work": {"batch_size": 5, "lr": 0.05}, "method": {"name": name}, "faults": {"attackers": attackers}, **more,
    })  # fmt: skip


def result(folder: Path) -> tuple[list[object], bytes]:
    lines = fedfloor.runs.ledger.read(folder / "ledger.jsonl")
    return [{**vars(one), "wall_s": 0} for one in lines], (folder / "model.safetensors").read_bytes()


def job(name: str, kind: str, folder: Path, devices: tuple[int, ...] = (1, 4), **given: Any) -> Job:
    made = Job(method(name), park(SIZES, factory_of=FACTORIES), rounds=2, folder=folder)
    table = {"kind": kind, "devices": list(devices), **SETTINGS.get(kind, {}), **given}
    made.engine.attackers = AttackingExecutor(Attackers.of(table), devices)
    return made


@pytest.mark.parametrize("kind", ATTACKS)
def test_ranks_and_resumed_runs_give_the_same_bits(kind: str, tmp_path: Path) -> None:
    what = experiment(kind)
    fedfloor.run(what, tmp_path / "1", ranks=1)
    fedfloor.run(what, tmp_path / "2", ranks=2)
    fedfloor.run(what, tmp_path / "parts", ranks=1, limits=fedfloor.Limits(1))
    fedfloor.run(what, tmp_path / "parts", ranks=1, resume=True)
    assert result(tmp_path / "1") == result(tmp_path / "2") == result(tmp_path / "parts")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_bears_attackers(name: str, tmp_path: Path) -> None:
    """Two rounds of ``fedasync`` are two visits, of which none is to an attacker."""
    attacked = job(name, "collusion", tmp_path / "a").run()
    assert bool(torch.isfinite(attacked.packet["w"]).all())
    plain = Job(method(name), park(SIZES, factory_of=FACTORIES), rounds=2, folder=tmp_path / "b").run()
    assert name in ("centralized", "local", "fedasync") or bits(attacked.packet["w"]) != bits(plain.packet["w"])


@pytest.mark.parametrize("name", ["fedavg", "fedsr", "scaffold", "hierfavg"])
def test_an_attack_that_changes_nothing_changes_no_bit(name: str, tmp_path: Path) -> None:
    nothing = job(name, "backdoor", tmp_path / "a")
    nothing.engine.attackers.attack = fedfloor.parts.attacks.Attack()  # type: ignore[union-attr]
    honest = Job(method(name), park(SIZES, factory_of=FACTORIES), rounds=2, folder=tmp_path / "b")
    assert bits(nothing.run().packet["w"]) == bits(honest.run().packet["w"])
    assert [one.receipts for one in nothing.outcomes] == [one.receipts for one in honest.outcomes]


def test_only_attackers_send_something_else(tmp_path: Path) -> None:
    visits: dict[bool, list[torch.Tensor]] = {}
    for attacking in (False, True):
        here = job("fedavg", "sign-flip", tmp_path / str(attacking))
        executor = here.engine.attackers if attacking else fedfloor.engine.executor.LOCAL
        visits[attacking] = []
        for device in range(len(SIZES)):
            (train,) = [one for one in here.plan(here.begin(), 1).children if one.site.index == device]  # type: ignore[union-attr]
            key = fedfloor.plan.schedule.Key(0, 1, 0, device, 0)
            frozen = fedfloor.engine.engine.FrozenExtractor(frozen=False)
            sent, _ = executor.visit(here.engine, train.work, here.start, key, frozen)  # type: ignore[misc, union-attr]
            visits[attacking].append(sent["w"].clone() - here.start["w"])
    for device, (honest, attacked) in enumerate(zip(visits[False], visits[True], strict=True)):
        flipped = device in (1, 4)
        assert torch.allclose(attacked, -honest if flipped else honest, atol=1e-6)
        assert flipped or bits(attacked) == bits(honest)


def test_super_nodes_do_not_skip_attackers(tmp_path: Path) -> None:
    fused = Job(method("fedgs"), park(SIZES), rounds=1, folder=tmp_path)
    attacked = job("fedgs", "scaling", tmp_path)
    assert bits(fused.run().packet["w"]) != bits(attacked.run().packet["w"])


def test_codecs_code_what_an_attacker_sends(tmp_path: Path) -> None:
    # the signs of the update and its mean length: ten times the update has the same signs
    what = experiment("scaling", method={"name": "fedavg", "travel": "sign"}, rounds=1)
    run = fedfloor.run(what, tmp_path / "a", ranks=1)
    assert run.lines[0].loss is not None
    fedfloor.run(what, tmp_path / "b", ranks=2)
    assert result(tmp_path / "a") == result(tmp_path / "b")


def test_a_backdoor_is_judged_on_marked_samples_of_other_classes(tmp_path: Path) -> None:
    here = job("fedavg", "backdoor", tmp_path)
    marked = triggered(here.engine)
    data = here.engine.park.dataset
    assert marked is not None
    x, y = marked.test()
    others = data.y_test != 1
    assert y.tolist() == [1] * int(others.sum())
    assert (np.asarray(x)[:, :, -4:, -4:] == 255).all()
    assert here.engine.park.test()[1].tolist() == data.y_test.tolist()  # evaluation itself is untouched
    run = fedfloor.run(experiment("backdoor", evaluate={"every": 2}), tmp_path / "run", ranks=1)
    assert [line.backdoor is None for line in run.lines] == [True, False, False]
    assert all(0 <= line.backdoor <= 1 for line in run.lines[1:])  # type: ignore[operator]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"engine": {"kind": "cohort"}}, "engine.kind"),
        ({"park": {"devices": 1}}, "faults.attackers.count"),
    ],
)
def test_what_attackers_do_not_go_with_is_refused(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with refused(message):
        fedfloor.run(experiment(**more), tmp_path, ranks=1)


def test_labels_of_a_task_without_classes_cannot_be_flipped(tmp_path: Path) -> None:
    data = {"name": "machines", "task": "regression", "samples_per_device": 60}
    with refused("faults.attackers"):
        fedfloor.run(experiment("label-flip", data=data, model={"name": "linear"}), tmp_path, ranks=1)


def test_attackers_survive_the_resolved_file(tmp_path: Path) -> None:
    what = experiment("alie")
    again = tmp_path / "again.toml"
    again.write_text(config.resolved(what))
    assert config.read(again).faults == what.faults
