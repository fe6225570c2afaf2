"""What is provisioned from a park file: files that stay as they are, and others that do not."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from commands import Command
from fedfloor import config
from fedfloor.base.errors import RunError, SettingError
from fedfloor.deploy import authority, provision, settings
from fedfloor.deploy.edge import Edge
from fedfloor.deploy.park_file import DeviceTable, ParkFile
from fedfloor.deploy.settings import CloudSettings, DataSource, DeviceSettings, EdgeSettings
from parks import NOW, PARK, plant, provisioned
from refusals import refused


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


def test_run_again_nothing_changes(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    before = content(tmp_path / "out")
    done = provisioned(park, tmp_path)
    assert not done.written
    assert {row["state"] for row in done.rows} == {"kept"}
    assert content(tmp_path / "out") == before


class KilledError(BaseException):
    """The end of a process, as far as one process can play it."""


@pytest.mark.parametrize("place", [1, 2])
def test_a_kill_leaves_no_certificate_with_another_key(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither half a park, which the next attempt would refuse, nor keys beside it."""

    def killed_at(number: int, **more: Any) -> None:
        calls = iter(range(1, 1000))

        def replace(one: Any, other: Any) -> None:
            if next(calls) == number:
                raise KilledError
            rename(one, other)

        rename = os.rename
        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            patch.setattr(os, "replace", replace)
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            provisioned(park, tmp_path, **more)

    park = plant(tmp_path)
    if place == 1:
        killed_at(1)
        assert not (tmp_path / "out").exists()
    provisioned(park, tmp_path)
    killed_at(place, renew=["n0"])
    for stage in tmp_path.glob(".out-*"):
        stage.rename(str(stage).replace(str(os.getpid()), "99999999"))  # of a process that is gone
    provisioned(park, tmp_path)
    device = tmp_path / "out/devices/n0"
    certified = authority.certificate(device / "device.crt").public_key()
    assert certified == authority.private_key(device / "device.key").public_key()
    assert not [*tmp_path.glob(".out-*")]


