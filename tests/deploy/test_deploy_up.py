"""A whole park of real processes on one machine: it trains as its simulation does, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from commands import TINY, Command
from fedfloor import config
from fedfloor.base import outside
from fedfloor.base.errors import RunError
from fedfloor.deploy import broker, live, processes, provision
from fedfloor.deploy.processes import Crew, tail
from fedfloor.experiment import Experiment
from fedfloor.runs import ledger
from fedfloor.runs.parks import build_park
from live_park import figures
from parks import needs_mosquitto, until
from refusals import refused

EXPERIMENT = TINY + '[method]\nname = "hierfavg"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    yield tmp_path
    left = Crew(tmp_path / "live").left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def started(folder: Path, *words: str, devices: int = 4) -> subprocess.Popen[str]:
    line = [
        sys.executable,
        "-m",
        "fedfloor",
        "park",
        "live",
        "up",
        "tiny.toml",
        "--out",
        "live",
        "--devices",
        str(devices),
    ]
    line += words
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def comes_up(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the processes of a park are being started; fail with what was said if they are not."""
    up = until(lambda: process.poll() is not None or len(Crew.of(folder / "live").members) > 4, 180)
    if not up or process.poll() is not None:
        process.kill()
        logs = "\n".join(f"{one.name}: {tail(one)}" for one in sorted((folder / "live" / "logs").glob("*.log")))
        live.down(folder / "live")
        pytest.fail(f"no park came up: {process.communicate()[1]}\n{logs}")


@pytest.mark.slow
@pytest.mark.live
@needs_mosquitto
def test_a_park_trains_as_its_simulation_and_leaves_nothing_behind(folder: Path) -> None:
    first = processes.free(3)[0]
    process = started(folder, "--ports", str(first), "--stay", devices=8)
    _, told = process.communicate(timeout=900)
    assert process.returncode == 0, told
    assert "round 3" in told
    rows = live.status(folder / "live")
    assert [row["kind"] for row in rows].count("device") == 8
    assert {row["kind"] for row in rows if not row["alive"]} == {"cloud"}  # it has done its work
    assert live.listens(first)
    assert live.down(folder / "live") == 13  # 3 brokers, 2 edges, 8 devices
    assert sorted(path.name for path in (folder / "live").iterdir()) == ["logs", "run"]
    assert not [port for port in range(first, first + 3) if live.listens(port)]
    subprocess.run(
        [sys.executable, "-m", "fedfloor", "run", "tiny.toml", "--out", "simulated", "--ranks", "1", "--set",
         "engine.shortcuts=off", "--set", "park.devices=8"], cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    deployed, simulated = (folder / name / "model.safetensors" for name in ("live/run", "simulated"))
    assert deployed.read_bytes() == simulated.read_bytes()
    lines = (ledger.read(folder / name / "ledger.jsonl") for name in ("live/run", "simulated"))
    assert [figures(line) for line in next(lines)] == [figures(line) for line in next(lines)]


@pytest.mark.slow
@needs_mosquitto
def test_ctrl_c_ends_everything(folder: Path) -> None:
    process = started(folder)
    comes_up(folder, process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=180)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    assert not Crew(folder / "live").left()
    assert [path.name for path in (folder / "live").iterdir()] == ["logs"]


@pytest.mark.slow
@needs_mosquitto
def test_down_ends_a_park_whose_command_was_killed(folder: Path) -> None:
    process = started(folder)
    comes_up(folder, process)
    process.kill()
    process.communicate()
    with pytest.raises(RunError, match=r"a park runs in .* already: fedfloor park live down"):
        live.prepare(_experiment(folder), folder / "live")
    assert live.down(folder / "live") > 0
    assert not Crew(folder / "live").left()


@pytest.mark.slow
def test_a_process_that_dies_is_shown_with_its_last_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = folder / "mosquitto"
    broken.write_text("#!/bin/sh\necho 'Error: no such option' >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(live, "mosquitto", lambda: str(broken))
    trial = live.prepare(_experiment(folder), folder / "live", devices=4)
    with pytest.raises(RunError, match=r"(?s)broker-cloud died \(exit code 3\).*no such option"):
        live.up(trial, lambda text: None)
    live.down(trial.folder)


def test_a_park_of_this_machine_stands_as_the_experiment_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "mosquitto", str)
    trial = live.prepare(_experiment(folder), folder / "live", factories=2, devices=6)
    given = _experiment(folder, "park.devices=6")
    homes = [trial.park.factory[m].name for m in build_park(given).factory_of]
    assert [one.factory for one in trial.park.device] == homes
    assert (trial.place / "devices" / "device-5" / "device-device-5.toml").exists()
    assert stat.S_IMODE((trial.place / "authority" / "ca.key").stat().st_mode) == 0o600


def test_a_park_whose_devices_hold_too_little_is_refused_before_anything_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "mosquitto", str)
    with refused("work.batch_size"):
        live.prepare(_experiment(folder, "work.batch_size=5000"), folder / "live")
    assert not (folder / "live").exists()


def owned(folder: Path, devices: int) -> Experiment:
    """An experiment on data of one's own: so many devices in the factories 'north' and 'south'."""
    each = 10
    names = [f"press-{k}" for k in range(devices)]
    device = np.repeat(names, each)
    factory = np.repeat(["north" if k % 2 else "south" for k in range(devices)], each)
    x = np.random.default_rng(0).random((devices * each, 2))
    np.savez(folder / "own.npz", x=x, y=np.arange(len(x)) % 2, device=device, factory=factory)
    (folder / "own.toml").write_text('[data]\npath = "own.npz"\n[model]\nname = "logistic"\n[work]\nbatch_size = 4\n')
    return config.read(folder / "own.toml")


