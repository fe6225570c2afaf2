"""Certificates: they prove who somebody is, and what is wrong with one is told."""

from __future__ import annotations

import dataclasses
import datetime as dt
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st

from fedfloor.deploy import authority, provision
from fedfloor.deploy.authority import Holder
from fedfloor.deploy.settings import Tls
from parks import NOW, plant, provisioned
from refusals import refused


def test_every_certificate_leads_to_the_authority_and_names_its_holder(tmp_path: Path) -> None:
    park = plant(tmp_path)
    done = provisioned(park, tmp_path)
    root = authority.certificate(tmp_path / "out/authority/ca.crt")
    verifier = PolicyBuilder().store(Store([root])).time(NOW).build_client_verifier
    assert [row["state"] for row in done.rows] == [
        "new"
    ] * 13  # cloud, broker, alarms; 2 × (broker, bridge, edge); 4 devices
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
    for place, stem, purpose in (
        ("devices/n0", "device", "sslclient"), ("cloud", "cloud", "sslclient"), ("cloud", "broker", "sslserver"),
    ):  # fmt: skip
        words = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-crl_check", "-CRLfile",
                 str(tmp_path / "out/authority/revoked.crl"), "-CAfile", str(tmp_path / "out/authority/ca.crt"),
                 str(tmp_path / "out" / place / f"{stem}.crt")]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout


def test_private_keys_are_their_owners_alone(tmp_path: Path) -> None:
    provisioned(plant(tmp_path), tmp_path)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }
    assert len(modes) == 14  # 13 certificates, the authority
    assert set(modes.values()) == {0o600}


def test_the_authoritys_key_goes_to_no_machine(tmp_path: Path) -> None:
    provisioned(plant(tmp_path), tmp_path)
    key = (tmp_path / "out/authority/ca.key").read_bytes()
    holders = [p for p in (tmp_path / "out").rglob("*") if p.is_file() and key in p.read_bytes()]
    assert holders == [tmp_path / "out/authority/ca.key"]


# -- what is wrong with a certificate ----------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    provisioned(plant(tmp_path), tmp_path)
    place = tmp_path / "out/devices/n0"
    return Tls(place / "ca.crt", place / "device.crt", place / "device.key")


def test_a_good_certificate_passes_for_its_own_name_alone(tls: Tls) -> None:
    authority.check(tls, "n0", NOW)
    with refused("wrong-certificate"):
        authority.check(tls, "n1", NOW)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (
            366,
            "wrong-certificate",
        ),
        (-1, "wrong-certificate"),
        (3660, "wrong-certificate"),
    ],
)
def test_what_is_out_of_time_is_told_with_the_clock(tls: Tls, days: int, said: str) -> None:
    with refused(said):
        authority.check(tls, "n0", NOW + dt.timedelta(days=days))


def test_mixed_up_files_are_told(tls: Tls, tmp_path: Path) -> None:
    with refused("wrong-certificate"):
        authority.check(tls, "n1", NOW)
    other = tmp_path / "out/devices/n1"
    with refused("wrong-certificate"):
        authority.check(dataclasses.replace(tls, key=other / "device.key"), "n0", NOW)
    (tmp_path / "b").mkdir()
    provisioned(plant(tmp_path / "b"), tmp_path / "b")
    with refused("wrong-certificate"):
        authority.check(dataclasses.replace(tls, ca=tmp_path / "b/out/authority/ca.crt"), "n0", NOW)
    tls.cert.write_text("not a certificate")
    with refused("not-a-certificate"):
        authority.check(tls, "n0", NOW)
    tls.cert.unlink()
    with refused("unreadable-file"):
        authority.check(tls, "n0", NOW)


def test_a_folder_is_looked_over(tls: Tls, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert provision.faults(out, NOW) == []
    tls.key.chmod(0o644)
    assert [one for one in provision.faults(out, NOW) if "0644" in one and "chmod 600" in one]
    tls.key.chmod(0o600)
    (out / "factories/north/acl").unlink()
    assert provision.faults(out, NOW) == [f"{out}/factories/north/acl is missing"]
    soon = provision.faults(out / "devices/n1", NOW + dt.timedelta(days=340))
    assert soon == [f"{out}/devices/n1/device.crt is valid only until 2031-05-01: run fedfloor park provision again "
                    "and copy the renewed files"]  # fmt: skip
    with refused("--check"):
        provision.faults(tmp_path / "nowhere", NOW)


def test_refusals_name_their_reason() -> None:
    for text, said in (
        ("[SSL] sslv3 alert certificate revoked", "it was revoked"),
        ("certificate verify failed: certificate is not yet valid", "clock shows"),
        ("certificate verify failed: Hostname mismatch", "another address"),
        ("certificate verify failed: unable to get local issuer", "ca.crt did not sign"),
        ("something else", "made no secure connection: "),
    ):
        assert said in authority.refusal(text, "north:8883")


@given(st.integers(1, 3650), st.integers(0, 3649))
def test_a_certificate_never_outlives_its_authority(days: int, later: int) -> None:
    ca = authority.found("plant", NOW)
    cert, _ = authority.issue(ca, Holder("x"), days, NOW + dt.timedelta(days=later))
    made = x509.load_pem_x509_certificate(cert)
    assert made.not_valid_after_utc <= ca.cert.not_valid_after_utc
