"""The files that processes are started with, and how long they wait for a broker."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fedfloor.base.errors import SettingError
from fedfloor.deploy import mqtt
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.settings import (
    CloudSettings,
    DataSource,
    Deadlines,
    DeviceSettings,
    EdgeSettings,
    Endpoint,
    Named,
    Tls,
    read,
    to_toml,
)
from parks import free_port
from refusals import refused

EDGE = EdgeSettings(
    "trial", "north", 0, Endpoint("10.0.0.1", 8883), Path("/e.toml"),
    Path("/state"), (Named("a", 0), Named("b", 1)), (Named("c", 3, "south"),),
    Tls(Path("/ca"), Path("/crt"), Path("/key")),
    Deadlines(visit_s=5.0), cloud=Endpoint("10.0.0.9", 8883),
)  # fmt: skip


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text(to_toml(EDGE))
    assert read(EdgeSettings, tmp_path / "edge.toml") == EDGE


def test_paths_begin_in_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "edge.toml").write_text(to_toml(replace(EDGE, experiment=Path("e.toml"))))
    assert read(EdgeSettings, tmp_path / "edge.toml").experiment == tmp_path / "e.toml"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ('name = "north"', "", "name is missing"),
        ("factory = 0", 'factory = "0"', "must be a whole number"),
        ("factory = 0", "factory = -1", "must be a number of at least 0"),
        ("factory = 0", "factorys = 0", "Did you mean 'factory'"),
        ('name = "north"', 'name = "north/+"', "must be 1 to 64 letters"),
        ("port = 8883", "port = 88830", "a broker's port = 88830: must be from 1 to 65535"),
        ("device = 1", "device = 0", "is given twice"),
        ("visit_s = 5.0", "visit_s = 0", "deadlines.visit_s = 0.0: must be a number above 0"),
        ("[tls]", "[tls", "Expected"),
    ],
)
def test_what_cannot_be_is_refused_by_file_and_key(tmp_path: Path, old: str, new: str, wanted: str) -> None:
    text = to_toml(EDGE)
    assert old in text
    (tmp_path / "edge.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(SettingError, match=wanted) as error:
        read(EdgeSettings, tmp_path / "edge.toml")
    assert str(tmp_path / "edge.toml") in str(error.value)


def test_data_come_from_one_of_three_places() -> None:
    with refused("data.kind"):
        DataSource("camera")
    with refused("data.path"):
        DataSource("folder")


def test_a_cloud_needs_a_broker_unless_flower_carries_its_messages(tmp_path: Path) -> None:
    text = 'park = "p"\nexperiment = "e"\nout = "o"\ntransport = "{}"\n[[edges]]\nname = "n"\nfactory = 0\n'
    for transport, wanted in (
        ("mqtt", "broker = None: must be a host and a port"),
        ("http", "must be 'mqtt' or 'flower'"),
    ):
        (tmp_path / "c.toml").write_text(text.format(transport))
        with pytest.raises(SettingError, match=wanted):
            read(CloudSettings, tmp_path / "c.toml")
    (tmp_path / "c.toml").write_text(text.format("flower"))
    assert read(CloudSettings, tmp_path / "c.toml").broker is None


def test_no_file_says_where_files_come_from(tmp_path: Path) -> None:
    with refused("unreadable-file"):
        read(DeviceSettings, tmp_path / "none.toml")


def test_a_device_reads_and_writes_below_its_own_name() -> None:
    assert mqtt.topic_parts(mqtt.topic("p", "in", "north", "a")) == ("in", ("north", "a"))
    assert mqtt.topic_parts(mqtt.topic("p", "out", "a", "north")) == ("out", ("a", "north"))
    assert mqtt.topic_parts(mqtt.topic("p", "status", "a")) == ("status", ("a",))
    assert mqtt.topic_parts("else/p/status/a") == ("", ())


def test_a_link_tries_for_an_hour_and_then_connects(tmp_path: Path) -> None:
    """The clock is ours: an hour of waiting passes at once, and then there is a broker."""
    from live_processes import BROKER, broker

    if BROKER is None:
        pytest.skip("needs Mosquitto")
    port = free_port()
    waited = [0.0]
    there = threading.Event()
    started = []

    def wait(seconds: float) -> None:
        waited[0] += seconds
        if waited[0] > 3600 and not started:
            started.append(broker(tmp_path, port))

    link = MqttConnection("d0", Endpoint("127.0.0.1", port), wait=wait)
    link.start([], lambda topic, payload: None, there.set)
    try:
        assert there.wait(60)
        assert 3600 < waited[0] < 3700
    finally:
        link.stop()
        for one in started:
            one.terminate()
            one.wait()


@pytest.mark.parametrize("module", ["device", "flower", "device_sum", "sums_worker"])
def test_what_idles_or_is_started_for_each_message_does_not_wait_for_pytorch(module: str) -> None:
    pytest.importorskip("flwr")
    program = f"import sys, fedfloor.deploy.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