def test_a_park_has_the_datas_own_devices_and_factories(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "mosquitto", str)
    trial = live.prepare(owned(folder, 5), folder / "live")
    assert (len(trial.park.device), len(trial.park.factory)) == (5, 2)
    written = config.read(trial.park.experiment)
    assert build_park(written).factory_of.tolist() == build_park(owned(folder, 5)).factory_of.tolist()
    experiment = _experiment(folder)  # four devices in two factories
    assert len(live.prepare(experiment, folder / "other").park.device) == 4


def test_more_devices_than_a_machine_carries_have_to_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "mosquitto", str)
    many = owned(folder, live.MOST_DEVICES + 1)
    with refused("devices-of-live-park"):
        live.prepare(many, folder / "live")
    with refused("park.devices"):
        live.prepare(owned(folder, 5), folder / "live", devices=8)
    assert not (folder / "live").exists()
    assert len(live.prepare(owned(folder, 5), folder / "live", devices=4).park.device) == 4


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with refused("live-packages"):
        live.mosquitto()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("mosquitto version 2.0.10", "version-of-mosquitto"),
        ("mosquitto version 1.6.15 (build date x)", "version-of-mosquitto"),
        ("no such option", "version-of-mosquitto"),
        ("mosquitto version 2.0.11", None),
        ("mosquitto version 2.1.0", None),
    ],
)
def test_an_old_mosquitto_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: str, words: str | None
) -> None:
    program = tmp_path / "mosquitto"
    program.write_text(f"#!/bin/sh\necho '{told}'\nexit 3\n")  # so it exits
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path: str(program))
    (tmp_path / "mosquitto.conf").touch()
    (tmp_path / "ca.crt").touch()
    fault = [one for one in provision.faults(tmp_path) if str(program) in one]
    if words is None:
        assert live.mosquitto() == str(program)
        assert broker.main([str(program)]) == 0
        assert not fault
        return
    with refused(words):
        live.mosquitto()
    assert str(program) in fault[0]
    assert broker.main([str(program)]) == 2  # which keeps the unit from starting it
    assert str(program) in capsys.readouterr().err


def test_a_port_in_use_is_named_with_its_holder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "mosquitto", str)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with refused("port", RunError):
            live.prepare(_experiment(folder), folder / "live", first_port=port - 1 if port > 60000 else port)
    assert not (folder / "live").exists()


def test_free_ports_are_free_and_all_different() -> None:
    found = processes.free(20)
    assert len(set(found)) == 20
    for port in found:
        processes.need(port)


def test_words_that_cannot_be(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "mosquitto", str)
    command.refused(
        command("park", "live", "up", "tiny.toml", "--devices", "1"), "--devices = 1", "each of the 2 factories"
    )
    command.refused(command("park", "live", "up", "tiny.toml", "--factories", "0"), "--factories = 0")
    command.refused(command("park", "live", "up", "tiny.toml", "--ports", "70000"), "--ports = 70000")
    command.refused(command("park", "live", "status"), "no park runs in runs/live", "live up")
    (command.folder / "mine").mkdir()
    (command.folder / "mine" / "thesis").write_text("text")
    command.refused(command("park", "live", "up", "tiny.toml", "--out", "mine"), "is not empty")


def test_a_number_given_to_another_process_is_not_the_parks(tmp_path: Path) -> None:
    row = {"name": "broker", "kind": "broker", "pid": os.getpid(), "log": "log"}
    (tmp_path / "live.json").write_text(json.dumps([row]))
    assert not live.status(tmp_path)[0]["alive"]
    assert live.down(tmp_path) == 0  # and we are still there


def test_processes_find_code_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``run`` imports a method from the working folder; the processes of a trial start in folders of their own."""
    (tmp_path / "method_of_up.py").write_text("from fedfloor import FedAvg\nclass Mine(FedAvg):\n    ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(outside, "_LOADED", {})
    started: list[dict[str, str]] = []
    crew = SimpleNamespace(start=lambda *words: started.append(words[4]))
    service = SimpleNamespace(words=("fedfloor", "park"), env={"OMP_NUM_THREADS": "1"}, files=0)
    trial = live.TrialPark(tmp_path, None, "")  # type: ignore[arg-type]
    for _ in range(2):
        live._start(crew, trial, service, "edge", "edge", tmp_path)  # type: ignore[arg-type]
        outside.load("method_of_up:Mine", "method")
    assert "PYTHONPATH" not in started[0]
    assert str(tmp_path) in started[1]["PYTHONPATH"].split(os.pathsep)


def test_what_a_process_started_ends_with_it(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    script = (
        "import subprocess, sys; subprocess.Popen(['sleep', '600'], start_new_session=True); print('up', flush=True)"
    )
    one = crew.start("parent", "edge", [sys.executable, "-c", script], tmp_path, {})
    assert until(lambda: not crew.alive(one))
    assert len(crew.left()) == 1
    began = time.monotonic()
    crew.stop()
    assert time.monotonic() - began < 5
    assert not crew.left()


def _experiment(folder: Path, *changes: str) -> Experiment:
    return config.read(folder / "tiny.toml", changes)
