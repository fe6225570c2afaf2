"""Three of ten devices leave and three come back in every round, each time a new process: the simulation's bits.

Starting Python and PyTorch sixty times would take minutes: each device is forked from one process that has imported
both, and from there on is a process of its own, with its own connection, session and end.
"""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest
from test_deploy_faults import losing

from fedfloor.deploy import cloud
from fedfloor.deploy.settings import CloudSettings, read
from fedfloor.runs import ledger
from forking import nursery
from live_park import experiment, figures, simulated
from live_processes import Processes, needs_broker, processes
from parks import until

DEVICES = 10
ROUNDS = 20
AWAY = 3


def there(park: Processes) -> set[int]:
    """Return the devices that the edge last reported as connected."""
    said = re.findall(r"device d\d+ \((\d+)\) is (connected|gone)", (park.folder / "e0.log").read_text())
    return {int(k) for k, what in dict(said).items() if what == "connected"}


@pytest.mark.slow
@pytest.mark.live
@needs_broker
def test_devices_that_leave_and_join_in_every_round_cost_their_visits_and_no_bit(tmp_path: Path) -> None:
    what = experiment(tmp_path, "fedavg", rounds=ROUNDS, devices=DEVICES)
    what.write_text(what.read_text().replace("factories = 2", "factories = 1"))
    rng = random.Random(0)
    everyone = range(DEVICES)
    away: dict[int, list[int]] = {n: rng.sample(everyone, AWAY) for n in range(2, ROUNDS + 1)}
    with losing(lambda key: key.device in away.get(key.round, ())):
        _, wanted = simulated(what, tmp_path / "simulated")
    ends: list[int] = []
    with nursery(what) as forks, processes(tmp_path, what, fork=forks.device) as park:
        first = {k: one.pid for k, one in park.devices.items()}

        def change(line: ledger.Line) -> None:
            for k in away.get(line.round, ()):
                park.start_device(k)
            assert until(lambda: there(park) == set(everyone), 30), park.logs()
            gone = away.get(line.round + 1, ())
            for k, number in zip(gone, (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL), strict=False):
                park.devices[k].send_signal(number)  # one says goodbye, of two their last wills
                ends.append(park.devices[k].wait(10))
            assert until(lambda: there(park) == set(everyone) - set(gone), 30), park.logs()

        assert cloud.run(read(CloudSettings, tmp_path / "cloud.toml"), report=change) == "finished"
        assert all(one.pid != first[k] for k, one in park.devices.items())
    got = ledger.read(tmp_path / "live/ledger.jsonl")
    assert [line.lost for line in got] == [0] + [AWAY] * (ROUNDS - 1)
    assert [figures(line) for line in got] == [figures(line) for line in wanted]
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert sorted(ends) == [-signal.SIGKILL] * 2 * (ROUNDS - 1) + [0] * (ROUNDS - 1)
