"""Brokers are reached by IPv4 and by IPv6, and what cannot be reached is named."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from fedfloor.deploy import provision, settings
from fedfloor.deploy.mqtt import MqttConnection
from fedfloor.deploy.park_file import CloudTable, FactoryTable
from fedfloor.deploy.settings import DeviceSettings, Endpoint
from parks import broker, free_port, needs_mosquitto, plant, provisioned, until
from refusals import refused


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as one:
        try:
            one.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_an_ipv6_address_has_brackets_before_its_port() -> None:
    assert [str(Endpoint(host, 8883)) for host in ("::1", "10.0.0.3", "edge.plant")] == [
        "[::1]:8883", "10.0.0.3:8883", "edge.plant:8883",
    ]  # fmt: skip


def test_a_listener_of_the_other_kind_is_refused() -> None:
    for address, bind in (("::1", "0.0.0.0"), ("fd00::3", "10.0.0.3"), ("10.0.0.3", "::")):
        with refused("cloud.bind"):
            CloudTable(address, bind=bind)
        with refused("bind"):
            FactoryTable("north", address, bind=bind)
    for address, bind in (("::1", "::"), ("10.0.0.3", "0.0.0.0"), ("edge.plant", "0.0.0.0"), ("::1", None)):
        CloudTable(address, bind=bind)


def test_check_names_a_listener_that_cannot_be_reached(tmp_path: Path) -> None:
    provisioned(dataclasses.replace(plant(tmp_path), cloud=CloudTable("::1")), tmp_path)
    file = tmp_path / "out/cloud/mosquitto.conf"
    assert not list(provision.listener_faults(file.parent))
    file.write_text(file.read_text().replace("listener 8883", "listener 8883 0.0.0.0"))  # as earlier releases wrote it
    (fault,) = provision.listener_faults(file.parent)
    assert "0.0.0.0" in fault
    assert "::1" in fault


@pytest.mark.live
@pytest.mark.slow
@needs_mosquitto
@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6 on the loopback")
@pytest.mark.parametrize("address", ["::1", "127.0.0.1"])
def test_a_provisioned_broker_is_reached_over_tls_by_either_kind_of_address(tmp_path: Path, address: str) -> None:
    park = plant(tmp_path)
    north = FactoryTable("north", address, port=free_port())
    park = dataclasses.replace(park, factory=(north, park.factory[1]))
    provision.provision(park, tmp_path / "out")
    place = tmp_path / "out/devices/n0"
    device = settings.read(DeviceSettings, place / "device-n0.toml")
    with broker(tmp_path / "out/factories/north", north.port):
        link = MqttConnection("n0", device.broker, device.tls)
        link.start([], lambda *_: None, lambda: None)
        try:
            assert until(lambda: link.connected)
        finally:
            link.stop()
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):  # the broker has both
            with socket.socket(family) as one:
                assert one.connect_ex((host, north.port)) == 0
