"""A park of real processes that takes results as they come: faults, and the simulation that repeats the run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from fedfloor.deploy.settings import Deadlines
from fedfloor.network.profile import NetworkSettings
from fedfloor.runs import ledger
from fedfloor.runs.forecast import reprice
from live_park import experiment
from live_processes import Processes, needs_broker, processes, rounds
from replays import replayed

pytestmark = [pytest.mark.slow, pytest.mark.live, needs_broker]
BUFFER = "methods.fedbuff = { buffer = 2, concurrency = 3 }"
LINKS = ("device_edge_down", "device_edge_up", "edge_cloud_down", "edge_cloud_up")
MODEL = 4 * (784 * 62 + 62)  # bytes
SHORT = Deadlines(visit_s=4.0, probe_s=60.0, join_s=20.0, round_s=120.0)


def arrived(lines: list[ledger.Line]) -> set[int]:
    return {device for line in lines for device, *_ in line.arrivals or ()}


def ended(park: Processes, cloud: subprocess.Popen[bytes]) -> list[ledger.Line]:
    """End a run after its present round, and return its lines."""
    cloud.send_signal(signal.SIGINT)
    cloud.wait(240)
    assert (park.folder / "live/evaluation.json").exists(), park.logs()
    return ledger.read(park.folder / "live/ledger.jsonl")


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedbuff", BUFFER),
        ("fedasync", "methods.fedasync.concurrency = 3"),
        ("fedavg", "round.close = { first = 2 }"),
        ("fedavg", "round.close = { deadline_s = 2.0 }"),
    ],
)
def test_a_run_over_real_brokers_is_repeated_to_the_bit(tmp_path: Path, method: str, more: str) -> None:
    what = experiment(tmp_path, method, rounds=12, devices=4, more=more)
    with processes(tmp_path, what) as park:
        assert park.cloud().wait(240) == 0, park.logs()
    lines = ledger.read(tmp_path / "live/ledger.jsonl")
    assert len(lines) == 12
    for _, _, departed, landed, received, trained in (row for line in lines for row in line.arrivals or ()):
        assert departed < received < trained < landed
    replayed(tmp_path / "live", tmp_path / "again", 2)
    if "close" in more:
        (copy,) = reprice([tmp_path / "live"], NetworkSettings("wifi"), tmp_path / "copies", lambda _: None)
        spent = [
            line.priced["bytes"] for line in ledger.read(copy / "ledger.jsonl") if line.priced and line.participants
        ]
        assert spent == [dict.fromkeys(LINKS, line.participants * MODEL) for line in lines if line.participants]


@pytest.mark.parametrize("close", ["{ deadline_s = 1.5 }", "{ first = 3 }", "{ first = 3, deadline_s = 30.0 }"])
def test_a_round_ends_without_a_device_that_stops_and_is_repeated_to_the_bit(tmp_path: Path, close: str) -> None:
    what = experiment(tmp_path, "fedavg", rounds=100_000, devices=4, more=f"round.close = {close}")

    def late(lines: list[ledger.Line]) -> list[bool]:
        return [3 in line.info.get("late", ()) for line in lines]

    with processes(tmp_path, what) as park:
        cloud = park.cloud()
        rounds(park, lambda lines: bool(lines) and not late(lines)[-1])
        park.devices[3].send_signal(signal.SIGSTOP)
        lines = rounds(park, lambda lines: late(lines)[-3:] == [True] * 3)
        assert lines[-1].participants == 3
        park.devices[3].send_signal(signal.SIGCONT)
        before = len(lines)
        rounds(park, lambda lines: not all(late(lines[before:] or lines)))
        ended(park, cloud)
    replayed(tmp_path / "live", tmp_path / "again")


def test_a_device_that_stops_is_lost_and_named_and_the_run_is_repeated_to_the_bit(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=100_000, devices=4, more=BUFFER)
    with processes(tmp_path, what, SHORT) as park:
        cloud = park.cloud()
        rounds(park, lambda lines: arrived(lines) == {0, 1, 2, 3})
        park.devices[3].send_signal(signal.SIGSTOP)
        lines = rounds(park, lambda lines: any("d3" in (line.measured or {})["failed"] for line in lines))
        before = len(lines)
        park.devices[3].send_signal(signal.SIGCONT)
        rounds(park, lambda lines: 3 in arrived(lines[before:]))
        park.devices[1].kill()  # its last will ends the visit
        rounds(park, lambda lines: any("d1" in (line.measured or {})["absent"] for line in lines[before:]))
        park.start_device(1)
        ended(park, cloud)
    replayed(tmp_path / "live", tmp_path / "again")


def test_an_edge_that_is_killed_and_a_cloud_that_is_killed_go_on(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedbuff", rounds=100_000, devices=4, more=BUFFER)
    with processes(tmp_path, what, SHORT) as park:
        cloud = park.cloud()
        rounds(park, lambda lines: len(lines) > 10)
        park.edges[1].kill()
        park.start_edge(1)
        before = len(rounds(park, lambda lines: len(lines) > 15))
        for _ in range(2):
            cloud.kill()
            cloud.wait()
            cloud = park.cloud("--resume")
            before = len(rounds(park, lambda lines, before=before: len(lines) > before + 5))  # type: ignore[misc]
        rounds(park, lambda lines: arrived(lines[before:]) == {0, 1, 2, 3})
        lines = ended(park, cloud)
    assert [line.round for line in lines] == list(range(1, len(lines) + 1))
    replayed(tmp_path / "live", tmp_path / "again")
