"""Whole runs of HFedMS in which visits are lost: any number of ranks, resumed, forecast, and what devices keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

import fedfloor
from fedfloor import config
from fedfloor.experiment import Experiment
from fedfloor.plan import text
from fedfloor.runs import forecast, launch
from fedfloor.runs.orders import Limits
from refusals import refused

FEATURES = 200  # mlp-2nn's
TABLE: dict[str, Any] = {
    "name": "hfedms", "rounds": 8, "park": {"devices": 8, "factories": 2}, "model": {"name": "mlp-2nn"},
    "data": {"name": "labels", "samples_per_device": 12, "stream": {"kind": "augmented"}},
    "method": {"name": "hfedms"}, "faults": {"visit": 0.3}, "network": {"profile": "lte-cat-m2"},
    "methods": {"hfedms": {
        "period": 3, "share": 0.5, "memory": 9, "growth": {"kind": "linear", "alpha": 1.0, "beta": 2}}},
}  # fmt: skip


def experiment(**more: Any) -> Experiment:
    return config.from_table({**TABLE, **more})


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "wall_s"} for line in found]


@pytest.mark.parametrize("kept", [{}, {"keep": "samples"}, {"rule": "random"}, {"rule": "window"}], ids=str)
def test_any_number_of_ranks_a_resume_and_a_forecast_come_to_the_same(kept: dict[str, str], tmp_path: Path) -> None:
    def experiment() -> Experiment:
        return config.from_table({**TABLE, "methods": {"hfedms": {**TABLE["methods"]["hfedms"], **kept}}})

    whole = fedfloor.run(experiment(), tmp_path / "whole", ranks=1)
    two = fedfloor.run(experiment(), tmp_path / "two", ranks=2)
    for stop in (2, 5, 8):  # each within a period, of which the last is cut short
        parts = fedfloor.run(
            experiment(), tmp_path / "parts", ranks=1 + stop % 2, resume=stop > 2, limits=Limits(stop_after=stop)
        )
    expected = lines(whole.folder)
    assert any(line["lost"] for line in expected)
    for other in (two, parts):
        assert lines(other.folder) == expected
        assert other.model_file.read_bytes() == whole.model_file.read_bytes()
    told = list(forecast.rounds(experiment(), launch.build_park(experiment()), 8))
    assert [one.price.seconds for one in told] == [line["priced"]["seconds"] for line in expected]
    assert [text.digest(one.plan) for one in told] == [line["plan_hash"] for line in expected]
    drawn = forecast.plan_of(experiment(), launch.build_park(experiment()), 5)  # its groups are those of round 4
    assert text.digest(drawn) == expected[4]["plan_hash"]


def test_a_run_says_what_devices_keep(tmp_path: Path) -> None:
    # two groups of four at first, one of them drawn; all four train in rounds 1 to 3 and end with at most 9 features
    still = experiment(rounds=3, faults={"visit": 0.0})
    folder = fedfloor.run(still, tmp_path, ranks=1).folder
    told = json.loads((folder / "memory.json").read_text())
    files = [path.stat().st_size for path in (folder / "memory").glob("[0-9]*") if _kept(path) == 9]
    assert told == {
        "devices": 4, "bytes_mean": files[0], "bytes_max": files[0], "extractors": 1,
        "extractor_bytes": next((folder / "memory").glob("extractor-*")).stat().st_size,
    }  # fmt: skip
    assert len(files) == 4
    assert 9 * (4 * FEATURES + 8) <= files[0] <= 9 * (4 * FEATURES + 8) + 400  # floats, a label, and names


def _kept(path: Path) -> int:
    with safe_open(path, "pt") as file:
        return int(file.get_slice("z").get_shape()[0])


@pytest.mark.parametrize(
    ("network", "match"),
    [("softmaxed", "whose output is not the network's output"), ("flattening", r"'1' is \[2, 7, 7\] for")],
)
def test_a_network_whose_features_cannot_be_kept_is_refused_before_anything_is_written(
    network: str, match: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    model = {"name": f"scoped:{network}", "classifier": "1"}
    with refused("objective"):
        fedfloor.run(experiment(model=model), out, ranks=1)
    assert not out.exists()
    other = experiment(model=model, method={"name": "scoped:Keeping"}, rounds=1)  # what it keeps are not features
    assert fedfloor.run(other, out, ranks=1).model_file.exists()
