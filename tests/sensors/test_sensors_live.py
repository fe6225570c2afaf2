"""Two devices of a real park train on what an OPC UA server and a Sparkplug node report; all of them are processes."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_sensors_folder import times
from test_sensors_opcua import SOURCE as OPCUA

from fedfloor.data.files import buffer
from fedfloor.deploy.settings import DataSource
from live_park import experiment
from live_processes import needs_broker, processes, rounds
from parks import until
from plant_sources import SparkplugNode, opcua_server, open_broker

SENSORS = 100
WINDOW = 12
LENGTH = 8
STEP = 4
ROWS = (WINDOW - 1) * STEP + LENGTH
LEARN = f"""
data.path = '{{table}}'
data.window = {{{{ length = {LENGTH}, step = {STEP} }}}}
data.stream = {{{{ kind = 'fifo', window = {WINDOW} }}}}
data.missing = 'previous'
"""
SPARKPLUG = """
period_s = 1.0
[source]
kind = "sparkplug"
group = "plant"
node = "press"
broker = {{ host = "127.0.0.1", port = {port} }}
{tags}
[labels]
file = "labels.csv"
"""


def table(path: Path) -> None:
    """What the cloud has of both machines: the sensors' names, the classes, and test samples."""
    names = [f"sensor{i}" for i in range(SENSORS)]
    rows = [
        f"d{k},{t},{','.join(f'{math.sin(t / 5 + i):.4f}' for i in range(SENSORS))},{('ok', 'worn')[t // 20 % 2]}"
        for k in (0, 1)
        for t in range(200)
    ]
    path.write_text("\n".join([f"device,time,{','.join(names)},label", *rows]) + "\n")


@pytest.mark.slow
@pytest.mark.live
@needs_broker
def test_the_first_round_comes_within_two_minutes_of_full_windows(tmp_path: Path) -> None:
    table(tmp_path / "all.csv")
    what = experiment(tmp_path, "fedavg", rounds=3, devices=2, more=LEARN.format(table=tmp_path / "all.csv"))
    into = [tmp_path / f"{k}.sqlite" for k in (0, 1)]
    now = int(time.time()) - 60
    spans = "".join(f"{now + s},{now + s + 19.5},{('ok', 'worn')[s // 20 % 2]}\n" for s in range(0, 1800, 20))
    (tmp_path / "labels.csv").write_text("since,until,label\n" + spans)
    agents: list[subprocess.Popen[bytes]] = []
    over = threading.Event()
    with opcua_server(SENSORS, begin=0) as opcua, open_broker(tmp_path) as port:
        node = SparkplugNode(port, SENSORS)
        node.connect()

        def measure() -> None:
            while not over.wait(1):
                second = int(time.time())
                node.measure(1000 * second, [math.sin(second / 5 + i) for i in range(SENSORS)])

        threading.Thread(target=measure, daemon=True).start()
        tags = ["[tags]", *(f'sensor{i} = "ns=2;s=Press.{i}"' for i in range(SENSORS))]
        label = '\n[labels]\naddress = "ns=2;s=Press.State"\n'
        (tmp_path / "0.toml").write_text(OPCUA.format(port=opcua, tags="\n".join(tags) + label))
        tags = ["[tags]", *(f'sensor{i} = "Press/{i}"' for i in range(SENSORS))]
        (tmp_path / "1.toml").write_text(SPARKPLUG.format(port=port, tags="\n".join(tags)))
        try:
            for k in (0, 1):
                words = ["park", "sense", str(tmp_path / f"{k}.toml"), "--into", str(into[k])]
                with (tmp_path / f"sense-{k}.log").open("wb") as log:
                    agents.append(subprocess.Popen([sys.executable, "-m", "fedfloor", *words], stdout=log, stderr=log))
            with processes(tmp_path, what, data=lambda k: DataSource("folder", into[k])) as park:
                assert until(lambda: min(len(times(path)) for path in into) >= ROWS + 5, 240), park.logs()
                full = time.monotonic()
                park.cloud()
                rounds(park, lambda lines: len(lines) >= 1, 120)
                first_s = time.monotonic() - full
                lines = rounds(park, lambda lines: len(lines) >= 3, 120)
            peak = [
                int(re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{agent.pid}/status").read_text())[0]) / 1024
                for agent in agents
            ]
        finally:
            over.set()
            for agent in agents:
                agent.terminate()
                assert agent.wait(30) == 0
    print(f"first round after {first_s:.1f} s; sensing takes {peak[0]:.0f} and {peak[1]:.0f} MiB")
    assert first_s <= 120
    assert max(peak) <= 100
    assert [line.lost for line in lines] == [0, 0, 0]
    for path in into:
        got = buffer.read(path)
        assert len(set(got.run.tolist())) == 1
        assert {*got.label} <= {"ok", "worn", ""}
