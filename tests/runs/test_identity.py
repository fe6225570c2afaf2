"""Identical to the bit: any number of ranks, however they were started, killed and resumed, write the same files."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import warm
from commands import lines
from fedfloor import config
from fedfloor.experiment import Experiment
from fedfloor.methods.contract import State
from fedfloor.park.park import Park
from fedfloor.runs import checkpoint, launch
from fedfloor.runs.checkpoint import Checkpoint
from fedfloor.runs.orders import Limits, Orders

SUPPORT = Path(__file__).parents[1] / "support"
METHODS = ("fedavg", "fedsr", "hierfavg", "ring", "centralized")
SMALL = """
rounds = {rounds}
data = {{ samples_per_device = 24 }}
park = {{ devices = {devices}, factories = 3, assignment = "random" }}
model.name = "{model}"
method.name = "{method}"
work = {{ batch_size = 10, momentum = 0.5, lr = 0.05 }}
methods.fedsr.fraction = 0.8
methods.hierfavg = {{ edge_rounds = 2, fraction = 0.8 }}
methods.fedavg.work.epochs = 2
faults.visit = {lost}
"""


def small(
    folder: Path, method: str, lost: float = 0.0, rounds: int = 2, devices: int = 9, model: str = "mlp-2nn"
) -> Path:
    path = folder / "small.toml"
    path.write_text(SMALL.format(method=method, lost=lost, rounds=rounds, devices=devices, model=model))
    return path


def figures(folder: Path) -> tuple[list[dict[str, object]], str]:
    """A run's ledger but for wall time, and the SHA-256 of its model and of what it comes to."""
    both = (folder / "model.safetensors").read_bytes() + (folder / "evaluation.json").read_bytes()
    return lines(folder), hashlib.sha256(both).hexdigest()


def on_ranks(
    what: Experiment, out: Path, counts: tuple[int, ...], last: int | None = None, park: Park | None = None
) -> list[object]:
    park = park or launch.build_park(what)
    for ranks in counts:
        launch.start(what, Orders(out / f"{ranks}", limits=Limits(last)), ranks, lambda line: None, park)
    return [figures(out / f"{ranks}") for ranks in counts]


# -- ranks -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_every_method_is_the_same_with_one_two_and_three_ranks(tmp_path: Path, method: str, lost: float) -> None:
    one, *others = on_ranks(config.read(small(tmp_path, method, lost)), tmp_path, (1, 2, 3))
    assert others == [one] * 2
    assert len(lines(tmp_path / "1")) == 2
    assert lost == 0 or method == "centralized" or sum(line["lost"] for line in lines(tmp_path / "1")) > 0


@pytest.mark.slow
def test_ranks_in_fresh_interpreters_are_the_same_as_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = config.read(small(tmp_path, "hierfavg", 0.1))
    assert launch.single_threaded()
    copies = on_ranks(what, tmp_path / "copies", (2,))
    monkeypatch.setattr(launch, "single_threaded", lambda: False)
    assert on_ranks(what, tmp_path / "fresh", (2,)) == copies


@pytest.fixture(scope="module")
def fedsr_mnist(data_root: Path) -> tuple[Experiment, Park]:
    """The real experiment and its park, parsed once; two laps of five, the second of which begins with what came."""
    what = config.read(Path(__file__).parents[2] / "experiments" / "fedsr-mnist.toml", ["methods.fedsr.laps=2"])
    what = replace(what, data=replace(what.data, root=str(data_root)))
    return what, launch.build_park(what)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_fedsr_mnist_is_the_same_with_one_two_and_three_ranks(
    tmp_path: Path, fedsr_mnist: tuple[Experiment, Park], lost: float
) -> None:
    what = replace(fedsr_mnist[0], faults=replace(fedsr_mnist[0].faults, visit=lost))
    one, *others = on_ranks(what, tmp_path, (1, 2, 3), last=2, park=fedsr_mnist[1])
    assert others == [one] * 2
    rounds = lines(tmp_path / "1")
    assert len(rounds) == 2
    assert (sum(row["lost"] for row in rounds) > 0) == (lost > 0)  # of 80 visits


# -- processes that are started, interrupted and killed ----------------------------------------------------------------

# The same command, but that checkpoints come as often as the first argument says: kills then fall before, between and
# amid them. (In a user's run they come every few seconds; results do not depend on it, which is what is tested.)
OFTEN = (
    "import sys; from fedfloor.runs import loop; loop.CHECKPOINT_S = float(sys.argv.pop(1)); "
    "from fedfloor.cli import main; main()"
)


def begin(*words: str | Path, log: Path) -> subprocess.Popen[bytes]:
    """Start an interpreter in a process group of its own, with this folder's modules at hand."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, "1"), "PYTHONPATH": str(SUPPORT)}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *map(str, words)], env=environment, stdout=file, stderr=file, start_new_session=True
        )


def ended(process: subprocess.Popen[bytes] | warm.Started, log: Path, code: int = 0) -> None:
    try:
        got = process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert got == code, log.read_text()


def written(out: Path) -> int:
    ledger = out / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def until(process: subprocess.Popen[bytes] | warm.Started, out: Path, rounds: int, log: Path) -> None:
    """Wait until the ledger has so many lines."""
    limit = time.monotonic() + 60
    while written(out) < rounds:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.002)


def killed(process: subprocess.Popen[bytes] | warm.Started) -> None:
    """Kill the whole group, and wait until nobody of it is left who could hold the folder's lock."""
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.005)


