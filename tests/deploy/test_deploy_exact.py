"""Live devices with models that are sums: the simulation's bits, without PyTorch on a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.sizing import used
from fedfloor.deploy.settings import DataSource
from fedfloor.deploy.sums_worker import SumsWorker
from fedfloor.runs import ledger
from live_park import experiment, figures, live, simulated
from live_processes import needs_broker, processes

DEVICES = 4
MASKED = "method.travel = { kind = 'secure-sum', bits = 64, bound = 1e6, together = true }\n"
COLUMNS = "data.columns = { device = 'site', life = 'days', label = 'state', categories = { kind = 'one-hot' } }\n"
LIVES = "data.ended = 'failed'\n" + COLUMNS
ROWS = "data.columns = { device = 'site', label = 'state', ignore = ['kind'] }\n"
SPLIT = "data.split = { kind = 'random', test = 0.3 }\n"
STEPS = "data.task = { kind = 'survival', distribution = 'steps', points = 20 }\n"
CHART = "data.task = { kind = 'reconstruction', normal = 'running' }\n"
CASES = {
    "kaplanmeier": LIVES + STEPS,
    "aft": LIVES + "data.task = 'survival'\n",
    "cox": LIVES + STEPS,
    "hotelling": ROWS + CHART,
    "bayes": ROWS + "data.missing = 'mean'\n",
}


def table(folder: Path, holes: bool = False, rows: int = 160) -> Path:
    """Write a table of pumps, a third of which still run."""
    rng = np.random.default_rng(7)
    heat = rng.normal(60, 8, rows).round(1)
    kind = rng.integers(0, 2, rows)
    life = 900 * np.exp(-0.02 * (heat - 60) + 0.4 * kind) * rng.weibull(1.7, rows)
    ends = rng.uniform(300, 1500, rows)
    days = np.minimum(life, ends).round(1) + 1
    texts = np.where(holes & (rng.random(rows) < 0.1), "", heat.astype(str))
    lives = zip(rng.integers(0, DEVICES, rows), kind, texts, days, life <= ends, strict=True)
    lines = [
        f"s{site},PN{16 + one},{hot},{lived},{'failed' if over else 'running'}" for site, one, hot, lived, over in lives
    ]
    (folder / "pumps.csv").write_text("\n".join(["site,kind,heat,days,state", *lines]) + "\n")
    return folder / "pumps.csv"


def asked(folder: Path, method: str, more: str = "") -> Path:
    # a device with masks answers for 20 samples or more
    path = table(folder, holes="missing" in CASES[method], rows=400 if MASKED in more else 160)
    more = f"data.path = '{path}'\n{SPLIT}{CASES[method]}{more}"
    factories = 1 if MASKED in more else 2  # a crew is of three devices or more
    return experiment(folder, method, rounds=8, devices=DEVICES, model="linear", more=more, factories=factories)


@pytest.mark.parametrize("more", ["", MASKED], ids=["clear", "secure"])
@pytest.mark.parametrize("method", CASES)
def test_sums_in_numpy_are_those_of_the_simulation_to_the_bit(method: str, more: str, tmp_path: Path) -> None:
    what = asked(tmp_path, method, more)
    _, wanted = simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        got = park.run()
        workers = [agent._worker for agent in park.agents.values()]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    for worker in workers:
        assert isinstance(worker, SumsWorker)
        assert worker._other is None  # no request needed PyTorch
    one, other = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("live", "simulated"))
    assert one.get("factors") == other.get("factors")
    assert ("factors" in one) == (method in ("aft", "cox"))


def test_what_is_no_visit_of_sums_goes_to_the_usual_worker(tmp_path: Path) -> None:
    what = asked(tmp_path, "hotelling", more="methods.hotelling.limits = 'quantile'\n")  # asks for scores
    simulated(what, tmp_path / "simulated")
    with live(tmp_path, what) as park:
        park.run()
        assert all(agent._worker._other is not None for agent in park.agents.values())  # type: ignore[union-attr]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()


def without_torch(file: Path) -> subprocess.Popen[bytes]:
    """Start a device in an interpreter that cannot import PyTorch."""
    program = "import sys; sys.modules['torch'] = None; from fedfloor.cli import main; main()"
    with file.with_suffix(".log").open("ab") as said:
        return subprocess.Popen([sys.executable, "-c", program, "park", "device", file], stdout=said, stderr=said)


@pytest.mark.slow
@pytest.mark.live
@needs_broker
@pytest.mark.parametrize("more", ["", MASKED], ids=["clear", "secure"])
@pytest.mark.parametrize("method", ["kaplanmeier", "hotelling"])
def test_devices_that_cannot_import_pytorch_sum_up_within_100_mib(method: str, more: str, tmp_path: Path) -> None:
    what = asked(tmp_path, method, more)
    simulated(what, tmp_path / "simulated")
    table_of = tmp_path / "pumps.csv"
    lines = table_of.read_text().splitlines()

    def own(k: int) -> DataSource:
        path = tmp_path / f"site-{k}.csv"
        path.write_text("\n".join([lines[0], *(line for line in lines[1:] if line.startswith(f"s{k},"))]) + "\n")
        return DataSource("folder", path)

    with processes(tmp_path, what, data=own, fork=without_torch) as park:
        assert park.cloud().wait(240) == 0, park.logs()
        most = [used(process.pid) for process in park.devices.values()]
    assert all(one is not None and one[0] < 100 * 1.024**2 for one in most), most
    assert all(line.lost == 0 for line in ledger.read(tmp_path / "live/ledger.jsonl"))
