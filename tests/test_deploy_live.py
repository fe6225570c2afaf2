"""A deployed park, real processes and a real broker: the simulation's bits, and what goes on without whom."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fedfloor.deploy.settings import Deadlines
from fedfloor.runs import ledger
from live_park import experiment, figures, simulated
from live_processes import broker, needs_broker, processes, rounds

pytestmark = [pytest.mark.slow, pytest.mark.live, needs_broker]
METHODS = ("fedavg", "fedsr", "fedgs")  # HFedMS: below, killed and resumed; HierFAVG, over Flower: test_deploy_up.py


@pytest.mark.parametrize("method", METHODS)
def test_a_deployed_park_is_its_simulation_to_the_bit(tmp_path: Path, method: str) -> None:
    what = experiment(tmp_path, method, rounds=3, devices=4)
    _, wanted = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        assert park.cloud().wait(240) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    got = ledger.read(tmp_path / "live/ledger.jsonl")
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


def last(wanted: Callable[[ledger.Line], bool], after: int = 0) -> Callable[[list[ledger.Line]], bool]:
    return lambda lines: len(lines) > after and wanted(lines[-1])


def whole(line: ledger.Line) -> bool:
    return line.lost == 0


def test_a_run_goes_on_without_whoever_is_gone_and_with_whoever_comes_back(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=100_000)
    with processes(tmp_path, what, Deadlines(5.0, 60.0, 60.0, 120.0)) as park:
        cloud = park.cloud()
        before = len(rounds(park, last(whole)))

        park.devices[3].kill()  # its last will says so
        lines = rounds(park, last(lambda line: line.lost == 1, before))
        park.start_device(3)
        before = len(rounds(park, last(whole, len(lines))))

        park.devices[5].send_signal(signal.SIGSTOP)  # it hangs: the deadline says so
        lines = rounds(park, last(lambda line: line.lost == 1, before))
        park.devices[5].send_signal(signal.SIGCONT)
        before = len(rounds(park, last(whole, len(lines))))

        park.broker.terminate()
        park.broker.wait()
        park.broker = broker(tmp_path, park.port)
        before = len(rounds(park, last(whole, before + 2)))

        park.edges[1].kill()
        lines = rounds(park, last(lambda line: line.measured["absent"] == ["e1"], before))  # type: ignore[index]
        assert lines[-1].lost == 4
        (tmp_path / "e1.sock").unlink(missing_ok=True)
        park.start_edge(1)
        rounds(park, last(whole, len(lines)))

        cloud.send_signal(signal.SIGINT)
        assert cloud.wait(60) == 130


def test_a_cloud_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    what = experiment(tmp_path, "hfedms", rounds=12, devices=4)  # its devices keep memories
    _, wanted = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        cloud = park.cloud()
        rounds(park, lambda lines: len(lines) >= 4)
        cloud.kill()
        cloud.wait()
        assert park.cloud("--resume").wait(240) == 0, park.logs()
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in ledger.read(tmp_path / "live/ledger.jsonl")] == [figures(line) for line in wanted]
