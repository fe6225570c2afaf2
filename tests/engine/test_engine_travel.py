"""Coded packets in every engine: identities, error feedback, and the same bits however a run is carried out."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedfloor
from fedfloor import config
from fedfloor.engine.travel import VisitPath
from fedfloor.experiment import Experiment
from fedfloor.methods.catalog import METHODS
from floor import bits, park
from refusals import refused
from rounds import Job, method

SIZES = (6, 10, 4, 9, 5, 8)
FACTORIES = (0, 1, 0, 1, 2, 2)
CODECS = {"travel": [{"kind": "top-k", "share": 0.05}, "int8"], "travel_down": "float16"}
REFUSED = {
    **dict.fromkeys(("ifca", "flhc"), "combination"),
    "local": "no models travel",
    "boosting": "combination",
}  # fmt: skip


def experiment(name: str = "fedavg", **more: Any) -> Experiment:
    return config.from_table({
        "rounds": 3, "data": {"samples_per_device": 20}, "park": {"devices": 6, "factories": 2},
        "work": {"batch_size": 5, "lr": 0.05}, "network": {"profile": "lte-cat-m2"},
        "method": {"name": name, **CODECS}, **more,
    })  # fmt: skip


def result(folder: Path) -> tuple[list[object], bytes]:
    lines = fedfloor.runs.ledger.read(folder / "ledger.jsonl")
    return [{**vars(one), "wall_s": 0} for one in lines], (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_with_codecs_or_refuses_them(name: str, tmp_path: Path) -> None:
    if name in REFUSED:
        with refused(REFUSED[name]):
            method(name, CODECS)
        return
    job = Job(method(name, CODECS), park(SIZES, factory_of=FACTORIES), rounds=2, folder=tmp_path)
    state = job.run()
    assert bool(torch.isfinite(state.packet["w"]).all())
    plain = Job(method(name), park(SIZES, factory_of=FACTORIES), rounds=2, folder=tmp_path / "plain").run()
    assert name in ("centralized",) or bits(state.packet["w"]) != bits(plain.packet["w"])


@pytest.mark.parametrize("name", ["fedavg", "fedsr", "hfedms", "fedgs"])
def test_codecs_that_lose_nothing_change_no_bit(name: str, tmp_path: Path) -> None:
    nothing = {"travel": ["identity", {"kind": "top-k", "share": 1.0}], "travel_down": "identity"}
    there, here = (
        Job(method(name, parts), park(SIZES, factory_of=FACTORIES), folder=tmp_path / str(len(parts)))
        for parts in ({}, nothing)
    )
    assert bits(there.run().packet["w"]) == bits(here.run().packet["w"])


@pytest.mark.parametrize("codecs", ["top-k", "sign", "low-rank", ["random-k", "int4"]], ids=str)
def test_decoded_changes_and_the_error_kept_sum_to_the_updates(
    codecs: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(method("fedavg", {"travel": codecs}), park(SIZES, factory_of=FACTORIES), folder=tmp_path, loss=0.3)
    updates: dict[int, Tensor] = defaultdict(lambda: torch.zeros(job.engine.network.flat.numel(), dtype=torch.float64))
    decoded: dict[int, Tensor] = defaultdict(lambda: torch.zeros(job.engine.network.flat.numel(), dtype=torch.float64))
    leave = VisitPath.leave
    arrive = VisitPath.arrive

    def left(path: VisitPath, model: Tensor, arrived: Tensor, kept: Any, key: Any, **more: Any) -> Any:
        updates[key.device] += model.double() - arrived.double()
        return leave(path, model, arrived, kept, key, **more)

    def came(path: VisitPath, packet: Any, base: Tensor, key: Any) -> Any:
        after = arrive(path, packet, base, key)
        decoded[key.device] += after["w"].double() - base.double()
        return after

    monkeypatch.setattr(VisitPath, "leave", left)
    monkeypatch.setattr(VisitPath, "arrive", came)
    job.run()
    visits = [receipt for outcome in job.outcomes for receipt in outcome.receipts]
    assert any(receipt.lost for receipt in visits)
    assert len(updates) > 3
    for k, update in updates.items():
        error = job.engine.memory.load(k)["residual all"].double()
        assert torch.allclose(decoded[k] + error, update, atol=1e-6)  # roundings of single precision, near 0.1


@pytest.mark.parametrize("name", ["fedavg", "fedsr"])
def test_ranks_and_resumed_runs_give_the_same_bits(name: str, tmp_path: Path) -> None:
    what = experiment(name, faults={"visit": 0.2})
    fedfloor.run(what, tmp_path / "1", ranks=1)
    fedfloor.run(what, tmp_path / "2", ranks=2)
    fedfloor.run(what, tmp_path / "parts", ranks=1, limits=fedfloor.Limits(1))
    fedfloor.run(what, tmp_path / "parts", ranks=1, resume=True)
    assert result(tmp_path / "1") == result(tmp_path / "2") == result(tmp_path / "parts")


def test_a_cohort_steps_aside(tmp_path: Path) -> None:
    for kind in ("ranks", "cohort"):
        fedfloor.run(experiment(engine={"kind": kind}), tmp_path / kind, ranks=1)
    assert result(tmp_path / "ranks") == result(tmp_path / "cohort")


def test_receipts_and_prices_count_the_payload(tmp_path: Path) -> None:
    job = Job(method("fedavg", CODECS), park(SIZES, factory_of=FACTORIES), rounds=1, folder=tmp_path)
    job.run()
    visit = job.method.coded(job.method.method.work.at(1, 1))  # type: ignore[attr-defined]
    way = VisitPath(job.engine.network, visit).up
    assert {receipt.bytes for receipt in job.outcomes[0].receipts} == {way.size(job.start)}
    assert way.size(job.start) < job.engine.network.size / 20


def test_a_direct_link_between_devices_refuses_changes(tmp_path: Path) -> None:
    direct = {"profile": "lte-cat-m2", "device_device": {"up_bps": 1e6}}
    with refused("method.travel"):
        fedfloor.run(experiment("fedsr", network=direct), tmp_path, ranks=1)


OWN = """
from dataclasses import dataclass
from fedfloor.parts.travel.codec import Codec
from fedfloor.parts.travel.path import NONE

