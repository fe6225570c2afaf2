"""Park files, and what is provisioned from them: certificates that prove who somebody is, files that stay."""

from __future__ import annotations

import dataclasses
import datetime as dt
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st

from commands import Command
from fedfloor.deploy import authority, inspect, park_file, provision, settings
from fedfloor.deploy.authority import Holder
from fedfloor.deploy.park_file import Device, ParkFile
from fedfloor.deploy.settings import CloudSettings, DeviceSettings, EdgeSettings, Tls
from fedfloor.errors import RunError, SettingError
from parks import plant

NOW = dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)
PARK = """
experiment = "tiny.toml"
[cloud]
address = "cloud.example"
[[factory]]
name = "north"
address = "10.0.0.2"
[[factory]]
name = "south"
address = "10.0.0.3"
[[device]]
name = "camera"
factory = "north"
[[device]]
name = "robot"
factory = "south"
data = { kind = "folder", path = "/srv/robot" }
"""


def bare(park: ParkFile, folder: Path, **more: object) -> provision.Done:
    return provision.provision(park, folder / "out", at=NOW, **more)  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    }


# -- park files --------------------------------------------------------------------------------------------------------


def test_a_park_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "hall.toml").write_text(PARK)
    park = park_file.read(tmp_path / "hall.toml")
    assert park.name == "hall"
    assert park.experiment == tmp_path / "tiny.toml"
    assert [(d.name, d.number) for d in park.device] == [("camera", 0), ("robot", 1)]
    assert park.device[1].source.path == Path("/srv/robot")
    assert [one.name for one in park.devices_of(park.factory[1])] == ["robot"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "robot"', 'name = "camera"', ["two of one name", "'camera'", "factory 'north'", "factory 'south'"]),
        ('name = "robot"', 'name = "broker-north"', ["two of one name", "the broker of factory 'north'"]),
        ('name = "robot"', 'name = "South"', ["two of one name", "the edge of factory 'south'"]),
        ('name = "robot"', 'name = "superlink"', ["two of one name", "the cloud"]),
        ('factory = "south"', 'factory = "soth"', ["device 'robot'", "unknown factory 'soth'", "Did you mean 'south'"]),
        ('name = "robot"', 'name = "a/+"', ["device name = 'a/+'", "letters"]),
        ('name = "robot"', 'name = "robot"\nnumber = 0', ["'camera' and 'robot'", "number 0"]),
        ('"10.0.0.3"', '"10.0.0.2"', ["broker of factory 'north'", "factory 'south'", "port 8883 of 10.0.0.2"]),
        ('"cloud.example"', '"10.0.0.2"\nport = 8883', ["SuperLink", "broker of factory 'north'", "port 8883"]),
        ('"10.0.0.3"', '"10.0.0.3:8883"', ["address = '10.0.0.3:8883'", "without a port"]),
        ('"10.0.0.3"', '"10.0.0.3"\nport = 70000', ["port = 70000", "65535"]),
        ('"10.0.0.3"', '"10.0.0.3"\nprt = 1', ["factory 2 'south'", "unknown key 'prt'", "'port'"]),
        ('kind = "folder", path = "/srv/robot"', 'kind = "foldr"', ["device 'robot' data", "foldr", "folder"]),
        ('kind = "folder", path', 'kind = "folder", pth', ["key in device 'robot' data", "'pth'", "'path'"]),
        ('name = "robot"', 'name = "robot"\nx_m = 1.0', ["device 'robot'", "both given"]),
        ('name = "robot"', "", ["device 2.name", "missing"]),
        ("[[device]]", "[device]", ["valid TOML"]),
        ('experiment = "tiny.toml"', "", ["experiment", "missing"]),
    ],
)  # fmt: skip
def test_a_wrong_park_file_is_refused(tmp_path: Path, old: str, new: str, said: list[str]) -> None:
    assert old in PARK
    (tmp_path / "hall.toml").write_text(
        PARK.replace(old, new, 1) if old != 'name = "robot"' else PARK.replace(old, new)
    )
    with pytest.raises(SettingError) as error:
        park_file.read(tmp_path / "hall.toml")
    for words in said:
        assert words in str(error.value)


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), min_size=2, max_size=12, unique=True)


