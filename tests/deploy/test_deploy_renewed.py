"""New samples of devices whose updates are summed: they are used once enough devices of a sum have some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from test_deploy_data import told

from fedfloor.deploy.answered import GROWN
from fedfloor.deploy.settings import DataSource
from fedfloor.runs import ledger
from live_park import Live, experiment, live, simulated
from live_processes import Processes, needs_broker, processes

FIRST = 30
ROUNDS = 3
SECURE = 'method.travel = "secure-sum"\n'
ACROSS = 'method.travel = { kind = "secure-sum", across = true }\n'
KINDS = {SECURE: (4, 1), ACROSS: (4, 4)}  # devices and factories


def source(root: Path) -> Callable[[int], DataSource]:
    return lambda k: DataSource("folder", root / f"{k}.npz")


def fill(root: Path, held: Mapping[int, int], first: int = 0) -> None:
    """Let devices hold so many samples from now on, from a first one on; those of all are in one file, too."""
    rng = np.random.default_rng(0)
    classes = np.array(["good", "bad"])
    x = rng.normal(5, 3, (len(held), 400, 3)).astype(np.float32)
    y = (x.sum(axis=2) > 15).astype(np.int64)
    for k, n in held.items():
        np.savez(root / f"{k}.npz", x=x[k, first : first + n], y=y[k, first : first + n], classes=classes)
    parts = [(x[k, first : first + n], y[k, first : first + n], np.full(n, k)) for k, n in held.items()]
    seen = [np.concatenate(column) for column in zip(*parts, strict=True)]
    owner = np.arange(len(held)).repeat(9)
    tests = {"x_test": x[:, -9:].reshape(-1, 3), "y_test": y[:, -9:].ravel(), "device_test": owner}
    np.savez(root / "all.npz", x=seen[0], y=seen[1], device=seen[2], classes=classes, **tests)


def park_of(folder: Path, more: str = SECURE, seed: int = 0) -> Path:
    devices, factories = KINDS[more]
    if not (folder / "all.npz").exists():
        fill(folder, dict.fromkeys(range(devices), FIRST))
    own = f"data.path = '{folder}/all.npz'\ndata.normalise = 'standard'\ndeploy.norm_limit = false\n"
    own += f"seed = {seed}\n"
    return experiment(folder, "fedavg", rounds=ROUNDS, devices=devices, factories=factories, more=own + more)


def same(folder: Path, name: str, other: str) -> bool:
    """Return whether two runs made the same model, to the bit."""
    one, two = ((folder / out / "model.safetensors").read_bytes() for out in (name, other))
    return one == two


@pytest.mark.live
@pytest.mark.parametrize("more", [SECURE, ACROSS])
@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_new_samples_of_one_or_two_devices_wait_for_those_of_others(new: int, more: str, tmp_path: Path) -> None:
    what = park_of(tmp_path, more)
    devices = KINDS[more][0]
    with live(tmp_path, what, data=source(tmp_path)) as park:
        before = park.run("first")
        used = {k: FIRST + GROWN * (k < new) for k in range(devices)}
        fill(tmp_path, used)
        after = park.run("second")
        held = [int(park.agents[k].own_park().holdings[k]) for k in range(devices)]
    assert [line.lost for line in (*before, *after)] == [0] * 2 * ROUNDS
    if new < 3:
        assert held == [FIRST] * devices
        assert same(tmp_path, "first", "second")
        return
    assert held == [*used.values()]
    _, wanted = simulated(what, tmp_path / "simulated")
    assert [told(line) for line in after] == [told(line) for line in wanted]
    assert same(tmp_path, "second", "simulated")


@pytest.mark.live
def test_samples_that_wait_are_used_with_those_of_the_next_devices(tmp_path: Path) -> None:
    what = park_of(tmp_path)

    def runs(park: Live, held: Mapping[int, int], out: str) -> list[int]:
        fill(tmp_path, held)
        assert [line.lost for line in park.run(out)] == [0] * ROUNDS
        return [int(park.agents[k].own_park().holdings[k]) for k in range(4)]

    with live(tmp_path, what, data=source(tmp_path)) as park:
        assert runs(park, dict.fromkeys(range(4), 30), "a") == [30] * 4
        assert runs(park, {0: 50, 1: 30, 2: 30, 3: 30}, "b") == [30] * 4
        assert runs(park, {0: 60, 1: 60, 2: 30, 3: 30}, "c") == [30] * 4
    with live(tmp_path, what, data=source(tmp_path)) as park:  # devices start again
        assert runs(park, {0: 60, 1: 60, 2: 30, 3: 60}, "d") == [60, 60, 30, 60]
        assert runs(park, {0: 60, 1: 60, 2: 90, 3: 60}, "e") == [60, 60, 30, 60]


@pytest.mark.live
def test_a_device_whose_former_samples_are_gone_stays_away_and_the_others_go_on(tmp_path: Path) -> None:
    what = park_of(tmp_path)
    with live(tmp_path, what, data=source(tmp_path)) as park:
        park.run("first")
    others = {k: (tmp_path / f"{k}.npz").read_bytes() for k in (1, 2, 3)}
    fill(tmp_path, dict.fromkeys(range(4), FIRST), first=FIRST)
    for k, content in others.items():
        (tmp_path / f"{k}.npz").write_bytes(content)
    with live(tmp_path, park_of(tmp_path, seed=1), data=source(tmp_path)) as park:
        lines = park.run("second")
        fill(tmp_path, dict.fromkeys(range(4), FIRST), first=2 * FIRST)
        after = park.run("third")
    assert [line.lost for line in lines] == [1] * ROUNDS
    for line in lines:
        assert "of its devices only 0 has other samples" in (line.measured or {})["failed"]["d0"]
    assert [line.lost for line in after] == [0] * ROUNDS


@pytest.mark.live
@needs_broker
@pytest.mark.parametrize("new", [1, 4])
def test_processes_go_on_with_former_samples_or_with_new_ones(new: int, tmp_path: Path) -> None:
    what = park_of(tmp_path)

    def run(park: Processes, out: str) -> list[ledger.Line]:
        file = tmp_path / "cloud.toml"
        file.write_text(file.read_text().replace(str(tmp_path / "live"), str(tmp_path / out)))
        assert park.cloud().wait(180) == 0, park.logs()
        file.write_text(file.read_text().replace(str(tmp_path / out), str(tmp_path / "live")))
        return ledger.read(tmp_path / out / "ledger.jsonl")

    with processes(tmp_path, what, data=source(tmp_path)) as park:
        before = run(park, "first")
        fill(tmp_path, {k: FIRST + GROWN * (k < new) for k in range(4)})
        after = run(park, "second")
        logs = park.logs()
    assert [line.lost for line in (*before, *after)] == [0] * 2 * ROUNDS
    assert ("its new samples wait until 3 devices of its sums have new ones" in logs) == (new == 1)
    simulated(what, tmp_path / "simulated")
    assert same(tmp_path, "second", "first") == (new == 1)
    assert same(tmp_path, "second", "simulated") == (new == 4)
