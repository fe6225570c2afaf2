"""Codecs between the cloud and edges: identities, what is sent, prices, and the same bits in every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_engine_travel import FACTORIES, SIZES, experiment, result

import fedfloor
from fedfloor.base.errors import SettingError
from fedfloor.base.ranges import RefusedError
from fedfloor.engine.aggregation import Aggregation
from fedfloor.engine.travel import EdgePath
from fedfloor.methods.catalog import METHODS
from fedfloor.parts.mixing.mix import Branch
from fedfloor.parts.travel.chains import chain
from fedfloor.plan import text, walk
from fedfloor.plan.nodes import Parallel, Repeat, Train, Work, device, edge
from fedfloor.plan.schedule import Key
from floor import bits, park
from refusals import refused
from rounds import Job, method

EDGES = {"edge_travel": "int8", "edge_travel_down": "float16"}
FITS = {"hierfavg", "fedgs"}
PLACE = Key(0, 1, 0, -1, 0)


def job(folder: Path, parts: dict[str, Any], name: str = "hierfavg", **more: Any) -> Job:
    return Job(method(name, parts), park(SIZES, factory_of=FACTORIES), folder=folder, **more)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_codes_what_edges_send_or_refuses_it(name: str, tmp_path: Path) -> None:
    if name not in FITS:
        with pytest.raises(SettingError, match=r"method\.edge_travel with method|no models travel"):
            job(tmp_path, EDGES, name, rounds=1).run()
        return
    coded, plain = (job(tmp_path / str(len(parts)), parts, name, rounds=2).run() for parts in (EDGES, {}))
    assert bits(coded.packet["w"]) != bits(plain.packet["w"])
    assert torch.allclose(coded.packet["w"], plain.packet["w"], atol=0.05)


def test_codecs_that_lose_nothing_change_no_bit_and_no_plan(tmp_path: Path) -> None:
    nothing = {"edge_travel": ["identity", {"kind": "top-k", "share": 1.0}], "edge_travel_down": "identity"}
    there = job(tmp_path / "a", {}, rounds=2)
    here = job(tmp_path / "b", nothing, rounds=2)
    assert bits(there.run().packet["w"]) == bits(here.run().packet["w"])


def test_the_mean_is_that_of_the_decoded_changes_of_models_that_edges_were_given(tmp_path: Path) -> None:
    one = job(tmp_path, EDGES, rounds=1)
    seen: list[tuple[Any, ...]] = []
    usual = EdgePath.leave
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EdgePath, "leave", lambda *about: seen.append(about[1:3]) or usual(*about))
        after = one.run().packet["w"]
    start = one.start["w"]
    total = torch.zeros(len(one.start["w"])).double()
    weights = (10, 19, 13)
    assert len(seen) == 3
    for (model, given), weight in zip(seen, weights, strict=True):
        assert given.tolist() == start.half().float().tolist()
        total += weight * (model - given).double()
    exact = start.double() + total / sum(weights)
    step = float((exact - start).abs().max()) / 60  # int8 has 127 levels on either side, of each edge's largest
    assert float((after.double() - exact).abs().max()) < step


@pytest.mark.parametrize("name", ["hierfavg", "fedgs"])
def test_ranks_cohorts_and_resumed_runs_give_the_same_bits(name: str, tmp_path: Path) -> None:
    table = {"name": name, "travel": "int8", **EDGES}
    more: dict[str, Any] = {"faults": {"visit": 0.2}, "method": table}
    if name == "fedgs":
        more |= {"methods": {"fedgs": {"iterations": 2, "devices": 2, "random": 1}}}
        more |= {"data": {"samples_per_device": 20, "stream": {"kind": "fifo", "window": 10}}}
    what = experiment(**more)
    fedfloor.run(what, tmp_path / "1", ranks=1)
    fedfloor.run(what, tmp_path / "2", ranks=2)
    fedfloor.run(what, tmp_path / "parts", ranks=1, limits=fedfloor.Limits(1))
    fedfloor.run(what, tmp_path / "parts", ranks=1, resume=True)
    fedfloor.run(experiment(**more, engine={"kind": "cohort"}), tmp_path / "cohort", ranks=1)
    assert result(tmp_path / "1") == result(tmp_path / "2") == result(tmp_path / "parts") == result(tmp_path / "cohort")


def test_a_cohort_that_stacks_devices_codes_what_edges_send(tmp_path: Path) -> None:
    table = {"name": "hierfavg", **EDGES}
    models = []
    for kind in ("ranks", "cohort"):
        fedfloor.run(experiment(method=table, engine={"kind": kind}), tmp_path / kind, ranks=1)
        lines, _ = result(tmp_path / kind)
        models.append(lines[-1]["loss"])  # type: ignore[index]
    assert models[0] == pytest.approx(models[1], rel=1e-3)


def test_a_model_between_cloud_and_edge_is_priced_to_the_byte(tmp_path: Path) -> None:
    lines = []
    for number, parts in enumerate(({}, EDGES, {"edge_travel": "int4"}, {"edge_travel_down": "bfloat16"})):
        network = {"profile": "lte-cat-m2", "edge_cloud": {"up_bps": 1e6, "down_bps": 1e6}}
        table = {"name": "hierfavg", **parts}
        what = experiment(method=table, model={"name": "logistic"}, network=network)
        fedfloor.run(what, tmp_path / str(number), ranks=1)
        lines.append(fedfloor.runs.ledger.read(tmp_path / str(number) / "ledger.jsonl")[0].priced)
    numbers = 48_670
    int8 = numbers + 4 * -(-numbers // 512)
    int4 = numbers // 2 + 4 * -(-numbers // 512)
    ways = {"edge_cloud_down": (4, 2, 4, 2), "edge_cloud_up": (4, int8 / numbers, int4 / numbers, 4)}
    for link, sizes in ways.items():
        assert [line["bytes"][link] for line in lines] == [2 * round(numbers * size) for size in sizes]  # type: ignore[index]
    for line in lines[1:]:
        assert line["bytes"]["device_edge_up"] == lines[0]["bytes"]["device_edge_up"]  # type: ignore[index]
        assert line["seconds"] < lines[0]["seconds"]  # type: ignore[index]


def test_payloads_of_other_branches_or_lengths_are_refused(tmp_path: Path) -> None:
    one = job(tmp_path, {})
    visits = tuple(Repeat(1, Parallel((Train(device(k), Work(epochs=1)),), at=edge(k))) for k in range(2))
    node = Parallel(visits, travel="quantise bits=8 bucket=512")
    network = one.engine.network
    start = {"w": one.engine.network.flat.clone()}

    def made() -> Aggregation:
        return Aggregation(node, start, path=EdgePath(network, node, PLACE))

    whole = made()
    whole.add(0, {"w": start["w"] + 1.0}, 5)
    whole.add(1, start, 0)
    head, payload, nothing = whole.unfinished()
    assert (bytes(head), bytes(nothing)) == (b"[0]", b"[]")
    other = made()
    other.take([memoryview(head), memoryview(payload), memoryview(nothing)])
    assert bits(other.model(0)) == bits(whole.model(0))
    rng = np.random.default_rng(0)
    known = [Branch(5, 0.0), None]
    assert torch.allclose(other.mixed(known, 2, len(start["w"]), rng)["w"], whole.model(0), rtol=1e-6)
    short = made()
    short.take([memoryview(head), memoryview(bytearray(payload)[:-1]), memoryview(nothing)])
    with refused("payload", RefusedError):
        short.model(0)
    poisoned = np.frombuffer(bytes(payload), np.uint8).copy()
    poisoned[:4] = np.frombuffer(np.float32(np.inf).tobytes(), np.uint8)
    wrong = made()
    wrong.take([memoryview(head), memoryview(poisoned), memoryview(nothing)])
    with refused("payload", RefusedError):
        wrong.model(0)


def test_plans_keep_their_hash_and_name_the_codecs_where_they_have_some() -> None:
    plain = Parallel((Repeat(1, Parallel((Train(device(0), Work(epochs=1)),), at=edge(0))),))
    coded = Parallel(plain.children, travel="sign", travel_down="float16")
    assert "travel" not in json.dumps(text.to_json(plain)).replace('"travel": ""', "")
    assert text.from_json(text.to_json(coded)) == coded
    assert text.digest(coded) != text.digest(plain)
    assert walk.codings(coded) == {("all", "sign"), ("all", "float16")}
    assert len(chain(coded.travel)) == 1


@pytest.mark.parametrize(
    ("parts", "name", "reason"),
    [
        ({"edge_travel": "top-k"}, "hierfavg", "method.edge_travel"),
        ({"edge_travel": "secure-sum"}, "hierfavg", "method.edge_travel"),
        ({"edge_travel_down": "sign"}, "hierfavg", "method.edge_travel"),
        ({"edge_travel": "int8"}, "fedavg", "method.edge_travel"),
        ({"edge_travel": "int8"}, "ifca", "combination"),
        ({"edge_travel": "int8", "objective": "variates"}, "hierfavg", "method.edge_travel"),
        ({"edge_travel": "itn8"}, "hierfavg", "method.edge_travel"),
    ],
)
def test_what_edges_cannot_code_is_refused(parts: dict[str, Any], name: str, reason: str, tmp_path: Path) -> None:
    with refused(reason):
        job(tmp_path, parts, name, rounds=1).run()
