"""Models of devices' own, FedPer to APFL: identities, what travels, what is evaluated, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedfloor
from commands import Command
from fedfloor import config
from fedfloor.engine import separate
from fedfloor.engine.memory import DeviceMemory
from fedfloor.engine.steps import full_gradient
from fedfloor.inference.onnx import TOLERANCE
from fedfloor.inference.trained import load_model
from fedfloor.models.network import Network
from fedfloor.models.parcel import Parcel
from fedfloor.models.saved import model_file
from fedfloor.parts.objectives.proximal import Interpolated, Prox
from fedfloor.parts.objectives.registry import to_spec
from fedfloor.plan import text
from fedfloor.plan.nodes import Parallel, Train, Work, device
from fedfloor.runs import checkpoint
from floor import WORK, engine, park, start, walk
from refusals import refused

Model = dict[str, torch.Tensor]
Table = dict[str, Any]


def ran(
    place: Path, method: str, ranks: int = 1, *, rounds: int = 2, settings: Table | None = None,
    more: Table | None = None, resume: bool = False,
) -> tuple[list[Table], Model]:  # fmt: skip
    data = {"name": "labels", "samples_per_device": 30, "partition": {"kind": "dirichlet", "alpha": 0.3}}
    about = {"name": "own", "rounds": 2, "park": {"devices": 4, "factories": 2}, "model": {"name": "mlp-2nn"}}
    work = {"epochs": 1, "batch_size": 10, "short_batches": True}
    table = {**about, "data": data, "work": work, "method": {"name": method}, "methods": {method: settings or {}}}
    what = config.from_table(table | (more or {}))
    fedfloor.run(what, place, ranks=ranks, resume=resume, limits=fedfloor.Limits(stop_after=rounds))
    lines = [json.loads(line) for line in (place / "ledger.jsonl").read_text().splitlines()]
    model = place / "model.safetensors"
    return [{**line, "wall_s": 0} for line in lines], load_file(model) if model.is_file() else {}


def same(one: Model, two: Model) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_with_nothing_of_its_own_it_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    mine = ran(tmp_path / "p", "fedper", settings={"own": ""})
    plain = ran(tmp_path / "a", "fedavg")
    assert mine[0] == plain[0]
    assert same(mine[1], plain[1])


def test_with_all_of_its_own_it_is_training_without_federation(tmp_path: Path) -> None:
    mine = ran(tmp_path / "p", "fedper", settings={"own": "all"})
    alone = ran(tmp_path / "l", "local-only")
    assert [line["accuracy"] for line in mine[0]] == [line["accuracy"] for line in alone[0]]
    assert [line["plan_hash"] for line in mine[0]] == [line["plan_hash"] for line in alone[0]]


def kept(place: Path) -> tuple[torch.Tensor, dict[int, Model]]:
    """Return the shared model of a run, and what each device keeps at its end."""
    point = checkpoint.latest(place / "checkpoint", place / "memory")
    assert point is not None
    memory = DeviceMemory(place / "memory", point.memory)
    return point.state.packet["w"], {k: memory.load(k) for k in point.memory}


def test_fedrep_without_heads_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    mine = ran(tmp_path / "r", "fedrep", settings={"own": "", "head_epochs": 0})
    plain = ran(tmp_path / "a", "fedavg")
    assert mine[0] == plain[0]
    assert same(mine[1], plain[1])


def test_fedbn_without_norms_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    (mine, model) = ran(tmp_path / "b", "fedbn")
    (plain, averaged) = ran(tmp_path / "a", "fedavg")
    assert [line["accuracy"] for line in mine] == [line["accuracy"] for line in plain]
    assert same(model, averaged)


@pytest.mark.parametrize(("method", "settings"), [("ditto", {"lam": 0.0}), ("apfl", {"alpha": 1.0})])
def test_without_a_tie_it_is_fedavg_and_training_alone_to_the_bit(method: str, settings: Table, tmp_path: Path) -> None:
    own = tmp_path / "own"
    average = tmp_path / "average"
    alone = tmp_path / "alone"
    mine, _ = ran(own, method, settings=settings)
    ran(average, "fedavg")
    local, _ = ran(alone, "local-only")
    (shared, devices) = kept(own)
    (averaged, _) = kept(average)
    (_, models) = kept(alone)
    assert torch.equal(shared, averaged)
    assert [line["accuracy"] for line in mine] == [line["accuracy"] for line in local]
    assert all(torch.equal(devices[k]["own all"], models[k]["own all"]) for k in models)


@pytest.mark.parametrize(("method", "settings"), [("ditto", {"lam": 1.0}), ("apfl", {"alpha": 0.5})])
def test_its_global_model_is_fedavgs_whatever_ties_the_devices_own(
    method: str, settings: Table, tmp_path: Path
) -> None:
    ran(tmp_path / "own", method, settings=settings)
    ran(tmp_path / "alone", "local-only")
    ran(tmp_path / "average", "fedavg")
    (shared, devices) = kept(tmp_path / "own")
    (averaged, _) = kept(tmp_path / "average")
    assert torch.equal(shared, averaged)
    models = kept(tmp_path / "alone")[1]
    assert not any(torch.equal(devices[k]["own all"], models[k]["own all"]) for k in models)


def test_apfl_without_models_of_their_own_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    mine = ran(tmp_path / "p", "apfl", settings={"alpha": 0.0})
    plain = ran(tmp_path / "a", "fedavg")
    assert mine[0] == plain[0]
    assert same(mine[1], plain[1])


@pytest.mark.parametrize(("goal", "rate"), [(Prox(0.5), 0.2), (Interpolated(0.5), 0.05)])
def test_steps_of_ditto_and_of_apfl_by_their_papers(goal: Prox | Interpolated, rate: float, tmp_path: Path) -> None:
    of = engine(park((4, 5)), folder=tmp_path)
    (name, settings) = to_spec(goal)
    plan = Train(device(0), Work(name, steps=2, batch_size=4, rate=rate, sends="arrived", settings=settings))
    w = start(of)["w"]
    samples = of.samples(0)
    alpha = 0.5
    eta = 0.2

    def gradient(model: torch.Tensor) -> torch.Tensor:
        of.network.flat.copy_(model)
        loss = nn.functional.cross_entropy(of.network.module(samples.values(slice(None))), samples.y)
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, of.network.parameters)])

    v = w
    for number in (1, 2):
        for _ in range(2):
            if isinstance(goal, Prox):
                v = v - eta * (gradient(v) + 0.5 * (v - w))
            else:
                v = v - eta * alpha * gradient(alpha * v + (1 - alpha) * w)
        out = walk(of, plan, {"w": w}, number)
        assert torch.equal(out.packet["w"], w)  # what arrived goes on
        wanted = v if isinstance(goal, Prox) else alpha * v + (1 - alpha) * w
        torch.testing.assert_close(of.memory.load(0)["own all"], wanted, rtol=1e-4, atol=1e-6)  # sums in another order
        w = w + 0.01  # the global model moves on


ALL = [("fedper", {"own": "head"}), ("fedper", {"own": "body"}), ("fedper", {"own": "3.*"}),
       ("fedrep", {"head_epochs": 2}), ("ditto", {}), ("apfl", {})]  # fmt: skip


@pytest.mark.parametrize(("method", "settings"), ALL)
def test_ranks_and_resumed_runs_are_one_rank_to_the_bit(method: str, settings: Table, tmp_path: Path) -> None:
    one = ran(tmp_path / "one", method, settings=settings)
    two = ran(tmp_path / "two", method, 2, settings=settings)
    ran(tmp_path / "cut", method, rounds=1, settings=settings)
    cut = ran(tmp_path / "cut", method, settings=settings, resume=True)
    assert one[0] == two[0] == cut[0]
    assert same(one[1], two[1])
    assert same(one[1], cut[1])


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_the_head_stays_and_its_bytes_are_not_paid_for(method: str, tmp_path: Path) -> None:
    network = {"network": {"profile": "lte-cat-m2"}}
    lines, _ = ran(tmp_path / "p", method, more=network)
    whole, _ = ran(tmp_path / "a", "fedavg", more=network)
    heads = [load_file(one) for one in sorted((tmp_path / "p" / "memory").glob("0*.safetensors"))]
    numbers = {len(one["own head"]) for one in heads}
    up = [line["priced"]["bytes"]["device_edge_up"] for line in (lines[-1], whole[-1])]
    (head,) = numbers
    assert up[1] - up[0] == 4 * 4 * head  # devices, bytes of a number


@pytest.mark.parametrize("method", ["fedper", "fedrep", "ditto", "apfl"])
def test_predict_and_export_take_a_devices_own_model(method: str, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    ran(run, method, settings={"fraction": 0.5}, rounds=1)
    shared, devices = kept(run)
    assert len(devices) == 2
    own = "own all" if method in ("ditto", "apfl") else "own head"
    part = Network(load_model(run).raw.network.requires_grad_(True), "5").parcel(own.removeprefix("own "))
    mean = torch.stack([one[own] for one in devices.values()]).double().mean(0).float()
    for k in range(4):  # one that was never visited has the shared part, with the mean of own parts
        rest = mean if own == "own head" else shared
        wanted = part.put(devices[k][own] if k in devices else rest, shared)
        assert torch.equal(Network(load_model(run, device=str(k)).raw.network.requires_grad_(True)).flat, wanted)
    assert command("export", str(run), "--all", "--json").code == 0
    assert [one.name for one in sorted((run / "onnx").iterdir())] == [f"{k}.onnx" for k in range(4)]
    picture = np.random.default_rng(0).integers(0, 256, (3, 1, 28, 28), dtype=np.uint8)
    answers = [load_model(run, device=str(k)).predict(picture) for k in range(4)]
    for k in range(4):
        session = onnxruntime.InferenceSession(run / "onnx" / f"{k}.onnx")
        np.testing.assert_allclose(session.run(["probabilities"], {"x": picture})[0], answers[k], atol=TOLERANCE)
    one = min(devices)
    np.savez(tmp_path / "x.npz", x=picture)
    got = command("predict", str(run), str(tmp_path / "x.npz"), "--device", str(one), "--json")
    likeliest = answers[one].max(1).tolist()
    assert [row["probability"] for row in json.loads(got.out)["rows"]] == pytest.approx(likeliest, abs=1e-4)  # rounded
    wrong = command("export", str(run), "--device", "11")
    assert (wrong.code, "unknown device '11'" in wrong.err) == (2, True)
    (run / json.loads((run / "devices.json").read_text())[str(one)]["file"]).write_bytes(b"")
    assert "own part of the model is missing or damaged" in command("export", str(run), "--device", str(one)).err


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/passwd", "memory/../../x.safetensors", "memory/no.safetensors"]
)
def test_a_list_of_devices_names_files_of_its_run_alone(file: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in (run / "model.safetensors", tmp_path / "x.safetensors"):
        path.write_bytes(b"")
    (run / "devices.json").write_text(json.dumps({"0": {"file": file}}))
    with refused("damaged-model"):
        model_file(run, device="0")


def test_the_best_round_has_no_models_of_devices(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    for name in ("model", "best", "memory/a"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    (tmp_path / "devices.json").write_text(json.dumps({"0": {"file": "memory/a.safetensors"}}))
    assert model_file(tmp_path, "best") == (tmp_path / "best.safetensors", None)
    with refused("--which"):
        model_file(tmp_path, "best", "0")


def test_a_run_with_one_model_has_none_for_a_device(tmp_path: Path, command: Command) -> None:
    ran(tmp_path / "run", "fedavg", rounds=1)
    for flags in (["--device", "1"], ["--all"]):
        got = command("export", str(tmp_path / "run"), *flags)
        assert (got.code, "has one model for all devices" in got.err) == (2, True)


def test_own_parts_of_a_model() -> None:
    layers = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(6, 2))
    network = Network(layers, "3")
    norms, head, body = (network.numbers(name) for name in ("norms", "head", "body"))
    assert sum(part.stop - part.start for part in norms) == 4 * 3  # scale, shift, mean, variance
    assert sum(part.stop - part.start for part in (*head, *body)) == network.flat.numel()
    travels = network.parcel("all but norms")
    assert travels.numbers == network.flat.numel() - 12
    model = torch.arange(network.flat.numel(), dtype=torch.float32)
    assert torch.equal(travels.put(travels.cut(model), model), model)
    assert travels.put(torch.zeros(travels.numbers), model).count_nonzero() == Parcel(norms, len(model)).numbers
    with refused("part-of-model"):
        network.numbers("bodi")


def test_statistics_move_with_the_part_that_is_trained(tmp_path: Path) -> None:
    here = park((12, 8))
    layers = nn.Sequential(nn.BatchNorm2d(here.dataset.shape[0]), nn.Flatten(), nn.Linear(9, 3))
    of = engine(here, layers, folder=tmp_path)
    network = of.network
    begin = start(of)["w"]
    head = network.part("2.*")
    statistics = slice(network.trained, None)
    for part, moves in (("2.*", False), ("all but 2.*", True)):
        work = replace(WORK, trains=part, sends="all but 2.*")
        out = walk(of, Train(device(0), work), {"w": begin}).packet["w"]
        assert torch.equal(out[head], begin[head])  # it is the device's
        assert torch.equal(out[statistics], begin[statistics]) is not moves
        assert torch.equal(out[: head.start], begin[: head.start]) is not moves


def test_parts_that_cannot_be_trained_apart_are_refused(tmp_path: Path) -> None:
    with refused("work.trains"):
        ran(tmp_path / "run", "fedrep", settings={"own": "*.bias"})
    with refused("methods.fedrep.own"):
        ran(tmp_path / "all", "fedrep", settings={"own": "all"})
    with refused("method"):
        ran(tmp_path / "adam", "apfl", settings={"work": {"optimizer": "adam"}})


def test_plans_written_before_are_read() -> None:
    old = {"node": "train", "site": "device 0", "work": {"epochs": 1, "sends": False}}
    written = text.to_json(Parallel((Train(device(0), Work(epochs=1, sends="nothing")),)))
    old = {**written, "children": [{**written["children"][0], "work": {"epochs": 1, "sends": False}}]}
    assert text.from_json(old) == text.from_json(written)
    plain = text.to_json(Train(device(0), Work(epochs=1)))["work"]
    assert not {"own", "sends", "trains"} & plain.keys()
    for sends in ("all but head", "body", "arrived", "nothing"):
        plan = Train(device(0), Work(epochs=1, trains="body", sends=sends))
        assert text.from_json(text.to_json(plan)) == plan


def test_fine_tuning_is_a_visit_of_every_device_before_the_evaluation(tmp_path: Path) -> None:
    tuned = {"evaluate": {"finetune": {"epochs": 2}}}
    plain, model = ran(tmp_path / "a", "fedavg")
    one, same_model = ran(tmp_path / "t", "fedavg", more=tuned)
    two, _ = ran(tmp_path / "two", "fedavg", 2, more=tuned)
    ran(tmp_path / "cut", "fedavg", rounds=1, more=tuned)
    cut, _ = ran(tmp_path / "cut", "fedavg", more=tuned, resume=True)
    assert one == two == cut
    assert same(model, same_model)  # nothing of it is kept
    assert [line["plan_hash"] for line in one] == [line["plan_hash"] for line in plain]
    assert one[-1]["loss"] != plain[-1]["loss"]
    ran(tmp_path / "personal", "ditto", more=tuned)
    with refused("combination"):
        ran(tmp_path / "decide", "fedavg", more=tuned | {"decide": {"calibrate": "temperature"}})


def test_a_step_of_fine_tuning_is_a_step_down_the_devices_own_loss(tmp_path: Path) -> None:
    of = engine(park((6, 10, 4)), folder=tmp_path)
    w = start(of)["w"]
    work = Work(steps=1, batch_size=100, rate=0.1)
    separate._tune(of, separate.Tuning(work, 1, 0), 1)
    assert bool(torch.isfinite(of.network.flat).all())
    stepped = of.network.flat.clone()
    of.network.flat.copy_(w)
    step = -0.1 * full_gradient(of.network, of.samples(1), of.task)
    torch.testing.assert_close(stepped[: len(step)] - w[: len(step)], step, rtol=1e-3, atol=1e-6)  # float32


def test_the_shared_model_is_evaluated_beside_devices_own(tmp_path: Path) -> None:
    work = {"epochs": 1, "batch_size": 10, "lr": 0.3}

    def ended(name: str, method: str, ranks: int = 1, **more: Any) -> Table:
        ran(tmp_path / name, method, ranks, more={"work": work, **more})
        evaluation: Table = json.loads((tmp_path / name / "evaluation.json").read_text())
        return evaluation

    plain = ended("plain", "fedavg")
    assert "shared" not in plain
    assert "shared" not in ended("alone", "local-only")
    for name, method, more in (
        ("ditto", "ditto", {}),
        ("ranks", "ditto", {"ranks": 2}),
        ("tuned", "fedavg", {"evaluate": {"finetune": {"epochs": 1}}}),
    ):
        evaluation = ended(name, method, **more)
        shared = evaluation["shared"]
        assert shared["sends"] == 1
        assert [place["accuracy"] for place in shared["devices"]] == [place["accuracy"] for place in plain["devices"]]
        assert shared["loss"] == plain["loss"] != evaluation["loss"]
        assert evaluation["devices"] != plain["devices"]
    rep = ended("rep", "fedrep")["shared"]
    assert 0 < rep["sends"] < 1
    assert len(rep["devices"]) == 4


def test_fine_tuning_takes_the_rate_of_the_round(tmp_path: Path) -> None:
    def loss(name: str, tune: Table) -> float:
        cosine = {"work": {"epochs": 1, "batch_size": 10, "lr": {"kind": "cosine", "start": 0.1}}}
        lines, _ = ran(
            tmp_path / name, "fedavg", more={**cosine, "rounds": 3, "evaluate": {"finetune": tune}}, rounds=3
        )
        return float(lines[-1]["loss"])

    # the last round's rate is 0: that of the second of three rounds, 0.05
    assert (
        loss("round", {"epochs": 1})
        == loss("given", {"epochs": 1, "lr": 0.05})
        != loss("first", {"epochs": 1, "lr": 0.1})
    )