@given(NAMES, st.data())
def test_a_park_file_survives_being_written(names: list[str], data: st.DataObject) -> None:
    reserved = {"superlink"}
    names = [name for name in names if name not in reserved] or ["a", "b"]
    factories = tuple(
        park_file.Factory(name, f"10.0.0.{i + 1}") for i, name in enumerate(names[: max(1, len(names) // 3)])
    )
    rest = names[len(factories) :] or ["z-device"]
    devices = tuple(Device(name, data.draw(st.sampled_from(factories)).name) for name in rest)
    park = ParkFile("hall", Path("/x.toml"), park_file.Cloud("cloud"), factories, devices)
    assert park_file.from_document(tomllib.loads(settings.to_toml(park)), Path("/hall.toml")) == park


# -- certificates ------------------------------------------------------------------------------------------------------


def test_every_certificate_leads_to_the_authority_and_names_its_holder(tmp_path: Path) -> None:
    park = plant(tmp_path)
    done = bare(park, tmp_path)
    root = authority.certificate(tmp_path / "out/authority/ca.crt")
    verifier = PolicyBuilder().store(Store([root])).time(NOW).build_client_verifier
    assert [row["state"] for row in done.rows] == ["new"] * 11  # cloud, 2 × (broker, bridge, edge), 4 devices
    for name, stem in (("factories/north", "edge"), ("devices/s1", "device"), ("factories/south", "bridge")):
        cert = authority.certificate(tmp_path / "out" / name / f"{stem}.crt")
        holder = {"edge": "north", "device": "s1", "bridge": "bridge-south"}[stem]
        assert authority.common_name(cert) == holder
        cert.verify_directly_issued_by(root)
        uses = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]  # a device cannot pass for a broker
        assert isinstance(cert.public_key(), ec.EllipticCurvePublicKey)
        assert cert.public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
    server = authority.certificate(tmp_path / "out/factories/north/broker.crt")
    assert set(authority.addresses(server)) == {"127.0.0.1", "localhost"}
    uses = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]
    chain = PolicyBuilder().store(Store([root])).time(NOW).build_server_verifier(x509.DNSName("localhost"))
    assert chain.verify(server, []) == [server, root]
    assert verifier is not None


def test_openssl_agrees(tmp_path: Path) -> None:
    provision.provision(plant(tmp_path), tmp_path / "out")
    for place, stem, purpose in (("devices/n0", "device", "sslclient"), ("cloud", "superlink", "sslserver")):
        words = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-crl_check", "-CRLfile",
                 str(tmp_path / "out/authority/revoked.crl"), "-CAfile", str(tmp_path / "out/authority/ca.crt"),
                 str(tmp_path / "out" / place / f"{stem}.crt")]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    bare(plant(tmp_path), tmp_path)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }
    assert len(modes) == 14  # 11 certificates, 2 Flower nodes, the authority
    assert set(modes.values()) == {0o600}


def test_the_authoritys_key_goes_to_no_machine(tmp_path: Path) -> None:
    bare(plant(tmp_path), tmp_path)
    key = (tmp_path / "out/authority/ca.key").read_bytes()
    holders = [p for p in (tmp_path / "out").rglob("*") if p.is_file() and key in p.read_bytes()]
    assert holders == [tmp_path / "out/authority/ca.key"]


def test_flower_nodes_have_keys_in_ssh_format(tmp_path: Path) -> None:
    bare(plant(tmp_path), tmp_path)
    private = load_ssh_private_key((tmp_path / "out/factories/north/node").read_bytes(), None)
    line = (tmp_path / "out/cloud/nodes/north.pub").read_bytes()
    public = load_ssh_public_key(line)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    assert line.startswith(b"ecdsa-sha2-nistp384 ")


# -- run again ---------------------------------------------------------------------------------------------------------


