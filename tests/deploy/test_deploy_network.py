"""A park on a bad network, 10 % of the packets lost and each 200 ms late: slower, and the simulation's bits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bad_network import ADDRESSES, bad_line, needs_lines, run, spoiling
from fedfloor.deploy.settings import Deadlines
from fedfloor.runs import ledger
from live_park import figures, simulated
from live_processes import needs_broker, processes
from own_data import picture

WHAT = """
name = "live"
rounds = 2
data.path = "data"
park = { factories = 2, assignment = [0, 0, 1, 1] }
model.name = "logistic"
method.name = "hierfavg"
methods.hierfavg.edge_rounds = 2
work = { batch_size = 5, lr = 0.05 }
engine.shortcuts = "off"
"""


def pictures(folder: Path) -> Path:
    """Four devices' pictures; a model of 2 · 3,601 numbers, 20 packets."""
    for k in range(4):
        for c, label in enumerate(("bad", "good")):
            for i in range(8):
                picture(folder / "data" / f"device-{k}" / label / f"{i}.png", 50 * k + 100 * c + i, (60, 60))
    (folder / "experiment.toml").write_text(WHAT)
    return folder / "experiment.toml"


@needs_lines
def test_netem_is_asked_for_as_tc_wants_it() -> None:
    """Where the kernel has no netem (CONFIG_NET_SCH_NETEM), tc has understood the words and the kernel says so."""
    name = f"ff{os.getpid()}-tc"
    assert run("ip", "netns", "add", name)
    try:
        told = subprocess.run(spoiling(name, "lo", 0.1, 0.2), capture_output=True, text=True)
        shown = subprocess.run(["tc", "-n", name, "qdisc", "show", "dev", "lo"], capture_output=True, text=True).stdout
    finally:
        run("ip", "netns", "del", name)
    if told.returncode:
        assert "qdisc kind is unknown" in told.stderr, told.stderr
    else:
        assert "netem" in shown
        assert "delay 200" in shown
        assert "loss 10%" in shown


@pytest.mark.slow
@pytest.mark.live
@needs_broker
@needs_lines
def test_lost_and_late_packets_cost_time_and_no_bit(tmp_path: Path) -> None:
    what = pictures(tmp_path)
    _, wanted = simulated(what, tmp_path / "simulated")
    with bad_line(loss=0.1, delay_s=0.2) as line:
        deadlines = Deadlines(visit_s=120, round_s=600)
        with processes(tmp_path, what, deadlines, host=ADDRESSES[0], hall=line.at[0], floor=line.at[1]) as park:
            assert park.cloud().wait(300) == 0, park.logs()
    got = ledger.read(tmp_path / "live/ledger.jsonl")
    assert (tmp_path / "live/model.safetensors").read_bytes() == (tmp_path / "simulated/model.safetensors").read_bytes()
    assert [figures(one) for one in got] == [figures(one) for one in wanted]
    assert line.carried > 300  # the models went over the line
    assert line.by == "netem" or 0.05 < line.lost / (line.carried + line.lost) < 0.15
