"""Finished runs on another network: the same rounds at other prices, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedfloor
import refusals
from commands import Command
from fedfloor import config
from fedfloor.base.errors import DivergedError, SettingError
from fedfloor.network.profile import NetworkSettings
from fedfloor.runs import launch, ledger
from fedfloor.runs.forecast import reprice
from fedfloor.runs.orders import Orders

TABLE = {
    "name": "small", "rounds": 2, "data": {"name": "labels", "samples_per_device": 12},
    "park": {"devices": 4, "factories": 2}, "work": {"epochs": 1, "batch_size": 6},
}  # fmt: skip


def ran(out: Path, method: str = "fedsr", **network: object) -> Path:
    own = {"fldg": {"groups": 2}, "kcenter": {"centers": 2}}
    methods = {key: value for key, value in own.items() if key == method}
    table = {**TABLE, "method": {"name": method}, "methods": methods, "network": network}
    fedfloor.run(config.from_table(table), out, ranks=1)
    return out


def lines(folder: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{**row, "wall_s": 0} for row in rows]


@pytest.mark.parametrize("method", ["fedsr", "fedl", "qffl", "fldg", "kcenter"])
def test_the_copy_is_what_a_run_on_that_network_writes(method: str, tmp_path: Path) -> None:
    free = ran(tmp_path / "free", method)
    there = ran(tmp_path / "there", method, profile="lte-cat-m2")
    followed: list[Path] = []
    (copy,) = reprice([free], NetworkSettings("lte-cat-m2"), tmp_path / "copies", followed.append)
    assert followed == [copy]
    assert all(row["priced"] is None for row in lines(free))
    assert lines(copy) == lines(there)
    assert (copy / "experiment.toml").read_text() == (there / "experiment.toml").read_text()
    assert (copy / "model.safetensors").read_bytes() == (free / "model.safetensors").read_bytes()
    assert not (copy / "checkpoint").exists()


def test_what_it_refuses(tmp_path: Path) -> None:
    free = ran(tmp_path / "free")
    out = tmp_path / "copies"

    def refused(runs: list[Path], network: NetworkSettings) -> str:
        with pytest.raises(SettingError) as caught:
            reprice(runs, network, out, lambda _: None)
        assert not out.exists() or not any(out.iterdir())
        return str(caught.value)

    slow = NetworkSettings("lte-cat-m2")
    assert "updates are lost to interference" in refused([free], NetworkSettings("rafed"))
    assert "it has no experiment.toml" in refused([tmp_path], slow)
    assert "two of the runs have folders of the same name" in refused([free, free], slow)
    other = ran(tmp_path / "radio", profile="rafed")
    assert "updates are lost to interference" in refused([free, other], slow)  # the first would do: no copy of it
    full = ledger.read(free / "ledger.jsonl")
    (free / "ledger.jsonl").write_text("".join(json.dumps({**vars(line), "plan_hash": "0"}) + "\n" for line in full))
    assert "free, round 1: the plan depends on training or on the network" in refused([free], slow)
    out.mkdir()
    (out / "there").touch()
    with refusals.refused("exists"):
        reprice([free], slow, out, lambda _: None)


def test_a_run_that_diverged_in_its_first_round_has_nothing_to_price(tmp_path: Path) -> None:
    wild = tmp_path / "wild"
    what = config.from_table({**TABLE, "work": {"epochs": 2, "batch_size": 6, "lr": 3e38}})
    with refusals.refused("diverged", DivergedError):
        launch.start(what, Orders(wild, keep=True), 1, launch.ignore)
    (copy,) = reprice([wild], NetworkSettings("lte-cat-m2"), tmp_path / "copies", lambda _: None)
    assert (copy / "diverged.json").read_bytes() == (wild / "diverged.json").read_bytes()
    assert not (copy / "ledger.jsonl").exists()
    assert "lte-cat-m2" in (copy / "experiment.toml").read_text()


def test_a_ledger_that_lacks_a_key_is_named(command: Command) -> None:
    assert command.set("rounds=2").code == 0
    path = command.folder / "out" / "ledger.jsonl"
    first, second = path.read_text().splitlines()
    for old, new, message in (('"loss"', '"loss_"', "loss is missing"), ("{", '{"los": 1, ', "unknown key 'los'")):
        path.write_text(f"{first}\n{second.replace(old, new, 1)}\n")
        said = command("price", "out", "--network", "wifi", "--out", "copies")
        command.refused(said, f"ledger.jsonl: line 2 is damaged ({message})")


def test_runs_in_which_nothing_travels_are_named_and_the_others_priced(command: Command) -> None:
    (command.folder / "small.toml").write_text(
        'rounds = 1\ndata = { name = "labels", samples_per_device = 60 }\npark = { devices = 3 }\n'
        'model = { name = "logistic" }\nmethod = { name = "fedavg" }\n'
    )
    before = command("price", "small.toml", "--network", "lte-cat-m2", "--methods", "fedavg,local-only", "--json")
    assert [row["method"] for row in before.document["rows"]] == ["fedavg"]
    assert "no price: local-only. Nothing travels" in before.err
    assert command("run", "small.toml", "--references", "--ranks", "1", "--out", "plant").code == 0
    after = command("price", "plant", "--network", "lte-cat-m2", "--out", "on-lte", "--json")
    assert after.code == 0, after.err
    assert "no price: local-only" in after.err
    seconds = {row["method"]: row["seconds"] for row in after.document["rows"]}
    assert seconds["fedavg"] == pytest.approx(before.document["rows"][0]["seconds_per_round"])
    assert seconds["local-only"] is None


def test_references_of_the_same_name_are_copied_into_the_copies_of_their_runs(tmp_path: Path) -> None:
    beside = [ran(tmp_path / run / "references" / "alone", "local-only") for run in "ab"]
    copies = reprice(beside, NetworkSettings("lte-cat-m2"), tmp_path / "copies", lambda _: None)
    assert copies == [tmp_path / "copies" / run / "references" / "alone" for run in "ab"]
    assert [lines(copy) for copy in copies] == [lines(run) for run in beside]