def test_run_again_nothing_changes(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    before = content(tmp_path / "out")
    done = bare(park, tmp_path)
    assert not done.written
    assert {row["state"] for row in done.rows} == {"kept"}
    assert content(tmp_path / "out") == before


def test_a_new_device_leaves_the_others_files_alone(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    before = content(tmp_path / "out")
    more = dataclasses.replace(park, device=(*park.device, Device("n2", "north")))
    done = bare(more, tmp_path)
    after = content(tmp_path / "out")
    changed = {name for name in before if before[name] != after[name]}
    # Its own broker's rights and bridge, the edges that may visit it, the other end of the bridge, and the memory.
    assert changed == {
        "factories/north/acl", "factories/north/mosquitto.conf", "factories/north/edge-north.toml",
        "factories/south/acl", "factories/south/edge-south.toml", "authority/index.json",
    }  # fmt: skip
    assert {row["name"] for row in done.rows if row["state"] == "new"} == {"n2"}
    assert all(name.startswith("devices/n2/") for name in after.keys() - before.keys())
    assert any("restart its broker" in note for note in done.notes)


def test_a_device_keeps_its_number(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    before = content(tmp_path / "out")
    devices = (Device("first", "north"), *(dataclasses.replace(one, number=None) for one in park.device))
    with pytest.raises(SettingError, match=r"'n0' was provisioned with number 0 and would now have 1.*at the end"):
        bare(dataclasses.replace(park, device=devices), tmp_path)
    taken = dataclasses.replace(park, device=(*park.device[1:], Device("new", "north", number=0)))
    with pytest.raises(SettingError, match=r"'new' has number 0, which 'n0' was provisioned with"):
        bare(taken, tmp_path)
    assert content(tmp_path / "out") == before


def test_revoked_serials_are_listed_and_nobody_elses(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    serial = authority.certificate(tmp_path / "out/devices/n0/device.crt").serial_number
    done = bare(park, tmp_path, revoke=["n0"])
    root = authority.certificate(tmp_path / "out/authority/ca.crt")
    for place in ("authority", "factories/north", "factories/south"):
        listed = x509.load_pem_x509_crl((tmp_path / "out" / place / "revoked.crl").read_bytes())
        assert [one.serial_number for one in listed] == [serial]
        assert listed.is_signature_valid(root.public_key())  # type: ignore[arg-type]
        assert listed.next_update_utc == root.not_valid_after_utc  # one that ran out would shut everybody out
    assert "user n0\n" not in (tmp_path / "out/factories/north/acl").read_text()
    assert not list((tmp_path / "out/devices/n0").glob("*"))
    assert sum("reload" in note for note in done.notes) == 2
    again = bare(park, tmp_path)  # it stays out although the park file still names it
    assert {row["state"] for row in again.rows if row["name"] == "n0"} == {"revoked"}
    assert not again.written
    back = bare(park, tmp_path, renew=["n0"])
    assert {row["state"] for row in back.rows if row["name"] == "n0"} == {"new"}
    assert authority.certificate(tmp_path / "out/devices/n0/device.crt").serial_number != serial
    listed = x509.load_pem_x509_crl((tmp_path / "out/factories/north/revoked.crl").read_bytes())
    assert [one.serial_number for one in listed] == [serial]


def test_certificates_are_renewed_in_their_last_month(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    late = NOW + dt.timedelta(days=365 - 29)
    done = provision.provision(park, tmp_path / "out", at=late)
    assert {row["state"] for row in done.rows} == {"renewed"}
    assert not inspect.faults(tmp_path / "out", late)
    moved = dataclasses.replace(park.factory[0], address="10.9.9.9")
    done = provision.provision(dataclasses.replace(park, factory=(moved, park.factory[1])), tmp_path / "out", at=late)
    assert [row["name"] for row in done.rows if row["state"] == "renewed"] == ["broker-north"]


def test_a_device_that_left_the_park_file_is_named(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    fewer = dataclasses.replace(park, device=park.device[:3])
    assert any("'s1' is no longer in the park file" in note for note in bare(fewer, tmp_path).notes)
    assert not any("'s1'" in note and "no longer" in note for note in bare(fewer, tmp_path, revoke=["s1"]).notes)


@pytest.mark.parametrize("spoilt", ["elsewhere", "name", "unknown", "experiment"])
def test_nothing_is_half_written(tmp_path: Path, spoilt: str) -> None:
    park, more = plant(tmp_path), {}
    if spoilt == "elsewhere":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
    else:
        bare(park, tmp_path)
    if spoilt == "name":
        park = dataclasses.replace(park, name="another")
    elif spoilt == "unknown":
        more = {"revoke": ["nobody"]}
    elif spoilt == "experiment":
        park = dataclasses.replace(park, experiment=tmp_path / "gone.toml")
    before = content(tmp_path)
    with pytest.raises(SettingError):
        bare(park, tmp_path, **more)
    assert content(tmp_path) == before


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    before, count = content(tmp_path), []

    def full(descriptor: int) -> None:
        count.append(descriptor)
        if len(count) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(provision.os, "fsync", full)
    with pytest.raises(RunError, match="No space left"):
        bare(dataclasses.replace(park, device=(*park.device, Device("n2", "north"))), tmp_path)
    assert content(tmp_path) == before


# -- settings ----------------------------------------------------------------------------------------------------------


def test_every_process_can_read_its_settings(tmp_path: Path) -> None:
    park = plant(tmp_path)
    bare(park, tmp_path)
    cloud = settings.read(CloudSettings, tmp_path / "out/cloud/cloud.toml")
    edge = settings.read(EdgeSettings, tmp_path / "out/factories/south/edge-south.toml")
    device = settings.read(DeviceSettings, tmp_path / "out/devices/s1/device-s1.toml")
    assert [one.name for one in cloud.edges] == ["north", "south"]
    assert [(one.name, one.device) for one in edge.devices] == [("s0", 2), ("s1", 3)]
    assert [(one.name, one.device, one.edge) for one in edge.neighbours] == [("n0", 0, "north"), ("n1", 1, "north")]
    assert (device.device, device.factory, device.broker) == (3, 1, edge.broker)
    assert device.tls is not None
    authority.check(device.tls, "s1", NOW)


# -- what is wrong with a certificate ----------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    bare(plant(tmp_path), tmp_path)
    place = tmp_path / "out/devices/n0"
    return Tls(place / "ca.crt", place / "device.crt", place / "device.key")


def test_a_good_certificate_passes(tls: Tls) -> None:
    authority.check(tls, "n0", NOW)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (366, r"device.crt: the certificate of 'n0' expired on 2031-05-01 12:00 UTC.*clock says 2031-05-02.*provision"),
        (-1, r"is good only from 2030-05-01 11:00 UTC on.*clock says 2030-04-30 12:00 UTC: is it slow"),
        (3660, r"ca.crt: the certificate of 'fedfloor plant' expired"),
    ],
)
def test_what_is_out_of_time_is_told_with_the_clock(tls: Tls, days: int, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        authority.check(tls, "n0", NOW + dt.timedelta(days=days))


def test_mixed_up_files_are_told(tls: Tls, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"'n0' must be that of 'n1'"):
        authority.check(tls, "n1", NOW)
    other = tmp_path / "out/devices/n1"
    with pytest.raises(SettingError, match=r"n1/device.key is not the key of .*n0/device.crt"):
        authority.check(dataclasses.replace(tls, key=other / "device.key"), "n0", NOW)
    (tmp_path / "b").mkdir()
    bare(plant(tmp_path / "b"), tmp_path / "b")
    with pytest.raises(SettingError, match="was not signed by fedfloor plant"):
        authority.check(dataclasses.replace(tls, ca=tmp_path / "b/out/authority/ca.crt"), "n0", NOW)
    tls.cert.write_text("not a certificate")
    with pytest.raises(SettingError, match="no certificate in PEM format"):
        authority.check(tls, "n0", NOW)
    tls.cert.unlink()
    with pytest.raises(SettingError, match="No such file"):
        authority.check(tls, "n0", NOW)


def test_a_folder_is_looked_over(tls: Tls, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert inspect.faults(out, NOW) == []
    tls.key.chmod(0o644)
    assert [one for one in inspect.faults(out, NOW) if "0644" in one and "chmod 600" in one]
    tls.key.chmod(0o600)
    (out / "factories/north/acl").unlink()
    assert inspect.faults(out, NOW) == [f"{out}/factories/north/acl is missing"]
    soon = inspect.faults(out / "devices/n1", NOW + dt.timedelta(days=340))
    assert soon == [f"{out}/devices/n1/device.crt is good only until 2031-05-01: run fedfloor provision again and copy "
                    "what it renews"]  # fmt: skip
    with pytest.raises(SettingError, match=r"holds no ca.crt"):
        inspect.faults(tmp_path / "nowhere", NOW)


def test_refusals_name_their_reason() -> None:
    for text, said in (
        ("[SSL] sslv3 alert certificate revoked", "it was revoked"),
        ("certificate verify failed: certificate is not yet valid", "clock says"),
        ("certificate verify failed: Hostname mismatch", "another address"),
        ("certificate verify failed: unable to get local issuer", "ca.crt did not sign"),
        ("something else", "made no secure connection: "),
    ):
        assert said in str(authority.refusal(ssl.SSLError(1, text), "north:8883"))


@given(st.integers(1, 3650), st.integers(0, 3649))
def test_a_certificate_never_outlives_its_authority(days: int, later: int) -> None:
    ca = authority.found("plant", NOW)
    cert, _ = authority.issue(ca, Holder("x"), days, NOW + dt.timedelta(days=later))
    made = x509.load_pem_x509_certificate(cert)
    assert made.not_valid_after_utc <= ca.cert.not_valid_after_utc


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_provisions_checks_and_revokes(command: Command) -> None:
    (command.folder / "hall.toml").write_text(PARK)
    said = command("provision", "hall.toml", "--out", "out")
    assert said.code == 0, said
    assert "ca.key must stay with you" in said.out
    assert command("provision", "--check", "out").code == 0
    told = command("provision", "hall.toml", "--out", "out", "--revoke", "camera", "--json").document
    assert {row["state"] for row in told["rows"] if row["name"] == "camera"} == {"revoked"}
    assert any("reload" in note for note in told["notes"])
    (command.folder / "out/devices/robot/device.key").chmod(0o640)
    assert command("provision", "--check", "out").code == 1


def test_the_command_refuses(command: Command) -> None:
    (command.folder / "hall.toml").write_text(PARK.replace("tiny", "tinny"))
    command.refused(command("provision", "hall.toml"), "experiment", "tinny.toml")
    command.refused(command("provision", "hal.toml"), "hal.toml", "Did you mean 'hall.toml'?")
    command.refused(command("provision"), "needs a park file")
    command.refused(command("provision", "--check", "nowhere"), "nowhere")