@dataclass(frozen=True)
class Half(Codec):
    changes = feedback = True

    def after(self, layout):
        return layout.flat(-(-layout.numbers // 2))

    def leave(self, x, layout, rng):
        return NONE, x[::2]

    def arrive(self, side, numbers, layout, rng):
        x = 0 * numbers.repeat(2)[: layout.numbers]
        x[::2] = numbers
        return x
"""


def test_a_codec_of_ones_own_composes_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    sizes = []
    for codecs in ("int8", ["half:Half", "int8"]):
        what = experiment(method={"name": "fedavg", "travel": codecs})
        run = fedfloor.run(what, tmp_path / str(len(sizes)), ranks=1)
        sizes.append((run.lines[0].priced or {})["bytes"]["device_edge_up"])
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"travel_down": "top-k"}, "method.travel_down"),
        ({"travel": "itn8"}, "method.travel"),
        ({"travel": {"kind": "top-k", "share": 2}}, "method.travel"),
    ],
)
def test_what_cannot_be_coded_is_refused(parts: dict[str, Any], message: str) -> None:
    with refused(message):
        method("fedavg", parts)


def test_what_travels_beside_the_model_is_not_coded(tmp_path: Path) -> None:
    job = Job(method("scaffold", CODECS), park(SIZES, factory_of=FACTORIES), rounds=2, folder=tmp_path)
    job.run()
    beside = job.outcomes[-1].packet["c"].nbytes
    assert all(receipt.bytes > beside for receipt in job.outcomes[-1].receipts)