def test_a_new_device_leaves_the_others_files_alone(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    before = content(tmp_path / "out")
    more = dataclasses.replace(park, device=(*park.device, DeviceTable("n2", "north")))
    done = provisioned(more, tmp_path)
    after = content(tmp_path / "out")
    changed = {name for name in before if before[name] != after[name]}
    # Its own broker's rights and bridge, the edges that may visit it, the other bridge, what the cloud's broker relays,
    # the lists of devices at the cloud and where alarms are kept, the memory, and the last entry of the journal.
    assert changed == {
        "factories/north/acl", "factories/north/mosquitto.conf", "factories/north/edge-north.toml",
        "factories/south/mosquitto.conf", "factories/south/edge-south.toml", "authority/index.json", "cloud/cloud.toml",
        "cloud/acl", "authority/journal.head", "alarms/alarms.toml",
    }  # fmt: skip
    listed = [
        [one.name for one in edge.devices]
        for edge in settings.read(CloudSettings, tmp_path / "out/cloud/cloud.toml").edges
    ]
    assert listed == [["n0", "n1", "n2"], ["s0", "s1"]]
    assert any("copy cloud/cloud.toml" in note for note in done.notes)
    assert any("systemctl restart fedfloor-alarms" in note for note in done.notes)
    assert {row["name"] for row in done.rows if row["state"] == "new"} == {"n2"}
    assert all(name.startswith(("devices/n2/", "registry/journal/2")) for name in after.keys() - before.keys())
    assert any("restart its broker" in note for note in done.notes)


def test_a_device_keeps_its_number(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    before = content(tmp_path / "out")
    devices = (DeviceTable("first", "north"), *(dataclasses.replace(one, number=None) for one in park.device))
    with refused("device"):
        provisioned(dataclasses.replace(park, device=devices), tmp_path)
    taken = dataclasses.replace(park, device=(*park.device[1:], DeviceTable("new", "north", number=0)))
    with refused("device"):
        provisioned(taken, tmp_path)
    assert content(tmp_path / "out") == before


def test_a_name_stays_with_devices_or_with_hubs(tmp_path: Path) -> None:
    """The key of a device that left would else speak as the edge of a factory with its name."""
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    before, (first, *others) = content(tmp_path / "out"), park.device
    renamed = (dataclasses.replace(park.factory[0], name=first.name), *park.factory[1:])
    moved = [dataclasses.replace(one, factory=first.name if one.factory == "north" else one.factory) for one in others]
    odd = dataclasses.replace(park.device[-1], name="bridge-north", factory="south", number=9)
    rest = [one for one in park.device if one.factory != "north"]
    for factories, devices, why in (
        (renamed, moved, rf"'{first.name}' \(edge\) was a device"),
        (park.factory[1:], [*rest, odd], r"'bridge-north' \(device\) was no device"),
    ):
        with pytest.raises(SettingError, match=why):
            provisioned(dataclasses.replace(park, factory=factories, device=tuple(devices)), tmp_path)
    assert content(tmp_path / "out") == before


def test_revoked_serials_are_listed_and_nobody_elses(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    serial = authority.certificate(tmp_path / "out/devices/n0/device.crt").serial_number
    done = provisioned(park, tmp_path, revoke=["n0"])
    root = authority.certificate(tmp_path / "out/authority/ca.crt")
    for place in ("authority", "cloud", "factories/north", "factories/south"):
        listed = x509.load_pem_x509_crl((tmp_path / "out" / place / "revoked.crl").read_bytes())
        assert [one.serial_number for one in listed] == [serial]
        assert listed.is_signature_valid(root.public_key())  # type: ignore[arg-type]
        assert listed.next_update_utc == root.not_valid_after_utc  # one that ran out would shut everybody out
    assert "user n0\n" not in (tmp_path / "out/factories/north/acl").read_text()
    assert not list((tmp_path / "out/devices/n0").glob("*"))
    assert sum("reload" in note for note in done.notes) == 3
    again = provisioned(park, tmp_path)  # it stays out although the park file still names it
    assert {row["state"] for row in again.rows if row["name"] == "n0"} == {"revoked"}
    assert not again.written
    back = provisioned(park, tmp_path, renew=["n0"])
    assert {row["state"] for row in back.rows if row["name"] == "n0"} == {"new"}
    assert authority.certificate(tmp_path / "out/devices/n0/device.crt").serial_number != serial
    listed = x509.load_pem_x509_crl((tmp_path / "out/factories/north/revoked.crl").read_bytes())
    assert [one.serial_number for one in listed] == [serial]


def test_who_is_revoked_is_so_with_every_certificate_he_had(tmp_path: Path) -> None:
    """A key is stolen, its owner gets a new one, is revoked and let in again: the thief must not come in with him."""
    park = plant(tmp_path)
    listed = []
    for words in ({}, {"renew": ["n0"]}, {"revoke": ["n0"]}, {"renew": ["n0"]}):
        provisioned(park, tmp_path, **words)
        cert = tmp_path / "out/devices/n0/device.crt"
        listed += [authority.certificate(cert).serial_number] if cert.exists() else []
    stolen, second, now = listed
    crl = x509.load_pem_x509_crl((tmp_path / "out/factories/north/revoked.crl").read_bytes())
    assert {one.serial_number for one in crl} == {stolen, second}
    assert now not in (stolen, second)


def test_certificates_are_renewed_in_their_last_month(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    late = NOW + dt.timedelta(days=365 - 29)
    done = provision.provision(park, tmp_path / "out", at=late)
    assert {row["state"] for row in done.rows} == {"renewed"}
    assert not provision.faults(tmp_path / "out", late)
    moved = dataclasses.replace(park.factory[0], address="10.9.9.9")
    done = provision.provision(dataclasses.replace(park, factory=(moved, park.factory[1])), tmp_path / "out", at=late)
    assert [row["name"] for row in done.rows if row["state"] == "renewed"] == ["broker-north"]


def test_certificates_state_that_they_are_a_devices_and_earlier_ones_are_renewed(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    found = {path: authority.certificate(path) for path in (tmp_path / "out").rglob("*.crt")}
    assert {authority.common_name(cert) for cert in found.values() if authority.of_device(cert)} == {
        device.name for device in park.device
    }
    assert {path.parent.parent.name for path, cert in found.items() if authority.of_device(cert)} == {"devices"}
    folder = tmp_path / "out/devices/n0"
    holder = authority.Holder("n0")  # as before devices' certificates stated it
    cert, key = authority.issue(authority.load(tmp_path / "out/authority"), holder, 365, NOW)
    (folder / "device.crt").write_bytes(cert)
    (folder / "device.key").write_bytes(key)
    done = provisioned(park, tmp_path)
    assert [row["name"] for row in done.rows if row["state"] == "renewed"] == ["n0"]
    assert authority.of_device(authority.certificate(folder / "device.crt"))


def test_a_device_that_left_the_park_file_is_named(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    fewer = dataclasses.replace(park, device=park.device[:3])
    assert any("'s1' is no longer in the park file" in note for note in provisioned(fewer, tmp_path).notes)
    assert not any("'s1'" in note and "no longer" in note for note in provisioned(fewer, tmp_path, revoke=["s1"]).notes)


@pytest.mark.parametrize("spoilt", ["elsewhere", "name", "unknown", "experiment"])
def test_nothing_is_half_written(tmp_path: Path, spoilt: str) -> None:
    park = plant(tmp_path)
    more = {}
    if spoilt == "elsewhere":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
    else:
        provisioned(park, tmp_path)
    if spoilt == "name":
        park = dataclasses.replace(park, name="another")
    elif spoilt == "unknown":
        more = {"revoke": ["nobody"]}
    elif spoilt == "experiment":
        park = dataclasses.replace(park, experiment=tmp_path / "gone.toml")
    before = content(tmp_path)
    with pytest.raises(SettingError):
        provisioned(park, tmp_path, **more)
    assert content(tmp_path) == before


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    before = content(tmp_path)
    count = []

    def full(descriptor: int) -> None:
        count.append(descriptor)
        if len(count) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(provision.os, "fsync", full)
    with refused("--out", RunError):
        provisioned(dataclasses.replace(park, device=(*park.device, DeviceTable("n2", "north"))), tmp_path)
    assert content(tmp_path) == before


# -- settings ----------------------------------------------------------------------------------------------------------


def test_every_process_can_read_its_settings(tmp_path: Path) -> None:
    park = plant(tmp_path)
    provisioned(park, tmp_path)
    cloud = settings.read(CloudSettings, tmp_path / "out/cloud/cloud.toml")
    edge = settings.read(EdgeSettings, tmp_path / "out/factories/south/edge-south.toml")
    device = settings.read(DeviceSettings, tmp_path / "out/devices/s1/device-s1.toml")
    assert [one.name for one in cloud.edges] == ["north", "south"]
    assert [(one.name, one.device) for one in edge.devices] == [("s0", 2), ("s1", 3)]
    assert [(one.name, one.device, one.edge) for one in edge.neighbours] == [("n0", 0, "north"), ("n1", 1, "north")]
    assert (device.device, device.factory, device.broker) == (3, 1, edge.broker)
    assert cloud.broker == edge.cloud == settings.Endpoint("127.0.0.1", 8883)
    assert cloud.tls is not None
    authority.check(cloud.tls, "cloud", NOW)
    assert device.tls is not None
    authority.check(device.tls, "s1", NOW)


def test_sensors_and_an_agent_without_pytorch_have_units_of_their_own(tmp_path: Path) -> None:
    park = plant(tmp_path)
    buffer = DataSource("folder", Path("state/press.sqlite"))
    first = dataclasses.replace(park.device[0], data=buffer, sense="press.toml")
    second = dataclasses.replace(park.device[1], predict="/srv/rows", agent=True)
    provisioned(dataclasses.replace(park, device=(first, second, *park.device[2:])), tmp_path)
    unit = (tmp_path / "out/devices/n0/fedfloor-sense.service").read_text()
    assert "/fedfloor park sense press.toml --into state/press.sqlite\n" in unit
    assert "sense press.toml" in (tmp_path / "out/devices/n0/compose.yaml").read_text()
    assert "/fedfloor-agent device-n1.toml\n" in (tmp_path / "out/devices/n1/fedfloor-device.service").read_text()
    with refused("sense"):
        DeviceTable("n0", "north", sense="press.toml")
    with refused("agent"):
        DeviceTable("n0", "north", agent=True)


def test_with_flower_the_cloud_has_no_broker(tmp_path: Path) -> None:
    park = plant(tmp_path)
    park = dataclasses.replace(park, cloud=dataclasses.replace(park.cloud, transport="flower"))
    with refused("method"):
        provisioned(park, tmp_path)
    park.experiment.write_text('name = "given"\nmethod.name = "hierfavg"\n')
    provisioned(park, tmp_path)
    files = {"ca.crt", "cloud.crt", "cloud.key", "cloud.toml", "experiment.toml"}  # its messages are signed
    assert {path.name for path in (tmp_path / "out/cloud").iterdir()} == files
    cloud = settings.read(CloudSettings, tmp_path / "out/cloud/cloud.toml")
    assert (cloud.transport, cloud.broker) == ("flower", None)
    assert settings.read(EdgeSettings, tmp_path / "out/factories/south/edge-south.toml").cloud is None


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_provisions_checks_and_revokes(command: Command) -> None:
    (command.folder / "hall.toml").write_text(PARK)
    said = command("park", "provision", "hall.toml", "--out", "out")
    assert said.code == 0, said
    assert "keep authority/ca.key secret" in said.out
    assert command("park", "provision", "--check", "out").code == 0
    told = command("park", "provision", "hall.toml", "--out", "out", "--revoke", "camera", "--json").document
    assert {row["state"] for row in told["rows"] if row["name"] == "camera"} == {"revoked"}
    assert any("reload" in note for note in told["notes"])
    (command.folder / "out/devices/robot/device.key").chmod(0o640)
    assert command("park", "provision", "--check", "out").code == 1


def test_the_command_refuses(command: Command) -> None:
    (command.folder / "hall.toml").write_text(PARK.replace("tiny", "tinny"))
    command.refused(command("park", "provision", "hall.toml"), "experiment", "tinny.toml")
    command.refused(command("park", "provision", "hal.toml"), "hal.toml", "Did you mean 'hall.toml'?")
    command.refused(command("park", "provision"), "needs a park file")
    command.refused(command("park", "provision", "--check", "nowhere"), "nowhere")


def test_what_the_experiment_says_otherwise_is_noted(tmp_path: Path) -> None:
    park = plant(tmp_path)
    park.experiment.write_text('name = "given"\npark = { devices = 5, factories = 2 }\n')
    first, second, third = provisioned(park, tmp_path).notes
    assert first == "warning: the experiment has 5 devices, the park file 4: set park.devices = 4 in given.toml"
    assert second.endswith("differs from the park file's: set park.assignment = [0, 0, 1, 1] in given.toml")
    assert third.startswith("warning: the mean takes every update of ordinary length")
    right = 'name = "given"\npark = { devices = 4, factories = 2, assignment = [0, 0, 1, 1] }\n'
    park.experiment.write_text(right + 'method.mix = "median"\n')
    assert not provisioned(park, tmp_path).notes[1:]  # but that a file was written anew
    park.experiment.write_text(right + 'method.travel = "secure-sum"\n')
    assert "in place of secure sums" in provisioned(park, tmp_path).notes[-1]
    park.experiment.write_text('name = "given"\npark = { devces = 5 }\n')
    before = content(tmp_path)
    with refused("unknown-key"):
        provisioned(park, tmp_path)
    assert content(tmp_path) == before


def test_a_park_file_is_checked_beside_its_folder_and_its_experiment(command: Command) -> None:
    (command.folder / "hall.toml").write_text(PARK)
    assert command("park", "provision", "hall.toml", "--out", "out").code == 0
    found = command("park", "provision", "hall.toml", "--check", "out")
    assert found.code == 1
    assert "set park.devices = 2 in tiny.toml" in found.out
    (command.folder / "tiny.toml").write_text(
        'name = "tiny"\npark = { devices = 2, factories = 2, assignment = [0, 1] }\n'
    )
    assert command("park", "provision", "hall.toml", "--check", "out").code == 0
    (command.folder / "hall.toml").write_text(PARK + '[[device]]\nname = "press"\nfactory = "north"\n')
    found = command("park", "provision", "hall.toml", "--check", "out")
    assert found.code == 1
    assert "device 'press' was not provisioned, or was revoked" in found.out


@pytest.mark.parametrize("name", ["device-n0", "edge-north"])
def test_a_process_with_an_expired_certificate_does_not_start(
    command: Command, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provisioned(plant(command.folder), command.folder)
    monkeypatch.setattr(authority, "now", lambda: NOW + dt.timedelta(days=400))
    kind, _, who = name.partition("-")
    place = {"device": "devices", "edge": "factories"}[kind]
    command.refused(
        command("park", kind, f"out/{place}/{who}/{name}.toml"), f"certificate of '{who}' expired on 2031-05-01"
    )


def _visitors(folder: Path, park: ParkFile) -> dict[str, tuple[str, ...]]:
    """The edges of other factories from which each device takes requests."""
    files = {one.name: folder / "out/devices" / one.name / f"device-{one.name}.toml" for one in park.device}
    return {name: settings.read(DeviceSettings, file).visitors for name, file in files.items()}


def test_where_rounds_stay_within_factories_no_other_factorys_edge_has_a_way_to_a_device(tmp_path: Path) -> None:
    park = plant(tmp_path)
    park.experiment.write_text('name = "given"\npark = { devices = 4, factories = 2 }\nmethod.name = "hierfavg"\n')
    provisioned(park, tmp_path)
    for one in park.factory:
        place = tmp_path / "out" / "factories" / one.name
        other = {"north", "south"} - {one.name}
        (far,) = other
        assert "connection " not in (place / "mosquitto.conf").read_text()
        assert not any(far in line for line in (place / "acl").read_text().splitlines())
        assert "in/+/" not in (place / "acl").read_text()
        assert "bridge" not in (tmp_path / "out/cloud/acl").read_text()
        read = settings.read(EdgeSettings, place / f"edge-{one.name}.toml")
        assert (read.reach, read.neighbours) == ("factory", ())
        link: Any = None
        Edge(read, config.read(park.experiment), None, link)
        ring = config.from_table({"method": {"name": "ring"}, "park": {"devices": 4, "factories": 2}})
        with refused("method"):
            Edge(read, ring, None, link)
    assert _visitors(tmp_path, park) == {"n0": (), "n1": (), "s0": (), "s1": ()}
    park.experiment.write_text('name = "given"\nmethod.name = "ring"\n')
    done = provisioned(park, tmp_path)
    assert any("restart its broker" in note for note in done.notes)
    assert _visitors(tmp_path, park) == {"n0": ("south",), "n1": ("south",), "s0": ("north",), "s1": ("north",)}
    provisioned(park, tmp_path, revoke=["south"])
    assert _visitors(tmp_path, park)["n0"] == ()
    assert "connection north-cloud" in (tmp_path / "out/factories/north/mosquitto.conf").read_text()
    assert "topic write fedfloor/plant/in/south/n0" in (tmp_path / "out/cloud/acl").read_text()
