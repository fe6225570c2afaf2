"""Parts of the model that stay with devices: identities, what travels, what is evaluated, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedfloor
from fedfloor import config
from fedfloor.errors import SettingError
from fedfloor.models.network import Network
from fedfloor.models.parcel import Parcel
from fedfloor.plan import text
from fedfloor.plan.nodes import Parallel, Train, Work, device

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
    mine, plain = ran(tmp_path / "p", "fedper", settings={"own": ""}), ran(tmp_path / "a", "fedavg")
    assert mine[0] == plain[0]
    assert same(mine[1], plain[1])


def test_with_all_of_its_own_it_is_training_without_federation(tmp_path: Path) -> None:
    mine, alone = ran(tmp_path / "p", "fedper", settings={"own": "all"}), ran(tmp_path / "l", "local-only")
    assert [line["accuracy"] for line in mine[0]] == [line["accuracy"] for line in alone[0]]
    assert [line["plan_hash"] for line in mine[0]] == [line["plan_hash"] for line in alone[0]]


@pytest.mark.parametrize("own", ["head", "body", "3.*"])
def test_ranks_and_resumed_runs_are_one_rank_to_the_bit(own: str, tmp_path: Path) -> None:
    one = ran(tmp_path / "one", "fedper", settings={"own": own})
    two = ran(tmp_path / "two", "fedper", 2, settings={"own": own})
    ran(tmp_path / "cut", "fedper", rounds=1, settings={"own": own})
    cut = ran(tmp_path / "cut", "fedper", settings={"own": own}, resume=True)
    assert one[0] == two[0] == cut[0]
    assert same(one[1], two[1])
    assert same(one[1], cut[1])


def test_the_head_stays_and_its_bytes_are_not_paid_for(tmp_path: Path) -> None:
    network = {"network": {"profile": "lte-cat-m2"}}
    lines, _ = ran(tmp_path / "p", "fedper", more=network)
    whole, _ = ran(tmp_path / "a", "fedavg", more=network)
    heads = [load_file(one) for one in sorted((tmp_path / "p" / "memory").glob("0*.safetensors"))]
    numbers = {len(one["own head"]) for one in heads}
    up = [line["priced"]["bytes"]["device_edge_up"] for line in (lines[-1], whole[-1])]
    (head,) = numbers
    assert up[1] - up[0] == 4 * 4 * head  # devices, bytes of a number


def test_own_parts_of_a_model() -> None:
    layers = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(6, 2))
    network = Network(layers, "3")
    norms, head, body = (network.own_part(name) for name in ("norms", "head", "body"))
    assert sum(part.stop - part.start for part in norms) == 4 * 3  # scale, shift, mean, variance
    assert sum(part.stop - part.start for part in (*head, *body)) == network.trained
    travels = network.parcel("all but norms")
    assert travels.numbers == network.flat.numel() - 12
    model = torch.arange(network.flat.numel(), dtype=torch.float32)
    assert torch.equal(travels.put(travels.cut(model), model), model)
    assert travels.put(torch.zeros(travels.numbers), model).count_nonzero() == Parcel(norms, len(model)).numbers
    with pytest.raises(SettingError, match=r"work\.own = 'bodi': no tensor of model"):
        network.own_part("bodi")


def test_a_network_without_normalisation_layers_has_none_to_keep(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"work\.own = 'norms'"):
        ran(tmp_path / "run", "fedper", settings={"own": "norms"})


def test_plans_written_before_are_read() -> None:
    old = {"node": "train", "site": "device 0", "work": {"epochs": 1, "sends": False}}
    written = text.to_json(Parallel((Train(device(0), Work(epochs=1, own="all")),)))
    old = {**written, "children": [{**written["children"][0], "work": {"epochs": 1, "sends": False}}]}
    assert text.from_json(old) == text.from_json(written)
    assert "own" not in text.to_json(Train(device(0), Work(epochs=1)))["work"]
