"""What rounds that train a part of the model cost, and what the server may do in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedfloor
from fedfloor import config
from fedfloor.experiment import Experiment
from fedfloor.methods.fedavg import FedAvg
from fedfloor.methods.rafed import RaFed
from fedfloor.network.profile import NetworkSettings
from fedfloor.plan.nodes import Broadcast, Parallel, Sequence, Work, edge
from fedfloor.runs import forecast, launch
from fedfloor.runs.forecast import reprice
from fedfloor.runs.orders import Limits
from priced import BYTES, priced, visit
from refusals import refused
from scoped import Asking

PART = Work(epochs=1, trains="classifier")  # 10 bytes, a hundredth of the packet

TABLE: dict[str, Any] = {
    "name": "scoped", "rounds": 3, "data": {"name": "labels", "samples_per_device": 12},
    "park": {"devices": 4, "factories": 2}, "method": {"name": "scoped:Alternating"}, "model": {"name": "mlp-2nn"},
}  # fmt: skip
CLASSIFIER = 4 * (200 + 1) * 62  # bytes: 200 features and a bias for each of 62 characters
WHOLE = 4 * ((784 + 1) * 200 + (200 + 1) * 200) + CLASSIFIER


def experiment(**more: Any) -> Experiment:
    return config.from_table({**TABLE, **more})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_rounds_of_both_scopes() -> None:
    # all: 4 + 1 down, 16, 2 + 8 up; then the classifier, 0.05 down, and the other 990 bytes, 4.95, which nobody was
    # handed; a third of 16, 0.1 up; then 0.05 down to both who keep the classifier
    whole = Parallel((visit(0), visit(3)))
    part = Parallel((visit(0, PART), visit(3, PART)))
    found = priced(Sequence((whole, part, Broadcast((0, 3), "classifier"))))
    assert found.seconds == pytest.approx(31 + 5.0 + 16 / 3 + 0.1 + 0.05, abs=1e-12)
    down, up = 2 * (BYTES + BYTES + 10), 2 * (BYTES + 10)
    assert found.bytes == {
        "device_edge_down": down, "device_edge_up": up, "edge_cloud_down": down, "edge_cloud_up": up,
    }  # fmt: skip


def test_what_was_trained_since_the_cloud_goes_along() -> None:
    # device 3 trains the classifier of what device 0 trained, and all of it goes on to the cloud: two ways down, two up
    both = dict.fromkeys(("device_edge_down", "device_edge_up", "edge_cloud_down", "edge_cloud_up"), 2 * BYTES)
    assert priced(Sequence((visit(0), visit(3, PART)))).bytes == both
    # the other way round only the first way down is the classifier's: device 3 needs the whole model
    found = priced(Sequence((visit(0, PART), visit(3))), holders=frozenset({0})).bytes
    assert found == both | dict.fromkeys(("device_edge_down", "edge_cloud_down"), BYTES + 10)
    # what met at an edge stands there: the device sends 10 bytes, the edge what it has; the 990 bytes that the device
    # lacks of it come from there
    found = priced(Sequence((Parallel((visit(0),), at=edge(0)), Parallel((visit(0, PART),), at=edge(0))))).bytes
    near = ("device_edge_down", "device_edge_up")
    far = ("edge_cloud_down", "edge_cloud_up")
    assert found == {near[0]: 2 * BYTES, near[1]: BYTES + 10} | dict.fromkeys(far, BYTES)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_its_forecast_and_its_copy_on_another_network(tmp_path: Path) -> None:
    what = experiment(network={"profile": "lte-cat-m2"})
    fedfloor.run(what, tmp_path / "run", ranks=1)
    free = fedfloor.run(experiment(), tmp_path / "free", ranks=1).folder
    paid = [line["priced"] for line in lines(tmp_path / "run")]
    for number, size in enumerate((WHOLE, CLASSIFIER, WHOLE)):  # to four devices who train, and again to keep it
        assert paid[number]["bytes"]["device_edge_up"] == 4 * size
        assert paid[number]["bytes"]["device_edge_down"] == 8 * size
    told = list(forecast.rounds(what, launch.build_park(what), 3))
    assert [one.price.seconds for one in told] == [one["seconds"] for one in paid]
    (copy,) = reprice([free], NetworkSettings("lte-cat-m2"), tmp_path / "copies", lambda _: None)
    assert [line["priced"] for line in lines(copy)] == paid


# what comes down to devices: setup and round 1 (one pull), all, two pulls, one, all and a broadcast to two, one
PULLED = (
    2 * WHOLE + 2 * CLASSIFIER + WHOLE, 3 * WHOLE, 2 * WHOLE, 2 * CLASSIFIER + WHOLE, 4 * WHOLE, 2 * CLASSIFIER + WHOLE,
)  # fmt: skip


def test_devices_that_come_late_pull_and_a_resume_knows_who_did(tmp_path: Path) -> None:
    def priced_(folder: Path) -> list[dict[str, Any]]:
        return [line["priced"] for line in lines(folder)]

    def what(**more: Any) -> Experiment:
        return experiment(rounds=6, method={"name": "scoped:Joining"}, **more)

    there = what(network={"profile": "lte-cat-m2"})
    fedfloor.run(there, tmp_path / "run", ranks=1)
    paid = priced_(tmp_path / "run")
    assert [one["bytes"]["device_edge_down"] for one in paid] == list(PULLED)
    for stop, ranks in ((3, 2), (5, 1)):
        out = tmp_path / f"stopped-{stop}"
        fedfloor.run(there, out, ranks=ranks, limits=Limits(stop_after=stop))
        fedfloor.run(there, out, ranks=3 - ranks, resume=True)
        assert priced_(out) == paid
    told = list(forecast.rounds(there, launch.build_park(there), 6))
    assert told[0].price.bytes["device_edge_down"] == 2 * WHOLE
    assert [one.price.bytes["device_edge_down"] for one in told[2:]] == list(PULLED[1:])
    assert [one.price.seconds for one in told[2:]] == [one["seconds"] for one in paid[1:]]
    free = fedfloor.run(what(), tmp_path / "free", ranks=1).folder
    (copy,) = reprice([free], NetworkSettings("lte-cat-m2"), tmp_path / "copies", lambda _: None)
    assert priced_(copy) == paid


# -- a census in some rounds -------------------------------------------------------------------------------------------


def test_a_census_is_asked_and_counted_in_the_rounds_that_read_it(tmp_path: Path) -> None:
    # rounds 1, 3 and 5: the method looks whether it has it in these alone
    noisy = {"devices": 4, "factories": 2, "census_epsilon": 0.5}
    what = experiment(rounds=5, method={"name": "scoped:Asking"}, park=noisy, network={"profile": "lte-cat-m2"})
    fedfloor.run(what, tmp_path / "run", ranks=1)
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["reports"] == 3
    told = list(forecast.rounds(what, launch.build_park(what), 5))
    assert [one.price.seconds for one in told] == [line["priced"]["seconds"] for line in lines(tmp_path / "run")]
    assert forecast.plan_of(what, launch.build_park(what), 4) == told[3].plan


def test_methods_that_read_it_read_it_in_every_round_unless_they_say_so() -> None:
    assert [Asking().needs.census_now(number) for number in (0, 1, 2)] == [False, True, False]
    assert [RaFed(weight_divergence=1.0).needs.census_now(number) for number in (0, 1, 2)] == [True] * 3
    assert not FedAvg().needs.census_now(1)


def test_a_part_that_has_no_price_is_refused_by_name() -> None:
    def said(**more: Any) -> str:
        what = experiment(**more)
        with refused("work.trains") as caught:
            list(forecast.rounds(what, launch.build_park(what), 2))
        return str(caught.value)

    unknown = said(model={"name": "scoped:convolved"}, network={"profile": "lte-cat-m2"})
    assert "the network's classifier is unknown. Name its layer with model.classifier." in unknown
    assert "radio.payload_nats sets" in said(network={"profile": "rafed"})


def test_a_server_that_steps_is_refused() -> None:
    def rounds(**server: Any) -> list[forecast.ForecastRound]:
        method = {"name": "scoped:Alternating", "server": {"kind": "sgd", **server}}
        what = experiment(method=method, network={"profile": "lte-cat-m2"})
        return list(forecast.rounds(what, launch.build_park(what), 2))

    assert len(rounds()) == 2
    for server in ({"momentum": 0.9}, {"rate": 0.5}):
        with refused("method.server"):
            rounds(**server)
