"""The live engine, with real agents and edges but neither network nor processes: the simulation's bits."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedfloor.plan.drivers import absent
from fedfloor.plan.nodes import CLOUD, Sequence, Train, Work, device
from live_park import experiment, figures, live, simulated

SIMULATE = "deploy.simulate = true\n"
METHODS = ("fedavg", "fedsr", "hierfavg", "fedgs", "hfedms")


@pytest.mark.parametrize("method", [*METHODS, "bayes"])
def test_a_park_of_machines_is_its_simulation_to_the_bit(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


@pytest.mark.parametrize("method", METHODS)
def test_real_machines_go_visit_by_visit_where_the_simulation_is_a_cohort(tmp_path: Path, method: str) -> None:
    """An edge with a cohort would train by itself, and ask no device."""
    _, wanted = simulated(experiment(tmp_path, method), tmp_path / "simulated")
    what = experiment(tmp_path, method)
    what.write_text(
        what.read_text() + "engine.kind = 'cohort'\nengine.device = 'cpu'\n" + SIMULATE * (method == "fedsr")
    )
    with live(tmp_path, what) as park:
        got = park.run()
        assert all(edge.factory.trained_s > 0 for edge in park.edges.values())
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert "engine" not in tomllib.loads((tmp_path / "live/experiment.toml").read_text())["provenance"]


def test_the_cloud_s_visits_in_a_branch_that_nobody_walked_are_not_device_0_s() -> None:
    work = Work(epochs=1)
    passed = absent(
        Sequence((Train(device(0), work), Train(CLOUD, work))), 0, {0: 2, -1: 5}, {0: 7, -1: 40}.__getitem__
    )
    assert [(one.device, one.visit, one.samples) for one in passed.receipts] == [(0, 2, 7), (-1, 5, 40)]


def test_parts_of_the_model_have_their_rates_as_in_the_simulation(tmp_path: Path) -> None:
    rates = 'methods.fedavg.work.lr_factors = { "1.*" = 0.25, head = 2 }'
    what = experiment(tmp_path, "fedavg", model="mlp-2nn", more=rates)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


def test_devices_keep_their_optimisers_moments_as_in_the_simulation(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=3)
    adam = 'optimizer = "adam", moments = "device", clip_norm = 1.0'
    what.write_text(what.read_text().replace("momentum = 0.5", adam))
    assert adam in what.read_text()
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