@pytest.mark.slow
def test_a_run_killed_ten_times_is_as_if_nothing_had_happened(tmp_path: Path) -> None:
    # Devices that remember, lost visits, two ranks; some lives end before the first round, some amid a checkpoint.
    toml = small(tmp_path, "floor:Rememberer", 0.1, rounds=100, devices=5, model="logistic")
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    log = tmp_path / "log"
    ended(begin("-m", "fedfloor", "run", toml, "--ranks", "2", "--out", whole, log=log), log)
    chance = random.Random(7)
    for life in range(11):
        resume = ["--resume"] if (out / "experiment.toml").exists() else []
        pause = ("0", "0", "0.15")[life % 3]  # after the last kind of life the ledger is ahead of the checkpoint
        before = written(out)
        words = ("run", str(toml), "--ranks", "2", "--out", str(out), *resume)
        process: subprocess.Popen[bytes] | warm.Started
        if life in (0, 5):  # killed while it starts, which takes a while
            log = tmp_path / "log"
            process = begin("-c", OFTEN, pause, *words, log=log)
        else:
            process = warm.begin(words, SUPPORT, tmp_path / "warm", float(pause))
            log = process.err
        if life == 10:
            ended(process, log)
            break
        if life in (0, 5):
            time.sleep(chance.uniform(0, 1.5))
        else:
            until(process, out, before + chance.randint(1, 4), log)
            time.sleep(chance.uniform(0, 0.1))
        assert process.poll() is None, log.read_text()
        killed(process)
    assert figures(out) == figures(whole)
    assert len(lines(out)) == 100
    for place in ("memory", "checkpoint"):
        assert len(list((out / place).iterdir())) <= 2 * 5 + 10  # nothing but what is needed, and what a kill cut short


@pytest.mark.slow
def test_torchrun_writes_the_same_files(tmp_path: Path) -> None:
    toml = small(tmp_path, "hierfavg", 0.1)
    log = tmp_path / "log"
    (alone,) = on_ranks(config.read(toml), tmp_path, (1,))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "fedfloor")
    ended(begin(*torchrun, "run", toml, "--out", tmp_path / "out", log=log), log)
    assert figures(tmp_path / "out") == alone


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_finishes_the_line_and_the_run_can_go_on(tmp_path: Path, ranks: int) -> None:
    toml = small(tmp_path, "fedsr", 0.1, rounds=20)
    out = tmp_path / "out"
    log = tmp_path / "log"
    command = ("-m", "fedfloor", "run", toml, "--ranks", str(ranks), "--out", out)
    process = begin(*command, log=log)
    until(process, out, 2, log)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody
    ended(process, log, code=130)
    done = written(out)
    assert 2 <= done < 20
    assert (out / "ledger.jsonl").read_bytes().endswith(b"\n")
    latest = checkpoint.latest(out / "checkpoint")
    assert latest is not None
    assert latest.round == done
    assert f"stopped after round {done}" in log.read_text()
    ended(begin(*command, "--resume", log=log), log)
    (whole,) = on_ranks(config.read(toml), tmp_path / "whole", (3 - ranks,))
    assert figures(out) == whole


# -- checkpoints -------------------------------------------------------------------------------------------------------


def point(number: int, memory: dict[int, str]) -> Checkpoint:
    state = State({"w": torch.full((2,), float(number))}, {"n": number})
    return Checkpoint(round=number, tick=2 * number, state=state, memory=memory)


def test_the_last_two_checkpoints_are_kept_and_the_latest_is_loaded(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        checkpoint.save_to(tmp_path, point(number, {3: f"digest {number}"}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000002", "round-00000010"]
    assert checkpoint.memories(tmp_path) == {"digest 2", "digest 10"}
    latest = checkpoint.latest(tmp_path)
    assert latest is not None
    assert (latest.round, latest.tick, latest.memory, latest.state.notes) == (10, 20, {3: "digest 10"}, {"n": 10})
    assert latest.state.packet["w"].tolist() == [10, 10]


def test_a_kill_while_an_old_checkpoint_is_deleted_does_no_harm(tmp_path: Path) -> None:
    # What is left of it is older than the two that are kept: nobody may read it, and the next save clears it away.
    for number in (2, 3):
        checkpoint.save_to(tmp_path, point(number, {3: f"digest {number}"}))
    (tmp_path / "round-00000001").mkdir()
    checkpoint.save_to(tmp_path, point(3, {}))  # as at the end of a run whose last round has its checkpoint
    assert checkpoint.memories(tmp_path) == {"digest 2", "digest 3"}
