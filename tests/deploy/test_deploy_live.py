"""A deployed park, real processes and a real broker: the simulation's bits, and what goes on without whom."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedfloor.deploy import mqtt
from fedfloor.deploy.message import Message, encode
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.settings import Deadlines, Endpoint
from fedfloor.runs import ledger
from live_park import experiment, figures, simulated
from live_processes import broker, needs_broker, processes, rounds

pytestmark = [pytest.mark.slow, pytest.mark.live, needs_broker]
METHODS = ("fedavg", "fedsr", "fedgs")  # HFedMS: below, killed and resumed; HierFAVG, behind TLS: test_deploy_up.py


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
        park.start_edge(1)
        rounds(park, last(whole, len(lines)))

        cloud.send_signal(signal.SIGINT)
        assert cloud.wait(60) == 130


def test_the_clouds_broker_is_killed_and_hangs_and_no_bit_changes(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedsr", rounds=100_000, devices=4)
    with processes(tmp_path, what) as park:
        cloud = park.cloud()
        before = len(rounds(park, last(whole, 2)))
        for _ in range(3):
            park.cloud_broker.kill()
            park.cloud_broker.wait()
            park.cloud_broker = broker(tmp_path, park.cloud_port)
            before = len(rounds(park, last(whole, before + 2)))
        park.cloud_broker.send_signal(signal.SIGSTOP)
        time.sleep(3)
        stalled = len(ledger.read(tmp_path / "live/ledger.jsonl"))
        time.sleep(3)
        assert len(ledger.read(tmp_path / "live/ledger.jsonl")) == stalled  # the round waits
        park.cloud_broker.send_signal(signal.SIGCONT)
        rounds(park, last(whole, stalled + 2))
        cloud.send_signal(signal.SIGINT)
        assert cloud.wait(60) == 130, park.logs()
    got = ledger.read(tmp_path / "live/ledger.jsonl")
    _, wanted = simulated(what, tmp_path / "simulated", len(got))
    assert [figures(line) for line in got] == [figures(line) for line in wanted]


@pytest.mark.parametrize(
    ("method", "model", "killed"), [("hfedms", "logistic", ()), ("fedper", "mlp-2nn", (0, 3))], ids=["cloud", "devices"]
)
def test_a_cloud_that_is_killed_goes_on_as_if_it_had_not_been(
    tmp_path: Path, method: str, model: str, killed: tuple[int, ...]
) -> None:
    """HFedMS' devices keep memories; FedPer's heads lie on the devices alone, which are killed, too."""
    what = experiment(tmp_path, method, rounds=12, devices=4, model=model)
    _, wanted = simulated(what, tmp_path / "simulated")
    with processes(tmp_path, what) as park:
        cloud = park.cloud()
        rounds(park, lambda lines: len(lines) >= 4)
        cloud.kill()
        cloud.wait()
        for device in killed:
            park.devices[device].kill()
            park.devices[device].wait()
            park.start_device(device)
        assert park.cloud("--resume").wait(240) == 0, park.logs()
    if method == "hfedms":  # of FedPer's model the cloud has the shared part
        assert (tmp_path / "live/model.safetensors").read_bytes() == (
            tmp_path / "simulated/model.safetensors"
        ).read_bytes()
    assert [figures(line) for line in ledger.read(tmp_path / "live/ledger.jsonl")] == [figures(line) for line in wanted]


# messages, arrays in each
FLOOD = 4_000
TINY = 2_000


def test_a_device_that_floods_is_named_and_cut_off_and_the_others_train_on(tmp_path: Path) -> None:
    """Each message was decoded, arrays and all, in the thread that hears everybody: rounds took 20 times longer."""
    what = experiment(tmp_path, "fedavg", rounds=100_000)
    with processes(tmp_path, what, Deadlines(60.0, 60.0, 60.0, 120.0)) as park:
        cloud = park.cloud()
        before = rounds(park, lambda lines: len(lines) >= 20 and lines[-1].lost == 0)
        usual = np.median([line.wall_s for line in before[5:]])
        arrays = {f"a{i}": np.zeros(4, np.float32) for i in range(TINY)}
        said = encode(Message("hello", "d3", session=1, number=1, arrays=arrays))
        flooder = MqttConnection("flooder", Endpoint("127.0.0.1", park.port))
        flooder.start([], lambda *_: None, lambda: None)
        for _ in range(FLOOD):
            flooder.publish(mqtt.topic("trial", "status", "d3"), said)
        lines = rounds(park, last(lambda line: line.lost == 1, len(before)))
        lines = rounds(park, last(lambda line: line.lost == 1, len(lines) + 50))
        flooder.stop()
        cloud.send_signal(signal.SIGINT)
        assert cloud.wait(60) == 130
        during = [line.wall_s for line in lines[len(before) :]]
    assert {line.lost for line in lines[-50:]} == {1}  # the flooder's visit, and nobody else's
    refused = lines[-1].measured["refused"]  # type: ignore[index]
    assert all(refused[edge]["d3"]["flood"] >= 1 for edge in ("e0", "e1"))
    log = (tmp_path / "e0.log").read_text()
    assert "device d3 is cut off: it sent far more messages" in log
    assert log.count("d3") < 2_000  # and fills no disk
    assert np.median(during) < 3 * usual + 1  # the machine has a broker's work besides, and maybe others'
    assert max(during) < 20
