"""Outages of parks of real processes behind TLS: brokers that are stopped and started, edges, and everybody in turn."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from live_processes import needs_broker
from parks import until
from tests.programs import outages
from tests.programs.outages import Came, Fault, Plant, compare, park, running

pytestmark = [pytest.mark.slow, pytest.mark.live, needs_broker]
DOWN_S = 3.0


def ended(plant: Plant) -> Came:
    """Let a round without lost visits follow, end the run, and compare it with the simulation."""
    came = Came(0, "fedavg", [])
    after = len(plant.lines())
    assert until(lambda: len(plant.lines()) > after + 1 and plant.lines()[-1]["lost"] == 0, 60), plant.cloud_log
    plant.processes["cloud"].send_signal(signal.SIGINT)
    assert plant.processes["cloud"].wait(60) == 130, plant.cloud_log
    compare(plant, came)
    assert (came.model, came.ledger) == (True, True)
    return came


def test_restarts_of_brokers_and_of_edges_use_up_no_round_and_cost_no_bit(tmp_path: Path) -> None:
    """Orderly: a factory's broker, the cloud's, all brokers, and all edges at once."""
    with running(tmp_path, "fedavg", quorum=4) as plant:
        brokers = plant.names("brokers")
        for target in (brokers[1], brokers[0], "brokers", "edges"):
            with plant.held() as before:
                plant.strike(Fault(target, "SIGTERM", DOWN_S))
                assert len(plant.lines()) == before, target
            assert until(lambda: len(plant.lines()) > before + 2, 120), plant.cloud_log
        came = ended(plant)
    assert came.lost == 0


def test_one_edge_alone_costs_its_own_visits_and_no_more(tmp_path: Path) -> None:
    with running(tmp_path, "hierfavg") as plant:
        edge = plant.names("edges")[0]
        plant.strike(Fault(edge, "SIGTERM", DOWN_S))
        came = ended(plant)
    assert came.lost > 0
    assert came.lost % 4 == 0  # two devices, each visited twice a round


@pytest.mark.parametrize("target", ["brokers", "cloud's broker", "edges", "line"])
def test_what_does_not_come_back_ends_the_run_with_a_sentence_and_the_run_resumes(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "JOIN_S", 4.0)
    with running(tmp_path, "fedavg", quorum=4) as plant:
        names = plant.names("devices" if target == "line" else target)
        if target == "cloud's broker":
            names = plant.names("brokers")[:1]
        with plant.held() as before:
            for name in names:
                process = plant.processes[name]
                process.send_signal(signal.SIGSTOP if target == "line" else signal.SIGTERM)  # beyond the keep-alive
                if target != "line":
                    process.wait(30)
            cloud = plant.processes["cloud"]
            assert until(lambda: cloud.poll() is not None, 120), plant.cloud_log
        assert len(plant.lines()) == before
        assert cloud.poll() == 1
        last = [line for line in plant.cloud_log.splitlines() if line.startswith("error: ")]
        assert len(last) == 1
        assert "did not begin" in last[0]
        assert "Traceback" not in plant.cloud_log
        for name in names:
            plant.processes[name].send_signal(signal.SIGCONT) if target == "line" else plant.start(name)
        plant.start_cloud()

        def goes_on() -> bool:
            if plant.processes["cloud"].poll() == 1:  # it began before the edges were connected again
                plant.start_cloud()
            return len(plant.lines()) > before

        assert until(goes_on, 90), plant.cloud_log
        came = ended(plant)
    assert came.lost == 0


@pytest.mark.parametrize("kind", ["hierfavg", "secure sums"])
def test_everything_ends_in_turn_in_both_ways(tmp_path: Path, kind: str) -> None:
    def faults(plant: Plant) -> list[Fault]:
        targets = ["device-0", plant.names("edges")[0], *plant.names("brokers")[:2], *outages.GROUPS, "cloud"]
        return [Fault(target, how, 0.5) for target in targets for how in ("SIGTERM", "SIGKILL")]

    came = park(tmp_path, 1, kind, faults)
    assert came.good, came


@pytest.mark.parametrize("kind", ["hierfavg", "own classifiers", "secure sums"])
def test_faults_drawn_at_random_leave_the_simulations_bits(tmp_path: Path, kind: str) -> None:
    came = park(tmp_path, 7, kind, lambda plant: outages.drawn(random.Random(7), plant, 8))
    assert came.good, came
