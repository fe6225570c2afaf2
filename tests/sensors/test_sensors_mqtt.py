"""MQTT topics with JSON, and Sparkplug B, against bytes made by hand and a real broker."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sensors_folder import sensing, times

from fedfloor.base.errors import SettingError
from fedfloor.data.files import buffer
from fedfloor.sensors.events import Missing, Refusal, Signal, Update
from fedfloor.sensors.sparkplug import NodeState, payload_type, rebirth
from parks import needs_mosquitto, until
from plant_sources import BEGIN, SparkplugNode, metric, open_broker, payload

# -- Sparkplug's bytes -------------------------------------------------------------------------------------------------

BORN = payload(
    5000, 0, metric(7, "bdSeq", datatype=8), metric(1.5, "Temperature", 1), metric(-3, "Offset", 2, datatype=3),
    metric(True, "Running", 3, datatype=11), metric("ok", "State", 4, datatype=12), metric(0.25, "Load", 5, datatype=9),
)  # fmt: skip


def taken(state: NodeState, kind: str, data: bytes, device: str = "") -> list[Any]:
    return list(state.take(kind, device, data))


def born(*wanted: str) -> NodeState:
    state = NodeState({*wanted})
    taken(state, "NBIRTH", BORN)
    return state


def test_a_birth_states_values_names_and_aliases() -> None:
    state = NodeState(set())
    values = {"Temperature": 1.5, "Offset": -3, "Running": True, "State": "ok", "Load": 0.25}
    assert taken(state, "NBIRTH", BORN) == [Update(5.0, values, initial=True)]
    assert (state.alive, state.lacking) == (True, False)
    assert taken(state, "NDATA", payload(6000, 1, metric(2.5, alias=1, ms=5900), metric(None, alias=5, ms=5900))) == [
        Update(5.9, {"Temperature": 2.5, "Load": None})
    ]
    assert not state.lacking


def test_the_fields_of_the_specification_by_hand() -> None:
    """An example byte by byte: field numbers and wire types of section 6.4 of the specification."""
    data = bytes.fromhex(
        "08 90 4e"  # 1: timestamp, varint 10000
        "12 13"  # 2: a metric of 19 bytes
        "0a 01 61"  # 1: name "a"
        "10 05"  # 2: alias 5
        "18 8f 4e"  # 3: timestamp 9999
        "20 0a"  # 4: datatype 10, Double
        "69 00 00 00 00 00 00 04 40"  # 13: double 2.5
        "18 ff 01"  # 3: seq 255
    )
    message = payload_type().FromString(data)
    assert (message.timestamp, message.seq, message.metrics[0].name, message.metrics[0].alias) == (10000, 255, "a", 5)
    assert (message.metrics[0].timestamp, message.metrics[0].double_value) == (9999, 2.5)
    assert payload(10000, 255, metric(2.5, "a", 5, 9999)) == data


def test_a_rebirth_is_requested_as_the_specification_has_it() -> None:
    command = payload_type().FromString(rebirth())
    assert [(m.name, m.datatype, m.boolean_value) for m in command.metrics] == [("Node Control/Rebirth", 11, True)]


def test_sequence_numbers_wrap_and_a_lost_one_asks_for_a_birth() -> None:
    state = born("Temperature")
    for seq in [*range(1, 256), 0, 1]:
        taken(state, "NDATA", payload(6000, seq, metric(2.5, alias=1)))
        assert not state.lacking
    taken(state, "NDATA", payload(6000, 3, metric(2.5, alias=1)))
    assert state.lacking
    assert [state.wants_birth(now) for now in (0.0, 1.0, 6.0)] == [True, False, True]
    taken(state, "NBIRTH", BORN)
    assert not state.wants_birth(100.0)


def test_an_unknown_alias_asks_for_a_birth_and_data_before_one_too() -> None:
    state = born("Temperature")
    assert [event.reason for event in taken(state, "NDATA", payload(6000, 1, metric(2.5, alias=99)))] == [
        "alias without a birth"
    ]
    assert state.lacking
    fresh = NodeState({"Temperature"})
    assert fresh.wants_birth(0.0)
    taken(fresh, "NDATA", payload(6000, 5, metric(2.5, alias=1)))
    assert fresh.wants_birth(6.0)


def test_the_death_of_a_connection_before_does_not_count() -> None:
    state = born("Temperature")
    assert taken(state, "NDEATH", payload(7000, None, metric(6, "bdSeq", datatype=8))) == []
    assert taken(state, "NDEATH", payload(7000, None, metric(7, "bdSeq", datatype=8))) == [Signal.LOST]
    assert not state.alive


def test_devices_of_a_node_have_births_aliases_and_deaths_of_their_own() -> None:
    state = born("drill#Speed", "Temperature")
    assert taken(state, "DBIRTH", payload(6000, 1, metric(9.0, "Speed", 1)), "drill") == [
        Update(6.0, {"drill#Speed": 9.0}, initial=True)
    ]
    assert taken(state, "DDATA", payload(7000, 2, metric(8.0, alias=1)), "drill") == [Update(7.0, {"drill#Speed": 8.0})]
    assert taken(state, "NDATA", payload(7000, 3, metric(8.0, alias=1))) == [Update(7.0, {"Temperature": 8.0})]
    assert taken(state, "DDEATH", payload(8000, 4), "drill") == [
        Update(8.0, {"drill#Speed": Missing("death of the device")})
    ]
    assert not state.lacking


def test_stored_values_are_marked_and_in_order() -> None:
    state = born("Temperature")
    metrics = [metric(float(t), alias=1, ms=1000 * t, historical=True) for t in (4, 2, 3)]
    got = taken(state, "NDATA", payload(9000, 1, *metrics, metric(9.0, alias=1, ms=9000)))
    assert [(update.time, update.stored) for update in got] == [(2, True), (3, True), (4, True), (9, False)]


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["NBIRTH", "NDATA", "DBIRTH", "DDATA", "NDEATH", "DDEATH", "NCMD"]))
def test_hostile_bytes_raise_an_error_or_nothing(data: bytes, kind: str) -> None:
    state = born()
    try:
        got = taken(state, kind, data)
    except (DecodeError, SettingError):
        return
    assert all(event is Signal.LOST or isinstance(event, Refusal) or math.isfinite(event.time) for event in got)


# -- with a broker -----------------------------------------------------------------------------------------------------

JSON = """
period_s = 0
[source]
kind = "mqtt"
broker = {{ host = "127.0.0.1", port = {port}, client = "press", max_kb = 4 }}
[tags]
temp = "plant/press#heat.inner"
load = "plant/load"
[labels]
topic = "plant/labels"
"""
SPARKPLUG = """
period_s = 1.0
wait_s = 0.5
[source]
kind = "sparkplug"
group = "plant"
node = "press"
broker = {{ host = "127.0.0.1", port = {port} }}
[tags]
{tags}
"""


def publisher(port: int) -> Any:
    from paho.mqtt import client as mqtt
    from paho.mqtt.enums import CallbackAPIVersion

    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


@needs_mosquitto
@pytest.mark.slow
def test_json_and_what_is_no_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    into = tmp_path / "b.sqlite"
    path = tmp_path / "s.toml"
    with open_broker(tmp_path) as port:
        path.write_text(JSON.format(port=port))
        client = publisher(port)

        def send(time_: object, value: object) -> None:
            client.publish(
                "plant/press", json.dumps({"time": time_, "heat": {"inner": value}}), qos=1
            ).wait_for_publish(10)

        with sensing(path, into) as end:
            assert until(lambda: into.exists(), 20)
            time.sleep(1)
            for t in range(10):
                send(BEGIN + t, t)
            for bad in (
                b"[" * 3000,
                b"{",
                b"\xff\xfe",
                b'{"time": 1e999, "heat": {"inner": 1}}',
                b"9" * 3000,
                b" " * 9000,
            ):
                client.publish("plant/press", bad, qos=1).wait_for_publish(10)
            client.publish("plant/press", b'{"heat": {"inner": 1}}', qos=1)  # without a time
            send(time.time() + 4000, 1)
            send(BEGIN + 10, "hot")
            send(BEGIN + 11, [1])
            send("2026-09-21T14:13:32Z", 12)
            client.publish("plant/labels", json.dumps({"since": BEGIN, "until": BEGIN + 3, "label": "ok"}), qos=1)
            client.publish("plant/labels", json.dumps({"since": BEGIN}), qos=1)
            assert until(lambda: {*range(13)} <= {*times(into)}, 20)
            assert until(lambda: buffer.read(into).label[:5] == ["ok"] * 4 + [""], 20)
            got = end()
        for t in range(13, 20):  # the broker keeps what comes while nothing listens
            send(BEGIN + t, t)
        with sensing(path, into):
            assert until(lambda: {*range(20)} <= {*times(into)}, 20)
    rows = buffer.read(into)
    wanted = [*range(10), math.nan, math.nan, *range(12, 20)]
    np.testing.assert_array_equal(rows.x[:20, 0], np.array(wanted, np.float32))
    assert got["missing"] == {"text": 1, "list": 1}
    assert got["silent"] == ["load"]
    assert got["left_out"] == {
        "no JSON": 3,
        "no JSON object": 1,
        "message above max_kb": 1,
        "no time": 2,
        "time in the future": 1,
        "no label with since, until and label": 1,
    }
    assert "max_kb" in caplog.text


@needs_mosquitto
@pytest.mark.slow
def test_an_hour_without_a_connection_loses_no_row_of_a_sparkplug_node(tmp_path: Path) -> None:
    into = tmp_path / "b.sqlite"
    path = tmp_path / "s.toml"
    with open_broker(tmp_path) as port:
        tags = "\n".join(f'sensor{i} = "Press/{i}"' for i in range(3))
        path.write_text(SPARKPLUG.format(port=port, tags=tags))
        node = SparkplugNode(port, 3)
        node.connect()

        def measure(first: int, end: int, pace_s: float = 0.0) -> None:
            for t in range(first, end):
                node.measure(1000 * (BEGIN + t), [t + i / 4 for i in range(3)])
                time.sleep(pace_s)

        with sensing(path, into):
            assert until(lambda: into.exists(), 20)
            time.sleep(1.5)
            measure(0, 50, 0.02)
            assert until(lambda: len(times(into)) >= 45, 20)
            node.cut()
            time.sleep(2)
            measure(50, 3650)  # an hour
            node.mend()
            measure(3650, 3700, 0.02)
            assert until(lambda: len(times(into)) >= 3699, 40), len(times(into))
    rows = buffer.read(into)
    seen = [t - BEGIN for t in rows.time.tolist()]
    assert seen == [*range(int(seen[0]), 3700)]
    assert seen[0] <= 1
    np.testing.assert_array_equal(rows.x[:, 0], np.array(seen, np.float32))
    assert not np.isnan(rows.x).any()
    assert len(set(rows.run.tolist())) == 1
    assert threading.active_count() < 50
