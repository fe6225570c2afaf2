"""OPC UA subscriptions against a server of asyncua in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_sensors_folder import sensing, times

from fedfloor.base.errors import SettingError
from fedfloor.data.files import buffer
from fedfloor.sensors import sense
from fedfloor.sensors.settings import read
from parks import until
from plant_sources import BEGIN, Cable, free_port, opcua_server

pytest.importorskip("asyncua", reason="asyncua is not installed: pip install 'fedfloor[opcua]'")
pytestmark = pytest.mark.slow

SOURCE = """
period_s = 1.0
wait_s = 5.0  # this machine may be busy
[source]
kind = "opcua"
url = "opc.tcp://127.0.0.1:{port}"
publish_s = 0.2
sampling_s = 0.0
{tags}
"""


def source(folder: Path, port: int, nodes: int, more: str = "") -> Path:
    tags = "".join(f'\nsensor{i} = "ns=2;s=Press.{i}"' for i in range(nodes))
    path = folder / "source.toml"
    path.write_text(SOURCE.format(port=port, tags=f"[tags]{tags}{more}" if nodes else ""))
    return path


def test_variables_are_listed_and_those_that_are_not_there_are_named(tmp_path: Path) -> None:
    with opcua_server(3) as port:
        rows = sense.check(read(source(tmp_path, port, 0)), 20)
        assert [row["address"] for row in rows] == [f"ns=2;s=Press.{i}" for i in range(3)] + ["ns=2;s=Press.State"]
        assert [row["kind"] for row in rows] == ["number"] * 3 + ["text"]
        rows = sense.check(read(source(tmp_path, port, 2)), 20)
        assert [(row["sensor"], row["kind"]) for row in rows] == [("sensor0", "number"), ("sensor1", "number")]
        with pytest.raises(SettingError, match=r"'ns=2;s=Press\.3': cannot be read .*BadNodeIdUnknown.*--check"):
            sense.check(read(source(tmp_path, port, 4)), 20)
        with pytest.raises(SettingError, match="'Press' is no NodeId"):
            sense.check(read(source(tmp_path, port, 1, '\nodd = "Press"')), 20)


def test_a_hundred_sensors_each_second_in_a_hundred_mebibytes(tmp_path: Path) -> None:
    """The agent as a process of its own; labels are a text of the server that changes now and then."""
    into = tmp_path / "b.sqlite"
    seconds = 30
    labels = '\n[labels]\naddress = "ns=2;s=Press.State"'
    with opcua_server(100, begin=0) as port:
        words = [
            "park",
            "sense",
            str(source(tmp_path, port, 100, labels)),
            "--into",
            str(into),
            "--seconds",
            str(seconds),
        ]
        process = subprocess.Popen([sys.executable, "-m", "fedfloor", *words])
        assert until(lambda: len(times(into)) >= 15, 60)
        memory = re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        assert process.wait(60) == 0
    got = buffer.read(into)
    assert got.x.shape[1] == 100
    assert not np.isnan(got.x).any()
    assert {*got.label} <= {"ok", "worn"}
    assert int(memory[0]) / 1024 <= 100, f"{int(memory[0]) / 1024:.0f} MiB"


@pytest.mark.parametrize("kept", [True, False])
def test_an_hour_without_a_connection(tmp_path: Path, kept: bool) -> None:
    """What the server's history has is put in its place; without a history the pause is a gap."""
    into = tmp_path / "b.sqlite"
    pace_s = 0.005
    with opcua_server(2, pace_s=pace_s, kept=kept) as port:
        cable = Cable(port)
        with sensing(source(tmp_path, cable.port, 2), into):
            assert until(lambda: len(times(into)) >= 200, 60)
            cable.cut()
            assert until(lambda: False, 3) is False
            before = times(into)[-1]
            time.sleep(3600 * pace_s * 1.3)
            cable.mend()
            assert until(lambda: times(into)[-1] >= before + 4000, 90)
            if kept:
                assert until(lambda: len(np.unique(buffer.read(into).run)) == 1, 60)
    got = buffer.read(into)
    seen = [t - BEGIN for t in got.time.tolist()]
    if kept:
        assert seen == [*range(int(seen[0]), int(seen[-1]) + 1)]
        step = np.array(seen)
        np.testing.assert_allclose(got.x[:-1, 1], np.sin(step / 5 + 1)[:-1], atol=1e-6)
    else:
        assert len(np.unique(got.run)) == 2
        assert max(np.diff(seen)) > 2000


def test_what_was_measured_while_the_process_was_away_comes_from_the_history(tmp_path: Path) -> None:
    into = tmp_path / "b.sqlite"
    pace_s = 0.005
    with opcua_server(2, pace_s=pace_s, kept=True) as port:
        with sensing(source(tmp_path, port, 2), into):
            assert until(lambda: len(times(into)) >= 100, 60)
        before = times(into)[-1]
        time.sleep(1000 * pace_s)
        with sensing(source(tmp_path, port, 2), into):
            assert until(lambda: times(into)[-1] >= before + 1500, 90)
            assert until(lambda: len(np.unique(buffer.read(into).run)) == 1, 60)
    seen = times(into)
    assert seen == [*range(int(seen[0]), int(seen[-1]) + 1)]


def test_a_server_that_begins_again_without_a_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    into = tmp_path / "b.sqlite"
    port = free_port()
    path = source(tmp_path, port, 3)
    with sensing(path, into):  # before there is a server
        with opcua_server(3, pace_s=0.05, port=port):
            assert until(lambda: len(times(into)) >= 50, 60)
        with opcua_server(2, pace_s=0.05, port=port, step=1000):
            assert until(lambda: times(into)[-1] >= 1050, 90)
    got = buffer.read(into)
    assert "ns=2;s=Press.2 does not exist any more" in caplog.text
    assert np.isnan(got.x[-1]).tolist() == [False, False, True]
    assert not np.isnan(got.x[:50]).any()


BROKEN = """
import asyncio, sys
from datetime import UTC, datetime
from asyncua import Server, ua

async def serve(port):
    server = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}")
    index = await server.register_namespace("plant")
    press = await server.nodes.objects.add_object(index, "Press")
    node = await press.add_variable(ua.NodeId("Press.0", index), "S", 0.0)
    async with server:
        print("up", flush=True)
        step = 0
        while True:
            value = [1.5, float("nan"), 1e300, 7.0, None][step // 5 % 5]
            status = ua.StatusCode(ua.StatusCodes.BadSensorFailure if value is None else ua.StatusCodes.Good)
            data = ua.DataValue(ua.Variant(2.5 if value is None else value), status, datetime.now(UTC))
            await server.write_attribute_value(node.nodeid, data)
            step += 1
            await asyncio.sleep(0.1)

asyncio.run(serve(int(sys.argv[1])))
"""


def test_values_of_a_bad_status_and_no_finite_numbers_are_missing(tmp_path: Path) -> None:
    into = tmp_path / "b.sqlite"
    port = free_port()
    path = source(tmp_path, port, 1)
    path.write_text(path.read_text().replace("period_s = 1.0", "period_s = 0"))
    words = [sys.executable, "-c", BROKEN, str(port)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        with sensing(path, into) as end:
            assert until(lambda: len(times(into)) >= 60, 60)
            status = end()
    finally:
        server.kill()
        server.wait(20)
    values = buffer.read(into).x[:, 0]
    assert {*values[~np.isnan(values)].tolist()} == {1.5, 7.0}
    assert {*status["missing"]} == {"NaN", "beyond 32 bits", "status BadSensorFailure"}
    assert sum(status["missing"].values()) >= 20
